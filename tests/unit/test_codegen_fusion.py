"""K-loop fusion, in-place accumulation, tile cache: agreement with the plain loop and torch, and the same findings."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from codegen_harness import Fault, launch

from tdist.platforms.sim.memory import Allocation
from tdist.platforms.sim.tiles import TileCache


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(11)


@triton.jit
def gemm(a_ptr, b_ptr, c_ptr, M, N, K, MA, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    nn = tl.cdiv(N, BN)
    offm = pid // nn * BM + tl.arange(0, BM)
    offn = pid % nn * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for kt in range(0, tl.cdiv(K, BK)):
        offk = kt * BK + tl.arange(0, BK)
        a = tl.load(a_ptr + offm[:, None] * K + offk[None, :], mask=(offm[:, None] < MA) & (offk[None, :] < K), other=0)
        b = tl.load(b_ptr + offk[:, None] * N + offn[None, :], mask=(offk[:, None] < K) & (offn[None, :] < N), other=0)
        acc += tl.dot(a, b)
    tl.store(c_ptr + offm[:, None] * N + offn[None, :], acc, mask=(offm[:, None] < M) & (offn[None, :] < N))


@triton.jit
def tutorial(a_ptr, b_ptr, c_ptr, M, N, K, MA, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    nn = tl.cdiv(N, BN)
    offm = (pid // nn * BM + tl.arange(0, BM)) % M
    offn = (pid % nn * BN + tl.arange(0, BN)) % N
    offk = tl.arange(0, BK)
    ap = a_ptr + offm[:, None] * K + offk[None, :]
    bp = b_ptr + offk[:, None] * N + offn[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for kt in range(0, tl.cdiv(K, BK)):
        a = tl.load(ap, mask=offk[None, :] < K - kt * BK, other=0.0)
        b = tl.load(bp, mask=offk[:, None] < K - kt * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        ap += BK
        bp += BK * N
    om = pid // nn * BM + tl.arange(0, BM)
    on = pid % nn * BN + tl.arange(0, BN)
    tl.store(c_ptr + om[:, None] * N + on[None, :], acc, mask=(om[:, None] < M) & (on[None, :] < N))


@triton.jit
def blocks(a_ptr, b_ptr, c_ptr, M, N, K, MA, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pm = tl.program_id(0) // tl.cdiv(N, BN)
    pn = tl.program_id(0) % tl.cdiv(N, BN)
    a = tl.make_block_ptr(a_ptr, (M, K), (K, 1), (pm * BM, 0), (BM, BK), (1, 0))
    b = tl.make_block_ptr(b_ptr, (K, N), (N, 1), (0, pn * BN), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        x = tl.load(a, boundary_check=(0, 1), padding_option="zero")
        acc += tl.dot(x, tl.load(b, boundary_check=(0, 1), padding_option="zero"))
        a = tl.advance(a, (0, BK))
        b = tl.advance(b, (BK, 0))
    c = tl.make_block_ptr(c_ptr, (M, N), (N, 1), (pm * BM, pn * BN), (BM, BN), (1, 0))
    tl.store(c, acc, boundary_check=(0, 1))


def multiply(kernel, a, b, *, fuse, rows_a=None, tile=(32, 32, 16)):
    (m, k), n = a.shape, b.shape[1]
    c = torch.zeros(m, n)
    bm, bn, bk = tile
    grid = (-(-m // bm) * -(-n // bn),)
    done = launch(kernel, grid, a, b, c, m, n, k, rows_a or m, fuse=fuse, BM=bm, BN=bn, BK=bk)
    return c, done


def bytes_read(done):
    """Which bytes were reported as read, by allocation."""
    found = set()
    for al, offset, rows, stride, width, _, site in done.agent.reads:
        found |= {(al.name, site.line, offset + r * stride + i) for r in range(rows) for i in range(width)}
    return found


@pytest.mark.parametrize("kernel", [gemm, tutorial, blocks], ids=["masks", "tutorial", "block pointers"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_fused_and_plain_loop_agree_and_report_the_same_bytes(kernel, dtype):
    a, b = torch.randn(70, 50).to(dtype), torch.randn(50, 40).to(dtype)
    fused, done = multiply(kernel, a, b, fuse=True)
    plain, other = multiply(kernel, a, b, fuse=False)
    assert (done.kernel.stats.fused_loops, other.kernel.stats.fused_loops) == (1, 0)
    want = a.float() @ b.float()
    torch.testing.assert_close(fused, want, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(plain, want, atol=1e-4, rtol=1e-4)
    assert bytes_read(done) == bytes_read(other)
    assert len(done.agent.reads) < len(other.agent.reads)


@pytest.mark.parametrize("fuse", [True, False])
def test_an_access_out_of_bounds_is_the_same_fault_fused_or_not(fuse):
    a, b = torch.randn(40, 50).half(), torch.randn(50, 40).half()
    with pytest.raises(Fault) as caught:
        multiply(gemm, a, b, fuse=fuse, rows_a=41)
    assert (caught.value.kind, caught.value.site.arg) == ("tdist.out-of-bounds", "a_ptr")
    assert caught.value.data["index"] == 40 * 50


@triton.jit
def one_sided(a_ptr, b_ptr, c_ptr, K, B: tl.constexpr):
    i = tl.arange(0, B)
    acc = tl.zeros((B, B), dtype=tl.float32)
    for kt in range(0, tl.cdiv(K, B)):
        k = kt * B + i
        a = tl.load(a_ptr + i[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
        b = tl.load(b_ptr + k[:, None] * B + i[None, :])
        acc += tl.dot(a, b)
    tl.store(c_ptr + i[:, None] * B + i[None, :], acc)


def test_a_loop_that_masks_one_operand_only_is_not_fused_and_nan_survives():
    a, b, c = torch.randn(16, 20).half(), torch.randn(32, 16).half(), torch.zeros(16, 16)
    b[25, 3] = float("nan")
    done = launch(one_sided, (1,), a, b, c, 20, B=16)
    assert done.kernel.stats.fused_loops == 0
    assert any("masked differently" in note for note in done.kernel.stats.notes)
    assert c[:, 3].isnan().all() and not c[:, 4].isnan().any()


def test_tile_cache_is_bounded_and_forgets_what_was_written_to():
    cache, owner = TileCache(limit_bytes=1000), Allocation(0, 1 << 20, torch.zeros(600, dtype=torch.uint8), "owner")
    for place in range(5):
        cache.keep(owner, place, 120 * place, 120 * place + 120, torch.zeros(60))
    assert cache.held_bytes <= 1000 and cache.find(owner, 0) is None
    assert all(cache.find(owner, place) is not None for place in (3, 4))
    owner.note_write(475, 481)
    assert cache.find(owner, 3) is None and cache.find(owner, 4) is None
    cache.keep(owner, 4, 480, 600, torch.zeros(60))
    owner.note_write(0, 480)
    assert cache.find(owner, 4) is not None
    owner.version += 1  # a write that does not say where
    owner.note_write(0, 480)
    assert cache.find(owner, 4) is None


def test_a_tile_is_forgotten_when_the_writes_since_are_no_longer_known():
    cache, owner = TileCache(), Allocation(0, 1 << 20, torch.zeros(64, dtype=torch.uint8), "owner")
    for writes, known in ((10, True), (1000, False)):
        cache.keep(owner, 0, 0, 32, torch.zeros(8))
        for _ in range(writes):
            owner.note_write(32, 64)
        assert (cache.find(owner, 0) is not None) == known
