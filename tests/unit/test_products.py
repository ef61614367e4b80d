"""Products that are multiplied later: nobody can tell from memory, whatever is stored and looked at in between."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from codegen_harness import FakeAgent, launch
from hypothesis import given, settings

from tdist.platforms.sim import products
from tdist.platforms.sim.access import Region, Spec, store_box
from tdist.platforms.sim.codegen.site import Site
from tdist.platforms.sim.memory import Allocation
from tdist.platforms.sim.products import LaterProducts, Product, are_apart
from tdist.platforms.sim.world import World

SIDE = 24  # elements a side of the memory that is stored to
SITE = Site("k", "k.py", 1, 0, "store", "c")


def memory(dtype: torch.dtype = torch.float16) -> Allocation:
    return Allocation(0, 1 << 20, torch.zeros(SIDE * SIDE * dtype.itemsize, dtype=torch.uint8), "c")


def region(
    row: int, column: int, rows: int, columns: int, low: tuple[int, int] = (0, 0), partial: bool = False
) -> Region:
    return Region(row * SIDE + column, (rows, columns), (SIDE, 1), low, (), partial)


def operands(rows: int, columns: int, count: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    made = torch.Generator().manual_seed(rows + 10 * columns)
    left = [torch.randn(rows, 40, generator=made) for _ in range(count)]
    return left, [torch.randn(40, columns, generator=made) for _ in range(count)]


OPS = st.lists(
    st.tuples(
        st.sampled_from(["tile", "tile", "tile", "anywhere", "corner", "look", "plain"]),
        st.integers(0, 5),
        st.integers(0, 5),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(OPS, st.sampled_from([torch.float16, torch.bfloat16, torch.float32]))
def test_memory_is_what_it_would_be_at_every_look(ops, dtype):
    """Tiles of a grid, tiles anywhere, cut tiles, plain writes and looks, against stores that are made at once."""
    al, later = memory(dtype), LaterProducts()
    left, right = operands(4, 4, 4)
    want = torch.zeros(SIDE, SIDE, dtype=dtype)
    for kind, down, across, a, b in ops:
        if kind == "look":
            assert torch.equal(al.view(dtype).view(SIDE, SIDE), want)
        elif kind == "plain":
            al.view(dtype).view(SIDE, SIDE)[down, across] = a
            want[down, across] = a
        else:
            row, column = (4 * down, 4 * across) if kind == "tile" else (3 * down, 2 * across + a)
            rows, columns = (2, 3) if kind == "corner" else (4, 4)
            low = (1, 1) if kind == "corner" else (0, 0)
            where = region(row, column, rows, columns, low, kind == "corner")
            later.put_off(al, where, dtype, Product(left[a], right[b], torch.float32))
            tile = (left[a] @ right[b])[low[0] : low[0] + rows, low[1] : low[1] + columns]
            want[row : row + rows, column : column + columns] = tile
    later.settle()
    assert torch.equal(al.view(dtype).view(SIDE, SIDE), want)


@pytest.mark.parametrize("shape", [(64, 1024, 64), (32, 300, 48), (128, 256, 256), (16, 64, 16), (33, 1000, 65)])
def test_joining_operands_changes_no_bits(shape):
    """What `multiplied` relies on: an element's bits depend neither on how many rows nor on how many columns there are.

    If this fails with another BLAS, outputs there depend on which products were put off together.
    """
    rows, inner, columns = shape
    left = [torch.randn(rows, inner) for _ in range(5)]
    right = [torch.randn(inner, columns) for _ in range(5)]
    whole = torch.cat(left) @ torch.cat(right, 1)
    for (i, a), (j, b) in itertools.product(enumerate(left), enumerate(right)):
        assert torch.equal(whole[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns], a @ b)


def test_a_whole_grid_is_multiplied_at_once(monkeypatch):
    calls = []
    multiply = products.multiply
    monkeypatch.setattr(products, "multiply", lambda a, b, dtype: (calls.append(a.shape), multiply(a, b, dtype))[1])
    al, later = memory(), LaterProducts()
    left, right = operands(4, 4, 6)
    for i, j in itertools.product(range(6), range(6)):
        later.put_off(al, region(4 * i, 4 * j, 4, 4), torch.float16, Product(left[i], right[j], torch.float32))
    later.settle()
    assert calls == [(24, 40)]
    want = (torch.cat(left) @ torch.cat(right, 1)).half()
    assert torch.equal(al.view(torch.float16).view(SIDE, SIDE), want)


def test_what_is_put_off_is_bounded(monkeypatch):
    monkeypatch.setattr(products, "_MOST_HELD_BYTES", 4 * (2 * 4 * 40 + 4 * 4) * 4)
    al, later = memory(), LaterProducts()
    left, right = operands(4, 4, 6)
    for i in range(6):
        later.put_off(al, region(4 * i, 0, 4, 4), torch.float16, Product(left[i], right[i], torch.float32))
        assert al.put_off is None or len(al.put_off.stores) <= 4
    later.settle()
    assert torch.equal(al.view(torch.float16).view(SIDE, SIDE)[20:, :4], (left[5] @ right[5]).half())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 20)] * 2, *[st.integers(1, 5)] * 2), min_size=1, max_size=6))
def test_regions_that_are_apart_share_no_element(boxes):
    regions = [region(*box) for box in boxes if box[1] + box[3] <= SIDE]
    if not regions or not are_apart(regions):
        return
    seen: set[int] = set()
    for r in regions:
        elements = {r.offset_elems + i * SIDE + j for i in range(r.extents[0]) for j in range(r.extents[1])}
        assert not seen & elements
        seen |= elements


def test_tiles_of_one_grid_are_apart():
    grid = [region(4 * i, 4 * j, 4, 4) for i in range(6) for j in range(6)]
    assert are_apart(grid) and not are_apart([*grid, grid[7]]) and not are_apart([*grid, region(1, 0, 4, 4)])


def test_memory_with_synchronisation_words_is_stored_to_at_once():
    """Words are watched through a view of their own, which nobody settles."""
    agent, al = FakeAgent(True), memory()
    (a,), (b,) = operands(4, 4, 1)
    store = store_box(Spec(SITE, (4, 4), torch.float16, True))
    arguments = (agent, al, al.lo, (2 * SIDE, 2), None, Product(a, b, torch.float32))
    store(*arguments)
    assert al.put_off is not None and len(agent.writes) == 1
    al.settle()
    al.sync[96] = object()  # pyright: ignore[reportArgumentType]
    store(*arguments)
    assert al.put_off is None and len(agent.writes) == 2
    assert torch.equal(al.view(torch.float16).view(SIDE, SIDE)[:4, :4], (a @ b).half())


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, d_ptr, K, USE: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    acc = tl.zeros((B, B), dtype=tl.float32)
    for k0 in range(0, K, B):
        k = k0 + i
        a = tl.load(a_ptr + i[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
        b = tl.load(b_ptr + k[:, None] * B + i[None, :], mask=k[:, None] < K, other=0.0)
        acc += tl.dot(a, b)
    at = i[:, None] * B + i[None, :]
    if USE == "store":
        tl.store(c_ptr + at, acc.to(c_ptr.dtype.element_ty))
    elif USE == "twice":
        tl.store(c_ptr + at, acc)
        tl.store(d_ptr + at, acc)
    elif USE == "loop":
        for turn in range(2):
            tl.store(c_ptr + turn * B * B + at, acc)
    elif USE == "scatter":
        tl.store(c_ptr + (at * at) % (B * B), acc)
    elif USE == "backwards":
        tl.store(c_ptr + (B - 1 - i)[:, None] * B + i[None, :], acc)
    elif USE == "masked":
        tl.store(c_ptr + at, acc, mask=(i[:, None] < 3) & (i[None, :] < 5))
    else:
        tl.store(c_ptr + at, acc + 1.0)


@pytest.mark.parametrize("use", ["store", "twice", "loop", "scatter", "backwards", "masked", "sum"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_product_is_the_same_whatever_it_is_used_for(use, dtype):
    a, b = torch.randn(16, 40).to(dtype), torch.randn(40, 16).to(dtype)
    outputs = []
    for fuse in (True, False):
        c, d = torch.zeros(2 * 256), torch.zeros(256)
        done = launch(product_kernel, (1,), a, b, c, d, 40, fuse=fuse, USE=use, B=16)
        outputs.append((c, d))
        waits = use in ("store", "loop", "scatter", "backwards", "masked") and dtype != torch.float32
        assert ("= Product(" in done.kernel.source) == (waits and fuse)
    for fused, plain in zip(*outputs, strict=True):
        torch.testing.assert_close(fused, plain, atol=1e-5, rtol=1e-5)


@triton.jit
def blocks_of(a_ptr, b_ptr, c_ptr, K, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        acc += tl.dot(tl.load(a_ptr + m[:, None] * K + k[None, :]), tl.load(b_ptr + k[:, None] * N + n[None, :]))
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc.to(c_ptr.dtype.element_ty))


def operands_on_a_rank(rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    draw = {"generator": made, "dtype": torch.float32}
    return torch.randn(rows, 32, **draw).half(), torch.randn(32, 64, **draw).half()


def one_launch(rt) -> bool:
    a, b = operands_on_a_rank()
    c = torch.zeros(64, 64, dtype=torch.float32)
    blocks_of[(4, 4)](a, b, c, 32, 64, BM=16, BN=16, BK=16)
    rt.synchronize()
    return torch.equal(c.clone(), a.float() @ b.float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_users_default_dtype_is_none_of_ours(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with World(nranks=1, heap_bytes=1 << 20) as world:
            assert world.run(one_launch) == [True]
    finally:
        torch.set_default_dtype(before)


def test_a_run_in_inference_mode_leaves_the_world_usable():
    with World(nranks=1, heap_bytes=1 << 20) as world:
        with torch.inference_mode():
            assert world.run(one_launch) == [True]
        assert world.run(one_launch) == [True]


def test_tiles_of_several_heights_share_right_operands():
    def host(rt):
        a, b = operands_on_a_rank(128)
        c = torch.zeros(128, 64)
        for first, height, programs in ((0, 16, 2), (32, 32, 1), (64, 64, 1)):
            blocks_of[(programs, 4)](a[first:], b, c[first:], 32, 64, BM=height, BN=16, BK=16)
        rt.synchronize()
        return torch.equal(c.clone(), a.float() @ b.float())

    with World(nranks=1, heap_bytes=1 << 20) as world:
        assert world.run(host) == [True]


def test_stores_of_two_dtypes_over_the_same_bytes_keep_their_order():
    """A float32 tile, half of a float16 matrix in the same bytes, then float32 tiles with the first one's operand."""

    def host(rt):
        a, b = operands_on_a_rank(16)
        c = torch.zeros(64, 64)
        narrow = c.view(-1).view(torch.float16)[: 64 * 64].view(64, 64)
        blocks_of[(1, 1)](a, b, c, 32, 64, BM=16, BN=16, BK=16)
        blocks_of[(1, 4)](a.flip(0).contiguous(), b, narrow[16:], 32, 64, BM=16, BN=16, BK=16)
        blocks_of[(1, 3)](a, b[:, 16:], c[:, 16:], 32, 64, BM=16, BN=16, BK=16)
        rt.synchronize()
        return torch.equal(c.clone()[:16, 16:], (a.float() @ b.float())[:, 16:])

    with World(nranks=1, heap_bytes=1 << 20) as world:
        assert world.run(host) == [True]


def test_memory_that_two_allocations_share_is_stored_to_at_once():
    """Such as one host tensor on two ranks, or two storages over one array: neither sees the other's put-off stores."""

    def host(rt):
        a, b = operands_on_a_rank()
        c = torch.from_numpy(numbers).view(64, 64)
        blocks_of[(4, 4)](a, b, c, 32, 64, BM=16, BN=16, BK=16)
        seen = torch.zeros(64, 64)
        launch_copy[(1,)](torch.from_numpy(numbers[:]), seen, B=4096)
        rt.synchronize()
        return torch.equal(seen.clone(), a.float() @ b.float())

    numbers = np.zeros(64 * 64, dtype=np.float32)
    with World(nranks=1, heap_bytes=1 << 20) as world:
        assert world.run(host) == [True]


@triton.jit
def launch_copy(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + i))


def test_nothing_is_kept_alive_by_a_world_that_is_gone():
    with World(nranks=1, heap_bytes=1 << 20) as world:
        world.run(one_launch)
        later = world.engine.later
        assert later._stack.numel()
    assert not later._joined and not later._stack.numel() and not later._operands
