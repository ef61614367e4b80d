"""An engine whose steps are known by their footprints, and whose next step somebody else decides.

Each step becomes an `Event` with the set of events that happen before it: its agent's earlier ones, what created or
woke it, and every earlier one that it depends on. Two things make events of their own, glued to a step: a wait that
passes (what its agent did before in the same step does not come after the signal), and the end of a launch, which comes
after the ends of all its agents. When nothing can run (quiescence), everything so far happens before everything later:
no schedule could have put a step across.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tdist.findings import Finding
from tdist.platforms.sim.agents import Agent, one_by_one
from tdist.platforms.sim.detector import Detector
from tdist.platforms.sim.engine import Engine
from tdist.platforms.sim.explore.dependence import (
    BARRIER,
    HOSTS,
    Access,
    Kind,
    collide,
    cores,
    may_pass_without,
    place,
)
from tdist.platforms.sim.regions import Shape, box_of, runs_of
from tdist.platforms.sim.streams import Copy, Launch, Stream
from tdist.platforms.sim.symbolic_access import need, pass_marks
from tdist.platforms.sim.words import Word

AgentKey = tuple[int, int, int, int]
"""Rank, launch, program, core."""
_ADDS = (2, "add")
LAUNCH_END = -1
"""The program number of the event that is a launch's end."""


class Event:
    """One step, or the end of a launch.

    Attributes:
        before: events that happen before it, and itself, as bits.
        node: at which decision it was chosen.
        first: number of the first event of the same step.
        ends: of a launch's end, the last events of its agents, by number.
        races: earlier events that conflict with it and could come after it, by number, each with what happens before
            this event for other reasons.
        enablers: earlier writes without which its wait would be blocked, by number.
    """

    __slots__ = ("accesses", "agent", "before", "enablers", "ends", "first", "node", "number", "races")

    def __init__(self, number: int, agent: AgentKey, node: int, before: int, first: int) -> None:
        self.number = number
        self.agent = agent
        self.node = node
        self.before = before | (1 << number)
        self.first = first
        self.accesses: list[Access] = []
        self.ends: tuple[int, ...] = ()
        self.races: list[tuple[int, int]] = []
        self.enablers: list[int] = []


class Decider(Protocol):
    """Decides the next step of a run."""

    def pick(self, engine: WatchedEngine, runnable: Sequence[Agent], current: Agent | None) -> int:
        """Index of the agent that goes on."""
        ...

    def choose(self, n: int) -> int:
        """Whether a host is served early (1)."""
        ...


def key_of(ag: Agent) -> AgentKey:
    """How an agent is known from run to run."""
    return (ag.rank, ag.launch_id, ag.program, ag.core)


class Watch:
    """The events of one run."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.floor = 0
        self._last: dict[AgentKey, int] = {}
        self._causes: dict[AgentKey, list[int]] = {}
        self._by_base: dict[int, list[tuple[int, Access]]] = {}
        self._open: Event | None = None
        self._arrived: dict[AgentKey, int] = {}
        self._ends: dict[tuple[int, int], list[int]] = {}

    # ---- the present event

    def begin(self, agent: AgentKey, node: int) -> Event:
        """A step begins."""
        self.close()
        before = self.floor
        for cause in self._causes.pop(agent, ()):
            before |= self.events[cause].before
        last = self._last.get(agent)
        if last is not None:
            before |= self.events[last].before
        return self._add(agent, node, before, len(self.events))

    def _add(self, agent: AgentKey, node: int, before: int, first: int) -> Event:
        event = Event(len(self.events), agent, node, before, first)
        self.events.append(event)
        self._last[agent] = event.number
        self._open = event
        return event

    @property
    def busy(self) -> bool:
        """Whether a step is under way."""
        return self._open is not None

    def close(self) -> None:
        """The present event is over: what it depends on is known."""
        event, self._open = self._open, None
        if event is None:
            return
        met: dict[int, bool] = {}
        for number, mine, theirs in self._meetings(event):
            met[number] = met.get(number, False) or may_pass_without(theirs, mine)
        firm = sorted((number for number, reversible in met.items() if reversible), reverse=True)
        event.enablers = [number for number, reversible in met.items() if not reversible]
        alone = before = event.before
        for number in firm:
            if not before >> number & 1:
                node = self.events[number].node  # what is of that step comes with it
                others = [other for other in firm if self.events[other].node != node]
                event.races.append((number, alone | self._before(others)))
            before |= self.events[number].before
        event.before = before | self._before(event.enablers)
        for access in event.accesses:
            self._by_base.setdefault(access.base, []).append((event.number, access))

    def _before(self, numbers: Sequence[int]) -> int:
        """What happens before any of these events."""
        before = 0
        for number in numbers:
            before |= self.events[number].before
        return before

    def _meetings(self, event: Event) -> Iterator[tuple[int, Access, Access]]:
        for mine in event.accesses:
            for number, theirs in self._by_base.get(mine.base, ()):
                if not event.before >> number & 1 and collide(theirs, mine):
                    yield number, mine, theirs

    def note(self, access: Access) -> None:
        """The present event makes an access; at quiescence nobody does.

        A wait that passes begins an event of its own: what its agent did before, in the same step, it would have done
        without it, too.
        """
        event = self._open
        if event is None:
            return
        if access.kind is Kind.PASS and event.accesses:
            self.close()
            event = self._add(event.agent, event.node, event.before, event.first)
        event.accesses.append(access)

    def touch(self, base: int, shape: Shape | None, kind: Kind) -> None:
        """An access to a byte set; None touches nothing."""
        if shape is not None:
            self.note(Access(base, shape, kind))

    # ---- edges

    def cause(self, agent: AgentKey) -> None:
        """The present event has created or woken an agent."""
        if self._open is not None:
            self._causes.setdefault(agent, []).append(self._open.number)

    def arrived(self, agent: AgentKey) -> None:
        """The present event is an arrival at the barrier."""
        if self._open is not None:
            self._arrived[agent] = self._open.number

    def released(self) -> None:
        """The barrier's round is complete: all who came go on after all arrivals."""
        for agent in self._arrived:
            self._causes.setdefault(agent, []).extend(self._arrived.values())
        self._arrived.clear()

    def ended(self, ag: Agent) -> None:
        """The present event is an agent's last."""
        if self._open is not None:
            self._ends.setdefault((ag.rank, ag.launch_id), []).append(self._open.number)

    def launch_ended(self, rank: int, launch: int) -> None:
        """All agents of a launch have ended: what follows at once is an event of its own."""
        ends = self._ends.pop((rank, launch), [])
        if self._open is None:
            return
        node, first = self._open.node, self._open.first
        self.close()
        before = self.floor
        for number in ends:
            before |= self.events[number].before
        self._add((rank, launch, LAUNCH_END, 0), node, before, first).ends = tuple(ends)

    def quiescent(self) -> None:
        """Nothing can run: whatever comes is after everything."""
        self.close()
        self.floor = (1 << len(self.events)) - 1


class WatchedDetector(Detector):
    """Tells the watch of every access, besides recording it."""

    watch: Watch

    def bind(self, agent: Any, watch: Any = None, lazily: bool = False) -> None:
        super().bind(agent, watch)
        _watch_agent(agent, self.watch)

    def host_read(self, actor: Any, al: Any, off: int, rows: int, stride: int, width: int, site: Any) -> None:
        self.watch.touch(al.lo, box_of(off, rows, stride, width), Kind.READ)
        super().host_read(actor, al, off, rows, stride, width, site)

    def host_write(self, actor: Any, al: Any, off: int, rows: int, stride: int, width: int, site: Any) -> None:
        self.watch.touch(al.lo, box_of(off, rows, stride, width), Kind.HOST)
        super().host_write(actor, al, off, rows, stride, width, site)


def _watch_agent(ag: Any, watch: Watch) -> None:
    """Wrap the methods that the detector has installed, and those that make word accesses."""
    for name, kind in (("rd", Kind.READ), ("rd_cached", Kind.READ), ("wr", Kind.WRITE)):
        setattr(ag, name, _box(getattr(ag, name), watch, kind))
    for name, kind in (("rd_lanes", Kind.READ), ("wr_lanes", Kind.WRITE), ("access_atomics", Kind.WRITE)):
        setattr(ag, name, _lanes(getattr(ag, name), watch, kind))
    _watch_words(ag, watch)
    _watch_blocking(ag, watch)


def _box(record: Callable[..., None], watch: Watch, kind: Kind) -> Callable[..., None]:
    def access(al: Any, off: int, rows: int, stride: int, width: int, *rest: Any) -> None:
        watch.touch(al.lo, box_of(off, rows, stride, width), kind)
        record(al, off, rows, stride, width, *rest)

    return access


def _lanes(record: Callable[..., None], watch: Watch, kind: Kind) -> Callable[..., None]:
    def access(al: Any, offs: Any, width: int, *rest: Any) -> None:
        watch.touch(al.lo, runs_of(offs, width), kind)
        record(al, offs, width, *rest)

    return access


def _watch_words(ag: Any, watch: Watch) -> None:
    """Accesses to synchronisation words: what kind each is, is known by the method that is under way."""
    record, notify, atomic, volatile = ag.access_word, ag.notify, ag.atomic, ag.volatile_load
    now: list[tuple[Kind, int]] = [(Kind.PASS, 0)]

    def access_word(word: Word, *rest: Any) -> None:
        kind, delta = now[0]
        al, off, width = word.al, word.off, word.width
        if al.marks is not None:
            need(al, off, off + width)
        watch.note(Access(al.lo, _word(off, width), kind, word.value, word.value, delta))
        record(word, *rest)

    def during(kind: Kind, delta: int, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        now[0] = (kind, delta)
        try:
            return call(*args, **named)
        finally:
            now[0] = (Kind.PASS, 0)

    def watched_notify(addr: int, al: Any, value: int, pe: int, op: Any, width: int, site: Any) -> None:
        during(Kind.ADD if op in _ADDS else Kind.SET, value, notify, addr, al, value, pe, op, width, site)

    ag.access_word = access_word
    ag.polled = one_by_one
    ag.notify = watched_notify
    ag.atomic = lambda *args, **named: during(Kind.SET, 0, atomic, *args, **named)
    ag.volatile_load = lambda *args, **named: during(Kind.READ, 0, volatile, *args, **named)


def _watch_blocking(ag: Any, watch: Watch) -> None:
    block_on, barrier, poll = ag.block_on, ag.barrier, ag.poll

    def watched_block_on(word: Word, want: int, site: Any, slot: int) -> None:
        if word.al.marks is not None:
            need(word.al, word.off, word.off + word.width)
        watch.note(Access(word.al.lo, _word(word.off, word.width), Kind.BLOCK, want, word.value))
        block_on(word, want, site, slot)

    def watched_barrier(kind: str, site: Any) -> Any:
        watch.note(Access(BARRIER, _word(0 if kind == "all" else 8, 8), Kind.ADD))
        watch.note(Access(BARRIER, _word(8 if kind == "all" else 0, 8), Kind.READ))
        watch.arrived(key_of(ag))
        return barrier(kind, site)

    def watched_poll(*args: Any, **named: Any) -> Any:
        for word, _ in ag._reads.values():  # which it looks at again before it goes round, or is blocked
            watch.note(Access(word.al.lo, _word(word.off, word.width), Kind.READ))
        return poll(*args, **named)

    ag.block_on = watched_block_on
    ag.barrier = watched_barrier
    ag.poll = watched_poll


def _word(off: int, width: int) -> Shape:
    found = box_of(off, 1, 0, width)
    assert found is not None
    return found


class WatchedEngine(Engine):
    """`decider` decides; `watch` holds the events; `matters(rank)`: whether serving that host early can matter.

    `cut`: a step ended the run, so that whoever could run besides has not.
    """

    detector_type = WatchedDetector

    def __init__(self, config: Any, sink: Any = None) -> None:
        self.watch = Watch()
        super().__init__(config, sink)
        assert isinstance(self.detector, WatchedDetector)
        self.detector.watch = self.watch
        self.decider: Decider
        self.matters: Callable[[int], bool] = lambda rank: True
        self.cut = False
        self._finishing = 0
        gone, complete = self.barriers.rank_gone, self.barriers._complete

        def rank_gone(rank: int, reason: str) -> None:
            self.watch.note(Access(BARRIER, _word(0, 16), Kind.SET))
            gone(rank, reason)

        def completed(last: Agent) -> None:
            self.watch.released()
            complete(last)

        self.barriers.rank_gone = rank_gone  # pyright: ignore[reportAttributeAccessIssue]
        self.barriers._complete = completed  # pyright: ignore[reportAttributeAccessIssue]

    def _drive(self) -> None:
        runnable, events = self.runnable, self.events
        current: Agent | None = None
        while runnable and not self._leave:
            self.watch.close()
            index = self.decider.pick(self, runnable, current)
            if len(runnable) > 1:
                events.append(index)
            current = self._go_on(runnable[index])
        if not self._leave:
            self.watch.quiescent()

    def stay(self, ag: Agent, steps: int) -> bool:
        """Another agent may come after any step."""
        return False

    def _copy(self, stream: Stream, op: Copy) -> None:
        source = op.source.al
        if source.marks is not None and op.source.view.dtype != op.target.view.dtype:
            need(source, 0, len(source))
        super()._copy(stream, op)
        if source.marks is not None:
            pass_marks(source.marks, op.target.al)

    def stop(self, finding: Finding) -> None:
        self.cut = self.cut or (self.stopped is None and self.watch.busy)
        super().stop(finding)

    def forget(self, al: Any) -> None:
        self.watch.touch(al.lo, box_of(0, 1, 0, len(al)), Kind.HOST)
        super().forget(al)

    def wake(self, ag: Agent) -> None:
        super().wake(ag)
        self.watch.cause(key_of(ag))

    def _start_program(self, launch: Launch) -> None:
        program = launch.started
        super()._start_program(launch)
        for core in range(launch.cores_each):
            self.watch.cause((launch.rank, launch.id, program, core))

    def _agent_ended(self, ag: Agent) -> None:
        if ag.launch.waiting_programs:
            self.watch.note(place(cores(ag.rank), Kind.SET))
        self.watch.ended(ag)
        super()._agent_ended(ag)

    def _launch_ended(self, stream: Stream, launch: Launch) -> None:
        self.watch.launch_ended(launch.rank, launch.id)
        self._finishing = launch.rank
        super()._launch_ended(stream, launch)

    def _choose(self, n: int) -> int:
        choice = 0
        if self.matters(self._finishing):
            self.watch.note(place(HOSTS, Kind.SET))
            choice = self.decider.choose(n)
        self.events.append(choice)
        return choice
