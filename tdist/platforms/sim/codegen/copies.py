"""Copy loops: a loop that does nothing but copy adjacent tiles becomes one copy of a panel.

As `fuse.py`, decided from a symbolic trip, with the same masks for load and store. A store to another rank, or a load
from one, is a scheduling point, so such a loop is taken as a whole only while the scheduler says that it lets the agent
go on in any case (`Agent.stay`): then nobody runs in between, and the steps of all trips are counted as taken. With
every other scheduler the plain loop runs.

The detector hears of one read and one write, of the same bytes. Only the first trip's load may be ordered by less than
the others, as each store has a Write effect: `access.copy_box` records it by itself then.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Operation

from .elements import Element
from .generator import Generator
from .ir_access import may_write, only_user
from .poly import Poly
from .rules_memory import Access, load_clock, only_stored, spec_text
from .trips import (
    Deferred,
    Finals,
    Panel,
    Refused,
    Trip,
    attempt,
    check_separable,
    emit_extent,
    guard_terms,
    guards_of,
    inside_text,
    panel_of,
    place,
    walk,
)
from .values import Lattice, PointerTile, Value


@dataclass
class Plan:
    """A loop that is one copy; `points` are its scheduling points a trip."""

    source: Panel
    target: Panel
    finals: Finals
    guards: list[tuple[Poly, Lattice, Element]]
    points: int


class CopyTrip(Trip):
    """Keeps the one load and the one store of the body."""

    source: Deferred | None = None
    target: Deferred | None = None

    def load(self, op: Operation, access: Access) -> None:
        check_separable(access)
        if only_user(op.results[0]) is None or not only_stored(op):
            raise Refused("a loaded value that is not just stored")
        self.source = Deferred(op, access)
        self.g.env[op.results[0]] = self.source  # pyright: ignore[reportArgumentType]

    def store(self, op: Operation, access: Access, value: Value) -> None:
        check_separable(access)
        if value is not self.source:
            raise Refused("a stored value that was not loaded as it is")
        self.target = Deferred(op, access)


def plan(g: Generator, op: Operation) -> Plan | None:
    """How to copy in one go what an `scf.for` copies, or None with the reason noted."""
    body = op.regions[0].block
    options = g.module.options
    stores = [o for o in body.ops if o.name == "tt.store"]
    others = any((may_write(o) and o.name != "tt.store") or o.regions for o in body.ops)
    if len(stores) != 1 or others or options.trace or options.adversarial or g.module.symbolic is not None:
        return None
    trip = CopyTrip(g)
    return attempt(g, op, trip, lambda: _planned(g, op, trip), "copied at once")


def _planned(g: Generator, op: Operation, trip: CopyTrip) -> Plan:
    values, finals = walk(g, op)
    if trip.source is None or trip.target is None:
        raise Refused("no load or no store")
    if trip.source.access.mask != trip.target.access.mask:
        raise Refused("a load and a store with different masks")
    try:
        source, target = (panel_of(part, 1, values) for part in (trip.source, trip.target))
    except Refused:
        source, target = (panel_of(part, 0, values) for part in (trip.source, trip.target))
    return Plan(source, target, finals, guards_of(trip, values), _points(trip.source) + _points(trip.target))


def _points(part: Deferred) -> int:
    pointer = part.access.pointer
    if isinstance(pointer, PointerTile) and pointer.lattice.vecs:
        raise Refused("an index vector")
    return int(pointer.origin.remote)


def emit_condition(g: Generator, made: Plan, trips: str) -> tuple[str, str]:
    """`(condition, kk)`: when one copy is the plain loop's equal, and its extent along the loop."""
    kk = emit_extent(g, made.source, trips)
    source, target = (panel.load.access.pointer.origin.al for panel in (made.source, made.target))
    apart = f"{source} is not {target} and {source} not in {target}.aliases"
    terms = [f"{kk} > 0", apart, *guard_terms(g, made.guards, trips)]
    terms += [f"{g.poly_text(s)} >= 0" for s in made.source.lattice.strides if s.value is None or s.value < 0]
    terms.append(_apart(g, made.target, kk))
    for panel in (made.source, made.target):
        terms.append(inside_text(g, panel, kk))
        terms += _aligned(g, panel)
    if made.points:  # the last term, since it takes the steps
        terms.append(f"ag.stay({trips if made.points == 1 else f'{made.points} * {trips}'})")
    return " and ".join(dict.fromkeys(terms)), kk


def _aligned(g: Generator, panel: Panel) -> list[str]:
    """That every lane is where an element may be; what is not is the plain loop's to report."""
    size, al = panel.load.access.pointer.element.size_bytes, panel.load.access.pointer.origin.al
    places = [f"({g.poly_text(panel.lattice.base)} - {al}.lo)", *(f"({g.poly_text(s)})" for s in panel.lattice.strides)]
    return [f"not {place} % {size}" for place in places] if size > 1 else []


def _apart(g: Generator, target: Panel, kk: str) -> str:
    """That no lane of the target has another one's address, and none runs backwards."""
    lattice = target.lattice
    first, second = (g.poly_text(s) for s in lattice.strides)
    lanes = [str(n) for n in lattice.shape]
    lanes[target.axis] = kk
    return f"({first} >= {lanes[1]} * ({second}) > 0 or {second} >= {lanes[0]} * ({first}) > 0)"


def emit_copy(g: Generator, made: Plan, kk: str) -> None:
    """The copy; the steps of all trips have been taken."""
    source, target = made.source.load, made.target.load
    specs = []
    for part, kind in ((source, "load"), (target, "store")):
        pointer = part.access.pointer
        assert isinstance(pointer, PointerTile)
        specs.append(spec_text(g, part.op, pointer, kind))
        g.count(part.op, "panel")
    function = g.module.define("M", f"copy_box({', '.join(specs)}, {made.source.axis}, {made.source.tile_k})")
    shape, address, strides, box = place(g, made.source, kk)
    _, to_address, to_strides, _ = place(g, made.target, kk)
    arguments = ["ag", source.access.pointer.origin.al, address, strides]
    arguments += [target.access.pointer.origin.al, to_address, to_strides, box, shape, load_clock(g, source.access)]
    g.emit.line(f"{function}({', '.join(arguments)})")
