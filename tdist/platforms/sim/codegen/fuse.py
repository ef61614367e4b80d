"""K-loop fusion: a loop that does nothing but multiply adjacent tiles becomes one multiplication of two panels.

Neither the decision at compile time nor the one at run time (`trips.py`) depends on the schedule. Reads are still
reported: one record a panel.

Valid because every iteration multiplies `A[:, t*BK:(t+1)*BK]` with `B[t*BK:(t+1)*BK, :]`, both masked along K by the
same bound with `other = 0`, or neither: what the bound cuts off is a product of zeros. Masks along M and N stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.ir import Operation, SSAValue

from .elements import Element, type_info
from .generator import Generator
from .ir_access import may_write, only_user, yielded
from .poly import Poly
from .rules_dot import NARROW, is_zero
from .rules_float import feeds_only_dot, goes_to_a_store
from .rules_memory import Access, fill_text, load_clock, needing, spec_text
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
    """A loop that can be fused: panels, the accumulator's index, and values after the last trip by carried index."""

    panels: tuple[Panel, Panel]
    accumulator: int
    finals: Finals
    guards: list[tuple[Poly, Lattice, Element]]
    dot: Operation


class Fusion(Trip):
    """Keeps the operands of the multiplication in the body."""

    def load(self, op: Operation, access: Access) -> None:
        pointer = check_separable(access)
        if pointer.origin.remote:
            raise Refused("a load from another rank, which is a scheduling point")
        if access.mask is not None and access.fill is None:
            raise Refused("no `other`")
        if access.fill is not None and not is_zero(access.fill):
            raise Refused("masked-off lanes that are not 0")
        if not feeds_only_dot(op.results[0]):
            raise Refused("a loaded value that is used for more than the multiplication")
        clk = self.g.clk_of(pointer, access.mask)
        self.g.env[op.results[0]] = Deferred(op, access, clk=clk)  # pyright: ignore[reportArgumentType]

    def transpose(self, op: Operation, value: Value, order: tuple[int, ...]) -> bool:
        if not isinstance(value, Deferred):
            return False
        turned = tuple(value.order[i] for i in order)
        self.g.env[op.results[0]] = replace(value, order=turned)  # pyright: ignore[reportArgumentType]
        return True

    def dot(self, op: Operation) -> None:
        """The plan knows which one it is."""


# --- planning


def plan(g: Generator, op: Operation) -> Plan | None:
    """How to fuse an `scf.for`, or None with the reason noted."""
    body = op.regions[0].block
    dots = [o for o in body.ops if o.name == "tt.dot"]
    if len(dots) != 1 or any(may_write(o) or o.regions for o in body.ops):
        return None
    fusion = Fusion(g)
    return attempt(g, op, fusion, lambda: _planned(g, op, fusion, dots[0]), "fused")


def _planned(g: Generator, op: Operation, fusion: Fusion, dot: Operation) -> Plan:
    accumulator = _accumulator(op, dot)
    values, finals = walk(g, op, accumulator)
    panels = tuple(_panel(g, dot.operands[i], axis, values) for i, axis in ((0, 1), (1, 0)))
    if panels[0].k_bounds != panels[1].k_bounds or panels[0].tile_k != panels[1].tile_k:
        raise Refused("the two operands are masked differently along K")
    return Plan((panels[0], panels[1]), accumulator, finals, guards_of(fusion, values), dot)


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


def _panel(g: Generator, operand: SSAValue, k_axis: int, values: dict[str, Poly]) -> Panel:
    load = g.value(operand)
    if not isinstance(load, Deferred):
        raise Refused("an operand that is not loaded in the loop")
    return panel_of(load, load.order[k_axis], values)


# --- emission


def emit_condition(g: Generator, made: Plan, trips: str) -> tuple[str, str]:
    """`(condition, kk)`: when the fused form is the plain loop's equal, and the extent along K."""
    kk = emit_extent(g, made.panels[0], trips)
    terms = [f"{kk} > 0", *guard_terms(g, made.guards, trips)]
    for panel in made.panels:
        if panel.lattice.vecs:
            terms += [f"{v.local} is None" for v in panel.lattice.vecs]
        terms.append(inside_text(g, panel, kk))
    return " and ".join(dict.fromkeys(terms)), kk


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
    shape, address, strides, box = place(g, panel, kk)
    fill = fill_text(g, access)
    arguments = ["ag", pointer.origin.al, address, strides, box, "0" if fill == "None" else fill]
    arguments += [load_clock(g, access), "()", shape]
    local = g.emit.bind(f"{function}({', '.join(arguments)})", "panel")
    if g.is_abstract(product):
        text = local if g.is_abstract(op.results[0]) else f"digest_tile({local})"
        return text if panel.load.order == (0, 1) else f"({text}, 't')"
    return f"{local}.t()" if panel.load.order == (1, 0) else local
