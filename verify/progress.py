"""Showing a run while it lasts: each mode's block as soon as it is judged, and what runs now.

On a terminal a line at the bottom says which step runs, and for how long; on a pipe a step that takes long is remarked
on standard error, so that the report stays what it is.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.status import Status
from rich.text import Text

from tdist.errors import EnvironmentUnfit
from tdist.tools.output import report_console
from tdist.verify.report import render_conclusion, render_head, render_mode
from tdist.verify.run import Observer
from tdist.verify.search.step import SEARCH

if TYPE_CHECKING:
    from tdist.verify.modes import Mode
    from tdist.verify.operator import Case, Operator
    from tdist.verify.options import Options
    from tdist.verify.run import ModeResult, Report

LONG_SECONDS = 30.0
"""After this long a step is said to take long, and again each time it has taken twice as long."""
LONG_REMARK = (
    "each spin of a kernel that polls (a compare-and-swap loop, a flag read in a loop) is a step of the schedule; "
    "--schedule max-sync or --sync barrier spin least, a smaller --shape helps"
)
LONG_COMPILING = (
    "each kernel is compiled for each chip and setting, and once more for each cure that is tried on a finding; "
    "--barrier-all-sync false does half of it, and the next run takes from the cache what has not changed"
)


class LiveReport(Observer):
    """Prints a report piece by piece. Use it as a context manager, and `conclude` with the whole report.

    A reader that has gone away (`| head -1`) has seen enough: the run goes on and the verdict is still the status.

    Args:
        stream: where the report goes; None, if the process has no standard output, for nowhere.
        drop: called once when nothing more can be written to the stream.
    """

    def __init__(self, stream: TextIO | None, drop: Callable[[], None], err: TextIO | None = None) -> None:
        self._stream = stream
        self._drop = drop
        self._terminal = stream is not None and stream.isatty()
        self._console = report_console(stream)
        self._profile = "seed"
        self._failure = ""
        self._closed = False
        self._clock = _Clock(self._console if self._terminal else None, err or sys.stderr)

    def __enter__(self) -> LiveReport:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._clock.stop()

    def started(self, operator: Operator, options: Options, case: Case) -> None:
        self._profile = options.profile
        self._print(lambda: render_head(operator.name, case, self._console))

    def step_started(self, dtype: str, mode: Mode, step: str) -> None:
        self._clock.stop()
        if not self._closed:
            schedule = "many schedules" if step in (SEARCH, "exhaustive") else f"{mode.schedule} schedule"
            self._clock.start(f"{dtype} {mode.name}, {step} step, {schedule}", LONG_REMARK)

    def exploring(self, runs: int, left: int) -> None:
        if self._terminal and not self._closed:
            self._clock.stop()
            self._clock.start(f"exhaustive step, {runs} schedules run, at least {left} left", LONG_REMARK)

    def mode_finished(self, result: ModeResult) -> None:
        self._print(lambda: render_mode(result, self._profile, self._console))

    def compiling(self, targets: Sequence[str]) -> None:
        self._clock.stop()
        if not self._closed:
            self._clock.start(f"compiling for {', '.join(targets)}", LONG_COMPILING)

    def conclude(self, report: Report) -> None:
        """Print what stands below the modes.

        Raises: EnvironmentUnfit if some of the report could not be written.
        """
        self._print(lambda: render_conclusion(report, self._console))
        if self._failure:
            raise EnvironmentUnfit(f"cannot write the report to standard output: {self._failure}")

    def _print(self, render: Callable[[], None]) -> None:
        self._clock.stop()
        if self._closed:
            return
        try:
            render()
            if self._stream is not None:
                self._stream.flush()
        except OSError as error:
            self._failure = "" if isinstance(error, BrokenPipeError) else error.strerror or str(error)
            self._closed = True
            self._drop()


class _Clock:
    """Says how long the running step has been running."""

    def __init__(self, console: Console | None, err: TextIO | None) -> None:
        self._console = console
        self._err = err
        self._status: Status | None = None
        self._stopped: threading.Event | None = None

    def start(self, what: str, remark: str) -> None:
        """`remark` says what helps, once it has taken long."""
        if self._console is not None:
            self._status = Status(_Elapsed(what, remark), console=self._console)
            self._status.start()
            return
        self._stopped = threading.Event()
        about = (what, remark, self._stopped)
        threading.Thread(target=self._remark, args=about, name="tdist progress", daemon=True).start()

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._stopped is not None:
            self._stopped.set()
            self._stopped = None

    def _remark(self, what: str, remark: str, stopped: threading.Event) -> None:
        begin, due = time.monotonic(), LONG_SECONDS
        while not stopped.wait(max(0.0, begin + due - time.monotonic())):
            if self._err is not None:
                text = f"tdist-verify: {what} has been running for {due:.0f} s; {remark}"
                print(text, file=self._err, flush=True)
            due *= 2


class _Elapsed:
    """A text that knows how long it has been shown."""

    def __init__(self, what: str, remark: str) -> None:
        self._what = what
        self._remark = remark
        self._begin = time.monotonic()

    def __rich__(self) -> Text:
        seconds = time.monotonic() - self._begin
        remark = f"; {self._remark}" if seconds > LONG_SECONDS else ""
        return Text(f"{self._what}, {seconds:.0f} s{remark}")
