"""Verdicts on mutants: what counts as caught, which runs are made, what is said; over a runner that plays a part."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which prints the kernels")

import mutation_kernels as kernels

from tdist.errors import EnvironmentUnfit, TdistError, UsageError, WorldStopped
from tdist.findings import Finding, Party, Severity
from tdist.frontend.triton_ascend import compile_source
from tdist.platforms.sim.launch_record import LaunchedKernel
from tdist.verify.cli import command
from tdist.verify.mutation import mutate
from tdist.verify.mutation.command import parse_kinds
from tdist.verify.mutation.equivalence import Proof, conclusion
from tdist.verify.mutation.mutate import CAUGHT, EQUIVALENT, FAULT, HANG, MISSED, WRONG, mutate_operator
from tdist.verify.mutation.report import LiveMutation, mutation_json, summary
from tdist.verify.operator import operator
from tdist.verify.options import Options
from tdist.verify.rank_job import LaunchResult
from tdist.verify.worlds import RunSpec, WorldResult


def found(kind: str, severity: Severity = Severity.ERROR) -> Finding:
    party = Party(rank=0, launch=0, file="k.py", line=1, op="store", tensor="x", where="all")
    profile = "ascend" if severity is Severity.HAZARD else None
    return Finding(f"tdist.{kind}", severity, f"a {kind}", profile, (party,))


RACE, DEADLOCK, BOUNDS = found("race"), found("deadlock"), found("out-of-bounds")
HAZARD = found("hazard.undrained-release", Severity.HAZARD)

Part = Callable[[RunSpec], WorldResult]


def outputs(spec: RunSpec, checksum: int = 7) -> WorldResult:
    """What a clean run gives; a judged one has no comparisons, which all pass."""
    launch = LaunchResult(checksums={"out": [checksum, spec.job.launches]})
    return WorldResult(tuple([launch] * spec.job.launches for _ in range(spec.job.case.nranks)))


def finding(what: Any, only: str = "") -> Part:
    """A clean run that reports something, if it detects and its world has `only` for its schedule."""

    def part(spec: RunSpec) -> WorldResult:
        shown = spec.world.get("detect", True) and only in spec.world["scheduler"]
        return WorldResult(outputs(spec).ranks, (what,) if shown else ())

    return part


def wrong(spec: RunSpec) -> WorldResult:
    return outputs(spec, checksum=8)


def stopped(what: Any) -> Part:
    def part(spec: RunSpec) -> WorldResult:
        raise WorldStopped("the world was stopped", (what,))

    return part


@dataclass
class Runner:
    """Plays `parts[kind of mutant]`, clean otherwise; keeps what it was asked for."""

    parts: dict[str, Part] = field(default_factory=dict)
    itself: Part = outputs
    asked: list[tuple[str, str, int, bool]] = field(default_factory=list)

    def record(self, job: Any, mode: Any, run: bool) -> list[Any]:
        signature = {"x_ptr": "*fp32", "buffer_ptr": "*fp32", "out_ptr": "*fp32", "ready_ptr": "*i32"}
        signature |= {"epoch": "i32", "slots": "i32", "n": "i32"}
        ir = compile_source(kernels.exchange, signature, {"B": 8})
        return [{"kernels": [LaunchedKernel(ir).to_json()], "stopped": ""}] * job.case.nranks

    def execute(self, spec: RunSpec) -> WorldResult:
        mutation = spec.world.get("mutation", "")
        kind = mutation.rpartition("/")[2].partition("@")[0]
        self.asked.append((kind, spec.world["scheduler"], spec.job.launches, spec.world.get("detect", True)))
        return self.parts.get(kind, outputs)(spec) if mutation else self.itself(spec)


@operator(
    name="played",
    shape={"m": 8},
    golden=lambda case, rank: None,
    inputs=lambda case, rank, launch: {},
    golden_local=lambda case, rank, inputs: None,
    workspace=lambda rt, case: None,
    relaunchable=True,
)
def played(rt, case, workspace):
    raise AssertionError("the runner plays it")


@pytest.fixture
def play(monkeypatch):
    """Judge mutants of some kinds with a runner; proofs hold for the kinds in `proved`."""

    def judge(runner: Runner, *kinds: str, proved: tuple[str, ...] = (), profile: str = "seed", **more: Any):
        opened = lambda *_: contextlib.nullcontext(runner)  # noqa: E731
        monkeypatch.setattr(mutate, "open_runner", opened)
        monkeypatch.setattr(mutate, "Rerunner", lambda _, inner: inner)
        monkeypatch.setattr(mutate, "prove", lambda _, spec, *__: _proof(spec, proved))
        options = Options("played", nranks=2, profile=profile, **more.pop("options", {}))
        return mutate_operator(played, options, kinds, **more)

    return judge


def _proof(spec: RunSpec, proved: tuple[str, ...]) -> Proof:
    holds = any(kind in spec.world["mutation"] for kind in proved)
    return Proof(holds, f"x{spec.job.launches}" if holds else "not proved", 2)


@pytest.mark.parametrize(
    ("part", "by", "golden"),
    [
        (finding(RACE), "tdist.race", ""),
        (wrong, "wrong output", WRONG),
        (stopped(DEADLOCK), "tdist.deadlock", HANG),
        (stopped(BOUNDS), "tdist.out-of-bounds", FAULT),
    ],
)
def test_how_a_mutant_is_caught(play, part, by, golden):
    (judged,) = play(Runner({"drop-wait": part}), "drop-wait").judged
    assert (judged.verdict, judged.by, judged.golden, judged.runs) == (CAUGHT, by, golden, 1)
    assert judged.run == "base/run-to-block"


def test_an_error_without_a_finding_is_told(play):
    def fails(spec):
        raise TdistError("the host function of rank 1 raised ValueError")

    (judged,) = play(Runner({"drop-wait": fails}), "drop-wait").judged
    assert (judged.verdict, judged.by, judged.golden) == (
        CAUGHT,
        "the host function of rank 1 raised ValueError",
        FAULT,
    )


def test_a_run_further_down_the_plan_catches(play):
    runner = Runner({"drop-wait": finding(RACE, only="starved:rank=1")})
    (judged,) = play(runner, "drop-wait").judged
    assert judged.verdict == CAUGHT and "starved:rank=1" in judged.run and judged.runs > 1


def test_a_hazard_counts_under_its_profile_only(play):
    runner = Runner({"drop-fence": finding(HAZARD)})
    (judged,) = play(runner, "drop-fence", profile="ascend").judged
    assert (judged.verdict, judged.by) == (CAUGHT, "tdist.hazard.undrained-release")
    (judged,) = play(runner, "drop-fence", proved=("drop-fence",)).judged
    assert (judged.verdict, judged.remark) == (EQUIVALENT, "fails --profile ascend: tdist.hazard.undrained-release")


def test_what_no_run_catches_is_missed_unless_proved(play):
    report = play(Runner(), "drop-wait", "drop-notify", proved=("drop-notify",))
    wait, notify = report.judged
    assert (wait.verdict, wait.remark) == (MISSED, "not proved")
    assert notify.verdict == EQUIVALENT
    assert notify.proof == "all inequivalent schedules ran, no finding, the same outputs: x2 (2); x4 (2)"
    assert report.exit_code == 1
    assert play(Runner(), "drop-notify", proved=("drop-notify",)).exit_code == 0


def test_suppressed_findings_catch_nothing(play):
    runner = Runner({"drop-wait": finding(RACE)})
    (judged,) = play(runner, "drop-wait", options={"suppress": {"tdist.race": "known"}}).judged
    assert judged.verdict == MISSED


def test_one_run_of_each_situation_comes_first(play):
    runner = Runner()
    report = play(runner, "drop-wait")
    situations = [planned.situation for planned in report.forms[0].runs]
    distinct = list(dict.fromkeys(situations))
    assert len(distinct) > 2 and situations[2 : len(distinct) + 1] == distinct[1:]
    assert report.forms[0].runs[1].name == "poison/run-to-block"
    assert report.judged[0].runs == len(report.forms[0].runs)


def test_plain_comparison_neither_detects_nor_searches(play):
    runner = Runner()
    play(runner, "drop-wait")
    plain = [(schedule, launches) for kind, schedule, launches, detect in runner.asked if kind and not detect]
    assert plain == [("run-to-block", 2)]


def test_an_operator_that_fails_itself_is_not_mutated(play):
    with pytest.raises(TdistError, match=r"played \(fp16 fine\) fails its own run base/run-to-block: .*race"):
        play(Runner(itself=finding(RACE)), "drop-wait")
    numbers = itertools.count()
    with pytest.raises(TdistError, match="its outputs differ from those of base/run-to-block"):
        play(Runner(itself=lambda spec: outputs(spec, next(numbers))), "drop-wait")


def test_an_unfit_machine_is_no_verdict(play):
    def unfit(spec):
        raise EnvironmentUnfit("no memory")

    with pytest.raises(EnvironmentUnfit):
        play(Runner({"drop-wait": unfit}), "drop-wait")


def test_what_is_done_when_the_user_stops_it_is_told(play):
    def interrupted(spec):
        raise KeyboardInterrupt

    report = play(Runner({"drop-wait": wrong, "drop-notify": interrupted}), "drop-wait", "drop-notify")
    assert (len(report.judged), report.total, report.exit_code) == (1, 2, 130)
    assert summary(report)[0] == "interrupted after 1 of 2 mutants: 1 caught, 0 equivalent by proof, 0 missed"


def test_two_reports_of_one_seed_are_equal(play):
    runner = Runner({"drop-wait": finding(RACE), "wrong-peer": wrong})
    first, second = (mutation_json(play(runner)) for _ in range(2))
    for report in (first, second):
        report.pop("seconds")
        for judged in report["mutants"]:
            judged.pop("seconds")
    assert first == second
    assert first["total"] == first["judged"] == len(first["mutants"]) > 20
    assert first["caught"] + first["equivalent"] + first["missed"] == first["total"]


def test_what_is_printed(play):
    runner = Runner({"drop-wait": finding(RACE), "drop-notify": stopped(DEADLOCK)})
    stream = io.StringIO()
    live = LiveMutation(stream, Options("played", nranks=2), err=io.StringIO())
    report = play(runner, "drop-wait", "drop-notify", "drop-fence", observer=live)
    live.conclude(report)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "played on 2 simulated ranks, profile seed: 3 mutants"
    assert "kernel exchange" in lines
    wait = next(line for line in lines if "drop-wait@" in line)
    assert wait.split()[:2] == ["caught", f"mutation_kernels.py:{report.judged[0].mutant.line}"]
    assert wait.endswith("tdist.race in base/run-to-block; plain comparison: nothing")
    fence = next(line for line in lines if "drop-fence@" in line)
    assert fence.split()[0] == "missed" and "no run of" in fence
    assert "3 mutants: 2 caught, 0 equivalent by proof, 1 missed" in lines
    assert "plain comparison with the golden would have caught 1 of 3: 0 by wrong output, 1 by a hang" in lines
    assert "missed drop-fence: somebody forgot to drain: a fence or quiet (1)" in lines
    assert lines[-1] == (
        "again: tdist-verify played --nranks 2 --seed 0 --mutate --mutate-kinds drop-wait,drop-notify,drop-fence"
    )


def test_proofs_of_several_cases():
    text = conclusion([Proof(True, "m=1 x2", 1), Proof(True, "m=2 x2", 30)])
    assert text == "all inequivalent schedules ran, no finding, the same outputs: m=1 x2 (1); m=2 x2 (30)"


@pytest.mark.parametrize(("text", "says"), [("drop-wiat", "did you mean 'drop-wait'"), (" , ", "at least one kind")])
def test_kinds_that_are_none(text, says):
    with pytest.raises(UsageError, match=says):
        parse_kinds(text)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--mutate", "--mutate-kinds", "drop-wiat"],
            "there is no kind of mutant 'drop-wiat' (did you mean 'drop-wait'?)",
        ),
        (["--mutate-kinds", "drop-wait"], "it needs --mutate"),
        (["--mutate", "--no-search"], "leave out --no-search"),
        (["--mutate", "--trace", "t.json"], "--trace is about one: leave one of them out"),
        (["--mutate", "--shrink"], "--shrink is about one: leave one of them out"),
        (["--mutate", "--json", "/nowhere/at/all.json"], "--json"),
    ],
)
def test_a_wrong_request(words, says):
    result = CliRunner().invoke(command, ["all_gather", *words], prog_name="tdist-verify")
    assert result.exit_code == 2 and says in result.output, result.output
    assert len(result.output.strip().splitlines()) == 1
