"""Rank functions of test_golden.py; run in rank processes."""

from __future__ import annotations

import torch

from tdist.golden import ag_gemm, ag_gemm_local, all_gather, all_gather_local


def shard(rank: int, nranks: int, rows: int, columns: int, dtype: str) -> torch.Tensor:
    capacity = -(-rows // nranks)
    mine = max(0, min(capacity, rows - rank * capacity))
    source = torch.Generator().manual_seed(rank + 1)
    return torch.randn((mine, columns), generator=source).to(getattr(torch, dtype))


def compare_with_local(rt, rows: int, columns: int, dtype: str) -> list[bool]:
    """Whether the group's results equal those from all shards at hand, bit by bit."""
    shards = [shard(rank, rt.nranks, rows, columns, dtype) for rank in range(rt.nranks)]
    b = torch.randn((columns, 5), generator=torch.Generator().manual_seed(99 + rt.rank)).to(shards[0].dtype)
    gathered, local = all_gather(shards[rt.rank], rows), all_gather_local(shards, rows)
    product, local_product = ag_gemm(shards[rt.rank], b, rows), ag_gemm_local(shards, b, rows)
    return [
        torch.equal(gathered.value, local.value),
        gathered.value.dtype == shards[0].dtype,
        gathered.moves_only,
        torch.equal(product.value, local_product.value),
        product.value.dtype == torch.float64,
        torch.equal(product.value, local.value.double() @ b.double()),
    ]
