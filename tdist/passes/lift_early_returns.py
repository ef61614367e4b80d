"""Early returns as structured control flow.

Triton prints `if cond: return` as `cf.cond_br` between blocks of the function; everything else is `scf` already. What
follows a branch goes into the branch's arms here, so that later passes and platforms meet `scf.if` only. Code after
arms that both go on is copied into each: it is executed once all the same, and keeps its positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import cf, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

from tdist.errors import KernelError
from tdist.ir import tt
from tdist.ir.location import loc_of
from tdist.passes.base import KernelPass
from tdist.passes.report import CompileReport

_MAX_COPIES = 4096


@dataclass(frozen=True)
class LiftEarlyReturnsPass(KernelPass):
    """Turn the acyclic branches of a function's body into nested `scf.if`, with one return at the end."""

    name = "lift-early-returns"

    def transform(self, module: ModuleOp, report: CompileReport) -> None:
        """See `KernelPass`.

        Raises:
            KernelError: A cycle of branches, or more paths than can be spelt out.
        """
        for op in module.body.block.ops:
            if isinstance(op, tt.FuncOp) and len(op.body.blocks) > 1 and not _drop_unreachable(op):
                _Lift(op).run()


def _drop_unreachable(function: tt.FuncOp) -> bool:
    """Triton opens a block after each `return`, reached or not; says whether only the first block can be reached."""
    entry, *others = function.body.blocks
    if not isinstance(entry.last_op, tt.ReturnOp):
        return False
    for block in others:
        function.body.detach_block(block)
        block.erase(safe_erase=False)
    return True


class _Lift:
    def __init__(self, function: tt.FuncOp) -> None:
        self.function = function
        self.results = function.function_type.outputs.data
        self.path: list[Block] = []
        self.copies = 0

    def run(self) -> None:
        entry = self.function.body.blocks.first
        assert entry is not None
        body = Block(arg_types=entry.arg_types)
        mapping: dict[SSAValue, SSAValue] = {}
        for old, new in zip(entry.args, body.args, strict=True):
            new.name_hint, new.location = old.name_hint, old.location
            mapping[old] = new
        values, end = self.emit(entry, body, mapping)
        leave = tt.ReturnOp.create(operands=values)
        leave.location = end.location
        body.add_op(leave)
        old_region = self.function.detach_region(0)
        self.function.add_region(Region(body))
        old_region.erase()

    def emit(self, block: Block, into: Block, mapping: dict[SSAValue, SSAValue]) -> tuple[list[SSAValue], Operation]:
        """Copy what happens from `block` on into `into`; what the function returns, and where it was said."""
        self._enter(block)
        last = block.last_op
        assert last is not None
        for op in block.ops:
            if op is not last:
                into.add_op(op.clone(mapping))
        result = self._leave(last, into, mapping)
        self.path.pop()
        return result

    def _enter(self, block: Block) -> None:
        self.copies += 1
        if block in self.path or self.copies > _MAX_COPIES:
            where = loc_of(self.function)
            problem = "a cycle of branches" if block in self.path else "too many paths between its returns"
            what = f"'{self.function.sym_name.data}' has {problem}; use a loop, or fewer returns"
            raise KernelError(f"{where or 'kernel'}: {what}").at(where)
        self.path.append(block)

    def _leave(
        self, last: Operation, into: Block, mapping: dict[SSAValue, SSAValue]
    ) -> tuple[list[SSAValue], Operation]:
        if isinstance(last, tt.ReturnOp):
            return [mapping.get(value, value) for value in last.operands], last
        if isinstance(last, cf.BranchOp):
            return self._go(last.successor, list(last.arguments), into, mapping)
        if not isinstance(last, cf.ConditionalBranchOp):
            where = loc_of(last)
            raise KernelError(f"{where or 'kernel'}: '{last.name}' cannot end a block of a kernel").at(where)
        arms = [
            self._arm(last.then_block, list(last.then_arguments), mapping),
            self._arm(last.else_block, list(last.else_arguments), mapping),
        ]
        condition = mapping.get(last.cond, last.cond)
        branch = scf.IfOp.create(operands=[condition], result_types=self.results, regions=arms)
        branch.location = last.location
        into.add_op(branch)
        return list(branch.results), last

    def _arm(self, block: Block, arguments: list[SSAValue], mapping: dict[SSAValue, SSAValue]) -> Region:
        arm = Block()
        values, end = self._go(block, arguments, arm, dict(mapping))
        leave = scf.YieldOp.create(operands=values)
        leave.location = end.location
        arm.add_op(leave)
        return Region(arm)

    def _go(
        self, block: Block, arguments: list[SSAValue], into: Block, mapping: dict[SSAValue, SSAValue]
    ) -> tuple[list[SSAValue], Operation]:
        values = [mapping.get(value, value) for value in arguments]
        mapping.update(zip(block.args, values, strict=True))
        return self.emit(block, into, mapping)
