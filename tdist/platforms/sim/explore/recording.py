"""All that the hosts of a world asked of the engine, by rank and in order: enough to run the device side again.

A recording is made while a world runs as always (`record`). It holds kernels as IR, so that another run may compile
them otherwise (detection off, a mutant), launches with their arguments, the bytes of private memory as a launch first
met them, host writes with their data, and every request that blocks. Addresses are kept as they were: the allocators
are deterministic, and `rerun` checks that they come out the same.

A host that reads device memory and asks for more work afterwards may have decided by what it read; such a recording
stands for one schedule only and says so (`depends_on_data`). One that reads and goes on with nothing may still raise or
return by what it read (`read_by_hosts`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tdist.errors import Place, TdistError
from tdist.frontend.kernel_ir import KernelIR
from tdist.platforms.sim.device_tensors import Box, View
from tdist.platforms.sim.engine import Pointer
from tdist.platforms.sim.engine_port import EnginePort
from tdist.platforms.sim.rank import DevicePointer
from tdist.platforms.sim.streams import HostSite
from tdist.platforms.sim.world import World
from tdist.platforms.sim.world_config import WorldConfig


class NotRecordable(TdistError):
    """The hosts of this world cannot be left out; the text says why. Run them instead."""


@dataclass(frozen=True, slots=True)
class Launch:
    """`kernel` is a `KernelIR`, or what the engine runs (hand-written kernels)."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    site: Any


@dataclass(frozen=True, slots=True)
class Register:
    """Private memory as it was when it became device memory (1-D uint8), and the address that it got."""

    data: torch.Tensor
    address: int


@dataclass(frozen=True, slots=True)
class Unregister:
    address: int


@dataclass(frozen=True, slots=True)
class Write:
    boxes: tuple[Box, ...]
    data: torch.Tensor
    site: Any


@dataclass(frozen=True, slots=True)
class Copy:
    target: View
    source: View
    site: Any


@dataclass(frozen=True, slots=True)
class Output:
    """Here the host had a result in its hands: `view` of device memory, known by `key`."""

    key: tuple[Any, ...]
    view: View


@dataclass(frozen=True, slots=True)
class Synchronize:
    site: Any


@dataclass(frozen=True, slots=True)
class Read:
    boxes: tuple[Box, ...]
    site: Any


@dataclass(slots=True)
class Malloc:
    """`address` is None as long as it has not been completed."""

    nbytes: int
    alignment: int
    name: str | None
    site: Any
    address: int | None = None


@dataclass(frozen=True, slots=True)
class Free:
    address: int
    site: Any


@dataclass(frozen=True, slots=True)
class Collective:
    group: tuple[int, ...]
    sequence: int
    kind: str
    site: Any


@dataclass(frozen=True, slots=True)
class End:
    """The host function has returned."""


Request = Launch | Register | Unregister | Write | Copy | Output | Synchronize | Read | Malloc | Free | Collective | End

Concrete = frozenset[tuple[str, int, int]] | None
"""Stores that are concrete where tiles are symbolic; None where all are concrete."""
DEVICE_WORK: Final = (Launch, Write, Copy)
"""What goes to the stream and touches memory there."""

_UNLIKE: Final = {"scheduler": "run-to-block", "seed": 0, "choices": None}
"""Fields that no compiled kernel depends on, at one value each."""


@functools.lru_cache(maxsize=256)
def _kind_of(config: WorldConfig) -> WorldConfig:
    """The same for worlds whose compiled kernels are the same."""
    return dataclasses.replace(config, **_UNLIKE)


@dataclass
class Recording:
    """Requests by rank, in the order in which that rank's host made them.

    Attributes:
        config: the world that was recorded; a re-run may change any field but `nranks` and `heap_bytes`.
        depends_on_data: where a host read device memory before it asked for more work; empty if none did.
        digests: of tiles of private memory as it was registered, by address (`symbolic_access.py`).
    """

    config: WorldConfig
    scripts: tuple[list[Request], ...]
    depends_on_data: str = ""
    digests: dict[int, dict[Any, int]] = field(default_factory=dict, repr=False)
    _compiled: dict[tuple[int, WorldConfig, Concrete], Any] = field(default_factory=dict, repr=False)

    @property
    def whole(self) -> bool:
        """Whether every host came to its end; a recording of a world that was stopped goes as far as that one."""
        return all(script and isinstance(script[-1], End) for script in self.scripts)

    @property
    def read_by_hosts(self) -> Any:
        """Where a host read device memory for itself, and may have raised or returned by what it read; None: nowhere.

        Reads right before `Output`s are those of the outputs.
        """
        for script in self.scripts:
            behind: Any = None
            for request in reversed(script):
                if isinstance(request, Read) and behind is not Output:
                    return request.site
                behind = Output if isinstance(request, Read) else type(request)
        return None

    @property
    def launches(self) -> int:
        """Launches of all ranks together."""
        return sum(isinstance(request, Launch) for script in self.scripts for request in script)

    @property
    def generated(self) -> bool:
        """Whether all kernels are IR, and none is written by hand."""
        launched = (request for script in self.scripts for request in script if isinstance(request, Launch))
        return all(isinstance(request.kernel, KernelIR) for request in launched)

    def kernel_of(self, launch: Launch, port: EnginePort, symbolic: Concrete = None) -> Any:
        """The launch's kernel as the engine of `port` runs it; compiled once for each kind of world.

        `symbolic`: see `SimOptions`.
        """
        if not isinstance(launch.kernel, KernelIR):
            return launch.kernel
        key = (id(launch.kernel), _kind_of(port.engine.config), symbolic)
        if key not in self._compiled:
            self._compiled[key] = port.compile(launch.kernel, symbolic)
        return self._compiled[key]


class RecordingPort(EnginePort):
    """Passes requests on, and keeps them. `scripts` by rank."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.scripts: tuple[list[Request], ...] = tuple([] for _ in range(engine.config.nranks))
        self.depends_on_data = ""
        self._kernels: dict[Any, Any] = {}
        self._read: dict[int, Any] = {}

    def note(self, rank: int, request: Request) -> None:
        """Keep a request; what follows a read of device memory may depend on what was read."""
        self.scripts[rank].append(request)
        if isinstance(request, (*DEVICE_WORK, Malloc)) and rank in self._read and not self.depends_on_data:
            self.depends_on_data = (
                f"rank {rank} reads device memory at {self._read[rank]} and goes on with {_say(request)}"
            )

    def compile(self, kernel: Any, symbolic: Concrete = None) -> Any:
        """As always; what is no IR is what the engine runs (hand-written kernels)."""
        return super().compile(kernel, symbolic) if isinstance(kernel, KernelIR) else kernel

    def launch(self, rank: int, kernel: Any, grid: tuple[int, int, int], args: Sequence[Any], site: HostSite) -> None:
        lowered = tuple(Pointer(arg.address) if isinstance(arg, DevicePointer) else arg for arg in args)
        one = self._kernels.setdefault(kernel, kernel)  # each launch brings an equal object of its own
        self.note(rank, Launch(one, grid, lowered, site))
        super().launch(rank, kernel, grid, args, site)

    def register(self, rank: int, storage: torch.Tensor, name: str | None) -> int:
        address = super().register(rank, storage, name)
        self.note(rank, Register(storage.clone(), address))
        return address

    def unregister(self, rank: int, address: int) -> None:
        self.note(rank, Unregister(address))
        super().unregister(rank, address)

    def host_write(self, rank: int, boxes: Sequence[Box], data: torch.Tensor, site: HostSite) -> None:
        kept = data.detach().reshape(-1).view(torch.uint8).clone()
        self.note(rank, Write(tuple(boxes), kept, site))
        super().host_write(rank, boxes, data, site)

    def host_copy(self, rank: int, target: View, source: View, site: HostSite) -> None:
        self.note(rank, Copy(target, source, site))
        super().host_copy(rank, target, source, site)

    def host_read(self, rank: int, boxes: Sequence[Box], site: HostSite, done: Callable[[Any], None]) -> None:
        self._read.setdefault(rank, site)
        self.note(rank, Read(tuple(boxes), site))
        super().host_read(rank, boxes, site, done)

    def synchronize(self, rank: int, site: HostSite, done: Callable[[Any], None]) -> None:
        self.note(rank, Synchronize(site))
        super().synchronize(rank, site, done)

    def malloc(
        self, rank: int, nbytes: int, alignment: int, name: str | None, site: HostSite, done: Callable[[Any], None]
    ) -> None:
        request = Malloc(nbytes, alignment, name, site)
        self.note(rank, request)

        def completed(result: Any = None) -> None:
            request.address = result if isinstance(result, int) else None
            done(result)

        super().malloc(rank, nbytes, alignment, name, site, completed)

    def free(self, rank: int, address: int, site: HostSite, done: Callable[[Any], None]) -> None:
        self.note(rank, Free(address, site))
        super().free(rank, address, site, done)

    def collective(
        self,
        rank: int,
        group: tuple[int, ...],
        sequence: int,
        kind: str,
        site: HostSite,
        done: Callable[[Any], None],
    ) -> None:
        self.note(rank, Collective(group, sequence, kind, site))
        super().collective(rank, group, sequence, kind, site, done)

    def end(self, rank: int, error: str | None, place: Place | None = None) -> None:
        if error is None and self.engine.stopped is None:
            self.note(rank, End())
        super().end(rank, error, place)


def _say(request: Request) -> str:
    words = {Launch: "a launch", Write: "a write", Copy: "a copy", Malloc: "an allocation"}
    site = getattr(request, "site", None)
    return f"{words.get(type(request), 'more')} at {site}"


class RecordingWorld(World):
    """A world that keeps what its hosts ask for."""

    port_type = RecordingPort

    def __enter__(self) -> RecordingWorld:
        super().__enter__()
        return self

    @property
    def recorder(self) -> RecordingPort:
        assert isinstance(self._port, RecordingPort)
        return self._port

    def recording(self) -> Recording:
        """What has been recorded so far."""
        return Recording(self.config, self.recorder.scripts, self.recorder.depends_on_data)

    def output(self, rt: Any, key: tuple[Any, ...], tensor: torch.Tensor) -> None:
        """The host of `rt` has a result in its hands, in this device tensor; re-runs give its bytes under `key`.

        Raises:
            NotRecordable: the tensor is host memory, so the host has computed it itself.
        """
        address = rt.device_address(tensor)
        if address is None:
            raise NotRecordable(f"output {key[-1]} is not device memory: the host computes it from what it reads")
        self.recorder.note(rt.rank, Output((rt.rank, *key), View.of(tensor, address)))


def record(nranks: int, fn: Callable[..., Any], *args: Any, **config: Any) -> Recording:
    """Run `fn(rt, *args)` on every rank of an in-process world and keep what it asks for.

    Raises:
        Exception: what a host function raised, as `World.run` does.
    """
    with RecordingWorld(nranks=nranks, **config) as world:
        world.run(fn, *args)
        return world.recording()


__all__ = ["NotRecordable", "Recording", "RecordingPort", "RecordingWorld", "record"]
