"""From a failing run to its file, back to the same run, to a smaller one, to a script: docs/replay.md as printed."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from tdist.verify.cli import command

PAGE = (Path(__file__).parents[2] / "docs" / "replay.md").read_text(encoding="utf-8")
(SOURCE,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
COMMANDS = [line for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()]


def run(line: str):
    words = [word for text in shlex.split(line) for word in (sorted(glob.glob(text)) or [text])]
    assert words[0] == "tdist-verify"
    return CliRunner().invoke(command, words[1:], prog_name="tdist-verify")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """What the commands of the page say, in order, in a folder with its file."""
    folder = tmp_path_factory.mktemp("page")
    here = os.getcwd()
    os.chdir(folder)
    try:
        (folder / "mailbox.py").write_text(SOURCE, encoding="utf-8")
        yield folder, [run(line) for line in COMMANDS]
    finally:
        os.chdir(here)


def test_the_failing_run_names_its_file(page):
    folder, (found, *_) = page
    assert found.exit_code == 1, found.output
    (named,) = re.findall(r"^  (tdist-verify --replay .*)$", found.stdout, re.M)
    (written,) = (folder / "tdist-replays").iterdir()
    assert named == f"tdist-verify --replay tdist-replays/{written.name}"
    assert written.stat().st_size < 4000
    assert str(folder) not in written.read_text()


def test_it_is_reproduced_event_for_event(page):
    _, (_, again, *_) = page
    assert again.exit_code == 1, again.output
    assert re.search(r"^REPRODUCED  \[tdist\.\w+\] mailbox\.py:\d+", again.stdout, re.M)
    assert re.search(r"all (\d+) recorded choices were taken, and no others", again.stdout)


def test_it_shrinks_to_two_ranks_and_two_blocks(page):
    folder, (_, _, shrunk, _) = page
    rows = {row[0].strip(): row[1:] for row in re.findall(r"^  (\D+?) {2,}(\S+) +(\S+)$", shrunk.stdout, re.M)}
    assert rows["ranks"] == ("4", "2") and rows["n"] == ("300", "65"), shrunk.output
    assert int(rows["context switches"][0]) > 10 and rows["context switches"][1] == "0"
    (smaller,) = (folder / "smaller").iterdir()
    data = json.loads(smaller.read_text())
    assert data["case"]["nranks"] == 2 and data["case"]["shape"] == {"n": 65}
    assert data["choices"]["count"] < 12


def test_the_script_holds_the_kernel(page):
    folder, (*_, ticket) = page
    assert ticket.exit_code == 1 and "script for a card, not run on one: ticket/repro.py" in ticket.stdout
    kernel = SOURCE[SOURCE.index("@triton.jit") : SOURCE.index("class Workspace")].rstrip()
    assert kernel in (folder / "ticket" / "mailbox.py").read_text()


@pytest.fixture
def replay(page):
    """The page's first replay file."""
    folder, _ = page
    (written,) = (folder / "tdist-replays").iterdir()
    return written


def test_a_repaired_kernel_is_told_as_gone(page, replay, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_slot = SOURCE.replace("dl.notify(mail_ptr,", "dl.notify(mail_ptr + block * 16,")
    own_slot = own_slot.replace("dl.wait(mail_ptr,", "dl.wait(mail_ptr + block * 16,").replace("(2, 16)", "(9, 16)")
    (tmp_path / "mailbox.py").write_text(own_slot)
    (tmp_path / "run.json").write_bytes(replay.read_bytes())
    done = run("tdist-verify --replay run.json --json out.json")
    assert done.exit_code == 0, done.output
    assert "GONE  nothing speaks against this run any more" in done.stdout
    assert "mailbox.py has changed since the run was recorded" in done.stdout
    assert json.loads((tmp_path / "out.json").read_text())["status"] == "gone"


def test_choices_that_do_not_fit_are_followed_as_far_as_they_do(page, replay, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mailbox.py").write_text(SOURCE)
    data = json.loads(replay.read_text())
    data["choices"] = {"count": 12, "packed": ["0*5 99*7"]}
    (tmp_path / "run.json").write_text(json.dumps(data))
    done = run("tdist-verify --replay run.json")
    assert done.exit_code == 1 and "Traceback" not in done.output, done.output
    assert "the first 5 of 12 recorded choices were taken; the next one does not fit this run" in done.stdout


def test_a_world_that_cannot_be_made_is_a_bad_file(page, replay, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mailbox.py").write_text(SOURCE)
    data = json.loads(replay.read_text())
    data["world"]["scheduler"] = "starved:rank=9"
    (tmp_path / "run.json").write_text(json.dumps(data))
    done = run("tdist-verify --replay run.json")
    assert done.exit_code == 2 and "starved" in done.stderr and "Traceback" not in done.output, done.output


def test_an_operator_elsewhere_is_asked_for_and_can_be_given(page, replay, tmp_path, monkeypatch):
    folder, _ = page
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_bytes(replay.read_bytes())
    refused = run("tdist-verify --replay run.json")
    assert refused.exit_code == 2 and refused.output.count("\n") == 1
    assert "mailbox.py is neither beside it nor in the working directory; name it: tdist-verify" in refused.output
    done = run(f"tdist-verify {folder}/mailbox.py::pass_on --replay run.json")
    assert done.exit_code == 1 and "REPRODUCED" in done.stdout, done.output


def _changed(replay: Path, target: Path, **operator) -> None:
    data = json.loads(replay.read_text())
    data["operator"] |= operator
    target.write_text(json.dumps(data))


def test_a_file_that_declares_no_such_operator_is_not_executed(replay, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("open('ran', 'w')\ndef pass_on(): ...\n", "import tdist\nopen('ran', 'w')\n", "import tdist\n(\n"):
        (tmp_path / "setup.py").write_text(text)
        _changed(replay, tmp_path / "run.json", file="setup.py")
        done = run("tdist-verify --replay run.json")
        assert done.exit_code == 2 and "declares no operator pass_on, so it was not executed" in done.output
    assert not (tmp_path / "ran").exists()


def test_a_link_that_leads_out_is_not_followed(page, replay, tmp_path, monkeypatch):
    folder, _ = page
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mailbox.py").symlink_to(folder / "mailbox.py")
    (tmp_path / "run.json").write_bytes(replay.read_bytes())
    assert "neither beside it nor in the working directory" in run("tdist-verify --replay run.json").output


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--replay nowhere.json", "cannot replay nowhere.json: No such file or directory"),
        ("--replay .", "cannot replay .: it is no regular file"),
        ("--replay bad.json", "cannot replay bad.json: it is not JSON (cut off?)"),
        (
            "--replay bad.json --nranks 3 --no-detect",
            "--replay takes the run from its file: leave out --nranks, --detect",
        ),
        ("ag_gemm --repro bad.json", "cannot write --repro bad.json: it is no folder"),
        ("ag_gemm --replay run.json", "run.json is a run of pass_on, not of ag_gemm"),
        ("--replay builtin.json", "cannot replay builtin.json: this tdist has no built-in operator nowhere"),
        ("--replay run.json --json no/out.json", "there is no folder no"),
    ],
)
def test_a_mistake_is_one_line_and_exits_2(replay, tmp_path, monkeypatch, line, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('{"format": ')
    (tmp_path / "run.json").write_bytes(replay.read_bytes())
    _changed(replay, tmp_path / "builtin.json", name="nowhere", file="")
    done = run(f"tdist-verify {line}")
    assert text in done.output and "Traceback" not in done.output
    assert done.exit_code == 2 and done.output.count("\n") == 1


def test_a_folder_that_cannot_be_written_costs_no_verdict(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mailbox.py").write_text(SOURCE)
    (tmp_path / "taken").write_text("")
    done = run("tdist-verify mailbox.py::pass_on --nranks 2 --sync fine --no-search --replays taken --repro ticket")
    assert done.exit_code == 1 and "FAILED  pass_on" in done.stdout, done.output
    assert "cannot write a replay file into taken" in done.stdout
    assert (tmp_path / "ticket" / "repro.py").is_file()


def test_a_run_without_a_failure_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("tdist-verify all_gather --nranks 2 --shape m=8,n=8 --sync fine --no-search --launches 1 --shrink")
    assert done.exit_code == 0, done.output
    assert "no run failed: there is nothing to shrink or to report" in done.stdout
    assert list(tmp_path.iterdir()) == []
