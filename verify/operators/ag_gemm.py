"""Operator entry of `tdist.kernels.ag_gemm`."""

from __future__ import annotations

import torch

import tdist.golden as golden
from tdist.kernels import ag_gemm as kernels
from tdist.kernels.signal_slots import rows_of
from tdist.platforms.base import RankRuntime
from tdist.verify.heap import ensure_shmem
from tdist.verify.inputs import factor
from tdist.verify.operator import Case, operator


def _inputs(case: Case, rank: int, launch: int) -> dict[str, torch.Tensor]:
    rows = rows_of(rank, case["m"], case.nranks)
    return {
        "a": factor(case, rank, launch, "a", (rows, case["k"]), terms=case["k"]),
        "b": factor(case, rank, launch, "b", (case["k"], case["n"]), terms=0),
    }


def _tiling(case: Case) -> kernels.Tiling:
    return kernels.default_tiling(case["m"], case["n"], case["k"], case.nranks)


def _workspace(rt: RankRuntime, case: Case) -> kernels.AgGemmContext:
    ensure_shmem(rt)
    return kernels.create_context(
        rt, case["m"], case["n"], case["k"], case.torch_dtype, sync=case.sync, tiling=_tiling(case)
    )


def _golden(case: Case, rank: int, a: torch.Tensor, b: torch.Tensor) -> golden.Reference:
    return golden.ag_gemm(a, b, case["m"], bounds=case.fill == "float")


def _golden_local(case: Case, rank: int, inputs_by_rank: list[dict[str, torch.Tensor]]) -> golden.Reference:
    shards, b = [inputs["a"] for inputs in inputs_by_rank], inputs_by_rank[rank]["b"]
    return golden.ag_gemm_local(shards, b, case["m"], bounds=case.fill == "float")


def _tile(case: Case) -> tuple[int, ...]:
    return _tiling(case).block_m, _tiling(case).block_n


@operator(
    shape={"m": 256, "n": 256, "k": 256},
    small={"m": 131, "n": 12, "k": 12},  # two rounds a launch, the second with a tail: with one, credits order nothing
    sync=("fine", "barrier"),
    inputs=_inputs,
    golden=_golden,
    golden_local=_golden_local,
    workspace=_workspace,
    tile=_tile,
    relaunchable=True,
)
def ag_gemm(
    rt: RankRuntime, case: Case, workspace: kernels.AgGemmContext, a: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """Multiply the gathered m x k rows of A with each rank's own k x n B."""
    return kernels.ag_gemm(workspace, a, b)
