"""Element types of the IR: their names in torch, their widths, and how generated code spells them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from xdsl.dialects import builtin
from xdsl.ir import Attribute

from tdist.ir.pointer import PointerLike


@dataclass(frozen=True, slots=True)
class Element:
    """A scalar type. `size_bytes` is what it occupies in memory (an i1 takes one byte)."""

    name: str
    bits: int
    dtype: torch.dtype
    is_float: bool

    @property
    def size_bytes(self) -> int:
        return max(self.bits, 8) // 8

    @property
    def text(self) -> str:
        """The torch dtype as generated code spells it."""
        return str(self.dtype)

    @property
    def is_bool(self) -> bool:
        return self.bits == 1

    @property
    def low(self) -> int:
        """Least value of a signed integer of this width."""
        return -(1 << (self.bits - 1))

    @property
    def high(self) -> int:
        return (1 << (self.bits - 1)) - 1


F16 = Element("f16", 16, torch.float16, True)
BF16 = Element("bf16", 16, torch.bfloat16, True)
F32 = Element("f32", 32, torch.float32, True)
F64 = Element("f64", 64, torch.float64, True)
I1 = Element("i1", 1, torch.bool, False)
I8 = Element("i8", 8, torch.int8, False)
I16 = Element("i16", 16, torch.int16, False)
I32 = Element("i32", 32, torch.int32, False)
I64 = Element("i64", 64, torch.int64, False)
BY_NAME = {e.name: e for e in (F16, BF16, F32, F64, I1, I8, I16, I32, I64)}


class UnknownType(Exception):
    """A type that the simulator does not know; the message is its text."""


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A value's type: `shape` is () for a scalar; `pointee` is set for pointers and tensors of pointers.

    `block` is the block's shape if the type is a block pointer.
    """

    shape: tuple[int, ...]
    element: Element
    is_pointer: bool = False
    block: tuple[int, ...] | None = None


def element_of(attr: Attribute) -> Element:
    """The element that a scalar type attribute stands for."""
    match attr:
        case builtin.Float16Type():
            return F16
        case builtin.BFloat16Type():
            return BF16
        case builtin.Float32Type():
            return F32
        case builtin.Float64Type():
            return F64
        case builtin.IndexType():
            return I64
        case builtin.IntegerType():
            name = f"i{attr.width.data}"
            if name in BY_NAME:
                return BY_NAME[name]
    raise UnknownType(str(attr))


def type_info(attr: Attribute) -> TypeInfo:
    """The shape and element of any type that Triton prints."""
    shape: tuple[int, ...] = ()
    if isinstance(attr, builtin.TensorType):
        shape, attr = tuple(attr.get_shape()), attr.element_type
    if not isinstance(attr, PointerLike):
        return TypeInfo(shape, element_of(attr))
    pointee = attr.pointee
    if isinstance(pointee, builtin.TensorType):
        return TypeInfo(shape, element_of(pointee.element_type), True, tuple(pointee.get_shape()))
    if isinstance(pointee, PointerLike):
        return TypeInfo(shape, I64, True)
    return TypeInfo(shape, element_of(pointee), True)
