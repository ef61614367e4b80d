"""A host function that raises: what was found before it did is reported with it, at lines of the user's file."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tdist.verify.cli import command

USERS = """
import shmem as ash
import torch
import triton
import triton.language as tl
import triton_dist.language as dl

from tdist.verify import ensure_shmem, operator


@triton.jit
def push(x_ptr, data_ptr):
    offs = tl.arange(0, 16)
    for pe in range(dl.num_ranks()):
        tl.store(dl.symm_at(data_ptr, pe) + offs, tl.load(x_ptr + offs))  # both ranks store here


def inputs(case, rank, launch):
    return {"x": torch.full((case["n"],), rank + 1.0)}


def golden(case, rank, x):
    return x


def workspace(rt, case):
    ensure_shmem(rt)
    return ash.aclshmem_create_tensor((case["n"],), dtype=torch.float32)


@operator(shape={"n": 16}, dtypes=("fp32",), inputs=inputs, golden=golden, workspace=workspace)
def checks_itself(rt, case, data, x):
    push[(1,)](x, data)
    rt.synchronize()
    rt.host_barrier()
    if rt.rank == 1 and data[0].item() > 0:
        raise ValueError("not what I expected")
    return x


@operator(shape={"n": 16}, dtypes=("fp32",), inputs=inputs, golden=golden, workspace=workspace)
def returns_its_inbox(rt, case, data, x):
    push[(1,)](x, data)
    return data


@triton.jit
def misspelt(x_ptr):
    tl.stor(x_ptr, 1.0)


@operator(shape={"n": 16}, dtypes=("fp32",), inputs=inputs, golden=golden, workspace=workspace)
def does_not_compile(rt, case, data, x):
    misspelt[(1,)](data)
    return data


@operator(shape={"n": 16}, dtypes=("fp32",), inputs=inputs, golden=golden, workspace=workspace)
def returns_too_little(rt, case, data, x):
    return x[:4]
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "users.py"
    file.write_text(USERS)
    return file


def run(users, name):
    words = [f"{users}::{name}", "--nranks", "2", "--sync", "fine", "--json", "report.json"]
    result = CliRunner().invoke(command, words, prog_name="tdist-verify")
    report = json.loads((users.parent / "report.json").read_text())
    return result, report["modes"][0]["findings"]


def test_findings_from_before_the_error_are_reported_with_it(users):
    result, findings = run(users, "checks_itself")
    assert result.exit_code == 1, result.output
    assert {"tdist.race", "tdist.host-error"} <= {finding["kind"] for finding in findings}, result.output
    (error,) = (finding for finding in findings if finding["kind"] == "tdist.host-error")
    assert "ValueError: not what I expected" in error["title"] and "rank 1: its host" not in error["title"]


def test_reading_the_outputs_counts_as_the_host_function(users):
    """The inbox is returned while the peer may still store into it; what reads it is the verifier."""
    result, findings = run(users, "returns_its_inbox")
    def_line = USERS.splitlines().index("def returns_its_inbox(rt, case, data, x):") + 1
    reads = [p for finding in findings for p in finding["parties"] if p["op"] not in ("store", "load")]
    assert result.exit_code == 1 and reads, result.output
    assert {(p["file"], p["line"]) for p in reads} == {(str(users), def_line - 1)}


@pytest.mark.parametrize(
    ("name", "line", "text"),
    [
        ("does_not_compile", "    tl.stor(x_ptr, 1.0)", "has no attribute 'stor'"),
        ("returns_too_little", "def golden(case, rank, x):", "the host function returned (4,)"),
    ],
)
def test_what_all_ranks_raise_is_told_once_at_its_line(users, name, line, text):
    result, findings = run(users, name)
    (error,) = findings
    assert result.exit_code in (1, 2) and error["kind"] == "tdist.host-error", result.output
    assert error["title"].startswith("host error on all ranks: ") and text in error["title"]
    (party,) = error["parties"]
    assert (party["file"], party["line"]) == (str(users), USERS.splitlines().index(line) + 1)
    assert " ".join(result.output.split()).count(text) == 2, "the step's line and the finding"
    assert "no source position" not in result.output
