"""Planted faults: waits that nobody answers, loops that nothing ends."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from fault_kit import SLOT, TILE, Corpus, finds
from triton_dist.language.extra import libshmem_device

corpus = Corpus(globals())
NO_WORK = "situations: a rank with no work"
VALUES = "failure causes: signal value != wait value"


@triton.jit
def send(x, data, sig, pe, slot):
    """Store a tile in the place `slot` of `pe`, drain, and set the slot."""
    offs = tl.arange(0, TILE)
    tl.store(dl.symm_at(data, pe) + slot * TILE + offs, tl.load(x + offs))
    libshmem_device.fence()
    dl.notify(sig + slot * SLOT, pe, signal=1, sig_op="set")


@triton.jit
def each_waits_first(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    if FIX:
        send(x, data, sig, peer, 0)
    ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))  # <wait-first>
    tl.store(out + offs, tl.load(ready + offs))
    if not FIX:
        send(x, data, sig, peer, 0)


corpus.pair(
    each_waits_first,
    finds("deadlock", "wait-first"),
    golden="ring",
    nranks=3,
    why="every rank waits for its left neighbour before it sends to the right one",
    source="failure causes: hang; cyclic wait between ranks",
)


@triton.jit
def count_of_all_ranks(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    for step in range(1, world):
        pe = (me + step) % world
        tl.store(dl.symm_at(data, pe) + me * TILE + offs, tl.load(x + offs))
        libshmem_device.fence()
        dl.notify(sig, pe, signal=1, sig_op="add")
    expected = world - 1 if FIX else world
    ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire", waitValue=expected))  # <wait-count>
    tl.store(out + me * TILE + offs, tl.load(x + offs))
    for step in range(1, world):
        source = (me + step) % world
        tl.store(out + source * TILE + offs, tl.load(ready + source * TILE + offs))


corpus.pair(
    count_of_all_ranks,
    finds("deadlock", "wait-count"),
    golden="gather",
    nranks=3,
    why="n - 1 peers add one each, and the wait is for n",
    source=VALUES,
)


@triton.jit
def no_signal_without_work(x, data, sig, out, sources, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    for step in range(world):
        pe = (me + step) % world
        if me < sources:
            send(x, data, sig, pe, me)
        elif FIX:
            dl.notify(sig + me * SLOT, pe, signal=1, sig_op="set")
    ready = dl.consume_token(data, dl.wait(sig, 3, "npu", "acquire"))  # <wait-all>
    for source in range(sources):
        tl.store(out + source * TILE + offs, tl.load(ready + source * TILE + offs))


corpus.pair(
    no_signal_without_work,
    finds("deadlock", "wait-all"),
    golden=lambda xs, rank: torch.cat(xs[:2]),
    nranks=3,
    sources=2,
    why="a rank without a tile sends nothing, not even the signal that all wait for",
    source=NO_WORK,
)


@triton.jit
def credit_never_given(x, data, sig, credit, out, n, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        for tile in range(n // TILE):
            free = data
            if tile > 0:
                token = dl.wait(credit, 1, "npu", "acquire", waitValue=tile)  # <wait-credit>
                free = dl.consume_token(data, token)
            tl.store(dl.symm_at(free, 1) + offs, tl.load(x + tile * TILE + offs))
            libshmem_device.fence()
            dl.notify(sig, 1, signal=tile + 1, sig_op="set")
    else:
        for tile in range(n // TILE):
            ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire", waitValue=tile + 1))  # <wait-tile>
            tl.store(out + tile * TILE + offs, tl.load(ready + offs))
            if FIX:
                libshmem_device.fence()
                dl.notify(credit, 0, signal=tile + 1, sig_op="set")


corpus.pair(
    credit_never_given,
    finds("deadlock", "wait-credit", "wait-tile"),
    golden="push",
    tiles=2,
    why="the producer waits for credit before it uses the buffer again; the consumer gives none",
    source="situations: a fast producer two steps ahead",
)


@triton.jit
def waits_for_its_own_slot(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    for step in range(0 if FIX else 1, world):
        send(x, data, sig, (me + step) % world, me)
    for source in range(world):
        ready = dl.consume_token(data, dl.wait(sig + source * SLOT, 1, "npu", "acquire"))  # <wait-own>
        tl.store(out + source * TILE + offs, tl.load(ready + source * TILE + offs))


corpus.pair(
    waits_for_its_own_slot,
    finds("deadlock", "wait-own"),
    golden="gather",
    why="sends to its peers and waits for all ranks, itself included",
    source="failure causes: hang; self-wait",
)


@triton.jit
def opposite_orders(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    peer = 1 - me
    first = me if FIX else 1 - me
    for step in range(2):
        slot = (first + step) % 2
        if slot == me:
            send(x, data, sig, peer, me)
        else:
            ready = dl.consume_token(data, dl.wait(sig + peer * SLOT, 1, "npu", "acquire"))  # <wait-order>
            tl.store(out + offs, tl.load(ready + peer * TILE + offs))


corpus.pair(
    opposite_orders,
    finds("deadlock", "wait-order"),
    golden="exchange",
    why="both ranks take the step in which they receive first, each in its own order",
    source="situations: two operators in opposite order on two ranks",
)


@triton.jit
def slots_in_words(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    stride = SLOT if FIX else 1
    for step in range(world):
        pe = (me + step) % world
        tl.store(dl.symm_at(data, pe) + me * TILE + offs, tl.load(x + offs))
        libshmem_device.fence()
        dl.notify(sig + me * stride, pe, signal=1, sig_op="add")
    ready = dl.consume_token(data, dl.wait(sig, 2, "npu", "acquire"))  # <wait-words>
    for source in range(world):
        tl.store(out + source * TILE + offs, tl.load(ready + source * TILE + offs))


corpus.pair(
    slots_in_words,
    finds("deadlock", "wait-words"),
    golden="gather",
    why="notify counts slots in words, wait in steps of 64 bytes",
    source="failure causes: wait strides 64 B on Ascend",
)


@triton.jit
def signal_stays_at_home(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    if me == 0:
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))
        libshmem_device.fence()
        dl.notify(sig, 1 if FIX else me, signal=1, sig_op="set")
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))  # <wait-home>
        tl.store(out + offs, tl.load(ready + offs))


corpus.pair(
    signal_stays_at_home,
    finds("deadlock", "wait-home"),
    golden="push",
    why="the data goes to the peer, the signal to the own rank",
    source="mutations: wrong peer",
)


@triton.jit
def nobody_begins(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    peer = (me + 1) % world
    if me == 0 and FIX:
        send(x, data, sig, peer, 0)
    ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))  # <wait-ring>
    got = tl.load(ready + offs)
    tl.store(out + offs, got)
    if me > 0 or not FIX:
        tl.store(dl.symm_at(data, peer) + offs, got)
        libshmem_device.fence()
        dl.notify(sig, peer, signal=1, sig_op="set")


corpus.pair(
    nobody_begins,
    finds("deadlock", "wait-ring"),
    golden="broadcast",
    nranks=3,
    why="a ring in which every rank passes on what it has received, and none begins",
    source="seed 002, ring all-reduce",
)


@triton.jit
def polls_for_another_value(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    wanted = 1 if FIX else 2
    if dl.rank() == 0:
        send(x, data, sig, 1, 0)
    else:
        seen = tl.load(sig, volatile=True)
        while seen != wanted:  # <poll>
            seen = tl.load(sig, volatile=True)
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        tl.store(out + offs, tl.load(ready + offs))


corpus.pair(
    polls_for_another_value,
    finds("deadlock", "poll"),
    golden="push",
    why="polls for a value that the sender never writes",
    source=VALUES,
)


@triton.jit
def halved_until_zero(x, out, last, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    left = last
    rounds = 0
    while left > (1 if FIX else 0):  # <loop>
        left = (left + 1) // 2
        rounds += 1
    tl.store(out + offs, tl.load(x + offs), mask=offs < rounds * TILE)


corpus.pair(
    halved_until_zero,
    finds("endless-loop", "loop"),
    golden="own",
    last=20,
    why="a tree over the ranks goes on until nothing is left, and rounding up always leaves one",
    source="ordering model, deadlock: a loop whose condition holds no counter towards a limit",
)


@triton.jit
def reset_by_the_consumer(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    if me == 0:
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))
        libshmem_device.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    elif FIX:
        first = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, first) + offs))
    else:
        first = dl.wait(sig, 1, "npu", "acquire")
        dl.notify(sig, me, signal=dl.consume_token(0, first), sig_op="set")
        again = dl.wait(sig, 1, "npu", "acquire")  # <wait-again>
        tl.store(out + offs, tl.load(dl.consume_token(data, again) + offs))


corpus.pair(
    reset_by_the_consumer,
    finds("deadlock", "wait-again"),
    golden="push",
    why="the consumer sets the signal back and then waits for it a second time",
    source="seed 002: wait does not consume; which side resets",
)
