"""A search step in this process leaves hosts out where that changes nothing, and only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tdist.verify.loader import load_operator
from tdist.verify.modes import modes_for
from tdist.verify.options import Options
from tdist.verify.results import StepResult
from tdist.verify.search.explore import NotRecordable, record_job
from tdist.verify.search.plan import plan
from tdist.verify.search.recorded import RecordedRuns
from tdist.verify.search.step import search
from tdist.verify.worlds import ThreadRunner

FAULTS = Path(__file__).parents[1] / "faults"
SHAPES = {
    "all_gather": {"m": 6, "n": 16},
    "ag_gemm": {"m": 32, "n": 32, "k": 32},
    "broken_gather_wait": {"m": 2, "n": 16},
    "broken_gather_exit": {"m": 2, "n": 16},
    "broken_gather_fence": {"m": 2, "n": 16},
    "broken_gemm_mask": {"m": 96, "n": 32, "k": 48},
}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def both_ways(name: str, sync: str, profile: str = "seed", change=lambda operator: operator):
    """The search step of a mode with all hosts, and as in-process runs make it; and who made the latter."""
    spec = f"{FAULTS / name}.py::op" if name.startswith("broken") else name
    options = Options(spec, nranks=2, shape=SHAPES[name], profile=profile)
    operator = change(load_operator(spec))
    (mode,) = [mode for mode in modes_for(operator, "both", "") if mode.name == sync]
    planned = plan(operator, options, mode)
    recorded = RecordedRuns(operator, options)
    whole = search(ThreadRunner(operator, options), planned)
    return whole, search(recorded, planned, (), recorded), recorded


def facts(step: StepResult) -> list:
    """All that is said of each run."""
    return [
        (run.planned, [f.to_json() for f in run.findings], run.differences, run.error, run.choices, run.outputs)
        for run in step.runs
    ]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("profile", ["seed", "ascend"])
def test_the_step_is_the_same_with_and_without_hosts(name: str, profile: str):
    whole, without, _ = both_ways(name, "fine", profile)
    assert facts(without) == facts(whole)
    assert (without.error, without.left_out) == (whole.error, whole.left_out)


@pytest.mark.parametrize("sync", ["fine", "barrier"])
def test_hosts_run_where_they_are_judged_and_nowhere_else(sync: str):
    whole, without, recorded = both_ways("all_gather", sync)
    assert facts(without) == facts(whole)
    judged = sum(run.planned.spec.job.judge for run in whole.runs)
    assert 0 < judged < 4
    assert recorded.taken == len(whole.runs) - judged, recorded.refused


def test_what_shows_something_is_run_whole_and_so_is_all_that_follows():
    """Only adversarial memory shows what the missing fence does."""
    whole, without, recorded = both_ways("broken_gather_fence", "fine", "ascend")
    assert facts(without) == facts(whole)
    first = [run.passed("seed") for run in whole.runs].index(False)
    offered = [run for run in whole.runs[: first + 1] if not run.planned.spec.job.judge]
    assert whole.runs[first] is offered[-1]
    assert not whole.runs[-1].planned.spec.job.judge
    assert recorded.taken == len(offered), recorded.refused


def test_nothing_is_left_out_behind_a_first_run_that_shows_something():
    whole, without, recorded = both_ways("broken_gather_wait", "fine")
    assert not whole.runs[0].passed("seed")
    assert len(whole.runs) > 3
    assert facts(without) == facts(whole)
    assert not recorded.taken


def test_a_host_that_decides_by_what_it_reads_is_run_each_time():
    def reading(operator):
        def host(rt, case, workspace, **inputs):
            out = operator.host(rt, case, workspace, **inputs)
            out.add_(out.sum() * 0)  # a read, and more device work behind it
            return out

        return replace(operator, host=host)

    whole, without, recorded = both_ways("all_gather", "fine", change=reading)
    assert facts(without) == facts(whole)
    assert not recorded.taken


def test_a_host_that_raises_by_what_it_reads_is_run_each_time():
    def checking(operator):
        def host(rt, case, workspace, **inputs):
            out = operator.host(rt, case, workspace, **inputs)
            if float(out.sum()) != float(out.sum()):
                raise ValueError("not a number")
            return out

        return replace(operator, host=host)

    whole, without, recorded = both_ways("all_gather", "fine", change=checking)
    assert facts(without) == facts(whole)
    assert not recorded.taken
    spec = without.runs[0].planned.spec
    with pytest.raises(NotRecordable, match=r"reads device memory at .*test_recorded_runs\.py"):
        record_job(checking(load_operator("all_gather")), spec)


def test_an_output_that_the_host_computes_is_computed_each_time():
    def copying(operator):
        def host(rt, case, workspace, **inputs):
            return operator.host(rt, case, workspace, **inputs) + 0

        return replace(operator, host=host)

    whole, without, recorded = both_ways("all_gather", "fine", change=copying)
    assert facts(without) == facts(whole)
    assert not recorded.taken
