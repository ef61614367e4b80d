"""What the simulated ranks say of a kernel beside what its compiled code says: one table a kernel that was compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from tdist.findings import Finding
from tdist.platforms.ascend.agreement import Row, agreement_json, compare, render_agreement

if TYPE_CHECKING:
    from tdist.platforms.ascend.gate import GateResult
    from tdist.verify.compile_for import Launched
    from tdist.verify.run import Report

FORMS = {False: "fine", True: "barrier-all"}
"""Setting of inject-barrier-all-sync → what the table calls the compiled form."""


def tables(report: Report) -> Iterator[tuple[Launched, list[Row]]]:
    """Each kernel that came through with its rows; kernels about which nothing is asked or found have none."""
    if report.compiled is None or report.compiled.report is None:
        return
    for launched in report.compiled.launched:
        results = [r for r in report.compiled.report.results if r.kernel is launched.kernel and r.refusal is None]
        checked = [r for r in results if not r.unchecked]
        if checked:
            yield launched, compare(checked[0].prepared, _language(report, launched), _code(checked))


def _language(report: Report, launched: Launched) -> list[Finding]:
    """Findings of the simulated runs of the cases that launch the kernel."""
    runs = [mode for mode in report.modes if (mode.dtype, mode.mode.protocol) in launched.cases]
    return [finding for mode in runs for finding in mode.log]


def _code(results: Sequence[GateResult]) -> dict[str, list[Finding]]:
    """Findings in the compiled code by form, of all targets."""
    forms: dict[str, list[Finding]] = {}
    for result in results:
        forms.setdefault(FORMS[result.barrier_all], []).extend(result.findings)
    return forms


def render_side_by_side(report: Report, console: Console) -> None:
    """The tables; the ranks have been asked about executions, the code about every path of it."""
    shown = _grouped(report)
    if not shown:
        return
    console.print(Text("simulated ranks (seed, ascend) beside the compiled code", "bold"))
    for titles, rows in shown:
        console.print(Text(", ".join(titles)), soft_wrap=True)
        render_agreement(rows, console)


def _grouped(report: Report) -> list[tuple[list[str], list[Row]]]:
    """Kernels about which the same is said, such as those of several element types, share a table."""
    groups: list[tuple[list[str], list[Row]]] = []
    for launched, rows in tables(report):
        same = next((titles for titles, others in groups if others == rows), None)
        if same is not None:
            same.append(launched.kernel.title)
        elif rows:
            groups.append(([launched.kernel.title], rows))
    return groups


def side_by_side_json(report: Report) -> list[dict[str, Any]]:
    """The rows of each kernel as JSON values."""
    return [
        {"kernel": launched.kernel.ir.name, "label": launched.kernel.label, "rows": agreement_json(rows)}
        for launched, rows in tables(report)
    ]
