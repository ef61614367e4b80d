"""Differential tests of single operations: the simulated platform against torch and against Triton's interpreter.

A `Case` is a kernel with its arguments and a reference that does to copies of them what the kernel should do. Every
tensor argument is compared afterwards, inputs too, so that a stray store is a failure. The interpreter runs all cases
of all `test_ops_*.py` in one process of its own, since `TRITON_INTERPRET` is read when a kernel is decorated.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 240


@dataclass(frozen=True)
class Case:
    """One launch on one rank and what it must do.

    Attributes:
        args: the kernel's arguments in order, tensors and numbers; every run gets copies.
        expect: does to copies of `args` in place, with torch, what the kernel should do.
        rtol, atol: how far floats may be off; 0 is bit-equal up to the sign of NaN. Integers are always exact.
        no_interpreter: why Triton's interpreter is no oracle for this case; "" if it is one.
    """

    name: str
    kernel: Any
    args: Sequence[Any]
    expect: Callable[..., None]
    grid: tuple[int, ...] = (1,)
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = 0.0
    atol: float = 0.0
    no_interpreter: str = ""

    def __str__(self) -> str:
        return self.name


def copies(args: Sequence[Any]) -> list[Any]:
    """The arguments with tensors copied, whole storages with their strides; views of one storage stay so."""
    storages: dict[int, torch.UntypedStorage] = {}
    result: list[Any] = []
    for arg in args:
        if not isinstance(arg, torch.Tensor):
            result.append(arg)
            continue
        source = arg.untyped_storage()
        copy = storages.setdefault(source.data_ptr(), source.clone())
        result.append(torch.empty(0, dtype=arg.dtype).set_(copy, arg.storage_offset(), arg.shape, arg.stride()))
    return result


def tensors(args: Sequence[Any]) -> list[torch.Tensor]:
    return [arg for arg in args if isinstance(arg, torch.Tensor)]


# --- the three ways to run a case


def simulated(case: Case, **config: Any) -> tuple[list[torch.Tensor], list[Any], list[Any]]:
    """What the tensors hold after the launch, the findings and what the kernel printed."""
    from tdist.platforms.sim.world import World

    def host(rt: Any) -> list[torch.Tensor]:
        args = copies(case.args)
        case.kernel[case.grid](*args, **case.constexprs)
        return tensors(args)

    with World(nranks=1, **config) as world:
        (result,) = world.run(host)
        return result, world.findings, world.prints


def expected(case: Case) -> list[torch.Tensor]:
    args = copies(case.args)
    case.expect(*args)
    return tensors(args)


def interpret(case: Case) -> list[torch.Tensor] | str:
    """What Triton's interpreter makes of a case (in its own process); its complaint if it raises."""
    args = copies(case.args)
    try:
        case.kernel[case.grid](*args, **case.constexprs)
    except Exception as error:
        return f"{type(error).__name__}: {error.__cause__ or error}"
    return tensors(args)


@functools.cache
def _interpreted() -> dict[str, Any]:
    """Results of all cases by module and name."""
    modules = sorted(path.stem for path in HERE.glob("test_ops_*.py"))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.pt"
        command = [sys.executable, "-W", "ignore", str(HERE / "ops_interpreter.py"), str(file), *modules]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        assert done.returncode == 0, done.stderr
        return torch.load(file)


# --- comparison


def check(case: Case, module: str) -> None:
    """The simulated result against the reference and against the interpreter, and no finding."""
    got, findings, _ = simulated(case)
    assert [finding.title for finding in findings] == []
    compare(case, got, expected(case), "torch")
    if case.no_interpreter:
        return
    other = _interpreted()[f"{module}::{case.name}"]
    assert not isinstance(other, str), f"the interpreter is no oracle here, say so in the case: {other}"
    compare(case, got, other, "the interpreter")


def compare(case: Case, got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], oracle: str) -> None:
    for index, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.dtype == b.dtype
        torch.testing.assert_close(
            a,
            b,
            rtol=case.rtol if a.dtype.is_floating_point else 0,
            atol=case.atol if a.dtype.is_floating_point else 0,
            equal_nan=True,
            msg=lambda text, index=index: f"{case.name}, tensor {index} against {oracle}: {text}",
        )
        if case.rtol == case.atol == 0 and a.dtype.is_floating_point:
            signs = torch.signbit(a) != torch.signbit(b)
            assert not (signs & ~torch.isnan(a)).any(), f"{case.name}, tensor {index}, {oracle}: signs of zeros"


def names_are_unique(cases: Sequence[Case]) -> None:
    names = [case.name for case in cases]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, twice
