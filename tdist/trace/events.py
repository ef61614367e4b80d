"""A trace: what the agents, streams and hosts of one world did, in order, as plain data.

The engine's tracer makes it (`tdist.platforms.sim.tracing`); Chrome JSON, last writers, protocol maps are made of it.
Its time is logical: an event's place in the order, and the number of the scheduler's step. Equal seeds give equal
traces.

Kinds of events, with what `Event.data` holds. `m` is an index into `Trace.memories`, `at` a byte offset there:

- `load`, `store`, `atomic` (a tile): where its lanes lie (`lanes.py`), `number` in the kernel's value graph, `v` where
  in `Trace.values` the lanes' values begin (-1: not kept);
- `dot`: `shape` (m, n, k);
- `notify`, `atomic word`, `volatile load`: `m`, `at`, `size`, `op`, `before`, `after`;
- `wait` and `poll`: `m`, `at`, `size`, `n`, `value`; `waited` and `polled` end them: `start`, `released` (for each
  slot the event that made its condition true, -1 if none did);
- `arrive` and `leave` of a barrier: `name`, `round`; `leave` has `start` and `released`, the last arrival;
- `fence`, `quiet`; `fault` with `finding`; `start` and `end` of a program, `launch` and `launched` of a launch;
- `register` (host memory becomes device memory): `m`, `at`, `nbytes`, `v`;
- `host write`: `spans` (`m`, byte offset, rows, stride, width), `v`; `host copy`: `to` and `from` as lanes;
- `host`: what a host waited for has completed, `name`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

FORMAT: Final = 1


class Event(NamedTuple):
    """One thing that somebody did. `seq` is its index in the trace, `step` the scheduler's step, `site` -1 for none."""

    seq: int
    step: int
    actor: int
    kind: str
    site: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a program's core (`role` "program"), a rank's "stream" or its "host".

    `graph`: an index into `Trace.graphs`, -1 if there is none.
    """

    role: str
    rank: int
    launch: int = -1
    program: int = -1
    core: int = 0
    kernel: str = ""
    graph: int = -1

    @property
    def title(self) -> str:
        """The thread that it is, in words."""
        if self.role != "program":
            return self.role
        return f"program {self.program}" + (", second vector core" if self.core else "")

    def __str__(self) -> str:
        if self.role != "program":
            return f"rank {self.rank}'s {self.role}"
        return f"rank {self.rank}, launch {self.launch}, {self.title}"


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a kernel or of a host function; `arg` names the kernel argument that the pointer came from."""

    file: str
    line: int
    op: str
    arg: str = ""
    kernel: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else self.op


@dataclass(frozen=True, slots=True)
class Memory:
    """An allocation in device memory; `peer` is the index of rank 0's, which symmetric ones share (else its own)."""

    rank: int
    label: str
    symmetric: bool
    nbytes: int
    address: int
    peer: int


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor that somebody named: `role` is argument (of a launch's kernel), input or output (of an operator).

    Strides are in elements. `launch` counts the rank's launches, or the operator's calls. `seq`: named before that
    event.
    """

    memory: int
    offset_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    name: str
    role: str
    launch: int
    rank: int
    seq: int


@dataclass
class Trace:
    """See the module. `dropped`: so many events came after the limit; `values_dropped`: not all values were kept.

    `graphs`: for each core of each kernel, where its stored values come from (`codegen/value_graph.py`).
    """

    nranks: int
    events: list[Event] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    tensors: list[NamedTensor] = field(default_factory=list)
    graphs: list[dict[str, Any]] = field(default_factory=list)
    values: bytes = b""
    dropped: int = 0
    values_dropped: bool = False

    def actor(self, event: Event) -> Actor:
        """Who did it."""
        return self.actors[event.actor]

    def place(self, event: Event) -> Place | None:
        """Where it stands in the source; None if that is not known."""
        return self.places[event.site] if event.site >= 0 else None

    def to_blobs(self) -> tuple[bytes, bytes]:
        """JSON text and values, for the road between processes."""
        data: dict[str, Any] = {"format": FORMAT, "nranks": self.nranks, "graphs": self.graphs}
        data["events"] = [list(event[1:]) for event in self.events]
        for name in ("actors", "places", "memories", "tensors"):
            data[name] = [list(asdict(row).values()) for row in getattr(self, name)]
        data |= {"dropped": self.dropped, "values_dropped": self.values_dropped}
        return json.dumps(data, separators=(",", ":")).encode(), self.values

    @classmethod
    def from_blobs(cls, text: bytes | bytearray, values: bytes | bytearray) -> Trace:
        """The inverse of `to_blobs`."""
        data: Mapping[str, Any] = json.loads(bytes(text))
        tensors = [
            NamedTensor(m, o, tuple(shape), tuple(strides), *rest) for m, o, shape, strides, *rest in data["tensors"]
        ]
        return cls(
            data["nranks"],
            [Event(seq, *row) for seq, row in enumerate(data["events"])],
            [Actor(*row) for row in data["actors"]],
            [Place(*row) for row in data["places"]],
            [Memory(*row) for row in data["memories"]],
            tensors,
            data["graphs"],
            bytes(values),
            data["dropped"],
            data["values_dropped"],
        )
