"""`tdist-verify`: a user's mistake gives one clear message, the right exit status, and no traceback."""

from __future__ import annotations

import shlex
from dataclasses import fields

import click
import pytest
from click.testing import CliRunner

from tdist.verify.cli import command
from tdist.verify.options import Options

USER_FILE = """
import torch
import triton_dist.language as dl
import shmem as ash
from triton.language.extra.cann.extension import sub_vec_id
from tdist.verify import operator

@operator(shape={"m": 4}, dtypes=("fp32",), inputs=lambda case, rank, launch: {}, golden=lambda case, rank: None)
def mine(rt, case):
    return torch.zeros(case["m"])

def helper(): ...
"""

WRONG_DECLARATION = """from tdist.verify import operator

@operator(shape={"m": 4.5}, inputs=lambda case, rank, launch: {}, golden=lambda case, rank: None)
def op(rt, case): ...
"""


@pytest.fixture
def run(tmp_path):
    def invoke(line):
        (tmp_path / "mine.py").write_text(USER_FILE)
        (tmp_path / "wrong.py").write_text(WRONG_DECLARATION)
        (tmp_path / "broken.py").write_text("import triton_dist.language as dl\n\nimport does_not_exist\n")
        words = shlex.split(line.replace("TMP", str(tmp_path)))
        return CliRunner().invoke(command, words, prog_name="tdist-verify")

    return invoke


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "which operator?"),
        ("ag_gem", "did you mean 'ag_gemm'?"),
        ("nonsense", "built in are ag_gemm, all_gather"),
        ("ag_gemm --dtype fp17", "unknown dtype of ag_gemm: 'fp17'"),
        ("ag_gemm --dtype ,", "--dtype needs at least one"),
        ("ag_gemm --shape m", "--shape takes symbol=number pairs"),
        ("ag_gemm --shape m=a", "'m=a' is none"),
        ("ag_gemm --shape m=1.5", "'m=1.5' is none"),
        ("ag_gemm --shape m=8,m=9", "names m twice"),
        ("ag_gemm --shape q=8", "unknown shape symbol of ag_gemm: 'q'"),
        ("ag_gemm --shape m=2147483648", "m a size that is more than 2147483647"),
        ("ag_gemm --shape m=99999999999999999999", "m a size that is more than 2147483647"),
        (f"ag_gemm --shape m={'9' * 5000}", "m a size that is more than 2147483647"),
        ("ag_gemm --shape m=0", "m of ag_gemm has to be 1 or more, got 0"),
        ("ag_gemm --shape m=-3", "got -3"),
        ("ag_gemm --nranks 0", "between 1 and 128, got 0"),
        ("ag_gemm --nranks 5000", "got 5000"),
        ("ag_gemm --nranks four", "'four' is not a valid integer"),
        ("ag_gemm --schedule randon", "did you mean 'random'?"),
        ("ag_gemm --policy exakt", "did you mean 'exact'?"),
        ("ag_gemm --sync fien", "'fien' is not one of"),
        ("ag_gemm --profile hopper", "'hopper' is not one of"),
        ("ag_gemm --platform ascend", "'ascend' is not 'sim'"),
        ("ag_gemm --seed -1", "--seed has to be between 0 and"),
        ("ag_gemm --policy bound --rtol 0.1", "--policy bound derives its own bounds"),
        ("ag_gemm --launches 0", "--launches has to be between 1 and 1000, got 0"),
        ("ag_gemm --json TMP", "it is a folder"),
        ("ag_gemm --json TMP/no/such.json", "there is no folder TMP/no"),
        ("TMP/wrong.py::op", "wrong.py:3: `@operator("),
        ("ag_gemm --policy allclose --rtol nan", "--rtol has to be a number from 0 up"),
        ("ag_gemm --detekt", "No such option"),
        ("nowhere.py::op", "no such file: nowhere.py"),
        ("TMP/mine.py", "mine.py::NAME (it declares mine)"),
        ("TMP/mine.py::helper", "is a plain function (it lacks @operator(…)), no operator; it declares mine"),
        ("TMP/mine.py::mien", "did you mean 'mine'?"),
        ("TMP/mine.py::mine --dtype fp16", "it takes fp32"),
        ("TMP/broken.py::op", "broken.py:3: `import does_not_exist`: ModuleNotFoundError"),
    ],
)
def test_a_mistake_is_told_and_exits_2(run, tmp_path, line, text):
    result = run(line)
    assert text.replace("TMP", str(tmp_path)) in result.output
    assert "Traceback" not in result.output
    assert result.exit_code == 2


def test_help_names_every_option_and_exit_status(run):
    result = run("--help")
    assert result.exit_code == 0
    options = {name for parameter in command.params if isinstance(parameter, click.Option) for name in parameter.opts}
    assert all(option in result.output for option in options)
    assert "0 verified, 1 verification failed, 2 usage, 3 environment" in result.output


def test_list_shows_operators_schedulers_policies(run):
    result = run("--list")
    assert result.exit_code == 0
    for word in ("ag_gemm", "all_gather", "max-sync", "allclose", "m=256,n=256,k=256"):
        assert word in result.output


@pytest.mark.parametrize(
    "options",
    [
        Options("ag_gemm"),
        Options("dir with space/f.py::op", dtype=("fp16", "bf16"), shape={"m": 3}, nranks=2, seed=7, sync="fine"),
        Options("ag_gemm", rtol=0.5, launches=7),
        Options("ag_gemm", seeds=9, situations=("ahead", "late-init"), schedule="pct:depth=2"),
        Options("ag_gemm", suppress={"tdist.race": "known: it's two = one", "tdist.canary": "old"}, search=False),
        Options("ag_gemm", compile_for=("Ascend910B3", "Ascend910B2"), barrier_all_sync="true"),
        Options("ag_gemm", policy="allclose", rtol=0.5, atol=1e-3, detect=False, profile="ascend", schedule="random"),
    ],
)
def test_the_replay_line_gives_back_the_options(options):
    from tdist.verify.cli import _options

    words = shlex.split(options.replay())
    assert words[0] == "tdist-verify"
    with command.make_context("tdist-verify", words[1:]) as context:
        names = [option.name for option in fields(Options)[1:]]
        given = {k: v for k, v in context.params.items() if k in names}
        assert _options(context.params["operator"], given) == options


def test_the_seed_is_always_in_the_replay_line():
    assert "--seed 0" in Options("ag_gemm").replay()
