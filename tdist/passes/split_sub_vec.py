"""The two vector cores of a program that asks which one it is.

Source: the ordering model, "Agent": the second core executes every operation that depends on `sub_vec_id()` and,
read-only, the loads, waits and address arithmetic that those need; other effects stay with the main core; both take
part in every barrier.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, StringAttr, i64
from xdsl.ir import Block, Operation, SSAValue

from tdist.ir.effects import effects
from tdist.ir.location import loc_of
from tdist.passes.base import KernelPass, erase, insert_before, replace
from tdist.passes.canonicalize import CanonicalizePass
from tdist.passes.dce import DcePass
from tdist.passes.fold import make_constant
from tdist.passes.report import CompileReport

_INDEX = "hivm.hir.get_sub_block_idx"
_BARRIERS = ("aclshmem_barrier", "aclshmemx_barrier", "aclshmem_sync", "aclshmemx_sync")
_WAITS = ("aclshmem_signal_wait", "aclshmemx_signal_wait", "aclshmem_test", "aclshmem_wait")


@dataclass(frozen=True)
class SplitSubVecPass(KernelPass):
    """Keep one core's part of a kernel that uses `sub_vec_id()`; a kernel that does not is left alone.

    `core` is 0 for the main core, which has all effects, or 1 for the second vector core.
    """

    name = "split-sub-vec"
    core: int = 0

    def transform(self, module: ModuleOp, report: CompileReport) -> None:
        """See `KernelPass`."""
        if not uses_sub_vec_id(module):
            return
        if self.core == 1:
            _keep_second(module)
        _fix_core(module, self.core)
        if self.core == 1:
            ignored = CompileReport()
            CanonicalizePass().transform(module, ignored)
            DcePass().transform(module, ignored)


def split_sub_vec(module: ModuleOp) -> tuple[ModuleOp, ModuleOp | None]:
    """The main core's module and the second vector core's, None if the kernel has no use for one.

    `module` itself is not changed. What only the main core has is no loss, so there is no report.
    """
    main = module.clone()
    if not uses_sub_vec_id(module):
        return main, None
    second = module.clone()
    SplitSubVecPass(core=0).transform(main, CompileReport())
    SplitSubVecPass(core=1).transform(second, CompileReport())
    return main, second


def uses_sub_vec_id(module: ModuleOp) -> bool:
    """Whether any operation asks which vector core it runs on."""
    return any(op.name == _INDEX for op in module.walk())


def gated_locations(module: ModuleOp) -> frozenset[tuple[str, int, int]]:
    """File, line and column of the operations that depend on `sub_vec_id()`, by operands or by control."""
    if not uses_sub_vec_id(module):
        return frozenset()
    found = (loc_of(op) for op in _dependent(module))
    return frozenset((loc.file, loc.line, loc.col) for loc in found if loc is not None)


def _fix_core(module: ModuleOp, core: int) -> None:
    for op in list(module.walk()):
        if op.name == _INDEX:
            constant = make_constant(core, i64)
            insert_before(op, constant)
            replace(op, [constant.results[0]])


def _keep_second(module: ModuleOp) -> None:
    """Erase the effects that are the main core's alone."""
    needed = _needed(module, _dependent(module))
    for op in list(module.walk(reverse=True, region_first=True)):
        if op not in needed and not op.regions and effects(op).writes:
            erase(op)


# ---- what depends on the core ---------------------------------------------------------------------------------------


def _dependent(module: ModuleOp) -> set[Operation]:
    """Operations that depend on `sub_vec_id()`, by their operands or by what decides whether they run."""
    spread = _Spread(module)
    while spread.step():
        pass
    return spread.operations


class _Spread:
    """A forward closure over values and control."""

    def __init__(self, module: ModuleOp) -> None:
        self.module = module
        self.values: set[SSAValue] = set()
        self.operations: set[Operation] = set()
        self.asking = {
            op.properties["sym_name"]
            for op in module.walk()
            if op.name == "tt.func" and any(inner.name == _INDEX for inner in op.walk())
        }

    def step(self) -> bool:
        """One sweep; says whether it found anything new."""
        before = len(self.values) + len(self.operations)
        for op in self.module.walk():
            if self._depends(op):
                self.operations.add(op)
                self.values.update(op.results)
            if op.regions:
                self._through(op)
        return len(self.values) + len(self.operations) > before

    def _depends(self, op: Operation) -> bool:
        if op.name == _INDEX or any(operand in self.values for operand in op.operands):
            return not op.regions or self._decides(op)
        parent = op.parent_op()
        if parent is not None and parent in self.operations:
            return True
        return op.name == "tt.call" and self._callee(op) in self.asking

    def _callee(self, op: Operation) -> StringAttr:
        return op.properties["callee"].root_reference  # pyright: ignore[reportAttributeAccessIssue]

    def _decides(self, op: Operation) -> bool:
        """Whether a tainted operand of a region operation decides if its regions run, not only what they carry."""
        deciding = {"scf.if": 1, "scf.for": 3}.get(op.name, 0)
        return any(operand in self.values for operand in list(op.operands)[:deciding])

    def _through(self, op: Operation) -> None:
        """Carried values: into block arguments, and from terminators to results and back."""
        if op.name == "scf.for":
            self._flow(list(op.operands)[3:], op.regions[0].block.args[1:])
        elif op.name == "scf.while":
            self._flow(op.operands, op.regions[0].block.args)
            self._condition(op)
        for region in op.regions:
            for block in region.blocks:
                self._yield(op, block)

    def _condition(self, op: Operation) -> None:
        condition = op.regions[0].block.last_op
        assert condition is not None
        decided = condition.operands[0]
        if decided in self.values:
            self.operations.add(op)
        self._flow(list(condition.operands)[1:], op.regions[1].block.args)
        self._flow(list(condition.operands)[1:], op.results)

    def _yield(self, op: Operation, block: Block) -> None:
        last = block.last_op
        if last is None or last.name != "scf.yield":
            return
        if op.name == "scf.while":
            self._flow(last.operands, op.regions[0].block.args)
            return
        self._flow(last.operands, op.results)
        if op.name == "scf.for":
            self._flow(last.operands, block.args[1:])

    def _flow(self, sources, targets) -> None:
        for source, target in zip(sources, targets, strict=True):
            if source in self.values:
                self.values.add(target)


# ---- what the second core needs -------------------------------------------------------------------------------------


def _is_root(op: Operation, dependent: set[Operation]) -> bool:
    """Effects that the second core has: those that depend on the core, barriers, and waits that are no dead reads."""
    if op.regions or not effects(op).writes:
        return False
    if op in dependent or op.name == "tt.load":
        return True
    symbol = op.properties.get("symbol")
    return isinstance(symbol, StringAttr) and symbol.data.startswith((*_BARRIERS, *_WAITS))


def _needed(module: ModuleOp, dependent: set[Operation]) -> set[Operation]:
    """Roots, and everything that their operands and what decides whether they run come from."""
    needed: set[Operation] = set()
    pending = [op for op in module.walk() if _is_root(op, dependent)]
    while pending:
        op = pending.pop()
        if op in needed:
            continue
        needed.add(op)
        pending.extend(_sources(op))
    return needed


def _sources(op: Operation) -> list[Operation]:
    sources = [_definition(operand) for operand in op.operands]
    sources.append(op.parent_op())
    for region in op.regions:
        sources += [block.last_op for block in region.blocks]
    return [source for source in sources if source is not None]


def _definition(value: SSAValue) -> Operation | None:
    owner = value.owner
    return owner if isinstance(owner, Operation) else owner.parent_op()
