"""Simulated ag_gemm against torch.mm in float32 of the same multiplication, FLOP/s; detection on.

m = n = k = 1024 on each of 4 ranks (A of 1024 x 1024 in all, sharded by rows).
"""

from __future__ import annotations

import measure

GOALS = {(128, 256, 256): 0.65, (64, 64, 64): 0.5}
RANKS = 4
SIZE = 1024


def main() -> None:
    measure.one_thread()
    import torch

    from tdist.kernels.ag_gemm import Tiling, ag_gemm, create_context
    from tdist.platforms.sim.world import World
    from tdist.verify.heap import ensure_shmem

    print(measure.machine_line())
    a32, b32 = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    shards, b = a32.half().chunk(RANKS), b32.half()
    for tile, goal in GOALS.items():
        for sync in ("fine", "barrier"):
            with World(nranks=RANKS, detect=True, heap_bytes=64 << 20) as world:
                contexts = world.run(
                    lambda rt, tile=tile, sync=sync: [
                        ensure_shmem(rt),
                        create_context(rt, SIZE, SIZE, SIZE, torch.float16, sync=sync, tiling=Tiling(*tile)),
                    ]
                )

                def launch(rt, contexts=contexts):
                    ag_gemm(contexts[rt.rank][1], shards[rt.rank], b)
                    rt.synchronize()

                seconds = measure.interleaved(
                    {
                        "sim": lambda world=world, launch=launch: world.run(launch),
                        "torch": lambda: [torch.mm(a32, b32) for _ in range(RANKS)],
                    }
                )
                world.raise_for_findings()
            sim, ref = measure.median_ms(seconds["sim"]), measure.median_ms(seconds["torch"])
            name = f"ag_gemm {sync} {'x'.join(map(str, tile))}: sim / torch.mm FLOP/s"
            measure.print_ratio(name, ref / sim, f">= {goal}", f"{sim:.0f} ms against {ref:.0f} ms")


if __name__ == "__main__":
    main()
