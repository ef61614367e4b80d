"""`tdist compile` from the command line to the verdict, with the vendor's tools; what is said of wrong requests."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tdist.platforms.ascend import toolchain
from tdist.tools.main import main

KERNELS = """
import triton
import triton.language as tl
import triton_dist.language as dl

WIDTH = 4


@triton.jit
def double(x_ptr, y_ptr, n: tl.int32, BLOCK: tl.constexpr = 128):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n, other=0.0) * 2, mask=offs < n)


@triton.jit
def scale(x_ptr, y_ptr, factor, n, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, (x * factor).to(DTYPE), mask=offs < n)


@triton.jit
def too_large(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, tl.sort(x))


@triton.jit
def refused_by_us(x_ptr):
    token = dl.wait(x_ptr, 1, "npu", "sideways")
    tl.store(x_ptr, token)


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 256})], key=[])
@triton.jit
def tuned(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float32))


def host():
    pass
"""
SCALE = "--sig x_ptr=*fp16,y_ptr=*fp16,factor=fp32,n=i32 --constexpr BLOCK=64 --constexpr DTYPE=tl.float16"
DOUBLE = "--sig x_ptr=*fp16,y_ptr=*fp16"


class Run(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def tdist(tmp_path, monkeypatch, capsys):
    """Run a line of `tdist` in a folder with `kernels.py`."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "broken.py").write_text("import triton\n\nimport does_not_exist\n")
    monkeypatch.chdir(tmp_path)

    def invoke(line: str) -> Run:
        monkeypatch.setattr(sys, "argv", ["tdist", *shlex.split(line)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert "Traceback" not in told.out + told.err
        return Run(int(ended.value.code or 0), told.out, told.err)

    return invoke


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("compile", "Missing argument"),
        ("compile kernels.py", "kernels.py::NAME (its kernels: double, refused_by_us, scale, too_large, tuned)"),
        ("compile double", "write it as FILE.py::NAME"),
        ("compile nowhere.py::double", "no such file: nowhere.py"),
        ("compile broken.py::double", "broken.py:3: `import does_not_exist`: ModuleNotFoundError"),
        ("compile kernels.py::dubble", "has no 'dubble'; its kernels: double, refused_by_us, scale, too_large, tuned"),
        ("compile kernels.py::host", "has, but not as a kernel under @triton.jit, 'host'"),
        ("compile kernels.py::double", 'needs a type for x_ptr, y_ptr: --sig "x_ptr=*fp16,y_ptr=*fp16"'),
        ("compile kernels.py::scale", "and a value for BLOCK, DTYPE: --constexpr BLOCK=128 --constexpr DTYPE=128"),
        ("compile kernels.py::double --sig x_ptr=*fp17,y_ptr=*fp16", "parameter `x_ptr`: there is no type '*fp17'"),
        ("compile kernels.py::double --sig x_ptr", "--sig takes NAME=VALUE, 'x_ptr' is none"),
        ("compile kernels.py::double --sig x_ptr=", "'x_ptr=' is none"),
        ("compile kernels.py::double --sig x_ptr=*fp16,x_ptr=*fp32", "--sig names x_ptr twice"),
        (f"compile kernels.py::double {DOUBLE},z_ptr=*fp16", "a parameter `z_ptr`: double(x_ptr, y_ptr, n, BLOCK)"),
        (f"compile kernels.py::double {DOUBLE} --sig scale.n=i64", "no kernel has a parameter `scale.n`"),
        (f"compile kernels.py::double {DOUBLE},BLOCK=i32 --constexpr BLOCK=4", "both a type (--sig) and a value"),
        (f"compile kernels.py::double {DOUBLE} --constexpr BLOCK=many", "'many' is no Python literal"),
        (f"compile kernels.py::double {DOUBLE} --constexpr BLOCK=tl.load", "'tl.load' is no Python literal"),
        (f"compile kernels.py::double {DOUBLE} --option multibufer=True", "did you mean multibuffer?"),
        (f"compile kernels.py::double {DOUBLE} --option multibuffer=3", "multibuffer must be True or False"),
        (f"compile kernels.py::double {DOUBLE} --target Ascend910B33", "did you mean Ascend910B3?"),
        (f"compile kernels.py::double {DOUBLE} --target Ascend950", "which tdist does not drive"),
        (f"compile kernels.py::double {DOUBLE} --barrier-all-sync maybe", "'maybe' is not one of"),
        (f"compile kernels.py::double {DOUBLE} --json .", "it is a folder"),
        (f"compile kernels.py::double {DOUBLE} --json no/such.json", "there is no folder no"),
        (f"compile kernels.py::double {DOUBLE} --keep-ir .", "has files already"),
        (f"compile kernels.py::double {DOUBLE} --keep-ir kernels.py/ir", "IR in kernels.py/ir: Not a directory"),
        ("compile --sgi", "No such option"),
        ("kompile", "No such command"),
        ("toolchain cuda", "No such command"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_and_exits_2(tdist, line, text):
    run = tdist(line)
    assert text in run.err
    assert run.code == 2 and not run.out


def test_help_names_options_and_exit_status(tdist):
    run = tdist("compile --help")
    assert run.code == 0
    for word in ("--sig", "--constexpr", "--option", "--target", "--barrier-all-sync", "--json", "--keep-ir"):
        assert word in run.out
    assert "0 clean, 1 a kernel is refused or has findings, 2 usage, 3 environment" in run.out


def test_a_kernel_goes_through_with_both_settings(tdist):
    run = tdist(f"compile kernels.py::double {DOUBLE}")
    assert run.code == 0, run.out + run.err
    rows = {line.split()[0]: line.split()[1:] for line in run.out.splitlines() if line.strip()}
    assert rows["verdict"] == ["clean", "clean"] and rows["calls"] == ["direct", "direct"]
    fine, barrier_all = (int(count) for count in rows["pipe_barrier"])
    assert fine < barrier_all, "barrier-all puts a barrier before each operation"
    assert rows["set_flag"][1] == "0"
    assert "of 196608 B" in run.out
    assert "no hivmc: the final module is the result; code generation and link were not run" in run.out
    assert "bishengir-compile 1.2.0" in run.out


def test_types_come_from_annotations_defaults_and_configurations(tdist, tmp_path):
    """`n: tl.int32` needs no type, `BLOCK = 128` no value, and an autotuned kernel takes its first configuration."""
    run = tdist(f"compile kernels.py::double kernels.py::tuned {DOUBLE} --sig tuned.x_ptr=*fp32 --json r.json")
    assert run.code == 0, run.out + run.err
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    arguments = {result["kernel"]: result["arguments"] for result in results}
    assert arguments == {"double": {"x_ptr": "*fp16", "y_ptr": "*fp16", "n": "i32"}, "tuned": {"x_ptr": "*fp32"}}


def test_a_qualified_name_is_for_one_kernel(tdist, tmp_path):
    run = tdist(f"compile kernels.py::double kernels.py::scale {SCALE} --sig double.y_ptr=*fp32 --json r.json")
    assert run.code == 0, run.out + run.err
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    types = {result["kernel"]: result["arguments"]["y_ptr"] for result in results}
    assert types == {"double": "*fp32", "scale": "*fp16"}


def test_targets_and_settings_are_all_compiled_and_reported(tdist, tmp_path):
    run = tdist(
        f"compile kernels.py::double {DOUBLE} --target Ascend910B3,Ascend910B2 --target Ascend910B3 "
        "--barrier-all-sync true --json r.json --keep-ir ir"
    )
    assert run.code == 0, run.out + run.err
    value = json.loads((tmp_path / "r.json").read_text())
    assert value["verdict"] == "clean" and value["schema_version"] == 1
    seen = [(r["target"], r["barrier_all_sync"], r["verdict"], r["linked"]) for r in value["results"]]
    assert seen == [("Ascend910B3", True, "clean", False), ("Ascend910B2", True, "clean", False)]
    assert all(r["file"] == str(tmp_path / "kernels.py") and r["line"] == 10 for r in value["results"])
    for target in ("Ascend910B3", "Ascend910B2"):
        kept = tmp_path / "ir" / "double" / target / "barrier-all-true"
        assert {"00-ttir.mlir"} < {path.name for path in kept.iterdir()}
        assert any(path.name.endswith("-final.mlir") for path in kept.iterdir())


def test_a_kernel_that_does_not_fit_is_refused_with_bytes_and_line(tdist, tmp_path):
    run = tdist("compile kernels.py::too_large --sig x_ptr=*fp32,y_ptr=*fp32 --constexpr BLOCK=65536 --json r.json")
    assert run.code == 1
    assert "does not fit into UB: it needs" in run.out and "196608 are there" in run.out
    assert f"{tmp_path / 'kernels.py'}:" in run.out
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    assert {result["verdict"] for result in results} == {"refused"}
    assert {result["refusal"]["stage"] for result in results} == {"bishengir-compile"}


def test_a_kernel_that_our_language_refuses_has_its_line_and_does_not_stop_others(tdist, tmp_path):
    line = f"compile kernels.py::refused_by_us kernels.py::double {DOUBLE} --sig refused_by_us.x_ptr=*i32 --json r.json"
    run = tdist(line)
    assert run.code == 1 and not run.err
    assert f"{tmp_path / 'kernels.py'}:" in run.out and "sideways" in run.out and "refused by front end" in run.out
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    assert [(r["kernel"], r["verdict"]) for r in results] == [
        *[("refused_by_us", "refused")] * 2,
        *[("double", "clean")] * 2,
    ]


def test_a_second_run_comes_from_the_cache(tdist, tmp_path):
    for _ in range(2):
        run = tdist(f"compile kernels.py::double {DOUBLE} --constexpr BLOCK=32 --json r.json")
        assert run.code == 0
    results = json.loads((tmp_path / "r.json").read_text())["run"]["results"]
    assert [result["cached"] for result in results] == [True, True]


def test_a_reader_that_leaves_costs_neither_the_verdict_nor_the_json(tdist, tmp_path):
    """`tdist compile … | head -1`: the status is still the verdict's, and nothing is said on standard error."""
    words = f"compile kernels.py::double kernels.py::scale {SCALE} --json r.json"
    program = f"{sys.executable} -m tdist.tools.main {words} > >(head -c 1 > /dev/null); exit $?"
    ended = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "clean"


def test_json_goes_to_a_pipe_too(tdist, tmp_path):
    words = f"compile kernels.py::double {DOUBLE} --barrier-all-sync false --json /dev/stderr"
    ended = subprocess.run(
        [sys.executable, "-m", "tdist.tools.main", *shlex.split(words)], capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 0 and json.loads(ended.stderr)["verdict"] == "clean"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_output_that_cannot_be_written_is_the_machines_fault(tdist, tmp_path):
    program = f"{sys.executable} -m tdist.tools.main compile kernels.py::double {DOUBLE} > /dev/full; exit $?"
    ended = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert ended.returncode == 3
    assert "cannot write the report to standard output: No space left on device" in ended.stderr


def test_a_json_that_cannot_be_written_is_said_before_the_run(tdist, tmp_path):
    target = tmp_path / "r.json"
    target.write_text("{}")
    if os.getuid() == 0:
        pytest.skip("waits for a user whom permissions bind")
    target.chmod(0o400)
    run = tdist(f"compile kernels.py::double {DOUBLE} --json r.json")
    assert run.code == 2 and "no permission to write it" in run.err


# the environment


@pytest.fixture
def no_tools(monkeypatch, tmp_path):
    """This process cannot use the vendor's tools; the cache is empty."""
    monkeypatch.setattr(
        toolchain, "missing_here", lambda: "bishengir-compile is not installed: it comes with ascendnpu-ir"
    )
    monkeypatch.setenv("TDIST_CACHE_DIR", str(tmp_path / "cache"))


def test_missing_tools_exit_3_and_say_how_to_get_them(tdist, no_tools):
    run = tdist(f"compile kernels.py::double {DOUBLE}")
    assert run.code == 3 and not run.out
    assert "bishengir-compile is not installed" in run.err and "`tdist toolchain ascend`" in run.err


def test_a_half_made_environment_exits_3(tdist, no_tools):
    toolchain.place().mkdir(parents=True, mode=0o700)
    run = tdist(f"compile kernels.py::double {DOUBLE}")
    assert run.code == 3 and "is half made: build it again with `tdist toolchain ascend --rebuild`" in run.err


def test_a_wrong_variable_is_named(tdist, monkeypatch):
    monkeypatch.setenv("TDIST_CACHE_DIR", "relative")
    run = tdist(f"compile kernels.py::double {DOUBLE}")
    assert run.code == 2 and "TDIST_CACHE_DIR must be an absolute directory" in run.err


def test_the_same_file_from_another_folder(tdist, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    run = tdist(f"compile {Path('..', 'kernels.py')}::double {DOUBLE} --barrier-all-sync false")
    assert run.code == 0
