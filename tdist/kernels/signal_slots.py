"""Signal slots: one word for each 64-byte line, allocated so that no other allocation shares a line with a slot."""

from __future__ import annotations

import torch

import tdist.shmem as ash
from tdist.errors import UsageError
from tdist.language import SIGNAL_SLOT_STRIDE
from tdist.platforms.base import RankRuntime


def allocate_slots(count: int, dtype: torch.dtype, device_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate `count` zeroed slots on the symmetric heap (collective).

    The real allocator rounds to 16 bytes only, so the line of a first slot could hold the tail of the allocation
    before it. One leading slot is therefore left unused.

    Ordering: the zeroes are a stream operation; the caller synchronises and meets the other hosts before any rank
    launches a kernel that signals (`settle`).

    Returns:
        The allocation (to free) and the view that a kernel gets.
    """
    stride_elems = SIGNAL_SLOT_STRIDE[dtype]
    whole = ash.aclshmem_create_tensor(((count + 1) * stride_elems,), dtype=dtype, device_id=device_id)
    whole.zero_()
    return whole, whole[stride_elems:]


def settle(runtime: RankRuntime) -> None:
    """Order all that this host enqueued before everything that any rank enqueues afterwards.

    Ordering: `zero_; synchronize; barrier; launch` is ordered on all ranks; without the synchronise it is not
    (a host collective waits for no stream).
    """
    runtime.synchronize()
    runtime.host_barrier()


def shard_rows(rows: int, nranks: int) -> int:
    """Rows that a rank holds at most when `rows` are dealt out in equal runs; the last ranks may hold fewer or none."""
    return -(-rows // nranks)


def rows_of(rank: int, rows: int, nranks: int) -> int:
    """Rows of `rank`'s shard, 0 where nothing is left for it."""
    capacity = shard_rows(rows, nranks)
    return max(0, min(capacity, rows - rank * capacity))


def check_addressable(what: str, elems: int) -> None:
    """Refuse tensors whose element offsets leave a signed 32-bit integer, which the kernels calculate in."""
    if elems >= 2**31:
        raise UsageError(f"{what} has {elems} elements; these kernels address fewer than 2**31: use a smaller shape")
