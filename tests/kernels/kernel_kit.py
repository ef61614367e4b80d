"""Running the kernels in in-process worlds: several launches on one workspace, exact integers, both profiles."""

from __future__ import annotations

import torch

from tdist.kernels import ag_gemm, all_gather
from tdist.kernels.signal_slots import rows_of
from tdist.platforms.sim.world import World
from tdist.verify import ensure_shmem

LAUNCHES = 3


def integers(rank: int, launch: int, rows: int, columns: int, dtype: torch.dtype, limit: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(1000 * launch + rank)
    return torch.randint(-limit, limit + 1, (rows, columns), generator=source).to(dtype)


def gather_host(rt, m, n, dtype, launches, fence, **workspace):
    """`launches` all-gathers one behind the other, nothing between them but the kernel's own protocol."""
    ensure_shmem(rt)
    context = all_gather.create_context(rt, m, n, dtype, **workspace)
    rows = rows_of(rt.rank, m, rt.nranks)
    inputs = [integers(rt.rank, launch, rows, n, dtype, 200) for launch in range(launches)]
    outputs = [all_gather.all_gather(context, x, fence=fence) for x in inputs]
    rt.synchronize()
    results = [out.clone() for out in outputs]
    context.close()
    return results


def gather_expected(m, n, nranks, dtype, launch):
    shards = [integers(rank, launch, rows_of(rank, m, nranks), n, dtype, 200) for rank in range(nranks)]
    return torch.cat(shards)


def gemm_host(rt, m, n, k, dtype, launches, fence, own_panels=True, **workspace):
    """`launches` AG+GEMMs one behind the other on one workspace."""
    ensure_shmem(rt)
    context = ag_gemm.create_context(rt, m, n, k, dtype, **workspace)
    rows = rows_of(rt.rank, m, rt.nranks)
    pairs = [
        (integers(rt.rank, launch, rows, k, dtype, 1), integers(rt.rank + 50, launch, k, n, dtype, 1))
        for launch in range(launches)
    ]
    outputs = [ag_gemm.ag_gemm(context, a, b, fence=fence, own_panels=own_panels) for a, b in pairs]
    rt.synchronize()
    results = [out.clone() for out in outputs]
    context.close()
    return results


def gemm_expected(m, n, k, nranks, rank, dtype, launch):
    a = torch.cat([integers(r, launch, rows_of(r, m, nranks), k, dtype, 1) for r in range(nranks)])
    return (a.double() @ integers(rank + 50, launch, k, n, dtype, 1).double()).to(dtype)


def run(nranks, host, *args, launches=LAUNCHES, fence=True, world=None, **workspace):
    """Results by rank and launch, and the findings."""
    config = {"profile": "ascend", "scheduler": "random", **(world or {})}

    def on_rank(rt):
        return host(rt, *args, launches, fence, **workspace)

    with World(nranks=nranks, **config) as opened:
        return opened.run(on_rank), opened.findings


def assert_clean(findings):
    """No error and no hazard: the kernels are clean under both profiles."""
    assert [finding.title for finding in findings if finding.fails("ascend")] == []
