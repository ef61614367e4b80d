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
from tdist.passes.base import all_ops
from tdist.platforms.ascend.effects_in_code import BARRIER, WAIT, Access, Code
from tdist.platforms.ascend.provenance import callee, carried_into, carried_out, enclosing, full_name, library_symbol

if TYPE_CHECKING:
    from tdist.platforms.ascend.multiplicity import Kernel

LOCK = "sync_block_lock"
_ALIKE_CALLS = ("aclshmem_my_pe", "aclshmem_n_pes")
_UNLIKE_OPS = ("hivm.hir.get_block_idx", "hivm.hir.get_sub_block_idx", "memref.load")


def lock_findings(kernel: Kernel) -> Iterator[Finding]:
    """Locked atomics on another rank's word; locks to which blocks come unequally often, or under which they wait."""
    for code in kernel.functions:
        for lock in code.ops:
            if callee(lock) == LOCK:
                inside = _held(lock)
                section = [access for access in code.accesses if access.op in inside]
                yield from _remote(kernel, code, lock, section)
                yield from _unequal(kernel, code, lock, section)
                yield from _waiting(kernel, code, lock, inside, section)


def _held(lock: Operation) -> set[Operation]:
    """The operations between a lock and its unlock; the compiler may have put a whole loop there."""
    inside: set[Operation] = set()
    current = lock.next_op
    while current is not None and callee(current) != "sync_block_unlock":
        inside.update(all_ops(current))
        current = current.next_op
    return inside


def under_lock(op: Operation) -> bool:
    """Whether a lock stands in a block around `op`."""
    blocks = [outer.parent_block() for outer in (op, *enclosing(op))]
    return any(callee(other) == LOCK for block in blocks if block is not None for other in block.ops)


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


def _waiting(
    kernel: Kernel, code: Code, lock: Operation, inside: set[Operation], section: list[Access]
) -> Iterator[Finding]:
    wait = next((call for call in code.calls if call.op in inside and call.kind in (WAIT, BARRIER)), None)
    if wait is None:
        return
    tensor = kernel.tensor(section)
    yield make(
        "compiled.lock-turn",
        [
            kernel.party(code.core, "atomic", loc_of(lock), "under sync_block_lock", tensor),
            kernel.party(code.core, wait.symbol, wait.loc, "before sync_block_unlock"),
        ],
        expected="the lock is given back at once",
        got=f"{wait.symbol} stands between lock and unlock",
        op="the atomic",
        tensor=tensor,
        reason="the compiler moved the lock out of a loop: whoever waits in it keeps the other blocks out",
        cure="make the atomic and the wait in loops of their own",
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
