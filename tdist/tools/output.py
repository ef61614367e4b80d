"""Where a command's report goes: the terminal, a pipe whose reader may leave, a JSON file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from tdist.errors import EnvironmentUnfit, UsageError

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


def drop_stdout() -> None:
    """Whatever is written from now on goes nowhere, the interpreter's own flush at the end included."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def print_anything() -> None:
    """Text of a user's exception may hold what no encoding has (lone surrogates), or this one has not."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def check_writable(option: str, path: Path) -> None:
    """Before the run: a report that cannot be written is worth no minute of work.

    Raises: UsageError.
    """
    folder = path.parent
    reason = ""
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        reason = f"no permission to write {'it' if path.exists() else f'in {folder}'}"
    if reason:
        raise UsageError(f"cannot write {option} {path}: {reason}")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a report. A file holds all of it or is what it was; a pipe or a terminal is written to as it goes.

    Raises: UsageError if that fails.
    """
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"
    whole = (path.is_file() or not path.exists()) and os.access(path.parent, os.W_OK)
    target = path.with_name(f".{path.name}.{os.getpid()}") if whole else path
    try:
        target.write_text(text, encoding="utf-8")
        if whole:
            os.replace(target, path)
    except OSError as error:
        if whole:
            target.unlink(missing_ok=True)
        raise UsageError(f"cannot write --json {path}: {error.strerror}") from None
