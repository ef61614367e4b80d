"""Faults that two launches on a workspace do not show: a double buffer hides them until a half is used again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tdist.verify.cli import command

README = Path(__file__).parents[2] / "README.md"

UNACKNOWLEDGED = '''
"""Rank 0 pushes into two halves in turn; nobody tells it that a half has been read."""
import shmem as ash
import torch
import torch.distributed as dist
import triton
import triton.language as tl
import triton_dist.language as dl
from triton_dist.language.extra import libshmem_device

from tdist.verify import ensure_shmem, operator
from tdist.verify.inputs import payload


@triton.jit
def push(x_ptr, out_ptr, box_ptr, sig_ptr, epoch, n, BLOCK: tl.constexpr):
    half = epoch % 2
    offs = tl.arange(0, BLOCK)
    if dl.rank() == 0:
        value = tl.load(x_ptr + offs, mask=offs < n)
        for peer in range(0, dl.num_ranks()):
            tl.store(dl.symm_at(box_ptr, peer) + half * n + offs, value, mask=offs < n)
            libshmem_device.fence()
            dl.notify(sig_ptr + half * 16, peer, signal=epoch, sig_op="set")
    token = dl.wait(sig_ptr + half * 16, 1, "sys", "acquire", waitValue=epoch)
    arrived = dl.consume_token(box_ptr, token)
    tl.store(out_ptr + offs, tl.load(arrived + half * n + offs, mask=offs < n), mask=offs < n)


class Workspace:
    def __init__(self, rt, case):
        ensure_shmem(rt)
        self.epoch = 0
        self.box = ash.aclshmem_create_tensor([2, case["n"]], dtype=case.torch_dtype)
        signals = ash.aclshmem_create_tensor([3, 16], dtype=torch.int32)
        signals.zero_()
        self.sig = signals[1:]
        rt.synchronize()
        rt.host_barrier()


def golden(case, rank, x):
    y = x.clone()
    dist.broadcast(y, 0)
    return y


def inputs(case, rank, launch):
    return {"x": payload(case, rank, launch, "x", (case["n"],))}


@operator(shape={"n": 100}, inputs=inputs, golden=golden, workspace=Workspace, relaunchable=True)
def op(rt, case, workspace, x):
    workspace.epoch += 1
    out = torch.empty_like(x)
    push[(1,)](x, out, workspace.box, workspace.sig, workspace.epoch, case["n"], BLOCK=128)
    return out
'''


def constant_epoch() -> str:
    """The README's sum with the signal always 1: the third launch takes the first one's signal for its own."""
    kernel, _ = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    changed = kernel.replace("signal=epoch", "signal=1").replace("waitValue=epoch", "waitValue=1")
    return changed.replace("def my_sum", "def op")


def verify(path: Path, *words: str):
    arguments = [f"{path}::op", "--nranks", "2", "--sync", "fine", "--dtype", "fp32", *words]
    return CliRunner().invoke(command, arguments, prog_name="tdist-verify")


@pytest.mark.parametrize("source", [constant_epoch(), UNACKNOWLEDGED], ids=["constant epoch", "no credit"])
def test_the_reuse_of_a_double_buffer_is_met_by_default_and_not_by_two_launches(tmp_path: Path, source: str) -> None:
    path = tmp_path / "reuses.py"
    path.write_text(source, encoding="utf-8")
    found = verify(path)
    assert found.exit_code == 1, found.output
    assert "tdist.race" in found.output and "launch 2" in found.output
    assert "kind of bug: synchronisation bug" in found.output
    missed = verify(path, "--launches", "2")
    assert missed.exit_code == 0, missed.output
    assert "2 launches on one workspace: faults that need more were not reached" in missed.output
    assert "--launches 2" in missed.output.splitlines()[-1]


def test_an_operator_that_is_not_relaunchable_is_said_to_have_had_one_launch(tmp_path: Path) -> None:
    path = tmp_path / "once.py"
    path.write_text(UNACKNOWLEDGED.replace(", relaunchable=True", ""), encoding="utf-8")
    done = verify(path)
    assert done.exit_code == 0, done.output
    assert "one launch: the operator is not declared relaunchable" in done.output
