"""A kernel as the front end left it → TTIR in which each distributed operation is a checked call of the device library.

The passes are those of the simulated platform: they act on the exact effects of the distributed operations, so what
they delete or merge is what the dialect of the real compiler would lose. Early returns become `scf.if` here, too:
triton-adapter-opt 3.2.0 crashes on branches between blocks that hold a loop. Dots accumulate in place as after
Triton's own combine pass: the vendor's compiler puts every sum behind a dot on the vector cores.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from tdist.frontend.kernel_ir import KernelArg, KernelIR
from tdist.frontend.reader import read_ttir
from tdist.ir import hivm
from tdist.ir.location import SourceLoc, loc_of
from tdist.passes import DEFAULT_PIPELINE, CompileReport, run_pipeline
from tdist.passes.base import all_ops
from tdist.platforms.ascend.lowering.block_pointers import write_bounds
from tdist.platforms.ascend.lowering.pointer_integers import add_distances
from tdist.platforms.ascend.symbols import check_module

PIPELINE: tuple[str, ...] = (*DEFAULT_PIPELINE, "combine-dots", "dce", "convert-triton-distributed-to-hivm")
_DOTS = ("tt.dot", "tt.dot_scaled")


@dataclass(frozen=True)
class LoweredCall:
    """One distributed call of a kernel: the device function, where the kernel calls it, and on which cores."""

    symbol: str
    loc: SourceLoc | None
    core: hivm.TCoreType


@dataclass(frozen=True)
class Prepared:
    """A kernel in TTIR with `hivm.hir.custom`, locations kept.

    Attributes:
        args: of the function, in the order of its block arguments.
        calls: every distributed call, in program order.
        report: what the passes before lost and merged.
    """

    name: str
    module: ModuleOp
    args: tuple[KernelArg, ...]
    calls: tuple[LoweredCall, ...]
    has_dot: bool
    report: CompileReport


def prepare(ir: KernelIR) -> Prepared:
    """Lower a kernel's distributed operations.

    Raises:
        KernelError: what cannot be read or lowered, or a call that the device library does not have; names the
            kernel's file and line.
    """
    module = read_ttir(ir.ttir)
    report = run_pipeline(module, PIPELINE)
    add_distances(module)
    write_bounds(module)
    check_module(module)
    ops = all_ops(module)
    calls = tuple(_call(op) for op in ops if isinstance(op, hivm.CustomOp) and op.is_distributed)
    return Prepared(ir.name, module, ir.args, calls, any(op.name in _DOTS for op in ops), report)


def _call(op: hivm.CustomOp) -> LoweredCall:
    core = op.attributes[hivm.CORE_TYPE]
    assert isinstance(core, hivm.TCoreTypeAttr)
    return LoweredCall(op.symbol, loc_of(op), core.data)
