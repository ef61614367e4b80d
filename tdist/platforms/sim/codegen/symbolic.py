"""Which values of a kernel may be symbolic tiles, and the code of their operations (`sim/symbolic_access.py`).

A value is *abstract* if whatever uses it ends in the value of a tile store, through operations that cannot fault: it
reaches no address, mask, branch, signal, atomic, assertion, print or scalar store. What is only moved (a load that is
stored as it is) stays concrete, since moving bytes is exact and as cheap. The set is the greatest one that these rules
allow; a loop's or branch's value is abstract with all that comes into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from tdist.ir.location import loc_of
from tdist.ir.tt import BitcastOp

from .elements import I64, UnknownType, type_info
from .ir_access import POLLED, prop, users, yielded
from .poly import Poly
from .values import Box, Cond, IndexTile, Scalar, Splat, Tile, Value

if TYPE_CHECKING:
    from .generator import Generator

MOVES: Final = frozenset(
    {
        "tt.expand_dims",
        "tt.broadcast",
        "tt.reshape",
        "tt.trans",
        "tt.bitcast",
        "arith.bitcast",
        "distributed.consume_token",
    }
)
"""Operations on one tile that give its lanes as they are."""
_COMPUTES: Final = frozenset(
    {
        *(f"arith.{name}" for name in ("addf", "subf", "mulf", "divf", "negf", "maximumf", "minimumf", "maxnumf")),
        *(f"arith.{name}" for name in ("minnumf", "cmpf", "extf", "truncf", "sitofp", "uitofp", "select")),
        *(f"tt.{name}" for name in ("dot", "reduce", "scan", "precise_divf", "precise_sqrt", "clampf", "fp_to_fp")),
        *(f"tt.{name}" for name in ("splat", "join", "cat", "split", "flip", "sort")),
        "arith.constant",
    }
)
_FLOAT_FUNCTIONS: Final = "math."
_INTEGER_FUNCTIONS: Final = frozenset({"math.absi", "math.ipowi", "math.ctlz", "math.cttz", "math.ctpop"})
_ON_INTEGERS: Final = frozenset(f"arith.{name}" for name in ("addi", "subi", "muli", "andi", "ori", "xori"))
"""Cannot fault where an operand is a loaded tile; between indices they are addresses in the making."""
_LEAST_BYTES: Final = 64
"""Of a tile that is worth a digest; a smaller one has too few bytes to tell digests apart."""


class Symbolic:
    """What of a module is symbolic.

    Attributes:
        abstract: values that are digests.
        moved: loads whose tiles are only moved, or made digests of; each with the local that holds its marks.
    """

    def __init__(self, module: ModuleOp, kernel_text: str, concrete: frozenset[tuple[str, int, int]]) -> None:
        self._salt = kernel_text
        self._concrete = concrete
        _own_constants(module)
        ops = list(module.walk())
        self._numbers = {op: number for number, op in enumerate(ops)}
        self.abstract: set[SSAValue] = {value for op in ops for value in _candidates(op)}
        self._shrink()
        for op in ops:
            _convert_incoming(op, self.abstract)
        self.moved: dict[Operation, str] = {}
        for op in ops:
            if op.name == "tt.load" and op.results[0] not in self.abstract and self._is_moved(op.results[0]):
                self.moved[op] = f"marks{len(self.moved)}"

    # ---- analysis

    def _shrink(self) -> None:
        """Take out values that something needs as numbers, until nothing changes."""
        changed = True
        while changed:
            needed = {value for value in self.abstract if not self._is_free(value)}
            self.abstract -= needed
            changed = bool(needed)

    def _is_free(self, value: SSAValue) -> bool:
        owner = value.owner
        if isinstance(owner, Operation) and not all(result in self.abstract for result in _tied(owner)):
            return False
        if isinstance(owner, Block) and not self._loop_is_free(owner, value):
            return False
        if isinstance(owner, Operation) and owner.name == "scf.for" and not self._arg_of(owner, value):
            return False
        return all(self._accepts(use.operation, use.index, value) for use in value.uses)

    def _loop_is_free(self, block: Block, value: SSAValue) -> bool:
        loop = block.parent_op()
        assert loop is not None
        return loop.results[list(block.args).index(value) - 1] in self.abstract  # pyright: ignore[reportArgumentType]

    def _arg_of(self, loop: Operation, result: SSAValue) -> bool:
        index = list(loop.results).index(result)  # pyright: ignore[reportArgumentType]
        return loop.regions[0].block.args[1 + index] in self.abstract

    def _accepts(self, user: Operation, index: int, value: SSAValue) -> bool:
        """Whether a use can do with a digest."""
        match user.name:
            case "tt.store":
                return index == 1 and self._is_symbolic_store(user, value)
            case "scf.for":
                return index >= 3 and user.regions[0].block.args[index - 2] in self.abstract
            case "scf.yield":
                parent = user.parent_op()
                return parent is not None and index < len(parent.results) and parent.results[index] in self.abstract
            case "tt.load":
                return False
        return bool(user.results) and all(result in self.abstract for result in user.results)

    def _is_symbolic_store(self, store: Operation, value: SSAValue) -> bool:
        info = type_info(value.type)
        nbytes = info.element.size_bytes
        for extent in info.shape:
            nbytes *= extent
        fits = bool(info.shape) and nbytes >= _LEAST_BYTES and not info.element.is_bool
        return fits and not _is_copy(value) and not self._is_excepted(store)

    def _is_excepted(self, store: Operation) -> bool:
        loc = loc_of(store)
        return ((loc.file, loc.line, loc.col) if loc else ("<unknown>", 0, 0)) in self._concrete

    def _is_moved(self, value: SSAValue) -> bool:
        """Whether all that becomes of a concrete tile is that it is stored as it is, or goes into digests."""
        return bool(users(value)) and all(
            (use.operation.name == "tt.store" and use.index == 1)
            or (bool(use.operation.results) and all(result in self.abstract for result in use.operation.results))
            or (
                use.operation.name in MOVES
                and use.index == 0
                and not type_info(use.operation.results[0].type).is_pointer
                and self._is_moved(use.operation.results[0])
            )
            for use in value.uses
        )

    # ---- code

    def is_abstract(self, op: Operation) -> bool:
        """Whether an operation gives way to one on digests; loads, loops and branches have rules of their own."""
        return bool(op.results) and op.results[0] in self.abstract and op.name not in _OWN_RULES

    def number(self, op: Operation) -> int:
        """What stands for the operation in digests: two that compute different things have different numbers."""
        inner = [child.name for child in op.walk()] if op.regions else []
        types = [str(value.type) for value in (*op.operands, *op.results)]
        said = (self._salt, self._numbers.get(op, -1), op.name, str(op.properties), str(op.attributes), types, inner)
        return int.from_bytes(blake2b(repr(said).encode(), digest_size=8).digest(), "little") >> 1

    def source_of(self, store: Operation) -> str | None:
        """The local with the marks of the load that a store of a moved tile stores; None if it is no such store."""
        value = store.operands[1]
        while isinstance(value.owner, Operation) and value.owner.name in MOVES:
            value = value.owner.operands[0]
        return self.moved.get(value.owner) if isinstance(value.owner, Operation) else None


_OWN_RULES: Final = frozenset({"tt.load", "scf.for", "scf.if"})


def _candidates(op: Operation) -> Sequence[SSAValue]:
    """Values that may be digests if their uses allow it."""
    if op.name == "tt.load":
        is_tile = _is_data(op.results[0]) and bool(type_info(op.results[0].type).shape)
        return op.results if is_tile and not prop(op, "isVolatile", False) else ()
    if op.name == "scf.if":
        return [value for value in op.results if _is_tile(value)]
    if op.name == "scf.for":
        if _polls(op):
            return ()
        args = op.regions[0].block.args[1:]
        return [value for pair in zip(args, op.results, strict=True) for value in pair if _is_tile(value)]
    if not _is_pure(op) or not all(_is_data(value) for value in op.results):
        return ()
    return op.results


def _is_pure(op: Operation) -> bool:
    if op.name in _ON_INTEGERS:
        return _is_tile(op.results[0]) and any(_is_loaded(operand) for operand in op.operands)
    known = op.name in _COMPUTES or op.name in MOVES
    known = known or (op.name.startswith(_FLOAT_FUNCTIONS) and op.name not in _INTEGER_FUNCTIONS)
    return known and all(
        _is_pure(inner) or inner.name in ("tt.reduce.return", "tt.scan.return", *_ON_INTEGERS)
        for region in op.regions
        for block in region.blocks
        for inner in block.ops
    )


def _is_loaded(value: SSAValue) -> bool:
    """Whether a value is a tile from memory or computed from one, as far as this is plain to see."""
    while isinstance(value.owner, Operation) and value.owner.operands:
        if value.owner.name == "tt.load":
            return _is_tile(value)
        if value.owner.name in ("tt.dot", "tt.reduce"):
            return True
        value = value.owner.operands[0]
    return False


def _is_data(value: SSAValue) -> bool:
    """A tile of numbers, or a floating-point number."""
    try:
        info = type_info(value.type)
    except UnknownType:
        return False
    return not info.is_pointer and info.block is None and (bool(info.shape) or info.element.is_float)


def _is_tile(value: SSAValue) -> bool:
    return _is_data(value) and bool(type_info(value.type).shape)


def _polls(loop: Operation) -> bool:
    """Whether the engine compares what such a loop carries from round to round."""
    return any(op.name in POLLED or (op.name == "tt.load" and prop(op, "isVolatile", False)) for op in loop.walk())


def _is_copy(value: SSAValue) -> bool:
    """Whether a value is a loaded tile as it is, or one number in all lanes."""
    while isinstance(value.owner, Operation):
        if value.owner.name in ("tt.load", "tt.splat", "arith.constant"):
            return True
        if value.owner.name not in MOVES:
            return False
        value = value.owner.operands[0]
    return False


def _tied(op: Operation) -> Sequence[SSAValue]:
    """Results that are abstract together: all, but for loops and branches, where each goes its own way."""
    return () if op.name in ("scf.for", "scf.if") else op.results


def _own_constants(module: ModuleOp) -> None:
    """Let each use of a constant tile have its own, so that one use as an index does not make others concrete."""
    for op in list(module.walk()):
        if op.name not in ("arith.constant", "tt.splat") or not _is_data(op.results[0]):
            continue
        block = op.parent
        assert block is not None
        for use in list(op.results[0].uses)[1:]:
            copy = op.clone()
            block.insert_op_after(copy, op)
            use.operation.operands[use.index] = copy.results[0]


def _convert_incoming(op: Operation, abstract: set[SSAValue]) -> None:
    """Where a concrete value comes into an abstract one of a loop or branch, put an operation that makes a digest."""
    if op.name == "scf.for":
        args = op.regions[0].block.args[1:]
        _convert(op, [3 + i for i, arg in enumerate(args) if arg in abstract], op, abstract)
    if op.name in ("scf.for", "scf.if"):
        wanted = [i for i, result in enumerate(op.results) if result in abstract]
        for region in op.regions:
            for block in region.blocks:
                if block.last_op is not None and yielded(block):
                    _convert(block.last_op, wanted, block.last_op, abstract)


def _convert(user: Operation, indices: Sequence[int], before: Operation, abstract: set[SSAValue]) -> None:
    for index in indices:
        value = user.operands[index]
        if value in abstract:
            continue
        same = BitcastOp.create(operands=[value], result_types=[value.type])
        same.location = before.location
        block = before.parent
        assert block is not None
        block.insert_op_before(same, before)
        user.operands[index] = same.results[0]
        abstract.add(same.results[0])


# ---- code


def combine(g: Generator, op: Operation) -> None:
    """An operation on digests."""
    values = g.operands(op)
    parts = "".join(f", {digest_text(g, v)}" for v in values)
    clk = g.clk_of(*values)
    for index, result in enumerate(op.results):
        set_digest(g, result, f"mix({digest_number(g, op)}, {index}{parts})", clk)


def set_digest(g: Generator, result: SSAValue, expression: str, clk: frozenset[str]) -> None:
    """Let a value be the digest that an expression gives."""
    local = g.emit.bind(expression, "digest")
    g.set_value(result, Scalar(Poly.symbol(local), I64, clk))


def digest_number(g: Generator, op: Operation) -> int:
    """See `Symbolic.number`."""
    assert g.module.symbolic is not None
    return g.module.symbolic.number(op)


def digest_text(g: Generator, value: Value) -> str:
    """An expression that is equal only for equal values: a digest, a number, or a tuple of them."""
    match value:
        case Scalar():
            return g.exact_text(value)
        case Cond() | Splat():
            return value.text
        case IndexTile() if not value.lattice.vecs:
            numbers = [g.poly_text(p) for p in (value.lattice.base, *value.lattice.strides)]
            return f"({', '.join(numbers)},)"
        case Box():
            return g.box_text(value) or "None"
        case Tile():
            return f"digest_tile({value.local})"
    return f"digest_tile({g.tile(value).local})"
