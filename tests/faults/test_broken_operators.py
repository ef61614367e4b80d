"""Broken copies of the kernels: found by `tdist-verify`, at the right lines, also where the numbers are right."""

from __future__ import annotations

import json
import linecache
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from tdist.findings import Finding
from tdist.verify.cli import command
from tdist.verify.loader import load_operator
from tdist.verify.modes import mode_of
from tdist.verify.options import Options
from tdist.verify.rank_job import Job
from tdist.verify.worlds import POISONS, ThreadRunner

HERE = Path(__file__).parent
SEEDS = 60
LAUNCHES = 2


@dataclass(frozen=True)
class Fault:
    """A planted fault.

    Attributes:
        file: the operator file.
        kind: the finding that it has to give.
        lines: text of the source line of each party, in any order.
        shape: a small shape on two ranks on which some schedule computes the right numbers.
    """

    file: str
    kind: str
    lines: tuple[str, ...]
    profile: str = "seed"
    shape: dict[str, int] = field(default_factory=lambda: {"m": 2, "n": 16})

    @property
    def spec(self) -> str:
        return f"{HERE / self.file}.py::op"


STORE, COPY = "tl.store(dl.symm_at(", "data = tl.load("
PANEL = {"m": 20, "n": 16, "k": 16}
ROUNDS = {"m": 96, "n": 32, "k": 48}
FAULTS = [
    Fault("broken_gather_wait", "tdist.race", (STORE, COPY + "half_ptr")),
    Fault("broken_gather_token", "tdist.race", (STORE, COPY + "half_ptr")),
    Fault("broken_gather_peer", "tdist.race", (STORE, COPY + "arrived_ptr")),
    Fault("broken_gather_exit", "tdist.race", (STORE, COPY + "buffer_ptr")),
    Fault("broken_gather_fence", "tdist.hazard.undrained-release", (STORE, COPY + "arrived_ptr"), "ascend"),
    Fault("broken_gemm_mask", "tdist.race", ("tl.store(c_ptrs", "tl.store(c_ptrs"), shape=PANEL),
    Fault("broken_gemm_credit", "tdist.race", ("tl.store(remote_ptr", "a = tl.load(panel_ptr"), shape=ROUNDS),
    Fault("broken_gemm_credit", "tdist.overshoot", ("token = dl.wait(ready_ptr", "dl.notify(ready_ptr"), shape=ROUNDS),
]
ids = [f"{fault.file}-{fault.kind}" for fault in FAULTS]


def lines_of(finding: Finding) -> list[str]:
    return sorted(linecache.getline(str(party.file), party.line or 0).strip() for party in finding.parties)


def is_found(fault: Fault, findings: list[Finding]) -> bool:
    """Whether a failing finding of the right kind stands at the right lines of the right file."""
    wanted = sorted(fault.lines)
    for finding in findings:
        if finding.kind != fault.kind or not finding.fails(fault.profile):
            continue
        texts = lines_of(finding)
        if len(texts) == len(wanted) and all(text.startswith(want) for text, want in zip(texts, wanted, strict=True)):
            return all(Path(str(party.file)) == HERE / f"{fault.file}.py" for party in finding.parties)
    return False


def run_once(fault: Fault, seed: int):
    """One exact run on two ranks: whether all numbers were right, and the findings."""
    operator = load_operator(fault.spec)
    mode = mode_of("fine", operator.sync, "random")
    case = operator.case(dtype="fp16", nranks=2, shape=fault.shape, seed=seed, sync=mode.protocol)
    options = Options(fault.spec, seed=seed, nranks=2, profile=fault.profile)
    result = ThreadRunner(operator, options).run(Job(fault.spec, case, LAUNCHES, policy="exact"), mode, POISONS[0])
    compared = [c for rank in result.ranks for launch in rank or () for c in launch.comparisons.values()]
    return not result.error and all(c.passed for c in compared), list(result.findings)


@pytest.mark.parametrize("fault", FAULTS, ids=ids)
def test_found_on_a_schedule_that_computes_the_right_numbers(fault):
    for seed in range(SEEDS):
        right, findings = run_once(fault, seed)
        if right and is_found(fault, findings):
            return
    pytest.fail(f"no seed below {SEEDS} computes the right numbers and reports {fault.kind} at {fault.lines}")


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.kind == "tdist.race"], ids=lambda fault: fault.file)
def test_some_schedule_computes_wrong_numbers(fault):
    """The faults are real: without a detector they are a matter of luck."""
    assert not all(run_once(fault, seed)[0] for seed in range(SEEDS))


@pytest.mark.parametrize("fault", FAULTS[:-1], ids=ids[:-1])
def test_tdist_verify_exits_1_with_the_finding(fault, tmp_path):
    report = tmp_path / "report.json"
    words = [fault.spec, "--sync", "fine", "--nranks", "2", "--profile", fault.profile, "--json", str(report)]
    shape = ",".join(f"{symbol}={value}" for symbol, value in fault.shape.items())
    result = CliRunner().invoke(command, [*words, "--shape", shape], prog_name="tdist-verify")
    assert result.exit_code == 1, result.output
    findings = [Finding.from_json(_without_count(f)) for f in json.loads(report.read_text())["modes"][0]["findings"]]
    assert is_found(fault, findings)
    assert fault.kind in result.output
    assert f"{fault.file}.py:" in result.output
    assert "tdist-verify " in result.output.splitlines()[-1]


def _without_count(value: dict) -> dict:
    return {name: item for name, item in value.items() if name != "count"}


def test_the_missing_fence_passes_where_ascend_was_not_asked_for():
    fault = Fault("broken_gather_fence", "tdist.hazard.undrained-release", (STORE, COPY + "arrived_ptr"))
    right, findings = run_once(fault, 0)
    assert right
    assert not any(finding.fails("seed") for finding in findings)
    assert any(finding.kind == fault.kind for finding in findings)


@pytest.mark.parametrize("name", ["correct_gather", "correct_gemm"])
@pytest.mark.parametrize("seed", range(5))
def test_the_originals_are_clean_under_both_profiles(name, seed):
    shape = PANEL if "gemm" in name else {"m": 2, "n": 16}
    right, findings = run_once(Fault(name, "", (), "ascend", shape), seed)
    assert right
    assert not [finding.title for finding in findings if finding.fails("ascend")]
