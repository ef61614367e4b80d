"""Small rewrites that faults are made of."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.arith import AddiOp, ConstantOp, RemSIOp
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerType, TensorType, i32
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from tdist.ir import distributed as dist
from tdist.ir import tt
from tdist.mutations.base import is_pure
from tdist.passes.base import erase, insert_before
from tdist.passes.fold import make_constant

WORLD_AXIS = -1


def constant(value: int, type_: Attribute, before: Operation) -> SSAValue:
    """An integer, or a tensor of one integer, made right before an operation."""
    if isinstance(type_, TensorType):
        attr = DenseIntOrFPElementsAttr.from_list(type_, [value])
        op = ConstantOp.create(result_types=[type_], properties={"value": attr})
    else:
        assert isinstance(type_, IntegerType)
        op = make_constant(value, type_)
    insert_before(before, op)
    return op.results[0]


def plus(value: SSAValue, more: int, before: Operation) -> SSAValue:
    """`value + more`, computed right before an operation."""
    total = AddiOp.create(operands=[value, constant(more, value.type, before)], result_types=[value.type])
    insert_before(before, total)
    return total.results[0]


def next_rank(rank: SSAValue, before: Operation) -> SSAValue:
    """`(rank + 1) % number of ranks`, computed right before an operation."""
    world = dist.GetNumRanksOp.create(operands=[constant(WORLD_AXIS, i32, before)], result_types=[i32])
    insert_before(before, world)
    following = RemSIOp.create(operands=[plus(rank, 1, before), world.results[0]], result_types=[rank.type])
    insert_before(before, following)
    return following.results[0]


def advanced(pointer: SSAValue, elems: int, before: Operation) -> SSAValue:
    """A scalar pointer, so many elements further on."""
    further = tt.AddPtrOp.create(operands=[pointer, constant(elems, i32, before)], result_types=[pointer.type])
    insert_before(before, further)
    return further.results[0]


def drop(op: Operation) -> None:
    """Take an operation out; what names its results gets zeroes."""
    for result in op.results:
        if result.first_use is not None:
            result.replace_all_uses_with(constant(0, result.type, op))
    erase(op)


def bypass(op: Operation, index: int = 0) -> None:
    """Take an operation out; an operand stands for its result."""
    op.results[0].replace_all_uses_with(op.operands[index])
    erase(op)


def rebuilt(
    value: SSAValue,
    before: Operation,
    change: Callable[[SSAValue], SSAValue | None],
    known: dict[SSAValue, SSAValue] | None = None,
) -> SSAValue:
    """`value` computed again right before an operation, out of changed parts.

    Follows pure operations backwards. Nothing that others use is changed; what has no changed part stays shared.

    Args:
        change: what is to stand for a value, None for the value as it is.
    """
    known = {} if known is None else known
    if value not in known:
        known[value] = _rebuild(value, before, change, known)
    return known[value]


def _rebuild(
    value: SSAValue,
    before: Operation,
    change: Callable[[SSAValue], SSAValue | None],
    known: dict[SSAValue, SSAValue],
) -> SSAValue:
    changed = change(value)
    if changed is not None:
        return changed
    if not isinstance(value, OpResult) or not is_pure(value.op):
        return value
    operands = [rebuilt(operand, before, change, known) for operand in value.op.operands]
    if all(new is old for new, old in zip(operands, value.op.operands, strict=True)):
        return value
    copy = value.op.clone()
    copy.operands = operands
    location = value.op.location
    insert_before(before, copy)
    copy.location = location
    return copy.results[value.index]
