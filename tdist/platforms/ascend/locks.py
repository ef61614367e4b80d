"""Atomics that the vendor's compiler makes under a lock: `sync_block_lock; load; compute; store; sync_block_unlock`.

The lock is an argument of the launch, so it does not exclude another device; blocks take it in turn, so each block must
come to it equally often.

Source: AscendNPU-IR's public lock template (spins until the lock's value is the block's index).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from xdsl.ir import BlockArgument, Operation, SSAValue

from tdist.findings import Finding, make
from tdist.ir.location import loc_of
from tdist.platforms.ascend.effects_in_code import Access, Code
from tdist.platforms.ascend.provenance import callee, carried_into, carried_out, enclosing, full_name, library_symbol

if TYPE_CHECKING:
    from tdist.platforms.ascend.multiplicity import Kernel

_ALIKE_CALLS = ("aclshmem_my_pe", "aclshmem_n_pes")
_UNLIKE_OPS = ("hivm.hir.get_block_idx", "hivm.hir.get_sub_block_idx", "memref.load")


def lock_findings(kernel: Kernel) -> Iterator[Finding]:
    """Locked atomics on another rank's word, and locked atomics to which blocks come unequally often."""
    for code in kernel.functions:
        for lock in code.ops:
            if callee(lock) == "sync_block_lock":
                section = _section(code, lock)
                yield from _remote(kernel, code, lock, section)
                yield from _unequal(kernel, code, lock, section)


def _section(code: Code, lock: Operation) -> list[Access]:
    """The accesses between a lock and its unlock."""
    inside: list[Operation] = []
    current = lock.next_op
    while current is not None and callee(current) != "sync_block_unlock":
        inside.append(current)
        current = current.next_op
    return [access for access in code.accesses if access.op in inside]


def _remote(kernel: Kernel, code: Code, lock: Operation, section: list[Access]) -> Iterator[Finding]:
    words = [access for access in section if any(remote for _, remote, _ in access.touched)]
    if words:
        tensor = kernel.tensor(words)
        yield make(
            "compiled.lock-atomic",
            [kernel.party(code.core, "atomic", loc_of(lock), "load, compute, store under sync_block_lock", tensor)],
            expected="one atomic operation for every device",
            got="a load and a store that another device's operation may come between",
            op="the atomic",
            tensor=tensor,
        )


def _unequal(kernel: Kernel, code: Code, lock: Operation, section: list[Access]) -> Iterator[Finding]:
    control = next((outer for outer in enclosing(lock) if _differs_by_block(outer)), None)
    if control is None:
        return
    what = {"scf.if": "a condition", "scf.for": "a loop whose length"}.get(full_name(control), "a loop that")
    tail = "differs from block to block" if full_name(control) != "scf.while" else "spins"
    tensor = kernel.tensor(section)
    yield make(
        "compiled.lock-turn",
        [
            kernel.party(code.core, "atomic", loc_of(lock), "under sync_block_lock", tensor),
            kernel.party(code.core, full_name(control).removeprefix("scf."), loc_of(control)),
        ],
        expected="every block takes its turn equally often",
        got=f"it stands under {what} {tail}",
        op="the atomic",
        tensor=tensor,
        reason=f"{what} {tail}: a block that does not come holds up those after it",
    )


def _differs_by_block(outer: Operation) -> bool:
    match full_name(outer):
        case "scf.if":
            return not alike(outer.operands[0])
        case "scf.for":
            return not all(alike(bound) for bound in outer.operands[:3])
    return full_name(outer) == "scf.while"


def alike(value: SSAValue) -> bool:
    """Whether every block of a launch has the same `value`: it is made of arguments, constants and the rank alone."""
    seen, todo = {value}, [value]
    while todo:
        current = todo.pop()
        origins = _origins(current)
        if origins is None:
            return False
        for origin in origins:
            if origin not in seen:
                seen.add(origin)
                todo.append(origin)
    return True


def _origins(value: SSAValue) -> list[SSAValue] | None:
    """What decides `value`; None if it may differ between blocks by itself."""
    if isinstance(value, BlockArgument):
        op = value.block.parent_op()
        if op is None or full_name(op) not in ("scf.for", "scf.while"):
            return []
        return [*carried_into(value), *(op.operands[:3] if full_name(op) == "scf.for" else ())]
    op = value.owner
    assert isinstance(op, Operation)
    if full_name(op) in _UNLIKE_OPS or (callee(op) and library_symbol(op) not in _ALIKE_CALLS):
        return None
    if op.regions:
        control = op.operands[:1] if full_name(op) == "scf.if" else op.operands[:3]
        return [*carried_out(op, op.results.index(value)), *control]  # pyright: ignore[reportArgumentType]
    return list(op.operands)
