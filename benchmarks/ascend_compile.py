"""TTIR to the vendor's final module, a kernel and mode, with an empty cache and out of it. CPU time, programs included.

The vendor's programs run on one thread, one after another: on a quiet machine that is the wall time, too.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import defaultdict

import measure

GOAL_S = 1.5
ROUNDS = 3
TARGETS = ("Ascend910B3", "Ascend910B2")
M, N, K = 512, 256, 256


def launched(host) -> list:
    """The kernels that a host function launches on two ranks, which do not run."""
    from tdist.platforms.sim.launch_record import launches_recorded
    from tdist.platforms.sim.world import World

    with launches_recorded(run=False) as record, World(nranks=2, detect=False) as world:
        world.run(host)
    return record.kernels


def gather_host(rt, form: str) -> None:
    import torch

    from tdist.kernels import all_gather
    from tdist.kernels.signal_slots import rows_of

    context = all_gather.create_context(rt, M, N, torch.float16, sync=form)
    all_gather.all_gather(context, torch.ones(rows_of(rt.rank, M, rt.nranks), N, dtype=torch.float16))
    context.close()


def gemm_host(rt, form: str) -> None:
    import torch

    from tdist.kernels import ag_gemm
    from tdist.kernels.signal_slots import rows_of

    context = ag_gemm.create_context(rt, M, N, K, torch.float16, sync=form)
    a = torch.ones(rows_of(rt.rank, M, rt.nranks), K, dtype=torch.float16)
    ag_gemm.ag_gemm(context, a, torch.ones(K, N, dtype=torch.float16))
    context.close()


def kernels() -> dict:
    from tdist.verify import ensure_shmem

    def host(function, form):
        def run(rt):
            ensure_shmem(rt)
            function(rt, form)

        return run

    hosts = {"all_gather": gather_host, "ag_gemm": gemm_host}
    found = {}
    for name, function in hosts.items():
        for form in ("fine", "barrier"):
            for kernel in launched(host(function, form)):
                found[f"{name}, {form} form"] = kernel
    return found


def compile_once(kernel, target: str, barrier_all: bool) -> dict[str, float]:
    """Seconds by stage, and of everything."""
    from tdist.platforms.ascend.compiled.final_module import read_final_module
    from tdist.platforms.ascend.lowering.adapter import to_linalg
    from tdist.platforms.ascend.lowering.bishengir import compile_linalg
    from tdist.platforms.ascend.lowering.prepare import prepare
    from tdist.platforms.ascend.lowering.steps import Steps
    from tdist.platforms.ascend.options import CompileOptions

    options = CompileOptions.of_launch(dict(kernel.options), barrier_all=barrier_all)
    seconds = {}
    start = cpu()
    with Steps() as steps:
        prepared = timed(seconds, "lowering", lambda: prepare(kernel.ir))
        linalg = timed(seconds, "adapter", lambda: to_linalg(prepared, options, steps))
        compiled = timed(seconds, "compiler", lambda: compile_linalg(linalg, target, options, steps))
        timed(seconds, "reading", lambda: read_final_module(compiled.final_text))
    return {**seconds, "all": cpu() - start}


def timed(seconds: dict[str, float], stage: str, work):
    start = cpu()
    made = work()
    seconds[stage] = cpu() - start
    return made


def cpu() -> float:
    """CPU time of this process and of the programs that it has run."""
    return sum(os.times()[:4])


def main() -> None:
    measure.one_thread()
    print(measure.machine_line())
    subjects = kernels()
    for name, kernel in subjects.items():
        rows = defaultdict(lambda: ([], []))
        with tempfile.TemporaryDirectory() as warm:
            for turn in range(ROUNDS + 1):  # the first warms up
                for target in TARGETS:
                    for barrier_all in (False, True):
                        with tempfile.TemporaryDirectory() as cold:
                            os.environ["TDIST_CACHE_DIR"] = cold
                            first = compile_once(kernel, target, barrier_all)
                        os.environ["TDIST_CACHE_DIR"] = warm
                        again = compile_once(kernel, target, barrier_all)
                        if turn:
                            rows[target, barrier_all][0].append(first)
                            rows[target, barrier_all][1].append(again)
        for (target, barrier_all), (firsts, agains) in rows.items():
            report(f"{name}, {target}, barrier-all {str(barrier_all).lower()}", firsts, agains)


def report(name: str, firsts: list[dict[str, float]], agains: list[dict[str, float]]) -> None:
    first, again = (statistics.median(run["all"] for run in runs) for runs in (firsts, agains))
    detail = f"{first:.2f} s ({by_stage(firsts)}); cached {again / first:.2f} of it ({by_stage(agains)})"
    measure.print_ratio(f"{name}: s / goal", first / GOAL_S, "<= 1", detail)


def by_stage(runs: list[dict[str, float]]) -> str:
    stages = [stage for stage in runs[0] if stage != "all"]
    return ", ".join(f"{stage} {statistics.median(run[stage] for run in runs):.2f}" for stage in stages)


if __name__ == "__main__":
    main()
