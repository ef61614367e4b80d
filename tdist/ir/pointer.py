"""What a pointer type promises, apart from any dialect.

The distributed dialect must not depend on another dialect of ours, yet its operations take pointers. It asks for a
type that is a `PointerLike`; whoever defines a pointer type (the tt dialect) derives from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, TypeAttribute
from xdsl.irdl import AttrConstraint, VerificationContext
from xdsl.utils.exceptions import VerifyException


class PointerLike(TypeAttribute):
    """A type whose values are addresses in global memory."""

    @property
    def pointee(self) -> Attribute:
        """The type that a value points to; a tensor type if it is a block pointer."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it points to")


def element_type(type_: Attribute) -> Attribute:
    """The element type of a tensor type; any other type itself."""
    return type_.element_type if isinstance(type_, TensorType) else type_


def is_scalar_pointer(type_: Attribute) -> bool:
    """A pointer to one element: neither a block pointer nor a tensor of pointers."""
    return isinstance(type_, PointerLike) and not isinstance(type_.pointee, TensorType)


def is_block_pointer(type_: Attribute) -> bool:
    """A pointer to a block (made by `tt.make_tensor_ptr`)."""
    return isinstance(type_, PointerLike) and isinstance(type_.pointee, TensorType)


@dataclass(frozen=True)
class ScalarPointerConstraint(AttrConstraint[Attribute]):
    """Accepts a pointer to one element, of whatever dialect."""

    def verify(self, attr: Attribute, constraint_context: VerificationContext) -> None:
        if not is_scalar_pointer(attr):
            raise VerifyException(f"expected a scalar pointer, got {attr}")

    def mapping_type_vars(self, type_var_mapping: Any) -> AttrConstraint:
        return self


@dataclass(frozen=True)
class PointerConstraint(AttrConstraint[Attribute]):
    """Accepts pointers, tensors of pointers and block pointers, of whatever dialect."""

    def verify(self, attr: Attribute, constraint_context: VerificationContext) -> None:
        if not isinstance(element_type(attr), PointerLike):
            raise VerifyException(f"expected a pointer or a tensor of pointers, got {attr}")

    def mapping_type_vars(self, type_var_mapping: Any) -> AttrConstraint:
        return self
