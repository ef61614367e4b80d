"""Starting the fork server's process, without torch: a command can do this first and import while the server does.

The server ends when its socket to the launcher does.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Self

# run with -c: the launcher's sys.path as it is, not as PYTHONPATH would make it
_MAIN = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from tdist.platforms.sim.process.forkserver import main
main(int(sys.argv[1]))
"""


class Boot:
    """A fork server that is starting: its process and the near end of its socket.

    As a context manager it ends the process unless a pool has taken it over by then.
    """

    def __init__(self) -> None:
        open_standard_streams()
        self.near, far = socket.socketpair()
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with far:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(far.fileno()), json.dumps(sys.path)],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **threads},
                start_new_session=True,  # Ctrl-C is the launcher's to handle
            )
        self._taken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._taken:
            self.near.close()
            self.process.kill()
            self.process.wait()

    def take(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """The socket and the process; whoever takes them ends them."""
        self._taken = True
        return self.near, self.process


def open_standard_streams() -> None:
    """Give descriptors 0 to 2 to the null device where they are closed, before a socket of ours gets one of them."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)
