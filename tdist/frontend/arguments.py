"""A launch's arguments: which are values of the kernel, which are compiled into it, and of what type each is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tdist.errors import KernelError, UsageError

_TORCH_TO_TRITON = {
    "bool": "i1",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}
_TRITON_TYPES = frozenset(_TORCH_TO_TRITON.values())
_USE_OF_NONE = re.compile(r"(?:AttributeError|TypeError): .*(?:NoneType|'constexpr' object).*")
_INTEGER_ANNOTATION = re.compile(r"[iu](1|8|16|32|64)")


@dataclass(frozen=True)
class Bound:
    """One call of a kernel, sorted.

    `signature` and `values` go together: the arguments that stay arguments, in order. `constexprs` are compiled into
    the kernel, None arguments among them. `named` is what a callable grid sees.
    """

    signature: dict[str, str]
    values: tuple[Any, ...]
    constexprs: dict[str, Any]
    named: dict[str, Any]
    options: dict[str, Any]


def bind(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
    """Sort the arguments of `fn[grid](*args, **kwargs)`; keywords that are no parameter are launch options.

    Raises:
        UsageError: an argument is missing, given twice or of a kind that no kernel takes.
    """
    names = frozenset(fn.arg_names)
    given = {name: value for name, value in kwargs.items() if name in names}
    options = {name: value for name, value in kwargs.items() if name not in names}
    try:
        call = fn.signature.bind(*args, **given)
    except TypeError as error:
        raise UsageError(f"kernel `{fn.__name__}`: {error}") from None
    call.apply_defaults()
    return _sort(fn, dict(call.arguments), options)


def _sort(fn: Any, named: dict[str, Any], options: dict[str, Any]) -> Bound:
    signature: dict[str, str] = {}
    values: list[Any] = []
    constexprs: dict[str, Any] = {}
    for param in fn.params:
        value = named[param.name]
        if param.is_constexpr or value is None:
            constexprs[param.name] = _constant(fn, param, value)
            continue
        signature[param.name] = _type_of(fn, param, value)
        values.append(_plain(value))
    return Bound(signature, tuple(values), constexprs, named, options)


def _constant(fn: Any, param: Any, value: Any) -> Any:
    if callable(value):
        raise UsageError(f"kernel `{fn.__name__}`: constexpr `{param.name}` cannot be a function, got {value!r}")
    return value.value if type(value).__name__ == "constexpr" else value


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return getattr(value, "base", value) if type(value).__name__ == "TensorWrapper" else value


def _type_of(fn: Any, param: Any, value: Any) -> str:
    if isinstance(value, bool | int | float):
        return _declared(param) or _number_type(fn, param, value)
    if not hasattr(value, "data_ptr"):
        raise UsageError(
            f"kernel `{fn.__name__}`: argument `{param.name}` must be a tensor, an int, a float, a bool or None, "
            f"got {type(value).__name__} {value!r}"
        )
    name = str(value.dtype).rpartition(".")[2]
    element = name if name in _TRITON_TYPES else _TORCH_TO_TRITON.get(name)
    if element is None:
        raise UsageError(
            f"kernel `{fn.__name__}`: argument `{param.name}` has dtype {name}, which Triton does not have"
        )
    return f"{'*k' if param.is_const else '*'}{element}"


def _declared(param: Any) -> str:
    """The integer type that the parameter is annotated with (`n: tl.int64`), or none."""
    text = str(param.annotation_type)
    return text if _INTEGER_ANNOTATION.fullmatch(text) else ""


def _number_type(fn: Any, param: Any, value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, float):
        return "fp32"
    if -(1 << 31) <= value < 1 << 31:
        return "i32"
    if -(1 << 63) <= value < 1 << 63:
        return "i64"
    if 1 << 63 <= value < 1 << 64:
        return "u64"
    raise UsageError(f"kernel `{fn.__name__}`: argument `{param.name}` = {value} does not fit into 64 bits")


def without_value(fn: Any, bound: Bound, error: KernelError) -> KernelError:
    """`error`, told as what it is where the kernel uses an argument that was given as None.

    Triton compiles None into the kernel, so that `if x is None` works, and then trips over Python's own attributes.
    """
    empty = [p.name for p in fn.params if not p.is_constexpr and bound.named[p.name] is None]
    first, *rest = str(error).split("\n")
    trouble = _USE_OF_NONE.search(first)
    if not empty or trouble is None:
        return error
    named = [name for name in empty if re.search(rf"\b{name}\b", "\n".join(rest))]
    if not named and "NoneType" not in trouble[0]:
        return error
    who = " or ".join(f"`{name}`" for name in named or empty)
    reason = f"argument {who} of kernel `{fn.__name__}` is None, and the kernel uses it here as a pointer or a number"
    cure = f"give it a value, or let the kernel ask `if {(named or empty)[0]} is not None` first"
    return KernelError("\n".join([f"{first[: trouble.start()]}{reason}", *rest, f"  {cure}"])).at(error.place)


def cache_key(bound: Bound) -> tuple[Any, ...]:
    """What two calls must share to be the same compiled kernel; values of arguments do not belong to it."""
    constants = tuple((name, type(value), _hashable(value)) for name, value in bound.constexprs.items())
    return tuple(bound.signature.items()), constants


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
