"""What compilation did to the operations that a user counts on: facts about the compiled kernel, no verdict."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Operation

from tdist.ir.location import SourceLoc, loc_of

_LOADS_AND_WAITS = ("distributed.wait", "tt.load")
_LOOPS = ("scf.for", "scf.while")


@dataclass(frozen=True)
class LostOp:
    """A wait, load or polling loop of the source that the compiled kernel does not have."""

    op_name: str
    loc: SourceLoc | None
    why: str


@dataclass(frozen=True)
class MergedOp:
    """Two equal waits or loads of the source of which the compiled kernel has one."""

    op_name: str
    kept: SourceLoc | None
    dropped: SourceLoc | None


@dataclass
class CompileReport:
    """What was lost and merged, in the order in which it happened."""

    lost: list[LostOp] = field(default_factory=list)
    merged: list[MergedOp] = field(default_factory=list)

    def record_lost(self, op: Operation, why: str) -> None:
        """Note that `op` vanishes, with the loops, waits and loads inside it; anything else is arithmetic."""
        if op.name in _LOOPS and any(inner.name in _LOADS_AND_WAITS for inner in op.walk()):
            self.lost.append(LostOp(op.name, loc_of(op), f"{why}: a loop that only reads has no effect"))
        for inner in op.walk():
            if inner.name in _LOADS_AND_WAITS:
                self.lost.append(LostOp(inner.name, loc_of(inner), why))

    def record_merged(self, kept: Operation, dropped: Operation) -> None:
        """Note that `dropped` is now `kept`."""
        if dropped.name in _LOADS_AND_WAITS:
            self.merged.append(MergedOp(dropped.name, loc_of(kept), loc_of(dropped)))

    def extend(self, other: CompileReport) -> None:
        """Append what another pass reported."""
        self.lost += other.lost
        self.merged += other.merged
