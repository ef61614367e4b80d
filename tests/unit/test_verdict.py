"""The verdict: synchronisation, computation or mask, both, undecided; findings first, the table second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from search_fakes import BARRIER, FINE, compared, declare, race

from tdist.findings import KINDS, Finding, Party, make
from tdist.verify.loader import load_operator
from tdist.verify.operator import Case
from tdist.verify.options import Options
from tdist.verify.rank_job import LaunchResult
from tdist.verify.results import ModeResult, Report, SearchRun, StepResult
from tdist.verify.run import verify
from tdist.verify.search.plan import plan
from tdist.verify.verdict import BOTH, COMPUTATION, GROUPS, SYNCHRONISATION, UNDECIDED, group_of, judge

OPTIONS = Options("op", nranks=2)
FILE = Path(__file__).parent / "search_operators.py"
FAULTS = Path(__file__).parents[1] / "faults"
OPERATOR = declare(sync=("fine", "barrier"))


def party(line: int, op: str = "store", program: int = 0) -> Party:
    return Party(0, 0, program, file="k.py", line=line, op=op)


WILD = make("out-of-bounds", [party(9)], op="store", tensor="x")
OVERLAP = make("race", [party(5), party(5, program=1)], tensor="c", first="store", second="store")
HOST = make("host-error", [party(1)], rank=0, error="no")


def exact(wrong: tuple = ()) -> StepResult:
    """An exact step with these wrong tiles on each rank."""
    results = [LaunchResult({"out": compared(not wrong, wrong)}, {"out": [1, 2]})]
    return StepResult("exact", (results, results))


def searched(mode, differ: int = 0, first: bool = False, findings: dict[int, tuple[Finding, ...]] | None = None):
    """A search step whose last `differ` runs have other outputs; `first`: the first one is not the golden's."""
    planned = plan(OPERATOR, OPTIONS, mode)
    wrong = set(range(len(planned) - differ, len(planned))) | ({0} if first else set())
    runs = tuple(
        SearchRun(one, (findings or {}).get(index, ()), ("out",) if index in wrong else ())
        for index, one in enumerate(planned)
    )
    return StepResult("search", findings=tuple(f for run in runs for f in run.findings), runs=runs)


def report(fine: tuple[StepResult, ...], barrier: tuple[StepResult, ...] = ()) -> Report:
    modes = [ModeResult("fp16", FINE, fine)]
    if barrier:
        modes.append(ModeResult("fp16", BARRIER, barrier))
    return Report("op", OPTIONS, (Case("op", {"n": 1}, "fp16", 2),), tuple(modes))


def kind(fine, barrier=()):
    verdict = judge(report(fine, barrier))
    assert verdict is not None and verdict.evidence
    return verdict.kind


def test_every_kind_of_finding_has_a_group():
    assert set(GROUPS) == set(KINDS)


def test_nothing_failed_nothing_is_said():
    assert judge(report((exact(), searched(FINE)))) is None


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ({3: (race(),)}, SYNCHRONISATION),
        ({3: (WILD,)}, COMPUTATION),
        ({3: (OVERLAP,)}, COMPUTATION),
        ({3: (race(),), 4: (WILD,)}, BOTH),
        ({3: (race(), WILD)}, SYNCHRONISATION),
        ({3: (race(), WILD), 4: (WILD,)}, BOTH),
        ({3: (HOST,)}, UNDECIDED),
    ],
    ids=["sync", "mask", "overlap", "apart", "follows", "alone once", "host"],
)
def test_findings_decide(findings, expected):
    assert kind((exact(), searched(FINE, findings=findings))) == expected


@pytest.mark.parametrize(("contents", "expected"), [(("a",), BOTH), (("a", "b"), SYNCHRONISATION)])
def test_a_race_is_all_where_some_schedule_changes_the_output_that_is_wrong_in_both_modes(contents, expected):
    step = searched(FINE, findings={3: (race(),)})
    runs = [replace(run, outputs=({"out": contents[i % len(contents)]},) * 2) for i, run in enumerate(step.runs)]
    fine = exact(((0, 0),)), replace(step, runs=tuple(runs))
    assert kind(fine, (exact(((0, 0),)), searched(BARRIER))) == expected


def test_the_evidence_names_kinds_and_places_and_what_may_follow():
    verdict = judge(report((exact(), searched(FINE, findings={3: (race(), WILD)}))))
    assert verdict is not None
    assert verdict.evidence == (
        "findings about synchronisation: race (k.py:1, k.py:2)",
        "findings about addresses, masks or values: out-of-bounds (k.py:9)",
        "the others were met only where these were met as well: they may follow from them",
    )


@pytest.mark.parametrize(("memory", "expected"), [("plain", BOTH), ("adversarial", SYNCHRONISATION)])
def test_nothing_follows_from_a_hazard_that_changes_no_value(memory, expected):
    hazard = make("hazard.stale-cache", [party(1), party(2)], first="store", second="load", tensor="x")
    output = make("uninitialised", [party(3, "output")], tensor="output out")
    poison = StepResult("poison", findings=(hazard, output))
    whole = report((exact(), poison))
    verdict = judge(replace(whole, options=replace(OPTIONS, profile="ascend", memory=memory)))
    assert verdict is not None and verdict.kind == expected
    assert any("may follow" in line for line in verdict.evidence) == (memory == "adversarial")


def test_a_search_run_has_the_memory_of_its_own_plan():
    hazard = make("hazard.stale-cache", [party(1), party(2)], first="store", second="load", tensor="x")
    step = searched(FINE)
    index = next(i for i, run in enumerate(step.runs) if run.planned.spec.world["memory"] == "adversarial")
    for met, expected in ((index, SYNCHRONISATION), (0, BOTH)):
        whole = report((exact(), searched(FINE, findings={met: (hazard, WILD)})))
        verdict = judge(replace(whole, options=replace(OPTIONS, profile="ascend")))
        assert verdict is not None and verdict.kind == expected


def test_two_programs_at_one_line_overlap_but_two_launches_or_ranks_do_not():
    assert group_of(OVERLAP) == COMPUTATION
    assert group_of(race(5, 5)) == SYNCHRONISATION
    assert group_of(make("race", [party(5), party(5, "load", 1)], tensor="c", first="s", second="l")) == SYNCHRONISATION


@pytest.mark.parametrize(
    ("fine", "barrier", "expected"),
    [
        ((exact(), searched(FINE, differ=2)), (), SYNCHRONISATION),
        ((exact(), searched(FINE, differ=2)), (exact(), searched(BARRIER)), SYNCHRONISATION),
        ((exact(((0, 0),)), searched(FINE)), (exact(), searched(BARRIER)), SYNCHRONISATION),
        (
            (exact(((0, 0),)), searched(FINE, first=True)),
            (exact(((0, 0),)), searched(BARRIER, first=True)),
            COMPUTATION,
        ),
        ((exact(((0, 0),)), searched(FINE, differ=1)), (exact(((0, 0),)), searched(BARRIER)), BOTH),
        ((exact(((0, 0),)), searched(FINE)), (exact(((1, 0),)), searched(BARRIER)), UNDECIDED),
        ((exact(((0, 0),)),), (), UNDECIDED),
        ((exact(((0, 0),)), searched(FINE, first=True)), (), COMPUTATION),
        ((exact(((0, 0),)), searched(FINE, first=True, differ=1)), (), SYNCHRONISATION),
        ((exact(), searched(FINE)), (exact(((1, 0),)), searched(BARRIER)), UNDECIDED),
    ],
)
def test_the_table_decides_where_no_finding_does(fine, barrier, expected):
    assert kind(fine, barrier) == expected


def test_floats_alone_are_a_matter_of_precision():
    floats = StepResult("float", ([LaunchResult({"out": compared(False)})],))
    verdict = judge(report((exact(), floats, searched(FINE)), (exact(), searched(BARRIER))))
    assert verdict is not None and verdict.kind == COMPUTATION and "precision" in verdict.evidence[0]


def test_a_machine_that_fails_says_nothing_about_the_kernel():
    lost = StepResult("exact", error="the fork server was killed", exit_code=3)
    verdict = judge(report((lost,), (exact(((0, 0),)), searched(BARRIER))))
    assert verdict is not None and verdict.kind == UNDECIDED and "killed" in verdict.evidence[0]


def test_a_step_that_stops_without_a_finding_is_undecided():
    assert kind((StepResult("exact", error="the golden raised"),)) == UNDECIDED


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (f"{FILE}::no_barrier", SYNCHRONISATION),
        (f"{FILE}::no_wait", SYNCHRONISATION),
        (f"{FILE}::masked_short", COMPUTATION),
        (f"{FAULTS / 'broken_gather_token.py'}::op", SYNCHRONISATION),
        (f"{FAULTS / 'broken_gather_exit.py'}::op", SYNCHRONISATION),
        (f"{FAULTS / 'broken_gemm_mask.py'}::op", COMPUTATION),
    ],
    ids=lambda value: Path(value).name,
)
def test_faulty_operators_get_their_class(spec, expected):
    operator = load_operator(spec)
    shape = {"m": 20, "n": 16, "k": 16} if "k" in operator.shape else {}
    options = Options(spec, nranks=2, shape=shape, seeds=1, situations=("relaunch",))
    found = verify(operator, options, in_process=True)
    verdict = judge(found)
    assert verdict is not None and verdict.kind == expected, verdict
