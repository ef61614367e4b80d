"""What the README and docs/operators.md show works as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from interpreters import Interpreters

ROOT = Path(__file__).parents[2]


def blocks(language: str, page: str = "README.md") -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(python: Interpreters) -> Run:
    """Runs a command in a folder."""
    return lambda folder, *command: python.run(command, cwd=folder, timeout=300)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    kernel, test = blocks("python")
    (tmp_path / "my_kernels.py").write_text(kernel, encoding="utf-8")
    (tmp_path / "test_mine.py").write_text(test, encoding="utf-8")
    return tmp_path


def test_the_operator_is_verified_by_the_command_shown(kernels: Path) -> None:
    (shown,) = (block for block in blocks("console") if block.startswith("tdist-verify my_kernels"))
    program, *arguments = shown.split()
    assert program == "tdist-verify"
    command = [sys.executable, "-m", "tdist.verify.cli", *arguments]
    done = subprocess.run(command, cwd=kernels, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_test_shown_passes_under_pytest(kernels: Path, run: Run) -> None:
    done = run(kernels, sys.executable, "-m", "pytest", "-q", "--nranks", "4", "-p", "no:cacheprovider", "test_mine.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("good", "bad", "kind", "line"),
    [
        ("dl.consume_token(inbox_ptr, token)", "inbox_ptr", "tdist.race", "tl.load(arrived_ptr"),
        ("half = epoch % 2 * world", "half = epoch * 0", "tdist.race", "tl.store(dl.symm_at(inbox_ptr"),
        ("waitValue=epoch", "waitValue=1", "tdist.deadlock", "dl.wait("),
        ("signals[1:]", "signals", "tdist.line-sharing", "dl.notify("),
    ],
)
def test_the_faults_named_are_found(kernels: Path, run: Run, good: str, bad: str, kind: str, line: str) -> None:
    source = (kernels / "my_kernels.py").read_text(encoding="utf-8")
    assert good in source
    faulty = source.replace(good, bad)
    (kernels / "faulty.py").write_text(faulty, encoding="utf-8")
    number = next(i for i, text in enumerate(faulty.splitlines(), 1) if line in text)
    done = run(
        kernels, sys.executable, "-m", "tdist.verify.cli", "faulty.py::my_sum", "--nranks", "3", "--dtype", "fp16"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert kind in done.stdout and f"faulty.py:{number}" in done.stdout


OPERATORS = "docs/operators.md"


@pytest.fixture
def page(kernels: Path) -> Path:
    """The files of docs/operators.md, beside the README's; each names itself in its first line."""
    for block in blocks("python", OPERATORS):
        first, _, _ = block.partition("\n")
        (kernels / first.removeprefix("# file: ")).write_text(block, encoding="utf-8")
    return kernels


@pytest.mark.parametrize("shown", blocks("console", OPERATORS))
def test_the_commands_of_the_operators_page_succeed(page: Path, run: Run, shown: str) -> None:
    program, *arguments = shown.split()
    module = {"tdist-verify": ["-m", "tdist.verify.cli"], "pytest": ["-m", "pytest"], "python": []}[program]
    done = run(page, sys.executable, *module, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_operators_page_names_every_parameter_and_option_key() -> None:
    from tdist.verify.inputs import __dict__ as inputs
    from tdist.verify.operator import Operator
    from tdist.verify.policies import POLICIES
    from tdist.verify.pytest_plugin import _MARKER_KEYS

    text = (ROOT / OPERATORS).read_text(encoding="utf-8")
    parameters = set(Operator.__dataclass_fields__) - {"host", "source", "parts"}
    for name in (*parameters, *POLICIES, *_MARKER_KEYS):
        assert f"`{name}`" in text, name
    assert all(f"`{name}(case" in text for name in ("payload", "factor", "generator") if name in inputs)
