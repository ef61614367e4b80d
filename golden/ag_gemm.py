"""All-gather + GEMM by torch.distributed in float64, and from all shards where no process group exists."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from tdist.golden.all_gather import all_gather, all_gather_local
from tdist.golden.reference import Reference


def ag_gemm(
    a: torch.Tensor, b: torch.Tensor, rows: int, group: dist.ProcessGroup | None = None, *, bounds: bool = True
) -> Reference:
    """`concat(a of all ranks) @ b`, with the shards gathered over `group` as they are and multiplied in float64.

    Shape: a [rows of this rank, K], b [K, N]; value and magnitude [rows, N].
    Dtype: value and magnitude float64; `same_precision` has a's dtype, accumulated in float32.
    """
    return gemm_reference(all_gather(a, rows, group).value, b, bounds=bounds)


def ag_gemm_local(shards: Sequence[torch.Tensor], b: torch.Tensor, rows: int, *, bounds: bool = True) -> Reference:
    """The same from the shards of all ranks at hand, for worlds without a process group."""
    return gemm_reference(all_gather_local(shards, rows).value, b, bounds=bounds)


def gemm_reference(a: torch.Tensor, b: torch.Tensor, *, bounds: bool = True) -> Reference:
    """The reference of one matrix product: float64 value, `|a| @ |b|`, and torch's result in the operands' precision.

    Half precision is multiplied in float32, which holds each product exactly, and rounded once: what a cube core does.

    Args:
        bounds: whether to compute what bounds need; comparing for equality does without.
    """
    wide_a, wide_b = a.double(), b.double()
    if not bounds:
        return Reference(wide_a @ wide_b, terms=a.shape[1])
    return Reference(
        value=wide_a @ wide_b,
        magnitude=wide_a.abs() @ wide_b.abs(),
        terms=a.shape[1],
        same_precision=(a.float() @ b.float()).to(a.dtype),
    )
