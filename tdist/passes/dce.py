"""Remove what has no effect and no use."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from tdist.ir.effects import constant_int, is_dead
from tdist.passes.base import NEVER_RUNS, NO_TRIP, UNUSED, KernelPass, all_ops, erase
from tdist.passes.fold import known_trip_count
from tdist.passes.report import CompileReport


@dataclass(frozen=True)
class DcePass(KernelPass):
    """Erase trivially dead operations: waits and loads that nobody uses, and whole loops that only read, among them."""

    name = "dce"

    def transform(self, module: ModuleOp, report: CompileReport) -> None:
        """See `KernelPass`. One backward walk: users come after what they use."""
        for op in reversed(all_ops(module)):
            if op.parent is not None:
                erase_if_dead(op, report)


def erase_if_dead(op: Operation, report: CompileReport) -> bool:
    """Erase `op` if it is dead; says whether it was."""
    if not is_dead(op):
        return False
    report.record_lost(op, _never_runs(op) or UNUSED)
    erase(op)
    return True


def _never_runs(op: Operation) -> str | None:
    """Why `op`, or everything in it, never runs, where constants around it say so: then nothing is lost with it."""
    if isinstance(op, scf.ForOp) and known_trip_count(*map(_bare, (op.lb, op.ub, op.step))) == 0:
        return NO_TRIP
    inside, outer = op.parent_region(), op.parent_op()
    condition = constant_int(_bare(outer.cond)) if isinstance(outer, scf.IfOp) else None
    if condition is not None and outer is not None and inside is not outer.regions[0 if condition else 1]:
        return NEVER_RUNS
    return None if outer is None else _never_runs(outer)


def _bare(value: SSAValue) -> SSAValue:
    """`value` without the casts to its own type that Triton puts around a loop's bounds, not folded yet."""
    owner = value.owner
    while isinstance(owner, Operation) and owner.name == "arith.bitcast" and owner.operands[0].type == value.type:
        value = owner.operands[0]
        owner = value.owner
    return value
