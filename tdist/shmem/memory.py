"""Symmetric memory: allocation, tensors over it, remote addresses.

Allocation and release are collective: every PE calls them in the same order with the same size.

Source: Triton-distributed-ascend documentation, Distributed Architecture Design §5.2 and §5.3; the vendor's Python API.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import torch

from tdist.errors import UsageError
from tdist.platforms.base import RankRuntime
from tdist.shmem.state import Piece, ShmemState, initialized

_ASSIGNMENT = re.compile(r"^\s*([A-Za-z_][\w.]*)\s*(?::[^=]+)?=[^=]")


def aclshmem_malloc(size: int) -> int:
    """Allocate `size` bytes on the symmetric heap (collective); not initialised, 16-byte aligned.

    Returns:
        This PE's device address. Other PEs have the same heap offset at another address (`aclshmem_ptr`).

    Raises:
        UsageError: size not positive, or the heap (`local_mem_size`) has no room.
        WorldStopped: the PEs ask for different sizes or in different orders; the finding names ranks and lines.
    """
    return _allocate("aclshmem_malloc", size, 16)


def aclshmem_calloc(nmemb: int, size: int) -> int:
    """Allocate `nmemb * size` bytes of zeros (collective). The zeroing is a stream operation of this PE."""
    for what, value in (("nmemb", nmemb), ("size", size)):
        _check_integer("aclshmem_calloc", what, value, least=1)
    address = _allocate("aclshmem_calloc", nmemb * size, 16)
    rank, _ = initialized("aclshmem_calloc")
    rank.tensor(address, (nmemb * size,), torch.uint8).zero_()
    return address


def aclshmem_align(alignment: int, size: int) -> int:
    """Allocate `size` bytes at a multiple of `alignment` bytes, a power of two (collective)."""
    _check_integer("aclshmem_align", "alignment", alignment, least=1)
    if alignment & (alignment - 1):
        raise UsageError(f"aclshmem_align: alignment {alignment} is not a power of two")
    return _allocate("aclshmem_align", size, alignment)


def aclshmem_free(ptr: int) -> None:
    """Free an allocation by the address that allocation returned (collective).

    Raises:
        UsageError: the address is inside an allocation, was freed before, or is none of the symmetric heap's.
    """
    _free("aclshmem_free", ptr)


def aclshmem_create_tensor(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, device_id: int = 0
) -> torch.Tensor:
    """A contiguous tensor on symmetric memory (collective); not initialised.

    Args:
        device_id: which card of the host; the simulated rank has one, so the value says nothing here.
    """
    if not isinstance(dtype, torch.dtype):
        _refuse("aclshmem_create_tensor", "dtype", dtype, "a torch dtype such as torch.float16")
    try:
        size = torch.Size((shape,) if isinstance(shape, int) else shape)
    except TypeError:
        _refuse("aclshmem_create_tensor", "shape", shape, "a sequence of integers")
    if any(n < 0 for n in size):
        _refuse("aclshmem_create_tensor", "shape", shape, "sizes of at least 0")
    address = _allocate("aclshmem_create_tensor", size.numel() * dtype.itemsize, max(16, dtype.itemsize))
    rank, _ = initialized("aclshmem_create_tensor")
    return rank.tensor(address, size, dtype)


def aclshmem_free_tensor(tensor: torch.Tensor) -> None:
    """Free the allocation that the tensor starts at (collective). A view at an offset is refused."""
    rank, _ = initialized("aclshmem_free_tensor")
    if not isinstance(tensor, torch.Tensor):
        _refuse("aclshmem_free_tensor", "tensor", tensor, "a tensor of aclshmem_create_tensor")
    address = rank.device_address(tensor)
    if address is None:
        raise UsageError(f"aclshmem_free_tensor on rank {rank.rank}: the tensor is not on the symmetric heap")
    _free("aclshmem_free_tensor", address)


def aclshmem_ptr(ptr: int, peer: int) -> int:
    """Where this PE's symmetric address `ptr` (or a tensor's `data_ptr()`) lies on PE `peer`; 0 if nowhere."""
    rank, _ = initialized("aclshmem_ptr")
    if not isinstance(ptr, torch.Tensor):
        _check_integer("aclshmem_ptr", "ptr", ptr)
    _check_integer("aclshmem_ptr", "peer", peer)
    address = rank.device_address(ptr)
    return 0 if address is None else rank.peer_address(address, peer)


def _check_integer(function: str, what: str, value: object, least: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(function, what, value, "an int")
    if least is not None and value < least:
        _refuse(function, what, value, f"{least} or more")


def _refuse(function: str, what: str, got: object, expected: str) -> NoReturn:
    rank, _ = initialized(function)
    raise UsageError(f"{function} on rank {rank.rank}: {what} is {got!r}, expected {expected}")


def _allocate(function: str, nbytes: int, alignment: int) -> int:
    rank, state = initialized(function)
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes <= 0:
        raise UsageError(
            f"{function} on rank {rank.rank}: {nbytes!r} bytes; the size must be a positive number of bytes"
        )
    _check_room(function, rank, state, nbytes)
    name = _assigned_name()
    address = rank.malloc(nbytes, alignment, name)
    state.pieces[address] = Piece(nbytes, name)
    state.freed.pop(address, None)
    return address


def _check_room(function: str, rank: RankRuntime, state: ShmemState, nbytes: int) -> None:
    left_bytes = state.heap_bytes - state.used_bytes
    if nbytes > left_bytes:
        raise UsageError(
            f"{function} on rank {rank.rank}: {nbytes} bytes asked for, {left_bytes} of {state.heap_bytes} left on the "
            "symmetric heap; raise InitAttr.local_mem_size"
        )


def _free(function: str, ptr: int) -> None:
    rank, state = initialized(function)
    if not isinstance(ptr, torch.Tensor):
        _check_integer(function, "ptr", ptr)
    address = rank.device_address(ptr)
    if address is None or address not in state.pieces:
        raise UsageError(f"{function} on rank {rank.rank}: {_why_not(state, ptr if address is None else address)}")
    rank.free(address)
    state.freed[address] = state.pieces.pop(address)


def _why_not(state: ShmemState, address: int) -> str:
    if address in state.freed:
        return f"{_label(state.freed[address])} was freed before (double free)"
    for start, piece in state.pieces.items():
        if start < address < start + piece.nbytes:
            return (
                f"the address is {address - start} bytes into {_label(piece)}; free the tensor that allocation "
                "returned, not a view of it"
            )
    return f"{address:#x} is not an allocation of the symmetric heap"


def _label(piece: Piece) -> str:
    return f"{piece.name or 'an allocation'} of {piece.nbytes} bytes"


def _assigned_name() -> str | None:
    """The variable that the caller assigns the allocation to, for messages; None if the line does not tell."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tdist.shmem"):
        frame = frame.f_back
    if frame is None:
        return None
    found = _ASSIGNMENT.match(linecache.getline(frame.f_code.co_filename, frame.f_lineno))
    return found.group(1).rpartition(".")[2] if found else None
