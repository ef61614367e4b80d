"""A fault in how launches are told apart: signals and waits take a constant where they have to take the epoch."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Operation, SSAValue

from tdist.ir import tt
from tdist.mutations import calls
from tdist.mutations.base import Kind, Place, is_pure, ops_of
from tdist.mutations.rewriting import constant, rebuilt

FIRST_EPOCH = 1
"""What launches are counted from, as signals are zero at first."""


def _uses(function: tt.FuncOp) -> list[tuple[Operation, int]]:
    """(operation, operand) of every value that is signalled or waited for, in order."""
    waits, releases = set(ops_of(function, "distributed.wait")), calls.releases(function)
    both = ops_of(function, "distributed.wait", *{op.name for op in releases})
    return [(op, 2 if op in waits else 1) for op in both if op in waits or op in releases]


def _roots(value: SSAValue, seen: dict[SSAValue, None]) -> list[SSAValue]:
    """The integers that a value is computed from and that may differ by launch: arguments, and what is loaded."""
    if value in seen:
        return []
    seen[value] = None
    owner = value.owner
    if not isinstance(owner, Operation):
        parent = owner.parent_op()
        return [value] if isinstance(parent, tt.FuncOp) and isinstance(value.type, IntegerType) else []
    if owner.name == "tt.load":
        return [value] if isinstance(value.type, IntegerType) else []
    return [root for operand in owner.operands for root in _roots(operand, seen)] if is_pure(owner) else []


def _places(function: tt.FuncOp) -> Iterator[Place]:
    uses = _uses(function)
    by_root: dict[SSAValue, list[tuple[Operation, int]]] = {}
    for op, index in uses:
        for root in _roots(op.operands[index], {}):
            by_root.setdefault(root, []).append((op, index))
    for root, its_uses in by_root.items():
        where = ", ".join(dict.fromkeys(str(Place(op, "", _nothing).loc.line) for op, _ in its_uses))
        what = f"what is signalled and waited for in line {where} is that of the first launch, in all of them"
        yield Place(its_uses[0][0], what, lambda root=root, its_uses=its_uses: _freeze(root, its_uses))


def _nothing() -> None: ...


def _freeze(root: SSAValue, uses: list[tuple[Operation, int]]) -> None:
    for op, index in uses:
        op.operands[index] = rebuilt(
            op.operands[index], op, lambda v, op=op: constant(FIRST_EPOCH, v.type, op) if v is root else None
        )


KINDS = (Kind("constant-epoch", "used one signal value for all launches", _places),)
