"""Hosts as the engine sees them: what each waits for, and when that can be completed.

Source: docs/ordering-model.md, "Who acts" and "Deadlock" (quiescence).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdist.errors import UsageError
from tdist.findings import Finding, Party, make
from tdist.platforms.sim.clocks import AgentClocks, join_all
from tdist.platforms.sim.race_report import Who

if TYPE_CHECKING:
    from tdist.platforms.sim.engine import Engine
    from tdist.platforms.sim.streams import Span

Done = Callable[[Any], None]


@dataclass(frozen=True)
class Synchronize:
    """Waits until the rank's stream is empty."""

    name = "synchronize"
    done: Done
    site: Any


@dataclass(frozen=True)
class Read:
    """A read of device memory: waits for the stream, then accesses `spans`."""

    name = "device read"
    done: Done
    site: Any
    spans: Sequence[Span]


@dataclass(frozen=True)
class Malloc:
    """Collective allocation."""

    name = "malloc"
    done: Done
    site: Any
    nbytes: int
    alignment_bytes: int
    label: str | None

    @property
    def key(self) -> tuple:
        return ("malloc", self.nbytes, self.alignment_bytes)

    def say(self) -> str:
        aligned = f" aligned to {self.alignment_bytes}" if self.alignment_bytes != 16 else ""
        return f"malloc of {self.nbytes} bytes{aligned}"


@dataclass(frozen=True)
class Free:
    """Collective release of a symmetric allocation."""

    name = "free"
    done: Done
    site: Any
    offset_bytes: int
    label: str

    @property
    def key(self) -> tuple:
        return ("free", self.offset_bytes)

    def say(self) -> str:
        return f"free of {self.label}"


@dataclass(frozen=True)
class Collective:
    """A reported host collective (gloo)."""

    name = "collective"
    done: Done
    site: Any
    group: tuple[int, ...]
    sequence: int
    kind: str


Request = Synchronize | Read | Malloc | Free | Collective


class Host:
    """One rank's host: running, waiting in `request`, or ended."""

    def __init__(self, rank: int, clocks: AgentClocks | None) -> None:
        self.rank = rank
        if clocks is not None:
            self.clocks = clocks
        self.detect = clocks is not None
        self.who = Who(rank, role="host")
        self.request: Request | None = None
        self.ended = False
        self.error: str | None = None

    @property
    def quiescent(self) -> bool:
        return self.ended or self.request is not None

    def party(self, note: str = "") -> Party:
        """This host as a side of a finding, at what it waits in."""
        request = self.request
        site = getattr(request, "site", None)
        op = request.name if request is not None else ""
        return Party(self.rank, file=getattr(site, "file", None), line=getattr(site, "line", None), op=op, note=note)

    def state(self) -> str:
        """What it is doing, in words."""
        if self.ended:
            return f"its host has ended ({self.error})" if self.error else "its host has ended"
        if self.request is None:
            return "its host is running"
        return f"its host is in {self.request.name}"


class HostRequests:
    """Completes what hosts wait for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.completed: list[tuple[Done, Any]] = []

    def complete(self) -> bool:
        """Complete every request that can be; whether there was one."""
        before = len(self.completed)
        for host in self.engine.hosts:
            self._complete_own(host)
        self._complete_collectives()
        self._complete_allocation()
        return len(self.completed) > before

    def stop(self, error: BaseException) -> None:
        """The run is over: everything completes with `error`."""
        for host in self.engine.hosts:
            if host.request is not None:
                self._finish(host, error)

    def flush(self) -> None:
        """Call what is due; callbacks may come back with new requests."""
        due, self.completed = self.completed, []
        for done, result in due:
            done(result)

    def _finish(self, host: Host, result: Any) -> None:
        assert host.request is not None
        if self.engine.tracer is not None:
            self.engine.tracer.completed(host, host.request)
        self.completed.append((host.request.done, result))
        host.request = None

    def _complete_own(self, host: Host) -> None:
        request = host.request
        if not isinstance(request, Synchronize | Read) or not self.engine.streams[host.rank].idle:
            return
        if host.detect:
            host.clocks.receive(self.engine.streams[host.rank].export(request.site))
        if isinstance(request, Read):
            self._record_read(host, request)
        self._finish(host, None)

    def _record_read(self, host: Host, request: Read) -> None:
        detector = self.engine.detector
        if detector is None:
            return
        for span in request.spans:
            detector.host_read(host, span.al, span.off, span.rows, span.stride, span.width, request.site)

    # ---------------------------------------------------------------- collectives

    def _complete_collectives(self) -> None:
        waiting = {h.rank: h.request for h in self.engine.hosts if isinstance(h.request, Collective)}
        for rank, request in waiting.items():
            members = [waiting.get(member) for member in request.group]
            same = [m for m in members if m is not None and (m.group, m.sequence) == (request.group, request.sequence)]
            if rank != request.group[0] or len(same) < len(members):
                continue
            self._meet([self.engine.hosts[member] for member in request.group])

    def _meet(self, hosts: list[Host]) -> None:
        kinds = {host.request.kind for host in hosts if isinstance(host.request, Collective)}
        if len(kinds) > 1:
            parties = [host.party(f"in {getattr(host.request, 'kind', '')}") for host in hosts]
            error = f"ranks meet in different collectives: {', '.join(sorted(kinds))}"
            self.engine.stop(make("host-error", parties, rank=hosts[0].rank, error=error))
            return
        self._join(hosts)
        for host in hosts:
            self._finish(host, None)

    def _join(self, hosts: list[Host]) -> None:
        clocks = [host.clocks for host in hosts if host.detect]
        if not clocks:
            return
        joined = join_all(clocks)
        for each in clocks:
            each.receive(joined)

    # ---------------------------------------------------------------- symmetric allocation

    def _complete_allocation(self) -> None:
        hosts = self.engine.hosts
        requests = [host.request for host in hosts if isinstance(host.request, Malloc | Free)]
        if len(requests) < len(hosts):
            return
        if len({request.key for request in requests}) > 1:
            self.engine.stop(self.asymmetric())
            return
        self._join(hosts)
        results = self._allocate(requests[0]) if isinstance(requests[0], Malloc) else self._release(requests[0])
        for host, result in zip(hosts, results, strict=True):
            self._finish(host, result)

    def _allocate(self, request: Malloc) -> list[Any]:
        hosts = self.engine.hosts
        try:
            peers = self.engine.memory.malloc(request.nbytes, request.alignment_bytes, request.label)
        except UsageError as error:
            return [error] * len(hosts)
        if peers is None:
            free_bytes = self.engine.memory.heap.free_bytes
            text = (
                f"symmetric heap: no room for {request.nbytes} bytes; {free_bytes} of "
                f"{self.engine.config.heap_bytes} bytes are free. Free tensors, or give the world a larger heap_bytes"
            )
            return [UsageError(text)] * len(hosts)
        if self.engine.guard is not None:
            for al in peers:
                self.engine.guard.appeared(al)
        return [al.lo for al in peers]

    def _release(self, request: Free) -> list[Any]:
        line = getattr(request.site, "line", None)
        for al in self.engine.memory.free(request.offset_bytes, str(request.site) if line else ""):
            self.engine.check_canary(al)
            self.engine.forget(al)
        return [None] * len(self.engine.hosts)

    def asymmetric(self) -> Finding:
        """The finding for ranks that allocate or free differently; names every rank."""
        parties = []
        calls: dict[str, list[int]] = {}
        for host in self.engine.hosts:
            request = host.request
            said = request.say() if isinstance(request, Malloc | Free) else host.state()
            calls.setdefault(said, []).append(host.rank)
            parties.append(host.party(said))
        got = "; ".join(
            f"rank{'s' if len(r) > 1 else ''} {', '.join(map(str, r))}: {said}" for said, r in calls.items()
        )
        kinds = {h.request.key[0] for h in self.engine.hosts if isinstance(h.request, Malloc | Free)}
        what = "malloc and free" if len(kinds) > 1 else f"what to {kinds.pop()}"
        return make(
            "asymmetric-alloc",
            parties,
            expected="the same allocation call on every rank",
            got=got,
            what=what,
            calls=calls,
        )
