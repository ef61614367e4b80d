"""Runs one program and sees to it that nothing of it stays: the main of a small process between us and a vendor's tool.

Run as a script, never imported by tdist: `python -I -S -B supervise.py JSON`, JSON being

    {"parent": pid, "status": fd, "argv": […], "limits": {"RLIMIT_CORE": bytes, …}, "remove": path | null}

The tool gets a process group of its own, this process's standard streams and the limits. When it ends, whatever it
started is killed and its wait status goes to `status`, as a line of JSON; a tool that cannot start says so before that.
When the parent dies (also by SIGKILL), or this process is told to stop (SIGTERM), everything is killed, and the
directory `remove` is deleted where the parent can no longer do that.

A process between, because what has to happen between fork and exec is not safe in a process with threads, and because
only a subreaper finds what a tool's children leave behind.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CANNOT_RUN = 127
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def main() -> NoReturn:
    order = json.loads(sys.argv[1])
    watched = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    status = None
    if os.getppid() == order["parent"]:  # else it died before the line above
        tool = _start(order)
        status = _wait(tool, watched)
        _kill_all(tool)
    if os.getppid() != order["parent"]:
        _remove(order["remove"])
    elif status is not None:
        _tell(order, {"status": status})
    os._exit(0)


def _tell(order: dict, news: dict) -> None:
    os.write(order["status"], json.dumps(news).encode() + b"\n")


def _start(order: dict) -> int:
    """Fork and exec the tool; its pid."""
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # it has done so itself, and perhaps is over
            os.setpgid(pid, pid)
        null = os.open(os.devnull, os.O_RDWR)  # the tool alone keeps the pipes open
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        return pid
    try:
        _become(order)
    except OSError as error:
        _tell(order, {"cannot_run": error.strerror})
    os._exit(_CANNOT_RUN)


def _become(order: dict) -> NoReturn:
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for name, most in order["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (allowed, allowed))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; ignored signals survive an exec
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    os.set_inheritable(order["status"], False)
    os.execv(order["argv"][0], order["argv"])


def _wait(tool: int, watched: set) -> int | None:
    """The tool's wait status, or None if we are told to stop."""
    while True:
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == tool:
                return status
            if pid:
                continue
        if signal.sigwait(watched) == signal.SIGTERM:
            return None


def _kill_all(tool: int) -> None:
    """Kill the tool's group, and what has left the group: as a subreaper we are the parent of all orphans."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(tool, signal.SIGKILL)
    while True:
        alive = _children()
        if alive is None:  # a kernel that does not tell; the group is dead
            return
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int] | None:
    try:
        with open("/proc/thread-self/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return None


def _remove(path: str | None) -> None:
    if path is not None:
        import shutil

        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
