"""All-gather + GEMM in one kernel: C = concat(A of all ranks) @ B, while the panels of A still travel.

Shapes: `R` ranks; A is `M x K`, rank r holds rows `[r*S, min((r+1)*S, M))` with `S = ceil(M / R)` (the last ranks may
hold fewer or none); B is `K x N`, another one on each rank; C is `M x N` on each rank. A *panel* is `BM` rows of A over
all of K; a rank has `P = max(1, ceil(S / BM))` panels, dealt to `Q = ceil(P / T)` rounds of `T` panels. Panels past the
end are empty: they are signalled like full ones and their masks are false.

The buffer holds `NB >= 2` rounds: `[NB, R, T, BM, K]`. Round q is pushed one step before it is multiplied, so pushes of
the next round overlap with the dots of this one. Rounds are numbered through all launches on one workspace.

Two forms, chosen when the context is made:

- *fine*: `ready[buffer, source, panel]` on the consumer is set to the round's number when the panel has been pushed;
  `credit[buffer, panel, consumer, column]` on the source is set to it when that output tile's loads are done. Before a
  panel overwrites the one of `NB` rounds ago its pusher waits for the credits of all column tiles of that consumer.
  Every word has one writer and no write can overtake a poll: the next `ready` comes after the credits of all who polled
  the last one, the next credit comes after a panel that was pushed after the last credit had been seen. So nothing is
  left to reset, and a launch needs no exit protocol: its successor waits for the credits that this one gives.
- *barrier*: one `barrier_all` at the end of each step. The last one is the exit barrier.

What the vendor's compiler (bishengir 1.2.0) makes of the fine form: pushes go to the vector cores, of which a program
has two, dots and the stores of C to the cube core, and so do the signals. Left alone it lets each vector core store
half of the rows of a panel and signal `ready` for the whole. So each core pushes panels of its own (`OWN_PANELS`).
`FENCE` drains a panel before its signal; without it, compile with inject-barrier-all-sync. docs/compiled-effects.md has
the table.
"""

# Triton types constexpr parameters by their annotation; callers pass plain values.
# pyright: reportArgumentType=false

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

import tdist.language as dl
import tdist.shmem as ash
from tdist.errors import UsageError
from tdist.kernels.signal_slots import allocate_slots, check_addressable, rows_of, settle, shard_rows
from tdist.language.extra import libshmem_device
from tdist.language.extra.cann.extension import sub_vec_id, sub_vec_num
from tdist.platforms.base import RankRuntime

_SIZES = ["first_round", "shard_rows", "M", "N", "K"]


@triton.jit
def _column_of(task, cols):
    """Column block of a task: panels are dealt in grid strides, each turned so that a program keeps its columns of B.

    Task and task + programs have one column block wherever the panel has moved on by programs // cols, if that is at
    most 1; each panel's `cols` tasks have all column blocks in any case.
    """
    turn = cols - tl.num_programs(0) % cols
    return (task + task // cols * turn) % cols


@triton.jit
def _push_panel(a_ptr, panel_ptr, target, first_row, rows, K, BM: tl.constexpr, BK: tl.constexpr):
    """Store the panel of A that starts at `first_row` into `target`'s buffer, tile by tile."""
    remote_ptr = dl.symm_at(panel_ptr, target)
    offs_slot = tl.arange(0, BM)
    offs_m = first_row + offs_slot
    for block_k in range(0, tl.cdiv(K, BK)):
        offs_k = block_k * BK + tl.arange(0, BK)
        mask = (offs_m[:, None] < rows) & (offs_k[None, :] < K)
        tile = tl.load(a_ptr + offs_m[:, None] * K + offs_k[None, :], mask=mask, other=0.0)
        tl.store(remote_ptr + offs_slot[:, None] * K + offs_k[None, :], tile, mask=mask)


@triton.jit
def _multiply_panel(
    panel_ptr,
    b_ptr,
    c_ptr,
    first_row,
    rows,
    block_n,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """One output tile: a panel in the local buffer times a column block of B, stored at `c_ptr` (the source's rows)."""
    offs_slot = tl.arange(0, BM)
    offs_m = first_row + offs_slot
    offs_n = block_n * BN + tl.arange(0, BN)
    mask_m = offs_m[:, None] < rows
    mask_n = offs_n[None, :] < N
    accumulator = tl.zeros((BM, BN), dtype=tl.float32)
    for block_k in range(0, tl.cdiv(K, BK)):
        offs_k = block_k * BK + tl.arange(0, BK)
        a = tl.load(
            panel_ptr + offs_slot[:, None] * K + offs_k[None, :], mask=mask_m & (offs_k[None, :] < K), other=0.0
        )
        b = tl.load(b_ptr + offs_k[:, None] * N + offs_n[None, :], mask=(offs_k[:, None] < K) & mask_n, other=0.0)
        accumulator += tl.dot(a, b, input_precision="ieee")
    c = accumulator.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], c, mask=mask_m & mask_n)


@triton.jit(do_not_specialize=_SIZES)
def ag_gemm_fine_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    buffer_ptr,
    ready_ptr,
    credit_ptr,
    first_round,
    shard_rows,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PANELS: tl.constexpr,
    BUFFERS: tl.constexpr,
    FENCE: tl.constexpr,
    OWN_PANELS: tl.constexpr,
):
    """Push panels with a signal each, multiply them as they arrive, give credit for each output tile.

    Shape: a [rows of this shard, K], b [K, N], c [M, N], buffer [BUFFERS, R, PANELS, BM, K],
        ready [BUFFERS, R, PANELS] and credit [BUFFERS, PANELS, R, ceil(N/BN)] slots, 64 bytes apart.
    Dtype: a, b, c, buffer alike (fp16, bf16, fp32); products accumulate in float32; signals int64 or int32.
    Ordering: a panel is released by its `ready` signal, its loads by the credit; `FENCE` drains before either leaves
        (needed under `ascend`, not under `seed`). `OWN_PANELS` deals panels to the vector cores one by one, so that
        a core signals what it stored itself. On return every panel has been acquired; credits are under way.
    Source: Single Operator Development §1–3, §5–6;
        Triton-distributed Semantics "AllGather and GEMM Overlapping", "Threadblock Swizzling".
    """
    rank = dl.rank()
    world = dl.num_ranks()
    stride: tl.constexpr = dl.SIGNAL_SLOT_STRIDE(ready_ptr)
    cols = tl.cdiv(N, BN)
    rounds = tl.maximum(tl.cdiv(tl.cdiv(shard_rows, BM), PANELS), 1)
    my_rows = tl.minimum(shard_rows, M - rank * shard_rows)
    pusher = tl.program_id(0)
    pushers = tl.num_programs(0)
    if OWN_PANELS:
        pusher = pusher * sub_vec_num() + sub_vec_id().to(tl.int32)
        pushers *= sub_vec_num()
    for step in range(0, rounds + 1):
        if step < rounds:
            number = first_round + step
            buffer = number % BUFFERS
            for task in range(pusher, world * PANELS, pushers):
                target = (rank + task % world) % world
                panel = task // world
                credits_ptr = credit_ptr + ((buffer * PANELS + panel) * world + target) * cols * stride
                last_number = tl.maximum(number - BUFFERS, 0).to(credit_ptr.dtype.element_ty)
                freed = dl.wait(credits_ptr, cols, "npu", "acquire", waitValue=last_number)
                slot = (buffer * world + rank) * PANELS + panel
                panel_ptr = dl.consume_token(buffer_ptr, freed) + slot * BM * K
                _push_panel(a_ptr, panel_ptr, target, (step * PANELS + panel) * BM, my_rows, K, BM, BK)
                if FENCE:
                    libshmem_device.fence()
                dl.notify(ready_ptr + slot * stride, target, signal=number.to(tl.int64), sig_op="set")
        if step > 0:
            number = first_round + step - 1
            buffer = number % BUFFERS
            for task in range(tl.program_id(0), world * PANELS * cols, tl.num_programs(0)):
                source = (rank + task // (PANELS * cols)) % world
                panel = task // cols % PANELS
                block_n = _column_of(task, cols)
                slot = (buffer * world + source) * PANELS + panel
                arrived = dl.wait(
                    ready_ptr + slot * stride, 1, "npu", "acquire", waitValue=number.to(ready_ptr.dtype.element_ty)
                )
                panel_ptr = dl.consume_token(buffer_ptr, arrived) + slot * BM * K
                rows = tl.minimum(shard_rows, M - source * shard_rows)
                first_row = ((step - 1) * PANELS + panel) * BM
                source_c_ptr = c_ptr + source * shard_rows * N
                _multiply_panel(panel_ptr, b_ptr, source_c_ptr, first_row, rows, block_n, N, K, BM, BN, BK)
                if FENCE:
                    libshmem_device.fence()
                credit_slot = ((buffer * PANELS + panel) * world + rank) * cols + block_n
                dl.notify(credit_ptr + credit_slot * stride, source, signal=number.to(tl.int64), sig_op="set")


@triton.jit(do_not_specialize=_SIZES)
def ag_gemm_barrier_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    buffer_ptr,
    shard_rows,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PANELS: tl.constexpr,
    BUFFERS: tl.constexpr,
):
    """Push a round, multiply the one before, meet all ranks; the last barrier is the exit barrier.

    Shape: as the fine form, without signals.
    Ordering: `barrier_all` in a kernel with `tl.dot` drains every participant in both profiles. On return no peer reads
        what this rank pushed any more.
    Source: Distributed Architecture Design §3.4, §6.4; Single Operator Development §5.
    """
    rank = dl.rank()
    world = dl.num_ranks()
    cols = tl.cdiv(N, BN)
    rounds = tl.maximum(tl.cdiv(tl.cdiv(shard_rows, BM), PANELS), 1)
    my_rows = tl.minimum(shard_rows, M - rank * shard_rows)
    for step in range(0, rounds + 1):
        if step < rounds:
            for task in range(tl.program_id(0), world * PANELS, tl.num_programs(0)):
                target = (rank + task % world) % world
                panel = task // world
                slot = (step % BUFFERS * world + rank) * PANELS + panel
                panel_ptr = buffer_ptr + slot * BM * K
                _push_panel(a_ptr, panel_ptr, target, (step * PANELS + panel) * BM, my_rows, K, BM, BK)
        if step > 0:
            for task in range(tl.program_id(0), world * PANELS * cols, tl.num_programs(0)):
                source = (rank + task // (PANELS * cols)) % world
                panel = task // cols % PANELS
                block_n = _column_of(task, cols)
                slot = ((step - 1) % BUFFERS * world + source) * PANELS + panel
                panel_ptr = buffer_ptr + slot * BM * K
                rows = tl.minimum(shard_rows, M - source * shard_rows)
                first_row = ((step - 1) * PANELS + panel) * BM
                source_c_ptr = c_ptr + source * shard_rows * N
                _multiply_panel(panel_ptr, b_ptr, source_c_ptr, first_row, rows, block_n, N, K, BM, BN, BK)
        libshmem_device.barrier_all()


@dataclass(frozen=True)
class Tiling:
    """How the work is cut: tile `block_m x block_n x block_k`, panels a round, rounds that the buffer holds."""

    block_m: int
    block_n: int
    block_k: int
    panels: int = 2
    buffers: int = 2

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k", "panels"):
            if getattr(self, name) < 1:
                raise UsageError(f"ag_gemm needs {name} >= 1, got {getattr(self, name)}")
        if self.buffers < 2:
            raise UsageError(f"ag_gemm pushes one round ahead and needs buffers >= 2, got {self.buffers}")


def default_tiling(m: int, n: int, k: int, nranks: int) -> Tiling:
    """Tiles that give each rank several panels and rounds where the shape allows it, at most 128 x 256 x 256."""
    return Tiling(_tile(shard_rows(m, nranks), 128, parts=4), _tile(n, 256, parts=2), _tile(k, 256, parts=2))


def _tile(size: int, limit: int, parts: int) -> int:
    """The power of two from 16 to `limit` that cuts `size` into at least `parts` tiles, if one does."""
    tile = limit
    while tile > 16 and -(-size // tile) < parts:
        tile //= 2
    return tile


@dataclass
class AgGemmContext:
    """Workspace of one AG+GEMM shape on one rank; rounds on it are numbered from 1 through all launches.

    Make it with `create_context` (collective), give it back with `close` (collective).
    """

    runtime: RankRuntime
    m: int
    n: int
    k: int
    dtype: torch.dtype
    sync: str
    tiling: Tiling
    programs: int
    buffer: torch.Tensor
    ready: torch.Tensor | None = None
    credit: torch.Tensor | None = None
    next_round: int = 1
    allocations: list[torch.Tensor] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """Rounds of one launch."""
        return max(1, -(-shard_rows(self.m, self.runtime.nranks) // (self.tiling.block_m * self.tiling.panels)))

    def close(self) -> None:
        """Free the workspace (collective).

        Ordering: waits for this rank's stream and then for the other hosts, since credits may be under way.
        """
        settle(self.runtime)
        for tensor in self.allocations:
            ash.aclshmem_free_tensor(tensor)
        self.allocations.clear()


def create_context(
    runtime: RankRuntime,
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    *,
    sync: str = "fine",
    tiling: Tiling | None = None,
    programs: int | None = None,
    signal_dtype: torch.dtype = torch.int64,
) -> AgGemmContext:
    """Allocate the workspace for `(m x k) @ (k x n)` with A sharded by rows (collective).

    Args:
        sync: "fine" (signals and credits) or "barrier" (barriers over all ranks).
        tiling: by default what `default_tiling` picks.
        programs: programs of a launch; by default as many as there is work for, never more than cube cores. It has to
            be the same on all ranks in the barrier form.
        signal_dtype: of the fine form's signals, int64 or int32.
    """
    if sync not in ("fine", "barrier"):
        raise UsageError(f"ag_gemm has no sync form {sync!r}; it has: fine, barrier")
    if signal_dtype not in (torch.int64, torch.int32):
        raise UsageError(f"ag_gemm signals with torch.int64 or torch.int32 words, got {signal_dtype}")
    nranks = runtime.nranks
    cut = tiling or default_tiling(m, n, k, nranks)
    columns = -(-n // cut.block_n)
    slots = cut.buffers * nranks * cut.panels
    for what, elems in (("the ag_gemm workspace", slots * cut.block_m * k), ("B", k * n), ("C", m * n)):
        check_addressable(what, elems)
    if programs is None:
        programs = min(runtime.cube_cores, nranks * cut.panels * columns)
    buffer = ash.aclshmem_create_tensor((slots * cut.block_m, k), dtype=dtype, device_id=runtime.rank)
    context = AgGemmContext(runtime, m, n, k, dtype, sync, cut, programs, buffer)
    context.allocations.append(buffer)
    if sync == "fine":
        ready, context.ready = allocate_slots(slots, signal_dtype, runtime.rank)
        credit, context.credit = allocate_slots(slots * columns, signal_dtype, runtime.rank)
        context.allocations += [ready, credit]
    settle(runtime)
    return context


def ag_gemm(
    context: AgGemmContext, a: torch.Tensor, b: torch.Tensor, *, fence: bool = True, own_panels: bool = True
) -> torch.Tensor:
    """Queue one AG+GEMM of this rank's shard `a` with its own `b`; may be called again on the same context at once.

    Args:
        fence: drain a panel before its signal leaves (fine form).
        own_panels: each vector core pushes panels of its own (fine form); otherwise how they share the rows of each is
            left to the compiler.

    Shape: a [rows of this rank's shard, K], b [K, N], result [M, N].
    Ordering: returns before the launch has run; the result is ready after a synchronise.
    """
    _check_operands(context, a, b)
    c = torch.empty((context.m, context.n), dtype=a.dtype, device=a.device)
    cut = context.tiling
    grid = (context.programs,)
    sizes = (shard_rows(context.m, context.runtime.nranks), context.m, context.n, context.k)
    meta = {"BM": cut.block_m, "BN": cut.block_n, "BK": cut.block_k, "PANELS": cut.panels, "BUFFERS": cut.buffers}
    if context.sync == "barrier":
        ag_gemm_barrier_kernel[grid](a, b, c, context.buffer, *sizes, **meta)
        return c
    first_round = context.next_round
    context.next_round += context.rounds
    if context.next_round >= 2**31:
        raise UsageError("this ag_gemm context has used up its int32 round numbers: close it and make a new one")
    signals = (context.ready, context.credit)
    meta |= {"FENCE": fence, "OWN_PANELS": own_panels}
    ag_gemm_fine_kernel[grid](a, b, c, context.buffer, *signals, first_round, *sizes, **meta)
    return c


def _check_operands(context: AgGemmContext, a: torch.Tensor, b: torch.Tensor) -> None:
    rows = rows_of(context.runtime.rank, context.m, context.runtime.nranks)
    for name, tensor, shape in (("a", a, (rows, context.k)), ("b", b, (context.k, context.n))):
        if tuple(tensor.shape) != shape or tensor.dtype != context.dtype or not tensor.is_contiguous():
            raise UsageError(
                f"ag_gemm on rank {context.runtime.rank} takes {name} of shape {shape}, {context.dtype}, contiguous; "
                f"got {tuple(tensor.shape)}, {tensor.dtype}"
            )
