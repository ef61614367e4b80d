"""One rank of a simulated world as its host sees it, over whatever carries requests to the engine.

`SimRank` is the `RankRuntime` of the simulated platform. The in-process world and the rank processes differ in their
`Port` only.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._pytree import tree_map_only

from tdist.errors import UsageError
from tdist.platforms.base import activate
from tdist.platforms.sim.capture import Capture
from tdist.platforms.sim.device_tensors import Box, DeviceTensors, View
from tdist.platforms.sim.hostmode import HostModes, user_line
from tdist.platforms.sim.streams import HostSite

if TYPE_CHECKING:
    from tdist.frontend.kernel_ir import KernelIR


@dataclass(frozen=True)
class Heap:
    """A rank's symmetric heap: its bytes (1-D uint8) and the simulated address of the first of them."""

    data: torch.Tensor
    address: int


class Port(Protocol):
    """The road from one rank's host to the engine. `address` arguments are simulated addresses.

    Blocking calls return when the engine has completed them and raise what it completed them with.
    """

    def launch(self, kernel: KernelIR, grid: tuple[int, int, int], args: Sequence[Any], site: HostSite) -> None: ...
    def register(self, storage: torch.UntypedStorage) -> int: ...
    def unregister(self, address: int) -> None: ...
    def describe(self, view: View, name: str, role: str, launch: int) -> None: ...
    def host_write(self, boxes: Sequence[Box], data: torch.Tensor, site: HostSite) -> None: ...
    def host_copy(self, target: View, source: View, site: HostSite) -> None: ...
    def host_read(self, boxes: Sequence[Box], site: HostSite) -> None: ...
    def synchronize(self, site: HostSite) -> None: ...
    def malloc(self, nbytes: int, alignment: int, name: str | None, site: HostSite) -> int: ...
    def free(self, address: int, site: HostSite) -> None: ...
    def collective(self, group: tuple[int, ...], sequence: int, kind: str, site: HostSite) -> None: ...


class SimRank:
    """The runtime of one simulated rank; see `tdist.platforms.base.RankRuntime`.

    Args:
        heaps: base addresses of all ranks' heaps are `heap_bases`; `heap` is this rank's own.
    """

    platform = "sim"

    def __init__(self, rank: int, config: Any, heap: Heap, heap_bases: Sequence[int], port: Port) -> None:
        self.rank = rank
        self.nranks: int = config.nranks
        self.target: str = config.target
        self.cube_cores: int = config.cube_cores
        self.vector_cores: int = config.vector_cores
        self.heap_bytes: int = config.heap_bytes
        self.modes = HostModes(self)
        self._heap = heap
        self._heap_bases = tuple(heap_bases)
        self._port = port
        self._traced: bool = config.trace
        self._sequence: dict[tuple[int, ...], int] = {}
        self._tensors = DeviceTensors(port.register, port.unregister)
        self._tensors.add_heap(heap.data.untyped_storage(), heap.address)
        self._capture: Capture | None = None
        self._thread: int | None = None  # the one that runs this rank's host function
        self.shmem_state: Any = None  # the host API's own (tdist.shmem)

    # what user code calls

    def launch(self, kernel: KernelIR, grid: tuple[int, int, int], args: Sequence[Any]) -> None:
        """Queue a launch on this rank's stream and return at once.

        A tensor among `args` stands for a pointer to its first element, and makes its storage device memory.
        """
        with self.modes.paused():
            if self._capture is not None:
                self._capture.add(lambda: self.launch(kernel, grid, args))
            lowered = [self._pointer(arg) for arg in args]
            self._describe_arguments(kernel, args)
            self._port.launch(kernel, grid, lowered, self._line("launch"))

    def describe(self, tensor: torch.Tensor, name: str, role: str = "tensor", launch: int = -1) -> None:
        """Name a device tensor for traces; nothing happens where the run is not traced, or to host memory.

        Args:
            role: `input` or `output` of an operator, `argument` of the next launch, or `tensor`.
            launch: of the operator's calls, which one.
        """
        if not self._traced:
            return
        with self.modes.paused():
            address = self._tensors.address_of(tensor)
            if address is not None:
                self._port.describe(View.of(tensor, address), name, role, launch)

    def synchronize(self) -> None:
        """Wait until the stream is empty."""
        self._not_captured("synchronize")
        with self.modes.paused():
            self._port.synchronize(self._line("synchronize"))
            self._tensors.drained()

    def malloc(self, nbytes: int, alignment: int = 16, name: str | None = None) -> int:
        """Allocate on the symmetric heap (collective); the memory is not initialised.

        Raises:
            UsageError: no positive size, or no power of two as alignment.
        """
        for what, value in (("size", nbytes), ("alignment", alignment)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise UsageError(f"rank {self.rank}: malloc takes its {what} as an int of bytes, got {value!r}")
        self._not_captured("malloc")
        with self.modes.paused():
            return self._port.malloc(nbytes, alignment, name, self._line("malloc"))

    def free(self, address: int) -> None:
        """Free a symmetric allocation by its start address (collective)."""
        self._not_captured("free")
        with self.modes.paused():
            self._port.free(address, self._line("free"))

    def tensor(self, address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor over symmetric memory of this rank.

        Raises:
            UsageError: the tensor would leave the heap, or `address` is not aligned for `dtype`.
        """
        with self.modes.paused():
            if not self._heap.data.numel():
                raise UsageError(f"rank {self.rank}: its world is closed; {address:#x} leads nowhere any more")
            size = torch.Size(shape)
            start, nbytes = address - self._heap.address, size.numel() * dtype.itemsize
            if start < 0 or start + nbytes > self._heap.data.numel():
                raise UsageError(f"rank {self.rank}: {nbytes} bytes at {address:#x} are not on its symmetric heap")
            if start % dtype.itemsize:
                raise UsageError(f"rank {self.rank}: address {address:#x} is not aligned for {dtype}")
            return self._heap.data[start : start + nbytes].view(dtype).view(size)

    def peer_address(self, address: int, pe: int) -> int:
        """Where this rank's symmetric `address` lies on PE `pe`; 0 if it is not symmetric or `pe` does not exist."""
        offset = address - self._heap.address
        if not 0 <= pe < self.nranks or not 0 <= offset < self.heap_bytes:
            return 0
        return self._heap_bases[pe] + offset

    def device_address(self, value: int | torch.Tensor) -> int | None:
        """Simulated address of a device tensor's first element, or of a host address on this rank's heap."""
        with self.modes.paused():
            if isinstance(value, torch.Tensor):
                return self._tensors.address_of(value)
            offset = value - self._heap.data.data_ptr()
            return self._heap.address + offset if 0 <= offset < self._heap.data.numel() else value

    def reserve_heap(self, nbytes: int) -> None:
        """Agree with all ranks on a heap of `nbytes` (a host collective).

        Raises:
            UsageError: the world was opened with a smaller heap.
            WorldStopped: the ranks disagree.
        """
        if nbytes > self.heap_bytes:
            raise UsageError(
                f"rank {self.rank}: a symmetric heap of {nbytes} bytes asked for, this world has {self.heap_bytes}; "
                f"open it with heap_bytes={nbytes} (memory that is not written costs nothing)"
            )
        with self.modes.paused():
            self.host_collective(tuple(range(self.nranks)), f"aclshmem_init(local_mem_size={nbytes})")

    def host_barrier(self) -> None:
        """A host collective over all ranks: orders the hosts; no stream waits for it."""
        with self.modes.paused():
            self.host_collective(tuple(range(self.nranks)), "barrier")

    def finalize(self) -> None:
        """Wait for the stream and forget the host API's state."""
        self.synchronize()
        self.shmem_state = None

    def detach(self) -> None:
        """The world is closed: hold its heap no longer. Tensors that the user holds keep it alive, and readable."""
        self._heap = Heap(torch.empty(0, dtype=torch.uint8), self._heap.address)
        self.shmem_state = None

    # what the torch modes call

    def address_of(self, tensor: torch.Tensor) -> int | None:
        """Simulated address of a device tensor's first element; None for host memory."""
        return self._tensors.address_of(tensor)

    def host_read(self, boxes: Sequence[Box], op: str) -> None:
        """Wait for the stream, then count as a read of `boxes` by the host."""
        self._not_captured(op)
        self._port.host_read(boxes, self._line(op))
        self._tensors.drained()

    def host_write(self, tensor: torch.Tensor, boxes: Sequence[Box], data: torch.Tensor, op: str) -> None:
        """Queue a write on the stream; `data` is uint8 in the order of `boxes`, which lie in `tensor`."""
        if self._capture is not None:
            frozen = data.clone()
            self._capture.add(lambda: self.host_write(tensor, boxes, frozen, op))
        self._tensors.hold(tensor)
        self._port.host_write(boxes, data, self._line(op))

    def host_copy(self, target: torch.Tensor, source: torch.Tensor, op: str) -> None:
        """Queue a copy between device tensors of equal shape on the stream."""
        if self._capture is not None:
            self._capture.add(lambda: self.host_copy(target, source, op))
        self._port.host_copy(self._queued(target), self._queued(source), self._line(op))

    def _queued(self, tensor: torch.Tensor) -> View:
        """A device tensor as something queued uses it; its memory is kept until that is done."""
        address = self.address_of(tensor)
        assert address is not None
        self._tensors.hold(tensor)
        return View.of(tensor, address)

    def host_collective(self, group: tuple[int, ...], kind: str) -> None:
        """Enter the next host collective of `group`; returns when all its members have entered."""
        self._not_captured(kind)
        sequence = self._sequence.get(group, 0)
        self._sequence[group] = sequence + 1
        self._port.collective(group, sequence, kind, self._line(kind))

    # what the worlds call

    def collect(self, result: Any) -> Any:
        """What a host function returned, device tensors as snapshots: handing a result over is a read of it.

        Raises:
            UsageError: the function has not run at all, as generators and coroutines do not when they are called.
        """
        if inspect.isgenerator(result) or inspect.iscoroutine(result):
            result.close()
            raise UsageError(
                f"rank {self.rank}: the host function {result.__qualname__} is a {type(result).__name__}: "
                "calling it runs nothing; make it a plain function (no yield, no async)"
            )
        self.synchronize()
        return tree_map_only(torch.Tensor, self._snapshot, result)

    def _snapshot(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone() if self.device_address(tensor) is not None else tensor

    @contextlib.contextmanager
    def on_this_thread(self) -> Iterator[SimRank]:
        """Bind the runtime and the torch modes to the calling thread."""
        self._thread = threading.get_ident()
        try:
            with activate(self), self.modes.active():
                yield self
        finally:
            self._thread = None

    def _describe_arguments(self, kernel: KernelIR, args: Sequence[Any]) -> None:
        for declared, arg in zip(kernel.args, args, strict=False):
            if isinstance(arg, torch.Tensor):
                self.describe(arg, declared.name, "argument")

    @contextlib.contextmanager
    def capturing(self) -> Iterator[Capture]:
        """What the host queues on its stream in the block runs as always, and is kept to be queued again.

        Raises: UsageError where the host waits for anything in the block.
        """
        self._capture = capture = Capture(self.rank)
        try:
            yield capture
        finally:
            self._capture = None

    def _not_captured(self, op: str) -> None:
        if self._capture is not None:
            self._capture.refuse(op)

    def _pointer(self, arg: Any) -> Any:
        return DevicePointer(self._tensors.adopt(arg)) if isinstance(arg, torch.Tensor) else arg

    def _line(self, op: str) -> HostSite:
        """Where the user's code asks for `op`; every request passes here.

        Raises:
            UsageError: on another thread than the rank's own. A rank is one host agent; requests of two threads at once
                would have no order.
        """
        if self._thread not in (None, threading.get_ident()):
            raise UsageError(
                f"rank {self.rank}: {op} on thread {threading.current_thread().name!r}, which runs no rank; "
                "use the runtime on the thread that runs the host function"
            )
        return HostSite(*user_line(), op)


@dataclass(frozen=True)
class DevicePointer:
    """A launch argument that is a pointer (0 is the null pointer)."""

    address: int
