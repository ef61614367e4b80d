"""Planted faults: arithmetic without a result, assertions, memory of nobody, the two vector cores of a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from fault_kit import SLOT, TILE, TILE_ELEMS, Buf, Corpus, finds, wrong
from triton.language.extra.cann.extension import sub_vec_id
from triton_dist.language.extra import libshmem_device

corpus = Corpus(globals())
ARITHMETIC = "ordering model, arithmetic"
GATE = "seed 001, 4.1: the communication part under sub_vec_id(); ordering model, who acts"


@triton.jit
def product_before_the_quotient(x, data, out, part, total, parts, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    wide = part.to(tl.int64) if FIX else part
    start = wide * total // parts
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + start + offs))  # <wrapped>
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))


corpus.pair(
    product_before_the_quotient,
    finds("out-of-bounds", "wrapped"),
    golden=lambda xs, rank: xs[rank - 1][TILE_ELEMS:],
    tiles=2,
    part=2,
    total=1 << 30,
    parts=1 << 27,
    why="part × total leaves 32 bits before it is divided, and the offset becomes negative",
    source=ARITHMETIC + ": i32 wraps",
)


@triton.jit
def share_of_the_others(x, data, out, total, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    world = dl.num_ranks()
    others = world - 2
    if FIX:
        others = max(others, 1)
    share = total // others  # <divide>
    tl.store(out + offs, tl.load(x + offs), mask=offs < share)


corpus.pair(
    share_of_the_others,
    finds("arithmetic", "divide"),
    golden="own",
    total=TILE_ELEMS,
    why="work is divided among the ranks that are neither root nor own, and on two ranks there is none",
    source=ARITHMETIC + ": division by zero",
)


@triton.jit
def bit_of_a_rank(x, out, place, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    one = tl.full((), 1, tl.int64) if FIX else tl.full((), 1, tl.int32)
    members = one << place  # <shift>
    tl.store(out + offs, tl.load(x + offs), mask=members != 0)


corpus.pair(
    bit_of_a_rank,
    finds("arithmetic", "shift"),
    golden="own",
    place=40,
    why="one bit for each rank of a group, in a word of 32 bits",
    source=ARITHMETIC + ": shifts past the width",
)


@triton.jit
def scale_that_was_not_clamped(x, count, out, scale, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    value = scale * 1000.0
    if FIX:
        value = min(value, 127.0)
    tl.store(count, value.to(tl.int32))  # <convert>
    tl.store(out + offs, tl.load(x + offs))


corpus.pair(
    scale_that_was_not_clamped,
    finds("arithmetic", "convert"),
    golden="own",
    scale=1.0e9,
    why="a quantised value is converted without being clamped",
    source=ARITHMETIC + ": float-to-int out of range",
)


@triton.jit
def split_beyond_the_buffer(x, data, out, first, rows, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    if FIX:
        rows = min(rows, TILE - first)
    tl.device_assert(first + rows <= TILE, "split beyond the buffer")  # <assert>
    tl.store(dl.symm_at(data, peer) + first + offs, tl.load(x + first + offs, mask=offs < rows), mask=offs < rows)
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs), mask=offs >= first)


corpus.pair(
    split_beyond_the_buffer,
    finds("kernel-assert", "assert"),
    golden=lambda xs, rank: torch.where(torch.arange(TILE_ELEMS) >= 8, xs[rank - 1], 0),
    first=8,
    rows=12,
    why="a split that the host computed ends beyond the buffer; the kernel's own assertion says so",
    source="failure causes: slot overlap, tail handling",
)


@triton.jit
def buffer_of_a_rank_without_rows(x, data, out, sources, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    for step in range(world):
        pe = (me + step) % world
        if me < sources:
            tl.store(dl.symm_at(data, pe) + me * TILE + offs, tl.load(x + offs))
        elif FIX:
            tl.store(dl.symm_at(data, pe) + me * TILE + offs, tl.zeros((TILE,), tl.float32))
    libshmem_device.barrier_all()
    total = tl.zeros((TILE,), tl.float32)
    for source in range(world):
        total += tl.load(data + source * TILE + offs)
    tl.store(out + offs, total)


corpus.pair(
    buffer_of_a_rank_without_rows,
    finds("uninitialised"),
    wrong((0, 0), (1, 0), (2, 0)),
    golden=lambda xs, rank: xs[0] + xs[1],
    summed=True,
    buffers={"data": Buf(3 * TILE_ELEMS, fill=None)},
    nranks=3,
    sources=2,
    why="the sum also takes the place of a rank that has no rows, which nobody wrote",
    source="situations: a rank with no work; ordering model, uninitialised use",
)


@triton.jit
def add_outside_the_gate(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    sub = sub_vec_id()
    peer = (dl.rank() + 1) % dl.num_ranks()
    if sub == 0:
        tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))
        if FIX:
            dl.notify(sig, peer, signal=1, sig_op="add")
    if not FIX:
        dl.notify(sig, peer, signal=1, sig_op="add")  # <ungated-notify>
    if sub == 0:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        tl.store(out + offs, tl.load(ready + offs))


corpus.pair(
    add_outside_the_gate,
    finds("hazard.double-effect", "ungated-notify"),
    golden="ring",
    profile="ascend",
    why="both vector cores add to the counter, and the wait is for the value of one",
    source="ordering model, double effect; " + GATE,
)


@triton.jit
def signal_of_the_other_core(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    sub = sub_vec_id()
    peer = (dl.rank() + 1) % dl.num_ranks()
    if sub == 1:
        tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))  # <core-store>
    sender = 1 if FIX else 0
    if sub == sender:
        libshmem_device.fence()
        dl.notify(sig, peer, signal=1, sig_op="set")
    if sub == 0:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        tl.store(out + offs, tl.load(ready + offs))  # <core-load>


corpus.pair(
    signal_of_the_other_core,
    finds("race", "core-store", "core-load"),
    golden="ring",
    why="the second vector core stores, the first one signals",
    source=GATE,
)


@triton.jit
def one_signal_for_two_cores(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    sub = sub_vec_id()
    peer = (dl.rank() + 1) % dl.num_ranks()
    place = sub * TILE + offs
    tl.store(dl.symm_at(data, peer) + place, tl.load(x + place))  # <half-store>
    slot = sub * SLOT if FIX else 0
    if FIX:
        for core in tl.static_range(2):
            if sub == core:
                libshmem_device.fence()
                dl.notify(sig + slot, peer, signal=1, sig_op="set")
    else:
        libshmem_device.fence()
        dl.notify(sig + slot, peer, signal=1, sig_op="set")
    ready = dl.consume_token(data, dl.wait(sig + slot, 1, "npu", "acquire"))
    tl.store(out + place, tl.load(ready + place))  # <half-load>


corpus.pair(
    one_signal_for_two_cores,
    finds("race", "half-store", "half-load"),
    golden="ring",
    tiles=2,
    why="each vector core stores its half, and one signal of the first core speaks for both",
    source=GATE,
)


@triton.jit
def slot_of_the_first_core(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    sub = sub_vec_id()
    peer = (dl.rank() + 1) % dl.num_ranks()
    place = sub * TILE + offs
    tl.store(dl.symm_at(data, peer) + place, tl.load(x + place))  # <part-store>
    libshmem_device.fence()
    dl.notify(sig + sub * SLOT, peer, signal=1, sig_op="set")
    slot = sub * SLOT if FIX else 0
    ready = dl.consume_token(data, dl.wait(sig + slot, 1, "npu", "acquire"))
    tl.store(out + place, tl.load(ready + place))  # <part-load>


corpus.pair(
    slot_of_the_first_core,
    finds("race", "part-store", "part-load"),
    golden="ring",
    tiles=2,
    why="each vector core has a slot of its own, and both wait on the first one",
    source=GATE,
    false_alarm="a fence that does not depend on sub_vec_id() belongs to the first vector core in the model, while "
    "both execute it as compiled: the second core's store counts as undrained",
)


@triton.jit
def one_core_prepares(x, scratch, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    sub = sub_vec_id()
    if sub == 0:
        tl.store(scratch + offs, tl.load(x + offs))  # <prepare>
    if FIX:
        libshmem_device.barrier_all()
    if sub == 1:
        tl.store(out + offs, tl.load(scratch + offs))  # <use>


corpus.pair(
    one_core_prepares,
    finds("race", "prepare", "use"),
    golden="own",
    why="one vector core prepares what the other one uses; nothing orders the two cores of a program",
    source=GATE,
)


@triton.jit
def sent_before_it_was_computed(x, data, back, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    if FIX:
        tl.store(back + offs, tl.load(x + offs))
    tl.store(dl.symm_at(data, peer) + offs, tl.load(back + offs))
    if not FIX:
        tl.store(back + offs, tl.load(x + offs))
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))
    libshmem_device.barrier_all()


corpus.pair(
    sent_before_it_was_computed,
    finds("uninitialised"),
    wrong((0, 0), (1, 0)),
    golden="ring",
    buffers={"back": Buf(TILE_ELEMS, fill=None)},
    launches=2,
    why="the tile is sent before it is made: fresh memory at first, the last launch's tile from then on",
    source="situations: two launches on one workspace; ordering model, uninitialised use",
)
