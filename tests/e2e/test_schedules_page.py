"""What docs/schedules.md shows works as printed, and names every scheduler with its parameters."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from interpreters import Interpreters

from tdist.platforms.sim import schedulers

PAGE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for block in blocks("python"):
        first, _, _ = block.partition("\n")
        (tmp_path / first.removeprefix("# file: ")).write_text(block, encoding="utf-8")
    return tmp_path


def run(python: Interpreters, folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    program, *arguments = line.split()
    module = {"tdist-verify": "tdist.verify.cli", "pytest": "pytest"}[program]
    command = [sys.executable, "-m", module, *arguments]
    return python.run(command, cwd=folder, timeout=300)


def test_the_scheduler_shown_conforms(folder: Path, python: Interpreters) -> None:
    shown, _ = blocks("console")
    done = run(python, folder, shown.strip())
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_race_shown_is_reported_and_becomes_wrong_numbers(folder: Path, python: Interpreters) -> None:
    plain, adversarial = (run(python, folder, line) for line in blocks("console")[1].splitlines())
    for done in (plain, adversarial):
        assert done.returncode == 1, done.stdout + done.stderr
        assert "tdist.race" in done.stdout
    assert re.search(r"rank 1 +pass +exact", plain.stdout), plain.stdout
    assert re.search(r"rank 1 +FAIL +exact", adversarial.stdout), adversarial.stdout
    assert "--memory adversarial" in adversarial.stdout, "the line that replays it"


def test_every_scheduler_is_described() -> None:
    rows = {
        cells[0].strip(" `"): cells[1]
        for line in PAGE.splitlines()
        if (cells := line.strip("|").split("|"))[0].startswith(" `")
    }
    for about in schedulers.about():
        if about.name not in schedulers.names():
            continue
        assert about.name in rows, about.name
        assert all(f"`{parameter.name}`" in rows[about.name] for parameter in about.parameters)
