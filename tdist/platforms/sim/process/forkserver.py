"""A process with torch loaded that forks ranks and engines on request: a spawned rank would import for seconds.

It ends when its socket to the launcher does, and its children are killed with it (PR_SET_PDEATHSIG): whichever process
of a pool dies, nothing stays behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import selectors
import signal
import sys
import traceback
from typing import Any

from tdist.errors import TdistError
from tdist.platforms.sim import collection
from tdist.platforms.sim.process.boot import ONE_THREAD
from tdist.platforms.sim.process.protocol import Channel, Message, close_fds
from tdist.platforms.sim.process.wire import error_to_json

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the process that forked it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def preload() -> None:
    """Import what ranks and engines need, once; a small world of our own finds what is imported late."""
    import torch
    import torch.distributed

    import tdist.platforms.sim.process.client
    import tdist.platforms.sim.process.server  # noqa: F401
    from tdist.platforms.sim.world import World

    torch.set_num_threads(1)
    with World(nranks=1, heap_bytes=1 << 20) as world:
        from tdist.platforms.sim.process.warm_up import host

        world.run(host)


class ForkServer:
    """Forks on request, reaps, and tells the launcher who ended and how."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, None)
        self._children: dict[int, int] = {}

    def serve(self) -> None:
        self._channel.send({"op": "ready"})
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._reap(key.data)
                elif not self._request(self._channel.receive()):
                    return

    def _request(self, message: Message | None) -> bool:
        if message is None:
            return False
        if message.op == "fork":
            self._fork(message)
        elif message.op == "kill":
            self._kill(int(message.data["pid"]))
        elif message.op == "import":
            _import(message.data["modules"])
        elif message.op == "ping":
            self._channel.send({"op": "ready"})
        return True

    def _kill(self, pid: int) -> None:
        if pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _fork(self, message: Message) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with_parent(parent)
            self._become(message)
        close_fds(message.fds)
        pidfd = os.pidfd_open(pid)
        self._children[pid] = pidfd
        self._selector.register(pidfd, selectors.EVENT_READ, pid)
        self._channel.send({"op": "forked", "pid": pid})

    def _become(self, message: Message) -> None:
        """The child's side of a fork; does not return."""
        code = 1
        try:
            self._channel.close()
            self._selector.close()
            close_fds(list(self._children.values()))
            code = _child_main(message.data, message.fds)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:  # a fork must never run on into its parent's loop
            traceback.print_exc()
        finally:
            _flush()
            os._exit(code)

    def _reap(self, pid: int) -> None:
        pidfd = self._children.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._channel.send({"op": "exit", "pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _import(names: list[str]) -> None:
    """Import what ranks will; one that fails does so again in each rank, where it can be told."""
    collection.start_loading()
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    collection.loaded()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _surround(spec: dict[str, Any]) -> None:
    """Directory and environment as the launcher has them at the fork, but for what decides this process's threads."""
    with contextlib.suppress(OSError):
        os.chdir(spec["directory"])
    threads = {name: os.environ[name] for name in ONE_THREAD}
    os.environ.clear()
    os.environ.update(spec["environment"] | threads)


def _child_main(spec: dict[str, Any], fds: list[int]) -> int:
    from tdist.platforms.sim.process import client, server

    _surround(spec)
    out, err, *rest = fds
    os.dup2(out, 1)
    os.dup2(err, 2)
    close_fds([out, err])
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    if spec["role"] == "engine":
        return server.main(spec, rest)
    return client.main(spec, rest)


def prepare(fd: int) -> ForkServer | None:
    """Import everything; None if this machine cannot run ranks, which the launcher has been told then."""
    channel = Channel.from_fd(fd)
    try:
        preload()
    except TdistError as error:  # e.g. no front end: the launcher says so
        channel.send({"op": "failed", **error_to_json(error)})
        return None
    except Exception:
        text = "rank processes cannot be started\n" + traceback.format_exc()
        channel.send({"op": "failed", "type": "EnvironmentUnfit", "text": text})
        return None
    return ForkServer(channel)
