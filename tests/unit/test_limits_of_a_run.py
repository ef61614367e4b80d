"""What a report says that its run could not have seen."""

from __future__ import annotations

from tdist.verify.loader import load_operator
from tdist.verify.operator import format_shape
from tdist.verify.options import Options
from tdist.verify.run import verify


def shape_limit(**options) -> tuple[str, list[str]]:
    """The limit that names shapes, and the shapes of the search runs."""
    operator = load_operator("all_gather")
    report = verify(operator, Options("all_gather", nranks=2, launches=1, **options), in_process=True)
    (limit,) = (text for text in report.limits if text.startswith("one shape: "))
    runs = [run for result in report.modes for step in result.steps for run in step.runs]
    return limit, [format_shape(run.planned.spec.job.case.shape) for run in runs]


def test_the_shapes_that_were_run_are_named_and_that_faults_depend_on_them():
    limit, searched = shape_limit(shape={"m": 6, "n": 16}, sync="fine", situations=(), seeds=1)
    assert searched and f"m=6,n=16, and in the search step {searched[0]}" in limit
    assert all(shape in limit for shape in searched)
    assert "64-byte lines" in limit and "(--shape)" in limit


def test_without_a_search_step_the_asked_for_shape_stands_alone():
    limit, searched = shape_limit(shape={"m": 6, "n": 16}, sync="fine", search=False)
    assert not searched and limit.startswith("one shape: m=6,n=16: faults")
