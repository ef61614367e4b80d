"""Arithmetic of scalar read-modify-writes on the bits of one word."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

_FLOAT_FORMATS: Final = {2: "<e", 4: "<f", 8: "<d"}
_INT_FORMATS: Final = {2: "<h", 4: "<i", 8: "<q"}
_FLOAT_TYPES: Final = {2: np.float16, 4: np.float32, 8: np.float64}


def wrap(value: int, width_bytes: int) -> int:
    """`value` as a signed integer of `width_bytes`: what memory holds."""
    if width_bytes > 2 and -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return int(value)
    bits = 8 * width_bytes
    value = int(value) & ((1 << bits) - 1)
    return value - (1 << bits) if value >> (bits - 1) else value


def _unsigned(value: int, width_bytes: int) -> int:
    return int(value) & ((1 << (8 * width_bytes)) - 1)


_OPERATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": lambda a, b: a + b,
    "fadd": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "max": lambda a, b: b if b > a else a,
    "min": lambda a, b: b if b < a else a,
    "umax": lambda a, b: b if b > a else a,
    "umin": lambda a, b: b if b < a else a,
    "exch": lambda a, b: b,
    "xchg": lambda a, b: b,
}


def read_modify_write(before: int, op: str, value: Any, width_bytes: int, kind: str) -> tuple[Any, int, bool]:
    """What an atomic gives back and leaves in memory.

    Args:
        before: the word as a signed integer.
        op: `add`, `and`, `or`, `xor`, `max`, `min`, `umax`, `umin`, `fadd`, `exch`, `cas`; for `cas`, `value` is
            (expected, new).
        kind: `int`, `uint`, `float` or `bfloat` (bf16); unsigned operations (`umax`) read unsigned values whatever
            the kind.

    Returns:
        The old value (Python int or float, or numpy scalar for floats), the new bits as a signed integer, and
        whether the operation writes (a `cas` that fails does not).
    """
    if kind == "bfloat":
        return _bfloat_rmw(before, op, value)
    if kind == "float":
        return _float_rmw(before, op, value, width_bytes)
    unsigned = kind == "uint" or op in ("umax", "umin")
    convert = _unsigned if unsigned else wrap
    old = convert(before, width_bytes)
    if op == "cas":
        expected, new = value
        hit = old == convert(expected, width_bytes)
        return old, (wrap(new, width_bytes) if hit else before), hit
    after = _OPERATIONS[op](old, convert(value, width_bytes))
    return old, wrap(after, width_bytes), True


def _float_rmw(before: int, op: str, value: Any, width_bytes: int) -> tuple[Any, int, bool]:
    made = _FLOAT_TYPES[width_bytes]
    old = made(struct.unpack(_FLOAT_FORMATS[width_bytes], struct.pack(_INT_FORMATS[width_bytes], before))[0])
    if op == "cas":
        expected, new = value
        hit = _bits(made(expected), width_bytes) == before
        return old, (_bits(made(new), width_bytes) if hit else before), hit
    with np.errstate(all="ignore"):
        after = made(_OPERATIONS[op](old, made(value)))
    return old, _bits(after, width_bytes), True


def _bfloat_rmw(before: int, op: str, value: Any) -> tuple[float, int, bool]:
    """In float32, rounded to bf16: an operation on two of them is as exact there as in bf16 itself."""
    old = torch.tensor(before, dtype=torch.int16).view(torch.bfloat16)
    operand = torch.tensor(float(value), dtype=torch.float32).to(torch.bfloat16)
    after = torch.tensor(_OPERATIONS[op](float(old), float(operand)), dtype=torch.float32).to(torch.bfloat16)
    return float(old), int(after.view(torch.int16)), True


def _bits(value: Any, width_bytes: int) -> int:
    return struct.unpack(_INT_FORMATS[width_bytes], struct.pack(_FLOAT_FORMATS[width_bytes], float(value)))[0]
