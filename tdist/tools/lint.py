"""`tdist lint`: the programming rules of distributed kernels, on source files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from tdist.errors import UsageError
from tdist.lint import RULES, Remark, lint_file, rule_of
from tdist.tools.files import check_writable, write_json
from tdist.tools.output import Report

_EPILOG = """\b
Exit status: 0 no remark, 1 remarks, 2 usage.
A rule is allowed at a line by a comment with a reason:  # tdist: allow unrotated-target: one peer only
Examples:
  tdist lint kernels.py
  tdist lint src --rule remote-atomic,gated-barrier --json remarks.json
"""


@click.command("lint", epilog=_EPILOG)
@click.argument("paths", nargs=-1, metavar="FILE|FOLDER...", type=click.Path(path_type=Path))
@click.option("--rule", "rules", metavar="ID,…", default="", help="Only these rules.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the remarks as JSON.")
@click.option("--list", "list_only", is_flag=True, help="List the rules with their sources, and exit.")
def lint_command(paths: Sequence[Path], rules: str, json_path: Path | None, list_only: bool) -> int:
    """Check source files against the programming rules; nothing is executed."""
    if list_only:
        _print_rules()
        return 0
    if not paths:
        raise UsageError("which files? Give Python files or folders")
    chosen = {rule_of(name.strip()).id for name in rules.split(",") if name.strip()} or set(RULES)
    if json_path is not None:
        check_writable("--json", json_path)
    files = files_of(paths)
    out = Report(sys.stdout)
    remarks, refused = [], []
    for path in files:
        try:
            found = [remark for remark in lint_file(path) if remark.rule.id in chosen]
        except UsageError as error:
            refused.append(str(error))
            continue
        remarks += found
        for remark in found:
            out.print(lambda console, remark=remark: render(remark, console))
    counted = [remark for remark in remarks if not remark.allowed]
    out.print(lambda console: console.print(_summary(len(files), len(counted), len(remarks) - len(counted))))
    if json_path is not None:
        write_json(json_path, {"schema": 1, "remarks": [remark.to_json() for remark in remarks], "refused": refused})
    out.close()
    if refused:
        raise UsageError("; ".join(refused))
    return 1 if counted else 0


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The Python files that are meant: a folder stands for all below it, hidden folders left out.

    Raises: UsageError if a path does not exist or a folder holds no Python file.
    """
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        below = sorted(found for found in path.rglob("*.py") if not _is_hidden(found.relative_to(path)))
        if not below:
            raise UsageError(f"{path}: no Python file below it")
        files += below
    return list(dict.fromkeys(files))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def render(remark: Remark, console: Console) -> None:
    """One remark: place and what is wrong, the source line, the rule, what to write."""
    place = f"{remark.file}:{remark.line}:{remark.column}: "
    if remark.allowed:
        console.print(Text(f"{place}{remark.rule.id} allowed: {remark.allowed}", "dim"), soft_wrap=True)
        return
    console.print(Text.assemble(place, (remark.rule.id, "bold red"), f": {remark.message}"), soft_wrap=True)
    console.print(Text(f"    {remark.text}"), soft_wrap=True)
    console.print(Text(f"  rule     {remark.rule.source}: {remark.rule.states}"), soft_wrap=True)
    console.print(Text(f"  instead  {remark.rule.instead}"), soft_wrap=True)


def _summary(files: int, remarks: int, allowed: int) -> str:
    told = f"{_count(files, 'file')}, {_count(remarks, 'remark')}"
    return f"{told}, {allowed} allowed" if allowed else told


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _print_rules() -> None:
    for rule in RULES.values():
        click.echo(f"{rule.id:22} {rule.source}\n{'':22} {rule.states}\n{'':22} instead: {rule.instead}")
