"""Deletes each set/wait pair and barrier from real final modules, one at a time, and counts what the check says.

A deletion is *missed by order* (accesses, a signal or a read are not ordered any more), *missed as a flag* (a set has
no wait any more, or a wait no set), or *redundant*: the walk over the whole flow graph shows that everything which
conflicts is still ordered, another way. Barriers in front of a function's end, with nothing behind them, count apart.

    python benchmarks/deleted_flags.py [--barrier-all] [part of a kernel's name …]
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests" / "ascend"
TARGET = "Ascend910B3"
GATE_FILES = ("plain", "memory", "pointers", "signals", "library", "mix")


def kernels() -> Iterator[tuple[str, object, dict]]:
    """Name, KernelIR and launch options: ordinary kernels, those of the gate's tests, both operators."""
    from ascend_compile import kernels as operators
    from gate_kit import Passes
    from ordinary_kernels import ORDINARY

    from tdist.frontend.triton_ascend import compile_source

    for name, (fn, signature, constants) in ORDINARY.items():
        yield name, compile_source(fn, signature, constants), {}
    for file in GATE_FILES:
        for case in importlib.import_module(f"gate_kernels_{file}").CASES:
            if isinstance(case.expect, Passes):
                yield f"{file}: {case.id}", case.compile(), dict(case.options)
    for name, launched in operators().items():
        yield name, launched.ir, dict(launched.options)


def final_module(kernel, launch: dict, barrier_all: bool):
    """The vendor's final module of a kernel."""
    from tdist.platforms.ascend.compiled.final_module import read_final_module
    from tdist.platforms.ascend.lowering.adapter import to_linalg
    from tdist.platforms.ascend.lowering.bishengir import compile_linalg
    from tdist.platforms.ascend.lowering.prepare import prepare
    from tdist.platforms.ascend.lowering.steps import Steps
    from tdist.platforms.ascend.options import CompileOptions

    options = CompileOptions.of_launch(launch, barrier_all=barrier_all)
    with Steps() as steps:
        linalg = to_linalg(prepare(kernel), options, steps)
        return read_final_module(compile_linalg(linalg, TARGET, options, steps).final_text)


def judged(final) -> Counter[str]:
    """How many deletions there are, by what they delete and what is said."""
    from deletions import outcomes

    counts: Counter[str] = Counter()
    for outcome in outcomes(final):
        following = [final.op(part.ref).next_op for part in outcome.piece.parts]
        last = all(op is not None and op.name == "func.return" for op in following)
        said = "by order" if outcome.order else "as a flag" if outcome.flags else "redundant"
        if not outcome.complete:
            said = "given up"
        counts[f"{'last barrier' if last else outcome.piece.kind} {said}"] += 1
    return counts


def main() -> None:
    """Every kernel, or those whose name contains one of the arguments."""
    barrier_all = "--barrier-all" in sys.argv
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    sys.path[:0] = [str(TESTS), str(Path(__file__).parent)]
    total: Counter[str] = Counter()
    modules = 0
    for name, kernel, launch in kernels():
        if wanted and not any(part in name for part in wanted):
            continue
        counts = judged(final_module(kernel, launch, barrier_all))
        modules += 1
        total += counts
        print(f"{name:44s} {', '.join(f'{what} {count}' for what, count in sorted(counts.items()))}", flush=True)
    print(f"\n{modules} modules, {sum(total.values())} deletions")
    for what, count in sorted(total.items()):
        print(f"  {what:28s} {count:6d}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        main()
