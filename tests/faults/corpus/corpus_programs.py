"""Planted faults: several programs of a rank that share a signal, a wait or a buffer; fused producers and consumers."""

from __future__ import annotations

import triton
import triton.language as tl
import triton_dist.language as dl
from fault_kit import SLOT, TILE, Buf, Corpus, finds, wrong
from triton_dist.language.extra import libshmem_device

from tdist.verify.verdict import COMPUTATION, SYNCHRONISATION

corpus = Corpus(globals(), bug=SYNCHRONISATION)


@triton.jit
def push_tile(x, data, pe, tile):
    """Store one tile on `pe`, and drain."""
    offs = tile * TILE + tl.arange(0, TILE)
    tl.store(dl.symm_at(data, pe) + offs, tl.load(x + offs))  # <push-tile>
    libshmem_device.fence()


@triton.jit
def copy_tile(ready, out, tile):
    """Copy one tile that has arrived."""
    offs = tile * TILE + tl.arange(0, TILE)
    tl.store(out + offs, tl.load(ready + offs))  # <copy-tile>


@triton.jit
def one_program_waits(x, data, sig, out, FIX: tl.constexpr):
    pid = tl.program_id(0)
    if dl.rank() == 0:
        push_tile(x, data, 1, pid)
        dl.notify(sig + pid * SLOT, 1, signal=1, sig_op="set")
    else:
        ready = data
        if FIX or pid == 0:
            ready = dl.consume_token(data, dl.wait(sig, 2, "npu", "acquire"))
        copy_tile(ready, out, pid)


corpus.pair(
    one_program_waits,
    finds("race", "push-tile", "copy-tile"),
    golden="push",
    grid=2,
    tiles=2,
    why="program 0 waits for all, as if the other programs of its rank waited with it",
    source="ordering model: an agent is a program; seed 001, 5.1",
)


@triton.jit
def one_signal_for_all_programs(x, data, sig, out, FIX: tl.constexpr):
    pid = tl.program_id(0)
    if dl.rank() == 0:
        push_tile(x, data, 1, pid)
        if FIX:
            dl.notify(sig + pid * SLOT, 1, signal=1, sig_op="set")
        elif pid == 0:
            dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        mine = pid if FIX else 0
        token = dl.wait(sig + mine * SLOT, 1, "npu", "acquire")
        copy_tile(dl.consume_token(data, token), out, pid)


corpus.pair(
    one_signal_for_all_programs,
    finds("race", "push-tile", "copy-tile"),
    golden="push",
    grid=2,
    tiles=2,
    why="program 0 signals for the rank, the others may still be storing",
    source="ordering model: a release covers what its agent did",
)


@triton.jit
def every_program_sets_one_slot(x, data, sig, out, FIX: tl.constexpr):
    pid = tl.program_id(0)
    if dl.rank() == 0:
        push_tile(x, data, 1, pid)
        if FIX:
            dl.notify(sig, 1, signal=1, sig_op="add")
        else:
            dl.notify(sig, 1, signal=1, sig_op="set")  # <set-by-all>
    else:
        target = 2 if FIX else 1
        token = dl.wait(sig, 1, "npu", "acquire", waitValue=target)
        copy_tile(dl.consume_token(data, token), out, pid)


corpus.pair(
    every_program_sets_one_slot,
    finds("concurrent-set", "set-by-all"),
    finds("race", "push-tile", "copy-tile"),
    golden="push",
    grid=2,
    tiles=2,
    why="each program sets the slot of its rank when its own tile is done",
    source="ordering model: SET replaces the word's clock, ADD joins it",
)


@triton.jit
def every_program_pushes_everything(x, data, sig, out, FIX: tl.constexpr):
    pid = tl.program_id(0)
    first = pid if FIX else 0
    step = tl.num_programs(0) if FIX else 1
    if dl.rank() == 0:
        for tile in range(first, 2, step):
            push_tile(x, data, 1, tile)
            dl.notify(sig + tile * SLOT, 1, signal=1, sig_op="add")
    else:
        for tile in range(pid, 2, tl.num_programs(0)):
            target = 1 if FIX else 2
            token = dl.wait(sig + tile * SLOT, 1, "npu", "acquire", waitValue=target)
            copy_tile(dl.consume_token(data, token), out, tile)


corpus.pair(
    every_program_pushes_everything,
    finds("race", "push-tile"),
    golden="push",
    grid=2,
    tiles=2,
    bug=COMPUTATION,
    why="the loop over tiles lacks the grid stride: all programs store the same tiles",
    source="seed 001, 5.1: grid-stride loops",
)


@triton.jit
def tile_of_the_next_program(x, data, sig, out, FIX: tl.constexpr):
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    if dl.rank() == 0:
        push_tile(x, data, 1, pid)
        dl.notify(sig + pid * SLOT, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig + pid * SLOT, 1, "npu", "acquire")
        tile = pid if FIX else (pid + 1) % programs
        copy_tile(dl.consume_token(data, token), out, tile)


corpus.pair(
    tile_of_the_next_program,
    finds("race", "push-tile", "copy-tile"),
    golden="push",
    grid=2,
    tiles=2,
    why="the tile is swizzled, the slot that is awaited is not",
    source="seed 002, threadblock swizzling",
)


@triton.jit
def consumer_of_smaller_tiles(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE // 2)
    if dl.rank() == 0:
        for tile in range(2):
            push_tile(x, data, 1, tile)
            dl.notify(sig + tile * SLOT, 1, signal=1, sig_op="set")
    else:
        for part in range(4):
            slot = part // 2 if FIX else part // 4
            ready = dl.consume_token(data, dl.wait(sig + slot * SLOT, 1, "npu", "acquire"))
            place = part * (TILE // 2) + offs
            tl.store(out + place, tl.load(ready + place))  # <half-tile>


corpus.pair(
    consumer_of_smaller_tiles,
    finds("race", "push-tile", "half-tile"),
    golden="push",
    tiles=2,
    why="the consumer's tiles are half the producer's, and the slot is computed from the wrong one of the two",
    source="seed 002, tile-centric design: granularity of signals",
)


@triton.jit
def tail_tile_unsignalled(x, data, sig, out, n, FIX: tl.constexpr):
    tiles = tl.cdiv(n, TILE)
    whole = tiles if FIX else n // (2 * TILE) * 2
    if dl.rank() == 0:
        for tile in range(tiles):
            push_tile(x, data, 1, tile)
            if tile < whole:
                dl.notify(sig + tile * SLOT, 1, signal=1, sig_op="set")
    else:
        for tile in range(tiles):
            token = dl.wait(sig + tile * SLOT, 1, "npu", "acquire")  # <tail-wait>
            copy_tile(dl.consume_token(data, token), out, tile)


corpus.pair(
    tail_tile_unsignalled,
    finds("deadlock", "tail-wait"),
    golden="push",
    tiles=3,
    why="signals are sent for pairs of tiles, the odd last tile gets none",
    source="failure causes: tail handling",
)


@triton.jit
def output_of_all_programs(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    pid = tl.program_id(0)
    push_tile(x, data, (dl.rank() + 1) % dl.num_ranks(), pid)
    libshmem_device.barrier_all()
    place = pid * TILE + offs if FIX else pid * (TILE // 2) + offs
    tl.store(out + place, tl.load(data + place))  # <shared-output>


corpus.pair(
    output_of_all_programs,
    finds("race", "shared-output"),
    wrong((0, 1), (1, 1)),
    golden="ring",
    grid=2,
    tiles=2,
    bug=COMPUTATION,
    why="the output places of two programs overlap and leave a rest",
    source="seed 001, 6: masks and tails; failure causes: tail handling",
)


@triton.jit
def local_hand_over(x, scratch, count, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if tl.program_id(0) == 0:
        tl.store(scratch + offs, tl.load(x + offs))  # <local-store>
        if FIX:
            tl.store(out + offs, tl.load(scratch + offs))
    elif not FIX:
        tl.store(out + offs, tl.load(scratch + offs))  # <local-load>


corpus.pair(
    local_hand_over,
    finds("race", "local-store", "local-load"),
    golden="own",
    grid=2,
    why="one program reads what another program of the same launch has written, with nothing between",
    source="ordering model: nothing orders the agents of a launch",
)


@triton.jit
def split_producer(x, data, back, sig, credit, out, FIX: tl.constexpr):
    """Program 0 stages and program 1 sends: the hand-over inside the rank needs a signal as well."""
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        if tl.program_id(0) == 0:
            tl.store(back + offs, tl.load(x + offs))  # <staged>
            libshmem_device.fence()
            dl.notify(credit, 0, signal=1, sig_op="set")
        else:
            staged = back
            if FIX:
                staged = dl.consume_token(back, dl.wait(credit, 1, "npu", "acquire"))
            tl.store(dl.symm_at(data, 1) + offs, tl.load(staged + offs))  # <sent>
            libshmem_device.fence()
            dl.notify(sig, 1, signal=1, sig_op="set")
    elif tl.program_id(0) == 0:
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


corpus.pair(
    split_producer,
    finds("race", "staged", "sent"),
    golden="push",
    grid=2,
    why="the sending program does not wait for the staging one",
    source="seed 002: computation and communication by different cores",
)


@triton.jit
def ring_reduce(x, data, sig, out, FIX: tl.constexpr):
    """Partial sums go once around the ring; each step has a place and a slot of its own."""
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    right = (me + 1) % world
    mine = tl.load(x + offs)
    total = mine
    for step in range(world - 1):
        tl.store(dl.symm_at(data, right) + step * TILE + offs, total)  # <ring-send>
        libshmem_device.fence()
        dl.notify(sig + step * SLOT, right, signal=1, sig_op="set")
        slot = step if FIX else 0
        ready = dl.consume_token(data, dl.wait(sig + slot * SLOT, 1, "npu", "acquire"))
        total = mine + tl.load(ready + step * TILE + offs)  # <ring-receive>
    tl.store(out + offs, total)


corpus.pair(
    ring_reduce,
    finds("race", "ring-send", "ring-receive"),
    golden="sum",
    nranks=3,
    why="every step waits on the slot of the first one",
    source="seed 002, example ring all-reduce",
)


@triton.jit
def ring_adds_what_it_sent(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    right = (me + 1) % world
    mine = tl.load(x + offs)
    total = mine
    for step in range(world - 1):
        tl.store(dl.symm_at(data, right) + step * TILE + offs, total)
        libshmem_device.fence()
        dl.notify(sig + step * SLOT, right, signal=1, sig_op="set")
        ready = dl.consume_token(data, dl.wait(sig + step * SLOT, 1, "npu", "acquire"))
        arrived = tl.load(ready + step * TILE + offs)
        total = arrived + mine if FIX else arrived + total
    tl.store(out + offs, total)


corpus.pair(
    ring_adds_what_it_sent,
    wrong((0, 0), (1, 0), (2, 0)),
    golden="sum",
    nranks=3,
    bug=COMPUTATION,
    why="in clean order, but the running total is added to what arrives, which holds parts of it",
    source="seed 002, example ring all-reduce: adds the tile that it sent",
)


@triton.jit
def panel_loop(x, data, sig, out, FIX: tl.constexpr):
    """Panels are multiplied as they arrive; the token has to be consumed inside the loop."""
    rows = tl.arange(0, TILE)
    square = rows[:, None] * TILE + rows[None, :]
    unit = (rows[:, None] == rows[None, :]).to(tl.float32)
    me = dl.rank()
    world = dl.num_ranks()
    for shift in range(world):
        target = (me + shift) % world
        tl.store(dl.symm_at(data, target) + me * TILE * TILE + square, tl.load(x + square))  # <panel-push>
        libshmem_device.fence()
        dl.notify(sig + me * SLOT, target, signal=1, sig_op="set")
    ready = data
    if not FIX:
        ready = dl.consume_token(data, dl.wait(sig + me * SLOT, 1, "npu", "acquire"))
    for shift in range(world):
        source = (me + shift) % world
        if FIX:
            ready = dl.consume_token(data, dl.wait(sig + source * SLOT, 1, "npu", "acquire"))
        panel = tl.load(ready + source * TILE * TILE + square)  # <panel-load>
        tl.store(out + source * TILE * TILE + square, tl.dot(panel, unit))


corpus.pair(
    panel_loop,
    finds("race", "panel-push", "panel-load"),
    golden="gather",
    tiles=16,
    buffers={"data": Buf(2 * 256)},
    summed=True,
    why="the wait for one's own panel was hoisted out of the loop over panels",
    source="seed 001, 2.1: all-gather and matrix product; failure causes: token not consumed",
)
