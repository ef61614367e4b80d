"""Faults of bounds: a mask with a lane less or more in one dimension, or none at all."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.arith import CMPI_COMPARISON_OPERATIONS
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, i32
from xdsl.ir import Operation, OpResult, SSAValue

from tdist.ir import tt
from tdist.mutations.base import Kind, Place, ops_of
from tdist.mutations.rewriting import plus, rebuilt
from tdist.passes.base import insert_before, replace

_MASK = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}
_COMPARISON = "arith.cmpi"
_MONOTONE = ("arith.andi", "arith.ori", "tt.broadcast", "tt.expand_dims", "tt.splat", "tt.reshape", "tt.trans")
"""Operations through which more lanes of a part mean more lanes of the whole, or as many."""
_RIGHT_IS_UPPER = {"slt", "sle", "ult", "ule"}
_RIGHT_IS_LOWER = {"sgt", "sge", "ugt", "uge"}
_SHRINK, _WIDEN = -1, 1


def _mask(op: Operation) -> SSAValue | None:
    index = _MASK[op.name]
    return op.operands[index] if len(op.operands) > index else None


def _accesses(function: tt.FuncOp) -> Iterator[tuple[Operation, SSAValue]]:
    for op in ops_of(function, *_MASK):
        mask = _mask(op)
        if mask is not None:
            yield op, mask


def _predicate(op: Operation) -> str:
    value = op.properties["predicate"]
    assert isinstance(value, IntegerAttr)
    return CMPI_COMPARISON_OPERATIONS[value.value.data]


def _comparisons(mask: SSAValue) -> list[Operation]:
    """The comparisons with a bound that a mask is made of, each once, in the order of its operands."""
    if not isinstance(mask, OpResult):
        return []
    op = mask.op
    if op.name == _COMPARISON:
        return [op] if _predicate(op) in _RIGHT_IS_UPPER | _RIGHT_IS_LOWER else []
    if op.name not in _MONOTONE:
        return []
    return list(dict.fromkeys(found for operand in op.operands for found in _comparisons(operand)))


# ---- one access, one dimension --------------------------------------------------------------------------------------


def _lanes(function: tt.FuncOp, by: int) -> Iterator[Place]:
    word = "more" if by > 0 else "less"
    for op, mask in _accesses(function):
        for number, comparison in enumerate(_comparisons(mask)):
            what = f"the mask of the {_noun(op)} has a lane {word} in its {_ordinal(number)} bound"
            yield Place(op, what, lambda op=op, c=comparison: _remask(op, c, by))


def _noun(op: Operation) -> str:
    return op.name.removeprefix("tt.").replace("_rmw", "")


def _ordinal(index: int) -> str:
    return ("first", "second", "third")[index] if index < 3 else f"{index + 1}th"


def _remask(op: Operation, comparison: Operation, by: int) -> None:
    """Give one access a mask of its own, with one bound moved."""
    wanted = comparison.results[0]
    index = _MASK[op.name]
    op.operands[index] = rebuilt(op.operands[index], op, lambda v: _moved(comparison, by, op) if v is wanted else None)


def _moved(comparison: Operation, by: int, before: Operation) -> SSAValue:
    """The comparison that holds for one element more or less."""
    copy = comparison.clone()
    insert_before(before, copy)
    _move_bound(copy, by)
    return copy.results[0]


def _move_bound(comparison: Operation, by: int) -> None:
    """Move the side that is one number for all lanes, the right one where both are or neither is."""
    more_on_the_right = by if _predicate(comparison) in _RIGHT_IS_UPPER else -by
    left, right = comparison.operands
    if _is_splat(left) and not _is_splat(right):
        comparison.operands[0] = _shifted(left, -more_on_the_right, comparison)
    else:
        comparison.operands[1] = _shifted(right, more_on_the_right, comparison)


def _is_splat(value: SSAValue) -> bool:
    return isinstance(value, OpResult) and value.op.name == "tt.splat"


def _shifted(value: SSAValue, by: int, before: Operation) -> SSAValue:
    if not isinstance(value, OpResult) or not _is_splat(value):
        return plus(value, by, before)
    splat = value.op.clone()
    splat.operands = [plus(value.op.operands[0], by, before)]
    insert_before(before, splat)
    return splat.results[0]


def _shrink(function: tt.FuncOp) -> Iterator[Place]:
    yield from _lanes(function, _SHRINK)
    yield from _block_shapes(function, _SHRINK)


def _widen(function: tt.FuncOp) -> Iterator[Place]:
    yield from _lanes(function, _WIDEN)
    yield from _block_shapes(function, _WIDEN)


# ---- block pointers: their parent's shape is the mask ---------------------------------------------------------------


def _block_shapes(function: tt.FuncOp, by: int) -> Iterator[Place]:
    checked = [op for op in ops_of(function, "tt.load", "tt.store") if _checked_dims(op)]
    if not checked:
        return
    word = "larger" if by > 0 else "smaller"
    for op in ops_of(function, "tt.make_tensor_ptr"):
        for dim in range((len(op.operands) - 1) // 3):
            what = f"the tensor of the block pointer is one {word} in dimension {dim}"
            yield Place(op, what, lambda op=op, d=dim: _resize(op, d, by))


def _checked_dims(op: Operation) -> tuple[int, ...]:
    dims = op.properties.get("boundaryCheck")
    return tuple(dims.get_values()) if isinstance(dims, DenseArrayBase) else ()  # pyright: ignore[reportReturnType]


def _resize(op: Operation, dim: int, by: int) -> None:
    op.operands[1 + dim] = plus(op.operands[1 + dim], by, op)


# ---- no mask --------------------------------------------------------------------------------------------------------


def _unmasked(function: tt.FuncOp) -> Iterator[Place]:
    for op in ops_of(function, "tt.load", "tt.store"):
        if _mask(op) is not None:
            yield Place(op, f"the {_noun(op)} has no mask", lambda op=op: _drop_mask(op))
        elif _checked_dims(op):
            yield Place(op, f"the {_noun(op)} checks no boundary", lambda op=op: _drop_checks(op))


def _drop_mask(op: Operation) -> None:
    kept = op.operands[: _MASK[op.name]]
    properties = {name: value for name, value in op.properties.items() if name != "operandSegmentSizes"}
    if isinstance(op, tt.LoadOp):
        properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, [1, 0, 0])
    types = [result.type for result in op.results]
    bare = type(op).create(operands=kept, result_types=types, properties=properties, attributes=op.attributes)
    insert_before(op, bare)
    replace(op, list(bare.results))


def _drop_checks(op: Operation) -> None:
    op.properties["boundaryCheck"] = DenseArrayBase.from_list(i32, [])


# ---- a bound that several accesses share ----------------------------------------------------------------------------


def _bounds(function: tt.FuncOp, by: int) -> Iterator[Place]:
    users: dict[Operation, int] = {}
    for _, mask in _accesses(function):
        for comparison in _comparisons(mask):
            users[comparison] = users.get(comparison, 0) + 1
    word = "more" if by > 0 else "less"
    for op in [op for op in ops_of(function, _COMPARISON) if users.get(op, 0) > 1]:
        yield Place(op, f"the bound of {users[op]} accesses is one {word}", lambda op=op: _move_bound(op, by))


def _shrunk_bounds(function: tt.FuncOp) -> Iterator[Place]:
    return _bounds(function, _SHRINK)


def _widened_bounds(function: tt.FuncOp) -> Iterator[Place]:
    return _bounds(function, _WIDEN)


KINDS = (
    Kind("shrink-mask", "left out the last lane of one load or store", _shrink),
    Kind("widen-mask", "let one load or store take a lane too many", _widen),
    Kind("drop-mask", "counted on padding instead of a mask", _unmasked),
    Kind("shrink-bound", "computed a bound that is one too small, for all accesses that it is for", _shrunk_bounds),
    Kind("widen-bound", "computed a bound that is one too large, for all accesses that it is for", _widened_bounds),
)
