"""Planted faults: what a signal does not release on Ascend."""

from __future__ import annotations

import triton
import triton.language as tl
import triton_dist.language as dl
from fault_kit import TILE, Corpus, finds
from triton_dist.language.extra import libshmem_device

corpus = Corpus(globals())


@triton.jit
def fence_left_out(x, data, sig, out, FIX: tl.constexpr):
    offs = tl.arange(0, TILE)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))  # <fence-store>
        if FIX:
            libshmem_device.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <fence-load>


corpus.pair(
    fence_left_out,
    finds("hazard.undrained-release", "fence-store", "fence-load"),
    golden="push",
    profile="ascend",
    why="a signal SET does not drain the store before it",
    source="ascend-facts 9: no fence/quiet between data store and notify",
)
