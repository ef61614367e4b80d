"""The in-process world: one thread per rank, exactly one of them running at any time.

The thread that called `World.run` hands a baton around: a host runs until it blocks in a request to the engine, then
the next one runs; when no host can run, the engine does. So the order of everything is a function of the program and
the scheduler's seed.

Source: docs/ordering-model.md, "Who acts" and "Deadlock" (quiescence).
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tdist import env
from tdist.errors import TdistError, UsageError, VerificationFailed, WorldStopped
from tdist.findings import Finding, to_text
from tdist.platforms.base import current
from tdist.platforms.sim.detector import DetectorStats
from tdist.platforms.sim.device_tensors import Box, View, alias_bytes
from tdist.platforms.sim.engine import Engine
from tdist.platforms.sim.engine_port import EnginePort
from tdist.platforms.sim.host_errors import HostError
from tdist.platforms.sim.host_watch import HostWatch
from tdist.platforms.sim.rank import SimRank
from tdist.platforms.sim.scope import simulation_scope
from tdist.platforms.sim.streams import HostSite
from tdist.platforms.sim.world_config import make_config
from tdist.trace import Trace

_JOIN_SECONDS = 5.0
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class WorldStats:
    """What a world has done.

    `steps`: resumptions of device agents; `launches`: by rank; `detector`: its own sizes, None with detection off.
    """

    steps: int
    launches: tuple[int, ...]
    detector: DetectorStats | None


def _taken_lock() -> threading.Lock:
    """What one thread waits for and another gives: as a semaphore of one, which Python's own is four times as slow."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def _give(lock: threading.Lock) -> None:
    """Let whoever waits for it go on; nothing where it has been given already, as in a world that is abandoned."""
    with contextlib.suppress(RuntimeError):
        lock.release()


def _nothing() -> None:
    """The body of a host that has ended."""


class _Host:
    """One rank's host function on its thread, and the baton with which it is let run."""

    def __init__(self, rank: int, body: Callable[[], Any]) -> None:
        self.rank = rank
        self.body: Callable[[], Any] = body
        self.baton = _taken_lock()
        self.back = _taken_lock()
        self.thread: threading.Thread | None = None
        self.waiting = False
        self.ended = False
        self.reply: Any = None
        self.result: Any = None
        self.error: BaseException | None = None

    def _start(self) -> None:
        self.thread = threading.Thread(target=self._main, name=f"rank {self.rank}", daemon=True)
        self.thread.start()

    def _main(self) -> None:
        try:
            self.result = self.body()
        except BaseException as error:  # the conductor decides what becomes of it, SystemExit and all
            self.error = error
        finally:
            self.ended = True
            self.body = _nothing  # it holds the caller's arguments
            _give(self.back)

    def resume(self) -> None:
        """Called by the conductor: let the host run until it blocks or ends."""
        watch, since = None, time.monotonic()
        if self.thread is None:
            self._start()
        else:
            _give(self.baton)
        while not self.back.acquire(timeout=_POLL_SECONDS):
            thread = self.thread
            if thread is None or not thread.is_alive():
                return
            watch = watch or HostWatch(self.rank, thread.ident or 0, thread.native_id or 0, since, _to_stderr)
            watch.look(env.WATCHDOG_SECONDS.get())

    def block(self) -> Any:
        """Called on the host's thread: give the baton back until the request is completed."""
        _give(self.back)
        self.baton.acquire()
        return self.reply

    def forget(self) -> None:
        """An error's traceback leads back here, and to every tensor of the host function."""
        self.error = self.result = self.reply = None

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the host's thread at its next bytecode."""
        if self.thread is not None and self.thread.ident is not None and self.thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.thread.ident), ctypes.py_object(KeyboardInterrupt)
            )


class _LocalPort:
    """Requests of one rank as direct calls of the engine."""

    def __init__(self, rank: int, world: World) -> None:
        self._rank = rank
        self._world = world
        self._engine = world._port

    def launch(self, kernel: Any, grid: tuple[int, int, int], args: Sequence[Any], site: HostSite) -> None:
        self._world._check()
        self._engine.launch(self._rank, kernel, grid, args, site)

    def register(self, storage: torch.UntypedStorage) -> int:
        self._world._check()
        return self._engine.register(self._rank, alias_bytes(storage), None)

    def unregister(self, address: int) -> None:
        self._engine.unregister(self._rank, address)

    def describe(self, view: View, name: str, role: str, launch: int) -> None:
        self._world._check()
        self._engine.describe(self._rank, view, name, role, launch)

    def host_write(self, boxes: Sequence[Box], data: torch.Tensor, site: HostSite) -> None:
        self._world._check()
        self._engine.host_write(self._rank, boxes, data, site)

    def host_copy(self, target: View, source: View, site: HostSite) -> None:
        self._world._check()
        self._engine.host_copy(self._rank, target, source, site)

    def host_read(self, boxes: Sequence[Box], site: HostSite) -> None:
        self._block(lambda done: self._engine.host_read(self._rank, boxes, site, done))

    def synchronize(self, site: HostSite) -> None:
        self._block(lambda done: self._engine.synchronize(self._rank, site, done))

    def malloc(self, nbytes: int, alignment: int, name: str | None, site: HostSite) -> int:
        return self._block(lambda done: self._engine.malloc(self._rank, nbytes, alignment, name, site, done))

    def free(self, address: int, site: HostSite) -> None:
        self._block(lambda done: self._engine.free(self._rank, address, site, done))

    def collective(self, group: tuple[int, ...], sequence: int, kind: str, site: HostSite) -> None:
        self._block(lambda done: self._engine.collective(self._rank, group, sequence, kind, site, done))

    def _block(self, request: Callable[[Callable[[Any], None]], None]) -> Any:
        self._world._check()
        return self._world._block(self._rank, request)


class World:
    """N simulated ranks in this process.

    Args:
        nranks: number of ranks (PEs).
        config: fields of `WorldConfig` (heap_bytes, scheduler, seed, detect, profile, …).

    Several functions can run one after another on the same heap; a world that has stopped (deadlock, fault, an
    exception in a host function) runs nothing more. Worlds are independent of each other, nested ones too.

    Example:
        with World(nranks=4) as world:
            results = world.run(host, x)
            world.raise_for_findings()
    """

    port_type: type[EnginePort] = EnginePort

    def __init__(self, nranks: int = 4, **config: Any) -> None:
        __tracebackhide__ = True
        self.config = make_config(nranks, config)
        self.engine = Engine(self.config)
        self._port = self.port_type(self.engine)
        bases = self._port.heap_bases()
        self._ranks = [
            SimRank(rank, self.config, self._port.heap(rank), bases, _LocalPort(rank, self)) for rank in range(nranks)
        ]
        self._hosts: list[_Host] = []
        self._stopped: WorldStopped | None = None
        self._running = False
        self._closed = False
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> World:
        self._scope.enter_context(simulation_scope())
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back. Tensors that are still held stay readable."""
        if self._closed:
            return
        self._closed = True
        self._port.close()
        for rank in self._ranks:
            rank.detach()
        for host in self._hosts:
            host.forget()
        self._hosts = []
        self._scope.close()

    @property
    def findings(self) -> list[Finding]:
        """What the engine has found so far."""
        return list(self.engine.findings)

    @property
    def events(self) -> list[Any]:
        """The choice list: what a replay needs."""
        return list(self.engine.events)

    @property
    def prints(self) -> list[Any]:
        """What kernels printed (`tl.device_print`)."""
        return list(self.engine.prints)

    @property
    def trace(self) -> Trace | None:
        """What happened so far, in order; None in a world without `trace=True`. See `tdist.trace`."""
        return None if self.engine.tracer is None else self.engine.tracer.trace()

    @property
    def stats(self) -> WorldStats:
        """Counts of this world so far."""
        engine = self.engine
        detector = None if engine.detector is None else engine.detector.stats()
        return WorldStats(engine.steps, tuple(stream.launches for stream in engine.streams), detector)

    def raise_for_findings(self) -> None:
        """Raise if there are errors, or hazards where the profile or the target is Ascend's and they were asked for.

        Raises:
            VerificationFailed: the message holds every such finding in full.
        """
        failing = [found for found in self.findings if found.fails(self.config.profile)]
        if failing:
            raise VerificationFailed("\n\n".join(to_text(found) for found in failing))

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Run `fn(rt, *args, **kwargs)` on every rank, and what it launched to its end.

        Returns:
            What `fn` returned, by rank, device tensors as snapshots. Where the engine stopped the world (deadlock,
            divergence, fault) before `fn` could return, the `WorldStopped` error stands in its place and `findings`
            says why.

        Raises:
            Exception: what a host function raised, as itself, with a note that names the rank.
            UsageError: the world is closed or is running already.
            WorldStopped: the world was stopped by an earlier run.
        """
        self._check_idle()
        self._hosts = [_Host(rank.rank, self._body(rank, fn, args, kwargs)) for rank in self._ranks]
        with simulation_scope(), _outer_modes_paused():
            self._running = True
            try:
                self._port.begin()
                self._conduct()
                self._port.check_memory()
            finally:
                self._running = False
        return self._results()

    # the conductor

    def _conduct(self) -> None:
        try:
            while not all(host.ended for host in self._hosts):
                self._step()
        except BaseException as error:
            self._abandon(error)
            raise

    def _body(
        self, rank: SimRank, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Callable[[], Any]:
        def body() -> Any:
            with rank.on_this_thread():
                return rank.collect(fn(rank, *args, **kwargs))

        return body

    def _step(self) -> None:
        """Let every host that can run do so once, in rank order; if none can, let the engine run."""
        ready = [host for host in self._hosts if not host.ended and not host.waiting]
        for host in ready:
            host.resume()
            if host.ended:
                self._retire(host)
        if ready:
            return
        self.engine.run()
        if all(host.waiting for host in self._hosts if not host.ended):
            raise TdistError("internal error: the engine ran and completed no request; please report this")

    def _retire(self, host: _Host) -> None:
        error = host.error
        if error is None or isinstance(error, WorldStopped):
            self._port.end(host.rank, None)
            return
        why = HostError.of(error)
        self._port.end(host.rank, why.text, why.place)
        error.add_note(f"raised by the host function of rank {host.rank}")
        self._stop(f"rank {host.rank}: its host function raised {why.text}")

    def _stop(self, why: str) -> None:
        """Every host's pending and next request fails with `why`."""
        if self._stopped is None:
            self._stopped = WorldStopped(f"the world has stopped: {why}", tuple(self.engine.findings))
        for host in self._hosts:
            if host.waiting:
                host.reply, host.waiting = self._stopped, False

    def _abandon(self, error: BaseException) -> None:
        """The conductor itself was interrupted: get all threads out of the user's code."""
        self._stop(f"{type(error).__name__} in the thread that runs it")
        for host in self._hosts:
            if not host.ended:
                host.interrupt()
                _give(host.baton)
        for host in self._hosts:
            if host.thread is not None and host.thread.ident is not None:  # it may have failed to start
                host.thread.join(_JOIN_SECONDS)

    # called on the hosts' threads

    def _check(self) -> None:
        if self._stopped is not None:
            raise WorldStopped(str(self._stopped), self._stopped.findings)
        if not self._running:
            raise UsageError(
                "this rank's world is not running: device work belongs inside the function given to World.run"
            )

    def _block(self, rank: int, request: Callable[[Callable[[Any], None]], None]) -> Any:
        host = self._hosts[rank]
        host.waiting, host.reply = True, None

        def done(result: Any = None) -> None:
            if host.waiting:
                host.reply, host.waiting = result, False

        request(done)
        reply = host.block() if host.waiting else host.reply
        if isinstance(reply, WorldStopped):
            raise WorldStopped(str(reply), reply.findings)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    # results

    def _check_idle(self) -> None:
        if self._closed:
            raise UsageError("this World is closed; make a new one")
        if self._running:
            raise UsageError("this World is running a function already; nest or interleave with a World of its own")
        if self._stopped is not None:
            raise WorldStopped(
                f"{self._stopped} (a stopped world runs nothing more; make a new one)", self._stopped.findings
            )

    def _results(self) -> list[Any]:
        for host in self._hosts:
            if host.error is not None and not isinstance(host.error, WorldStopped):
                raise host.error
        stopped = [host.error for host in self._hosts if isinstance(host.error, WorldStopped)]
        if stopped and self._stopped is None:
            self._stopped = WorldStopped(str(stopped[0]), stopped[0].findings)  # without its traceback
        return [host.result if host.error is None else host.error for host in self._hosts]


def _to_stderr(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _outer_modes_paused() -> Iterator[None]:
    """A world that is run from a host of another one: its engine is none of the outer world's business."""
    outer = current()
    if not isinstance(outer, SimRank):
        yield
        return
    with outer.modes.paused():
        yield
