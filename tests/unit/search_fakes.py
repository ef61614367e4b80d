"""An operator that is never run and a runner that gives what it is told, for tests of plan, search and verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tdist.findings import Finding, Party, make
from tdist.verify.modes import mode_of
from tdist.verify.operator import Case, operator
from tdist.verify.policies import Comparison
from tdist.verify.rank_job import LaunchResult
from tdist.verify.worlds import RunSpec, WorldResult

FINE, BARRIER = (mode_of(name, ("fine", "barrier")) for name in ("fine", "barrier"))


def inputs(case: Case, rank: int, launch: int) -> dict[str, torch.Tensor]:
    rows = -(-case["m"] // case.nranks)
    return {"x": torch.zeros(max(0, min(rows, case["m"] - rank * rows)), case["n"])}


DECLARED: dict[str, Any] = {
    "shape": {"n": 32, "m": 64},
    "inputs": inputs,
    "golden": lambda case, rank, x: x,
    "workspace": lambda rt, case: None,
    "relaunchable": True,
}


def declare(**more: Any):
    """An operator of that contract."""

    @operator(**{**DECLARED, **more})
    def op(rt, case, *given, **inputs): ...

    return op


def compared(passed: bool, tiles: tuple = ((0, 0),)) -> Comparison:
    return Comparison("exact", passed, 16, wrong_tiles=() if passed else tiles, tiles=4)


def launched(checksum: int = 1, passed: bool | None = None, launches: int = 1) -> list[LaunchResult]:
    comparisons = {} if passed is None else {"out": compared(passed)}
    return [LaunchResult(comparisons, {"out": [checksum, 2]}) for _ in range(launches)]


def race(line: int = 1, other: int = 2, op: str = "store", **more: Any) -> Finding:
    parties = [Party(0, 0, 0, file="k.py", line=line, op="store"), Party(1, 0, 1, file="k.py", line=other, op=op)]
    return make("race", parties, tensor="box", first="store", second=op, **more)


class FakeRunner:
    """Gives `answer(spec)`; keeps what it was asked to run."""

    def __init__(self, answer: Callable[[RunSpec], WorldResult]) -> None:
        self.answer = answer
        self.specs: list[RunSpec] = []

    def execute(self, spec: RunSpec) -> WorldResult:
        self.specs.append(spec)
        return self.answer(spec)

    def run(self, job: Any, mode: Any, poison: int) -> WorldResult:
        raise NotImplementedError

    def record(self, job: Any, mode: Any, run: bool) -> list[Any]:
        raise NotImplementedError
