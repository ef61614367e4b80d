"""One small kernel for each way in which a distributed call, or a pointer, can meet the vendor's adapter.

`x`, `buf` and `out` are `*fp16`, `sig` is `*i32`, `wide` is `*i64`, everything else is `i32`.
"""

import triton
import triton.language as tl

import tdist.language as dl
from tdist.language.carriers import builtin
from tdist.language.core import emit_extern
from tdist.language.extra import libshmem_device as device
from tdist.language.extra.cann import extension as al

LIBRARY = ("libshmem_device", "")


def _bytes(emit, dest, source, count, pe):
    return [dest, source, emit.integer(count, "bytes", 32), emit.integer(pe, "pe", 32)]


@builtin
def putmem(emit, dest, source, count, pe):
    emit_extern(emit, (*LIBRARY, "aclshmem_half_putmem"), _bytes(emit, dest, source, count, pe), None, False)


@builtin
def getmem_nbi(emit, dest, source, count, pe):
    emit_extern(emit, (*LIBRARY, "aclshmem_half_getmem_nbi"), _bytes(emit, dest, source, count, pe), None, False)


@builtin
def putmem_signal(emit, dest, source, count, sig, signal, op, pe):
    numbers = [emit.integer(value, "number", 32) for value in (signal, op, pe)]
    operands = [dest, source, emit.integer(count, "bytes", 32), sig, *numbers]
    emit_extern(emit, (*LIBRARY, "aclshmem_half_putmem_signal"), operands, None, False)


@builtin
def signal_wait_until(emit, sig, cmp, value):
    operands = [sig, emit.integer(cmp, "cmp", 32), emit.integer(value, "value", 32)]
    return emit_extern(emit, (*LIBRARY, "aclshmem_signal_wait_until"), operands, tl.int32, False)


# ---- calls on values, on arguments, on derived pointers -------------------------------------------------------------


@triton.jit
def push(x, buf, sig, out, n, B: tl.constexpr):
    """Remote store, notify, wait, consume: the whole protocol in two loops."""
    me = dl.rank()
    world = dl.num_ranks()
    offs = tl.arange(0, B)
    mask = offs < n
    values = tl.load(x + offs, mask=mask, other=0.0)
    for i in range(1, world):
        peer = (me + i) % world
        tl.store(dl.symm_at(buf, peer) + me * B + offs, values, mask=mask)
        dl.notify(sig + me * 16, peer)
    for i in range(1, world):
        source = (me + world - i) % world
        token = dl.wait(sig + source * 16, 1, "gpu", "acquire", waitValue=1)
        there = dl.consume_token(buf, token)
        tl.store(out + source * B + offs, tl.load(there + source * B + offs, mask=mask, other=0.0), mask=mask)


@triton.jit
def derived(x, buf, sig, slot, B: tl.constexpr):
    me = dl.rank()
    offs = tl.arange(0, B)
    tl.store(dl.symm_at(buf + slot * B, me + 1) + offs, tl.load(x + offs))
    dl.notify(sig + slot * 16, me + 1, sig_op="add")
    token = dl.wait(sig + slot * 16 + 8, 1, "gpu", "acquire", waitValue=2)
    tl.store(x + offs, tl.load(dl.consume_token(buf + slot + 4, token) + offs))


@triton.jit
def chain(buf, sig, out, peer, B: tl.constexpr):
    """Tokens on tokens, and on a remote pointer."""
    offs = tl.arange(0, B)
    first = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    second = dl.wait(sig + 16, 1, "gpu", "acquire", waitValue=1)
    twice = dl.consume_token(dl.consume_token(buf, first), second)
    remote = dl.consume_token(dl.symm_at(buf, peer) + B, first + second)
    tl.store(out + offs, tl.load(twice + offs) + tl.load(remote + offs))


@triton.jit
def wide_words(wide, out, n, B: tl.constexpr):
    token = dl.wait(wide + n, 1, "sys", "acquire", waitValue=3)
    dl.notify(wide + 8, n, 5)
    tl.store(dl.consume_token(out, token) + tl.arange(0, B), 1.0)


@triton.jit
def values(sig, out, n, B: tl.constexpr):
    """Calls that take and give numbers only."""
    token = dl.wait(sig, n, "gpu", "acquire")
    offs = tl.arange(0, B)
    tl.store(out + offs, (offs + al.sub_vec_id()).to(tl.float16), mask=offs < dl.consume_token(n, token))
    device.quiet()
    device.fence()
    device.int_p(sig + n, n, dl.rank())
    device.barrier_all_vec()


@triton.jit
def consumed_values(buf, sig, out, B: tl.constexpr):
    """A token on a tensor of values has no function: the values stay."""
    offs = tl.arange(0, B)
    loaded = tl.load(buf + offs)
    token = dl.wait(sig, 1, "gpu", "acquire")
    tl.store(out + offs, dl.consume_token(loaded, token))


@triton.jit
def transfers(x, buf, sig, out, B: tl.constexpr):
    """Calls with many operands, pointers of several arguments among them."""
    me = dl.rank()
    putmem_signal(buf + me * B, x, B * 2, sig + me * 16, 1, 0, me + 1)
    got = signal_wait_until(sig + 16, 0, 1)
    there = dl.consume_token(buf, got)
    putmem(there + 4, x + B, B, me)
    getmem_nbi(out, buf, B * 2, me + 1)
    device.quiet()


@triton.jit
def barrier(x, buf, out, B: tl.constexpr):
    """A barrier on both kinds of core in a kernel without a dot; each vector core its half."""
    me = dl.rank()
    offs = tl.arange(0, B)
    if al.sub_vec_id() == 0:
        tl.store(dl.symm_at(buf, me + 1) + offs, tl.load(x + offs))
    device.barrier_all()
    tl.store(out + offs, tl.load(buf + offs))


@triton.jit
def scalars(buf, sig, out, n, B: tl.constexpr):
    token = dl.wait(sig, 1, "gpu", "acquire")
    value = tl.load(dl.consume_token(buf, token) + n)
    tl.store(dl.symm_at(buf, n) + n, value)


@triton.jit
def gather(sig, buf, out, n, B: tl.constexpr):
    """Addresses out of memory, behind a remote pointer."""
    offs = tl.arange(0, B)
    remote = dl.symm_at(buf, n)
    tl.store(out + offs, tl.load(remote + tl.load(sig + offs)))


@triton.jit
def atomics(x, buf, sig, out, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    token = dl.wait(sig, 1, "gpu", "acquire")
    tl.atomic_add(dl.consume_token(out, token) + offs, tl.load(x + offs), mask=offs < n)
    tl.atomic_add(dl.symm_at(buf, n) + offs, tl.load(x + offs), mask=offs < n)


@triton.jit
def remote_cas(sig, x, n, B: tl.constexpr):
    word = dl.symm_at(sig, n)
    seen = tl.atomic_cas(word, 0, 1, sem="acq_rel", scope="sys")
    tl.store(sig + 1, seen + tl.atomic_add(word + 16, 1, sem="release", scope="sys"))


# ---- pointers through control flow ----------------------------------------------------------------------------------


@triton.jit
def for_scalar(x, buf, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    there = dl.symm_at(buf, n)
    here = x
    for _ in range(0, n):
        tl.store(there + offs, tl.load(here + offs))
        there += B
        here += B
    tl.store(there + offs, tl.load(here))


@triton.jit
def for_tensor(x, buf, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    there = dl.symm_at(buf, n) + offs
    here = x + offs
    for _ in range(0, n):
        tl.store(there, tl.load(here))
        there += B
        here += B


@triton.jit
def while_scalar(x, buf, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    there = dl.symm_at(buf, 1)
    i = 0
    while i < n:
        tl.store(there + offs, tl.load(x + offs))
        there += B
        i += 1
    tl.store(there + offs, tl.load(x))


@triton.jit
def if_both(x, buf, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    if n > 4:  # noqa: SIM108
        there = dl.symm_at(buf, n + 1)
    else:
        there = dl.symm_at(buf, n + 2)
    tl.store(there + offs, tl.load(x + offs))


@triton.jit
def if_local(x, buf, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    there = buf
    if n != dl.rank():
        there = dl.symm_at(buf, n)
    tl.store(there + offs, tl.load(x + offs))


@triton.jit
def if_nested(x, buf, sig, n, B: tl.constexpr):
    """A merge of merges, in a loop that carries it on."""
    offs = tl.arange(0, B)
    for i in range(0, n):
        there = buf + i * B
        if i > 1:
            if i > 2:  # noqa: SIM108
                there = dl.symm_at(there, i)
            else:
                there = dl.symm_at(buf, 0) + 8
            tl.store(there + 1 + offs, tl.load(x + offs))
        tl.store(there + offs, tl.load(x + offs))


@triton.jit
def if_tensor(x, buf, sig, n, B: tl.constexpr):
    """Many pointers that a branch advances: by a constant, by a number, on a token."""
    there = dl.symm_at(buf, n) + tl.arange(0, B)
    for i in range(0, n):
        if i > 2:
            there += 8
            there = dl.consume_token(there, dl.wait(sig, 1, "gpu", "acquire")) + i
        tl.store(there, tl.load(x + tl.arange(0, B)))


@triton.jit
def if_stores(x, buf, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    loaded = tl.load(x + offs)
    if n != dl.rank():
        tl.store(dl.symm_at(buf, n) + offs, loaded)
    else:
        tl.store(buf + offs, loaded)


@triton.jit
def if_notifies(sig, buf, n, B: tl.constexpr):
    """A call whose operand is a merge."""
    word = sig + 16
    if n > 0:
        word = dl.consume_token(sig, dl.wait(sig, 1, "gpu", "acquire")) + 32
    dl.notify(word, n)


@triton.jit
def early_return(x, buf, n, B: tl.constexpr):
    if n == 0:
        return
    offs = tl.arange(0, B)
    tl.store(dl.symm_at(buf, n) + offs, tl.load(x + offs))


@triton.jit
def choice(x, buf, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    there = tl.where(n > 0, dl.symm_at(buf, n), buf)
    tl.store(there + offs, tl.load(x + offs))


@triton.jit
def through_integers(x, buf, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    there = tl.where(n > 0, dl.symm_at(buf, n).to(tl.int64), buf.to(tl.int64))
    tl.store(there.to(tl.pointer_type(tl.float16)) + offs, tl.load(x + offs))


@triton.jit
def token_carried(buf, sig, out, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    token = 0
    for i in range(0, n):
        token += dl.wait(sig + i * 16, 1, "gpu", "acquire")
    there = dl.consume_token(buf, token)
    for i in range(0, n):
        tl.store(out + i * B + offs, tl.load(there + i * B + offs))


@triton.jit
def token_merged(buf, sig, out, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    token = 0
    if n > 0:
        token = dl.wait(sig, n, "sys", "acquire")
    tl.store(out + offs, tl.load(dl.consume_token(buf, token) + offs))


# ---- tokens on many pointers ----------------------------------------------------------------------------------------


@triton.jit
def consume_tensor(buf, sig, out, n, B: tl.constexpr, C: tl.constexpr):
    rows = tl.arange(0, B)[:, None]
    columns = tl.arange(0, C)[None, :]
    token = dl.wait(sig, 1, "gpu", "acquire")
    pointers = dl.consume_token(buf + rows * n + columns, token)
    tl.store(out + rows * C + columns, tl.load(pointers, mask=columns < n, other=0.0))


@triton.jit
def consume_remote_tensor(buf, sig, out, n, B: tl.constexpr):
    """The memory of a token on a tensor of pointers is that of the pointers, not the kernel's argument."""
    token = dl.wait(sig, 1, "gpu", "acquire")
    pointers = dl.consume_token(dl.symm_at(buf, n) + tl.arange(0, B), token)
    again = dl.consume_token(pointers + B, token + 1)
    tl.store(out + tl.arange(0, B), tl.load(again))


@triton.jit
def consume_tensor_in_loop(buf, sig, out, n, B: tl.constexpr):
    pointers = buf + tl.arange(0, B)
    to = out + tl.arange(0, B)
    for i in range(0, n):
        token = dl.wait(sig + i * 16, 1, "gpu", "acquire")
        pointers = dl.consume_token(pointers, token)
        tl.store(to, tl.load(pointers))
        pointers += B
        to += B


@triton.jit
def consume_tensor_in_while(buf, sig, out, n, B: tl.constexpr):
    pointers = dl.symm_at(buf, n) + tl.arange(0, B)
    i = 0
    while i < n:
        token = dl.wait(sig + i * 16, 1, "gpu", "acquire")
        pointers = dl.consume_token(pointers, token)
        tl.store(out + tl.arange(0, B), tl.load(pointers))
        pointers += B
        i += 1


@triton.jit
def consume_scalar_in_loop(buf, sig, out, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    there = buf
    for i in range(0, n):
        token = dl.wait(sig + i * 16, 1, "gpu", "acquire")
        there = dl.consume_token(there, token)
        tl.store(out + offs, tl.load(there + offs))
        there += B


@triton.jit
def consume_sometimes_in_loop(buf, sig, out, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    there = buf
    for i in range(0, n):
        if i > 2:
            there = dl.consume_token(there, dl.wait(sig + i * 16, 1, "gpu", "acquire"))
        tl.store(out + offs, tl.load(there + offs))
        there += B


@triton.jit
def consume_block(buf, sig, out, n, B: tl.constexpr, C: tl.constexpr):
    source = tl.make_block_ptr(buf, (n, n), (n, 1), (0, 0), (B, C), (1, 0))
    to = tl.make_block_ptr(out, (n, n), (n, 1), (0, 0), (B, C), (1, 0))
    source = dl.consume_token(source, dl.wait(sig, 1, "gpu", "acquire"))
    tl.store(to, tl.load(source, boundary_check=(0, 1)), boundary_check=(0, 1))


@triton.jit
def consume_block_in_loop(buf, sig, out, n, B: tl.constexpr, C: tl.constexpr):
    source = tl.make_block_ptr(buf, (n, n), (n, 1), (0, 0), (B, C), (1, 0))
    to = tl.make_block_ptr(out, (n, n), (n, 1), (0, 0), (B, C), (1, 0))
    for i in range(0, tl.cdiv(n, C)):
        source = dl.consume_token(source, dl.wait(sig + i * 16, 1, "gpu", "acquire"))
        tl.store(to, tl.load(source, boundary_check=(0, 1)), boundary_check=(0, 1))
        source = tl.advance(source, (0, C))
        to = tl.advance(to, (0, C))


@triton.jit
def block_on_remote(x, buf, n, B: tl.constexpr, C: tl.constexpr):
    source = tl.make_block_ptr(x, (n, n), (n, 1), (0, 0), (B, C), (1, 0))
    to = tl.make_block_ptr(dl.symm_at(buf, n), (n, n), (n, 1), (0, 0), (B, C), (1, 0))
    for _ in range(0, tl.cdiv(n, C)):
        tl.store(to, tl.load(source, boundary_check=(0, 1)), boundary_check=(0, 1))
        source = tl.advance(source, (0, C))
        to = tl.advance(to, (0, C))


@triton.jit
def block_on_consumed(buf, sig, out, n, B: tl.constexpr, C: tl.constexpr):
    there = dl.consume_token(buf, dl.wait(sig, 1, "gpu", "acquire"))
    source = tl.make_block_ptr(there, (n, n), (n, 1), (0, 0), (B, C), (1, 0))
    to = tl.make_block_ptr(out, (n, n), (n, 1), (0, 0), (B, C), (1, 0))
    for _ in range(0, tl.cdiv(n, C)):
        tl.store(to, tl.load(source, boundary_check=(0, 1)), boundary_check=(0, 1))
        source = tl.advance(source, (0, C))
        to = tl.advance(to, (0, C))


# ---- pointers to other elements -------------------------------------------------------------------------------------


@triton.jit
def cast_then_remote(buf, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    words = (buf + n).to(tl.pointer_type(tl.int16), bitcast=True)
    tl.store(dl.symm_at(words, n) + offs, offs.to(tl.int16))


@triton.jit
def remote_then_cast(buf, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    words = (dl.symm_at(buf, n) + n).to(tl.pointer_type(tl.int16), bitcast=True)
    tl.store(words + offs, offs.to(tl.int16))


@triton.jit
def cast_to_words(wide, n, B: tl.constexpr):
    """The distance counts elements: four of them are eight."""
    offs = tl.arange(0, B)
    words = (wide + n).to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(words + offs, offs)


@triton.jit
def cast_out_of_a_table(wide, buf, n, B: tl.constexpr):
    """A pointer that is counted from no argument stays a pointer, on which the adapter crashes by itself."""
    there = tl.load(wide + n).to(tl.pointer_type(tl.float16))
    words = (there + n).to(tl.pointer_type(tl.int16), bitcast=True)
    tl.store(words + tl.arange(0, B), tl.arange(0, B).to(tl.int16))
    tl.store(dl.symm_at(buf, n) + tl.arange(0, B), 1.0)


# ---- kernels of one card --------------------------------------------------------------------------------------------


@triton.jit
def plain_if(x, n, B: tl.constexpr):
    """A scalar pointer through `if` crashes the adapter without any distributed call."""
    offs = tl.arange(0, B)
    there = x
    if n > 0:
        there = x + 128
        tl.store(there, 1.0)
    tl.store(there + offs, offs.to(tl.float16))


@triton.jit
def plain_if_tensor(x, n, B: tl.constexpr):
    there = x + tl.arange(0, B)
    if n > 0:
        there += 128
    tl.store(there, 1.0)


@triton.jit
def plain_cast(x, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    words = (x + n).to(tl.pointer_type(tl.int16), bitcast=True)
    tl.store(words + offs, offs.to(tl.int16))


@triton.jit
def plain_table(wide, out, n, B: tl.constexpr):
    """A pointer out of memory."""
    offs = tl.arange(0, B)
    there = tl.load(wide + n).to(tl.pointer_type(tl.float16))
    tl.store(out + offs, tl.load(there + offs))


# ---- with tl.dot ----------------------------------------------------------------------------------------------------


@triton.jit
def dot_after_wait(x, buf, sig, out, n, B: tl.constexpr, C: tl.constexpr):
    rows = tl.arange(0, B)[:, None]
    columns = tl.arange(0, C)[None, :]
    me = dl.rank()
    for peer in range(tl.program_id(0), dl.num_ranks(), tl.num_programs(0)):
        there = dl.symm_at(buf, peer)
        tl.store(there + (me * B + rows) * C + columns, tl.load(x + rows * C + columns))
        dl.notify(sig + me * 16, peer)
    token = dl.wait(sig + 16, 1, "gpu", "acquire")
    there = dl.consume_token(buf, token)
    total = tl.zeros((B, B), tl.float32)
    for k in range(0, n, C):
        left = tl.load(there + rows * n + k + columns)
        total = tl.dot(left, tl.trans(tl.load(x + rows * n + k + columns)), total)
    tl.store(out + rows * B + tl.arange(0, B)[None, :], total.to(tl.float16))


# ---- what is refused ------------------------------------------------------------------------------------------------


@triton.jit
def two_arguments(x, buf, n, B: tl.constexpr):
    there = x
    if n > 0:
        there = buf
    tl.store(there + tl.arange(0, B), 1.0)


@triton.jit
def two_arguments_carried(x, buf, n, B: tl.constexpr):
    there = x
    for i in range(0, n):
        tl.store(there + tl.arange(0, B), 1.0)
        there = buf + i
    tl.store(there, 1.0)


@triton.jit
def walking_from_peer_to_peer(buf, n, B: tl.constexpr):
    there = buf
    for i in range(0, n):
        there = dl.symm_at(there, i)  # <walks>
        tl.store(there + tl.arange(0, B), 1.0)


@triton.jit
def walking_while(buf, n, B: tl.constexpr):
    there = buf
    i = 0
    while i < n:
        tl.store(there + tl.arange(0, B), 1.0)
        there = dl.symm_at(buf, i)  # <walks>
        i += 1


@triton.jit
def from_an_integer(wide, n, B: tl.constexpr):
    there = tl.load(wide + n).to(tl.pointer_type(tl.float16))
    tl.store(dl.symm_at(there, n) + tl.arange(0, B), 1.0)  # <integer>


@triton.jit
def cast_after_odd_step(x, n, B: tl.constexpr):
    there = (x + n).to(tl.pointer_type(tl.int32), bitcast=True)  # <cast>
    tl.store(there + tl.arange(0, B), 1)


@triton.jit
def tensors_of_two_memories(x, buf, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    there = tl.where(n > 1, dl.symm_at(buf, n) + offs, buf + offs)
    tl.store(there, tl.load(x + offs))
