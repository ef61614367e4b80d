"""Race detection on over off: ag_gemm warm, and a push all_gather with 2 KiB tiles with cold records; shadow bytes."""

from __future__ import annotations

import measure

RANKS = 4
SIZE = 1024


def main() -> None:
    measure.one_thread()
    import torch

    from tdist.kernels.ag_gemm import Tiling, ag_gemm, create_context
    from tdist.platforms.sim.world import World
    from tdist.verify.heap import ensure_shmem

    print(measure.machine_line())
    shards = torch.randn(SIZE, SIZE).half().chunk(RANKS)
    b = torch.randn(SIZE, SIZE).half()
    for tile in ((128, 256, 256), (64, 64, 64)):
        for sync in ("fine", "barrier"):
            worlds = {detect: World(nranks=RANKS, detect=detect) for detect in (True, False)}
            subjects = {}
            for detect, world in worlds.items():
                world.__enter__()
                contexts = world.run(
                    lambda rt, tile=tile, sync=sync: [
                        ensure_shmem(rt),
                        create_context(rt, SIZE, SIZE, SIZE, torch.float16, sync=sync, tiling=Tiling(*tile)),
                    ]
                )

                def launch(rt, contexts=contexts):
                    ag_gemm(contexts[rt.rank][1], shards[rt.rank], b)
                    rt.synchronize()

                subjects[str(detect)] = lambda world=world, launch=launch: world.run(launch)
            seconds = measure.interleaved(subjects)
            for world in worlds.values():
                world.close()
            on, off = measure.median_ms(seconds["True"]), measure.median_ms(seconds["False"])
            name = f"ag_gemm {sync} {'x'.join(map(str, tile))}: detection on / off, warm"
            measure.print_ratio(name, on / off, "<= 1.3", f"{on:.0f} ms against {off:.0f} ms")
    all_gather_cold()


def all_gather_cold() -> None:
    """Each round is a world of its own: every record is new. Prints the shadow's size by that of what tiles touch."""
    import torch

    from tdist.kernels.all_gather import all_gather, create_context
    from tdist.platforms.sim.world import World
    from tdist.verify.heap import ensure_shmem

    elems = 256 * 1024  # 512 KiB of fp16 a rank
    shards = [torch.randn(elems // 1024, 1024).half() for _ in range(RANKS)]
    times: dict[bool, list[float]] = {True: [], False: []}
    shadow_bytes = 0
    for _ in range(measure.ROUNDS + 1):
        for detect in (True, False):
            with World(nranks=RANKS, detect=detect) as world:
                contexts = world.run(
                    lambda rt: [
                        ensure_shmem(rt),
                        create_context(rt, RANKS * elems // 1024, 1024, torch.float16, block_elems=1024),
                    ]
                )

                def launch(rt, contexts=contexts):
                    all_gather(contexts[rt.rank][1], shards[rt.rank])
                    rt.synchronize()

                times[detect].append(measure.cpu_seconds(lambda world=world, launch=launch: world.run(launch)))
                world.raise_for_findings()
                if detect:
                    shadow_bytes = world.engine.detector.stats().shadow_bytes
    on, off = measure.median_ms(times[True][1:]), measure.median_ms(times[False][1:])
    measure.print_ratio(
        "all_gather 2 KiB tiles: detection on / off, cold", on / off, "<= 2", f"{on:.0f} against {off:.0f} ms"
    )
    shard_bytes = 2 * elems
    touched_bytes = RANKS * (shard_bytes + RANKS * shard_bytes * 2)  # own shard, every shard in the buffer, the result
    measure.print_ratio(
        "all_gather 2 KiB tiles: shadow / memory touched",
        shadow_bytes / touched_bytes,
        "<= 0.25",
        f"{shadow_bytes / 1e6:.1f} MB of {touched_bytes / 1e6:.1f} MB",
    )


if __name__ == "__main__":
    main()
