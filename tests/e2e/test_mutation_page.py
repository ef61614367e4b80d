"""docs/mutation.md works as printed, in this process and over rank processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from interpreters import Interpreters

from tdist.mutations import KINDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/mutation.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)
    return found


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(python: Interpreters) -> Run:
    """Runs `tdist-verify` in a folder."""
    return lambda folder, *words: python.run(
        [sys.executable, "-m", "tdist.verify.cli", *words], cwd=folder, timeout=300
    )


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "shift.py").write_text(block("python"), encoding="utf-8")
    return tmp_path


def test_the_lines_shown_are_printed(page: Path, run: Run) -> None:
    program, *words = block("console").split()
    assert program == "tdist-verify"
    done = run(page, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    printed = done.stdout.splitlines()
    for line in block("text").splitlines():
        assert line in printed, done.stdout


def test_rank_processes_say_the_same(page: Path, run: Run) -> None:
    """Without a local golden the ranks are processes; the report is that of threads."""
    source = (page / "shift.py").read_text(encoding="utf-8")
    local = next(line for line in source.splitlines(keepends=True) if "golden_local" in line)
    (page / "remote.py").write_text(source.replace(local, ""), encoding="utf-8")
    reports = []
    for name in ("shift", "remote"):
        words = [f"{name}.py::shift", "--nranks", "2", "--mutate", "--mutate-kinds", "drop-wait,drop-notify"]
        done = run(page, *words, "--seeds", "1", "--json", f"{name}.json")
        assert done.returncode == 0, done.stdout + done.stderr
        reports.append(json.loads((page / f"{name}.json").read_text(encoding="utf-8")))
    told = [[(m["kind"], m["verdict"], m["run"], m["by"], m["golden"]) for m in r["mutants"]] for r in reports]
    assert told[0] == told[1] and len(told[0]) == 2


def test_a_missed_mutant_is_an_exit_status_of_one(page: Path, run: Run) -> None:
    """What only a third launch meets, with two launches and no proof to be had of a host that reads its results."""
    source = (page / "shift.py").read_text(encoding="utf-8")
    last = "    return out\n"
    assert source.endswith(last)
    reading = source.removesuffix(last) + "    out.sum().item()\n" + last
    (page / "reading.py").write_text(reading, encoding="utf-8")
    words = ["reading.py::shift", "--nranks", "2", "--mutate", "--mutate-kinds", "constant-epoch", "--launches", "2"]
    done = run(page, *words, "--seeds", "0", "--json", "report.json")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "missed constant-epoch: somebody used one signal value for all launches (1)" in done.stdout
    (judged,) = json.loads((page / "report.json").read_text(encoding="utf-8"))["mutants"]
    assert judged["verdict"] == "missed" and "reads device memory" in judged["remark"]


def test_an_operator_that_fails_itself_is_told(page: Path, run: Run) -> None:
    source = (page / "shift.py").read_text(encoding="utf-8")
    (page / "wrong.py").write_text(source.replace("dl.consume_token(half_ptr, token)", "half_ptr"), encoding="utf-8")
    done = run(page, "wrong.py::shift", "--nranks", "2", "--mutate")
    assert done.returncode == 1
    assert "fails its own run base/run-to-block" in done.stderr and "Traceback" not in done.stderr


def test_every_kind_is_explained() -> None:
    for name, kind in KINDS.items():
        assert f"| `{name}` |" in PAGE and PAGE.count(f"| {kind.mistake} |") >= 1, name
