"""Who wrote this element? The last writers, followed through copies to an input, a host write or a computation.

A store is a copy where the kernel's value graph says that the stored lane is one loaded lane, moved through casts,
masks and shapes only; then the question goes on with the element that was loaded, as it was at the time of the load.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from tdist.errors import UsageError
from tdist.findings import Finding, Party
from tdist.text import did_you_mean
from tdist.trace.events import Event, NamedTensor, Trace
from tdist.trace.lanes import NOWHERE, covering, lane_offsets, memories_of, value_of
from tdist.trace.provenance import Leaf, Origin, origin_of
from tdist.trace.tensors import Names, byte_offset, size_bytes

_MOST_LINKS: Final = 64
_SPELLING: Final = re.compile(
    r"(?P<name>[^\W\d]\w*)\[(?P<index>[0-9\s,]*)\](?P<rest>(@(rank=|launch=)?[0-9]+){0,2})"  # names as Python has them
)
_HINT: Final = "spell it out[3,5], out[3,5]@1 (rank 1) or out[3,5]@1@2 (rank 1, launch 2)"


@dataclass(frozen=True, slots=True)
class Element:
    """An element of an output that somebody asks about."""

    name: str
    index: tuple[int, ...]
    rank: int = 0
    launch: int = 0

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.index))}] of rank {self.rank}, launch {self.launch}"


@dataclass(frozen=True, slots=True)
class Link:
    """One step back: `element` was last written by `who`, at `place`, with `value`.

    `kind`: store, signal, atomic, host write, host copy, input, nobody, unknown. `loaded_at`: where the copy that the
    step before this one made had loaded it. `unordered`: what race findings say of this write.
    """

    kind: str
    element: str
    text: str
    place: str = ""
    value: str = ""
    step: int = -1
    loaded_at: str = ""
    unordered: tuple[str, ...] = ()


class Spot(NamedTuple):
    """An element as it was before event `before`, in bytes of a memory; `loaded_at` is the line that took it there."""

    memory: int
    offset: int
    dtype: str
    before: int
    loaded_at: str


@dataclass(frozen=True, slots=True)
class Operand:
    """What a computation used of one tensor, and who wrote that last.

    `writers`: who, how many of the elements, and where the first of them was copied from ("" if it was no copy).
    """

    elements: str
    writers: tuple[tuple[str, int, str], ...]


@dataclass
class History:
    """The answer.

    `operation`: what computed the value at the end of the chain (`computed`), with its operands, or which number it is;
    "" where the chain ends with a write that is no store.
    """

    asked: Element
    links: list[Link] = field(default_factory=list)
    operation: str = ""
    computed: bool = False
    operands: list[Operand] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def parse_element(text: str) -> Element:
    """`out[3,5]`, `c[17]@1`, `out[3,5]@rank=1@launch=2`; without them rank 0 and launch 0.

    Raises:
        UsageError: another spelling.
    """
    found = _SPELLING.fullmatch(text.strip())
    digits = [part.strip() for part in found["index"].split(",")] if found is not None else []
    if digits == [""]:
        digits = []
    if found is None or not all(digit.isdecimal() and len(digit) < 19 for digit in digits):
        raise UsageError(f"--trace-element {text!r} names no element; {_HINT}")
    at: dict[str, int] = {}
    for part in filter(None, found["rest"].split("@")):
        key, _, number = part.rpartition("=")
        key = key or ("launch" if "rank" in at else "rank")
        if key in at or len(number) > 9:
            raise UsageError(f"--trace-element {text!r} names no element; {_HINT}")
        at[key] = int(number)
    return Element(found["name"], tuple(map(int, digits)), at.get("rank", 0), at.get("launch", 0))


def last_writers(trace: Trace, element: Element | str, findings: Iterable[Finding] = ()) -> History:
    """Follow an element of an output back to where its value comes from.

    Args:
        element: of a tensor that was named (`rt.describe(tensor, name, "output", launch)`; operators' outputs are).
        findings: of the same run; races between writers are shown beside them.

    Raises:
        UsageError: no such output, rank, launch or index.
    """
    asked = parse_element(element) if isinstance(element, str) else element
    tensor = _find(trace, asked)
    return _Search(trace, tuple(findings)).history(asked, tensor)


def check_element(asked: Element, names: Sequence[str], nranks: int, launches: int) -> None:
    """What can be known before a run.

    Raises:
        UsageError: no such output, rank or launch.
    """
    spelled = f"--trace-element {asked.name}[{','.join(map(str, asked.index))}]"
    if asked.name not in names:
        hint = did_you_mean(asked.name, names)
        raise UsageError(f"{spelled}: there is no output {asked.name!r}{hint}; there are: {', '.join(names)}")
    if asked.rank >= nranks:
        raise UsageError(f"{spelled}: there is no rank {asked.rank}; ranks are 0 to {nranks - 1}")
    if asked.launch >= launches:
        raise UsageError(f"{spelled}: there is no launch {asked.launch}; launches are 0 to {launches - 1}")


def _find(trace: Trace, asked: Element) -> NamedTensor:
    named = [tensor for tensor in trace.tensors if tensor.role != "argument"]
    outputs = [tensor for tensor in named if tensor.role == "output"] or named
    check = (
        list(dict.fromkeys(t.name for t in outputs)),
        trace.nranks,
        max((t.launch for t in outputs), default=0) + 1,
    )
    check_element(asked, *check)
    mine = [t for t in outputs if (t.name, t.rank) == (asked.name, asked.rank) and t.launch in (asked.launch, -1)]
    if not mine:
        raise UsageError(
            f"--trace-element: rank {asked.rank} did not get as far as {asked.name} of launch {asked.launch}"
        )
    tensor = mine[-1]
    fits = len(asked.index) == len(tensor.shape) and all(i < n for i, n in zip(asked.index, tensor.shape, strict=True))
    if not fits:
        shape = ", ".join(map(str, tensor.shape))
        got = ", ".join(map(str, asked.index))
        raise UsageError(f"--trace-element {asked.name}[{got}] is outside of {asked.name}, whose shape is [{shape}]")
    return tensor


class _Search:
    """Who wrote what when, over one trace."""

    def __init__(self, trace: Trace, findings: Sequence[Finding]) -> None:
        self.trace = trace
        self.names = Names(trace)
        self.races = [found for found in findings if found.kind == "tdist.race"]
        self.writes: dict[int, list[Event]] = {}
        self.loads: dict[tuple[int, int], list[int]] = {}
        self.stores: dict[tuple[int, int], list[int]] = {}
        for event in trace.events:
            for memory in memories_of(event):
                self.writes.setdefault(memory, []).append(event)
            if event.kind in ("load", "store"):
                table = self.loads if event.kind == "load" else self.stores
                table.setdefault((event.actor, event.data["number"]), []).append(event.seq)

    def last(self, memory: int, offsets: np.ndarray, before: int) -> list[tuple[Event, int] | None]:
        """For each byte the write before event `before` that wrote it last, with its lane."""
        found: list[tuple[Event, int] | None] = [None] * len(offsets)
        open_at = np.arange(len(offsets))
        for event in reversed(self.writes.get(memory, [])):
            if event.seq >= before:
                continue
            lanes = covering(self.trace, event, memory, offsets[open_at])
            for index in np.flatnonzero(lanes != NOWHERE):
                found[open_at[index]] = (event, int(lanes[index]))
            open_at = open_at[lanes == NOWHERE]
            if not len(open_at):
                break
        return found

    def history(self, asked: Element, tensor: NamedTensor) -> History:
        """From the end of the run back."""
        result = History(asked)
        end = len(self.trace.events) + self.trace.dropped
        self._follow(result, Spot(tensor.memory, byte_offset(tensor, asked.index), tensor.dtype, end, ""))
        if self.trace.dropped:
            result.notes.append(f"trace truncated: {self.trace.dropped} later events were not kept, nor who wrote then")
        return result

    def _follow(self, result: History, spot: Spot, explain: bool = True) -> None:
        """Add the links from `spot` back. `explain`: name the operands of the computation that ends them."""
        for _ in range(_MOST_LINKS):
            (found,) = self.last(spot.memory, np.array([spot.offset]), spot.before)
            element = str(result.asked) if not result.links else self._element(spot)
            if found is None:
                result.links.append(self._nobody(element, spot.loaded_at, first=not result.links))
                return
            event, lane = found
            result.links.append(self._link(event, lane, element, spot.dtype, spot.loaded_at))
            back = self._back(event, lane, result, explain)
            if back is None:
                return
            spot = back
        result.notes.append(f"the chain goes on; {_MOST_LINKS} links are shown")

    def _element(self, spot: Spot) -> str:
        return self.names.element(self.trace.events[spot.before], spot.memory, spot.offset, size_bytes(spot.dtype))

    def _nobody(self, element: str, loaded_at: str, first: bool) -> Link:
        what = "an output that nobody wrote" if first else "memory that nobody wrote"
        return Link("nobody", element, f"{what}: it holds poison", loaded_at=loaded_at)

    def _link(self, event: Event, lane: int, element: str, dtype: str, loaded_at: str) -> Link:
        place, actor = self.trace.place(event), self.trace.actor(event)
        kind, who = _KINDS[event.kind], f"{event.kind} by {actor}"
        if event.kind == "register":
            who = f"input: memory of rank {actor.rank}'s host, as its first launch got it"
        elif event.kind == "store" and self.trace.memories[event.data["m"]].rank != actor.rank:
            who = f"store by {actor}, into rank {self.trace.memories[event.data['m']].rank}'s memory"
        value = value_of(self.trace, event, lane, dtype)
        text = "" if value is None else str(value)
        at = "" if place is None else str(place)
        return Link(kind, element, who, at, text, event.step, loaded_at, self._unordered(event))

    def _unordered(self, event: Event) -> tuple[str, ...]:
        """What race findings say of a write: with whom it was in one, or who else was at its line.

        A finding is kept once for a pair of lines, with the ranks that showed it first.
        """
        place, actor = self.trace.place(event), self.trace.actor(event)
        told: list[str] = []
        for found in self.races if place is not None else ():
            here = [party for party in found.parties if (party.file, party.line) == (place.file, place.line)]  # pyright: ignore[reportOptionalMemberAccess]
            mine = next((party for party in here if (party.rank, party.program) == (actor.rank, actor.program)), None)
            if mine is not None:
                others = [_party(party) for party in found.parties if party is not mine]
                told += [f"unordered with the {other} (race)" for other in others]
            elif here:
                told.append(f"a race was found at this line, of the {' and the '.join(map(_party, found.parties))}")
        return tuple(dict.fromkeys(told))

    def _back(self, event: Event, lane: int, result: History, explain: bool) -> Spot | None:
        """Where the value of a write was before; None where the chain ends."""
        if event.kind == "host copy":
            source = event.data["from"]
            offset = int(lane_offsets(self.trace, source).reshape(-1)[lane])
            return Spot(source["m"], offset, source["dtype"], event.seq, str(self.trace.place(event) or ""))
        if event.kind != "store":
            return None
        graph = self._graph(event)
        if graph is None or event.data["number"] < 0:
            return None
        shape = event.data["shape"]
        index = tuple(int(i) for i in np.unravel_index(lane, shape)) if shape else ()
        origin = origin_of(graph, event.data["number"], index)
        if origin.operation:
            self._explain(origin, event, result, explain)
            return None
        return self._copied(origin, event, lane, result)

    def _graph(self, event: Event) -> dict[str, Any] | None:
        number = self.trace.actor(event).graph
        return self.trace.graphs[number] if 0 <= number < len(self.trace.graphs) else None

    def _copied(self, origin: Origin, event: Event, lane: int, result: History) -> Spot | None:
        """The loaded element that a store copied; where a mask or branch chose, the value decides between them."""
        stored = value_of(self.trace, event, lane, event.data["dtype"])
        found = [spot for leaf in origin.loads for spot in [self._loaded(leaf, event)] if spot is not None]
        equal = [spot for spot in found if _same(self._value_before(spot), stored, event.data["dtype"])]
        fills = origin.fills if len(found) < len(origin.loads) else {}
        numbers = [value for value in (*origin.constants.values(), *fills.values()) if value is not None]
        if not found or (not equal and any(_same(value, stored, event.data["dtype"]) for value in numbers)):
            result.operation = _leaf(origin.constants, fills, stored)
            return None
        fitting = equal or found
        if len(fitting) > 1:
            places = " or ".join(sorted({spot.loaded_at for spot in fitting}))
            result.notes.append(f"a mask or branch chose between loads at {places}; the later one is followed")
        spot = max(fitting, key=lambda spot: spot.before)
        if not equal and spot.dtype == event.data["dtype"] and self._value_before(spot) is not None:
            what = f"the value stored is not what was last written to what {spot.loaded_at} loaded"
            result.notes.append(f"{what}: it was rounded on the way, or nothing orders the two")
        return spot

    def _value_before(self, at: Spot) -> Any:
        (found,) = self.last(at.memory, np.array([at.offset]), at.before)
        return None if found is None else value_of(self.trace, found[0], found[1], at.dtype)

    def _loaded(self, leaf: Leaf, event: Event) -> Spot | None:
        """The element that a lane of the last run of a load before `event` was; None if the lane was off."""
        runs = self.loads.get((event.actor, leaf.number), [])
        at = bisect_left(runs, event.seq) - 1
        if at < 0 or None in leaf.lane:
            return None
        load = self.trace.events[runs[at]]
        offsets = lane_offsets(self.trace, load.data)
        offset = int(offsets[leaf.lane]) if offsets.ndim else int(offsets)
        if offset < 0:
            return None
        return Spot(load.data["m"], offset, load.data["dtype"], load.seq, str(self.trace.place(load) or ""))

    # ---------------------------------------------------------------- computations

    def _explain(self, origin: Origin, event: Event, result: History, operands: bool) -> None:
        """Name what computed the value, and of each tensor it used the elements and their last writers."""
        where = f" at {origin.place[0]}:{origin.place[1]}" if origin.place else ""
        leaves = f" from {', '.join(origin.constants)}" if origin.constants and not origin.operands else ""
        result.operation = f"{origin.operation.split('.')[-1]}{where}{leaves}"
        result.computed = True
        for leaf in origin.operands if operands else ():
            used = [self._used(leaf, load) for load in self._runs(leaf, event)]
            if used:
                result.operands.append(self._operand(used))

    def _runs(self, leaf: Leaf, event: Event) -> list[Event]:
        """The runs of a load that went into a store: the last one, or in a loop all since the store ran before."""
        runs = self.loads.get((event.actor, leaf.number), [])
        end = bisect_left(runs, event.seq)
        start = end - 1
        if leaf.carried:
            stores = self.stores[event.actor, event.data["number"]]
            at = bisect_left(stores, event.seq) - 1
            start = min(end - 1, bisect_left(runs, stores[at])) if at >= 0 else 0
        return [self.trace.events[seq] for seq in runs[max(start, 0) : end]]

    def _used(self, leaf: Leaf, load: Event) -> tuple[Event, np.ndarray]:
        offsets = lane_offsets(self.trace, load.data)
        index = tuple(slice(None) if i is None else i for i in leaf.lane)
        picked = np.asarray(offsets[index] if len(index) == offsets.ndim else offsets).reshape(-1)
        return load, picked[picked >= 0]

    def _operand(self, used: list[tuple[Event, np.ndarray]]) -> Operand:
        """All runs of one load together: they read one tensor, as a rule."""
        first = used[-1][0]
        memory = first.data["m"]
        same = [(load, offsets) for load, offsets in used if load.data["m"] == memory]
        offsets = np.unique(np.concatenate([offsets for _, offsets in same]))
        tensor = self.names.operand(first, memory)
        spot = self.names.spot(tensor, memory, offsets, first.data["size"])
        place = self.trace.place(first)
        line = f", loaded at {place}" if place else ""
        writers: dict[str, list[Spot]] = {}
        for load, mine in same:
            for offset, found in zip(mine, self.last(memory, mine, load.seq), strict=True):
                at = Spot(memory, int(offset), load.data["dtype"], load.seq, "")
                writers.setdefault(self._writer(found), []).append(at)
        told = tuple((who, len(spots), self._source(spots[0])) for who, spots in writers.items())
        return Operand(f"{spot} of rank {self.trace.memories[memory].rank}{line}", told)

    def _source(self, spot: Spot) -> str:
        """What an element is a copy of, as far back as that can be followed; "" if it is no copy."""
        chain = History(Element("", ()))
        self._follow(chain, spot, explain=False)
        if len(chain.links) < 2:
            return ""
        last = chain.links[-1]
        return f"{last.element} ({last.kind})"

    def _writer(self, found: tuple[Event, int] | None) -> str:
        if found is None:
            return "nobody (poison)"
        event = found[0]
        place = self.trace.place(event)
        actor = self.trace.actor(event)
        if event.kind == "register":
            return f"input: memory of rank {actor.rank}'s host"
        return f"{event.kind} by {actor}" + (f" at {place}" if place else "")


def _party(party: Party) -> str:
    return f"{party.op} of rank {party.rank}, program {party.program} at {party.file}:{party.line}"


def _leaf(constants: Mapping[str, Any], fills: Mapping[str, Any], stored: Any) -> str:
    """Which of the numbers a value is, in words."""
    equal = [name for name, value in constants.items() if value is not None and value == stored]
    if equal or (constants and not fills):
        return ", ".join(equal or constants)
    return "a masked-off lane, " + (", ".join(fills) or "which holds poison")


def _same(value: Any, stored: Any, dtype: str) -> bool:
    """Whether a stored value may be this one, cast to what was stored; values that were not kept may be anything."""
    if value is None or stored is None:
        return True
    if value == stored or (value != value and stored != stored):
        return True
    try:
        cast = torch.tensor(value).to(getattr(torch, dtype)).item()
    except (OverflowError, RuntimeError):
        return False
    return cast == stored


_KINDS: Final = {
    "store": "store",
    "atomic": "atomic",
    "atomic word": "atomic",
    "notify": "signal",
    "host write": "host write",
    "host copy": "host copy",
    "register": "input",
}


def _lines(history: History) -> list[str]:
    """The answer as text, a line for each link."""
    lines = [f"{history.asked}"]
    for number, link in enumerate(history.links):
        pad = "  " * (number + 1)
        if number:
            loaded = f", loaded at {link.loaded_at}" if link.loaded_at else ""
            lines.append(f"{pad[2:]}copied from {link.element}{loaded}")
        value = f" = {link.value}" if link.value else ""
        at = f" at {link.place}" if link.place else ""
        step = f" (step {link.step})" if link.step >= 0 and link.kind != "input" else ""
        lines.append(f"{pad}{link.text}{at}{step}{value}")
        lines += [f"{pad}  {told}" for told in link.unordered]
    pad = "  " * (len(history.links) + 1)
    if history.operation:
        how = "computed by" if history.computed else "from"
        lines.append(f"{pad}{how} {history.operation}{', from' if history.operands else ''}")
    for operand in history.operands:
        lines.append(f"{pad}  {operand.elements}")
        for who, count, source in operand.writers:
            copied = f", {'the first ' * (count > 1)}copied from {source}" if source else ""
            lines.append(f"{pad}    {count} element{'s' * (count > 1)}: {who}{copied}")
    return [*lines, *(f"  note: {note}" for note in history.notes)]
