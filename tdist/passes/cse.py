"""Merge equal operations, as MLIR's CSE does."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Operation, Region

from tdist.ir.effects import Effects, effects
from tdist.passes.base import KernelPass, replace
from tdist.passes.dce import erase_if_dead
from tdist.passes.report import CompileReport

_Key = tuple


@dataclass(frozen=True)
class CsePass(KernelPass):
    """Merge operations without effects that dominate each other, and reads of one block with no write between.

    Whether something between two reads writes is asked through regions too. Operations that are dead are erased.
    """

    name = "cse"

    def transform(self, module: ModuleOp, report: CompileReport) -> None:
        """See `KernelPass`."""
        scopes = _Scopes(report)
        for region in module.regions:
            scopes.region(region)


class _Scopes:
    """The operations known in the block being walked and in those around it."""

    def __init__(self, report: CompileReport) -> None:
        self.report = report
        self.known: dict[_Key, Operation] = {}
        self.writes_before: dict[Operation, int] = {}
        self.numbers: dict[int, _Numbered] = {}
        self.interned: dict[Attribute, int] = {}

    def region(self, region: Region) -> None:
        """Each block is a scope of its own; only the first block's operations dominate the others' for certain."""
        if not region.blocks:
            return
        first, *others = region.blocks
        undo = self.block(first)
        for block in others:
            self.forget(self.block(block))
        self.forget(undo)

    def forget(self, undo: list[tuple[_Key, Operation | None]]) -> None:
        for key, before in reversed(undo):
            if before is None:
                del self.known[key]
            else:
                self.known[key] = before

    def block(self, block: Block) -> list[tuple[_Key, Operation | None]]:
        """Walk a block; what it added to the known operations is returned, to be forgotten at the scope's end."""
        undo: list[tuple[_Key, Operation | None]] = []
        writes = 0
        for op in list(block.ops):
            if erase_if_dead(op, self.report):
                continue
            what = effects(op)
            if op.regions:
                self._regions(op)
            elif not what.writes and op.results and not self._merge(op, what, writes):
                self._remember(op, writes, undo)
            writes += what.writes
        return undo

    def _regions(self, op: Operation) -> None:
        if op.name != "tt.func":
            for region in op.regions:
                self.region(region)
            return
        outer, self.known = self.known, {}
        for region in op.regions:
            self.region(region)
        self.known = outer

    def _remember(self, op: Operation, writes: int, undo: list[tuple[_Key, Operation | None]]) -> None:
        key = self.key(op)
        undo.append((key, self.known.get(key)))
        self.known[key] = op
        self.writes_before[op] = writes

    def _merge(self, op: Operation, what: Effects, writes: int) -> bool:
        kept = self.known.get(self.key(op))
        if kept is None:
            return False
        if what.reads and (kept.parent is not op.parent or self.writes_before[kept] != writes):
            return False
        self.report.record_merged(kept, op)
        replace(op, list(kept.results))
        return True

    def key(self, op: Operation) -> _Key:
        """Equal for operations that compute the same from the same."""
        return (
            op.name,
            tuple(map(id, op.operands)),
            self._attributes(op.properties),
            self._attributes(op.attributes) if op.attributes else (),
            tuple([self._number(result.type) for result in op.results]),
        )

    def _attributes(self, attributes: dict[str, Attribute]) -> _Key:
        return tuple(sorted([(name, self._number(value)) for name, value in attributes.items()]))

    def _number(self, attr: Attribute) -> int:
        """One number for all attributes equal to `attr`; hashing one is slow, so each object is hashed once."""
        known = self.numbers.get(id(attr))
        if known is None:
            number = self.interned.setdefault(attr, len(self.interned))
            self.numbers[id(attr)] = known = _Numbered(number, attr)
        return known.number


@dataclass(frozen=True, slots=True)
class _Numbered:
    number: int
    attr: Attribute  # kept alive, so that its id stays its own
