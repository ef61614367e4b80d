"""What every pass of ours is: an xDSL `ModulePass` that also says what it removed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from tdist.passes.report import CompileReport

UNUSED = "nobody uses its result and it writes nothing"
NEVER_RUNS = "the condition around it is never true"
NO_TRIP = "the loop around it makes no iteration"


@dataclass(frozen=True)
class KernelPass(ModulePass):
    """A pass over a kernel's module. Its fields are its options."""

    @abstractmethod
    def transform(self, module: ModuleOp, report: CompileReport) -> None:
        """Rewrite `module` in place; lost and merged operations go to `report`."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """xDSL's entry: the report is dropped."""
        self.transform(op, CompileReport())


def all_ops(op: Operation) -> list[Operation]:
    """`op` and everything inside it, outer operations before inner ones, in order; much faster than `op.walk()`."""
    found = [op]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                if inner.regions:
                    found += all_ops(inner)
                else:
                    found.append(inner)
    return found


def erase(op: Operation) -> None:
    """Take `op`, which nobody may use, out of its block and drop it."""
    op.detach()
    op.erase()


def replace(op: Operation, values: list[SSAValue]) -> None:
    """Let `values` stand for the results of `op`, and erase it. Name hints stay where the values have none."""
    for result, value in zip(op.results, values, strict=True):
        if value.name_hint is None:
            value.name_hint = result.name_hint
        result.replace_all_uses_with(value)
    erase(op)


def insert_before(op: Operation, new: Operation) -> None:
    """Put `new` before `op`, with its location."""
    block = op.parent
    assert block is not None
    new.location = op.location
    block.insert_op_before(new, op)
