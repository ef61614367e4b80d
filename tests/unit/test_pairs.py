"""Two operators as one: how a pair is named, what it is made of, and that opposite orders that wait are a deadlock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from search_fakes import FINE, declare

from tdist.errors import UsageError
from tdist.verify.loader import absolute_spec, load_operator
from tdist.verify.options import Options
from tdist.verify.search.pairs import pair
from tdist.verify.search.plan import plan, setting_of
from tdist.verify.search.situations import not_run
from tdist.verify.worlds import ThreadRunner

FILE = Path(__file__).parent / "search_operators.py"
SPEC = f"{FILE}::counts_on_device+{FILE}::epoch_from_host"
TWO = Options(SPEC, nranks=2, seeds=1, situations=("relaunch", "opposite-order"))


def test_a_pair_is_named_by_both(tmp_path):
    made = load_operator(SPEC)
    assert made.name == "counts_on_device+epoch_from_host"
    assert [part.name for part in made.parts] == ["counts_on_device", "epoch_from_host"]
    assert made.outputs == ("counts_on_device.out", "epoch_from_host.out")
    assert absolute_spec("ag_gemm+a.py::b") == f"ag_gemm+{Path('a.py').absolute()}::b"
    assert load_operator("all_gather+ag_gemm").shape == {"m": 256, "n": 128, "k": 256}


def test_a_path_may_have_the_sign_in_it(tmp_path):
    path = tmp_path / "a+b.py"
    path.write_text(FILE.read_text())
    assert load_operator(f"{path}::no_wait").name == "no_wait"
    assert absolute_spec(f"{path}::no_wait") == f"{path}::no_wait"
    assert load_operator(f"{path}::no_wait+{path}::no_wait").outputs == ("first.out", "second.out")


@pytest.mark.parametrize("spec", ["ag_gemm+", "+ag_gemm", "ag_gemm+nothing"])
def test_half_a_pair_is_told(spec):
    with pytest.raises(UsageError, match="unknown operator"):
        load_operator(spec)


def test_two_without_a_common_type_are_no_pair():
    with pytest.raises(UsageError, match="no element type in common: fp16; fp32"):
        pair(declare(dtypes=("fp16",)), declare(dtypes=("fp32",)))


def test_both_constraints_count():
    made = pair(
        declare(constraint=lambda case: None), declare(constraint=lambda case: "odd" if case["m"] % 2 else None)
    )
    with pytest.raises(UsageError, match="second: odd"):
        made.case(dtype="fp16", nranks=2, shape={"m": 3})


def test_one_operator_has_no_opposite_order():
    asked = Options("op", nranks=2, situations=("opposite-order",))
    assert not_run(setting_of(declare(), asked, FINE))["opposite-order"] == "it takes two operators, named OP1+OP2"
    unasked = not_run(setting_of(load_operator(SPEC), Options(SPEC, nranks=2), FINE))
    assert unasked["opposite-order"] == "on request: --situations opposite-order"


def test_opposite_orders_that_wait_for_each_other_are_a_deadlock():
    operator = load_operator(SPEC)
    runner = ThreadRunner(operator, TWO)
    runs = plan(operator, TWO, FINE)
    first = runner.execute(runs[0].spec)
    assert not first.error and runs[0].spec.job.judge
    for launches in first.ranks:
        assert launches is not None and len(launches) == 2
        assert all(compared.passed for result in launches for compared in result.comparisons.values())
    opposite = [planned for planned in runs if planned.situation == "opposite-order"]
    assert len(opposite) == 3
    for planned in opposite:
        assert {found.kind for found in runner.execute(planned.spec).findings if found.fails()} == {"tdist.deadlock"}


def test_with_one_order_an_odd_rank_is_no_different():
    operator = load_operator(SPEC)
    (planned, *_) = [planned for planned in plan(operator, TWO, FINE) if planned.situation == "opposite-order"]
    plain = replace(planned.spec, job=replace(planned.spec.job, situation=""))
    assert not ThreadRunner(operator, TWO).execute(plain).error
