"""Planted faults: atomics as accumulation, as counters, as locks and as flags."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from fault_kit import TILE, Buf, Corpus, finds, wrong
from triton.language.extra.cann.extension import sub_vec_id
from triton_dist.language.extra import libshmem_device

corpus = Corpus(globals())
SHARED_COUNT = {"count": Buf(16, torch.int32)}
MODEL = "ordering model, Triton's own atomics"
WRITE_END = "seed 001, 2.2: many cards that add to one remote address race at the write end"


@triton.jit
def read_while_others_add(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    tl.atomic_add(dl.symm_at(data, 0) + offs, tl.load(x + offs))  # <add-remote>
    if FIX:
        libshmem_device.barrier_all()
    if dl.rank() == 0:
        tl.store(out + offs, tl.load(data + offs))  # <add-read>


corpus.pair(
    read_while_others_add,
    finds("race", "add-remote", "add-read"),
    golden=lambda xs, rank: torch.stack(xs).sum(0) if rank == 0 else torch.zeros_like(xs[0]),
    summed=True,
    why="rank 0 reads the accumulator while the others still add to it",
    source=WRITE_END,
)


@triton.jit
def zeroed_while_others_add(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(data + offs, tl.zeros((TILE,), tl.float32))  # <late-zero>
    if FIX:
        libshmem_device.barrier_all()
    tl.atomic_add(dl.symm_at(data, peer) + offs, tl.load(x + offs))  # <late-add>
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))
    libshmem_device.barrier_all()


corpus.pair(
    zeroed_while_others_add,
    finds("race", "late-zero", "late-add"),
    golden="ring",
    buffers={"data": Buf(16, fill=None)},
    launches=2,
    why="each rank zeroes its accumulator in the launch in which a peer adds to it already",
    source="situations: local initialisation that comes late",
)


@triton.jit
def accumulator_never_zeroed(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    if FIX:
        tl.store(data + offs, tl.zeros((TILE,), tl.float32))
        libshmem_device.barrier_all()
    tl.atomic_add(dl.symm_at(data, peer) + offs, tl.load(x + offs))
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))


corpus.pair(
    accumulator_never_zeroed,
    finds("uninitialised"),
    wrong((0, 0), (1, 0)),
    golden="ring",
    buffers={"data": Buf(16, fill=None)},
    why="partial sums are added to memory of aclshmem_malloc, which is not initialised",
    source="ACLSHMEM API: malloc gives memory as it is; ordering model, uninitialised use",
)


@triton.jit
def relaxed_atomic_as_flag(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))  # <relaxed-store>
        libshmem_device.fence()
        if FIX:
            tl.atomic_add(dl.symm_at(sig, 1), 1, sem="release", scope="sys")
        else:
            tl.atomic_add(dl.symm_at(sig, 1), 1, sem="relaxed", scope="sys")
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <relaxed-load>


corpus.pair(
    relaxed_atomic_as_flag,
    finds("race", "relaxed-store", "relaxed-load"),
    golden="push",
    why="a relaxed atomic carries nothing: whoever sees the flag need not see the data",
    source=MODEL + ": relaxed leaves the word's clock",
)


@triton.jit
def atomic_of_gpu_scope_as_flag(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))  # <gpu-store>
        libshmem_device.fence()
        if FIX:
            tl.atomic_add(dl.symm_at(sig, 1), 1, scope="sys")
        else:
            tl.atomic_add(dl.symm_at(sig, 1), 1)
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <gpu-load>


corpus.pair(
    atomic_of_gpu_scope_as_flag,
    finds("race", "gpu-store", "gpu-load"),
    golden="push",
    why="the default scope of an atomic, gpu, ends at the card: it releases nothing to another rank",
    source=MODEL + ": an edge needs both scopes to reach both agents",
)


@triton.jit
def counter_of_cta_scope(x, scratch, count, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    pid = tl.program_id(0)
    tl.store(scratch + pid * TILE + offs, tl.load(x + pid * TILE + offs))  # <cta-store>
    order = tl.atomic_add(count, 1) if FIX else tl.atomic_add(count, 1, scope="cta")
    if order == tl.num_programs(0) - 1:
        for tile in range(tl.num_programs(0)):
            tl.store(out + tile * TILE + offs, tl.load(scratch + tile * TILE + offs))  # <cta-load>


corpus.pair(
    counter_of_cta_scope,
    finds("race", "cta-store", "cta-load"),
    golden="own",
    grid=2,
    tiles=2,
    why="the last program reads what all have stored; scope cta does not reach them",
    source=MODEL + ": cta = none",
)


@triton.jit
def first_arriver_signals(x, data, count, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    pid = tl.program_id(0)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + pid * TILE + offs, tl.load(x + pid * TILE + offs))  # <first-store>
        libshmem_device.fence()
        order = tl.atomic_add(count, 1)
        if FIX:
            order = tl.num_programs(0) - 1 - order
        if order == 0:
            dl.notify(sig, 1, signal=1, sig_op="set")
    elif pid == 0:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        for tile in range(tl.num_programs(0)):
            tl.store(out + tile * TILE + offs, tl.load(ready + tile * TILE + offs))  # <first-load>


corpus.pair(
    first_arriver_signals,
    finds("race", "first-store", "first-load"),
    golden="push",
    grid=2,
    tiles=2,
    why="the program that arrives first signals for all of its rank, instead of the last",
    source=MODEL + ": the last arriver releases for all programs",
)


@triton.jit
def tile_of_counters_as_flag(x, scratch, count, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    pid = tl.program_id(0)
    tl.store(scratch + pid * TILE + offs, tl.load(x + pid * TILE + offs))  # <tile-store>
    order = tl.atomic_add(count, 1) if FIX else tl.max(tl.atomic_add(count + offs, 1), axis=0)
    if order == tl.num_programs(0) - 1:
        for tile in range(tl.num_programs(0)):
            tl.store(out + tile * TILE + offs, tl.load(scratch + tile * TILE + offs))  # <tile-load>


corpus.pair(
    tile_of_counters_as_flag,
    finds("race", "tile-store", "tile-load"),
    golden="own",
    grid=2,
    tiles=2,
    why="an atomic on a tile is accumulation and orders nothing",
    source=MODEL + ": an atomic on a tile",
)


@triton.jit
def tickets_of_all_ranks(x, data, count, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    home = dl.num_ranks() - 1
    value = tl.load(x + offs)
    slot = me
    if not FIX:
        slot = tl.atomic_add(dl.symm_at(count, home), 1, scope="sys")  # <ticket>
    tl.store(dl.symm_at(data, home) + slot * TILE + offs, value)
    libshmem_device.fence()
    dl.notify(sig, home, signal=1, sig_op="add")
    if me == home:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire", waitValue=dl.num_ranks()))
        total = tl.zeros((TILE,), tl.float32)
        for tile in range(dl.num_ranks()):
            total += tl.load(ready + tile * TILE + offs)
        tl.store(out + offs, total)


corpus.pair(
    tickets_of_all_ranks,
    finds("hazard.atomic-lock", "ticket"),
    golden=lambda xs, rank: torch.stack(xs).sum(0) * (rank == len(xs) - 1),
    summed=True,
    buffers=SHARED_COUNT,
    profile="ascend",
    why="ranks take tickets from one counter; the lock of a used atomic is one of each rank, so two get the same one",
    source="compiled effects: atomics with used results run under a lock of the launch; " + WRITE_END,
)


@triton.jit
def ticket_under_a_condition(x, scratch, count, out, n, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    start = tl.program_id(0) * TILE
    order = 0
    if FIX:
        order = tl.atomic_add(count, 1)
    if start < n:
        if not FIX:
            order = tl.atomic_add(count, 1)  # <turn>
        tl.store(scratch + order * TILE + offs, tl.load(x + start + offs))
        tl.store(out + start + offs, tl.load(x + start + offs))


corpus.pair(
    ticket_under_a_condition,
    finds("hazard.atomic-turn", "turn"),
    golden="own",
    grid=3,
    tiles=2,
    profile="ascend",
    why="a program without a tile takes no ticket; the lock of a used atomic is given to each program in turn",
    source=MODEL + ": blocks take the lock in block order",
)


@triton.jit
def atomic_that_acquires(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))  # <edge-store>
        libshmem_device.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        if FIX:
            ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        else:
            word = dl.consume_token(sig, dl.wait(sig, 1, "npu", "relaxed"))
            tl.atomic_add(word, 0, sem="acquire", scope="sys")
            ready = data
        tl.store(out + offs, tl.load(ready + offs))  # <edge-load>


corpus.pair(
    atomic_that_acquires,
    finds("hazard.atomic-edge", "edge-store", "edge-load"),
    golden="push",
    profile="ascend",
    why="acquires by an addition of zero whose result nobody uses: on Ascend it is a store and acquires nothing",
    source=MODEL + ": result unused, one MTE3 store",
)


@triton.jit
def atomic_outside_the_gate(x, count, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    sub = sub_vec_id()
    if sub == 0:
        tl.store(out + offs, tl.load(x + offs))
        if FIX:
            tl.atomic_add(count, 1)
    if not FIX:
        tl.atomic_add(count, 1)  # <ungated-add>


corpus.pair(
    atomic_outside_the_gate,
    finds("hazard.double-effect", "ungated-add"),
    golden="own",
    profile="ascend",
    why="both vector cores of a program advance the counter",
    source="ordering model, double effect; seed 001, 4.1: gate the communication part",
)


@triton.jit
def load_add_store(x, scratch, count, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    pid = tl.program_id(0)
    value = tl.load(x + pid * TILE + offs)
    if FIX:
        tl.atomic_add(out + offs, value)
    else:
        tl.store(out + offs, tl.load(out + offs) + value)  # <lost-update>


corpus.pair(
    load_add_store,
    finds("race", "lost-update"),
    golden=lambda xs, rank: xs[rank].reshape(2, -1).sum(0),
    summed=True,
    grid=2,
    tiles=2,
    why="two programs add to one row by load, add and store",
    source="seed 001, 2.2: partial results are accumulated by atomic_add",
)


@triton.jit
def store_beside_atomics(x, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    pid = tl.program_id(0)
    value = tl.load(x + pid * TILE + offs)
    if FIX:
        tl.atomic_add(out + offs, value)
    elif pid == 0:
        tl.store(out + offs, value)  # <first-share>
    else:
        tl.atomic_add(out + offs, value)  # <other-shares>


corpus.pair(
    store_beside_atomics,
    finds("race", "first-share", "other-shares"),
    golden=lambda xs, rank: xs[rank].reshape(2, -1).sum(0),
    summed=True,
    grid=2,
    tiles=2,
    why="the first program stores its share instead of adding it, while the others add theirs",
    source=MODEL + "; ordering model: atomics against plain accesses race",
)


@triton.jit
def lock_not_given_back(x, scratch, count, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if FIX:
        if tl.atomic_add(count, 1) == 0:
            tl.store(out + offs, tl.load(x + offs))
    else:
        while tl.atomic_cas(count, 0, 1) != 0:  # <lock-spin>
            pass
        used = tl.load(scratch)
        if used < 1:
            tl.store(scratch, used + 1)
            tl.store(out + offs, tl.load(x + offs))
            tl.atomic_xchg(count, 0)


corpus.pair(
    lock_not_given_back,
    finds("deadlock", "lock-spin"),
    golden="own",
    grid=3,
    why="the way out for what has been done already does not give the lock back",
    source="ordering model, deadlock: a failed compare-and-swap polls",
)
