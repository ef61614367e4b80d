"""Faults of strength: an operation that orders less than it has to, or combines where it has to replace."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation

from tdist.ir import distributed as dist
from tdist.ir import tt
from tdist.mutations.base import Kind, Place, ops_of

_ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas")


def _number(op: Operation, prop: str) -> int:
    value = op.properties[prop]
    assert isinstance(value, IntegerAttr)
    return value.value.data


def _set(op: Operation, prop: str, value: IntegerAttr) -> None:
    op.properties[prop] = value


def _waits(function: tt.FuncOp) -> Iterator[Place]:
    for op in ops_of(function, "distributed.wait"):
        word = dist.SEMANTIC[_number(op, "semantic")]
        if word in ("acquire", "acq_rel"):
            relaxed = dist.enum_attr(dist.SEMANTIC, "relaxed")
            yield Place(op, f"the wait is relaxed, not {word}", lambda op=op, v=relaxed: _set(op, "semantic", v))


def _notifies(function: tt.FuncOp, wrong: str) -> Iterator[Place]:
    for op in ops_of(function, "distributed.notify"):
        word = dist.SIGNAL_OP[_number(op, "sigOp")]
        if word != wrong:
            other = dist.enum_attr(dist.SIGNAL_OP, wrong)
            what = "adds to the word instead of setting it" if wrong == "add" else "sets the word instead of adding"
            yield Place(op, f"the notify {what}", lambda op=op, v=other: _set(op, "sigOp", v))


def _adds(function: tt.FuncOp) -> Iterator[Place]:
    return _notifies(function, "add")


def _sets(function: tt.FuncOp) -> Iterator[Place]:
    return _notifies(function, "set")


def _sems(function: tt.FuncOp) -> Iterator[Place]:
    for op in ops_of(function, *_ATOMICS):
        word = tt.SEMANTIC[_number(op, "sem")]
        if word != "relaxed":
            relaxed = tt.keyword_value(tt.SEMANTIC, "relaxed")
            yield Place(op, f"the atomic is relaxed, not {word}", lambda op=op, v=relaxed: _set(op, "sem", v))


def _scopes(function: tt.FuncOp) -> Iterator[Place]:
    for op in ops_of(function, *_ATOMICS):
        if tt.SCOPE[_number(op, "scope")] == "sys":
            gpu = tt.keyword_value(tt.SCOPE, "gpu")
            yield Place(op, "the atomic's scope is gpu, not sys", lambda op=op, v=gpu: _set(op, "scope", v))


KINDS = (
    Kind("relaxed-wait", "waited without acquiring", _waits),
    Kind("add-instead-of-set", "added to a signal that is to be set", _adds),
    Kind("set-instead-of-add", "set a signal that several add to", _sets),
    Kind("relaxed-atomic", "used a relaxed atomic for synchronisation", _sems),
    Kind("narrow-atomic", "used an atomic of one rank's scope between ranks", _scopes),
)
