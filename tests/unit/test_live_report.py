"""The report while a run lasts: blocks at once, a line about what runs, readers that go away, narrow terminals."""

from __future__ import annotations

import errno
import io
import time
from typing import Any

import pytest
import torch
from rich.console import Console

import tdist.verify.progress as progress
from tdist.errors import EnvironmentUnfit
from tdist.findings import FindingLog, make
from tdist.golden import Reference
from tdist.verify.modes import mode_of
from tdist.verify.operator import Case, operator
from tdist.verify.options import Options
from tdist.verify.policies import Setting, compare
from tdist.verify.progress import LiveReport
from tdist.verify.rank_job import LaunchResult
from tdist.verify.report import render_mode
from tdist.verify.run import ModeResult, Report, StepResult, finding_weights

FINE = mode_of("fine", ("fine", "barrier"))
CASE = Case("op", {"m": 8}, "fp32", 2)
OPTIONS = Options("mine.py::op", nranks=2)


@operator(shape={"m": 8}, inputs=lambda case, rank, launch: {}, golden=lambda case, rank: None)
def op(rt, case): ...


def result(wrong_ranks=(), nranks=2) -> ModeResult:
    golden = torch.arange(64.0).reshape(8, 8)
    ranks = []
    for rank in range(nranks):
        y = golden + 1 if rank in wrong_ranks else golden.clone()
        compared = compare("allclose", y, Reference(golden), Setting(tile=(1, 2)))
        ranks.append([LaunchResult({"out": compared})])
    return ModeResult("fp32", FINE, (StepResult("float", tuple(ranks)),))


def whole() -> Report:
    return Report("op", OPTIONS, (CASE,), (result(),))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def write(self, text: str) -> int:
        raise OSError(self.code, "no more")


def test_a_mode_is_shown_before_the_next_one_starts():
    stream = io.StringIO()
    with LiveReport(stream, lambda: None) as live:
        live.started(op, OPTIONS, CASE)
        assert "op  m=8  2 ranks" in stream.getvalue()
        live.step_started("fp32", FINE, "exact")
        live.mode_finished(result())
        assert "PASS fp32 fine" in stream.getvalue()
        live.conclude(whole())
    assert "VERIFIED  op, 1 run in" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_says_what_runs_and_for_how_long(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with LiveReport(stream, lambda: None) as live:
        live.step_started("fp32", FINE, "exact")
        time.sleep(0.3)
        live.mode_finished(result())
    assert "fp32 fine, exact step, random schedule, 0 s" in stream.getvalue()


def test_a_step_that_takes_long_is_remarked_on_standard_error_of_a_pipe(monkeypatch):
    monkeypatch.setattr(progress, "LONG_SECONDS", 0.05)
    stream, err = io.StringIO(), io.StringIO()
    with LiveReport(stream, lambda: None, err) as live:
        live.step_started("fp32", FINE, "exact")
        deadline = time.monotonic() + 20
        while err.getvalue().count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        live.mode_finished(result())
    first, second = err.getvalue().splitlines()[:2]
    assert "fp32 fine, exact step, random schedule has been running for 0 s" in first
    assert "a kernel that polls" in first and first.split(" s; ")[1] == second.split(" s; ")[1]


def test_compiling_that_takes_long_is_not_remarked_as_a_schedule(monkeypatch):
    monkeypatch.setattr(progress, "LONG_SECONDS", 0.05)
    stream, err = io.StringIO(), io.StringIO()
    with LiveReport(stream, lambda: None, err) as live:
        live.compiling(["Ascend910B3"])
        deadline = time.monotonic() + 20
        while not err.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        live.conclude(whole())
    first = err.getvalue().splitlines()[0]
    assert "compiling for Ascend910B3 has been running" in first and "--barrier-all-sync" in first
    assert "--schedule" not in first


def test_a_pipe_gets_no_blanks_at_the_ends_of_lines():
    stream = io.StringIO()
    with LiveReport(stream, lambda: None) as live:
        live.mode_finished(result())
        live.conclude(whole())
    lines = stream.getvalue().splitlines()
    assert any("rank 0  pass" in line for line in lines)
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("code", [errno.EPIPE, errno.ENOSPC])
def test_a_stream_that_takes_no_more_is_dropped_once_and_the_run_goes_on(code):
    dropped = []
    live = LiveReport(Broken(code), lambda: dropped.append(1))
    live.started(op, OPTIONS, CASE)
    live.step_started("fp32", FINE, "exact")
    live.mode_finished(result())
    if code == errno.EPIPE:
        live.conclude(whole())
    else:
        with pytest.raises(EnvironmentUnfit, match="cannot write the report to standard output: no more"):
            live.conclude(whole())
    assert dropped == [1]


def shown(mode: ModeResult, width: int) -> list[str]:
    out = io.StringIO()
    render_mode(mode, "seed", Console(file=out, width=width, color_system=None))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_what_a_policy_remarks_stands_once_for_all_ranks():
    lines = shown(result(wrong_ranks=range(6), nranks=6), 160)
    (remark,) = (line for line in lines if "allclose with" in line)
    places = ", ".join(f"rank {rank} launch 0 out" for rank in range(4))
    assert remark == f"    float: allclose with rtol 1.3e-06, atol 1e-05 (fails on {places} and 2 more)"
    (remark,) = (line for line in shown(result(nranks=6), 160) if "allclose with" in line)
    assert remark == "    float: allclose with rtol 1.3e-06, atol 1e-05"


@pytest.mark.parametrize("width", [99, 80, 70, 60])
def test_a_narrow_terminal_keeps_what_decides(width):
    wide, narrow = shown(result((1,)), 160), shown(result((1,)), width)
    assert "MERE" in wide[1] and "MERE" not in narrow[1]
    table = narrow[1 : next(i for i, line in enumerate(narrow) if "allclose with" in line)]
    assert max(map(len, table)) <= width
    text = " ".join(table)
    for word in ("verdict", "rank 0", "pass", "rank 1", "FAIL", "1e+05", "tiles", "[0, 0]", "32 of"):
        assert word in text
    assert "…" not in text.replace("[0, 3] …", "")


def test_what_fails_is_listed_errors_first():
    words: dict[str, Any] = {"first": "store", "second": "load", "tensor": "box"}
    log = FindingLog()
    for found in (
        make("lost-wait", op="wait", reason="its token is not used"),
        make("hazard.stale-cache", **words),
        make("race", **words),
    ):
        log.add(found)
    weights = finding_weights(log, "ascend")
    assert [found.kind for found in weights["fails"]] == ["tdist.race", "tdist.hazard.stale-cache"]
    assert [found.kind for found in weights["notes"]] == ["tdist.lost-wait"]
