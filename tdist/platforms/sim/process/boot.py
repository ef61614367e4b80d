"""Starting the fork server's process, without torch: a command can do this first and import while the server does.

The server ends when its socket to the launcher does, also while it still imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Self

from tdist.platforms.sim import collection
from tdist.platforms.sim.process import warm

# run with -c: the launcher's sys.path as it is, not as PYTHONPATH would make it
_MAIN = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from tdist.platforms.sim.process.boot import serve
serve(int(sys.argv[1]))
"""
_WATCH_SECONDS = 0.2
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that are 1 in the fork server and all that it forks."""


class Boot:
    """A fork server that is starting, or was kept (`warm.py`) and is `ready`: its process and its socket's near end.

    As a context manager it ends the process unless a pool has taken it over by then.
    """

    def __init__(self) -> None:
        open_standard_streams()
        self._taken = False
        self.origin = warm.Origin.now()
        kept = warm.take(self.origin)
        self.ready = kept is not None
        if kept is None:
            self._start()
        else:
            self.near, self.process = kept.near, kept.process

    def _start(self) -> None:
        self.near, far = socket.socketpair()
        threads = dict.fromkeys(ONE_THREAD, "1")
        with far:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(far.fileno()), json.dumps(sys.path)],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **threads},
                start_new_session=True,  # Ctrl-C is the launcher's to handle
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        server = warm.Server(self.near, self.process, self.origin)
        if not (self._taken or (self.ready and warm.keep(server))):
            server.end()

    def take(self) -> warm.Server:
        """The server; whoever takes it ends or keeps it."""
        self._taken = True
        return warm.Server(self.near, self.process, self.origin)


def serve(fd: int) -> None:
    """The fork server's own main, on its inherited socket; does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collection.start_loading()
    with _watching(fd):
        from tdist.platforms.sim.process import forkserver

        server = forkserver.prepare(fd)
    collection.loaded()
    if server is not None:
        server.serve()
    os._exit(0)  # an interpreter with torch takes a second to tear down, and nothing here needs it; children die too


@contextlib.contextmanager
def _watching(fd: int) -> Iterator[None]:
    """End this process if the far end of `fd` closes while the block runs. No thread of it is left for a fork."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(fd, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(fd: int, over: threading.Event) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)  # not POLLIN: requests may wait there already
    while not over.is_set():
        if poll.poll(_WATCH_SECONDS * 1000):
            os._exit(0)


def open_standard_streams() -> None:
    """Give descriptors 0 to 2 to the null device where they are closed, before a socket of ours gets one of them."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)
