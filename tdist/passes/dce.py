"""Remove what has no effect and no use."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from tdist.ir.effects import is_dead
from tdist.passes.base import UNUSED, KernelPass, all_ops, erase
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
    report.record_lost(op, UNUSED)
    erase(op)
    return True
