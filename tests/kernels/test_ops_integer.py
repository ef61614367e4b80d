"""Integer arithmetic, comparison, shifts and casts, each against torch or Python and Triton's interpreter."""

from __future__ import annotations

import ops_kit
import pytest
import torch
import triton
import triton.language as tl
from ops_kit import Case

SIGNED = {torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}
UNSIGNED = {torch.uint8: 8, torch.uint16: 16, torch.uint32: 32, torch.uint64: 64}
WIDTH = SIGNED | UNSIGNED


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def is_signed(dtype: torch.dtype) -> bool:
    return dtype in SIGNED


def wrapped(number: int, dtype: torch.dtype) -> int:
    bits = WIDTH[dtype]
    number &= (1 << bits) - 1
    return number - (1 << bits) if is_signed(dtype) and number >> (bits - 1) else number


def filled(numbers, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([wrapped(n, dtype) for n in numbers], dtype=dtype)


def numbers(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Edges and random bits."""
    bits = WIDTH[dtype]
    edges = [0, 1, -1, 2, 1 << (bits - 1), (1 << (bits - 1)) - 1, (1 << bits) - 2, 7, -7, 100]
    random = torch.Generator().manual_seed(seed)
    more = torch.randint(-(2**62), 2**62, (27,), generator=random).tolist()
    order = torch.randperm(37, generator=random).tolist()
    everything = edges + [n >> (62 - bits) if bits < 62 else n for n in more]
    return filled([everything[i] for i in order], dtype)


@triton.jit
def binary(x, z, y, n, OP: tl.constexpr, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o, mask=o < n, other=1)
    b = tl.load(z + o, mask=o < n, other=1)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "floordiv":
        r = a // b
    elif OP == "mod":
        r = a % b
    elif OP == "and":
        r = a & b
    elif OP == "or":
        r = a | b
    elif OP == "xor":
        r = a ^ b
    elif OP == "minimum":
        r = tl.minimum(a, b)
    elif OP == "maximum":
        r = tl.maximum(a, b)
    elif OP == "shl":
        r = a << b
    elif OP == "shr":
        r = a >> b
    elif OP == "umulhi":
        r = tl.umulhi(a, b)
    elif OP == "where":
        r = tl.where((a > b) & (a != 0), a, b)
    tl.store(y + o, r, mask=o < n)


@triton.jit
def binary_scalar(x, z, y, OP: tl.constexpr):
    i = tl.program_id(0)
    a = tl.load(x + i)
    b = tl.load(z + i)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "floordiv":
        r = a // b
    elif OP == "mod":
        r = a % b
    elif OP == "and":
        r = a & b
    elif OP == "or":
        r = a | b
    elif OP == "xor":
        r = a ^ b
    elif OP == "minimum":
        r = tl.minimum(a, b)
    elif OP == "maximum":
        r = tl.maximum(a, b)
    elif OP == "shl":
        r = a << b
    elif OP == "shr":
        r = a >> b
    elif OP == "umulhi":
        r = tl.umulhi(a, b)
    elif OP == "where":
        r = tl.where((a > b) & (a != 0), a, b)
    tl.store(y + i, r)


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def compute(op: str, a: int, b: int, dtype: torch.dtype) -> int:
    bits = WIDTH[dtype]
    mask = (1 << bits) - 1
    table = {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "floordiv": lambda: truncated(a, b),
        "mod": lambda: a - truncated(a, b) * b,
        "and": lambda: a & b,
        "or": lambda: a | b,
        "xor": lambda: a ^ b,
        "minimum": lambda: min(a, b),
        "maximum": lambda: max(a, b),
        "shl": lambda: a << b,
        "shr": lambda: a >> b,
        "umulhi": lambda: ((a & mask) * (b & mask)) >> bits,
        "where": lambda: a if a > b and a != 0 else b,
    }
    return wrapped(table[op](), dtype)


OPERATIONS = ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "minimum", "maximum", "shl", "shr", "where")


def binary_case(op: str, dtype: torch.dtype, kernel, name: str) -> Case:
    a, b = numbers(dtype, 1), numbers(dtype, 2)
    if op in ("floordiv", "mod"):
        b = filled([n or 3 for n in b.tolist()], dtype)
        if is_signed(dtype):  # the quotient does not fit: undefined
            b = filled([5 if n == -1 else n for n in b.tolist()], dtype)
    if op in ("shl", "shr"):
        b = filled([n % WIDTH[dtype] for n in range(37)], dtype)

    def expect(x, z, y, n=37):
        count = min(n, 37)
        y[:count] = filled(
            [compute(op, p, q, dtype) for p, q in zip(x[:count].tolist(), z[:count].tolist(), strict=True)], dtype
        )

    args = (a, b, torch.zeros(37, dtype=dtype))
    label = f"{name}{op}-{short(dtype)}"
    why = "its umulhi is signed" if op == "umulhi" and is_signed(dtype) else ""
    if kernel is binary:
        return Case(label, kernel, (*args, 35), expect, (1,), {"OP": op, "B": 64}, no_interpreter=why)
    return Case(label, kernel, args, expect, (37,), {"OP": op}, no_interpreter=why)


@triton.jit
def compare(x, z, y, f, n, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o, mask=o < n, other=1)
    b = tl.load(z + o, mask=o < n, other=1)
    r = (a < b).to(tl.int32) + 2 * (a <= b).to(tl.int32) + 4 * (a > b).to(tl.int32)
    r += 8 * (a >= b).to(tl.int32) + 16 * (a == b).to(tl.int32) + 32 * (a != b).to(tl.int32)
    tl.store(y + o, r, mask=o < n)
    for i in range(n):
        p = tl.load(x + i)
        q = tl.load(z + i)
        s = (p < q).to(tl.int32) + 2 * (p <= q).to(tl.int32) + 4 * (p > q).to(tl.int32)
        s += 8 * (p >= q).to(tl.int32) + 16 * (p == q).to(tl.int32) + 32 * (p != q).to(tl.int32)
        tl.store(f + i, s)


def compare_case(dtype: torch.dtype) -> Case:
    a, b = numbers(dtype, 3), numbers(dtype, 4)
    b[::5] = a[::5]

    def expect(x, z, y, f, n):
        for i, (p, q) in enumerate(zip(x.tolist(), z.tolist(), strict=True)):
            y[i] = (p < q) + 2 * (p <= q) + 4 * (p > q) + 8 * (p >= q) + 16 * (p == q) + 32 * (p != q)
        f[:] = y

    outputs = (torch.zeros(37, dtype=torch.int32), torch.zeros(37, dtype=torch.int32))
    return Case(f"compare-{short(dtype)}", compare, (a, b, *outputs, 37), expect, (1,), {"B": 64})


# --- casts

CASTS = (
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
)
TRITON = {
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
    torch.int16: tl.int16,
    torch.uint16: tl.uint16,
    torch.int32: tl.int32,
    torch.uint32: tl.uint32,
    torch.int64: tl.int64,
    torch.uint64: tl.uint64,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}


@triton.jit
def cast(x, y, s, TO: tl.constexpr, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + o).to(TO))
    for i in range(B):
        tl.store(s + i, tl.load(x + i).to(TO))


def cast_case(source: torch.dtype, target: torch.dtype) -> Case:
    if source.is_floating_point:
        x = torch.tensor(
            [0.0, -0.0, 1.0, 2.5, 3.5, 7.75, 100.0, 0.1]
            + ([-1.0, -2.5, -3.9] if target not in UNSIGNED else [9.0] * 3),
            dtype=source,
        )
    else:
        x = numbers(source, 9)[:11]

    def expect(x, y, s):
        if not source.is_floating_point and not target.is_floating_point:
            y[:] = filled(x.tolist(), target)
        elif not source.is_floating_point:
            y[:] = torch.tensor([float_of(n, target) for n in x.tolist()], dtype=torch.float64).to(target)
        else:
            y[:] = x.to(target)
        s[:] = y

    outputs = torch.zeros(11, dtype=target), torch.zeros(11, dtype=target)
    why = "bf16 is a bit pattern there" if torch.bfloat16 in (source, target) else ""
    if target == torch.float16 and not source.is_floating_point:
        why = "numpy warns of the overflow to infinity"
    return Case(
        f"cast-{short(source)}-{short(target)}",
        cast,
        (x, *outputs),
        expect,
        (1,),
        {"TO": TRITON[target], "B": 11},
        no_interpreter=why,
    )


def float_of(number: int, target: torch.dtype) -> float:
    """An integer rounded once to a float type, to nearest even."""
    digits = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}[target]
    excess = max(0, abs(number).bit_length() - digits)
    low, half = abs(number) & ((1 << excess) - 1), (1 << excess) >> 1
    kept = abs(number) >> excess
    if excess and (low > half or (low == half and kept & 1)):
        kept += 1
    return float(kept << excess) * (-1 if number < 0 else 1)


@triton.jit
def bitcast(x, y, s, TO: tl.constexpr, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + o).to(TO, bitcast=True))
    for i in range(B):
        tl.store(s + i, tl.load(x + i).to(TO, bitcast=True))


def bitcast_case(source: torch.dtype, target: torch.dtype) -> Case:
    bits = torch.tensor([0, 1, -1, 0x3C00, -0x8000, 0x7C00, 0x4321], dtype=torch.int64)
    if source.itemsize == 4:
        bits = torch.tensor([0, 1, -1, 0x3F800000, -0x80000000, 0x7F800000, 0x12345678], dtype=torch.int64)
    if source in (torch.float16, torch.bfloat16):
        bits[2] = 0x7BFF  # a scalar does not keep the payload of a NaN
    raw = bits.to({1: torch.int8, 2: torch.int16, 4: torch.int32}[source.itemsize])

    def expect(x, y, s):
        y.copy_(x.view(target))
        s.copy_(x.view(target))

    outputs = torch.zeros(7, dtype=target), torch.zeros(7, dtype=target)
    return Case(
        f"bitcast-{short(source)}-{short(target)}",
        bitcast,
        (raw.view(source), *outputs),
        expect,
        (1,),
        {"TO": TRITON[target], "B": 7},
    )


BITCASTS = [
    (torch.float32, torch.int32),
    (torch.int32, torch.float32),
    (torch.float16, torch.int16),
    (torch.int16, torch.float16),
    (torch.bfloat16, torch.int16),
    (torch.int16, torch.bfloat16),
    (torch.int32, torch.uint32),
    (torch.uint16, torch.bfloat16),
    (torch.uint8, torch.int8),
]


@triton.jit
def bools(x, y, z, n, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    b = a > 2
    c = a % 2 == 0
    r = (b & c).to(tl.int32) + 2 * (b | c).to(tl.int32) + 4 * (b ^ c).to(tl.int32) + 8 * (~b).to(tl.int32)
    r += 16 * (b == c).to(tl.int32) + 32 * (b != c).to(tl.int32) + 64 * (n == 0).to(tl.int32)
    r += tl.where(b, 128, 0) + 256 * a.to(tl.int1).to(tl.int32)
    tl.store(y + o, r)
    tl.store(z + o, b)


def bools_expect(x, y, z, n):
    b, c = x > 2, x % 2 == 0
    y[:] = (b & c).int() + 2 * (b | c).int() + 4 * (b ^ c).int() + 8 * (~b).int() + 16 * (b == c).int()
    y += 32 * (b != c).int() + 64 * int(not n) + torch.where(b, 128, 0) + 256 * (x != 0).int()
    z[:] = b


@triton.jit
def wide_index(y, base, B: tl.constexpr):
    o = tl.arange(0, B).to(tl.int64) + base
    big = o * 3000000000 + (base.to(tl.int64) << 33)
    tl.store(y + tl.arange(0, B), big)
    tl.store(y + B, big.to(tl.int32).to(tl.int64), mask=tl.arange(0, B) < 1)


@triton.jit
def wide_scalars(y, base):
    b = base.to(tl.int64)
    tl.store(y, b * 3000000000)
    tl.store(y + 1, b * 3000000000 * 3000000000)
    tl.store(y + 2, (b << 40) // 7 - (1 << 35))
    tl.store(y + 3, (base * 65536 * 65536 + base) * 1)
    tl.store(y + 4, base * 100000 * 100000)


def wide_scalars_expect(y, base):
    y[0] = base * 3000000000
    y[1] = wrapped(base * 3000000000 * 3000000000, torch.int64)
    y[2] = (base << 40) // 7 - (1 << 35)
    y[3] = base
    y[4] = wrapped(base * 100000 * 100000, torch.int32)


@triton.jit
def uniform_index(y, n, B: tl.constexpr):
    """Index arithmetic that is known at compile time, and that is not."""
    o = tl.arange(0, B)
    u = o * 0 + n
    tl.store(y + o, (n - o) // 3 + 10 * ((o - n) % 4) + 100 * (u // 2) + 1000 * (u % 3) + (o << 2) - (o >> 1))


def uniform_index_expect(y, n):
    for o in range(len(y)):
        y[o] = truncated(n - o, 3) + 10 * ((o - n) - truncated(o - n, 4) * 4) + 100 * truncated(n, 2)
        y[o] += 1000 * (n - truncated(n, 3) * 3) + (o << 2) - (o >> 1)


@triton.jit
def constants(y, N: tl.constexpr):
    C: tl.constexpr = (N * 7 + 3) // 2 - (N % 3) ** 2
    D: tl.constexpr = (C << 2) | 1 if N > 3 else -C
    tl.store(y, C)
    tl.store(y + 1, D)
    tl.store(y + 2, tl.cdiv(N, 4))
    tl.store(y + 3, min(N, 3) + max(N, 30) + len((1, N, 2)))
    for i in tl.static_range(3):
        tl.store(y + 4 + i, i * N - (N >> i))


def constants_expect(y):
    n, c = 11, (11 * 7 + 3) // 2 - (11 % 3) ** 2
    y[0], y[1], y[2], y[3] = c, (c << 2) | 1, 3, 3 + 30 + 3
    for i in range(3):
        y[4 + i] = i * n - (n >> i)


def minus_one_case(op: str, dtype: torch.dtype) -> Case:
    """The least integer by -1: the quotient wraps; the processor's own division would trap and end the process."""
    least = -(1 << (WIDTH[dtype] - 1))
    a, b = filled([least, 7, least, 0, -9], dtype), filled([-1, -1, 1, -1, 2], dtype)

    def expect(x, z, y, n):
        y[:] = filled([compute(op, p, q, dtype) for p, q in zip(x.tolist(), z.tolist(), strict=True)], dtype)

    args = (a, b, torch.zeros(5, dtype=dtype), 5)
    return Case(
        f"minus-one-{op}-{short(dtype)}", binary, args, expect, (1,), {"OP": op, "B": 8}, no_interpreter="traps"
    )


MORE = [
    *[minus_one_case(op, dtype) for op in ("floordiv", "mod") for dtype in SIGNED],
    Case(
        "bools",
        bools,
        (torch.arange(9, dtype=torch.int32), torch.zeros(9, dtype=torch.int32), torch.zeros(9, dtype=torch.bool), 0),
        bools_expect,
        (1,),
        {"B": 9},
        no_interpreter="no int1 there",
    ),
    Case("wide-scalars", wide_scalars, (torch.zeros(5, dtype=torch.int64), 5), wide_scalars_expect),
    *[
        Case(
            f"uniform-index-{n}",
            uniform_index,
            (torch.zeros(12, dtype=torch.int32), n),
            uniform_index_expect,
            (1,),
            {"B": 12},
        )
        for n in (5, -6)
    ],
    Case("constexprs", constants, (torch.zeros(7, dtype=torch.int32),), constants_expect, (1,), {"N": 11}),
]

CASES = [
    *[binary_case(op, d, binary, "") for op in OPERATIONS for d in WIDTH],
    *[binary_case(op, d, binary_scalar, "scalar-") for op in OPERATIONS for d in WIDTH],
    *[
        binary_case("umulhi", d, k, n)
        for d in (torch.uint32, torch.int32)
        for k, n in ((binary, ""), (binary_scalar, "scalar-"))
    ],
    *[compare_case(dtype) for dtype in WIDTH],
    *[cast_case(a, b) for a in CASTS for b in CASTS],
    *[bitcast_case(a, b) for a, b in BITCASTS],
    *MORE,
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_integer(case):
    ops_kit.check(case, __name__)


def test_names_are_unique():
    ops_kit.names_are_unique(CASES)
