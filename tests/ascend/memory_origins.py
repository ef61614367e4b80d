"""Where the memory of each access in a final module comes from: an oracle that shares nothing with the lowering.

An origin is written as the calls that made it: `buf` (an argument of the kernel), `ptr(buf)` (what `aclshmem_ptr_*`
gave for it), `token(ptr(buf))` (a token consumed on that), `a | b` (either, out of an `if`), `address` (an integer).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.dialects.builtin import MemRefType, UnregisteredOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tdist.ir.location import SourceLoc, loc_of
from tdist.platforms.ascend.compiled.generic_text import read_generic

LEADING_ARGUMENTS = 3
"""The final module puts the base of cross-core flags, a lock and a workspace before the kernel's own arguments."""

_ACCESS = re.compile(r"(load)_gm_to_|(nd2nz)_|(store)_ubuf_to_gm|(fixpipe)_")
_THROUGH = ("memref.cast", "memref.reinterpret_cast", "memref.subview", "memref.collapse_shape", "memref.expand_shape")
_PIECES = ("builtin.unrealized_conversion_cast", "memref.view", *_THROUGH)


def accesses(final_text: str, names: Sequence[str]) -> set[str]:
    """Every access of global memory in a module, as `load <origin>` and `store <origin>`; scalar ones, too."""
    found: set[str] = set()
    for op in read_generic(final_text).walk():
        kind = _kind(op)
        if kind is not None:
            found |= {f"{kind} {origin(value, names)}" for value in op.operands if is_global(value)}
    return found


def stores_by_line(final_text: str, names: Sequence[str]) -> dict[int, set[str]]:
    """The memory that the stores of each line of the kernel reach, as if no token had been consumed."""
    found: dict[int, set[str]] = {}
    for op in read_generic(final_text).walk():
        loc = loc_of(op)
        if _kind(op) == "store" and loc is not None:
            reached = {
                _without_tokens(each) for value in op.operands if is_global(value) for each in origins(value, names)
            }
            found.setdefault(loc.line, set()).update(reached)
    return found


def _without_tokens(origin: str) -> str:
    """`token(ptr(buf))` → `ptr(buf)`: calls nest, so brackets at the end go with the words in front."""
    tokens = origin.count("token(")
    bare = origin.replace("token(", "")
    return bare[: len(bare) - tokens]


def library_calls(final_text: str) -> dict[str, list[tuple[str, SourceLoc | None]]]:
    """Calls of the device library with their lines, in order, by core: `cube` and `vector` of a mix kernel, else ``."""
    found: dict[str, list[tuple[str, SourceLoc | None]]] = {}
    for op in read_generic(final_text).walk():
        callee = _callee(op)
        if callee is not None and "aclshmem" in callee:
            symbol, _, core = callee.removeprefix("_mlir_ciface_").partition(".")
            found.setdefault(core, []).append((symbol, loc_of(op)))
    return found


def _kind(op: Operation) -> str | None:
    callee = _callee(op)
    if callee is not None and (match := _ACCESS.match(callee)) is not None:
        return "load" if match[1] or match[2] else "store"
    return {"memref.load": "load", "memref.store": "store"}.get(op.name)


def _callee(op: Operation) -> str | None:
    return op.properties["callee"].string_value() if op.name == "func.call" else None  # pyright: ignore


def is_global(value: SSAValue) -> bool:
    return isinstance(value.type, MemRefType) and "<gm>" in str(value.type.memory_space)


def origin(value: SSAValue, names: Sequence[str]) -> str:
    """Where a memref comes from, in words."""
    return " | ".join(sorted(origins(value, names)))


def origins(value: SSAValue, names: Sequence[str]) -> set[str]:
    """Everything that a memref may come from."""
    owner = value.owner
    if isinstance(value, BlockArgument):
        return {_argument(value, names)}
    assert isinstance(owner, Operation)
    name = owner.op_name.data if isinstance(owner, UnregisteredOp) else owner.name
    if name in _PIECES:
        return origins(owner.operands[0], names)
    if name == "func.call":
        what = {"aclshmem_ptr": "ptr", "aclshmem_consume": "token"}
        made = next(word for prefix, word in what.items() if (_callee(owner) or "").startswith(prefix))
        return {f"{made}({source})" for source in origins(owner.operands[0], names)}
    if name == "scf.if":
        index = owner.results.index(value)  # pyright: ignore[reportArgumentType]
        ends = [region.block.last_op for region in owner.regions]
        return set().union(*(origins(end.operands[index], names) for end in ends))  # pyright: ignore
    return {"address" if name == "hivm.hir.pointer_cast" else f"? {name}"}


def _argument(value: BlockArgument, names: Sequence[str]) -> str:
    block: Block = value.block
    parent = block.parent_op()
    assert parent is not None
    return names[value.index - LEADING_ARGUMENTS] if parent.name == "func.func" else f"? {parent.name}"
