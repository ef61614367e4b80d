"""What may hold of a value on some path: does it carry a clock, may it be remote, which argument does it point into.

A flow-insensitive fixpoint over the function, loops and control included. It only says for which values locals are
needed; which clocks a value carries is decided where code is emitted.

Ordering: a wait's token carries a clock; every result carries what its operands and its control carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from .ir_access import yielded

UNKNOWN = "?"


@dataclass
class Facts:
    """Sets of values, and the arguments that pointers point into (`roots`).

    `carries`: may carry a clock. `remote`: a pointer that may have passed `symm_at`. `hidden`: that or `consume_token`.
    """

    carries: set[SSAValue] = field(default_factory=set)
    remote: set[SSAValue] = field(default_factory=set)
    hidden: set[SSAValue] = field(default_factory=set)
    roots: dict[SSAValue, frozenset[str]] = field(default_factory=dict)
    changed: bool = False

    def flow(self, sources: Sequence[SSAValue], target: SSAValue) -> None:
        """`target` may be any of `sources`, or be computed from them."""
        if any(s in self.carries for s in sources):
            self.mark(self.carries, target)
        if any(s in self.remote for s in sources):
            self.mark(self.remote, target)
        if any(s in self.hidden for s in sources):
            self.mark(self.hidden, target)
        self.root(target, frozenset().union(*(self.roots.get(s, frozenset()) for s in sources)))

    def mark(self, kind: set[SSAValue], value: SSAValue) -> None:
        if value not in kind:
            kind.add(value)
            self.changed = True

    def root(self, value: SSAValue, names: frozenset[str]) -> None:
        before = self.roots.get(value, frozenset())
        if names - before:
            self.roots[value] = before | names
            self.changed = True


def analyse(entry: Block, blocks: Sequence[Block], pointer_names: Sequence[str | None], module_waits: bool) -> Facts:
    """Facts of a function whose arguments are the entry block's; `pointer_names` has None for other arguments."""
    facts = Facts()
    for arg, name in zip(entry.args, pointer_names, strict=True):
        if name is not None:
            facts.root(arg, frozenset({name}))
    facts.changed = True
    while facts.changed:
        facts.changed = False
        early = any(_exit_carries(facts, block) for block in blocks)
        for block in blocks:
            _walk(facts, block, early, module_waits)
    return facts


def _exit_carries(facts: Facts, block: Block) -> bool:
    last = block.last_op
    return last is not None and last.name == "cf.cond_br" and last.operands[0] in facts.carries


def _walk(facts: Facts, block: Block, controlled: bool, module_waits: bool) -> None:
    for op in block.ops:
        inner = controlled
        if op.name == "scf.for":
            inner |= _loop(facts, op)
        elif op.name == "scf.while":
            inner |= _while(facts, op)
        elif op.name == "scf.if":
            inner |= _branch(facts, op)
        elif op.name in ("cf.br", "cf.cond_br"):
            _jump(facts, op)
        else:
            _plain(facts, op, controlled, module_waits)
        for region in op.regions:
            for child in region.blocks:
                _walk(facts, child, inner, module_waits)
        if inner:
            for result in op.results:
                facts.mark(facts.carries, result)


def _plain(facts: Facts, op: Operation, controlled: bool, module_waits: bool) -> None:
    for result in op.results:
        facts.flow(list(op.operands), result)
        if controlled or op.name == "distributed.wait" or (op.name == "tt.call" and module_waits):
            facts.mark(facts.carries, result)
        if op.name == "distributed.consume_token":
            facts.mark(facts.hidden, result)
        if op.name in ("distributed.symm_at", "tt.int_to_ptr", "tt.call"):
            facts.mark(facts.remote, result)
            facts.mark(facts.hidden, result)
            facts.root(result, frozenset({UNKNOWN}))


def _loop(facts: Facts, op: Operation) -> bool:
    body = op.regions[0].block
    for init, arg, out, result in zip(op.operands[3:], body.args[1:], yielded(body), op.results, strict=False):
        facts.flow([init, out], arg)
        facts.flow([init, out], result)
    if any(bound in facts.carries for bound in op.operands[:3]):
        facts.mark(facts.carries, body.args[0])
        return True
    return False


def _while(facts: Facts, op: Operation) -> bool:
    before, after = op.regions[0].block, op.regions[1].block
    for init, out, arg in zip(op.operands, yielded(after), before.args, strict=False):
        facts.flow([init, out], arg)
    condition, *forwarded = yielded(before)
    for value, arg, result in zip(forwarded, after.args, op.results, strict=True):
        facts.flow([value], arg)
        facts.flow([value], result)
    return condition in facts.carries


def _branch(facts: Facts, op: Operation) -> bool:
    for region in op.regions:
        if region.blocks:
            for value, result in zip(yielded(region.block), op.results, strict=False):
                facts.flow([value], result)
    return op.operands[0] in facts.carries


def _jump(facts: Facts, op: Operation) -> None:
    offset = 0 if op.name == "cf.br" else 1
    passed = list(op.operands)[offset:]
    for successor in op.successors:
        for value, arg in zip(passed[: len(successor.args)], successor.args, strict=False):
            facts.flow([value], arg)
        if op.name == "cf.cond_br":
            passed = passed[len(successor.args) :]
