"""Reading xDSL operations: properties by MLIR's names, constants, uses, effects that matter for snapshots."""

from __future__ import annotations

from typing import Any

from xdsl.dialects import builtin
from xdsl.ir import Attribute, Block, Operation, SSAValue

WRITES = frozenset(
    {
        "tt.store",
        "tt.atomic_rmw",
        "tt.atomic_cas",
        "tt.call",
        "distributed.wait",
        "distributed.notify",
        "distributed.extern_call",
    }
)
POLLED = frozenset({"tt.atomic_rmw", "tt.atomic_cas"})
PURE_REGIONS = frozenset({"tt.reduce", "tt.scan"})


def attr(op: Operation, name: str) -> Attribute | None:
    """A property or attribute by name."""
    found = op.properties.get(name)
    return found if found is not None else op.attributes.get(name)


def plain(value: Attribute | None, default: Any = None) -> Any:
    """An attribute as a Python value: int, bool, float, str, or tuple of ints."""
    match value:
        case None:
            return default
        case builtin.IntegerAttr():
            return value.value.data
        case builtin.FloatAttr():
            return value.value.data
        case builtin.StringAttr():
            return value.data
        case builtin.DenseArrayBase():
            return tuple(value.get_values())  # pyright: ignore[reportAttributeAccessIssue]
        case builtin.SymbolRefAttr():
            return value.root_reference.data
        case builtin.UnitAttr():
            return True
    return default


def prop(op: Operation, name: str, default: Any = None) -> Any:
    """A property as a Python value."""
    return plain(attr(op, name), default)


def users(value: SSAValue) -> list[Operation]:
    """The operations that use a value, one entry for each use."""
    return [use.operation for use in value.uses]


def only_user(value: SSAValue) -> Operation | None:
    """The operation that uses the value, if there is exactly one use."""
    found = users(value)
    return found[0] if len(found) == 1 else None


def may_write(op: Operation) -> bool:
    """Whether memory may change, or time pass, while `op` runs."""
    if op.name in PURE_REGIONS:
        return False
    return op.name in WRITES or bool(op.regions) or (op.name == "tt.load" and bool(prop(op, "isVolatile", False)))


def quiet_between(first: Operation, last: Operation) -> bool:
    """Whether both stand in one block and nothing between them may write."""
    if first.parent is not last.parent:
        return False
    op = first.next_op
    while op is not None and op is not last:
        if may_write(op):
            return False
        op = op.next_op
    return op is last


def terminator(block: Block) -> Operation | None:
    """The yield, condition or return that ends a block, None if it has none."""
    last = block.last_op
    ends = ("scf.yield", "scf.condition", "tt.return", "tt.reduce.return", "tt.scan.return")
    return last if last is not None and last.name in ends else None


def yielded(block: Block) -> list[SSAValue]:
    """What a region's block gives to its parent."""
    last = terminator(block)
    return list(last.operands) if last is not None else []


def dense_values(attribute: Attribute) -> list[Any]:
    """The element values of an `arith.constant`'s attribute; one element if it is a splat."""
    if isinstance(attribute, builtin.DenseIntOrFPElementsAttr):
        return list(attribute.get_values())
    return [plain(attribute)]
