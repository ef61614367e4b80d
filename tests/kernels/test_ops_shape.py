"""Shapes, reductions, scans, sort and multiplication, each against torch and Triton's interpreter."""

from __future__ import annotations

import math

import ops_kit
import pytest
import torch
import triton
import triton.language as tl
from ops_kit import Case

TRITON = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.int32: tl.int32}


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Small integers of either sign as numbers of the type: sums are exact in any order."""
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, shape, generator=source).to(dtype)


def permuted(n: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> torch.Tensor:
    return (torch.randperm(n, generator=torch.Generator().manual_seed(seed)) - n // 2).to(dtype)


# --- reductions


@triton.jit
def _concat_first(a, b):
    return a + 0 * b


@triton.jit
def _poly_combine(a1, b1, a2, b2):
    """Composition of x -> a*x + b: associative, not commutative."""
    return a1 * a2, a2 * b1 + b2


@triton.jit
def _min_abs(a, b):
    return tl.where(tl.abs(a) <= tl.abs(b), a, b)


@triton.jit
def reduction(x, y, OP: tl.constexpr, AXIS: tl.constexpr, KEEP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + i)
    if OP == "sum":
        r = tl.sum(a, AXIS, keep_dims=KEEP)
    elif OP == "max":
        r = tl.max(a, AXIS, keep_dims=KEEP)
    elif OP == "min":
        r = tl.min(a, AXIS, keep_dims=KEEP)
    elif OP == "argmax":
        r = tl.argmax(a, AXIS, keep_dims=KEEP)
    elif OP == "argmin":
        r = tl.argmin(a, AXIS, keep_dims=KEEP)
    elif OP == "xor_sum":
        r = tl.xor_sum(a, AXIS, keep_dims=KEEP)
    elif OP == "custom":
        r = tl.reduce(a, AXIS, _min_abs, keep_dims=KEEP)
    if AXIS is None:
        tl.store(y, tl.max(r) if KEEP else r)
    elif AXIS == 0:
        tl.store(y + tl.arange(0, N), tl.reshape(r, (N,)))
    else:
        tl.store(y + tl.arange(0, M), tl.reshape(r, (M,)))


def _xor(x, axis):
    parts = list(x.flatten() if axis is None else x.unbind(axis))
    result = parts[0]
    for part in parts[1:]:
        result = result ^ part
    return result


def _least(x, axis):
    parts = list(x.flatten() if axis is None else x.unbind(axis))
    result = parts[0]
    for part in parts[1:]:
        result = torch.where(result.abs() <= part.abs(), result, part)
    return result


REFERENCE = {
    "sum": lambda x, a: x.double().sum(a) if x.is_floating_point() else x.sum(a),
    "max": lambda x, a: x.amax(a) if a is not None else x.max(),
    "min": lambda x, a: x.amin(a) if a is not None else x.min(),
    "argmax": lambda x, a: _first(x, a, lambda t: t.amax()),
    "argmin": lambda x, a: _first(x, a, lambda t: t.amin()),
    "xor_sum": _xor,
    "custom": _least,
}


def _first(x, axis, extreme):
    """The least index of the extreme: Triton breaks ties to the left."""
    rows = [x.flatten()] if axis is None else list(x.unbind(1 - axis))
    found = torch.tensor([row.tolist().index(extreme(row).item()) for row in rows])
    return found[0] if axis is None else found


def reduction_case(op: str, axis, keep: bool, dtype: torch.dtype, m: int = 8, n: int = 16) -> Case:
    x = draw(m, n, dtype=dtype, seed=axis or 2)
    count = {None: 1, 0: n, 1: m}[axis]

    def expect(x, y):
        y[:] = REFERENCE[op](x, axis).to(y.dtype)

    out = torch.zeros(count, dtype=torch.int32 if op.startswith("arg") else dtype)
    why = "bf16 is a bit pattern there" if dtype == torch.bfloat16 else ""
    name = f"{op}-{axis}{'-keep' if keep else ''}-{str(dtype)[6:]}-{m}x{n}"
    constexprs = {"OP": op, "AXIS": axis, "KEEP": keep, "M": m, "N": n}
    return Case(name, reduction, (x, out), expect, (1,), constexprs, no_interpreter=why)


@triton.jit
def nan_extremes(x, y, z, N: tl.constexpr):
    a = tl.load(x + tl.arange(0, N))
    tl.store(y, tl.max(a, 0))
    tl.store(y + 1, tl.min(a, 0))
    tl.store(y + 2, tl.max(a, 0, propagate_nan=True))
    b = tl.load(z + tl.arange(0, N))
    tl.store(y + 3, tl.max(b, 0))
    m, i = tl.max(b, 0, return_indices=True)
    tl.store(y + 4, m + i)
    m, i = tl.min(b, 0, return_indices=True)
    tl.store(y + 5, m + i)


def nan_extremes_expect(x, y, z):
    clean = x[~x.isnan()]
    y[:] = torch.stack(
        [clean.max(), clean.min(), torch.tensor(math.nan), z.max(), z.max() + z.argmax(), z.min() + z.argmin()]
    )


@triton.jit
def narrow_sum(x, y, N: tl.constexpr):
    tl.store(y, tl.sum(tl.load(x + tl.arange(0, N)), 0))


def narrow_sum_expect(x, y):
    """2048 and fifteen times 0.75, of which half-precision additions lose some."""
    parts = x
    while len(parts) > 1:
        parts = parts[::2] + parts[1::2]
    y[0] = parts[0]
    assert y[0] != x.float().sum().to(y.dtype)


@triton.jit
def tuple_reduce(x, z, y, N: tl.constexpr):
    o = tl.arange(0, N)
    a, b = tl.reduce((tl.load(x + o), tl.load(z + o)), 0, _poly_combine)
    tl.store(y, a)
    tl.store(y + 1, b)


def compose(pairs):
    a, b = pairs[0]
    for c, d in pairs[1:]:
        a, b = a * c, c * b + d
    return a, b


def tuple_reduce_expect(x, z, y):
    y[0], y[1] = compose(list(zip(x.tolist(), z.tolist(), strict=True)))


# --- scans


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _max(a, b):
    return tl.maximum(a, b)


@triton.jit
def scans(x, y, OP: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + i)
    if OP == "cumsum":
        r = tl.cumsum(a, AXIS, REVERSE)
    elif OP == "cumprod":
        r = tl.cumprod(a, AXIS, REVERSE)
    elif OP == "max":
        r = tl.associative_scan(a, AXIS, _max, REVERSE)
    tl.store(y + i, r)


SCANS = {"cumsum": torch.cumsum, "cumprod": torch.cumprod, "max": lambda x, a: x.cummax(a).values}


def scan_case(op: str, axis: int, reverse: bool, dtype: torch.dtype) -> Case:
    def expect(x, y):
        source = x.flip(axis) if reverse else x
        result = SCANS[op](source.double() if x.is_floating_point() else source, axis)
        y[:] = (result.flip(axis) if reverse else result).to(y.dtype)

    x = draw(4, 8, dtype=dtype, seed=7)
    if op == "cumprod":
        x = x.clamp(-2, 2)
    name = f"{op}-{axis}-{'reverse-' if reverse else ''}{str(dtype)[6:]}"
    constexprs = {"OP": op, "AXIS": axis, "REVERSE": reverse, "M": 4, "N": 8}
    return Case(name, scans, (x, torch.zeros_like(x)), expect, (1,), constexprs)


@triton.jit
def tuple_scan(x, z, y, w, N: tl.constexpr, REVERSE: tl.constexpr):
    o = tl.arange(0, N)
    a, b = tl.associative_scan((tl.load(x + o), tl.load(z + o)), 0, _poly_combine, REVERSE)
    tl.store(y + o, a)
    tl.store(w + o, b)


def tuple_scan_expect(x, z, y, w):
    pairs = list(zip(x.tolist(), z.tolist(), strict=True))
    for i in range(len(pairs)):
        y[i], w[i] = compose(pairs[: i + 1])


def tuple_scan_reversed(x, z, y, w):
    pairs = list(zip(x.tolist(), z.tolist(), strict=True))[::-1]
    for i in range(len(pairs)):
        y[-1 - i], w[-1 - i] = compose(pairs[: i + 1])


# --- order


@triton.jit
def sorted_rows(x, y, M: tl.constexpr, N: tl.constexpr, DOWN: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(y + i, tl.sort(tl.load(x + i), 1, DOWN))


@triton.jit
def flipped(x, y, z, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(y + i, tl.flip(tl.load(x + i), 1))
    tl.store(z + i, tl.flip(tl.load(x + i), 0))


@triton.jit
def counted(x, y, N: tl.constexpr, BINS: tl.constexpr):
    tl.store(y + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, N)), BINS))


@triton.jit
def gathered(x, index, y, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(y + i, tl.gather(tl.load(x + i), tl.load(index + i), AXIS))


# --- shapes


@triton.jit
def reshaped(x, y, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + i)
    b = tl.reshape(a, (N // 2, M, 2))
    c = tl.permute(b, (1, 2, 0))
    d = tl.reshape(c, (M * N,))
    tl.store(y + tl.arange(0, M * N), d)
    e = tl.trans(tl.reshape(tl.arange(0, M * N), (M, N)))
    tl.store(y + M * N + tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :], e)
    v = tl.reshape(a, (2, M * N // 2), can_reorder=True)
    tl.store(
        y + 2 * M * N + tl.arange(0, 2)[:, None] * (M * N // 2) + tl.arange(0, M * N // 2)[None, :],
        tl.ravel(v).reshape(2, M * N // 2),
    )


def reshaped_expect(x, y):
    m, n = x.shape
    y[: m * n] = x.reshape(n // 2, m, 2).permute(1, 2, 0).reshape(-1)
    y[m * n : 2 * m * n] = torch.arange(m * n).reshape(m, n).t().reshape(-1)
    y[2 * m * n :] = x.reshape(-1)


@triton.jit
def joined(x, z, y, N: tl.constexpr):
    o = tl.arange(0, N)
    a = tl.load(x + o)
    b = tl.load(z + o)
    j = tl.join(a, b)
    tl.store(y + o[:, None] * 2 + tl.arange(0, 2)[None, :], j)
    p, q = tl.split(j)
    tl.store(y + 2 * N + o, p - q)
    tl.store(y + 3 * N + tl.arange(0, 2 * N), tl.interleave(a, b))
    c = tl.cat(a, b, can_reorder=True)
    tl.store(y + 5 * N + tl.arange(0, 2 * N), tl.cumsum(c * 0 + 1, 0) + tl.sum(c, 0))
    k = tl.join(o, o + 1)
    tl.store(y + 7 * N + tl.arange(0, 2 * N), tl.ravel(k))


def joined_expect(x, z, y):
    n = len(x)
    both = torch.stack((x, z), -1).flatten()
    y[: 2 * n], y[2 * n : 3 * n], y[3 * n : 5 * n] = both, x - z, both
    y[5 * n : 7 * n] = torch.arange(1, 2 * n + 1) + x.sum() + z.sum()
    y[7 * n :] = torch.stack((torch.arange(n), torch.arange(1, n + 1)), -1).flatten()


@triton.jit
def broadcasted(x, y, M: tl.constexpr, N: tl.constexpr, P: tl.constexpr):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    p = tl.arange(0, P)
    i = m[:, None, None] * (N * P) + n[None, :, None] * P + p[None, None, :]
    row = tl.load(x + n)
    r = tl.broadcast_to(row[None, :, None], (M, N, P)) + tl.broadcast_to(p[None, None, :], (M, N, P)) * 10
    r += tl.expand_dims(m, 1)[:, :, None] * 100
    r = tl.where((m[:, None, None] > 0) & (n[None, :, None] < N - 1) | (p[None, None, :] == 1), r, -1.0)
    tl.store(y + i, r, mask=(p[None, None, :] < P - 1) & (m[:, None, None] >= 0))
    s = tl.full((M, N), 3, tl.int32) + tl.zeros((M, N), tl.int32)
    tl.store(y + M * N * P, tl.sum(tl.sum(s, 1), 0).to(tl.float32))
    tl.store(y + M * N * P + 1 + n, tl.sum(tl.max(tl.load(y + i) * 1.0, 2), 0))


def broadcasted_expect(x, y):
    m, n, p = torch.arange(3)[:, None, None], torch.arange(5)[None, :, None], torch.arange(4)[None, None, :]
    r = torch.where(((m > 0) & (n < 4)) | (p == 1), x[None, :, None] + p * 10 + m * 100, -1.0)
    cube = y[:60].view(3, 5, 4)
    cube[:, :, :3] = r[:, :, :3]
    y[60] = 45
    y[61:] = cube.amax(2).sum(0)


@triton.jit
def ranges(y, S: tl.constexpr, E: tl.constexpr):
    o = tl.arange(S, E)
    tl.store(y + o - S, o * o)


# --- multiplication


@triton.jit
def product(
    a,
    b,
    c,
    d,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    TA: tl.constexpr,
    TB: tl.constexpr,
    ACC: tl.constexpr,
    OUT: tl.constexpr,
):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    if TA:  # noqa: SIM108
        x = tl.trans(tl.load(a + k[:, None] * M + m[None, :]))
    else:
        x = tl.load(a + m[:, None] * K + k[None, :])
    if TB:  # noqa: SIM108
        y = tl.load(b + n[:, None] * K + k[None, :]).T
    else:
        y = tl.load(b + k[:, None] * N + n[None, :])
    at = m[:, None] * N + n[None, :]
    if ACC == "operand":
        r = tl.dot(x, y, tl.load(c + at).to(OUT), out_dtype=OUT)
    elif ACC == "sum":
        r = tl.load(c + at).to(OUT) + tl.dot(x, y, out_dtype=OUT)
    elif ACC == "twice":
        s = tl.load(c + at).to(OUT)
        r = tl.dot(x, y, s, out_dtype=OUT) * 2 + s
    else:
        r = tl.dot(x, y, out_dtype=OUT)
    tl.store(d + at, r)


def product_case(dtype: torch.dtype, ta: bool, tb: bool, acc: str, out: torch.dtype, shape=(16, 32, 16)) -> Case:
    m, n, k = shape
    a = draw(*((k, m) if ta else (m, k)), dtype=dtype, seed=1)
    b = draw(*((n, k) if tb else (k, n)), dtype=dtype, seed=2)
    c = draw(m, n, dtype=out, seed=4)
    wide = torch.int64 if out == torch.int32 else torch.float64

    def expect(a, b, c, d):
        r = (a.t() if ta else a).to(wide) @ (b.t() if tb else b).to(wide)
        r = {"operand": r + c, "sum": r + c, "twice": 2 * (r + c) + c, "": r}[acc]
        d[:] = r.to(out)

    name = f"dot-{str(dtype)[6:]}-{'t' if ta else 'n'}{'t' if tb else 'n'}-{acc or 'zero'}-{str(out)[6:]}-{m}x{n}x{k}"
    constexprs = {"M": m, "N": n, "K": k, "TA": ta, "TB": tb, "ACC": acc, "OUT": TRITON[out]}
    why = "bf16 is a bit pattern there" if dtype == torch.bfloat16 else ""
    why = why or ("it multiplies in int8" if dtype == torch.int8 else "")
    why = why or (
        "its `.T` is no tensor of its own" if tb else "it wants 16 rows and columns" if min(shape) < 16 else ""
    )
    return Case(name, product, (a, b, c, torch.zeros_like(c)), expect, (1,), constexprs, no_interpreter=why)


@triton.jit
def batched(a, b, d, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    z = tl.arange(0, B)[:, None, None]
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    x = tl.load(a + z * (M * K) + m[None, :, None] * K + k[None, None, :])
    y = tl.load(b + z * (K * N) + k[None, :, None] * N + n[None, None, :])
    acc = tl.zeros((B, M, N), tl.float32)
    for _ in range(2):
        acc = tl.dot(x, y, acc)
    tl.store(d + z * (M * N) + m[None, :, None] * N + n[None, None, :], acc)


def batched_expect(a, b, d):
    d[:] = 2 * (a.double() @ b.double()).float()


@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        i = k + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + i[None, :], mask=(m[:, None] < M) & (i[None, :] < K), other=0.0)
        y = tl.load(b + i[:, None] * N + n[None, :], mask=(i[:, None] < K) & (n[None, :] < N), other=0.0)
        acc += tl.dot(x, y)
    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def gemm_wrapped(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The matmul tutorial: rows and columns modulo M and N, pointers that advance."""
    m = (tl.program_id(0) * BM + tl.arange(0, BM)) % M
    n = (tl.program_id(1) * BN + tl.arange(0, BN)) % N
    i = tl.arange(0, BK)
    pa = a + m[:, None] * K + i[None, :]
    pb = b + i[:, None] * N + n[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(pa, mask=i[None, :] < K - k * BK, other=0.0)
        y = tl.load(pb, mask=i[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        pa += BK
        pb += BK * N
    cm = tl.program_id(0) * BM + tl.arange(0, BM)
    cn = tl.program_id(1) * BN + tl.arange(0, BN)
    tl.store(c + cm[:, None] * N + cn[None, :], acc, mask=(cm[:, None] < M) & (cn[None, :] < N))


def gemm_expect(a, b, c, m, n, k):
    c[:] = (a.double() @ b.double()).to(c.dtype)


def gemm_case(kernel, name: str, dtype: torch.dtype, m: int, n: int, k: int) -> Case:
    args = (draw(m, k, dtype=dtype, seed=5), draw(k, n, dtype=dtype, seed=6), torch.zeros(m, n), m, n, k)
    grid = (triton.cdiv(m, 16), triton.cdiv(n, 16))
    return Case(
        f"{name}-{str(dtype)[6:]}-{m}x{n}x{k}",
        kernel,
        args,
        gemm_expect,
        grid,
        {"BM": 16, "BN": 16, "BK": 16},
        no_interpreter="bf16 is a bit pattern there" if dtype == torch.bfloat16 else "",
    )


F16, BF16, F32, I8, I32 = torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int32

CASES = [
    *[reduction_case(op, axis, keep, I32) for op in REFERENCE for axis in (0, 1) for keep in (False, True)],
    *[reduction_case(op, None, False, I32) for op in REFERENCE if not op.startswith("arg")],
    *[
        reduction_case(op, axis, False, d)
        for op in ("sum", "max", "min", "custom")
        for axis in (0, 1)
        for d in (F32, F16, BF16)
    ],
    *[reduction_case(op, 1, False, I32, 3, 5) for op in REFERENCE],
    *[reduction_case(op, 1, False, F32, 4, 1) for op in ("sum", "max", "argmax", "custom")],
    Case(
        "nan-extremes",
        nan_extremes,
        (torch.tensor([1.0, math.nan, -3.0, 2.0]), torch.zeros(6), permuted(4)),
        nan_extremes_expect,
        (1,),
        {"N": 4},
        no_interpreter="numpy's maximum propagates NaN",
    ),
    Case(
        "narrow-sum-rounds-each-addition",
        narrow_sum,
        (torch.tensor([2048.0, *[0.75] * 15], dtype=F16), torch.zeros(1, dtype=F16)),
        narrow_sum_expect,
        (1,),
        {"N": 16},
        no_interpreter="numpy adds in another order",
    ),
    Case(
        "tuple-reduce",
        tuple_reduce,
        (draw(8, dtype=I32).clamp(-2, 2), draw(8, dtype=I32, seed=2), torch.zeros(2, dtype=I32)),
        tuple_reduce_expect,
        (1,),
        {"N": 8},
    ),
    *[
        scan_case(op, axis, reverse, d)
        for op in SCANS
        for axis in (0, 1)
        for reverse in (False, True)
        for d in (F32, I32)
    ],
    *[
        Case(
            f"tuple-scan{'-reversed' if r else ''}",
            tuple_scan,
            (
                draw(8, dtype=I32).clamp(-2, 2),
                draw(8, dtype=I32, seed=2),
                torch.zeros(8, dtype=I32),
                torch.zeros(8, dtype=I32),
            ),
            tuple_scan_reversed if r else tuple_scan_expect,
            (1,),
            {"N": 8, "REVERSE": r},
        )
        for r in (False, True)
    ],
    *[
        Case(
            f"sort-{'down' if down else 'up'}-{str(d)[6:]}",
            sorted_rows,
            (draw(4, 8, dtype=d), torch.zeros(4, 8, dtype=d)),
            lambda x, y, down=down: y.copy_(x.sort(1, down).values),
            (1,),
            {"M": 4, "N": 8, "DOWN": down},
            no_interpreter="not in the interpreter of triton-ascend",
        )
        for down in (False, True)
        for d in (F32, F16, I32)
    ],
    Case(
        "flip",
        flipped,
        (draw(4, 8), torch.zeros(4, 8), torch.zeros(4, 8)),
        lambda x, y, z: (y.copy_(x.flip(1)), z.copy_(x.flip(0))),
        (1,),
        {"M": 4, "N": 8},
        no_interpreter="not in the interpreter of triton-ascend",
    ),
    Case(
        "histogram",
        counted,
        (draw(64, dtype=I32).abs() % 8, torch.zeros(8, dtype=I32)),
        lambda x, y: y.copy_(torch.bincount(x, minlength=8)),
        (1,),
        {"N": 64, "BINS": 8},
    ),
    *[
        Case(
            f"gather-{axis}",
            gathered,
            (draw(4, 8), draw(4, 8, dtype=I32).abs() % (4, 8)[axis], torch.zeros(4, 8)),
            lambda x, i, y, axis=axis: y.copy_(x.gather(axis, i.long())),
            (1,),
            {"M": 4, "N": 8, "AXIS": axis},
            no_interpreter="not in the interpreter of triton-ascend",
        )
        for axis in (0, 1)
    ],
    Case("reshape-permute", reshaped, (draw(4, 8), torch.zeros(96)), reshaped_expect, (1,), {"M": 4, "N": 8}),
    Case(
        "join-split-cat-interleave", joined, (draw(8), draw(8, seed=5), torch.zeros(72)), joined_expect, (1,), {"N": 8}
    ),
    Case("broadcast-3d", broadcasted, (draw(5), torch.zeros(66)), broadcasted_expect, (1,), {"M": 3, "N": 5, "P": 4}),
    *[
        Case(
            f"arange-{s}-{e}",
            ranges,
            (torch.zeros(e - s, dtype=I32),),
            lambda y, s=s, e=e: y.copy_(torch.arange(s, e) ** 2),
            (1,),
            {"S": s, "E": e},
        )
        for s, e in ((0, 1), (0, 13), (5, 12), (3, 4))
    ],
    *[
        product_case(d, ta, tb, acc, F32)
        for d in (F16, BF16, F32)
        for ta, tb, acc in ((False, False, ""), (True, False, "operand"), (False, True, "sum"), (True, True, "twice"))
    ],
    product_case(I8, False, False, "", I32),
    product_case(I8, False, True, "operand", I32),
    product_case(I8, True, False, "twice", I32),
    product_case(F16, False, False, "operand", F16),
    product_case(F16, False, False, "", F16),
    product_case(F32, False, False, "sum", F32, (3, 5, 7)),
    product_case(F16, True, True, "sum", F32, (1, 16, 1)),
    Case(
        "dot-3d",
        batched,
        (draw(2, 16, 16, dtype=F16), draw(2, 16, 16, dtype=F16, seed=1), torch.zeros(2, 16, 16)),
        batched_expect,
        (1,),
        {"B": 2, "M": 16, "N": 16, "K": 16},
    ),
    *[
        gemm_case(k, name, d, *s)
        for k, name in ((gemm, "gemm"), (gemm_wrapped, "gemm-wrapped"))
        for d in (F16, F32)
        for s in ((32, 32, 32), (33, 17, 40), (7, 50, 5))
    ],
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shape(case):
    ops_kit.check(case, __name__)


def test_names_are_unique():
    ops_kit.names_are_unique(CASES)
