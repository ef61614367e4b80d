"""All inequivalent schedules of a recording, by stateless exploration with dynamic partial-order reduction.

Generators cannot be copied, so each schedule is run from the start. Two schedules are equivalent if they differ by
exchanges of neighbouring steps that commute (`dependence.py`); one of each class is run. After a run, each pair of
dependent steps that could have come in the other order makes its first one's decision a place to come back to (source
sets), and a step that has been tried there sleeps until something that it depends on has happened (sleep sets).

Choices of the engine that are no steps (whether a host is served as soon as its launch has ended) are tried both ways
where it can matter (`Early`). A step that ends the run is tried against everything that could have run in its place.

Source: Abdulla, Aronsson, Jonsson, Sagonas, "Optimal Dynamic Partial Order Reduction", POPL 2014 (source-DPOR);
Flanagan, Godefroid, "Dynamic Partial-Order Reduction for Model Checking Software", POPL 2005;
Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems", 1996 (sleep sets).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from tdist.errors import TdistError, UsageError
from tdist.findings import Finding
from tdist.platforms.sim.agents import Agent
from tdist.platforms.sim.explore import recording as rec
from tdist.platforms.sim.explore.dependence import Access, dependent
from tdist.platforms.sim.explore.recording import NotRecordable, Recording
from tdist.platforms.sim.explore.rerun import Replica, RerunResult, replica
from tdist.platforms.sim.explore.watch import LAUNCH_END, AgentKey, Event, WatchedEngine, key_of
from tdist.platforms.sim.symbolic_access import TilesNeeded


@dataclass(frozen=True)
class Limits:
    """When to give up: schedules that were run, steps of one of them, seconds of all."""

    runs: int = 20_000
    steps: int = 20_000
    seconds: float = 600.0

    @classmethod
    def of(cls, spec: str) -> Limits:
        """From `exhaustive[:key=value[,key=value]]`, with the names of the fields.

        Raises:
            UsageError: another name or key, or a value that is no whole number of at least 1.
        """
        name, _, rest = spec.partition(":")
        given: dict[str, int] = {}
        for pair in filter(None, rest.split(",")):
            key, _, value = pair.partition("=")
            if key not in _LIMITS or not value.isascii() or not value.isdigit() or int(value[:18]) < 1:
                known = ", ".join(f"{limit}=N" for limit in _LIMITS)
                raise UsageError(f"{name} takes {known} with a whole number from 1 up; {pair!r} is none")
            given[key] = int(value[:18])
        if name != EXHAUSTIVE:
            raise UsageError(f"{spec!r} is not {EXHAUSTIVE}")
        return cls(**given)


EXHAUSTIVE: Final = "exhaustive"
"""What `--schedule` calls it."""
_LIMITS: Final = ("runs", "steps", "seconds")


@dataclass(frozen=True)
class Sighting:
    """A finding and the run that met it first; `run.choices` replays it."""

    finding: Finding
    run: RerunResult


@dataclass(frozen=True)
class Exploration:
    """What came of exploring a recording.

    Attributes:
        complete: all inequivalent schedules have been run.
        runs: schedules that were run to their ends.
        pruned: schedules that were given up because what was left of them had been run before.
        pending: decisions that were still to be tried otherwise, when it stopped.
        limit: what stopped it; empty if nothing did.
        findings: each defect once.
        outcomes: what runs came to (what memory held at the end, or how the run was stopped), each with its first run.
        steps: of the longest schedule.
        tiles: how tiles were computed in runs that show nothing new: "symbolic", "concrete", or both, with the reason.
    """

    complete: bool
    runs: int
    pruned: int
    pending: int
    limit: str
    findings: tuple[Sighting, ...]
    outcomes: dict[str, RerunResult]
    steps: int
    seconds: float
    tiles: str = "concrete"

    def __str__(self) -> str:
        if self.complete:
            if self.runs == 1:
                return "all schedules are equivalent, one ran"
            outcomes = "one outcome" if len(self.outcomes) == 1 else f"{len(self.outcomes)} outcomes"
            return f"all {self.runs} inequivalent schedules ran, {outcomes}"
        return f"stopped at {self.runs} of at least {self.runs + self.pending} schedules ({self.limit}): not a proof"

    def to_json(self) -> dict[str, Any]:
        """JSON values; times and findings stand elsewhere."""
        counts = {"runs": self.runs, "pruned": self.pruned, "pending": self.pending, "steps": self.steps}
        said = {"complete": self.complete, "limit": self.limit, "tiles": self.tiles}
        return {**said, "outcomes": len(self.outcomes), **counts}


class _Asleep(TdistError):
    """All that could run next has been run from an equivalent state."""


class _TooLong(TdistError):
    """A schedule has more steps than the limit."""


@dataclass
class _Pick:
    """A decision on who goes on. `tried` and `asleep` map agents to the footprints of their next steps."""

    enabled: tuple[AgentKey, ...]
    chosen: AgentKey
    asleep: dict[AgentKey, list[Access]]
    backtrack: set[AgentKey] = field(default_factory=set)
    tried: dict[AgentKey, list[Access]] = field(default_factory=dict)
    footprint: list[Access] = field(default_factory=list)

    def left(self) -> list[AgentKey]:
        """Who is still to be tried, in a fixed order."""
        return [
            key for key in self.enabled if key in self.backtrack and key not in self.tried and key not in self.asleep
        ]


@dataclass
class _Choose:
    """A decision between `n` possibilities; all are tried."""

    n: int
    value: int = 0


class _Explorer:
    """Depth-first search over decisions. As a `Decider` it follows `stack` and then extends it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.stack: list[_Pick | _Choose] = []
        self.fresh = 0
        """Decisions from this one on are new in this run."""
        self._depth = 0
        self._engine: WatchedEngine | None = None

    # ---- one run

    def begin(self, engine: WatchedEngine) -> None:
        engine.decider = self
        self._engine, self._depth = engine, 0

    def pick(self, engine: WatchedEngine, runnable: Sequence[Agent], current: Agent | None) -> int:
        keys = [key_of(ag) for ag in runnable]
        if self._depth == len(self.stack):
            self._extend(engine, keys, key_of(current) if current is not None else None)
        decision = self.stack[self._depth]
        if not isinstance(decision, _Pick) or decision.chosen not in keys:
            raise TdistError("internal error: a schedule did not repeat itself; please report this")
        engine.watch.begin(decision.chosen, self._depth)
        self._depth += 1
        return keys.index(decision.chosen)

    def choose(self, n: int) -> int:
        if self._depth == len(self.stack):
            self.stack.append(_Choose(n))
        decision = self.stack[self._depth]
        assert isinstance(decision, _Choose)
        self._depth += 1
        return decision.value

    def _extend(self, engine: WatchedEngine, keys: list[AgentKey], current: AgentKey | None) -> None:
        if len(self.stack) >= self.limits.steps:
            raise _TooLong(f"a schedule has more than {self.limits.steps} steps")
        asleep = self._asleep(engine.watch.events)
        awake = [key for key in keys if key not in asleep]
        if not awake:
            raise _Asleep("nothing new")
        chosen = current if current in awake else awake[0]
        assert chosen is not None
        self.stack.append(_Pick(tuple(sorted(keys)), chosen, asleep, {chosen}))

    def _asleep(self, events: list[Event]) -> dict[AgentKey, list[Access]]:
        """Who sleeps after the last step: whoever slept or was tried before it and does not depend on it."""
        at = _last_pick(self.stack, len(self.stack))
        if at is None:
            return {}
        before = self.stack[at]
        assert isinstance(before, _Pick)
        step = _accesses(events, at)
        candidates = {**before.asleep, **before.tried}
        return {k: fp for k, fp in candidates.items() if k != before.chosen and not dependent(fp, step)}

    # ---- between runs

    def learn(self, events: list[Event], cut: bool) -> None:
        """After a run: where to come back to. `cut`: its last step ended it before others could run."""
        first = _last_pick(self.stack, self.fresh + 1)
        for event in events:
            decision = self.stack[event.node]
            if first is not None and event.node >= first and isinstance(decision, _Pick):
                decision.footprint.extend(event.accesses)
            if event.node >= self.fresh or (first is not None and event.node >= first):
                for number, before in event.races:
                    self._reverse(events, number, event, before)
        last = _last_pick(self.stack, len(self.stack))
        if cut and last is not None:
            decision = self.stack[last]
            assert isinstance(decision, _Pick)
            decision.backtrack.update(decision.enabled)

    def _reverse(self, events: list[Event], number: int, event: Event, before: int) -> None:
        """Come back to where `event` can come before the event `number`; `before`: what it is after in any case."""
        earlier = events[number]
        if earlier.agent[2] == LAUNCH_END:
            for end in earlier.ends:
                self._insert(events, events[end].first, event, before)
            return
        self._insert(events, earlier.first, event, before)
        if before >> earlier.first & 1:  # then only while that step's wait is still blocked
            for enabler in earlier.enablers:
                self._insert(events, events[enabler].first, event, before)

    def _insert(self, events: list[Event], number: int, event: Event, before: int) -> None:
        if before >> number & 1:
            return
        rest = [k for k in range(number + 1, event.number) if not events[k].before >> number & 1]
        decision = self.stack[events[number].node]
        assert isinstance(decision, _Pick)
        first = [key for key in _initials(events, [*rest, event.number]) if key in decision.enabled]
        if not first:
            decision.backtrack.update(decision.enabled)
        elif not decision.backtrack.intersection(first):
            decision.backtrack.add(first[0])

    def advance(self) -> bool:
        """Turn to the next schedule; False if there is none."""
        while self.stack:
            decision = self.stack[-1]
            if isinstance(decision, _Choose):
                if decision.value + 1 < decision.n:
                    decision.value += 1
                    break
            else:
                decision.tried[decision.chosen] = decision.footprint
                left = decision.left()
                if left:
                    decision.chosen, decision.footprint = left[0], []
                    break
            self.stack.pop()
        self.fresh = len(self.stack) - 1
        return bool(self.stack)

    def pending(self) -> int:
        """Decisions that are known to be still to be tried otherwise."""
        return sum(
            len([key for key in d.left() if key != d.chosen]) if isinstance(d, _Pick) else d.n - 1 - d.value
            for d in self.stack
        )


def _last_pick(stack: Sequence[_Pick | _Choose], end: int) -> int | None:
    """Index of the last decision on an agent before `end`."""
    return next((at for at in range(min(end, len(stack)) - 1, -1, -1) if isinstance(stack[at], _Pick)), None)


def _accesses(events: list[Event], node: int) -> list[Access]:
    """The footprint of the last step, which was chosen at `node`."""
    made: list[Access] = []
    for event in reversed(events):
        if event.node != node:
            break
        made += event.accesses
    return made


def _initials(events: list[Event], numbers: list[int]) -> list[AgentKey]:
    """Agents that can begin a sequence of events; the agent of its last event first if it can."""
    mask = sum(1 << number for number in numbers)
    seen: set[AgentKey] = set()
    found: list[AgentKey] = []
    for number in numbers:
        event = events[number]
        if event.agent in seen or event.agent[2] == LAUNCH_END:
            continue
        seen.add(event.agent)
        if not event.before & mask & ~(1 << number):
            found.append(event.agent)
    last = events[numbers[-1]].agent
    return sorted(found, key=lambda key: key != last)


class Early:
    """Whether serving a host as soon as its launch has ended can make a difference: what its script says.

    It cannot if the host, before it meets all others, asks its device for nothing and reads private memory at most, and
    the others can only meet it when nothing runs any more.
    """

    def __init__(self, played: Replica) -> None:
        self._played = played

    def matters(self, rank: int) -> bool:
        return self._acts(rank) or any(
            self._meets_busy(other) for other in range(len(self._played.ranks)) if other != rank
        )

    def _ahead(self, rank: int) -> Iterator[rec.Request]:
        """What a rank's host does after the request that it waits in, until it meets all others."""
        playing = self._played.ranks[rank]
        for request in playing.script[playing.at :]:
            yield request
            if self._is_meeting(request):
                return

    def _is_meeting(self, request: rec.Request) -> bool:
        everyone = isinstance(request, rec.Collective) and len(request.group) == len(self._played.ranks)
        return everyone or isinstance(request, rec.Malloc | rec.Free | rec.End)

    def _acts(self, rank: int) -> bool:
        for request in self._waits_in(rank), *self._ahead(rank):
            if isinstance(request, rec.DEVICE_WORK) or (isinstance(request, rec.Read) and self._is_shared(request)):
                return True
            if isinstance(request, rec.Collective) and not self._is_meeting(request):
                return True
        return False

    def _waits_in(self, rank: int) -> rec.Request:
        playing = self._played.ranks[rank]
        return playing.script[playing.at - 1]

    def _is_shared(self, read: rec.Read) -> bool:
        lookup = self._played.engine.memory.lookup
        found = [lookup(box.address) for box in read.boxes]
        return any(al is None or al.symmetric for al in found)

    def _meets_busy(self, rank: int) -> bool:
        """Whether that host may meet others while its own stream is still busy."""
        if self._played.ranks[rank].ended:
            return not self._played.engine.streams[rank].idle
        busy = not self._played.engine.streams[rank].idle
        for request in self._waits_in(rank), *self._ahead(rank):
            if isinstance(request, rec.Synchronize | rec.Read):
                busy = False
            elif isinstance(request, rec.DEVICE_WORK):
                busy = True
            if self._is_meeting(request):
                return busy
        return busy


Progress = Callable[[int, int], None]
"""Called now and then with schedules run, and decisions known to be left."""
_PROGRESS_EVERY = 50
Outcome = Callable[[Replica, RerunResult], str]


def explore(
    recording: Recording,
    limits: Limits | None = None,
    progress: Progress | None = None,
    outcome: Outcome | None = None,
    symbolic: bool = True,
    **world: Any,
) -> Exploration:
    """Run all inequivalent schedules of a recording, or as many as `limits` allow.

    Args:
        outcome: what a run came to; by default what all of memory holds, words and all.
        symbolic: leave out what is computed on tiles that nothing decides by. The first run with each outcome and with
            each finding is made again with all tiles: its result is that one's.
        world: fields of `WorldConfig` that differ from the recording's; detection is on in any case.

    Raises:
        NotRecordable: hosts may decide by what they read from device memory, or came farther than recorded.
    """
    limits = limits or Limits()
    begin = time.monotonic()
    world |= {"detect": True, "choices": None}
    concrete: rec.Concrete = frozenset() if symbolic and recording.generated else None
    why = "" if recording.generated else ": a kernel is written by hand"
    while True:
        search = _Search(recording, world, limits, outcome or outcome_of, concrete)
        try:
            return replace(_explore(search, progress, begin), tiles=_say_tiles(concrete) + why * symbolic)
        except TilesNeeded as needed:
            assert concrete is not None
            concrete |= needed.places
        except _Unlike as unlike:
            concrete, why = None, f": {unlike}"


def _say_tiles(concrete: rec.Concrete) -> str:
    if concrete is None:
        return "concrete"
    lines = ", ".join(f"{file}:{line}" for file, line, _ in sorted(concrete))
    return f"symbolic, but for the stores at {lines}, whose values are read as numbers" if concrete else "symbolic"


def _explore(search: _Search, progress: Progress | None, begin: float) -> Exploration:
    """All schedules of a search that has not begun."""
    limit = ""
    while True:
        limit = limit or search.run_one()
        if progress is not None and search.runs % _PROGRESS_EVERY == 0:
            progress(search.runs, search.explorer.pending())
        if not search.explorer.advance():
            break
        limit = limit or search.limit(time.monotonic() - begin)
        if limit:
            break
    return search.result(limit, time.monotonic() - begin)


class _Unlike(TdistError):
    """A run with symbolic tiles is not the run with all tiles."""


class _Search:
    """The state of one `explore`. `symbolic`: see `SimOptions`."""

    def __init__(
        self, recording: Recording, world: dict[str, Any], limits: Limits, outcome: Outcome, symbolic: rec.Concrete
    ) -> None:
        self.symbolic = symbolic
        self._seen: set[str] = set()
        self.recording = recording
        self.outcome = outcome
        self.world = world
        self.limits = limits
        self.explorer = _Explorer(limits)
        self.runs = self.pruned = self.steps = 0
        self.sightings: dict[tuple[Any, ...], Sighting] = {}
        self.outcomes: dict[str, RerunResult] = {}

    def run_one(self) -> str:
        """One schedule; why the search cannot go on, or empty."""
        with replica(self.recording, WatchedEngine, self.symbolic, **self.world) as played:
            engine = played.engine
            assert isinstance(engine, WatchedEngine)
            self.explorer.begin(engine)
            engine.matters = Early(played).matters
            try:
                result = played.run()
            except _Asleep:
                self.pruned += 1
                result = None
            except _TooLong as why:
                return str(why)
            engine.watch.close()
            self.explorer.learn(engine.watch.events, engine.cut)
            if result is not None:
                self._note(result, self.outcome(played, result))
            self.steps = max(self.steps, engine.steps)
        return ""

    def _note(self, result: RerunResult, outcome: str) -> None:
        self.runs += 1
        found = {finding_key(finding) for finding in result.findings}
        if self.symbolic is not None:
            if outcome in self._seen and found <= self.sightings.keys():
                return
            self._seen.add(outcome)
            outcome, result = self._with_tiles(result, found)
        self.outcomes.setdefault(outcome, result)
        for finding in result.findings:
            self.sightings.setdefault(finding_key(finding), Sighting(finding, result))

    def _with_tiles(self, symbolic: RerunResult, found: set[tuple[Any, ...]]) -> tuple[str, RerunResult]:
        """The same run with all tiles, and what it came to."""
        with replica(self.recording, **{**self.world, "choices": symbolic.choices}) as played:
            result = played.run()
            outcome = self.outcome(played, result)
        same = (result.choices, bool(result.stopped)) == (symbolic.choices, bool(symbolic.stopped))
        if not same or {finding_key(finding) for finding in result.findings} != found:
            raise _Unlike("a run with symbolic tiles is not the run with all tiles")
        return outcome, result

    def limit(self, seconds: float) -> str:
        if self.runs + self.pruned >= self.limits.runs:
            return f"limit of {self.limits.runs} runs"
        if seconds > self.limits.seconds:
            return f"limit of {self.limits.seconds:.0f} seconds"
        return ""

    def result(self, limit: str, seconds: float) -> Exploration:
        pending = self.explorer.pending() + 1 if limit else 0
        found = tuple(self.sightings.values())
        return Exploration(not limit, self.runs, self.pruned, pending, limit, found, self.outcomes, self.steps, seconds)


def finding_key(finding: Finding) -> tuple[Any, ...]:
    """What makes a finding another one: its kind, severity and the source operations of its parties."""
    places = sorted((str(party.file), party.line or 0, party.op) for party in finding.parties)
    return (finding.kind, finding.severity.name, *places)


def outcome_of(played: Replica, result: RerunResult) -> str:
    """What a run came to: a checksum of device memory, or how it was stopped."""
    if result.stopped:
        last = [finding for finding in result.findings if finding.title in result.stopped]
        return f"stopped: {finding_key(last[-1]) if last else result.stopped}"
    total = 0
    for al in played.engine.memory:
        total = zlib.crc32(al.words(1).tobytes(), total)
    for key in sorted(result.outputs, key=str):
        total = zlib.crc32(result.outputs[key].contiguous().flatten().view(torch.uint8).numpy().tobytes(), total)
    return f"memory {total:08x}"


__all__ = ["EXHAUSTIVE", "Exploration", "Limits", "NotRecordable", "Sighting", "explore", "finding_key", "outcome_of"]
