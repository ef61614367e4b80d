"""`RankPool`: rank processes with a real torch.distributed group, an engine process, and their supervision.

The launcher (the process that holds the pool) is the parent of a fork server, which forks engine and ranks. Whichever
of them dies, the others end, and the error names who died, how, and what it did last. Nothing has a name in the file
system: sockets are inherited pairs, heaps and the group's meeting file are memfds.

Most of a start is importing torch once; a rebuilt group costs some tenths of a second, a new world milliseconds.
"""

from __future__ import annotations

import collections
import contextlib
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TextIO

from tdist import env
from tdist.errors import EnvironmentUnfit, ProcessLost, TdistError, UsageError, WorldStopped
from tdist.findings import Finding
from tdist.platforms.sim.process import warm
from tdist.platforms.sim.process.boot import Boot
from tdist.platforms.sim.process.protocol import Channel, Message, pack, unpack
from tdist.platforms.sim.process.wire import config_to_json, error_from_json
from tdist.trace import Trace

_START_SECONDS = 120.0
_GRACE_SECONDS = 3.0
_TICK_SECONDS = 0.25
_EXIT_SECONDS = 5.0
FILES_PER_RANK = 6
"""Open files of the launcher for each rank: its socket, two pipes, both ends of its pair with the engine, one spare."""
SPARE_FILES = 64
_TAIL_LINES = 40
_STDERR_LINES = 1000
_LINE_CHARS = 1 << 16
_BUSY_TICKS = 3  # CPU time (1/100 s) that counts as progress, and
_BUSY_SHARE = 0.02  # what it must be of the time since the last progress: threads that only wait wake up now and then
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_GLOO_CHATTER = "[Gloo]"


class HostError(TdistError):
    """A host function raised an exception that cannot be rebuilt here; the text holds its type, rank and traceback."""


@dataclass
class _Child:
    """A forked process: engine or rank."""

    name: str
    rank: int | None
    channel: Channel
    out: int
    err: int
    pid: int = 0
    code: int | None = None
    tail: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=_TAIL_LINES))
    complained: int = 0  # lines on its stderr in this run
    rest: dict[int, str] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    @property
    def how(self) -> str:
        """How it ended."""
        if self.code is None:
            return "was lost"
        if self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"exited with code {self.code}"

    def text(self) -> str:
        lines = "".join(f"\n    {line}" for line in self.tail)
        return f"\n  the end of its stderr:{lines}" if lines else ""


class _ForkServer:
    """The launcher's side of the fork server."""

    def __init__(self, boot: Boot) -> None:
        server = boot.take()
        self.process, self._origin = server.process, server.origin
        self.channel = Channel(server.near)
        self.ended: dict[int, int] = {}
        try:
            if boot.ready:
                self.channel.send({"op": "ping"})
            self._expect("ready")
        except BaseException:
            self.close()
            raise

    def fork(self, spec: dict[str, Any], fds: Sequence[int]) -> int:
        about = {"directory": _directory(), "environment": dict(os.environ)}
        self.channel.send({"op": "fork", **spec, **about}, fds=fds)
        pid = int(self._expect("forked").data["pid"])
        self.ended.pop(pid, None)  # of an earlier process
        return pid

    def kill(self, pid: int) -> None:
        self.channel.send({"op": "kill", "pid": pid})

    def receive(self) -> bool:
        """Take one notice of an exit; False if the fork server itself is gone."""
        message = self.channel.receive()
        if message is None:
            return False
        self.ended[int(message.data["pid"])] = int(message.data["code"])
        return True

    def wait_for_exits(self, pids: Sequence[int]) -> None:
        """Until these have ended (they were killed) or the server is gone."""
        deadline = time.monotonic() + _EXIT_SECONDS
        while any(pid not in self.ended for pid in pids) and time.monotonic() < deadline:
            if _readable(self.channel, _TICK_SECONDS) and not self.receive():
                return

    def retire(self) -> None:
        """Its pool needs it no more, and its children have ended: keep it for the next one, or end it."""
        if not warm.keep(warm.Server(self.channel.detach(), self.process, self._origin)):
            self.close()

    def close(self) -> None:
        self.channel.close()
        try:
            self.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def how(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(1.0)
            return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return "closed its socket"

    def _expect(self, op: str) -> Message:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if not _readable(self.channel, _TICK_SECONDS):
                continue
            message = self.channel.receive()
            if message is None:
                raise ProcessLost(f"the fork server (pid {self.process.pid}) {self.how} while a pool was starting")
            if message.op == op:
                return message
            if message.op == "failed":
                raise error_from_json(message.data)
            self.ended[int(message.data["pid"])] = int(message.data["code"])
        raise ProcessLost(f"the fork server (pid {self.process.pid}) did not answer for {_START_SECONDS:.0f} s")


def _served_by(boot: Boot) -> _ForkServer:
    """The launcher's side of a server; of a new one if the kept one has just died."""
    if boot.ready:
        with contextlib.suppress(ProcessLost):
            return _ForkServer(boot)
        boot = Boot()
    return _ForkServer(boot)


def _directory() -> str:
    """Where this process is, "" if that place is gone."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return ""


def make_room_for_files(nfiles: int) -> None:
    """Raise this process's limit of open files as far as it may, if it is below `nfiles`.

    Raises: EnvironmentUnfit if it may not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (resource.RLIM_INFINITY, -1) or soft >= nfiles:
        return
    if hard not in (resource.RLIM_INFINITY, -1) and hard < nfiles:
        raise EnvironmentUnfit(
            f"this many rank processes need {nfiles} open files, the limit is {hard}: raise it (ulimit -Hn) or take "
            "fewer ranks"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (nfiles, hard))


class _Lost(Exception):
    """A process of the group has ended that should not have, or none of them gets on.

    `by_user`: the user's code did that, or may have (it ended its process, or waits for something that never comes).
    """

    def __init__(self, why: str, by_user: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.by_user = by_user

    def as_error(self, findings: Sequence[Finding] = ()) -> WorldStopped:
        kind = WorldStopped if self.by_user else ProcessLost
        return kind(self.why, tuple(findings))


class RankPool:
    """N rank processes and their engine, kept between cases.

    Args:
        nranks: number of ranks.
        config: a `WorldConfig`; None takes the defaults. Its `nranks` must agree.
        boot: a fork server that was started ahead; the pool takes it over when it starts.
        modules: what the fork server imports, so that no rank does; not a user's, whose code runs in ranks only.

    A run leaves the world as it is for the next one; `reset` makes a new one. After a lost process or an exception in a
    host function the group is rebuilt, never reused. Use it as a context manager, or call `close`.

    Example:
        with RankPool(4) as pool:
            results = pool.run("my_ops.py::host", m=64)
            assert not pool.findings()
    """

    def __init__(self, nranks: int, config: Any = None, boot: Boot | None = None, modules: Sequence[str] = ()) -> None:
        from tdist.platforms.sim.world_config import make_config

        __tracebackhide__ = True
        self.nranks = nranks
        self.config = make_config(nranks, {}) if config is None else config
        self._check_config(self.config)
        self._boot = boot
        self._modules = [*modules]
        self._server: _ForkServer | None = None
        self._engine: _Child | None = None
        self._ranks: list[_Child] = []
        self._selector = selectors.DefaultSelector()
        self._stale = True  # the group must be built before the next run
        self._last: dict[str, Any] = {"findings": [], "prints": [], "events": []}
        self._closed = False
        self._target = ""  # what the ranks are running

    def __enter__(self) -> RankPool:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name: `forkserver`, `engine`, `rank 0`, …"""
        server = {} if self._server is None else {"forkserver": self._server.process.pid}
        return server | {child.name: child.pid for child in self._children()}

    def start(self) -> None:
        """Start what is not running; `run` does it by itself."""
        self._check_open()
        try:
            if self._stale:
                make_room_for_files(FILES_PER_RANK * self.nranks + SPARE_FILES)
                self._rebuild()
        except BaseException:
            self._abandon()
            raise

    def reset(self, config: Any = None) -> None:
        """A new world for the same processes: empty heap, no findings, nothing queued."""
        self._check_open()
        self.config = self.config if config is None else config
        self._check_config(self.config)
        if not self._stale:
            try:
                self._new_world()
            except _Lost as lost:
                self._abandon()
                raise lost.as_error() from None

    def close(self) -> None:
        """End all processes and wait until they have ended."""
        if self._closed:
            return
        self._closed = True
        self._abandon()
        if self._server is not None:
            self._selector.unregister(self._server.channel)
            self._server.retire()
            self._server = None
        self._selector.close()

    def findings(self) -> list[Finding]:
        """What the engine has found in this world."""
        self._refresh()
        return [Finding.from_json(found) for found in self._last["findings"]]

    def prints(self) -> list[tuple[int, int, str]]:
        """What kernels printed: rank, program, text."""
        self._refresh()
        return [(rank, program, text) for rank, program, text in self._last["prints"]]

    def events(self) -> list[int]:
        """The choice list of this world."""
        self._refresh()
        return list(self._last["events"])

    def trace(self) -> Trace | None:
        """What has happened in this world, in order; None if it is not traced, or its processes are gone."""
        if self._stale:
            return None
        with contextlib.suppress(_Lost):
            blobs = self._ask_engine_whole({"op": "trace"}).blobs
            return Trace.from_blobs(*blobs) if blobs else None
        return None

    def run(self, target: str, **args: Any) -> list[Any]:
        """Run a function as `fn(rt, **args)` on every rank, and what it launched to its end.

        Args:
            target: `"module:function"` or `"/path/file.py::function"`.
            args: None, bool, numbers, strings, tensors, and lists, tuples or dicts of them.

        Returns:
            What the function returned, by rank; a rank that the engine stopped has the `WorldStopped` error there.

        Raises:
            WorldStopped: a process died; names it, how it ended, its last host line and the end of its stderr. It is a
                `ProcessLost` where the user's code cannot have done that.
            TdistError: a host function raised; the exception itself if it is built in or ours, else `HostError`.
        """
        self.start()
        blobs: list[Any] = []
        message = {"op": "run", "target": target, "args": pack(args, blobs, f"arguments of {target}")}
        message |= {"config": config_to_json(self.config), "watchdog_seconds": env.WATCHDOG_SECONDS.get()}
        self._target = target
        try:
            self._ask_engine({"op": "run"})
            for child in self._ranks:
                child.complained = 0
                child.channel.send(message, blobs)
            return self._outcomes(self._collect(target))
        except _Lost as lost:
            self._abandon()
            raise lost.as_error(tuple(self._known_findings())) from None
        except (KeyboardInterrupt, SystemExit):
            self._abandon()
            raise
        finally:
            self._target = ""

    # building and ending the group

    def _rebuild(self) -> None:
        self._abandon()
        if self._server is None:
            boot, self._boot = self._boot or Boot(), None
            self._server = _served_by(boot)
            self._server.channel.send({"op": "import", "modules": self._modules})
            self._selector.register(self._server.channel, selectors.EVENT_READ, self._server)
        try:
            self._fork_all(self._server)
            self._await_ready()
            self._new_world()
        except _Lost as lost:
            self._abandon()
            raise lost.as_error() from None
        self._stale = False

    def _fork_all(self, server: _ForkServer) -> None:
        pairs = [Channel.pair() for _ in range(self.nranks)]
        store = os.memfd_create("tdist-group")
        try:
            self._engine = self._fork(server, "engine", None, [engine_end.fileno() for engine_end, _ in pairs])
            for rank, (_, rank_end) in enumerate(pairs):
                self._ranks.append(self._fork(server, f"rank {rank}", rank, [rank_end.fileno(), store]))
        finally:
            os.close(store)
            for pair in pairs:
                for end in pair:
                    end.close()

    def _fork(self, server: _ForkServer, name: str, rank: int | None, fds: Sequence[int]) -> _Child:
        near, far = Channel.pair()
        (out, out_far), (err, err_far) = os.pipe(), os.pipe()
        child = _Child(name, rank, near, out, err)
        spec = {"role": "engine"} if rank is None else {"role": "rank", "rank": rank, "nranks": self.nranks}
        try:
            child.pid = server.fork(spec, [out_far, err_far, far.fileno(), *fds])
        finally:
            far.close()
            os.close(out_far)
            os.close(err_far)
        for fd in (out, err):
            os.set_blocking(fd, False)
            child.open.add(fd)
            self._selector.register(fd, selectors.EVENT_READ, (child, fd))
        return child

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        for child in self._ranks:
            while not _readable(child.channel, _TICK_SECONDS):
                self._pump(0)
                self._check_alive()
                if time.monotonic() > deadline:
                    raise _Lost(f"{child.name} (pid {child.pid}) did not join its group in {_START_SECONDS:.0f} s")
            if child.channel.receive() is None:
                self._lost(child)

    def _new_world(self) -> None:
        self._ask_engine({"op": "reset", "config": config_to_json(self.config)})
        self._last = {"findings": [], "prints": [], "events": []}

    def _abandon(self) -> None:
        """Kill engine and ranks and wait for their ends; the next run builds a new group."""
        self._stale = True
        children = self._children()
        if self._server is not None and children:
            for child in children:
                self._server.kill(child.pid)
            self._server.wait_for_exits([child.pid for child in children])
        for child in children:
            child.channel.close()
            for fd in child.open:
                self._selector.unregister(fd)
            os.close(child.out)
            os.close(child.err)
        self._engine, self._ranks = None, []
        self._drop_dead_server()

    def _drop_dead_server(self) -> None:
        if self._server is not None and self._server.process.poll() is not None:
            self._selector.unregister(self._server.channel)
            self._server.close()
            self._server = None

    def _children(self) -> list[_Child]:
        return ([] if self._engine is None else [self._engine]) + self._ranks

    # supervision

    def _collect(self, target: str) -> dict[int, Message]:
        """Wait for the answer of every rank, watching over all processes."""
        answers: dict[int, Message] = {}
        watch = _Progress(self._children())
        while len(answers) < self.nranks:
            self._pump(_TICK_SECONDS, answers)
            self._check_alive()
            failed = any(message.op == "error" and not _is_stop(message) for message in answers.values())
            if failed and watch.idle_seconds() > _GRACE_SECONDS:
                break  # the others hang in something of their own (a gloo collective): their group is ended
            if watch.idle_seconds() > env.WATCHDOG_SECONDS.get():
                raise _Lost(self._stuck(target, answers), by_user=True)
        self._pump(0)  # what they printed before they answered
        return answers

    def _pump(self, seconds: float, answers: dict[int, Message] | None = None) -> None:
        """Take in exits, output and, if asked for, answers."""
        waiting = [child for child in self._ranks if answers is not None and child.rank not in answers]
        for child in waiting:
            self._selector.register(child.channel, selectors.EVENT_READ, child)
        try:
            ready = self._selector.select(seconds)
        finally:
            for child in waiting:
                self._selector.unregister(child.channel)
        for key, _ in ready:
            self._take(key.data, answers)

    def _take(self, source: Any, answers: dict[int, Message] | None) -> None:
        if isinstance(source, _ForkServer):
            if not source.receive():
                raise _Lost(f"the fork server (pid {source.process.pid}) {source.how}; its children ended with it")
        elif isinstance(source, tuple):
            self._output(*source)
        elif answers is not None:
            message = source.channel.receive()
            if message is None:
                self._lost(source)
            else:
                answers[source.rank] = message

    def _output(self, child: _Child, fd: int) -> None:
        if fd not in child.open:
            return
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            child.open.discard(fd)
            self._selector.unregister(fd)
        *lines, rest = (child.rest.get(fd, "") + data.decode(errors="replace")).split("\n")
        if len(rest) > _LINE_CHARS or (not data and rest):  # no end in sight, or the stream's own end
            lines, rest = [*lines, rest], ""
        child.rest[fd] = rest
        for line in lines:
            self._line(child, fd, line)

    def _line(self, child: _Child, fd: int, line: str) -> None:
        """Forward a line; of stderr the end is kept, too, and no more than a bound is forwarded in a run."""
        if fd != child.err:
            if not line.startswith(_GLOO_CHATTER):
                _forward(f"[{child.name}] {line}")
            return
        child.tail.append(line)
        child.complained += 1
        if child.complained <= _STDERR_LINES:
            _forward(f"[{child.name}] {line}", sys.stderr)
        elif child.complained == _STDERR_LINES + 1:
            _forward(f"[{child.name}] … more than {_STDERR_LINES} lines on stderr: no more are shown", sys.stderr)

    def _check_alive(self) -> None:
        ended = self._server.ended if self._server is not None else {}
        for child in self._children():
            if child.pid in ended:
                self._lost(child)

    def _lost(self, child: _Child) -> NoReturn:
        """Raise with everything that is known about the end of `child`."""
        if self._server is not None:
            self._server.wait_for_exits([child.pid])
            child.code = self._server.ended.get(child.pid)
        for fd in (child.err, child.out):
            self._output(child, fd)
        while_running = f" while it ran {self._target}" if self._target else ""
        where = self._last_line(child)
        by_user = bool(self._target) and child.rank is not None and child.code not in (None, -signal.SIGKILL)
        raise _Lost(f"{child.name} (pid {child.pid}) {child.how}{while_running}{where}{child.text()}", by_user)

    def _last_line(self, child: _Child) -> str:
        if child.rank is None:
            return ""
        with contextlib.suppress(_Lost):
            status = self._ask_engine({"op": "status"})["ranks"][child.rank]
            if status["file"] is not None:
                return f"\n  its last request: {status['doing']} at {status['file']}:{status['line']}"
        return ""

    def _stuck(self, target: str, answers: dict[int, Message]) -> str:
        seconds = env.WATCHDOG_SECONDS.get()
        lines = [f"{target}: no process made progress for {seconds:g} s (TDIST_WATCHDOG_SECONDS)"]
        with contextlib.suppress(_Lost):
            for rank, status in enumerate(self._ask_engine({"op": "status"})["ranks"]):
                lines.append(f"  rank {rank}: {_state_text(status, rank in answers)}")
        return "\n".join(lines)

    def _outcomes(self, answers: dict[int, Message]) -> list[Any]:
        self._refresh()
        errors = {rank: message for rank, message in sorted(answers.items()) if message.op == "error"}
        raised = [(rank, message) for rank, message in errors.items() if not _is_stop(message)]
        if raised:
            self._abandon()
            raise _host_error(*raised[0])
        return [_outcome(answers[rank]) for rank in range(self.nranks)]

    # the engine

    def _refresh(self) -> None:
        if not self._stale:
            with contextlib.suppress(_Lost):
                self._last = self._ask_engine({"op": "findings"})

    def _known_findings(self) -> Iterator[Finding]:
        return (Finding.from_json(found) for found in self._last["findings"])

    def _ask_engine(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._ask_engine_whole(request).data

    def _ask_engine_whole(self, request: dict[str, Any]) -> Message:
        engine = self._engine
        if engine is None:
            raise _Lost("the engine is not running")
        engine.channel.send(request)
        watch = _Progress([engine])
        while not _readable(engine.channel, _TICK_SECONDS):
            if watch.idle_seconds() > env.WATCHDOG_SECONDS.get():
                raise _Lost(f"the engine (pid {engine.pid}) does not answer")
        message = engine.channel.receive()
        if message is None:
            self._lost(engine)
        return message

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this RankPool is closed; make a new one")

    def _check_config(self, config: Any) -> None:
        __tracebackhide__ = True
        if not hasattr(config, "nranks"):
            raise UsageError(f"the config of a RankPool is a WorldConfig, got {config!r}")
        if config.nranks != self.nranks:
            raise UsageError(f"a pool of {self.nranks} ranks cannot hold a world of {config.nranks}")


class _Progress:
    """CPU time of some processes: as long as one computes, a run is not stuck."""

    def __init__(self, children: Sequence[_Child]) -> None:
        self._pids = [child.pid for child in children]
        self._ticks = self._read()
        self._since = time.monotonic()

    def idle_seconds(self) -> float:
        """How long all of them together have used no CPU time worth mentioning."""
        ticks, idle = self._read(), time.monotonic() - self._since
        if ticks - self._ticks < max(_BUSY_TICKS, _BUSY_SHARE * _TICKS_PER_SECOND * idle):
            return idle
        self._ticks, self._since = ticks, time.monotonic()
        return 0.0

    def _read(self) -> int:
        return sum(_cpu_ticks(pid) for pid in self._pids)


def _cpu_ticks(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _forward(line: str, stream: TextIO | None = None) -> None:
    """Print what a rank has printed; a launcher whose output is closed or full goes on."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=stream, flush=stream is not None)


def _readable(channel: Channel, seconds: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def _is_stop(message: Message) -> bool:
    return message.data.get("type") == "WorldStopped"


def _state_text(status: dict[str, Any], finished: bool) -> str:
    if finished:
        return "has returned"
    at = f" at {status['file']}:{status['line']}" if status["file"] else ""
    if status["state"] == "running":
        blocked = "blocked in host code that is not reported (send, recv, a lock, sleep)"
        return f"{blocked}; its last request: {status['doing']}{at}"
    return f"{status['state']} in {status['doing']}{at}"


def _outcome(message: Message) -> Any:
    if message.op == "error":
        return error_from_json(message.data)
    return unpack(message.data["value"], message.blobs)


def _host_error(rank: int, message: Message) -> BaseException:
    error = error_from_json(message.data)
    if type(error) is TdistError:
        error = HostError(str(error))
    error.add_note(f"raised by the host function of rank {rank}; its traceback there:\n{message.data['trace']}")
    return error
