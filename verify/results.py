"""What a verification run found out, as values: runs, steps, modes, the whole report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tdist.findings import Finding, FindingLog, Severity
from tdist.verify.modes import Mode
from tdist.verify.operator import Case
from tdist.verify.options import Options
from tdist.verify.policies import Comparison
from tdist.verify.rank_job import LaunchResult
from tdist.verify.search.plan import Planned
from tdist.verify.suppressions import Suppression
from tdist.verify.worlds import RunSpec

if TYPE_CHECKING:
    from tdist.platforms.sim.explore.exhaustive import Exploration
    from tdist.verify.compile_for import Compiled


@dataclass(frozen=True)
class SearchRun:
    """One run of a search step.

    Attributes:
        differences: outputs that are not those of the run that it has to agree with, in words; of a run that is judged
            by the golden, outputs that are not the golden's.
        error: why it stopped early; empty if it did not.
        choices: what the scheduler chose, for a replay.
        outputs: digests of outputs by rank, for a replay.
    """

    planned: Planned
    findings: tuple[Finding, ...] = ()
    differences: tuple[str, ...] = ()
    error: str = ""
    choices: tuple[int, ...] = ()
    outputs: tuple[Mapping[str, str], ...] = ()

    def passed(self, profile: str) -> bool:
        """Whether nothing speaks against it."""
        return not (self.differences or self.error or any(finding.fails(profile) for finding in self.findings))


@dataclass(frozen=True)
class StepResult:
    """One step of one mode.

    Attributes:
        skipped: why it was not run; empty if it was.
        error: why it could not finish; empty if it did.
        exit_code: whose fault that was, as `tdist.errors` counts: 1 the operator's, 2 a wrong request, 3 the machine.
        seconds: wall time.
        spec: the run with its choices; None for the search step, whose runs have their own.
        runs: of the search step, in the order of the plan.
        left_out: runs of the plan that were not made.
        explored: of the exhaustive step, which runs there were; `runs` are those that tell something.
    """

    name: str
    ranks: tuple[list[LaunchResult] | None, ...] = ()
    findings: tuple[Finding, ...] = ()
    error: str = ""
    exit_code: int = 1
    skipped: str = ""
    seconds: float = 0.0
    spec: RunSpec | None = None
    runs: tuple[SearchRun, ...] = ()
    left_out: tuple[Planned, ...] = ()
    explored: Exploration | None = None

    def comparisons(self) -> Iterator[tuple[int, int, str, Comparison]]:
        """(rank, launch, output, comparison) of everything that was compared."""
        for rank, launches in enumerate(self.ranks):
            for launch, result in enumerate(launches or ()):
                for output, comparison in result.comparisons.items():
                    yield rank, launch, output, comparison

    def passed(self, profile: str) -> bool:
        """Whether nothing speaks against it; a step that was skipped passes nothing and fails nothing."""
        judged = all(comparison.passed for *_, comparison in self.comparisons())
        judged = judged and not any(run.differences or run.error for run in self.runs)
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
        outputs: digests of outputs by rank.
    """

    spec: RunSpec
    findings: tuple[Finding, ...] = ()
    wrong: bool = False
    error: str = ""
    found_by: str = ""
    outputs: tuple[Mapping[str, str], ...] = ()


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
    suppressions: tuple[Suppression, ...] = ()

    @property
    def log(self) -> FindingLog:
        """All findings of all modes, each defect once."""
        log = FindingLog()
        for result in self.modes:
            log.merge(result.log)
        return log

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
    def would_fail_under_ascend(self) -> list[Finding]:
        """Hazards that the profile of this run lets pass; suppressed ones would not fail either."""
        return finding_weights(self.log, self.options.profile)["hazards"]

    @property
    def exit_code(self) -> int:
        """0 verified, else the gravest reason why not."""
        return max(self.simulated_exit_code, self.compiled.exit_code if self.compiled else 0)

    @property
    def simulated_exit_code(self) -> int:
        """The same of what ran on simulated ranks alone."""
        broken = [step.exit_code for result in self.modes for step in result.steps if step.error]
        return 0 if self.simulated else max([1, *broken])


def finding_weights(log: FindingLog, profile: str) -> Mapping[str, list[Finding]]:
    """Findings sorted by what they do to the verdict: "fails" (errors first), "hazards" and "notes"."""
    sorted_out: dict[str, Any] = {"fails": [], "hazards": [], "notes": []}
    for finding in sorted(log, key=lambda found: list(Severity).index(found.severity)):
        kind = "fails" if finding.fails(profile) else "hazards" if finding.severity is Severity.HAZARD else "notes"
        sorted_out[kind].append(finding)
    return sorted_out
