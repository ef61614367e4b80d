"""What the gate found out, for a terminal and as JSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tdist.findings import Finding, FindingLog, render
from tdist.platforms.ascend.gate import GateKernel, GateReport, GateResult, Use

SCHEMA_VERSION = 1
NO_HIVMC = "no hivmc: the final module is the result; code generation and link were not run"
_STYLES = {"clean": "green", "findings": "red", "refused": "bold red", "undecided": "yellow"}
_VERDICTS = {0: ("CLEAN", "bold green"), 1: ("FAILED", "bold red"), 3: ("UNDECIDED", "bold yellow")}
_FORMS = {
    "direct": "direct",
    "call": "two-phase, func.call carriers",
    "extern": "two-phase, extern_elementwise carriers",
}


def render_gate(report: GateReport, console: Console) -> None:
    """Print the whole report."""
    for kernel, results in by_kernel(report):
        render_kernel(kernel, results, console)
    render_conclusion(report, console)


def to_text(report: GateReport, width: int = 120) -> str:
    """The whole report without colours, for exceptions and log files."""
    out = io.StringIO()
    render_gate(report, Console(file=out, width=width, color_system=None, force_terminal=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def by_kernel(report: GateReport) -> Iterator[tuple[GateKernel, list[GateResult]]]:
    """Each kernel with its results, in order."""
    groups: dict[int, list[GateResult]] = {}
    for result in report.results:
        groups.setdefault(id(result.kernel), []).append(result)
    for results in groups.values():
        yield results[0].kernel, results


def render_kernel(kernel: GateKernel, results: Sequence[GateResult], console: Console) -> None:
    """One kernel: its settings side by side for each target, what was refused, notes, findings.

    Targets for which everything is the same share a table.
    """
    console.print(Text.assemble((kernel.title, "bold"), f"  {kernel.at}" if kernel.at else ""), soft_wrap=True)
    if kernel.options:
        given = ", ".join(f"{name}={value!r}" for name, value in sorted(kernel.options.items()))
        _line(console, 2, f"launch options: {given}", "dim")
    for targets, rows in _tables(results):
        _line(console, 2, ", ".join(targets), "dim")
        settings = [setting_name(result) for result in results if result.target == targets[0]]
        console.print(Padding(_table(settings, rows), (0, 0, 0, 2), expand=False))
    for text, style, places in _remarks(results):
        _line(console, 2, f"{_where(places, results)}{text}", style)
    _render_findings(results, console)


Row = tuple[str, list[Text]]


def _tables(results: Sequence[GateResult]) -> Iterator[tuple[list[str], list[Row]]]:
    """Groups of targets with the rows that they share; times of all of them."""
    groups: dict[tuple[tuple[str, tuple[str, ...]], ...], tuple[list[str], list[Row]]] = {}
    for target in dict.fromkeys(result.target for result in results):
        rows = [row for row in _rows([r for r in results if r.target == target]) if any(cell.plain for cell in row[1])]
        key = tuple((title, tuple(cell.plain for cell in cells)) for title, cells in rows)
        groups.setdefault(key, ([], rows))[0].append(target)
    for targets, rows in groups.values():
        of_settings = list(zip(*([r for r in results if r.target == target] for target in targets), strict=True))
        yield targets, [*rows, ("time", [Text(_times(mine)) for mine in of_settings])]


def _table(settings: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    for setting in settings:
        table.add_column(setting, overflow="fold")
    for title, cells in rows:
        table.add_row(title, *cells)
    return table


def setting_name(result: GateResult) -> str:
    """`barrier-all false` or `barrier-all true`."""
    return f"barrier-all {str(result.barrier_all).lower()}"


def _rows(results: Sequence[GateResult]) -> Iterator[Row]:
    yield "verdict", [Text(_verdict(result), _STYLES[result.verdict]) for result in results]
    yield "calls", [Text(_FORMS.get(result.form, result.form)) for result in results]
    for memory in dict.fromkeys(use.memory for result in results for use in result.use):
        yield memory, [_use(result, memory) for result in results]
    for name in dict.fromkeys(name for result in results for name, count in result.counts.items() if count):
        yield name, [Text(str(result.counts[name]) if name in result.counts else "") for result in results]


def _verdict(result: GateResult) -> str:
    if result.refusal is not None:
        return f"refused by {result.refusal.stage}"
    if result.failing:
        return "1 finding" if len(result.failing) == 1 else f"{len(result.failing)} findings"
    return result.verdict


def _use(result: GateResult, memory: str) -> Text:
    found = [use for use in result.use if use.memory == memory]
    if not found:
        return Text("")
    use = found[0]
    return Text(use_text(use), "red" if use.bytes > use.capacity_bytes else "")


def use_text(use: Use) -> str:
    """`10240 of 196608 B (5 %)`."""
    return f"{use.bytes} of {use.capacity_bytes} B ({100 * use.bytes / use.capacity_bytes:.0f} %)"


def _times(results: Sequence[GateResult]) -> str:
    """`0.61 s`, of several targets `0.61 s, 0.58 s`; said where the vendor's compiler was not run again."""
    seconds = ", ".join(f"{sum(result.seconds.values()):.2f} s" for result in results)
    return f"{seconds} (cached)" if all(result.cached for result in results) else seconds


def _remarks(results: Sequence[GateResult]) -> Iterator[tuple[str, str, list[GateResult]]]:
    """(text, style, the results it holds for): each text once."""
    texts: dict[tuple[str, str], list[GateResult]] = {}
    for result in results:
        for text, style in _remarks_of(result):
            texts.setdefault((text, style), []).append(result)
    for (text, style), places in texts.items():
        yield text, style, places


def _remarks_of(result: GateResult) -> Iterator[tuple[str, str]]:
    if result.refusal is not None:
        yield f"refused by {result.refusal.stage}: {result.refusal.message}", "red"
        return
    for note in result.notes:
        yield f"note: {note}", "yellow"
    if result.broken:
        yield result.broken, "yellow"
    if result.unchecked:
        yield f"not checked: {', '.join(result.unchecked)}", "yellow"


def _where(places: Sequence[GateResult], results: Sequence[GateResult]) -> str:
    """Which of the results something holds for, as briefly as that can be said; empty for all."""
    if len(places) == len(results):
        return ""
    targets, settings = (_names(of, results) for of in (_target, setting_name))
    mine, theirs = (_names(of, places) for of in (_target, setting_name))
    if len(places) < len(mine) * len(theirs):
        names = [f"{place.target} {setting_name(place)}" for place in places]
    elif mine == targets:
        names = theirs
    elif theirs == settings:
        names = mine
    else:
        names = [f"{target} {setting}" for target in mine for setting in theirs]
    return f"{', '.join(names)}: "


def _target(result: GateResult) -> str:
    return result.target


def _names(of: Callable[[GateResult], str], results: Sequence[GateResult]) -> list[str]:
    return list(dict.fromkeys(of(result) for result in results))


def _line(console: Console, indent: int, text: str, style: str = "") -> None:
    first, *rest = text.split("\n")
    console.print(Text(" " * indent + first, style), soft_wrap=True)
    for line in rest:
        console.print(Text(" " * indent + line, style), soft_wrap=True)


def _render_findings(results: Sequence[GateResult], console: Console) -> None:
    """Each defect once, with the targets and settings in which it is there."""
    log, places = FindingLog(), {}
    for result in results:
        for finding in result.findings:
            log.add(finding)
            places.setdefault(finding.key, []).append(result)
    for finding in sorted(log, key=lambda found: not found.fails("ascend")):
        console.print()
        where = _where(places[finding.key], results) or "with every target and setting: "
        _line(console, 0, f"in the compiled code, {where.removesuffix(': ')}:", "dim")
        render(finding, console)
    if len(log):
        console.print()


def limits(report: GateReport) -> list[str]:
    """What this run could not have seen."""
    said = []
    through = [result for result in report.results if result.refusal is None]
    if any(result.hivmc is None for result in through):
        said.append("code generation and link: no hivmc here (it comes with CANN), the final module is the result")
    elif through:
        said.append("the link against the device library")
    said.append("no argument is specialised by its value: the vendor's launcher compiles an int argument of value 1 in")
    return said


def render_conclusion(report: GateReport, console: Console) -> None:
    """What stands below the kernels: verdict, tools, limits."""
    word, style = _VERDICTS[report.exit_code]
    total = len(report.results)
    bad = len(report.failures)
    rest = f"{bad} of {total}" if bad else f"all {total}"
    console.print(
        Text.assemble(
            (word, style), f"  {rest} compilations {'not clean' if bad else 'clean'}, {report.seconds:.1f} s"
        ),
        soft_wrap=True,
    )
    render_tools(report, console)
    console.print("Not seen by this run:", style="dim")
    for limit in ("nothing ran on hardware", *limits(report)):
        _line(console, 2, f"- {limit}", "dim")


def render_tools(report: GateReport, console: Console) -> None:
    """Which setting alone is clean, where one is; how far the vendor's programs went, and which they are."""
    for hint in _hints(report):
        _line(console, 2, hint)
    for linked in dict.fromkeys(result.hivmc for result in report.results if result.refusal is None):
        _line(console, 2, f"hivmc: {linked}" if linked else NO_HIVMC, "" if linked else "yellow")
    if report.tools:
        _line(console, 2, f"tools: {', '.join(report.tools)}", "dim")


def _hints(report: GateReport) -> Iterator[str]:
    """Where one setting is clean and the other is not: that is what the toggle is for."""
    for kernel, results in by_kernel(report):
        clean = {setting_name(result) for result in results if result.verdict == "clean"}
        failing = {setting_name(result) for result in results if result.verdict != "clean"}
        for name in sorted(clean - failing):
            if failing:
                yield f"{kernel.title} is clean with {name} only"


def gate_json(report: GateReport) -> dict[str, Any]:
    """The report as JSON values. Times, paths and what the cache held stand in `run`, nothing else differs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": _VERDICTS[report.exit_code][0].lower(),
        "results": [_result_json(result) for result in report.results],
        "limits": limits(report),
        "run": {
            "seconds": report.seconds,
            "tools": list(report.tools),
            "results": [{"seconds": dict(r.seconds), "cached": r.cached, "hivmc": r.hivmc} for r in report.results],
        },
    }


def _result_json(result: GateResult) -> dict[str, Any]:
    kernel = result.kernel
    file, _, line = kernel.at.rpartition(":")
    return {
        "kernel": kernel.ir.name,
        "label": kernel.label,
        "file": file or None,
        "line": int(line) if line else None,
        "arguments": {arg.name: arg.type for arg in kernel.ir.args},
        "launch_options": dict(kernel.options),
        "target": result.target,
        "barrier_all_sync": result.barrier_all,
        "verdict": result.verdict,
        "refusal": None
        if result.refusal is None
        else {"stage": result.refusal.stage, "message": result.refusal.message},
        "form": result.form,
        "memory": {use.memory: {"bytes": use.bytes, "capacity_bytes": use.capacity_bytes} for use in result.use},
        "counts": dict(result.counts),
        "linked": False,
        "notes": list(result.notes),
        "findings": _findings_json(result.findings),
        "unchecked": list(result.unchecked),
        "broken": result.broken,
    }


def _findings_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [finding.to_json() for finding in findings]
