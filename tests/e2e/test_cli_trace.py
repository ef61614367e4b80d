"""`--trace`, `--trace-element`, `--protocol-map` over rank processes; docs/traces.md works as printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from interpreters import Interpreters

from tdist.verify.cli import command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/traces.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for block in blocks("python"):
        first, _, _ = block.partition("\n")
        (folder / first.removeprefix("# file: ")).write_text(block, encoding="utf-8")
    return folder


def run(python: Interpreters, folder: Path, shown: str) -> subprocess.CompletedProcess[str]:
    program, *arguments = shown.split()
    module = {"tdist-verify": ["-m", "tdist.verify.cli"], "python": []}[program]
    line = [sys.executable, *module, *arguments]
    return python.run(line, cwd=folder, timeout=300)


def verify(path: Path, *words: str) -> Result:
    given = [f"{path / 'relay.py'}::relay", "--nranks", "3", "--no-search", "--seed", "3", *words]
    return CliRunner().invoke(command, given, prog_name="tdist-verify")


@pytest.mark.parametrize("shown", blocks("console"))
def test_the_commands_of_the_page_succeed(page: Path, python: Interpreters, shown: str) -> None:
    done = run(python, page, shown)
    assert done.returncode == 0, done.stdout + done.stderr
    if "--trace-element" in shown:
        plain = re.sub(r" \(step \d+\)| = \S+$", "", done.stdout.replace(f"{page}{os.sep}", ""), flags=re.M)
        assert blocks("text")[0] in plain


def test_all_three_come_from_one_run_and_the_verdict_stands(page: Path) -> None:
    files = page / "one.json", page / "one.svg"
    words = ["--trace", str(files[0]), "--protocol-map", str(files[1]), "--trace-element", "out[0,1]"]
    done = verify(page, *words, "--trace-element", "out[15,15]@2")
    assert done.exit_code == 0, done.output
    assert done.output.index("VERIFIED") < done.output.index("who wrote this?")
    assert done.output.count("input: memory of rank") == 2
    events = json.loads(files[0].read_text(encoding="utf-8"))["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 2}
    assert sum(event["ph"] == "f" for event in events) == 3
    assert ElementTree.parse(files[1]).getroot().tag.endswith("svg")
    again = verify(page, "--trace", str(page / "two.json"))
    assert again.exit_code == 0 and (page / "two.json").read_bytes() == files[0].read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trace", "nowhere/run.json"], "cannot write --trace nowhere/run.json: there is no folder nowhere"),
        (["--protocol-map", "."], "cannot write --protocol-map .: it is a folder"),
        (["--trace-element", "out[1"], "--trace-element 'out[1' names no element"),
        (["--trace-element", "outt[1,1]"], "there is no output 'outt' (did you mean 'out'?)"),
        (["--trace-element", "out[1,1]@3"], "there is no rank 3; ranks are 0 to 2"),
        (["--trace-element", "out[1,1]@0@1"], "there is no launch 1; launches are 0 to 0"),
        (["--trace", "same", "--protocol-map", "same"], "--trace and --protocol-map name one file"),
        (["--trace", "same", "--json", "same"], "--trace and --json name one file"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_runs(page: Path, words: list[str], message: str) -> None:
    done = verify(page, *words)
    assert done.exit_code == 2
    assert done.output.count("\n") == 1 and message in done.output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_what_fails_afterwards_costs_one_line_and_nothing_of_the_rest(page: Path) -> None:
    files = ["--trace", "/dev/full", "--protocol-map", str(page / "rest.svg")]
    done = verify(page, "--trace-element", "out[16,0]", "--trace-element", "out[1,0]", *files)
    assert done.exit_code == 2
    assert "VERIFIED" in done.output and "input: memory of rank 2's host" in done.output
    assert (page / "rest.svg").exists()
    last = done.output.splitlines()[-1]
    assert last.startswith("tdist-verify: usage error: --trace-element out[16, 0] is outside of out, whose shape is")
    assert "; cannot write --trace /dev/full: " in last


def test_a_deadlock_is_traced_up_to_where_it_stands(page: Path) -> None:
    source = (page / "relay.py").read_text(encoding="utf-8")
    (page / "stuck.py").write_text(source.replace("waitValue=epoch", "waitValue=epoch + 1"), encoding="utf-8")
    given = [f"{page / 'stuck.py'}::relay", "--nranks", "2", "--no-search", "--replays", str(page / "left")]
    done = CliRunner().invoke(command, [*given, "--trace", str(page / "stuck.json")], prog_name="tdist-verify")
    assert done.exit_code == 1 and "tdist.deadlock" in done.output
    events = json.loads((page / "stuck.json").read_text(encoding="utf-8"))["traceEvents"]
    waits = [event for event in events if event["name"] == "wait"]
    assert len(waits) == 2 and all(wait["args"]["unfinished"] for wait in waits)
    (left,) = sorted((page / "left").iterdir())[:1]
    words = [given[0], "--replay", str(left), "--trace", str(page / "again.json"), "--trace-element", "out[0,0]"]
    again = CliRunner().invoke(command, words, prog_name="tdist-verify")
    assert again.exit_code == 1, again.output
    assert "replayed" in again.output and "host's memory" not in again.output
    assert json.loads((page / "again.json").read_text(encoding="utf-8"))["traceEvents"]
