"""`tdist-verify` from process start to verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tdist.verify.cli import command

SMALL = ["--shape", "m=10,n=12,k=20", "--nranks", "3"]


def run(*words):
    return CliRunner().invoke(command, list(words), prog_name="tdist-verify")


def test_ag_gemm_is_verified_from_the_shell():
    words = [sys.executable, "-m", "tdist.verify.cli", "ag_gemm", "--dtype", "fp16", *SMALL]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "VERIFIED  ag_gemm, 2 runs" in done.stdout
    for rank in range(3):
        assert f"rank {rank}  pass" in done.stdout
    assert "Not seen by this run:" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == (
        "tdist-verify ag_gemm --dtype fp16 --nranks 3 --shape m=10,n=12,k=20 --seed 0"
    )


def test_two_runs_with_one_seed_differ_in_nothing_but_the_run(tmp_path):
    reports = []
    for name in ("one.json", "two.json"):
        result = run(
            "all_gather", "--shape", "m=6,n=20", "--nranks", "2", "--seed", "3", "--json", str(tmp_path / name)
        )
        assert result.exit_code == 0, result.output
        reports.append(json.loads((tmp_path / name).read_text()))
    assert reports[0].pop("run").keys() == reports[1].pop("run").keys()
    assert reports[0] == reports[1]
    assert reports[0]["schema_version"] == 2
    assert [mode["mode"]["name"] for mode in reports[0]["modes"]] == ["fine", "barrier"]


def test_results_are_shown_although_the_json_file_cannot_be_written():
    """What the check before the run cannot see: a device that is full."""
    result = run("all_gather", "--shape", "m=4,n=4", "--nranks", "2", "--sync", "fine", "--json", "/dev/full")
    assert "VERIFIED" in result.output
    assert "cannot write --json /dev/full: No space left on device" in result.output
    assert result.exit_code == 2


USERS = """
import torch
from tdist.verify import operator
from tdist.verify.inputs import payload

def inputs(case, rank, launch):
    return {"x": payload(case, rank, launch, "x", (case["m"],))}

@operator(shape={"m": 4}, inputs=inputs, golden=lambda case, rank, x: x)
def copies(rt, case, x):
    return x + 0

@operator(shape={"m": 4}, inputs=inputs, golden=lambda case, rank, x: x)
def raises(rt, case, x):
    raise LookupError("nothing here")

@operator(shape={"m": 4}, inputs=inputs, golden=lambda case, rank, x: x)
def forgets(rt, case, x):
    return {"y": x}

@operator(shape={"m": 4}, inputs=inputs, golden=lambda case, rank, x: x)
def shrinks(rt, case, x):
    return x[:-1].clone()

@operator(shape={"m": 4}, inputs=inputs, golden=lambda case, rank, x: x.nosuch)
def golden_raises(rt, case, x):
    return x + 0

def counted(case, rank, x):
    return {"n": torch.arange(8), "odd": torch.arange(8) % 2 == 1}

@operator(shape={"m": 4}, inputs=inputs, golden=counted, outputs=("n", "odd"), tile=(1,))
def counts(rt, case, x):
    return counted(case, 0, x)

@operator(shape={"m": 4}, inputs=inputs, golden=counted, outputs=("n", "odd"), tile=lambda case: (1,))
def miscounts(rt, case, x):
    n = torch.arange(8, dtype=torch.int32)
    n[5] += 1
    return {"n": n, "odd": n < 0}

@operator(shape={"m": 4}, inputs=inputs, golden=lambda case, rank, x: x)
def complexes(rt, case, x):
    return x.to(torch.complex64)
"""


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.py"
    path.write_text(USERS)
    return path


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("copies", 0, "VERIFIED"),
        ("raises", 1, "nothing here"),
        ("forgets", 1, "declares outputs out, its host function returned y"),
        ("shrinks", 1, "it gives out the shape (4,), the host function returned (3,)"),
        ("golden_raises", 1, "the golden of golden_raises raised AttributeError"),
        ("counts", 0, "VERIFIED"),
        ("miscounts", 1, "[5]"),
        ("complexes", 1, "is torch.complex64, which cannot be compared"),
    ],
)
def test_a_users_operator(users, name, code, text):
    result = run(f"{users}::{name}", "--nranks", "2", "--sync", "fine")
    assert text in result.output
    assert result.exit_code == code, result.output
    assert ("VERIFIED" if code == 0 else "FAILED") in result.output
    assert "bug: sync" not in result.output and ("bug: computation" in result.output) == (name == "miscounts")
    assert "raised by" not in result.output


@pytest.mark.parametrize("name", ["raises", "forgets", "shrinks", "golden_raises", "complexes"])
def test_what_stops_a_step_is_told_with_a_line_of_the_users_file(users, name):
    result = run(f"{users}::{name}", "--nranks", "2", "--sync", "fine")
    (told,) = (line for line in result.output.splitlines() if "did not finish:" in line)
    assert f"all ranks: {users}:" in told


def test_a_request_that_the_golden_cannot_serve_is_no_failure_of_the_kernel(users):
    result = run(f"{users}::copies", "--nranks", "1", "--sync", "fine", "--policy", "gamma")
    assert "needs a golden with `magnitude`" in result.output
    assert "UNDECIDED" in result.output
    assert result.exit_code == 2


HOSTILE = """
import os
import sys

import torch
from tdist.verify import operator
from tdist.verify.inputs import payload

def inputs(case, rank, launch):
    return {"x": payload(case, rank, launch, "x", (case["m"],))}

def declare(host):
    return operator(shape={"m": 4}, inputs=inputs, golden=lambda case, rank, x: x)(host)

@declare
def surrogate(rt, case, x):
    raise ValueError("snow \\u2603 \\ud800 \\x1b[31m")

@declare
def leaves(rt, case, x):
    sys.exit(3)

@declare
def moves(rt, case, x):
    os.chdir("/")
    return x + 0

@declare
def exits(rt, case, x):
    os._exit(5)

@declare
def killed(rt, case, x):
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    path = tmp_path / "hostile öps.py"
    path.write_text(HOSTILE, encoding="utf-8")
    return path


def shell(line: str):
    words = f"{sys.executable} -m tdist.verify.cli"
    return subprocess.run(
        ["bash", "-c", line.format(verify=words)], capture_output=True, text=True, timeout=300, check=False
    )


SHORT = "--nranks 1 --sync fine"


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("surrogate", 1, "raised ValueError: snow"),
        ("leaves", 1, "`sys.exit(3)`: the host function of leaves raised SystemExit: 3"),
        ("exits", 1, "exited with code 5"),
        ("killed", 3, "was killed by SIGKILL"),
    ],
)
def test_whatever_a_host_function_does_the_status_says_whose_fault_it_is(hostile, python, name, code, text):
    words = [sys.executable, "-m", "tdist.verify.cli", f"{hostile}::{name}", *SHORT.split()]
    done = python.run(words, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=300)
    assert text in done.stdout
    assert done.stderr == ""
    assert done.returncode == code
    assert ("UNDECIDED" if code == 3 else "FAILED") in done.stdout


def test_an_operator_may_change_the_working_directory(hostile, python):
    words = [sys.executable, "-m", "tdist.verify.cli", f"{hostile.name}::moves", *SHORT.split()]
    done = python.run(words, cwd=hostile.parent, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("where", ["| head -1; exit ${{PIPESTATUS[0]}}", ">&-"])
def test_output_that_nobody_reads_does_not_change_the_verdict(where):
    done = shell(f"{{verify}} all_gather --shape m=4,n=4 {SHORT} {where}")
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_cannot_be_written_costs_neither_the_json(tmp_path):
    path = tmp_path / "report.json"
    done = shell(f"{{verify}} all_gather --shape m=4,n=4 {SHORT} --json {path} > /dev/full")
    assert done.returncode == 3
    assert done.stderr == (
        "tdist-verify: environment: cannot write the report to standard output: No space left on device\n"
    )
    assert json.loads(path.read_text())["verdict"] == "verified"


def test_a_lost_engine_is_the_machines_fault_and_no_diagnosis(monkeypatch):
    """Both modes lose their processes, one after the other comes back: nothing of that is about synchronisation."""
    from tdist.errors import ProcessLost
    from tdist.verify.worlds import ProcessRunner

    real = ProcessRunner.execute

    def lost_in_fine(self, spec):
        if not spec.world["drained"]:
            raise ProcessLost("the fork server (pid 1) was killed by SIGKILL")
        return real(self, spec)

    monkeypatch.setattr(ProcessRunner, "execute", lost_in_fine)
    result = run("all_gather", "--shape", "m=4,n=4", "--nranks", "1")
    assert result.exit_code == 3
    assert "UNDECIDED  all_gather" in result.output
    assert "kind of bug: undecided" in result.output
