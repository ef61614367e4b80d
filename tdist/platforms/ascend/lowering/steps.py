"""The vendor steps of one compilation: a private directory, the text of each stage, the seconds of each step."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tdist.errors import EnvironmentUnfit, UsageError
from tdist.platforms.ascend.vendor.run import Limits, ToolRun, run_tool

_PREFIX = "tdist-ascend-"
_LOCK = ".lock"
_SURELY_LOCKED_SECONDS = 60.0


class Steps:
    """What the stages of one compilation share; a context manager, whose private directory goes when it ends.

    Attributes:
        directory: private (0700) and empty at first; the working directory of the tools.
        texts: the text that each stage made, in order.
        seconds: how long each step took, in order; a step that is repeated adds up.

    Args:
        keep_ir: where each stage's text is also written, as `NN-stage.mlir`; made if need be.
        limits: of each step; by default the environment's.
    """

    def __init__(self, keep_ir: Path | None = None, limits: Limits | None = None) -> None:
        self.keep_ir, self.limits = keep_ir, limits or Limits.of_environment()
        self.texts: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self.keep_ir is not None:
            _make(self.keep_ir)
        _sweep()
        with _room():
            self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
            try:
                self._lock = _hold(self.directory / _LOCK)
            except OSError:
                shutil.rmtree(self.directory, ignore_errors=True)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)

    def run(self, stage: str, argv: Sequence[str | Path], *, stdin: str | None = None) -> ToolRun:
        """Run a program in a new directory of this stage's own (`argv` may name files of `directory`)."""
        with self.timed(stage):
            return run_tool(argv, cwd=self.folder(stage), limits=self.limits, stdin=stdin, remove=self.directory)

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the time of the block for `stage`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - began

    def folder(self, stage: str) -> Path:
        """The directory in which the programs of this stage run; what they leave there stays until the end."""
        path = self.directory / stage
        with _room():
            path.mkdir(exist_ok=True)
        return path

    def write(self, name: str, text: str) -> Path:
        """A file for a program to read."""
        path = self.directory / name
        with _room():
            path.write_text(text)
        return path

    def keep(self, stage: str, text: str) -> str:
        """Note what a stage made; the text itself, for the next one."""
        if self.keep_ir is not None:
            number = list(self.texts).index(stage) if stage in self.texts else len(self.texts)
            write_whole(self.keep_ir / f"{number:02}-{stage}.mlir", text)
        self.texts[stage] = text
        return text


@contextlib.contextmanager
def _room() -> Iterator[None]:
    """A temporary directory that cannot be written is the machine's fault."""
    try:
        yield
    except OSError as error:
        raise EnvironmentUnfit(
            f"cannot write temporary files: {error}; free some space, or set TMPDIR to a directory that has it"
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Write a file of the user's: it holds all of `text` or does not change.

    Raises:
        UsageError: it cannot be written.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(text)
        os.replace(new, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the directory {path} to keep IR in: {error.strerror}") from error


def _hold(path: Path) -> int:
    """A lock that is held until we end, however we do."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _sweep() -> None:
    """Delete what killed processes of this user have left."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            info = path.lstat()
            ours = stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid()
            if ours and time.time() - info.st_mtime > _SURELY_LOCKED_SECONDS:
                descriptor = _hold(path / _LOCK)
                shutil.rmtree(path, ignore_errors=True)
                os.close(descriptor)
