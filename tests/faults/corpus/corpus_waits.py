"""Planted faults: waits that are missing, late, for something else or deleted, and tokens that nothing consumes."""

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
def push_tiles(x, data, sig, pe, TILES: tl.constexpr):
    """Store this rank's tiles on `pe`, drain, and set its first signal slot to 1."""
    offs = tl.arange(0, TILE)
    for tile in tl.static_range(TILES):
        tl.store(dl.symm_at(data, pe) + tile * TILE + offs, tl.load(x + tile * TILE + offs))  # <push>
    libshmem_device.fence()
    dl.notify(sig, pe, signal=1, sig_op="set")  # <push-signal>


@triton.jit
def push_own_slot(x, data, sig, pe):
    """Store a tile in this rank's place on `pe`, drain, and set this rank's signal slot there to 1."""
    offs = tl.arange(0, TILE)
    me = dl.rank()
    tl.store(dl.symm_at(data, pe) + me * TILE + offs, tl.load(x + offs))  # <slot-push>
    libshmem_device.fence()
    dl.notify(sig + me * SLOT, pe, signal=1, sig_op="set")


@triton.jit
def wait_left_out(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        push_tiles(x, data, sig, 1, 1)
    else:
        ready = data
        if FIX:
            ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        tl.store(out + offs, tl.load(ready + offs))  # <unwaited>


corpus.pair(
    wait_left_out,
    finds("race", "push", "unwaited"),
    golden="push",
    why="the consumer reads without waiting for the producer's signal",
    source="seed 002, producer-consumer model: wait for the tile, then compute",
)


@triton.jit
def token_not_consumed(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        push_tiles(x, data, sig, 1, 1)
    else:
        token = dl.wait(sig, 1, "npu", "acquire")  # <dead-wait>
        ready = data
        if FIX:
            ready = dl.consume_token(data, token)
        tl.store(out + offs, tl.load(ready + offs))  # <beside-token>


corpus.pair(
    token_not_consumed,
    finds("race", "push", "beside-token"),
    finds("lost-wait", "dead-wait"),
    golden="push",
    why="nobody uses the token, so the compiler deletes the wait",
    source="failure causes: wait token not consumed; seed 001, rule 3 of 1.1",
)


@triton.jit
def token_on_one_of_three(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        push_tiles(x, data, sig, 1, 3)
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        first = tl.load(ready + offs)
        others = ready if FIX else data
        second = tl.load(others + TILE + offs)  # <second-of-three>
        third = tl.load(others + 2 * TILE + offs)  # <third-of-three>
        tl.store(out + offs, first)
        tl.store(out + TILE + offs, second)
        tl.store(out + 2 * TILE + offs, third)


corpus.pair(
    token_on_one_of_three,
    finds("race", "push", "second-of-three"),
    finds("race", "push", "third-of-three"),
    golden="push",
    tiles=3,
    why="the token is consumed on the first of three pointers only; the other loads may go before the wait",
    source="ordering model: waiting once and loading three tensors; failure causes: load hoisted",
)


@triton.jit
def token_after_load(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        push_tiles(x, data, sig, 1, 1)
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        ready = dl.consume_token(data, token) if FIX else data
        got = tl.load(ready + offs)  # <load-then-token>
        tl.store(out + offs, dl.consume_token(got, token))


corpus.pair(
    token_after_load,
    finds("race", "push", "load-then-token"),
    golden="push",
    why="the token is consumed on the loaded value instead of the pointer",
    source="ordering model: consume_token(tl.load(p), t) orders nothing",
)


@triton.jit
def token_on_another_pointer(x, data, sig, back, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        tl.store(back + offs, tl.load(x + offs))  # <publish>
        libshmem_device.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        remote = dl.symm_at(back, 0)
        token = dl.wait(sig, 1, "npu", "acquire")
        if FIX:
            remote = dl.consume_token(remote, token)
        mine = tl.load(dl.consume_token(data, token) + offs)
        tl.store(out + offs, mine + tl.load(remote + offs))  # <pull>


corpus.pair(
    token_on_another_pointer,
    finds("race", "publish", "pull"),
    golden="push",
    why="the token is consumed on the local buffer, the data is pulled through a remote pointer made before the wait",
    source="seed 001, rule 3 of 1.1: consume the token on the pointer that is accessed",
)


@triton.jit
def token_in_one_branch(x, data, sig, out, n, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        push_tiles(x, data, sig, 1, 1)
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        ready = data
        if FIX or n > 1000:
            ready = dl.consume_token(data, token)
        tl.store(out + offs, tl.load(ready + offs))  # <other-branch>


corpus.pair(
    token_in_one_branch,
    finds("race", "push", "other-branch"),
    golden="push",
    why="the token is consumed in the branch for large sizes only",
    source="ordering model: the branch taken decides whether a value carries a token",
)


def first_two(xs, rank):
    """The inputs of the first two ranks, on the last of three."""
    both = torch.cat(xs[:2])
    return both if rank == 2 else torch.zeros_like(both)


@triton.jit
def token_of_the_other_wait(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() < 2:
        push_own_slot(x, data, sig, 2)
    else:
        first = dl.wait(sig, 1, "npu", "acquire")
        second = dl.wait(sig + SLOT, 1, "npu", "acquire")
        other = second if FIX else first
        upper = tl.load(dl.consume_token(data, other) + TILE + offs)  # <too-early>
        lower = tl.load(dl.consume_token(data, second) + offs)
        tl.store(out + offs, lower + 0 * tl.load(dl.consume_token(x, first) + offs))
        tl.store(out + TILE + offs, upper)


corpus.pair(
    token_of_the_other_wait,
    finds("race", "slot-push", "too-early"),
    golden=first_two,
    nranks=3,
    why="the second tile is loaded with the token of the first wait",
    source="ordering model: a load is ordered by the clocks its operands carry",
)


@triton.jit
def wait_on_the_wrong_slot(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    for shift in range(1, world):
        push_own_slot(x, data, sig, (me + shift) % world)
    tl.store(out + me * TILE + offs, tl.load(x + offs))
    for shift in range(1, world):
        source = (me + shift) % world
        slot = source if FIX else (me - shift + world) % world
        ready = dl.consume_token(data, dl.wait(sig + slot * SLOT, 1, "npu", "acquire"))
        tl.store(out + source * TILE + offs, tl.load(ready + source * TILE + offs))  # <wrong-slot>


corpus.pair(
    wait_on_the_wrong_slot,
    finds("race", "slot-push", "wrong-slot"),
    golden="gather",
    nranks=3,
    why="the wait is on the slot of the rank at the opposite distance, not of the rank whose tile is read",
    source="seed 001, 5.2: rotated targets; failure causes: signal slot mix-up",
)


@triton.jit
def wait_on_an_unused_slot(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        push_own_slot(x, data, sig, 1)
    else:
        slot = 0 if FIX else dl.rank()
        token = dl.wait(sig + slot * SLOT, 1, "npu", "acquire")  # <own-slot>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


corpus.pair(
    wait_on_an_unused_slot,
    finds("deadlock", "own-slot"),
    golden="push",
    why="the consumer waits on the slot of its own rank, which nobody signals",
    source="failure causes: hang, a slot that is never signalled",
)


@triton.jit
def wait_for_the_first_value(x, data, sig, credit, out, launch, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        free = data
        if launch > 1:
            free = dl.consume_token(data, dl.wait(credit, 1, "npu", "acquire", waitValue=launch - 1))
        tl.store(dl.symm_at(free, 1) + offs, tl.load(x + offs))
        libshmem_device.fence()
        dl.notify(sig, 1, signal=launch, sig_op="set")  # <epoch-signal>
    else:
        epoch = launch if FIX else 1
        token = dl.wait(sig, 1, "npu", "acquire", waitValue=epoch)  # <first-value>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))
        libshmem_device.fence()
        dl.notify(credit, 0, signal=launch, sig_op="set")


corpus.pair(
    wait_for_the_first_value,
    finds("overshoot", "first-value", "epoch-signal"),
    golden="push",
    launches=3,
    why="the producer signals the epoch, the consumer waits for 1",
    source="failure causes: signal value is not the wait value; missing epoch",
)


@triton.jit
def wait_for_fewer_slots(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    last = dl.num_ranks() - 1
    if me < last:
        push_own_slot(x, data, sig, last)
    else:
        slots = 2 if FIX else 1
        ready = dl.consume_token(data, dl.wait(sig, slots, "npu", "acquire"))
        for source in range(last):
            tl.store(out + source * TILE + offs, tl.load(ready + source * TILE + offs))  # <fewer-slots>
        tl.store(out + last * TILE + offs, tl.load(x + offs))


corpus.pair(
    wait_for_fewer_slots,
    finds("race", "slot-push", "fewer-slots"),
    golden="collect",
    nranks=3,
    why="one slot is polled for two producers",
    source="failure causes: number of slots of a wait",
)


@triton.jit
def last_source_forgotten(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    last = dl.num_ranks() - 1
    if me < last:
        push_own_slot(x, data, sig, last)
    else:
        ready = data
        waits = last if FIX else last - 1
        for source in range(waits):
            ready = dl.consume_token(ready, dl.wait(sig + source * SLOT, 1, "npu", "acquire"))
        for source in range(last):
            tl.store(out + source * TILE + offs, tl.load(ready + source * TILE + offs))  # <forgotten>
        tl.store(out + last * TILE + offs, tl.load(x + offs))


corpus.pair(
    last_source_forgotten,
    finds("race", "slot-push", "forgotten"),
    golden="collect",
    nranks=3,
    why="the loop of waits stops one source early",
    source="failure causes: tail handling",
)


@triton.jit
def unrolled_waits(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    last = dl.num_ranks() - 1
    if me < last:
        push_own_slot(x, data, sig, last)
    else:
        ready = data
        token = 0
        for source in tl.static_range(2):
            token = dl.wait(sig + source * SLOT, 1, "npu", "acquire")  # <unrolled-wait>
            if FIX:
                ready = dl.consume_token(ready, token)
        ready = dl.consume_token(ready, token)
        for source in range(last):
            tl.store(out + source * TILE + offs, tl.load(ready + source * TILE + offs))  # <unrolled-load>
        tl.store(out + last * TILE + offs, tl.load(x + offs))


corpus.pair(
    unrolled_waits,
    finds("lost-wait", "unrolled-wait"),
    finds("race", "slot-push", "unrolled-load"),
    golden="collect",
    nranks=3,
    why="of an unrolled loop of waits only the last token is used; the other waits are deleted",
    source="ordering model: unrolled by static_range, the earlier waits are dead",
)


@triton.jit
def equality_overshoot(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    for chunk in range(2):
        slot = chunk * SLOT if FIX else 0
        if dl.rank() == 0:
            tl.store(dl.symm_at(data, 1) + chunk * TILE + offs, tl.load(x + chunk * TILE + offs))
            libshmem_device.fence()
            dl.notify(sig + slot, 1, signal=chunk + 1, sig_op="set")  # <next-value>
        else:
            token = dl.wait(sig + slot, 1, "npu", "acquire", waitValue=chunk + 1)  # <equal-wait>
            got = tl.load(dl.consume_token(data, token) + chunk * TILE + offs)
            tl.store(out + chunk * TILE + offs, got)


corpus.pair(
    equality_overshoot,
    finds("overshoot", "next-value", "equal-wait"),
    golden="push",
    tiles=2,
    why="two chunks count up one word; a wait compares for equality and may never see the first value",
    source="failure causes: EQ wait overshoot",
)


@triton.jit
def relaxed_wait(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        push_tiles(x, data, sig, 1, 1)
    else:
        token = dl.wait(sig, 1, "npu", "acquire" if FIX else "relaxed")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <relaxed-load>


corpus.pair(
    relaxed_wait,
    finds("race", "push", "relaxed-load"),
    golden="push",
    why="a relaxed wait acquires nothing",
    source="ordering model: relaxed and release join nothing",
)


@triton.jit
def releasing_wait(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        push_tiles(x, data, sig, 1, 1)
    else:
        token = dl.wait(sig, 1, "npu", "acq_rel" if FIX else "release")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <release-load>


corpus.pair(
    releasing_wait,
    finds("race", "push", "release-load"),
    golden="push",
    why="the semantic of the notify was given to the wait",
    source="ordering model: relaxed and release join nothing",
)


@triton.jit
def merged_waits(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    again = sig + SLOT if FIX else sig
    if dl.rank() == 0:
        push_tiles(x, data, sig, 1, 1)
        tl.store(dl.symm_at(data, 1) + TILE + offs, tl.load(x + TILE + offs))  # <second-round>
        libshmem_device.fence()
        dl.notify(again, 1, signal=1, sig_op="set")
    else:
        one = dl.wait(sig, 1, "npu", "acquire")  # <kept-wait>
        first = tl.load(dl.consume_token(data, one) + offs)
        two = dl.wait(again, 1, "npu", "acquire")  # <merged-wait>
        later = tl.load(dl.consume_token(data, two) + TILE + offs)  # <second-load>
        tl.store(out + offs, first)
        tl.store(out + TILE + offs, later)


corpus.pair(
    merged_waits,
    finds("merged-wait", "kept-wait", "merged-wait"),
    finds("race", "second-round", "second-load"),
    golden="push",
    tiles=2,
    why="two rounds are signalled by the same value of the same word; the compiler makes one wait of the two",
    source="failure causes: missing epoch; ordering model: two waits merged",
)


@triton.jit
def polled_by_plain_loads(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        push_tiles(x, data, sig, 1, 1)
    else:
        ready = data
        if FIX:
            ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        else:
            seen = tl.load(sig)
            while seen != 1:
                seen = tl.load(sig)  # <poll>
        tl.store(out + offs, tl.load(ready + offs))  # <after-poll>


corpus.pair(
    polled_by_plain_loads,
    finds("lost-wait", "poll"),
    finds("race", "push", "after-poll"),
    golden="push",
    why="a spin on tl.load has no effect, so the compiler deletes it",
    source="ordering model: a loop that only polls with tl.load",
)


@triton.jit
def polled_by_volatile_loads(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        push_tiles(x, data, sig, 1, 1)
    else:
        ready = data
        if FIX:
            ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        else:
            seen = tl.load(sig, volatile=True)
            while seen != 1:
                seen = tl.load(sig, volatile=True)
        tl.store(out + offs, tl.load(ready + offs))  # <after-volatile>


corpus.pair(
    polled_by_volatile_loads,
    finds("race", "push", "after-volatile"),
    golden="push",
    why="a spin on a volatile load waits, but acquires nothing",
    source="ordering model: a volatile load does not race and acquires nothing",
)


@triton.jit
def poll_that_survives(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        push_tiles(x, data, sig, 1, 1)
    else:
        ready = data
        if FIX:
            ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        else:
            seen = 0
            while seen != 1:
                seen = tl.load(sig)  # <used-poll>
            ready = data + (seen - 1)
        tl.store(out + offs, tl.load(ready + offs))


corpus.pair(
    poll_that_survives,
    finds("race", "push-signal", "used-poll"),
    golden="push",
    why="a spin on tl.load that the compiler keeps, for its value is used: a plain load races with the signal",
    source="ordering model: where it survives it acquires nothing",
)
