"""Which `while` loops must end: those whose condition holds a counter below a limit that does not change.

A poll that gives up after so many rounds is legal and is no deadlock; one that merely counts its rounds can go on for
ever. Source: ordering model, "Deadlock".
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import BlockArgument, Operation, SSAValue

from tdist.ir.effects import constant_int

from .ir_access import prop, yielded

_UP = frozenset({2, 3, 6, 7})  # slt, sle, ult, ule: the left side must stay below
_DOWN = frozenset({4, 5, 8, 9})  # sgt, sge, ugt, uge


def must_end(loop: Operation) -> bool:
    """Whether one of the conditions that an `scf.while` needs is bound to fail some day."""
    before = loop.regions[0].block
    return any(_runs_out(loop, test) for test in _needed(yielded(before)[0]))


def stores(loop: Operation) -> bool:
    """Whether an iteration writes plain memory, where it may keep a counter."""
    return any(inner.name == "tt.store" for inner in loop.walk())


def _needed(condition: SSAValue) -> Iterator[Operation]:
    """Comparisons that must all hold for `condition` to hold."""
    op = condition.owner
    if not isinstance(op, Operation):
        return
    if op.name == "arith.andi":
        for operand in op.operands:
            yield from _needed(operand)
    elif op.name == "arith.cmpi":
        yield op


def _runs_out(loop: Operation, test: Operation) -> bool:
    predicate = prop(test, "predicate")
    left, right = test.operands
    steps_left, steps_right = _step(loop, left), _step(loop, right)
    if _outside(loop, right) and steps_left is not None:
        return (predicate in _UP and steps_left > 0) or (predicate in _DOWN and steps_left < 0)
    if _outside(loop, left) and steps_right is not None:
        return (predicate in _UP and steps_right < 0) or (predicate in _DOWN and steps_right > 0)
    return False


def _outside(loop: Operation, value: SSAValue) -> bool:
    """Whether the value is the same in every iteration."""
    if constant_int(value) is not None:
        return True
    owner = value.owner
    op: Operation | None = owner if isinstance(owner, Operation) else owner.parent_op()
    while op is not None:
        if op is loop:
            return False
        op = op.parent_op()
    return True


def _step(loop: Operation, value: SSAValue) -> int | None:
    """By how much a carried value grows with every iteration, if that is one constant."""
    before, after = loop.regions[0].block, loop.regions[1].block
    if isinstance(value.owner, Operation) and value.owner.name in ("arith.extsi", "arith.extui"):
        value = value.owner.operands[0]
    if not isinstance(value, BlockArgument) or value.block is not before:
        return None
    carried = yielded(after)[value.index].owner
    if not isinstance(carried, Operation) or carried.name not in ("arith.addi", "arith.subi"):
        return None
    forwarded = yielded(before)[1:]
    own = {arg for arg, source in zip(after.args, forwarded, strict=True) if source is value} | {value}
    first, second = carried.operands
    if carried.name == "arith.addi" and second in own:
        first, second = second, first
    step = constant_int(second)
    if first not in own or step is None:
        return None
    return step if carried.name == "arith.addi" else -step
