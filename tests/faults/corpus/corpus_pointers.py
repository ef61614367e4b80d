"""Planted faults: pointers translated twice or not at all, of the wrong memory, of no PE, beyond the allocation."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from fault_kit import SLOT, TILE, Buf, Corpus, finds, wrong
from triton_dist.language.extra import libshmem_device

corpus = Corpus(globals())
PRIVATE_SIGNALS = {"flags": Buf(16, torch.int32, symmetric=False)}
POINTERS = "ordering model, pointers"
BYTES = "failure causes: bytes against elements"


@triton.jit
def translated_twice(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    remote = dl.symm_at(data, peer)
    if not FIX:
        remote = dl.symm_at(remote, peer)  # <twice>
    tl.store(remote + offs, tl.load(x + offs))
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))


corpus.pair(
    translated_twice,
    finds("pointer-misuse", "twice"),
    golden="ring",
    why="a pointer that was translated already is translated again",
    source=POINTERS + ": an already translated pointer",
)


@triton.jit
def private_tensor_translated(x, scratch, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    buffer = data if FIX else scratch
    tl.store(buffer + offs, tl.load(x + offs))
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(dl.symm_at(buffer, peer) + offs))  # <private>


corpus.pair(
    private_tensor_translated,
    finds("pointer-misuse", "private"),
    golden="exchange",
    why="the buffer is an ordinary tensor, which has no counterpart on the peer",
    source=POINTERS + ": symm_at of a pointer outside the symmetric heap",
)


@triton.jit
def remote_ptr_of_the_input(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    if FIX:
        tl.store(data + offs, tl.load(x + offs))
        libshmem_device.barrier_all()
        tl.store(out + offs, tl.load(libshmem_device.remote_ptr(data, peer) + offs))
    else:
        tl.store(out + offs, tl.load(libshmem_device.remote_ptr(x, peer) + offs))  # <input>


corpus.pair(
    remote_ptr_of_the_input,
    finds("pointer-misuse", "input"),
    golden="exchange",
    why="the input is read on the peer as if inputs lay on the symmetric heap",
    source=POINTERS + ": remote_ptr of a pointer outside the symmetric heap",
)


@triton.jit
def neighbour_of_the_last_rank(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = dl.rank() + 1
    if FIX:
        peer = peer % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))  # <no-pe>
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))


corpus.pair(
    neighbour_of_the_last_rank,
    finds("pointer-misuse", "no-pe"),
    golden="ring",
    nranks=3,
    why="the last rank's right neighbour is taken to be rank n",
    source=POINTERS + ": a PE out of range",
)


@triton.jit
def neighbour_of_the_first_rank(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    world = dl.num_ranks()
    peer = dl.rank() - 1
    if FIX:
        peer += world
    peer = peer % world
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))  # <minus-one>
    libshmem_device.barrier_all()
    tl.store(out + offs, tl.load(data + offs))


corpus.pair(
    neighbour_of_the_first_rank,
    finds("pointer-misuse", "minus-one"),
    golden="exchange",
    nranks=3,
    why="(0 - 1) % n is -1 in a kernel: the remainder has the sign of the dividend",
    source="ordering model, arithmetic: // and % truncate; " + POINTERS,
)


@triton.jit
def notify_of_a_translated_word(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))
    libshmem_device.fence()
    word = sig if FIX else dl.symm_at(sig, peer)
    dl.notify(word, peer, signal=1, sig_op="set")  # <translated-word>
    ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
    tl.store(out + offs, tl.load(ready + offs))


corpus.pair(
    notify_of_a_translated_word,
    finds("pointer-misuse", "translated-word"),
    golden="ring",
    why="notify translates its word by itself, and the word was translated for it",
    source=POINTERS + ": an already translated pointer given to notify",
)


@triton.jit
def notify_of_a_private_word(x, data, flags, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    word = sig if FIX else flags
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))
    libshmem_device.fence()
    dl.notify(word, peer, signal=1, sig_op="set")  # <private-word>
    ready = dl.consume_token(data, dl.wait(word, 1, "npu", "acquire"))
    tl.store(out + offs, tl.load(ready + offs))


corpus.pair(
    notify_of_a_private_word,
    finds("pointer-misuse", "private-word"),
    golden="ring",
    buffers=PRIVATE_SIGNALS,
    why="the signals were made with torch.zeros instead of on the symmetric heap",
    source=POINTERS,
)


@triton.jit
def address_sent_to_the_peer(x, data, wide, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(data + offs, tl.load(x + offs))
    tl.store(dl.symm_at(wide, (dl.rank() + dl.num_ranks() - 1) % dl.num_ranks()), data.to(tl.int64))
    libshmem_device.barrier_all()
    libshmem_device.fence()
    source = dl.symm_at(data, peer) if FIX else tl.load(wide).to(tl.pointer_type(tl.float32))
    tl.store(out + offs, tl.load(source + offs))  # <raw-address>


corpus.pair(
    address_sent_to_the_peer,
    finds("pointer-misuse", "raw-address"),
    golden="exchange",
    why="a rank uses the address that its peer has for its own buffer; heap bases differ from rank to rank",
    source=POINTERS + ": a raw local pointer used as a remote one",
    missed="simulated ranks map a peer's heap at the peer's own addresses, so the address that aclshmem_ptr would give "
    "and the one that the peer has are the same number",
)


@triton.jit
def inbox_of_the_sender(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, tl.load(x + offs))  # <inbox-store>
    libshmem_device.fence()
    dl.notify(sig, peer, signal=1, sig_op="set")
    ready = dl.consume_token(data, dl.wait(sig, 1, "npu", "acquire"))
    if not FIX:
        ready = dl.symm_at(ready, (dl.rank() + dl.num_ranks() - 1) % dl.num_ranks())
    tl.store(out + offs, tl.load(ready + offs))  # <inbox-load>


corpus.pair(
    inbox_of_the_sender,
    finds("race", "inbox-store", "inbox-load"),
    wrong((0, 0), (1, 0), (2, 0)),
    golden="ring",
    nranks=3,
    why="what was pushed lies here; the consumer looks for it at the sender, in the sender's inbox",
    source="failure causes: put/get direction",
)


@triton.jit
def offset_in_bytes(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    size = 1 if FIX else 4
    for step in range(world):
        pe = (me + step) % world
        tl.store(dl.symm_at(data, pe) + (me + 1) * TILE * size + offs, tl.load(x + offs))  # <bytes>
    libshmem_device.barrier_all()
    for source in range(world):
        tl.store(out + source * TILE + offs, tl.load(data + (source + 1) * TILE + offs))


corpus.pair(
    offset_in_bytes,
    finds("out-of-bounds", "bytes"),
    golden="gather",
    why="an offset in bytes is added to a pointer to float32 and goes four times too far",
    source=BYTES,
)


@triton.jit
def slots_counted_from_one(x, data, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    first = 0 if FIX else 1
    for step in range(world):
        pe = (me + step) % world
        tl.store(dl.symm_at(data, pe) + (me + first) * TILE + offs, tl.load(x + offs))  # <slot-store>
    libshmem_device.barrier_all()
    for source in range(world):
        tl.store(out + source * TILE + offs, tl.load(data + source * TILE + offs))


corpus.pair(
    slots_counted_from_one,
    finds("out-of-bounds", "slot-store"),
    golden="gather",
    buffers={"data": Buf(2 * 16)},
    why="slots are counted from one in a buffer of as many slots as ranks",
    source=POINTERS + ": arithmetic beyond the allocation",
)


@triton.jit
def signals_side_by_side(x, data, sig, packed, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    me = dl.rank()
    world = dl.num_ranks()
    words = sig if FIX else packed
    stride = SLOT if FIX else 1
    for step in range(world):
        pe = (me + step) % world
        tl.store(dl.symm_at(data, pe) + me * TILE + offs, tl.load(x + offs))
        libshmem_device.fence()
        dl.notify(words + me * stride, pe, signal=1, sig_op="add")
    ready = dl.consume_token(data, dl.wait(words, 2, "npu", "acquire"))  # <short-wait>
    for source in range(world):
        tl.store(out + source * TILE + offs, tl.load(ready + source * TILE + offs))


corpus.pair(
    signals_side_by_side,
    finds("short-signal", "short-wait"),
    golden="gather",
    buffers={"packed": Buf(2, torch.int32)},
    why="wait polls one word every 64 bytes, the tensor has its words side by side",
    source="failure causes: wait strides 64 B on Ascend but is contiguous on NVIDIA",
)
