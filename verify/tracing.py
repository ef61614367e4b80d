"""`--trace`, `--trace-element`, `--protocol-map`: which run is traced, and what is made of it afterwards.

The first run that a command makes is the one: the exact step of the first mode, or the run of a replay file. Imported
before anything slow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdist.errors import UsageError
from tdist.tools.files import check_writable, write_text

if TYPE_CHECKING:
    from tdist.trace import Element, Trace
    from tdist.verify.operator import Operator
    from tdist.verify.worlds import Runner, RunSpec, WorldResult


@dataclass
class Tracing:
    """What was asked for, and the run that was traced for it.

    Attributes:
        chrome: file for the events, in Chrome's format.
        elements: `out[3,5]@rank@launch`, as `tdist.trace.parse_element` reads it.
        drawing: file for the protocol map.
        traced: the traced run's result and what was run.
    """

    chrome: Path | None = None
    elements: tuple[str, ...] = ()
    drawing: Path | None = None
    traced: tuple[WorldResult, RunSpec] | None = field(default=None, init=False)

    def __bool__(self) -> bool:
        return bool(self.chrome or self.elements or self.drawing)

    def check(self, report: Path | None = None) -> None:
        """Refuse files that cannot be written, and one file for two things.

        Args:
            report: the file of `--json`.

        Raises: UsageError.
        """
        for option, path in (("--trace", self.chrome), ("--protocol-map", self.drawing)):
            if path is not None:
                check_writable(option, path)
        named: dict[Path, str] = {}
        for option, path in (("--trace", self.chrome), ("--protocol-map", self.drawing), ("--json", report)):
            other = option if path is None else named.setdefault(path.absolute(), option)
            if other != option:
                raise UsageError(f"{other} and {option} name one file, {path}")

    def check_elements(self, operator: Operator, nranks: int, launches: int) -> None:
        """Refuse elements of what the operator does not have.

        Raises: UsageError.
        """
        from tdist.trace.last_writer import check_element

        for asked in self.asked():
            check_element(asked, operator.outputs, nranks, launches if operator.relaunchable else 1)

    def asked(self) -> list[Element]:
        """The elements, read.

        Raises: UsageError for a spelling that is none.
        """
        if not self.elements:
            return []
        from tdist.trace import parse_element

        return [parse_element(text) for text in self.elements]

    def around(self, runner: Runner) -> Runner:
        """A runner that traces its first run; `runner` itself where nothing was asked for."""
        return _TracingRunner(runner, self) if self else runner  # pyright: ignore[reportReturnType]

    def conclude(self) -> None:
        """Print who wrote the elements, write the files. What one of them meets costs the others nothing.

        Raises:
            UsageError: something could not be done; the rest has been.
        """
        if not self:
            return
        if self.traced is None or self.traced[0].trace is None:
            raise UsageError(
                "no run came far enough to be traced: --trace, --trace-element, --protocol-map have nothing"
            )
        result, spec = self.traced
        failures = self._print_elements(result, spec) + self._write(self.traced[0].trace)
        if failures:
            raise UsageError("; ".join(failures))

    def _print_elements(self, result: WorldResult, spec: RunSpec) -> list[str]:
        if not self.elements:
            return []
        from rich.text import Text

        from tdist.tools.output import Report as Printer
        from tdist.trace import last_writers

        assert result.trace is not None
        texts, failures = [f"who wrote this? ({described(spec)})"], []
        for asked in self.asked():
            try:
                texts.append(str(last_writers(result.trace, asked, result.findings)))
            except UsageError as error:
                failures.append(str(error))
        out = Printer(sys.stdout)
        out.print(lambda console: console.print(Text("\n".join(texts)), soft_wrap=True))
        out.close()
        return failures

    def _write(self, trace: Trace) -> list[str]:
        """Write the files; why one could not be."""
        from tdist.trace import chrome_text, protocol_map

        failures: list[str] = []
        for option, path, make in (
            ("--trace", self.chrome, chrome_text),
            ("--protocol-map", self.drawing, protocol_map),
        ):
            if path is None:
                continue
            try:
                write_text(option, path, make(trace))
            except UsageError as error:
                failures.append(str(error))
        if trace.dropped:
            print(f"tdist-verify: trace truncated: {trace.dropped} later events were not kept", file=sys.stderr)
        return failures


def described(spec: RunSpec) -> str:
    """A traced run in words."""
    case = spec.job.case
    words: Sequence[str] = (case.sync, case.dtype, f"{case.nranks} ranks", str(spec.world.get("scheduler", "")))
    replayed = ["replayed"] if spec.world.get("choices") is not None else []
    return ", ".join([*filter(None, words), f"seed {spec.world.get('seed', 0)}", *replayed])


class _TracingRunner:
    """Another runner, whose first run is traced."""

    def __init__(self, runner: Runner, tracing: Tracing) -> None:
        self._runner = runner
        self._tracing = tracing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, spec: RunSpec) -> WorldResult:
        """See `Runner.execute`."""
        if self._tracing.traced is not None:
            return self._runner.execute(spec)
        result = self._runner.execute(spec.with_world(trace=True))
        self._tracing.traced = (result, spec)
        return result
