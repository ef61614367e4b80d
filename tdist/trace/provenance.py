"""What one lane of a stored tile is made of, by the kernel's value graph: a copy of a loaded lane, or a computation.

A lane is a tuple of indices; in a computation an index may be None, which stands for the whole axis: a row of
`tl.dot`'s left operand, the axis of a reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

Lane = tuple[int | None, ...]
_PASSED: Final = ("same", "broadcast", "expand_dims", "trans", "reshape")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A load (`number` in the graph) of these lanes. `carried`: through a loop, so that many of its runs count."""

    number: int
    lane: Lane
    carried: bool = False


@dataclass
class Origin:
    """Where a stored lane's value comes from.

    Attributes:
        loads: of which one it is a copy; more than one where a mask or a branch decides.
        constants: numbers and other leaves (`rank`, `program id`) that it may be instead, by name, with their values.
        fills: the same for what masked-off lanes of the loads hold.
        operation: name of what computed it; empty for a copy.
        place: file and line of that.
        operands: the loads that the computation used.
    """

    loads: list[Leaf] = field(default_factory=list)
    constants: dict[str, float | None] = field(default_factory=dict)
    fills: dict[str, float | None] = field(default_factory=dict)
    operation: str = ""
    place: tuple[str, int] | None = None
    operands: list[Leaf] = field(default_factory=list)


def origin_of(graph: Mapping[str, Any], store: int, lane: Lane) -> Origin:
    """What lane `lane` of the tile that store number `store` stores is made of."""
    found = Origin()
    todo: list[tuple[int, Lane, bool]] = [(graph["stores"][str(store)], lane, False)]
    seen: set[tuple[int, Lane, bool]] = set()
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        todo += _copied(graph["nodes"], *at, found)
    return found


def _copied(
    nodes: Sequence[Mapping[str, Any]], number: int, lane: Lane, fill: bool, found: Origin
) -> list[tuple[int, Lane, bool]]:
    """One step back along a copy; what ends it is noted in `found`. `fill`: through what masked-off lanes hold."""
    node = nodes[number]
    kind = node["k"]
    if kind == "load":
        found.loads.append(Leaf(node["op"], lane))
        return [(operand, _through(nodes, operand, lane), True) for operand in node["in"]]
    if kind in _PASSED:
        return [(operand, step_back(node, lane), fill) for operand in node["in"]]
    if kind in ("select", "choice"):
        return [(operand, lane, fill) for operand in node["in"]]
    if kind == "leaf":
        (found.fills if fill else found.constants)[node["name"]] = node.get("value")
    elif not found.operation:
        _computed(nodes, number, lane, found)
    return []


def _through(nodes: Sequence[Mapping[str, Any]], operand: int, lane: Lane) -> Lane:
    """The lane of an operand of the same shape; a scalar has one."""
    return lane if nodes[operand].get("shape") else ()


def step_back(node: Mapping[str, Any], lane: Lane) -> Lane:
    """The lane of the operand of a shape operation or cast that `lane` of its result is."""
    match node["k"]:
        case "broadcast":
            source = node["from"]
            return tuple(0 if extent == 1 else i for extent, i in zip(source, lane, strict=False))
        case "expand_dims":
            axis = node["axis"]
            return (*lane[:axis], *lane[axis + 1 :])
        case "trans":
            back: list[int | None] = [0] * len(lane)
            for axis, source in enumerate(node["order"]):
                back[source] = lane[axis]
            return tuple(back)
        case "reshape":
            return _reshaped(lane, node["shape"], node["from"])
    return lane


def _reshaped(lane: Lane, shape: Sequence[int], source: Sequence[int]) -> Lane:
    whole = [i for i in lane if i is not None]
    if len(whole) < len(lane):
        return (None,) * len(source)
    flat = int(np.ravel_multi_index(whole, shape)) if shape else 0
    return tuple(int(i) for i in np.unravel_index(flat, source)) if source else ()


def _computed(nodes: Sequence[Mapping[str, Any]], number: int, lane: Lane, found: Origin) -> None:
    """Note what computes lane `lane` of a node, and every load that goes into it."""
    seen: set[tuple[int, Lane, bool]] = set()
    todo: list[tuple[int, Lane, bool]] = [(number, lane, False)]
    names: list[tuple[str, Any]] = []
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        node, carried = nodes[at[0]], at[2]
        if node["k"] == "load":
            found.operands.append(Leaf(node["op"], at[1], carried))
        elif node["k"] in ("dot", "reduce", "lanes", "mixed", "atomic"):
            names.append((node.get("name", "?"), node.get("line")))
        elif node["k"] == "leaf" and node["name"] != "constant":
            found.constants[node["name"]] = None
        carried = carried or node["k"] == "carried"
        todo += [(operand, back, carried) for operand, back in reversed(list(_operands(nodes, node, at[1])))]
    names.sort(key=lambda named: named[0] not in ("tt.dot", "tt.reduce"))
    found.operation = names[0][0] if names else "a loop"
    line = names[0][1] if names else None
    found.place = (line[0], line[1]) if line else None
    found.operands = list(dict.fromkeys(found.operands))


def _operands(nodes: Sequence[Mapping[str, Any]], node: Mapping[str, Any], lane: Lane) -> Iterator[tuple[int, Lane]]:
    """The operands of a node, with the lanes of each that go into lane `lane` of it."""
    kind, operands = node["k"], node["in"]
    if kind == "dot":
        left, right = (*lane[:-1], None), (*lane[:-2], None, lane[-1])
        yield from zip(operands, (left, right, lane), strict=False)
    elif kind == "reduce":
        axis = node["axis"]
        for operand in operands:
            yield operand, (*lane[:axis], None, *lane[axis:])
    elif kind in _PASSED:
        yield from ((operand, step_back(node, lane)) for operand in operands)
    elif kind == "mixed":
        yield from ((operand, (None,) * len(nodes[operand].get("shape", ()))) for operand in operands)
    else:
        yield from ((operand, _through(nodes, operand, lane)) for operand in operands)
