"""A deadlock of 8 rank processes, from the start of their host functions to the report on every rank.

That is more than asked for, which is the time from quiescence on: opening the heap and the launch are in it. The kernel
waits for a signal that nobody sends.
"""

from __future__ import annotations

import time

import measure
import triton
import triton.language as tl

import tdist.language as dl
import tdist.shmem as ash
from tdist.errors import WorldStopped

NRANKS = 8
PROGRAMS = 4
GOAL_SECONDS = 1.0


@triton.jit
def waits_for_ever(sig_ptr, out_ptr):
    slot = tl.program_id(0) * dl.SIGNAL_SLOT_STRIDE(sig_ptr)
    token = dl.wait(sig_ptr + slot, 1, "npu", "acquire", waitValue=1)
    tl.store(out_ptr + tl.program_id(0), tl.load(dl.consume_token(sig_ptr, token) + slot))


def stuck(rt) -> None:
    """Launch it and wait; does not come back but by an error."""
    import torch

    from tdist.verify.heap import ensure_shmem

    ensure_shmem(rt)
    sig = ash.aclshmem_create_tensor((PROGRAMS * 8,), dtype=torch.int64)
    sig.zero_()
    rt.synchronize()
    rt.host_barrier()
    waits_for_ever[(PROGRAMS,)](sig, torch.zeros(PROGRAMS, dtype=torch.int64))
    rt.synchronize()


def main() -> None:
    from tdist.platforms.sim.process.pool import RankPool
    from tdist.platforms.sim.world_config import WorldConfig

    measure.one_thread()
    print(measure.machine_line())
    with RankPool(NRANKS, WorldConfig(nranks=NRANKS, heap_bytes=1 << 24)) as pool:
        for run in ("cold", "warm"):
            pool.reset(WorldConfig(nranks=NRANKS, heap_bytes=1 << 24))
            start = time.perf_counter()
            told = pool.run(f"{__file__}::stuck")
            seconds = time.perf_counter() - start
            if not all(isinstance(error, WorldStopped) for error in told):
                raise SystemExit("not every rank was told")
            (found,) = [finding for finding in pool.findings() if finding.kind == "tdist.deadlock"]
            measure.print_ratio(
                f"{NRANKS} ranks x {PROGRAMS} programs, deadlock to report, {run}: seconds / {GOAL_SECONDS:.0f} s",
                seconds / GOAL_SECONDS,
                "<= 1",
                f"{seconds * 1e3:.0f} ms; {found.title}",
            )


if __name__ == "__main__":
    main()
