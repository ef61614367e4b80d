"""What a mutant is, and what a kind of mutants gives: places of a kernel, each with the fault to plant there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from xdsl.ir import Operation

from tdist.ir import tt
from tdist.ir.effects import effects
from tdist.ir.location import SourceLoc, in_the_kernel, loc_of
from tdist.passes.base import all_ops


@dataclass(frozen=True)
class Mutant:
    """One fault at one place of one kernel.

    Attributes:
        name: stable as long as the source is: `kind@line:col`, with `#n` where a kind has several at one position
            (a helper that is called twice, an unrolled loop, the dimensions of a mask).
        line: counted from 1; `col` from 0, as in the kernel's IR.
        what: the fault in words; says through which calls the place is reached.
    """

    name: str
    kind: str
    kernel: str
    line: int
    col: int
    file: str
    what: str


@dataclass(frozen=True)
class Place:
    """Where a kind applies. `apply` plants the fault in the module that `op` is in; it may be called once."""

    op: Operation
    what: str
    apply: Callable[[], None]

    @property
    def loc(self) -> SourceLoc:
        """The place that the kernel's author wrote; line 0 where the IR does not say."""
        loc = loc_of(self.op)
        return SourceLoc("", 0, 0) if loc is None else in_the_kernel(loc)

    @property
    def calls(self) -> str:
        """The lines that call the function around the place, the nearest first; empty in the kernel itself."""
        loc = loc_of(self.op)
        if loc is None:
            return ""
        here = in_the_kernel(loc)
        chain = [loc, *loc.callers]
        return ", ".join(str(caller.line) for caller in chain[chain.index(here) + 1 :])


Places = Callable[[tt.FuncOp], Iterator[Place]]


@dataclass(frozen=True)
class Kind:
    """A kind of mutants. `mistake` says what somebody who writes it has done."""

    name: str
    mistake: str
    places: Places


def ops_of(function: tt.FuncOp, *names: str) -> list[Operation]:
    """The operations of these names, in order."""
    return [op for op in all_ops(function) if op.name in names]


def is_pure(op: Operation) -> bool:
    """Whether `op` may be computed again elsewhere: no memory, no regions."""
    found = effects(op)
    return not op.regions and not found.reads and not found.writes
