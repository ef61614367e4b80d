"""Compiled kernels against torch: element-wise, masks, index forms, loops, branches, reductions, atomics, dtypes."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from codegen_harness import Fault, launch, run

from tdist.frontend.kernel_ir import KernelArg, KernelIR
from tdist.platforms.sim.compiler import SimOptions, compile_kernel


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(7)


@triton.jit
def element_wise(x, y, n, f, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    a = tl.load(x + o, mask=o < n)
    b = tl.load(y + o, mask=o < n, other=1.0)
    c = tl.where(o % 3 == 0, a, b * f) + tl.exp(a) - tl.sqrt(tl.abs(b)) + tl.maximum(a, 0.25) + tl.minimum(a, b)
    tl.store(y + o, c, mask=o < n)


@pytest.mark.parametrize("dtype,atol", [(torch.float32, 1e-6), (torch.float16, 3e-2), (torch.bfloat16, 0.25)])
def test_element_wise_with_a_masked_tail(dtype, atol):
    n = 77
    x, y = torch.randn(n).to(dtype), torch.randn(n).to(dtype)
    a, b = x.float(), y.float()
    want = torch.where(torch.arange(n) % 3 == 0, a, b * 1.5) + a.exp() - b.abs().sqrt()
    want = want + a.clamp(min=0.25) + torch.minimum(a, b)
    launch(element_wise, (5,), x, y, n, 1.5, B=20)
    torch.testing.assert_close(y.float(), want, atol=atol, rtol=0)


@triton.jit
def add_twice(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    tl.store(y + o, (a + 1.0) - 1.0)


def test_half_arithmetic_rounds_after_every_operation():
    x = torch.full((4,), 1e-4, dtype=torch.float16)
    y = torch.ones(4, dtype=torch.float16)
    launch(add_twice, (1,), x, y, B=4)
    assert torch.equal(y, (x + 1.0) - 1.0) and not torch.equal(y, x)


@triton.jit
def wrapped_rows(x, y, M, K, BM: tl.constexpr, BK: tl.constexpr):
    first = tl.program_id(0) * BM
    om = (first + tl.arange(0, BM)) % M
    ok = tl.arange(0, BK)
    a = tl.load(x + om[:, None] * K + ok[None, :], mask=ok[None, :] < K, other=-1.0)
    tl.store(y + (first + tl.arange(0, BM))[:, None] * BK + ok[None, :], a)


def test_rows_modulo_m_wrap_in_the_tail_tile_and_report_rows_not_lanes():
    m, k = 13, 10
    x, y = torch.randn(m, k), torch.zeros(24, 16)
    want = torch.full((24, 16), -1.0)
    want[:, :k] = x[torch.arange(24) % m]
    done = launch(wrapped_rows, (3,), x, y, m, k, BM=8, BK=16)
    assert torch.equal(y, want)
    assert sum(r[2] * r[4] for r in done.agent.reads) == 24 * k * 4
    assert len(done.agent.reads) == 4  # tiles 0 and 2 are affine, tile 1 wraps into two stretches
    assert ("rows" in {tier for *_, tier in done.kernel.stats.tiers}) is True


@triton.jit
def gather(x, index, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    i = tl.load(index + o, mask=o < n, other=0)
    v = tl.load(x + i, mask=(o < n) & (i != 2), other=9.0)
    tl.store(y + i * 0 + o, v, mask=o < n)


def test_gather_with_a_mask_that_is_no_box():
    x, index, y = torch.randn(10), torch.tensor([3, 2, 9, 0, 5], dtype=torch.int32), torch.zeros(5)
    launch(gather, (1,), x, index, y, 5, B=8)
    want = x[index.long()]
    want[1] = 9.0
    assert torch.equal(y, want)


@triton.jit
def reverse(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + n - 1 - o, mask=o < n, other=0), mask=o < n)


def test_negative_stride():
    x, y = torch.randn(11).half(), torch.zeros(11).half()
    done = launch(reverse, (1,), x, y, 11, B=16)
    assert torch.equal(y, x.flip(0))
    assert {tier for *_, tier in done.kernel.stats.tiers} == {"slice"}


@triton.jit
def strided(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o * 3, tl.load(x + 2 * o, mask=2 * o < n, other=0), mask=2 * o < n)


def test_strides_and_a_mask_on_a_strided_index():
    x, y = torch.randn(11), torch.zeros(30)
    launch(strided, (1,), x, y, 11, B=8)
    assert torch.equal(y[:18:3], x[::2]) and not y[1::3].any()


@triton.jit
def transpose(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.arange(0, BM)
    n = tl.arange(0, BN)
    a = tl.load(x + m[:, None] * N + n[None, :], mask=(m[:, None] < M) & (n[None, :] < N), other=0)
    tl.store(y + n[:, None] * M + m[None, :], tl.trans(a), mask=(n[:, None] < N) & (m[None, :] < M))


def test_transposed_tile():
    x, y = torch.randn(5, 7), torch.zeros(7, 5)
    launch(transpose, (1,), x, y, 5, 7, BM=8, BN=16)
    assert torch.equal(y, x.t())


@triton.jit
def copy_tiles(x, y, lines, rows, columns, B: tl.constexpr):
    """Whole tiles and cut ones, whole lines, and to places that are no box."""
    o = tl.arange(0, B)
    for block in range(0, tl.cdiv(columns, B)):
        ok = block * B + o
        at = o[:, None] * columns + ok[None, :]
        mask = (o[:, None] < rows) & (ok[None, :] < columns)
        tl.store(y + at, tl.load(x + at, mask=mask, other=0), mask=mask)
    first = tl.load(x + o)
    tl.store(lines + o, first)
    tl.store(lines + B + (o * o) % B, first, mask=o < 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int64])
@pytest.mark.parametrize(("rows", "columns"), [(8, 24), (5, 24), (8, 19)])
def test_tiles_that_are_only_stored_again_keep_every_bit(dtype, rows, columns):
    x = torch.randint(-128, 128, (8 * columns * dtype.itemsize,), dtype=torch.int8).view(dtype)
    y, lines = torch.zeros(8 * columns, dtype=dtype), torch.zeros(16, dtype=dtype)
    done = launch(copy_tiles, (1,), x, y, lines, rows, columns, B=8)
    assert "raw=True" in done.kernel.source
    want = torch.zeros(8 * columns * dtype.itemsize, dtype=torch.int8)
    copied = rows * columns * dtype.itemsize
    want[:copied] = x.view(torch.int8)[:copied]
    assert torch.equal(y.view(torch.int8), want)
    bits = x[:8].view(torch.int8).view(8, -1)
    assert torch.equal(lines.view(torch.int8).view(16, -1)[:10], torch.cat([bits, bits[:2]]))


@triton.jit
def stored_where_it_holds(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    tl.store(y + o, a, mask=a > 2)


def test_a_tile_that_decides_where_it_is_stored_is_no_raw_copy():
    x, y = torch.arange(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    done = launch(stored_where_it_holds, (1,), x, y, B=8)
    assert "raw=True" not in done.kernel.source and y.tolist() == [0, 0, 0, 3, 4, 5, 6, 7]


@triton.jit
def shift_right(x, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(x + o + 1, tl.load(x + o, mask=o < n, other=0), mask=o < n)


def test_overlapping_copy_within_one_allocation_is_a_snapshot():
    x = torch.arange(9, dtype=torch.float32)
    done = launch(shift_right, (1,), x, 8, B=8)
    assert torch.equal(x[1:], torch.arange(8, dtype=torch.float32))
    assert done.kernel.stats.views == 1


@triton.jit
def load_store_load(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    tl.store(x + o, a + 1.0)
    tl.store(y + o, a)


def test_a_load_is_a_snapshot_when_memory_changes_before_its_last_use():
    x, y = torch.zeros(4), torch.full((4,), 5.0)
    launch(load_store_load, (1,), x, y, B=4)
    assert torch.equal(y, torch.zeros(4)) and torch.equal(x, torch.ones(4))


@triton.jit
def control(x_ptr, y_ptr, s_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid
    tot = 0.0
    cnt = 0
    while i * BLOCK < n:
        o = i * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + o, mask=o < n, other=-1.0)
        if i % 2 == 0:
            x = x * 2.0
            cnt += 1
        else:
            x = tl.where(x > 0, x, 0.5)
        tot += tl.sum(x, axis=0)
        tl.store(y_ptr + o, tl.exp(x), mask=o < n)
        i += tl.num_programs(0)
    tl.store(s_ptr + pid * 4, tot)
    tl.store(s_ptr + pid * 4 + 1, cnt.to(tl.float32))
    tl.store(s_ptr + pid * 4 + 2, ((pid - 5) // 2).to(tl.float32))
    tl.store(s_ptr + pid * 4 + 3, ((pid - 5) % 3).to(tl.float32))


def test_while_if_with_results_and_truncating_division():
    n = 100
    x, y, s = torch.randn(n), torch.zeros(n), torch.zeros(3, 4)
    launch(control, (3,), x, y, s, n, BLOCK=16)
    tiles = torch.cat([x, torch.full((12,), -1.0)]).view(7, 16).clone()
    tiles[::2] *= 2
    tiles[1::2] = torch.where(tiles[1::2] > 0, tiles[1::2], 0.5)
    torch.testing.assert_close(y, tiles.exp().flatten()[:n])
    torch.testing.assert_close(s[:, 0], torch.stack([tiles.sum(1)[p::3].sum() for p in range(3)]))
    assert s[:, 1:].tolist() == [[2, -2, -2], [1, -2, -1], [1, -1, 0]]


@triton.jit
def swap_pointers(x, y, n):
    p = x
    q = y
    for i in range(n):
        tl.store(p + i, i + 1)
        t = p
        p = q
        q = t


def test_loop_carried_pointers_keep_their_allocations():
    x, y = torch.zeros(6, dtype=torch.int32), torch.zeros(6, dtype=torch.int32)
    launch(swap_pointers, (1,), x, y, 6)
    assert x.tolist() == [1, 0, 3, 0, 5, 0] and y.tolist() == [0, 2, 0, 4, 0, 6]


@triton.jit
def return_early(x, n):
    pid = tl.program_id(0)
    if pid >= n:
        return
    tl.store(x + pid, 5)


def test_early_return():
    x = torch.zeros(6, dtype=torch.int32)
    launch(return_early, (6,), x, 4)
    assert x.tolist() == [5, 5, 5, 5, 0, 0]


@triton.jit
def _times_then_one(a, b):
    return a * b + 1


@triton.jit(noinline=True)
def _store_and_add(p, x):
    tl.store(p, x)
    return x + 1


@triton.jit
def reductions(x, y, z, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    m, i = tl.max(a, axis=0, return_indices=True)
    tl.store(y, tl.sum(a, 0))
    tl.store(y + 1, m)
    tl.store(y + 2, i)
    tl.store(y + 3, tl.min(a, 0))
    tl.store(y + 4, tl.argmin(a, 0))
    tl.store(y + 5, _store_and_add(y + 6, 2.5))
    if tl.program_id(0) == 0:  # noqa: SIM108
        p = y + 7
    else:
        p = z
    tl.store(p, 3.0)
    tl.store(z + o, tl.cumsum(a, 0))
    tl.store(y + 8, tl.reduce(a, 0, _concat))


@triton.jit
def _concat(a, b):
    return a + 0 * b


def test_reductions_scans_calls_and_pointers_from_branches():
    x, y, z = torch.randn(13), torch.zeros(9), torch.zeros(13)
    launch(reductions, (1,), x, y, z, B=13)
    want = [x.sum(), x.max(), x.argmax(), x.min(), x.argmin(), 3.5, 2.5, 3.0, x[0]]
    torch.testing.assert_close(y, torch.tensor([float(w) for w in want]))
    torch.testing.assert_close(z, x.cumsum(0))


@triton.jit
def atomics(s, y, n, B: tl.constexpr):
    old = tl.atomic_add(s, 3)
    tl.atomic_cas(s, old + 3, 1)
    o = tl.arange(0, B)
    tl.atomic_add(y + (o % 4), 1.0, mask=o < n)
    while tl.atomic_cas(s, 1, 5) == 1:
        pass
    v = tl.load(s, volatile=True)
    tl.device_assert(v == 5, "bad")


def test_scalar_and_tile_atomics_with_collisions():
    s, y = torch.tensor([2], dtype=torch.int32), torch.zeros(4)
    done = launch(atomics, (1,), s, y, 10, B=16)
    assert y.tolist() == [3, 3, 2, 2] and s.item() == 5
    assert ("poll", 0) in done.agent.events
    assert [e[1] for e in done.agent.events if e[0] == "atomic"] == ["add", "cas", "cas", "cas"]


@triton.jit
def integers(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    b = (a * 1103515245 + 12345) & 0x7FFFFFFF
    c = (a // 3) + (a % 5) + (a >> 2) + (a << 3) + (a ^ b)
    tl.store(y + o, c + b + (o * 1103515245 + 7) // 4)


def test_i32_wraps_and_division_truncates():
    x = torch.randint(-(2**31), 2**31 - 1, (16,), dtype=torch.int32)
    y = torch.zeros(16, dtype=torch.int32)
    launch(integers, (1,), x, y, B=16)
    a, o = x.long(), torch.arange(16)
    b = (a * 1103515245 + 12345).int().long() & 0x7FFFFFFF
    hashed = (o * 1103515245 + 7).int().long()
    third, fourth = (torch.div(v, d, rounding_mode="trunc") for v, d in ((a, 3), (hashed, 4)))
    want = third + torch.fmod(a, 5) + (a >> 2) + (a << 3) + (a ^ b) + b + fourth
    assert torch.equal(y, want.int())


TAIL = """
module {
  tt.func public @tail(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %n: i32) attributes {noinline = false} {
    %o = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
    %ns = tt.splat %n : i32 -> tensor<8xi32>
    %m = arith.cmpi slt, %o, %ns : tensor<8xi32>
    %xs = tt.splat %x : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>
    %xp = tt.addptr %xs, %o : tensor<8x!tt.ptr<f32>>, tensor<8xi32>
    %v = tt.load %xp, %m : tensor<8x!tt.ptr<f32>>
    %ys = tt.splat %y : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>
    %yp = tt.addptr %ys, %o : tensor<8x!tt.ptr<f32>>, tensor<8xi32>
    tt.store %yp, %v : tensor<8x!tt.ptr<f32>>
    tt.return
  }
}
"""


def test_masked_lanes_without_other_hold_poison_and_make_no_access():
    """From IR: what the front end makes of such a load is in test_frontend_masked_loads.py."""
    kernel = KernelIR("tail", TAIL, (KernelArg("x", "*fp32"), KernelArg("y", "*fp32"), KernelArg("n", "i32")))
    x, y = torch.ones(3), torch.zeros(8)
    done = run(compile_kernel(kernel, SimOptions()), (1,), x, y, 3)
    poison = torch.full((4,), 0xA5, dtype=torch.uint8).view(torch.float32)
    assert torch.equal(y[:3], x) and torch.equal(y[3:], poison.expand(5))
    assert done.agent.reads[0][1:5] == (0, 1, 0, 12)


@triton.jit
def off_by_one(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + o, mask=o <= n, other=0.0), mask=o < n)


def test_out_of_bounds_names_the_first_index_of_the_tensor():
    with pytest.raises(Fault) as caught:
        launch(off_by_one, (1,), torch.ones(5), torch.ones(8), 5, B=8)
    fault = caught.value
    assert fault.kind == "tdist.out-of-bounds" and fault.site.op == "load" and fault.site.arg == "x"
    assert (fault.data["index"], fault.data["elements"], fault.data["lane"]) == (5, 5, (5,))


@triton.jit
def divide(x, n):
    tl.store(x, 7 // n)
    tl.store(x + 1, tl.cast(tl.load(x) * 1.0, tl.int32) << n)


def test_division_by_zero_is_a_fault():
    with pytest.raises(Fault, match="division-by-zero"):
        launch(divide, (1,), torch.zeros(2, dtype=torch.int32), 0)


def test_shift_past_the_width_is_a_fault():
    with pytest.raises(Fault, match="shift-past-width"):
        launch(divide, (1,), torch.zeros(2, dtype=torch.int32), 40)


@triton.jit
def counting(x, y, lo, hi, step, B: tl.constexpr):
    count = tl.load(x)
    for _ in range(lo, hi, step):
        count += 1
    tl.store(x, count)
    for i in range(lo, hi, step):
        o = i * B + tl.arange(0, B)
        tl.store(y + o, tl.load(x + o))


@pytest.mark.parametrize("step", [0, -1])
def test_a_loop_that_does_not_count_up_is_a_fault(step: int):
    with pytest.raises(Fault, match="loop-step"):
        launch(counting, (1,), torch.zeros(16), torch.zeros(16), 0, 4, step, B=4)


@triton.jit
def huge_index(x, n, B: tl.constexpr):
    o = n * 65536 + tl.arange(0, B)
    tl.store(x + o, 1.0)


def test_index_overflow_is_a_fault_where_the_index_becomes_an_address():
    with pytest.raises(Fault, match="index-overflow"):
        launch(huge_index, (1,), torch.zeros(4), 40000, B=4)


@triton.jit
def float_scalars(x, f, n):
    tot = 0.0
    for _ in range(n):
        tot += f
    tl.store(x, tot)
    tl.store(x + 1, (f / 0.0) * 1.0)


def test_float_scalars_have_their_own_width():
    x = torch.zeros(2)
    launch(float_scalars, (1,), x, 0.1, 1000)
    want = torch.tensor(0.0)
    for _ in range(1000):
        want = want + torch.tensor(0.1)
    assert x[0] == want and x[1] == float("inf")
