"""K-loop fusion: a loop that does nothing but multiply adjacent tiles becomes one multiplication of two panels.

Decided at compile time from the symbolic form of the loop, and given up on any doubt. At run time the fused form is
used if all its accesses lie inside their allocations and no index can overflow; else the plain loop runs, and reports
the fault as it would have. Neither decision depends on the schedule. Reads are still reported: one record a panel.

Valid because every iteration multiplies `A[:, t*BK:(t+1)*BK]` with `B[t*BK:(t+1)*BK, :]`, both masked along K by the
same bound with `other = 0`, or neither: what the bound cuts off is a product of zeros. Masks along M and N stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from xdsl.ir import Operation, SSAValue

from .elements import Element, type_info
from .emitter import DryRun
from .generator import Generator
from .ir_access import may_write, only_user, yielded
from .poly import Poly
from .rules_dot import NARROW, is_zero
from .rules_float import feeds_only_dot, goes_to_a_store
from .rules_memory import Access, fill_text, load_clock, needing, spec_text
from .values import NO_CLK, BlockPointer, Bound, Box, Clk, IndexTile, Lattice, Pointer, PointerTile, Scalar, Value

TRIP = "trip?"


class Refused(Exception):
    """The loop cannot be fused; the text says why."""


@dataclass(frozen=True)
class Deferred:
    """A load inside a loop that may be fused: `order` if it was transposed."""

    op: Operation
    access: Access
    order: tuple[int, ...] = (0, 1)
    clk: Clk = NO_CLK


@dataclass(frozen=True)
class Panel:
    """One operand over the whole loop: address of its first tile, and its box without the bound along K."""

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
class Plan:
    """A loop that can be fused: panels, the accumulator's index, and values after the last trip by carried index."""

    panels: tuple[Panel, Panel]
    accumulator: int
    finals: dict[int, list[tuple[Poly, Poly]]]
    guards: list[tuple[Poly, Lattice, Element]]
    dot: Operation
    tile_k: int


@dataclass
class Fusion:
    """A symbolic trip through a loop body; installed as `Generator.fusion` while it lasts."""

    g: Generator
    dot_op: Operation | None = None
    guards: list[tuple[Operation, Lattice, Element]] = field(default_factory=list)

    def refuse(self, why: str) -> None:
        raise Refused(why)

    def guard(self, op: Operation, lattice: Lattice, element: Element) -> None:
        self.guards.append((op, lattice, element))

    def load(self, op: Operation, access: Access) -> None:
        pointer = access.pointer
        if not isinstance(pointer, PointerTile) or len(pointer.shape) != 2:
            raise Refused("a load whose addresses are not separable")
        if pointer.origin.remote:
            raise Refused("a load from another rank, which is a scheduling point")
        if access.mask is not None and (not isinstance(access.mask, Box) or access.fill is None):
            raise Refused("a mask that is not a box, or no `other`")
        if access.fill is not None and not is_zero(access.fill):
            raise Refused("masked-off lanes that are not 0")
        clk = self.g.clk_of(pointer, access.mask)
        self.g.env[op.results[0]] = Deferred(op, access, clk=clk)  # pyright: ignore[reportArgumentType]

    def transpose(self, op: Operation, value: Value, order: tuple[int, ...]) -> bool:
        if not isinstance(value, Deferred):
            return False
        turned = tuple(value.order[i] for i in order)
        self.g.env[op.results[0]] = replace(value, order=turned)  # pyright: ignore[reportArgumentType]
        return True

    def dot(self, op: Operation) -> None:
        self.dot_op = op


# --- planning


def plan(g: Generator, op: Operation) -> Plan | None:
    """How to fuse an `scf.for`, or None with the reason noted."""
    body = op.regions[0].block
    dots = [o for o in body.ops if o.name == "tt.dot"]
    if len(dots) != 1 or any(may_write(o) or o.regions for o in body.ops):
        return None
    env, count = dict(g.env), len(g.module.definitions)
    fusion = Fusion(g)
    g.fusion, g.emit.dry = fusion, True
    g.emit.push("trial")
    try:
        return _symbolic_trip(g, op, fusion, dots[0])
    except (Refused, DryRun) as refused:
        g.module.notes.append(f"{g.site_text(op)}: loop not fused: {refused}")
        return None
    finally:
        g.emit.pop()
        g.fusion, g.emit.dry, g.env = None, False, env
        del g.module.definitions[count:]
        g.forget_sites(count)


def _symbolic_trip(g: Generator, op: Operation, fusion: Fusion, dot: Operation) -> Plan:
    body = op.regions[0].block
    accumulator = _accumulator(op, dot)
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
        if inner.name == "tt.load" and not feeds_only_dot(inner.results[0]):
            raise Refused("a loaded value that is used for more than the multiplication")
        if inner.name != "scf.yield":
            g.operation(inner)
    values, finals = _inductions(g, op, symbols)
    panels = tuple(_panel(g, dot.operands[i], axis, values) for i, axis in ((0, 1), (1, 0)))
    if panels[0].k_bounds != panels[1].k_bounds or panels[0].tile_k != panels[1].tile_k:
        raise Refused("the two operands are masked differently along K")
    guards = [(lat.base.substituted(values), lat, element) for _, lat, element in fusion.guards]
    if any(TRIP in s.symbols() for _, lat, _ in guards for s in lat.strides):
        raise Refused("a stride that depends on the trip")
    return Plan((panels[0], panels[1]), accumulator, finals, guards, dot, panels[0].tile_k)


def _accumulator(op: Operation, dot: Operation) -> int:
    body = op.regions[0].block
    acc = dot.operands[2]
    if only_user(acc) is not dot or acc not in list(body.args[1:]):
        raise Refused("the accumulator is used for more than the multiplication")
    index = [*body.args[1:]].index(acc)  # pyright: ignore[reportArgumentType]
    if only_user(dot.results[0]) is not body.last_op or yielded(body)[index] is not dot.results[0]:
        raise Refused("the product is used inside the loop")
    element = type_info(dot.results[0].type).element
    if element.name in NARROW or len(type_info(dot.results[0].type).shape) != 2:
        raise Refused("an accumulator that rounds at every step")
    return index


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


def _inductions(
    g: Generator, op: Operation, symbols: dict[int, list[str]]
) -> tuple[dict[str, Poly], dict[int, list[tuple[Poly, Poly]]]]:
    """Each carried symbol as `start + trip * step`, and `(start, step)` by carried index."""
    moving = {TRIP, *(name for names in symbols.values() for name in names)}
    values: dict[str, Poly] = {}
    finals: dict[int, list[tuple[Poly, Poly]]] = {}
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


def _panel(g: Generator, operand: SSAValue, k_axis: int, values: dict[str, Poly]) -> Panel:
    load = g.value(operand)
    if not isinstance(load, Deferred):
        raise Refused("an operand that is not loaded in the loop")
    pointer = load.access.pointer
    assert isinstance(pointer, PointerTile)
    axis = load.order[k_axis]
    lattice = pointer.lattice
    tile_k = lattice.shape[axis]
    split = lattice.base.substituted(values).linear_in(TRIP)
    fixed = [*lattice.strides, *(v.scale for v in lattice.vecs)]
    if split is None or any(p.symbols() & {TRIP, *values} for p in fixed):
        raise Refused("addresses that are not linear in the trip")
    base, step = split
    if step != lattice.strides[axis].scaled(tile_k) or any(v.axis == axis for v in lattice.vecs):
        raise Refused("tiles that are not adjacent along K")
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
    return g.emit.bind(f"len(range({start}, {stop}, {by}))", "trips")


def emit_condition(g: Generator, made: Plan, trips: str) -> tuple[str, str]:
    """`(condition, kk)`: when the fused form is the plain loop's equal, and the extent along K."""
    uppers = sorted(g.poly_text(p) for p in made.panels[0].k_bounds)
    total = f"{trips} * {made.tile_k}"
    kk = g.emit.bind(f"min({', '.join([total, *uppers])})" if uppers else total, "kk")
    terms = [f"{kk} > 0", *_guard_terms(g, made, trips)]
    for panel in made.panels:
        pointer = panel.load.access.pointer
        arguments = [pointer.origin.al, *_place(g, panel, kk), str(pointer.element.size_bytes)]
        if panel.lattice.vecs:
            terms += [f"{v.local} is None" for v in panel.lattice.vecs]
        terms.append(f"({_all_inside(g, panel, kk)} or panel_fits({', '.join(arguments)}))")
    return " and ".join(dict.fromkeys(terms)), kk


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


def _guard_terms(g: Generator, made: Plan, trips: str) -> Iterator[str]:
    for base, lattice, element in made.guards:
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


def _place(g: Generator, panel: Panel, kk: str) -> list[str]:
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


def may_wait(g: Generator, made: Plan, product: SSAValue) -> bool:
    """Whether the product may be computed later (`products.py`): it is only stored, and no panel is memory itself."""
    options = g.module.options
    narrow = all(panel.load.access.pointer.element.name in NARROW for panel in made.panels)
    return narrow and not (options.trace or options.adversarial or g.module.symbolic) and goes_to_a_store(product)


def emit_panels(g: Generator, made: Plan, kk: str) -> list[str]:
    """Locals with the two panels, in the layout that the multiplication wants."""
    return [_emit_panel(g, panel, kk, made.dot.results[0]) for panel in made.panels]


def _emit_panel(g: Generator, panel: Panel, kk: str, product: SSAValue) -> str:
    access = panel.load.access
    pointer = access.pointer
    assert isinstance(pointer, PointerTile)
    op = panel.load.op
    wide = pointer.element.name in NARROW
    spec = spec_text(g, op, pointer, "load")
    cache, view = "TILES" if wide else "None", not wide and not g.module.options.adversarial
    if g.is_abstract(op.results[0]):
        function = g.module.define("P", f"digest_box({spec})")
    else:
        function = needing(g, op, spec, "P", "load_box", f"wide={wide}, view={view}, cache={cache}")
    g.count(op, "panel")
    shape, address, strides, box = _place(g, panel, kk)
    fill = fill_text(g, access)
    arguments = ["ag", pointer.origin.al, address, strides, box, "0" if fill == "None" else fill]
    arguments += [load_clock(g, access), "()", shape]
    local = g.emit.bind(f"{function}({', '.join(arguments)})", "panel")
    if g.is_abstract(product):
        text = local if g.is_abstract(op.results[0]) else f"digest_tile({local})"
        return text if panel.load.order == (0, 1) else f"({text}, 't')"
    return f"{local}.t()" if panel.load.order == (1, 0) else local
