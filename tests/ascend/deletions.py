"""Deletes synchronisation from final modules, one piece at a time, and asks the check what is missing.

A piece is a `pipe_barrier`; a set and a wait of a flag that meet on some way through the function; or all sets and
waits of a flag that are connected so. Inside a matrix call, a set or wait is an operand, deleted by −1. After a
deletion either something is reported that was not before, or it was redundant: all that conflicts is still ordered.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Operation, SSAValue

from tdist.ir import hivm
from tdist.platforms.ascend.compiled.events import BlockSet, BlockWait, Event, FlagSet, FlagWait, events_of
from tdist.platforms.ascend.compiled.final_module import FinalModule, OpRef
from tdist.platforms.ascend.compiled.flow import Decided, Flow, Walk, as_environment
from tdist.platforms.ascend.compiled.order import Fault, OrderReport, check_order

ORDER_FAULTS = frozenset({Fault.PIPES, Fault.TRANSFER, Fault.CORES, Fault.RELEASE, Fault.STALE})


@dataclass(frozen=True, slots=True)
class Part:
    """A set or wait of a flag, or a barrier: an operation, and which of its events it is."""

    ref: OpRef
    event: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """What is deleted together."""

    kind: str  # "barrier", "pair", "group", "cores"
    parts: frozenset[Part]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the check says after a deletion, of what it did not say before."""

    piece: Piece
    order: int  # accesses, signals, reads that are not ordered any more
    flags: int  # flags that do not pair up any more
    complete: bool = True  # every way through the functions was walked

    @property
    def reported(self) -> bool:
        return bool(self.order or self.flags)


# ---- which sets and waits meet ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Up:
    """Flags that are up, with the parts that may have raised them."""

    flags: tuple[tuple[Hashable, frozenset[Part]], ...] = ()

    @property
    def shape(self) -> Hashable:
        return tuple(key for key, _ in self.flags)

    def join(self, other: _Up) -> _Up:
        joined = tuple((key, mine | theirs) for (key, mine), (_, theirs) in zip(self.flags, other.flags, strict=True))
        return self if joined == self.flags else _Up(joined)


class _Pairing:
    """Collects the pairs of set and wait that meet."""

    def __init__(self, final: FinalModule, flows: list[Flow]) -> None:
        self.final, self.flows = final, flows
        self.pairs: set[tuple[Part, Part]] = set()

    def apply(self, core: int, event: Event, decided: Decided, facts: _Up) -> _Up | None:
        if not isinstance(event, (FlagSet, FlagWait, BlockSet, BlockWait)) or isinstance(event.flag, str):
            return facts
        flag = event.flag
        number = self.flows[core].values.number(flag, as_environment(decided)) if isinstance(flag, SSAValue) else flag
        part = Part(self.final.ref(event.op), _number_of(event))
        if isinstance(event, (FlagSet, BlockSet)):
            key = (core, event.pipe, event.towards, number) if isinstance(event, FlagSet) else (1 - core, number)
            return _Up(tuple(sorted((*facts.flags, (key, frozenset({part}))), key=lambda up: repr(up[0]))))
        key = (core, event.source, event.pipe, number) if isinstance(event, FlagWait) else (core, number)
        up = next((index for index, (known, _) in enumerate(facts.flags) if known == key), None)
        if up is None:
            return None if isinstance(event, BlockWait) else facts
        self.pairs |= {(setter, part) for setter in facts.flags[up][1]}
        return _Up(facts.flags[:up] + facts.flags[up + 1 :])

    def end(self, facts: _Up) -> None: ...

    def stuck(self, core: int, event: Event, facts: _Up) -> None: ...


def _number_of(event: FlagSet | FlagWait | BlockSet | BlockWait) -> int:
    """Which event of its operation it is: events are made anew each time they are asked for."""
    for number, other in enumerate(events_of(event.op)):
        if type(other) is type(event) and getattr(other, "flag", None) is event.flag:
            return number
    raise AssertionError(event)


def meeting_pairs(final: FinalModule) -> set[tuple[Part, Part]]:
    """Sets and waits of one flag that meet on some way through the functions."""
    flows = [Flow(function) for function in final.functions]
    pairing = _Pairing(final, flows)
    Walk(flows, pairing).run(_Up())
    return pairing.pairs


# ---- pieces ----------------------------------------------------------------------------------------------------------


def pieces(final: FinalModule) -> list[Piece]:
    """Everything that can be deleted, in order of text."""
    barriers = [final.ref(op) for op in final.all_ops() if isinstance(op, hivm.PipeBarrierOp)]
    found = [Piece("barrier", frozenset({Part(ref)})) for ref in barriers]
    pairs = meeting_pairs(final)
    cores = (hivm.SyncBlockSetOp, hivm.SyncBlockWaitOp)
    for pair in sorted(pairs, key=repr):
        kind = "cores" if isinstance(final.op(pair[0].ref), cores) else "pair"
        found.append(Piece(kind, frozenset(pair)))
    groups = [group for group in _connected(pairs) if len(group) > 2]
    return found + [Piece("group", group) for group in groups]


def _connected(pairs: set[tuple[Part, Part]]) -> list[frozenset[Part]]:
    groups: list[set[Part]] = []
    for pair in pairs:
        touching = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if not group & set(pair)]
        groups.append(set(pair).union(*touching))
    return sorted(map(frozenset, groups), key=lambda group: min(map(repr, group)))


# ---- deleting --------------------------------------------------------------------------------------------------------


def without(final: FinalModule, piece: Piece) -> tuple[FinalModule, dict[Operation, OpRef]]:
    """A copy without a piece, and for each of its operations where it was before."""
    copy = final.clone()
    was = {op: OpRef(function.name, number) for function in copy.functions for op, number in function.numbers.items()}
    for part in sorted(piece.parts, key=repr):
        _delete(copy.op(part.ref), part.event)
    return FinalModule(copy.module, tuple(type(f)(f.name, f.core, f.op) for f in copy.functions)), was


def _delete(op: Operation, index: int) -> None:
    if op.name.startswith("hivm."):
        op.detach()
        op.erase()
        return
    event = events_of(op)[index]
    assert isinstance(event, (FlagSet, FlagWait)) and isinstance(event.flag, SSAValue)
    none = ConstantOp(IntegerAttr(-1, i64))
    assert op.parent is not None
    op.parent.insert_ops_before([none], op)
    same = isinstance(event, FlagSet)
    operands = (9, 10) if same else (7, 8)  # of `mma_tile`
    place = next(number for number in operands if op.operands[number] is event.flag)
    op.operands[place] = none.results[0]


def _places(report: OrderReport, was: dict[Operation, OpRef]) -> set[tuple]:
    return {
        (fault.fault, fault.first and was[fault.first.op], was[fault.second.op], fault.detail)
        for fault in report.faults
    }


def outcomes(final: FinalModule, chosen: list[Piece] | None = None) -> Iterator[Outcome]:
    """Delete each piece in turn and check."""
    before = _places(check_order(final), {op: final.ref(op) for op in final.all_ops()})
    for piece in pieces(final) if chosen is None else chosen:
        deleted, was = without(final, piece)
        report = check_order(deleted)
        new = _places(report, was) - before
        order = sum(place[0] in ORDER_FAULTS for place in new)
        yield Outcome(piece, order, len(new) - order, report.complete)
