"""Kernels with `tl.dot`: cube and vector functions, and distributed calls in both."""

import triton
import triton.language as tl
from gate_kit import CUBE, MIX, Cases, Passes, library

import tdist.language as dl
from tdist.language.extra import libshmem_device
from tdist.language.extra.cann.extension import sub_vec_id

CASES = Cases()
TILE = {"BM": 64, "BN": 64, "BK": 64}


@triton.jit
def _product(a, b, K, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.arange(0, BM)[:, None]
    columns = tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows * K + k + tl.arange(0, BK)[None, :])
        right = tl.load(b + (k + tl.arange(0, BK)[:, None]) * N + columns)
        total += tl.dot(left, right)
    return total


@CASES.case(
    "a: *T, b: *T, c: *T, buf: *T, sig: *i32, N: i32, K: i32",
    Passes(MIX),
    types="fp16 bf16 fp32",
    **TILE,
    memory="load a, load b, load token(buf), store c, store ptr(buf)",
)
@triton.jit
def panels_pushed_and_multiplied(a, b, c, buf, sig, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """All-gather and product in one kernel: one vector core pushes, the cube waits for each panel."""
    me = dl.rank()
    world = dl.num_ranks()
    rows = tl.arange(0, BM)[:, None]
    columns = tl.arange(0, BN)[None, :]
    if sub_vec_id() == 0:
        for peer in range(tl.program_id(0), world, tl.num_programs(0)):
            there = dl.symm_at(buf, peer)
            for k in range(0, K, BK):
                tile = tl.load(a + rows * K + k + tl.arange(0, BK)[None, :])
                tl.store(there + (me * BM + rows) * K + k + tl.arange(0, BK)[None, :], tile)
            libshmem_device.fence()
            dl.notify(sig + me * 16, peer, signal=1)
    for source in range(tl.program_id(0), world, tl.num_programs(0)):
        token = dl.wait(sig + source * 16, 1, "gpu", "acquire", waitValue=1)
        panel = dl.consume_token(buf, token) + source * BM * K
        total = _product(panel, b, K, N, BM, BN, BK)
        tl.store(c + (source * BM + rows) * N + columns, total.to(c.dtype.element_ty))


@CASES.case(
    "a: *fp16, b: *fp16, c: *fp16, buf: *fp32, sig: *T, N: i32, K: i32",
    Passes(MIX),
    types="i32 i64",
    **TILE,
    memory="load a, load b, load token(buf), store c, store ptr(buf)",
)
@triton.jit
def product_sent_with_a_signal(a, b, c, buf, sig, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The cube stores to the peer; what arrives is scaled on the vector cores."""
    rows = tl.arange(0, BM)[:, None]
    columns = tl.arange(0, BN)[None, :]
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buf, peer) + rows * N + columns, _product(a, b, K, N, BM, BN, BK))
    dl.notify(sig + tl.program_id(0) * 16, peer, signal=1)
    token = dl.wait(sig + tl.program_id(0) * 16, 1, "gpu", "acquire", waitValue=1)
    arrived = tl.load(dl.consume_token(buf, token) + rows * N + columns)
    tl.store(c + rows * N + columns, (arrived * 2.0).to(tl.float16))


@CASES.case(
    "a: *fp16, b: *fp16, c: *fp16, buf: *fp32, sig: *i32, N: i32, K: i32",
    Passes(MIX),
    **TILE,
    memory="load a, load b, load token(buf), store c, store ptr(buf)",
)
@triton.jit
def each_kind_of_call_after_a_product(a, b, c, buf, sig, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.arange(0, BM)[:, None]
    columns = tl.arange(0, BN)[None, :]
    peer = (dl.rank() + 1) % dl.num_ranks()
    theirs = dl.symm_at(buf, peer)
    tl.store(theirs + rows * N + columns, _product(a, b, K, N, BM, BN, BK) * 2.0)
    libshmem_device.fence()
    dl.notify(sig, peer, signal=1, sig_op="add")
    libshmem_device.barrier_all()
    library("aclshmem_float_putmem", buf, theirs, 256, peer)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    arrived = tl.load(dl.consume_token(buf, token) + rows * N + columns)
    tl.store(c + rows * N + columns, (arrived + 1.0).to(tl.float16))


@CASES.case(
    "a: *fp16, b: *fp16, c: *fp16, buf: *fp32, sig: *i32, N: i32, K: i32",
    Passes(MIX),
    **TILE,
    memory="load a, load b, store c, store ptr(buf)",
)
@triton.jit
def vector_half_that_cannot_be_halved(a, b, c, buf, sig, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A sum over the whole tile: both vector cores would need all of it."""
    rows = tl.arange(0, BM)[:, None]
    columns = tl.arange(0, BN)
    total = _product(a, b, K, N, BM, BN, BK)
    norm = tl.sum(tl.sum(total, axis=1), axis=0)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buf, peer) + columns, norm + columns.to(tl.float32))
    tl.store(c + rows * N + columns[None, :], (total + norm).to(tl.float16))
    dl.notify(sig, peer, signal=1, sig_op="add")
    libshmem_device.barrier_all()


@CASES.case(
    "a: *fp16, b: *fp16, c: *fp16, buf: *fp32, sig: *i32, N: i32, K: i32",
    Passes(MIX),
    **TILE,
    memory="load a, load b, load token(buf), store c, store ptr(buf)",
)
@triton.jit
def one_number_of_a_product_sent(a, b, c, buf, sig, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    total = _product(a, b, K, N, BM, BN, BK)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buf, peer) + tl.program_id(0), tl.sum(tl.sum(total, axis=1), axis=0))
    libshmem_device.fence()
    dl.notify(sig, peer, signal=1)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    tl.store(c + tl.program_id(0), tl.load(dl.consume_token(buf, token) + tl.program_id(0)).to(tl.float16))


@CASES.case(
    "a: *fp16, b: *fp16, c: *fp32, buf: *fp32, N: i32, K: i32",
    Passes(MIX),
    **TILE,
    memory="load a, load b, load buf, store buf, store ptr(c)",
)
@triton.jit
def product_reduced_by_atomics_then_scattered(a, b, c, buf, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Product and reduce-scatter: partial products travel by copies, sums are atomics in the receiver's memory."""
    rows = tl.arange(0, BM)[:, None]
    columns = tl.arange(0, BN)[None, :]
    me = dl.rank()
    world = dl.num_ranks()
    for part in range(0, world):
        target = (me + part) % world
        tl.store(buf + (target * BM + rows) * N + columns, _product(a + target * BM * K, b, K, N, BM, BN, BK))
        libshmem_device.barrier_all()
        if sub_vec_id() == 0:
            tl.atomic_add(dl.symm_at(c, target) + rows * N + columns, tl.load(buf + (target * BM + rows) * N + columns))
        libshmem_device.barrier_all()


@CASES.case(
    "a: *fp16, b: *fp16, c: *fp16, buf: *fp32, N: i32, K: i32, pull: i32",
    Passes(MIX),
    **TILE,
    memory="load a, load b, load ptr(buf), store buf, store c",
)
@triton.jit
def product_pulled_from_all_ranks(a, b, c, buf, N, K, pull, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Product and all-reduce in one shot."""
    rows = tl.arange(0, BM)[:, None]
    columns = tl.arange(0, BN)[None, :]
    tl.store(buf + rows * N + columns, _product(a, b, K, N, BM, BN, BK))
    libshmem_device.barrier_all()
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for peer in range(0, dl.num_ranks()):
        total += tl.load(dl.symm_at(buf, peer) + rows * N + columns)
    tl.store(c + rows * N + columns, total.to(tl.float16))


@CASES.case(
    "a: *fp16, b: *fp16, c: *fp16, sig: *i64, N: i32, K: i32",
    Passes(MIX),
    BM=64,
    BN=64,
    BK=64,
    memory="load b, load token(a), store c",
)
@triton.jit
def block_pointers_of_a_waited_operand(a, b, c, sig, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    left = tl.make_block_ptr(dl.consume_token(a, token), (BM, K), (K, 1), (0, 0), (BM, BK), (1, 0))
    right = tl.make_block_ptr(b, (K, N), (N, 1), (0, 0), (BK, BN), (1, 0))
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, tl.cdiv(K, BK)):
        total += tl.dot(tl.load(left, boundary_check=(0, 1)), tl.load(right, boundary_check=(0, 1)))
        left = tl.advance(left, (0, BK))
        right = tl.advance(right, (BK, 0))
    out = tl.make_block_ptr(c, (BM, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    tl.store(out, total.to(tl.float16), boundary_check=(0, 1))


# ---- products alone -------------------------------------------------------------------------------------------------


@CASES.case(
    "a: *T, b: *T, c: *fp32, N: i32, K: i32",
    Passes(CUBE),
    types="fp16 bf16 fp32",
    **TILE,
    memory="load a, load b, store c",
)
@triton.jit
def product_alone(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.arange(0, BM)[:, None]
    columns = tl.arange(0, BN)[None, :]
    tl.store(c + rows * N + columns, _product(a, b, K, N, BM, BN, BK))


@CASES.case(
    "a: *fp16, b: *fp16, c: *fp16, M: i32, N: i32, K: i32",
    Passes(MIX),
    BM=48,
    BN=80,
    BK=32,
    memory="load a, load b, store c",
)
@triton.jit
def product_of_odd_tiles_with_edges(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    columns = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + rows * K + k[None, :], mask=(rows < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + columns, mask=(k[:, None] < K) & (columns < N), other=0.0)
        total += tl.dot(left, right)
    tl.store(c + rows * N + columns, tl.maximum(total, 0.0).to(tl.float16), mask=(rows < M) & (columns < N))


@CASES.case("a: *i8, b: *i8, c: *i32", Passes(CUBE), BM=32, BN=32, BK=32, memory="load a, load b, store c")
@triton.jit
def product_of_bytes(a, b, c, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    left = tl.load(a + tl.arange(0, BM)[:, None] * BK + tl.arange(0, BK)[None, :])
    right = tl.load(b + tl.arange(0, BK)[:, None] * BN + tl.arange(0, BN)[None, :])
    tl.store(c + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], tl.dot(left, right, out_dtype=tl.int32))


@CASES.case(
    "a: *fp16, b: *fp16, c: *fp16",
    Passes(MIX),
    BM=32,
    BN=32,
    BK=32,
    memory="load a, load b, store c",
)
@triton.jit
def product_of_a_transposed_tile(a, b, c, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    left = tl.load(a + tl.arange(0, BM)[:, None] * BK + tl.arange(0, BK)[None, :])
    right = tl.load(b + tl.arange(0, BN)[:, None] * BK + tl.arange(0, BK)[None, :])
    total = tl.dot(left, tl.trans(right))
    tl.store(c + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], tl.exp(total).to(tl.float16))
