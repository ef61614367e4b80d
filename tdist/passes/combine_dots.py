"""`acc + dot(a, b, 0)` → `dot(a, b, acc)`, as Triton's own combine pass does before a back end sees a kernel.

Without it the vendor's compiler adds on the vector cores: each partial product goes through global memory.

Source: Triton 3.2, `CombineDotAddFPattern` and its kin: the accumulator is zero and the product has no other user.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp, TensorType
from xdsl.ir import Operation, SSAValue

from tdist.ir.location import loc_of, set_loc
from tdist.ir.tt import DotOp
from tdist.passes.base import KernelPass, all_ops, erase, insert_before, replace
from tdist.passes.report import CompileReport

_ADDITIONS = {"arith.addf", "arith.addi"}


@dataclass(frozen=True)
class CombineDotsPass(KernelPass):
    """Let dots accumulate in place of an addition behind them."""

    name = "combine-dots"

    def transform(self, module: ModuleOp, report: CompileReport) -> None:
        """See `KernelPass`. Nothing is lost or merged that has an effect."""
        for op in all_ops(module):
            dot = op if isinstance(op, DotOp) else None
            while dot is not None and is_zero(dot.c) and dot.maxNumImpreciseAcc.value.data == 0:
                dot = _combine(dot)  # a sum that began with zero is one to combine again


def _combine(dot: DotOp) -> DotOp | None:
    """The dot that stands for the addition; None if none does."""
    uses = list(dot.d.uses)
    addition = uses[0].operation if len(uses) == 1 else None
    if addition is None or addition.name not in _ADDITIONS:
        return None
    left, right = addition.operands
    combined = dot.clone()
    combined.operands[2] = right if left is dot.d else left
    insert_before(addition, combined)
    set_loc(combined, loc_of(addition))
    replace(addition, list(combined.results))
    erase(dot)
    return combined


def is_zero(value: SSAValue) -> bool:
    """Whether `value` is a constant tensor of zeros."""
    owner = value.owner
    if not isinstance(owner, Operation) or owner.name != "arith.constant" or not isinstance(value.type, TensorType):
        return False
    constant = owner.properties.get("value")
    return isinstance(constant, DenseIntOrFPElementsAttr) and not any(constant.iter_values())


__all__ = ["CombineDotsPass", "is_zero"]
