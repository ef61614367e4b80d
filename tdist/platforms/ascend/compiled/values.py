"""What is known of a function's values: integers, sums, the memory that a value points to.

The vendor's multi-buffering picks buffers and flags by the parity of a counter. So some values are *choices*: unknown,
but one of few. Whoever walks over the function decides them where they get their value (once a turn of their loop) and
passes the decisions as an environment. Values that are the same expression are the same choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from tdist.ir import hivm
from tdist.platforms.ascend.compiled.affine import Number, read_map
from tdist.platforms.ascend.compiled.events import BlockSet, BlockWait, constant, events_of, name_of
from tdist.platforms.ascend.compiled.final_module import CoreFunction
from tdist.platforms.ascend.compiled.linear import Linear

Key = int
"""The number of an expression: two values with one key are equal whenever both are computed."""

Environment = Mapping[Key, int]

MAX_CHOICES = 4  # a value of more possibilities is left unknown
MAX_TURNS = 8  # loops with at most as many turns are walked turn by turn

_CASTS = frozenset({"arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci"})
_AFFINE = frozenset({"affine.apply", "affine.min", "affine.max"})


@dataclass(frozen=True, slots=True)
class Choice:
    """A value that is unknown but one of a few; decided in each turn of the loop body that can change it.

    `signature` is the same in the other half of a mix kernel, if it has this value too.
    """

    value: SSAValue
    key: Key
    values: range
    signature: Hashable | None


@dataclass(frozen=True, slots=True)
class Turns:
    """A loop that has few turns: first value, step, and a limit that it does not reach."""

    first: int
    step: int
    limit: int


class Values:
    """What is known of the values of one function."""

    def __init__(self, function: CoreFunction) -> None:
        self.function = function
        self._entry = function.op.body.blocks[0]
        self._numbers: dict[Hashable, Key] = {}
        self._keys: dict[SSAValue, Key] = {}
        self._scopes: dict[SSAValue, Block] = {}
        self._meeting: dict[Block, bool] = {}

    # ---- expressions -------------------------------------------------------------------------------------------------

    def key(self, value: SSAValue) -> Key:
        """The number of the expression that `value` is."""
        found = self._keys.get(value)
        if found is None:
            found = self._keys[value] = self._numbers.setdefault(self._describe(value), len(self._numbers))
        return found

    def _describe(self, value: SSAValue) -> Hashable:
        if isinstance(value, BlockArgument):
            return ("argument", value.index) if value.block is self._entry else ("local", id(value))
        assert isinstance(value, OpResult)
        op = value.op
        if (number := constant(value)) is not None:
            return ("number", _wrapped(number, value))
        name = name_of(op)
        if name in _AFFINE or _is_pure_arithmetic(op):
            properties = str(sorted((key, str(value)) for key, value in op.properties.items()))
            return (name, properties, str(value.type), tuple(map(self.key, op.operands)))
        if isinstance(op, (hivm.GetBlockIdxOp, hivm.GetSubBlockIdxOp)):
            return (name,)
        return ("result", id(op), value.index)

    def scope(self, value: SSAValue) -> Block:
        """The innermost loop body (or the function's entry) whose turns can change `value`."""
        found = self._scopes.get(value)
        if found is None:
            found = self._scopes[value] = self._find_scope(value)
        return found

    def _find_scope(self, value: SSAValue) -> Block:
        if isinstance(value, BlockArgument):
            return value.block
        assert isinstance(value, OpResult)
        op = value.op
        name = name_of(op)
        if name in _CASTS or name in _AFFINE or _is_pure_arithmetic(op):
            return max((self.scope(operand) for operand in op.operands), key=self._depth, default=self._entry)
        if isinstance(op, (hivm.GetBlockIdxOp, hivm.GetSubBlockIdxOp)):
            return self._entry
        return self._enclosing_scope(op)

    def _enclosing_scope(self, op: Operation) -> Block:
        while (parent := op.parent_op()) is not None and parent is not self.function.op:
            if isinstance(parent, (scf.ForOp, scf.WhileOp)):
                assert op.parent is not None
                return op.parent
            op = parent
        return self._entry

    def _depth(self, block: Block) -> int:
        depth, op = 0, block.parent_op()
        while op is not None:
            depth, op = depth + 1, op.parent_op()
        return depth

    # ---- choices -----------------------------------------------------------------------------------------------------

    @cached_property
    def choices(self) -> Mapping[Block, tuple[Choice, ...]]:
        """The choices that are decided in each turn of a loop's body, or once (in the function's entry)."""
        found: dict[Block, dict[Key, Choice]] = {}
        for value, values in (*self._bounds(), *self._parities(), *self._conditions()):
            key = self.key(value)
            scope, signature = self.scope(value), self.signature(value)
            choice = Choice(value, key, values, self.placed(signature, scope))
            found.setdefault(scope, {}).setdefault(key, choice)
        return {scope: tuple(choices.values())[:MAX_CHOICES] for scope, choices in found.items()}

    def _bounds(self) -> list[tuple[SSAValue, range]]:
        """How often loops of few turns go round."""
        loops = [op for op in self.function.ops if isinstance(op, scf.ForOp)]
        turns = ((loop, self.turns(loop)) for loop in loops)
        return [
            (loop.ub, range(few.first, few.limit + 1))
            for loop, few in turns
            if few is not None and few.step == 1 and self.number(loop.ub) is None
        ]

    def _parities(self) -> list[tuple[SSAValue, range]]:
        maps = ((op, read_map(op.properties["map"])) for op in self.function.ops if name_of(op) == "affine.apply")
        return [
            (op.results[0], range(map_.modulus))
            for op, map_ in maps
            if map_ is not None and map_.modulus is not None and map_.modulus <= MAX_CHOICES
        ]

    def _conditions(self) -> list[tuple[SSAValue, range]]:
        """Conditions that several branches have in common: they go the same way."""
        conditions = [op.cond for op in self.function.ops if isinstance(op, scf.IfOp)]
        often = Counter(self.key(condition) for condition in conditions)
        return [(condition, range(2)) for condition in conditions if often[self.key(condition)] > 1]

    def turns(self, loop: scf.ForOp) -> Turns | None:
        """The turns of a loop that has few; None if they are many or unknown."""
        first, step = self.number(loop.lb), self.number(loop.step)
        if first is None or step is None or step <= 0:
            return None
        end = self.number(loop.ub)
        limit = end if end is not None else self._upper_bound(loop.ub)
        if limit is None or limit - first > MAX_TURNS * step:
            return None
        return Turns(first, step, limit)

    def _upper_bound(self, value: SSAValue) -> Number:
        if not isinstance(value, OpResult) or name_of(value.op) not in ("affine.min", "arith.minsi"):
            return None
        if name_of(value.op) == "arith.minsi":
            known = map(self.number, value.op.operands)
        else:
            known = self._affine_results(value.op, {})
        return min((number for number in known if number is not None), default=None)

    def settled(self, limit: SSAValue) -> bool:
        """Whether the limit of a loop that is walked turn by turn is known, or is a choice of both halves."""
        if self.number(limit) is not None:
            return True
        key = self.key(limit)
        chosen = (choice for choices in self.choices.values() for choice in choices if choice.key == key)
        return any(choice.signature is not None for choice in chosen)

    # ---- integers ----------------------------------------------------------------------------------------------------

    def number(self, value: SSAValue, environment: Environment | None = None) -> Number:
        """The integer that `value` is under `environment`; None if it is not known."""
        environment = environment or {}
        decided = environment.get(self.key(value))
        if decided is not None:
            return decided
        if not isinstance(value, OpResult):
            return None
        if (known := constant(value)) is not None:
            return _wrapped(known, value)
        return self._computed(value, environment)

    def _computed(self, value: OpResult, environment: Environment) -> Number:
        op = value.op
        name = name_of(op)
        if name in _CASTS:
            known = self.number(op.operands[0], environment)
            return None if known is None else _wrapped(known, value)
        if name in _AFFINE:
            return self._affine(op, environment)
        if name == "arith.select":
            condition = self.number(op.operands[0], environment)
            return None if condition is None else self.number(op.operands[1 if condition else 2], environment)
        return self._arithmetic(op, environment) if _is_pure_arithmetic(op) else None

    def _affine_results(self, op: Operation, environment: Environment) -> Sequence[Number]:
        map_ = read_map(op.properties["map"])
        if map_ is None:
            return ()
        return map_.evaluate([self.number(operand, environment) for operand in op.operands])

    def _affine(self, op: Operation, environment: Environment) -> Number:
        results = self._affine_results(op, environment)
        if not results or None in results:
            return None
        known = [result for result in results if result is not None]
        return min(known) if name_of(op) == "affine.min" else max(known)

    def _arithmetic(self, op: Operation, environment: Environment) -> Number:
        if len(op.operands) != 2:
            return None
        a, b = (self.number(operand, environment) for operand in op.operands)
        if a is None or b is None:
            return None
        match op:
            case arith.AddiOp():
                return a + b
            case arith.SubiOp():
                return a - b
            case arith.MuliOp():
                return a * b
            case arith.XOrIOp():
                return a ^ b
            case arith.OrIOp():
                return a | b
            case arith.AndIOp():
                return a & b
            case arith.CmpiOp():
                return _compare(op.predicate.value.data, a, b)
        return None

    # ---- sums --------------------------------------------------------------------------------------------------------

    def linear(self, value: SSAValue, environment: Environment) -> Linear | None:
        """`value` as a sum over unknowns that never change (arguments, the program's number); None if it is no such."""
        known = self.number(value, environment)
        if known is not None:
            return Linear.of(known)
        if self.scope(value) is not self._entry:
            return None
        if isinstance(value, OpResult):
            found = self._linear_result(value.op, environment)
            if found is not None:
                return found
        return Linear.unknown(self._portable(value))

    def _linear_result(self, op: Operation, environment: Environment) -> Linear | None:
        name = name_of(op)
        if name in _CASTS:
            return self.linear(op.operands[0], environment)
        if name == "affine.apply" and (map_ := read_map(op.properties["map"])) is not None:
            operands = [self.linear(operand, environment) for operand in op.operands]
            return map_.linear(operands)[0] if None not in operands else None  # pyright: ignore[reportArgumentType]
        if name in ("arith.addi", "arith.muli"):
            a, b = (self.linear(operand, environment) for operand in op.operands[:2])
            if a is None or b is None:
                return None
            if name == "arith.addi":
                return a.plus(b)
            return a.times(b.constant) if b.is_constant else b.times(a.constant) if a.is_constant else None
        return None

    def _portable(self, value: SSAValue) -> Hashable:
        """A name that means the same value in the other half of a mix kernel, if there is one."""
        if isinstance(value, BlockArgument):
            return ("argument", value.index)
        if isinstance(value, OpResult) and isinstance(value.op, (hivm.GetBlockIdxOp, hivm.GetSubBlockIdxOp)):
            return value.op.name
        return (self.function.name, self.key(value))

    # ---- signatures across the halves of a mix kernel ----------------------------------------------------------------

    def signature(self, value: SSAValue, depth: int = 12) -> Hashable | None:
        """A description of `value` that does not depend on which half computes it; None if there is none.

        What a loop counts is described by the loop's bounds.
        """
        if depth == 0:
            return None
        if (known := self.number(value)) is not None:
            return known
        if isinstance(value, BlockArgument):
            return self._argument_signature(value, depth)
        assert isinstance(value, OpResult)
        op = value.op
        if isinstance(op, (hivm.GetBlockIdxOp, hivm.GetSubBlockIdxOp)):
            return op.name
        name = name_of(op)
        if isinstance(op, func.CallOp):
            name = op.callee.string_value().removesuffix(".cube").removesuffix(".vector")
        elif name in _CASTS:
            return self.signature(op.operands[0], depth - 1)
        elif name not in _AFFINE and not _is_pure_arithmetic(op):
            return None
        operands = tuple(self.signature(operand, depth - 1) for operand in op.operands)
        properties = str(sorted((key, str(value)) for key, value in op.properties.items() if name.startswith("a")))
        return None if None in operands else (name, properties if name in _AFFINE else "", operands)

    def _argument_signature(self, value: BlockArgument, depth: int) -> Hashable | None:
        if value.block is self._entry:
            return ("argument", value.index)
        loop = value.block.parent_op()
        if not isinstance(loop, scf.ForOp) or value.index:
            return None
        return self.loop_signature(loop, depth - 1)

    def placed(self, signature: Hashable | None, block: Block) -> Hashable | None:
        """A signature together with those of the loops around a block.

        None if one of them has none, and where no core waits for the other in the block: then it does not matter
        whether the halves decide alike.
        """
        if not self.meets(block):
            return None
        path = [signature]
        op = block.parent_op()
        while op is not None and op is not self.function.op:
            if isinstance(op, (scf.ForOp, scf.WhileOp)):
                path.append(self.loop_signature(op) if isinstance(op, scf.ForOp) else None)
            op = op.parent_op()
        return None if None in path else tuple(path)

    def meets(self, block: Block) -> bool:
        """Whether a core waits for another, or is waited for, in a block."""
        found = self._meeting.get(block)
        if found is None:
            events = (event for op in block.walk() for event in events_of(op))
            found = self._meeting[block] = any(isinstance(event, (BlockSet, BlockWait)) for event in events)
        return found

    def loop_signature(self, loop: scf.ForOp, depth: int = 12) -> Hashable | None:
        """The bounds of a loop, described as in `signature`."""
        bounds = tuple(self.signature(bound, depth) for bound in (loop.lb, loop.ub, loop.step))
        return None if None in bounds else ("loop", bounds)


def _is_pure_arithmetic(op: Operation) -> bool:
    return name_of(op).startswith("arith.") and not isinstance(op, arith.ConstantOp)


def _bits(value: SSAValue) -> int:
    return value.type.width.data if isinstance(value.type, IntegerType) else 64


def _wrapped(number: int, value: SSAValue) -> int:
    """The bits of an i1 count from 0 to 1, whatever sign an attribute gave it; wider ones keep their sign."""
    return number & 1 if _bits(value) == 1 else number


_PREDICATES = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")


def _compare(predicate: int, a: int, b: int) -> Number:
    """Signed comparisons; an unsigned one of negative numbers is not known."""
    if predicate >= len(_PREDICATES):
        predicate -= 4
        if a < 0 or b < 0:
            return None
    return int(getattr(a, _PREDICATES[predicate])(b))


__all__ = ["Choice", "Environment", "Key", "Turns", "Values"]
