"""Kernels in which every kind of mutant has a place: helpers, loops, branches, early returns, blocks, atomics."""

# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import triton
import triton.language as tl

import tdist.language as dl
from tdist.language.extra import libshmem_device


@triton.jit
def _push(x_ptr, buffer_ptr, target, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    data = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(dl.symm_at(buffer_ptr, target) + offs, data, mask=offs < n)


@triton.jit
def exchange(x_ptr, buffer_ptr, out_ptr, ready_ptr, epoch, slots, n, B: tl.constexpr):
    rank = dl.rank()
    world = dl.num_ranks()
    for task in range(world):
        target = (rank + task) % world
        _push(x_ptr, buffer_ptr, target, n, B)
        libshmem_device.fence()
        dl.notify(ready_ptr + rank * 16, target, signal=epoch + 1, sig_op="set")
    token = dl.wait(ready_ptr, slots, "npu", "acquire", waitValue=epoch + 1)
    arrived_ptr = dl.consume_token(buffer_ptr, token)
    libshmem_device.barrier_all()
    offs = tl.arange(0, B)
    data = tl.load(arrived_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, data, mask=offs < n)
    libshmem_device.barrier_all()


@triton.jit
def counting(x_ptr, count_ptr, ready_ptr, n, B: tl.constexpr):
    """Adds, atomics, a barrier in a loop, a gated notify, an early return, a block pointer."""
    if n < 1:
        return
    block = tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (B,), (0,))
    tile = tl.load(block, boundary_check=(0,))
    tl.store(block, tile + 1, boundary_check=(0,))
    if tl.program_id(0) == 0:
        dl.notify(ready_ptr, dl.rank(), signal=1, sig_op="add")
    for _ in range(n):
        libshmem_device.barrier_all()
    tl.atomic_add(count_ptr, 1, sem="release", scope="sys")


@triton.jit
def polling(x_ptr, flag_ptr, n):
    """Two loops that wait, and one that does not: it stores."""
    while tl.load(flag_ptr, volatile=True) == 0:
        pass
    while tl.atomic_add(flag_ptr, 0, sem="acquire") == 0:
        pass
    left = n
    while left > 0:
        tl.store(x_ptr + left, tl.load(flag_ptr))
        left -= 1


@triton.jit
def _signal(ready_ptr, slot, value):
    dl.notify(ready_ptr + slot * 16, 0, signal=value, sig_op="set")


@triton.jit
def many(x_ptr, ready_ptr, n):
    """One helper called twice, an unrolled loop, a `while`, branches: one place each time that code stands for it."""
    _signal(ready_ptr, 0, 1)
    if n > 4:
        _signal(ready_ptr, 1, 1)
    else:
        dl.notify(ready_ptr + 32, 0, signal=2, sig_op="set")
    for slot in tl.static_range(3):
        dl.notify(ready_ptr + 16 * slot, 0, signal=3, sig_op="set")
    left = n
    while left > 0:
        token = dl.wait(ready_ptr, 1, "npu", "acquire", waitValue=3)
        tl.store(x_ptr, dl.consume_token(left, token))
        left -= 1
