"""Scripts without tdist: they parse, hold the kernel byte for byte, and run as far as fakes of a card carry them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from interpreters import Interpreters

from tdist.errors import UsageError
from tdist.findings import Finding, Party, make
from tdist.verify.loader import load_operator
from tdist.verify.rank_job import Job
from tdist.verify.replay.file import replay_of
from tdist.verify.repro.script import write_repro
from tdist.verify.worlds import RunSpec

HERE = Path(__file__).parent
AWKWARD = HERE / "repro_operators.py"
OPERATORS = {
    "awkward": (f"{AWKWARD}::awkward", "repro_operators.py", ("copy_kernel", "_helper"), AWKWARD),
    "ag_gemm": (
        "ag_gemm",
        "kernels_ag_gemm.py",
        ("ag_gemm_fine_kernel", "_push_panel", "_multiply_panel", "_column_of"),
        HERE.parents[1] / "tdist" / "kernels" / "ag_gemm.py",
    ),
    "all_gather": (
        "all_gather",
        "kernels_all_gather.py",
        ("all_gather_fine_kernel", "_push_tile"),
        HERE.parents[1] / "tdist" / "kernels" / "all_gather.py",
    ),
}


@dataclass(frozen=True)
class Failed:
    spec: RunSpec
    findings: tuple[Finding, ...] = ()
    wrong: bool = True
    error: str = ""


def write(spec: str, folder: Path, findings: tuple[Finding, ...] = (), **world) -> Path:
    operator = load_operator(spec)
    case = operator.case(dtype=operator.dtypes[0], nranks=1)
    run = RunSpec(Job(spec, case, 2 if operator.relaunchable else 1, policy="exact"), world)
    return write_repro(replay_of(Failed(run, findings), operator, folder), operator, folder, findings)


@pytest.fixture(scope="module", params=OPERATORS)
def written(request, tmp_path_factory):
    spec, *about = OPERATORS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    write(spec, folder)
    return folder, *about


def test_nothing_imports_tdist(written):
    folder, *_ = written
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.partition(".")[0] == "tdist" for name in names), f"{path.name}:{node.lineno}"


def test_kernels_are_copied_byte_for_byte(written):
    folder, file, kernels, source = written
    copied = (folder / file).read_text()
    text = source.read_text()
    found = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    for kernel in kernels:
        first = found[kernel].decorator_list[0].lineno
        assert "".join(text.splitlines(keepends=True)[first - 1 : found[kernel].end_lineno]) in copied


TORCH_NPU = """
import sys, types
import torch, torch.distributed as dist
import triton.runtime.jit as jit

torch.npu = types.SimpleNamespace(set_device=lambda index: print("device", index), synchronize=lambda: None)
meet = dist.init_process_group
dist.init_process_group = lambda backend, **ranks: (print("group", backend), meet("gloo", **ranks))
jit.JITFunction.run = lambda self, *args, grid, **meta: print("launch", self.__name__, grid, len(args), sorted(meta))
extension = types.ModuleType("triton.language.extra.cann.extension")
extension.sub_vec_id = extension.sub_vec_num = None
sys.modules["triton.language.extra.cann"] = types.ModuleType("triton.language.extra.cann")
sys.modules["triton.language.extra.cann.extension"] = extension
"""
SHMEM = """
import types
import torch

class InitAttr:
    def __init__(self): self.option_attr = types.SimpleNamespace()
class OpEngineType: MTE = 1
def set_conf_store_tls(enable, info): return 0
def aclshmem_init(attributes):
    print("init", attributes.my_rank, attributes.n_ranks, attributes.local_mem_size, attributes.ip_port)
    return 0
def aclshmem_create_tensor(shape, dtype, device_id=0): return torch.zeros(shape, dtype=dtype)
def aclshmem_free_tensor(tensor): pass
def aclshmem_finalize(): print("finalized")
"""
LANGUAGE = """
import torch
SIGNAL_SLOT_STRIDE = {torch.int32: 16, torch.int64: 8}
def rank(): pass
"""


def fakes(folder: Path) -> Path:
    """Packages of a card's machine that do nothing."""
    texts = {
        "torch_npu.py": TORCH_NPU,
        "shmem.py": SHMEM,
        "triton_dist/__init__.py": "",
        "triton_dist/language/__init__.py": LANGUAGE,
        "triton_dist/language/extra/__init__.py": "from . import libshmem_device",
        "triton_dist/language/extra/libshmem_device.py": "",
    }
    for name, text in texts.items():
        path = folder / "fakes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "fakes"


def run(python: Interpreters, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
    # nothing of tdist is importable, so that a forgotten import fails
    guard = "import sys; sys.modules['tdist'] = None\n"
    (folder / "sitecustomize.py").write_text(guard)
    path = os.pathsep.join(map(str, (folder, fakes(folder))))
    environment = {**os.environ, **ranks, "PYTHONPATH": path, "REPRO_DEVICE": "cpu"}
    command = [sys.executable, "repro.py", *arguments]
    return python.run(command, cwd=folder, timeout=120, env=environment)


def test_the_script_runs_up_to_the_launches(written, python):
    """The fakes launch nothing: outputs stay what they were, and the script says that they are wrong."""
    folder, _, (kernel, *_), _ = written
    done = run(python, folder, "--repeat", "2")
    assert "Traceback" not in done.stderr, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["device 0", "group cpu:gloo,npu:hccl"]
    assert lines[2].startswith("init 0 1 1073741824 tcp://")
    assert sum(line.startswith(f"launch {kernel} ") for line in lines) in (2, 4)
    assert any("elements differ, the first at [" in line and "got " in line for line in lines)
    assert "rank 0: WRONG (2 of 2 runs wrong)" in lines and lines[-1] == "finalized"
    assert done.returncode == 1


def test_a_wrong_number_of_ranks_is_told(tmp_path, python):
    script = write("all_gather", tmp_path)
    script.write_text(script.read_text().replace("'nranks': 1", "'nranks': 3"))
    done = run(python, tmp_path)
    assert done.returncode == 1 and "this run needs 3 ranks, torchrun started 1" in done.stderr


def test_the_inputs_are_the_ones_of_the_run(tmp_path, python):
    write(f"{AWKWARD}::awkward", tmp_path)
    show = (
        "from repro import SETTINGS; from repro_support import Case; import repro_operators as o, json;"
        "print(json.dumps(o.awkward.inputs(Case(**SETTINGS['case']), 0, 0)['x'].tolist()))"
    )
    path = os.pathsep.join(map(str, (tmp_path, fakes(tmp_path))))
    command = [sys.executable, "-c", f"import torch_npu; {show}"]
    done = python.run(command, cwd=tmp_path, timeout=120, env={**os.environ, "PYTHONPATH": path})
    operator = load_operator(f"{AWKWARD}::awkward")
    expected = operator.inputs(operator.case(dtype="fp32", nranks=1), 0, 0)["x"].tolist()
    assert done.stdout.strip() == str(expected), done.stderr


def test_only_what_is_needed_is_copied(tmp_path):
    write(f"{AWKWARD}::awkward", tmp_path)
    files = {path.name for path in tmp_path.glob("*.py")}
    assert files == {"repro.py", "repro_support.py", "repro_operators.py", "repro_neighbour.py", "verify_inputs.py"}
    text = (tmp_path / "repro_operators.py").read_text()
    for absent in ("unrelated", "UNRELATED", "with_a_gap", "made_inside", "TYPE_CHECKING"):
        assert absent not in text
    for present in ('SIZES["n"] = 32', "FACTORS.append(1)", "HAVE = False", "import shmem as ash", "# a comment that"):
        assert present in text
    assert "from triton_dist.language import SIGNAL_SLOT_STRIDE" in text
    assert "unrelated" not in (tmp_path / "repro_neighbour.py").read_text()


def test_the_readme_says_what_was_found_and_that_no_card_ran_it(tmp_path):
    parties = [
        Party(1, 0, 2, file="/home/someone/mine.py", line=12, op="store", tensor="x"),
        Party(0, 0, 1, file="/home/someone/mine.py", line=17, op="load", tensor="x"),
    ]
    race = make("race", parties, first="store", second="load", tensor="x")
    write("all_gather", tmp_path, (race,), max_programs=2, scheduler="random", seed=3)
    text = (tmp_path / "README.md").read_text()
    for words in ("not run on a card", "tdist.race", "at mine.py:12", "nothing orders the two accesses", "torchrun"):
        assert words in text
    assert "/home/someone" not in text
    assert "started at most 2 programs of a launch" in text and "scheduler random, seed 3" in text


# ---------------------------------------------------------------- what cannot be extracted


def refusal(tmp_path: Path, text: str) -> str:
    file = tmp_path / "mine.py"
    file.write_text("import torch\nfrom tdist.verify import operator\n" + text)
    folder = tmp_path / "out"
    with pytest.raises(UsageError) as refused:
        write(f"{file}::op", folder)
    assert not folder.exists() and "\n" not in str(refused.value)
    return str(refused.value)


DECLARED = "@operator(shape={'n': 4}, dtypes=('fp32',), inputs=inputs, golden=lambda case, rank: GOLDEN)\n"
HOST = DECLARED + "def op(rt, case):\n    return torch.zeros(4)\n"
INPUTS = "def inputs(case, rank, launch): return {}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (INPUTS + "globals()['GOLDEN'] = 1\n" + HOST, "GOLDEN is bound by no top-level statement"),
        ("from os.path import *\n" + INPUTS + "GOLDEN = join\n" + HOST, "join is bound by no top-level statement"),
        (
            INPUTS + "GOLDEN = 1\ndef make():\n"
            "    @operator(shape={'n': 4}, inputs=inputs, golden=inputs)\n    def op(rt, case): pass\n    return op\n"
            "globals()['op'] = make()\n",
            "mine.py binds no op at its top level",
        ),
        (
            INPUTS + "from tdist.platforms.sim.world import World\nGOLDEN = World\n" + HOST,
            "mine.py:4: tdist.platforms.sim.world.World has no counterpart in a script without tdist",
        ),
    ],
)
def test_what_cannot_be_extracted_is_told_in_one_line(tmp_path, text, told):
    assert told in refusal(tmp_path, text)


def test_files_of_the_user_are_not_written_over(tmp_path):
    (tmp_path / "repro_operators.py").write_text("mine\n")
    with pytest.raises(UsageError, match="is there already"):
        write(f"{AWKWARD}::awkward", tmp_path)
    assert (tmp_path / "repro_operators.py").read_text() == "mine\n"


def test_a_script_may_be_written_again(tmp_path):
    assert write("all_gather", tmp_path) == write("all_gather", tmp_path)
