"""A plain fp16 GEMM of 1024^3 on one rank against Triton's own interpreter (TRITON_INTERPRET=1), interleaved.

The interpreter runs in a process of its own that answers one line a request, since the choice is made at import.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import measure

GOALS = {(128, 256, 256): 20, (64, 64, 64): 80}
ROUNDS = {(128, 256, 256): 9, (64, 64, 64): 3}
SIZE = 1024


def interpreter_server() -> None:
    measure.one_thread()
    import torch
    from kernels import gemm

    a, b = torch.randn(SIZE, SIZE).half(), torch.randn(SIZE, SIZE).half()
    c = torch.empty(SIZE, SIZE, dtype=torch.float16)
    print("ready", flush=True)
    for line in sys.stdin:
        bm, bn, bk = map(int, line.split())
        start = time.perf_counter()
        gemm[(-(-SIZE // bm) * -(-SIZE // bn),)](a, b, c, SIZE, SIZE, SIZE, BM=bm, BN=bn, BK=bk)
        print(time.perf_counter() - start, flush=True)


def main() -> None:
    measure.one_thread()
    import torch
    from kernels import gemm

    from tdist.platforms.sim.world import World

    print(measure.machine_line())
    child = subprocess.Popen(
        [sys.executable, __file__, "interpreter"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin and child.stdout
    child.stdout.readline()
    a, b = torch.randn(SIZE, SIZE).half(), torch.randn(SIZE, SIZE).half()
    c = torch.empty(SIZE, SIZE, dtype=torch.float16)
    for tile, goal in GOALS.items():
        bm, bn, bk = tile

        def launch(rt, bm=bm, bn=bn, bk=bk):
            gemm[(-(-SIZE // bm) * -(-SIZE // bn),)](a, b, c, SIZE, SIZE, SIZE, BM=bm, BN=bn, BK=bk)
            rt.synchronize()

        sim, ref = [], []
        with World(nranks=1, detect=True) as world:
            world.run(launch)
            for _ in range(ROUNDS[tile]):
                child.stdin.write(f"{bm} {bn} {bk}\n")
                child.stdin.flush()
                ref.append(float(child.stdout.readline()))
                start = time.perf_counter()
                world.run(launch)
                sim.append(time.perf_counter() - start)
        t_sim, t_ref = measure.median_ms(sim), measure.median_ms(ref)
        name = f"gemm {'x'.join(map(str, tile))}: interpreter / sim time"
        measure.print_ratio(name, t_ref / t_sim, f">= {goal}", f"{t_sim:.0f} ms against {t_ref:.0f} ms")
    child.stdin.close()
    child.wait(60)


if __name__ == "__main__":
    interpreter_server() if sys.argv[1:] == ["interpreter"] else main()
