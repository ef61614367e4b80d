"""An AG+GEMM that masks its rows by the whole matrix, not by the shard: they spill into the next shard."""

import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from fault_common import GEMM, INT64_SLOT, TILE, GemmWorkspace
from triton_dist.language.extra import libshmem_device

from tdist.verify import operator


@triton.jit
def gemm_kernel(
    a_ptr, b_ptr, c_ptr, buffer_ptr, ready_ptr, credit_ptr, first, S, M, N, K, T: tl.constexpr, SLOT: tl.constexpr
):
    rank = dl.rank()
    world = dl.num_ranks()
    cols = tl.cdiv(N, T)
    rounds = tl.cdiv(S, T)
    span = tl.arange(0, T)
    for step in range(0, rounds + 1):
        if step < rounds:
            number = first + step
            buffer = number % 2
            for task in range(tl.program_id(0), world, tl.num_programs(0)):
                target = (rank + task) % world
                credits = (buffer * world + target) * cols * SLOT
                last = tl.maximum(number - 2, 0).to(tl.int64)
                freed = dl.wait(credit_ptr + credits, cols, "npu", "acquire", waitValue=last)
                free_ptr = dl.consume_token(buffer_ptr, freed)
                remote_ptr = dl.symm_at(free_ptr + (buffer * world + rank) * T * K, target)
                rows = step * T + span
                for block_k in range(0, tl.cdiv(K, T)):
                    ks = block_k * T + span
                    mask = (rows[:, None] < tl.minimum(S, M - rank * S)) & (ks[None, :] < K)
                    a = tl.load(a_ptr + rows[:, None] * K + ks[None, :], mask=mask, other=0.0)
                    tl.store(remote_ptr + span[:, None] * K + ks[None, :], a, mask=mask)
                libshmem_device.fence()
                slot = (buffer * world + rank) * SLOT
                dl.notify(ready_ptr + slot, target, signal=number.to(tl.int64), sig_op="set")
        if step > 0:
            number = first + step - 1
            buffer = number % 2
            for task in range(tl.program_id(0), world * cols, tl.num_programs(0)):
                source = (rank + task // cols) % world
                slot = buffer * world + source
                token = dl.wait(ready_ptr + slot * SLOT, 1, "npu", "acquire", waitValue=number.to(tl.int64))
                panel_ptr = dl.consume_token(buffer_ptr, token) + slot * T * K
                rows = (step - 1) * T + span
                ns = task % cols * T + span
                mask_m = rows[:, None] < tl.minimum(S, M - source * S)
                acc = tl.zeros((T, T), dtype=tl.float32)
                for block_k in range(0, tl.cdiv(K, T)):
                    ks = block_k * T + span
                    mask = mask_m & (ks[None, :] < K)
                    a = tl.load(panel_ptr + span[:, None] * K + ks[None, :], mask=mask, other=0.0)
                    mask = (ks[:, None] < K) & (ns[None, :] < N)
                    b = tl.load(b_ptr + ks[:, None] * N + ns[None, :], mask=mask, other=0.0)
                    acc += tl.dot(a, b)
                c_ptrs = c_ptr + (source * S + rows)[:, None] * N + ns[None, :]
                mask = ((source * S + rows)[:, None] < M) & (ns[None, :] < N)  # FAULT: the next shard's rows too
                tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask)
                libshmem_device.fence()
                credit = ((buffer * world + rank) * cols + task % cols) * SLOT
                dl.notify(credit_ptr + credit, source, signal=number.to(tl.int64), sig_op="set")


@operator(workspace=GemmWorkspace, **GEMM)
def op(rt, case, workspace, a, b):
    c = torch.empty((case["m"], case["n"]), dtype=a.dtype)
    sizes = (workspace.first_round(), workspace.shard, case["m"], case["n"], case["k"])
    gemm_kernel[workspace.grid](
        a, b, c, workspace.buffer, workspace.ready, workspace.credit, *sizes, T=TILE, SLOT=INT64_SLOT
    )
    return c
