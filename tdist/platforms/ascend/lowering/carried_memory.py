"""What loops, branches and choices carry as one pointer has to point into one memory, laid out in one way.

triton-adapter-opt 3.2.0 makes integers of the tensors of pointers and block pointers that a loop carries, and counts
them from what the loop began with, whatever the next turn was given: two buffers that are swapped become one buffer,
without a word. So each such pointer is followed to all that it may come from, and must come from one argument. Of a
block pointer base, shape, strides and order stay as they were, too; its offsets may change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from tdist.errors import KernelError
from tdist.ir.hivm import CustomOp
from tdist.ir.location import loc_of
from tdist.ir.pointer import PointerLike, element_type, is_block_pointer, is_scalar_pointer
from tdist.passes.base import all_ops

_SAME_MEMORY = frozenset(
    ("tt.addptr", "tt.advance", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.bitcast")
)
_CARRIERS = {"scf.for": "carries", "scf.while": "carries", "scf.if": "merges", "arith.select": "chooses between"}


def check_carried_memory(module: ModuleOp, names: Sequence[str]) -> None:
    """Refuse kernels in which a tensor of pointers or a block pointer changes the memory that it points into.

    Args:
        module: a prepared kernel; nothing of it is changed.
        names: of the kernel's arguments, in order; for the message.

    Raises:
        KernelError: names the line of the loop, branch or choice, and both memories.
    """
    for op in all_ops(module):
        if op.name in _CARRIERS:
            for value in _carried(op):
                _check(op, value, names)


def _carried(op: Operation) -> list[SSAValue]:
    inside = [argument for region in op.regions for block in region.blocks for argument in block.args]
    return [value for value in (*op.results, *inside) if _is_compound(value.type)]


def _is_compound(type_: Attribute) -> bool:
    return isinstance(element_type(type_), PointerLike) and not is_scalar_pointer(type_)


def _check(op: Operation, value: SSAValue, names: Sequence[str]) -> None:
    block = is_block_pointer(value.type)
    first, *others = sources(value, into_block_pointers=not block)
    for other in others:
        if block and not _is_laid_out_alike(first, other):
            _refuse(op, "block pointers of different base, shape, strides or order", names, (first, other))
        if not block and other is not first:
            _refuse(op, "tensors of pointers into different memory", names, (first, other))


def _refuse(op: Operation, what: str, names: Sequence[str], pair: tuple[SSAValue, SSAValue]) -> None:
    said = [_words(value, names) for value in pair]
    which = f"pointers of two arguments, {said[0]} and {said[1]}" if said[0] != said[1] and all(said) else what
    raise KernelError(
        f"{loc_of(op) or 'kernel'}: cannot compile for Ascend: `{op.name.rpartition('.')[2]}` {_CARRIERS[op.name]} "
        f"{which}: the vendor's adapter would take the first for all. Access memory in each branch, or carry integers "
        "and make the pointer where it is used"
    )


def _words(value: SSAValue, names: Sequence[str]) -> str:
    """The argument that a pointer comes from, for a message; empty where it is not one."""
    roots = sources(value, into_block_pointers=True)
    root = roots[0]
    is_one = len(roots) == 1 and isinstance(root, BlockArgument) and root.index < len(names)
    return f"'{names[root.index]}'" if is_one else ""  # pyright: ignore[reportAttributeAccessIssue]


# ---- where pointers come from ----------------------------------------------------------------------------------------


def sources(value: SSAValue, *, into_block_pointers: bool) -> list[SSAValue]:
    """Everything that a pointer may be counted from: arguments, and results of what makes pointers of something else.

    Args:
        into_block_pointers: follow a block pointer to its base; else what makes it is a source itself.
    """
    found: dict[SSAValue, None] = {}
    seen: set[SSAValue] = set()
    left = [value]
    while left:
        each = left.pop(0)
        if each in seen:
            continue
        seen.add(each)
        behind = list(_behind(each, into_block_pointers))
        left += behind
        if not behind:
            found[each] = None
    return list(found)


def _behind(value: SSAValue, into_block_pointers: bool) -> Iterable[SSAValue]:
    """The pointers that a value is made of, or that may be this value; none for a source."""
    op = value.owner
    if isinstance(op, Block):
        assert isinstance(value, BlockArgument)
        return _carried_into(value)
    if isinstance(op, CustomOp):
        return op.inputs[:1]
    if op.name in _SAME_MEMORY or (op.name == "tt.make_tensor_ptr" and into_block_pointers):
        return op.operands[:1]
    if op.name == "arith.select":
        return op.operands[1:]
    index = next(k for k, result in enumerate(op.results) if result is value)
    if op.name == "scf.if":
        return [_end(op, region).operands[index] for region in range(len(op.regions)) if op.regions[region].blocks]
    if op.name == "scf.for":
        return [op.operands[3 + index], _end(op, 0).operands[index]]
    if op.name == "scf.while":
        return [_end(op, 0).operands[1 + index]]
    return ()


def _carried_into(argument: BlockArgument) -> Iterable[SSAValue]:
    loop, index = argument.block.parent_op(), argument.index
    if loop is None:
        return ()
    if loop.name == "scf.for" and index > 0:
        return [loop.operands[2 + index], _end(loop, 0).operands[index - 1]]
    if loop.name == "scf.while":
        is_before = argument.block.parent is loop.regions[0]
        return (
            [loop.operands[index], _end(loop, 1).operands[index]] if is_before else [_end(loop, 0).operands[1 + index]]
        )
    return ()


def _end(op: Operation, region: int) -> Operation:
    last = op.regions[region].block.last_op
    assert last is not None
    return last


# ---- block pointers --------------------------------------------------------------------------------------------------


def _is_laid_out_alike(one: SSAValue, other: SSAValue) -> bool:
    """Whether two block pointers differ in nothing but their offsets."""
    if one is other:
        return True
    a, b = one.owner, other.owner
    if not (isinstance(a, Operation) and isinstance(b, Operation) and a.name == b.name == "tt.make_tensor_ptr"):
        return False
    axes = len(one.type.pointee.get_shape())  # pyright: ignore[reportAttributeAccessIssue]
    kept = [*range(1 + 2 * axes)]  # base, shape, strides; then the offsets
    return one.type == other.type and a.properties == b.properties and _are_equal(a, b, kept)


def _are_equal(a: Operation, b: Operation, operands: Iterable[int]) -> bool:
    return all(_is_equal(a.operands[k], b.operands[k]) for k in operands)


def _is_equal(one: SSAValue, other: SSAValue) -> bool:
    """Whether two values are the same, or computed alike of the same by operations without effects."""
    if one is other:
        return True
    a, b = one.owner, other.owner
    if not (isinstance(a, Operation) and isinstance(b, Operation) and a.name == b.name):
        return False
    if not (a.name.startswith("arith.") or a.name == "tt.addptr") or len(a.operands) != len(b.operands):
        return False
    return a.properties == b.properties and a.attributes == b.attributes and _are_equal(a, b, range(len(a.operands)))
