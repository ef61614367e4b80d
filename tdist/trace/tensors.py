"""Places in memory in a reader's terms: which tensor, and which of its own indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tdist.trace.events import Event, NamedTensor, Trace
from tdist.trace.lanes import lane_offsets


def size_bytes(dtype: str) -> int:
    """Of one element of a torch dtype, by name."""
    kind: torch.dtype = getattr(torch, dtype)
    return kind.itemsize


def coordinates(tensor: NamedTensor, offsets: np.ndarray) -> np.ndarray | None:
    """Indices, a column for each dimension, of the elements at byte offsets; None if one lies outside the tensor."""
    rest = offsets - tensor.offset_bytes
    size = size_bytes(tensor.dtype)
    rest = rest // size
    columns = np.zeros((len(offsets), len(tensor.shape)), dtype=np.int64)
    for axis in sorted(range(len(tensor.shape)), key=lambda a: -tensor.strides[a]):
        stride = tensor.strides[axis]
        if stride <= 0 or tensor.shape[axis] == 1:
            continue
        columns[:, axis] = rest // stride
        rest = rest - columns[:, axis] * stride
    inside = (columns >= 0).all() and (columns < np.array(tensor.shape, dtype=np.int64)).all() and not rest.any()
    return columns if inside else None


def byte_offset(tensor: NamedTensor, index: Sequence[int]) -> int:
    """Where an element lies in the tensor's memory."""
    elems = sum(i * stride for i, stride in zip(index, tensor.strides, strict=True))
    return tensor.offset_bytes + elems * size_bytes(tensor.dtype)


class Names:
    """What to call places in the memories of one trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._groups: dict[int, list[NamedTensor]] = {}
        for tensor in trace.tensors:
            self._groups.setdefault(trace.memories[tensor.memory].peer, []).append(tensor)
        self._known: dict[Any, str] = {}

    def tensor(self, event: Event, memory: int) -> NamedTensor | None:
        """The tensor that an event's actor knows this memory by: its own argument, else one of another rank."""
        actor, place = self.trace.actor(event), self.trace.place(event)
        arg = place.arg if place is not None else ""
        best, best_score = None, (-1,)
        for tensor in self._groups.get(self.trace.memories[memory].peer, ()):
            same = (tensor.name == arg, tensor.launch == actor.launch, tensor.rank == actor.rank)
            score = (*same, tensor.role != "argument", -tensor.seq)
            if (tensor.role == "argument" or actor.role != "program") and score > best_score:
                best, best_score = tensor, score
        return best

    def known_as(self, memory: int, role: str) -> NamedTensor | None:
        """The last tensor of a role (input, output) that is exactly this memory."""
        group = self._groups.get(self.trace.memories[memory].peer, ())
        found = [tensor for tensor in group if tensor.memory == memory and tensor.role == role]
        return found[-1] if found else None

    def operand(self, event: Event, memory: int) -> NamedTensor | None:
        """What a reader of the operator calls this memory, else what the event's actor does."""
        return self.known_as(memory, "input") or self.known_as(memory, "output") or self.tensor(event, memory)

    def element(self, event: Event, memory: int, offset: int, size: int) -> str:
        """`name[i, j] of rank r`."""
        tensor = self.operand(event, memory)
        return f"{self.spot(tensor, memory, np.array([offset]), size)} of rank {self.trace.memories[memory].rank}"

    def lanes(self, event: Event, where: Mapping[str, Any]) -> str:
        """`name[0..63, 128..255]`: the smallest box of indices that holds all lanes that are on."""
        tensor = self.tensor(event, where["m"])
        key = (id(tensor), where["m"], where.get("at"), str(where.get("strides")), str(where.get("box")))
        if "lanes" in where or key not in self._known:
            offsets = lane_offsets(self.trace, where).reshape(-1)
            self._known[key] = self.spot(tensor, where["m"], offsets[offsets >= 0], where["size"])
        return self._known[key]

    def spot(self, tensor: NamedTensor | None, memory: int, offsets: np.ndarray, size: int) -> str:
        """The elements at byte offsets of a memory, in the coordinates of `tensor`, else of the allocation."""
        if not len(offsets):
            return (tensor.name if tensor is not None else self.trace.memories[memory].label) + "[]"
        if tensor is not None:
            columns = coordinates(tensor, offsets)
            if columns is not None:
                sides = zip(columns.min(axis=0), columns.max(axis=0), strict=True)
                return f"{tensor.name}[{', '.join(_side(low, high) for low, high in sides)}]"
        first, last = int(offsets.min()) // size, int(offsets.max()) // size
        label = tensor.name if tensor is not None else self.trace.memories[memory].label
        return f"{label}, element{'' if first == last else 's'} {_side(first, last)} of its allocation"


def _side(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}..{high}"
