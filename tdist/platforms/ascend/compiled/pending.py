"""What may still be in flight, as each pipe of each core sees it.

A pipe takes its instructions in order and works on several at once. For each pipe we keep the accesses that may not
have finished when its next instruction starts. A new access is pending for everybody; flags, barriers and the library's
own waits take accesses away, by what the pipe that raised them knew. Sets only grow where paths join, so a walk ends.

Sets are integers, one bit for an access at a place under its decisions (`Instances`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import or_

from tdist.ir.hivm import Pipe
from tdist.platforms.ascend.compiled.events import Access, Event
from tdist.platforms.ascend.compiled.memory import GM, Region

PIPES: tuple[Pipe, ...] = (Pipe.S, Pipe.V, Pipe.M, Pipe.MTE1, Pipe.MTE2, Pipe.MTE3, Pipe.FIX)
INDEX: Mapping[Pipe, int] = {pipe: index for index, pipe in enumerate(PIPES)}


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
        return any(region.space == GM and (writing is None or writes is writing) for region, writes in self.regions)


def conflict(first: Instance, second: Instance) -> tuple[Region, Region] | None:
    """Bytes that both touch and at least one writes, unless the hardware orders the two by itself."""
    if _ordered_by_hardware(first, second):
        return None
    for a, a_writes in first.regions:
        for b, b_writes in second.regions:
            shared = a.space == GM or first.core == second.core
            if shared and (a_writes or b_writes) and a.overlaps(b) and not _unknown_peers(first, second, a, b):
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

    def number(self, instance: Instance) -> int:
        """The number of an access: the same for the same event and bytes."""
        key = (instance.event, instance.regions)
        found = self._numbers.get(key)
        if found is not None:
            return found
        number = self._numbers[key] = len(self.all)
        self._add(number, instance)
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

    def conflicts(self, number: int) -> int:
        """The accesses that must not overlap with it in time, itself (another turn) among them."""
        return self._conflicts[number]


# ---- the state ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pending:
    """What may be in flight, for each core and pipe; what flags that are up say; what the data cache may miss.

    `masks` holds, in this order: for each core and pipe what it may find in flight; for each core the waits after which
    it has not thrown its data cache away; for each flag that is up, as often as it is, what may be in flight when it is
    seen. `up` are these flags, by number, and how often each is up.
    """

    cores: int
    masks: tuple[int, ...]
    up: tuple[tuple[int, int], ...] = ()

    @classmethod
    def nothing(cls, cores: int) -> Pending:
        """Nothing is in flight, no flag is up."""
        return cls(cores, (0,) * (cores * (len(PIPES) + 1)))

    @property
    def shape(self) -> Hashable:
        """Which flags are up, and how often."""
        return self.up

    def join(self, other: Pending) -> Pending:
        """What may be in flight on either way; the flags that are up are the same."""
        masks = tuple(map(or_, self.masks, other.masks))
        return self if masks == self.masks else Pending(self.cores, masks, self.up)

    def seen_by(self, core: int, pipe: Pipe) -> int:
        """What may be in flight when the next instruction of a pipe starts."""
        return self.masks[core * len(PIPES) + INDEX[pipe]]

    def unflushed(self, core: int) -> int:
        """Waits of a core after which it has not thrown its data cache away."""
        return self.masks[self.cores * len(PIPES) + core]

    def times_up(self, flag: int) -> int:
        """How often a flag is up."""
        return next((times for known, times in self.up if known == flag), 0)

    # ---- changes -----------------------------------------------------------------------------------------------------

    def start(self, number: int, blind: Sequence[int]) -> Pending:
        """An access starts: it is in flight for everybody but `blind`, and no flag that is up knows of it."""
        bit = 1 << number
        skip = range(self.cores * len(PIPES), self.cores * (len(PIPES) + 1))
        masks = tuple(mask if index in blind or index in skip else mask | bit for index, mask in enumerate(self.masks))
        return Pending(self.cores, masks, self.up)

    def limited(self, core: int, pipe: Pipe, mask: int) -> Pending:
        """From here on a pipe starts only when everything but `mask` has finished.

        What the scalar unit waits for, every pipe does: it issues their instructions.
        """
        first = core * len(PIPES)
        masks = list(self.masks)
        for index in range(first, first + len(PIPES)) if pipe in (Pipe.S, Pipe.ALL) else (first + INDEX[pipe],):
            masks[index] &= mask
        return Pending(self.cores, tuple(masks), self.up)

    def drained(self, core: int, own: int, *, flushes: bool = False) -> Pending:
        """Every pipe waits for every other: what one of them knew to be finished, all do. `own`: the core's."""
        first = core * len(PIPES)
        left = ~own
        for mask in self.masks[first : first + len(PIPES)]:
            left &= mask
        limited = self.limited(core, Pipe.ALL, left)
        return limited.with_unflushed(core, 0) if flushes else limited

    def with_unflushed(self, core: int, waits: int) -> Pending:
        """With other waits since the last flush."""
        index = self.cores * len(PIPES) + core
        return Pending(self.cores, (*self.masks[:index], waits, *self.masks[index + 1 :]), self.up)

    def raised(self, flag: int, seen: int) -> Pending:
        """A flag goes up once more; `seen` may be in flight when this one is seen."""
        start, times = self._place(flag)
        masks = (*self.masks[: start + times], seen, *self.masks[start + times :])
        return Pending(self.cores, masks, _counted(self.up, flag, times + 1))

    def raised_again(self, flag: int, seen: int) -> Pending:
        """A flag that is up already stays up: what it says last is what both may leave in flight."""
        start, times = self._place(flag)
        last = start + times - 1
        masks = (*self.masks[:last], self.masks[last] | seen, *self.masks[last + 1 :])
        return Pending(self.cores, masks, self.up)

    def taken(self, core: int, pipe: Pipe, flag: int) -> Pending:
        """A pipe sees a flag that is up, which goes down once."""
        start, times = self._place(flag)
        masks = self.masks[:start] + self.masks[start + 1 :]
        lowered = Pending(self.cores, masks, _counted(self.up, flag, times - 1))
        return lowered.limited(core, pipe, self.masks[start])

    def _place(self, flag: int) -> tuple[int, int]:
        """Where the masks of a flag begin, or would, and how many there are."""
        index = self.cores * (len(PIPES) + 1)
        for known, times in self.up:
            if known >= flag:
                return index, times if known == flag else 0
            index += times
        return index, 0


def _counted(up: tuple[tuple[int, int], ...], flag: int, times: int) -> tuple[tuple[int, int], ...]:
    rest = [known for known in up if known[0] != flag]
    return tuple(sorted([*rest, (flag, times)] if times else rest))


__all__ = ["INDEX", "PIPES", "Instance", "Instances", "Pending", "bits", "conflict"]
