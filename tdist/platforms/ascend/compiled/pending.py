"""What may still be in flight, as each pipe of each core sees it.

A pipe takes its instructions in order and works on several at once. For each pipe we keep the accesses that may not have
finished when its next instruction starts. A new access is pending for everybody; flags, barriers and the library's own
waits take accesses away, by what the pipe that raised them knew. Sets only grow where paths join, so a walk ends.

Sets are integers, one bit for an access at a place under its decisions (`Instances`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tdist.ir.hivm import Pipe
from tdist.platforms.ascend.compiled.events import Access, Event
from tdist.platforms.ascend.compiled.memory import GM, Region

PIPES: tuple[Pipe, ...] = (Pipe.S, Pipe.V, Pipe.M, Pipe.MTE1, Pipe.MTE2, Pipe.MTE3, Pipe.FIX)
INDEX: Mapping[Pipe, int] = {pipe: index for index, pipe in enumerate(PIPES)}

FlagKey = tuple[int, Pipe, Pipe, Hashable]
"""A flag between two pipes of a core: core, who sets it, who waits, number."""


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


# ---- accesses -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """An access at a place under its decisions: on which core and pipe, and which bytes it reads and writes."""

    core: int
    event: Event
    regions: tuple[tuple[Region, bool], ...]  # and whether it writes

    @property
    def pipe(self) -> Pipe:
        """The pipe that it is on."""
        return self.event.pipe

    @property
    def writes(self) -> bool:
        """Whether it writes anything."""
        return any(writes for _, writes in self.regions)

    def touches_global(self, *, writing: bool | None = None) -> bool:
        """Whether it touches global memory; `writing`: only as a reader or a writer."""
        return any(
            region.space == GM and (writing is None or writes is writing) for region, writes in self.regions
        )


def conflict(first: Instance, second: Instance) -> tuple[Region, Region] | None:
    """Bytes that both touch and at least one writes, unless the hardware orders the two by itself."""
    if _ordered_by_hardware(first, second):
        return None
    for a, a_writes in first.regions:
        for b, b_writes in second.regions:
            if (a_writes or b_writes) and a.overlaps(b) and not _unknown_peers(first, second, a, b):
                if first.core == second.core or a.space == GM:
                    return a, b
    return None


def _ordered_by_hardware(first: Instance, second: Instance) -> bool:
    if first.core != second.core:
        return False
    if first.pipe is second.pipe and first.pipe in (Pipe.S, Pipe.M):
        return True
    events = (first.event, second.event)
    return all(isinstance(event, Access) and event.unit_flag for event in events)


def _unknown_peers(first: Instance, second: Instance, a: Region, b: Region) -> bool:
    """Two stores of one pipe into peers' memory: which peers is not known, and the compiler does not order them."""
    return a.remote and b.remote and first.pipe is second.pipe


class Instances:
    """Accesses by number, with sets of them."""

    def __init__(self) -> None:
        self.all: list[Instance] = []
        self.of_pipe: dict[tuple[int, Pipe], int] = {}
        self.of_core: dict[int, int] = {}
        self.transfers: dict[int, int] = {}  # of a core, to or from global memory, not by the scalar unit
        self._numbers: dict[Hashable, int] = {}
        self._conflicts: list[int] = []

    def number(self, key: Hashable, make: Instance) -> int:
        """The number of an access; `make` is used if `key` is new."""
        found = self._numbers.get(key)
        if found is not None:
            return found
        number = self._numbers[key] = len(self.all)
        self._add(number, make)
        return number

    def _add(self, number: int, instance: Instance) -> None:
        bit = 1 << number
        where = (instance.core, instance.pipe)
        self.of_pipe[where] = self.of_pipe.get(where, 0) | bit
        self.of_core[instance.core] = self.of_core.get(instance.core, 0) | bit
        if instance.pipe is not Pipe.S and instance.touches_global():
            self.transfers[instance.core] = self.transfers.get(instance.core, 0) | bit
        against = 0
        self.all.append(instance)
        for other, known in enumerate(self.all):
            if conflict(known, instance) is not None:
                against |= 1 << other
                if other != number:
                    self._conflicts[other] |= bit
        self._conflicts.append(against)

    def find(self, key: Hashable) -> int | None:
        """The number of an access that has been met."""
        return self._numbers.get(key)

    def conflicts(self, number: int) -> int:
        """The accesses that must not overlap with it in time, itself (another turn) among them."""
        return self._conflicts[number]


# ---- the state ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pending:
    """For each core and pipe what may be in flight; what flags that are up say; what reads of the data cache may miss.

    `flags` and `blocks` hold, for each flag that is up and each time that it is, what may still be in flight when it is
    seen. `unflushed`: waits of a core after which it has not thrown its data cache away.
    """

    pipes: tuple[int, ...]
    flags: Mapping[FlagKey, tuple[int, ...]]
    blocks: Mapping[Hashable, tuple[int, ...]]
    unflushed: tuple[int, ...]

    @classmethod
    def nothing(cls, cores: int) -> Pending:
        """Nothing is in flight, no flag is up."""
        return cls((0,) * (cores * len(PIPES)), {}, {}, (0,) * cores)

    @property
    def shape(self) -> Hashable:
        """Which flags are up, and how often."""
        return (
            frozenset((key, len(up)) for key, up in self.flags.items()),
            frozenset((key, len(up)) for key, up in self.blocks.items()),
        )

    def join(self, other: Pending) -> Pending:
        """What may be in flight on either way; the flags that are up are the same."""
        pipes = _union(self.pipes, other.pipes)
        unflushed = _union(self.unflushed, other.unflushed)
        flags = {key: _union(up, other.flags[key]) for key, up in self.flags.items()}
        blocks = {key: _union(up, other.blocks[key]) for key, up in self.blocks.items()}
        same = pipes == self.pipes and unflushed == self.unflushed and flags == self.flags and blocks == self.blocks
        return self if same else Pending(pipes, flags, blocks, unflushed)

    def seen_by(self, core: int, pipe: Pipe) -> int:
        """What may be in flight when the next instruction of a pipe starts."""
        return self.pipes[core * len(PIPES) + INDEX[pipe]]

    # ---- changes -----------------------------------------------------------------------------------------------------

    def start(self, number: int, blind: Sequence[int]) -> Pending:
        """An access starts: it is in flight for everybody but `blind`, and no flag that is up knows of it."""
        bit = 1 << number
        pipes = tuple(mask if index in blind else mask | bit for index, mask in enumerate(self.pipes))
        flags = {key: tuple(mask | bit for mask in up) for key, up in self.flags.items()}
        blocks = {key: tuple(mask | bit for mask in up) for key, up in self.blocks.items()}
        return Pending(pipes, flags, blocks, self.unflushed)

    def limited(self, core: int, pipe: Pipe, mask: int) -> Pending:
        """From here on a pipe starts only when everything but `mask` has finished.

        What the scalar unit waits for, every pipe does: it issues their instructions.
        """
        first = core * len(PIPES)
        wanted = range(first, first + len(PIPES)) if pipe in (Pipe.S, Pipe.ALL) else (first + INDEX[pipe],)
        pipes = tuple(old & mask if index in wanted else old for index, old in enumerate(self.pipes))
        return Pending(pipes, self.flags, self.blocks, self.unflushed)

    def drained(self, core: int, own: int, *, flushes: bool = False) -> Pending:
        """Every pipe of a core waits for every other: what one of them knew to be finished, all do. `own`: its accesses."""
        first = core * len(PIPES)
        left = ~own
        for mask in self.pipes[first : first + len(PIPES)]:
            left &= mask
        limited = self.limited(core, Pipe.ALL, left)
        return limited.with_unflushed(core, 0) if flushes else limited

    def with_unflushed(self, core: int, waits: int) -> Pending:
        """With other waits since the last flush."""
        unflushed = tuple(waits if index == core else old for index, old in enumerate(self.unflushed))
        return Pending(self.pipes, self.flags, self.blocks, unflushed)

    def with_flag(self, key: FlagKey, up: tuple[int, ...]) -> Pending:
        """With a flag up as often as `up` is long."""
        return Pending(self.pipes, _replaced(self.flags, key, up), self.blocks, self.unflushed)

    def with_block(self, key: Hashable, up: tuple[int, ...]) -> Pending:
        """The same for a flag between cores."""
        return Pending(self.pipes, self.flags, _replaced(self.blocks, key, up), self.unflushed)


def _union(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x | y for x, y in zip(a, b, strict=True))


def _replaced(old: Mapping, key: Hashable, up: tuple[int, ...]) -> Mapping:
    new = {known: value for known, value in old.items() if known != key}
    if up:
        new[key] = up
    return new


__all__ = ["INDEX", "PIPES", "FlagKey", "Instance", "Instances", "Pending", "bits", "conflict"]
