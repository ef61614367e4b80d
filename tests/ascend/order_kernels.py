"""Kernels whose compiled code has, or no longer has, a fault of order. Comments `# <word>` name lines."""

import triton
import triton.language as tl
from gate_kit import library

import tdist.language as dl
from tdist.language.extra import libshmem_device
from tdist.language.extra.cann.extension import sub_vec_id


@triton.jit
def push(x, buf, sig, n, B: tl.constexpr):
    """A store to a peer, and a signal SET behind it."""
    offsets = tl.arange(0, B)
    peer = (dl.rank() + 1) % dl.num_ranks()
    values = tl.load(x + offsets)
    tl.store(dl.symm_at(buf, peer) + offsets, values)  # <store>
    dl.notify(sig, peer, signal=1, sig_op="set")  # <notify>


@triton.jit
def push_fence(x, buf, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    peer = (dl.rank() + 1) % dl.num_ranks()
    values = tl.load(x + offsets)
    tl.store(dl.symm_at(buf, peer) + offsets, values)
    libshmem_device.fence()
    dl.notify(sig, peer, signal=1, sig_op="set")


@triton.jit
def push_quiet(x, buf, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    peer = (dl.rank() + 1) % dl.num_ranks()
    values = tl.load(x + offsets)
    tl.store(dl.symm_at(buf, peer) + offsets, values)
    libshmem_device.quiet()
    dl.notify(sig, peer, signal=1, sig_op="set")


@triton.jit
def push_add(x, buf, sig, n, B: tl.constexpr):
    """A signal ADD waits for every pipe itself."""
    offsets = tl.arange(0, B)
    peer = (dl.rank() + 1) % dl.num_ranks()
    values = tl.load(x + offsets)
    tl.store(dl.symm_at(buf, peer) + offsets, values)
    dl.notify(sig, peer, signal=1, sig_op="add")


@triton.jit
def push_in_loop(x, buf, sig, n, B: tl.constexpr):
    """The fence of one turn stands before its store: only the turn before is drained."""
    offsets = tl.arange(0, B)
    for peer in range(0, n):
        libshmem_device.fence()
        tl.store(dl.symm_at(buf, peer) + offsets, tl.load(x + offsets))  # <store>
        dl.notify(sig, peer, signal=1, sig_op="set")  # <notify>


@triton.jit
def push_on_one_way(x, buf, sig, n, B: tl.constexpr):
    """Drained on one side of a branch only."""
    offsets = tl.arange(0, B)
    tl.store(dl.symm_at(buf, 1) + offsets, tl.load(x + offsets))  # <store>
    if n > 0:
        libshmem_device.fence()
    dl.notify(sig, 1, signal=1, sig_op="set")  # <notify>


@triton.jit
def push_vec_barrier(x, buf, sig, n, B: tl.constexpr):
    """The soft barrier of a pure vector kernel drains nothing."""
    offsets = tl.arange(0, B)
    tl.store(dl.symm_at(buf, 1) + offsets, tl.load(x + offsets))  # <store>
    libshmem_device.barrier_all_vec()  # <barrier>


@triton.jit
def give_back(x, buf, sig, out, n, B: tl.constexpr):
    """A slot is read, and given back by a signal that can overtake the read."""
    offsets = tl.arange(0, B)
    for i in range(0, n):
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
        slot = dl.consume_token(buf, token)
        tl.store(out + i * B + offsets, tl.load(slot + offsets))  # <load>
        dl.notify(sig + 16, 1, signal=1, sig_op="set")  # <notify>


@triton.jit
def scalar_after_wait(buf, sig, out, n):
    """A scalar load reads what the data cache still holds."""
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)  # <wait>
    value = tl.load(dl.consume_token(buf, token))  # <load>
    tl.store(out, value)


@triton.jit
def scalar_after_fence(buf, sig, out, n):
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    libshmem_device.fence()
    value = tl.load(dl.consume_token(buf, token))
    tl.store(out, value)


@triton.jit
def gather_after_wait(x, buf, sig, out, n, B: tl.constexpr):
    """A gather becomes a loop of scalar loads."""
    offsets = tl.arange(0, B)
    chosen = (tl.load(x + offsets)).to(tl.int32)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)  # <wait>
    values = tl.load(dl.consume_token(buf, token) + chosen)  # <load>
    tl.store(out + offsets, values)


@triton.jit
def tile_after_wait(buf, sig, out, n, B: tl.constexpr):
    """A tile comes by MTE2, past the cache."""
    offsets = tl.arange(0, B)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    tl.store(out + offsets, tl.load(dl.consume_token(buf, token) + offsets))


@triton.jit
def table_after_wait(x, buf, sig, out, n, B: tl.constexpr):
    """A scalar load of memory that no other PE writes."""
    offsets = tl.arange(0, B)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    slot = tl.load(x + n).to(tl.int32)  # <load>
    tl.store(out + offsets, tl.load(dl.consume_token(buf, token) + slot * B + offsets))


@triton.jit
def fetch_add(x, out, n):
    """The old value and the sum go by two pipes."""
    old = tl.atomic_add(x, 1)  # <atomic>
    tl.store(out + n, old)


@triton.jit
def hidden_alias(x, buf, sig, out, n, B: tl.constexpr):
    """A store through the argument, a load through what consume_token made of it."""
    offsets = tl.arange(0, B)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    slot = dl.consume_token(buf, token)
    tl.store(slot + offsets, tl.load(x + offsets))  # <store>
    tl.store(out + offsets, tl.load(buf + offsets))  # <load>


@triton.jit
def gemm_notify(a, b, c, buf, sig, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """A product that the cube core stores to a peer, and its signal."""
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    product = tl.dot(tl.load(a + rows[:, None] * K + inner), tl.load(b + inner[:, None] * N + columns))
    tl.store(dl.symm_at(c, 1) + rows[:, None] * N + columns, product)  # <store>
    dl.notify(sig, 1, signal=1, sig_op="set")  # <notify>


@triton.jit
def gemm_epilogue(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """The product goes over the workspace to the vector cores."""
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    product = tl.dot(tl.load(a + rows[:, None] * K + inner), tl.load(b + inner[:, None] * N + columns))  # <product>
    tl.store(c + rows[:, None] * N + columns, tl.exp(product))


@triton.jit
def on_one_vector_core(x, buf, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    if sub_vec_id() == 0:
        tl.store(dl.symm_at(buf, 1) + offsets, tl.load(x + offsets))  # <store>
        dl.notify(sig, 1, signal=1, sig_op="set")  # <notify>


@triton.jit
def halves_meet_in_a_barrier(a, b, c, buf, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """The vector cores write what the cube core multiplies behind the barrier."""
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    tl.store(buf + rows[:, None] * K + inner, tl.exp(tl.load(a + rows[:, None] * K + inner)))  # <store>
    libshmem_device.barrier_all()
    product = tl.dot(tl.load(buf + rows[:, None] * K + inner), tl.load(b + inner[:, None] * N + columns))  # <load>
    tl.store(c + rows[:, None] * N + columns, product)


@triton.jit
def put_what_was_stored(x, buf, sig, n, B: tl.constexpr):
    """The put takes the argument that was stored: the compiler puts a flag."""
    offsets = tl.arange(0, B)
    tl.store(buf + offsets, tl.load(x + offsets))
    library("aclshmem_half_putmem", buf + B, buf, B * 2, 1)


@triton.jit
def put_through_another_pointer(x, buf, sig, n, B: tl.constexpr):
    """Stored through what consume_token made of the argument: the compiler takes it for other memory."""
    offsets = tl.arange(0, B)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    tl.store(dl.consume_token(buf, token) + offsets, tl.load(x + offsets))  # <store>
    library("aclshmem_half_putmem", buf + B, buf, B * 2, 1)  # <put>


@triton.jit
def put_signal_behind_a_store(x, buf, sig, n, NBI: tl.constexpr, B: tl.constexpr):
    """A blocking put drains before its signal, one that does not block signals its own data only."""
    offsets = tl.arange(0, B)
    tl.store(dl.symm_at(buf, 1) + offsets, tl.load(x + offsets))  # <store>
    if NBI:
        library("aclshmem_half_putmem_signal_nbi", buf + B, x, B * 2, sig, 1, 0, 1)  # <put>
    else:
        library("aclshmem_half_putmem_signal", buf + B, x, B * 2, sig, 1, 0, 1)
