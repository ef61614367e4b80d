"""Random programs over pointers: a store reaches exactly the memory that its program says, or the kernel is refused."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest
from memory_origins import stores_by_line
from pointer_programs import SIGNATURE, Program
from vendor_oracle import needs_adapter, needs_compiler

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

from tdist.errors import KernelError
from tdist.frontend.triton_ascend import compile_source
from tdist.platforms.ascend.lowering.adapter import to_linalg
from tdist.platforms.ascend.lowering.bishengir import compile_linalg
from tdist.platforms.ascend.lowering.prepare import prepare
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions

SEEDS = range(16)
CHANGES = "the memory behind a pointer changes from one turn of the loop to the next"


def kernel(program: Program, folder: Path, seed: int):
    path = folder / f"program_{seed}.py"
    path.write_text(program.source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.program


def stores(fn) -> dict[int, set[str]]:
    """Which memory the stores of each line reach in the final module, tokens left out."""
    prepared = prepare(compile_source(fn, SIGNATURE, {"B": 64}))
    with Steps() as steps:
        linalg = to_linalg(prepared, CompileOptions(), steps)
        text = compile_linalg(linalg, "Ascend910B3", CompileOptions(), steps).final_text
    return stores_by_line(text, list(SIGNATURE))


def outcome(seed: int, folder: Path) -> str:
    program = Program(seed)
    try:
        found = stores(kernel(program, folder, seed))
    except KernelError as error:
        assert program.loop_changes_memory, f"seed {seed} is refused:\n{error}\n{program.source}"
        assert CHANGES in str(error), f"seed {seed}:\n{error}\n{program.source}"
        return "refused"
    for line, memory in found.items():
        assert memory == program.reached[line], f"seed {seed}, line {line}:\n{program.source}"
    return "through"


@needs_adapter
@needs_compiler
def test_stores_reach_what_their_program_says(tmp_path: Path) -> None:
    seen = Counter(outcome(seed, tmp_path) for seed in SEEDS)
    print(f"seeds {SEEDS}: {dict(seen)}")
    assert seen["through"] >= len(SEEDS) // 3
    assert seen["refused"] >= 1
