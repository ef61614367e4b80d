"""The site table: what was carried through an adapter that knows no `hivm.hir.custom`, and how to put it back.

A site is one call of the device library. While it travels it is a call of `tdist_site_<n>` that takes and returns
integers only: a pointer travels as its distance, in elements, from the kernel's argument that it came from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute

from tdist.ir.hivm import CustomOp
from tdist.ir.location import SourceLoc, loc_of

_NAME = re.compile(r"tdist_site_(\d+)")


@dataclass(frozen=True, slots=True)
class Root:
    """Memory that a pointer is counted from: a kernel's argument, seen as elements of one type."""

    argument: int
    element: Attribute


@dataclass(frozen=True, slots=True)
class PointerOperand:
    """An operand that is a pointer; `offset` is the carrier's operand that holds its distance, None for none."""

    root: Root
    offset: int | None


@dataclass(frozen=True, slots=True)
class ValueOperand:
    """An operand that the carrier takes as it is."""

    index: int


@dataclass(frozen=True)
class Site:
    """One call on its way.

    Attributes:
        call: the call as the pass made it, detached and without operands.
        operands: of the call, in order; destinations of tensors of pointers left out.
        gives_pointer: its result is a pointer, so the carrier's result is an integer that stands for "here begins
            memory that the call returned".
        result_types: of the carrier.
    """

    number: int
    call: CustomOp
    operands: tuple[PointerOperand | ValueOperand, ...]
    gives_pointer: bool
    result_types: tuple[Attribute, ...]

    @property
    def carrier(self) -> str:
        return f"tdist_site_{self.number}"

    @property
    def loc(self) -> SourceLoc | None:
        return loc_of(self.call)

    @property
    def is_identity(self) -> bool:
        """Its result is the address that went in: a consumed token."""
        return self.call.symbol.startswith("aclshmem_consume_token")

    def __str__(self) -> str:
        """For messages: where and what."""
        return f"{self.loc or 'kernel'}: {self.call.symbol}"


@dataclass(frozen=True)
class Carried:
    """A module on its way through the adapter, with its site table."""

    module: ModuleOp
    sites: tuple[Site, ...]


def site_number(callee: str) -> int | None:
    """Which site a called function stands for; None for any other function."""
    match = _NAME.fullmatch(callee)
    return int(match[1]) if match else None
