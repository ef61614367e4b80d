"""The one operation of the vendor's `annotation` dialect that a lowered kernel contains.

Source: AscendNPU-IR's annotation dialect.
"""

from __future__ import annotations

from xdsl.ir import Dialect
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, traits_def
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect

CONTIGUOUS_ACCESS = "ContinuousMemAccess"
"""The hint that a tensor of pointers walks memory without gaps, in the vendor's spelling."""


@irdl_op_definition
class MarkOp(IRDLOperation):
    """A hint on a value for the vendor's later passes: the hint is the attribute's name. Kept, so it has effects."""

    name = "annotation.mark"
    src = operand_def()
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$src attr-dict `:` type($src)"


Annotation = Dialect("annotation", [MarkOp], [])
