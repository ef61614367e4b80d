"""Runs a vendor's program: alone in its process group, under limits, in a clean environment.

A program that crashes, runs out of memory or time is a result (`ToolRun`), never an exception: the vendor's tools do so
on kernels that are merely wrong. Nothing of a run survives it, whether it ends, is given up, or we are killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tdist import env
from tdist.errors import EnvironmentUnfit

_SUPERVISOR = Path(__file__).with_name("supervise.py")
_STOP_SECONDS = 10.0
_CHUNK_BYTES = 1 << 16
_MOST_CORES = 4  # a step may compute on so many for all its time
# What a tool needs to find other programs and libraries. Everything else stays out: LLVM's, Triton's and BiSheng's own
# variables change what a tool makes, and a result is kept by its inputs alone.
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "HOME", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_OUT_OF_MEMORY = (
    "out of memory",
    "bad_alloc",
    "cannot allocate memory",
    "failed to allocate",
    "resource temporarily unavailable",
    "cannot map zero-fill pages",
)


@dataclass(frozen=True)
class Limits:
    """What one step may use. `memory_bytes` counts private writable memory (RLIMIT_DATA), not what is only reserved."""

    seconds: float = 120.0
    memory_bytes: int = 8 << 30
    file_bytes: int = 1 << 30
    output_bytes: int = 4 << 20

    @classmethod
    def of_environment(cls) -> Limits:
        """What the user allows: `TDIST_VENDOR_SECONDS`, `TDIST_VENDOR_MEMORY_MIB`."""
        return cls(seconds=env.VENDOR_SECONDS.get(), memory_bytes=env.VENDOR_MEMORY_MIB.get() << 20)


@dataclass(frozen=True)
class ToolRun:
    """How a program ended.

    `returncode` is as a shell has it (128 + signal for a crash). `signal` is None where it ended by itself.
    `out_of_memory`: it says so, or was killed, as the system does when memory is short (`killed` tells the two apart).
    `stdout` and `stderr` are bounded: of longer ones, the middle is left out.
    """

    argv: tuple[str, ...]
    returncode: int
    signal: int | None
    timed_out: bool
    out_of_memory: bool
    stdout: str
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        """It ended by itself, with 0."""
        return self.returncode == 0 and not self.timed_out

    @property
    def killed(self) -> bool:
        """Somebody killed it, which the system does when memory is short; it did not say that it had none left."""
        return self.signal == signal.SIGKILL and not self.timed_out and not _says_no_memory(self.stderr)

    @property
    def crashed(self) -> bool:
        """It was ended by a signal that nobody sent: a segmentation fault, an abort."""
        return self.signal is not None and not self.timed_out and not self.out_of_memory

    @property
    def ending(self) -> str:
        """In words, for a report: `exit 1`, `SIGSEGV (exit 139)`, `given up after 120 s`."""
        if self.timed_out:
            return f"given up after {self.seconds:.0f} s"
        if self.signal is None:
            return f"exit {self.returncode}"
        with contextlib.suppress(ValueError):
            return f"{signal.Signals(self.signal).name} (exit {self.returncode})"
        return f"signal {self.signal} (exit {self.returncode})"


def run_tool(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    limits: Limits | None = None,
    stdin: str | bytes | None = None,
    remove: Path | None = None,
) -> ToolRun:
    """Run a program to its end.

    Args:
        argv: absolute path of the program and its arguments; no shell.
        cwd: its working directory; also where it puts temporary files.
        limits: what it may use.
        stdin: what it reads; nothing where None.
        remove: a directory to delete should this process die meanwhile.

    Raises:
        EnvironmentUnfit: the program cannot be started at all.
    """
    words = tuple(str(word) for word in argv)
    limits = limits or Limits()
    began = time.monotonic()
    with _input(stdin) as read_from, _Supervised(words, cwd, limits, read_from, remove) as tool:
        timed_out = tool.collect(began + limits.seconds)
        ended = tool.stop() if timed_out else tool.status()
    seconds = time.monotonic() - began
    stdout, stderr = (kept.text() for kept in tool.kept)
    return _judge(words, ended, timed_out, stdout, stderr, seconds)


def _judge(
    argv: tuple[str, ...], ended: dict[str, str], timed_out: bool, stdout: str, stderr: str, seconds: float
) -> ToolRun:
    if "cannot_run" in ended:
        why = ended["cannot_run"]
        if Path(argv[0]).exists() and why == os.strerror(errno.ENOENT):
            why = "the loader or interpreter that it names is not on this system (it is built for glibc)"
        raise EnvironmentUnfit(f"cannot run {argv[0]}: {why}")
    # without a status the supervisor itself was killed, which only the kernel's out-of-memory killer does unasked
    status = int(ended.get("status", signal.SIGKILL))
    code = os.waitstatus_to_exitcode(status)
    number = -code if code < 0 else None
    # LLVM's tools catch a crash, print a stack and end with 128 + signal
    if number is None and code > 128 and "Stack dump:" in stderr:
        number = code - 128
    returncode = 128 - code if code < 0 else code
    failed = returncode != 0 and not timed_out
    starved = failed and (number == signal.SIGKILL or _says_no_memory(stderr))
    return ToolRun(argv, returncode, number, timed_out, starved, stdout, stderr, seconds)


def _says_no_memory(stderr: str) -> bool:
    said = stderr.lower()
    return any(words in said for words in _OUT_OF_MEMORY)


class _Supervised:
    """A program under its supervisor, as a context manager: on leaving, both are over."""

    def __init__(
        self, argv: tuple[str, ...], cwd: Path, limits: Limits, stdin: IO[bytes] | int, remove: Path | None
    ) -> None:
        self._status, far = os.pipe()
        most = {
            "RLIMIT_CORE": 0,
            "RLIMIT_DATA": limits.memory_bytes,
            "RLIMIT_FSIZE": limits.file_bytes,
            "RLIMIT_CPU": int(limits.seconds * _MOST_CORES) + 1,
        }
        order = [str(os.getpid()), str(far), str(remove or ""), ",".join(f"{name}={n}" for name, n in most.items())]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_SUPERVISOR), *order, *argv],
                cwd=cwd,
                env=_environment(cwd),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[far],
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._status)
            raise EnvironmentUnfit(f"cannot start a process to run {argv[0]} in {cwd}: {error.strerror}") from error
        finally:
            os.close(far)
        self.kept = (_Bounded(limits.output_bytes), _Bounded(limits.output_bytes))

    def __enter__(self) -> _Supervised:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        os.close(self._status)

    def collect(self, until: float) -> bool:
        """Read what it writes until it is over; whether the time was up before."""
        with selectors.DefaultSelector() as selector:
            for stream, kept in zip((self._process.stdout, self._process.stderr), self.kept, strict=True):
                assert stream is not None  # PIPE above
                selector.register(stream.fileno(), selectors.EVENT_READ, kept.add)
            selector.register(self._status, selectors.EVENT_READ, self._hold)
            self._ended = b""
            while selector.get_map():
                ready = selector.select(max(0.0, until - time.monotonic()))
                if not ready and time.monotonic() >= until:
                    return True
                for key, _ in ready:
                    chunk = os.read(key.fd, _CHUNK_BYTES)
                    if chunk:
                        key.data(chunk)
                    else:
                        selector.unregister(key.fd)
                        if key.fd == self._status and self._is_left_alone():
                            return False
        return False

    def _is_left_alone(self) -> bool:
        """Whether the supervisor was killed: then nobody else ends what its tool has started."""
        said = self._said()
        if "status" in said:
            return False
        if "tool" in said:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(int(said["tool"]), signal.SIGKILL)
        return True

    def _hold(self, chunk: bytes) -> None:
        self._ended += chunk

    def status(self) -> dict[str, str]:
        """What the supervisor said of the end."""
        self._process.wait()
        return self._said()

    def _said(self) -> dict[str, str]:
        lines = self._ended.decode(errors="replace").splitlines()
        return {what: value for what, _, value in (line.partition(" ") for line in lines)}

    def stop(self) -> dict[str, str]:
        """End the program with all that it started."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:  # it is stuck in the kernel; what dies with it dies
                self._process.kill()
                self._process.wait()
        return {}


class _Bounded:
    """The beginning and the end of a stream."""

    def __init__(self, most_bytes: int) -> None:
        self._half = most_bytes // 2
        self._head, self._tail, self._dropped = bytearray(), bytearray(), 0

    def add(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._half:
            self._trim()

    def _trim(self) -> None:
        extra = max(0, len(self._tail) - self._half)
        self._dropped += extra
        del self._tail[:extra]

    def text(self) -> str:
        self._trim()
        cut = f"\n[… {self._dropped} bytes left out …]\n".encode() if self._dropped else b""
        return bytes(self._head + cut + self._tail).decode(errors="replace")


@contextlib.contextmanager
def _input(stdin: str | bytes | None) -> Iterator[IO[bytes] | int]:
    if stdin is None:
        yield subprocess.DEVNULL
        return
    with tempfile.TemporaryFile() as file:
        file.write(stdin.encode() if isinstance(stdin, str) else stdin)
        file.seek(0)
        yield file


def _environment(cwd: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    # a crash is a result: no symbolizer, which would take seconds and print addresses of this machine
    return {**kept, "LC_ALL": "C.UTF-8", "TMPDIR": str(cwd), "LLVM_DISABLE_SYMBOLIZATION": "1"}
