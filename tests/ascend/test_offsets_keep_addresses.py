"""Pointers as distances point where they pointed: random kernels, simulated before and after the rewriting."""

from __future__ import annotations

import importlib.util
import io
import random
from pathlib import Path

import pytest
import torch
from xdsl.printer import Printer

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

from tdist.frontend.kernel_ir import KernelIR
from tdist.frontend.reader import read_ttir
from tdist.frontend.triton_ascend import compile_source
from tdist.ir import tt
from tdist.ir.pointer import is_scalar_pointer
from tdist.passes import run_pipeline
from tdist.platforms.ascend.lowering.offsets import Offsets, needs_offsets
from tdist.platforms.sim.world import World

SEEDS = range(24)
ELEMENTS = 1 << 15
SIGNATURE = {"buf": "*i32", "n": "i32"}
HEAD = """import triton
import triton.language as tl


@triton.jit
def program(buf, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    p = buf
    q = buf + 64
    many = buf + 128 + offs
    none = 0
    half = buf.to(tl.pointer_type(tl.int16), bitcast=True)
"""
_PLAIN = {
    "{to} = {of} + {k}": 3,
    "{to} = buf + {k} * n": 1,
    "{to} = {of}": 1,
    "{to} = tl.where(n % {d} > 0, p, q)": 2,
    "many += {k}": 2,
    "many = many + n": 1,
    "many = {of} + offs": 1,
    "half = ({of} + {k}).to(tl.pointer_type(tl.int16), bitcast=True)": 1,
    "tl.store({to} + offs, {k})": 4,
    "tl.store(many, {k})": 2,
    "tl.store(half + offs, {k})": 1,
}
_NESTED = {"if": 4, "for": 2, "while": 1}


class Writer:
    """A random program, straight into its lines."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0
        self.lines = HEAD.splitlines()
        self._body(1, self._random.randrange(4, 8))
        self.lines += ["    tl.store(p, -1)", "    tl.store(q + offs, -2)", "    tl.store(many, -3)"]
        self.source = "\n".join(self.lines) + "\n"

    def _body(self, depth: int, count: int) -> None:
        for _ in range(count):
            self._statement(depth)

    def _statement(self, depth: int) -> None:
        choices = {**_PLAIN, **(_NESTED if depth < 4 else {})}
        (kind,) = self._random.choices(list(choices), list(choices.values()))
        self._count += 1
        k, indent = self._count, "    " * depth
        if kind not in _NESTED:
            to, of = self._random.choice("pq"), self._random.choice("pq")
            self.lines.append(indent + kind.format(to=to, of=of, k=k, d=k % 3 + 2))
            return
        if kind == "while":
            self.lines.append(f"{indent}i{k} = none")
        head = {"if": f"if n % {k % 3 + 2} == 1:", "for": f"for i{k} in range(0, n):", "while": f"while i{k} < n:"}
        self.lines.append(indent + head[kind])
        self._body(depth + 1, self._random.randrange(1, 4))
        if kind == "while":
            self.lines.append(f"{indent}    i{k} += 1")
        elif kind == "if" and self._random.random() < 0.6:
            self.lines.append(f"{indent}else:")
            self._body(depth + 1, 1)


def compiled(source: str, folder: Path, name: str) -> KernelIR:
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return compile_source(module.program, SIGNATURE, {"B": 4})


def rewritten(ir: KernelIR) -> tuple[KernelIR, bool]:
    """The kernel with its pointers as distances, and whether there was anything to do."""
    module = read_ttir(ir.ttir)
    run_pipeline(module)
    needed = needs_offsets(module)
    function = next(op for op in module.body.block.ops if isinstance(op, tt.FuncOp))
    Offsets(function, list(SIGNATURE)).rewrite(lambda op: False)
    module.verify()
    control = [op for op in module.walk() if op.name.startswith("scf.") or op.name == "arith.select"]
    assert not any(is_scalar_pointer(result.type) for op in control for result in op.results)
    text = io.StringIO()
    Printer(stream=text, print_debuginfo=True).print_op(module)
    return KernelIR(ir.name, text.getvalue(), ir.args), needed


def memory_after(ir: KernelIR, n: int) -> torch.Tensor:
    def host(rt) -> torch.Tensor:
        buf = torch.zeros(ELEMENTS, dtype=torch.int32)
        rt.launch(ir, (1, 1, 1), [buf, n])
        rt.synchronize()
        return buf.clone()

    with World(nranks=1, detect=False) as world:
        (result,) = world.run(host)
        assert not world.findings
    return result


def test_random_programs_write_what_they_wrote(tmp_path: Path) -> None:
    changed = 0
    for seed in SEEDS:
        program = Writer(seed)
        before = compiled(program.source, tmp_path, f"program_{seed}")
        after, needed = rewritten(before)
        changed += needed
        for n in (0, 1, 3):
            expected, got = memory_after(before, n), memory_after(after, n)
            assert expected.count_nonzero() >= 3
            assert torch.equal(got, expected), f"seed {seed}, n={n}:\n{program.source}"
    print(f"seeds {SEEDS}: {changed} programs had pointers that travel")
    assert changed >= len(SEEDS) // 2
