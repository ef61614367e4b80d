"""The engine's tracer: keeps what agents, streams and hosts do, in order, up to a limit.

It exists only in worlds with `WorldConfig.trace`; there the engine makes `TracedAgent`s, and kernels are compiled with
accesses that tell the tracer (`traced_access.py`). It decides nothing: a traced run has the events of the plain one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import torch

from tdist.platforms.sim.access import Spec, box_mask, lattice
from tdist.platforms.sim.agents import Agent, AtPoll, AtWait
from tdist.platforms.sim.barriers import NAMES
from tdist.platforms.sim.memory import LINE_BYTES
from tdist.trace.events import Actor, Event, Memory, NamedTensor, Place, Trace

if TYPE_CHECKING:
    from tdist.platforms.sim.clocks import AgentClocks, Clock
    from tdist.platforms.sim.codegen.site import Site
    from tdist.platforms.sim.device_tensors import View
    from tdist.platforms.sim.engine import Engine
    from tdist.platforms.sim.hosts import Host, Request
    from tdist.platforms.sim.memory import Allocation
    from tdist.platforms.sim.streams import Copy, Launch, Stream, Strided, Write

MAX_EVENTS: Final = 200_000
MAX_VALUE_BYTES: Final = 256 << 20
"""Of stored tiles, host writes and registered memory together."""


class Tracer:
    """What has happened so far. Events beyond `max_events` are counted, not kept; a trace says so.

    `changed` holds, by memory and byte offset, the event that gave a synchronisation word its present value.
    """

    def __init__(self, engine: Engine, max_events: int = MAX_EVENTS, max_value_bytes: int = MAX_VALUE_BYTES) -> None:
        self.engine = engine
        self.max_events = max_events
        self.max_value_bytes = max_value_bytes
        self.events: list[Event] = []
        self.dropped = 0
        self.changed: dict[tuple[int, int], tuple[int, int]] = {}
        self.last_arrival: dict[int, int] = {}
        self._values = bytearray()
        self._values_dropped = False
        self._actors: dict[Actor, int] = {}
        self._sites: dict[Any, int] = {}
        self._places: list[Place] = []
        self._memories: dict[int, tuple[int, Allocation]] = {}
        self._rows: list[Memory] = []
        self._tensors: list[NamedTensor] = []
        self._graphs: dict[str, int] = {}

    def trace(self) -> Trace:
        """All of it, as plain data."""
        graphs = [json.loads(text) for text in self._graphs]
        whole = (list(self.events), list(self._actors), list(self._places), list(self._rows), list(self._tensors))
        return Trace(self.engine.config.nranks, *whole, graphs, bytes(self._values), self.dropped, self._values_dropped)

    def close(self) -> None:
        """The world is gone: hold its memory no longer."""
        self._memories.clear()

    # ---------------------------------------------------------------- tables

    def actor(self, role: str, rank: int, launch: Launch | None = None, program: int = -1, core: int = 0) -> int:
        """The number of an actor."""
        made = Actor(role, rank)
        if launch is not None:
            graphs = getattr(launch.kernel, "graphs", ())
            graph = self._graph(graphs[core]) if core < len(graphs) else -1
            made = Actor(role, rank, launch.id, program, core, launch.kernel.name, graph)
        return self._actors.setdefault(made, len(self._actors))

    def _graph(self, text: str) -> int:
        return self._graphs.setdefault(text, len(self._graphs)) if text else -1

    def memory(self, al: Allocation) -> int:
        """The number of an allocation. It is held until the world closes, so that no other can be taken for it."""
        known = self._memories.get(id(al))
        if known is not None:
            return known[0]
        number = len(self._rows)
        self._memories[id(al)] = (number, al)
        first = al.peers[0] if al.peers else al
        self._rows.append(Memory(al.rank, al.label, al.symmetric, len(al), al.lo, number))
        if first is not al:
            self._rows[number] = Memory(al.rank, al.label, al.symmetric, len(al), al.lo, self.memory(first))
        return number

    def record(self, actor: int, kind: str, site: Any, data: dict[str, Any]) -> int:
        """Keep an event; its number, whether or not there was room."""
        seq = len(self.events) + self.dropped
        if len(self.events) >= self.max_events:
            self.dropped += 1
        else:
            self.events.append(Event(seq, self.engine.steps, actor, kind, self._site(site), data))
        return seq

    def _site(self, site: Any) -> int:
        if site is None or getattr(site, "file", None) is None:
            return -1
        if site not in self._sites:
            self._sites[site] = len(self._places)
            arg, kernel = getattr(site, "arg", None) or "", getattr(site, "kernel", "")
            self._places.append(Place(site.file, site.line or 0, site.op, arg, kernel))
        return self._sites[site]

    def _keep(self, data: Any) -> int:
        """Where the bytes of a tensor or array are kept; -1 if there is no room."""
        at = len(self._values)
        if self.dropped or at + data.nbytes > self.max_value_bytes:
            self._values_dropped = True
            return -1
        self._values += data.tobytes() if isinstance(data, np.ndarray) else _bytes_of(data)
        return at

    # ---------------------------------------------------------------- accesses

    def box(self, ag: TracedAgent, kind: str, spec: Spec, number: int, where: tuple[Any, ...]) -> None:
        """A load or store of a strided box: `where` is allocation, address, strides, box and index vectors."""
        al, address, strides, box, vecs = where
        if any(vector is not None for _, vector, _ in vecs):
            addresses = lattice(spec.shape, address, strides, vecs)
            self.lanes(ag, kind, spec, number, al, addresses, None if box is None else box_mask(spec.shape, box))
            return
        data: dict[str, Any] = {"m": self.memory(al), "at": address - al.lo, "shape": list(spec.shape)}
        data |= {"strides": list(strides), "box": list(box) if box is not None else None}
        stored = _stored(al, address - al.lo, spec, strides, box) if kind != "load" or not spec.shape else None
        self._access(ag, kind, spec, number, data, stored)

    def lanes(
        self, ag: TracedAgent, kind: str, spec: Spec, number: int, al: Allocation, addresses: Any, mask: Any
    ) -> None:
        """A gather, scatter or tile of atomics: a byte offset for each lane, -1 where it is off."""
        offsets = (addresses - al.lo).to(torch.int64)
        if mask is not None:
            offsets = torch.where(mask.expand(addresses.shape), offsets, -1)
        flat = offsets.reshape(-1).numpy()
        data = {"m": self.memory(al), "shape": list(addresses.shape), "lanes": self._keep(flat)}
        stored = None if kind == "load" else al.view(spec.dtype)[torch.from_numpy(flat[flat >= 0] // spec.size_bytes)]
        self._access(ag, kind, spec, number, data, stored)

    def _access(
        self, ag: TracedAgent, kind: str, spec: Spec, number: int, data: dict[str, Any], stored: torch.Tensor | None
    ) -> None:
        """`stored`: the values of the lanes that are on, in row-major order; None keeps none."""
        data |= {"size": spec.size_bytes, "dtype": _name(spec.dtype), "number": number, "v": -1}
        if stored is not None and stored.numel():
            data["v"] = self._keep(stored)
        self.record(ag.actor, kind, spec.site, data)

    # ---------------------------------------------------------------- hosts, streams, launches

    def registered(self, al: Allocation) -> None:
        """Host memory has become device memory, with what it holds."""
        data = {"m": self.memory(al), "at": 0, "nbytes": len(al), "v": self._keep(al.view(torch.uint8))}
        self.record(self.actor("host", al.rank), "register", None, data)

    def named(self, rank: int, view: View, name: str, role: str, launch: int) -> None:
        """A host has said what a tensor in its device memory is called."""
        al = self.engine.memory.lookup(view.address)
        if al is None:
            return
        if role == "argument":
            launch = self.engine.streams[rank].launches
        where = (self.memory(al), view.address - al.lo, tuple(view.shape), tuple(view.strides), _name(view.dtype))
        self._tensors.append(NamedTensor(*where, name, role, launch, rank, len(self.events) + self.dropped))

    def launch_started(self, launch: Launch) -> None:
        """The stream begins a launch."""
        data = {"launch": launch.id, "kernel": launch.kernel.name, "grid": list(launch.grid), "mode": launch.mode}
        self.record(self.actor("stream", launch.rank), "launch", launch.site, data)

    def launch_ended(self, launch: Launch) -> None:
        """The last agent of a launch has ended."""
        data = {"launch": launch.id, "kernel": launch.kernel.name}
        self.record(self.actor("stream", launch.rank), "launched", launch.site, data)

    def host_write(self, stream: Stream, op: Write) -> None:
        """A host write has been carried out."""
        spans = [[self.memory(span.al), span.off, span.rows, span.stride, span.width] for span in op.spans]
        self.record(
            self.actor("stream", stream.rank), "host write", op.site, {"spans": spans, "v": self._keep(op.data)}
        )

    def host_copy(self, stream: Stream, op: Copy) -> None:
        """A copy between device tensors has been carried out."""
        data = {"to": self._strided(op.target), "from": self._strided(op.source)}
        data["to"]["v"] = self._keep(op.target.tensor())
        self.record(self.actor("stream", stream.rank), "host copy", op.site, data)

    def _strided(self, where: Strided) -> dict[str, Any]:
        view, size = where.view, where.view.dtype.itemsize
        data: dict[str, Any] = {"m": self.memory(where.al), "at": where.off, "shape": list(view.shape)}
        strides = [step * size for step in view.strides]
        return data | {"strides": strides, "box": None, "size": size, "dtype": _name(view.dtype), "v": -1}

    def completed(self, host: Host, request: Request) -> None:
        """What a host waited for is done."""
        self.record(self.actor("host", host.rank), "host", getattr(request, "site", None), {"name": request.name})


class TracedAgent(Agent):
    """An agent that tells the tracer what it does; accesses tell it themselves."""

    def __init__(self, engine: Engine, launch: Launch, program: int, core: int, clocks: AgentClocks | None) -> None:
        super().__init__(engine, launch, program, core, clocks)
        assert engine.tracer is not None
        self.tracer = engine.tracer
        self.actor = self.tracer.actor("program", launch.rank, launch, program, core)
        self.tracer.record(self.actor, "start", None, {"kernel": launch.kernel.name})

    def ended(self) -> None:
        """Its generator has ended."""
        self.tracer.record(self.actor, "end", None, {})

    def fault(self, kind_id: str, site: Site, **data: Any) -> NoReturn:
        """See `Agent.fault`."""
        self.tracer.record(self.actor, "fault", site, {"finding": kind_id.removeprefix("tdist.")})
        super().fault(kind_id, site, **data)

    def dot(self, site: Site, shape: Sequence[int], number: int) -> None:
        """A multiplication of `shape` (m, n, k) has been done."""
        self.tracer.record(self.actor, "dot", site, {"shape": list(shape), "number": number})

    def notify(
        self, addr: int, al: Allocation | None, value: int, pe: int, op: int | str, width: int, site: Site
    ) -> None:
        """See `Agent.notify`."""
        peer, off = self._landing(addr, al, pe, width, site)
        before = peer.words(width)[off // width]
        super().notify(addr, al, value, pe, op, width, site)
        self._word_written("notify", peer, off, width, site, before, {"op": _signal_op(op), "value": int(value)})

    def atomic(
        self,
        addr: int,
        al: Allocation | None,
        op: str,
        value: Any,
        width: int,
        kind: str,
        sem: str,
        scope: str,
        used: bool,
        site: Site,
    ) -> Any:
        """See `Agent.atomic`."""
        known = self._known(addr, al, site)
        off = self._offset(addr, known, width, site)
        before = known.words(width)[off // width]
        old = super().atomic(addr, al, op, value, width, kind, sem, scope, used, site)
        self._word_written("atomic word", known, off, width, site, before, {"op": op})
        return old

    def _word_written(
        self, kind: str, al: Allocation, off: int, width: int, site: Site, before: int, data: dict[str, Any]
    ) -> None:
        tracer = self.tracer
        after, memory = al.words(width)[off // width], tracer.memory(al)
        data |= {"m": memory, "at": off, "size": width, "before": before, "after": after}
        seq = tracer.record(self.actor, kind, site, data)
        if after != before:
            tracer.changed[memory, off] = (seq, after)

    def volatile_load(self, addr: int, al: Allocation | None, width: int, clk: Clock | None, site: Site) -> int:
        """See `Agent.volatile_load`."""
        value = super().volatile_load(addr, al, width, clk, site)
        known = self._known(addr, al, site)
        data = {"m": self.tracer.memory(known), "at": addr - known.lo, "size": width, "op": "load"}
        self.tracer.record(self.actor, "volatile load", site, {**data, "before": value, "after": value})
        return value

    def fence(self, site: Site) -> None:
        """See `Agent.fence`."""
        super().fence(site)
        self.tracer.record(self.actor, site.op, site, {})

    def wait(
        self, addr: int, al: Allocation | None, n: int, value: int, width: int, semantic: str, site: Site
    ) -> Generator[None, None, Clock | None]:
        """See `Agent.wait`. What made a slot's condition true is asked when the slot has been seen, not later."""
        inner = super().wait(addr, al, n, value, width, semantic, site)
        known = self._known(addr, al, site)
        memory, off = self.tracer.memory(known), addr - known.lo
        data = {"m": memory, "at": off, "size": width, "n": n, "value": int(value), "semantic": semantic}
        start = self.tracer.record(self.actor, "wait", site, data)
        released: list[int] = []
        while True:
            try:
                next(inner)
            except StopIteration as end:
                self.tracer.record(self.actor, "waited", site, {"start": start, "released": released})
                return end.value
            seen = self.blocked.slot if isinstance(self.blocked, AtWait) else n
            for slot in range(len(released), seen):
                released.append(self._releaser(memory, off + slot * LINE_BYTES, known, width))
            yield

    def _releaser(self, memory: int, off: int, al: Allocation, width: int) -> int:
        """The event that gave a word the value that it has; -1 if it was no signal or atomic."""
        seq, value = self.tracer.changed.get((memory, off), (-1, 0))
        return seq if seq >= 0 and value == al.words(width)[off // width] else -1

    def poll(self, carried: tuple, site: Site, ends: bool = False, stores: bool = False) -> Generator[None, None, None]:
        """See `Agent.poll`; only an iteration that blocks is an event."""
        start, reads = -1, ()
        for _ in super().poll(carried, site, ends, stores):
            if isinstance(self.blocked, AtPoll):
                reads = self.blocked.reads
                start = self.tracer.record(self.actor, "poll", site, self._polled(reads))
            yield
        if start >= 0:
            released = [self._releaser(self.tracer.memory(w.al), w.off, w.al, w.width) for w, _ in reads]
            self.tracer.record(self.actor, "polled", site, {"start": start, "released": released})

    def _polled(self, reads: Sequence[tuple[Any, int]]) -> dict[str, Any]:
        if not reads:
            return {"m": -1, "at": 0, "size": 0, "n": 0, "value": 0}
        word, value = reads[0]
        return {"m": self.tracer.memory(word.al), "at": word.off, "size": word.width, "n": len(reads), "value": value}

    def barrier(self, kind: str, site: Site) -> Generator[None, None, None]:
        """See `Agent.barrier`."""
        number, name = self.engine.barriers.round, NAMES[kind]
        start = self.tracer.record(self.actor, "arrive", site, {"name": name, "round": number})
        self.tracer.last_arrival[number] = start
        yield from super().barrier(kind, site)
        released = self.tracer.last_arrival[number]
        data = {"name": name, "round": number, "start": start, "released": [released]}
        self.tracer.record(self.actor, "leave", site, data)


def _stored(al: Allocation, at: int, spec: Spec, strides: Sequence[int], box: Sequence[int] | None) -> torch.Tensor:
    """What a box's lanes that are on hold now, in row-major order of lanes."""
    size, extents = spec.size_bytes, spec.shape
    if box is not None:
        low = [max(first, 0) for first in box[::2]]
        extents = [max(0, min(end, n) - first) for end, n, first in zip(box[1::2], spec.shape, low, strict=True)]
        at += sum(first * stride for first, stride in zip(low, strides, strict=True))
    if 0 in extents:
        return torch.empty(0, dtype=spec.dtype)
    view = al.view(spec.dtype)
    if min(strides, default=0) >= 0:
        return torch.as_strided(view, extents, [stride // size for stride in strides], at // size)
    offsets = np.full((1,) * len(extents), at, dtype=np.int64)
    for axis, (extent, stride) in enumerate(zip(extents, strides, strict=True)):
        steps = np.arange(extent, dtype=np.int64) * stride
        offsets = offsets + steps.reshape([-1 if a == axis else 1 for a in range(len(extents))])
    return view[torch.from_numpy(offsets // size)]


def _bytes_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _signal_op(op: int | str) -> str:
    return "add" if op in (2, "add") else "set"


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
