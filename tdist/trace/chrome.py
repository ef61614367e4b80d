"""A trace as Chrome and Perfetto read it: ranks as processes, programs as threads, arrows from a notify to its wait.

Time is the event's place in the order, shown as microseconds: what one agent does between two scheduling points comes
in one piece. Equal traces give equal bytes.

Source: Trace Event Format (docs/sources.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tdist.trace.events import Event, Trace
from tdist.trace.lanes import TILES, WORDS, geometry, lanes_on, value_of
from tdist.trace.tensors import Names

_ENDS: Final = {"waited": "wait", "polled": "poll", "leave": "barrier"}
_STARTS: Final = ("wait", "poll", "arrive")
_HOST_THREAD, _STREAM_THREAD, _FIRST_PROGRAM = 1, 2, 10


def chrome(trace: Trace) -> dict[str, Any]:
    """The trace as an object of the JSON Object Format: `traceEvents` and `otherData`.

    Complete events (`X`) with `args` (tensor, bytes, value, place, step), flow events (`s`, `f`) with an id for each
    arrow, metadata (`M`) that names processes and threads.
    """
    made = _Chrome(trace)
    other: dict[str, Any] = {"clock": "place in the order of events, as microseconds", "ranks": trace.nranks}
    if trace.dropped:
        other["truncated"] = f"trace truncated: {trace.dropped} later events were not kept"
    return {"displayTimeUnit": "ms", "otherData": other, "traceEvents": list(made.all())}


def chrome_text(trace: Trace) -> str:
    """`chrome` as JSON text."""
    return json.dumps(chrome(trace), sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


class _Chrome:
    """One conversion."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.names = Names(trace)
        self.ends = {e.data["start"]: e for e in trace.events if e.kind in _ENDS}
        self.arrows = 0

    def all(self) -> Iterator[dict[str, Any]]:
        yield from self._metadata()
        yield from self._lifetimes()
        for event in self.trace.events:
            yield from self._of(event)

    def _thread(self, number: int) -> tuple[int, int]:
        actor = self.trace.actors[number]
        if actor.role == "program":
            return actor.rank, _FIRST_PROGRAM + 2 * actor.program + actor.core
        return actor.rank, _STREAM_THREAD if actor.role == "stream" else _HOST_THREAD

    def _metadata(self) -> Iterator[dict[str, Any]]:
        threads = {self._thread(number): actor.title for number, actor in enumerate(self.trace.actors)}
        for rank in range(self.trace.nranks):
            yield _meta("process_name", rank, 0, {"name": f"rank {rank}"})
            yield _meta("process_sort_index", rank, 0, {"sort_index": rank})
        for (rank, tid), title in sorted(threads.items()):
            yield _meta("thread_name", rank, tid, {"name": title})
            yield _meta("thread_sort_index", rank, tid, {"sort_index": tid})

    def _lifetimes(self) -> Iterator[dict[str, Any]]:
        """Programs and launches, from their start to their end or the end of the trace."""
        started: dict[tuple[str, int], Event] = {}
        for event in self.trace.events:
            if event.kind in ("start", "launch"):
                started[event.kind, event.actor] = event
            elif event.kind in ("end", "launched"):
                first = started.pop(("start" if event.kind == "end" else "launch", event.actor))
                yield self._lifetime(first, event.seq)
        for first in started.values():
            yield self._lifetime(first, len(self.trace.events), unfinished=True)

    def _lifetime(self, first: Event, end: int, unfinished: bool = False) -> dict[str, Any]:
        args = {**first.data, "step": first.step} | ({"unfinished": True} if unfinished else {})
        actor = self.trace.actor(first)
        launch = first.data.get("launch", actor.launch)
        return self._slice(first, f"{first.data['kernel']}, launch {launch}", "launch", end - first.seq + 1, args)

    def _slice(self, event: Event, name: str, category: str, length: int, args: dict[str, Any]) -> dict[str, Any]:
        pid, tid = self._thread(event.actor)
        place = self.trace.place(event)
        if place is not None:
            args = {**args, "at": str(place)}
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": pid,
            "tid": tid,
            "ts": event.seq,
            "dur": length,
            "args": args,
        }

    def _of(self, event: Event) -> Iterator[dict[str, Any]]:
        kind = event.kind
        if kind in _STARTS:
            yield self._waiting(event)
        elif kind in _ENDS:
            yield from self._released(event)
        elif kind in TILES or kind in WORDS or kind == "volatile load":
            yield self._slice(event, kind, "memory" if kind in TILES else "signal", 1, self._args(event))
        elif kind not in ("start", "end", "launch", "launched", "register"):
            name = event.data.get("name", kind)
            yield self._slice(event, name, "host" if "host" in kind else "order", 1, self._args(event))

    def _waiting(self, event: Event) -> dict[str, Any]:
        end = self.ends.get(event.seq)
        last = end.seq if end is not None else len(self.trace.events)
        args = self._args(event) | ({} if end is not None else {"unfinished": True})
        name = event.data.get("name", event.kind)
        return self._slice(event, name, "wait", last - event.seq + 1, args)

    def _released(self, event: Event) -> Iterator[dict[str, Any]]:
        """An arrow from what made the condition true to the end of the wait."""
        for source in dict.fromkeys(event.data["released"]):
            if not 0 <= source < len(self.trace.events) or source == event.data["start"]:
                continue
            self.arrows += 1
            first = self.trace.events[source]
            name = "barrier" if event.kind == "leave" else "signal"
            yield self._arrow("s", first, name) | {"ts": first.seq}
            yield self._arrow("f", event, name) | {"ts": event.seq, "bp": "e"}

    def _arrow(self, phase: str, event: Event, name: str) -> dict[str, Any]:
        pid, tid = self._thread(event.actor)
        return {"ph": phase, "id": self.arrows, "name": name, "cat": "flow", "pid": pid, "tid": tid}

    def _args(self, event: Event) -> dict[str, Any]:
        """What a reader sees when they click on it."""
        data = event.data
        args: dict[str, Any] = {"step": event.step}
        if event.kind in TILES:
            return args | self._tile(event)
        if event.kind == "host copy":
            both = {side: self.names.lanes(event, data[side]) for side in ("from", "to")}
            return {**args, **both}
        if event.kind == "host write":
            return args | {"bytes": sum(rows * width for _, _, rows, _, width in data["spans"])}
        if data.get("m", -1) >= 0:
            args["tensor"] = self.names.element(event, data["m"], data["at"], data["size"])
        shown = ("op", "value", "before", "after", "n", "semantic", "round", "shape", "finding")
        return args | {key: data[key] for key in shown if key in data}

    def _tile(self, event: Event) -> dict[str, Any]:
        where = geometry(event)
        owner, actor = self.trace.memories[where["m"]].rank, self.trace.actor(event)
        args: dict[str, Any] = {"tensor": self.names.lanes(event, where), "dtype": where["dtype"]}
        lanes = lanes_on(self.trace, where)
        args["bytes"] = lanes * where["size"]
        if owner != actor.rank:
            args["remote"] = f"rank {owner}"
        if not where["shape"] and (value := value_of(self.trace, event, 0, where["dtype"])) is not None:
            args["value"] = value if value == value and abs(value) != float("inf") else str(value)
        return args


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}
