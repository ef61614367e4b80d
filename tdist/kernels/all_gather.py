"""All-gather by push: every rank stores its shard, tile by tile, into the symmetric buffers of all ranks.

Shapes: `R` ranks; the gathered tensor has `M` rows of `N` elements, `E = M N`; a shard has at most `ceil(M / R)` rows
(the last ranks may hold fewer or none), that is `S` elements; `T = max(1, ceil(S / BLOCK))` tiles a shard. Empty
tiles are signalled like full ones.

Two forms, chosen when the context is made:

- *fine*: one int32 signal for each (source, tile), set to the launch's epoch. The workspace has two halves, used in
  turn. No exit protocol is needed: a rank fills a half again two launches later, and the launch between cannot end
  before each peer has signalled from *its* launch between, which started after it had read that half to the end. The
  same edge keeps a producer from overwriting a signal that somebody still polls for the earlier epoch.
- *barrier*: one half, a barrier between storing and reading, and an exit barrier before the next launch may store.
"""

# Triton types constexpr parameters by their annotation; callers pass plain values.
# pyright: reportArgumentType=false

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

import tdist.language as dl
import tdist.shmem as ash
from tdist.errors import UsageError
from tdist.kernels.signal_slots import allocate_slots, check_addressable, rows_of, settle, shard_rows
from tdist.language.extra import libshmem_device
from tdist.platforms.base import RankRuntime

LAST_EPOCH = 2**31 - 1

_SIZES = ["shard_elems", "total_elems", "epoch"]


@triton.jit
def _push_tile(x_ptr, buffer_ptr, target, tile, rank, shard_elems, total_elems, BLOCK: tl.constexpr):
    """Store one tile of this rank's shard into `target`'s buffer."""
    offs = tile * BLOCK + tl.arange(0, BLOCK)
    mask = offs < tl.minimum(shard_elems, total_elems - rank * shard_elems)
    data = tl.load(x_ptr + offs, mask=mask, other=0)
    remote_ptr = dl.symm_at(buffer_ptr, target)
    tl.store(remote_ptr + rank * shard_elems + offs, data, mask=mask)


@triton.jit
def _copy_tile(buffer_ptr, out_ptr, source, tile, shard_elems, total_elems, BLOCK: tl.constexpr):
    """Copy one tile of `source`'s shard from the local buffer to the output."""
    offs = tile * BLOCK + tl.arange(0, BLOCK)
    mask = offs < tl.minimum(shard_elems, total_elems - source * shard_elems)
    data = tl.load(buffer_ptr + source * shard_elems + offs, mask=mask, other=0)
    tl.store(out_ptr + source * shard_elems + offs, data, mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def all_gather_fine_kernel(
    x_ptr,
    out_ptr,
    buffer_ptr,
    ready_ptr,
    shard_elems,
    total_elems,
    epoch,
    BLOCK: tl.constexpr,
    FENCE: tl.constexpr,
):
    """Push, signal each tile, wait for each tile, copy out.

    Shape: x [S], out [E], buffer [2, R, S], ready [2, R, T] slots, 64 bytes apart.
    Dtype: x, out and buffer alike; ready int32.
    Ordering: each store is released by its own tile's signal. `FENCE` drains the store before the signal leaves, which
        `ascend` needs (a SET writes a remote word and drains nothing) and `seed` does not. On return every tile
        has been acquired; peers may still be reading what this rank pushed.
    Source: Single Operator Development §1.1, §3.1, §5.1–5.2, §6;
        Triton-distributed Semantics "Producer-Consumer Model".
    """
    rank = dl.rank()
    world = dl.num_ranks()
    tiles = tl.maximum(tl.cdiv(shard_elems, BLOCK), 1)
    stride: tl.constexpr = dl.SIGNAL_SLOT_STRIDE(ready_ptr)
    half = epoch % 2
    half_ptr = buffer_ptr + half * (world * shard_elems)
    half_ready_ptr = ready_ptr + half * (world * tiles * stride)
    for task in range(tl.program_id(0), world * tiles, tl.num_programs(0)):
        target = (rank + task % world) % world
        tile = task // world
        _push_tile(x_ptr, half_ptr, target, tile, rank, shard_elems, total_elems, BLOCK)
        if FENCE:
            libshmem_device.fence()
        dl.notify(half_ready_ptr + (rank * tiles + tile) * stride, target, signal=epoch, sig_op="set")
    for task in range(tl.program_id(0), world * tiles, tl.num_programs(0)):
        source = (rank + task % world) % world
        tile = task // world
        token = dl.wait(half_ready_ptr + (source * tiles + tile) * stride, 1, "npu", "acquire", waitValue=epoch)
        arrived_ptr = dl.consume_token(half_ptr, token)
        _copy_tile(arrived_ptr, out_ptr, source, tile, shard_elems, total_elems, BLOCK)


@triton.jit(do_not_specialize=_SIZES)
def all_gather_barrier_kernel(
    x_ptr,
    out_ptr,
    buffer_ptr,
    shard_elems,
    total_elems,
    BLOCK: tl.constexpr,
    FENCE: tl.constexpr,
):
    """Push, barrier, copy out, exit barrier.

    Shape: x [S], out [E], buffer [R, S].
    Ordering: the kernel has no `tl.dot`, so its barrier is `barrier_all_vec`, whose soft form drains nothing on Ascend:
        `FENCE` drains stores before the first barrier and loads before the exit barrier. On return no peer reads
        what this rank pushed any more.
    Source: Distributed Architecture Design §6.4; Single Operator Development §5.
    """
    rank = dl.rank()
    world = dl.num_ranks()
    tiles = tl.maximum(tl.cdiv(shard_elems, BLOCK), 1)
    for task in range(tl.program_id(0), world * tiles, tl.num_programs(0)):
        target = (rank + task % world) % world
        _push_tile(x_ptr, buffer_ptr, target, task // world, rank, shard_elems, total_elems, BLOCK)
    if FENCE:
        libshmem_device.fence()
    libshmem_device.barrier_all_vec()
    for task in range(tl.program_id(0), world * tiles, tl.num_programs(0)):
        source = (rank + task % world) % world
        _copy_tile(buffer_ptr, out_ptr, source, task // world, shard_elems, total_elems, BLOCK)
    if FENCE:
        libshmem_device.fence()
    libshmem_device.barrier_all_vec()


@dataclass
class AllGatherContext:
    """Workspace of one all-gather shape on one rank; launches on it are numbered by `epoch`.

    Make it with `create_context` (collective), give it back with `close` (collective).
    """

    runtime: RankRuntime
    rows: int
    row_elems: int
    dtype: torch.dtype
    sync: str
    block_elems: int
    programs: int
    buffer: torch.Tensor
    ready: torch.Tensor | None = None
    epoch: int = 0
    allocations: list[torch.Tensor] = field(default_factory=list)

    @property
    def shard_elems(self) -> int:
        """Elements of a full shard; the stride between shards in the buffer and in the output."""
        return shard_rows(self.rows, self.runtime.nranks) * self.row_elems

    def close(self) -> None:
        """Free the workspace (collective).

        Ordering: waits for this rank's stream and then for the other hosts, since a peer may still be pushing.
        """
        settle(self.runtime)
        for tensor in self.allocations:
            ash.aclshmem_free_tensor(tensor)
        self.allocations.clear()


def create_context(
    runtime: RankRuntime,
    rows: int,
    row_elems: int,
    dtype: torch.dtype,
    *,
    sync: str = "fine",
    block_elems: int = 1024,
    programs: int | None = None,
) -> AllGatherContext:
    """Allocate the workspace of an all-gather of `rows` rows of `row_elems` elements (collective).

    Args:
        sync: "fine" (a signal for each tile) or "barrier" (barriers over all ranks).
        block_elems: elements of a tile.
        programs: programs of a launch; by default as many as there is work for, never more than vector cores.
    """
    if sync not in ("fine", "barrier"):
        raise UsageError(f"all_gather has no sync form {sync!r}; it has: fine, barrier")
    nranks = runtime.nranks
    shard = shard_rows(rows, nranks) * row_elems
    tiles = max(1, -(-shard // block_elems))
    halves = 2 if sync == "fine" else 1
    check_addressable("the all_gather workspace", halves * nranks * shard)
    if programs is None:
        programs = min(runtime.vector_cores, nranks * tiles)
    buffer = ash.aclshmem_create_tensor((halves, nranks, shard), dtype=dtype, device_id=runtime.rank)
    context = AllGatherContext(runtime, rows, row_elems, dtype, sync, block_elems, programs, buffer)
    context.allocations.append(buffer)
    if sync == "fine":
        slots, context.ready = allocate_slots(halves * nranks * tiles, torch.int32, runtime.rank)
        context.allocations.append(slots)
    settle(runtime)
    return context


def all_gather(context: AllGatherContext, x: torch.Tensor, *, fence: bool = True) -> torch.Tensor:
    """Queue one all-gather of this rank's shard `x`; may be called again on the same context at once.

    Shape: x [rows of this rank's shard, N], result [M, N].
    Ordering: returns before the launch has run; the result is ready after a synchronise.
    """
    _check_shard(context, x)
    out = torch.empty((context.rows, context.row_elems), dtype=x.dtype, device=x.device)
    sizes = (context.shard_elems, out.numel())
    grid = (context.programs,)
    if context.sync == "barrier":
        all_gather_barrier_kernel[grid](x, out, context.buffer, *sizes, BLOCK=context.block_elems, FENCE=fence)
        return out
    if context.epoch == LAST_EPOCH:
        raise UsageError("this all_gather context has used up its int32 epochs: close it and make a new one")
    context.epoch += 1
    all_gather_fine_kernel[grid](
        x,
        out,
        context.buffer,
        context.ready,
        *sizes,
        context.epoch,
        BLOCK=context.block_elems,
        FENCE=fence,
    )
    return out


def _check_shard(context: AllGatherContext, x: torch.Tensor) -> None:
    runtime = context.runtime
    shape = (rows_of(runtime.rank, context.rows, runtime.nranks), context.row_elems)
    if tuple(x.shape) != shape or x.dtype != context.dtype or not x.is_contiguous():
        raise UsageError(
            f"all_gather on rank {runtime.rank} takes a shard of shape {shape}, {context.dtype}, contiguous; "
            f"got {tuple(x.shape)}, {x.dtype}"
        )
