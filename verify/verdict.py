"""Is it a synchronisation bug, or a computation or mask bug? Findings first, then the table of modes and schedules.

A finding names its cause. Where wrong outputs are all there is, the schedules decide: what is wrong under some and
right under others is a matter of order; what is wrong in the same tiles under all, also with every operation drained
and everybody waiting for everybody, is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdist.findings import Finding, Severity
from tdist.findings.kinds import PREFIX

if TYPE_CHECKING:
    from tdist.verify.results import ModeResult, Report, SearchRun, StepResult

SYNCHRONISATION = "synchronisation bug"
COMPUTATION = "computation or mask bug"
BOTH = "both"
UNDECIDED = "undecided"
_NEITHER = "neither"
_SHOWN = 4

_COMPUTATION_KINDS = ("out-of-bounds", "pointer-misuse", "canary", "uninitialised", "arithmetic", "kernel-assert")
_NEITHER_KINDS = ("host-error", "asymmetric-alloc", "grid-too-large", "compiled.not-understood")
_SYNCHRONISATION_KINDS = (
    "race",
    "hazard.undrained-release",
    "hazard.stale-cache",
    "hazard.hidden-alias",
    "hazard.atomic-lock",
    "hazard.atomic-edge",
    "hazard.atomic-turn",
    "hazard.double-effect",
    "deadlock",
    "endless-loop",
    "barrier-divergence",
    "lost-wait",
    "merged-wait",
    "concurrent-set",
    "line-sharing",
    "overshoot",
    "short-signal",
    "width-mismatch",
    "compiled.both-cores",
    "compiled.both-vector-cores",
    "compiled.split-store",
    "compiled.wrong-core",
    "compiled.lost-effect",
    "compiled.merged-effect",
    "compiled.repeated-effect",
    "compiled.moved-effect",
    "compiled.lock-atomic",
    "compiled.lock-turn",
    "compiled.undrained-release",
    "compiled.undrained-transfer",
    "compiled.cross-core",
    "compiled.stale-cache",
    "compiled.pipe-order",
    "compiled.unpaired-flag",
)
_COMPILED_COMPUTATION = ("compiled.widened-store", "compiled.staging-overlap", "compiled.translated-twice")
GROUPS: Mapping[str, str] = {
    **{PREFIX + name: SYNCHRONISATION for name in _SYNCHRONISATION_KINDS},
    **{PREFIX + name: COMPUTATION for name in (*_COMPUTATION_KINDS, *_COMPILED_COMPUTATION)},
    **{PREFIX + name: _NEITHER for name in _NEITHER_KINDS},
}
"""Which class of bug each kind of finding speaks for; a launch or host that is wrong speaks for neither."""


@dataclass(frozen=True)
class Verdict:
    """What kind of bug a failed run shows.

    Attributes:
        kind: one of the four constants of this module.
        evidence: a line each, the strongest first.
    """

    kind: str
    evidence: tuple[str, ...] = ()


def judge(report: Report) -> Verdict | None:
    """The verdict on what ran on simulated ranks; None if nothing failed there."""
    if report.simulated or not report.modes:
        return None
    profile = report.options.profile
    unfit = [step.error for result in report.modes for step in result.steps if step.error and step.exit_code > 1]
    if unfit:
        return Verdict(UNDECIDED, (f"a step could not be run: {unfit[0]}",))
    failing = report.log.failing(profile)
    return _by_findings(report, failing) if failing else _by_table(report)


# ------------------------------------------------------------------ findings


def _by_findings(report: Report, failing: Sequence[Finding]) -> Verdict:
    groups: dict[str, list[Finding]] = {}
    for finding in failing:
        groups.setdefault(group_of(finding), []).append(finding)
    evidence = [_finding_line(group, groups[group]) for group in _ABOUT if group in groups]
    sync, compute = SYNCHRONISATION in groups, COMPUTATION in groups
    if sync and compute:
        if not _stands_alone(report, groups[COMPUTATION]):
            follows = "the others were met only where these were met as well: they may follow from them"
            return Verdict(SYNCHRONISATION, (*evidence, follows))
        return Verdict(BOTH, tuple(evidence))
    if sync:
        same = _same_everywhere(report, unchanged=True)
        kind, more = (BOTH, [same]) if same else (SYNCHRONISATION, _order_matters(report))
        return Verdict(kind, (*evidence, *more))
    if compute:
        return Verdict(COMPUTATION, tuple(evidence))
    return Verdict(UNDECIDED, tuple(evidence))


def group_of(finding: Finding) -> str:
    """Which class of bug a finding speaks for.

    Two programs of one launch that store the same elements at one line of the source are not a matter of order: no
    signal lies between the two, so their tiles are not meant to overlap. A wait on a word that nobody initialised is
    about the protocol, not about values.
    """
    if finding.kind == "tdist.uninitialised" and any(party.op == "wait" for party in finding.parties):
        return SYNCHRONISATION
    return COMPUTATION if _is_overlap(finding) else GROUPS[finding.kind]


def _is_overlap(finding: Finding) -> bool:
    if finding.kind != "tdist.race" or len(finding.parties) != 2:
        return False
    one, other = finding.parties
    same_line = one.file is not None and (one.file, one.line) == (other.file, other.line)
    stores = "store" in one.op and "store" in other.op
    return same_line and stores and (one.rank, one.launch) == (other.rank, other.launch)


_ABOUT = {
    SYNCHRONISATION: "about synchronisation",
    COMPUTATION: "about addresses, masks or values",
    _NEITHER: "about the host or the launch",
}


def _finding_line(group: str, findings: Sequence[Finding]) -> str:
    told = dict.fromkeys(_told(finding) for finding in findings)
    shown = "; ".join([*told][:_SHOWN])
    more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return f"findings {_ABOUT[group]}: {shown}{more}"


def _told(finding: Finding) -> str:
    places = ", ".join(dict.fromkeys(party.at for party in finding.parties if party.file))
    kind = "overlapping tiles" if _is_overlap(finding) else finding.kind.removeprefix(PREFIX)
    return f"{kind} ({places})" if places else kind


def _stands_alone(report: Report, computation: Sequence[Finding]) -> bool:
    """Whether a run met one of these without any failing finding about synchronisation that could be its cause."""
    profile, keys = report.options.profile, {finding.key for finding in computation}
    for findings, memory in _findings_by_run(report):
        failing = [finding for finding in findings if finding.fails(profile)]
        met = any(finding.key in keys for finding in failing)
        if met and not any(_may_change_values(finding, memory) for finding in failing):
            return True
    return False


def _may_change_values(finding: Finding, memory: str) -> bool:
    """Whether wrong values may follow from it. A hazard of the chip changes none in the simulator's plain memory."""
    harmless = finding.severity is Severity.HAZARD and memory != "adversarial"
    return group_of(finding) == SYNCHRONISATION and not harmless


def _findings_by_run(report: Report) -> Iterator[tuple[tuple[Finding, ...], str]]:
    """What each run met, and the memory that it had."""
    asked = report.options.memory
    for result in report.modes:
        for step in result.steps:
            if step.runs:
                yield from ((run.findings, run.planned.spec.world.get("memory", asked)) for run in step.runs)
            else:
                yield step.findings, asked


# ------------------------------------------------------------------ the table


def _by_table(report: Report) -> Verdict:
    stopped = [step.error for result in report.modes for step in result.steps if step.error]
    if stopped:
        return Verdict(UNDECIDED, (f"a step did not finish, with no finding that says why: {stopped[0]}",))
    order = _order_matters(report)
    same = _same_everywhere(report) or _same_under_all(report)
    if order:
        return Verdict(BOTH if same else SYNCHRONISATION, (*order, *([same] if same else ())))
    if same:
        return Verdict(COMPUTATION, (same,))
    return _float_only(report) or Verdict(UNDECIDED, _rows(report))


def _order_matters(report: Report) -> list[str]:
    """Evidence that outputs depend on the order in which things happen."""
    lines: list[str] = []
    for result in report.modes:
        runs = [run for step in result.steps for run in step.runs]
        unlike = [run for run in runs if run.differences and run.planned.like != run.planned.name]
        if unlike:
            names = ", ".join(run.planned.name for run in unlike[:_SHOWN])
            counted = f"outputs of {len(unlike)} of {len(runs)} search runs differ from the first"
            lines.append(f"{_mode(result)}: {counted}: {names}")
    for dtype in dict.fromkeys(result.dtype for result in report.modes):
        fine, barrier = _modes(report, dtype)
        if fine and barrier and _wrong_integers(fine) and not (_wrong_integers(barrier) or _unfinished(barrier)):
            lines.append(f"{dtype}: wrong in the fine mode, right with drained pipes and full synchronisation")
    return lines


def _same_everywhere(report: Report, unchanged: bool = False) -> str:
    """Evidence that the same tiles are wrong whatever the order; empty if there is none.

    Args:
        unchanged: leave out outputs that are others under some schedule of the search step: there a race may be all.
    """
    for dtype in dict.fromkeys(result.dtype for result in report.modes):
        fine, barrier = _modes(report, dtype)
        if not fine or not barrier:
            continue
        wrong = _wrong_tiles(fine)
        if wrong != _wrong_tiles(barrier):
            continue
        changed = _changed(fine) | _changed(barrier) if unchanged else set()
        wrong = {place: tiles for place, tiles in wrong.items() if (place[0], place[2]) not in changed}
        if wrong:
            tiles = sum(len(places) for places in wrong.values())
            return (
                f"{dtype}: the same {tiles} tiles of {len(wrong)} outputs are wrong in the fine mode and with drained "
                "pipes and full synchronisation"
            )
    return ""


def _same_under_all(report: Report) -> str:
    """The same where one mode alone was run: every schedule of its search step gives the same wrong outputs."""
    if len({result.mode.name for result in report.modes}) > 1:
        return ""
    for result in report.modes:
        runs = _searched(result)
        others = [run for run in runs if run.planned.like != run.planned.name]
        if others and runs[0].differences and not any(run.differences for run in others):
            return f"{_mode(result)}: {len(others)} other schedules give the same wrong outputs as the first"
    return ""


def _float_only(report: Report) -> Verdict | None:
    """Integers right and floats wrong: the values travel well, their arithmetic differs."""
    wrong = [result for result in report.modes if not all(c.passed for *_, c in _step(result, "float").comparisons())]
    if not wrong or any(_wrong_integers(result) for result in report.modes):
        return None
    modes = ", ".join(_mode(result) for result in wrong)
    return Verdict(COMPUTATION, (f"{modes}: integer inputs agree with the golden, normal ones do not: precision",))


def _rows(report: Report) -> tuple[str, ...]:
    """The table itself, for a reader who has to decide."""
    return tuple(
        f"{_mode(result)}: {'wrong' if _wrong_integers(result) else 'right'}, {_counted(result)}"
        for result in report.modes
    )


def _counted(result: ModeResult) -> str:
    runs = [run for step in result.steps for run in step.runs]
    wrong = len([run for run in runs if run.differences])
    return f"{wrong} of {len(runs)} search runs are wrong" if runs else "no search runs"


def _modes(report: Report, dtype: str) -> tuple[ModeResult | None, ModeResult | None]:
    named = {result.mode.name: result for result in report.modes if result.dtype == dtype}
    return named.get("fine"), named.get("barrier")


def _mode(result: ModeResult) -> str:
    return f"{result.dtype} {result.mode.name}"


def _step(result: ModeResult, name: str) -> StepResult:
    from tdist.verify.results import StepResult

    return next((step for step in result.steps if step.name == name), StepResult(name))


def _unfinished(result: ModeResult) -> bool:
    """Whether a mode says nothing, as its exact step did not finish."""
    exact = _step(result, "exact")
    return bool(exact.error or exact.skipped or not exact.ranks)


def _wrong_integers(result: ModeResult) -> bool:
    """Whether outputs of integer inputs are wrong in any run of a mode."""
    return bool(_wrong_tiles(result)) or any(run.differences for run in _searched(result))


def _searched(result: ModeResult) -> list[SearchRun]:
    return [run for step in result.steps for run in step.runs]


def _changed(result: ModeResult) -> set[tuple[int, str]]:
    """(rank, output) of which search runs that have to agree have several contents."""
    seen: dict[tuple[str, int, str], set[str]] = {}
    for run in _searched(result):
        for rank, outputs in enumerate(run.outputs):
            for output, digest in outputs.items():
                seen.setdefault((run.planned.like, rank, output), set()).add(digest)
    return {(rank, output) for (_, rank, output), digests in seen.items() if len(digests) > 1}


def _wrong_tiles(result: ModeResult) -> dict[tuple[int, int, str], tuple]:
    """Wrong tiles of the exact step by rank, launch and output."""
    rows = _step(result, "exact").comparisons()
    return {(rank, launch, output): c.wrong_tiles for rank, launch, output, c in rows if not c.passed}
