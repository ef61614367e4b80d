"""Running an operator in its modes and collecting what came out.

Each mode has four steps; each run has a world of its own:

- *exact*: integer inputs, equality with the golden;
- *poison*: the same with other bytes in memory that nobody wrote; outputs have to agree bit by bit;
- *float*: normal inputs, the numerical policy;
- *search*: integer inputs of a small shape under many schedules, in the situations that the operator's contract allows.

A step that cannot finish ends its mode; what was found until then is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tdist.findings import Finding, Party, make
from tdist.platforms.sim.process.boot import Boot
from tdist.verify.attempts import attempt
from tdist.verify.failures import failures_of
from tdist.verify.loader import absolute_spec
from tdist.verify.modes import Mode, modes_for
from tdist.verify.operator import Case, Operator, check_nranks, format_shape
from tdist.verify.options import Options
from tdist.verify.rank_job import Job, LaunchResult, tile_elements
from tdist.verify.results import Failure, ModeResult, Report, StepResult, finding_weights
from tdist.verify.search.beside import Beside, beside
from tdist.verify.search.plan import plan, setting_of
from tdist.verify.search.situations import SITUATIONS, not_run
from tdist.verify.search.step import RERUN_FROM, SEARCH, search
from tdist.verify.suppressions import Suppression, accept, suppressions_of
from tdist.verify.worlds import POISONS, Runner, RunSpec, ThreadRunner, open_runner, world_config

if TYPE_CHECKING:
    from tdist.verify.compile_for import Compiled
    from tdist.verify.tracing import Tracing

__all__ = ["Failure", "ModeResult", "Observer", "Report", "StepResult", "finding_weights", "verify"]

POISON_LAUNCHES = 2
"""Launches of the exact step that the poison step repeats: one meets fresh memory, one a used workspace."""


class Observer:
    """Hears about a run while it lasts; this one does nothing with it."""

    def started(self, operator: Operator, options: Options, case: Case) -> None:
        """The request has been checked; nothing has run."""

    def step_started(self, dtype: str, mode: Mode, step: str) -> None:
        """A step begins; its world is about to be made."""

    def exploring(self, runs: int, left: int) -> None:
        """So many schedules of the exhaustive step have been run, and at least so many are left."""

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
    tracing: Tracing | None = None,
) -> Report:
    """Run `operator` as `options` say.

    Args:
        in_process: threads instead of rank processes; the golden is then the operator's local one.
        boot: a fork server for the rank processes that was started ahead.
        observer: hears about each step and mode while the run lasts.
        keep_ir: gets the text of every stage of what is compiled (`Options.compile_for`).
        tracing: gets the trace of the first run, the exact step of the first mode.

    Raises:
        UsageError: options that the operator does not take.
        EnvironmentUnfit: the machine cannot run the worlds.
    """
    options.check()
    check_nranks(options.nranks)
    if options.compile_for:
        from tdist.platforms.ascend.toolchain import check_here

        check_here()
    cases, suppressions = _cases(operator, options), suppressions_of(operator, options)
    started, begin = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    modes: list[ModeResult] = []
    watching = observer or Observer()
    watching.started(operator, options, cases[0])
    plans = [plan(operator, options, mode, case.dtype) for case in cases for mode in _modes(operator, options)]
    with (
        beside(operator, options, plans, wanted=not in_process) as helper,
        open_runner(operator, options, in_process, boot) as opened,
    ):
        runner = tracing.around(opened) if tracing is not None else opened
        for case in cases:
            for mode in _modes(operator, options):
                mine = replace(case, sync=mode.protocol)
                modes.append(_run_mode(runner, operator, options, mine, mode, watching, helper))
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
        failures_of(modes, options.profile),
        suppressions,
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


def _modes(operator: Operator, options: Options) -> tuple[Mode, ...]:
    return modes_for(operator, options.sync, options.scheduler)


def _cases(operator: Operator, options: Options) -> tuple[Case, ...]:
    dtypes = options.dtype or operator.dtypes[:1]
    shape = dict(options.shape)
    return tuple(operator.case(dtype=d, nranks=options.nranks, shape=shape, seed=options.seed) for d in dtypes)


def _run_mode(
    runner: Runner,
    operator: Operator,
    options: Options,
    case: Case,
    mode: Mode,
    observer: Observer,
    helper: Beside | None,
) -> ModeResult:
    suppressions = suppressions_of(operator, options)
    steps: list[StepResult] = []
    for name, spec in _specs(operator, options, case, mode):
        why = _stop_there(steps, options.profile, name)
        if why:
            steps.append(StepResult(name, skipped=why))
            continue
        observer.step_started(case.dtype, mode, name)
        steps.append(_step(name, runner, spec, suppressions))
        if name == "poison":
            steps[1] = judge_poison(steps[0], steps[1], operator, suppressions)
    if options.search:
        steps.append(_search(runner, operator, options, case, mode, steps, observer, helper))
    if options.explores:
        steps.append(_explore(runner, operator, options, mode, steps, observer, case.dtype))
    return ModeResult(case.dtype, mode, tuple(steps))


def _specs(operator: Operator, options: Options, case: Case, mode: Mode) -> Iterator[tuple[str, RunSpec]]:
    """The steps of a mode that are one run each."""
    spec = absolute_spec(options.operator or operator.name)
    launches = options.launches if operator.relaunchable else 1
    exact = Job(spec, case, launches, policy="exact")
    policy = options.chosen_policy or operator.policy
    rtol = operator.rtol if options.rtol is None else options.rtol
    atol = operator.atol if options.atol is None else options.atol
    poisoned = replace(exact, launches=min(launches, POISON_LAUNCHES), judge=False)
    floats = Job(spec, replace(case, fill="float"), policy=policy, rtol=rtol, atol=atol)
    yield "exact", RunSpec(exact, world_config(options, mode, POISONS[0]))
    yield "poison", RunSpec(poisoned, world_config(options, mode, POISONS[1]))
    yield "float", RunSpec(floats, world_config(options, mode, POISONS[0]))


def _stop_there(steps: Sequence[StepResult], profile: str, name: str) -> str:
    """Why a step is not run after these; empty if it is. A search finds what else is wrong than what stops a run."""
    if not steps or not steps[0].error:
        return ""
    exact = steps[0]
    explained = exact.exit_code == 1 and any(finding.fails(profile) for finding in exact.findings)
    host = any(finding.kind == "tdist.host-error" for finding in exact.findings)
    return "" if name == SEARCH and explained and not host else "the exact step did not finish"


def _search(
    runner: Runner,
    operator: Operator,
    options: Options,
    case: Case,
    mode: Mode,
    steps: Sequence[StepResult],
    observer: Observer,
    helper: Beside | None,
) -> StepResult:
    why = _stop_there(steps, options.profile, SEARCH)
    if why:
        return StepResult(SEARCH, skipped=why)
    observer.step_started(case.dtype, mode, SEARCH)
    planned, suppressions = plan(operator, options, mode, case.dtype), suppressions_of(operator, options)
    if len(planned) >= RERUN_FROM:
        from tdist.verify.search.explore import Rerunner

        return search(Rerunner(operator, runner), planned, suppressions, helper)
    if isinstance(runner, ThreadRunner):
        from tdist.verify.search.recorded import RecordedRuns

        recorded = RecordedRuns(operator, options)
        return search(recorded, planned, suppressions, recorded)
    return search(runner, planned, suppressions, helper)


def _explore(
    runner: Runner,
    operator: Operator,
    options: Options,
    mode: Mode,
    steps: Sequence[StepResult],
    observer: Observer,
    dtype: str,
) -> StepResult:
    from tdist.verify.search.exhaustive import EXHAUSTIVE, explore_operator

    why = _stop_there(steps, options.profile, SEARCH)
    if why:
        return StepResult(EXHAUSTIVE, skipped=why)
    observer.step_started(dtype, mode, EXHAUSTIVE)
    suppressions = suppressions_of(operator, options)
    return explore_operator(runner, operator, options, mode, dtype, suppressions, observer.exploring)


def _step(name: str, runner: Runner, spec: RunSpec, suppressions: Sequence[Suppression]) -> StepResult:
    begin = time.monotonic()
    made = attempt(runner, spec)
    world, seconds = made.world, time.monotonic() - begin
    findings = accept(world.findings, suppressions)
    spec = spec.with_world(choices=world.choices) if world.choices else spec
    return StepResult(name, world.ranks, findings, world.error, made.exit_code, seconds=seconds, spec=spec)


def judge_poison(
    exact: StepResult, poison: StepResult, operator: Operator, suppressions: Sequence[Suppression] = ()
) -> StepResult:
    """Add a finding for each output that depends on memory that nobody wrote."""
    if exact.error or poison.error or poison.skipped:
        return poison
    found = []
    for rank, (first, second) in enumerate(zip(exact.ranks, poison.ranks, strict=True)):
        for launch, (one, other) in enumerate(zip(first or (), second or (), strict=False)):
            for output in one.checksums:
                found += _differences(operator, rank, launch, output, one, other)
    return replace(poison, findings=poison.findings + accept(found, suppressions))


def _differences(
    operator: Operator, rank: int, launch: int, output: str, one: LaunchResult, other: LaunchResult
) -> list[Finding]:
    sums = list(zip(one.checksums[output], other.checksums[output], strict=True))
    tiles = [index for index, (first, second) in enumerate(sums) if first != second]
    if not tiles:
        return []
    tiling = one.tilings.get(output)
    elements = f", elements {tile_elements(*tiling, tiles[0])}" if tiling else ""
    where = f"{len(tiles)} of {len(sums)} tiles, the first is tile {tiles[0]} in row-major order{elements}"
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
    limits = [
        f"{_schedules_seen(options, modes)}: other interleavings were not run{_explored(modes)}",
        _launches_seen(operator, options),
        *_situations_missed(operator, options, modes),
        _shapes_seen(operator, options, modes),
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


def _schedules_seen(options: Options, modes: Sequence[ModeResult]) -> str:
    """Which schedules were run: of the asked-for shape one a mode, of the search step's those of its plan."""
    names = sorted({result.mode.schedule for result in modes})
    one = f"one schedule each of {', '.join(names)}" if len(names) > 1 else f"one {names[0]} schedule"
    searched = sum(len(step.runs) for result in modes for step in result.steps if step.explored is None)
    more = f", {searched} runs of the search step" if searched else ""
    return f"{one} at seed {options.seed}{more}"


def _explored(modes: Sequence[ModeResult]) -> str:
    """But for the exhaustive step's case, as far as that came."""
    found = [step.explored for result in modes for step in result.steps if step.explored is not None]
    if not found:
        return ""
    return ", but for the exhaustive step's case" if all(each.complete for each in found) else ", nor all of one case"


def _shapes_seen(operator: Operator, options: Options, modes: Sequence[ModeResult]) -> str:
    """The one shape that was asked for, and the small ones of the search step."""
    asked = format_shape({**operator.shape, **options.shape})
    by_step: dict[str, dict[str, None]] = {}
    for step in (step for result in modes for step in result.steps if step.runs):
        shapes = (format_shape(run.planned.spec.job.case.shape) for run in step.runs)
        by_step.setdefault(step.name, {}).update(dict.fromkeys(shapes))
    more = "".join(f", and in the {name} step {' and '.join(shapes)}" for name, shapes in by_step.items())
    depends = "faults that depend on the shape, such as 64-byte lines that two ranks share, may show at another"
    return f"one shape: {asked}{more}: {depends} (--shape)"


def _situations_missed(operator: Operator, options: Options, modes: Sequence[ModeResult]) -> list[str]:
    """Situations that no search step met, with the reason."""
    fine = next((result.mode for result in modes if result.mode.name == "fine"), None)
    if not options.search:
        return ["no search step (--no-search): one schedule a mode, no situation but launches"]
    if fine is None:
        return ["the situations of the search step belong to the fine mode (--sync)"]
    reasons = not_run(setting_of(operator, options, fine, modes[0].dtype))
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(f"{SITUATIONS[name].title} ({name})")
    return [f"not met: {', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def _hardware_limit(options: Options) -> str:
    unsaid = "speed" if options.compile_for else "speed or about what a vendor's compiler emits (--compile-for)"
    return f"simulated ranks: nothing ran on hardware, nothing is said about {unsaid}"
