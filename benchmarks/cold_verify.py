"""The whole command, from process start to verdict, with an empty cache of generated code."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import measure

CASES = ((512, 12.0), (1024, 20.0))
ROUNDS = 3


def main() -> None:
    command = [sys.executable, "-m", "tdist.verify.cli", "ag_gemm", "--dtype", "fp16", "--nranks", "4"]
    for size, goal_s in CASES:
        seconds = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                done = subprocess.run(
                    [*command, "--shape", f"m={size},n={size},k={size}"],
                    env={**os.environ, "TDIST_CACHE_DIR": folder},
                    stdout=subprocess.DEVNULL,
                )
                seconds.append(time.perf_counter() - start)
                if done.returncode:
                    raise SystemExit(f"tdist-verify exited {done.returncode} at {size}")
        took = measure.median_ms(seconds) / 1e3
        measure.print_ratio(
            f"tdist-verify ag_gemm {size}^3, cold: seconds / goal", took / goal_s, "<= 1", f"{took:.1f} s"
        )


if __name__ == "__main__":
    main()
