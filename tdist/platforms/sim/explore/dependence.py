"""Which steps of two agents commute: the dependence relation of the exploration.

A *step* is what an agent does from one scheduling point to the next, with all that the engine does at once because of
it. Its *footprint* is a list of accesses. Two steps of different agents are dependent if two accesses of theirs
conflict:

| access | made by | conflicts with |
|---|---|---|
| `READ` | loads, volatile loads, host reads | every write |
| `PASS` | a wait that saw its value | every write |
| `BLOCK` | a wait that did not: it is blocked | `WRITE` only, which wakes nobody until all are blocked |
| `WRITE` | stores and tile atomics of agents | everything |
| `HOST` | host writes and copies, which wake waiters | everything but `BLOCK` |
| `SET` | signals that set, scalar atomics | everything but `BLOCK` |
| `ADD` | signals that add | everything but `BLOCK` and `ADD` |

Two ADDs leave the same word, the same clocks and the same blocked agents in either order; what is between them can be
seen by a third only, whose access conflicts with both. A wait that is not satisfied does nothing: it is the write that
makes its condition true which enables it, as it enables any blocked agent. Places are byte sets of simulated memory, so
conflicts are exact; what agents share besides memory has places of its own below zero (`HOSTS`, `BARRIER`, cores).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tdist.platforms.sim.regions import Box, Shape, box_of, overlap


class Kind(IntEnum):
    """How a place is accessed."""

    READ = 0
    PASS = 1
    BLOCK = 2
    WRITE = 3
    HOST = 4
    SET = 5
    ADD = 6


_READS: Final = frozenset({Kind.READ, Kind.PASS, Kind.BLOCK})
CONFLICT: Final[tuple[tuple[bool, ...], ...]] = tuple(
    tuple(
        not (
            (a in _READS and b in _READS)
            or (Kind.BLOCK in (a, b) and Kind.WRITE not in (a, b))
            or (a is Kind.ADD and b is Kind.ADD)
        )
        for b in Kind
    )
    for a in Kind
)
"""`CONFLICT[a][b]`: whether accesses of these kinds to a common byte do not commute."""

HOSTS: Final = -64
"""The place of what hosts may do when they are served early."""
BARRIER: Final = -128
"""The place of the world's barrier: an arrival of each kind adds, what makes it diverge sets."""
_CORES: Final = -(1 << 20)


def cores(rank: int) -> int:
    """The place of a launch's waiting programs: which one starts next is decided by who ends first."""
    return _CORES - 64 * rank


@dataclass(frozen=True, slots=True)
class Access:
    """One access of a step.

    Attributes:
        base: address of the allocation, or the place itself: accesses of different bases never meet.
        value: of a `PASS`, what it waited for.
        before: of a write to a word, its value then.
        delta: of an `ADD`, what it added.
    """

    base: int
    shape: Shape
    kind: Kind
    value: int = 0
    before: int | None = None
    delta: int = 0


def place(at: int, kind: Kind) -> Access:
    """An access to something that is no memory."""
    return Access(at, _ONE, kind)


_ONE: Final[Box] = box_of(0, 1, 0, 1)  # pyright: ignore[reportAssignmentType]


def conflict(a: Access, b: Access) -> bool:
    """Whether two accesses do not commute."""
    if a.base != b.base or not overlap(a.shape, b.shape):
        return False
    if a.kind is Kind.ADD and b.kind is Kind.ADD:
        return (a.shape.lo, a.shape.hi) != (b.shape.lo, b.shape.hi)  # of different width: whose word is it?
    return CONFLICT[a.kind][b.kind]


def dependent(a: Iterable[Access], b: Sequence[Access]) -> bool:
    """Whether two footprints conflict."""
    return any(conflict(one, other) for one in a for other in b)


def enables(write: Access, wait: Access) -> bool:
    """Whether a wait that has passed could not have passed without `write`, the last of its kind before it.

    Then there is no other order of the two: without the write the wait is blocked, which is to do nothing.
    """
    if wait.kind is not Kind.PASS or write.before is None or write.shape.lo != wait.shape.lo:
        return False
    if write.kind is Kind.ADD:
        return write.delta != 0
    return write.before != wait.value
