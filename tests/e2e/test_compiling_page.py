"""What docs/compiling.md shows works as printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from interpreters import Interpreters

PAGE = Path(__file__).parents[2] / "docs" / "compiling.md"
MODULES = {"tdist": "tdist.tools.main", "tdist-verify": "tdist.verify.cli", "pytest": "pytest"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The page's files; each names itself in its first line."""
    for block in blocks("python"):
        first, _, _ = block.partition("\n")
        (tmp_path / first.removeprefix("# file: ")).write_text(block, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("shown", blocks("console"))
def test_the_commands_shown_succeed(page: Path, python: Interpreters, shown: str) -> None:
    program, *arguments = shown.split()
    command = [sys.executable, "-m", MODULES[program], *arguments]
    done = python.run(command, cwd=page, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_options_and_verdicts_are_named() -> None:
    import click

    from tdist.platforms.ascend.gate import GateReport
    from tdist.tools.compile import compile_command

    text = PAGE.read_text(encoding="utf-8")
    options = [
        name for parameter in compile_command.params if isinstance(parameter, click.Option) for name in parameter.opts
    ]
    for name in (*options, "--check", "--rebuild", "--compile-for"):
        assert name in text, name
    for name in ("passed", "exit_code", "results", "failures", "raise_for_failures"):
        assert hasattr(GateReport, name) or name in GateReport.__dataclass_fields__
        assert f"`{name}" in text
