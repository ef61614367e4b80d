"""Operators whose defects need something: ranks, rows, a launch, a switch at the right moment."""

import shmem as ash
import torch
import triton
import triton.language as tl
import triton_dist.language as dl

from tdist.verify import ensure_shmem, operator
from tdist.verify.inputs import payload

BLOCK = 16


@triton.jit
def glimpse_kernel(x_ptr, out_ptr, word_ptr, n, BLOCK: tl.constexpr):
    rank = dl.rank()
    if (rank == 1) & (tl.program_id(0) == 0):
        for value in range(1, 9):
            dl.notify(word_ptr, 0, signal=value, sig_op="set")
    seen = tl.load(word_ptr, volatile=True)
    beyond = tl.where((seen > 0) & (seen < 8), 1 << 20, 0)  # FAULT: what is seen in passing is used as an index
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        offs = start + tl.arange(0, BLOCK)
        data = tl.load(x_ptr + offs, mask=offs < n, other=0)
        tl.store(out_ptr + offs + beyond, data, mask=offs < n)


class Words:
    def __init__(self, rt, case):
        ensure_shmem(rt)
        whole = ash.aclshmem_create_tensor((32,), dtype=torch.int32)
        whole.zero_()
        self.word = whole[16:]
        rt.synchronize()
        rt.host_barrier()


def inputs(case, rank, launch):
    return {"x": payload(case, rank, launch, "x", (case["n"],))}


def same(case, rank, x):
    return x


def local(case, rank, inputs_by_rank):
    return inputs_by_rank[rank]["x"]


def even(case):
    return None if case["n"] % 2 == 0 else "n has to be even"


COMMON = {"inputs": inputs, "golden": same, "golden_local": local, "dtypes": ("fp32",)}


@operator(shape={"n": 96}, workspace=Words, constraint=even, **COMMON)
def glimpse(rt, case, workspace, x):
    """Goes out of bounds only if rank 0 looks at a word between two of rank 1's signals."""
    out = torch.empty_like(x)
    glimpse_kernel[(4,)](x, out, workspace.word, case["n"], BLOCK=BLOCK)
    return out


@triton.jit
def tail_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        offs = start + tl.arange(0, BLOCK)
        last = n - (start == 32)  # FAULT: the third tile leaves the last element out
        data = tl.load(x_ptr + offs, mask=offs < n, other=0)
        tl.store(out_ptr + offs, data, mask=offs < last)


class Counter:
    def __init__(self, rt, case):
        self.launches = 0


@operator(shape={"n": 40}, workspace=Counter, relaunchable=True, **COMMON)
def tail(rt, case, workspace, x):
    """Wrong in its second launch on rank 2, where n is 33 to 48."""
    workspace.launches += 1
    out = torch.zeros_like(x)
    wrong = workspace.launches == 2 and rt.rank == 2
    tail_kernel[(2,)](x, out, case["n"], BLOCK=BLOCK) if wrong else out.copy_(x)
    return out
