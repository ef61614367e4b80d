"""How a `dl.*` call becomes IR: a carrier, an opaque op that stock Triton can print.

Stock Triton does not know the `distributed` dialect, so every call is emitted as `tt.extern_elementwise` with
`libname = "tdist"` and `symbol = "tdist.<op>[;key=value]*"`; `tdist.passes.lift_carriers` makes the dialect's
op of it. Triton passes its builder to a builtin as `_builder` (3.2) or inside `_semantic` (3.4 and later); this file
is the only one that knows the difference. Triton is imported at the first call: the package imports without it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tdist.errors import KernelError
from tdist.language.checks import describe, misuse

LIBNAME = "tdist"
R = TypeVar("R")
_BUILTIN_MARK = "__triton_builtin__"


def _core() -> Any:
    from triton.language import core

    return core


def unwrap(value: Any) -> Any:
    """The Python value of a constexpr; anything else as it is."""
    return value.value if type(value).__name__ == "constexpr" else value


def escape(value: str) -> str:
    """Make `value` fit into a carrier's symbol: `%`, `;`, `=` and `"` are percent-encoded."""
    return "".join(f"%{ord(c):02X}" if c in '%;="\\' else c for c in value)


@dataclass(frozen=True)
class Emitter:
    """Builds the IR of one call of the builtin `op`."""

    op: str
    builder: Any
    semantic: Any = None

    def tensor(self, value: Any, operand: str) -> Any:
        """`value` as a Triton tensor; constants become scalars of the type Triton gives them."""
        value = unwrap(value)
        if isinstance(value, _core().tensor):
            return value
        if not isinstance(value, bool | int | float):
            raise misuse(self.op, operand, "must be a Triton value or a number", value)
        if self.semantic is not None:
            return self.semantic.to_tensor(value)
        return _core().semantic.to_tensor(value, self.builder)

    def integer(self, value: Any, operand: str, bits: int, signed: bool = True) -> Any:
        """`value` as a scalar integer of `bits` bits (32 or 64); a constant must fit, a scalar is cast."""
        value = unwrap(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._constant(value, operand, bits, signed)
        tensor = self.tensor(value, operand)
        if not is_integer_scalar(tensor.type):
            raise misuse(self.op, operand, "must be a scalar integer", value)
        return self._cast(tensor, _int_type(bits))

    def _constant(self, value: int, operand: str, bits: int, signed: bool) -> Any:
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        if not low <= value <= high:
            kind = f"{'' if signed else 'u'}int{bits}"
            raise misuse(self.op, operand, f"must fit into {kind} ({low} … {high})", value)
        wrapped = value - (1 << bits) if value >= 1 << (bits - 1) else value
        make = self.builder.get_int64 if bits == 64 else self.builder.get_int32
        return _core().tensor(make(wrapped), _int_type(bits))

    def _cast(self, tensor: Any, to: Any) -> Any:
        if self.semantic is not None:
            return self.semantic.cast(tensor, to)
        return _core().semantic.cast(tensor, to, self.builder)

    def pointer(self, value: Any, operand: str, rule: str, instead: str = "") -> Any:
        """`value` checked to be a scalar pointer (no tensor of pointers, no block pointer)."""
        value = unwrap(value)
        if not (isinstance(value, _core().tensor) and is_scalar_pointer(value.type)):
            raise misuse(self.op, operand, rule, value, instead)
        return value

    def carrier(self, symbol: str, args: Sequence[Any], result: Any, pure: bool) -> Any:
        """Emit a carrier; `args` are tensors (at least one), `result` is a Triton type."""
        handles = [arg.handle for arg in args]
        ir_type = result.to_ir(self.builder)
        handle = self.builder.create_extern_elementwise(LIBNAME, "", f"tdist.{symbol}", handles, ir_type, pure)
        return _core().tensor(handle, result)

    def advance_by_zero(self, block_pointer: Any, zero: Any) -> Any:
        """`tt.advance` of a block pointer whose last offset is the i32 scalar `zero`, the others constant 0."""
        rank = len(block_pointer.type.element_ty.shape)
        offsets = [self.builder.get_int32(0)] * (rank - 1) + [zero.handle]
        return _core().tensor(self.builder.create_advance(block_pointer.handle, offsets), block_pointer.type)


def _int_type(bits: int) -> Any:
    return _core().int64 if bits == 64 else _core().int32


def is_integer_scalar(ty: Any) -> bool:
    """Whether a Triton type is a scalar integer (a boolean counts)."""
    return not ty.is_block() and ty.is_int()


def is_scalar_pointer(ty: Any) -> bool:
    """Whether a Triton type is a pointer to elements: neither a tensor of pointers nor a block pointer."""
    return not ty.is_block() and ty.is_ptr() and not ty.element_ty.is_block()


def is_block_pointer(ty: Any) -> bool:
    """Whether a Triton type is that of `tl.make_block_ptr`."""
    return not ty.is_block() and ty.is_ptr() and ty.element_ty.is_block()


def builtin(fn: Callable[..., R]) -> Callable[..., R]:
    """Make `fn(emit, …)` callable in kernels as `fn(…)`, under either of Triton's spellings of the builder."""

    @functools.wraps(fn)
    def call(*args: Any, _builder: Any = None, _semantic: Any = None, **kwargs: Any) -> R:
        builder = _builder if _semantic is None else _semantic.builder
        if builder is None:
            raise KernelError(
                f"{fn.__name__} was called outside a kernel. It builds IR, so it works only inside a function "
                "under @triton.jit: is the decorator missing?"
            )
        return fn(Emitter(fn.__name__, builder, _semantic), *args, **kwargs)

    setattr(call, _BUILTIN_MARK, True)
    setattr(call, "__signature__", _public_signature(fn))  # noqa: B010
    return call


def _public_signature(fn: Callable[..., Any]) -> inspect.Signature:
    _, *parameters = inspect.signature(fn).parameters.values()
    last = inspect.Parameter("_semantic", inspect.Parameter.KEYWORD_ONLY, default=None)
    return inspect.Signature([*parameters, last])


__all__ = [
    "LIBNAME",
    "Emitter",
    "builtin",
    "describe",
    "escape",
    "is_block_pointer",
    "is_integer_scalar",
    "is_scalar_pointer",
    "unwrap",
]
