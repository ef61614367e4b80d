"""Tiles in UB under the bytes that the device library uses for itself.

A signal ADD stages its value at UB offset 0; a put or get of global memory goes through the first 16 KiB. The vendor's
compiler gives these bytes to tiles like all others. A tile that is in use before and after such a call is overwritten.

Source: ACLSHMEM's device headers (default configuration of the MTE engine: `aclshmem_ub` at offset 0, 16 KiB).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, SSAValue, Use

from tdist.findings import Finding, make
from tdist.ir.location import SourceLoc, loc_of
from tdist.platforms.ascend.compiled.final_module import AIV
from tdist.platforms.ascend.effects_in_code import SIGNAL, TRANSFER, Call, Code, constant
from tdist.platforms.ascend.provenance import callee, full_name

if TYPE_CHECKING:
    from tdist.platforms.ascend.multiplicity import Kernel

ADD_STAGING_BYTES = 4
TRANSFER_STAGING_BYTES = 16 * 1024
_ADD = 1
_POINTER_CAST = "hivm.hir.pointer_cast"
_ELEMENT_BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "index": 64}


@dataclass(frozen=True)
class Tile:
    """A buffer in UB: where it lies, and the numbers of the operations that access it, in order of text."""

    offset: int
    size: int
    loc: SourceLoc | None
    accesses: tuple[int, ...]


def staging_findings(kernel: Kernel) -> Iterator[Finding]:
    """Calls of the library that overwrite a tile in use."""
    for code in kernel.functions:
        clobbers = [(call, size) for call in code.calls if (size := staged_bytes(call))] if code.core == AIV else []
        tiles = list(tiles_of(code)) if clobbers else []
        for call, size in clobbers:
            victim = next((tile for tile in tiles if tile.offset < size and in_use(code, tile, call)), None)
            if victim is not None:
                yield _finding(kernel, code, call, size, victim)


def staged_bytes(call: Call) -> int:
    """How many bytes from UB offset 0 a call uses for itself; 0 for most."""
    if call.kind == TRANSFER or (call.kind == SIGNAL and "putmem" in call.symbol):
        return TRANSFER_STAGING_BYTES
    if call.symbol == "aclshmemx_signal_op" and constant(call.op.operands[2]) in (_ADD, None):
        return ADD_STAGING_BYTES
    return 0


def _finding(kernel: Kernel, code: Code, call: Call, size: int, tile: Tile) -> Finding:
    made = [access for access in code.accesses if access.number in tile.accesses]
    loaded = [access for access in made if not access.writes]
    tensor = kernel.tensor(loaded or made) if made else "an intermediate result"
    line = next((loc for number in tile.accesses if (loc := loc_of(code.ops[number])) is not None), tile.loc)
    signal = call.kind == SIGNAL and "putmem" not in call.symbol
    return make(
        "compiled.staging-overlap",
        [
            kernel.party(code.core, "tile", line, f"UB bytes {tile.offset} to {tile.offset + tile.size - 1}", tensor),
            kernel.party(code.core, call.symbol, call.loc, f"uses UB bytes 0 to {size - 1} itself"),
        ],
        expected="tiles in use are left alone",
        got=f"UB bytes {tile.offset} to {min(size, tile.offset + tile.size) - 1} of the tile are overwritten",
        op=call.symbol,
        tensor=tensor,
        lo=0,
        hi=size - 1,
        offset=tile.offset,
        size=tile.size,
        remedy="signal with SET, or load the tile again after the signal"
        if signal
        else "move data with loads and stores through symm_at, or finish with the tile before the transfer",
    )


# ---- where tiles lie and when they are in use -----------------------------------------------------------------------


def tiles_of(code: Code) -> Iterator[Tile]:
    """Every buffer in UB of a function; one with several addresses (multi-buffering) is one tile for each."""
    for op in code.ops:
        if full_name(op) != _POINTER_CAST or not _is_ub(op.results[0]):
            continue
        size = _size_bytes(op.results[0].type)
        accesses = tuple(sorted({code.numbers[user] for user in _users(op.results[0]) if user in code.numbers}))
        for address in op.operands:
            offset = constant(address)
            if offset is not None and size and accesses:
                yield Tile(offset, size, loc_of(op), accesses)


def _is_ub(value: SSAValue) -> bool:
    return isinstance(value.type, MemRefType) and "<ub>" in str(value.type.memory_space)


def _size_bytes(type_) -> int:
    count = 1
    for extent in type_.get_shape():
        count *= max(extent, 0)
    element = str(type_.element_type)
    bits = _ELEMENT_BITS.get(element) or int(element.lstrip("ius") or 8)
    return -(-count * bits // 8)


def _users(value: SSAValue) -> set[Operation]:
    """The operations that access the memory behind `value`, through views, selections, branches and loops."""
    seen, todo, users = {value}, [value], set()
    while todo:
        for use in todo.pop().uses:
            derived = _derived(use)
            if not derived:
                users.add(use.operation)
            new = [other for other in derived if other not in seen]
            seen.update(new)
            todo += new
    return users


def _derived(use: Use) -> list[SSAValue]:
    """Memrefs that a use makes of the memory; none where it accesses it."""
    op = use.operation
    if full_name(op) in ("scf.yield", "scf.condition"):
        outer = op.parent_op()
        assert outer is not None
        index = use.index - (full_name(op) == "scf.condition")
        return [outer.results[index]] if index < len(outer.results) else []
    if full_name(op) == "scf.for" and use.index >= 3:
        block = op.regions[0].blocks.first
        assert block is not None
        return [block.args[use.index - 2], op.results[use.index - 3]]
    if callee(op) or op.regions:
        return []
    return [result for result in op.results if isinstance(result.type, MemRefType)]


def in_use(code: Code, tile: Tile, call: Call) -> bool:
    """Whether what the tile holds before `call` is wanted after it.

    So it is if the tile is accessed before and after it in the text; or in a loop around the call while it was first
    accessed before that loop, so that its content is carried from one round to the next.
    """
    before = [number for number in tile.accesses if number < call.number]
    after = [number for number in tile.accesses if number > call.number]
    if before and after and not _other_branch(code, before[-1], call.op):
        return True
    for loop in code.loops(call.op):
        first, last = code.span(loop)
        if tile.accesses[0] < first and any(first <= number <= last for number in tile.accesses):
            return True
    return False


def _other_branch(code: Code, number: int, op: Operation) -> bool:
    """Whether an operation and `op` stand in the two branches of one condition."""
    mine = {id(block.parent_op()): block for block in _blocks(op)}
    for block in _blocks(code.ops[number]):
        outer = block.parent_op()
        if outer is not None and full_name(outer) == "scf.if" and mine.get(id(outer), block) is not block:
            return True
    return False


def _blocks(op: Operation):
    current: Operation | None = op
    while current is not None:
        block = current.parent_block()
        if block is not None:
            yield block
        current = current.parent_op()


__all__ = ["Tile", "in_use", "staged_bytes", "staging_findings", "tiles_of"]
