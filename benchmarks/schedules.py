"""Schedules per second: random schedules of ag_gemm at m=n=k=64 on 4 ranks, detection on, whole and without hosts.

Then one schedule of an exploration, with symbolic tiles and with all of them, in seconds of CPU.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import measure

RANKS = 4
SIZE = 64
LARGE_SIZE = 512
GOAL_SECONDS = 60.0
SCHEDULES = 1000


def main() -> None:
    measure.one_thread()
    from tdist.verify.loader import load_operator
    from tdist.verify.options import Options
    from tdist.verify.rank_job import Job
    from tdist.verify.search.explore import Rerunner
    from tdist.verify.worlds import RunSpec, ThreadRunner

    print(measure.machine_line())
    operator = load_operator("ag_gemm")
    case = operator.case(dtype="fp16", nranks=RANKS, shape={"m": SIZE, "n": SIZE, "k": SIZE}, seed=0)
    whole, without = ThreadRunner(operator, Options(nranks=RANKS)), Rerunner(operator)
    for sync in ("fine", "barrier"):
        job = Job("ag_gemm", replace(case, sync=sync), judge=False, policy="exact")
        spec = RunSpec(job, {"heap_bytes": 1 << 30, "scheduler": "random"})
        seeds = {"whole": itertools.count(), "without hosts": itertools.count()}
        subjects = {
            "whole": lambda spec=spec, seeds=seeds: whole.execute(spec.with_world(seed=next(seeds["whole"]))),
            "without hosts": lambda spec=spec, seeds=seeds: without.execute(
                spec.with_world(seed=next(seeds["without hosts"]))
            ),
        }
        seconds = measure.interleaved(subjects, rounds=25)
        one, other = (measure.median_ms(seconds[name]) for name in subjects)
        measure.print_ratio(
            f"ag_gemm {sync} 64^3: without hosts / whole", other / one, "", f"{other:.0f} of {one:.0f} ms"
        )
        figure = other / 1e3 * SCHEDULES / GOAL_SECONDS
        detail = f"{1e3 / other:.0f} a second, {SCHEDULES} in {other / 1e3 * SCHEDULES:.0f} s of CPU"
        measure.print_ratio(
            f"ag_gemm {sync} 64^3: {SCHEDULES} schedules / {GOAL_SECONDS:.0f} s", figure, "<= 1", detail
        )
    thousand(without, spec)
    for size in (SIZE, LARGE_SIZE):
        symbolic(operator, size)


def thousand(rerunner, spec) -> None:
    """All of them, by the clock on the wall, recording included."""
    fine = spec.with_case(sync="fine")
    begin = time.monotonic()
    found = [rerunner.execute(fine.with_world(seed=seed)) for seed in range(SCHEDULES)]
    seconds = time.monotonic() - begin
    failing = sum(finding.fails("seed") for result in found for finding in result.findings)
    different = len({str(result.ranks) for result in found})
    detail = f"{seconds:.0f} s on the wall, {failing} findings, {different} outcome"
    measure.print_ratio(f"ag_gemm fine 64^3: {SCHEDULES} schedules made / 60 s", seconds / GOAL_SECONDS, "<= 1", detail)


def symbolic(operator, size) -> None:
    """One schedule as the exploration runs it, with its footprints, tiles symbolic over all tiles."""
    from tdist.platforms.sim.explore.rerun import replica
    from tdist.platforms.sim.explore.watch import WatchedEngine
    from tdist.verify.rank_job import Job
    from tdist.verify.search.explore import Rerunner
    from tdist.verify.worlds import RunSpec

    case = operator.case(dtype="fp16", nranks=RANKS, shape={"m": size, "n": size, "k": size}, seed=0)
    spec = RunSpec(Job("ag_gemm", case, judge=False, policy="exact"), {"heap_bytes": 1 << 26})
    recording = Rerunner(operator).recording_of(spec)

    def run(concrete) -> None:
        with replica(recording, WatchedEngine, concrete, detect=True) as played:
            assert isinstance(played.engine, WatchedEngine)
            played.engine.decider = Straight()
            played.run()

    seconds = measure.interleaved({"tiles": lambda: run(None), "symbolic": lambda: run(frozenset())}, rounds=15)
    one, other = (min(seconds[name]) * 1e3 for name in ("tiles", "symbolic"))  # short, so that load tells most
    name = f"ag_gemm fine {size}^3, explored: symbolic / all tiles"
    measure.print_ratio(name, other / one, "", f"{other:.0f} of {one:.0f} ms, least of each")


class Straight:
    """Lets whoever runs go on."""

    def pick(self, engine, runnable, current) -> int:
        from tdist.platforms.sim.explore.watch import key_of

        chosen = runnable.index(current) if current is not None else 0
        engine.watch.begin(key_of(runnable[chosen]), 0)
        return chosen

    def choose(self, n) -> int:
        return 0


if __name__ == "__main__":
    main()
