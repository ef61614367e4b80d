"""Adversarial memory: what nothing orders comes late, in odd order, or is lost with its 64-byte line.

It plays out races that the detector finds, so that they become wrong results or hangs, and nothing else. The simulated
memory is one sequence of writes; in that sequence a load sees the newest write to each byte. The model allows a load
more: any write that no later one is known to have replaced. So where the detector meets a race between a load and the
write before it, the bytes from before that write are as legal, and the load is shown those. This one rule covers both
sides of a fault: a producer whose release did not cover the store (its stamp is not in what the load knows), and a
consumer whose load does not depend on its wait (what the load knows lacks what the wait brought).

Exact, because the same clocks decide: a write that the load knows is never hidden, nor is any write before it brought
back at the bytes that it wrote. A program without races is shown plain memory, byte for byte. The alternative, to delay
stores in a buffer until something releases them, plays producers' faults only, and has to guess what a consumer that
never waited could still see.

What is played:

- *late*: a racing load sees the bytes from before each write that it does not know; each of them is hidden or not by a
  choice of the scheduler. An agent that has seen a write sees it from then on, and none stays hidden for ever.
- *odd order*: a store that races with an earlier one may have come first: the earlier one's bytes stand at the end.
- *lost lines*: a SET writes back its 64-byte line. Unordered writes to other bytes of it are undone, so a signal may
  vanish and its waiter hang.

`late` and `odd order` follow the profile of the world: what only `ascend` leaves open is played only there. Choices are
the scheduler's (`choose`, 0 for late), are recorded, and replay. A load that comes too late, after a store that nothing
keeps from overwriting what it reads, is a matter of the schedule: here every access is a scheduling point, also a local
one. What is *not* played: a load that is in flight beyond a release of its own agent, which only `ascend` leaves open;
parts of one store; what hosts read.

Loads are shown other bytes by putting them into memory for the moment of the load: nothing else runs meanwhile, and
kernels are compiled to copy what they load (`SimOptions.adversarial`).

Source: docs/ordering-model.md, "Loads and tokens", "What a release covers", "Signals"; docs/schedules.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tdist.findings import Finding, Severity
from tdist.platforms.sim.agents import one_by_one
from tdist.platforms.sim.memory import LINE_BYTES, AddressSpace, Allocation
from tdist.platforms.sim.records import hidden

if TYPE_CHECKING:
    from tdist.platforms.sim.agents import Agent
    from tdist.platforms.sim.clocks import AgentClocks, Clock
    from tdist.platforms.sim.detector import Actor, Detector
    from tdist.platforms.sim.lines import LineGuard
    from tdist.platforms.sim.streams import Span
    from tdist.platforms.sim.words import SyncWords

MOST_HIDDEN: Final = 16
"""So often an agent may be shown memory without a write that it does not know; then it has arrived."""
_MOST_WRITES: Final = 4096
"""Of an allocation; older ones cannot be taken back any more."""
_MOST_BYTES: Final = 256 << 20
_MOST_SETS: Final = 1024

Bytes = NDArray[np.int64]
"""Byte offsets into an allocation, sorted, each once."""


class Write:
    """One write to memory and the bytes that were there before.

    `word`: a signal or an atomic; `is_set`: a SET, which writes back its line; `seen`: entries of agents that have been
    shown it; `hid`: how often each has not.
    """

    __slots__ = (
        "_before",
        "_bytes",
        "_place",
        "al",
        "entry",
        "hi",
        "hid",
        "is_set",
        "lo",
        "seen",
        "site",
        "stamp",
        "word",
    )

    def __init__(
        self, al: Allocation, entry: int, stamp: int, site: Any, place: Place, before: NDArray[np.uint8]
    ) -> None:
        self.al = al
        self.entry = entry
        self.stamp = stamp
        self.site = site
        self.word = self.is_set = False
        self.lo, self.hi = place.ends()
        self.seen: set[int] = set()
        self.hid: dict[int, int] = {}
        self._place = place
        self._before = before
        self._bytes: Bytes | None = None

    @property
    def nbytes(self) -> int:
        return self._before.nbytes

    def bytes(self) -> tuple[Bytes, NDArray[np.uint8]]:
        """Which bytes it wrote, and what was there."""
        if self._bytes is None:
            self._bytes, first = np.unique(self._place.bytes(), return_index=True)
            self._before = self._before.reshape(-1)[first]
        return self._bytes, self._before


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of an access: `rows` runs of `width` bytes, `stride` apart; or runs from each of `starts`."""

    off: int
    rows: int
    stride: int
    width: int
    starts: Bytes | None = None

    def ends(self) -> tuple[int, int]:
        """First byte and one past the last."""
        if self.starts is not None:
            return int(self.starts.min()), int(self.starts.max()) + self.width
        across = (self.rows - 1) * self.stride
        return self.off + min(across, 0), self.off + max(across, 0) + self.width

    def bytes(self) -> Bytes:
        """All bytes, row by row."""
        starts = self.starts if self.starts is not None else self.off + np.arange(self.rows) * self.stride
        return (np.asarray(starts, np.int64)[:, None] + np.arange(self.width)).reshape(-1)


@dataclass(frozen=True, slots=True)
class Put:
    """Bytes to be put into memory later, as a write of `writer`'s."""

    al: Allocation
    at: Bytes
    values: NDArray[np.uint8]
    writer: Write


class Adversary:
    """Sees all accesses of a world with adversarial memory.

    Args:
        choose: the engine's: one of so many, recorded.
        detector: knows when an access races.
        memory: which allocations a line reaches into.
        ascend: whether what only `ascend` leaves open is played too.
    """

    def __init__(self, choose: Callable[[int], int], detector: Detector, memory: AddressSpace, ascend: bool) -> None:
        self._chooser = choose
        self._detector = detector
        self._memory = memory
        self._ascend = ascend
        self._writes: dict[int, deque[Write]] = {}
        self._held_bytes = 0
        self._sets: deque[Write] = deque(maxlen=_MOST_SETS)
        self._shown: list[tuple[Allocation, Bytes, NDArray[np.uint8]]] = []
        self._puts: list[Put] = []
        self._line: tuple[Write, AgentClocks] | None = None
        self._line_met = False
        self._site: Any = None
        self.played = 0

    # ---------------------------------------------------------------- where it listens

    def listen(self, words: SyncWords, guard: LineGuard | None) -> None:
        """Learn of lines that can be lost, as the findings say."""
        words.report = self._reporting(words.report)
        if guard is not None:
            guard.report = self._reporting(guard.report)

    def _reporting(self, report: Callable[[Finding], object]) -> Callable[[Finding], object]:
        def noted(finding: Finding) -> object:
            if finding.kind == "tdist.line-sharing" and finding.severity is Severity.ERROR:
                self._line_met = True
            return report(finding)

        return noted

    def attend(self, ag: Agent) -> None:
        """Stand between an agent and the detector, and between its steps and those of others."""
        clocks, step = ag.clocks, ag.step
        assert clocks is not None
        ag.rd = self._reading(clocks, ag.rd, cached=False)
        ag.rd_cached = self._reading(clocks, ag.rd_cached, cached=True)
        ag.rd_lanes = self._gathering(clocks, ag.rd_lanes)
        ag.wr = self._writing(clocks, ag.wr)
        ag.wr_lanes = self._scattering(clocks, ag.wr_lanes)
        ag.access_word = self._signalling(clocks, ag.access_word)
        ag.polled = one_by_one
        ag.access_atomics = self._accumulating(clocks, ag.access_atomics)

        def go_on() -> None:
            try:
                step()
            finally:
                self.settle()

        ag.step = go_on

    def _reading(self, clocks: AgentClocks, note: Callable[..., None], cached: bool) -> Callable[..., None]:
        def rd(al, off, rows, stride, width, clk, site):
            self._before_read(al, off, rows, stride, width, site)
            met = self._detector.races_met
            note(al, off, rows, stride, width, clk, site)
            if self._detector.races_met != met:
                self._show(clocks, al, Place(off, rows, stride, width), clk, cached, site)

        return rd

    def _gathering(self, clocks: AgentClocks, note: Callable[..., None]) -> Callable[..., None]:
        def rd_lanes(al, offs, width, clk, site):
            self.settle()
            met = self._detector.races_met
            note(al, offs, width, clk, site)
            if self._detector.races_met != met:
                self._show(clocks, al, Place(0, 0, 0, width, np.array(offs, np.int64)), clk, True, site)

        return rd_lanes

    def _writing(self, clocks: AgentClocks, note: Callable[..., None]) -> Callable[..., None]:
        def wr(al, off, rows, stride, width, site):
            self._before_write(site)
            met = self._detector.races_met
            note(al, off, rows, stride, width, site)
            self._written(clocks, al, Place(off, rows, stride, width), self._detector.races_met != met, site)

        return wr

    def _scattering(self, clocks: AgentClocks, note: Callable[..., None]) -> Callable[..., None]:
        def wr_lanes(al, offs, width, site):
            self._before_write(site)
            met = self._detector.races_met
            note(al, offs, width, site)
            if len(offs):
                place = Place(0, 0, 0, width, np.array(offs, np.int64))
                self._written(clocks, al, place, self._detector.races_met != met, site)

        return wr_lanes

    def _accumulating(self, clocks: AgentClocks, note: Callable[..., None]) -> Callable[..., None]:
        def access_atomics(al, offs, width, site):
            self.settle()
            note(al, offs, width, site)
            if len(offs):
                made = self._log(clocks, al, Place(0, 0, 0, width, np.array(offs, np.int64)), site)
                made.word = True
                if self._line_met:
                    self._lose_to_earlier_set(made, clocks)
                    self._site = site

        return access_atomics

    def _signalling(self, clocks: AgentClocks, note: Callable[..., None]) -> Callable[..., None]:
        def access_word(word, writes, clk, site, in_order=False):
            note(word, writes, clk, site, in_order)
            if not writes:
                return
            made = self._log(clocks, word.al, Place(word.off, 1, 0, word.width), site)
            made.word = True
            record = word.sets.get(clocks.slot)
            if record is not None and record.stamp == clocks.counter:
                made.is_set = True
                self._sets.append(made)
            if self._line_met:
                self._line_met = False
                self._line = (made, clocks)

        return access_word

    def host_write(self, actor: Actor, span: Span, site: Any) -> None:
        """A stream writes; call it before the bytes change."""
        self._log(actor.clocks, span.al, Place(span.off, span.rows, span.stride, span.width), site)

    # ---------------------------------------------------------------- what was written

    def _log(self, clocks: AgentClocks, al: Allocation, place: Place, site: Any) -> Write:
        made = Write(al, clocks.entry, clocks.counter, site, place, _copied(al, place))
        return self._keep(made)

    def _keep(self, made: Write) -> Write:
        log = self._writes.setdefault(made.al.lo, deque())
        log.append(made)
        self._held_bytes += made.nbytes
        while len(log) > _MOST_WRITES or (self._held_bytes > _MOST_BYTES and len(log) > 1):
            self._held_bytes -= log.popleft().nbytes
        return made

    def prune(self, floor: NDArray[np.int32]) -> None:
        """Forget writes that everybody alive knows, oldest first: a later one stands for those before it."""
        known = floor.data
        for lo, log in list(self._writes.items()):
            while log and log[0].stamp <= min(known[log[0].entry], known[log[0].entry + 1]):
                self._held_bytes -= log.popleft().nbytes
            if not log:
                del self._writes[lo]

    def drop(self, al: Allocation) -> None:
        """An allocation is gone."""
        for write in self._writes.pop(al.lo, ()):
            self._held_bytes -= write.nbytes
        self._sets = deque((made for made in self._sets if made.al is not al), maxlen=_MOST_SETS)

    def close(self) -> None:
        """Let go of all memory."""
        self._writes.clear()
        self._sets.clear()
        self._line = None

    def _late(self) -> bool:
        """Whether one thing that nothing orders comes late; `played` counts the questions."""
        self.played += 1
        return self._chooser(2) == 0

    def _knows(self, write: Write, seed: memoryview, ascend: memoryview) -> bool:
        """Whether a write of somebody else is ordered before whoever has these clocks."""
        if write.stamp > _entry(seed, write.entry):
            return False
        in_order = write.word and write.is_set  # signals are never in flight behind a later release
        return not self._ascend or in_order or write.stamp <= _entry(ascend, write.entry + 1)

    # ---------------------------------------------------------------- late

    def _show(
        self, clocks: AgentClocks, al: Allocation, place: Place, clk: Clock | None, cached: bool, site: Any
    ) -> None:
        """A load that races: let memory hold, until it has been made, what the load may see instead."""
        known = clocks.R if clk is None or clk.version <= clocks.R.version else clk
        flushed = clocks.F if cached else known
        at = np.unique(place.bytes())
        free = _outside_words(al, at)
        memory = _memory(al)
        truth = memory[at]
        shown = False
        for write, which, before in _backwards(self._writes.get(al.lo, ()), at, free):
            if (
                write.word
                or not self._is_open(write, clocks, known.m, flushed.m, site)
                or not self._hides(write, clocks)
            ):
                free[which] = False
                continue
            memory[at[which]] = before
            shown = True
        if shown:
            al.note_write(0, len(al))
            self._shown.append((al, at, truth))
            self._site = site

    def _is_open(self, write: Write, clocks: AgentClocks, seed: memoryview, ascend: memoryview, site: Any) -> bool:
        """Whether a load need not see the write."""
        if write.entry != clocks.entry:
            return not self._knows(write, seed, ascend)
        return self._ascend and write.stamp > clocks.last_drain and hidden(write.site, site)

    def _hides(self, write: Write, clocks: AgentClocks) -> bool:
        """Whether an agent does not see a write yet."""
        times = write.hid.get(clocks.entry, 0)
        if clocks.entry in write.seen:
            return False
        if times < MOST_HIDDEN and self._late():
            write.hid[clocks.entry] = times + 1
            return True
        write.seen.add(clocks.entry)
        return False

    # ---------------------------------------------------------------- odd order, lost lines

    def _written(self, clocks: AgentClocks, al: Allocation, place: Place, races: bool, site: Any) -> None:
        """A store whose bytes are about to change memory."""
        line_met, self._line_met = self._line_met, False
        made = self._log(clocks, al, place, site)
        if races:
            self._exchange(made, clocks)
        if line_met:
            self._lose_to_earlier_set(made, clocks)
        if self._puts:
            self._site = site

    def _exchange(self, made: Write, clocks: AgentClocks) -> None:
        """Let earlier writes that nothing orders against this one come after it."""
        at, _ = made.bytes()
        free = np.ones(len(at), bool)
        memory, known = _memory(made.al), clocks.W.m
        for write, which, _ in _backwards(self._writes[made.al.lo], at, free):
            if write is made:
                continue
            free[which] = False
            own = write.word or write.entry == clocks.entry
            if not own and not self._knows(write, known, known) and self._late():
                self._puts.append(Put(made.al, at[which], memory[at[which]], write))

    def _lose_to_earlier_set(self, made: Write, clocks: AgentClocks) -> None:
        """A SET whose line this write reaches into, unordered: its write-back may come last and undo the write."""
        at, before = made.bytes()
        known = clocks.W.m
        for signal in reversed(self._sets):
            start = _line_of(signal) - made.al.lo
            inside = (at >= start) & (at < start + LINE_BYTES) & ~_within(at, signal, made.al)
            strange = signal.entry != clocks.entry and signal.stamp > _entry(known, signal.entry)
            if strange and inside.any() and self._late():
                self._puts.append(Put(made.al, at[inside], before[inside], signal))
                return

    def _lose_line(self, made: Write, clocks: AgentClocks) -> None:
        """A word was written in a line that others write to, unordered: one of both is lost."""
        known = clocks.W.m
        if made.is_set and self._lose_others(made, known):
            return
        line = _line_of(made)
        for signal in reversed(self._sets):
            strange = signal.entry != made.entry and signal.stamp > _entry(known, signal.entry)
            if strange and _line_of(signal) == line and not _same_word(signal, made):
                if self._late():
                    at, before = made.bytes()
                    self._put(Put(made.al, at, before, signal))
                return

    def _lose_others(self, signal: Write, known: memoryview) -> bool:
        """The line as it was before unordered writes to it comes back around the signal; whether anything was lost."""
        start, lost = _line_of(signal), False
        for al in self._memory.between(start, start + LINE_BYTES):
            at = np.arange(max(start, al.lo), min(start + LINE_BYTES, al.hi), dtype=np.int64) - al.lo
            free = ~_within(at, signal, al)
            for write, which, before in list(_backwards(self._writes.get(al.lo, ()), at, free.copy())):
                still = free[which]
                which, before = which[still], before[still]
                if not len(which):
                    continue
                ordered = write.entry == signal.entry or write.stamp <= _entry(known, write.entry)
                if ordered or not self._late():
                    free[which] = False
                    continue
                self._put(Put(al, at[which], before, signal))
                lost = True
        return lost

    def _put(self, put: Put) -> None:
        """Change memory as if `put.writer` wrote there now."""
        memory = _memory(put.al)
        place = Place(0, 0, 0, 1, put.at)
        self._keep(Write(put.al, put.writer.entry, put.writer.stamp, put.writer.site, place, memory[put.at]))
        memory[put.at] = put.values
        put.al.note_write(0, len(put.al))
        first, last = int(put.at[0]), int(put.at[-1])
        for off, word in put.al.sync.items():
            if off <= last and off + word.width > first:
                word.refresh()

    # ---------------------------------------------------------------- between accesses

    def settle(self) -> None:
        """The access before has been made: memory is what it is again, and what was to come after it comes."""
        if self._shown:
            self._restore()
        if self._puts:
            puts, self._puts = self._puts, []
            for put in puts:
                self._put(put)
        if self._line is not None:
            (made, clocks), self._line = self._line, None
            self._lose_line(made, clocks)
        self._line_met = False

    def _restore(self) -> None:
        for al, at, truth in reversed(self._shown):
            _memory(al)[at] = truth
            al.note_write(0, len(al))
        self._shown.clear()

    def _before_read(self, al: Allocation, off: int, rows: int, stride: int, width: int, site: Any) -> None:
        """One load may be several reads at one site, so they share what is shown."""
        if not self._shown and not self._puts and self._line is None:
            return
        if site is not self._site or self._puts:
            self.settle()
            return
        lo, hi = Place(off, rows, stride, width).ends()
        if any(other is al and at[0] < hi and lo <= at[-1] for other, at, _ in self._shown):
            self._restore()

    def _before_write(self, site: Any) -> None:
        """One store may be several writes at one site: what comes after it comes after all of them."""
        if self._shown:
            self._restore()
        if site is not self._site or self._line is not None:
            self.settle()


def _entry(clock: memoryview, entry: int) -> int:
    return clock[entry] if entry < len(clock) else 0


def _memory(al: Allocation) -> NDArray[np.uint8]:
    return al.view(torch.uint8).numpy()


def _copied(al: Allocation, place: Place) -> NDArray[np.uint8]:
    """The bytes that are there now."""
    memory = _memory(al)
    if place.starts is not None:
        return memory[place.bytes()]
    shape, steps = (place.rows, place.width), (place.stride, 1)
    return np.lib.stride_tricks.as_strided(memory[place.off :], shape, steps).copy()


def _backwards(
    log: Iterable[Write], at: Bytes, free: NDArray[np.bool_]
) -> Iterator[tuple[Write, Bytes, NDArray[np.uint8]]]:
    """Writes that touched those bytes `at` that are `free`, newest first: which of them, and what was there before.

    Whoever takes them may make bytes unfree meanwhile: no earlier write reaches those.
    """
    if not len(at):
        return
    lo, hi = at[0], at[-1]
    for write in list(log)[::-1]:
        if write.lo > hi or write.hi <= lo:
            continue
        written, before = write.bytes()
        _, mine, theirs = np.intersect1d(at, written, assume_unique=True, return_indices=True)
        open_ones = free[mine]
        if open_ones.any():
            yield write, mine[open_ones], before[theirs[open_ones]]


def _outside_words(al: Allocation, at: Bytes) -> NDArray[np.bool_]:
    """Which bytes belong to no synchronisation word: those have rules of their own."""
    free = np.ones(len(at), bool)
    for off, word in al.sync.items():
        free &= (at < off) | (at >= off + word.width)
    return free


def _line_of(write: Write) -> int:
    """Where the line of a word begins."""
    return (write.al.lo + write.lo) // LINE_BYTES * LINE_BYTES


def _within(at: Bytes, word: Write, al: Allocation) -> NDArray[np.bool_]:
    """Which bytes of `al` are the word's own."""
    if word.al is not al:
        return np.zeros(len(at), bool)
    return (at >= word.lo) & (at < word.hi)


def _same_word(a: Write, b: Write) -> bool:
    return a.al is b.al and a.lo == b.lo
