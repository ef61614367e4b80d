"""`tdist-verify OP --compile-for CHIP`: what an operator launches is found by running it, and compiled."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from tdist.errors import EnvironmentUnfit, UsageError
from tdist.platforms.sim import collection
from tdist.verify import compile_for
from tdist.verify.cli import main
from tdist.verify.compile_for import compile_operator
from tdist.verify.loader import load_operator
from tdist.verify.options import Options
from tdist.verify.report import render_report
from tdist.verify.run import Report, verify
from tdist.verify.side_by_side import tables
from tdist.verify.worlds import open_runner

OPERATORS = """
import torch
import triton
import triton.language as tl
import triton_dist.language as dl
import shmem as ash
from triton_dist.language.extra import libshmem_device
from tdist.verify import ensure_shmem, operator


@triton.jit
def fill(x_ptr, n, VALUE: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.full((BLOCK,), VALUE, x_ptr.dtype.element_ty), mask=offs < n)


@triton.jit
def wait_for_nobody(sig_ptr, x_ptr):
    token = dl.wait(sig_ptr, 1, "npu", "acquire", waitValue=1)
    tl.store(dl.consume_token(x_ptr, token), 1.0)


@triton.jit
def push(x_ptr, out_ptr, box_ptr, sig_ptr, n, FENCE: tl.constexpr, BLOCK: tl.constexpr):
    peer = 1 - dl.rank()
    offs = tl.arange(0, BLOCK)
    tl.store(dl.symm_at(box_ptr, peer) + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)  # <store>
    if FENCE:
        libshmem_device.fence()
    dl.notify(sig_ptr, peer, signal=1, sig_op="set")  # <signal>
    token = dl.wait(sig_ptr, 1, "npu", "acquire", waitValue=1)
    tl.store(out_ptr + offs, tl.load(dl.consume_token(box_ptr, token) + offs, mask=offs < n), mask=offs < n)


def nothing(case, rank, launch):
    return {}


def ones(case, rank, inputs_by_rank):
    return torch.ones(case["m"], dtype=case.torch_dtype)


def declare(**more):
    golden = lambda case, rank, **inputs: ones(case, rank, [])
    return operator(shape={"m": 16}, inputs=nothing, golden=golden, golden_local=ones, dtypes=("fp32", "fp16"), **more)


@declare(sync=("fine", "barrier"))
def several(rt, case):
    out = torch.zeros(case["m"], dtype=case.torch_dtype)
    for _ in range(3):
        fill[(1,)](out, case["m"], VALUE=2, BLOCK=16, multibuffer=False, num_warps=4)
    if case.sync == "fine":
        fill[(1,)](out, case["m"], VALUE=1 + (rt.rank == 5), BLOCK=16)
    else:
        fill[(1,)](out, case["m"], VALUE=1, BLOCK=32)
    return out


@declare()
def by_rank(rt, case):
    out = torch.zeros(case["m"], dtype=case.torch_dtype)
    fill[(1,)](out, case["m"], VALUE=1, BLOCK=16 << rt.rank)
    return out


@declare()
def without_kernels(rt, case):
    return torch.ones(case["m"], dtype=case.torch_dtype)


@declare()
def misspelt(rt, case):
    out = torch.zeros(case["m"], dtype=case.torch_dtype)
    fill[(1,)](out, case["m"], VALUE=1, BLOCK=16, multibufer=False)
    return out


def exchange(rt, case, fence):
    ensure_shmem(rt)
    box = ash.aclshmem_create_tensor((case["m"],), dtype=case.torch_dtype)
    signal = ash.aclshmem_create_tensor((32,), dtype=torch.int64)
    signal.zero_()
    rt.synchronize()
    rt.host_barrier()
    x, out = torch.ones(case["m"], dtype=case.torch_dtype), torch.zeros(case["m"], dtype=case.torch_dtype)
    push[(1,)](x, out, box, signal[16:], case["m"], FENCE=fence, BLOCK=16)
    return out


@declare()
def undrained(rt, case):
    return exchange(rt, case, False)


@declare()
def drained(rt, case):
    return exchange(rt, case, True)


@declare()
def stuck(rt, case):
    ensure_shmem(rt)
    signal = ash.aclshmem_create_tensor((16,), dtype=torch.int32)
    signal.zero_()
    out = torch.zeros(case["m"], dtype=case.torch_dtype)
    fill[(1,)](out, case["m"], VALUE=1, BLOCK=16)
    wait_for_nobody[(1,)](signal, out)
    rt.synchronize()
    fill[(1,)](out, case["m"], VALUE=3, BLOCK=16)
    return out
"""


class Run(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def operators(tmp_path: Path) -> Path:
    path = tmp_path / "ops.py"
    path.write_text(OPERATORS)
    return path


@pytest.fixture
def run(operators, monkeypatch, capsys):
    """Run a line of `tdist-verify` in the folder of `ops.py`."""
    monkeypatch.chdir(operators.parent)
    monkeypatch.setattr(collection, "start_loading", lambda: None)  # this process is not the command's own

    def invoke(line: str) -> Run:
        monkeypatch.setattr(sys, "argv", ["tdist-verify", *shlex.split(line)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert "Traceback" not in told.out + told.err
        return Run(int(ended.value.code or 0), told.out, told.err)

    return invoke


def launched(path: Path, name: str, **options: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, label and launch options of what is compiled of an operator."""
    operator = load_operator(f"{path}::{name}")
    chosen = Options(f"{path}::{name}", nranks=2, compile_for=("Ascend910B3",), barrier_all_sync="true", **options)
    dtypes = chosen.dtype or operator.dtypes[:1]
    cases = [operator.case(dtype=dtype, nranks=2) for dtype in dtypes]
    with open_runner(operator, chosen, in_process=True) as runner:
        compiled = compile_operator(runner, operator, chosen, cases)
    assert compiled.report is not None and not compiled.notes
    return [(r.kernel.ir.name, r.kernel.label, dict(r.kernel.options)) for r in compiled.report.results]


def test_each_distinct_kernel_is_compiled_once_with_its_launch_options(operators):
    """Three launches of one kernel are one; other constexprs and launch options are others."""
    assert launched(operators, "several") == [
        ("fill", "fp32 fine, fp32 barrier", {"multibuffer": False, "num_warps": 4}),
        ("fill", "fp32 fine", {}),
        ("fill", "fp32 barrier", {}),
    ]


def test_kernels_of_all_ranks_and_dtypes_are_compiled(operators):
    labels = [label for _, label, _ in launched(operators, "by_rank", dtype=("fp32", "fp16"))]
    assert labels == ["fp32 fine"] * 2 + ["fp16 fine"] * 2


def test_one_form_only_where_one_is_asked_for(operators):
    labels = [label for _, label, _ in launched(operators, "several", sync="barrier")]
    assert labels == ["fp32 barrier"] * 2


def test_one_report_from_both_sides(run, tmp_path):
    line = "--nranks 2 --shape m=16,n=16 --dtype fp16 --launches 2 --compile-for Ascend910B3,Ascend910B2"
    ended = run(f"all_gather {line} --json r.json --keep-ir ir")
    value = json.loads((tmp_path / "r.json").read_text())
    assert value["options"]["compile_for"] == ["Ascend910B3", "Ascend910B2"]
    results = value["compiled"]["gate"]["results"]
    assert {(r["label"], r["target"], r["barrier_all_sync"]) for r in results} == {
        (label, target, setting)
        for label in ("fp16 fine", "fp16 barrier")
        for target in ("Ascend910B3", "Ascend910B2")
        for setting in (False, True)
    }
    assert all(r["verdict"] != "refused" and not r["unchecked"] for r in results)
    sides = value["compiled"]["side_by_side"]
    assert [side["label"] for side in sides] == ["fp16 fine", "fp16 barrier"]
    assert {row["topic"] for row in sides[0]["rows"]} >= {"drained", "made once", "kept"}
    assert all(set(row["code"]) == {"fine", "barrier-all"} for side in sides for row in side["rows"])
    verdicts = {r["verdict"] for r in results}
    assert ended.code == (0 if verdicts == {"clean"} else 1)
    assert "compiled for Ascend910B3, Ascend910B2" in ended.out
    assert "no hivmc: the final module is the result; code generation and link were not run" in ended.out
    assert (
        "tdist-verify all_gather --dtype fp16 --nranks 2 --shape m=16,n=16 --seed 0 --launches 2 --compile-for"
        in ended.out
    )
    assert (
        tmp_path / "ir" / "all_gather_fine_kernel-fp16-fine" / "Ascend910B2" / "barrier-all-true" / "00-ttir.mlir"
    ).is_file()


def verified(path: Path, name: str, **options: Any) -> tuple[Report, str]:
    """The report of an operator in a world of threads, and as it is printed."""
    operator = load_operator(f"{path}::{name}")
    given = {"nranks": 2, "compile_for": ("Ascend910B3",), "barrier_all_sync": "false", **options}
    chosen = Options(f"{path}::{name}", **given)
    report = verify(operator, chosen, in_process=True)
    out = io.StringIO()
    render_report(report, Console(file=out, width=160, color_system=None))
    return report, out.getvalue()


def test_the_compiled_code_decides_too(operators):
    """A kernel that the simulator verifies and that does not fit into the chip's memory is not verified."""
    operators.write_text(OPERATORS.replace("BLOCK=16 << rt.rank", "BLOCK=65536"))
    report, text = verified(operators, "by_rank")
    assert report.simulated and not report.passed
    assert (report.exit_code, report.verdict) == (1, "failed")
    assert "does not fit into UB" in text and f"{operators}:" in text


def test_an_operator_without_kernels_is_not_clean(operators):
    report, text = verified(operators, "without_kernels")
    assert report.simulated and report.exit_code == 1
    assert "the host function launched no kernel" in text and "nothing was compiled" in text


def test_a_machine_that_becomes_unfit_does_not_cost_what_the_ranks_said(operators, monkeypatch):
    def unfit(*arguments, **more):
        raise EnvironmentUnfit("cannot make a temporary directory: No space left on device")

    monkeypatch.setattr(compile_for, "gate", unfit)
    report, text = verified(operators, "several")
    assert report.simulated and (report.exit_code, report.verdict) == (3, "undecided")
    assert "environment: cannot make a temporary directory" in text and "PASS fp32 fine" in text


def test_a_launch_option_that_the_vendor_does_not_have_is_refused(operators):
    with pytest.raises(UsageError, match=r"kernel fill \[fp32 fine\]: 'multibufer' is not a launch option"):
        verified(operators, "misspelt")


def answers(report: Report, topic: str, line: int) -> dict[str, str]:
    """What both judges say to one question."""
    ((_, rows),) = tables(report)
    (row,) = [row for row in rows if row.question.topic == topic and row.question.at.endswith(f":{line}")]
    return {"seed": row.seed, "ascend": row.ascend, **row.code}


def line_of(name: str) -> int:
    return next(number for number, text in enumerate(OPERATORS.splitlines(), 1) if f"# <{name}>" in text)


def test_both_judges_find_the_undrained_signal_and_only_barrier_all_is_clean(operators):
    """The signal can overtake its data on Ascend; a barrier before each operation keeps it behind."""
    report, text = verified(operators, "undrained", barrier_all_sync="both")
    said = answers(report, "drained", line_of("signal"))
    assert said["seed"] == "clean" and said["barrier-all"] == "clean"
    assert said["ascend"] == "undrained-release" and "undrained-release" in said["fine"]
    assert report.simulated and report.exit_code == 1, "the language has it in order, the compiled code has not"
    assert "push [fp32 fine] is clean with barrier-all true only" in text
    assert "on simulated ranks: verified; the compiled code: not clean" in text
    for name in ("store", "signal"):
        assert f"{operators}:{line_of(name)}" in text
    assert "simulated ranks (seed, ascend) beside the compiled code" in text


def test_with_a_fence_both_judges_are_silent(operators):
    report, _ = verified(operators, "drained", barrier_all_sync="both")
    assert set(answers(report, "drained", line_of("signal")).values()) == {"clean"}
    assert report.passed


def test_kernels_about_which_the_same_is_said_share_a_table(operators):
    _, text = verified(operators, "drained", dtype=("fp32", "fp16"), barrier_all_sync="true")
    assert "\npush [fp32 fine], push [fp16 fine]\n" in text


def test_launches_around_a_deadlock_are_compiled_and_it_is_said(run):
    ended = run("ops.py::stuck --nranks 2 --sync fine --compile-for Ascend910B3 --barrier-all-sync true --json r.json")
    assert ended.code == 1
    assert "fp32 fine: the kernels did not come to their ends, launches were noted without running them" in ended.out
    value = json.loads(Path("r.json").read_text())["compiled"]
    assert [result["kernel"] for result in value["gate"]["results"]] == ["fill", "wait_for_nobody", "fill"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("all_gather --compile-for Ascend910B33", "did you mean Ascend910B3?"),
        ("all_gather --compile-for ,", "--compile-for needs at least one chip"),
        ("all_gather --barrier-all-sync true", "it needs --compile-for CHIP"),
        ("all_gather --compile-for Ascend910B3 --barrier-all-sync maybe", "'maybe' is not one of"),
        ("all_gather --keep-ir ir", "it needs --compile-for CHIP"),
        ("all_gather --compile-for Ascend910B3 --keep-ir .", "has files already"),
        ("all_gather --compile-for Ascend910B3 --keep-ir ops.py/ir", "cannot keep IR in ops.py/ir: Not a directory"),
    ],
)
def test_a_mistake_is_told_and_exits_2(run, line, text):
    ended = run(line)
    assert ended.code == 2 and text in ended.err


def test_a_clean_operator_is_clean_and_says_how_far_it_went(operators):
    report, text = verified(operators, "several")
    assert report.passed and report.compiled is not None and report.compiled.report is not None
    assert "nothing is said about speed" in text and "about what a vendor's compiler emits" not in text
    assert "no hivmc here (it comes with CANN), the final module is the result" in text


def test_without_the_option_nothing_is_compiled_and_the_report_says_so(operators):
    operator = load_operator(f"{operators}::several")
    report = verify(operator, Options(f"{operators}::several", nranks=2), in_process=True)
    assert report.compiled is None
    assert any("what a vendor's compiler emits (--compile-for)" in limit for limit in report.limits)
