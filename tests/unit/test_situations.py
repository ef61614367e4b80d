"""The situations of a search step: where each applies, what its runs are, and that they find what they are for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from search_fakes import FINE, declare

from tdist.platforms.sim.world import World
from tdist.verify.loader import load_operator
from tdist.verify.options import Options
from tdist.verify.rank_job import run_operator
from tdist.verify.search.jobs import FROZEN
from tdist.verify.search.plan import plan, setting_of
from tdist.verify.search.situations import SITUATIONS, empty_rank_case, not_run
from tdist.verify.worlds import ThreadRunner

FILE = Path(__file__).parent / "search_operators.py"
THREE = Options("op", nranks=3)


def missed(operator, options=THREE):
    return not_run(setting_of(operator, options, FINE))


def runs_of(operator, situation, options=THREE):
    return [planned for planned in plan(operator, options, FINE) if planned.situation == situation]


def load(name):
    return load_operator(f"{FILE}::{name}")


def run(name, planned):
    operator = load(name)
    spec = replace(planned.spec, job=replace(planned.spec.job, spec=f"{FILE}::{name}"))
    return ThreadRunner(operator, THREE).execute(spec)


def test_an_operator_whose_contract_allows_all_misses_none():
    assert set(missed(declare(replayable=True))) == {"opposite-order"}
    met = {planned.situation for planned in plan(declare(replayable=True), THREE, FINE)}
    assert met == {"base", *SITUATIONS} - {"relaunch", "opposite-order"}


@pytest.mark.parametrize(
    ("contract", "options", "names", "reason"),
    [
        ({"relaunchable": False}, THREE, ("relaunch", "ahead"), "not declared relaunchable"),
        ({}, Options("op", nranks=3, launches=1), ("relaunch", "ahead"), "--launches 1"),
        ({}, Options("op", nranks=3, launches=2), ("ahead",), "--launches 2, it needs 3"),
        ({}, Options("op", nranks=1), ("ahead", "reordered", "late-init", "empty-rank"), "there is one rank"),
        ({}, Options("op", nranks=3, detect=False), ("reordered",), "--no-detect"),
        ({"shape": {"n": 4, "m": 8}, "constraint": lambda case: "few" if case["m"] < 8 else None}, THREE,
         ("empty-rank",), "declare empty_rank_shape"),
        ({}, THREE, ("frozen",), "not declared replayable"),
        ({}, Options("op", nranks=3, situations=("ahead",)), ("relaunch", "late-init"), "not among --situations"),
    ],
)  # fmt: skip
def test_what_does_not_apply_is_said_with_its_reason(contract, options, names, reason):
    found = missed(declare(**contract), options)
    for name in names:
        assert reason in found[name]
        assert not runs_of(declare(**contract), name, options)


def test_two_launches_are_the_base_runs():
    assert {planned.spec.job.launches for planned in runs_of(declare(), "base")} == {2}
    assert {p.spec.job.launches for p in runs_of(declare(), "base", Options("op", situations=("ahead",)))} == {1}
    assert {p.spec.job.launches for p in runs_of(declare(), "ahead")} == {4}


def test_the_last_ranks_share_is_empty():
    case = setting_of(declare(), THREE, FINE).case
    found = empty_rank_case(declare(), case)
    assert found is not None and dict(found.shape) == {"n": 32, "m": 2}
    declared = declare(empty_rank_shape={"m": 1, "n": 5})
    found = empty_rank_case(declared, case)
    assert found is not None and dict(found.shape) == {"m": 1, "n": 5}
    assert all(planned.spec.job.case["m"] == 2 for planned in runs_of(declare(), "empty-rank"))


def test_inputs_that_raise_at_an_odd_shape_are_no_shape_to_run():
    def inputs(case, rank, launch):
        raise ValueError("not that one")

    operator = declare(inputs=inputs)
    assert empty_rank_case(operator, setting_of(operator, THREE, FINE).case) is None


def test_a_correct_operator_is_silent_in_all():
    for situation in ("late-init", "frozen", "ahead", "reordered"):
        operator = load("counts_on_device")
        for planned in runs_of(operator, situation):
            result = run("counts_on_device", planned)
            assert not result.error and not [found for found in result.findings if found.fails()], planned.name


def test_frozen_arguments_stop_an_epoch_that_the_host_counts():
    operator = load("epoch_from_host")
    for situation, stops in (("ahead", False), ("frozen", True)):
        for planned in runs_of(operator, situation):
            assert bool(run("epoch_from_host", planned).error) == stops, planned.name


def test_a_replay_gets_new_inputs_and_leaves_the_outputs_of_the_last_launch():
    (first, *_) = runs_of(load("counts_on_device"), "frozen")
    ranks = run("counts_on_device", first).ranks
    assert first.spec.job.launches == 3 and first.spec.job.judge
    for launches in ranks:
        assert launches is not None and not launches[0].checksums and not launches[1].checksums
        assert launches[2].comparisons["out"].passed


def test_a_host_that_waits_cannot_be_captured():
    operator = load("waits_on_host")
    (first, *_) = runs_of(operator, "frozen")
    with World(nranks=3, **first.spec.world) as world, pytest.raises(Exception, match="synchronize while its launches"):
        world.run(run_operator, operator, replace(first.spec.job, situation=FROZEN, judge=False))


def test_a_late_rank_shows_what_an_early_peer_does_to_its_zeroes():
    """The notifies of early ranks are zeroed away: they hang, where in order nothing is wrong to be seen."""
    operator = load("no_barrier")
    base = runs_of(operator, "base")[0]
    quiet = replace(base, spec=base.spec.with_world(detect=False))
    assert not run("no_barrier", quiet).error
    stopped = [run("no_barrier", planned).error for planned in runs_of(operator, "late-init")]
    assert any("deadlock" in error for error in stopped)
