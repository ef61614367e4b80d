"""All inequivalent schedules: against all schedules by brute force, and on operators."""

from __future__ import annotations

from dataclasses import replace

import pytest
from explore_kit import Dice, Op, brute_force, recorded
from test_explore_rerun import spec_of

from tdist.errors import UsageError
from tdist.platforms.sim.explore.exhaustive import Limits, explore, finding_key
from tdist.platforms.sim.explore.rerun import rerun
from tdist.verify.options import Options
from tdist.verify.replay.sightings import output_digests
from tdist.verify.run import verify
from tdist.verify.search import exhaustive as exhaustive_step_module
from tdist.verify.search.explore import NotRecordable, Rerunner, explore_job, prove_outputs
from tdist.verify.worlds import ThreadRunner

MOST = 60
"""Protocols with more schedules than this are left out."""
SEEDS = (100, 102, 104, 107, 109, 113, 115, 121, 127, 130, 131, 143)
"""Of protocols that have a few schedules and not too many."""
FOUND = [(31, 2), (28, 2), (18, 2), (130, 2), (176, 3), (258, 3), (302, 3)]
"""(seed, operations) of protocols that earlier versions of the search got wrong."""


def compare(seed: int, ops: int, most: int) -> tuple[int, int] | None:
    """Explore a random protocol both ways; (schedules, schedules that were run), None if there are too many."""
    recording = recorded(**Dice(seed, ops).protocol())
    whole = brute_force(recording, most)
    if whole is None:
        return None
    got = explore(recording)
    assert got.complete, f"seed {seed}"
    assert set(got.outcomes) == whole.outcomes, f"seed {seed}: outcomes"
    assert {finding_key(seen.finding) for seen in got.findings} == whole.findings, f"seed {seed}: findings"
    return whole.runs, got.runs + got.pruned


def test_random_protocols_come_to_all_that_brute_force_finds():
    done = [pair for seed in SEEDS if (pair := compare(seed, 2, MOST))]
    brute, explored = (sum(column) for column in zip(*done, strict=True))
    assert len(done) == len(SEEDS)
    assert brute > 4 * explored


@pytest.mark.parametrize(("seed", "ops"), FOUND)
def test_protocols_that_were_wrong_once(seed, ops):
    assert compare(seed, ops, 400)


HANDSHAKE = [[[(Op("store", (1, 0), 7), Op("set", (1, 0), 1))], [(Op("wait", (1, 0), 1), Op("load", (1, 0), 1))]]]
RACE = [[[(Op("store", (1, 0), 7),)], [(Op("load", (1, 0)),)]]]


def test_a_handshake_has_one_schedule():
    got = explore(recorded(HANDSHAKE))
    assert (got.complete, got.runs, got.pruned) == (True, 1, 0)
    assert not [seen.finding.title for seen in got.findings if seen.finding.fails("seed")]
    assert str(got) == "all schedules are equivalent, one ran"


def test_a_race_has_two_outcomes_and_its_choices_replay():
    recording = recorded(RACE)
    got = explore(recording)
    assert (got.runs, len(got.outcomes)) == (2, 2)
    assert str(got) == "all 2 inequivalent schedules ran, 2 outcomes"
    for seen in got.findings:
        again = rerun(recording, choices=seen.run.choices)
        assert finding_key(seen.finding) in {finding_key(found) for found in again.findings}
        assert again.choices == seen.run.choices


def test_counters_that_add_need_no_order():
    """Three arrivals and one who waits for all: the six orders of the arrivals are one schedule."""
    arrive = (Op("add", (0, 0), 1),)
    got = explore(recorded([[[(Op("wait", (0, 0), 3),)], [arrive], [arrive], [arrive]]]))
    assert (got.complete, got.runs, got.findings) == (True, 1, ())


def test_values_that_atomics_return_have_all_orders():
    """Three agents take tickets: six orders, six outcomes."""
    ticket = (Op("atomic", (0, 0), 1),)
    got = explore(recorded([[[ticket], [ticket], [ticket]]]))
    assert (got.runs, len(got.outcomes)) == (6, 6)


def test_a_wait_that_can_be_overtaken_is_found():
    """The flag goes on to 2: one order deadlocks, and the run that shows it is kept with its choices."""
    recording = recorded([[[(Op("set", (1, 0), 1), Op("set", (1, 0), 2))], [(Op("wait", (1, 0), 1),)]]])
    got = explore(recording)
    kinds = {seen.finding.kind: seen.run for seen in got.findings}
    assert {"tdist.overshoot", "tdist.deadlock"} <= set(kinds)
    assert any(
        found.kind == "tdist.deadlock" for found in rerun(recording, choices=kinds["tdist.deadlock"].choices).findings
    )


def test_a_limit_is_no_proof_and_says_so():
    ticket = (Op("atomic", (0, 0), 1), Op("atomic", (0, 0), 1))
    got = explore(recorded([[[ticket], [ticket], [ticket]]]), Limits(runs=5))
    assert not got.complete and got.runs == 5 and got.pending > 0
    assert str(got) == f"stopped at 5 of at least {5 + got.pending} schedules (limit of 5 runs): not a proof"


def test_a_schedule_that_is_too_long_is_a_limit():
    got = explore(recorded(HANDSHAKE), Limits(steps=2))
    assert not got.complete and "more than 2 steps" in got.limit


@pytest.mark.parametrize("spec", ["exhaustive:run=3", "exhaustive:runs=0", "exhaustive:runs", "exhaustive:runs=-1"])
def test_limits_that_make_no_sense_are_refused(spec):
    with pytest.raises(UsageError, match="runs=N, steps=N, seconds=N"):
        Limits.of(spec)


def test_limits_are_read():
    assert Limits.of("exhaustive:runs=7,seconds=3") == replace(Limits(), runs=7, seconds=3)
    assert Limits.of("exhaustive") == Limits()


OPERATORS = [
    ("all_gather", {"m": 6, "n": 16}, "fine", 3),
    ("all_gather", {"m": 6, "n": 16}, "barrier", 3),
    ("ag_gemm", {"m": 32, "n": 32, "k": 32}, "fine", 2),
    ("ag_gemm", {"m": 32, "n": 32, "k": 32}, "barrier", 2),
]


@pytest.mark.parametrize(("name", "shape", "sync", "nranks"), OPERATORS, ids=[f"{o[0]}-{o[2]}" for o in OPERATORS])
def test_all_schedules_of_an_operator_are_equivalent(name, shape, sync, nranks):
    """Every pair of dependent steps is ordered by its signals: nothing is left to the schedule."""
    operator, spec = spec_of(name, shape, sync, nranks)
    rerunner = Rerunner(operator)
    got = explore_job(rerunner, spec)
    assert (got.complete, got.runs) == (True, 1)
    assert not [seen.finding.title for seen in got.findings if seen.finding.fails("seed")]
    assert prove_outputs(rerunner, spec, rerunner.execute(spec).ranks, "seed").holds


def test_a_fault_has_other_outputs_on_some_schedule():
    """The wait is missing: exploration finds the race, and a schedule on which the result is wrong."""
    operator, spec = spec_of("broken_gather_wait", {"m": 2, "n": 16}, "fine", 2, launches=1)
    rerunner = Rerunner(operator)
    got = explore_job(rerunner, spec, Limits(runs=200))
    assert "tdist.race" in {seen.finding.kind for seen in got.findings}
    assert len(got.outcomes) > 1
    assert not prove_outputs(rerunner, spec, rerunner.execute(spec).ranks, "seed", Limits(runs=200)).holds


def test_adversarial_memory_is_not_explored():
    operator, spec = spec_of("all_gather", {"m": 6, "n": 16}, "fine", 3)
    with pytest.raises(UsageError, match="plain memory"):
        explore_job(Rerunner(operator), spec.with_world(memory="adversarial"))


def exhaustive_step(name: str, shape: dict, **options):
    operator, spec = spec_of(name, shape, "fine", 2)
    asked = Options(spec.job.spec, nranks=2, shape=shape, sync="fine", search=False, launches=1, **options)
    report = verify(operator, asked, in_process=True)
    return report, report.modes[0].steps[-1]


def test_the_exhaustive_step_of_a_correct_operator():
    report, step = exhaustive_step("all_gather", {"m": 4, "n": 16}, schedule="exhaustive")
    assert report.verdict == "verified"
    assert step.name == "exhaustive" and step.explored is not None and step.explored.complete
    assert "but for the exhaustive step's case" in report.limits[0]


def test_the_exhaustive_step_of_a_fault_leaves_a_run_that_replays():
    report, step = exhaustive_step("broken_gather_wait", {"m": 2, "n": 16}, schedule="exhaustive:runs=40")
    assert report.verdict == "failed" and step.explored is not None
    wrong = next(run for run in step.runs if run.differences and run.choices)
    operator, _ = spec_of("broken_gather_wait", {"m": 2, "n": 16}, "fine", 2)
    again = ThreadRunner(operator, Options(nranks=2)).execute(wrong.planned.spec.with_world(choices=wrong.choices))
    assert output_digests(again.ranks) == wrong.outputs


def test_a_host_that_cannot_be_left_out_is_said_so():
    operator, spec = spec_of("all_gather", {"m": 4, "n": 16}, "fine", 2)
    computed = replace(operator, host=lambda *args, **named: operator.host(*args, **named) * 1)
    asked = Options(spec.job.spec, nranks=2, shape={"m": 4, "n": 16}, sync="fine", search=False, schedule="exhaustive")
    step = verify(computed, asked, in_process=True).modes[0].steps[-1]
    assert step.exit_code == 2 and "not explored" in step.error and "not device memory" in step.error


def test_what_keeps_schedules_from_being_explored_does_not_hide_a_fault(monkeypatch):
    """The golden's runs have met a race: that is the operator's, though the search itself cannot begin."""

    def refuse(*args, **named):
        raise NotRecordable("rank 0 comes farther than in the recording")

    monkeypatch.setattr(exhaustive_step_module, "explore_job", refuse)
    report, step = exhaustive_step("broken_gather_wait", {"m": 2, "n": 16}, schedule="exhaustive")
    assert "not explored" in step.error and (step.exit_code, report.exit_code) == (1, 1)
    assert "tdist.race" in {finding.kind for finding in step.findings}
