"""Operator entry of `tdist.kernels.all_gather`."""

from __future__ import annotations

import torch

import tdist.golden as golden
from tdist.kernels import all_gather as kernels
from tdist.kernels.signal_slots import rows_of, shard_rows
from tdist.platforms.base import RankRuntime
from tdist.verify.heap import ensure_shmem
from tdist.verify.inputs import payload
from tdist.verify.operator import Case, operator

LARGEST_BLOCK = 1024


def _inputs(case: Case, rank: int, launch: int) -> dict[str, torch.Tensor]:
    return {"x": payload(case, rank, launch, "x", (rows_of(rank, case["m"], case.nranks), case["n"]))}


def _block_elems(case: Case) -> int:
    """A tile that leaves a shard several tiles where it has the elements for it."""
    quarter = shard_rows(case["m"], case.nranks) * case["n"] // 4
    return max(16, min(LARGEST_BLOCK, 1 << quarter.bit_length()))


def _workspace(rt: RankRuntime, case: Case) -> kernels.AllGatherContext:
    ensure_shmem(rt)
    return kernels.create_context(
        rt, case["m"], case["n"], case.torch_dtype, sync=case.sync, block_elems=_block_elems(case)
    )


def _golden(case: Case, rank: int, x: torch.Tensor) -> golden.Reference:
    return golden.all_gather(x, case["m"])


def _golden_local(case: Case, rank: int, inputs_by_rank: list[dict[str, torch.Tensor]]) -> golden.Reference:
    return golden.all_gather_local([inputs["x"] for inputs in inputs_by_rank], case["m"])


@operator(
    shape={"m": 256, "n": 128},
    small={"m": 10, "n": 24},
    sync=("fine", "barrier"),
    inputs=_inputs,
    golden=_golden,
    golden_local=_golden_local,
    workspace=_workspace,
    relaunchable=True,
)
def all_gather(rt: RankRuntime, case: Case, workspace: kernels.AllGatherContext, x: torch.Tensor) -> torch.Tensor:
    """Gather the row shards of an m x n tensor on all ranks."""
    return kernels.all_gather(workspace, x)
