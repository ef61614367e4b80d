"""Python processes that do not import torch for seconds: forks of one that has imported what is not ours, and no more.

`Interpreters.run([sys.executable, …])` does what `subprocess.run` does with such a command, output captured: a process
of its own, with the given directory, environment and `sys.argv`, that imports all of tdist itself. What such a process
starts as its fork server is a fork as well. Tests of how processes start, end or are left behind take real ones.

As a program it is the server of those forks.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

LOADED = (
    *("numpy", "torch", "torch.distributed", "triton", "triton.compiler", "triton.backends.ascend.compiler"),
    *("xdsl.parser", "xdsl.printer", "xdsl.dialects.arith", "xdsl.dialects.builtin", "xdsl.dialects.scf"),
    *("xdsl.dialects.func", "xdsl.dialects.memref", "xdsl.dialects.math", "xdsl.dialects.linalg"),
    *("click", "rich.console", "rich.table", "pytest"),
)
"""What the server imports; nothing of ours, and nothing that asks who runs it."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_MESSAGE_BYTES = 1 << 20
_START_SECONDS = 120.0


# ------------------------------------------------------------------ in the tests


class Process:
    """A process that was asked for: its id, and its exit status when it has one."""

    def __init__(self, command: Sequence[str], sock: socket.socket) -> None:
        self.args = command
        self.stdin = None
        self.returncode: int | None = None
        self._sock = sock
        self.pid = int(self._receive(_START_SECONDS)["pid"])

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            self.returncode = int(self._receive(timeout)["code"])
            self.close()
        return self.returncode

    def close(self) -> None:
        """Ask no more for its status."""
        self._sock.close()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _receive(self, seconds: float | None) -> dict[str, Any]:
        if not select.select([self._sock], [], [], seconds)[0]:
            raise subprocess.TimeoutExpired(list(self.args), seconds or 0.0)
        data = self._sock.recv(_MESSAGE_BYTES)
        if not data:
            raise RuntimeError(f"the server of interpreters is gone, and {self.args} with it")
        return json.loads(data)


class Interpreters:
    """The far process, started when it is first needed."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None

    def run(
        self, command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run `[sys.executable, "-m" | "-c" | script, …]` to its end; its standard input is empty.

        Raises:
            subprocess.TimeoutExpired: it took longer, and has been killed.
        """
        with _captured() as out, _captured() as err:
            process = self.start(command, stdout=out.fileno(), stderr=err.fileno(), cwd=cwd, env=env)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            return subprocess.CompletedProcess([*command], code, _text(out), _text(err))

    def start(
        self,
        command: Sequence[str],
        *,
        stdout: int,
        stderr: int,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start it with these descriptors as its output."""
        assert command[0] == sys.executable, command
        about = {"argv": [*map(str, command[1:])], "cwd": str(cwd or Path.cwd()), "env": dict(env or os.environ)}
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            server = self._started()
            socket.send_fds(server, [json.dumps(about).encode()], [far.fileno(), stdout, stderr])
        return Process(command, near)

    def _started(self) -> socket.socket:
        if self._sock is None:
            self._sock, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with far:
                command = [sys.executable, __file__, str(far.fileno())]
                environment = {**os.environ, **_ONE_THREAD}
                self._server = subprocess.Popen(command, pass_fds=[far.fileno()], env=environment)
        return self._sock

    def close(self) -> None:
        """End the server."""
        if self._sock is not None and self._server is not None:
            self._sock.close()
            self._server.wait(_START_SECONDS)


def _captured() -> io.FileIO:
    return io.FileIO(os.memfd_create("captured"), "r+")


def _text(file: io.FileIO) -> str:
    file.seek(0)
    return file.readall().decode(errors="replace").replace("\r\n", "\n")


# ------------------------------------------------------------------ in the server


def _serve(sock: socket.socket) -> None:
    """Fork on request until the tests' end of the socket is closed; tell each asker how its process ended."""
    gc.disable()
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not sock:
                    selector.unregister(key.fileobj)
                    _reap(*running.pop(key.fd), key.fd)
                    continue
                data, fds, _, _ = socket.recv_fds(sock, _MESSAGE_BYTES, 3)
                if not data:
                    return
                pid = _fork(json.loads(data), fds)
                asker = socket.socket(fileno=fds[0])
                asker.send(json.dumps({"pid": pid}).encode())
                os.close(fds[1])
                os.close(fds[2])
                pidfd = os.pidfd_open(pid)
                running[pidfd] = (pid, asker)
                selector.register(pidfd, selectors.EVENT_READ)


def _reap(pid: int, asker: socket.socket, pidfd: int) -> None:
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    with asker, contextlib.suppress(BrokenPipeError):
        asker.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())


def _fork(request: dict[str, Any], fds: list[int]) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _end_with(server)
        _become(request, lambda: _streams(os.open(os.devnull, os.O_RDONLY), *fds[1:]), spare=True)
    return pid


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


# ------------------------------------------------------------------ in a process that was asked for


def _become(request: dict[str, Any], set_up: Callable[[], None], spare: bool) -> NoReturn:
    """Be the Python process that the request describes, to its end."""
    code = 1
    try:
        set_up()
        gc.unfreeze()  # as it would be; tdist.platforms.sim.collection looks at that
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        _open_streams()
        if spare:
            _Spare.offer()
        code = _exit_code(lambda: _run(request["argv"]))
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _streams(stdin: int, stdout: int, stderr: int) -> None:
    for number, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, number)
    os.closerange(3, 1 << 12)


def _open_streams() -> None:
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding, errors or None)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding, errors or None)
    told = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(told, encoding, "backslashreplace", line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # pyright: ignore


def _run(argv: list[str]) -> None:
    """Run `-m module …`, `-mmodule …`, `-c code …` or `script …` as `__main__`."""
    if argv[0].startswith("-m") and argv[0] != "-m":
        argv = ["-m", argv[0][2:], *argv[1:]]
    known = [entry for entry in sys.path[1:] if entry not in _own_python_path]
    python_path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kind = argv[0]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.path[:] = [*python_path, *known]
    if any((Path(entry) / "sitecustomize.py").exists() for entry in python_path):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    if kind not in ("-m", "-c"):
        sys.argv, sys.path[:] = argv, [str(Path(kind).resolve().parent), *python_path, *known]
        path = str(Path(kind).absolute())
        _run_in(main, compile(Path(path).read_bytes(), path, "exec"), path)
        return
    assert not argv[1].startswith("-"), argv
    sys.argv, sys.path[:] = [kind, *argv[2:]], [os.getcwd() if kind == "-m" else "", *python_path, *known]
    if kind == "-m":
        runpy._run_module_as_main(argv[1])  # pyright: ignore[reportAttributeAccessIssue]  as the interpreter does
    else:
        _run_in(main, compile(argv[1], "<string>", "exec"))


def _run_in(main: ModuleType, code: CodeType, file: str = "") -> None:
    if file:
        main.__dict__["__file__"] = file
    exec(code, main.__dict__)


def _exit_code(function: Callable[[], None]) -> int:
    """What the interpreter would exit with."""
    try:
        function()
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


class _Spare(subprocess.Popen):
    """In place of `subprocess.Popen` where it starts the fork server: a child that waits to be just that.

    It was forked before its parent imported anything of ours, and ends with it.
    """

    spare: tuple[int, socket.socket] | None = None

    @classmethod
    def offer(cls) -> None:
        """Fork the child that waits, and look out for the command that it is for."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            near.close()
            cls._wait_to_be_asked(far)
        far.close()
        cls.spare = (pid, near)
        subprocess.Popen = cls  # pyright: ignore

    @staticmethod
    def _wait_to_be_asked(sock: socket.socket) -> NoReturn:
        data, fds, _, _ = socket.recv_fds(sock, _MESSAGE_BYTES, 1)
        if not data:
            os._exit(0)
        request = json.loads(data)

        def set_up() -> None:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            if fds[0] != request["fd"]:
                os.dup2(fds[0], request["fd"])
                os.close(fds[0])

        _become(request, set_up, spare=False)

    def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
        spare = self.spare
        if spare is None or not self._starts_a_fork_server(args):
            super().__init__(args, *rest, **options)
            return
        _Spare.spare = None
        super().__init__(["true"])  # for what else a Popen holds
        self.wait()
        self.args, (self.pid, sock), self.returncode = args, spare, None
        (fd,) = options["pass_fds"]
        request = {"argv": args[1:], "cwd": os.getcwd(), "env": dict(options["env"]), "fd": fd}
        with sock:
            socket.send_fds(sock, [json.dumps(request).encode()], [fd])

    @staticmethod
    def _starts_a_fork_server(args: Any) -> bool:
        return isinstance(args, list) and args[:2] == [sys.executable, "-c"] and "process.boot import serve" in args[2]


_own_python_path = frozenset(os.environ.get("PYTHONPATH", "").split(os.pathsep))


@contextlib.contextmanager
def interpreters() -> Iterator[Interpreters]:
    """For the length of the block."""
    opened = Interpreters()
    try:
        yield opened
    finally:
        opened.close()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        _serve(asked)
    os._exit(0)
