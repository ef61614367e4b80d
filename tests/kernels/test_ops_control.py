"""Control flow, calls and what they carry, each against Python and Triton's interpreter."""

from __future__ import annotations

import ops_kit
import pytest
import torch
import triton
import triton.language as tl
from ops_kit import Case

F16, F32, I32, I64 = torch.float16, torch.float32, torch.int32, torch.int64
NUMPY = "numpy no longer makes a number of its one-element arrays"


def draw(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randint(-99, 100, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@triton.jit
def steps(y, lo, hi, step):
    n = 0
    total = 0
    for i in range(lo, hi, step):
        total += i * (n + 1)
        n += 1
    tl.store(y, n)
    tl.store(y + 1, total)
    for i in range(10, 0, -3):
        total = total * 2 - i
    tl.store(y + 2, total)
    for i in range(hi, lo, -1):
        total += i
    tl.store(y + 3, total)


def steps_expect(y, lo, hi, step):
    total = 0
    count = 0
    for i in range(lo, hi, step):
        total += i * (count + 1)
        count += 1
    y[0], y[1] = count, total
    for i in range(10, 0, -3):
        total = total * 2 - i
    y[2] = total
    y[3] = total + sum(range(hi, lo, -1))


@triton.jit
def collatz(y, n):
    i = tl.program_id(0) + 1
    steps = 0
    while i != 1 and steps < n:
        if i % 2 == 0:  # noqa: SIM108
            i = i // 2
        else:
            i = 3 * i + 1
        steps += 1
    tl.store(y + tl.program_id(0), steps)


def collatz_expect(y, n):
    for p in range(len(y)):
        i, steps = p + 1, 0
        while i != 1 and steps < n:
            i = i // 2 if i % 2 == 0 else 3 * i + 1
            steps += 1
        y[p] = steps


@triton.jit
def nested(x, y, M, N, B: tl.constexpr):
    """Tensors, pointers and numbers carried through two loops and an `if`."""
    o = tl.arange(0, B)
    p = x + o
    acc = tl.zeros((B,), tl.float32)
    best = tl.full((B,), -1000.0, tl.float32)
    seen = 0
    for m in range(M):
        row = p
        inner = acc * 0
        for n in range(N):
            a = tl.load(row)
            if (m + n) % 3 == 0:
                inner += a * (n + 1)
                seen += 1
            else:
                best = tl.maximum(best, a)
            row += B
        acc += inner
        p += N * B
    tl.store(y + o, acc)
    tl.store(y + B + o, best)
    tl.store(y + 2 * B, seen.to(tl.float32))


def nested_expect(x, y, m, n):
    acc, best, seen = torch.zeros(8), torch.full((8,), -1000.0), 0
    for i in range(m):
        inner = torch.zeros(8)
        for j in range(n):
            if (i + j) % 3 == 0:
                inner += x[i, j] * (j + 1)
                seen += 1
            else:
                best = torch.maximum(best, x[i, j])
        acc += inner
    y[:8], y[8:16], y[16] = acc, best, seen


@triton.jit
def chosen_pointers(x, z, y, flag, B: tl.constexpr):
    o = tl.arange(0, B)
    if flag > 0:
        p = x + o
        q = x
        step = 1
    else:
        p = z + 2 * o
        q = z + 3
        step = 2
    tl.store(y + o, tl.load(p))
    tl.store(y + B, tl.load(q + step))
    r = x if flag > 1 else z
    tl.store(y + B + 1, tl.load(r))
    s = p
    for i in range(3):
        if i == flag:
            s = x + 1 + o
        elif i == 2:
            s = s + 1
    tl.store(y + B + 2 + o, tl.load(s))


def chosen_pointers_expect(x, z, y, flag):
    y[:8] = x[:8] if flag > 0 else z[:16:2]
    y[8] = x[1] if flag > 0 else z[5]
    y[9] = x[0] if flag > 1 else z[0]
    where = (x, torch.arange(8)) if flag > 0 else (z, 2 * torch.arange(8))
    for i in range(3):
        if i == flag:
            where = (x, 1 + torch.arange(8))
        elif i == 2:
            where = (where[0], where[1] + 1)
    y[10:18] = where[0][where[1]]


@triton.jit
def changing_index(x, y, n, B: tl.constexpr):
    """Loop-carried index tensors that keep their steps, lose them, and turn into data."""
    o = tl.arange(0, B)
    a = o
    b = o
    c = o
    for i in range(n):
        a = a + i
        b = b * 2
        c = (c * 3 + i) % B
        tl.store(y + i * 4 * B + o, tl.load(x + a % 64))
        tl.store(y + i * 4 * B + B + o, tl.load(x + b % 64))
        tl.store(y + i * 4 * B + 2 * B + o, tl.load(x + c))
        m = o < B - i
        tl.store(y + i * 4 * B + 3 * B + o, c, mask=m)


def changing_index_expect(x, y, n):
    o = torch.arange(8)
    a = b = c = o
    for i in range(n):
        a, b, c = a + i, b * 2, (c * 3 + i) % 8
        part = y[i * 32 : i * 32 + 32]
        part[:8], part[8:16], part[16:24] = x[a % 64], x[b % 64], x[c]
        part[24 : 32 - i] = c[: 8 - i].float()


@triton.jit
def carried_masks(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    live = o < n
    count = tl.zeros((B,), tl.int32)
    value = tl.load(x + o)
    for _ in range(6):
        value = tl.where(live, value // 2, value)
        count += live.to(tl.int32)
        live = live & (value != 0)
    tl.store(y + o, count)
    tl.store(y + B + o, value)


def carried_masks_expect(x, y, n):
    for i in range(8):
        value, count, live = int(x[i]), 0, i < n
        for _ in range(6):
            if live:
                value = abs(value) // 2 * (1 if value >= 0 else -1)
                count += 1
                live = value != 0
        y[i], y[8 + i] = count, value


@triton.jit
def swapped(x, y, n, B: tl.constexpr):
    """Values that change places on the back edge."""
    o = tl.arange(0, B)
    a = tl.load(x + o)
    b = tl.load(x + B + o)
    i = 1
    j = 2
    for _ in range(n):
        a, b = b, a + 1
        i, j = j, i + j
    tl.store(y + o, a)
    tl.store(y + B + o, b)
    tl.store(y + 2 * B, i * 1000.0 + j)


def swapped_expect(x, y, n):
    a, b, i, j = x[:8], x[8:], 1, 2
    for _ in range(n):
        a, b, i, j = b, a + 1, j, i + j
    y[:8], y[8:16], y[16] = a, b, i * 1000.0 + j


@triton.jit
def returns_early(y, n):
    i = tl.program_id(0)
    if i >= n:
        return
    if i == 2:
        tl.store(y + i, 20.0)
        return
    tl.store(y + i, i + 1.0)
    for k in range(i):
        tl.store(y + 8 + i * 4 + k, 1.0 * i)


def returns_early_expect(y, n):
    for i in range(n):
        y[i] = 20.0 if i == 2 else i + 1.0
        if i != 2:
            y[8 + i * 4 : 8 + i * 5] = i


@triton.jit
def _halve(x, n):
    """Returns from two places."""
    if n > 3:
        return x * 0.5
    return x * 2.0


@triton.jit(noinline=True)
def _pair(p, x, n):
    tl.store(p, x + n)
    return x * n, p + 1


@triton.jit(noinline=True)
def _scalars(p, v, k, flag):
    """Returns early, a half and a bool among the results."""
    if flag:
        return v * 2, k > 3
    tl.store(p, v.to(tl.float32) + k)
    return v, k > 1


@triton.jit
def calls(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    tl.store(y + o, _halve(a, B))
    q = y + B
    for i in range(n):
        v, q = _pair(q, 1.5, i)
        tl.store(q + n + 1, v)
    h = tl.load(x).to(tl.float16) * 0.001
    for i in range(6):
        b, c = _scalars(y + 2 * B + i, h, i, i % 2 == 0)
        tl.store(y + 3 * B + i, b.to(tl.float32), mask=c)


def calls_expect(x, y, n):
    y[:8] = x * 0.5
    for i in range(n):
        y[8 + i] = 1.5 + i
        y[8 + i + 1 + n + 1] = 1.5 * i
    h = x[0].half() * 0.001
    for i in range(6):
        if i % 2:
            y[16 + i] = h.float() + i
        if i > (1 if i % 2 else 3):
            y[24 + i] = h if i % 2 else h * 2


@triton.jit
def unrolled(x, y, B: tl.constexpr, N: tl.constexpr):
    o = tl.arange(0, B)
    first = tl.load(x + o)
    second = tl.load(x + B + o)
    total = first
    for i in tl.static_range(N):
        if i % 2 == 0:
            total += second * i
        else:
            total -= first
    for j in tl.static_range(4, 0, -2):
        total += j
    tl.store(y + o, total)


def unrolled_expect(x, y):
    total = x[:8]
    for i in range(5):
        total = total + x[8:] * i if i % 2 == 0 else total - x[:8]
    y.copy_(total + 6)


@triton.jit
def chains(y, a, b):
    """Conditions of every kind."""
    r = 0
    if a < b and b < 10:
        r += 1
    if a > b or b == 7:
        r += 2
    if not (a == 3):  # noqa: SIM201
        r += 4
    r += 8 if a < b else 16
    c = (a > 0) & (b > 0) | (a == b)
    if c:
        r += 32
    if c and a != b:
        r += 64
    elif a == b:
        r += 128
    else:
        r += 256
    tl.store(y, r)
    tl.store(y + 1, tl.where(c, a, b) + tl.where(a < b, 1, 2) * 10)
    tl.store(y + 2, min(a, b) + max(a, b) * 3 + tl.minimum(a, 2) - tl.maximum(b, 5))


def chains_expect(y, a, b):
    c = (a > 0 and b > 0) or a == b
    r = (1 if a < b and b < 10 else 0) + (2 if a > b or b == 7 else 0) + (4 if a != 3 else 0)
    r += (8 if a < b else 16) + (32 if c else 0) + (64 if c and a != b else 128 if a == b else 256)
    y[0] = r
    y[1] = (a if c else b) + (1 if a < b else 2) * 10
    y[2] = min(a, b) + max(a, b) * 3 + min(a, 2) - max(b, 5)


@triton.jit
def float_scalars(x, y, f, n):
    """Scalars of f16, bf16 and f32 keep their own width."""
    h = tl.load(x)
    s = h * 0
    for _ in range(n):
        s += h
    tl.store(y, s.to(tl.float32))
    g = f
    for i in range(n):
        g = g * 1.1 + i
    tl.store(y + 1, g)
    b = f.to(tl.bfloat16)
    for _ in range(n):
        b = b * b + b
    tl.store(y + 2, b.to(tl.float32))
    tl.store(y + 3, (f > 0.2).to(tl.float32) + (h > 0.05).to(tl.float32) * 2)


def float_scalars_expect(x, y, f, n):
    s = torch.zeros((), dtype=F16)
    for _ in range(n):
        s = s + x[0]
    y[0] = s.float()
    g = torch.tensor(f, dtype=F32)
    for i in range(n):
        g = g * torch.tensor(1.1, dtype=F32) + i
    y[1] = g
    b = torch.tensor(f, dtype=F32).bfloat16()
    for _ in range(n):
        b = b * b + b
    y[2] = b.float()
    y[3] = float(f > 0.2) + float(x[0] > 0.05) * 2


@triton.jit
def narrow_rounding(x, z, y, B: tl.constexpr):
    """Every operation on half precision rounds."""
    o = tl.arange(0, B)
    a = tl.load(x + o)
    b = tl.load(z + o)
    tl.store(y + o, ((a * b + a) * b - a) * b + (a - b) * (a + b))


def narrow_rounding_expect(x, z, y):
    y.copy_(((x * z + x) * z - x) * z + (x - z) * (x + z))


@triton.jit
def grid_axes(y, n):
    i = tl.program_id(0)
    j = tl.program_id(1)
    k = tl.program_id(2)
    at = (k * tl.num_programs(1) + j) * tl.num_programs(0) + i
    tl.store(y + at, i + 10 * j + 100 * k + 1000 * tl.num_programs(2))


def grid_axes_expect(y, n):
    for at in range(12):
        y[at] = at % 3 + 10 * (at // 3 % 2) + 100 * (at // 6) + 2000


@triton.jit
def persistent(x, y, n, B: tl.constexpr):
    """A grid-stride loop with a masked tail."""
    for t in range(tl.program_id(0), tl.cdiv(n, B), tl.num_programs(0)):
        o = t * B + tl.arange(0, B)
        tl.store(y + o, tl.load(x + o, mask=o < n, other=0.0) * (t + 1), mask=o < n)


def persistent_expect(x, y, n):
    y[:n] = x[:n] * (torch.arange(n) // 8 + 1)


@triton.jit
def softmax(x, y, N, stride, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    a = tl.load(x + row * stride + o, mask=o < N, other=-float("inf"))
    e = tl.exp(a - tl.max(a, 0))
    tl.store(y + row * stride + o, e / tl.sum(e, 0), mask=o < N)


def softmax_expect(x, y, n, stride):
    y[:, :n] = (x[:, :n] / 16).mul(16).softmax(1)


@triton.jit
def online_softmax(q, k, v, out, N, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Attention in blocks: two multiplications, running maximum and sum."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    n = tl.arange(0, BN)
    a = tl.load(q + m[:, None] * D + d[None, :])
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, N, BN):
        mask = (start + n) < N
        b = tl.load(k + (start + n)[None, :] * D + d[:, None], mask=mask[None, :], other=0.0)
        s = tl.dot(a, b) * 0.125
        s = tl.where(mask[None, :], s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        e = tl.exp(s - new[:, None])
        scale = tl.exp(top - new)
        total = total * scale + tl.sum(e, 1)
        w = tl.load(v + (start + n)[:, None] * D + d[None, :], mask=mask[:, None], other=0.0)
        acc = acc * scale[:, None] + tl.dot(e.to(tl.float16), w)
        top = new
    tl.store(out + m[:, None] * D + d[None, :], acc / total[:, None])


def online_softmax_expect(q, k, v, out, n):
    weights = (q.double() @ k[:n].double().t() * 0.125).softmax(1)
    out.copy_(weights @ v[:n].double())


def unit(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


CASES = [
    *[
        Case(f"range-{lo}-{hi}-{s}", steps, (torch.zeros(4, dtype=I32), lo, hi, s), steps_expect)
        for lo, hi, s in ((0, 9, 2), (9, -4, 3), (3, 3, 1), (-5, 6, 4))
    ],
    Case("while-collatz", collatz, (torch.zeros(30, dtype=I32), 50), collatz_expect, (30,)),
    Case("nested-loops", nested, (draw(4, 5, 8), torch.zeros(17), 4, 5), nested_expect, (1,), {"B": 8}),
    *[
        Case(
            f"chosen-pointers-{f}",
            chosen_pointers,
            (draw(16), draw(24, seed=1), torch.zeros(18), f),
            chosen_pointers_expect,
            (1,),
            {"B": 8},
        )
        for f in (0, 1, 2)
    ],
    Case("changing-index", changing_index, (draw(64), torch.zeros(160), 5), changing_index_expect, (1,), {"B": 8}),
    Case(
        "carried-masks",
        carried_masks,
        (draw(8, dtype=I32), torch.zeros(16, dtype=I32), 6),
        carried_masks_expect,
        (1,),
        {"B": 8},
        no_interpreter="its // of negatives rounds down",
    ),
    *[Case(f"swapped-{n}", swapped, (draw(16), torch.zeros(17), n), swapped_expect, (1,), {"B": 8}) for n in (0, 1, 4)],
    Case("early-returns", returns_early, (torch.zeros(40), 5), returns_early_expect, (7,)),
    Case(
        "calls",
        calls,
        (draw(8), torch.zeros(32), 3),
        calls_expect,
        (1,),
        {"B": 8},
        no_interpreter="it takes a false scalar mask for none",
    ),
    Case("unrolled", unrolled, (draw(16), torch.zeros(8)), unrolled_expect, (1,), {"B": 8, "N": 5}),
    *[
        Case(f"conditions-{a}-{b}", chains, (torch.zeros(3, dtype=I32), a, b), chains_expect)
        for a, b in ((3, 7), (7, 3), (5, 5), (-2, 12), (-3, -4))
    ],
    Case(
        "float-scalars",
        float_scalars,
        (torch.tensor([0.1], dtype=F16), torch.zeros(4), 0.3, 7),
        float_scalars_expect,
        no_interpreter="bf16 is a bit pattern there",
    ),
    *[
        Case(
            f"narrow-rounding-{str(d)[6:]}",
            narrow_rounding,
            (unit(64, dtype=d, seed=1), unit(64, dtype=d, seed=2), torch.zeros(64, dtype=d)),
            narrow_rounding_expect,
            (1,),
            {"B": 64},
            no_interpreter="" if d != torch.bfloat16 else "bf16 is a bit pattern there",
        )
        for d in (F16, torch.bfloat16, F32)
    ],
    Case("grid-axes", grid_axes, (torch.zeros(12, dtype=I32), 0), grid_axes_expect, (3, 2, 2)),
    Case("grid-stride", persistent, (draw(75), torch.zeros(80), 75), persistent_expect, (3,), {"B": 8}),
    Case(
        "softmax",
        softmax,
        (unit(5, 16, dtype=F32, seed=3), torch.zeros(5, 16), 13, 16),
        softmax_expect,
        (5,),
        {"B": 16},
        rtol=1e-6,
        atol=1e-7,
    ),
    Case(
        "attention",
        online_softmax,
        (
            unit(32, 16, dtype=F16, seed=1),
            unit(48, 16, dtype=F16, seed=2),
            unit(48, 16, dtype=F16, seed=3),
            torch.zeros(32, 16),
            41,
        ),
        online_softmax_expect,
        (2,),
        {"D": 16, "BM": 16, "BN": 16},
        rtol=2e-3,
        atol=1e-3,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_control(case):
    ops_kit.check(case, __name__)


def test_names_are_unique():
    ops_kit.names_are_unique(CASES)
