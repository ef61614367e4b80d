"""Synchronisation words: what a signal releases, what a wait acquires, and what can go wrong between them.

A word is keyed by its allocation and byte offset. Its *clock* is what it releases now; its *held* clock is what it
released after the write that gave it its present value: a wait joins that one, since an earlier poll could have
returned there. The value in memory decides; when it differs from what the last synchronisation access left, a plain or
host write came between and the word releases nothing.

Whether two writes of one word or line are ordered is judged under `seed`: the scalar pipe issues an agent's signals in
order and writes each back, so what may still be in flight under `ascend` is data, not signals.

Source: docs/ordering-model.md, "Signals" and "Triton's own atomics"; the ACLSHMEM device headers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from tdist.findings import Party, Severity, make
from tdist.findings.kinds import OVERSHOOT_OF_ADD, OWN_LINES
from tdist.platforms.sim.atomics import read_modify_write, wrap
from tdist.platforms.sim.clocks import AgentClocks, Clock, WordClock, join_words
from tdist.platforms.sim.lines import OwnLines, tensors_of
from tdist.platforms.sim.memory import LINE_BYTES, Allocation
from tdist.platforms.sim.race_report import Missed, tensor_name

if TYPE_CHECKING:
    from tdist.findings import Finding
    from tdist.platforms.sim.agents import Agent
    from tdist.platforms.sim.codegen.site import Site
    from tdist.platforms.sim.lines import GuardedSpan, LineGuard
    from tdist.platforms.sim.race_report import Who
    from tdist.platforms.sim.records import WordRecord

ACQUIRES: Final = frozenset({"acquire", "acq_rel"})
RELEASES: Final = frozenset({"release", "acq_rel"})
_WIDEST_BYTES: Final = 8


class Record(NamedTuple):
    """One write to a word, or one poll that returned. `_new` makes it without a call of Python's."""

    slot: int
    stamp: int
    who: Who
    site: Site
    value: int


_new: Final = tuple.__new__


@dataclass(slots=True)
class Wiped:
    """A signal that a plain or host write replaced. `who` and `site` are None if only the value shows the write."""

    signal: tuple[Who, Site, int]
    who: Who | None
    site: Any


@dataclass(slots=True)
class Waiter:
    """A blocked agent, woken when the word equals `value`, or (`until_change`) when it differs from it."""

    agent: Agent
    ticket: int
    value: int
    until_change: bool

    def satisfied(self, now: int) -> bool:
        return (now != self.value) if self.until_change else (now == self.value)


class Word:
    """One synchronisation word.

    `fresh`: nobody has initialised the memory; the SETs that came all the same, else None. `polled`: somebody has
    waited for it or polled it. `line`: the words of its 64-byte line by address; None as long as it has one of its own.
    `wiped`: the last signal that a plain or host write replaced. `access`: its record of the race detector.
    """

    __slots__ = (
        "access",
        "adds",
        "al",
        "arg",
        "clock",
        "fresh",
        "guards",
        "held",
        "held_local",
        "index",
        "last",
        "line",
        "local",
        "lock",
        "mem",
        "observed",
        "off",
        "origin",
        "polled",
        "scoped",
        "sets",
        "signal",
        "value",
        "waiters",
        "width",
        "wiped",
    )

    def __init__(self, al: Allocation, off: int, width: int, arg: str | None = None) -> None:
        self.al = al
        self.arg = arg
        self.off = off
        self.width = width
        self.mem = al.words(width)
        self.index = off // width
        self.value: int = self.mem[self.index]
        self.clock: WordClock | None = None
        self.origin = -1
        self.local: dict[int, WordClock | None] | None = None
        self.scoped = False
        self.held: WordClock | None = None
        self.held_local: dict[int, WordClock | None] | None = None
        self.lock: tuple[int, int, WordClock | None, Record] | None = None
        self.sets: dict[int, Record] = {}
        self.adds: dict[int, Record] = {}
        self.observed: dict[int, Record] = {}
        self.waiters: list[Waiter] = []
        self.last: tuple[Who, Site, int] | None = None
        self.wiped: Wiped | None = None
        self.signal = False
        self.polled = False
        self.fresh: list[Record] | None = None
        self.line: dict[int, Word] | None = None
        self.access: WordRecord | None = None
        self.guards: OwnLines | list[GuardedSpan] | None = None

    @property
    def in_use(self) -> bool:
        """Whether a signal or a waiter gave it its width; after a plain write it may get another."""
        return bool(self.waiters or self.sets or self.adds)

    @property
    def title(self) -> str:
        """What messages call the tensor that it is in."""
        return tensor_name(self.al, self.arg)

    @property
    def address(self) -> int:
        return self.al.lo + self.off

    def place(self) -> str:
        """Where it is, in the units that a reader counts in."""
        return f"element {self.index} (byte {self.off}) of {self.title} on rank {self.al.rank}, {self._line()}"

    def spot(self) -> str:
        """The same for a party, which names the tensor itself."""
        return f"element {self.index} (byte {self.off}) on rank {self.al.rank}, {self._line()}"

    def _line(self) -> str:
        line, within = divmod(self.address, LINE_BYTES)
        return f"64-byte line {line - self.al.lo // LINE_BYTES}, byte {within} in it"

    def refresh(self) -> int:
        """The value in memory; after a plain or host write in between the word releases nothing."""
        now = self.mem[self.index]
        if now != self.value:
            self.forget()
            self.value = now
        return now

    def forget(self, who: Who | None = None, site: Any = None) -> None:
        """A plain or host write, by `who` if known: nothing is released any more, to waits or atomics."""
        if self.last is not None:
            self.wiped = Wiped(self.last, who, site)
        self.clock = self.held = self.local = self.held_local = None
        self.lock = self.last = self.fresh = None
        self.sets.clear()
        self.adds.clear()
        self.origin = -1

    def replace(self, released: WordClock, rank: int) -> None:
        """A SET that changes the value."""
        self.clock = self.held = released
        self.origin = rank
        self.local = self.held_local = None
        self.scoped = False

    def join(self, released: WordClock, rank: int, everywhere: bool, changed: bool) -> None:
        """An ADD or a read-modify-write. `everywhere`: its scope reaches other ranks."""
        if self.local is None and everywhere and self.origin in (-1, rank):
            self.clock = join_words(self.clock, released)
            self.origin = rank
        else:
            self._join_scoped(released, rank, everywhere)
        if changed:
            self.hold()

    def hold(self) -> None:
        """The value has just changed: what is released now is what waits for this value may join."""
        self.held = self.clock
        self.held_local = dict(self.local) if self.scoped and self.local is not None else None

    def readable(self, rank: int, everywhere: bool) -> WordClock | None:
        """What an acquire on `rank` may join now; `everywhere` if its scope reaches other ranks."""
        if not everywhere:
            if self.local is None:
                return self.clock if self.origin == rank else None
            return self.local.get(rank)
        if not self.scoped or self.local is None:
            return self.clock
        return join_words(self.clock, self.local.get(rank))

    def waitable(self, rank: int) -> WordClock | None:
        """What a wait on `rank` that is satisfied by the present value joins."""
        if self.held_local is None:
            return self.held
        return join_words(self.held, self.held_local.get(rank))

    def _join_scoped(self, released: WordClock, rank: int, everywhere: bool) -> None:
        if self.local is None:
            self.local = {} if self.clock is None else {self.origin: self.clock}
        self.local[rank] = join_words(self.local.get(rank), released)
        if everywhere:
            self.clock = join_words(self.clock, released)
        else:
            self.scoped = True


def knows(clocks: AgentClocks, record: Record) -> bool:
    """Whether the agent is ordered after `record` under `seed`; its own past it always is."""
    if record.slot == clocks.slot:
        return True
    known = clocks.W.m
    entry = 2 * record.slot
    return entry < len(known) and known[entry] >= record.stamp


def word_party(who: Who, site: Site, word: Word, note: str = "") -> Party:
    """The side that did `site` to `word`."""
    where = f"element {word.index} (byte {word.off}) on rank {word.al.rank}"
    return Party(who.rank, who.launch, who.program, who.core, site.file, site.line, site.op, word.title, where, note)


class SyncWords:
    """All synchronisation words of a world.

    Args:
        report: takes findings.
        wake: makes a blocked agent runnable.
        stop: ends the run with a finding.
        guard: watches the lines that SETs write back; None without detection.
        drained: every release drains (the pipe ordering of barrier mode).
        poison: the byte that fresh memory holds.
    """

    def __init__(
        self,
        report: Callable[[Finding], object],
        wake: Callable[[Agent], None],
        stop: Callable[[Finding], NoReturn],
        guard: LineGuard | None,
        drained: bool = False,
        poison: int = 0,
    ) -> None:
        self.guard = guard
        self.poison = poison
        self._poison_values: dict[int, int | None] = {}
        self.report = report
        self.wake = wake
        self.stop = stop
        self.drained = drained
        self.lines: dict[int, Word | dict[int, Word]] = {}
        self.changes = 0
        self.missed: dict[int, dict[tuple[Site, int], tuple[int, Missed]]] = {}
        self._noted: set[tuple[int, int]] = set()

    def at(self, ag: Agent, al: Allocation, off: int, width: int, site: Site) -> Word:
        """The word at `off`, its value up to date."""
        word = al.sync.get(off)
        if word is None or word.width != width:
            word = self._new(ag, al, off, width, site)
        if word.mem[word.index] != word.value:
            word.refresh()
        return word

    def drop(self, al: Allocation) -> None:
        """The allocation is gone."""
        for word in list(al.sync.values()):
            self._drop_word(word)

    def close(self) -> None:
        """The world is gone: nothing here holds its memory any more."""
        for line in list(self.lines.values()):
            for word in [line] if isinstance(line, Word) else list(line.values()):
                self._drop_word(word)

    def _drop_word(self, word: Word) -> None:
        """Out of every table; words and their lines hold each other."""
        del word.al.sync[word.off]
        if word.line is not None:
            word.line.pop(word.address, None)
        if not word.line:
            self.lines.pop(word.address // LINE_BYTES, None)
        if self.guard is not None:
            self.guard.forget(word)

    def plain_write(self, al: Allocation, lo: int, hi: int, who: Who | None = None, site: Any = None) -> None:
        """A plain or host write of `who` has changed bytes `[lo, hi)`: words there release nothing; waiters look."""
        if not al.sync:
            return
        for off, word in al.sync.items():
            if off < hi and off + word.width > lo:
                word.forget(who, site)
                word.value = word.mem[word.index]
                self._wake(word)

    def signal(self, ag: Agent, al: Allocation, off: int, width: int, value: int, add: bool, site: Site) -> None:
        """A notify, `signal_op` or `_p` that arrives at `al`: SET or ADD."""
        word = al.sync.get(off)
        if word is None or word.width != width or word.mem[word.index] != word.value:
            word = self.at(ag, al, off, width, site)
        word.signal = True
        after = word.value + value if add else value
        if width < 4 or not -0x8000_0000 <= after <= 0x7FFF_FFFF:
            after = wrap(after, width)
        if ag.clocks is not None:
            self._signal_clocks(ag, ag.clocks, word, after, add, site)
        elif word.fresh is not None and not add:
            word.fresh = None
        self._store(ag, word, after, site)

    def wait(
        self, ag: Agent, al: Allocation, off: int, n: int, value: int, width: int, semantic: str, site: Site
    ) -> Generator[None, None, Clock | None]:
        """Poll slots 0 … n-1, 64 bytes apart, one after another, each until equal to `value`; gives the token."""
        want = value if width > 2 and -0x8000_0000 <= value <= 0x7FFF_FFFF else wrap(value, width)
        clocks = ag.clocks
        acquires = semantic in ACQUIRES
        words, private = al.sync, None  # private: a W that nobody else has seen, since nobody else ran
        ready: list[Word] = []  # those whose value was there, not yet acquired
        several = n > 1 and acquires and clocks is not None
        for slot in range(n):
            word = words.get(off)
            if word is None or word.width != width or word.mem[word.index] != word.value:
                if ready and clocks is not None:  # the run may end here
                    private, ready = self._all_seen(ag, clocks, ready, want, private, site), []
                word = self.at(ag, al, off, width, site)
            word.signal = word.polled = True
            at_once = word.value == want
            if several and at_once and word.fresh is None:
                ready.append(word)
                off += LINE_BYTES
                continue
            if ready and clocks is not None:
                private, ready = self._all_seen(ag, clocks, ready, want, private, site), []
            if word.fresh is not None:
                self._check_fresh(ag, word, site)
            while word.value != want:
                ag.block_on(word, want, site, slot)
                private = None
                yield
                word.refresh()
            if clocks is not None:
                private = self._seen(ag, clocks, word, want, acquires, at_once, private, site)
            off += LINE_BYTES
        if ready and clocks is not None:
            self._all_seen(ag, clocks, ready, want, private, site)
        token = None if clocks is None else (clocks.W if acquires else clocks.snapshot())
        ag.at_wait = True
        yield
        ag.at_wait = False
        return token

    def _all_seen(
        self, ag: Agent, clocks: AgentClocks, words: list[Word], want: int, private: Clock | None, site: Site
    ) -> Clock | None:
        """`_seen`, of words of one acquire that had their value at once; at one go where nothing stands against it."""
        released, size = [word.held for word in words if word.held_local is None], len(clocks.W.vec)
        plain = [r for r in released if r is not None and r.entry >= 0 and len(r.base) == size]
        if len(words) == 1 or len(plain) < len(words) or not ag.polled(words, site):
            for word in words:
                private = self._seen(ag, clocks, word, want, True, True, private, site)
            return private
        entry = clocks.slot
        record = _new(Record, (entry, clocks.counter, ag.who, site, want))
        for word in words:
            word.observed[entry] = record
        before = clocks.W
        for word, told in zip(words, clocks.acquire_all(plain), strict=True):
            if not told:
                self._note_missed("old", ag, clocks, word, site)
        return clocks.W if clocks.W is not before else private

    def _seen(
        self,
        ag: Agent,
        clocks: AgentClocks,
        word: Word,
        want: int,
        acquires: bool,
        at_once: bool,
        private: Clock | None,
        site: Site,
    ) -> Clock | None:
        """A wait has seen its value: what that tells the agent. Returns `private`, or a W that it made."""
        entry, known = clocks.slot, clocks.W
        word.observed[entry] = _new(Record, (entry, clocks.counter, ag.who, site, want))
        ag.access_word(word, False, known, site)
        if not acquires:
            self._note_missed("relaxed", ag, clocks, word, site)
            return private
        held = word.held if word.held_local is None else word.waitable(ag.rank)
        if held is None:
            self._note_missed("stale", ag, clocks, word, site)
            return private
        version = known.version
        after = clocks.acquire(held, private)
        if after.version != version:
            return after
        if at_once:
            self._note_missed("old", ag, clocks, word, site)
        return private

    def volatile_load(self, ag: Agent, al: Allocation, off: int, width: int, site: Site) -> int:
        """A load that does not race with synchronisation accesses and acquires nothing; has a Write effect."""
        word = self.at(ag, al, off, width, site)
        if word.fresh is not None:
            self._check_fresh(ag, word, site)
        if ag.clocks is not None:
            ag.access_word(word, False, ag.clocks.W, site)
            ag.clocks.effect()
        return word.value

    def atomic(
        self,
        ag: Agent,
        al: Allocation,
        off: int,
        op: str,
        value: Any,
        width: int,
        kind: str,
        sem: str,
        scope: str,
        used: bool,
        site: Site,
    ) -> Any:
        """A scalar `tl.atomic_*`; gives the old value."""
        word = self.at(ag, al, off, width, site)
        if word.fresh is not None and used:
            self._check_fresh(ag, word, site)
        before = word.value
        old, after, writes = read_modify_write(before, op, value, width, kind)
        if ag.clocks is not None:
            self._atomic_clocks(ag, ag.clocks, word, after, sem, scope, used, writes, op == "cas", site)
        if writes:
            self._store(ag, word, after, site)
        return old

    # ---------------------------------------------------------------- values and waking

    def _store(self, ag: Agent, word: Word, after: int, site: Site) -> None:
        word.last = (ag.who, site, after)
        if after == word.value:
            return
        word.mem[word.index] = after
        word.value = after
        word.al.note_write(word.off, word.off + word.width)
        ag.changed = True
        self.changes += 1
        if word.waiters:
            self._wake(word)

    def _wake(self, word: Word) -> None:
        now = word.value
        still: list[Waiter] = []
        for waiter in word.waiters:
            if waiter.ticket != waiter.agent.ticket:
                continue
            if waiter.satisfied(now):
                self.wake(waiter.agent)
            else:
                still.append(waiter)
        word.waiters = still

    # ---------------------------------------------------------------- clocks

    def _signal_clocks(self, ag: Agent, clocks: AgentClocks, word: Word, after: int, add: bool, site: Site) -> None:
        record = _new(Record, (clocks.slot, clocks.counter, ag.who, site, after))
        sets = word.sets
        if add or word.adds or word.line is not None or (sets and (len(sets) > 1 or record.slot not in sets)):
            self._check_write(clocks, word, record, is_set=not add)
        else:  # no other writer has had to do with it
            if word.observed and after != word.value:
                self._check_overshoot(clocks, word, record, True)
            sets[record.slot] = record
        if word.fresh is not None and not add:
            word.fresh.append(record)
        if not add and self.guard is not None:
            known = word.access
            alone = known is not None and known.shadow is not None and not known.shadow.plain
            if not (alone and type(word.guards) is OwnLines):  # else nothing else has ever touched the line
                self.guard.signalled(clocks, word, record)
        ag.access_word(word, True, None, site, True)
        released = clocks.release(add or self.drained, site)
        changed = after != word.value
        if add:
            word.join(released, ag.rank, everywhere=True, changed=changed)
        elif changed:
            word.replace(released, ag.rank)

    def _atomic_clocks(
        self,
        ag: Agent,
        clocks: AgentClocks,
        word: Word,
        after: int,
        sem: str,
        scope: str,
        used: bool,
        writes: bool,
        conditional: bool,
        site: Site,
    ) -> None:
        """`seed` follows Triton's sem and scope; `ascend` the lock (result used) or the store (result unused).

        A compare-and-swap writes only because of the value that it read, so it is ordered after that one's writer if it
        acquires; any other atomic would have written in any case, and may come before.
        """
        record = _new(Record, (clocks.slot, clocks.counter, ag.who, site, after))
        changes = writes and after != word.value
        if changes and not conditional:
            self._check_write(clocks, word, record, is_set=False)
        ag.access_word(word, True, None, site)
        everywhere = scope == "sys"
        if scope != "cta" and sem in ACQUIRES:
            seen = word.readable(ag.rank, everywhere)
            if seen is None and word.clock is not None:
                self._note_missed("scope", ag, clocks, word, site)
            clocks.acquire(seen.only_seed() if seen is not None else None)
        if changes and conditional:
            self._check_write(clocks, word, record, is_set=False)
        if used:
            ag.launch.note_turn(ag.program, site)
            self._enter_lock(ag, clocks, word, record)
        released = clocks.release(used or self.drained, site)
        if used:
            self._leave_lock(ag, word, record, released)
        if writes and scope != "cta" and sem in RELEASES:
            word.join(released.only_seed() if used else released, ag.rank, everywhere, changes)
        elif changes:
            word.hold()

    def _enter_lock(self, ag: Agent, clocks: AgentClocks, word: Word, record: Record) -> None:
        if word.lock is None:
            return
        rank, launch, released, holder = word.lock
        if rank != ag.rank:
            self._lock_across_ranks(word, holder, record)
        elif launch == ag.launch_id and released is not None:
            clocks.acquire(released)

    def _leave_lock(self, ag: Agent, word: Word, record: Record, released: WordClock) -> None:
        same = word.lock is not None and word.lock[:2] == (ag.rank, ag.launch_id)
        before = word.lock[2] if word.lock is not None and same else None
        word.lock = (ag.rank, ag.launch_id, join_words(before, released.only_ascend()), record)

    # ---------------------------------------------------------------- findings

    def _check_fresh(self, ag: Agent, word: Word, site: Site) -> None:
        """A poll of memory that holds what the allocator left there, or may have held it in another schedule."""
        fresh = word.fresh or []
        if ag.clocks is not None and any(knows(ag.clocks, record) for record in fresh):
            return
        word.fresh = None
        got = "nobody has written it: it holds whatever the memory held before"
        if fresh:
            first = f"the {fresh[0].site.op} of {fresh[0].who} at {fresh[0].site}"
            got = f"only {first} wrote it, and a poll may come before that: it reads whatever the memory held before"
        self.report(
            make(
                "uninitialised",
                [word_party(ag.who, site, word)],
                expected=f"a write that is ordered before the {site.op}, to {word.place()}",
                got=got,
                why=f"the {site.op} compares a word that was never initialised: old contents may pass for the signal, "
                "or hide it",
                cure="zero the signal tensor before the launch: zero_(), synchronize, host barrier",
                tensor=f"the {site.op} of {word.title}",
                profile="seed",
            )
        )

    def _note_missed(self, reason: str, ag: Agent, clocks: AgentClocks, word: Word, site: Site) -> None:
        """Keep for the texts of races that something which looks like a wait ordered nothing."""
        rank = -1 if word.last is None or reason == "stale" else word.last[0].rank
        notes = self.missed.get(clocks.slot)
        if notes is None:
            notes = self.missed[clocks.slot] = {}
        known = notes.get((site, rank))
        if known is None or known[0] != ag.launch_id or known[1].reason != reason:
            notes[site, rank] = (ag.launch_id, Missed(reason, site, rank))

    def _check_write(self, clocks: AgentClocks, word: Word, record: Record, is_set: bool) -> None:
        """Concurrent SET, overshoot and line sharing; then the write takes its place among the word's records."""
        slot, sets, adds = record.slot, word.sets, word.adds
        for earlier in sets.values():
            if earlier.slot != slot and not knows(clocks, earlier):
                self._concurrent_set(word, earlier, record)
        if is_set and adds:
            for earlier in adds.values():
                if not knows(clocks, earlier):
                    self._concurrent_set(word, earlier, record)
        if word.observed and record.value != word.value:
            self._check_overshoot(clocks, word, record, is_set)
        if word.line is not None:
            self._check_line(clocks, word.line, word, record, is_set)
        if not is_set:
            adds[slot] = record
            return
        if len(sets) != 1 or slot not in sets:
            sets.clear()
        if adds:
            adds.clear()
        sets[slot] = record

    def _check_overshoot(self, clocks: AgentClocks, word: Word, record: Record, is_set: bool) -> None:
        """A write that changes the value, against the polls that may still wait for another one."""
        seen_by, m, slot = word.observed, clocks.W.m, clocks.slot
        size = len(m)
        if is_set and len(seen_by) == 1:
            (seen,) = seen_by.values()
            entry = 2 * seen.slot
            if entry < size and (seen.slot == slot or m[entry] >= seen.stamp):
                seen_by.clear()
                return
        late = []
        for seen in seen_by.values():
            entry = 2 * seen.slot
            if seen.slot != slot and (entry >= size or m[entry] < seen.stamp):
                late.append(seen)
        for seen in late:
            if seen.value != record.value:
                self._overshoot(word, seen, record, is_set)
        if is_set:
            seen_by.clear()
            for seen in late:
                seen_by[seen.slot] = seen

    def _check_line(self, clocks: AgentClocks, line: dict[int, Word], word: Word, record: Record, is_set: bool) -> None:
        for other in line.values():
            if other is word:
                continue
            against = (other.sets, other.adds) if is_set else (other.sets,)
            lost = [r for records in against for r in records.values() if not knows(clocks, r)]
            for earlier in lost:
                self._line_sharing(other, earlier, word, record, Severity.ERROR)
            if not lost and (word.signal or other.signal):
                self._note_line(other, word, record)

    def _note_line(self, other: Word, word: Word, record: Record) -> None:
        """Two writers of one line, once for a pair of words."""
        pair = (min(other.address, word.address), max(other.address, word.address))
        if pair in self._noted:
            return
        earlier = next((r for r in (*other.sets.values(), *other.adds.values()) if r.slot != record.slot), None)
        if earlier is not None:
            self._noted.add(pair)
            self._line_sharing(other, earlier, word, record, Severity.NOTE)

    def _concurrent_set(self, word: Word, first: Record, second: Record) -> None:
        parties = [word_party(r.who, r.site, word, f"wrote {r.value}") for r in (first, second)]
        self.report(make("concurrent-set", parties, tensor=word.title, profile="seed", word=word.place()))

    def _overshoot(self, word: Word, seen: Record, record: Record, is_set: bool) -> None:
        parties = [
            word_party(seen.who, seen.site, word, f"polled until {seen.value}"),
            word_party(record.who, record.site, word, f"made it {record.value}"),
        ]
        self.report(
            make(
                "overshoot",
                parties,
                expected=f"{word.place()} stays {seen.value} until the wait has seen it",
                got=f"a write that leaves {record.value} there may come first; the wait would never end",
                cure=None if is_set else OVERSHOOT_OF_ADD,
                tensor=word.title,
                profile="seed",
            )
        )

    def _line_sharing(self, first: Word, a: Record, second: Word, b: Record, severity: Severity) -> None:
        parties = [word_party(a.who, a.site, first), word_party(b.who, b.site, second)]
        apart_bytes = abs(second.address - first.address)
        self.report(
            make(
                "line-sharing",
                parties,
                severity=severity,
                expected="signals of different writers at least 64 bytes apart",
                got=f"{apart_bytes} bytes apart, in one 64-byte line",
                cure=None if first.al is second.al else OWN_LINES,
                tensor=tensors_of(second.title, first.title, first.al is second.al),
                profile="seed",
            )
        )

    def _lock_across_ranks(self, word: Word, first: Record, second: Record) -> None:
        parties = [word_party(r.who, r.site, word, "its result is used") for r in (first, second)]
        self.report(make("hazard.atomic-lock", parties, tensor=word.title, word=word.place()))

    def _new(self, ag: Agent, al: Allocation, off: int, width: int, site: Site) -> Word:
        number = (al.lo + off) // LINE_BYTES
        line = self.lines.get(number)
        if line is not None:
            self._make_room(ag, al, off, width, site)
            line = self.lines.get(number)
        word = al.sync[off] = Word(al, off, width, site.arg)
        if al.symmetric and word.value == self._poison_value(width):
            word.fresh = []
        if line is None:
            self.lines[number] = word
            return word
        if isinstance(line, Word):
            line.line = self.lines[number] = line = {line.address: line}
        word.line = line
        line[word.address] = word
        return word

    def _make_room(self, ag: Agent, al: Allocation, off: int, width: int, site: Site) -> None:
        """Words of another width give way if nobody uses them."""
        for near in range(off - _WIDEST_BYTES + 1, off + width):
            other = al.sync.get(near)
            if other is not None and off < near + other.width:
                if other.in_use:
                    self._width_mismatch(ag, other, off, width, site)
                self._drop_word(other)

    def _poison_value(self, width: int) -> int | None:
        """What a word of fresh memory holds. Bytes of zeros or ones are no mark: users write them too."""
        known = self._poison_values
        if width not in known:
            value = int.from_bytes(bytes([self.poison]) * width, "little", signed=True)
            known[width] = None if self.poison in (0, 0xFF) else value
        return known[width]

    def _width_mismatch(self, ag: Agent, other: Word, off: int, width: int, site: Site) -> NoReturn:
        """Ends the run: what the narrower word then holds is nobody's meaning."""
        who = ag.who
        where = f"bytes {off}…{off + width - 1} on rank {other.al.rank}"
        label = other.title
        parties = [Party(who.rank, who.launch, who.program, who.core, site.file, site.line, site.op, label, where)]
        if other.last is not None:
            parties.insert(0, word_party(other.last[0], other.last[1], other))
        finding = make(
            "width-mismatch",
            parties,
            expected=f"words of {8 * other.width} bits, at byte {other.off}",
            got=f"{8 * width} bits at byte {off}",
            op=site.op,
            tensor=label,
            width_bits=8 * width,
            word_bits=8 * other.width,
        )
        self.stop(finding)
