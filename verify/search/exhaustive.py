"""The exhaustive step of a mode: all inequivalent schedules of the operator's small shape (`--schedule exhaustive`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tdist.errors import UsageError
from tdist.platforms.sim.explore.exhaustive import EXHAUSTIVE, Exploration, Limits, Progress
from tdist.platforms.sim.explore.rerun import RerunResult
from tdist.verify.attempts import Attempt, attempt
from tdist.verify.modes import Mode
from tdist.verify.operator import Operator
from tdist.verify.options import Options
from tdist.verify.results import SearchRun, StepResult
from tdist.verify.search.explore import NotRecordable, Rerunner, explore_job
from tdist.verify.search.plan import BASE, Planned, setting_of
from tdist.verify.search.step import judged
from tdist.verify.suppressions import Suppression, accept
from tdist.verify.worlds import Runner, RunSpec

JUDGED_SCHEDULES = ("run-to-block", "max-sync")
"""Tried in turn until one gives the golden's outputs."""
_ERROR_OPERATOR, _ERROR_REQUEST = 1, 2


def explore_operator(
    runner: Runner,
    operator: Operator,
    options: Options,
    mode: Mode,
    dtype: str,
    suppressions: Sequence[Suppression] = (),
    progress: Progress | None = None,
) -> StepResult:
    """Run one schedule of each class, the first of them judged by the golden.

    The step's runs are that one and, of all others, the first with each outcome and each finding.
    """
    begin = time.monotonic()
    spec = setting_of(operator, options, mode, dtype).base.with_world(seed=0)
    outputs: dict[str, Any] = {}
    runs, made = _judged_first(runner, spec, outputs, suppressions)
    name = runs[-1].planned.name
    if made.exit_code > 1 or (runs[-1].error and not runs[-1].findings):
        return StepResult(EXHAUSTIVE, error=runs[-1].error, exit_code=made.exit_code, runs=tuple(runs))
    rerunner = Rerunner(operator)
    try:
        explored = explore_job(rerunner, spec, Limits.of(options.schedule), progress)
    except (NotRecordable, UsageError) as why:
        return _unexplored(runs, why, options.profile, time.monotonic() - begin)
    for number, result in enumerate(_telling(explored)):
        planned = Planned(f"{EXHAUSTIVE}/{number}", BASE, EXHAUSTIVE, 0, spec, name)
        runs.append(_run_of(planned, Attempt(rerunner.result_of(spec.job, result)), outputs, suppressions))
    return StepResult(
        EXHAUSTIVE,
        findings=tuple(finding for run in runs for finding in run.findings),
        seconds=time.monotonic() - begin,
        runs=tuple(runs),
        explored=explored,
    )


def _unexplored(runs: Sequence[SearchRun], why: Exception, profile: str, seconds: float) -> StepResult:
    """What the judged runs found stands: a fault that keeps schedules from being explored is the operator's."""
    return StepResult(
        EXHAUSTIVE,
        findings=tuple(finding for run in runs for finding in run.findings),
        error=f"not explored: {why}",
        exit_code=_ERROR_REQUEST if all(run.passed(profile) for run in runs) else _ERROR_OPERATOR,
        seconds=seconds,
        runs=tuple(runs),
    )


def _judged_first(
    runner: Runner, spec: RunSpec, outputs: dict[str, Any], suppressions: Sequence[Suppression]
) -> tuple[list[SearchRun], Attempt]:
    """Runs that the golden judges, the last of them, where there is one, with the outputs that others have to have."""
    runs: list[SearchRun] = []
    made = None
    for schedule in JUDGED_SCHEDULES:
        name = f"{EXHAUSTIVE}/golden, {schedule}"
        whole = replace(spec, job=replace(spec.job, judge=True)).with_world(scheduler=schedule)
        made = attempt(runner, whole)
        runs.append(_run_of(Planned(name, BASE, schedule, 0, whole, name), made, outputs, suppressions))
        if not (runs[-1].differences or runs[-1].error) or made.exit_code > 1:
            break
    assert made is not None
    return runs, made


def _telling(explored: Exploration) -> list[RerunResult]:
    """The first run of each outcome and of each finding."""
    runs = [*explored.outcomes.values(), *(seen.run for seen in explored.findings)]
    return list({run.choices: run for run in runs}.values())


def _run_of(planned: Planned, made: Attempt, outputs: dict[str, Any], suppressions: Sequence[Suppression]) -> SearchRun:
    world = replace(made.world, findings=accept(made.world.findings, suppressions))
    return judged(planned, replace(made, world=world), outputs)


__all__ = ["explore_operator"]
