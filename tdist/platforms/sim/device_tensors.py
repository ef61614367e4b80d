"""Which torch tensors of a rank are device memory, and at which simulated address.

Two kinds of storage are device memory: the rank's symmetric heap, and every CPU storage that has been passed to a
launch. A storage is known by its `StorageImpl`; the weak reference kept here pins that object's address, so that a new
storage can never be mistaken for one that died. Everything else is ordinary host memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(frozen=True)
class Box:
    """`rows` runs of `width_bytes` bytes, `stride_bytes` apart, the first at simulated address `address`."""

    address: int
    rows: int
    stride_bytes: int
    width_bytes: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.width_bytes


@dataclass(frozen=True)
class View:
    """A strided tensor in device memory: simulated address of its first element, strides in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor, address: int) -> View:
        return cls(address, tuple(tensor.shape), tensor.stride(), tensor.dtype)

    @property
    def extent_bytes(self) -> int:
        """From the first element to the end of the farthest one."""
        far = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        return (far + 1) * self.dtype.itemsize

    def boxes(self) -> list[Box]:
        """Its bytes as boxes, in ascending order of the outer dimensions."""
        if 0 in self.shape:
            return []
        itemsize = self.dtype.itemsize
        order = _by_stride(self.shape, self.strides)
        dims = [(self.shape[d], self.strides[d] * itemsize) for d in order]
        width = itemsize
        while dims and dims[-1][1] == width:
            width *= dims.pop()[0]
        rows, stride = dims.pop() if dims else (1, width)
        while dims and dims[-1][1] == rows * stride:
            rows *= dims.pop()[0]
        return [Box(self.address + offset, rows, stride, width) for offset in _offsets(dims)]


@dataclass(frozen=True)
class DeviceStorage:
    """A storage that is device memory: where it lies on the host and in the simulated address space."""

    ref: StorageWeakRef
    host_address: int
    nbytes: int
    address: int
    heap: bool


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has host bytes at all (strided, on the CPU)."""
    return tensor.is_cpu and tensor.layout is torch.strided


def alias_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """The bytes of `storage` as uint8 without a reference to it: the caller guarantees that they stay mapped."""
    import ctypes

    buffer = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    return torch.frombuffer(buffer, dtype=torch.uint8)


class DeviceTensors:
    """The device storages of one rank.

    Args:
        register: makes a storage known to the engine and returns its simulated address.
        unregister: tells the engine that the memory at this address is gone.
    """

    def __init__(self, register: Callable[[torch.UntypedStorage], int], unregister: Callable[[int], None]) -> None:
        self._register = register
        self._unregister = unregister
        self._known: dict[int, DeviceStorage] = {}
        self._in_flight: dict[int, torch.UntypedStorage] = {}

    def add_heap(self, storage: torch.UntypedStorage, address: int) -> None:
        """Declare the symmetric heap (or a part of it) that lies in `storage` and starts at `address`."""
        self._remember(storage, address, heap=True)

    def forget_heap(self, storage: torch.UntypedStorage) -> None:
        self._known.pop(storage._cdata, None)

    def address_of(self, tensor: torch.Tensor) -> int | None:
        """Simulated address of the tensor's first element, or None if it is host memory."""
        if not self._known or not is_plain(tensor):
            return None
        known = self._lookup(tensor.untyped_storage())
        return None if known is None else known.address + tensor.data_ptr() - known.host_address

    def adopt(self, tensor: torch.Tensor) -> int:
        """Make the tensor's storage device memory if it is not yet, and keep it alive until `drained`.

        Returns the simulated address of the first element (0 for a tensor without bytes, as a null pointer).
        """
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            return 0
        if self._lookup(storage) is None:
            self.sweep()
            self._remember(storage, self._register(storage), heap=False)
        known = self._known[storage._cdata]
        self.hold(tensor)
        return known.address + tensor.data_ptr() - known.host_address

    def hold(self, tensor: torch.Tensor) -> None:
        """Keep a device tensor's memory until `drained`: something that is queued on the stream uses it."""
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is not None and not known.heap:
            self._in_flight[storage._cdata] = storage

    def drained(self) -> None:
        """The stream is empty: nothing needs its tensors any longer."""
        self._in_flight.clear()
        self.sweep()

    def sweep(self) -> None:
        """Forget the storages that have died."""
        dead = [key for key, known in self._known.items() if known.ref.expired()]
        for key in dead:
            self._drop(key)

    def _remember(self, storage: torch.UntypedStorage, address: int, heap: bool) -> None:
        known = DeviceStorage(StorageWeakRef(storage), storage.data_ptr(), storage.nbytes(), address, heap)
        self._known[storage._cdata] = known

    def _lookup(self, storage: torch.UntypedStorage) -> DeviceStorage | None:
        known = self._known.get(storage._cdata)
        if known is None:
            return None
        if known.host_address == storage.data_ptr() and known.nbytes == storage.nbytes():
            return known
        # resize_ or set_ gave the storage other bytes: those were never passed to a launch
        self._drop(storage._cdata)
        return None

    def _drop(self, key: int) -> None:
        known = self._known.pop(key)
        self._in_flight.pop(key, None)
        if not known.heap:
            self._unregister(known.address)


def _by_stride(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Dimensions that matter, outermost (largest stride) first."""
    dims = [d for d in range(len(shape)) if shape[d] != 1 and strides[d] != 0]
    return sorted(dims, key=lambda d: -strides[d])


def boxes_of(tensor: torch.Tensor, address: int) -> list[Box]:
    """The bytes of a strided tensor as boxes, in ascending order of the outer dimensions.

    Args:
        address: simulated address of the tensor's first element.
    """
    return View.of(tensor, address).boxes()


def _offsets(dims: Sequence[tuple[int, int]]) -> Iterable[int]:
    return (sum(index) for index in itertools.product(*(range(0, n * step, step) for n, step in dims)))


def bytes_in_box_order(data: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The elements of `data` (shape of `like`) as one uint8 row in the order of `boxes_of(like, …)`."""
    order = _by_stride(like.shape, like.stride())
    rest = [d for d in range(like.dim()) if d not in order]
    flat = data.permute(*order, *rest) if like.dim() else data
    for axis in range(len(order), like.dim()):
        flat = flat.narrow(axis, 0, 1)
    return flat_bytes(flat)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in row-major order as 1-D uint8; shares memory if the tensor is contiguous."""
    whole = tensor.contiguous()
    # not view(-1): a single element may have any stride, which view(uint8) refuses
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
