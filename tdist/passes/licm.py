"""Move what does not change out of loops, as MLIR's loop-invariant code motion does."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from tdist.ir.effects import Effects, effects, is_speculatable
from tdist.passes.base import KernelPass, all_ops
from tdist.passes.report import CompileReport

_LOOPS = ("scf.for", "scf.while")
_STAY = ("scf.yield", "scf.condition")


@dataclass(frozen=True)
class LicmPass(KernelPass):
    """Hoist operations without effects whose operands come from outside; a wait or a load never moves.

    What must not run in vain stays: a division by an unknown divisor, in a loop that may not run at all.
    """

    name = "licm"

    def transform(self, module: ModuleOp, report: CompileReport) -> None:
        """See `KernelPass`. Inner loops first, so that what leaves one can leave the next."""
        for op in reversed(all_ops(module)):
            if op.name in _LOOPS:
                _hoist_from(op)


def _hoist_from(loop: Operation) -> None:
    before = loop.parent
    if before is None:
        return
    for region in loop.regions:
        for block in region.blocks:
            for op in list(block.ops):
                if _can_leave(op, loop):
                    op.detach()
                    before.insert_op_before(op, loop)


def _can_leave(op: Operation, loop: Operation) -> bool:
    if op.name in _STAY or effects(op) != Effects.NONE or not is_speculatable(op):
        return False
    if any(_is_inside(operand, loop) for operand in op.operands):
        return False
    return not op.regions or _uses_nothing_inside(op, loop)


def _uses_nothing_inside(op: Operation, loop: Operation) -> bool:
    return not any(
        _is_inside(operand, loop) and not _is_inside(operand, op) for inner in op.walk() for operand in inner.operands
    )


def _is_inside(value: SSAValue, op: Operation) -> bool:
    """Whether `value` is defined in a region of `op`."""
    owner = value.owner
    block = owner.parent if isinstance(owner, Operation) else owner
    while block is not None:
        parent = block.parent_op()
        if parent is op:
            return True
        block = parent.parent if parent is not None else None
    return False
