"""Accesses: every form of pointer, mask and index, block pointers and atomics, against torch and the interpreter."""

from __future__ import annotations

import math

import ops_kit
import pytest
import torch
import triton
import triton.language as tl
from ops_kit import Case

F16, F32, I32, I64 = torch.float16, torch.float32, torch.int32, torch.int64
INTEGERS = (I32, I64)


def draw(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randint(-99, 100, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- tiles of pointers


@triton.jit
def strided(x, y, M, N, xm, xn, ym, yn, BM: tl.constexpr, BN: tl.constexpr):
    """Any strides, zero and negative ones too; both axes masked on both sides."""
    m = tl.arange(0, BM) - 1
    n = tl.arange(0, BN)
    mask = ((m >= 0) & (m < M))[:, None] & (n < N)[None, :]
    a = tl.load(x + m[:, None] * xm + n[None, :] * xn, mask=mask, other=-5)
    tl.store(y + m[:, None] * ym + n[None, :] * yn, a + 1, mask=mask)


def strided_case(name: str, x: torch.Tensor, y: torch.Tensor) -> Case:
    def expect(x, y, m, n, *strides):
        y.copy_(x + 1)

    args = (x, y, *x.shape, *x.stride(), *y.stride())
    return Case(f"strided-{name}", strided, args, expect, (1,), {"BM": 8, "BN": 8})


@triton.jit
def backwards(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Pointers to the last element that walk down, by columns and by both."""
    m = tl.arange(0, BM)
    n = tl.arange(0, BN)
    mask = (m[:, None] < M) & (n[None, :] < N)
    a = tl.load(x + (M - 1 - m)[:, None] * N + (N - 1 - n)[None, :], mask=mask, other=0)
    b = tl.load(x + m[:, None] * N + (N - 1 - n)[None, :], mask=mask, other=0)
    tl.store(y + (M - 1 - m)[:, None] * N + n[None, :], a * 1000 + b, mask=mask)


def backwards_expect(x, y, m, n):
    y.copy_((x.flip(0, 1) * 1000 + x.flip(1)).flip(0))


@triton.jit
def zero_stride(x, y, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.arange(0, BM)
    n = tl.arange(0, BN)
    a = tl.load(x + m[:, None] * 0 + n[None, :], mask=n[None, :] < N, other=0)
    tl.store(y + m[:, None] * BN + n[None, :], a + m[:, None])


def zero_stride_expect(x, y, n):
    y.copy_(torch.nn.functional.pad(x[:n], (0, 8 - n))[None, :] + torch.arange(4)[:, None])


@triton.jit
def windows(x, y, N, B: tl.constexpr, W: tl.constexpr):
    """Overlapping windows: both axes have one stride."""
    i = tl.arange(0, B)
    w = tl.arange(0, W)
    at = i[:, None] + w[None, :]
    a = tl.load(x + at, mask=at < N, other=0)
    tl.store(y + i, tl.sum(a, 1))


def windows_expect(x, y, n):
    padded = torch.nn.functional.pad(x[:n], (0, 24 - n))
    y.copy_(torch.stack([padded[i : i + 4].sum() for i in range(16)]))


@triton.jit
def odd_masks(x, y, N, B: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, B)
    if OP == "even":
        mask = i % 2 == 0
    elif OP == "strided":
        mask = 3 * i < N
    elif OP == "negative":
        mask = N - 2 * i > 3
    elif OP == "between":
        mask = (i >= 3) & (i <= N - 4)
    elif OP == "outside":
        mask = (i < 3) | (i > N - 4)
    elif OP == "not":
        mask = ~(i < 5)
    elif OP == "equal":
        mask = i == N - 5
    elif OP == "different":
        mask = i != 4
    elif OP == "none":
        mask = i < N - N
    elif OP == "scalar":
        mask = N > 100
    elif OP == "xor":
        mask = (i < 9) ^ (i < 4)
    elif OP == "and-scalar":
        mask = (i < 9) & (N > 5)
    elif OP == "data":
        mask = tl.load(x + i) > 0
    a = tl.load(x + i, mask=mask, other=7)
    tl.store(y + i, a)
    tl.store(y + B + i, i, mask=mask)


MASKS = {
    "even": lambda i, n, x: i % 2 == 0,
    "strided": lambda i, n, x: 3 * i < n,
    "negative": lambda i, n, x: n - 2 * i > 3,
    "between": lambda i, n, x: (i >= 3) & (i <= n - 4),
    "outside": lambda i, n, x: (i < 3) | (i > n - 4),
    "not": lambda i, n, x: i >= 5,
    "equal": lambda i, n, x: i == n - 5,
    "different": lambda i, n, x: i != 4,
    "none": lambda i, n, x: i < 0,
    "scalar": lambda i, n, x: i < 0,
    "xor": lambda i, n, x: (i < 9) & (i >= 4),
    "and-scalar": lambda i, n, x: i < 9,
    "data": lambda i, n, x: x > 0,
}


def mask_case(op: str) -> Case:
    def expect(x, y, n):
        i = torch.arange(16)
        mask = MASKS[op](i, n, x)
        y[:16] = torch.where(mask, x, 7)
        y[16:][mask] = i[mask].to(y.dtype)

    why = "no int1 there" if op == "not" else ""
    return Case(
        f"mask-{op}",
        odd_masks,
        (draw(16, dtype=I32), torch.full((32,), -1, dtype=I32), 14),
        expect,
        (1,),
        {"B": 16, "OP": op},
        no_interpreter=why,
    )


@triton.jit
def wrapped(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr, OP: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    if OP == "rows":
        at = (m % M)[:, None] * N + (n % N)[None, :]
    elif OP == "columns":
        at = (m % M)[:, None] + (n % N)[None, :] * M
    elif OP == "divided":
        at = (m // 2 % M)[:, None] * N + (n // 3)[None, :]
    elif OP == "modulo-flat":
        at = (m[:, None] * BN + n[None, :]) % (M * N)
    elif OP == "grouped":
        at = (m % 2 * 3 + m // 2 % 3)[:, None] * N + (n % N)[None, :]
    elif OP == "minimum":
        at = tl.minimum(m, M - 1)[:, None] * N + tl.minimum(n, N - 1)[None, :]
    elif OP == "where":
        at = tl.where(m < M, m, 0)[:, None] * N + tl.where(n < N, n, n - N)[None, :]
    elif OP == "shifted":
        at = ((m >> 1) % M)[:, None] * N + ((n & 3) ^ 1)[None, :]
    tl.store(y + m[:, None] * BN + n[None, :], tl.load(x + at))


WRAPS = {
    "rows": lambda m, n, M, N: m % M * N + n % N,
    "columns": lambda m, n, M, N: m % M + n % N * M,
    "divided": lambda m, n, M, N: m // 2 % M * N + n // 3,
    "modulo-flat": lambda m, n, M, N: (m * 8 + n) % (M * N),
    "grouped": lambda m, n, M, N: (m % 2 * 3 + m // 2 % 3) * N + n % N,
    "minimum": lambda m, n, M, N: m.clamp(max=M - 1) * N + n.clamp(max=N - 1),
    "where": lambda m, n, M, N: torch.where(m < M, m, 0) * N + torch.where(n < N, n, n - N),
    "shifted": lambda m, n, M, N: (m >> 1) % M * N + ((n & 3) ^ 1),
}


def wrap_case(op: str, dtype: torch.dtype) -> Case:
    def expect(x, y, rows, columns):
        m, n = torch.arange(12)[:, None], torch.arange(8)[None, :]
        y.copy_(x.flatten()[WRAPS[op](m, n, rows, columns)])

    return Case(
        f"wrap-{op}-{str(dtype)[6:]}",
        wrapped,
        (draw(7, 5, dtype=dtype), torch.zeros(12, 8, dtype=dtype), 7, 5),
        expect,
        (3,),
        {"BM": 4, "BN": 8, "OP": op},
    )


@triton.jit
def scattered(x, index, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    at = tl.load(index + i, mask=i < n, other=-1)
    tl.store(y + at, tl.load(x + i), mask=at >= 0)
    row = tl.load(index + i, mask=i < 4, other=0)
    tile = tl.load(x + row[:, None] + i[None, :], mask=(i[:, None] < 4) & (row[:, None] + i[None, :] < B), other=0)
    tl.store(y + 32 + i, tl.sum(tile, 1), mask=i < 4)


def scattered_expect(x, index, y, n):
    y[index[:n].long()] = x[:n]
    padded = torch.nn.functional.pad(x, (0, 64))
    for i in range(4):
        at = int(index[i])
        y[32 + i] = padded[at : at + 16].sum()


@triton.jit
def wide_offsets(x, y, base, B: tl.constexpr):
    """Offsets that only int64 can hold, cancelled before the access."""
    far = base.to(tl.int64) * 4294967296
    i = tl.arange(0, B).to(tl.int64) * 4294967297 + far
    a = tl.load(x + (i - far - tl.arange(0, B).to(tl.int64) * 4294967296))
    p = x + far
    b = tl.load(p + (tl.arange(0, B) - far))
    tl.store(y + tl.arange(0, B), a + b)


@triton.jit
def pointer_casts(x, y, B: tl.constexpr):
    """The bytes of a float tensor through a pointer to integers."""
    p = x.to(tl.pointer_type(tl.int32), bitcast=True)
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(p + i))


@triton.jit
def no_other(x, y, n, B: tl.constexpr):
    """A tail that is loaded without `other` and never let out."""
    i = tl.arange(0, B)
    a = tl.load(x + i, mask=i < n)
    tl.store(y + i, a * 2 + 1, mask=i < n)
    tl.store(y + B, tl.sum(tl.where(i < n, a, 0), 0))


def no_other_expect(x, y, n):
    y[:n] = x[:n] * 2 + 1
    y[16] = x[:n].sum()


@triton.jit
def other_tensor(x, z, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n, other=tl.load(z + i)))
    s = tl.load(x + n, mask=n > 3, other=5.0)
    t = tl.load(x + 99999, mask=n > 30, other=6.0)
    tl.store(y + B, s + t)
    tl.store(y + B + 1, 3.0, mask=n > 30)


def other_tensor_expect(x, z, y, n):
    y[:16] = torch.where(torch.arange(16) < n, x, z)
    y[16] = x[n] + 6.0


@triton.jit
def load_between_stores(x, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    tl.store(x + B - 1 - i, a)
    b = tl.load(x + i)
    tl.store(x + i, a + b)
    for k in range(3):
        c = tl.load(x + i)
        tl.store(x + i, c + tl.load(x + (i + k) % B))


def load_between_stores_expect(x):
    x.copy_(x.flip(0) + x)
    for k in range(3):
        x.copy_(x + x.roll(-k))


# --- block pointers


@triton.jit
def blocks(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr, PAD: tl.constexpr, CHECK: tl.constexpr):
    p = tl.make_block_ptr(x, (M, N), (N, 1), (BM, 0), (BM, BN), (1, 0))
    p = tl.advance(p, (-BM, 0))
    q = tl.make_block_ptr(y, (16, 16), (16, 1), (0, 0), (BM, BN), (1, 0))
    for _ in range(2):
        a = tl.load(p, boundary_check=CHECK, padding_option=PAD)
        tl.store(q, a)
        p = tl.advance(p, (0, BN))
        q = tl.advance(q, (0, BN))


def blocks_case(pad: str, dtype: torch.dtype) -> Case:
    def expect(x, y, m, n):
        fill = math.nan if pad == "nan" else 0
        y[:8] = fill
        y[:m, :n] = x

    args = (draw(5, 13, dtype=dtype), torch.full((16, 16), 3).to(dtype), 5, 13)
    return Case(
        f"block-pad-{pad}-{str(dtype)[6:]}", blocks, args, expect, (1,), {"BM": 8, "BN": 8, "PAD": pad, "CHECK": (0, 1)}
    )


@triton.jit
def block_copy(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """One axis checked, the other transposed by its strides; stores clipped."""
    m = tl.program_id(0) * BM
    p = tl.make_block_ptr(x, (N, M), (1, N), (0, m), (BN, BM), (0, 1))
    q = tl.make_block_ptr(y, (M, N), (N, 1), (m, 0), (BM, BN), (1, 0))
    a = tl.load(p, boundary_check=(0, 1), padding_option="zero")
    tl.store(q, tl.trans(a), boundary_check=(0, 1))


@triton.jit
def block_gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    p = tl.make_block_ptr(a, (M, K), (K, 1), (m, 0), (BM, BK), (1, 0))
    q = tl.make_block_ptr(b, (K, N), (N, 1), (0, n), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        x = tl.load(p, boundary_check=(0, 1), padding_option="zero")
        y = tl.load(q, boundary_check=(0, 1), padding_option="zero")
        acc = tl.dot(x, y, acc)
        p = tl.advance(p, (0, BK))
        q = tl.advance(q, (BK, 0))
    r = tl.make_block_ptr(c, (M, N), (N, 1), (m, n), (BM, BN), (1, 0))
    tl.store(r, acc, boundary_check=(0, 1))


def block_gemm_expect(a, b, c, m, n, k):
    c.copy_(a.double() @ b.double())


@triton.jit
def block_line(x, y, n, B: tl.constexpr):
    p = tl.make_block_ptr(x, (n,), (1,), (2,), (B,), (0,))
    q = tl.make_block_ptr(y, (B,), (1,), (0,), (B,), (0,))
    tl.store(q, tl.load(p, boundary_check=(0,), padding_option="zero"))


def block_line_expect(x, y, n):
    y.copy_(torch.nn.functional.pad(x[2:n], (0, 16 - n + 2)))


# --- atomics


@triton.jit
def atomics(x, v, index, y, n, B: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(v + i)
    p = x + tl.load(index + i)
    mask = i < n
    if OP == "add":
        old = tl.atomic_add(p, a, mask=mask)
    elif OP == "max":
        old = tl.atomic_max(p, a, mask=mask)
    elif OP == "min":
        old = tl.atomic_min(p, a, mask=mask)
    elif OP == "and":
        old = tl.atomic_and(p, a, mask=mask)
    elif OP == "or":
        old = tl.atomic_or(p, a, mask=mask)
    elif OP == "xor":
        old = tl.atomic_xor(p, a, mask=mask)
    elif OP == "xchg":
        old = tl.atomic_xchg(p, a, mask=mask)
    tl.store(y + i, old, mask=mask)


RMW = {
    "add": lambda o, v: o + v,
    "max": max,
    "min": min,
    "and": lambda o, v: o & v,
    "or": lambda o, v: o | v,
    "xor": lambda o, v: o ^ v,
    "xchg": lambda o, v: v,
}


def atomic_case(op: str, dtype: torch.dtype, scalar: bool = False) -> Case:
    def expect(x, v, index, y, n=8):
        for lane in range(n):
            at = int(index[lane])
            old = x[at].item()
            y[lane] = old
            x[at] = RMW[op](old, v[lane].item())

    low = 0 if dtype == torch.uint32 else -99
    source = torch.Generator().manual_seed(11)
    x = torch.randint(low, 100, (6,), generator=source).to(dtype)
    v = torch.randint(low, 100, (8,), generator=source).to(dtype)
    if dtype == torch.uint32:
        v = torch.tensor([2**31 + 5, 3, 2**32 - 1, 7, 0, 2**31, 1, 9], dtype=dtype)
        expect = unsigned_expect(op)
    index = torch.tensor([0, 1, 0, 5, 1, 0, 4, 4], dtype=I32)
    args = (x, v, index, torch.zeros(8, dtype=dtype))
    label = f"atomic-{'scalar-' if scalar else ''}{op}-{str(dtype)[6:]}"
    if scalar:
        why = "" if dtype in (*INTEGERS, torch.uint32) else "no atomics on floats there"
        return Case(label, atomics_scalar, args, expect, (1,), {"OP": op, "N": 8}, no_interpreter=why)
    why = "duplicates lose updates there" if op in ("and", "or", "xor", "xchg", "add", "max", "min") else ""
    return Case(label, atomics, (*args, 7), expect, (1,), {"B": 8, "OP": op}, no_interpreter=why)


def unsigned_expect(op: str):
    def expect(x, v, index, y, n=8):
        words, values = x.tolist(), v.tolist()
        olds = []
        for lane in range(n):
            at = int(index[lane])
            olds.append(words[at])
            words[at] = RMW[op](words[at], values[lane]) % 2**32
        x.copy_(torch.tensor(words, dtype=x.dtype))
        y.copy_(torch.tensor(olds + y.tolist()[n:], dtype=x.dtype))

    return expect


@triton.jit
def atomics_scalar(x, v, index, y, OP: tl.constexpr, N: tl.constexpr):
    for i in range(N):
        a = tl.load(v + i)
        p = x + tl.load(index + i)
        if OP == "add":
            old = tl.atomic_add(p, a)
        elif OP == "max":
            old = tl.atomic_max(p, a)
        elif OP == "min":
            old = tl.atomic_min(p, a)
        elif OP == "and":
            old = tl.atomic_and(p, a)
        elif OP == "or":
            old = tl.atomic_or(p, a)
        elif OP == "xor":
            old = tl.atomic_xor(p, a)
        elif OP == "xchg":
            old = tl.atomic_xchg(p, a)
        tl.store(y + i, old)


@triton.jit
def compare_and_swap(x, y, z, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.atomic_cas(x + i, i % 3, i + 100))
    tl.store(z, tl.atomic_cas(x + B, 5, 6))
    tl.store(z + 1, tl.atomic_cas(x + B, 5, 7))


def compare_and_swap_expect(x, y, z):
    i = torch.arange(8)
    y.copy_(x[:8])
    x[:8] = torch.where(x[:8] == i % 3, i + 100, x[:8])
    z[0], z[1] = x[8], 6
    x[8] = 6


@triton.jit
def atomic_scaled(x, v, n, B: tl.constexpr):
    """Accumulation of scaled values into a strided column, unused results."""
    i = tl.arange(0, B)
    tl.atomic_add(x + i * 2, tl.load(v + i) * 0.5, mask=i < n)
    tl.atomic_add(x + (i // 4) * 2, 1.0, mask=i < n)


def atomic_scaled_expect(x, v, n):
    for i in range(n):
        x[2 * i] += v[i] * 0.5
        x[i // 4 * 2] += 1.0


def slots(rows: int, columns: int, dtype: torch.dtype = F32) -> torch.Tensor:
    """A strided destination with room around every row."""
    return torch.full((rows, columns + 3), 55).to(dtype)[:, :columns]


CASES = [
    strided_case("contiguous", draw(5, 7), slots(5, 7)),
    strided_case("transposed", draw(7, 5).t(), slots(5, 7)),
    strided_case("to-transposed", draw(5, 7), torch.zeros(7, 5).t()),
    strided_case("gaps", draw(10, 21)[::2, ::3], slots(5, 7)),
    strided_case("row-broadcast", draw(1, 7).expand(5, 7), slots(5, 7)),
    strided_case("column-broadcast", draw(5, 1).expand(5, 7), slots(5, 7)),
    strided_case("scalar-broadcast", draw(1, 1).expand(5, 7), slots(5, 7)),
    strided_case("half", draw(5, 7, dtype=F16), slots(5, 7, F16)),
    strided_case("long", draw(5, 7, dtype=I64), slots(5, 7, I64)),
    Case("backwards", backwards, (draw(5, 7), torch.zeros(5, 7), 5, 7), backwards_expect, (1,), {"BM": 8, "BN": 8}),
    Case("zero-stride", zero_stride, (draw(6), torch.zeros(4, 8), 6), zero_stride_expect, (1,), {"BM": 4, "BN": 8}),
    Case("windows", windows, (draw(13), torch.zeros(16), 13), windows_expect, (1,), {"B": 16, "W": 4}),
    *[mask_case(op) for op in MASKS],
    *[wrap_case(op, d) for op in WRAPS for d in (F32, F16)],
    Case(
        "scatter",
        scattered,
        (draw(16), torch.randperm(16, generator=torch.Generator().manual_seed(1)).int(), torch.zeros(36), 9),
        scattered_expect,
        (1,),
        {"B": 16},
    ),
    Case("wide-offsets", wide_offsets, (draw(8), torch.zeros(8), 3), lambda x, y, b: y.copy_(2 * x), (1,), {"B": 8}),
    Case(
        "pointer-cast",
        pointer_casts,
        (draw(8), torch.zeros(8, dtype=I32)),
        lambda x, y: y.copy_(x.view(I32)),
        (1,),
        {"B": 8},
    ),
    Case("tail-without-other", no_other, (draw(11), torch.zeros(17), 11), no_other_expect, (1,), {"B": 16}),
    Case(
        "other-tensor",
        other_tensor,
        (draw(16), draw(16, seed=3), torch.zeros(18), 9),
        other_tensor_expect,
        (1,),
        {"B": 16},
        no_interpreter="it takes a false scalar mask for none",
    ),
    Case("load-between-stores", load_between_stores, (draw(8, dtype=I32),), load_between_stores_expect, (1,), {"B": 8}),
    *[blocks_case(pad, d) for pad, d in (("zero", F32), ("nan", F32), ("zero", F16), ("nan", F16), ("zero", I32))],
    Case(
        "block-transposed",
        block_copy,
        (draw(13, 6), torch.zeros(13, 6), 13, 6),
        lambda x, y, m, n: y.copy_(x),
        (2,),
        {"BM": 8, "BN": 8},
    ),
    Case(
        "block-gemm",
        block_gemm,
        (draw(20, 33, dtype=F16), draw(33, 18, dtype=F16, seed=4), torch.zeros(20, 18), 20, 18, 33),
        block_gemm_expect,
        (2, 2),
        {"BM": 16, "BN": 16, "BK": 16},
    ),
    Case("block-1d", block_line, (draw(13), torch.zeros(16), 13), block_line_expect, (1,), {"B": 16}),
    *[atomic_case(op, d, s) for op in RMW for d in INTEGERS for s in (False, True)],
    *[atomic_case(op, d, s) for op in ("add", "max", "min", "xchg") for d in (F32,) for s in (False, True)],
    *[atomic_case("add", F16, s) for s in (False, True)],
    *[atomic_case(op, torch.uint32, s) for op in ("add", "max", "min", "xor") for s in (False, True)],
    Case(
        "atomic-cas",
        compare_and_swap,
        (torch.tensor([0, 1, 2, 3, 1, 2, 9, 1, 5], dtype=I32), torch.zeros(8, dtype=I32), torch.zeros(2, dtype=I32)),
        compare_and_swap_expect,
        (1,),
        {"B": 8},
    ),
    Case(
        "atomic-scaled",
        atomic_scaled,
        (draw(32), draw(16, seed=8), 13),
        atomic_scaled_expect,
        (1,),
        {"B": 16},
        no_interpreter="duplicates lose updates there",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory(case):
    ops_kit.check(case, __name__)


def test_names_are_unique():
    ops_kit.names_are_unique(CASES)
