"""A drawing of a run's protocol: signals × writers × waiters × epochs, and barriers.

Slots of one tensor that the same lines signal and wait for are one group. Of each group the drawing shows who writes
(line, ranks, programs), how often each rank signals each other one, who waits, and each value that was signalled or
waited for, in order, with how often that was.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tdist.trace.events import Event, Trace
from tdist.trace.svg import LINE_HEIGHT, Canvas, text_width
from tdist.trace.tensors import Names, coordinates

_LEFT, _GAP, _PAD, _CELL_PAD = 20, 56, 8, 6
_MOST_RANKS: Final = 16
"""Ranks of the matrix of who signals whom."""
_MOST_VALUES: Final = 12
_SLOT_BYTES: Final = 64


@dataclass
class Slot:
    """One synchronisation word: what was done to it, in order. `at`: byte offset in its memory."""

    memory: int
    at: int
    size: int
    writes: list[Event] = field(default_factory=list)
    waits: list[Event] = field(default_factory=list)


@dataclass
class Group:
    """Slots that behave alike. `index` texts say which elements of `tensor` they are."""

    tensor: str
    elements: str
    slots: list[Slot]

    @property
    def writes(self) -> list[Event]:
        return sorted(event for slot in self.slots for event in slot.writes)

    @property
    def waits(self) -> list[Event]:
        return sorted(event for slot in self.slots for event in slot.waits)


def groups_of(trace: Trace) -> list[Group]:
    """The signal slots of a trace, those that the same lines write and wait for together; in order of first use."""
    slots: dict[tuple[int, int], Slot] = {}
    for event in trace.events:
        data = event.data
        if event.kind in ("notify", "atomic word"):
            _slot(slots, data["m"], data["at"], data["size"]).writes.append(event)
        elif event.kind in ("wait", "poll") and data["m"] >= 0:
            for number in range(data["n"] if event.kind == "wait" else 1):
                _slot(slots, data["m"], data["at"] + number * _SLOT_BYTES, data["size"]).waits.append(event)
    alike: dict[tuple, list[Slot]] = {}
    for slot in slots.values():
        alike.setdefault(_behaviour(trace, slot), []).append(slot)
    names = Names(trace)
    return [_named(trace, names, members) for members in alike.values()]


def _slot(slots: dict[tuple[int, int], Slot], memory: int, at: int, size: int) -> Slot:
    return slots.setdefault((memory, at), Slot(memory, at, size))


def _behaviour(trace: Trace, slot: Slot) -> tuple:
    """What slots of one group have in common: the tensor, the lines that write and those that wait."""
    group = trace.memories[slot.memory].peer
    return group, slot.size, *(frozenset((e.kind, e.site) for e in events) for events in (slot.writes, slot.waits))


def _named(trace: Trace, names: Names, slots: list[Slot]) -> Group:
    import numpy as np

    first = slots[0]
    tensor = names.tensor((first.writes or first.waits)[0], first.memory)
    label = tensor.name if tensor is not None else trace.memories[first.memory].label
    offsets = np.unique(np.array([slot.at for slot in slots], dtype=np.int64))
    columns = coordinates(tensor, offsets) if tensor is not None and len(tensor.shape) == 1 else None
    numbers = columns[:, 0].tolist() if columns is not None else (offsets // first.size).tolist()
    return Group(label, _elements(numbers), slots)


def _elements(numbers: Sequence[int]) -> str:
    """`elements 0..112, every 16th`, or the first few."""
    if len(numbers) == 1:
        return f"element {numbers[0]}"
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    if len(steps) == 1:
        step = steps.pop()
        return f"elements {numbers[0]}..{numbers[-1]}" + (f", {step} apart" if step > 1 else "")
    return f"{len(numbers)} elements from {numbers[0]} to {numbers[-1]}"


def protocol_map(trace: Trace) -> str:
    """The drawing, as the text of an SVG file. Equal traces give equal bytes."""
    canvas = Canvas("Signals, writers, waiters and epochs of a traced run")
    kernels = dict.fromkeys(actor.kernel for actor in trace.actors if actor.kernel)
    canvas.text(_LEFT, 16, f"Protocol of {', '.join(kernels) or 'no kernel'} on {trace.nranks} ranks", "strong")
    y = 16 + 2 * LINE_HEIGHT
    groups = groups_of(trace)
    for group in groups:
        y = _draw_group(canvas, trace, group, y) + 2 * LINE_HEIGHT
    for lines in _barriers(trace):
        canvas.lines(_LEFT, y, lines)
        y += (len(lines) + 1) * LINE_HEIGHT
    if y == 16 + 2 * LINE_HEIGHT:
        canvas.text(_LEFT, y, "no signal, wait or barrier in this run")
    if trace.dropped:
        canvas.text(_LEFT, y, f"trace truncated: {trace.dropped} later events were not kept", "bad")
    return canvas.to_text()


Lines = list[tuple[str, str]]


def _draw_group(canvas: Canvas, trace: Trace, group: Group, y: int) -> int:
    """Draw one group from `y` on; where it ends."""
    canvas.lines(_LEFT, y, _header(trace, group))
    top = y + 2 * LINE_HEIGHT + _PAD
    writers, waiters = _writers(trace, group), _waiters(trace, group)
    left_width = max(text_width(text) for _, text in writers) + 2 * _PAD
    matrix, cell = _matrix(trace, group)
    middle = _LEFT + left_width + _GAP
    middle_width = max([cell * (1 + trace.nranks), text_width(_MATRIX)] if matrix else [text_width(_MANY)])
    right = middle + middle_width + _GAP
    heights = [_box(canvas, _LEFT, top, writers), _draw_matrix(canvas, middle, top, matrix, cell)]
    heights.append(_box(canvas, right, top, waiters))
    level = top + LINE_HEIGHT // 2 + _PAD
    if group.writes:
        canvas.arrow(_LEFT + left_width, level, middle - 6, level)
    if group.waits:
        canvas.arrow(middle + middle_width, level, right - 6, level)
    return _draw_values(canvas, _LEFT, top + max(heights) + _PAD, _values(group))


def _header(trace: Trace, group: Group) -> Lines:
    owners = {trace.memories[slot.memory].rank for slot in group.slots}
    each = len({slot.at for slot in group.slots})
    size = group.slots[0].size
    text = f"{group.tensor}: {each} slot{'s' * (each > 1)} on {_ranks(owners)}"
    return [("strong", text), ("faint", f"{group.elements}; words of {8 * size} bits")]


def _box(canvas: Canvas, x: int, y: int, lines: Lines) -> int:
    """A box around lines; its height."""
    width = max(text_width(text) for _, text in lines) + 2 * _PAD
    height = len(lines) * LINE_HEIGHT + 2 * _PAD
    canvas.rect(x, y, width, height)
    canvas.lines(x + _PAD, y + _PAD, lines)
    return height


def _writers(trace: Trace, group: Group) -> Lines:
    """Who signals: by line, with ranks, programs and how often."""
    if not group.writes:
        return [("bad", "nobody signals it")]
    lines: Lines = []
    for events in _by_line(group.writes):
        what = events[0].data["op"]
        kind = "notify" if events[0].kind == "notify" else "atomic"
        lines += [("strong", f"{kind} {what}, {_short(trace, events[0])}"), *_who(trace, events)]
    most = max(len({event.actor for event in _of_launch(trace, slot.writes)}) for slot in group.slots)
    lines.append(("", "one writer a slot and launch" if most == 1 else f"up to {most} writers a slot and launch"))
    return lines


def _waiters(trace: Trace, group: Group) -> Lines:
    if not group.waits:
        return [("bad", "nobody waits for it")]
    ends = {e.data["start"] for e in trace.events if e.kind in ("waited", "polled")}
    lines: Lines = []
    for events in _by_line(group.waits):
        lines += [("strong", f"{events[0].kind}, {_short(trace, events[0])}"), *_who(trace, events)]
        stuck = sum(event.seq not in ends for event in events)
        if stuck:
            lines.append(("bad", f"{stuck} never returned"))
    most = max(len({event.actor for event in _of_launch(trace, slot.waits)}) for slot in group.slots)
    lines.append(("", "one waiter a slot and launch" if most == 1 else f"up to {most} waiters a slot and launch"))
    return lines


def _of_launch(trace: Trace, events: Sequence[Event]) -> list[Event]:
    """The events of the first launch that has any: agents of other launches are other agents."""
    launches = [trace.actor(event).launch for event in events]
    return [event for event, launch in zip(events, launches, strict=True) if launch == launches[0]]


def _by_line(events: Iterable[Event]) -> list[list[Event]]:
    """Events of one line together, each event once, in order of the first."""
    lines: dict[tuple[str, int], dict[int, Event]] = {}
    for event in events:
        lines.setdefault((event.kind, event.site), {})[event.seq] = event
    return [list(found.values()) for found in lines.values()]


def _who(trace: Trace, events: Sequence[Event]) -> Lines:
    actors = [trace.actor(event) for event in events]
    programs = {actor.program for actor in actors}
    cores = ", both vector cores" if len({actor.core for actor in actors}) > 1 else ""
    spread = _span(programs)
    return [
        ("", f"{_ranks({actor.rank for actor in actors})}, program{'s' * (len(programs) > 1)} {spread}{cores}"),
        ("", f"{_many(len(events), 'time')} in {_many(len({(a.rank, a.launch) for a in actors}), 'launch', 'es')}"),
    ]


def _many(count: int, what: str, plural: str = "s") -> str:
    return f"{count} {what}" + (plural if count != 1 else "")


_MATRIX: Final = "signals by rank (row) to rank"
_MANY: Final = "too many ranks to list"


def _matrix(trace: Trace, group: Group) -> tuple[list[list[str]], int]:
    """Signals by writing rank to the word's rank, headers included, and the width of a cell; nothing for many ranks."""
    if trace.nranks > _MOST_RANKS:
        return [], 0
    counts = [[0] * trace.nranks for _ in range(trace.nranks)]
    for slot in group.slots:
        for event in slot.writes:
            counts[trace.actor(event).rank][trace.memories[slot.memory].rank] += 1
    rows = [["", *map(str, range(trace.nranks))]]
    rows += [[str(rank), *(str(n) if n else "." for n in row)] for rank, row in enumerate(counts)]
    widest = max(text_width(text) for row in rows for text in row)
    return rows, widest + 2 * _CELL_PAD


def _draw_matrix(canvas: Canvas, x: int, y: int, rows: list[list[str]], cell: int) -> int:
    canvas.text(x, y, _MATRIX if rows else _MANY, "faint")
    for number, row in enumerate(rows):
        top = y + (number + 1) * (LINE_HEIGHT + 2)
        for column, text in enumerate(row):
            if number and column:
                canvas.rect(x + column * cell, top, cell, LINE_HEIGHT + 2, filled=text != ".")
            canvas.text(x + column * cell + _CELL_PAD, top, text, "" if number and column else "faint")
    return (len(rows) + 1) * (LINE_HEIGHT + 2)


def _values(group: Group) -> list[list[str]]:
    """Columns of the epochs' table: each value in order of first use, signalled and waited for how often."""
    order: dict[int, None] = {}
    for event in sorted((*group.writes, *group.waits)):
        order.setdefault(_value(event))
    written, waited = Counter(map(_value, group.writes)), Counter(map(_value, group.waits))
    table = [[str(value), str(written[value]), str(waited[value])] for value in order]
    if len(table) > _MOST_VALUES:
        half = _MOST_VALUES // 2
        table = [*table[:half], ["…", "…", "…"], *table[-half:]]
    return [["value", "signalled", "waited for"], *table]


def _value(event: Event) -> int:
    return event.data["after"] if "after" in event.data else event.data["value"]


def _draw_values(canvas: Canvas, x: int, y: int, columns: list[list[str]]) -> int:
    for number, column in enumerate(columns):
        width = max(text_width(text) for text in column) + 2 * _CELL_PAD
        for row, text in enumerate(column):
            top = y + row * (LINE_HEIGHT + 2)
            if number:
                canvas.rect(x, top, width, LINE_HEIGHT + 2, filled=row == 0)
            canvas.text(x + _CELL_PAD, top, text, "" if number else "faint")
        x += width
    return y + 3 * (LINE_HEIGHT + 2)


def _barriers(trace: Trace) -> list[Lines]:
    """A paragraph for each kind of barrier."""
    kinds: dict[str, list[Event]] = {}
    for event in trace.events:
        if event.kind == "arrive":
            kinds.setdefault(event.data["name"], []).append(event)
    left = {event.data["start"] for event in trace.events if event.kind == "leave"}
    found: list[Lines] = []
    for name, events in kinds.items():
        rounds = {event.data["round"] for event in events}
        lines: Lines = [("strong", f"{name}: round{'s' * (len(rounds) > 1)} {_span(rounds)}")]
        for same in _by_line(events):
            (_, who), (_, count) = _who(trace, same)
            lines.append(("", f"{_short(trace, same[0])}: {who}; {count}"))
        stuck = sum(event.seq not in left for event in events)
        found.append([*lines, ("bad", f"{stuck} arrived and never left")] if stuck else lines)
    return found


def _short(trace: Trace, event: Event) -> str:
    place = trace.place(event)
    return f"{os.path.basename(place.file)}:{place.line}" if place is not None else "an unknown line"


def _ranks(ranks: set[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {_span(ranks)}"


def _span(numbers: set[int]) -> str:
    """`0..3`, or the numbers themselves where some are left out."""
    ordered = sorted(numbers)
    if len(ordered) > 1 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}..{ordered[-1]}"
    return ", ".join(map(str, ordered[:8])) + (", …" if len(ordered) > 8 else "")
