"""Which steps of two agents commute: the dependence relation of the exploration.

A *step* is what an agent does from one scheduling point to the next, with all that the engine does at once because of
it. Its *footprint* is a list of accesses. Two steps of different agents are dependent if two accesses of theirs
conflict:

| access | made by | conflicts with |
|---|---|---|
| `READ` | loads, volatile loads, host reads | every write |
| `PASS` | a wait that saw its value | every write |
| `BLOCK` | a wait that did not: it is blocked | `WRITE`, `HOST`; an earlier `SET` or `ADD` without which it may pass |
| `WRITE` | stores and tile atomics of agents | everything |
| `HOST` | host writes and copies | everything |
| `SET` | signals that set, scalar atomics | everything but later `BLOCK`s |
| `ADD` | signals that add | everything but later `BLOCK`s and `ADD`s |

Two ADDs leave the same word, the same clocks and the same blocked agents in either order; what is between them can be
seen by a third only, whose access conflicts with both. A wait that is not satisfied does nothing: the signal that makes
its condition true enables it, as a barrier enables those who wait at it. So a wait that has passed has another order
with a signal only where it could have passed without that one (`may_pass_without`). Plain stores wake nobody before all
are blocked, so they conflict with a blocked wait. Places are byte sets of simulated memory, so conflicts are exact;
what agents share besides memory has places of its own below zero (`HOSTS`, `BARRIER`, cores).
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
            or (Kind.BLOCK in (a, b) and not {a, b} & {Kind.WRITE, Kind.HOST})
            or (a is Kind.ADD and b is Kind.ADD)
        )
        for b in Kind
    )
    for a in Kind
)
"""`CONFLICT[a][b]`: whether accesses of these kinds to a common byte do not commute, whatever the values."""
_SIGNALS: Final = frozenset({Kind.SET, Kind.ADD})

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
        value: of a `PASS` or `BLOCK`, what it waited for.
        before: of an access to a word, its value then.
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
    """Whether two accesses do not commute, whatever the values."""
    if a.base != b.base or not overlap(a.shape, b.shape):
        return False
    if a.kind is Kind.ADD and b.kind is Kind.ADD:
        return (a.shape.lo, a.shape.hi) != (b.shape.lo, b.shape.hi)  # of different width: whose word is it?
    return CONFLICT[a.kind][b.kind]


def collide(earlier: Access, later: Access) -> bool:
    """Whether two accesses, in the order in which they were made, do not commute."""
    if later.kind is Kind.BLOCK and earlier.kind in _SIGNALS:
        return earlier.base == later.base and overlap(earlier.shape, later.shape) and may_pass_without(earlier, later)
    return conflict(earlier, later)


def dependent(a: Iterable[Access], b: Sequence[Access]) -> bool:
    """Whether two footprints conflict."""
    return any(conflict(one, other) for one in a for other in b)


def may_pass_without(write: Access, wait: Access) -> bool:
    """Whether a `PASS` or `BLOCK` might pass in a run in which `write`, an earlier access, has not been made yet.

    It might where the word had the value before a SET. ADDs may be left out one after another: leaving this one out has
    to lead towards the value.
    """
    if wait.kind not in (Kind.PASS, Kind.BLOCK) or write.kind not in _SIGNALS or write.shape.lo != wait.shape.lo:
        return True
    if write.before == wait.value or write.before is None or wait.before is None:
        return True
    if write.kind is Kind.SET:
        return False
    too_much = wait.before - wait.value
    return write.delta <= 0 if too_much == 0 else (write.delta > 0) == (too_much > 0)
