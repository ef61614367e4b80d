"""Where a command's report goes: the terminal, or a pipe whose reader may leave."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, TextIO, cast

from rich.console import Console

from tdist.errors import EnvironmentUnfit
from tdist.tools.files import drop_stdout

PIPE_WIDTH = 160
_PADDING = re.compile(r"[ \t]+(?=\n)")


class PipeConsole(Console):
    """rich ends the process with status 1 when its reader goes away; that status means something here."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Trimmed:
    """A stream that gets no blanks at the ends of lines: tables pad their last column, and logs and diffs show it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_PADDING.sub("", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def report_console(stream: TextIO | None) -> PipeConsole:
    """A console for a report: as wide as the terminal, `PIPE_WIDTH` columns and no trailing blanks elsewhere.

    Args:
        stream: where it goes; None, if the process has no standard output, for nowhere.
    """
    if stream is not None and stream.isatty():
        return PipeConsole(file=stream)
    return PipeConsole(file=cast(TextIO, _Trimmed(stream or io.StringIO())), width=PIPE_WIDTH)


class Report:
    """Prints a report piece by piece. A reader that has gone away (`| head -1`) has seen enough: the command goes on.

    Args:
        stream: where it goes; None, if the process has no standard output, for nowhere.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.console = report_console(stream)
        self._failure = ""
        self._closed = False

    def print(self, render: Callable[[Console], None]) -> None:
        """Let `render` print a piece, unless nobody reads any more."""
        if self._closed:
            return
        try:
            render(self.console)
            if self._stream is not None:
                self._stream.flush()
        except OSError as error:
            self._failure = "" if isinstance(error, BrokenPipeError) else error.strerror or str(error)
            self._closed = True
            drop_stdout()

    def close(self) -> None:
        """The report is complete.

        Raises: EnvironmentUnfit if some of it could not be written.
        """
        if self._failure:
            raise EnvironmentUnfit(f"cannot write the report to standard output: {self._failure}")
