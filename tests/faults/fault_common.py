"""What the broken copies share: everything but the kernel. Written as a user would, against the public names."""

from __future__ import annotations

import shmem as ash
import torch

from tdist.golden import all_gather, all_gather_local, gemm_reference
from tdist.verify import ensure_shmem
from tdist.verify.inputs import factor, payload

BLOCK = 64
TILE = 16
SHAPE = {"m": 16, "n": 96}
INT32_SLOT, INT64_SLOT = 16, 8


def gather_inputs(case, rank, launch):
    """Equal shards of m rows of n elements."""
    return {"x": payload(case, rank, launch, "x", (case["m"] // case.nranks, case["n"]))}


def gather_golden(case, rank, x):
    return all_gather(x, case["m"])


def gather_golden_local(case, rank, inputs_by_rank):
    return all_gather_local([inputs["x"] for inputs in inputs_by_rank], case["m"])


def equal_shards(case):
    """A constraint: these copies take only shapes that divide evenly."""
    return None if case["m"] % case.nranks == 0 else "m has to be a multiple of the number of ranks"


GATHER = {
    "shape": SHAPE,
    "inputs": gather_inputs,
    "golden": gather_golden,
    "golden_local": gather_golden_local,
    "constraint": equal_shards,
    "relaunchable": True,
}


class GatherWorkspace:
    """Buffers of `halves` launches, int32 signals 64 bytes apart, an epoch."""

    def __init__(self, rt, case, halves):
        ensure_shmem(rt)
        shard = case["m"] // case.nranks * case["n"]
        tiles = -(-shard // BLOCK)
        self.shard, self.epoch = shard, 0
        self.grid = (min(4, case.nranks * tiles),)
        self.buffer = ash.aclshmem_create_tensor((halves, case.nranks, shard), dtype=case.torch_dtype)
        self.signals = ash.aclshmem_create_tensor((halves * case.nranks * tiles + 1, INT32_SLOT), dtype=torch.int32)
        self.signals.zero_()
        self.ready = self.signals[1:]
        rt.synchronize()
        rt.host_barrier()

    def output(self, x, case):
        self.epoch += 1
        return torch.empty((case["m"], case["n"]), dtype=x.dtype)


def one_half(rt, case):
    return GatherWorkspace(rt, case, halves=1)


def two_halves(rt, case):
    return GatherWorkspace(rt, case, halves=2)


def gemm_inputs(case, rank, launch):
    """Shards of m rows, dealt in runs of ceil(m / R), and a B for each rank."""
    rows = -(-case["m"] // case.nranks)
    mine = max(0, min(rows, case["m"] - rank * rows))
    return {
        "a": factor(case, rank, launch, "a", (mine, case["k"]), terms=case["k"]),
        "b": factor(case, rank, launch, "b", (case["k"], case["n"]), terms=0),
    }


def gemm_golden(case, rank, a, b):
    return gemm_reference(all_gather(a, case["m"]).value, b)


def gemm_golden_local(case, rank, inputs_by_rank):
    a = all_gather_local([inputs["a"] for inputs in inputs_by_rank], case["m"]).value
    return gemm_reference(a, inputs_by_rank[rank]["b"])


GEMM = {
    "shape": {"m": 96, "n": 32, "k": 48},
    "inputs": gemm_inputs,
    "golden": gemm_golden,
    "golden_local": gemm_golden_local,
    "relaunchable": True,
}


class GemmWorkspace:
    """Two rounds of one 16-row panel a rank, int64 `ready` and `credit` signals 64 bytes apart, a round counter."""

    def __init__(self, rt, case):
        ensure_shmem(rt)
        self.shard = -(-case["m"] // case.nranks)
        self.rounds, self.next_round = -(-self.shard // TILE), 1
        self.columns = -(-case["n"] // TILE)
        self.grid = (min(4, case.nranks * self.columns),)
        self.buffer = ash.aclshmem_create_tensor((2, case.nranks, TILE, case["k"]), dtype=case.torch_dtype)
        slots = 1 + 2 * case.nranks + 2 * case.nranks * self.columns
        self.signals = ash.aclshmem_create_tensor((slots, INT64_SLOT), dtype=torch.int64)
        self.signals.zero_()
        self.ready, self.credit = self.signals[1:], self.signals[1 + 2 * case.nranks :]
        rt.synchronize()
        rt.host_barrier()

    def first_round(self):
        first = self.next_round
        self.next_round += self.rounds
        return first
