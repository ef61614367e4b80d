"""The one `hivm` operation that a kernel can contain before it is lowered for Ascend.

Source: AscendNPU-IR's HIVM dialect, as triton-ascend's front end makes it for `sub_vec_id()`.
"""

from __future__ import annotations

from xdsl.dialects.builtin import i64
from xdsl.ir import Dialect
from xdsl.irdl import IRDLOperation, irdl_op_definition, result_def, traits_def
from xdsl.traits import Pure


@irdl_op_definition
class GetSubBlockIdxOp(IRDLOperation):
    """Which of the two vector cores of a program this is: 0 or 1. The same at each call of one agent, hence pure."""

    name = "hivm.hir.get_sub_block_idx"
    result = result_def(i64)
    traits = traits_def(Pure())
    assembly_format = "attr-dict `->` type($result)"

    def __init__(self) -> None:
        super().__init__(result_types=[i64])


Hivm = Dialect("hivm", [GetSubBlockIdxOp], [])
