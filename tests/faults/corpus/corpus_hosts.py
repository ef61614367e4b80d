"""Planted faults: what hosts do around launches, how many programs they start, what they allocate and free."""

from __future__ import annotations

import ctypes

import shmem as ash
import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from fault_kit import SLOT, TILE, TILE_ELEMS, Buf, Corpus, finds, refused
from triton_dist.language.extra import libshmem_device

corpus = Corpus(globals())
RESET = "failure causes: signal zeroing races with remote notify (sync and barrier after zero-fill)"
ASYMMETRIC = "failure causes: asymmetric malloc size or order"
DIVERGED = "failure causes: rank divergence"
CORES = "failure causes: grid > physical cores with spin waits or barrier"
CUBE_CORES = 24
"""Cube cores of an Ascend910B2, the target that worlds have by default."""


@triton.jit
def push(x, data):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))  # <push>


@triton.jit
def copy(data, out):
    offs = tl.arange(0, TILE)
    tl.store(out + offs, tl.load(data + offs))  # <copy>


@triton.jit
def exchange(x, data, sig, out):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))
    libshmem_device.fence()
    dl.notify(sig, peer, signal=1, sig_op="set")  # <notify>
    ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))  # <wait>
    tl.store(out + offs, tl.load(ready + offs))


def settle(rt):
    """This rank's stream is empty and every rank knows it."""
    rt.synchronize()
    rt.host_barrier()


def reset_without_synchronize(rt, ws, x, out):
    settle(rt)
    ws.sig.zero_()  # <zero>
    if ws.fix:
        rt.synchronize()
    rt.host_barrier()
    ws.start(exchange, x, out)


corpus.pair(
    exchange,
    finds("race", "zero", "notify"),
    golden="ring",
    name="reset_without_synchronize",
    host=reset_without_synchronize,
    launches=2,
    why="a host barrier tells that the zeroing is queued, not that it has been done",
    source=RESET,
)


def reset_without_barrier(rt, ws, x, out):
    settle(rt)
    ws.sig.zero_()  # <zero-alone>
    rt.synchronize()
    if ws.fix:
        rt.host_barrier()
    ws.start(exchange, x, out)


corpus.pair(
    exchange,
    finds("race", "zero-alone", "notify"),
    golden="ring",
    name="reset_without_barrier",
    host=reset_without_barrier,
    launches=2,
    why="each rank waits for its own zeroing only; a peer may signal before it",
    source=RESET,
)


def copy_after_own_synchronize(rt, ws, x, out):
    ws.start(push, x, out)
    rt.synchronize()
    if ws.fix:
        rt.host_barrier()
    ws.start(copy, x, out)


corpus.pair(
    push,
    finds("race", "push", "copy"),
    golden="ring",
    name="copy_after_own_synchronize",
    host=copy_after_own_synchronize,
    buffers={"data": Buf(TILE_ELEMS)},
    why="synchronize waits for this rank's stream; the peer may still be storing into my heap",
    source="failure causes: host RMA against device completion",
)


def host_reads_too_early(rt, ws, x, out):
    ws.start(push, x, out)
    if ws.fix:
        settle(rt)
    return ws.data[:TILE_ELEMS].clone()  # <host-read>


corpus.pair(
    push,
    finds("race", "push", "host-read"),
    golden="ring",
    name="host_reads_too_early",
    host=host_reads_too_early,
    buffers={"data": Buf(TILE_ELEMS)},
    why="the host copies its inbox out while the peer may still be storing into it",
    source="failure causes: host RMA against device completion",
)


def host_overwrites_what_a_peer_reads(rt, ws, x, out):
    ws.data[:TILE_ELEMS].copy_(x)
    settle(rt)
    ws.start(pull, x, out)
    if ws.fix:
        settle(rt)
    ws.data[:TILE_ELEMS].fill_(0)  # <overwrite>


@triton.jit
def pull(data, out):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(out + offs, tl.load(dl.symm_at(data, peer) + offs))  # <pull>


corpus.pair(
    pull,
    finds("race", "pull", "overwrite"),
    golden="exchange",
    name="host_overwrites_what_a_peer_reads",
    host=host_overwrites_what_a_peer_reads,
    why="the host clears its buffer behind its own launch; the peer's launch may not have read it yet",
    source="failure causes: slot overlap between rounds",
)


def other_size(rt, ws):
    mine = 2 * TILE_ELEMS if rt.rank == 0 and not ws.fix else TILE_ELEMS
    return {"more": ash.aclshmem_create_tensor((mine,), dtype=torch.float32)}  # <other-size>


@triton.jit
def push_and_meet(x, more, out):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(more, peer) + offs, tl.load(x + offs))
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(more + offs))


corpus.pair(
    push_and_meet,
    finds("asymmetric-alloc", "other-size"),
    golden="ring",
    name="other_size_on_one_rank",
    setup=other_size,
    why="each rank allocates for its own rows, and one has more of them",
    source=ASYMMETRIC,
)


def other_order(rt, ws):
    if rt.rank == 0 or ws.fix:
        more = ash.aclshmem_create_tensor((TILE_ELEMS,), dtype=torch.float32)  # <data-first>
        flags = ash.aclshmem_create_tensor((64,), dtype=torch.int32)
    else:
        flags = ash.aclshmem_create_tensor((64,), dtype=torch.int32)  # <flags-first>
        more = ash.aclshmem_create_tensor((TILE_ELEMS,), dtype=torch.float32)
    return {"more": more, "flags": flags}


corpus.pair(
    push_and_meet,
    finds("asymmetric-alloc", "data-first", "flags-first"),
    golden="ring",
    name="other_order_on_one_rank",
    setup=other_order,
    why="one rank allocates the same two buffers in the other order",
    source=ASYMMETRIC,
)


def freed_before_the_launch_ran(rt, ws, x, out):
    inbox = ash.aclshmem_create_tensor((TILE_ELEMS,), dtype=torch.float32)
    ws.start(push_and_meet, x, out, more=inbox)
    if ws.fix:
        settle(rt)
    ash.aclshmem_free_tensor(inbox)  # <free-early>


corpus.pair(
    push_and_meet,
    finds("pointer-misuse", "free-early"),
    golden="ring",
    name="freed_before_the_launch_ran",
    host=freed_before_the_launch_ran,
    why="a launch returns at once; what it works on is freed before it has run",
    source="failure causes: collective malloc and free; ordering model, streams",
)


def one_rank_raises(rt, ws, x, out):
    if rt.rank == 1 and not ws.fix:
        raise ValueError("no rows for rank 1")  # <raises>
    ws.start(exchange, x, out)


corpus.pair(
    exchange,
    finds("host-error", "raises"),
    refused("raised ValueError: no rows for rank 1"),
    golden="ring",
    name="one_rank_raises",
    host=one_rank_raises,
    why="one rank raises before its launch; the others would wait for it for ever",
    source=DIVERGED + ": one rank raises or exits",
)


def one_rank_does_not_launch(rt, ws, x, out):
    if rt.rank == 0 or ws.fix:
        ws.start(exchange, x, out)


corpus.pair(
    exchange,
    finds("deadlock", "wait"),
    golden="ring",
    name="one_rank_does_not_launch",
    host=one_rank_does_not_launch,
    why="a rank without work does not launch at all; its peer waits for its signal",
    source="situations: a rank with no work",
)


def one_rank_skips_a_collective(rt, ws, x, out):
    ws.start(push, x, out)
    rt.synchronize()
    if rt.rank == 0 or ws.fix:
        rt.host_barrier()  # <skipped>
    ws.start(copy, x, out)


corpus.pair(
    push,
    finds("deadlock", "skipped"),
    golden="ring",
    name="one_rank_skips_a_collective",
    host=one_rank_skips_a_collective,
    buffers={"data": Buf(TILE_ELEMS)},
    why="one rank goes on without the barrier in which the other one waits",
    source=DIVERGED,
)


def cleared_by_whole_lines(rt, ws, x, out):
    nbytes = ws.odd.nbytes
    settle(rt)
    ctypes.memset(ws.odd.data_ptr(), 0, nbytes if ws.fix else -(-nbytes // 64) * 64)
    settle(rt)
    ws.start(push_and_meet, x, out, more=ws.data)


corpus.pair(
    push_and_meet,
    finds("canary"),
    golden="ring",
    name="cleared_by_whole_lines",
    host=cleared_by_whole_lines,
    buffers={"odd": Buf(5, torch.float32), "data": Buf(TILE_ELEMS)},
    why="the host clears 20 bytes through the raw pointer, rounded up to whole lines of 64",
    source="failure causes: bytes against elements, 16 B default alignment",
)


@triton.jit
def program_signals(x, data, sig, out):
    offs = tl.arange(0, TILE)
    pid = tl.program_id(0)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + pid * TILE + offs, tl.load(x + pid * TILE + offs))
    libshmem_device.fence()
    dl.notify(sig + pid * SLOT, peer, signal=1, sig_op="set")
    ready = dl.consume_token(data, dl.wait(sig + pid * SLOT, 1, "npu", "acquire"))  # <wait-program>
    tl.store(out + pid * TILE + offs, tl.load(ready + pid * TILE + offs))


def fewer_programs(rt, ws, x, out):
    ws.start(program_signals, x, out, grid=2 if rt.rank == 0 or ws.fix else 1)


corpus.pair(
    program_signals,
    finds("deadlock", "wait-program"),
    golden="ring",
    name="fewer_programs_on_one_rank",
    host=fewer_programs,
    tiles=2,
    why="ranks choose their grid by their own number of tiles; program 1 has no partner",
    source=DIVERGED + ": different shapes, autotune cache divergence",
)


@triton.jit
def shift(x, data, sig, out, slot):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + slot * TILE + offs, tl.load(x + offs))
    libshmem_device.fence()
    dl.notify(sig + slot * SLOT, peer, signal=1, sig_op="set")
    ready = dl.consume_token(data, dl.wait(sig + slot * SLOT, 1, "npu", "acquire"))  # <wait-operator>
    tl.store(out + offs, tl.load(ready + slot * TILE + offs))


def two_operators(rt, ws, x, out):
    first = 0 if ws.fix else rt.rank
    ws.start(shift, x, out, slot=first)
    ws.start(shift, x, out, slot=1 - first)


corpus.pair(
    shift,
    finds("deadlock", "wait-operator"),
    golden="ring",
    name="two_operators_in_opposite_order",
    host=two_operators,
    why="two ranks launch the same two operators in opposite order: each waits for a launch behind the other's",
    source="situations: two operators launched in opposite order on two ranks",
)


@triton.jit
def grid_barrier(x, data, out, n, FIX: tl.constexpr):
    peer = (dl.rank() + 1) % dl.num_ranks()
    for start in range(tl.program_id(0) * TILE, n, tl.num_programs(0) * TILE):
        offs = start + tl.arange(0, TILE)
        tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))
    libshmem_device.barrier_all()  # <grid-barrier>
    for start in range(tl.program_id(0) * TILE, n, tl.num_programs(0) * TILE):
        offs = start + tl.arange(0, TILE)
        tl.store(out + offs, tl.load(data + offs))


def one_program_a_tile(rt, ws, x, out):
    ws.start(grid_barrier, x, out, grid=4 if ws.fix else 4 + CUBE_CORES)


corpus.pair(
    grid_barrier,
    finds("grid-too-large", "grid-barrier"),
    golden="ring",
    name="more_programs_than_cores_in_a_barrier",
    host=one_program_a_tile,
    tiles=4,
    why="programs beyond the cores start when others have ended, and those stand in the barrier",
    source=CORES,
)


@triton.jit
def last_program_signals(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    pid = tl.program_id(0)
    last = tl.num_programs(0) - 1
    sender = 0 if FIX else last
    if pid == sender:
        tl.store(data + offs, tl.load(x + offs))
        libshmem_device.fence()
        dl.notify(sig, dl.rank(), signal=1, sig_op="set")
    elif pid < 50:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))  # <wait-last>
        if pid == 1:
            tl.store(out + offs, tl.load(ready + offs))


corpus.pair(
    last_program_signals,
    finds("grid-too-large", "wait-last"),
    finds("deadlock", "wait-last"),
    golden="own",
    grid=60,
    why="programs wait for a later one, which starts only when one of them has ended",
    source=CORES,
)


@triton.jit
def push_tiles(x, data, scratch, sig, out, launch, width, stride):
    offs = tl.arange(0, TILE)
    peer = 1 - dl.rank()
    half = (launch - 1) % 2
    for tile in range(width):
        place = half * stride + tile * TILE + offs
        tl.store(dl.symm_at(data, peer) + place, tl.load(x + tile * TILE + offs))  # <shape-store>
    libshmem_device.fence()
    dl.notify(sig + half * SLOT, peer, signal=launch, sig_op="set")
    token = dl.wait(sig + half * SLOT, 1, "npu", "acquire", waitValue=launch)
    ready = dl.consume_token(data, token)
    for tile in range(width):
        got = tl.load(ready + half * stride + tile * TILE + offs)  # <shape-load>
        tl.store(scratch + tile * TILE + offs, got)
    tl.store(out + offs, tl.load(scratch + offs))


def narrower_the_second_time(rt, ws, x, out):
    width = 2 if ws.launch == 1 else 1
    stride = 2 if ws.fix else width
    ws.start(push_tiles, x, out, width=width, stride=stride * TILE_ELEMS)


corpus.pair(
    push_tiles,
    finds("race", "shape-store", "shape-load"),
    golden=lambda xs, rank: xs[1 - rank][:TILE_ELEMS],
    name="workspace_of_another_shape",
    host=narrower_the_second_time,
    launches=2,
    tiles=2,
    why="the halves of a workspace are laid out for this launch's shape, those of the last launch are still in use",
    source="failure causes: slot overlap between rounds; situations: two launches on one workspace",
)
