"""Writing for commands without rich: standard streams that fail, JSON files. Imported before anything slow."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdist.errors import UsageError


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
    """Write a report; see `write_text`.

    Raises: UsageError if that fails.
    """
    write_text("--json", path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def write_text(option: str, path: Path, text: str) -> None:
    """Write what `option` asked for. A file holds all of it or is what it was; a pipe is written to as it goes.

    Raises: UsageError if that fails.
    """
    whole = (path.is_file() or not path.exists()) and os.access(path.parent, os.W_OK)
    target = path.with_name(f".{path.name}.{os.getpid()}") if whole else path
    try:
        if target.is_fifo():
            _into_pipe(target, text)
        else:
            target.write_text(text, encoding="utf-8")
        if whole:
            os.replace(target, path)
    except OSError as error:
        if whole:
            target.unlink(missing_ok=True)
        raise UsageError(f"cannot write {option} {path}: {error.strerror}") from None


def _into_pipe(path: Path, text: str) -> None:
    """Write to a named pipe; one that nobody reads is an error and not a wait without end."""
    pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(pipe, True)
    with open(pipe, "w", encoding="utf-8") as stream:
        stream.write(text)
