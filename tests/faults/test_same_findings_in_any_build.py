"""What is found does not depend on how a kernel was compiled: fused loops, cached tiles, both or neither."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tdist.platforms.sim import compiler
from tdist.verify.loader import load_operator
from tdist.verify.modes import mode_of
from tdist.verify.options import Options
from tdist.verify.rank_job import Job
from tdist.verify.worlds import POISONS, ThreadRunner

HERE = Path(__file__).parent
BUILDS = {"fused": (True, False), "cached": (False, True), "neither": (False, False)}
CASES = {
    "broken_gemm_mask": {"m": 20, "n": 16, "k": 16},
    "broken_gemm_credit": {"m": 96, "n": 32, "k": 48},
    "correct_gemm": {"m": 20, "n": 16, "k": 16},
}


def build(patch: pytest.MonkeyPatch, *, fuse: bool, cache: bool) -> list[int]:
    """Compile so from now on; returns a list that gets the number of fused loops of each kernel compiled."""
    real, fused = compiler.compile_kernel, []

    def compile_so(kernel, options=None):
        made = real(kernel, replace(options or compiler.SimOptions(), fuse=fuse))
        fused.append(made.stats.fused_loops)
        return made

    patch.setattr(compiler, "compile_kernel", compile_so)
    if not cache:
        patch.setattr(compiler._tiles, "limit_bytes", 0)
    return fused


def found(name: str, seed: int) -> tuple[frozenset, list]:
    """Findings of one run on two ranks, without byte ranges (a fused loop reads a panel at once), and its outputs."""
    spec = f"{HERE / name}.py::op"
    operator = load_operator(spec)
    mode = mode_of("fine", operator.sync, "random")
    case = operator.case(dtype="fp16", nranks=2, shape=CASES[name], seed=seed, sync=mode.protocol)
    runner = ThreadRunner(operator, Options(spec, seed=seed, nranks=2, profile="ascend"))
    result = runner.run(Job(spec, case, launches=2, policy="exact"), mode, POISONS[0])
    kinds = frozenset(
        (f.kind, f.severity, f.profile, tuple(sorted((str(p.file), p.line or 0, p.op) for p in f.parties)))
        for f in result.findings
    )
    verdicts = [
        comparison.passed
        for launches in result.ranks
        for launch in launches or ()
        for comparison in launch.comparisons.values()
    ]
    return kinds, verdicts


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("how", BUILDS)
@pytest.mark.parametrize("name", CASES)
def test_findings_and_verdicts_are_those_of_the_default_build(name, how, seed, monkeypatch):
    with monkeypatch.context() as patch:
        default = build(patch, fuse=True, cache=True)
        want = found(name, seed)
    fuse, cache = BUILDS[how]
    with monkeypatch.context() as patch:
        fused = build(patch, fuse=fuse, cache=cache)
        assert found(name, seed) == want
    assert any(default)
    assert any(fused) == fuse
    assert bool(want[0]) == name.startswith("broken")
