"""Copy loops as one copy: same bytes, same records, and only where nobody could run in between."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from codegen_harness import FakeAgent, FakeClocks, Fault, build, run

import tdist.language as dl
from tdist.kernels.ag_gemm import Tiling, ag_gemm, create_context
from tdist.platforms.sim.engine import Engine
from tdist.platforms.sim.world import World
from tdist.verify.heap import ensure_shmem


@triton.jit
def rows_of_tiles(x, y, rows, columns, B: tl.constexpr):
    """Along columns, cut on both axes."""
    i = tl.arange(0, B)
    for block in range(0, tl.cdiv(columns, B)):
        at = i[:, None] * columns + (block * B + i)[None, :]
        mask = (i[:, None] < rows) & ((block * B + i)[None, :] < columns)
        tl.store(y + at, tl.load(x + at, mask=mask, other=0), mask=mask)


@triton.jit
def columns_of_tiles(x, y, rows, columns, B: tl.constexpr):
    """Along rows, with pointers that move."""
    i = tl.arange(0, B)
    from_ptr = x + i[:, None] * columns + i[None, :]
    to_ptr = y + i[:, None] * columns + i[None, :]
    for block in range(0, tl.cdiv(rows, B)):
        mask = ((block * B + i)[:, None] < rows) & (i[None, :] < columns)
        tl.store(to_ptr, tl.load(from_ptr, mask=mask, other=0), mask=mask)
        from_ptr += B * columns
        to_ptr += B * columns


@triton.jit
def to_another_rank(x, y, rows, columns, B: tl.constexpr):
    """A push: each store is a scheduling point."""
    i = tl.arange(0, B)
    remote = dl.symm_at(y, 0)
    for block in range(0, tl.cdiv(columns, B)):
        at = i[:, None] * columns + (block * B + i)[None, :]
        mask = (i[:, None] < rows) & ((block * B + i)[None, :] < columns)
        tl.store(remote + at, tl.load(x + at, mask=mask, other=0), mask=mask)


@triton.jit
def other_mask(x, y, rows, columns, B: tl.constexpr):
    i = tl.arange(0, B)
    for block in range(0, tl.cdiv(columns, B)):
        at = i[:, None] * columns + (block * B + i)[None, :]
        here = (block * B + i)[None, :] < columns
        tl.store(y + at, tl.load(x + at, mask=(i[:, None] < rows) & here, other=0), mask=here)


@triton.jit
def changed(x, y, rows, columns, B: tl.constexpr):
    i = tl.arange(0, B)
    for block in range(0, tl.cdiv(columns, B)):
        at = i[:, None] * columns + (block * B + i)[None, :]
        mask = (i[:, None] < rows) & ((block * B + i)[None, :] < columns)
        tl.store(y + at, tl.load(x + at, mask=mask, other=0) * 2, mask=mask)


@triton.jit
def on_top_of_each_other(x, y, rows, columns, B: tl.constexpr):
    """Every row of the target begins one element behind the one before: the last store wins."""
    i = tl.arange(0, B)
    for block in range(0, tl.cdiv(columns, B)):
        mask = (i[:, None] < rows) & ((block * B + i)[None, :] < columns)
        from_at = i[:, None] * columns + (block * B + i)[None, :]
        to_at = i[:, None] + (block * B + i)[None, :]
        tl.store(y + to_at, tl.load(x + from_at, mask=mask, other=0), mask=mask)


WHOLE = [rows_of_tiles, columns_of_tiles]


def copied(kernel, rows, columns, dtype=torch.float16, *, fuse, agent=None, target=None):
    """`(target, launch)` of a copy of ascending numbers, 8 x 8 elements a tile."""
    x = torch.arange(rows * columns).to(dtype)
    y = torch.zeros(rows * columns, dtype=dtype) if target is None else target
    args = (x, y, rows, columns)
    done = run(build(kernel, args, {"B": 8}, fuse=fuse), (1,), *args, agent=agent or FakeAgent(True))
    return y, done


def bytes_of(records):
    """Which bytes were reported, by allocation and line."""
    found = set()
    for al, offset, rows, stride, width, *rest in records:
        found |= {(al.name, rest[-1].line, offset + r * stride + i) for r in range(rows) for i in range(width)}
    return found


@pytest.mark.parametrize("kernel", WHOLE, ids=lambda k: k.fn.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8, torch.int64])
@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (8, 40), (5, 37), (40, 8), (37, 8), (1, 1)])
def test_same_bytes_and_records_of_the_same_bytes(kernel, dtype, rows, columns):
    rows, columns = (min(rows, 8), columns) if kernel is rows_of_tiles else (rows, min(columns, 8))
    whole, done = copied(kernel, rows, columns, dtype, fuse=True)
    plain, other = copied(kernel, rows, columns, dtype, fuse=False)
    assert done.kernel.stats.fused_loops == 1 and other.kernel.stats.fused_loops == 0
    assert torch.equal(whole, plain) and torch.equal(whole, torch.arange(rows * columns).to(dtype))
    assert bytes_of(done.agent.reads) == bytes_of(other.agent.reads)
    assert bytes_of(done.agent.writes) == bytes_of(other.agent.writes)
    assert (len(done.agent.reads), len(done.agent.writes)) == (1, 1)


@pytest.mark.parametrize("kernel", [other_mask, changed], ids=lambda k: k.fn.__name__)
def test_a_loop_that_does_more_than_copy_stays_a_loop(kernel):
    y, done = copied(kernel, 8, 40, fuse=True)
    assert done.kernel.stats.fused_loops == 0
    assert any("not copied at once" in note for note in done.kernel.stats.notes)
    assert len(done.agent.writes) == 5 and y.any()


def test_targets_on_top_of_each_other_are_stored_to_in_order():
    whole, done = copied(on_top_of_each_other, 8, 40, fuse=True)
    plain, _ = copied(on_top_of_each_other, 8, 40, fuse=False)
    assert torch.equal(whole, plain) and len(done.agent.writes) == 5


def test_within_one_tensor_a_tile_reads_what_the_one_before_wrote():
    outputs = []
    for fuse in (True, False):
        x = torch.arange(8 * 40).half()
        args = (x, x[8:], 7, 40)
        run(build(rows_of_tiles, args, {"B": 8}, fuse=fuse), (1,), *args)
        outputs.append(x)
    assert torch.equal(*outputs)


@pytest.mark.parametrize("fuse", [True, False])
def test_an_access_out_of_bounds_is_the_same_fault(fuse):
    with pytest.raises(Fault) as caught:
        copied(rows_of_tiles, 8, 40, fuse=fuse, target=torch.zeros(300, dtype=torch.float16))
    assert (caught.value.kind, caught.value.data["index"]) == ("tdist.out-of-bounds", 300)


@pytest.mark.parametrize("stays", [True, False])
def test_scheduling_points_go_only_where_the_agent_stays_in_any_case(stays):
    agent = FakeAgent(True, stays=stays)
    y, done = copied(to_another_rank, 5, 40, fuse=True, agent=agent)
    assert torch.equal(y, torch.arange(200).half())
    assert ("stay", 5) in agent.events
    assert (done.yields, len(agent.writes)) == ((0, 1) if stays else (5, 5))


def test_only_the_first_load_is_ordered_by_less_than_the_stores():
    """R lags behind W until the first store: the reads of the other trips come behind it."""
    agent = FakeAgent(True, stays=True, clocks=FakeClocks(behind=True))
    order = []
    agent.rd = lambda *record: order.append(("read", *record[1:5]))
    agent.wr = lambda *record: order.append(("write", *record[1:5]))
    copied(to_another_rank, 8, 40, fuse=True, agent=agent)
    assert order == [("read", 0, 8, 80, 16), ("write", 0, 1, 0, 640), ("read", 16, 8, 80, 64)] or order == [
        ("read", 0, 8, 80, 16),
        ("write", 0, 8, 80, 80),
        ("read", 16, 8, 80, 64),
    ]


@pytest.mark.parametrize("sync", ["fine", "barrier"])
def test_a_run_with_copies_replays_step_by_step(sync, monkeypatch):
    """The recorded choices are those of the plain loop, which a replay runs."""
    answers = []
    stay = Engine.stay
    monkeypatch.setattr(Engine, "stay", lambda *asked: answers.append(stay(*asked)) or answers[-1])

    def ran(**world):
        with World(nranks=3, heap_bytes=1 << 20, **world) as made:

            def launch(rt):
                ensure_shmem(rt)
                context = create_context(rt, 90, 48, 100, torch.float16, sync=sync, tiling=Tiling(16, 16, 16))
                a = torch.randn(30, 100, generator=torch.Generator().manual_seed(rt.rank)).half()
                c = [ag_gemm(context, a, torch.ones(100, 48).half()) for _ in range(2)]
                rt.synchronize()
                return torch.stack(c).clone()

            outputs = torch.stack(made.run(launch))
            return outputs, list(made.engine.events), made.engine.steps, made.findings

    outputs, events, steps, findings = ran()
    assert answers and all(answers)
    again = ran(choices=tuple(events))
    assert not all(answers)  # a replay is asked, and does not promise anything
    assert torch.equal(outputs, again[0]) and (events, steps) == again[1:3]
    assert not findings and not again[3]


@triton.jit
def copy_what_a_token_allows(x, y, signal, n, B: tl.constexpr):
    i = tl.arange(0, B)
    token = dl.wait(signal, 1, "gpu", "acquire")
    for block in range(0, dl.consume_token(n, token)):
        at = i[:, None] * 64 + (block * B + i)[None, :]
        tl.store(y + at, tl.load(x + at))


@triton.jit
def multiply_what_a_token_allows(x, y, signal, n, B: tl.constexpr):
    i = tl.arange(0, B)
    token = dl.wait(signal, 1, "gpu", "acquire")
    acc = tl.zeros((B, B), dtype=tl.float32)
    for block in range(0, dl.consume_token(n, token)):
        a = tl.load(x + i[:, None] * 64 + (block * B + i)[None, :])
        acc += tl.dot(a, tl.load(x + (block * B + i)[:, None] * 64 + i[None, :]))
    tl.store(y + i[:, None] * 64 + i[None, :], acc)


@pytest.mark.parametrize(
    "kernel", [copy_what_a_token_allows, multiply_what_a_token_allows], ids=lambda k: k.fn.__name__
)
@pytest.mark.parametrize("fuse", [True, False])
def test_loads_carry_the_token_of_the_bound(kernel, fuse):
    x, y, signal = torch.ones(64 * 64).half(), torch.zeros(64 * 64).half(), torch.zeros(16, dtype=torch.int32)
    args = (x, y, signal, 2)
    done = run(build(kernel, args, {"B": 16}, fuse=fuse), (1,), *args)
    assert done.kernel.stats.fused_loops == int(fuse)
    assert done.agent.reads and all(record[5] is not None for record in done.agent.reads)


@triton.jit
def counts_beside(x, y, counts, n, step, B: tl.constexpr):
    i = tl.arange(0, B)
    count = 1
    for block in range(0, n):
        at = i[:, None] * 64 + (block * B + i)[None, :]
        tl.store(y + at, tl.load(x + at))
        count += step
    tl.store(counts, count >> 3)
    if count < 0:
        tl.store(counts + 1, 1)


@pytest.mark.parametrize("fuse", [True, False])
def test_a_carried_integer_wraps_as_it_does_step_by_step(fuse):
    x, y, counts = torch.ones(16 * 64), torch.zeros(16 * 64), torch.zeros(2, dtype=torch.int32)
    args = (x, y, counts, 4, 1_000_000_000)
    done = run(build(counts_beside, args, {"B": 16}, fuse=fuse), (1,), *args)
    assert done.kernel.stats.fused_loops == int(fuse)
    wrapped = (4_000_000_001 + 2**31) % 2**32 - 2**31
    assert counts.tolist() == [wrapped >> 3, 1]


@pytest.mark.parametrize("fuse", [True, False])
def test_a_misaligned_target_is_the_plain_loops_to_report(fuse):
    agent, y = FakeAgent(True, stays=True), torch.zeros(700, dtype=torch.int8)
    args = (torch.arange(8 * 40).half(), y[1:641].view(torch.int8), 8, 40)
    kernel = build(to_another_rank, (args[0], args[0], 8, 40), {"B": 8}, fuse=fuse)
    with pytest.raises(Fault) as caught:
        run(kernel, (1,), *args, agent=agent)
    assert caught.value.kind == "tdist.pointer-misuse"
    assert ("stay", 5) not in agent.events and len(agent.reads) == 1
