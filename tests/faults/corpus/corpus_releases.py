"""Planted faults: what a signal does not release on Ascend, and what a load does not see there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from fault_kit import SLOT, TILE, Corpus, finds
from triton_dist.language.extra import libshmem_device

from tdist.verify.verdict import SYNCHRONISATION

corpus = Corpus(globals(), bug=SYNCHRONISATION)


@triton.jit
def fence_left_out(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))  # <fence-store>
        if FIX:
            libshmem_device.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <fence-load>


corpus.pair(
    fence_left_out,
    finds("hazard.undrained-release", "fence-store", "fence-load"),
    golden="push",
    profile="ascend",
    why="a signal SET does not drain the store before it",
    source="failure causes: no fence/quiet between data store and notify",
)


@triton.jit
def fence_before_the_store(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        if not FIX:
            libshmem_device.fence()
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))  # <behind-fence>
        if FIX:
            libshmem_device.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <behind-fence-load>


corpus.pair(
    fence_before_the_store,
    finds("hazard.undrained-release", "behind-fence", "behind-fence-load"),
    golden="push",
    profile="ascend",
    why="the fence stands before the store that it should drain",
    source="failure causes: no fence/quiet between data store and notify",
)


@triton.jit
def fence_between_two_stores(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        remote = dl.symm_at(data, 1)
        tl.store(remote + offs, tl.load(x + offs))
        if not FIX:
            libshmem_device.fence()
        tl.store(remote + TILE + offs, tl.load(x + TILE + offs))  # <second-undrained>
        if FIX:
            libshmem_device.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        tl.store(out + offs, tl.load(ready + offs))
        tl.store(out + TILE + offs, tl.load(ready + TILE + offs))  # <second-undrained-load>


corpus.pair(
    fence_between_two_stores,
    finds("hazard.undrained-release", "second-undrained", "second-undrained-load"),
    golden="push",
    tiles=2,
    profile="ascend",
    why="only the first of two stores is drained",
    source="failure causes: no fence/quiet between data store and notify",
)


@triton.jit
def fence_outside_the_loop(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    for tile in range(2):
        if dl.rank() == 0:
            tl.store(dl.symm_at(data, 1) + tile * TILE + offs, tl.load(x + tile * TILE + offs))  # <loop-store>
            if FIX:
                libshmem_device.fence()
            dl.notify(sig + tile * SLOT, 1, signal=1, sig_op="set")
        else:
            token = dl.wait(sig + tile * SLOT, 1, "npu", "acquire")
            got = tl.load(dl.consume_token(data, token) + tile * TILE + offs)  # <loop-load>
            tl.store(out + tile * TILE + offs, got)
    if not FIX:
        libshmem_device.fence()


corpus.pair(
    fence_outside_the_loop,
    finds("hazard.undrained-release", "loop-store", "loop-load"),
    golden="push",
    tiles=2,
    profile="ascend",
    why="one fence behind the loop that stores and signals tile by tile",
    source="failure causes: no fence/quiet between data store and notify",
)


@triton.jit
def point_write_without_fence(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))  # <point-store>
        if FIX:
            libshmem_device.quiet()
        libshmem_device.int_p(sig, 1, 1)
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <point-load>


corpus.pair(
    point_write_without_fence,
    finds("hazard.undrained-release", "point-store", "point-load"),
    golden="push",
    profile="ascend",
    why="a flag raised by int_p does not drain the store before it either",
    source="failure causes: no fence/quiet between data store and notify",
)


@triton.jit
def credit_without_drain(x, data, sig, credit, out, launch, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        free = data
        if launch > 1:
            free = dl.consume_token(data, dl.wait(credit, 1, "npu", "acquire", waitValue=launch - 1))
        tl.store(dl.symm_at(free, 1) + offs, tl.load(x + offs))  # <next-store>
        libshmem_device.fence()
        dl.notify(sig, 1, signal=launch, sig_op="set")
    else:
        token = dl.wait(sig, 1, "npu", "acquire", waitValue=launch)
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <undrained-load>
        if FIX:
            libshmem_device.fence()
        dl.notify(credit, 0, signal=launch, sig_op="set")


corpus.pair(
    credit_without_drain,
    finds("hazard.undrained-release", "next-store", "undrained-load"),
    golden="push",
    launches=2,
    profile="ascend",
    why="the buffer is given back while the load of it may still be in flight",
    source="ordering model, ascend: the agent's stores and loads may still be in flight",
)


@triton.jit
def relay_of_an_undrained_store(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    if me == 0:
        tl.store(dl.symm_at(data, 2) + offs, tl.load(x + offs))  # <relayed-store>
        if FIX:
            libshmem_device.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    elif me == 1:
        token = dl.wait(sig, 1, "npu", "acquire")
        libshmem_device.fence()
        dl.notify(dl.consume_token(sig, token), 2, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <relayed-load>


def on_the_last(xs, rank):
    """Rank 0's input on the last rank."""
    return xs[0] if rank == len(xs) - 1 else torch.zeros_like(xs[0])


corpus.pair(
    relay_of_an_undrained_store,
    finds("hazard.undrained-release", "relayed-store", "relayed-load"),
    golden=on_the_last,
    nranks=3,
    profile="ascend",
    why="the relay fences, the rank that stored does not",
    source="ordering model, ascend: what it acquired from others passes on unreduced, what it did itself does not",
)


@triton.jit
def scalar_load_of_arrived_data(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))  # <cached-store>
        libshmem_device.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        if FIX:
            libshmem_device.fence()
        for i in range(TILE):
            tl.store(out + i, tl.load(ready + i))  # <scalar-load>


corpus.pair(
    scalar_load_of_arrived_data,
    finds("hazard.stale-cache", "cached-store", "scalar-load"),
    golden="push",
    profile="ascend",
    why="scalar loads go through the data cache, which a wait does not invalidate",
    source="ordering model, ascend: scalar loads are ordered only by fence or quiet",
)


@triton.jit
def fence_before_the_wait(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))  # <cached-store-2>
        libshmem_device.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        if not FIX:
            libshmem_device.fence()
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        if FIX:
            libshmem_device.fence()
        scale = tl.load(ready)  # <scalar-behind-wait>
        tl.store(out + offs, tl.where(offs == 0, scale, tl.load(ready + offs)))


corpus.pair(
    fence_before_the_wait,
    finds("hazard.stale-cache", "cached-store-2", "scalar-behind-wait"),
    golden="push",
    profile="ascend",
    why="the fence that should refresh the data cache stands before the wait",
    source="ordering model, ascend: needs fence or quiet between wait and load",
)


def reversed_indices(rt, ws):
    """A private table: 15, 14, …, 0."""
    return {"index": torch.arange(15, -1, -1, dtype=torch.int32)}


@triton.jit
def gather_of_arrived_data(x, data, sig, index, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))  # <gathered-store>
        libshmem_device.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        if FIX:
            libshmem_device.fence()
        tl.store(out + offs, tl.load(ready + tl.load(index + offs)))  # <gather-load>


corpus.pair(
    gather_of_arrived_data,
    finds("hazard.stale-cache", "gathered-store", "gather-load"),
    setup=reversed_indices,
    golden=lambda xs, rank: xs[0].flip(0) if rank else torch.zeros_like(xs[0]),
    profile="ascend",
    why="a gather is made of scalar loads, which go through the data cache",
    source="ordering model, ascend: scalar loads, gathers",
)


@triton.jit
def scalar_after_barrier(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))  # <barrier-store>
    libshmem_device.barrier_all()
    if FIX:
        libshmem_device.fence()
    first = tl.load(data)  # <scalar-behind-barrier>
    tl.store(out + offs, tl.where(offs == 0, first, tl.load(data + offs)))


corpus.pair(
    scalar_after_barrier,
    finds("hazard.stale-cache", "barrier-store", "scalar-behind-barrier"),
    golden="ring",
    profile="ascend",
    why="a barrier does not invalidate the data cache",
    source="ordering model, ascend: waits and barriers do not move F",
)


@triton.jit
def own_store_through_symm_at(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    tl.store(dl.symm_at(data, dl.rank()) + offs, tl.load(x + offs))  # <translated-store>
    if FIX:
        libshmem_device.fence()
    tl.store(out + offs, tl.load(data + offs))  # <raw-load>


corpus.pair(
    own_store_through_symm_at,
    finds("hazard.hidden-alias", "translated-store", "raw-load"),
    golden="own",
    profile="ascend",
    why="a pointer translated to one's own rank aliases the raw one, and the compiler does not see it",
    source="ordering model, ascend: own store, then own load; seed 001, rule 2 of 1.1",
)


@triton.jit
def own_store_behind_a_token(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    dl.notify(sig, peer, signal=1, sig_op="set")
    free = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
    tl.store(free + offs, tl.load(x + offs))  # <token-store>
    loaded = free if FIX else data
    tl.store(out + offs, tl.load(loaded + offs))  # <untokened-load>


corpus.pair(
    own_store_behind_a_token,
    finds("hazard.hidden-alias", "token-store", "untokened-load"),
    golden="own",
    profile="ascend",
    why="the store goes through the pointer that consumed the token, the load of the same bytes does not",
    source="ordering model, ascend: one of the two went through symm_at or consume_token",
)


@triton.jit
def local_tile_of_a_gather(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    if tl.program_id(0) == 0:
        for shift in range(world):
            target = (me + shift) % world
            tl.store(dl.symm_at(data, target) + me * TILE + offs, tl.load(x + offs))  # <push-to-all>
            if FIX or target != me:
                libshmem_device.fence()
            dl.notify(sig + me * SLOT, target, signal=1, sig_op="set")
    else:
        for source in range(world):
            ready = dl.consume_token(data, dl.wait(sig + source * SLOT, 1, "npu", "acquire"))
            tl.store(out + source * TILE + offs, tl.load(ready + source * TILE + offs))  # <gathered>


corpus.pair(
    local_tile_of_a_gather,
    finds("hazard.undrained-release", "push-to-all", "gathered"),
    golden="gather",
    profile="ascend",
    grid=2,
    why="the fence is left out where the target is the own rank",
    source="seed 001, rule 2 of 1.1: symm_at(p, my_rank) is p itself",
)
