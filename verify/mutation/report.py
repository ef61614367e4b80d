"""What a run of mutants says while it lasts and at its end, on a terminal and as JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from tdist.mutations import KINDS, Mutant
from tdist.tools.output import Report
from tdist.verify.mutation.mutate import (
    CAUGHT,
    EQUIVALENT,
    FAULT,
    HANG,
    MISSED,
    WRONG,
    Form,
    Judged,
    MutationObserver,
    MutationReport,
)
from tdist.verify.options import Options

_STYLES = {CAUGHT: "green", EQUIVALENT: "cyan", MISSED: "bold red"}
_PLAIN = {
    WRONG: "plain comparison: wrong output",
    HANG: "plain comparison: hang",
    FAULT: "plain comparison: stopped at an address",
    "": "plain comparison: nothing",
}


class LiveMutation(MutationObserver):
    """Prints each mutant as soon as it is judged; says on a terminal's standard error which one is being judged."""

    def __init__(self, stream: TextIO | None, options: Options, err: TextIO | None = None) -> None:
        self._report = Report(stream)
        self._options = options
        self._err = sys.stderr if err is None else err
        self._tells = self._err is not None and self._err.isatty()
        self._kernel = ""

    def started(self, forms: Sequence[Form], total: int) -> None:
        head = f"{self._options.operator} on {self._options.nranks} simulated ranks, profile {self._options.profile}"
        lines = [f"{head}: {_counted(total, 'mutant')}"]
        lines += [f"  {form.label}: {_form_line(form)}" for form in forms]
        self._report.print(lambda console: _print(console, lines))

    def judging(self, number: int, total: int, mutant: Mutant) -> None:
        if self._tells:
            self._err.write(f"\r\x1b[2K{number} of {total}: {mutant.kernel} {mutant.name}")
            self._err.flush()

    def judged(self, result: Judged) -> None:
        self._clear()
        head = [] if result.mutant.kernel == self._kernel else [f"kernel {result.mutant.kernel}"]
        self._kernel = result.mutant.kernel
        self._report.print(lambda console: _print(console, head))
        self._report.print(lambda console: console.print(_line(result), soft_wrap=True))

    def conclude(self, report: MutationReport) -> None:
        """Print the summary.

        Raises:
            EnvironmentUnfit: some of the report could not be written.
        """
        self._clear()
        self._report.print(lambda console: _print(console, summary(report)))
        self._report.close()

    def _clear(self) -> None:
        if self._tells:
            self._err.write("\r\x1b[2K")
            self._err.flush()


def _print(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _form_line(form: Form) -> str:
    case = form.runs[0].spec.job.case
    shape = ",".join(f"{symbol}={value}" for symbol, value in case.shape.items())
    return f"{', '.join(form.kernels)}; shape {shape}; up to {_counted(len(form.runs), 'run')} a mutant"


def _line(result: Judged) -> Text:
    mutant = result.mutant
    text = Text("  ")
    text.append(f"{result.verdict:<11}", _STYLES[result.verdict])
    text.append(f"{Path(mutant.file).name}:{mutant.line}  {mutant.name}  {mutant.what}")
    text.append(f" — {_how(result)}")
    return text


def _how(result: Judged) -> str:
    parts = {
        CAUGHT: f"{result.by} in {result.run}",
        EQUIVALENT: result.proof,
        MISSED: f"no run of {result.runs} failed",
    }[result.verdict]
    plain = "" if result.verdict == EQUIVALENT and not result.golden else _PLAIN[result.golden]
    return "; ".join(filter(None, (parts, plain, result.remark)))


def summary(report: MutationReport) -> list[str]:
    """The last lines: counts, what plain comparison would have caught, how to run it again."""
    done = len(report.judged)
    proved = f"{report.count(EQUIVALENT)} equivalent by proof"
    counted = f"{report.count(CAUGHT)} caught, {proved}, {report.count(MISSED)} missed"
    lines = [f"{_counted(done, 'mutant')}: {counted}"]
    if not report.complete:
        lines[0] = f"interrupted after {done} of {report.total} mutants: {counted}"
    by = Counter(each.golden for each in report.judged)
    lines.append(
        f"plain comparison with the golden would have caught {report.golden} of {done}: "
        f"{by[WRONG]} by wrong output, {by[HANG]} by a hang"
    )
    if report.faults:
        lines[-1] += f"; {report.faults} more stopped at an address that a device may let pass"
    missed = Counter(each.mutant.kind for each in report.judged if each.verdict == MISSED)
    lines += [f"missed {kind}: somebody {KINDS[kind].mistake} ({number})" for kind, number in missed.items()]
    return [*lines, f"again: {_replay(report)}"]


def _replay(report: MutationReport) -> str:
    kinds = f" --mutate-kinds {','.join(report.kinds)}" if report.kinds else ""
    return f"{report.options.replay()} --mutate{kinds}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def mutation_json(report: MutationReport) -> dict[str, Any]:
    """The report as JSON values."""
    return {
        "operator": report.operator,
        "options": report.options.to_json(),
        "kinds": list(report.kinds),
        "forms": [
            {"label": form.label, "kernels": list(form.kernels), "runs": [each.to_json() for each in form.runs]}
            for form in report.forms
        ],
        "total": report.total,
        "judged": len(report.judged),
        "caught": report.count(CAUGHT),
        "equivalent": report.count(EQUIVALENT),
        "missed": report.count(MISSED),
        "plain_comparison": report.golden,
        "plain_comparison_unsaid": report.faults,
        "mutants": [each.to_json() for each in report.judged],
        "seconds": report.seconds,
        "exit_code": report.exit_code,
    }
