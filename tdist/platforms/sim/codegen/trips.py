"""A symbolic trip through a loop: what its accesses touch over the whole loop, decided at compile time.

`attempt` walks the body once, with the trip's number as a symbol, and gives up on any doubt. What comes out are panels:
for each access the address of its first tile, and the axis along which the tiles of all trips are adjacent. At run time
the whole-loop form is used if all panels lie inside their allocations and no index can overflow; else the plain loop
runs, and reports the fault as it would have.

`fuse.py` makes one multiplication of such a loop, `copies.py` one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from xdsl.ir import Operation, SSAValue

from .elements import Element, type_info
from .emitter import DryRun
from .generator import Generator
from .ir_access import yielded
from .poly import Poly
from .rules_memory import Access
from .values import NO_CLK, BlockPointer, Bound, Box, Clk, IndexTile, Lattice, Pointer, PointerTile, Scalar, Value

TRIP = "trip?"
T = TypeVar("T")
Finals = dict[int, list[tuple[Poly, Poly]]]
"""`(start, step)` of the parts of a carried value, by carried index."""


class Refused(Exception):
    """The loop cannot be taken as a whole; the text says why."""


@dataclass(frozen=True)
class Deferred:
    """An access inside such a loop: `order` if its value was transposed."""

    op: Operation
    access: Access
    order: tuple[int, ...] = (0, 1)
    clk: Clk = NO_CLK


@dataclass(frozen=True)
class Panel:
    """One access over the whole loop: address of its first tile, and its box without the bound along `axis`."""

    load: Deferred
    base: Poly
    axis: int
    tile_k: int
    bounds: tuple[Bound, ...]
    k_bounds: frozenset[Poly]
    conditions: tuple[str, ...]

    @property
    def lattice(self) -> Lattice:
        pointer = self.load.access.pointer
        assert isinstance(pointer, PointerTile)
        return replace(pointer.lattice, base=self.base)


@dataclass
class Trip:
    """A walk through the body; installed as `Generator.fusion` while it lasts. The rules tell it what they meet."""

    g: Generator
    guards: list[tuple[Operation, Lattice, Element]] = field(default_factory=list)

    def refuse(self, why: str) -> None:
        raise Refused(why)

    def guard(self, op: Operation, lattice: Lattice, element: Element) -> None:
        self.guards.append((op, lattice, element))

    def load(self, op: Operation, access: Access) -> None:
        raise Refused("a load")

    def store(self, op: Operation, access: Access, value: Value) -> None:
        raise Refused("a store")

    def transpose(self, op: Operation, value: Value, order: tuple[int, ...]) -> bool:
        return False

    def dot(self, op: Operation) -> None:
        raise Refused("a multiplication")


def check_separable(access: Access) -> PointerTile:
    """The pointer of an access to a box of a two-dimensional, separable tile."""
    pointer = access.pointer
    if not isinstance(pointer, PointerTile) or len(pointer.shape) != 2:
        raise Refused("addresses that are not separable")
    if access.mask is not None and not isinstance(access.mask, Box):
        raise Refused("a mask that is not a box")
    return pointer


# --- walking


def attempt(g: Generator, op: Operation, trip: Trip, made: Callable[[], T], what: str) -> T | None:
    """What `made` finds out on a walk that leaves no trace, or None with the reason noted."""
    env, count = dict(g.env), len(g.module.definitions)
    g.fusion, g.emit.dry = trip, True
    g.emit.push("trial")
    try:
        return made()
    except (Refused, DryRun) as refused:
        g.module.notes.append(f"{g.site_text(op)}: loop not {what}: {refused}")
        return None
    finally:
        g.emit.pop()
        g.fusion, g.emit.dry, g.env = None, False, env
        del g.module.definitions[count:]
        g.forget_sites(count)


def walk(g: Generator, op: Operation, accumulator: int = -1) -> tuple[dict[str, Poly], Finals]:
    """Walk through the body. Each carried symbol as `start + trip * step`; carried value `accumulator` is left out."""
    body = op.regions[0].block
    lower, _, step = (g.value(v) for v in op.operands[:3])
    assert isinstance(lower, Scalar) and isinstance(step, Scalar)
    g.emit.level[TRIP] = len(g.emit.scopes)
    induction = lower.poly + Poly.symbol(TRIP) * step.poly
    g.env[body.args[0]] = Scalar(induction, type_info(body.args[0].type).element)
    symbols = {
        index: _open(g, arg, g.value(init))
        for index, (arg, init) in enumerate(zip(body.args[1:], op.operands[3:], strict=True))
        if index != accumulator
    }
    for inner in body.ops:
        if inner.name != "scf.yield":
            g.operation(inner)
    return _inductions(g, op, symbols)


def _open(g: Generator, arg: SSAValue, value: Value) -> list[str]:
    """Symbols for what a carried value starts an iteration with."""
    parts = _parts(value)
    names = [f"start{g.emit.fresh('s')}?" for _ in parts]
    for name in names:
        g.emit.level[name] = len(g.emit.scopes)
    g.env[arg] = _rebuilt(value, [Poly.symbol(n) for n in names])
    return names


def _parts(value: Value) -> list[Poly]:
    """The polynomials of a value that may change from trip to trip."""
    match value:
        case Scalar():
            return [value.poly]
        case Pointer():
            return [value.base]
        case IndexTile() | PointerTile():
            return [value.lattice.base]
        case BlockPointer():
            return list(value.offsets)
    raise Refused(f"a loop-carried {type(value).__name__}")


def _rebuilt(value: Value, parts: list[Poly]) -> Value:
    match value:
        case Scalar():
            return replace(value, poly=parts[0])
        case Pointer():
            return replace(value, base=parts[0])
        case IndexTile() | PointerTile():
            return replace(value, lattice=replace(value.lattice, base=parts[0]))
        case BlockPointer():
            return replace(value, offsets=tuple(parts))
    raise Refused(f"a loop-carried {type(value).__name__}")


def _inductions(g: Generator, op: Operation, symbols: dict[int, list[str]]) -> tuple[dict[str, Poly], Finals]:
    """What `walk` gives: the carried symbols, and by carried index where they start and how far they go."""
    moving = {TRIP, *(name for names in symbols.values() for name in names)}
    values: dict[str, Poly] = {}
    finals: Finals = {}
    outs = yielded(op.regions[0].block)
    for index, names in symbols.items():
        start, end = g.value(op.operands[3 + index]), g.value(outs[index])
        shape = _rebuilt(end, _parts(start))
        if replace(shape, clk=start.clk) != start or end.clk - start.clk:
            raise Refused("a carried value that changes its form")
        finals[index] = []
        for name, first, last in zip(names, _parts(start), _parts(end), strict=True):
            step = last - Poly.symbol(name)
            if step.symbols() & moving:
                raise Refused("a carried value that does not grow by a constant step")
            values[name] = first + Poly.symbol(TRIP) * step
            finals[index].append((first, step))
    return values, finals


def guards_of(trip: Trip, values: dict[str, Poly]) -> list[tuple[Poly, Lattice, Element]]:
    """What must not overflow, in terms of the trip."""
    guards = [(lat.base.substituted(values), lat, element) for _, lat, element in trip.guards]
    if any(TRIP in s.symbols() for _, lat, _ in guards for s in lat.strides):
        raise Refused("a stride that depends on the trip")
    return guards


def panel_of(load: Deferred, axis: int, values: dict[str, Poly]) -> Panel:
    """The panel of an access whose tiles are adjacent along `axis`."""
    pointer = load.access.pointer
    assert isinstance(pointer, PointerTile)
    lattice = pointer.lattice
    tile_k = lattice.shape[axis]
    split = lattice.base.substituted(values).linear_in(TRIP)
    fixed = [*lattice.strides, *(v.scale for v in lattice.vecs)]
    if split is None or any(p.symbols() & {TRIP, *values} for p in fixed):
        raise Refused("addresses that are not linear in the trip")
    base, step = split
    if step != lattice.strides[axis].scaled(tile_k) or any(v.axis == axis for v in lattice.vecs):
        raise Refused("tiles that are not adjacent")
    box = load.access.mask
    if not isinstance(box, Box):
        return Panel(load, base, axis, tile_k, (), frozenset(), ())
    bounds, k_bounds = _split_bounds(box, axis, tile_k, values)
    return Panel(load, base, axis, tile_k, bounds, k_bounds, box.conditions)


def _split_bounds(
    box: Box, axis: int, tile_k: int, values: dict[str, Poly]
) -> tuple[tuple[Bound, ...], frozenset[Poly]]:
    """The bounds off the K axis, and the upper bounds along K at the first trip."""
    kept: list[Bound] = []
    uppers: set[Poly] = set()
    for bound in box.bounds:
        slope_wanted = Poly.const(-tile_k if bound.axis == axis else 0)
        low = _linear(bound.low, slope_wanted, values)
        high = _linear(bound.high, slope_wanted, values)
        if bound.axis != axis:
            kept.append(Bound(bound.axis, low, high))
            continue
        if low is not None and (low.value is None or low.value > 0):
            raise Refused("a lower bound along K")
        if high is not None:
            uppers.add(high)
    return tuple(kept), frozenset(uppers)


def _linear(poly: Poly | None, slope_wanted: Poly, values: dict[str, Poly]) -> Poly | None:
    if poly is None:
        return None
    split = poly.substituted(values).linear_in(TRIP)
    if split is None or split[1] != slope_wanted:
        raise Refused("a mask that does not move with the trip")
    return split[0]


# --- emission


def emit_trips(g: Generator, op: Operation) -> str:
    """A local with the number of trips."""
    lower, upper, step = (g.value(v) for v in op.operands[:3])
    assert isinstance(lower, Scalar) and isinstance(upper, Scalar) and isinstance(step, Scalar)
    start, stop, by = (g.exact_text(v) for v in (lower, upper, step))
    return g.emit.bind(f"max(0, -(({start} - {stop}) // {by}))", "trips")


def emit_extent(g: Generator, panel: Panel, trips: str) -> str:
    """A local with the lanes of the whole panel along its axis, cut off by its bounds there."""
    uppers = sorted(g.poly_text(p) for p in panel.k_bounds)
    total = f"{trips} * {panel.tile_k}"
    return g.emit.bind(f"min({', '.join([total, *uppers])})" if uppers else total, "kk")


def inside_text(g: Generator, panel: Panel, kk: str) -> str:
    """When all lanes of a panel that are on lie in its allocation."""
    pointer = panel.load.access.pointer
    arguments = [pointer.origin.al, *place(g, panel, kk), str(pointer.element.size_bytes)]
    return f"({_all_inside(g, panel, kk)} or panel_fits({', '.join(arguments)}))"


def _all_inside(g: Generator, panel: Panel, kk: str) -> str:
    """When all of a panel lies in its allocation, whatever the masks are: what `panel_fits` mostly finds, in line."""
    pointer = panel.load.access.pointer
    lattice, al = panel.lattice, pointer.origin.al
    last = lattice.base + Poly.const(pointer.element.size_bytes)
    terms = [f"{al}.lo <= {g.poly_text(lattice.base)}"]
    for axis, (extent, stride) in enumerate(zip(lattice.shape, lattice.strides, strict=True)):
        lanes = Poly.symbol(kk) if axis == panel.axis else Poly.const(extent)
        last = last + (lanes - Poly.const(1)) * stride
        if stride.value is None or stride.value < 0:
            terms.append(f"{g.poly_text(stride)} >= 0")
    return " and ".join([*terms, f"{g.poly_text(last)} <= {al}.hi"])


def guard_terms(g: Generator, guards: list[tuple[Poly, Lattice, Element]], trips: str) -> Iterator[str]:
    """That no index overflows, from the first trip to the last."""
    for base, lattice, element in guards:
        limit = 1 << (element.bits - 2)
        split = base.linear_in(TRIP)
        assert split is not None
        first, step = split
        last = first + step * (Poly.symbol(trips) - Poly.const(1))
        for edge in dict.fromkeys((first, last)):
            if edge.value is None and edge.name is None:
                yield f"{-limit} <= {g.poly_text(edge)} <= {limit}"
        spans = [(n - 1, s) for n, s in zip(lattice.shape, lattice.strides, strict=True) if s and n > 1]
        room = max(1, limit // max(1, sum(n for n, _ in spans)))
        for _, stride in spans:
            if stride.value is None:
                yield f"{-room} <= {g.poly_text(stride)} <= {room}"


def place(g: Generator, panel: Panel, kk: str) -> list[str]:
    """Texts of `shape, address, strides` and `box` of a panel."""
    lattice = panel.lattice
    shape = [str(n) for n in lattice.shape]
    shape[panel.axis] = kk
    strides = "".join(f"{g.poly_text(s)}, " for s in lattice.strides)
    bounds = panel.bounds
    if bounds or panel.conditions:
        bounds = (*bounds, Bound(panel.axis, None, Poly.symbol(kk)))
    box = g.box_text(Box(lattice.shape, bounds, panel.conditions))
    return [f"({', '.join(shape)})", g.poly_text(lattice.base), f"({strides})", box or "None"]
