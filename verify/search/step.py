"""The search step of a mode: the runs of its plan, one after another, each judged by findings and outputs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Protocol

from tdist.verify.attempts import Attempt, attempt
from tdist.verify.rank_job import LaunchResult
from tdist.verify.replay.sightings import output_digests
from tdist.verify.results import SearchRun, StepResult
from tdist.verify.search.plan import Planned
from tdist.verify.suppressions import Suppression, accept
from tdist.verify.worlds import Runner, WorldResult

SEARCH = "search"
STOPPED_ALIKE = 3
"""If so many runs have stopped early and none has not, the rest is left out: they would stop as well."""
_Outputs = Sequence[list[LaunchResult] | None]


RERUN_FROM = 64
"""A plan of so many runs is worth recording what hosts ask for, and leaving them out."""


class Ahead(Protocol):
    """Who makes runs before they are asked for."""

    def take(self, planned: Planned) -> WorldResult | None:
        """The result of a run, None if it has not been made."""
        ...


def search(
    runner: Runner, plan: Sequence[Planned], suppressions: Sequence[Suppression] = (), ahead: Ahead | None = None
) -> StepResult:
    """Run a plan; what a run found is a result, also where it could not finish.

    Args:
        ahead: results of runs that somebody has made; those that show nothing are taken.
    """
    begin = time.monotonic()
    runs: list[SearchRun] = []
    outputs: dict[str, _Outputs] = {}
    broken: Attempt | None = None
    for asked in plan:
        planned = measured(asked, runs)
        done = ahead.take(planned) if ahead is not None else None
        taken = judged(planned, Attempt(done), outputs) if done is not None else None
        if taken is not None and taken.passed("seed"):
            runs.append(replace(taken, findings=accept(taken.findings, suppressions)))
            continue
        made = attempt(runner, planned.spec)
        findings = accept(made.world.findings, suppressions)
        runs.append(judged(planned, replace(made, world=replace(made.world, findings=findings)), outputs))
        if made.exit_code > 1 or (made.world.error and not findings):
            broken = made
            break
        if _all_stop(runs):
            break
    return StepResult(
        SEARCH,
        findings=tuple(finding for run in runs for finding in run.findings),
        error=f"{runs[-1].planned.name}: {broken.world.error}" if broken else "",
        exit_code=broken.exit_code if broken else 1,
        seconds=time.monotonic() - begin,
        runs=tuple(runs),
        left_out=tuple(plan[len(runs) :]),
    )


def measured(planned: Planned, runs: Sequence[SearchRun]) -> Planned:
    """The same run; `pct` is told how many choices there are: those of the first run and a quarter more.

    A guessed number would divide the bound of each run by 20 · 2^(depth-1).
    """
    name, _, parameters = planned.schedule.partition(":")
    length = len(runs[0].choices) if runs else 0
    if name != "pct" or "steps=" in parameters or not length:
        return planned
    schedule = f"pct:{parameters}{',' if parameters else ''}steps={length * 5 // 4}"
    return replace(planned, schedule=schedule, spec=planned.spec.with_world(scheduler=schedule))


def _all_stop(runs: Sequence[SearchRun]) -> bool:
    return len(runs) >= STOPPED_ALIKE and all(run.error for run in runs)


def judged(planned: Planned, made: Attempt, outputs: dict[str, _Outputs]) -> SearchRun:
    """What is to be said of a run; notes the outputs of a run that others have to agree with."""
    world = made.world
    if planned.like == planned.name:
        outputs[planned.name] = world.ranks
        differences = tuple(_not_golden(world.ranks))
    else:
        differences = tuple(_unlike(outputs.get(planned.like, ()), world.ranks))
    digests = output_digests(world.ranks)
    return SearchRun(planned, world.findings, differences, world.error, world.choices, digests)


def _not_golden(ranks: _Outputs) -> Iterator[str]:
    for rank, launch, result in _launches(ranks):
        for name, comparison in result.comparisons.items():
            if not comparison.passed:
                wrong = f"{len(comparison.wrong_tiles)} of {comparison.tiles} tiles"
                yield f"rank {rank} launch {launch} {name}: {wrong} are not the golden's"


def _unlike(expected: _Outputs, got: _Outputs) -> Iterator[str]:
    reference = {(rank, launch): result.checksums for rank, launch, result in _launches(expected)}
    for rank, launch, result in _launches(got):
        for name, sums in _unequal(reference.get((rank, launch), {}), result.checksums):
            yield f"rank {rank} launch {launch} {name}: {sums} are not those of the run that it has to agree with"


def _unequal(expected: Mapping[str, list[int]], got: Mapping[str, list[int]]) -> Iterator[tuple[str, str]]:
    for name in expected.keys() & got.keys():
        wrong = sum(one != other for one, other in zip_longest(expected[name], got[name]))
        if wrong:
            yield name, f"{wrong} of {len(expected[name])} tiles"


def _launches(ranks: _Outputs) -> Iterator[tuple[int, int, LaunchResult]]:
    for rank, launches in enumerate(ranks):
        for launch, result in enumerate(launches or ()):
            yield rank, launch, result


def found_by(runs: Iterable[SearchRun], key: tuple) -> list[str]:
    """Names of the runs that met a finding of this key."""
    return [run.planned.name for run in runs if any(finding.key == key for finding in run.findings)]
