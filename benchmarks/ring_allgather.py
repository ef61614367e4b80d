"""Ring all-gather of 1024 x 256 float32 shards in 64 KiB chunks, detection on, at 2, 4 and 8 ranks.

The reference is the closest relative: the Pallas interpreter for TPUs of JAX with `detect_races=True`, which runs N
devices on a CPU. It is asked for the same chunks over the same ring. Wall time on both sides, since it uses threads.
Its devices block threads of a pool that is as large as `NPROC` says, and hang if that is too small. It needs an
interpreter that has `jax`: this one, or `--jax PYTHON`.

    python benchmarks/ring_allgather.py [--jax path/to/python]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import measure
import triton
import triton.language as tl

import tdist.language as dl
import tdist.shmem as ash
from tdist.language.extra import libshmem_device

RANKS = (2, 4, 8)
ROWS, COLUMNS = 1024, 256
CHUNK_ROWS = 64
"""64 KiB of float32."""
CHUNKS = ROWS // CHUNK_ROWS
ROUNDS = 7
REFERENCE_THREADS = 32
REFERENCE = Path(__file__).with_name("ring_allgather_jax.py")


@triton.jit
def ring_kernel(x_ptr, gathered_ptr, sig_ptr, epoch, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BM: tl.constexpr):
    """Every rank passes on to its right neighbour what it has: its own shard first, then what came from the left."""
    rank, world = dl.rank(), dl.num_ranks()
    right = (rank + 1) % world
    stride: tl.constexpr = dl.SIGNAL_SLOT_STRIDE(sig_ptr)
    chunks: tl.constexpr = ROWS // BM
    tile = tl.arange(0, BM)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    for chunk in range(0, chunks):
        offset = (rank * ROWS + chunk * BM) * COLUMNS
        tl.store(gathered_ptr + offset + tile, tl.load(x_ptr + chunk * BM * COLUMNS + tile))
    for step in range(0, world - 1):
        sent = (rank - step + world) % world
        for chunk in range(0, chunks):
            offset = (sent * ROWS + chunk * BM) * COLUMNS
            source_ptr = gathered_ptr
            if step > 0:
                slot = ((step - 1) * chunks + chunk) * stride
                token = dl.wait(sig_ptr + slot, 1, "npu", "acquire", waitValue=epoch)
                source_ptr = dl.consume_token(gathered_ptr, token)
            data = tl.load(source_ptr + offset + tile)
            tl.store(dl.symm_at(gathered_ptr, right) + offset + tile, data)
            libshmem_device.fence()
            dl.notify(sig_ptr + (step * chunks + chunk) * stride, right, signal=epoch, sig_op="set")
    libshmem_device.barrier_all()


def our_seconds(nranks: int) -> list[float]:
    """Wall time of launches on warm ranks; the first is checked, and every one has to be clean."""
    import torch

    from tdist.platforms.sim.world import World
    from tdist.verify.heap import ensure_shmem

    heap_bytes = 2 * nranks * ROWS * COLUMNS * 4 + (8 << 20)
    with World(nranks=nranks, detect=True, heap_bytes=heap_bytes) as world:

        def setup(rt):
            ensure_shmem(rt)
            own = SimpleNamespace(
                x=torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(rt.rank)),
                gathered=ash.aclshmem_create_tensor((nranks * ROWS, COLUMNS), dtype=torch.float32),
                sig=ash.aclshmem_create_tensor((nranks * CHUNKS, 8), dtype=torch.int64),
                epoch=0,
            )
            own.sig.zero_()
            rt.synchronize()
            rt.host_barrier()
            return own

        state = world.run(setup)

        def launch(rt):
            own = state[rt.rank]
            own.epoch += 1
            ring_kernel[(1,)](own.x, own.gathered, own.sig, own.epoch, ROWS=ROWS, COLUMNS=COLUMNS, BM=CHUNK_ROWS)
            rt.synchronize()

        def gathered(rt):
            mine = state[rt.rank].gathered.clone()
            rt.host_barrier()  # the next launch stores into it
            return mine

        world.run(launch)
        whole = torch.cat(
            [torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(r)) for r in range(nranks)]
        )
        if not all(torch.equal(result, whole) for result in world.run(gathered)):
            raise SystemExit(f"{nranks} ranks gathered something else")
        seconds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            world.run(launch)
            seconds.append(time.perf_counter() - start)
        world.raise_for_findings()
    return seconds


def reference_seconds(python: str, nranks: int) -> list[float]:
    """The same of the reference, in a process of its own."""
    environment = {
        **os.environ,
        "NPROC": str(REFERENCE_THREADS),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={nranks}",
    }
    argv = [python, str(REFERENCE), *map(str, (nranks, ROWS, COLUMNS, CHUNK_ROWS, ROUNDS))]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise SystemExit(f"the reference failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def events(nranks: int) -> int:
    """Loads, stores, fences, notifies and waits of one launch on all ranks."""
    pushes = (nranks - 1) * CHUNKS
    return nranks * (2 * CHUNKS + 4 * pushes + (nranks - 2) * CHUNKS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jax", metavar="PYTHON", help="an interpreter that has jax, if this one has not")
    python = parser.parse_args().jax or (sys.executable if importlib.util.find_spec("jax") else None)
    measure.one_thread()
    print(measure.machine_line())
    if python is None:
        print("jax is not installed here: only our side is measured (--jax PYTHON names an interpreter that has it)")
    for nranks in RANKS:
        ours = statistics.median(our_seconds(nranks))
        detail = f"{ours * 1e3:.1f} ms, {ours * 1e6 / events(nranks):.1f} us per event ({events(nranks)} events)"
        if python is None:
            print(f"ring all-gather, {nranks} ranks: {detail}")
            continue
        theirs = statistics.median(reference_seconds(python, nranks))
        goal = ">= 10" if nranks >= 4 else "-"
        name = f"ring all-gather, {nranks} ranks: Pallas interpreter / simulated"
        measure.print_ratio(name, theirs / ours, goal, f"{detail} against {theirs * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
