"""The helper process of the search step: it makes the same runs, nobody waits for it, and nothing fails by it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from search_fakes import FINE, FakeRunner, declare, launched, race

from tdist.verify.loader import load_operator
from tdist.verify.options import Options
from tdist.verify.results import SearchRun
from tdist.verify.search.beside import Beside, beside
from tdist.verify.search.plan import plan
from tdist.verify.search.step import measured, search
from tdist.verify.worlds import ThreadRunner, WorldResult

SPEC = f"{Path(__file__).parent / 'search_operators.py'}::counts_on_device"
OPTIONS = Options(SPEC, nranks=2, seeds=1, situations=("relaunch",))
PATIENCE_S = 120.0


def wait_for(helper: Beside, runs: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(helper._done) < runs and time.monotonic() < deadline:
        time.sleep(0.05)
        helper._read()


def test_its_results_are_those_of_a_run_of_ones_own():
    operator = load_operator(SPEC)
    runs = plan(operator, OPTIONS, FINE)
    own = ThreadRunner(operator, OPTIONS)
    with beside(operator, OPTIONS, [runs], wanted=True) as helper:
        if helper is None:
            pytest.skip("the helper process starts only where a second core is there")
        wait_for(helper, len(runs) - 1)
        first = own.execute(runs[0].spec)
        assert helper.take(runs[0]) is None and runs[0].spec.job.judge
        for planned in runs[1:]:
            asked = measured(planned, [SearchRun(runs[0], choices=first.choices)])
            assert helper.take(asked) == own.execute(asked.spec), asked.name


def test_what_ends_it_ends_nothing_else():
    def inputs(case, rank, launch):
        os._exit(7)

    operator = declare()
    runs = plan(operator, Options("op", nranks=2), FINE)
    with beside(replace(operator, inputs=inputs), Options("op", nranks=2), [runs], wanted=True) as helper:
        if helper is None:
            pytest.skip("the helper process starts only where a second core is there")
        os.waitid(os.P_PID, helper._pid, os.WEXITED | os.WNOWAIT)
        assert all(helper.take(planned) is None for planned in runs)


def test_it_is_not_made_where_nobody_wants_it():
    with beside(declare(), Options("op"), [()], wanted=True) as helper:
        assert helper is None
    with beside(declare(), Options("op"), [plan(declare(), Options("op"), FINE)], wanted=False) as helper:
        assert helper is None


def test_a_run_that_fails_is_made_again():
    """What the helper says of a failing run is not believed: only what rank processes show fails a verification."""

    class Ahead:
        def take(self, planned):
            found = (race(),) if planned.schedule == "latest" else ()
            wrong = 9 if planned.schedule == "max-sync" else 1
            known = not planned.spec.job.judge
            return WorldResult(tuple(launched(wrong, launches=2) for _ in range(2)), found) if known else None

    def answer(spec):
        return WorldResult(tuple(launched(passed=True, launches=2) for _ in range(2)))

    runner = FakeRunner(answer)
    runs = plan(declare(), Options("op", nranks=2, situations=("relaunch",)), FINE)
    step = search(runner, runs, ahead=Ahead())
    assert step.passed("seed") and len(step.runs) == len(runs)
    assert [spec.world["scheduler"] for spec in runner.specs] == ["run-to-block", "max-sync", "latest"]
