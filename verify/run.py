"""Running an operator in its modes and collecting what came out.

Each mode has three steps, each in a world of its own:

- *exact*: integer inputs, equality with the golden;
- *poison*: the same with other bytes in memory that nobody wrote; outputs have to agree bit by bit;
- *float*: normal inputs, the numerical policy.

A step that cannot finish ends its mode; what was found until then is kept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdist.errors import TdistError
from tdist.findings import Finding, FindingLog, Party, Severity, make
from tdist.platforms.sim.process.boot import Boot
from tdist.verify.loader import absolute_spec
from tdist.verify.modes import Mode, diagnose, explain, modes_for
from tdist.verify.operator import Case, Operator, check_nranks
from tdist.verify.options import Options
from tdist.verify.policies import Comparison
from tdist.verify.rank_job import Job, LaunchResult
from tdist.verify.worlds import POISONS, Runner, RunSpec, WorldResult, open_runner

if TYPE_CHECKING:
    from tdist.verify.compile_for import Compiled

POISON_LAUNCHES = 2
"""Launches of the exact step that the poison step repeats: one meets fresh memory, one a used workspace."""


@dataclass(frozen=True)
class StepResult:
    """One step of one mode.

    Attributes:
        skipped: why it was not run; empty if it was.
        error: why it could not finish; empty if it did.
        exit_code: whose fault that was, as `tdist.errors` counts: 1 the operator's, 2 a wrong request, 3 the machine.
        seconds: wall time.
    """

    name: str
    ranks: tuple[list[LaunchResult] | None, ...] = ()
    findings: tuple[Finding, ...] = ()
    error: str = ""
    exit_code: int = 1
    skipped: str = ""
    seconds: float = 0.0

    def comparisons(self) -> Iterator[tuple[int, int, str, Comparison]]:
        """(rank, launch, output, comparison) of everything that was compared."""
        for rank, launches in enumerate(self.ranks):
            for launch, result in enumerate(launches or ()):
                for output, comparison in result.comparisons.items():
                    yield rank, launch, output, comparison

    def passed(self, profile: str) -> bool:
        """Whether nothing speaks against it; a step that was skipped passes nothing and fails nothing."""
        judged = all(comparison.passed for *_, comparison in self.comparisons())
        return judged and not self.error and not any(finding.fails(profile) for finding in self.findings)


@dataclass(frozen=True)
class ModeResult:
    """One mode of one dtype."""

    dtype: str
    mode: Mode
    steps: tuple[StepResult, ...]

    @property
    def log(self) -> FindingLog:
        """The mode's findings, each defect once."""
        log = FindingLog()
        for step in self.steps:
            for finding in step.findings:
                log.add(finding)
        return log

    def unjudged(self, profile: str) -> bool:
        """Whether a step could not finish although nothing was found that explains it."""
        return any(step.error for step in self.steps) and not self.log.failing(profile)

    def passed(self, profile: str) -> bool:
        """Whether every step was run and nothing speaks against any."""
        return all(step.passed(profile) and not step.skipped for step in self.steps)


@dataclass(frozen=True)
class Failure:
    """The first failing run of a defect: what a replay file holds.

    Attributes:
        spec: the run with its recorded choices.
        findings: those of the run that fail it.
        wrong: whether outputs differ from what they have to be.
        error: why the run stopped early, in words; empty if it did not.
        found_by: step or name of the search run, for the reader.
    """

    spec: RunSpec
    findings: tuple[Finding, ...] = ()
    wrong: bool = False
    error: str = ""
    found_by: str = ""


@dataclass(frozen=True)
class Report:
    """Everything that a run found out. `compiled` is what the vendor's compiler made, where that was asked for."""

    operator: str
    options: Options
    cases: tuple[Case, ...] = ()
    modes: tuple[ModeResult, ...] = ()
    started: str = ""
    seconds: float = 0.0
    source: str = ""
    limits: tuple[str, ...] = field(default=())
    compiled: Compiled | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all modes of all dtypes were verified, and what was compiled is clean."""
        return self.simulated and (self.compiled is None or self.compiled.exit_code == 0)

    @property
    def simulated(self) -> bool:
        """Whether all modes of all dtypes were verified on simulated ranks."""
        return bool(self.modes) and all(mode.passed(self.options.profile) for mode in self.modes)

    @property
    def verdict(self) -> str:
        """One of verified, failed, and undecided (a wrong request or the machine did not let a run finish)."""
        return {0: "verified", 1: "failed"}.get(self.exit_code, "undecided")

    @property
    def exit_code(self) -> int:
        """0 verified, else the gravest reason why not."""
        return max(self.simulated_exit_code, self.compiled.exit_code if self.compiled else 0)

    @property
    def simulated_exit_code(self) -> int:
        """The same of what ran on simulated ranks alone."""
        broken = [step.exit_code for result in self.modes for step in result.steps if step.error]
        return 0 if self.simulated else max([1, *broken])

    def diagnosis(self, dtype: str) -> str:
        """What findings or else the table of modes say about a dtype's fault; empty where they say nothing.

        Findings first: the table is asked only where wrong numbers are all there is. A mode that could not finish, with
        nothing found, says nothing about the kernel.
        """
        profile = self.options.profile
        mine = [result for result in self.modes if result.dtype == dtype]
        if self.simulated_exit_code > 1 or any(result.unjudged(profile) for result in mine):
            return ""
        failing = [finding for result in mine for finding in result.log.failing(profile)]
        if failing:
            return explain(failing)
        return diagnose({result.mode: result.passed(profile) for result in mine})


class Observer:
    """Hears about a run while it lasts; this one does nothing with it."""

    def started(self, operator: Operator, options: Options, case: Case) -> None:
        """The request has been checked; nothing has run."""

    def step_started(self, dtype: str, mode: Mode, step: str) -> None:
        """A step begins; its world is about to be made."""

    def mode_finished(self, result: ModeResult) -> None:
        """All steps of a mode have been judged."""

    def compiling(self, targets: Sequence[str]) -> None:
        """The modes are done; what the operator launches is about to be compiled."""


def verify(
    operator: Operator,
    options: Options,
    *,
    in_process: bool = False,
    boot: Boot | None = None,
    observer: Observer | None = None,
    keep_ir: Path | None = None,
) -> Report:
    """Run `operator` as `options` say.

    Args:
        in_process: threads instead of rank processes; the golden is then the operator's local one.
        boot: a fork server for the rank processes that was started ahead.
        observer: hears about each step and mode while the run lasts.
        keep_ir: gets the text of every stage of what is compiled (`Options.compile_for`).

    Raises:
        UsageError: options that the operator does not take.
        EnvironmentUnfit: the machine cannot run the worlds.
    """
    options.check()
    check_nranks(options.nranks)
    if options.compile_for:
        from tdist.platforms.ascend.toolchain import check_here

        check_here()
    cases = _cases(operator, options)
    started, begin = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    modes: list[ModeResult] = []
    watching = observer or Observer()
    watching.started(operator, options, cases[0])
    with open_runner(operator, options, in_process, boot) as runner:
        for case in cases:
            for mode in modes_for(operator, options.sync, options.schedule):
                mine = replace(case, sync=mode.protocol)
                modes.append(_run_mode(runner, operator, options, mine, mode, watching))
                watching.mode_finished(modes[-1])
        compiled = _compile(runner, operator, options, cases, keep_ir, watching)
    return Report(
        operator.name,
        options,
        cases,
        tuple(modes),
        started,
        time.monotonic() - begin,
        str(operator.source),
        _limits(operator, options, modes),
        compiled,
    )


def _compile(
    runner: Runner,
    operator: Operator,
    options: Options,
    cases: Sequence[Case],
    keep_ir: Path | None,
    observer: Observer,
) -> Compiled | None:
    """What the vendor's compiler makes of the operator's kernels, if that was asked for."""
    if not options.compile_for:
        return None
    from tdist.verify.compile_for import compile_operator

    observer.compiling(options.compile_for)
    return compile_operator(runner, operator, options, cases, keep_ir)


def _cases(operator: Operator, options: Options) -> tuple[Case, ...]:
    dtypes = options.dtype or operator.dtypes[:1]
    shape = dict(options.shape)
    return tuple(operator.case(dtype=d, nranks=options.nranks, shape=shape, seed=options.seed) for d in dtypes)


def _run_mode(
    runner: Runner, operator: Operator, options: Options, case: Case, mode: Mode, observer: Observer
) -> ModeResult:
    spec = absolute_spec(options.operator or operator.name)
    launches = options.launches if operator.relaunchable else 1
    exact = Job(spec, case, launches, policy="exact")
    policy = options.chosen_policy or operator.policy
    rtol = operator.rtol if options.rtol is None else options.rtol
    atol = operator.atol if options.atol is None else options.atol
    poisoned = replace(exact, launches=min(launches, POISON_LAUNCHES), judge=False)
    floats = Job(spec, replace(case, fill="float"), policy=policy, rtol=rtol, atol=atol)
    observer.step_started(case.dtype, mode, "exact")
    steps = [_step("exact", runner, exact, mode, POISONS[0])]
    plan = (("poison", poisoned, POISONS[1]), ("float", floats, POISONS[0]))
    for name, job, poison in plan:
        if steps[0].error:
            steps.append(StepResult(name, skipped="the exact step did not finish"))
            continue
        observer.step_started(case.dtype, mode, name)
        steps.append(_step(name, runner, job, mode, poison))
    steps[1] = _judge_poison(steps[0], steps[1], operator)
    return ModeResult(case.dtype, mode, tuple(steps))


def _step(name: str, runner: Runner, job: Job, mode: Mode, poison: int) -> StepResult:
    """Run one job. What the operator, the request or the machine got wrong is a result; a defect of ours is raised."""
    begin, code = time.monotonic(), 1
    try:
        world = runner.run(job, mode, poison)
    except TdistError as error:
        world, code = WorldResult((), tuple(getattr(error, "findings", ())), _told(error)), error.exit_code
    except Exception as error:
        if not getattr(error, "__notes__", None):
            raise
        world = WorldResult((), (), _told(error))
    return StepResult(name, world.ranks, world.findings, world.error, code, seconds=time.monotonic() - begin)


_BY_RANK = re.compile(r"raised by the host function of (rank \d+)")


def _told(error: Exception) -> str:
    """An exception in words: the rank, its type where it is not ours, its text, its notes."""
    text = str(error) if isinstance(error, TdistError) else f"{type(error).__name__}: {error}"
    notes = [note.split("; its traceback")[0].splitlines()[0] for note in getattr(error, "__notes__", [])]
    ranks = [found[1] for found in map(_BY_RANK.fullmatch, notes) if found]
    rest = [note for note in notes if not _BY_RANK.fullmatch(note)]
    return "; ".join([": ".join([*ranks[:1], text]), *rest])


def _judge_poison(exact: StepResult, poison: StepResult, operator: Operator) -> StepResult:
    """Add a finding for each output that depends on memory that nobody wrote."""
    if exact.error or poison.error or poison.skipped:
        return poison
    found = []
    for rank, (first, second) in enumerate(zip(exact.ranks, poison.ranks, strict=True)):
        for launch, (one, other) in enumerate(zip(first or (), second or (), strict=False)):
            for output in one.checksums:
                found += _differences(operator, rank, launch, output, one.checksums[output], other.checksums[output])
    return replace(poison, findings=poison.findings + tuple(found))


def _differences(
    operator: Operator, rank: int, launch: int, output: str, first: list[int], second: list[int]
) -> list[Finding]:
    tiles = [index for index, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]]
    if not tiles:
        return []
    where = f"{len(tiles)} of {len(first)} tiles, the first is tile {tiles[0]} in row-major order"
    code = getattr(operator.host, "__code__", None)
    line = code.co_firstlineno if code else None
    party = Party(
        rank=rank, launch=launch, file=str(operator.source), line=line, op="output", tensor=output, where=where
    )
    return [
        make(
            "uninitialised",
            [party],
            expected="equal outputs from two runs that differ only in what unwritten memory holds",
            got=f"{where} differ",
            tensor=f"output {output} of {operator.name}",
            tiles=tiles[:16],
        )
    ]


def _launches_seen(operator: Operator, options: Options) -> str:
    if not operator.relaunchable:
        return "one launch: the operator is not declared relaunchable, what a second one would meet was not run"
    if options.launches == 1:
        return "one launch: what a second one on the same workspace would meet was not run (--launches)"
    return f"{options.launches} launches on one workspace: faults that need more were not reached (--launches)"


def _limits(operator: Operator, options: Options, modes: list[ModeResult]) -> tuple[str, ...]:
    """What this run could not have seen."""
    schedules = ", ".join(sorted({result.mode.schedule for result in modes}))
    ran = f"one schedule each of {schedules}" if "," in schedules else f"one {schedules} schedule"
    limits = [
        f"{ran} at seed {options.seed}: other interleavings were not run",
        _launches_seen(operator, options),
        _hardware_limit(options),
    ]
    if not options.detect:
        limits.append("detection was off: races that did not change results were not looked for")
    if options.profile == "seed":
        ours = (
            "hazards that the simulated ranks show for Ascend only"
            if options.compile_for
            else "hazards that exist on Ascend only are shown but"
        )
        limits.append(f"{ours} do not decide (--profile ascend lets them)")
    return tuple(limits)


def _hardware_limit(options: Options) -> str:
    unsaid = "speed" if options.compile_for else "speed or about what a vendor's compiler emits (--compile-for)"
    return f"simulated ranks: nothing ran on hardware, nothing is said about {unsaid}"


def finding_weights(log: FindingLog, profile: str) -> Mapping[str, list[Finding]]:
    """Findings sorted by what they do to the verdict: "fails" (errors first), "hazards" and "notes"."""
    sorted_out: dict[str, Any] = {"fails": [], "hazards": [], "notes": []}
    for finding in sorted(log, key=lambda found: list(Severity).index(found.severity)):
        kind = "fails" if finding.fails(profile) else "hazards" if finding.severity is Severity.HAZARD else "notes"
        sorted_out[kind].append(finding)
    return sorted_out
