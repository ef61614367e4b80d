"""What a reader of `tdist-verify` sees, word for word."""

from __future__ import annotations

import io
import json

import torch
from rich.console import Console

from tdist.findings import Party, make
from tdist.golden import Reference
from tdist.verify.modes import mode_of
from tdist.verify.operator import Case
from tdist.verify.options import Options
from tdist.verify.policies import Setting, compare
from tdist.verify.rank_job import LaunchResult
from tdist.verify.report import render_report, report_json
from tdist.verify.run import ModeResult, Report, StepResult

EXPECTED = """\
op  m=4,n=4  2 ranks  seed 7
FAIL fp32 fine  (fine protocol, weak pipes, random schedule)  1.5 s
  exact   verdict  policy  worst error/allowed  at                  got  expected  wrong tiles     MERE      MARE
  rank 0  pass     exact   0                                                       0 of 4          0         0
  rank 1  FAIL     exact   inf                  out[2, 1] launch 0  10   9         1 of 4: [1, 0]  0.006944  0.1111
  exact: 1 finding, see below
  poison: not run, the exact step did not finish
PASS fp32 barrier  (barrier protocol, drained pipes, max-sync schedule)  0.2 s
  poison: outputs agree
error [tdist.race] data race: load of box is not ordered after store by another agent
  first  rank 0, program 1: store of box, bytes 0…7
         at mine.py:10
  second rank 1, program 0: load of box, bytes 0…7
         at mine.py:20
  why    nothing orders the two accesses
  try    order the two accesses with a notify and a wait whose token the later one consumes, or with a barrier
kind of bug: synchronisation bug
  - findings about synchronisation: race (mine.py:10, mine.py:20)
FAILED  op, 2 runs in 1.7 s
Not seen by this run:
  - other interleavings
seed 7; replay:
  tdist-verify mine.py::op --nranks 2 --shape m=4,n=4 --seed 7
"""


def report() -> Report:
    value = torch.arange(16.0).reshape(4, 4)
    wrong = value.clone()
    wrong[2, 1] += 1
    setting = Setting(tile=(2, 2))
    ranks = tuple(
        [LaunchResult({"out": compare("exact", y, Reference(value), setting)}, {"out": [1, 2, 3, 4]})]
        for y in (value, wrong)
    )
    parties = [
        Party(0, 0, 1, file="mine.py", line=10, op="store", tensor="box", where="bytes 0…7"),
        Party(1, 0, 0, file="mine.py", line=20, op="load", tensor="box", where="bytes 0…7"),
    ]
    race = make("race", parties, tensor="box", first="store", second="load")
    fine = (
        StepResult("exact", ranks, (race,), seconds=1.5),
        StepResult("poison", skipped="the exact step did not finish"),
    )
    barrier = (StepResult("poison", ([LaunchResult()], [LaunchResult()]), seconds=0.2),)
    forms = ("fine", "barrier")
    return Report(
        "op",
        Options("mine.py::op", nranks=2, shape={"m": 4, "n": 4}, seed=7),
        (Case("op", {"m": 4, "n": 4}, "fp32", 2, seed=7),),
        (
            ModeResult("fp32", mode_of("fine", forms), fine),
            ModeResult("fp32", mode_of("barrier", forms), barrier),
        ),
        started="2000-01-01T00:00:00Z",
        seconds=1.7,
        source="mine.py",
        limits=("other interleavings",),
    )


def test_the_summary_reads_like_this():
    text = io.StringIO()
    render_report(report(), Console(file=text, width=160, color_system=None))
    lines = [line.rstrip() for line in text.getvalue().splitlines() if line.strip()]
    assert lines == EXPECTED.splitlines()


def test_the_json_is_strict_and_keeps_the_run_apart():
    value = report_json(report())
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert value["verdict"] == "failed"
    assert value["modes"][0]["steps"][0]["comparisons"][1]["worst_error"] == "inf"
    assert value["modes"][0]["findings"][0]["kind"] == "tdist.race"
    assert value["modes"][0]["steps"][1]["passed"] is None
    assert value["run"]["step_seconds"] == {
        "fp32/fine/exact": 1.5,
        "fp32/fine/poison": 0.0,
        "fp32/barrier/poison": 0.2,
    }
    rest = {name: item for name, item in value.items() if name != "run"}
    assert "2000-01-01" not in json.dumps(rest)
    assert "seconds" not in json.dumps(rest)


def test_what_did_not_decide_stands_below_the_verdict():
    """A deleted wait of a run that passes by luck of the schedule."""
    lost = make(
        "lost-wait", [Party(0, file="mine.py", line=30, op="wait")], op="this wait", reason="its token is unused"
    )
    hazard = make(
        "hazard.stale-cache", [Party(1, 0, 0, 0, "mine.py", 40, "load", "x")], first="store", second="load", tensor="x"
    )
    step = StepResult("poison", ranks=(None,), findings=(lost, hazard))
    options = Options("mine.py::op", nranks=1)
    case = Case("op", {"m": 4}, "fp32", 1)
    mode = ModeResult("fp32", mode_of("fine", ("fine",)), (step,))
    whole = Report("op", options, (case,), (mode,), "", 0.0, "mine.py", ())
    out = io.StringIO()
    render_report(whole, Console(file=out, width=160, color_system=None))
    headline = "VERIFIED under profile seed: 1 hazard would fail --profile ascend  op"
    below = out.getvalue().partition(headline)[2].splitlines()[1:3]
    assert below == [
        f"  hazard, did not decide: {hazard.title}; mine.py:40",
        f"  note, did not decide: {lost.title}; mine.py:30",
    ]
    assert whole.exit_code == 0
    assert report_json(whole)["verdict"] == "verified" and report_json(whole)["would_fail_under_ascend"] == 1
