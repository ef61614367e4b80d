"""The search step of `tdist-verify` from the command line: its plan, its situations, suppressions, what it finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tdist.verify.cli import command

FILE = Path(__file__).parents[1] / "unit" / "search_operators.py"
FEW = ["--nranks", "2", "--sync", "fine", "--seeds", "1"]


@pytest.fixture
def run(tmp_path):
    def invoke(*words):
        return CliRunner().invoke(command, [*words, "--replays", str(tmp_path / "replays")], prog_name="tdist-verify")

    return invoke


def test_the_plan_is_printed_and_nothing_is_run(run):
    result = run("all_gather", "--plan", "--nranks", "2", "--seeds", "1")
    assert result.exit_code == 0
    lines = [line.strip() for line in result.output.splitlines()]
    assert "base/starved:rank=1  (m=10,n=24, 2 launches, against base/run-to-block)" in lines
    assert "empty-rank/run-to-block  (m=1,n=24, 2 launches, against the golden)" in lines
    assert sum(line.startswith("search: ") for line in lines) == 2
    assert "VERIFIED" not in result.output


def test_what_was_run_is_what_was_planned(run, tmp_path):
    path = tmp_path / "report.json"
    result = run("all_gather", *FEW, "--seed", "2", "--json", str(path))
    assert result.exit_code == 0, result.output
    planned = run("all_gather", *FEW, "--seed", "2", "--plan").output
    (mode,) = json.loads(path.read_text())["modes"]
    runs = mode["steps"][-1]["runs"]
    assert [one["name"] for one in runs] == [
        line.split("  (")[0].strip() for line in planned.splitlines() if line.startswith("    ")
    ]
    assert all(one["passed"] for one in runs) and {one["situation"] for one in runs} > {"base", "late-init"}
    assert f"search: {len(runs)} runs, all agree" in result.output
    assert "pct: it finds a fault of depth 3 with probability 1/(n·" in result.output


def test_a_situation_finds_what_the_exact_step_does_not(run, tmp_path):
    """Frozen arguments: a host that counts epochs hangs in the first replay, and nowhere else."""
    path = tmp_path / "report.json"
    result = run(f"{FILE}::epoch_from_host", *FEW, "--situations", "frozen", "--json", str(path))
    assert result.exit_code == 1, result.output
    assert "exact: did not finish" not in result.output
    assert "frozen/run-to-block: deadlock" in result.output
    assert "kind of bug: synchronisation bug" in result.output
    (mode,) = json.loads(path.read_text())["modes"]
    failed = {one["situation"] for one in mode["steps"][-1]["runs"] if not one["passed"]}
    assert failed == {"frozen"}
    by_kind = dict(zip((found["kind"] for found in mode["findings"]), mode["found_by"], strict=True))
    assert by_kind["tdist.deadlock"][0] == "frozen/run-to-block"


def test_what_is_accepted_is_shown_and_fails_nothing(run):
    words = [f"{FILE}::no_barrier", *FEW, "--no-search"]
    assert run(*words).exit_code == 1
    result = run(*words, "--suppress", "race=looked at", "--suppress", "tdist.canary=old")
    assert result.exit_code == 0, result.output
    assert "suppressed by --suppress: looked at" in result.output
    assert "unused suppression of tdist.canary" in result.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--situations", "late-int"], "unknown --situations 'late-int' (did you mean 'late-init'?)"),
        (["--situations", ","], "--situations needs at least one name"),
        (["--seeds", "1001"], "--seeds has to be between 0 and 1000"),
        (["--suppress", "rase=x"], "there is no finding 'rase' (did you mean 'race'?)"),
        (["--suppress", "race"], "race needs a reason"),
        (["--suppress", "tdist.*=x"], "no wildcards"),
    ],
)
def test_a_mistake_is_told_and_exits_2(run, words, told):
    result = run("all_gather", *words)
    assert result.exit_code == 2
    assert told in result.output and "Traceback" not in result.output
