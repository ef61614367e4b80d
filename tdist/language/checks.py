"""Texts of what a kernel's author got wrong, and the words that the language accepts.

The front end adds the kernel's own file:line to what is raised here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tdist.errors import KernelError

SCOPES: Mapping[str, str] = {"gpu": "gpu", "npu": "gpu", "cta": "cta", "sys": "sys"}
SEMANTICS: Mapping[str, str] = {s: s for s in ("relaxed", "acquire", "release", "acq_rel")}
SIGNAL_OPS: Mapping[str, str] = {"set": "set", "add": "add"}
COMM_SCOPES: Mapping[str, str] = {
    "gpu": "gpu",
    "npu": "gpu",
    "intra_node": "intra_node",
    "inter_node": "inter_node",
}


def describe(value: Any) -> str:
    """What a kernel's author would call `value`: its kind, type and shape."""
    ty = getattr(value, "type", None)
    if ty is None or not hasattr(ty, "is_block"):
        return f"the constant {value!r}" if isinstance(value, bool | int | float | str) else f"{value!r}"
    if ty.is_block():
        return f"a tensor of {_element(ty.scalar)} of shape {_shape(ty.shape)}"
    if ty.is_ptr() and ty.element_ty.is_block():
        return f"a block pointer to {ty.element_ty.scalar} of shape {_shape(ty.element_ty.shape)}"
    return f"a scalar of type {ty}"


def _element(scalar: Any) -> str:
    return f"pointers to {scalar.element_ty}" if scalar.is_ptr() else str(scalar)


def _shape(shape: Any) -> str:
    return "×".join(str(getattr(n, "value", n)) for n in shape)


def misuse(op: str, operand: str, rule: str, got: Any, instead: str = "") -> KernelError:
    """An error that names the operation, its operand, the rule, what was given and what to write instead."""
    text = f"{op}: `{operand}` {rule}, got {describe(got)}."
    return KernelError(f"{text} {instead}".rstrip())


def keyword(op: str, operand: str, words: Mapping[str, str], value: Any) -> str:
    """The canonical spelling of `value`, one of `words`."""
    if isinstance(value, str) and value in words:
        return words[value]
    listed = ", ".join(f'"{word}"' for word in words)
    raise KernelError(f"{op}: `{operand}` must be one of {listed}, got {value!r}.")
