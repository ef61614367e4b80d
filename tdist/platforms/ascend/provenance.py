"""Where an address comes from: which kernel argument it was made of, and whether `symm_at` or a token stands between.

Works on both ends of the compilation: pointers of TTIR with lowered calls, and memrefs of a final module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import MemRefType, StringAttr, SymbolRefAttr, UnregisteredOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, SSAValue

from tdist.ir.hivm import CustomOp
from tdist.ir.pointer import PointerLike, element_type
from tdist.platforms.ascend.symbols import LINK_PREFIX

TRANSLATE = "aclshmem_ptr"
CONSUME = "aclshmem_consume_token"
_HALVES = (".cube", ".vector")


def full_name(op: Operation) -> str:
    """The operation's own name, registered or not."""
    name = op.name
    if name != UnregisteredOp.name:  # not `isinstance`: operations are of an abstract class, which makes that slow
        return name
    assert isinstance(op, UnregisteredOp)
    return op.op_name.data


def callee(op: Operation) -> str:
    """What a `func.call` calls, as spelt; empty for every other operation."""
    if not full_name(op).endswith("call"):
        return ""
    symbol = op.properties.get("callee", op.attributes.get("callee"))
    return symbol.root_reference.data if isinstance(symbol, SymbolRefAttr) else ""


def library_symbol(op: Operation) -> str:
    """The bare name of the device function that `op` calls, before or after lowering; empty for anything else.

    A final module has the link's prefix where no memref is passed, and the half of a mix kernel as a suffix.
    """
    if isinstance(op, CustomOp):
        return op.symbol
    name = callee(op).removeprefix(LINK_PREFIX)
    for half in _HALVES:
        name = name.removesuffix(half)
    return name


@dataclass(frozen=True, slots=True)
class Base:
    """One thing that an address may be made of.

    `argument` is the position among the function's arguments, None for memory of the core itself or what we cannot
    follow. `translated` counts how often a translation to another PE lies on the way (2 stands for more); `consumed`
    says that a token does.
    """

    argument: int | None
    translated: int = 0
    consumed: bool = False


def bases(value: SSAValue) -> frozenset[Base]:
    """Everything that `value`, an address, may be made of: through casts, views, arithmetic, branches and loops."""
    found: set[Base] = set()
    todo: list[tuple[SSAValue, int, bool]] = [(value, 0, False)]
    seen = set(todo)
    while todo:
        current, translated, consumed = todo.pop()
        origins = list(_origins(current))
        if not origins:
            found.add(Base(_argument(current), translated, consumed))
        for origin, through in origins:
            step = (origin, min(2, translated + through.translated), consumed or through.consumed)
            if step not in seen:
                seen.add(step)
                todo.append(step)
    return frozenset(found)


_PLAIN = Base(None)


def _origins(value: SSAValue) -> Iterator[tuple[SSAValue, Base]]:
    """The addresses that `value` is made of directly, and what lies between."""
    if isinstance(value, BlockArgument):
        for origin in carried_into(value):
            yield origin, _PLAIN
        return
    assert isinstance(value, OpResult)
    op = value.op
    if op.regions:
        for origin in carried_out(op, value.index):
            yield origin, _PLAIN
        return
    symbol = library_symbol(op)
    through = replace(_PLAIN, translated=int(symbol.startswith(TRANSLATE)), consumed=symbol.startswith(CONSUME))
    for operand in op.operands:
        if is_address(operand.type):
            yield operand, through


def _argument(value: SSAValue) -> int | None:
    if not isinstance(value, BlockArgument):
        return None
    function = value.block.parent_op()
    return value.index if function is not None and full_name(function).endswith("func") else None


def is_address(type_: Attribute) -> bool:
    """Whether a value of `type_` is a pointer, a tensor of pointers or a memref."""
    return isinstance(type_, MemRefType) or isinstance(element_type(type_), PointerLike)


# ---- values through structured control flow -------------------------------------------------------------------------


def carried_into(argument: BlockArgument) -> list[SSAValue]:
    """What a loop's block argument may hold: the initial value and what the loop yields.

    Empty for a function's argument and for an induction variable.
    """
    block = argument.block
    op = block.parent_op()
    if op is None:
        return []
    match full_name(op):
        case "scf.for":
            index = argument.index - 1
            return [] if index < 0 else [op.operands[3 + index], last_operands(block)[index]]
        case "scf.while":
            return _into_while(op, block, argument.index)
    return []


def _into_while(op: Operation, block: Block, index: int) -> list[SSAValue]:
    before, after = (region.blocks.first for region in op.regions)
    assert before is not None and after is not None
    if block is after:
        return [last_operands(before)[1 + index]]
    return [op.operands[index], last_operands(after)[index]]


def carried_out(op: Operation, index: int) -> list[SSAValue]:
    """What result `index` of an operation with regions may hold."""
    name = full_name(op)
    blocks = [block for region in op.regions if (block := region.blocks.first) is not None]
    if name == "scf.while":
        return [last_operands(blocks[0])[1 + index]]
    yielded = [values[index] for block in blocks if index < len(values := last_operands(block))]
    return [op.operands[3 + index], *yielded] if name == "scf.for" else yielded


def inputs(value: SSAValue) -> list[SSAValue]:
    """What decides `value`: operands; in loops and branches, what is carried and what controls it."""
    if isinstance(value, BlockArgument):
        op = value.block.parent_op()
        if op is None or full_name(op) not in ("scf.for", "scf.while"):
            return []
        bounds = list(op.operands[:3]) if full_name(op) == "scf.for" else []
        return [*carried_into(value), *bounds]
    assert isinstance(value, OpResult)
    op = value.op
    if not op.regions:
        return list(op.operands)
    control = {"scf.if": op.operands[:1], "scf.for": op.operands[:3]}.get(full_name(op), ())
    return [*carried_out(op, value.index), *control]


def makers(value: SSAValue) -> set[Operation]:
    """Every operation that `value` depends on."""
    seen, todo, found = {value}, [value], set()
    while todo:
        current = todo.pop()
        if isinstance(current, OpResult):
            found.add(current.op)
        new = [origin for origin in inputs(current) if origin not in seen]
        seen.update(new)
        todo += new
    return found


def last_operands(block: Block) -> tuple[SSAValue, ...]:
    """What the block's terminator passes on."""
    return tuple(block.last_op.operands) if block.last_op is not None else ()


def enclosing(op: Operation) -> Iterator[Operation]:
    """The operations around `op`, innermost first, up to and with the function."""
    outer = op.parent_op()
    while outer is not None and full_name(outer) != "builtin.module":
        yield outer
        outer = outer.parent_op()


def string(op: Operation, name: str) -> str:
    """A string property or attribute; empty if there is none."""
    value = op.properties.get(name, op.attributes.get(name))
    return value.data if isinstance(value, StringAttr) else ""
