"""Planted faults: barriers that not everybody reaches, that stand in the wrong place, or that drain nothing."""

from __future__ import annotations

import triton
import triton.language as tl
import triton_dist.language as dl
from fault_kit import TILE, TILE_ELEMS, Corpus, finds, wrong
from triton.language.extra.cann.extension import sub_vec_id
from triton_dist.language.extra import libshmem_device

corpus = Corpus(globals())
NOT_ALL = "failure causes: barrier not reached by all blocks or sub-blocks"


@triton.jit
def barrier_in_the_gate(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    if sub_vec_id() == 0:
        tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))
        if not FIX:
            libshmem_device.barrier_all()  # <gated-barrier>
    if FIX:
        libshmem_device.barrier_all()
    if sub_vec_id() == 0:
        tl.store(out + offs, tl.load(data + offs))


corpus.pair(
    barrier_in_the_gate,
    finds("barrier-divergence", "gated-barrier"),
    golden="ring",
    why="the second vector core of each program takes part in a barrier, and the gate keeps it out",
    source=NOT_ALL + ": inside `if sub_vec_id() == 0`",
)


@triton.jit
def barrier_of_program_zero(x, data, out, FIX: tl.constexpr):
    offs = tl.program_id(0) * TILE + tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))
    if FIX:
        libshmem_device.barrier_all()
    elif tl.program_id(0) == 0:
        libshmem_device.barrier_all()  # <zero-barrier>
    tl.store(out + offs, tl.load(data + offs))


corpus.pair(
    barrier_of_program_zero,
    finds("barrier-divergence", "zero-barrier"),
    golden="ring",
    grid=2,
    tiles=2,
    why="one program of each rank meets for all of them; a barrier counts every program",
    source=NOT_ALL,
)


@triton.jit
def return_before_the_barrier(x, data, out, n, FIX: tl.constexpr):
    offs = tl.program_id(0) * TILE + tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    keep = offs < n
    if FIX:
        pass
    elif tl.program_id(0) * TILE >= n:
        return
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs, mask=keep), mask=keep)
    libshmem_device.barrier_all()  # <return-barrier>
    tl.store(out + offs, tl.load(data + offs, mask=keep), mask=keep)


corpus.pair(
    return_before_the_barrier,
    finds("barrier-divergence", "return-barrier"),
    golden="ring",
    grid=3,
    tiles=2,
    why="a program without a tile returns before the barrier that the others stand in",
    source=NOT_ALL + ": early return",
)


@triton.jit
def barrier_for_each_tile_of_a_rank(x, data, out, FIX: tl.constexpr):
    me = dl.rank()
    peer = (me + 1) % dl.num_ranks()
    for tile in range(me + 1):
        offs = tile * TILE + tl.arange(0, TILE)
        tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))
        if not FIX:
            libshmem_device.barrier_all()  # <rank-barrier>
    if FIX:
        libshmem_device.barrier_all()
    offs = tl.arange(0, TILE)
    tl.store(out + offs, tl.load(data + offs))


corpus.pair(
    barrier_for_each_tile_of_a_rank,
    finds("barrier-divergence", "rank-barrier"),
    golden=lambda xs, rank: xs[rank - 1][:TILE_ELEMS],
    tiles=2,
    why="the barrier stands in a loop over this rank's tiles, and ranks have different numbers of them",
    source="failure causes: rank divergence, different shapes",
)


@triton.jit
def barrier_for_each_tile_of_a_program(x, data, out, n, FIX: tl.constexpr):
    peer = (dl.rank() + 1) % dl.num_ranks()
    steps = tl.num_programs(0) * TILE
    if FIX:
        for base in range(0, n, steps):
            offs = base + tl.program_id(0) * TILE + tl.arange(0, TILE)
            keep = offs < n
            tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs, mask=keep), mask=keep)
            libshmem_device.barrier_all()
            tl.store(out + offs, tl.load(data + offs, mask=keep), mask=keep)
    else:
        for start in range(tl.program_id(0) * TILE, n, steps):
            offs = start + tl.arange(0, TILE)
            tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))
            libshmem_device.barrier_all()  # <stride-barrier>
            tl.store(out + offs, tl.load(data + offs))


corpus.pair(
    barrier_for_each_tile_of_a_program,
    finds("barrier-divergence", "stride-barrier"),
    golden="ring",
    grid=2,
    tiles=3,
    why="a barrier in a grid-stride loop: programs go round unequally often where the tiles do not divide",
    source="seed 001, 5.1; failure causes: barrier not reached by all blocks",
)


@triton.jit
def barrier_of_the_root(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        for pe in range(dl.num_ranks()):
            tl.store(dl.symm_at(data, pe) + offs, tl.load(x + offs))
        if not FIX:
            libshmem_device.barrier_all()  # <root-barrier>
    if FIX:
        libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))


corpus.pair(
    barrier_of_the_root,
    finds("barrier-divergence", "root-barrier"),
    golden="broadcast",
    nranks=3,
    why="the barrier stands in the branch of the root; the ranks that are to receive do not come",
    source="failure causes: rank divergence",
)


@triton.jit
def second_barrier_of_one_rank(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    peer = (me + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))
    if FIX:
        libshmem_device.barrier_all()
    elif me == 0:
        libshmem_device.barrier_all()  # <second-barrier>


corpus.pair(
    second_barrier_of_one_rank,
    finds("barrier-divergence", "second-barrier"),
    golden="ring",
    why="one rank closes with a barrier more than the others, which have ended",
    source=NOT_ALL,
)


@triton.jit
def no_barrier_between_phases(x, data, back, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    n = dl.num_ranks()
    for step in range(n):
        pe = (me + step) % n
        tl.store(dl.symm_at(data, pe) + me * TILE + offs, tl.load(x + pe * TILE + offs))
    libshmem_device.barrier_all()
    total = tl.zeros((TILE,), tl.float32)
    for source in range(n):
        total += tl.load(data + source * TILE + offs)
    tl.store(back + offs, total)  # <phase-store>
    if FIX:
        libshmem_device.barrier_all()
    for step in range(n):
        pe = (me + step) % n
        tl.store(out + pe * TILE + offs, tl.load(dl.symm_at(back, pe) + offs))  # <phase-load>


corpus.pair(
    no_barrier_between_phases,
    finds("race", "phase-store", "phase-load"),
    golden="sum",
    tiles=2,
    why="all-gather of the reduced tiles begins while peers still reduce theirs",
    source="seed 002, ring all-reduce: two phases; failure causes: slot overlap between rounds",
)


@triton.jit
def vector_barrier_drains_nothing(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))  # <vec-store>
    if FIX:
        libshmem_device.quiet()
    libshmem_device.barrier_all_vec()
    tl.store(out + offs, tl.load(data + offs))  # <vec-load>


corpus.pair(
    vector_barrier_drains_nothing,
    finds("hazard.undrained-release", "vec-store", "vec-load"),
    golden="ring",
    profile="ascend",
    why="barrier_all_vec in a kernel of vector cores alone does not wait for stores in flight",
    source="failure causes: deprecated barrier_all_vec",
)


@triton.jit
def no_barrier_at_the_end(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))  # <exit-store>
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))  # <exit-load>
    if FIX:
        libshmem_device.barrier_all()


corpus.pair(
    no_barrier_at_the_end,
    finds("race", "exit-store", "exit-load"),
    golden="ring",
    launches=2,
    why="the next launch of a fast rank stores into the buffer that a slow one still reads",
    source="situations: two launches on one workspace",
)


@triton.jit
def barrier_too_early(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    if not FIX:
        libshmem_device.barrier_all()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))  # <early-store>
    if FIX:
        libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))  # <early-load>


corpus.pair(
    barrier_too_early,
    finds("race", "early-store", "early-load"),
    wrong(),
    golden="ring",
    why="the barrier stands before the push that it is to complete",
    source="situations: payload and signal in either order",
)


@triton.jit
def one_barrier_a_round(x, data, out, rounds, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    for i in range(rounds):
        tl.store(dl.symm_at(data, peer) + offs, tl.load(x + i * TILE + offs))  # <round-store>
        libshmem_device.barrier_all()
        tl.store(out + i * TILE + offs, tl.load(data + offs))  # <round-load>
        if FIX:
            libshmem_device.barrier_all()


corpus.pair(
    one_barrier_a_round,
    finds("race", "round-store", "round-load"),
    golden="ring",
    tiles=3,
    rounds=3,
    why="one barrier a round on one buffer: the next push meets the read of this round",
    source="failure causes: slot overlap between rounds",
)
