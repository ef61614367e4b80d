"""The plan of a search step: which runs, of which shape, in which order, against what; and running it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from search_fakes import BARRIER, FINE, FakeRunner, declare, launched, race

from tdist.errors import EnvironmentUnfit, ProcessLost, TdistError
from tdist.platforms.sim import schedulers
from tdist.platforms.sim.world_config import WorldConfig
from tdist.verify.failures import failures_of
from tdist.verify.loader import builtin_operators
from tdist.verify.options import Options
from tdist.verify.results import ModeResult
from tdist.verify.search.plan import plan, schedule_seed, starved_ranks
from tdist.verify.search.plan_text import grouped, pct_line, plan_lines
from tdist.verify.search.step import found_by, measured, search
from tdist.verify.suppressions import Suppression
from tdist.verify.worlds import RunSpec, WorldResult

OPTIONS = Options("op", nranks=3)


def names(operator, options=OPTIONS, mode=FINE):
    return [planned.name for planned in plan(operator, options, mode)]


def base(operator, options=OPTIONS, mode=FINE):
    return [name.removeprefix("base/") for name in names(operator, options, mode) if name.startswith("base/")]


def test_the_base_runs_take_every_schedule():
    starved = [f"starved:rank={rank}" for rank in range(3)]
    drawn = [f"{name}@{seed}" for name in ("random", "pct") for seed in range(4)]
    assert base(declare()) == ["run-to-block", "max-sync", "latest", *starved, *drawn]


def test_the_barrier_mode_takes_few_and_no_situation():
    found = names(declare(sync=("fine", "barrier")), mode=BARRIER)
    assert found == [f"base/{name}" for name in ("max-sync", "run-to-block", "random@0", "random@1")]
    assert all(
        p.spec.world["drained"] and p.spec.job.case.sync == "barrier"
        for p in plan(declare(sync=("fine", "barrier")), OPTIONS, BARRIER)
    )


@pytest.mark.parametrize("operator", [*builtin_operators(), declare(replayable=True)], ids=lambda made: made.name)
@pytest.mark.parametrize("mode", [FINE, BARRIER], ids=lambda mode: mode.name)
@pytest.mark.parametrize("nranks", [1, 2, 3, 9])
def test_every_planned_run_can_be_made_and_is_named_once(operator, mode, nranks):
    runs = plan(operator, Options(operator.name, nranks=nranks), mode)
    assert len({planned.name for planned in runs}) == len(runs)
    known = {planned.name: planned for planned in runs}
    for planned in runs:
        schedulers.check(planned.schedule)
        WorldConfig(nranks=nranks, **planned.spec.world)
        assert RunSpec.from_json(json.loads(json.dumps(planned.spec.to_json()))).job == planned.spec.job
        judged = known[planned.like]
        assert judged.spec.job.judge and judged.like == judged.name
        assert runs.index(judged) <= runs.index(planned)
        assert planned.spec.job.judge == (planned is judged)
        assert judged.spec.job.case == planned.spec.job.case


def test_the_seed_of_the_options_moves_all_schedules():
    first, other = (base(declare(), Options("op", nranks=2, seed=seed)) for seed in (0, 3))
    assert {"random@3000", "pct@3003"} < set(other) and not {"random@3000"} & set(first)
    assert {p.spec.job.case.seed for p in plan(declare(), Options("op", nranks=2, seed=3), FINE)} == {3}
    assert len({schedule_seed(seed, index) for seed in range(50) for index in range(1000)}) == 50_000
    assert WorldConfig(nranks=1, seed=schedule_seed(2**63 - 1, 999)).seed >= 0


@pytest.mark.parametrize(
    ("nranks", "starved"), [(1, []), (2, [0, 1]), (4, [0, 1, 2, 3]), (9, [0, 3, 5, 8]), (128, [0, 42, 85, 127])]
)
def test_at_most_four_ranks_are_starved_by_name(nranks, starved):
    assert starved_ranks(nranks) == starved


def test_a_named_schedule_is_the_only_one():
    heads = {p.schedule for p in plan(declare(), Options("op", nranks=3, schedule="pct:depth=2", seeds=2), FINE)}
    assert heads == {"pct:depth=2"}
    assert base(declare(), Options("op", nranks=3, schedule="pct:depth=2", seeds=2)) == [
        "pct:depth=2@0",
        "pct:depth=2@1",
    ]
    assert base(declare(), Options("op", nranks=3, schedule="random", seeds=0)) == ["random@0"]


def test_no_search_is_no_plan():
    assert plan(declare(), Options("op", search=False), FINE) == ()


@pytest.mark.parametrize(
    ("small", "asked", "shape"),
    [
        (None, {}, {"n": 32, "m": 64}),
        (None, {"n": 1}, {"n": 1, "m": 64}),
        (None, {"n": 1000}, {"n": 32, "m": 64}),
        ({"m": 6}, {}, {"n": 32, "m": 6}),
        ({"m": 6}, {"n": 1, "m": 5}, {"n": 1, "m": 5}),
        ({"m": 6}, {"n": 100, "m": 5}, {"n": 32, "m": 6}),
    ],
)
def test_the_shape_is_the_smaller_one_of_asked_and_declared(small, asked, shape):
    (first, *_) = plan(declare(small=small), Options("op", nranks=2, shape=asked), FINE)
    assert dict(first.spec.job.case.shape) == shape


def test_a_small_shape_that_does_not_go_with_the_ranks_is_not_taken():
    made = declare(small={"m": 6}, constraint=lambda case: "odd" if case["m"] % case.nranks else None)
    assert plan(made, Options("op", nranks=2), FINE)[0].spec.job.case["m"] == 6
    assert plan(made, Options("op", nranks=4), FINE)[0].spec.job.case["m"] == 64


def test_a_plan_in_words_names_each_scheduler_once():
    runs = plan(declare(), Options("op", nranks=2, seeds=2, situations=("late-init",)), FINE)
    assert grouped(runs) == {
        "base": "run-to-block, max-sync, latest, starved (rank=0, rank=1), random (seeds 0, 1), pct (seeds 0, 1)",
        "late-init": "run-to-block (rank 0 late, rank 1 late)",
    }
    assert plan_lines(runs)[0].startswith("one launch (n=32,m=64, 1 launch): run-to-block")


# ---------------------------------------------------------------- running it


def agreeing(spec: RunSpec) -> WorldResult:
    ranks = tuple(launched(launches=spec.job.launches, passed=True if spec.job.judge else None) for _ in range(3))
    return WorldResult(ranks, choices=(1, 2))


def test_runs_that_agree_pass():
    runner = FakeRunner(agreeing)
    runs = plan(declare(), OPTIONS, FINE)
    step = search(runner, runs)
    assert step.passed("seed") and not step.left_out
    assert [run.planned.name for run in step.runs] == [planned.name for planned in runs]
    plain = [planned.spec for planned in runs if planned.schedule != "pct"]
    assert [spec for spec in runner.specs if "pct" not in spec.world["scheduler"]] == plain


def test_pct_is_told_how_many_choices_there_are_and_promises_by_it():
    def answer(spec):
        return WorldResult(agreeing(spec).ranks, choices=(0,) * 80)

    step = search(FakeRunner(answer), plan(declare(), OPTIONS, FINE))
    (schedule,) = {run.planned.schedule for run in step.runs if run.planned.name.startswith("base/pct")}
    assert schedule == "pct:steps=100"
    assert pct_line(run.planned for run in step.runs) == (
        "pct: each of the 4 runs finds a fault of depth 3 with probability 1/(n·100^2) or more; "
        "n agents, at most 100 choices"
    )
    assert "pct (seeds 0, 1, 2, 3)" in grouped(run.planned for run in step.runs)["base"]
    named = plan(declare(), Options("op", nranks=3, schedule="pct:depth=2,steps=9", seeds=1), FINE)
    assert measured(named[1], step.runs) == named[1]
    assert measured(plan(declare(), Options("op", nranks=3, schedule="pct:depth=2"), FINE)[0], step.runs).schedule == (
        "pct:depth=2,steps=100"
    )


def test_another_output_fails_the_run_that_has_it():
    def answer(spec):
        if spec.world["scheduler"] == "latest":
            return WorldResult(tuple(launched(9 if rank == 2 else 1, launches=2) for rank in range(3)), choices=(4,))
        return agreeing(spec)

    step = search(FakeRunner(answer), plan(declare(), OPTIONS, FINE))
    (failed,) = (run for run in step.runs if not run.passed("seed"))
    assert failed.planned.schedule == "latest" and len(failed.differences) == 2
    assert failed.differences[0].startswith("rank 2 launch 0 out: 1 of 2 tiles are not those of the run")
    assert not step.passed("seed")
    (failure,) = failures_of([ModeResult("fp16", FINE, (step,))], "seed")
    assert failure.wrong and failure.spec.world["choices"] == (4,) and failure.found_by == "base/latest"


def test_a_reference_that_is_not_the_goldens_fails():
    def answer(spec):
        return WorldResult(tuple(launched(passed=False if spec.job.judge else None) for _ in range(3)))

    step = search(FakeRunner(answer), plan(declare(), Options("op", nranks=3, situations=("late-init",)), FINE))
    assert [run.planned.name for run in step.runs if run.differences] == ["base/run-to-block"]
    assert "tiles are not the golden's" in step.runs[0].differences[0]


def test_findings_are_counted_and_named_by_the_runs_that_met_them():
    def answer(spec):
        found = (race(),) if spec.world["scheduler"].startswith("pct") else ()
        return WorldResult(agreeing(spec).ranks, found, choices=(7,))

    step = search(FakeRunner(answer), plan(declare(), OPTIONS, FINE))
    mode = ModeResult("fp16", FINE, (step,))
    assert mode.log.count(race()) == 4
    assert found_by(step.runs, race().key) == [f"base/pct@{seed}" for seed in range(4)]
    (failure,) = failures_of([mode], "seed")
    assert (failure.found_by, failure.findings, failure.wrong) == ("base/pct@0", (race(),), False)


def test_each_defect_leaves_its_first_run_only():
    def answer(spec):
        found = {"latest": (race(1, 2),), "pct": (race(1, 2), race(3, 4))}.get(
            spec.world["scheduler"].partition(":")[0], ()
        )
        return WorldResult(agreeing(spec).ranks, found)

    step = search(FakeRunner(answer), plan(declare(), OPTIONS, FINE))
    failures = failures_of([ModeResult("fp16", FINE, (step,)), ModeResult("bf16", FINE, (step,))], "seed")
    assert [failure.found_by for failure in failures] == ["base/latest", "base/pct@0"]


def test_what_the_machine_stops_leaves_no_failure():
    def answer(spec):
        if spec.world["scheduler"] == "latest":
            raise EnvironmentUnfit("the engine was killed")
        return agreeing(spec)

    step = search(FakeRunner(answer), plan(declare(), OPTIONS, FINE))
    exact = replace(step, name="exact", runs=(), spec=step.runs[0].planned.spec)
    assert step.exit_code == 3 and step.runs[-1].error
    assert failures_of([ModeResult("fp16", FINE, (exact, step))], "seed") == ()


def test_suppressed_findings_fail_nothing_and_leave_no_failure():
    def answer(spec):
        return WorldResult(agreeing(spec).ranks, (race(),))

    accepted = [Suppression("tdist.race", "looked at", "--suppress")]
    step = search(FakeRunner(answer), plan(declare(), OPTIONS, FINE), accepted)
    assert step.passed("seed") and failures_of([ModeResult("fp16", FINE, (step,))], "seed") == ()
    assert {finding.data["suppressed"] for finding in step.findings} == {"looked at"}


def test_if_the_first_runs_all_stop_the_rest_is_left_out():
    step = search(
        FakeRunner(lambda spec: WorldResult((None,) * 3, (race(),), "stopped")), plan(declare(), OPTIONS, FINE)
    )
    assert (len(step.runs), step.error) == (3, "") and len(step.left_out) == len(plan(declare(), OPTIONS, FINE)) - 3
    assert not step.passed("seed")


@pytest.mark.parametrize(("error", "code"), [(ProcessLost("engine gone"), 3), (TdistError("the inputs raised"), 1)])
def test_what_no_finding_explains_ends_the_search(error, code):
    def answer(spec):
        if spec.world["scheduler"] == "latest":
            raise error
        return agreeing(spec)

    step = search(FakeRunner(answer), plan(declare(), OPTIONS, FINE))
    assert (step.exit_code, len(step.runs)) == (code, 3)
    assert step.error == f"base/latest: {error}"
