"""Simplify control flow and what decides it, as far as MLIR's canonicalizer would and effects allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

from tdist.ir.effects import constant_int
from tdist.passes.base import NEVER_RUNS, NO_TRIP, KernelPass, all_ops, erase, insert_before, replace
from tdist.passes.dce import erase_if_dead
from tdist.passes.fold import fold, known_trip_count
from tdist.passes.report import CompileReport


@dataclass(frozen=True)
class CanonicalizePass(KernelPass):
    """Fold scalar integers, decided branches, loops of no or one iteration, and results that nobody uses.

    A value that a loop carries and nobody reads is dropped, and with it what only computes it: the wait whose token is
    carried out of a loop but never consumed, for one.
    """

    name = "canonicalize"

    def transform(self, module: ModuleOp, report: CompileReport) -> None:
        """See `KernelPass`. Repeats until nothing changes; each rewrite removes something."""
        while _sweep(module, report):
            pass


def _sweep(module: ModuleOp, report: CompileReport) -> bool:
    changed = False
    for op in reversed(all_ops(module)):
        if op.parent is not None and erase_if_dead(op, report):
            changed = True
    dropped = False  # whether a rewrite has dropped a region, and operations of the list with it
    for op in all_ops(module):
        if op.parent is None or (dropped and not _is_attached(op, module)):
            continue
        rewrite = _REWRITES.get(op.name)
        if rewrite is None:
            changed |= fold(op)
        elif rewrite(op, report):
            changed = dropped = True
    return changed


def _is_attached(op: Operation, module: ModuleOp) -> bool:
    """Whether `op` is still in the module: a rewrite of one around it may have dropped it."""
    node: Operation | None = op
    while node is not None and node is not module:
        node = node.parent_op()
    return node is module


# ---- if -------------------------------------------------------------------------------------------------------------


def _if(op: Operation, report: CompileReport) -> bool:
    assert isinstance(op, scf.IfOp)
    condition = constant_int(op.cond)
    if condition is not None:
        taken, other = op.regions if condition else reversed(op.regions)
        _record_region(other, report, NEVER_RUNS)
        _inline(op, taken)
        return True
    return _drop_unused_results(op, op.regions) or _drop_empty_else(op)


def _drop_empty_else(op: scf.IfOp) -> bool:
    other = op.false_region
    if op.results or not other.blocks or any(not isinstance(inner, scf.YieldOp) for inner in other.block.ops):
        return False
    other.erase_block(other.block)
    return True


def _record_region(region: Region, report: CompileReport, why: str) -> None:
    for block in region.blocks:
        for inner in block.ops:
            report.record_lost(inner, why)


def _inline(op: Operation, region: Region, arguments: Sequence[SSAValue] = ()) -> None:
    """Replace `op` by the operations of its one-block (or empty) region."""
    if not region.blocks:
        erase(op)
        return
    block = region.block
    for argument, value in zip(block.args, arguments, strict=True):
        argument.replace_all_uses_with(value)
    last = block.last_op
    assert last is not None and op.parent is not None
    results = list(last.operands)
    erase(last)
    for inner in list(block.ops):
        inner.detach()
        op.parent.insert_op_before(inner, op)
    replace(op, results)


def _drop_unused_results(op: Operation, regions: Sequence[Region]) -> bool:
    """Rebuild `op` without the results that nobody uses; its regions end in a yield of all of them."""
    used = [result.first_use is not None for result in op.results]
    if all(used):
        return False
    for region in regions:
        for block in region.blocks:
            last = block.last_op
            assert last is not None
            _keep_operands(last, used)
    _rebuild(op, list(op.operands), used)
    return True


def _keep_operands(terminator: Operation, keep: Sequence[bool], skip: int = 0) -> None:
    """Keep the operands after the first `skip` that `keep` selects."""
    operands = list(terminator.operands)
    terminator.operands = operands[:skip] + [v for v, k in zip(operands[skip:], keep, strict=True) if k]


def _rebuild(op: Operation, operands: list[SSAValue], keep: Sequence[bool]) -> Operation:
    """The same operation with other operands and only the results that `keep` selects."""
    regions = [op.detach_region(region) for region in list(op.regions)]
    kept = [result for result, k in zip(op.results, keep, strict=True) if k]
    new = type(op).create(
        operands=operands,
        result_types=[result.type for result in kept],
        properties=dict(op.properties),
        attributes=dict(op.attributes),
        regions=regions,
    )
    insert_before(op, new)
    for old, result in zip(kept, new.results, strict=True):
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
    erase(op)
    return new


# ---- for ------------------------------------------------------------------------------------------------------------


def _for(op: Operation, report: CompileReport) -> bool:
    assert isinstance(op, scf.ForOp)
    trips = known_trip_count(op.lb, op.ub, op.step)
    if trips == 0:
        _record_region(op.body, report, NO_TRIP)
        replace(op, list(op.iter_args))
        return True
    if trips == 1:
        _inline(op, op.body, [op.lb, *op.iter_args])
        return True
    return _drop_carried(op)


def _drop_carried(op: scf.ForOp) -> bool:
    """Drop carried values that never change, and those that nobody uses, inside or after (as MLIR: a sum stays)."""
    block = op.body.block
    last = block.last_op
    assert last is not None
    keep = []
    for init, argument, yielded, result in zip(op.iter_args, block.args[1:], last.operands, op.results, strict=True):
        if yielded is argument or yielded is init:
            argument.replace_all_uses_with(init)
            result.replace_all_uses_with(init)
            keep.append(False)
        else:
            keep.append(result.first_use is not None or argument.first_use is not None)
    if all(keep):
        return False
    inits = [init for init, k in zip(op.iter_args, keep, strict=True) if k]
    dropped = [argument for argument, k in zip(block.args[1:], keep, strict=True) if not k]
    _keep_operands(last, keep)
    new = _rebuild(op, [op.lb, op.ub, op.step, *inits], keep)
    _erase_arguments(new.regions[0].block, dropped)
    return True


def _erase_arguments(block: Block, arguments: Sequence) -> None:
    for argument in arguments:
        block.erase_arg(argument)


# ---- while ----------------------------------------------------------------------------------------------------------


def _while(op: Operation, report: CompileReport) -> bool:
    assert isinstance(op, scf.WhileOp)
    return _drop_forwarded(op) or _drop_loop_arguments(op)


def _drop_forwarded(op: scf.WhileOp) -> bool:
    """Drop what the condition forwards and neither the loop's body nor anyone after it uses."""
    after = op.after_region.block
    condition = op.before_region.block.last_op
    assert condition is not None
    keep = [
        argument.first_use is not None or result.first_use is not None
        for argument, result in zip(after.args, op.results, strict=True)
    ]
    if all(keep):
        return False
    dropped = [argument for argument, k in zip(after.args, keep, strict=True) if not k]
    _keep_operands(condition, keep, skip=1)
    _erase_arguments(after, dropped)
    _rebuild(op, list(op.operands), keep)
    return True


def _drop_loop_arguments(op: scf.WhileOp) -> bool:
    """Drop carried values that the condition part does not use."""
    before, body = op.before_region.block, op.after_region.block
    keep = [argument.first_use is not None for argument in before.args]
    if all(keep):
        return False
    last = body.last_op
    assert last is not None
    dropped = [argument for argument, k in zip(before.args, keep, strict=True) if not k]
    _keep_operands(last, keep)
    _erase_arguments(before, dropped)
    operands = [value for value, k in zip(op.operands, keep, strict=True) if k]
    _rebuild(op, operands, [True] * len(op.results))
    return True


_REWRITES: dict[str, Callable[[Operation, CompileReport], bool]] = {"scf.if": _if, "scf.for": _for, "scf.while": _while}
