"""On-chip memory: kernels that fit, that fit only without multi-buffering, and that do not fit."""

import triton
import triton.language as tl
from gate_kit import CUBE, Cases, Passes, Refused

import tdist.language as dl

CASES = Cases()
ADD = "x: *fp32, y: *fp32, out: *fp32"
PRODUCT = "a: *fp16, b: *fp16, c: *fp16, N: i32, K: i32"
RETRIED = (
    "only fitted after the vendor's retry without multi-buffering",
    "overflow detected; .*set enable-code-motion to false",
    "overflow detected; .*set enable-auto-multi-buffer to false",
    "set enable-auto-multi-buffer to false; compilation then succeeded",
)


@triton.jit
def _gated(x, y, out, offsets):
    values = tl.load(x + offsets)
    tl.store(out + offsets, tl.exp(values) * tl.load(y + offsets) + values)


@CASES.case(ADD, B=8192, memory="load x, load y, store out")
@triton.jit
def block_that_fits(x, y, out, B: tl.constexpr):
    _gated(x, y, out, tl.program_id(0) * B + tl.arange(0, B))


@CASES.case(
    ADD, Refused("bishengir-compile", "fit into UB: it needs 786432 bytes, 196608 are there", at="kernel"), B=65536
)
@triton.jit
def block_that_overflows_ub(x, y, out, B: tl.constexpr):  # <kernel>
    _gated(x, y, out, tl.program_id(0) * B + tl.arange(0, B))


@CASES.case(f"{ADD}, n: i32", Passes(notes=RETRIED), B=16384, memory="load x, load y, store out")
@triton.jit
def loop_that_fits_only_without_multibuffering(x, y, out, n, B: tl.constexpr):
    for turn in range(0, n):
        _gated(x, y, out, turn * B + tl.arange(0, B))


@CASES.case(f"{ADD}, n: i32", B=16384, options={"multibuffer": False}, memory="load x, load y, store out")
@triton.jit
def loop_launched_without_multibuffering(x, y, out, n, B: tl.constexpr):
    for turn in range(0, n):
        _gated(x, y, out, turn * B + tl.arange(0, B))


@CASES.case(
    "x: *fp32, buf: *fp32",
    Refused("bishengir-compile", r"fit into UB: it needs \d+ bytes, 196608 are there", at="kernel"),
    B=65536,
)
@triton.jit
def remote_copy_that_overflows_ub(x, buf, B: tl.constexpr):  # <kernel>
    tl.store(dl.symm_at(buf, 1) + tl.arange(0, B), tl.load(x + tl.arange(0, B)) * 2.0)


@triton.jit
def _tiled(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.arange(0, BM)[:, None]
    columns = tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows * K + k + tl.arange(0, BK)[None, :])
        total += tl.dot(left, tl.load(b + (k + tl.arange(0, BK)[:, None]) * N + columns))
    tl.store(c + rows * N + columns, total.to(tl.float16))


@CASES.case(PRODUCT, Passes(CUBE), BM=128, BN=256, BK=128, memory="load a, load b, store c")
@triton.jit
def product_that_fills_l0c(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    _tiled(a, b, c, N, K, BM, BN, BK)


@CASES.case(
    PRODUCT,
    Refused("bishengir-compile", "fit into L0C: it needs 262144 bytes, 131072 are there", at="kernel"),
    BM=256,
    BN=256,
    BK=64,
)
@triton.jit
def product_that_overflows_l0c(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # <kernel>
    _tiled(a, b, c, N, K, BM, BN, BK)


@CASES.case(PRODUCT, Passes(CUBE, notes=RETRIED), BM=128, BN=256, BK=512, memory="load a, load b, store c")
@triton.jit
def product_that_fits_only_without_multibuffering(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    _tiled(a, b, c, N, K, BM, BN, BK)


@CASES.case(
    PRODUCT,
    Refused("bishengir-compile", "fit into L1: it needs 786432 bytes, 524288 are there", at="kernel"),
    BM=128,
    BN=256,
    BK=1024,
)
@triton.jit
def product_that_overflows_l1(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # <kernel>
    _tiled(a, b, c, N, K, BM, BN, BK)
