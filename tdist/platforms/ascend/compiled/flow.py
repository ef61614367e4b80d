"""The flow graph of a core's function, and walks over the functions of one or both kinds of core to a fixpoint.

A position is a node together with what has been decided there (`values.Choice`, turns of short loops). Functions of a
mix kernel run side by side; since order is judged by what synchronises them, and not by time, one interleaving stands
for all that take the same decisions. What both halves decide (how often a loop goes round) they decide alike: whoever
comes first is followed by the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from typing import Generic, Protocol, Self, TypeVar

from xdsl.dialects import cf, func, scf
from xdsl.ir import Block, Operation, SSAValue

from tdist.platforms.ascend.compiled.events import Event, events_of
from tdist.platforms.ascend.compiled.final_module import CoreFunction
from tdist.platforms.ascend.compiled.memory import Memory
from tdist.platforms.ascend.compiled.values import Choice, Key, Turns, Values

_OF_FLOW = frozenset(
    (func.ReturnOp, scf.YieldOp, scf.ConditionOp, scf.ForOp, scf.WhileOp, scf.IfOp, cf.BranchOp, cf.ConditionalBranchOp)
)
Decided = tuple[tuple[Key, int], ...]
"""An environment that can be a part of a key: sorted."""

Decision = tuple[Hashable, int]
"""What is decided, as both halves of a mix kernel would describe it, and how."""

# ---- graph ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Node:
    """A place in a function. What follows it is a matter of its kind."""

    next: Node | None = None


@dataclass(slots=True, eq=False)
class EventNode(Node):
    """Something happens."""

    event: Event = field(kw_only=True)


@dataclass(slots=True, eq=False)
class DecideNode(Node):
    """Choices get their values."""

    choices: tuple[Choice, ...] = field(kw_only=True)


@dataclass(slots=True, eq=False)
class ForgetNode(Node):
    """The end of a turn, or of a loop: what was decided in it holds no longer; a counter goes on by `step`."""

    keys: frozenset[Key] = field(kw_only=True)
    counter: Key | None = None
    step: int = 0


@dataclass(slots=True, eq=False)
class CountNode(Node):
    """Before a loop that is walked turn by turn: its counter gets its first value."""

    counter: Key = field(kw_only=True)
    first: int = field(kw_only=True)


@dataclass(slots=True, eq=False)
class LoopNode(Node):
    """The head of a `for`: `body` once more, or `next`."""

    body: Node | None = None
    counter: Key = field(kw_only=True)
    limit: SSAValue = field(kw_only=True)
    turns: Turns | None = field(kw_only=True)
    signature: Hashable | None = field(kw_only=True)
    meets: bool = False  # a core waits for another in it


@dataclass(slots=True, eq=False)
class BranchNode(Node):
    """`next` if the condition holds, else `other`."""

    other: Node | None = None
    condition: SSAValue = field(kw_only=True)


@dataclass(slots=True, eq=False)
class EndNode(Node):
    """The function returns."""


@dataclass(frozen=True, slots=True)
class Step:
    """One way to go on from a position. `decisions` are such as the other half of a mix kernel takes too."""

    node: Node
    decided: Decided
    decisions: tuple[Decision, ...] = ()


@cache
def as_environment(decided: Decided) -> Mapping[Key, int]:
    """Decisions as a mapping."""
    return dict(decided)


class Flow:
    """The flow graph of one function, from `entry`."""

    def __init__(self, function: CoreFunction) -> None:
        self.function = function
        self.values = Values(function)
        self.memory = Memory(self.values)
        self.loops: list[LoopNode] = []
        self._blocks: dict[Block, DecideNode] = {}
        self.entry: Node = self._entry_of(function.op.body.blocks[0], None)

    # ---- building, from behind ---------------------------------------------------------------------------------------

    def _entry_of(self, block: Block, after: Node | None) -> DecideNode:
        """The node where a block begins; `after` is where its terminator goes on, if that does not say so itself."""
        found = self._blocks.get(block)
        if found is None:
            found = self._blocks[block] = DecideNode(choices=self.values.choices.get(block, ()))
            found.next = self._operations(list(block.ops), after)
        return found

    def _operations(self, ops: list[Operation], after: Node | None) -> Node | None:
        for op in reversed(ops):
            after = self._operation(op, after)
        return after

    def _operation(self, op: Operation, after: Node | None) -> Node | None:
        return self._flow(op, after) if type(op) in _OF_FLOW else self._events(op, after)

    def _events(self, op: Operation, after: Node | None) -> Node | None:
        for event in reversed(events_of(op)):
            after = EventNode(after, event=event)
        return after

    def _flow(self, op: Operation, after: Node | None) -> Node | None:
        match op:
            case func.ReturnOp():
                return EndNode()
            case scf.YieldOp() | scf.ConditionOp():
                return after
            case scf.ForOp():
                return self._for(op, after)
            case scf.WhileOp():
                return self._while(op, after)
            case scf.IfOp():
                sides = [self._side(region.blocks, after) for region in (op.true_region, op.false_region)]
                return BranchNode(sides[0], sides[1], condition=op.cond)
            case cf.BranchOp():
                return self._entry_of(op.successor, None)
            case cf.ConditionalBranchOp():
                ends = [self._entry_of(block, None) for block in (op.then_block, op.else_block)]
                return BranchNode(ends[0], ends[1], condition=op.cond)
        raise AssertionError(op.name)

    def _side(self, blocks: Sequence[Block], after: Node | None) -> Node | None:
        return self._operations(list(blocks[0].ops), after) if blocks else after

    def _keys(self, *blocks: Block) -> frozenset[Key]:
        return frozenset(choice.key for block in blocks for choice in self.values.choices.get(block, ()))

    def _for(self, op: scf.ForOp, after: Node | None) -> Node:
        counter = self.values.key(op.body.block.args[0])
        turns = self.values.turns(op)
        behind = ForgetNode(after, keys=frozenset({counter}))
        signature = self.values.placed("body", op.body.block)
        meets = self.values.meets(op.body.block)
        head = LoopNode(behind, counter=counter, limit=op.ub, turns=turns, signature=signature, meets=meets)
        self.loops.append(head)
        end = ForgetNode(head, keys=self._keys(op.body.block))
        if turns is not None:
            end.counter, end.step = counter, turns.step
        head.body = self._entry_of(op.body.block, end)
        return CountNode(head, counter=counter, first=turns.first) if turns is not None else head

    def _while(self, op: scf.WhileOp, after: Node | None) -> Node:
        before, body = op.before_region.block, op.after_region.block
        keys = self._keys(before, body)
        again = ForgetNode(keys=keys)
        condition = before.last_op
        assert isinstance(condition, scf.ConditionOp)
        branch = BranchNode(self._entry_of(body, again), ForgetNode(after, keys=keys), condition=condition.operands[0])
        again.next = self._entry_of(before, branch)
        return again.next

    # ---- walking -----------------------------------------------------------------------------------------------------

    def steps(self, node: Node, decided: Decided) -> Iterator[Step]:
        """Every way to go on from a node that is no event."""
        match node:
            case DecideNode():
                yield from self._decide(node, node.choices, decided)
            case ForgetNode():
                yield Step(_there(node.next), _forget(node, decided))
            case CountNode():
                yield Step(_there(node.next), _with(decided, node.counter, node.first))
            case LoopNode():
                yield from self._go_round(node, decided)
            case BranchNode():
                holds = self.values.number(node.condition, as_environment(decided))
                if holds is None or holds:
                    yield Step(_there(node.next), decided)
                if holds is None or not holds:
                    yield Step(_there(node.other), decided)

    def _decide(
        self, node: DecideNode, choices: Sequence[Choice], decided: Decided, decisions: tuple[Decision, ...] = ()
    ) -> Iterator[Step]:
        if not choices:
            yield Step(_there(node.next), decided, decisions)
            return
        first, *rest = choices
        if self.values.number(first.value, as_environment(decided)) is not None:
            yield from self._decide(node, rest, decided, decisions)
            return
        for value in first.values:
            told = decisions if first.signature is None else (*decisions, (first.signature, value))
            yield from self._decide(node, rest, _with(decided, first.key, value), told)

    def _go_round(self, node: LoopNode, decided: Decided) -> Iterator[Step]:
        """A loop that is walked turn by turn ends where its limit says, or may end anywhere if that is not decided."""
        environment = as_environment(decided)
        limit = self.values.number(node.limit, environment) if node.turns is not None else None
        counter = environment.get(node.counter, 0)
        told = node.signature is not None and limit is None
        if limit is None:
            ends, goes_on = True, node.turns is None or counter < node.turns.limit
        else:
            ends, goes_on = counter >= limit, counter < limit
        if goes_on:
            yield Step(_there(node.body), decided, ((node.signature, 1),) if told else ())
        if ends:
            yield Step(_there(node.next), decided, ((node.signature, 0),) if told else ())

    def deciding(self) -> list[Hashable | None]:
        """The signatures of loops and branches in which a core waits for another, where their course is not known."""
        loops: list[Hashable | None] = [
            loop.signature for loop in self.loops if loop.meets and not (loop.turns and self.values.settled(loop.limit))
        ]
        branches = [op for op in self.function.ops if isinstance(op, scf.IfOp)]
        return loops + [None for op in branches if any(map(self.values.meets, _sides(op)))]

    def signatures(self) -> Counter[Hashable]:
        """What is decided in this function, as the other half would describe it: how many places of each."""
        places = [loop.signature for loop in self.loops]
        places += [choice.signature for choices in self.values.choices.values() for choice in choices]
        return Counter(signature for signature in places if signature is not None)


def _sides(op: scf.IfOp) -> list[Block]:
    return [block for region in (op.true_region, op.false_region) for block in region.blocks]


def _there(node: Node | None) -> Node:
    assert node is not None, "a block without terminator"
    return node


def _with(decided: Decided, key: Key, value: int) -> Decided:
    return tuple(sorted({**dict(decided), key: value}.items()))


def _forget(node: ForgetNode, decided: Decided) -> Decided:
    rest = {key: value for key, value in decided if key not in node.keys}
    if node.counter is not None:
        rest[node.counter] += node.step
    return tuple(sorted(rest.items()))


# ---- fixpoint -------------------------------------------------------------------------------------------------------


class Facts(Protocol):
    """What is known at a set of positions. Facts of different `shape` are never joined."""

    @property
    def shape(self) -> Hashable: ...

    def join(self, other: Self) -> Self:
        """What holds if either may be the case; `self` itself if `other` adds nothing."""
        ...


F = TypeVar("F", bound=Facts)


class Semantics(Protocol[F]):
    """What events do to facts."""

    def apply(self, core: int, event: Event, decided: Decided, facts: F) -> F | None:
        """The facts after an event of a core; None if the event cannot happen yet: the core waits for another."""
        ...

    def end(self, facts: F) -> None:
        """Every core has returned."""
        ...

    def stuck(self, core: int, event: Event, facts: F) -> None:
        """No core can go on; this one waits."""
        ...


Queue = tuple[Decision, ...]

MOST_AHEAD = 4
"""Decisions that a core remembers for the other; what it decides beyond is not held against that one."""


@dataclass(frozen=True, slots=True)
class _Key:
    """Where each core is, what the other half has yet to follow, and the shape of the facts."""

    positions: tuple[tuple[int, Decided], ...]
    ahead: tuple[Queue, ...]  # decisions that core i has taken and the other has not yet followed
    shape: Hashable


class TooLarge(Exception):
    """A walk took more steps than it may."""


class Walk(Generic[F]):
    """Walks the functions side by side until nothing new can be met."""

    def __init__(self, flows: Sequence[Flow], semantics: Semantics[F], limit: int = 100_000) -> None:
        self.flows = flows
        self.semantics = semantics
        self.limit = limit
        self._nodes: list[Node] = []
        self._numbers: dict[Node, int] = {}
        self._meetings: set[Node] = set()
        self._shared = _shared_signatures(flows)
        self.met: dict[_Key, F] = {}
        self._todo: list[tuple[int, int, _Key]] = []
        self._waiting: set[_Key] = set()
        self._ready: list[tuple[_Key, F]] = []
        self._pushed = 0
        self.steps = 0
        for flow in flows:
            self._survey(flow.entry)

    @property
    def agreed(self) -> bool:
        """Whether both halves decide alike wherever it matters to who waits for whom."""
        return all(signature in self._shared for flow in self.flows for signature in flow.deciding())

    def _survey(self, entry: Node) -> None:
        """Number a function's nodes: inside loops before behind them, so that a loop settles before what follows it."""
        order, ways, stack, seen = [], Counter[Node](), [(entry, iter(_nexts(entry)))], {entry}
        while stack:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                order.append(stack.pop()[0])
                continue
            ways[following] += 1
            if following not in seen:
                seen.add(following)
                stack.append((following, iter(_nexts(following))))
        for node in reversed(order):
            self._numbers[node] = len(self._nodes)
            self._nodes.append(node)
        self._meetings.update(node for node, count in ways.items() if count > 1)

    def run(self, facts: F) -> int:
        """From the entries on; the number of steps taken.

        Raises:
            TooLarge: There are more than the limit.
        """
        start = tuple((self._numbers[flow.entry], ()) for flow in self.flows)
        self._reach(start, ((),) * len(self.flows), facts)
        while self._todo:
            key = heappop(self._todo)[2]
            self._waiting.discard(key)
            self._ready.append((key, self.met[key]))
            while self._ready:
                self._advance(*self._ready.pop())
                self.steps += 1
            if self.steps > self.limit:
                raise TooLarge
        return self.steps

    def _reach(self, positions: tuple[tuple[int, Decided], ...], ahead: tuple[Queue, ...], facts: F) -> None:
        key = _Key(positions, ahead, facts.shape)
        old = self.met.get(key)
        joined = facts if old is None else old.join(facts)
        if joined is old:
            return
        self.met[key] = joined
        if key not in self._waiting:
            self._waiting.add(key)
            self._pushed += 1
            heappush(self._todo, (sum(number for number, _ in positions), self._pushed, key))

    def _advance(self, key: _Key, facts: F) -> None:
        """Let one core take a step: one that is not ahead of the other, if it can."""
        cores = sorted(range(len(self.flows)), key=lambda core: self._leads(key, core))
        waiting: list[tuple[int, Event]] = []
        for core in cores:
            node = self._nodes[key.positions[core][0]]
            if isinstance(node, EndNode):
                continue
            if not isinstance(node, EventNode):
                self._decide(key, core, node, facts)
                return
            after = self.semantics.apply(core, node.event, key.positions[core][1], facts)
            if after is not None:
                self._move(key, core, Step(_there(node.next), key.positions[core][1]), key.ahead, after)
                return
            waiting.append((core, node.event))
        for core, event in waiting:
            self.semantics.stuck(core, event, facts)
        if not waiting:
            self.semantics.end(facts)

    def _leads(self, key: _Key, core: int) -> bool:
        """Whether a core is about to decide something while the other has yet to follow it."""
        return bool(key.ahead[core]) and self._decides(core, self._nodes[key.positions[core][0]])

    def _decides(self, core: int, node: Node) -> bool:
        if isinstance(node, LoopNode):
            return node.signature in self._shared
        return isinstance(node, DecideNode) and any(choice.signature in self._shared for choice in node.choices)

    def _decide(self, key: _Key, core: int, node: Node, facts: F) -> None:
        for step in self.flows[core].steps(node, key.positions[core][1]):
            ahead = key.ahead
            for decision in step.decisions:
                if ahead is not None and decision[0] in self._shared:
                    ahead = _follow(ahead, core, decision)
            if ahead is not None:
                self._move(key, core, step, ahead, facts)

    def _move(self, key: _Key, core: int, step: Step, ahead: tuple[Queue, ...], facts: F) -> None:
        positions = list(key.positions)
        positions[core] = (self._numbers[step.node], step.decided)
        if step.node in self._meetings:
            self._reach(tuple(positions), ahead, facts)
        else:  # only one way leads here: nothing to join with
            self._ready.append((_Key(tuple(positions), ahead, facts.shape), facts))


def _nexts(node: Node) -> list[Node]:
    """The nodes that may follow; what leaves a loop first, so that a search numbers it last."""
    inner = node.body if isinstance(node, LoopNode) else node.other if isinstance(node, BranchNode) else None
    return [following for following in (node.next, inner) if following is not None]


def _follow(ahead: tuple[Queue, ...], core: int, decision: Decision) -> tuple[Queue, ...] | None:
    """The queues after a decision; None if the other core has decided otherwise."""
    other = 1 - core
    expected = next((index for index, known in enumerate(ahead[other]) if known[0] == decision[0]), None)
    queues = list(ahead)
    if expected is None:
        queues[core] = (*ahead[core], decision)[:MOST_AHEAD]
    elif ahead[other][expected] != decision:
        return None
    else:
        queues[other] = ahead[other][:expected] + ahead[other][expected + 1 :]
    return tuple(queues)


def _shared_signatures(flows: Sequence[Flow]) -> frozenset[Hashable]:
    """What both halves decide, in equally many places."""
    if len(flows) != 2:
        return frozenset()
    first, second = (flow.signatures() for flow in flows)
    return frozenset(signature for signature, count in first.items() if second[signature] == count)


__all__ = [
    "BranchNode",
    "Decided",
    "EndNode",
    "EventNode",
    "Facts",
    "Flow",
    "LoopNode",
    "Node",
    "Semantics",
    "Step",
    "TooLarge",
    "Walk",
    "as_environment",
]
