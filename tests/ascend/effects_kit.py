"""Kernels compiled by the vendor's tools, with both ends of the compilation at hand; kept for a test session."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from tdist.findings import Finding
from tdist.frontend.kernel_ir import KernelIR
from tdist.frontend.triton_ascend import compile_source
from tdist.platforms.ascend.compiled.final_module import FinalModule, read_final_module
from tdist.platforms.ascend.lowering.adapter import to_linalg
from tdist.platforms.ascend.lowering.bishengir import compile_linalg
from tdist.platforms.ascend.lowering.prepare import Prepared, prepare
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.multiplicity import check_multiplicity
from tdist.platforms.ascend.options import CompileOptions

TARGET = "Ascend910B3"
TYPES = {
    **dict.fromkeys(("a", "b", "c", "x"), "*fp16"),
    **{"buf": "*fp16", "sig": "*i32", "flag": "*i32", "n": "i32"},
}
TILES = {"M": 32, "N": 64, "K": 32, "B": 128}


def front_end(fn: Any, types: Mapping[str, str], **constants: Any) -> KernelIR:
    """A kernel's TTIR: arguments by `TYPES` unless said otherwise, tile sizes by `TILES`."""
    chosen = {name: value for name, value in {**TILES, **constants}.items() if name in fn.arg_names}
    signature = {name: {**TYPES, **types}[name] for name in fn.arg_names if name not in chosen}
    return compile_source(fn, signature, chosen)


def finish(prepared: Prepared, options: CompileOptions) -> FinalModule:
    """The final module of a prepared kernel."""
    with Steps() as steps:
        linalg = to_linalg(prepared, options, steps)
        return read_final_module(compile_linalg(linalg, TARGET, options, steps).final_text)


@functools.cache
def _build(fn: Any, types: str, constants: str, barrier_all: bool, launch: str) -> tuple[Prepared, FinalModule]:
    prepared = prepare(front_end(fn, json.loads(types), **json.loads(constants)))
    options = CompileOptions.of_launch(json.loads(launch), barrier_all=barrier_all)
    return prepared, finish(prepared, options)


def build(
    fn: Any,
    types: Mapping[str, str] | None = None,
    *,
    barrier_all: bool = False,
    launch: Mapping[str, Any] | None = None,
    **constants: Any,
) -> tuple[Prepared, FinalModule]:
    """Both ends of a kernel's compilation; do not change them, change a clone."""
    return _build(fn, json.dumps(types or {}), json.dumps(constants), barrier_all, json.dumps(launch or {}))


def effects(fn: Any, types: Mapping[str, str] | None = None, **how: Any) -> list[Finding]:
    """What the check of effects finds."""
    return check_multiplicity(*build(fn, types, **how))


def kinds(findings: list[Finding]) -> list[str]:
    """Kinds without the prefix."""
    return [finding.kind.removeprefix("tdist.compiled.") for finding in findings]


OPERATOR_TILES = {"BM": 64, "BN": 128, "BK": 64, "PANELS": 2, "BUFFERS": 2, "BLOCK": 1024, "FENCE": True}


def operator(
    fn: Any, type_: str = "fp16", words: str = "i64", barrier_all: bool = False, **constants: Any
) -> tuple[Prepared, FinalModule]:
    """Both ends of the compilation of an operator's kernel; `words` is the type of its signals."""
    fixed = {name: value for name, value in {**OPERATOR_TILES, **constants}.items() if name in fn.arg_names}
    types = {
        name: f"*{words if name in ('ready_ptr', 'credit_ptr') else type_}" if name.endswith("_ptr") else "i32"
        for name in fn.arg_names
        if name not in fixed
    }
    prepared = prepare(front_end(fn, types, **fixed))
    return prepared, finish(prepared, CompileOptions.of_launch({}, barrier_all=barrier_all))
