"""Arithmetic that generated code calls: two's complement, truncating division, rounding of narrow floats, C semantics.

Scalars are Python ints, bools and floats; a narrow float is a double that holds a value of its type exactly. A double
has more than twice the significand of f16, bf16 and f32, so +, -, *, / and sqrt in double, rounded once, are correctly
rounded. Tiles are torch tensors of the value's own dtype.

Undefined operations on scalars are faults of the kernel (`ag.fault`); on tiles a lane may be one that no mask ever lets
out, so only a division by zero is a fault there and other undefined lanes hold an arbitrary value.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

ARITHMETIC = "tdist.arithmetic"
BITS_DTYPE = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
INT_DTYPE = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


@functools.lru_cache(maxsize=256)
def arange(extent: int) -> torch.Tensor:
    """0 … extent-1 in int64; shared, never written to."""
    return torch.arange(extent, dtype=torch.int64)


# --- integers


def wrap(value: int, bits: int) -> int:
    """The value modulo 2**bits, as a signed integer of that width."""
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


def unsigned(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


def check_span(ag: Any, site: Any, base: int, spans: Sequence[tuple[int, int]], bits: int) -> None:
    """Fault if an index tensor reaches values that its integers cannot hold: the device's would wrap.

    `spans` are `(extent - 1, stride)` of the axes along which it moves.
    """
    low = base + sum(n * s for n, s in spans if s < 0)
    high = base + sum(n * s for n, s in spans if s > 0)
    half = 1 << (bits - 1)
    if low < -half or high >= half:
        ag.fault(ARITHMETIC, site, reason="index-overflow", low=low, high=high, bits=bits)


def check_vectors(
    ag: Any, site: Any, base: int, axes: Sequence[tuple[int, int]], vecs: Sequence[tuple[int, Any, int]], bits: int
) -> None:
    """As `check_span` for `axes` (extent, stride) with vectors along some of them: `(axis, vector or None, scale)`."""
    low = high = base
    for axis, (extent, stride) in enumerate(axes):
        index = arange(extent) * stride
        for other, vector, scale in vecs:
            index = index + vector * scale if other == axis and vector is not None else index
        low, high = low + int(index.min()), high + int(index.max())
    half = 1 << (bits - 1)
    if low < -half or high >= half:
        ag.fault(ARITHMETIC, site, reason="index-overflow", low=low, high=high, bits=bits)


def div_trunc(ag: Any, site: Any, a: int, b: int, bits: int) -> int:
    """Signed division that truncates toward zero."""
    if b == 0:
        ag.fault(ARITHMETIC, site, reason="division-by-zero", dividend=a, bits=bits)
    quotient = abs(a) // abs(b)
    return wrap(quotient if (a < 0) == (b < 0) else -quotient, bits)


def rem_trunc(ag: Any, site: Any, a: int, b: int, bits: int) -> int:
    """Remainder of `div_trunc`: has the sign of the dividend."""
    if b == 0:
        ag.fault(ARITHMETIC, site, reason="division-by-zero", dividend=a, bits=bits)
    remainder = abs(a) % abs(b)
    return -remainder if a < 0 else remainder


def div_floor(ag: Any, site: Any, a: int, b: int, bits: int) -> int:
    if b == 0:
        ag.fault(ARITHMETIC, site, reason="division-by-zero", dividend=a, bits=bits)
    return wrap(a // b, bits)


def div_ceil(ag: Any, site: Any, a: int, b: int, bits: int) -> int:
    if b == 0:
        ag.fault(ARITHMETIC, site, reason="division-by-zero", dividend=a, bits=bits)
    return wrap(-(-a // b), bits)


def div_unsigned(ag: Any, site: Any, a: int, b: int, bits: int) -> int:
    return wrap(div_trunc(ag, site, unsigned(a, bits), unsigned(b, bits), bits + 1), bits)


def rem_unsigned(ag: Any, site: Any, a: int, b: int, bits: int) -> int:
    return wrap(rem_trunc(ag, site, unsigned(a, bits), unsigned(b, bits), bits + 1), bits)


def shift(ag: Any, site: Any, kind: str, a: int, b: int, bits: int) -> int:
    """`shl`, `shrs` (arithmetic) or `shru` (logical) of a scalar."""
    if not 0 <= b < bits:
        ag.fault(ARITHMETIC, site, reason="shift-past-width", amount=b, bits=bits)
    if kind == "shl":
        return wrap(a << b, bits)
    return a >> b if kind == "shrs" else wrap(unsigned(a, bits) >> b, bits)


def check_step(ag: Any, site: Any, step: int) -> None:
    """A loop counts up, by what may be known only at run time.

    Triton turns loops round whose step is a negative constant. Any other goes to `scf.for`, which asks for a positive
    step: compiled, the loop ends at once or never, whatever Python's range and Triton's interpreter make of it.
    """
    if step <= 0:
        ag.fault(ARITHMETIC, site, reason="loop-step", step=step)


def mul_high(a: int, b: int, bits: int, signed: bool) -> int:
    """The upper half of the double-width product."""
    product = a * b if signed else unsigned(a, bits) * unsigned(b, bits)
    return wrap(product >> bits, bits)


def float_to_int(ag: Any, site: Any, value: float, bits: int, signed: bool) -> int:
    """Truncating conversion of a scalar; out of range is a fault."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if not math.isfinite(value) or not low <= math.trunc(value) <= high:
        ag.fault(ARITHMETIC, site, reason="float-to-int-range", value=value, bits=bits, signed=signed)
    return wrap(math.trunc(value), bits)


# --- index vectors that may stay affine


def axis_rem(ag: Any, site: Any, base: int, extent: int, stride: int, modulus: int, bits: int) -> tuple[int, int, Any]:
    """`(base + i*stride) % modulus` over an axis as `(base, stride, None)` if no lane wraps, else `(0, 0, vector)`."""
    last = base + (extent - 1) * stride
    if 0 <= base < modulus and 0 <= last < modulus:
        return base, stride, None
    return 0, 0, torch.fmod(_axis(ag, site, base, extent, stride, modulus, bits), modulus)


def axis_div(ag: Any, site: Any, base: int, extent: int, stride: int, divisor: int, bits: int) -> tuple[int, int, Any]:
    """`(base + i*stride) // divisor` (truncating) over an axis; a constant if all lanes agree, else a vector."""
    last = base + (extent - 1) * stride
    if divisor > 0 and 0 <= base < 1 << (bits - 1) and 0 <= last < 1 << (bits - 1):
        first = base // divisor
        if first == last // divisor:
            return first, 0, None
    return 0, 0, torch.div(_axis(ag, site, base, extent, stride, divisor, bits), divisor, rounding_mode="trunc")


def _axis(ag: Any, site: Any, base: int, extent: int, stride: int, divisor: int, bits: int) -> torch.Tensor:
    """An index vector, wrapped to its width."""
    if divisor == 0:
        ag.fault(ARITHMETIC, site, reason="division-by-zero", dividend=base, bits=bits)
    vector = arange(extent) * wrap(stride, 64) + wrap(base, 64)
    return vector.to(INT_DTYPE[bits]).to(torch.int64)


# --- integer tiles


def as_tile(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor from an operand: itself, or a 0-d tensor of a number."""
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)


def tile_divide(ag: Any, site: Any, kind: str, a: Any, b: Any, bits: int) -> torch.Tensor:
    """divs, rems, divu, remu, floordivs, ceildivs of integer tiles."""
    dtype = INT_DTYPE[bits]
    a, b = as_tile(a, dtype), as_tile(b, dtype)
    if bool((b == 0).any()):
        _fault_at_zero(ag, site, a, b, bits)
    if kind.endswith("u"):
        a, b = widened(a, bits), widened(b, bits)
        if bits == 64:
            return _tile_divide_u64(kind, a, b)
    if kind.startswith("rem"):
        return torch.fmod(a, torch.where(b == -1, 1, b)).to(dtype)
    if kind.endswith("s") and bool((b == -1).any()):
        return _tile_divide_negating(ag, site, kind, a, b, bits)
    if kind == "ceildivs":
        return -torch.div(-a, b, rounding_mode="floor")
    mode = "floor" if kind == "floordivs" else "trunc"
    return torch.div(a, b, rounding_mode=mode).to(dtype)


def _fault_at_zero(ag: Any, site: Any, a: torch.Tensor, b: torch.Tensor, bits: int) -> None:
    """The fault of the first lane whose divisor is 0."""
    dividends, divisors = torch.broadcast_tensors(a, b)
    lane = tuple((divisors == 0).nonzero()[0].tolist())
    ag.fault(ARITHMETIC, site, reason="division-by-zero", dividend=int(dividends[lane]), bits=bits, lane=lane)


def _tile_divide_negating(ag: Any, site: Any, kind: str, a: torch.Tensor, b: torch.Tensor, bits: int) -> torch.Tensor:
    """Division with divisors of -1: the least integer by -1 does not fit, and the processor's own division traps."""
    negates = b == -1
    return torch.where(negates, -a, tile_divide(ag, site, kind, a, torch.where(negates, 1, b), bits))


def _tile_divide_u64(kind: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = torch.broadcast_tensors(a, b)
    left, right = a.contiguous().numpy().view("uint64"), b.contiguous().numpy().view("uint64")
    result = left // right if kind == "divu" else left % right
    return torch.from_numpy(result.view("int64"))


def widened(tile: torch.Tensor, bits: int) -> torch.Tensor:
    """The unsigned value of each lane, in int64 (64-bit lanes stay as they are)."""
    return tile if bits == 64 else tile.to(torch.int64) & ((1 << bits) - 1)


def tile_shift(kind: str, a: Any, b: Any, bits: int) -> torch.Tensor:
    """Shifts of integer tiles; lanes that are shifted past the width hold 0 (or the sign)."""
    dtype = INT_DTYPE[bits]
    a, b = as_tile(a, dtype), as_tile(b, dtype)
    past = (b < 0) | (b >= bits)
    amount = b.clamp(0, bits - 1)
    if kind == "shl":
        return torch.where(past, 0, torch.bitwise_left_shift(a, amount)).to(dtype)
    if kind == "shrs":
        return torch.bitwise_right_shift(a, amount)
    mask = torch.where(amount == 0, -1, (1 << (bits - amount.to(torch.int64).clamp(min=1))) - 1)
    return torch.where(past, 0, torch.bitwise_right_shift(a, amount) & mask.to(dtype)).to(dtype)


def tile_mul_high(a: Any, b: Any, bits: int, signed: bool) -> torch.Tensor:
    """The upper half of the double-width product of integer tiles."""
    dtype = INT_DTYPE[bits]
    a, b = as_tile(a, dtype), as_tile(b, dtype)
    if bits < 64:
        left, right = (a.to(torch.int64), b.to(torch.int64)) if signed else (widened(a, bits), widened(b, bits))
        return (_logical_right(left * right, bits) if not signed else (left * right) >> bits).to(dtype)
    high = _mul_high_u64(a, b)
    return high if not signed else high - torch.where(a < 0, b, 0) - torch.where(b < 0, a, 0)


def _logical_right(tile: torch.Tensor, by: int) -> torch.Tensor:
    return (tile >> by) & ((1 << (64 - by)) - 1)


def _mul_high_u64(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    low = 0xFFFFFFFF
    a_low, a_high, b_low, b_high = a & low, _logical_right(a, 32), b & low, _logical_right(b, 32)
    middle = a_high * b_low + _logical_right(a_low * b_low, 32)
    other = a_low * b_high + (middle & low)
    return a_high * b_high + _logical_right(middle, 32) + _logical_right(other, 32)


def tile_compare_unsigned(kind: str, a: Any, b: Any, bits: int) -> torch.Tensor:
    """ult, ule, ugt, uge of integer tiles."""
    dtype = INT_DTYPE[bits]
    flip = torch.iinfo(dtype).min
    a, b = as_tile(a, dtype) ^ flip, as_tile(b, dtype) ^ flip
    return {"ult": torch.lt, "ule": torch.le, "ugt": torch.gt, "uge": torch.ge}[kind](a, b)


def tile_pick_unsigned(kind: str, a: Any, b: Any, bits: int) -> torch.Tensor:
    """minu, maxu of integer tiles."""
    dtype = INT_DTYPE[bits]
    flip = torch.iinfo(dtype).min
    a, b = as_tile(a, dtype) ^ flip, as_tile(b, dtype) ^ flip
    return (torch.minimum(a, b) if kind == "minu" else torch.maximum(a, b)) ^ flip


def tile_float_to_int(tile: torch.Tensor, bits: int, signed: bool) -> torch.Tensor:
    """Truncating conversion; lanes out of range hold an arbitrary value."""
    if signed and bits < 64:
        info = torch.iinfo(INT_DTYPE[bits])
        return torch.nan_to_num(tile.double(), 0.0).clamp(info.min, info.max).to(INT_DTYPE[bits])
    wide = torch.nan_to_num(tile.double(), 0.0)
    if signed:
        return wide.to(torch.int64)
    top = wide >= 2.0**63
    return torch.where(top, (wide - 2.0**63).to(torch.int64) ^ (-(1 << 63)), wide.to(torch.int64)).to(INT_DTYPE[bits])


def tile_unsigned_to_float(tile: torch.Tensor, bits: int, dtype: torch.dtype) -> torch.Tensor:
    if bits < 64:
        return widened(tile, bits).to(dtype)
    half = _logical_right(tile, 1) | (tile & 1)
    return torch.where(tile < 0, half.to(torch.float64) * 2.0, tile.to(torch.float64)).to(dtype)


# --- floats: rounding


def round_f32(value: float) -> float:
    return ctypes.c_float(value).value


def round_f16(value: float) -> float:
    try:
        return struct.unpack("<e", struct.pack("<e", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def round_f64(value: float) -> float:
    return value


def round_bf16(value: float) -> float:
    """Round a double to bf16, to nearest even, in one step for the normal range."""
    if value == 0.0 or not math.isfinite(value):
        return value
    if abs(value) < 2.0**-126:
        return math.ldexp(float(round(math.ldexp(value, 133))), -133)
    mantissa, exponent = math.frexp(value)
    rounded = math.ldexp(float(round(math.ldexp(mantissa, 8))), exponent - 8)
    return rounded if abs(rounded) < 2.0**128 else math.copysign(math.inf, value)


def div_float(a: float, b: float) -> float:
    """IEEE division of doubles: by zero gives an infinity or NaN."""
    if b != 0.0:
        return a / b
    if a == 0.0 or a != a or b != b:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


# --- floats: functions of scalars and tiles


def min_num(a: Any, b: Any) -> Any:
    """Minimum that ignores NaN (`minnumf`)."""
    return _pick(torch.fmin, a, b)


def max_num(a: Any, b: Any) -> Any:
    """Maximum that ignores NaN (`maxnumf`)."""
    return _pick(torch.fmax, a, b)


def minimum(a: Any, b: Any) -> Any:
    """Minimum that propagates NaN (`minimumf`)."""
    return _pick(torch.minimum, a, b)


def maximum(a: Any, b: Any) -> Any:
    """Maximum that propagates NaN (`maximumf`)."""
    return _pick(torch.maximum, a, b)


def _pick(function: Callable[..., torch.Tensor], a: Any, b: Any) -> Any:
    if isinstance(a, torch.Tensor):
        return function(a, as_tile(b, a.dtype))
    if isinstance(b, torch.Tensor):
        return function(torch.tensor(a, dtype=b.dtype), b)
    return function(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)).item()


def clamp_float(x: Any, low: Any, high: Any, propagate: bool) -> Any:
    """`tt.clampf`; without `propagate` a NaN input gives `low`."""
    if propagate:
        return minimum(maximum(x, low), high)
    return min_num(max_num(x, low), high)


def fma(a: Any, b: Any, c: Any, dtype: torch.dtype) -> Any:
    """Multiply and add with one rounding (through float64, which is exact for the product of two f32)."""
    if dtype == torch.float64:
        return a * b + c
    tensors = [t for t in (a, b, c) if isinstance(t, torch.Tensor)]
    if not tensors:
        return a * b + c
    wide = [t.double() if isinstance(t, torch.Tensor) else t for t in (a, b, c)]
    return (wide[0] * wide[1] + wide[2]).to(dtype)


def torch_fmod(a: Any, b: Any) -> Any:
    """Remainder with the sign of the dividend, exact (torch's own of f32 tiles is not where the quotient is large)."""
    return _pick(_exact_fmod, a, b)


def _exact_fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with np.errstate(invalid="ignore"):
        return torch.as_tensor(np.fmod(a.double().numpy(), b.double().numpy())).to(a.dtype)


def copysign(a: Any, b: Any) -> Any:
    return _pick(torch.copysign, a, b)


def power(a: Any, b: Any) -> Any:
    return _pick(torch.pow, a, b)


def arctan2(a: Any, b: Any) -> Any:
    return _pick(torch.atan2, a, b)


def apply(name: str, value: Any, dtype: torch.dtype) -> Any:
    """A unary torch function of a tile or of a scalar of `dtype`, with the result rounded to `dtype`."""
    function = UNARY[name]
    if isinstance(value, torch.Tensor):
        return function(value)
    return function(torch.tensor(value, dtype=dtype)).item()


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "absf": torch.abs,
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "cbrt": lambda t: torch.sign(t) * torch.abs(t).double().pow(1 / 3).to(t.dtype),
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "floor": torch.floor,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "round": lambda t: torch.trunc(t + torch.copysign(torch.full_like(t, 0.5), t)),
    "roundeven": torch.round,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "sqrt": torch.sqrt,
    "precise_sqrt": torch.sqrt,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "trunc": torch.trunc,
    "negf": torch.neg,
}


# --- selection, conversion, reinterpretation


def select(condition: Any, a: Any, b: Any, dtype: torch.dtype) -> torch.Tensor:
    """Lane-wise choice; `a` and `b` may be numbers."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return torch.where(condition, as_tile(a, dtype), as_tile(b, dtype))
    return torch.where(condition, torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype))


def ordered(kind: str, a: Any, b: Any) -> Any:
    """A float comparison whose predicate Python and torch do not have: ord, uno, one, ueq, ult, ule, ugt, uge."""
    unordered = (a != a) | (b != b)
    if kind in ("ord", "uno"):
        return _negated(unordered) if kind == "ord" else unordered
    if kind == "one":
        return (a != b) & _negated(unordered)
    plain = {"ueq": a == b, "ult": a < b, "ule": a <= b, "ugt": a > b, "uge": a >= b}[kind]
    return plain | unordered


def _negated(value: Any) -> Any:
    return torch.logical_not(value) if isinstance(value, torch.Tensor) else not value


def bitcast_scalar(value: Any, source: torch.dtype, target: torch.dtype) -> Any:
    """The bits of a scalar as another type of the same width."""
    return torch.tensor([value], dtype=source).view(target).item()


def bitcast_tile(tile: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    return tile.contiguous().view(target)


def multiply(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The product of two operand tiles of `tt.dot`; integers exactly, modulo the accumulator's width."""
    if dtype.is_floating_point:
        return torch.matmul(a, b)
    return torch.matmul(a.to(torch.float64), b.to(torch.float64)).to(torch.int64).to(dtype)


def multiply_add(acc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`acc + a @ b` into `acc`, which the caller owns."""
    if not acc.dtype.is_floating_point:
        return acc.add_(multiply(a, b, acc.dtype))
    return acc.addmm_(a, b) if acc.dim() == 2 else acc.baddbmm_(a, b)


# --- reductions and scans with any combiner


def fold(tiles: tuple[torch.Tensor, ...], axis: int, combine: Callable[..., tuple]) -> tuple[torch.Tensor, ...]:
    """Reduce along `axis` by a tree of neighbours; `combine(*left, *right)` works on whole tiles and is associative."""
    parts = tiles
    while parts[0].shape[axis] > 1:
        extent = parts[0].shape[axis]
        half = extent // 2
        left = tuple(_every_second(t, axis, 0, half) for t in parts)
        right = tuple(_every_second(t, axis, 1, half) for t in parts)
        joined = combine(*left, *right)
        if extent % 2:
            rest = tuple(t.narrow(axis, extent - 1, 1) for t in parts)
            joined = tuple(torch.cat([j, r], axis) for j, r in zip(joined, rest, strict=True))
        parts = joined
    return tuple(t.select(axis, 0) for t in parts)


def _every_second(tile: torch.Tensor, axis: int, first: int, count: int) -> torch.Tensor:
    return tile[(*(slice(None),) * axis, slice(first, 2 * count, 2))]


def scan(
    tiles: tuple[torch.Tensor, ...], axis: int, reverse: bool, combine: Callable[..., tuple]
) -> tuple[torch.Tensor, ...]:
    """Inclusive scan along `axis`, lane after lane."""
    parts = tuple(t.flip(axis) for t in tiles) if reverse else tiles
    running = tuple(t.select(axis, 0) for t in parts)
    steps = [running]
    for index in range(1, parts[0].shape[axis]):
        running = combine(*running, *(t.select(axis, index) for t in parts))
        steps.append(running)
    stacked = tuple(torch.stack([step[k] for step in steps], axis) for k in range(len(parts)))
    return tuple(t.flip(axis) for t in stacked) if reverse else stacked
