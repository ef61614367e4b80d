"""Faults of order: a signal before what it announces, a barrier that not all come to, or no last one."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import scf
from xdsl.dialects.arith import AddiOp, AndIOp, XOrIOp
from xdsl.dialects.builtin import IntegerAttr, IntegerType, i1, i32
from xdsl.ir import Block, Operation, Region, SSAValue

from tdist.ir import tt
from tdist.ir.arith import CmpiOp
from tdist.ir.effects import effects
from tdist.mutations import calls
from tdist.mutations.base import Kind, Place, is_pure
from tdist.mutations.rewriting import constant, drop
from tdist.passes.base import all_ops, insert_before

_STORES = ("tt.store", "tt.atomic_rmw", "tt.atomic_cas")
_LOADS = ("tt.load",)
_EQUAL, _AT_LEAST = 0, 5


# ---- a signal before what it announces ------------------------------------------------------------------------------


def _before(function: tt.FuncOp, names: tuple[str, ...], noun: str) -> Iterator[Place]:
    for op in calls.releases(function):
        mover, passed = _what_to_pass(op, names)
        needed = None if passed is None else _between(mover, passed)
        if passed is not None and needed is not None:
            what = f"the {calls.title(op)} comes before the {noun} that it follows"
            yield Place(op, what, lambda m=mover, p=passed, n=needed: _move(m, p, n))


def _what_to_pass(release: Operation, names: tuple[str, ...]) -> tuple[Operation, Operation | None]:
    """What is moved, the release with its conditions, and the nearest earlier operation with one of these inside."""
    mover = release
    while True:
        passed = _earlier(mover, names)
        if passed is not None:
            return mover, passed
        parent = mover.parent_op()
        if parent is None or isinstance(parent, tt.FuncOp) or not _only_releases(parent):
            return mover, None
        mover = parent


def _earlier(op: Operation, names: tuple[str, ...]) -> Operation | None:
    earlier = op.prev_op
    while earlier is not None and not any(inner.name in names for inner in all_ops(earlier)):
        earlier = earlier.prev_op
    return earlier


def _only_releases(op: Operation) -> bool:
    return all(
        inner.regions or calls.is_release(inner) or not effects(inner).writes for inner in all_ops(op)
    ) and not any(inner.name in ("distributed.wait", "tt.load") for inner in all_ops(op))


def _between(mover: Operation, passed: Operation) -> list[Operation] | None:
    """What `mover` needs of the operations from `passed` on; None if something of it cannot come earlier."""
    wanted = {value for op in all_ops(mover) for value in op.operands}
    needed: list[Operation] = []
    op = mover.prev_op
    while op is not None:
        if any(result in wanted for result in op.results):
            if op is passed or not is_pure(op):
                return None
            needed.append(op)
            wanted.update(op.operands)
        if op is passed:
            break
        op = op.prev_op
    return needed[::-1]


def _move(mover: Operation, passed: Operation, needed: list[Operation]) -> None:
    block = passed.parent
    assert block is not None
    for op in [*needed, mover]:
        op.detach()
        block.insert_op_before(op, passed)


def _stores(function: tt.FuncOp) -> Iterator[Place]:
    return _before(function, _STORES, "store")


def _loads(function: tt.FuncOp) -> Iterator[Place]:
    return _before(function, _LOADS, "load")


# ---- barriers -------------------------------------------------------------------------------------------------------


def innermost_loops(op: Operation) -> list[Operation]:
    """The loops around an operation, the innermost first."""
    found, parent = [], op.parent_op()
    while parent is not None:
        if isinstance(parent, (scf.ForOp, scf.WhileOp)):
            found.append(parent)
        parent = parent.parent_op()
    return found


def _exit(function: tt.FuncOp) -> Iterator[Place]:
    barriers = calls.barriers(function)
    if not barriers:
        return
    last = barriers[-1]
    loops = innermost_loops(last)
    counted = [loop for loop in loops if isinstance(loop, scf.ForOp)]
    if not loops:
        yield Place(last, "the last barrier is missing", lambda: drop(last))
    elif len(counted) == len(loops):
        what = "the barrier is missing in the last iteration"
        yield Place(last, what, lambda: _guard(last, _not_the_last(counted, last)))


def _not_the_last(loops: list[scf.ForOp], before: Operation) -> SSAValue:
    """Whether one of the loops has iterations left, computed before an operation inside all of them."""
    last: SSAValue | None = None
    for loop in loops:
        iv = loop.body.block.args[0]
        following = AddiOp.create(operands=[iv, loop.step], result_types=[iv.type])
        ends = _compare(_AT_LEAST, following.results[0], loop.ub)
        _insert(before, following, ends)
        last = ends.results[0] if last is None else _insert(before, _both(last, ends.results[0]))
    assert last is not None
    return _insert(before, XOrIOp.create(operands=[last, constant(1, i1, before)], result_types=[i1]))


def _both(a: SSAValue, b: SSAValue) -> Operation:
    return AndIOp.create(operands=[a, b], result_types=[i1])


def _compare(predicate: int, a: SSAValue, b: SSAValue) -> Operation:
    return CmpiOp.create(operands=[a, b], result_types=[i1], properties={"predicate": IntegerAttr(predicate, 64)})


def _insert(before: Operation, *ops: Operation) -> SSAValue:
    for op in ops:
        insert_before(before, op)
    return ops[-1].results[0]


def _guard(op: Operation, condition: SSAValue) -> None:
    """Let an operation without results run only where the condition holds."""
    body, otherwise = Block(), Block([scf.YieldOp()])
    branch = scf.IfOp.create(operands=[condition], result_types=[], regions=[Region(body), Region(otherwise)])
    insert_before(op, branch)
    op.detach()
    body.add_ops([op, scf.YieldOp()])


def _gated(function: tt.FuncOp) -> Iterator[Place]:
    for op in calls.barriers(function):
        yield Place(op, "only program 0 comes to the barrier", lambda op=op: _guard(op, _is_first(op)))


def _is_first(before: Operation) -> SSAValue:
    program = tt.GetProgramIdOp.create(result_types=[i32], properties={"axis": IntegerAttr(0, IntegerType(32))})
    _insert(before, program)
    return _insert(before, _compare(_EQUAL, program.results[0], constant(0, i32, before)))


KINDS = (
    Kind("swap-store-notify", "signalled before storing", _stores),
    Kind("swap-load-notify", "gave credit before loading", _loads),
    Kind("no-exit-barrier", "left out the barrier at the end", _exit),
    Kind("gated-barrier", "called a barrier where not every program comes by", _gated),
)
