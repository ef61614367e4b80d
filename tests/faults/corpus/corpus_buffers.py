"""Planted faults: buffers used again too early, in the wrong half, by two, or by the launch before."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from fault_kit import SLOT, TILE, Corpus, finds, wrong
from triton_dist.language.extra import libshmem_device

from tdist.verify.verdict import COMPUTATION, SYNCHRONISATION

TWO_RANKS = (
    "called a synchronisation bug: that two ranks store to one place at one line can be a missing order as well as a "
    "wrong address"
)
corpus = Corpus(globals(), bug=SYNCHRONISATION)


@triton.jit
def send(x, place, slot, pe, value):
    """Store a tile at `place` on `pe`, drain, set `slot` there to `value`."""
    offs = tl.arange(0, TILE)
    tl.store(dl.symm_at(place, pe) + offs, tl.load(x + offs))  # <send>
    libshmem_device.fence()
    dl.notify(slot, pe, signal=value, sig_op="set")  # <send-signal>


@triton.jit
def receive(place, slot, out, value):
    """Wait for `value` in `slot`, copy the tile at `place` to `out`, drain."""
    offs = tl.arange(0, TILE)
    token = dl.wait(slot, 1, "npu", "acquire", waitValue=value)  # <receive-wait>
    tl.store(out + offs, tl.load(dl.consume_token(place, token) + offs))  # <receive>
    libshmem_device.fence()


@triton.jit
def single_buffer(x, data, sig, credit, out, launch, FIX: tl.constexpr):
    if dl.rank() == 0:
        free = data
        if FIX and launch > 1:
            free = dl.consume_token(data, dl.wait(credit, 1, "npu", "acquire", waitValue=launch - 1))
        send(x, free, sig, 1, launch)
    else:
        receive(data, sig, out, launch)
        dl.notify(credit, 0, signal=launch, sig_op="set")


corpus.pair(
    single_buffer,
    finds("race", "send", "receive"),
    finds("overshoot", "send-signal", "receive-wait"),
    golden="push",
    launches=2,
    why="a single buffer is stored to again without a credit",
    source="situations: two launches on one workspace; ordering model: buffer reuse",
)


@triton.jit
def credit_too_early(x, data, sig, credit, out, launch, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        free = data
        if launch > 1:
            free = dl.consume_token(data, dl.wait(credit, 1, "npu", "acquire", waitValue=launch - 1))
        send(x, free, sig, 1, launch)
    else:
        token = dl.wait(sig, 1, "npu", "acquire", waitValue=launch)
        if not FIX:
            dl.notify(credit, 0, signal=launch, sig_op="set")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <load-behind-credit>
        if FIX:
            libshmem_device.fence()
            dl.notify(credit, 0, signal=launch, sig_op="set")


corpus.pair(
    credit_too_early,
    finds("race", "send", "load-behind-credit"),
    golden="push",
    launches=2,
    why="the credit is given when the data has arrived, before it is read",
    source="ordering model: a release covers the loads before it, none after it",
)


@triton.jit
def credit_not_awaited_by_the_store(x, data, sig, credit, out, launch, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        if launch > 1:
            go = dl.wait(credit, 1, "npu", "acquire", waitValue=launch - 1)  # <unused-credit>
            if FIX:
                tl.store(out + offs, dl.consume_token(0.0 * offs, go))
        send(x, data, sig, 1, launch)
    else:
        receive(data, sig, out, launch)
        dl.notify(credit, 0, signal=launch, sig_op="set")


corpus.pair(
    credit_not_awaited_by_the_store,
    finds("race", "send", "receive"),
    finds("lost-wait", "unused-credit"),
    golden="push",
    launches=2,
    why="the credit is awaited and its token dropped: the wait is deleted",
    source="failure causes: wait token not consumed, wait deleted",
)


@triton.jit
def credit_of_another_rank(x, data, sig, credit, out, launch, FIX: tl.constexpr):
    me = dl.rank()
    world = dl.num_ranks()
    right = (me + 1) % world
    left = (me + world - 1) % world
    free = data
    if launch > 1:
        free = dl.consume_token(data, dl.wait(credit, 1, "npu", "acquire", waitValue=launch - 1))
    send(x, free, sig, right, launch)
    receive(data, sig, out, launch)
    dl.notify(credit, left if FIX else right, signal=launch, sig_op="set")


corpus.pair(
    credit_of_another_rank,
    finds("race", "send", "receive"),
    golden="ring",
    nranks=3,
    launches=2,
    why="in a ring the credit goes to the neighbour that receives, not to the one that sends",
    source="mutations: wrong peer; seed 002, ring",
)


@triton.jit
def double_buffer_three_ahead(x, data, sig, credit, out, launch, FIX: tl.constexpr):
    half = launch % 2
    if dl.rank() == 0:
        free = data
        if FIX and launch > 2:
            free = dl.consume_token(data, dl.wait(credit + half * SLOT, 1, "npu", "acquire", waitValue=launch - 2))
        send(x, free + half * TILE, sig + half * SLOT, 1, launch)
    else:
        receive(data + half * TILE, sig + half * SLOT, out, launch)
        dl.notify(credit + half * SLOT, 0, signal=launch, sig_op="set")


corpus.pair(
    double_buffer_three_ahead,
    finds("race", "send", "receive"),
    golden="push",
    launches=3,
    why="two halves allow one step ahead; nothing keeps the producer from the third",
    source="situations: a fast producer two steps ahead",
)


@triton.jit
def ring_of_two_in_a_loop(x, data, sig, credit, out, FIX: tl.constexpr):
    for step in range(4):
        half = step % 2
        if dl.rank() == 0:
            free = data
            behind = 2 if FIX else 3
            if step >= behind:
                token = dl.wait(credit + (step - behind) * SLOT, 1, "npu", "acquire")
                free = dl.consume_token(data, token)
            send(x + step * TILE, free + half * TILE, sig + step * SLOT, 1, 1)
        else:
            receive(data + half * TILE, sig + step * SLOT, out + step * TILE, 1)
            dl.notify(credit + step * SLOT, 0, signal=1, sig_op="set")


corpus.pair(
    ring_of_two_in_a_loop,
    finds("race", "send", "receive"),
    golden="push",
    tiles=4,
    why="a ring of two buffers, with the credit awaited of three steps ago",
    source="situations: a fast producer two steps ahead",
)


@triton.jit
def no_exit_barrier(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))  # <next-push>
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))  # <slow-read>
    if FIX:
        libshmem_device.barrier_all()


corpus.pair(
    no_exit_barrier,
    finds("race", "next-push", "slow-read"),
    name="no_barrier_before_the_next_launch",
    golden="ring",
    launches=2,
    why="the next launch pushes while a slow rank still reads",
    source="ordering model: nothing orders rank 0's second launch after rank 1's first",
)


@triton.jit
def owner_overwrites_what_is_pulled(x, data, sig, credit, out, launch, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        free = data
        if FIX and launch > 1:
            free = dl.consume_token(data, dl.wait(credit, 1, "npu", "acquire", waitValue=launch - 1))
        tl.store(free + offs, tl.load(x + offs))  # <publish-again>
        libshmem_device.fence()
        dl.notify(sig + launch * SLOT, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig + launch * SLOT, 1, "npu", "acquire")
        remote = dl.symm_at(dl.consume_token(data, token), 0)
        tl.store(out + offs, tl.load(remote + offs))  # <remote-pull>
        libshmem_device.fence()
        dl.notify(credit, 0, signal=launch, sig_op="set")


corpus.pair(
    owner_overwrites_what_is_pulled,
    finds("race", "publish-again", "remote-pull"),
    golden="push",
    launches=2,
    why="peers pull from a buffer that its owner fills again in its next launch",
    source="situations: two launches on one workspace",
)


@triton.jit
def reads_the_other_half(x, data, sig, out, launch, FIX: tl.constexpr):
    half = launch % 2
    read = half if FIX else 1 - half
    if dl.rank() == 0:
        send(x, data + half * TILE, sig + launch * SLOT, 1, 1)
    else:
        receive(data + read * TILE, sig + launch * SLOT, out, 1)
    libshmem_device.barrier_all()


corpus.pair(
    reads_the_other_half,
    wrong((1, 0)),
    golden="push",
    launches=2,
    bug=COMPUTATION,
    why="producer and consumer count the halves differently: the consumer reads the previous launch's",
    source="failure causes: slot overlap between rounds",
)


@triton.jit
def signals_the_other_half(x, data, sig, out, launch, FIX: tl.constexpr):
    half = launch % 2
    if dl.rank() == 0:
        signalled = half if FIX else 1 - half
        send(x, data + half * TILE, sig + signalled * SLOT, 1, launch)
    else:
        receive(data + half * TILE, sig + half * SLOT, out, launch)
    libshmem_device.barrier_all()  # <after-halves>


corpus.pair(
    signals_the_other_half,
    finds("deadlock", "receive-wait", "after-halves"),
    golden="push",
    launches=2,
    why="the signal goes to the slot of the other half",
    source="failure causes: slot overlap between rounds; mutations: wrong slot",
)


@triton.jit
def frozen_epoch(x, data, sig, credit, count, out, launch, FIX: tl.constexpr):
    epoch = launch
    if FIX:
        epoch = tl.load(count) + 1
        tl.store(count, epoch)
    if dl.rank() == 0:
        free = data
        if epoch > 1:
            free = dl.consume_token(data, dl.wait(credit, 1, "npu", "acquire", waitValue=epoch - 1))
        send(x, free, sig, 1, epoch)
    else:
        receive(data, sig, out, epoch)
        dl.notify(credit, 0, signal=epoch, sig_op="set")


corpus.pair(
    frozen_epoch,
    finds("race", "send", "receive"),
    golden="push",
    launches=3,
    replayable=True,
    why="the epoch is a host argument, and a replayed graph passes the recorded one for ever",
    source="situations: a replayed launch with frozen arguments",
)


def two_kernels(rt, ws, x, out):
    """Two steps of one launch on the same buffer and signals."""
    epoch = 2 * ws.launch
    ws.start(one_step, x[:16], out[:16], step=epoch - 1)
    ws.start(one_step, x[16:], out[16:], step=epoch if ws.fix else epoch - 1)


@triton.jit
def one_step(x, data, sig, credit, out, step):
    if dl.rank() == 0:
        free = data
        if step > 1:
            free = dl.consume_token(data, dl.wait(credit, 1, "npu", "acquire", waitValue=step - 1))
        send(x, free, sig, 1, step)
    else:
        receive(data, sig, out, step)
        dl.notify(credit, 0, signal=step, sig_op="set")


corpus.pair(
    one_step,
    finds("race", "send", "receive"),
    name="two_kernels_with_one_epoch",
    host=two_kernels,
    golden="push",
    tiles=2,
    why="two kernels of one call share buffer, signal and epoch: the first one's signal satisfies the second",
    source="failure causes: stale signal, missing epoch",
)


@triton.jit
def tiles_overlap(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    stride = TILE if FIX else TILE // 2
    if me < 2:
        tl.store(dl.symm_at(data, 2) + me * stride + offs, tl.load(x + offs))  # <overlapping>
        libshmem_device.fence()
        dl.notify(sig + me * SLOT, 2, signal=1, sig_op="set")
    else:
        ready = dl.consume_token(data, dl.wait(sig, 2, "npu", "acquire"))
        tl.store(out + offs, tl.load(ready + offs))
        tl.store(out + TILE + offs, tl.load(ready + stride + offs))


def two_on_the_last(xs, rank):
    """The first two ranks' inputs on the last of three."""
    both = torch.cat(xs[:2])
    return both if rank == 2 else torch.zeros_like(both)


corpus.pair(
    tiles_overlap,
    finds("race", "overlapping"),
    golden=two_on_the_last,
    nranks=3,
    bug=COMPUTATION,
    misjudged=TWO_RANKS,
    why="the places of two ranks overlap: offsets in the wrong unit",
    source="failure causes: bytes against elements, slot overlap",
)


@triton.jit
def place_of_the_target(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    for shift in range(world):
        target = (me + shift) % world
        place = me if FIX else target
        tl.store(dl.symm_at(data, target) + place * TILE + offs, tl.load(x + offs))  # <misplaced>
    libshmem_device.barrier_all()
    for source in range(world):
        tl.store(out + source * TILE + offs, tl.load(data + source * TILE + offs))


corpus.pair(
    place_of_the_target,
    finds("race", "misplaced"),
    golden="gather",
    nranks=3,
    bug=COMPUTATION,
    misjudged=TWO_RANKS,
    why="each rank stores in the target's place instead of its own: all meet in one tile",
    source="failure causes: put/get direction; seed 001, 5.2",
)


@triton.jit
def late_initialisation(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    world = dl.num_ranks()
    for source in range(world):
        tl.store(data + source * TILE + offs, 0.0)  # <init>
    if FIX:
        libshmem_device.barrier_all()
    for target in range(world):
        tl.store(dl.symm_at(data, target) + dl.rank() * TILE + offs, tl.load(x + offs))  # <push-on-init>
    libshmem_device.barrier_all()
    for source in range(world):
        tl.store(out + source * TILE + offs, tl.load(data + source * TILE + offs))


corpus.pair(
    late_initialisation,
    finds("race", "init", "push-on-init"),
    golden="gather",
    why="each rank clears its own buffer at the start, when a fast peer has pushed already",
    source="situations: local initialisation that comes late",
)


@triton.jit
def idle_rank_is_silent(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    last = dl.num_ranks() - 1
    rows = 1 - me
    if me < last:
        if rows > 0:
            tl.store(dl.symm_at(data, last) + me * TILE + offs, tl.load(x + offs))
            libshmem_device.fence()
        if FIX or rows > 0:
            dl.notify(sig + me * SLOT, last, signal=1, sig_op="set")
    else:
        ready = dl.consume_token(data, dl.wait(sig, 2, "npu", "acquire"))  # <waits-for-idle>
        tl.store(out + offs, tl.load(ready + offs))


def first_on_the_last(xs, rank):
    """Rank 0's input on the last rank."""
    return xs[0] if rank == len(xs) - 1 else torch.zeros_like(xs[0])


corpus.pair(
    idle_rank_is_silent,
    finds("deadlock", "waits-for-idle"),
    golden=first_on_the_last,
    nranks=3,
    why="a rank that has nothing to send does not signal either",
    source="situations: a rank with no work",
)


@triton.jit
def sum_on_top_of_the_last(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if FIX:
        tl.store(data + offs, 0.0)
    libshmem_device.barrier_all()
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.atomic_add(dl.symm_at(data, peer) + offs, tl.load(x + offs), scope="sys")
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))
    libshmem_device.barrier_all()


corpus.pair(
    sum_on_top_of_the_last,
    wrong((0, 0), (1, 0)),
    golden="ring",
    summed=True,
    launches=2,
    bug=COMPUTATION,
    why="partial sums are added to what the launch before left in the buffer",
    source="situations: two launches on one workspace; seed 001, 2.2",
)


@triton.jit
def flag_barrier(x, data, sig, out, launch, FIX: tl.constexpr):
    """A barrier of flags: everybody sets everybody's slot, then waits for all slots of its own."""
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    peer = (me + 1) % world
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))  # <flag-push>
    libshmem_device.fence()
    for shift in range(world):
        dl.notify(sig + me * SLOT, (me + shift) % world, signal=launch, sig_op="set")
    ready = data
    for source in range(world):
        ready = dl.consume_token(ready, dl.wait(sig + source * SLOT, 1, "npu", "acquire", waitValue=launch))
    tl.store(out + offs, tl.load(ready + offs))  # <flag-read>
    if FIX:
        libshmem_device.barrier_all()


corpus.pair(
    flag_barrier,
    finds("race", "flag-push", "flag-read"),
    golden="ring",
    launches=3,
    why="a barrier of epoch flags with equality: a fast rank is in the next epoch while a slow one still reads",
    source="ordering model: so is a flag barrier that waits for equality only",
)


@triton.jit
def credit_count_off_by_one(x, data, sig, credit, out, launch, FIX: tl.constexpr):
    """The credit is a counter; the producer awaits the count of its own sends."""
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        free = data
        if launch > 1:
            credits = launch - 1 if FIX else launch
            token = dl.wait(credit, 1, "npu", "acquire", waitValue=credits)  # <credit-count>
            free = dl.consume_token(data, token)
        tl.store(dl.symm_at(free, 1) + offs, tl.load(x + offs))
        libshmem_device.fence()
        dl.notify(sig, 1, signal=launch, sig_op="set")
    else:
        token = dl.wait(sig, 1, "npu", "acquire", waitValue=launch)  # <starved-receiver>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))
        libshmem_device.fence()
        dl.notify(credit, 0, signal=1, sig_op="add")


corpus.pair(
    credit_count_off_by_one,
    finds("deadlock", "starved-receiver", "credit-count"),
    golden="push",
    launches=2,
    why="the producer waits for as many credits as it is about to send: both sides wait",
    source="failure causes: signal value is not the wait value",
)
