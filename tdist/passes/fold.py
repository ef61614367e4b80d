"""Constant folding of scalar integers, which decide control, and of tensors of one constant.

Nothing is folded that would wrap: a wrapped i32 is a finding of the simulator, not something to hide at compile time.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import AnyFloat, DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr, IntegerType, TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from tdist.ir.effects import constant_int
from tdist.ir.pointer import element_type
from tdist.passes.base import insert_before, replace

_Binary = Callable[[int, int], "int | None"]


def _quotient(a: int, b: int) -> int | None:
    if b == 0:
        return None
    magnitude = abs(a) // abs(b)
    return magnitude if (a < 0) == (b < 0) else -magnitude


def _remainder(a: int, b: int) -> int | None:
    quotient = _quotient(a, b)
    return None if quotient is None else a - b * quotient


_SIGNED: dict[str, _Binary] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": _quotient,
    "arith.remsi": _remainder,
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
}
_COMPARE: list[Callable[[int, int], bool]] = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]
# operations for which a constant right operand changes nothing
_RIGHT_UNIT = {
    "arith.addi": 0,
    "arith.subi": 0,
    "arith.muli": 1,
    "arith.divsi": 1,
    "arith.divui": 1,
    "arith.ori": 0,
    "arith.xori": 0,
    "arith.shli": 0,
    "arith.shrsi": 0,
    "arith.shrui": 0,
}
_COMMUTATIVE = {"arith.addi", "arith.muli", "arith.ori", "arith.xori", "arith.andi"}
_RIGHT_ZERO = {"arith.muli", "arith.andi"}
_WIDENING = {"arith.extsi", "arith.extui", "arith.trunci"}


_FLOAT_CASTS = {"arith.truncf", "arith.extf"}
_BITCASTS = {"arith.bitcast", "tt.bitcast"}
_SHAPES = {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape"}


def fold(op: Operation) -> bool:
    """Replace a scalar integer operation, or one value in a new shape, by its value if known; says whether it was."""
    rule = _rules.get(op.name)
    return rule is not None and rule(op)


def _fold_bitcast(op: Operation) -> bool:
    if op.operands[0].type != op.results[0].type:
        return False
    replace(op, [op.operands[0]])
    return True


def _fold_binary(op: Operation) -> bool:
    type_ = op.results[0].type
    if not isinstance(type_, IntegerType):
        return False
    left, right = (constant_int(operand) for operand in op.operands)
    if left is not None and right is not None and op.name in _SIGNED:
        return _become(op, _SIGNED[op.name](left, right), type_)
    if right is not None and right == _RIGHT_UNIT.get(op.name):
        replace(op, [op.operands[0]])
        return True
    if op.name not in _COMMUTATIVE:
        return False
    if left is not None and left == _RIGHT_UNIT.get(op.name):
        replace(op, [op.operands[1]])
        return True
    return op.name in _RIGHT_ZERO and 0 in (left, right) and _become(op, 0, type_)


def _fold_compare(op: Operation) -> bool:
    if not isinstance(op.results[0].type, IntegerType):
        return False
    predicate = op.properties["predicate"]
    assert isinstance(predicate, IntegerAttr)
    number = predicate.value.data
    left, right = (constant_int(operand) for operand in op.operands)
    signed = _COMPARE[number if number < 6 else number - 4]
    if op.operands[0] is op.operands[1]:
        return _become(op, int(signed(0, 0)), IntegerType(1))
    if left is None or right is None or (number >= 6 and (left < 0 or right < 0)):
        return False
    return _become(op, int(signed(left, right)), IntegerType(1))


def _fold_select(op: Operation) -> bool:
    condition, if_true, if_false = op.operands
    chosen = constant_int(condition)
    if chosen is None and if_true is not if_false:
        return False
    replace(op, [if_true if chosen is None or chosen else if_false])
    return True


def _fold_cast(op: Operation) -> bool:
    value = constant_int(op.operands[0])
    source, type_ = op.operands[0].type, op.results[0].type
    if value is None or not isinstance(source, IntegerType) or not isinstance(type_, IntegerType):
        return False
    if op.name == "arith.extui":
        value &= (1 << source.bitwidth) - 1
    elif op.name == "arith.extsi" and source.bitwidth == 1:
        value = -value
    return _become(op, value, type_)


def _become(op: Operation, value: int | None, type_: IntegerType) -> bool:
    """Replace `op` by a constant, unless there is none or it does not fit."""
    bits = type_.bitwidth
    if value is None or (bits > 1 and not -(1 << (bits - 1)) <= value < 1 << (bits - 1)):
        return False
    constant = make_constant(value, type_)
    insert_before(op, constant)
    replace(op, [constant.results[0]])
    return True


def _fold_shape(op: Operation) -> bool:
    """A tensor of one constant stays one in any shape."""
    value = _one_value(op.operands[0])
    return value is not None and _fill(op, value)


def _fold_float_cast(op: Operation) -> bool:
    """A constant, or a tensor of one, in another float type, if it is exact there."""
    value = _one_value(op.operands[0])
    element = element_type(op.results[0].type)
    if value is None or not isinstance(element, AnyFloat) or FloatAttr(value, element).value.data != value:
        return False
    return _fill(op, value)


def _one_value(value: SSAValue) -> int | float | None:
    """The number that a constant, or every element of a constant tensor, is."""
    source = value.owner
    if not isinstance(source, Operation) or source.name != "arith.constant":
        return None
    attr = source.properties["value"]
    if isinstance(attr, IntegerAttr | FloatAttr):
        return attr.value.data
    if isinstance(attr, DenseIntOrFPElementsAttr) and attr.is_splat():
        (number,) = set(attr.get_values())
        return number if isinstance(number, int | float) else None
    return None


def _fill(op: Operation, value: int | float) -> bool:
    """Replace `op` by a constant of its type, `value` in every element."""
    type_ = op.results[0].type
    if isinstance(type_, TensorType):
        if value != value:  # several NaNs are not told apart by their number
            return False
        attr: Attribute = DenseIntOrFPElementsAttr.from_list(type_, [value])
    else:
        assert isinstance(type_, AnyFloat)
        attr = FloatAttr(float(value), type_)
    constant = ConstantOp.create(result_types=[type_], properties={"value": attr})
    insert_before(op, constant)
    replace(op, [constant.results[0]])
    return True


def make_constant(value: int, type_: IntegerType) -> ConstantOp:
    """An `arith.constant`; of i1, any non-zero value is true."""
    attr = IntegerAttr.from_bool(bool(value & 1)) if type_.bitwidth == 1 else IntegerAttr(value, type_)
    return ConstantOp.create(result_types=[type_], properties={"value": attr})


def known_trip_count(lower: SSAValue, upper: SSAValue, step: SSAValue) -> int | None:
    """How often a counted loop runs, if its bounds and step are constants and the step is positive."""
    low, high, by = (constant_int(value) for value in (lower, upper, step))
    if low is None or high is None or by is None or by <= 0:
        return None
    return max(0, -(-(high - low) // by))


_rules: dict[str, Callable[[Operation], bool]] = {
    "arith.cmpi": _fold_compare,
    "arith.select": _fold_select,
    **dict.fromkeys(_SIGNED, _fold_binary),
    **dict.fromkeys(_RIGHT_UNIT, _fold_binary),
    **dict.fromkeys(_WIDENING, _fold_cast),
    **dict.fromkeys(_FLOAT_CASTS, _fold_float_cast),
    **dict.fromkeys(_BITCASTS, _fold_bitcast),
    **dict.fromkeys(_SHAPES, _fold_shape),
}
