"""Fork servers that are kept: the next pool of this process then starts in tenths of a second instead of seconds.

Most of a pool's start is its fork server's import of torch, and a server is as good as new when its ranks have ended.
So inside `keeping()` a pool that closes leaves its server behind, one at most, for the next pool; outside, and when the
block ends, a pool leaves nothing. A server that was started under another environment or another `sys.path` is not
taken: what it has imported may differ. The working directory is told to each fork.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_CHANGES_NOTHING: Final = frozenset({"PYTEST_CURRENT_TEST", "PWD", "OLDPWD", "COLUMNS", "LINES"})
"""Variables that no import asks for."""


@dataclass(frozen=True)
class Origin:
    """What a server's imports may depend on."""

    environment: frozenset[tuple[str, str]]
    path: tuple[str, ...]

    @classmethod
    def now(cls) -> Origin:
        """Of this process."""
        environment = frozenset(item for item in os.environ.items() if item[0] not in _CHANGES_NOTHING)
        return cls(environment, tuple(sys.path))


@dataclass(frozen=True)
class Server:
    """A fork server that runs and has no children: the near end of its socket, and its process."""

    near: socket.socket
    process: subprocess.Popen[bytes]
    origin: Origin

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """It ends when its socket does."""
        self.near.close()
        self.process.kill()
        self.process.wait()


class _Shelf:
    """Where the kept server stands, while somebody wants one to be kept. `owner`: a fork must not use it."""

    def __init__(self) -> None:
        self.wanted: list[bool] = []
        self.server: Server | None = None
        self.owner = 0


_shelf = _Shelf()


@contextlib.contextmanager
def keeping(wanted: bool = True) -> Iterator[None]:
    """Keep a server from pool to pool while the block runs; with False, do not (inside of one that does)."""
    _shelf.wanted.append(wanted)
    try:
        yield
    finally:
        _shelf.wanted.pop()
        if not any(_shelf.wanted):
            _clear()


def take(origin: Origin) -> Server | None:
    """The kept server, if there is one for this origin."""
    server = _shelf.server
    if not _wanted() or server is None or _shelf.owner != os.getpid() or server.origin != origin:
        return None
    _shelf.server = None
    if server.alive:
        return server
    server.end()
    return None


def keep(server: Server) -> bool:
    """Keep a server that nobody needs any more; False if it is to be ended."""
    if not _wanted() or not server.alive or (_shelf.server is not None and _shelf.owner == os.getpid()):
        return False
    _shelf.server, _shelf.owner = server, os.getpid()
    return True


def _wanted() -> bool:
    return bool(_shelf.wanted) and _shelf.wanted[-1]


def _clear() -> None:
    server, _shelf.server = _shelf.server, None
    if server is not None and _shelf.owner == os.getpid():
        server.end()
