"""Faults in an operand: another rank, another slot, another value, fewer slots."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation

from tdist.ir import tt
from tdist.ir.effects import constant_int
from tdist.ir.pointer import PointerLike, element_type, is_scalar_pointer
from tdist.mutations import calls
from tdist.mutations.base import Kind, Place, ops_of
from tdist.mutations.rewriting import advanced, next_rank, plus

SLOT_BYTES = 64
"""Signals are this far apart."""


def _peers(function: tt.FuncOp) -> Iterator[Place]:
    for ops, index in ((calls.translations(function), 1), (calls.releases(function), 2)):
        for op in ops:
            yield Place(op, f"the {calls.title(op)} names the next rank", lambda op=op, i=index: _to_next_rank(op, i))


def _to_next_rank(op: Operation, index: int) -> None:
    op.operands[index] = next_rank(op.operands[index], op)


def _signals(function: tt.FuncOp) -> list[Operation]:
    """Operations whose first operand is a signal word, all of one address."""
    found = [*ops_of(function, "distributed.wait"), *calls.releases(function)]
    return [op for op in found if is_scalar_pointer(op.operands[0].type)]


def _slots(function: tt.FuncOp) -> Iterator[Place]:
    for op in _signals(function):
        yield Place(op, f"the {calls.title(op)} takes the next slot", lambda op=op: _to_next_slot(op))


def _to_next_slot(op: Operation) -> None:
    pointer = element_type(op.operands[0].type)
    assert isinstance(pointer, PointerLike)
    word_bytes = pointer.pointee.width.data // 8  # pyright: ignore[reportAttributeAccessIssue]
    op.operands[0] = advanced(op.operands[0], SLOT_BYTES // word_bytes, op)


_VALUE_OF_A_WAIT, _VALUE_OF_A_RELEASE = 2, 1


def _values(function: tt.FuncOp) -> Iterator[Place]:
    for ops, index in (
        (ops_of(function, "distributed.wait"), _VALUE_OF_A_WAIT),
        (calls.releases(function), _VALUE_OF_A_RELEASE),
    ):
        for op in ops:
            yield Place(op, f"the {calls.title(op)}'s value is one more", lambda op=op, i=index: _add(op, i, 1))


def _stale(function: tt.FuncOp) -> Iterator[Place]:
    for op in ops_of(function, "distributed.wait"):
        yield Place(op, "the wait is for the value before", lambda op=op: _add(op, _VALUE_OF_A_WAIT, -1))


def _counts(function: tt.FuncOp) -> Iterator[Place]:
    """Waits for one slot are left alone: none would be a wait that is missing."""
    for op in ops_of(function, "distributed.wait"):
        if constant_int(op.operands[1]) != 1:
            yield Place(op, "the wait leaves out its last slot", lambda op=op: _add(op, 1, -1))


def _add(op: Operation, index: int, more: int) -> None:
    op.operands[index] = plus(op.operands[index], more, op)


KINDS = (
    Kind("wrong-peer", "signalled, or stored to, another rank than the one that is meant", _peers),
    Kind("wrong-slot", "waited on, or signalled, the neighbour's slot", _slots),
    Kind("wrong-value", "waited for, or signalled, a value that is off by one", _values),
    Kind("stale-value", "waited for the value of the round before", _stale),
    Kind("short-wait", "waited on n - 1 of n slots", _counts),
)
