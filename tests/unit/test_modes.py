"""Modes: three axes that move together."""

from __future__ import annotations

import pytest

from tdist.verify.modes import mode_of, modes_for
from tdist.verify.operator import operator


@operator(shape={"m": 1}, sync=("fine",), inputs=lambda case, rank, launch: {}, golden=lambda case, rank: None)
def fine_only(rt, case): ...


@operator(
    shape={"m": 1}, sync=("fine", "barrier"), inputs=lambda case, rank, launch: {}, golden=lambda case, rank: None
)
def both_forms(rt, case): ...


def test_both_moves_all_three_axes():
    fine, barrier = modes_for(both_forms, "both")
    assert (fine.protocol, fine.drained, fine.schedule) == ("fine", False, "random")
    assert (barrier.protocol, barrier.drained, barrier.schedule) == ("barrier", True, "max-sync")


def test_an_operator_with_one_form_keeps_it_and_the_other_axes_still_move():
    fine, barrier = modes_for(fine_only, "both")
    assert fine.protocol == barrier.protocol == "fine"
    assert (barrier.drained, barrier.schedule) == (True, "max-sync")


def test_a_named_schedule_holds_for_every_mode():
    assert {mode.schedule for mode in modes_for(both_forms, "both", "run-to-block")} == {"run-to-block"}


@pytest.mark.parametrize("name", ["fine", "barrier"])
def test_one_mode_alone(name):
    assert modes_for(both_forms, name) == (mode_of(name, ("fine", "barrier")),)


def test_a_form_that_is_not_there_is_said_in_the_mode_line():
    fine, barrier = modes_for(fine_only, "both")
    assert barrier.axes == "fine protocol (no barrier form declared), drained pipes, max-sync schedule"
    assert "declared" not in fine.axes
    assert not any("declared" in mode.axes for mode in modes_for(both_forms, "both"))
