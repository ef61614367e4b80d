"""Kernels whose traces are known in advance, and the worlds that trace them."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

import tdist.language as dl
from tdist.language.extra import libshmem_device
from tdist.platforms.sim.world import World
from tdist.trace import Trace

ROWS, COLS = 4, 8


@triton.jit
def shift_kernel(x_ptr, out_ptr, box_ptr, sig_ptr, epoch, keep, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Turned, halved in width and masked on the way: to the next rank, and out there."""
    rank = dl.rank()
    peer = (rank + 1) % dl.num_ranks()
    rows, cols = tl.arange(0, ROWS), tl.arange(0, COLS)
    tile = tl.load(x_ptr + rows[:, None] * COLS + cols[None, :])
    turned = tl.trans(tile.to(tl.float16))
    tl.store(dl.symm_at(box_ptr, peer) + cols[:, None] * ROWS + rows[None, :], turned)
    libshmem_device.fence()
    dl.notify(sig_ptr, peer, signal=epoch, sig_op="set")
    token = dl.wait(sig_ptr, 1, "sys", "acquire", waitValue=epoch)
    data = dl.consume_token(box_ptr, token)
    flat = tl.arange(0, ROWS * COLS)
    got = tl.load(data + flat, mask=flat < ROWS * COLS - 1, other=0.0)
    libshmem_device.fence()
    kept = tl.where(flat < keep, got, 7.0)
    tl.store(out_ptr + flat, kept.to(tl.float32), mask=flat < ROWS * COLS - 2)


def shift(rt, keep: int = 24, launches: int = 1):
    """Outputs `out` [32] of each launch; element f is x[f % 4, f // 4] of the rank before, for f < keep."""
    box = rt.tensor(rt.malloc(2 * ROWS * COLS, name="box"), (COLS, ROWS), torch.float16)
    sig = rt.tensor(rt.malloc(64, alignment=64, name="sig"), (16,), torch.int32)
    sig.zero_()
    rt.synchronize()
    outs = []
    for launch in range(launches):
        x = torch.arange(ROWS * COLS, dtype=torch.float32).view(ROWS, COLS) + 100 * rt.rank + 1000 * launch
        out = torch.full((ROWS * COLS,), -1.0)
        rt.host_barrier()
        shift_kernel[(1,)](x, out, box, sig, launch + 1, keep, ROWS, COLS)
        rt.describe(x, "x", "input", launch)
        rt.describe(out, "out", "output", launch)
        outs.append(out)
        rt.synchronize()
    return outs


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, K, N: tl.constexpr, BK: tl.constexpr):
    """c = a @ b over steps of BK; one row of c doubled by a sum over its own tile."""
    offs, offs_k = tl.arange(0, N), tl.arange(0, BK)
    total = tl.zeros((N, N), dtype=tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptr + offs[:, None] * K + (k + offs_k)[None, :])
        b = tl.load(b_ptr + (k + offs_k)[:, None] * N + offs[None, :])
        total += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + offs[:, None] * N + offs[None, :], total)


@triton.jit
def row_sums_kernel(x_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tile = tl.load(x_ptr + offs[:, None] * N + offs[None, :])
    tl.store(out_ptr + offs, tl.sum(tile, axis=1))


def product(rt):
    """`c` [16, 16] of a [16, 32] and b [32, 16], and `sums` [16] of c's rows."""
    a, b = torch.ones(16, 32), torch.ones(32, 16)
    c, sums, unused = torch.zeros(16, 16), torch.zeros(16), torch.zeros(4)
    product_kernel[(1,)](a, b, c, 32, 16, 16)
    b[3, :] = 2.0
    row_sums_kernel[(1,)](c, sums, 16)
    for name, tensor in (("a", a), ("b", b)):
        rt.describe(tensor, name, "input", 0)
    for name, tensor in (("c", c), ("sums", sums), ("unused", unused)):
        rt.describe(tensor, name, "output", 0)
    return c, sums


@triton.jit
def pick_kernel(a_ptr, b_ptr, index_ptr, out_ptr, n, N: tl.constexpr):
    """Gathered or loaded, by the lane; rounded; scattered."""
    offs = tl.arange(0, N)
    index = tl.load(index_ptr + offs)
    gathered = tl.load(a_ptr + index)
    loaded = tl.load(b_ptr + offs, mask=offs < n, other=3.0)
    tl.store(out_ptr + index, tl.where(offs % 2 == 0, gathered, loaded).to(tl.float16))


def pick(rt, n: int = 12):
    """`out` [16], turned: element k comes from lane j = 15 - k; from a[k] if j is even, else b[j] if j < 12, else 3."""
    a, b = torch.arange(16) + 0.1, torch.arange(16) + 100.7
    index, out = torch.arange(15, -1, -1, dtype=torch.int32), torch.zeros(16, dtype=torch.float16)
    pick_kernel[(1,)](a, b, index, out, n, 16)
    for name, tensor in (("a", a), ("b", b)):
        rt.describe(tensor, name, "input", 0)
    rt.describe(out, "out", "output", 0)
    return (out,)


@triton.jit
def race_kernel(out_ptr):
    tl.store(dl.symm_at(out_ptr, 0) + tl.arange(0, 16), tl.full((16,), 5, tl.int32) + dl.rank())


def race(rt):
    """All ranks write rank 0's `out`."""
    out = rt.tensor(rt.malloc(64, name="out"), (16,), torch.int32)
    race_kernel[(1,)](out)
    rt.describe(out, "out", "output", 0)


@triton.jit
def stuck_kernel(sig_ptr, out_ptr):
    libshmem_device.barrier_all()
    if dl.rank() == 0:
        dl.notify(sig_ptr + 16, 1, signal=3, sig_op="set")
        token = dl.wait(sig_ptr, 1, "sys", "acquire", waitValue=9)
        tl.store(dl.consume_token(out_ptr, token), 1)
    libshmem_device.fence()


def stuck(rt):
    """A signal that nobody waits for and a wait that nobody answers."""
    sig = rt.tensor(rt.malloc(128, alignment=64, name="sig"), (32,), torch.int32)
    sig.zero_()
    rt.synchronize()
    rt.host_barrier()
    stuck_kernel[(1,)](sig, torch.zeros(1))
    rt.synchronize()


HOSTS = {"shift": shift, "pick": pick, "product": product, "race": race, "stuck": stuck}


@functools.cache
def traced(host: str, nranks: int = 3, **fields) -> tuple[Trace, tuple, tuple]:
    """Trace, findings and results of one of the hosts above."""
    arguments = {name: fields.pop(name) for name in ("keep", "launches") if name in fields}
    with World(nranks=nranks, heap_bytes=1 << 20, trace=True, **fields) as world:
        results = world.run(HOSTS[host], **arguments)
        assert world.trace is not None
        return world.trace, tuple(world.findings), tuple(results)
