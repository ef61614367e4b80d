"""The few operations of other dialects that Triton's front end prints beside `tt`."""

from __future__ import annotations

from xdsl.dialects.builtin import i1
from xdsl.ir import Dialect
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def


@irdl_op_definition
class BarrierOp(IRDLOperation):
    """`tl.debug_barrier()`: orders what the threads of one program do; one program is one thread here."""

    name = "gpu.barrier"
    assembly_format = "attr-dict"


@irdl_op_definition
class AssumeOp(IRDLOperation):
    """`tl.assume(cond)`."""

    name = "llvm.intr.assume"
    cond = operand_def(i1)


Gpu = Dialect("gpu", [BarrierOp], [])
Llvm = Dialect("llvm", [AssumeOp], [])
