"""The distributed language: `import triton_dist.language as dl`, or `import tdist.language as dl`."""

from tdist.language.core import consume_token, extern_call, notify, num_ranks, rank, symm_at, wait
from tdist.language.slots import SIGNAL_SLOT_STRIDE

__all__ = [
    "SIGNAL_SLOT_STRIDE",
    "consume_token",
    "extern_call",
    "notify",
    "num_ranks",
    "rank",
    "symm_at",
    "wait",
]
