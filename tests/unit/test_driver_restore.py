"""After a scope Triton is exactly as it was: driver, back ends, `tl`, classes, caches, files."""

import json
import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl
from triton.backends import backends
from triton.backends.ascend.driver import NPUUtils
from triton.compiler import CompiledKernel
from triton.runtime import Autotuner, JITFunction
from triton.runtime.driver import driver

from tdist.errors import UsageError
from tdist.platforms.base import activate
from tdist.platforms.sim.driver import sim_driver


class Rank:
    rank, nranks, platform, target, cube_cores, vector_cores = 0, 1, "sim", "Ascend910B3", 7, 14

    def launch(self, kernel, grid, args):
        """Nothing runs here."""


@triton.jit
def kernel(x_ptr, n):
    tl.store(x_ptr, n)


def snapshot():
    """Everything of Triton's that a scope could have touched, by identity."""
    owners = (JITFunction, Autotuner, NPUUtils, CompiledKernel, tl, tl.core, tl.semantic, triton, triton.compiler)
    state = {(owner.__name__, name): id(value) for owner in owners for name, value in vars(owner).items()}
    state |= {("backends", name): id(value) for name, value in backends.items()}
    return {**state, "driver": id(driver.active), "default": id(driver.default)}


def test_everything_is_the_same_object_afterwards():
    before, function = snapshot(), dict(vars(kernel))
    with sim_driver():
        during = snapshot()
        with sim_driver(), activate(Rank()):  # pyright: ignore[reportArgumentType]
            kernel[(1,)](torch.zeros(1), 1)
            assert NPUUtils().get_aicore_num() == 7
        assert snapshot() == during, "an inner scope changes nothing"
    assert snapshot() == before
    assert vars(kernel) == function, "the kernel itself has no binder, cache or hash of ours"
    changed = {key for key in before if before[key] != during[key]}
    assert changed == {
        "driver",
        ("JITFunction", "run"),
        ("Autotuner", "run"),
        ("NPUUtils", "__new__"),
        ("NPUUtils", "__init__"),
        ("NPUUtils", "get_arch"),
        ("NPUUtils", "get_aicore_num"),
        ("NPUUtils", "get_aivector_core_num"),
        ("NPUUtils", "get_device_properties"),
    }


def test_an_exception_in_the_scope_restores_too():
    before = snapshot()
    with pytest.raises(ZeroDivisionError), sim_driver():
        raise ZeroDivisionError
    assert snapshot() == before


def test_tritons_interpreter_is_refused_and_nothing_is_left(monkeypatch):
    before = snapshot()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UsageError, match="TRITON_INTERPRET=1 is set"), sim_driver():
        pass
    assert snapshot() == before
    monkeypatch.delenv("TRITON_INTERPRET")
    with sim_driver():
        assert snapshot() != before
    assert snapshot() == before


def test_core_counts_need_a_rank():
    with sim_driver(), pytest.raises(UsageError, match="NPUUtils was asked for core counts on a thread"):
        NPUUtils().get_aicore_num()


SCRIPT = """
import json, os, sys
import torch, triton, triton.language as tl
from tdist.platforms.base import activate
from tdist.platforms.sim.driver import sim_driver
sys.path.insert(0, os.path.dirname(sys.argv[1]))
from {module} import Rank, kernel
with sim_driver(), activate(Rank()):
    kernel[(1,)](torch.zeros(1), 1)
print(json.dumps([os.path.join(d, f) for d, _, fs in os.walk(sys.argv[2]) for f in fs]))
"""


def test_nothing_is_written_where_triton_keeps_binaries(tmp_path):
    ours = tmp_path / "ours"
    environment = {"HOME": str(tmp_path), "TRITON_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    environment["TDIST_CACHE_DIR"] = str(ours)
    script = SCRIPT.format(module=__name__)
    command = [sys.executable, "-B", "-c", script, __file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)
    assert [path for path in written if not path.startswith(f"{ours}/ttir/")] == []
    assert len(written) == 2  # the TTIR and its lock
