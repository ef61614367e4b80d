"""Source positions of operations.

xDSL keeps MLIR's location attribute on each operation (`op.location`); it survives clones and is printed on request.
Users are shown a `SourceLoc`, which is what is left of it: a file, a line, a column, and who called.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from xdsl.dialects.builtin import CallSiteLoc, FileLineColLoc, FusedLoc, IntAttr, LocationAttr, NameLoc, StringAttr
from xdsl.ir import Attribute, Operation


@dataclass(frozen=True, slots=True)
class SourceLoc:
    """A place in a user's source. Lines count from 1, columns from 0.

    `callers` is the chain of call sites from the innermost outwards; empty when the code was not inlined.
    """

    file: str
    line: int
    col: int
    callers: tuple[SourceLoc, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def to_source_loc(attr: Attribute) -> SourceLoc | None:
    """The position that a location attribute stands for; None for an unknown one.

    A name is dropped in favour of what it names; of fused locations the first known one counts.
    """
    match attr:
        case FileLineColLoc():
            return SourceLoc(attr.filename.data, attr.line.data, attr.column.data)
        case NameLoc():
            return to_source_loc(attr.location)
        case CallSiteLoc():
            return _call_site(attr)
        case FusedLoc():
            parts = attr.locations
            known = (to_source_loc(part) for part in parts)  # pyright: ignore[reportGeneralTypeIssues]
            return next((loc for loc in known if loc is not None), None)
    return None


def _call_site(attr: CallSiteLoc) -> SourceLoc | None:
    callee, caller = to_source_loc(attr.callee), to_source_loc(attr.caller)
    if callee is None or caller is None:
        return callee or caller
    outer = SourceLoc(caller.file, caller.line, caller.col)
    return SourceLoc(callee.file, callee.line, callee.col, (*callee.callers, outer, *caller.callers))


_TRITONS_OWN = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]triton[/\\]|[/\\]triton[/\\](?:triton_patch[/\\])?language[/\\]\w+\.py$"
)


def in_the_kernel(loc: SourceLoc) -> SourceLoc:
    """The innermost place of a chain of calls that a kernel's author wrote: functions of `tl` are Triton's own code."""
    return next((place for place in (loc, *loc.callers) if not _TRITONS_OWN.search(place.file)), loc)


def to_attr(loc: SourceLoc) -> LocationAttr:
    """The location attribute of a source position; inverse of `to_source_loc` up to the nesting of call sites."""
    here: LocationAttr = FileLineColLoc(StringAttr(loc.file), IntAttr(loc.line), IntAttr(loc.col))
    if not loc.callers:
        return here
    first, *rest = loc.callers
    return CallSiteLoc(here, to_attr(SourceLoc(first.file, first.line, first.col, tuple(rest))))


def loc_of(op: Operation) -> SourceLoc | None:
    """Where in the user's source `op` comes from, if known."""
    return to_source_loc(op.location)


def set_loc(op: Operation, loc: SourceLoc | None) -> None:
    """Give `op` a source position; None leaves it as it is."""
    if loc is not None:
        op.location = to_attr(loc)
