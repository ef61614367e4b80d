"""Runs one program and sees to it that nothing of it stays: the main of a small process between us and a vendor's tool.

Run as a script, never imported by tdist:

    python -I -S -B supervise.py PARENT STATUS REMOVE RLIMIT_CORE=0,RLIMIT_DATA=… PROGRAM ARGUMENT…

PARENT is the pid of who starts it, STATUS a descriptor to write to, REMOVE a directory or nothing. The tool gets a
process group of its own, this process's standard streams and the limits (in the units of `setrlimit`). `tool PID` goes
to STATUS first, which names its group should somebody kill this process; a tool that cannot start says `cannot_run
WHY`. When it ends, whatever it started is killed and `status N` goes to STATUS, N as `waitpid` gives it. When the
parent dies (also by SIGKILL), or this process is told to stop (SIGTERM), everything is killed, and REMOVE is deleted
where the parent can no longer do that.

A process between, because what has to happen between fork and exec is not safe in a process with threads, and because
only a subreaper finds what a tool's children leave behind. It starts once for each step, so it imports little:
`_signal` is what `signal` wraps in enumerations, and `_ctypes` what `ctypes` wraps in classes; their imports would take
as long as everything else.
"""

import _ctypes
import _signal as signal  # pyright: ignore[reportMissingImports]
import os
import resource
import sys

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CANNOT_RUN = 127
_WATCHED = {signal.SIGCHLD, signal.SIGTERM}
_PRCTL = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # pyright: ignore[reportArgumentType]


def main() -> None:
    parent, status_fd, remove, limits, *argv = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    status = None
    if os.getppid() == int(parent):  # else it died before the line above
        tool = _start(argv, limits, int(status_fd))
        status = _wait(tool)
        _kill_all(tool)
    if os.getppid() != int(parent):
        _remove(remove)
    elif status is not None:
        _tell(int(status_fd), f"status {status}")
    os._exit(0)


def _prctl(option: int, value: int) -> None:
    _ctypes.call_function(_PRCTL, (option, value, 0, 0, 0))


def _tell(fd: int, news: str) -> None:
    os.write(fd, f"{news}\n".encode())


def _start(argv: list[str], limits: str, status_fd: int) -> int:
    """Fork and exec the tool; its pid."""
    pid = os.fork()
    if pid:
        _try(os.setpgid, pid, pid)  # it does so itself, and may be over
        null = os.open(os.devnull, os.O_RDWR)  # the tool alone keeps the pipes open
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        return pid
    try:
        _become(argv, limits, status_fd)
    except OSError as error:
        _tell(status_fd, f"cannot_run {error.strerror}")
    os._exit(_CANNOT_RUN)


def _become(argv: list[str], limits: str, status_fd: int) -> None:
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _tell(status_fd, f"tool {os.getpid()}")  # told here: the tool may kill its supervisor before that gets round to it
    for limit in limits.split(","):
        name, _, most = limit.partition("=")
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        allowed = int(most) if hard == resource.RLIM_INFINITY else min(int(most), hard)
        resource.setrlimit(kind, (allowed, allowed))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; ignored signals survive an exec
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.set_inheritable(status_fd, False)
    os.execv(argv[0], argv)


def _wait(tool: int) -> int | None:
    """The tool's wait status, or None if we are told to stop."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == tool:
            return status
        if pid == 0 and signal.sigwait(_WATCHED) == signal.SIGTERM:
            return None


def _kill_all(tool: int) -> None:
    """Kill the tool's group, and what has left the group: as a subreaper we are the parent of all orphans."""
    _try(os.killpg, tool, signal.SIGKILL)
    while True:
        alive = _children()
        if alive is None:  # a kernel that does not tell; the group is dead
            return
        for pid in alive:
            _try(os.kill, pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _try(act, *arguments: int) -> bool:
    """Do something to a process that may be over."""
    try:
        act(*arguments)
    except OSError:
        return False
    return True


def _children() -> list[int] | None:
    try:
        with open("/proc/thread-self/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return None


def _remove(path: str) -> None:
    if path:
        import shutil

        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
