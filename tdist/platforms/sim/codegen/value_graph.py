"""Where the values that a kernel stores come from, as plain data: for traces that follow an element through copies.

A node of the graph is one SSA value. Its kind says which lanes of its operands lane `i` of it is made of: of one lane
of one operand (casts, shape operations, selections: a copy), of the same lane of all operands (arithmetic), or of whole
rows (`tt.dot`, reductions). Loads are leaves. Memory operations have a number, which the traced events carry.
"""

from __future__ import annotations

from typing import Any, Final

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from tdist.ir.location import loc_of

from .elements import UnknownType, type_info
from .ir_access import attr, dense_values, prop

NUMBERED: Final = ("tt.load", "tt.store", "tt.dot", "tt.atomic_rmw", "tt.atomic_cas")
_CASTS: Final = frozenset(
    {
        "arith.extf",
        "arith.truncf",
        "arith.extsi",
        "arith.extui",
        "arith.trunci",
        "arith.sitofp",
        "arith.uitofp",
        "arith.fptosi",
        "arith.fptoui",
        "arith.bitcast",
        "arith.index_cast",
        "tt.bitcast",
        "tt.fp_to_fp",
    }
)
_BROADCASTS: Final = ("tt.broadcast", "tt.splat", "tt.unsplat")
_LEAVES: Final = {
    "arith.constant": "constant",
    "tt.get_program_id": "program id",
    "tt.get_num_programs": "number of programs",
    "tt.make_range": "range",
    "distributed.get_rank": "rank",
    "distributed.get_num_ranks": "number of ranks",
    "distributed.wait": "token",
}


def number_operations(module: ModuleOp) -> dict[Operation, int]:
    """A number for each operation that a traced event names, in order of the text."""
    named = (op for op in module.walk() if op.name in NUMBERED)
    return {op: index for index, op in enumerate(named)}


def value_graph(module: ModuleOp, numbers: dict[Operation, int]) -> dict[str, Any]:
    """The graph of all values that are stored.

    Returns:
        `stores`: by number of the store (as text), the node of the value it stores; `nodes`: a list of dicts with
        `k` (kind), `in` (operand nodes) and what the kind needs: `op` (number of a load, dot or atomic), `axis`,
        `order`, `shape` and `from` (extents of result and operand), `name` and `line` of an operation.
    """
    made = _Builder(numbers)
    stores = {str(n): made.node(op.operands[1]) for op, n in numbers.items() if op.name == "tt.store"}
    return {"stores": stores, "nodes": made.nodes}


class _Builder:
    """Nodes by SSA value; a value in a cycle (a loop's carried value) has its node before its operands."""

    def __init__(self, numbers: dict[Operation, int]) -> None:
        self.numbers = numbers
        self.nodes: list[dict[str, Any]] = []
        self._known: dict[SSAValue, int] = {}
        self._pending: dict[SSAValue, int] = {}

    def node(self, value: SSAValue) -> int:
        """The number of a value's node. Walks with a list of its own: chains are longer than Python's stack."""
        todo = [value]
        while todo:
            todo += self._enter(todo.pop())
        return self._known[value]

    def _enter(self, value: SSAValue) -> list[SSAValue]:
        """Make the node of a value that has none; its operands, which need theirs."""
        if value in self._known:
            return []
        operands = [self._reserve(operand) for operand in self._operands_of(value)]
        self._fill(value, [number for number, _ in operands])
        return [operand for (_, fresh), operand in zip(operands, self._operands_of(value), strict=True) if fresh]

    def _reserve(self, value: SSAValue) -> tuple[int, bool]:
        """A number for a value whose node may not be made yet, and whether it still has to be."""
        if value in self._known:
            return self._known[value], False
        if value not in self._pending:
            self._pending[value] = len(self.nodes)
            self.nodes.append({})
        return self._pending[value], True

    def _fill(self, value: SSAValue, operands: list[int]) -> None:
        number, _ = self._reserve(value)
        self._known[value] = number
        self.nodes[number].update({**self._about(value), "in": operands})

    def _operands_of(self, value: SSAValue) -> list[SSAValue]:
        """The values that this one is made of; those that only decide where or whether are left out."""
        owner = value.owner
        if isinstance(owner, Block):
            return _block_argument(owner, value)
        index = list(owner.results).index(value)  # pyright: ignore[reportArgumentType]
        match owner.name:
            case "tt.load":
                return list(owner.operands[2:3])
            case "arith.select":
                return list(owner.operands[1:3])
            case "distributed.consume_token":
                return [owner.operands[0]]
            case "scf.if":
                return [_terminator(block).operands[index] for region in owner.regions for block in region.blocks]
            case "scf.for" | "scf.while":
                return _carried(owner, index)
        if owner.name in _LEAVES or owner.name in NUMBERED[3:] or owner.name == "tt.call":
            return []
        return list(owner.operands)

    def _about(self, value: SSAValue) -> dict[str, Any]:
        owner = value.owner
        if isinstance(owner, Block):
            return {"k": "carried"} if _block_argument(owner, value) else {"k": "leaf", "name": "argument"}
        name = owner.name
        loc = loc_of(owner)
        about: dict[str, Any] = {"k": _kind(name), "name": name}
        if loc is not None:
            about["line"] = [loc.file, loc.line]
        if owner in self.numbers:
            about["op"] = self.numbers[owner]
        return about | _geometry(owner, value)


def _kind(name: str) -> str:
    if name in ("tt.load", "tt.dot", "tt.reduce", "arith.select"):
        return name.split(".")[1]
    if name in NUMBERED[3:]:
        return "atomic"
    if name in _CASTS or name == "distributed.consume_token":
        return "same"
    if name in _BROADCASTS:
        return "broadcast"
    if name in ("tt.expand_dims", "tt.trans", "tt.reshape"):
        return name.split(".")[1]
    if name == "scf.if":
        return "choice"
    if name in ("scf.for", "scf.while"):
        return "carried"
    if name in _LEAVES:
        return "leaf"
    return "lanes" if name.startswith(("arith.", "math.")) or name in _ELEMENTWISE else "mixed"


_ELEMENTWISE: Final = frozenset({"tt.clampf", "tt.mulhiui", "tt.precise_divf", "tt.precise_sqrt", "tt.mod"})


def _geometry(op: Operation, value: SSAValue) -> dict[str, Any]:
    """Extents, and what the kind needs of the operation's attributes."""
    about: dict[str, Any] = {"shape": _shape(value)}
    if op.name in ("tt.broadcast", "tt.splat", "tt.unsplat", "tt.reshape"):
        about["from"] = _shape(op.operands[0])
    if op.name in ("tt.expand_dims", "tt.reduce"):
        about["axis"] = prop(op, "axis")
    if op.name == "tt.trans":
        about["order"] = list(prop(op, "order", ()))
    if op.name == "arith.constant":
        about |= _constant(op)
    elif op.name in _LEAVES:
        about["name"] = _LEAVES[op.name]
    return about


def _constant(op: Operation) -> dict[str, Any]:
    """A constant that is one number in all lanes says which."""
    constant = attr(op, "value")
    values = set(dense_values(constant)) if constant is not None else set()
    value = values.pop() if len(values) == 1 else None
    if not isinstance(value, int | float):
        return {"name": "constant"}
    return {"name": f"constant {value}", "value": value if abs(value) < float("inf") else None}


def _shape(value: SSAValue) -> list[int]:
    try:
        return list(type_info(value.type).shape)
    except UnknownType:
        return []


def _block_argument(block: Block, value: SSAValue) -> list[SSAValue]:
    """What a loop's carried value comes from; nothing for an argument of a function or a loop's index."""
    loop = block.parent_op()
    if loop is None or loop.name not in ("scf.for", "scf.while"):
        return []
    index = list(block.args).index(value)  # pyright: ignore[reportArgumentType]
    if loop.name == "scf.for":
        return _carried(loop, index - 1) if index else []
    before, after = loop.regions
    if block is before.block:
        return [loop.operands[index], _terminator(after.block).operands[index]]
    return _carried(loop, index)


def _carried(loop: Operation, index: int) -> list[SSAValue]:
    """What a loop's `index`-th result, or carried value of an `scf.for`, is: initial, yielded, or passed on."""
    end = _terminator(loop.regions[0].block)
    if loop.name == "scf.while":
        return [end.operands[1 + index]]
    return [loop.operands[3 + index], end.operands[index]]


def _terminator(block: Block) -> Operation:
    assert block.last_op is not None
    return block.last_op
