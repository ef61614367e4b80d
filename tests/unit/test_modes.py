"""Modes: three axes that move together, and what a table of verdicts says."""

from __future__ import annotations

import pytest

from tdist.verify.modes import diagnose, mode_of, modes_for
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


@pytest.mark.parametrize(
    ("fine", "barrier", "text"),
    [
        (False, True, "points at synchronisation"),
        (True, False, "points at the barrier form"),
        (False, False, "points at addressing"),
    ],
)
def test_the_table_points_somewhere(fine, barrier, text):
    assert text in diagnose({"fine": fine, "barrier": barrier}, explained=True)
    assert "try other seeds" in diagnose({"fine": fine, "barrier": barrier}, explained=False)


def test_the_table_is_silent_where_it_knows_nothing():
    assert diagnose({"fine": True, "barrier": True}, explained=False) == ""
    assert diagnose({"fine": False}, explained=False) == ""
