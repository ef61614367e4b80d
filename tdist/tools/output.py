"""Where a command's report goes: the terminal, or a pipe whose reader may leave."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TextIO

from rich.console import Console

from tdist.errors import EnvironmentUnfit
from tdist.tools.files import drop_stdout

PIPE_WIDTH = 160


class PipeConsole(Console):
    """rich ends the process with status 1 when its reader goes away; that status means something here."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Report:
    """Prints a report piece by piece. A reader that has gone away (`| head -1`) has seen enough: the command goes on.

    Args:
        stream: where it goes; None, if the process has no standard output, for nowhere.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        terminal = stream is not None and stream.isatty()
        self.console = PipeConsole(file=stream or io.StringIO(), width=None if terminal else PIPE_WIDTH)
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
