"""Kernels whose compiled form does something else than their source says, and their cured forms.

All of them send a tile to the next rank and signal it; what differs is who stores, and how it is signalled.
"""

from __future__ import annotations

import triton
import triton.language as tl
from gate_kit import library

import tdist.language as dl
from tdist.language.extra import libshmem_device
from tdist.language.extra.cann.extension import sub_vec_id


@triton.jit
def _product(a, b, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    om, on, ok = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    accumulator = tl.zeros((M, N), dtype=tl.float32)
    for k in range(0, 4):
        left = tl.load(a + om[:, None] * 4 * K + (k * K + ok)[None, :])
        right = tl.load(b + (k * K + ok)[:, None] * N + on[None, :])
        accumulator += tl.dot(left, right)
    return accumulator


@triton.jit
def copy_beside_a_dot(a, b, c, buf, sig, FENCE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """The vector core copies and signals under a gate; the cube core multiplies what has arrived."""
    me = dl.rank()
    om, ok = tl.arange(0, M), tl.arange(0, K)
    if sub_vec_id() == 0:
        for peer in range(tl.program_id(0), dl.num_ranks(), tl.num_programs(0)):
            remote = dl.symm_at(buf, peer)
            for k in range(0, 4):
                tile = tl.load(a + om[:, None] * 4 * K + (k * K + ok)[None, :])
                tl.store(remote + (me * M + om)[:, None] * 4 * K + (k * K + ok)[None, :], tile)
            if FENCE:
                libshmem_device.fence()
            dl.notify(sig + me * 16, peer, signal=1, sig_op="set")
    token = dl.wait(sig, 1, "sys", "acquire", waitValue=1)
    product = _product(dl.consume_token(buf, token), b, M, N, K)
    on = tl.arange(0, N)
    tl.store(c + om[:, None] * N + on[None, :], product.to(tl.float16))


@triton.jit
def product_sent(a, b, c, buf, sig, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """The cube core stores its product at the peer; then a signal."""
    om, on = tl.arange(0, M), tl.arange(0, N)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buf, peer) + om[:, None] * N + on[None, :], _product(a, b, M, N, K))
    dl.notify(sig, peer, signal=1, sig_op="set")


@triton.jit
def product_sent_past_a_copy(a, b, c, buf, sig, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """As above, but the last thing before the signal is a copy on the vector cores."""
    om, on = tl.arange(0, M), tl.arange(0, N)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buf, peer) + om[:, None] * N + on[None, :], _product(a, b, M, N, K))
    tl.store(c + om, tl.load(c + M + om))
    dl.notify(sig, peer, signal=1, sig_op="set")


@triton.jit
def pushed_after_a_product(
    a, b, c, buf, sig, GATE: tl.constexpr, SHARE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """The vector cores push C once the cube core has made it: ungated, gated, or each a tile with its own signal."""
    om, on = tl.arange(0, M), tl.arange(0, N)
    tl.store(c + om[:, None] * N + on[None, :], _product(a, b, M, N, K).to(tl.float16))
    peer = (dl.rank() + 1) % dl.num_ranks()
    libshmem_device.barrier_all()
    if GATE:
        if sub_vec_id() == 0:
            tile = tl.load(c + om[:, None] * N + on[None, :])
            tl.store(dl.symm_at(buf, peer) + om[:, None] * N + on[None, :], tile)
            dl.notify(sig, peer, signal=1, sig_op="set")
    elif SHARE:
        part = sub_vec_id().to(tl.int32)
        tile = tl.load(c + part * M * N + om[:, None] * N + on[None, :])
        tl.store(dl.symm_at(buf, peer) + part * M * N + om[:, None] * N + on[None, :], tile)
        dl.notify(sig + part * 8, peer, signal=1, sig_op="set")
    else:
        tile = tl.load(c + om[:, None] * N + on[None, :])
        tl.store(dl.symm_at(buf, peer) + om[:, None] * N + on[None, :], tile)
        dl.notify(sig, peer, signal=1, sig_op="set")


@triton.jit
def one_core_signals_for_both(a, b, c, buf, sig, MEET: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Each vector core stores a tile; core 0 signals, after a barrier or not."""
    om, on = tl.arange(0, M), tl.arange(0, N)
    part = sub_vec_id().to(tl.int32)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tile = tl.load(a + part * M * N + om[:, None] * N + on[None, :])
    tl.store(dl.symm_at(buf, peer) + part * M * N + om[:, None] * N + on[None, :], tile)
    if MEET:
        libshmem_device.barrier_all()
    if part == 0:
        dl.notify(sig, peer, signal=1, sig_op="set")
    tl.store(c + om[:, None] * N + on[None, :], _product(a, b, M, N, K).to(tl.float16))


@triton.jit
def counted_on_both_vector_cores(
    a, b, c, buf, sig, GATE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """A hardware atomic in the vector half of a mix kernel that asks for its vector core."""
    om, on = tl.arange(0, M), tl.arange(0, N)
    tile = tl.load(a + sub_vec_id() * M * N + om[:, None] * N + on[None, :])
    tl.store(c + sub_vec_id() * M * N + om[:, None] * N + on[None, :], tile)
    if GATE:
        if sub_vec_id() == 0:
            tl.atomic_add(sig, 1)
    else:
        tl.atomic_add(sig, 1)
    tl.store(buf + om[:, None] * N + on[None, :], _product(a, b, M, N, K))


@triton.jit
def tile_to_everyone(x, buf, sig, ADD: tl.constexpr, B: tl.constexpr):
    """One tile in UB goes to each peer in turn, with a signal in between."""
    me, offs = dl.rank(), tl.arange(0, B)
    tile = tl.load(x + offs)
    for peer in range(0, dl.num_ranks()):
        tl.store(dl.symm_at(buf, peer) + me * B + offs, tile)
        if ADD:
            dl.notify(sig + me * 16, peer, signal=1, sig_op="add")
        else:
            dl.notify(sig + me * 16, peer, signal=1, sig_op="set")


@triton.jit
def reloaded_for_everyone(x, buf, sig, B: tl.constexpr):
    """The cure: no tile outlives the signal."""
    me, offs = dl.rank(), tl.arange(0, B)
    for peer in range(0, dl.num_ranks()):
        tl.store(dl.symm_at(buf, peer) + me * B + offs, tl.load(x + offs))
        dl.notify(sig + me * 16, peer, signal=1, sig_op="add")


@triton.jit
def flag_exchanged(x, flag, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), 1.0)
    tl.atomic_xchg(flag, 1)


@triton.jit
def flag_put(x, flag, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), 1.0)
    libshmem_device.fence()
    libshmem_device.int_p(flag, 1, dl.rank())


@triton.jit
def compare_and_swap(x, flag, REMOTE: tl.constexpr, B: tl.constexpr):
    word = flag
    if REMOTE:
        word = dl.symm_at(flag, 1)
    old = tl.atomic_cas(word, 0, 1)
    tl.store(x + tl.arange(0, B), old.to(tl.float16))


@triton.jit
def count_where(x, flag, n, WHERE: tl.constexpr, B: tl.constexpr):
    """A ticket under a condition of the launch, of the block, in loops alike and unlike, or always."""
    ticket = 0
    if WHERE == "launch":
        if n > 3:
            ticket = tl.atomic_add(flag, 1)
    elif WHERE == "block":
        if tl.program_id(0) == 0:
            ticket = tl.atomic_add(flag, 1)
    elif WHERE == "data":
        if tl.load(flag + 16) == 0:
            ticket = tl.atomic_add(flag, 1)
    elif WHERE == "loop":
        for _ in range(0, n):
            ticket += tl.atomic_add(flag, 1)
    elif WHERE == "grid":
        for _ in range(tl.program_id(0), n, tl.num_programs(0)):
            ticket += tl.atomic_add(flag, 1)
    else:
        ticket = tl.atomic_add(flag, 1)
    tl.store(x + tl.arange(0, B), ticket.to(tl.float16))


@triton.jit
def signal_at(x, buf, sig, TRANSLATED: tl.constexpr, B: tl.constexpr):
    peer, offs = (dl.rank() + 1) % dl.num_ranks(), tl.arange(0, B)
    tl.store(dl.symm_at(buf, peer) + offs, tl.load(x + offs))
    word = sig + 16
    if TRANSLATED:
        word = dl.symm_at(sig, peer) + 16
    dl.notify(word, peer, signal=1, sig_op="set")


@triton.jit
def through_two_ranks(x, buf, B: tl.constexpr):
    offs = tl.arange(0, B)
    there = dl.symm_at(buf, 1)
    tl.store(dl.symm_at(there, 2) + offs, tl.load(x + offs))


@triton.jit
def handshake(x, buf, sig, n, B: tl.constexpr):
    """Loops, a branch, a wait whose token is used, signals in two places: material to delete from and to move."""
    me, world, offs = dl.rank(), dl.num_ranks(), tl.arange(0, B)
    for step in range(0, n):
        peer = (me + 1) % world
        freed = dl.wait(sig + 16, 1, "sys", "acquire", waitValue=step)
        tl.store(dl.symm_at(dl.consume_token(buf, freed), peer) + offs, tl.load(x + step * B + offs))
        libshmem_device.fence()
        dl.notify(sig, peer, signal=step + 1, sig_op="set")
        if step > 0:
            token = dl.wait(sig, 1, "sys", "acquire", waitValue=step)
            tl.store(x + step * B + offs, tl.load(dl.consume_token(buf, token) + offs))
            libshmem_device.fence()
            dl.notify(sig + 16, peer, signal=step, sig_op="set")


@triton.jit
def signals_unrolled(x, buf, sig, B: tl.constexpr):
    """The same line of the source four times in a row: no repetition by the compiler."""
    me, offs = dl.rank(), tl.arange(0, B)
    tl.store(buf + offs, tl.load(x + offs))
    libshmem_device.fence()
    for peer in tl.static_range(0, 4):
        dl.notify(sig + me * 16, peer, signal=1, sig_op="set")


@triton.jit
def waits_while_it_counts(x, flag, sig, n, APART: tl.constexpr, B: tl.constexpr):
    """Tickets in a loop that also waits: the compiler takes the lock around the whole loop."""
    tickets = 0
    for step in range(0, n):
        tickets += tl.atomic_add(flag, 1)
        if not APART:
            tickets += dl.wait(sig, 1, "sys", "acquire", waitValue=step)
    if APART:
        for step in range(0, n):
            tickets += dl.wait(sig, 1, "sys", "acquire", waitValue=step)
    tl.store(x + tl.arange(0, B), tickets.to(tl.float16))


@triton.jit
def put_beside_a_tile(x, buf, c, AFTER: tl.constexpr, B: tl.constexpr):
    """A put of global memory while a tile is in UB, or once the tile has been stored."""
    offs, peer = tl.arange(0, B), (dl.rank() + 1) % dl.num_ranks()
    tile = tl.load(x + offs)
    if AFTER:
        tl.store(c + offs, tile)
        library("aclshmem_half_putmem", buf, x, B * 2, peer)
    else:
        library("aclshmem_half_putmem", buf, x, B * 2, peer)
        tl.store(c + offs, tile)


@triton.jit
def stored_by_both_signalled_by_one(
    a, b, c, buf, sig, MEET: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """Only the signal is gated: the other core stores the same tile once more, at any time."""
    om, on = tl.arange(0, M), tl.arange(0, N)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buf, peer) + om[:, None] * N + on[None, :], tl.load(a + om[:, None] * N + on[None, :]))
    if MEET:
        libshmem_device.barrier_all()
    if sub_vec_id() == 0:
        dl.notify(sig, peer, signal=1, sig_op="set")
    tl.store(c + om[:, None] * N + on[None, :], _product(a, b, M, N, K).to(tl.float16))


@triton.jit
def wait_that_nobody_uses(x, buf, sig, B: tl.constexpr):
    offsets = tl.arange(0, B)
    dl.wait(sig, 1, "gpu", "acquire", waitValue=1)  # <wait>
    tl.store(x + offsets, tl.load(buf + offsets))


@triton.jit
def wait_that_never_runs(x, buf, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    for _ in range(0, 0):
        dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
        for _ in range(0, n):
            dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    tl.store(x + offsets, tl.load(buf + offsets))


@triton.jit
def wait_of_a_loop_that_may_run(x, buf, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    for _ in range(0, n):
        dl.wait(sig, 1, "gpu", "acquire", waitValue=1)  # <wait>
    tl.store(x + offsets, tl.load(buf + offsets))


@triton.jit
def wait_consumed_on_an_unused_pointer(x, buf, sig, B: tl.constexpr):
    offsets = tl.arange(0, B)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)  # <wait>
    dl.consume_token(buf, token)
    tl.store(x + offsets, tl.load(buf + offsets))


@triton.jit
def polls_with_plain_loads(x, buf, sig, B: tl.constexpr):
    offsets = tl.arange(0, B)
    while tl.load(sig) == 0:  # <wait>
        pass
    tl.store(x + offsets, tl.load(buf + offsets))


@triton.jit
def wait_that_is_used(x, buf, sig, B: tl.constexpr):
    """And one in code that is not compiled."""
    offsets = tl.arange(0, B)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    if B > 1024:
        dl.wait(sig, 2, "gpu", "acquire", waitValue=1)
    tl.store(x + offsets, tl.load(dl.consume_token(buf, token) + offsets))


@triton.jit
def polls_with_volatile_loads(x, buf, sig, n, HOW: tl.constexpr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    seen = 0
    if HOW == "loop":
        while tl.load(sig, volatile=True) != 1:  # <loop>
            pass
    elif HOW == "remote loop":
        remote = dl.symm_at(sig, 1)
        while tl.load(remote, volatile=True) != 1:
            pass
    elif HOW == "translates in the loop":
        while tl.load(dl.symm_at(sig, 1), volatile=True) != 1:
            pass
    elif HOW == "counted":
        while (tl.load(sig, volatile=True) != 1) & (seen < n):
            seen += 1
    elif HOW == "used":
        seen = tl.load(sig, volatile=True)
        while seen == 0:
            seen = tl.load(sig, volatile=True)
    elif HOW == "atomics":
        while tl.atomic_add(sig, 0) != 1:
            pass
    elif HOW == "tile":
        while tl.sum(tl.load(buf + offsets, volatile=True)) != 1.0:
            pass
    tl.store(x + offsets, tl.load(buf + offsets) + seen)


@triton.jit
def volatile_loads(x, buf, sig, n, HOW: tl.constexpr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    seen = 0
    if HOW == "unused":
        tl.load(sig, volatile=True)  # <unused>
    elif HOW == "unused before a used one":
        tl.load(sig, volatile=True)  # <unused before a used one>
        seen = tl.load(sig, volatile=True)
    elif HOW == "unused in a loop":
        for _ in range(n):
            tl.load(sig, volatile=True)  # <unused in a loop>
    elif HOW == "used":
        seen = tl.load(sig, volatile=True)
    elif HOW == "used in a loop":
        for _ in range(n):
            seen += tl.load(sig, volatile=True)
    elif HOW == "decides":
        if tl.load(sig, volatile=True) == 1:
            seen = n
    elif HOW == "not volatile":
        tl.load(sig)
    tl.store(x + offsets, tl.load(buf + offsets, volatile=True) + seen)


@triton.jit
def stored_to_a_peer_but_one(x, buf, sig, n, B: tl.constexpr):
    """The mask is no range: the compiler loads from the peer, chooses, and stores all."""
    offsets = tl.arange(0, B)
    tl.store(dl.symm_at(buf, 1) + offsets, tl.load(x + offsets), mask=offsets != n)  # <store>


@triton.jit
def stored_to_a_peer_in_a_range(x, buf, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    chosen = (offsets < n) & (offsets >= 4)
    tl.store(dl.symm_at(buf, 1) + offsets, tl.load(x + offsets), mask=chosen)


@triton.jit
def changed_on_a_peer(x, buf, sig, n, B: tl.constexpr):
    """The source itself loads from there."""
    offsets = tl.arange(0, B)
    there = dl.symm_at(buf, 1) + offsets
    tl.store(there, tl.load(there) + 1, mask=offsets != n)
