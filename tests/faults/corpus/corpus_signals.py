"""Planted faults: signals that come too early, at the wrong place, with the wrong value, or in each other's way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from fault_kit import SLOT, TILE, Buf, Corpus, finds
from triton_dist.language.extra import libshmem_device

from tdist.verify.verdict import SYNCHRONISATION

corpus = Corpus(globals(), bug=SYNCHRONISATION)


@triton.jit
def copy_out(x, ready, out, SOURCES: tl.constexpr):
    """Copy the tiles of the first ranks and this rank's own behind them."""
    offs = tl.arange(0, TILE)
    for source in tl.static_range(SOURCES):
        tl.store(out + source * TILE + offs, tl.load(ready + source * TILE + offs))  # <copy-out>
    tl.store(out + SOURCES * TILE + offs, tl.load(x + offs))


@triton.jit
def store_own(x, data, pe):
    """Store a tile in this rank's place on `pe`, and drain."""
    offs = tl.arange(0, TILE)
    tl.store(dl.symm_at(data, pe) + dl.rank() * TILE + offs, tl.load(x + offs))  # <store-own>
    libshmem_device.fence()


@triton.jit
def signal_before_store(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        if not FIX:
            dl.notify(sig, 1, signal=1, sig_op="set")
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))  # <late-store>
        libshmem_device.fence()
        if FIX:
            dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <early-load>


corpus.pair(
    signal_before_store,
    finds("race", "late-store", "early-load"),
    golden="push",
    why="the signal is sent before the data",
    source="situations: payload and signal in either order",
)


@triton.jit
def signal_between_stores(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        remote = dl.symm_at(data, 1)
        tl.store(remote + offs, tl.load(x + offs))
        libshmem_device.fence()
        if not FIX:
            dl.notify(sig, 1, signal=1, sig_op="set")
        tl.store(remote + TILE + offs, tl.load(x + TILE + offs))  # <second-store>
        libshmem_device.fence()
        if FIX:
            dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        tl.store(out + offs, tl.load(ready + offs))
        tl.store(out + TILE + offs, tl.load(ready + TILE + offs))  # <second-load>


corpus.pair(
    signal_between_stores,
    finds("race", "second-store", "second-load"),
    golden="push",
    tiles=2,
    why="two tiles are sent, the signal stands behind the first",
    source="seed 002: after each tile transfer completes, the producer signals",
)


@triton.jit
def signal_to_oneself(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        store_own(x, data, 1)
        peer = 1 if FIX else dl.rank()
        dl.notify(sig, peer, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "npu", "acquire")  # <unsignalled>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


corpus.pair(
    signal_to_oneself,
    finds("deadlock", "unsignalled"),
    golden="push",
    why="the producer signals itself instead of the consumer",
    source="mutations: wrong peer",
)


@triton.jit
def signal_to_the_other_neighbour(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    right = (me + 1) % world
    left = (me + world - 1) % world
    tl.store(dl.symm_at(data, right) + offs, tl.load(x + offs))  # <ring-store>
    libshmem_device.fence()
    dl.notify(sig, right if FIX else left, signal=1, sig_op="set")
    token = dl.wait(sig, 1, "npu", "acquire")
    tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <ring-load>


corpus.pair(
    signal_to_the_other_neighbour,
    finds("race", "ring-store", "ring-load"),
    golden="ring",
    nranks=3,
    why="the data goes to the right neighbour, the signal to the left one",
    source="mutations: wrong peer; seed 002, ring",
)


@triton.jit
def zero_is_no_signal(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    for tile in range(2):
        value = tile + 1 if FIX else tile
        if dl.rank() == 0:
            tl.store(dl.symm_at(data, 1) + tile * TILE + offs, tl.load(x + tile * TILE + offs))  # <tile-store>
            libshmem_device.fence()
            dl.notify(sig + tile * SLOT, 1, signal=value, sig_op="set")
        else:
            token = dl.wait(sig + tile * SLOT, 1, "npu", "acquire", waitValue=value)
            got = tl.load(dl.consume_token(data, token) + tile * TILE + offs)  # <tile-load>
            tl.store(out + tile * TILE + offs, got)


corpus.pair(
    zero_is_no_signal,
    finds("race", "tile-store", "tile-load"),
    golden="push",
    tiles=2,
    why="the number of the tile is the signal, and the word holds 0 from the start",
    source="seed 002, producer-consumer model: signal=tile_id",
)


@triton.jit
def constant_epoch(x, data, sig, credit, out, launch, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    epoch = launch if FIX else 1
    if dl.rank() == 0:
        free = data
        if launch > 1:
            free = dl.consume_token(data, dl.wait(credit, 1, "npu", "acquire", waitValue=epoch - 1 if FIX else 1))
        tl.store(dl.symm_at(free, 1) + offs, tl.load(x + offs))  # <epoch-store>
        libshmem_device.fence()
        dl.notify(sig, 1, signal=epoch, sig_op="set")
    else:
        token = dl.wait(sig, 1, "npu", "acquire", waitValue=epoch)
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <epoch-load>
        libshmem_device.fence()
        dl.notify(credit, 0, signal=epoch, sig_op="set")


corpus.pair(
    constant_epoch,
    finds("race", "epoch-store", "epoch-load"),
    golden="push",
    launches=3,
    why="every launch signals 1: the second one is satisfied by the first one's signal",
    source="failure causes: stale signal from the previous launch, missing epoch",
)


@triton.jit
def reset_at_the_start(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        store_own(x, data, 1)
        dl.notify(sig, 1, signal=1, sig_op="set")  # <signal-before-reset>
    else:
        if not FIX:
            tl.store(sig, 0)  # <reset-at-start>
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


corpus.pair(
    reset_at_the_start,
    finds("race", "signal-before-reset", "reset-at-start"),
    golden="push",
    why="the kernel zeroes its slot at its start, where the peer may have signalled already",
    source="failure causes: signal zeroing races with remote notify",
)


@triton.jit
def reset_not_acknowledged(x, data, sig, credit, out, launch, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        if launch > 1:
            go = dl.wait(credit, 1, "npu", "acquire", waitValue=launch - 1)
            dl.notify(dl.consume_token(credit, go) + SLOT, 0, signal=launch, sig_op="set")
        store_own(x, data, 1)
        dl.notify(sig, 1, signal=1, sig_op="set")  # <signal-of-next-launch>
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))
        if FIX:
            tl.store(sig, 0)
        libshmem_device.fence()
        dl.notify(credit, 0, signal=launch, sig_op="set")
        if not FIX:
            tl.store(sig, 0)  # <reset-behind-credit>


corpus.pair(
    reset_not_acknowledged,
    finds("race", "signal-of-next-launch", "reset-behind-credit"),
    golden="push",
    launches=2,
    why="the slot is reset behind the credit, which the producer answers with the next signal",
    source="failure causes: signal not reset before it is used again",
)


def zero_late(rt, ws, x, out):
    if rt.rank == 1:
        ws.sig.zero_()  # <host-zero>
        if ws.fix:
            rt.synchronize()
    rt.host_barrier()
    ws.start(zero_late_kernel, x, out)


@triton.jit
def zero_late_kernel(x, data, sig, out):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        store_own(x, data, 1)
        dl.notify(sig, 1, signal=1, sig_op="set")  # <signal-during-zero>
    else:
        token = dl.wait(sig, 1, "npu", "acquire")  # <fresh-wait>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


corpus.pair(
    zero_late_kernel,
    finds("race", "host-zero", "signal-during-zero"),
    name="zeroed_without_synchronize",
    host=zero_late,
    golden="push",
    why="the host zeroes the signals and meets the others without waiting for its own stream",
    source="failure causes: need sync and barrier after zero-fill",
)


def zero_unmet(rt, ws, x, out):
    ws.sig.zero_()  # <unmet-zero>
    rt.synchronize()
    if ws.fix:
        rt.host_barrier()
    ws.start(zero_late_kernel, x, out)


corpus.pair(
    zero_late_kernel,
    finds("race", "unmet-zero", "signal-during-zero"),
    name="zeroed_without_barrier",
    host=zero_unmet,
    golden="push",
    why="each host zeroes its signals before its launch, and a fast peer has signalled by then",
    source="failure causes: need sync and barrier after zero-fill",
)


def zeroed_if_fixed(rt, ws):
    if ws.fix:
        ws.sig.zero_()


corpus.pair(
    zero_late_kernel,
    finds("uninitialised", "fresh-wait"),
    name="signals_never_zeroed",
    setup=zeroed_if_fixed,
    buffers={"sig": Buf(128, torch.int32, fill=None)},
    golden="push",
    why="nobody zeroes the signal tensor: what it held before may pass for a signal",
    source="failure causes: stale signal of a killed run",
)


@triton.jit
def slots_too_close(x, data, sig, out, FIX: tl.constexpr):
    me = dl.rank()
    stride = SLOT if FIX else 1
    if me < 2:
        store_own(x, data, 2)
        dl.notify(sig + me * stride, 2, signal=1, sig_op="set")  # <close-signal>
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        ready = dl.consume_token(ready, dl.wait(sig + stride, 1, "npu", "acquire"))
        copy_out(x, ready, out, 2)


corpus.pair(
    slots_too_close,
    finds("line-sharing", "close-signal"),
    golden="collect",
    nranks=3,
    why="two ranks signal words of one 64-byte line: a write-back can undo the other's",
    source="failure causes: concurrent writers in one 64 B line (lost update)",
)


@triton.jit
def contiguous_slots(x, data, sig, out, FIX: tl.constexpr):
    me = dl.rank()
    stride = SLOT if FIX else 1
    if me < 2:
        store_own(x, data, 2)
        dl.notify(sig + me * stride, 2, signal=1, sig_op="add")
    else:
        token = dl.wait(sig, 2, "npu", "acquire")  # <strided-wait>
        copy_out(x, dl.consume_token(data, token), out, 2)


corpus.pair(
    contiguous_slots,
    finds("deadlock", "strided-wait"),
    golden="collect",
    nranks=3,
    why="slots lie side by side as on NVIDIA; a wait for two slots polls 64 bytes apart",
    source="failure causes: wait slots, strides 64 B on Ascend but contiguous on NVIDIA",
)


def signal_words(rt, ws):
    """Two signal tensors of one element, or of a whole line each."""
    import shmem as ash

    elems = 16 if ws.fix else 1
    words = {name: ash.aclshmem_create_tensor((elems,), dtype=torch.int32) for name in ("ready", "done")}
    for word in words.values():
        word.zero_()
    return words


@triton.jit
def one_word_tensors(x, ready, done, data, out):
    me = dl.rank()
    if me < 2:
        store_own(x, data, 2)
    if me == 0:
        dl.notify(ready, 2, signal=1, sig_op="set")  # <first-word>
    elif me == 1:
        dl.notify(done, 2, signal=1, sig_op="set")  # <second-word>
    else:
        both = dl.consume_token(data, dl.wait(ready, 1, "npu", "acquire"))
        both = dl.consume_token(both, dl.wait(done, 1, "npu", "acquire"))
        copy_out(x, both, out, 2)


corpus.pair(
    one_word_tensors,
    finds("line-sharing", "first-word", "second-word"),
    setup=signal_words,
    golden="collect",
    nranks=3,
    why="two signal tensors of one element are 16 bytes apart, in one line",
    source="failure causes: 16 B default alignment",
)


@triton.jit
def signal_in_the_payload(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    header = (data + (2 * TILE if FIX else 4)).to(tl.pointer_type(tl.int32))
    if dl.rank() == 0:
        keep = offs < 4
        tl.store(dl.symm_at(data, 2) + offs, tl.load(x + offs), mask=keep)
        libshmem_device.fence()
        dl.notify(header, 2, signal=1, sig_op="set")  # <header-signal>
    elif dl.rank() == 1:
        keep = offs > 4
        tl.store(dl.symm_at(data, 2) + offs, tl.load(x + offs), mask=keep)  # <payload-store>
        libshmem_device.fence()
        dl.notify(header + 2 * SLOT, 2, signal=1, sig_op="set")
    else:
        ready = dl.consume_token(data, dl.wait(header, 1, "npu", "acquire"))
        ready = dl.consume_token(ready, dl.wait(header + 2 * SLOT, 1, "npu", "acquire"))
        tl.store(out + offs, tl.where(offs == 4, 0.0, tl.load(ready + offs)))


def header_golden(xs, rank):
    """Elements 0 to 3 of rank 0, 5 to 15 of rank 1, on rank 2."""
    mixed = torch.cat([xs[0][:4], torch.zeros(1), xs[1][5:]])
    return mixed if rank == 2 else torch.zeros_like(mixed)


corpus.pair(
    signal_in_the_payload,
    finds("line-sharing", "header-signal", "payload-store"),
    golden=header_golden,
    nranks=3,
    why="the flag is embedded in the message, in a line that another rank stores to",
    source="failure causes: concurrent writers in one 64 B line",
)


@triton.jit
def two_producers_one_word(x, data, sig, out, FIX: tl.constexpr):
    me = dl.rank()
    if me < 2:
        store_own(x, data, 2)
        if FIX:
            dl.notify(sig, 2, signal=1, sig_op="add")
        else:
            dl.notify(sig, 2, signal=2, sig_op="set")  # <same-word>
    else:
        token = dl.wait(sig, 1, "npu", "acquire", waitValue=2)
        copy_out(x, dl.consume_token(data, token), out, 2)


corpus.pair(
    two_producers_one_word,
    finds("concurrent-set", "same-word"),
    finds("race", "store-own", "copy-out"),
    golden="collect",
    nranks=3,
    why="two ranks SET one word; the first one's signal passes for both",
    source="ordering model: two unordered writes to one word of which one is a SET",
)


@triton.jit
def add_became_set(x, data, sig, out, FIX: tl.constexpr):
    me = dl.rank()
    if me < 2:
        store_own(x, data, 2)
        dl.notify(sig, 2, signal=1, sig_op="add" if FIX else "set")  # <counted-set>
    else:
        token = dl.wait(sig, 1, "npu", "acquire", waitValue=2)  # <counter-wait>
        copy_out(x, dl.consume_token(data, token), out, 2)


corpus.pair(
    add_became_set,
    finds("deadlock", "counter-wait"),
    finds("concurrent-set", "counted-set"),
    golden="collect",
    nranks=3,
    why="a counter of two producers is set instead of added to",
    source='failure causes: notify(sig_op="add") becomes set',
)


@triton.jit
def add_beside_set(x, data, sig, out, FIX: tl.constexpr):
    me = dl.rank()
    if me == 0:
        store_own(x, data, 2)
        dl.notify(sig, 2, signal=1, sig_op="add" if FIX else "set")  # <mixed-set>
    elif me == 1:
        store_own(x, data, 2)
        dl.notify(sig, 2, signal=1, sig_op="add")  # <mixed-add>
    else:
        token = dl.wait(sig, 1, "npu", "acquire", waitValue=2)
        copy_out(x, dl.consume_token(data, token), out, 2)


corpus.pair(
    add_beside_set,
    finds("concurrent-set", "mixed-set", "mixed-add"),
    golden="collect",
    nranks=3,
    why="one producer adds, the other sets the same word: the set can undo the add",
    source="ordering model: two unordered writes to one word of which one is a SET",
)


@triton.jit
def counter_counts_oneself(x, data, sig, out, FIX: tl.constexpr):
    me = dl.rank()
    world = dl.num_ranks()
    if me < world - 1:
        store_own(x, data, world - 1)
        dl.notify(sig, world - 1, signal=1, sig_op="add")
    else:
        target = world - 1 if FIX else world
        token = dl.wait(sig, 1, "npu", "acquire", waitValue=target)  # <count-to-all>
        copy_out(x, dl.consume_token(data, token), out, 2)


corpus.pair(
    counter_counts_oneself,
    finds("deadlock", "count-to-all"),
    golden="collect",
    nranks=3,
    why="the counter is awaited at the number of ranks; the waiter itself never adds",
    source="failure causes: signal value is not the wait value",
)


@triton.jit
def counter_target_too_small(x, data, sig, out, FIX: tl.constexpr):
    me = dl.rank()
    world = dl.num_ranks()
    if me < world - 1:
        store_own(x, data, world - 1)
        dl.notify(sig, world - 1, signal=1, sig_op="add")  # <counted-add>
    else:
        target = world - 1 if FIX else world - 2
        token = dl.wait(sig, 1, "npu", "acquire", waitValue=target)  # <low-target>
        copy_out(x, dl.consume_token(data, token), out, 2)


corpus.pair(
    counter_target_too_small,
    finds("overshoot", "counted-add", "low-target"),
    finds("race", "store-own", "copy-out"),
    golden="collect",
    nranks=3,
    why="the counter is awaited at one producer less than there are",
    source="failure causes: EQ wait overshoot (add)",
)


@triton.jit
def counter_not_reset(x, data, sig, out, launch, FIX: tl.constexpr):
    me = dl.rank()
    world = dl.num_ranks()
    if me < world - 1:
        store_own(x, data, world - 1)
        dl.notify(sig, world - 1, signal=1, sig_op="add")  # <count-on>
    else:
        target = (world - 1) * (launch if FIX else 1)
        token = dl.wait(sig, 1, "npu", "acquire", waitValue=target)  # <same-target>
        copy_out(x, dl.consume_token(data, token), out, 2)
    libshmem_device.barrier_all()


corpus.pair(
    counter_not_reset,
    finds("overshoot", "count-on", "same-target"),
    golden="collect",
    nranks=3,
    launches=2,
    why="the counter goes on counting, every launch waits for the first one's total",
    source="failure causes: stale counter from the previous launch",
)


@triton.jit
def wide_signal_on_narrow_words(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        store_own(x, data, 1)
        word = sig if FIX else sig.to(tl.pointer_type(tl.int64))
        dl.notify(word, 1, signal=1, sig_op="set")  # <wide-signal>
    else:
        token = dl.wait(sig, 1, "npu", "acquire")  # <narrow-wait>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


corpus.pair(
    wide_signal_on_narrow_words,
    finds("width-mismatch", "wide-signal", "narrow-wait"),
    golden="push",
    why="one side signals 64 bits, the other waits on 32",
    source="ordering model: a 64-bit notify on 32-bit words",
)


@triton.jit
def short_signal_tensor(x, flags, data, out):
    me = dl.rank()
    if me < 2:
        store_own(x, data, 2)
        dl.notify(flags + me * SLOT, 2, signal=1, sig_op="set")
    else:
        token = dl.wait(flags, 2, "npu", "acquire")  # <short-wait>
        copy_out(x, dl.consume_token(data, token), out, 2)


def flag_tensor(rt, ws):
    """As many words as slots, or as many as slots need."""
    import shmem as ash

    flags = ash.aclshmem_create_tensor((32 if ws.fix else 2,), dtype=torch.int32)
    flags.zero_()
    return {"flags": flags}


corpus.pair(
    short_signal_tensor,
    finds("short-signal", "short-wait"),
    setup=flag_tensor,
    golden="collect",
    nranks=3,
    why="the signal tensor has one word for each slot; slots are 64 bytes apart",
    source="failure causes: wait slots, strides 64 B on Ascend",
)


@triton.jit
def flag_by_plain_store(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        store_own(x, data, 1)
        if FIX:
            dl.notify(sig, 1, signal=1, sig_op="set")
        else:
            tl.store(dl.symm_at(sig, 1), 1)  # <plain-flag>
    else:
        token = dl.wait(sig, 1, "npu", "acquire")  # <flag-wait>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <flagged-load>


corpus.pair(
    flag_by_plain_store,
    finds("race", "plain-flag", "flag-wait"),
    finds("race", "store-own", "flagged-load"),
    golden="push",
    why="the flag is raised by tl.store, which releases nothing",
    source="ordering model: a plain write leaves the word with no clock",
)


@triton.jit
def flag_by_point_write(x, data, sig, out, FIX: tl.constexpr):
    me = dl.rank()
    if me < 2:
        store_own(x, data, 2)
        libshmem_device.int_p(sig + me * SLOT if FIX else sig, 1, 2)  # <point-write>
    else:
        ready = dl.consume_token(data, dl.wait(sig, 2 if FIX else 1, "npu", "acquire"))
        copy_out(x, ready, out, 2)


corpus.pair(
    flag_by_point_write,
    finds("concurrent-set", "point-write"),
    finds("race", "store-own", "copy-out"),
    golden="collect",
    nranks=3,
    why="two ranks write one flag with int_p: the first one's value passes for both",
    source="ordering model: two unordered writes to one word, _p counts as a SET",
)


@triton.jit
def point_writes_side_by_side(x, data, sig, out, FIX: tl.constexpr):
    me = dl.rank()
    stride = SLOT if FIX else 1
    if me < 2:
        store_own(x, data, 2)
        libshmem_device.int_p(sig + me * stride, 1, 2)  # <close-point>
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
        ready = dl.consume_token(ready, dl.wait(sig + stride, 1, "npu", "acquire"))
        copy_out(x, ready, out, 2)


corpus.pair(
    point_writes_side_by_side,
    finds("line-sharing", "close-point"),
    golden="collect",
    nranks=3,
    why="a table of one word for each rank is filled with int_p by several ranks: lines are written back whole",
    source="ordering model: a signal SET and _p write back the 64-byte line they live in",
)


@triton.jit
def credit_by_set_zero(x, data, sig, credit, out, launch, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        free = data
        if FIX and launch > 1:
            free = dl.consume_token(data, dl.wait(credit, 1, "npu", "acquire", waitValue=launch - 1))
        tl.store(dl.symm_at(free, 1) + offs, tl.load(x + offs))
        libshmem_device.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")  # <raise>
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))
        libshmem_device.fence()
        dl.notify(sig, 1, signal=0, sig_op="set")  # <lower>
        libshmem_device.fence()
        dl.notify(credit, 0, signal=launch, sig_op="set")


corpus.pair(
    credit_by_set_zero,
    finds("concurrent-set", "raise", "lower"),
    golden="push",
    launches=2,
    why="the consumer lowers the flag itself; nothing orders that before the next raise",
    source="failure causes: stale signal; ordering model: concurrent SET",
)
