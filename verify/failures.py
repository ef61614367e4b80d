"""The first failing run of each distinct defect, for replay files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tdist.findings import Finding
from tdist.verify.replay.sightings import output_digests
from tdist.verify.results import Failure, ModeResult, SearchRun, StepResult
from tdist.verify.worlds import RunSpec


@dataclass(frozen=True)
class _Run:
    spec: RunSpec
    findings: tuple[Finding, ...]
    wrong: bool
    error: str
    name: str
    outputs: tuple[Mapping[str, str], ...]


def failures_of(modes: Sequence[ModeResult], profile: str) -> tuple[Failure, ...]:
    """For each finding that fails, and for wrong outputs with no finding to say why, the first run that has it.

    Runs of the search step come first: their shape is small. A defect is a finding's key; wrong outputs without failing
    findings count as one defect a mode and element type.
    """
    seen: set[tuple] = set()
    failures: list[Failure] = []
    for result in modes:
        for run in _runs(result):
            failing = tuple(finding for finding in run.findings if finding.fails(profile))
            defects = {finding.key for finding in failing} or _unexplained(result, run)
            if defects - seen:
                seen |= defects
                failures.append(Failure(run.spec, failing, run.wrong, run.error, run.name, run.outputs))
    return tuple(failures)


def _unexplained(result: ModeResult, run: _Run) -> set[tuple]:
    wrong = run.wrong or bool(run.error)
    return {("wrong" if run.wrong else "stopped", result.dtype, result.mode.name)} if wrong else set()


def _runs(result: ModeResult) -> Iterator[_Run]:
    """All runs of a mode that were made, those of the search step first.

    A run that the machine or the request stopped says nothing of the operator: made again, it would show nothing.
    """
    for step in sorted(result.steps, key=lambda step: not step.runs):
        stopped = bool(step.error) and step.exit_code > 1
        yield from _searched(step.runs[:-1] if stopped else step.runs)
        if step.spec is not None and not step.skipped and not stopped:
            yield _single(step, step.spec)


def _searched(runs: Iterable[SearchRun]) -> Iterator[_Run]:
    for run in runs:
        spec = run.planned.spec.with_world(choices=run.choices) if run.choices else run.planned.spec
        yield _Run(spec, run.findings, bool(run.differences), run.error, run.planned.name, run.outputs)


def _single(step: StepResult, spec: RunSpec) -> _Run:
    wrong = not all(comparison.passed for *_, comparison in step.comparisons())
    return _Run(spec, step.findings, wrong, step.error, step.name, output_digests(step.ranks))
