"""Ordinary kernels, prepared here and by the vendor's own `make_ttir`: the final modules hold the same operations.

Our passes run over exact effects of the distributed operations, so the vendor's cannot run in their place. What they
leave out (reordered broadcasts, folding of additions of zero, …) its later stages do anyway, or this test would tell.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from effects_kit import build, finish, front_end
from ordinary_kernels import ORDINARY
from vendor_oracle import needs_adapter, needs_compiler

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

from tdist.frontend.kernel_ir import KernelIR
from tdist.frontend.reader import read_ttir
from tdist.passes import CompileReport
from tdist.passes.base import all_ops
from tdist.platforms.ascend.compiled.final_module import FinalModule
from tdist.platforms.ascend.lowering.prepare import Prepared
from tdist.platforms.ascend.options import CompileOptions
from tdist.platforms.ascend.provenance import callee, full_name

pytestmark = [needs_adapter, needs_compiler]


def vendors_ttir(ir: KernelIR, folder: Path) -> str:
    from triton._C import libtriton
    from triton.backends.ascend.compiler import AscendBackend, make_ttir
    from triton.backends.compiler import GPUTarget

    path = folder / "kernel.ttir"
    path.write_text(ir.ttir)
    context = libtriton.ir.context()
    context.disable_multithreading()
    libtriton.ir.load_dialects(context)
    module = libtriton.ir.parse_mlir_module(str(path), context)
    module.context = context
    options = AscendBackend(GPUTarget("npu", "Ascend910B3", 0)).parse_options({})
    return str(make_ttir(module, {"hash": "compared"}, options))


def prepared_by_the_vendor(ir: KernelIR, folder: Path) -> Prepared:
    module = read_ttir(vendors_ttir(ir, folder))
    has_dot = any(op.name == "tt.dot" for op in all_ops(module))
    return Prepared(ir.name, module, ir.args, (), has_dot, CompileReport())


def contents(final: FinalModule) -> Counter:
    """How often each library call, flag, barrier, buffer, scalar access, loop and branch stands in a final module."""
    found: Counter = Counter()
    for op in final.all_ops():
        name = full_name(op)
        pipes = sorted(str(value) for key, value in op.properties.items() if "pipe" in key)
        if callee(op) or name.startswith(("hivm.", "memref.load", "memref.store", "scf.")):
            found[(callee(op) or name, *pipes)] += 1
    return found


@pytest.mark.parametrize("name", ORDINARY)
def test_the_final_modules_hold_the_same(name: str, tmp_path: Path) -> None:
    fn, signature, constants = ORDINARY[name]
    theirs = finish(
        prepared_by_the_vendor(front_end(fn, signature, **constants), tmp_path),
        CompileOptions.of_launch({}, barrier_all=False),
    )
    ours = contents(build(fn, signature, **constants)[1])
    assert ours == contents(theirs)
    assert sum(ours.values()) > 10
