"""Where the lanes of a traced access lie, which lane covers a byte, and what value it stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from tdist.trace.events import Event, Trace

TILES: Final = ("load", "store", "atomic")
WORDS: Final = ("notify", "atomic word")
WRITES: Final = ("store", "atomic", "notify", "atomic word", "host write", "host copy", "register")
NOWHERE: Final = -1


def geometry(event: Event) -> Mapping[str, Any]:
    """The part of an event's data that says where its lanes lie; of a copy, where it writes."""
    return event.data["to"] if event.kind == "host copy" else event.data


def lane_offsets(trace: Trace, where: Mapping[str, Any]) -> np.ndarray:
    """A byte offset in its memory for each lane, in the tile's shape; -1 for lanes that are off or not known."""
    shape = tuple(where["shape"])
    if "lanes" in where:
        if where["lanes"] < 0:
            return np.full(shape, NOWHERE, dtype=np.int64)
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(trace.values, np.int64, count, where["lanes"]).reshape(shape)
    offsets = np.full((1,) * len(shape), where["at"], dtype=np.int64)
    on = np.ones((1,) * len(shape), dtype=bool)
    for axis, (extent, stride) in enumerate(zip(shape, where["strides"], strict=True)):
        index = np.arange(extent, dtype=np.int64).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        offsets = offsets + index * stride
        if where["box"] is not None:
            on = on & (index >= where["box"][2 * axis]) & (index < where["box"][2 * axis + 1])
    return np.where(np.broadcast_to(on, offsets.shape), offsets, NOWHERE)


def lanes_on(trace: Trace, where: Mapping[str, Any]) -> int:
    """How many lanes are on."""
    if "lanes" in where:
        return int((lane_offsets(trace, where) >= 0).sum())
    count = 1
    for axis, extent in enumerate(where["shape"]):
        low, high = (0, extent) if where["box"] is None else where["box"][2 * axis : 2 * axis + 2]
        count *= max(0, min(high, extent) - max(low, 0))
    return count


def memories_of(event: Event) -> Iterator[int]:
    """The memories that a write touches."""
    if event.kind == "host write":
        yield from {span[0] for span in event.data["spans"]}
    elif event.kind in WRITES:
        yield geometry(event)["m"]


def covering(trace: Trace, event: Event, memory: int, bytes_at: np.ndarray) -> np.ndarray:
    """For each byte offset in `memory` the lane of a write that covers it last, or -1.

    A lane is an index in row-major order; of host writes and registered memory it is the byte in what was written.
    """
    if event.kind == "host write":
        return _covering_spans(event.data["spans"], memory, bytes_at)
    where = geometry(event)
    if where["m"] != memory:
        return np.full(len(bytes_at), NOWHERE)
    if event.kind in (*WORDS, "register"):
        inside = bytes_at - where["at"]
        extent = where["size"] if event.kind in WORDS else where["nbytes"]
        return np.where((inside >= 0) & (inside < extent), inside, NOWHERE)
    low, high = _bounds(trace, where)
    if not ((bytes_at >= low) & (bytes_at < high)).any():
        return np.full(len(bytes_at), NOWHERE)
    return _covering_lanes(lane_offsets(trace, where).reshape(-1), where["size"], bytes_at)


def _bounds(trace: Trace, where: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes outside of which no lane lies."""
    if "lanes" in where:
        offsets = lane_offsets(trace, where)
        return int(offsets.min(initial=0)), int(offsets.max(initial=0)) + where["size"]
    reach = [(extent - 1) * stride for extent, stride in zip(where["shape"], where["strides"], strict=True)]
    low = where["at"] + sum(step for step in reach if step < 0)
    return low, where["at"] + sum(step for step in reach if step > 0) + where["size"]


def _covering_lanes(offsets: np.ndarray, size: int, bytes_at: np.ndarray) -> np.ndarray:
    order = np.argsort(offsets, kind="stable")
    sorted_offsets = offsets[order]
    at = np.searchsorted(sorted_offsets, bytes_at, side="right") - 1
    found = np.maximum(at, 0)
    start = sorted_offsets[found] if len(offsets) else found
    hit = (at >= 0) & (start >= 0) & (bytes_at - start < size)
    return np.where(hit, order[found] if len(offsets) else NOWHERE, NOWHERE)


def _covering_spans(spans: Sequence[Sequence[int]], memory: int, bytes_at: np.ndarray) -> np.ndarray:
    result = np.full(len(bytes_at), NOWHERE, dtype=np.int64)
    start = 0
    for m, offset, rows, stride, width in spans:
        inside = bytes_at - offset
        row = inside // stride if rows > 1 else np.zeros_like(inside)
        column = inside - row * stride
        hit = (m == memory) & (inside >= 0) & (row < rows) & (column < width)
        result = np.where(hit, start + row * width + column, result)
        start += rows * width
    return result


def value_of(trace: Trace, event: Event, lane: int, dtype: str) -> Any:
    """The number that a write left in a lane, as the writer's type, or as `dtype` where the writer moved bytes.

    Args:

    Returns:
        A number, or None where the values were not kept.
    """
    if event.kind in WORDS:
        return event.data["after"]
    where = geometry(event)
    if where["v"] < 0:
        return None
    if event.kind in ("host write", "register"):
        return decode(trace.values, where["v"] + lane, dtype)
    kept = int((lane_offsets(trace, where).reshape(-1)[:lane] >= 0).sum()) if event.kind != "host copy" else lane
    return decode(trace.values, where["v"] + kept * where["size"], where["dtype"])


def decode(values: bytes, at: int, dtype: str) -> Any:
    """The number of a torch dtype (by name) at a byte; None beyond the end."""
    kind: torch.dtype = getattr(torch, dtype)
    raw = values[at : at + kind.itemsize]
    if len(raw) < kind.itemsize:
        return None
    return torch.frombuffer(bytearray(raw), dtype=kind)[0].item()
