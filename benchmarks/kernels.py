"""Kernels that only benchmarks need."""

import triton
import triton.language as tl


@triton.jit
def gemm(a_ptr, b_ptr, c_ptr, M, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A @ B, one output tile a program, masked on all sides.

    K is a constant, since the interpreter cannot loop to a tensor under numpy 2.
    """
    pid = tl.program_id(0)
    cols = tl.cdiv(N, BN)
    offs_m = pid // cols * BM + tl.arange(0, BM)
    offs_n = pid % cols * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for block_k in range(0, tl.cdiv(K, BK)):
        offs_k = block_k * BK + tl.arange(0, BK)
        mask_a = (offs_m[:, None] < M) & (offs_k[None, :] < K)
        mask_b = (offs_k[:, None] < K) & (offs_n[None, :] < N)
        a = tl.load(a_ptr + offs_m[:, None] * K + offs_k[None, :], mask=mask_a, other=0.0)
        b = tl.load(b_ptr + offs_k[:, None] * N + offs_n[None, :], mask=mask_b, other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    mask_c = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(tl.float16), mask=mask_c)
