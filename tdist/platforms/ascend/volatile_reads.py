"""Volatile loads and the loops that poll with them, or with atomics, of which the compiled kernel has nothing.

Triton's own passes keep a volatile load; triton-adapter-opt 3.2.0 makes a plain read of it, which goes where nobody
uses what it read, and with it the whole loop that was to wait for a value. There are no volatile stores in Triton's
language; atomics are looked for beside this (`multiplicity`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from xdsl.ir import Operation

from tdist.findings import Finding, make
from tdist.ir import tt
from tdist.ir.location import SourceLoc, loc_of
from tdist.passes.base import all_ops
from tdist.platforms.ascend.effects_in_code import Access
from tdist.platforms.ascend.provenance import enclosing, full_name

if TYPE_CHECKING:
    from tdist.platforms.ascend.multiplicity import Kernel

_LOOPS = ("scf.while", "scf.for")
_ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas")
_Place = tuple[str, int, tuple[SourceLoc, ...]]
"""A line with the calls that lead to it: the vendor's passes keep lines of reads and loops, not always columns."""


def volatile_findings(kernel: Kernel) -> Iterator[Finding]:
    """Polling loops that are gone, each once, then volatile loads outside of these that are gone."""
    gone = [loop for loop in _polling_loops(kernel) if not _is_kept(loop, kernel)]
    for loop in gone:
        yield _lost_loop(kernel, loop)
    for access in kernel.source.accesses:
        if _is_volatile(access.op) and not _is_read(access, kernel) and not set(gone) & set(enclosing(access.op)):
            yield _lost_load(kernel, access)


def _polling_loops(kernel: Kernel) -> list[Operation]:
    """The `while` loops of the source that read what others write."""
    return [op for op in kernel.source.ops if op.name == "scf.while" and any(map(_polls, all_ops(op)))]


def _polls(op: Operation) -> bool:
    return _is_volatile(op) or op.name in _ATOMICS


def _is_volatile(op: Operation) -> bool:
    return isinstance(op, tt.LoadOp) and op.is_volatile


def _is_kept(loop: Operation, kernel: Kernel) -> bool:
    """Whether a function has a loop at the line of `loop`, or one whose line is none of the source's."""
    own, known = _place(loop), _places(op for op in kernel.source.ops if op.name in _LOOPS)
    loops = (op for code in kernel.functions for op in code.ops if full_name(op) in _LOOPS)
    return any((place := _place(op)) == own or place not in known for op in loops)


def _is_read(access: Access, kernel: Kernel) -> bool:
    """Whether a function reads the same memory at the line of `access`, or at one that is none of the source's."""
    own, known = _place(access.op), _places(other.op for other in kernel.source.accesses)
    reads = (other for code in kernel.functions for other in code.accesses if not other.writes)
    return any(
        (not access.keys or other.keys & access.keys) and ((place := _place(other.op)) == own or place not in known)
        for other in reads
    )


def _places(ops: Iterable[Operation]) -> set[_Place | None]:
    return {_place(op) for op in ops}


def _place(op: Operation) -> _Place | None:
    loc = loc_of(op)
    return None if loc is None else (loc.file, loc.line, loc.callers)


def _lost_loop(kernel: Kernel, loop: Operation) -> Finding:
    inside = set(all_ops(loop))
    polled = [access for access in kernel.source.accesses if access.op in inside and _polls(access.op)]
    tensor = kernel.tensor(polled)
    return _lost(kernel, f"the loop that polls {tensor}", loc_of(loop), "no loop at this line", tensor)


def _lost_load(kernel: Kernel, access: Access) -> Finding:
    tensor = kernel.tensor([access])
    return _lost(kernel, f"the volatile load of {tensor}", access.loc, "no read of it at this line", tensor)


def _lost(kernel: Kernel, what: str, loc: SourceLoc | None, got: str, tensor: str) -> Finding:
    return make(
        "compiled.lost-effect",
        [kernel.party("", what, loc, "not in the compiled kernel")],
        expected=f"{what}, as written",
        got=f"{got} in any function of the final module",
        op=what,
        reason="triton-ascend's adapter makes a plain read of a volatile load; what only reads, and whose result "
        "nobody uses, is deleted, a loop around it too",
        remedy=f"wait with dl.wait({tensor}, …), and consume its token on what depends on it: "
        "ptr = dl.consume_token(ptr, token)",
    )


__all__ = ["volatile_findings"]
