"""Which events of a final module are not ordered though they must be: walks over its functions, collects pairs.

This says what is the case; `tdist.platforms.ascend.ordering` says it to a reader.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

from xdsl.ir import SSAValue

from tdist.ir.hivm import Pipe
from tdist.platforms.ascend.compiled.events import (
    Access,
    Acquire,
    BlockSet,
    BlockWait,
    Drain,
    Event,
    Flag,
    FlagSet,
    FlagWait,
    PipeBarrier,
    Release,
    Unknown,
    function_events,
)
from tdist.platforms.ascend.compiled.final_module import FinalModule
from tdist.platforms.ascend.compiled.flow import Decided, Flow, TooLarge, Walk, as_environment
from tdist.platforms.ascend.compiled.memory import GM, Region
from tdist.platforms.ascend.compiled.pending import INDEX, PIPES, Instance, Instances, Pending, bits, conflict

MOST_UP = 1  # times that a flag between pipes may be up
MOST_BLOCKS_UP = 15  # times that a flag between cores can be counted up


FlagKey = tuple[int, Pipe | None, Pipe | None, Hashable]
"""A flag: whose core waits for it, who sets it and who waits (nobody's pipe if it is one between cores), number."""


class Fault(Enum):
    """What is wrong about two events."""

    PIPES = "pipes"  # one core: the second may start before the first has finished
    TRANSFER = "transfer"  # the same, and the second is a put or get
    CORES = "cores"  # cube and vector core
    RELEASE = "release"  # the first may be in flight when the second tells others that it is done
    STALE = "stale"  # the second reads through the data cache, after the wait that is the first
    SET_TWICE = "set-twice"  # a flag is raised while it is up
    NEVER_SET = "never-set"  # a wait for a flag that is not up
    LEFT_UP = "left-up"  # a flag is up when the function returns
    STUCK = "stuck"  # a wait for another core that nothing ends
    NOT_UNDERSTOOD = "not-understood"  # alone, or with what it may not be ordered with


@dataclass(frozen=True, slots=True)
class Unordered:
    """A fault between two events, in the order in which they are issued; some have one event only."""

    fault: Fault
    second: Event
    second_core: int
    first: Event | None = None
    first_core: int = 0
    regions: tuple[Region, Region] | None = None
    detail: str = ""


class Order:
    """What events do to what is pending, and the faults that they show. `Semantics` of a walk."""

    def __init__(self, flows: list[Flow]) -> None:
        self.flows = flows
        self.instances = Instances()
        self.found: dict[Hashable, Unordered] = {}
        self._passed: set[tuple[Event, Hashable]] = set()  # waits for another core, by flag, that came to an end
        self._blocked: dict[tuple[Event, Hashable], int] = {}
        self._waiting: dict[int, tuple[Event, Hashable]] = {}
        self._acquires: list[Event] = []
        self._met: dict[tuple[Event, Decided], int] = {}
        self._flags: dict[FlagKey, int] = {}
        self._unknown_flags = False
        self.agreed = False  # halves decide alike: where none can go on, none ever will

    # ---- walking -----------------------------------------------------------------------------------------------------

    def apply(self, core: int, event: Event, decided: Decided, facts: Pending) -> Pending | None:
        """See `Semantics`."""
        match event:
            case Access():
                return self._access(core, event, decided, facts)
            case FlagSet():
                return self._set_flag(core, event, decided, facts)
            case FlagWait():
                return self._wait_flag(core, event, decided, facts)
            case PipeBarrier():
                return self._barrier(core, event, facts)
            case BlockSet():
                return self._set_block(core, event, decided, facts)
            case BlockWait():
                return self._wait_block(core, event, decided, facts)
            case Drain():
                return facts.drained(core, self._own(core), flushes=event.flushes)
            case Release():
                return self._release(core, event, facts)
            case Acquire():
                return facts.with_unflushed(core, facts.unflushed(core) | 1 << self._acquire(event))
            case Unknown():
                return self._unknown(core, event, facts)
        raise AssertionError(type(event).__name__)

    def end(self, facts: Pending) -> None:
        """Every core has returned: no flag may be up."""
        if self._unknown_flags:
            return
        for key in (key for key, number in self._flags.items() if facts.times_up(number)):
            core = key[0] if key[1] is not None else self._other(key[0])
            last = next((event for event in reversed(self._sets(core)) if _may_set(event, key)), None)
            if last is not None and (key[1] is not None or self.agreed):
                self._note(Unordered(Fault.LEFT_UP, last, core, detail=_named(key)))

    def stuck(self, core: int, event: Event, facts: Pending) -> None:
        """A core waits for another that has returned, or waits too."""
        if self.agreed:
            number = self._waiting[core][1]
            self._note(Unordered(Fault.STUCK, event, core, detail=f"{number} between the cores"))
        self._blocked.setdefault(self._waiting[core], core)

    def finish(self) -> None:
        """After the walk: waits that nothing ever ended."""
        for (event, flag), core in self._blocked.items():
            if (event, flag) not in self._passed and not self._unknown_flags:
                self._note(Unordered(Fault.STUCK, event, core, detail=f"{flag} between the cores"))

    def compare_cores(self) -> None:
        """After walks over functions that never wait for each other: nothing orders any two of their accesses."""
        for number, second in enumerate(self.instances.all):
            for other in bits(self.instances.conflicts(number) & ((1 << number) - 1)):
                if self.instances.all[other].core != second.core:
                    self._pair(self.instances.all[other], second)

    # ---- accesses ----------------------------------------------------------------------------------------------------

    def _access(self, core: int, event: Access, decided: Decided, facts: Pending) -> Pending:
        number = self._instance(core, event, decided)
        instance = self.instances.all[number]
        pending = facts.seen_by(core, event.pipe)
        for other in bits(pending & self.instances.conflicts(number)):
            self._pair(self.instances.all[other], instance)
        if event.pipe is Pipe.S and instance.touches_global(writing=False):
            self._read_cache(core, event, facts)
        return facts.start(number, self._blind(core, instance))

    def _instance(self, core: int, event: Access, decided: Decided) -> int:
        """The number of an access; decisions that lead to the same bytes make no difference."""
        found = self._met.get((event, decided))
        if found is not None:
            return found
        memory, environment = self.flows[core].memory, as_environment(decided)
        regions = tuple(
            (region, touch.writes)
            for touch in event.touches
            for region in memory.regions(touch.value, environment, remote=touch.remote)
        )
        number = self._met[event, decided] = self.instances.number(Instance(core, event, regions))
        return number

    def _blind(self, core: int, instance: Instance) -> tuple[int, ...]:
        """Whom a scalar access is never in flight for: the scalar unit itself, and a load for the whole core."""
        if instance.pipe is not Pipe.S:
            return ()
        first = core * len(PIPES)
        return (first + INDEX[Pipe.S],) if instance.writes else tuple(range(first, first + len(PIPES)))

    def _pair(self, first: Instance, second: Instance) -> None:
        if isinstance(first.event, Unknown):
            self._note(Unordered(Fault.NOT_UNDERSTOOD, first.event, first.core, second.event, second.core))
            return
        fault = Fault.PIPES if first.core == second.core else Fault.CORES
        call = second.event.call if isinstance(second.event, Access) else None
        if fault is Fault.PIPES and call is not None and call.is_distributed:
            fault = Fault.TRANSFER
        regions = conflict(first, second)
        self._note(Unordered(fault, second.event, second.core, first.event, first.core, regions))

    def _read_cache(self, core: int, event: Access, facts: Pending) -> None:
        for number in bits(facts.unflushed(core)):
            self._note(Unordered(Fault.STALE, event, core, self._acquires[number], core))

    def _acquire(self, event: Event) -> int:
        if event not in self._acquires:
            self._acquires.append(event)
        return self._acquires.index(event)

    def _own(self, core: int) -> int:
        return self.instances.of_core.get(core, 0)

    def _release(self, core: int, event: Release, facts: Pending) -> Pending:
        if not event.drained:
            for number in bits(facts.seen_by(core, Pipe.S) & self.instances.transfers.get(core, 0)):
                first = self.instances.all[number]
                self._note(Unordered(Fault.RELEASE, event, core, first.event, first.core))
        return facts

    def _unknown(self, core: int, event: Unknown, facts: Pending) -> Pending:
        """It may touch anything on any pipe: what is in flight, and what starts before it has surely finished."""
        self._note(Unordered(Fault.NOT_UNDERSTOOD, event, core, detail=event.name))
        for number in bits(facts.seen_by(core, Pipe.S)):
            first = self.instances.all[number]
            self._note(Unordered(Fault.NOT_UNDERSTOOD, event, core, first.event, first.core, detail=event.name))
        everywhere = tuple((Region(space, None, False, (), 0, None), True) for space in (GM, "ub", "cbuf", "cc"))
        return facts.start(self.instances.number(Instance(core, event, everywhere)), ())

    # ---- order -------------------------------------------------------------------------------------------------------

    def _barrier(self, core: int, event: PipeBarrier, facts: Pending) -> Pending:
        if event.pipe is Pipe.ALL:
            return facts.drained(core, self._own(core))
        own = self.instances.of_pipe.get((core, event.pipe), 0)
        return facts.limited(core, event.pipe, ~own)

    def _seen_by_setter(self, core: int, pipe: Pipe, facts: Pending) -> int:
        return facts.seen_by(core, pipe) & ~self.instances.of_pipe.get((core, pipe), 0)

    def _number(self, core: int, event: Event, flag: Flag, decided: Decided) -> Hashable | None:
        """The number of a flag; None, and noted, if it is not known."""
        number = flag
        if isinstance(flag, SSAValue):
            number = self.flows[core].values.number(flag, as_environment(decided))
        if number is None:
            self._unknown_flags = True
            self._note(Unordered(Fault.NOT_UNDERSTOOD, event, core, detail="a flag whose number is not known"))
        return number

    def _flag(self, key: FlagKey) -> int:
        return self._flags.setdefault(key, len(self._flags))

    def _set_flag(self, core: int, event: FlagSet, decided: Decided, facts: Pending) -> Pending:
        number = self._number(core, event, event.flag, decided)
        if number is None:
            return facts
        key = (core, event.pipe, event.towards, number)
        flag, seen = self._flag(key), self._seen_by_setter(core, event.pipe, facts)
        if facts.times_up(flag) >= MOST_UP:
            self._note(Unordered(Fault.SET_TWICE, event, core, detail=_named(key)))
            return facts.raised_again(flag, seen)
        return facts.raised(flag, seen)

    def _wait_flag(self, core: int, event: FlagWait, decided: Decided, facts: Pending) -> Pending:
        number = self._number(core, event, event.flag, decided)
        if number is None:
            return facts
        key = (core, event.source, event.pipe, number)
        flag = self._flag(key)
        if not facts.times_up(flag):
            if not self._unknown_flags:
                self._note(Unordered(Fault.NEVER_SET, event, core, detail=_named(key)))
            return facts
        return facts.taken(core, event.pipe, flag)

    def _set_block(self, core: int, event: BlockSet, decided: Decided, facts: Pending) -> Pending:
        number = self._number(core, event, event.flag, decided)
        if number is None:
            return facts
        flag = self._flag((self._other(core), None, None, number))
        seen = self._seen_by_setter(core, event.pipe, facts)
        full = facts.times_up(flag) >= MOST_BLOCKS_UP
        return facts.raised_again(flag, seen) if full else facts.raised(flag, seen)

    def _wait_block(self, core: int, event: BlockWait, decided: Decided, facts: Pending) -> Pending | None:
        number = self._number(core, event, event.flag, decided)
        if number is None:
            return facts
        flag = self._flag((core, None, None, number))
        if not facts.times_up(flag):
            self._waiting[core] = (event, number)
            return None
        self._passed.add((event, number))
        return facts.taken(core, event.pipe, flag)

    def _other(self, core: int) -> int:
        """Who waits for what this core sets: the other half of a mix kernel, else itself (all programs of a launch)."""
        return 1 - core if len(self.flows) == 2 else core

    # ---- notes -------------------------------------------------------------------------------------------------------

    def _note(self, fault: Unordered) -> None:
        first = fault.first.op if fault.first is not None else None
        self.found.setdefault((fault.fault, first, fault.second.op, fault.detail), fault)

    def _sets(self, core: int) -> list[FlagSet | BlockSet]:
        events = function_events(self.flows[core].function)
        return [event for event in events if isinstance(event, (FlagSet, BlockSet))]


def _may_set(event: FlagSet | BlockSet, key: FlagKey) -> bool:
    """Whether an event may be what raised a flag."""
    if (key[1] is None) is not isinstance(event, BlockSet):
        return False
    same_pipes = isinstance(event, BlockSet) or (event.pipe, event.towards) == key[1:3]
    return same_pipes and (isinstance(event.flag, SSAValue) or event.flag == key[3])


def _named(key: FlagKey) -> str:
    return f"{key[1]} → {key[2]}, event {key[3]}" if key[1] is not None else f"{key[3]} between the cores"


@dataclass(frozen=True, slots=True)
class OrderReport:
    """The faults of a final module, and how much was walked over. `complete`: everything was."""

    faults: tuple[Unordered, ...]
    steps: int
    complete: bool
    cores: tuple[str, ...]


class _Alone:
    """The events of one core only, for functions that never wait for each other."""

    def __init__(self, order: Order, core: int) -> None:
        self.order, self.core = order, core

    def apply(self, core: int, event: Event, decided: Decided, facts: Pending) -> Pending | None:
        return self.order.apply(self.core, event, decided, facts)

    def end(self, facts: Pending) -> None:
        self.order.end(facts)

    def stuck(self, core: int, event: Event, facts: Pending) -> None:
        self.order.stuck(self.core, event, facts)


def _walks(order: Order) -> list[Walk[Pending]]:
    """One walk over functions that wait for each other; else one for each, which is the same and far less."""
    flows = order.flows
    events = [event for flow in flows for event in function_events(flow.function)]
    if any(isinstance(event, (BlockSet, BlockWait)) for event in events):
        walk = Walk(flows, order)
        order.agreed = walk.agreed
        return [walk]
    return [Walk([flow], _Alone(order, core)) for core, flow in enumerate(flows)]


def check_order(final: FinalModule) -> OrderReport:
    """Walk over the functions of a final module, side by side."""
    order = Order([Flow(function) for function in final.functions])
    walks = _walks(order)
    steps, complete = 0, True
    for walk in walks:
        try:
            steps += walk.run(Pending.nothing(len(order.flows)))
        except TooLarge:
            steps, complete = steps + walk.steps, False
    if len(walks) > 1:
        order.compare_cores()
    order.finish()
    cores = tuple(function.core for function in final.functions)
    return OrderReport(tuple(order.found.values()), steps, complete, cores)


__all__ = ["Fault", "Order", "OrderReport", "Unordered", "check_order"]
