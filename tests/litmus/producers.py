"""Device helpers that several litmus kernels share. Their lines are marked like those of any kernel."""

from __future__ import annotations

import triton
import triton.language as tl

import tdist.language as dl
from tdist.language.extra import libshmem_device as shmem_dev


@triton.jit
def produce(data, sig):
    """Store tiles of 7 and 8 on rank 1, drain, and set its first signal slot to 1."""
    offs = tl.arange(0, 16)
    remote = dl.symm_at(data, 1)
    tl.store(remote + offs, 7)  # <store>
    tl.store(remote + 16 + offs, 8)  # <store2>
    shmem_dev.fence()
    dl.notify(sig, 1, signal=1, sig_op="set")  # <notify>


@triton.jit
def produce_slot(data, sig, pe):
    """Store a tile of 10 + own rank on `pe` and set the slot of one's own rank there to 1."""
    me = dl.rank()
    offs = tl.arange(0, 16)
    tl.store(dl.symm_at(data, pe) + me * 16 + offs, me + 10)  # <store>
    shmem_dev.fence()
    dl.notify(sig + me * 16, pe, signal=1, sig_op="set")  # <notify>


@triton.jit
def copy_tiles(source, out, N: tl.constexpr):
    """Copy N tiles of 16 elements, one load each."""
    offs = tl.arange(0, 16)
    for i in tl.static_range(N):
        tl.store(out + i * 16 + offs, tl.load(source + i * 16 + offs))  # <load>
