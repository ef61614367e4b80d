"""Making a failing run smaller while it keeps its defect: fewer ranks, launches, programs, switches, a smaller shape.

A choice list belongs to one shape and rank count. So each smaller case is searched again, with a handful of schedules,
for the *same* finding (`Sighting.same_as`: same kind, same places in the source); then the schedule of the smallest
case loses its context switches by delta debugging on segments (who ran, how long), which stay meaningful when parts
are taken out. All of it is deterministic, and bounded by a number of runs and by time.

Why not Hypothesis, whose shrinker is better than any of ours: docs/decisions/0019-shrinking.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from tdist.errors import EnvironmentUnfit, TdistError, UsageError
from tdist.platforms.sim import schedulers
from tdist.platforms.sim.schedulers.replay import ReplayScheduler
from tdist.platforms.sim.schedulers.segments import NotedScheduler, Segment, SegmentScheduler, context_switches
from tdist.verify.operator import Case, Operator
from tdist.verify.replay.file import Found
from tdist.verify.replay.reproduce import Outcome, attempt, outcome_of
from tdist.verify.replay.sightings import Sighting
from tdist.verify.worlds import Runner, RunSpec, WorldResult

MAX_RUNS = 400
MAX_SECONDS = 300.0
SEEDS = 3
"""Random schedules that are tried on each smaller case."""
PROGRAMS = (1, 2, 4, 8, 16, 32)
MAX_VALUES_ASKED = 4096
"""So many values of a symbol are put to an operator's constraint, at most, to find one that it takes."""
GRID_MATTERS = ("deadlock", "barrier-divergence", "endless-loop", "short-signal", "uninitialised")
"""Findings that a kernel can have *because* some of its programs are left out: for these the grid stays."""


@dataclass(frozen=True)
class Target:
    """What has to remain: one finding, or else wrong outputs, or else that the run does not finish."""

    sighting: Sighting | None = None
    wrong: bool = False

    @classmethod
    def of(cls, found: Found) -> Target:
        """The first finding of a run; wrong outputs where it has none."""
        return cls(found.sightings[0] if found.sightings else None, found.wrong)

    def met(self, found: Found) -> bool:
        """Whether a run shows it."""
        if self.sighting is not None:
            return any(self.sighting.same_as(other) for other in found.sightings)
        if self.wrong:
            return found.wrong and not found.sightings
        return bool(found.error) and not found.sightings

    @property
    def about_values(self) -> bool:
        """Whether outputs have to be judged to see it."""
        return self.sighting is None and self.wrong

    @property
    def grid_matters(self) -> bool:
        """Whether leaving programs out could make another defect that looks the same."""
        return self.sighting is None or self.sighting.id.rpartition(".")[2] in GRID_MATTERS


@dataclass(frozen=True)
class Run:
    """A run that shows the target; `segments` where its schedule is known by agents."""

    spec: RunSpec
    outcome: Outcome
    segments: tuple[Segment, ...] | None = None

    @property
    def switches(self) -> int | None:
        """Context switches of its schedule; None if they are not known."""
        return None if self.segments is None else context_switches(self.segments)


@dataclass(frozen=True)
class Shrunk:
    """What shrinking came to.

    Attributes:
        runs: how many were made.
        why_stopped: empty if nothing was left to try, else which bound was met.
    """

    before: Run
    after: Run
    runs: int
    seconds: float
    why_stopped: str = ""

    def rows(self) -> list[tuple[str, str, str]]:
        """(what, before, after) of everything that counts."""
        first, last = self.before.spec, self.after.spec
        numbers: dict[str, tuple[Any, Any]] = {"ranks": (first.job.case.nranks, last.job.case.nranks)}
        numbers["launches"] = (first.job.launches, last.job.launches)
        numbers |= {name: (value, last.job.case.shape[name]) for name, value in first.job.case.shape.items()}
        programs = [spec.world.get("max_programs") or "all" for spec in (first, last)]
        numbers["programs a launch"] = (programs[0], programs[1])
        numbers["choices"] = (len(self.before.outcome.choices), len(self.after.outcome.choices))
        if self.before.switches is not None and self.after.switches is not None:
            numbers["context switches"] = (self.before.switches, self.after.switches)
        return [(name, str(one), str(other)) for name, (one, other) in numbers.items()]

    def in_words(self) -> str:
        """`ranks 4 -> 2, m 64 -> 17`: what became smaller."""
        changed = [f"{name} {one} -> {other}" for name, one, other in self.rows() if one != other]
        return ", ".join(changed) or "nothing got smaller"


class Runners(Protocol):
    """Worlds of any number of ranks."""

    def runner(self, nranks: int) -> Runner:
        """A runner of so many ranks."""
        ...

    def scheduled(self, spec: RunSpec, segments: Sequence[Segment] | None) -> tuple[WorldResult, list[Segment]] | None:
        """Run under a schedule by agents, or by `spec` itself, and note it; None where that cannot be done."""
        ...


class _Spent(Exception):
    """A bound is met."""


@dataclass
class _Budget:
    runs_left: int
    ends: float
    runs: int = 0

    def spend(self) -> None:
        if self.runs >= self.runs_left:
            raise _Spent(f"after {self.runs} runs (bound)")
        if time.monotonic() > self.ends:
            raise _Spent(f"after {self.runs} runs, at the time limit")
        self.runs += 1


@dataclass
class Shrinker:
    """Shrinks one failing run.

    Args:
        runners: where runs are made.
        progress: hears in a line what has been reached.
    """

    operator: Operator
    target: Target
    runners: Runners
    profile: str = "seed"
    max_runs: int = MAX_RUNS
    max_seconds: float = MAX_SECONDS
    progress: Callable[[str], None] = lambda text: None
    _best: Run = field(init=False)
    _any_schedule: bool = field(init=False, default=False)
    _refused: set[str] = field(init=False, default_factory=set)

    def shrink(self, spec: RunSpec) -> Shrunk:
        """Shrink the run of `spec`, choices included.

        Raises: UsageError if it does not show the target here.
        """
        begin = time.monotonic()
        self._budget = _Budget(self.max_runs, begin + self.max_seconds)
        spec = replace(spec, job=replace(spec.job, judge=spec.job.judge and self.target.about_values))
        first = self._run(spec)
        if first is None:
            raise UsageError("this run does not show here what was recorded: there is nothing to shrink")
        first = self._with_segments(first)
        self._best, why = first, ""
        quiet = first.spec.with_world(choices=None, scheduler="run-to-block")
        self._any_schedule = self._run(quiet) is not None
        try:
            self._reduce()
        except _Spent as spent:
            why = str(spent)
        return Shrunk(first, self._best, self._budget.runs, time.monotonic() - begin, why)

    @property
    def _twice(self) -> Operator | None:
        """The operator, if it takes a second world to see the target: outputs that hold what nobody wrote."""
        seen = self.target.sighting
        return self.operator if seen is not None and seen.id == "tdist.uninitialised" else None

    def _reduce(self) -> None:
        """Each dimension in turn until a round changes nothing; the schedule last, it depends on the others."""
        for reduce_it in (self._launches, self._ranks):
            reduce_it()
        before = None
        while before is not self._best:
            before = self._best
            self._shape()
            self._launches()
            self._programs()
        self._switches()

    # ------------------------------------------------------------ dimensions

    def _launches(self) -> None:
        self._lower(self._best.spec.job.launches, 1, lambda spec, n: replace(spec, job=replace(spec.job, launches=n)))

    def _ranks(self) -> None:
        self._lower(self._best.spec.job.case.nranks, 1, self._with_ranks)

    def _shape(self) -> None:
        for symbol in self._best.spec.job.case.shape:
            self._lower(
                self._best.spec.job.case.shape[symbol],
                1,
                lambda spec, n, symbol=symbol: self._with_shape(spec, {symbol: n}),
            )

    def _programs(self) -> None:
        if self.target.grid_matters:
            return
        now = self._best.spec.world.get("max_programs") or PROGRAMS[-1] + 1
        for programs in (count for count in PROGRAMS if count < now):
            if self._search(self._best.spec.with_world(max_programs=programs)):
                return

    def _lower(self, high: int, low: int, change: Callable[[RunSpec, int], RunSpec]) -> None:
        """Make one number as small as a binary search finds, the least value first.

        Which values fail need not be an interval: what is found is small, not the least.
        """
        probe = low
        while low < high:
            usable = self._usable(probe, high, change)
            if usable is None:  # none from the probe on: look below it
                high = probe
            elif self._search(usable[1]):
                high = usable[0]
            else:
                low = usable[0] + 1
            probe = (low + high) // 2

    def _usable(self, low: int, high: int, change: Callable[[RunSpec, int], RunSpec]) -> tuple[int, RunSpec] | None:
        """The least number from `low` to below `high` that the operator takes, with its run."""
        for value in range(low, min(high, low + MAX_VALUES_ASKED)):
            try:
                return value, change(self._best.spec, value)
            except UsageError:
                continue
        return None

    def _with_ranks(self, spec: RunSpec, nranks: int) -> RunSpec:
        late = spec.world.get("late_rank", -1)
        world = {"late_rank": min(late, nranks - 1)} if late >= 0 else {}
        return self._with_case(spec, nranks=nranks, shape=spec.job.case.shape).with_world(**world)

    def _with_shape(self, spec: RunSpec, shape: dict[str, int]) -> RunSpec:
        case = spec.job.case
        return self._with_case(spec, nranks=case.nranks, shape={**case.shape, **shape})

    def _with_case(self, spec: RunSpec, nranks: int, shape: Any) -> RunSpec:
        case: Case = spec.job.case
        made = self.operator.case(
            dtype=case.dtype, nranks=nranks, shape=shape, seed=case.seed, sync=case.sync, fill=case.fill
        )
        return replace(spec, job=replace(spec.job, case=made))

    # ------------------------------------------------------------ searching a case again

    def _search(self, spec: RunSpec) -> bool:
        """Try the case of `spec` under several schedules; if one shows the target it is the best run from now on."""
        key = repr((spec.job, spec.world.get("max_programs"), spec.world.get("late_rank")))
        if key in self._refused:
            return False
        for schedule, seed in self._schedules(spec.job.case.nranks):
            run = self._run(spec.with_world(choices=None, scheduler=schedule, seed=seed))
            if run is not None:
                self._best = run
                self.progress(f"{self._budget.runs} runs: {_size(run)}")
                return True
        self._refused.add(key)
        return False

    def _schedules(self, nranks: int) -> Iterator[tuple[str, int]]:
        """The one that worked last, then others; those that a world of so many ranks cannot have are left out."""
        now = self._best.spec.world
        wanted = [(now.get("scheduler", "run-to-block"), now.get("seed", 0)), ("run-to-block", 0)]
        if self._any_schedule:  # the defect does not hang on a schedule: what this one does not show is not there
            wanted = wanted[1:]
        else:
            wanted += [(name, 0) for name in ("max-sync", "latest")]
            wanted += [(f"starved:rank={rank}", 0) for rank in (0, nranks - 1)]
            wanted += [(name, seed) for seed in range(SEEDS) for name in ("random", "pct")]
        for schedule, seed in dict.fromkeys(wanted):
            try:
                schedulers.check(schedule, nranks)
            except UsageError:
                continue
            yield schedule, seed

    def _run(self, spec: RunSpec) -> Run | None:
        """Run once; None if the target is not met."""
        self._budget.spend()
        try:
            outcome = attempt(self.runners.runner(spec.job.case.nranks), spec, self.profile, self._twice)
        except EnvironmentUnfit:  # a smaller case took a process down: whatever that is, it is not the target
            return None
        if not self.target.met(outcome.found):
            return None
        return Run(spec.with_world(choices=outcome.choices), outcome)

    # ------------------------------------------------------------ the schedule

    def _switches(self) -> None:
        """Take context switches out: the tail of the list, then segments, then stops before a block."""
        self._shorten()
        self._best = self._with_segments(self._best)
        if self._best.segments is None:
            return
        kept = minimise(self._best.segments, self._holds)
        self._release(list(kept))

    def _shorten(self) -> None:
        """The shortest prefix of the choices, as far as a binary search finds it; after it agents run to block."""
        choices = self._best.spec.world["choices"]
        low, high = 0, len(choices)
        while low < high:
            middle = (low + high) // 2
            run = self._run(self._best.spec.with_world(choices=choices[:middle]))
            if run is None:
                low = middle + 1
            else:
                self._best, high = run, middle

    def _release(self, segments: list[Segment]) -> None:
        """Let agents that are stopped run on until they block, one after the other."""
        for index, segment in enumerate(segments):
            if segment.preempts and index + 1 < len(segments):
                tried = [*segments[:index], segment._replace(steps=0), *segments[index + 1 :]]
                segments = tried if self._holds(tried) else segments

    def _holds(self, segments: Sequence[Segment]) -> bool:
        """Whether this schedule shows the target; with fewer switches than before it is the best one from now on."""
        self._budget.spend()
        run = self._scheduled(self._best.spec, segments)
        if run is None:
            return False
        if (run.switches or 0, len(run.segments or ())) <= (self._best.switches or 0, len(self._best.segments or ())):
            self._best = run
            self.progress(f"{self._budget.runs} runs: {_size(run)}")
        return True

    def _with_segments(self, run: Run) -> Run:
        """The same run with its schedule by agents, where that can be had."""
        return self._scheduled(run.spec, None) or run

    def _scheduled(self, spec: RunSpec, segments: Sequence[Segment] | None) -> Run | None:
        try:
            ran = self.runners.scheduled(spec if segments is None else spec.with_world(choices=None), segments)
        except Exception as error:
            if not isinstance(error, TdistError) and not getattr(error, "__notes__", None):
                raise
            return None
        if ran is None:
            return None
        result, noted = ran
        outcome = outcome_of(result, self.profile)
        if not self.target.met(outcome.found):
            return None
        return Run(spec.with_world(choices=result.choices), outcome, tuple(noted))


def _size(run: Run) -> str:
    case = run.spec.job.case
    parts = [f"ranks {case.nranks}", f"launches {run.spec.job.launches}"]
    parts += [f"{symbol} {value}" for symbol, value in case.shape.items()]
    if run.spec.world.get("max_programs"):
        parts.append(f"programs {run.spec.world['max_programs']}")
    if run.switches is not None:
        parts.append(f"context switches {run.switches}")
    return ", ".join(parts)


T = TypeVar("T")


def minimise(items: Iterable[T], holds: Callable[[list[T]], bool]) -> list[T]:
    """A sublist for which `holds` is true and from which no single element can be taken (ddmin).

    Args:
        holds: true of `items` itself.

    Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002; complements only.
    """
    kept = list(items)
    if not kept or holds([]):
        return []
    size = len(kept)
    while True:
        size = max(1, size // 2)
        before = len(kept)
        at = 0
        while at < len(kept):
            without = kept[:at] + kept[at + size :]
            if len(without) < len(kept) and holds(without):
                kept = without
            else:
                at += size
        if size == 1 and len(kept) == before:
            return kept


class ThreadRunners:
    """Worlds in this process."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def runner(self, nranks: int) -> Runner:
        from tdist.verify.options import Options
        from tdist.verify.worlds import ThreadRunner

        return ThreadRunner(self._operator, Options(nranks=nranks))

    def scheduled(self, spec: RunSpec, segments: Sequence[Segment] | None) -> tuple[WorldResult, list[Segment]] | None:
        from tdist.platforms.sim.world import World
        from tdist.verify.rank_job import run_operator
        from tdist.verify.worlds import world_result

        with World(nranks=spec.job.case.nranks, **spec.world) as world:
            inner = ReplayScheduler(spec.world.get("choices") or ()) if segments is None else SegmentScheduler(segments)
            noted = NotedScheduler(inner)
            noted.start(0)
            world.engine.scheduler = noted
            returned = world.run(run_operator, self._operator, spec.job)
            return world_result(returned, world.findings, world.engine.events), noted.segments


class ProcessRunners:
    """Rank processes, one group at a time. Schedules by agents need the engine at hand: there are none."""

    def __init__(self) -> None:
        self._nranks = 0
        self._open: Any = None

    def runner(self, nranks: int) -> Runner:
        from tdist.verify.options import Options
        from tdist.verify.worlds import ProcessRunner

        if nranks != self._nranks:
            self.close()
            self._open, self._nranks = ProcessRunner(Options(nranks=nranks)), nranks
        return self._open

    def scheduled(self, spec: RunSpec, segments: Sequence[Segment] | None) -> None:
        return None

    def close(self) -> None:
        """End the rank processes."""
        if self._open is not None:
            self._open.close()
        self._open, self._nranks = None, 0
