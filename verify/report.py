"""The report: a summary for the terminal and JSON for machines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tdist.findings import Finding, render
from tdist.verify.operator import Case, format_shape
from tdist.verify.policies import Comparison
from tdist.verify.results import ModeResult, Report, SearchRun, StepResult, finding_weights
from tdist.verify.search.plan_text import counted, pct_line, plan_lines
from tdist.verify.search.step import found_by
from tdist.verify.suppressions import is_suppressed, unused
from tdist.verify.verdict import judge

SCHEMA_VERSION = 2
SHOWN_TILES = 4
_VERDICTS = {"verified": "bold green", "failed": "bold red", "undecided": "bold yellow"}
COLUMNS = ("verdict", "policy", "worst error/allowed", "at", "got", "expected", "wrong tiles", "MERE", "MARE")
UNGATED = ("MERE", "MARE")
ALWAYS_WHOLE = ("verdict", "policy", "expected", "worst error/allowed")
WIDE = 100
"""From this many columns on a terminal shows figures that do not gate."""
DETAILS = ("policy", "got", "expected")
NARROW = 80
"""Below this many columns even the values of the worst element are left out."""
SHOWN_PLACES = 4
SHOWN_RUNS = 8
"""Failing search runs that are listed; the JSON has all."""


def render_report(report: Report, console: Console) -> None:
    """Print the summary: each mode with its ranks, findings, kind of bug, verdict, limits, seed and replay line."""
    render_head(report.operator, report.cases[0], console)
    for result in report.modes:
        render_mode(result, report.options.profile, console)
    render_conclusion(report, console)


def render_head(operator: str, case: Case, console: Console) -> None:
    """What is being run."""
    ranks = "1 rank" if case.nranks == 1 else f"{case.nranks} ranks"
    console.print(Text(f"{operator}  {format_shape(case.shape)}  {ranks}  seed {case.seed}", "bold"))


def render_conclusion(report: Report, console: Console) -> None:
    """What stands below the modes: findings, kind of bug, verdict, limits, seed and replay line."""
    _render_findings(report, console)
    _render_kind_of_bug(report, console)
    if report.compiled is not None:
        _render_compiled(report, console)
    runs = "1 run" if len(report.modes) == 1 else f"{len(report.modes)} runs"
    _line_of(console, *_headline(report), f"  {report.operator}, {runs} in {report.seconds:.1f} s")
    _render_remarks(report, console)
    console.print("Not seen by this run:", style="dim")
    for limit in _all_limits(report):
        _line(console, 2, f"- {limit}", "dim")
    console.print(f"seed {report.options.seed}; replay:")
    console.print(f"  {report.options.replay()}", soft_wrap=True, markup=False, highlight=False)


def _headline(report: Report) -> tuple[tuple[str, str], ...]:
    """The verdict, and under which profile it holds where hazards would turn it."""
    verdict, hazards = report.verdict.upper(), len(report.would_fail_under_ascend)
    if report.verdict != "verified" or not hazards:
        return ((verdict, _VERDICTS[report.verdict]),)
    which = f"under profile {report.options.profile}: {counted(hazards, 'hazard')} would fail --profile ascend"
    return ((f"{verdict} {which}", "bold yellow"),)


def _line_of(console: Console, *parts: str | tuple[str, str]) -> None:
    """One line of styled parts, whole whatever its length."""
    console.print(Text.assemble(*parts), soft_wrap=True)


def _render_kind_of_bug(report: Report, console: Console) -> None:
    """Synchronisation, or computation and masks, with the evidence."""
    bug = judge(report)
    if bug is None:
        return
    console.print(Text(f"kind of bug: {bug.kind}", "bold"))
    for line in bug.evidence:
        _line(console, 2, f"- {line}")


def _render_compiled(report: Report, console: Console) -> None:
    """What the vendor's compiler made of the kernels."""
    from tdist.platforms.ascend.gate_report import by_kernel, render_kernel, render_tools
    from tdist.verify.side_by_side import render_side_by_side

    assert report.compiled is not None
    console.print(Text(f"compiled for {', '.join(report.options.compile_for)}", "bold"))
    for note in report.compiled.notes:
        _line(console, 2, note, "red")
    if report.compiled.report is None:
        unfit = report.compiled.unfit
        _line(console, 2, f"environment: {unfit}" if unfit else "nothing was compiled", "red")
        return
    for kernel, results in by_kernel(report.compiled.report):
        render_kernel(kernel, results, console)
    render_tools(report.compiled.report, console)
    render_side_by_side(report, console)


def _all_limits(report: Report) -> list[str]:
    """What neither the simulated ranks nor the compiler could have shown."""
    from tdist.platforms.ascend.gate_report import limits

    compiled = report.compiled.report if report.compiled else None
    return [*report.limits, *(limits(compiled) if compiled else ())]


def _line(console: Console, indent: int, text: str, style: str = "") -> None:
    """One line, whole whatever its length."""
    console.print(Text(" " * indent + text, style), soft_wrap=True)


def render_mode(result: ModeResult, profile: str, console: Console) -> None:
    """One mode's verdict and steps."""
    passed = result.passed(profile)
    seconds = sum(step.seconds for step in result.steps)
    head = Text.assemble(
        ("PASS " if passed else "FAIL ", "green" if passed else "red"),
        (f"{result.dtype} {result.mode.name}", "bold"),
        f"  ({result.mode.axes})  {seconds:.1f} s",
    )
    console.print(head)
    for step in result.steps:
        _render_step(step, profile, console)


def _render_step(step: StepResult, profile: str, console: Console) -> None:
    if step.skipped:
        _line(console, 2, f"{step.name}: not run, {step.skipped}", "yellow")
        return
    told = next((finding for finding in step.findings if finding.kind == "tdist.host-error"), None)
    if step.error:
        why = step.error if told is None else told.title.removeprefix("host error on ")
        _line(console, 2, f"{step.name}: did not finish: {why}", "red")
    if step.runs:
        _render_search(step, profile, console)
        return
    rows = list(step.comparisons())
    if rows:
        console.print(Padding(_rank_table(step.name, rows, console.width), (0, 0, 0, 2), expand=False))
    for note in _notes(step):
        _line(console, 4, note)
    if not rows and not step.error:
        differ = any(finding.kind == "tdist.uninitialised" for finding in step.findings)
        verdict = "outputs depend on memory that nobody wrote" if differ else "outputs agree"
        _line(console, 2, f"{step.name}: {verdict}", "red" if differ else "")
    failing = len([finding for finding in step.findings if finding.fails(profile)])
    if failing:
        counted = "1 finding" if failing == 1 else f"{failing} findings"
        _line(console, 2, f"{step.name}: {counted}, see below", "red")


def _render_search(step: StepResult, profile: str, console: Console) -> None:
    """The runs of a search step: the plan by situation, and those that failed."""
    failed = [run for run in step.runs if not run.passed(profile)]
    verdict = f"{len(failed)} failed" if failed else "all agree"
    ran = str(step.explored) if step.explored is not None else counted(len(step.runs), "run")
    _line(console, 2, f"{step.name}: {ran}, {verdict}", "red" if failed else "")
    for line in plan_lines([run.planned for run in step.runs]) if step.explored is None else ():
        _line(console, 4, line)
    if promise := pct_line(run.planned for run in step.runs):
        _line(console, 4, promise)
    for run in failed[:SHOWN_RUNS]:
        _line(console, 4, f"{run.planned.name}: {_why_failed(run, profile)}", "red")
    if len(failed) > SHOWN_RUNS:
        _line(console, 4, f"and {len(failed) - SHOWN_RUNS} more; --json has them all", "red")
    if step.left_out:
        _line(console, 4, f"{counted(len(step.left_out), 'run')} of the plan left out after these", "yellow")


def _why_failed(run: SearchRun, profile: str) -> str:
    kinds = dict.fromkeys(found.kind.removeprefix("tdist.") for found in run.findings if found.fails(profile))
    outputs = (*run.differences[:1], *([f"and {len(run.differences) - 1} more"] if len(run.differences) > 1 else ()))
    return "; ".join(filter(None, (", ".join(kinds), " ".join(outputs), "" if kinds else run.error)))


def _notes(step: StepResult) -> list[str]:
    """What policies remark: each remark once, on failures with the places it holds for."""
    places: dict[str, list[str]] = {}
    for rank, launch, output, comparison in step.comparisons():
        for note in comparison.notes:
            mine = places.setdefault(note, [])
            mine += [] if comparison.passed else [f"rank {rank} launch {launch} {output}"]
    return [f"{step.name}: {note}{_listed(mine)}" for note, mine in places.items()]


def _listed(places: list[str]) -> str:
    if not places:
        return ""
    more = len(places) - SHOWN_PLACES
    return f" (fails on {', '.join(places[:SHOWN_PLACES])}{f' and {more} more' if more > 0 else ''})"


def _rank_table(name: str, rows: list[tuple[int, int, str, Comparison]], width: int) -> Table:
    """One row for each rank: the worst of its launches and outputs. A narrow terminal gets what decides."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    hidden = () if width >= WIDE else UNGATED if width >= NARROW else (*UNGATED, *DETAILS)
    titles = tuple(title for title in COLUMNS if title not in hidden)
    for title in (name, *titles):
        table.add_column(title, overflow="fold", min_width=len(title.split()[-1]) if title in ALWAYS_WHOLE else None)
    for rank in sorted({row[0] for row in rows}):
        mine = [row for row in rows if row[0] == rank]
        _, launch, output, worst = max(mine, key=lambda row: (not row[3].passed, row[3].worst_error))
        cells = _cells(worst, launch, output)
        table.add_row(f"rank {rank}", *(cells[title] for title in titles), style="" if worst.passed else "red")
    return table


def _cells(comparison: Comparison, launch: int, output: str) -> dict[str, str]:
    place = "" if comparison.worst_index is None else f"{output}{list(comparison.worst_index)} launch {launch}"
    values = [place, _number(comparison.got), _number(comparison.expected)]
    shown = values if comparison.worst_error or not comparison.passed else ["", "", ""]
    cells = [
        "pass" if comparison.passed else "FAIL",
        comparison.policy,
        _number(comparison.worst_error),
        *shown,
        _tiles(comparison),
        _number(comparison.metrics.get("mere")),
        _number(comparison.metrics.get("mare")),
    ]
    return dict(zip(COLUMNS, cells, strict=True))


def _tiles(comparison: Comparison) -> str:
    wrong = comparison.wrong_tiles
    if not wrong:
        return f"0 of {comparison.tiles}"
    listed = ", ".join(str(list(tile)) for tile in wrong[:SHOWN_TILES])
    return f"{len(wrong)} of {comparison.tiles}: {listed}{' …' if len(wrong) > SHOWN_TILES else ''}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _render_findings(report: Report, console: Console) -> None:
    """Each defect once over all modes, failing ones first."""
    log = report.log
    for findings in finding_weights(log, report.options.profile).values():
        for finding in findings:
            console.print()
            render(finding, console, count=log.count(finding))
            _render_found_by(report, finding, console)
    if len(log):
        console.print()


def _render_found_by(report: Report, finding: Finding, console: Console) -> None:
    """Who accepts a finding, and which search runs met it."""
    if is_suppressed(finding):
        why, by = finding.data["suppressed"], finding.data["suppressed_by"]
        _line(console, 2, f"suppressed by {by}: {why}", "cyan")
    runs = [run for result in report.modes for step in result.steps for run in step.runs]
    names = found_by(runs, finding.key)
    if names:
        _line(console, 2, f"search  met by {len(names)} of {counted(len(runs), 'run')}, first by {names[0]}")


def _render_remarks(report: Report, console: Console) -> None:
    """Below the verdict: what did not decide it, in a line each. A wait that the compiler deleted is easily missed."""
    _render_who_decided(report, console)
    weights = finding_weights(report.log, report.options.profile)
    for finding in (*weights["hazards"], *weights["notes"]):
        places = ", ".join(dict.fromkeys(party.at for party in finding.parties))
        accepted = f" (suppressed: {finding.data['suppressed']})" if is_suppressed(finding) else ""
        word = finding.data["suppressed_severity"] if accepted else finding.severity.value
        _line(console, 2, f"{word}, did not decide: {finding.title}; {places}{accepted}", "yellow")
    for suppression in unused(report.suppressions, report.log):
        _line(
            console, 2, f"unused suppression of {suppression.id} ({suppression.origin}): nothing to suppress", "yellow"
        )


def _render_who_decided(report: Report, console: Console) -> None:
    """Where the two judges differ, which of them it was."""
    if report.compiled is None or report.simulated == (report.compiled.exit_code == 0):
        return
    ranks = "verified" if report.simulated else "not verified"
    code = "not clean" if report.simulated else "clean"
    _line(console, 2, f"on simulated ranks: {ranks}; the compiled code: {code}", "yellow")


def report_json(report: Report) -> dict[str, Any]:
    """The report as JSON values.

    `would_fail_under_ascend` counts hazards that the profile of the run lets pass.

    Version 2 has the runs of the search step (`runs`, `left_out`, `found_by`), suppressions, and `kind_of_bug` for what
    was `diagnosis`.

    Times, the date and paths of the run stand in `run`, and source files in `file` fields; two runs of one version with
    one seed differ in nothing else. Numbers that JSON does not have are the strings "inf", "-inf" and "nan".
    """
    profile = report.options.profile
    return _strict(
        {
            "schema_version": SCHEMA_VERSION,
            "operator": report.operator,
            "verdict": report.verdict,
            "would_fail_under_ascend": len(report.would_fail_under_ascend),
            "options": report.options.to_json() | {"operator": report.operator},
            "cases": [{**asdict(case), "shape": dict(case.shape)} for case in report.cases],
            "modes": [_mode_json(result, profile) for result in report.modes],
            "kind_of_bug": _bug_json(report),
            "compiled": _compiled_json(report),
            "suppressions": [asdict(suppression) for suppression in report.suppressions],
            "unused_suppressions": [suppression.id for suppression in unused(report.suppressions, report.log)],
            "limits": list(report.limits),
            "run": {
                "started": report.started,
                "seconds": report.seconds,
                "step_seconds": dict(_step_seconds(report)),
                "source": report.source,
                "replay": report.options.replay(),
            },
        }
    )


def _bug_json(report: Report) -> dict[str, Any] | None:
    bug = judge(report)
    return asdict(bug) if bug else None


def _compiled_json(report: Report) -> dict[str, Any] | None:
    """What `tdist compile --json` writes, with notes of the recording runs; None where nothing was to be compiled."""
    if report.compiled is None:
        return None
    from tdist.platforms.ascend.gate_report import gate_json
    from tdist.verify.side_by_side import side_by_side_json

    compiled = report.compiled.report
    return {
        "notes": list(report.compiled.notes),
        "unfit": report.compiled.unfit,
        "gate": gate_json(compiled) if compiled else None,
        "side_by_side": side_by_side_json(report),
    }


def _step_seconds(report: Report) -> Iterator[tuple[str, float]]:
    for result in report.modes:
        for step in result.steps:
            yield f"{result.dtype}/{result.mode.name}/{step.name}", step.seconds


def _mode_json(result: ModeResult, profile: str) -> dict[str, Any]:
    return {
        "dtype": result.dtype,
        "mode": asdict(result.mode),
        "passed": result.passed(profile),
        "findings": result.log.to_json(),
        "found_by": _found_json(result),
        "steps": [_step_json(step, profile) for step in result.steps],
    }


def _found_json(result: ModeResult) -> list[list[str]]:
    """For each of the mode's findings the names of the search runs that met it."""
    runs = [run for step in result.steps for run in step.runs]
    return [found_by(runs, finding.key) for finding in result.log]


def _run_json(run: SearchRun, profile: str) -> dict[str, Any]:
    kinds = dict.fromkeys(finding.kind for finding in run.findings)
    found = {"findings": list(kinds), "differences": list(run.differences), "error": run.error}
    return {**run.planned.to_json(), "passed": run.passed(profile), **found}


def _step_json(step: StepResult, profile: str) -> dict[str, Any]:
    results = [
        {"rank": rank, "launch": launch, "output": output, **asdict(comparison)}
        for rank, launch, output, comparison in step.comparisons()
    ]
    return {
        "name": step.name,
        "passed": None if step.skipped else step.passed(profile),
        "skipped": step.skipped,
        "error": step.error,
        "ranks": [{"rank": rank, "finished": launches is not None} for rank, launches in enumerate(step.ranks)],
        "comparisons": results,
        "runs": [_run_json(run, profile) for run in step.runs],
        "left_out": [planned.to_json() for planned in step.left_out],
        "explored": step.explored.to_json() if step.explored is not None else None,
    }


def _strict(value: Any) -> Any:
    """The same with tuples as lists and without numbers that JSON lacks."""
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
