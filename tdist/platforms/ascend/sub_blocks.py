"""Which of a program's two vector cores carry out an operation of a final module, and whether they do the same.

A mix kernel is launched with one cube core and two vector cores a program; all run their function from the start.
What tells the two vector cores apart is `get_sub_block_idx` alone: this evaluates conditions for index 0 and index 1,
and follows what else is made of the index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, Operation, OpResult, SSAValue

from tdist.platforms.ascend.provenance import enclosing, full_name, inputs, last_operands

BOTH: Final = frozenset((0, 1))
_INDEX = "hivm.hir.get_sub_block_idx"

_CASTS = ("arith.trunci", "arith.extui", "arith.extsi", "arith.index_cast", "arith.index_castui")


def _truncated_division(a: int, b: int) -> int | None:
    if b == 0:
        return None
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(a: int, b: int) -> int | None:
    quotient = _truncated_division(a, b)
    return None if quotient is None else a - quotient * b


_ARITHMETIC: dict[str, Callable[[int, int], int | None]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.divsi": _truncated_division,
    "arith.divui": _truncated_division,
    "arith.remsi": _remainder,
    "arith.remui": _remainder,
}
_COMPARISONS: tuple[Callable[[int, int], bool], ...] = (
    *(lambda a, b: a == b, lambda a, b: a != b),
    *(lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b),
    *(lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b),
)
"""By the number of `arith.cmpi`'s predicate; an index is never negative, so unsigned ones compare alike."""


class SubBlocks:
    """The two vector cores of one AIV function. Answers are kept."""

    def __init__(self, vector_cores: int = 2) -> None:
        """`vector_cores` is how many of them a program has: 2 in a mix kernel, 1 in a pure vector kernel."""
        self._all = frozenset(range(vector_cores))
        self._values: dict[tuple[SSAValue, int], int | None] = {}
        self._made_of: dict[SSAValue, bool] = {}

    def reach(self, op: Operation) -> frozenset[int]:
        """The vector cores that may come to `op`."""
        reached = set(self._all)
        inner = op
        for outer in enclosing(op):
            reached = {core for core in reached if self._enters(outer, inner, core)}
            inner = outer
        return frozenset(reached)

    def _enters(self, outer: Operation, inner: Operation, core: int) -> bool:
        match full_name(outer):
            case "scf.if":
                condition = self.value(outer.operands[0], core)
                return condition is None or bool(condition) == (inner.parent_region() is outer.regions[0])
            case "scf.for":
                lower, upper = (self.value(bound, core) for bound in outer.operands[:2])
                return lower is None or upper is None or lower < upper
        return True

    def differs(self, op: Operation) -> bool:
        """Whether the vector cores that come to `op` do something different there.

        So it is if an operand is made of the index, or a loop or condition around it that does not simply let one
        core through: they share the work then.
        """
        if any(self.made_of_index(value) for value in op.operands):
            return True
        inner = op
        for outer in enclosing(op):
            if self._shares(outer, inner):
                return True
            inner = outer
        return False

    def _shares(self, outer: Operation, inner: Operation) -> bool:
        match full_name(outer):
            case "scf.for":
                return any(self.made_of_index(bound) for bound in outer.operands[:3])
            case "scf.if":
                undecided = [core for core in self._all if self.value(outer.operands[0], core) is None]
                return len(undecided) > 1 and self.made_of_index(outer.operands[0])
            case "scf.while":
                condition = outer.regions[0].blocks.first
                return condition is not None and self._ends_with_index(condition)
        return False

    def _ends_with_index(self, block: Block) -> bool:
        return any(self.made_of_index(value) for value in last_operands(block)[:1])

    def made_of_index(self, value: SSAValue) -> bool:
        """Whether `value` may differ between the two vector cores."""
        known = self._made_of.get(value)
        if known is not None:
            return known
        seen, todo, found = {value}, [value], False
        while todo and not found:
            current = todo.pop()
            if self._made_of.get(current) or _is_index(current):
                found = True
            for origin in inputs(current):
                if origin not in seen:
                    seen.add(origin)
                    todo.append(origin)
        if found:
            self._made_of[value] = True
        else:
            self._made_of.update(dict.fromkeys(seen, False))
        return found

    def value(self, value: SSAValue, core: int) -> int | None:
        """What an integer is on vector core `core`, as far as constants and the index decide it."""
        key = (value, core)
        if key not in self._values:
            self._values[key] = None  # a cycle knows nothing
            self._values[key] = self._evaluate(value, core)
        return self._values[key]

    def _evaluate(self, value: SSAValue, core: int) -> int | None:
        if not isinstance(value, OpResult):
            return None
        op, name = value.op, full_name(value.op)
        if name == _INDEX:
            return core
        if name == "arith.constant":
            return _constant(op)
        if name in _CASTS:
            return self.value(op.operands[0], core)
        if name == "arith.select":
            condition = self.value(op.operands[0], core)
            return None if condition is None else self.value(op.operands[1 if condition else 2], core)
        if name in _ARITHMETIC or name == "arith.cmpi":
            return self._binary(op, name, [self.value(operand, core) for operand in op.operands])
        return None

    @staticmethod
    def _binary(op: Operation, name: str, values: list[int | None]) -> int | None:
        a, b = values
        if a is None or b is None:
            known = b if a is None else a
            decides = name in ("arith.andi", "arith.muli") and known == 0
            return 0 if decides else known if name == "arith.ori" and known in (1, -1) and _is_bool(op) else None
        if name == "arith.cmpi":
            predicate = op.properties.get("predicate")
            assert isinstance(predicate, IntegerAttr)
            return int(_COMPARISONS[predicate.value.data](a, b))
        return _ARITHMETIC[name](a, b)


def _is_bool(op: Operation) -> bool:
    return str(op.results[0].type) == "i1"


def _constant(op: Operation) -> int | None:
    value = op.properties.get("value", op.attributes.get("value"))
    if not isinstance(value, IntegerAttr):
        return None
    return int(value.value.data != 0) if _is_bool(op) else value.value.data


def _is_index(value: SSAValue) -> bool:
    return isinstance(value, OpResult) and full_name(value.op) == _INDEX
