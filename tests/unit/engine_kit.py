"""Hand-written kernels (seam 3 generators) and a tiny host driver for tests of the engine alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tdist.findings import Finding
from tdist.platforms.sim.codegen.site import Site
from tdist.platforms.sim.device_tensors import Box
from tdist.platforms.sim.engine import Engine, Pointer, WorldConfig
from tdist.platforms.sim.streams import HostSite


def site(line: int, op: str = "op", arg: str | None = None, kernel: str = "k") -> Site:
    """A source operation at `k.py:line`."""
    return Site(kernel, "k.py", line, 0, op, arg)


@dataclass(frozen=True)
class Arg:
    name: str
    type: str = ""


class HandKernel:
    """Wraps a generator function `(ag, pids, nps, *args)` as what the engine launches."""

    def __init__(
        self,
        body: Callable[..., Any],
        second: Callable[..., Any] | None = None,
        *,
        dot: bool = False,
        barrier: bool = False,
        barrier_vec: bool = False,
        sites: Sequence[Site] = (),
        args: Sequence[str] | None = None,
        gated_sites: Sequence[Site] = (),
    ) -> None:
        self.name = body.__name__
        self.has_dot = dot
        self.uses_barrier_all = barrier
        self.uses_barrier_all_vec = barrier_vec
        self.uses_sub_vec = second is not None
        self.sites = tuple(sites)
        self.gated_sites = frozenset(gated_sites)
        if args is not None:
            self.args = tuple(Arg(name) for name in args)
        self._bodies = (body, second)

    def entry(self, core: int) -> Callable[..., Any]:
        body = self._bodies[core]
        assert body is not None

        def run(ag, p0, p1, p2, n0, n1, n2, *args):
            return body(ag, (p0, p1, p2), (n0, n1, n2), *args)

        return run


class Driver:
    """All hosts in one thread: every blocking call is made for all ranks at once, then the engine runs."""

    def __init__(self, nranks: int = 2, **config: Any) -> None:
        config.setdefault("heap_bytes", 1 << 16)
        self.engine = Engine(WorldConfig(nranks=nranks, **config))
        self.nranks = nranks
        self.line = 100

    def malloc(self, nbytes: int, name: str = "buf", fill: int | None = 0, alignment: int = 16) -> list[int]:
        got = self.all(lambda r, done: self.engine.malloc(r, nbytes, alignment, name, HostSite("h.py", 1), done))
        if fill is not None:
            for address in got:
                al = self.engine.memory.lookup(address)
                assert al is not None
                al.view(torch.uint8).fill_(fill)
        return got

    def al(self, address: int):
        found = self.engine.memory.lookup(address)
        assert found is not None
        return found

    def zero(self, buffers: Sequence[int], nbytes: int, ranks: Sequence[int] | None = None) -> None:
        """A host `zero_()` of the first bytes of a buffer, as a stream operation."""
        for rank in range(self.nranks) if ranks is None else ranks:
            box = Box(buffers[rank], 1, 0, nbytes)
            self.engine.host_write(rank, [box], torch.zeros(nbytes, dtype=torch.uint8), HostSite("h.py", 50, "zero_"))

    def launch(self, kernel: HandKernel, *buffers: Sequence[int], grid: int = 1, ranks: Sequence[int] | None = None):
        for rank in range(self.nranks) if ranks is None else ranks:
            args = [Pointer(buffer[rank]) for buffer in buffers]
            self.engine.launch(rank, kernel, (grid,), args, HostSite("h.py", self.line, "launch"))

    def all(self, request: Callable[[int, Callable[[Any], None]], None]) -> list[Any]:
        """Make a blocking request on every rank and run until all have completed."""
        results: list[Any] = [_PENDING] * self.nranks
        for rank in range(self.nranks):
            request(rank, lambda value, rank=rank: results.__setitem__(rank, value))
        while any(value is _PENDING for value in results):
            before = list(results)
            self.engine.run()
            assert results != before, "the engine ran and completed nothing"
            self._park([rank for rank in range(self.nranks) if results[rank] is not _PENDING])
        for host in self.engine.hosts:
            host.request = None
        return results

    def _park(self, ranks: list[int]) -> None:
        """Hosts that were served wait in a collective until the others are."""
        for rank in ranks:
            if self.engine.hosts[rank].request is None:
                self.engine.collective(rank, tuple(range(self.nranks)), -1, "park", lambda value: None)

    def sync(self) -> list[Any]:
        return self.all(lambda rank, done: self.engine.synchronize(rank, done, HostSite("h.py", 7, "synchronize")))

    @property
    def findings(self) -> list[Finding]:
        return self.engine.findings

    def kinds(self) -> list[str]:
        """Kinds found, without prefix, errors and hazards only unless they are notes: `kind` or `kind?note`."""
        return [f.kind.removeprefix("tdist.") for f in self.findings]

    def lines(self) -> list[tuple[str, tuple[int | None, ...]]]:
        """(kind, lines of the parties) of each finding."""
        return [(f.kind.removeprefix("tdist."), tuple(p.line for p in f.parties)) for f in self.findings]


_PENDING = object()
