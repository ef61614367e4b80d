"""The two code examples of the Triton-distributed semantics page, as printed, and corrected twins.

"Producer-Consumer Model" signals slot 0 with the number of the tile and waits for 1 on slot `tile_id`; "Example: Ring
AllReduce with Overlap" waits for 1 where 0 was sent, signals slot 0 and waits on slot `step`, and adds up the tile that
it sent instead of the one that it received. What the page leaves open (loops, constants, `compute`) is filled in as
plainly as possible; every line of the examples that touches memory or a signal is kept.
"""

from __future__ import annotations

import triton
import triton.language as tl

import tdist.language as tdl
from tdist.language.extra import libshmem_device as shmem_dev

TILE_SIZE = tl.constexpr(16)
SLOT = tl.constexpr(16)  # elements of an int32 signal tensor in 64 bytes


@triton.jit
def producer_consumer_as_printed(data_ptr, signal_ptr, out_ptr, num_tiles: tl.constexpr):
    """Rank 0 produces, rank 1 consumes: the two halves of the page's snippet, once for each tile."""
    offs = tl.arange(0, TILE_SIZE)
    peer_rank = 1
    for tile_id in range(num_tiles):
        tile_offset = tile_id * TILE_SIZE + offs
        if tdl.rank() == 0:
            # Transfer tile to shared buffer
            remote_buffer_ptr = tdl.symm_at(data_ptr, peer_rank)
            data = tl.full((TILE_SIZE,), 10, tl.int32) + tile_id
            tl.store(remote_buffer_ptr + tile_offset, data)  # <store>
            # Signal that tile is ready
            tdl.notify(signal_ptr, peer_rank, signal=tile_id, sig_op="set")  # <notify>
        else:
            # Wait for tile to be ready
            token = tdl.wait(signal_ptr + tile_id, 1, "sys", "acquire")  # <wait>
            # Consume token to establish data dependency
            ready_ptr = tdl.consume_token(data_ptr, token)
            # Now safe to compute on the tile
            result = tl.load(ready_ptr + tile_offset)  # <load>
            tl.store(out_ptr + tile_offset, result)


@triton.jit
def producer_consumer(data_ptr, signal_ptr, out_ptr, num_tiles: tl.constexpr):
    """The same with a slot of 64 bytes for each tile, one value for all, and a drain before each signal."""
    offs = tl.arange(0, TILE_SIZE)
    peer_rank = 1
    for tile_id in range(num_tiles):
        tile_offset = tile_id * TILE_SIZE + offs
        if tdl.rank() == 0:
            remote_buffer_ptr = tdl.symm_at(data_ptr, peer_rank)
            data = tl.full((TILE_SIZE,), 10, tl.int32) + tile_id
            tl.store(remote_buffer_ptr + tile_offset, data)
            shmem_dev.fence()
            tdl.notify(signal_ptr + tile_id * SLOT, peer_rank, signal=1, sig_op="set")
        else:
            token = tdl.wait(signal_ptr + tile_id * SLOT, 1, "sys", "acquire")
            ready_ptr = tdl.consume_token(data_ptr, token)
            tl.store(out_ptr + tile_offset, tl.load(ready_ptr + tile_offset))


@triton.jit
def ring_allreduce_as_printed(
    local_data_ptr,
    remote_data_ptr,
    signal_ptr,
    rank: tl.constexpr,
    world_size: tl.constexpr,
    num_tiles: tl.constexpr,
    SIGNALS: tl.constexpr,
):
    """The page's ring, one program a tile.

    `SIGNALS == "as printed"` is the page, word for word. `"repaired"` gives each step its slot, the value 1 and a
    fence, and leaves the rest: so that what is wrong beside the signals can be seen.
    """
    offs = tl.arange(0, TILE_SIZE)
    pid = tl.program_id(0)

    # Phase 1: Reduce-Scatter (send to next, receive from prev)
    for step in range(world_size - 1):
        send_rank = (rank + 1) % world_size
        # Determine which tile to send/receive in this step
        tile_id = (rank - step + world_size) % world_size

        if pid == tile_id:
            # Send tile to next rank
            remote_ptr = tdl.symm_at(remote_data_ptr, send_rank)
            data = tl.load(local_data_ptr + tile_id * TILE_SIZE + offs)  # <send>
            tl.store(remote_ptr + tile_id * TILE_SIZE + offs, data)  # <push>
            if SIGNALS == "as printed":
                tdl.notify(signal_ptr, send_rank, signal=step, sig_op="set")  # <notify>
            else:
                shmem_dev.fence()
                tdl.notify(signal_ptr + step * SLOT, send_rank, signal=1, sig_op="set")

        # Wait for incoming tile from previous rank
        if SIGNALS == "as printed":
            token = tdl.wait(signal_ptr + step, 1, "sys", "acquire")  # <wait>
        else:
            token = tdl.wait(signal_ptr + step * SLOT, 1, "sys", "acquire")
        recv_ptr = tdl.consume_token(remote_data_ptr, token)
        incoming_data = tl.load(recv_ptr + tile_id * TILE_SIZE + offs)  # <receive>

        # Reduce with local data
        local_data = tl.load(local_data_ptr + tile_id * TILE_SIZE + offs)  # <local>
        reduced = local_data + incoming_data
        tl.store(local_data_ptr + tile_id * TILE_SIZE + offs, reduced)  # <reduce>

    # Phase 2: AllGather (propagate reduced tiles)
    for step in range(world_size - 1):
        send_rank = (rank + 1) % world_size
        # Each rank sends the tile it just finished reducing
        send_tile_id = (rank - step + world_size) % world_size
        # Determine which tile to receive in this step
        recv_tile_id = (rank - step - 1 + world_size) % world_size

        if pid == send_tile_id:
            # Send reduced tile to next rank
            remote_ptr = tdl.symm_at(remote_data_ptr, send_rank)
            data = tl.load(local_data_ptr + send_tile_id * TILE_SIZE + offs)  # <send2>
            tl.store(remote_ptr + send_tile_id * TILE_SIZE + offs, data)  # <push2>
            if SIGNALS == "as printed":
                tdl.notify(signal_ptr, send_rank, signal=step + world_size - 1, sig_op="set")  # <notify2>
            else:
                shmem_dev.fence()
                tdl.notify(signal_ptr + (step + world_size - 1) * SLOT, send_rank, signal=1, sig_op="set")

        # Wait for incoming tile from previous rank
        if SIGNALS == "as printed":
            token = tdl.wait(signal_ptr + step + world_size - 1, 1, "sys", "acquire")  # <wait2>
        else:
            token = tdl.wait(signal_ptr + (step + world_size - 1) * SLOT, 1, "sys", "acquire")
        recv_ptr = tdl.consume_token(remote_data_ptr, token)
        incoming_data = tl.load(recv_ptr + recv_tile_id * TILE_SIZE + offs)  # <receive2>

        # Store the received reduced tile
        tl.store(local_data_ptr + recv_tile_id * TILE_SIZE + offs, incoming_data)  # <gather>


@triton.jit
def ring_allreduce(
    local_data_ptr, remote_data_ptr, signal_ptr, epoch, rank: tl.constexpr, world_size: tl.constexpr, n: tl.constexpr
):
    """The ring made right: sums `world_size` tiles of n elements in place, on every rank.

    Differences from the page: each program does its own columns of every tile, all steps of them, so that programs need
    no order among each other; a step waits on the slot and for the value that the step before sent; it adds the tile
    that arrived; the gather starts with the tile that the rank has finished (its successor's); either phase has receive
    tiles of its own, so none is overwritten while it is read; a fence drains before each signal; an exit barrier lets
    the next launch use the workspace again.

    Shape:
        local_data_ptr (world_size, n), remote_data_ptr (2, world_size, n) symmetric, signal_ptr
        2 · (world_size - 1) · programs slots of 64 bytes, symmetric, zero before the first launch.
    """
    pid = tl.program_id(0)
    parts = tl.num_programs(0)
    columns = pid * TILE_SIZE + tl.arange(0, TILE_SIZE)
    inside = columns < n
    send_rank = (rank + 1) % world_size

    for step in range(2 * (world_size - 1)):
        reducing = step < world_size - 1
        hop = step % (world_size - 1) if world_size > 2 else 0
        area = 0 if reducing else world_size * n
        first = rank if reducing else rank + 1
        send_tile = (first - hop + world_size) % world_size
        recv_tile = (first - hop - 1 + world_size) % world_size
        slot = (step * parts + pid) * SLOT

        data = tl.load(local_data_ptr + send_tile * n + columns, mask=inside, other=0)
        remote = tdl.symm_at(remote_data_ptr, send_rank) + area
        tl.store(remote + send_tile * n + columns, data, mask=inside)
        shmem_dev.fence()
        tdl.notify(signal_ptr + slot, send_rank, signal=epoch, sig_op="set")

        token = tdl.wait(signal_ptr + slot, 1, "sys", "acquire", waitValue=epoch)
        ready = tdl.consume_token(remote_data_ptr, token) + area
        incoming = tl.load(ready + recv_tile * n + columns, mask=inside, other=0)
        if reducing:
            incoming += tl.load(local_data_ptr + recv_tile * n + columns, mask=inside, other=0)
        tl.store(local_data_ptr + recv_tile * n + columns, incoming, mask=inside)

    shmem_dev.barrier_all()
