"""Memory: pointer arithmetic, block pointers, loads, stores, atomics; the tier of each access is chosen here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.ir import Operation

from tdist.ir.tt import RMW, SCOPE, SEMANTIC

from .elements import Element, type_info
from .generator import Generator, rule
from .ir_access import prop, quiet_between, users
from .poly import ZERO, Poly
from .rules_float import feeds_only_dot
from .symbolic import set_digest
from .values import (
    AddressTile,
    BlockPointer,
    Bound,
    Box,
    IndexTile,
    Lattice,
    Origin,
    Pointer,
    PointerTile,
    Scalar,
    Splat,
    Tile,
    Value,
)

NARROW = ("f16", "bf16")
ALIASING = frozenset(
    {
        "tt.expand_dims",
        "tt.broadcast",
        "tt.reshape",
        "tt.trans",
        "tt.split",
        "tt.bitcast",
        "arith.bitcast",
        "arith.truncf",
        "arith.extf",
        "scf.yield",
        "scf.condition",
        "distributed.consume_token",
        "tt.return",
        "tt.call",
        "cf.br",
        "cf.cond_br",
    }
)


@dataclass(frozen=True, slots=True)
class Access:
    """One tile access as the rules see it: where, which lanes, what masked-off lanes hold (None: poison)."""

    pointer: PointerTile | AddressTile
    mask: Value | None
    fill: Value | None


# --- pointers


@rule("tt.addptr")
def addptr(g: Generator, op: Operation) -> None:
    pointer, offset = g.operands(op)
    size = Poly.const(pointer.element.size_bytes)
    clk = g.clk_of(pointer, offset)
    if isinstance(pointer, Pointer) and isinstance(offset, Scalar):
        if offset.poly.name is None and offset.poly.value is None:
            g.guard(op, Lattice((), offset.poly, ()), offset.element)
        g.set(op, Pointer(pointer.base + offset.poly * size, pointer.origin, clk))
        return
    assert isinstance(pointer, (PointerTile, AddressTile))
    if isinstance(pointer, PointerTile) and isinstance(offset, IndexTile):
        g.guard(op, offset.lattice, offset.element)
        g.set(op, PointerTile(pointer.lattice + offset.lattice.scaled(size), pointer.origin, clk))
        return
    base = g.addresses(pointer).local
    text = f"{base} + {g.tile(offset).local}.to(torch.int64) * {pointer.element.size_bytes}"
    g.set(op, AddressTile(g.emit.bind(text, "addr"), pointer.shape, pointer.origin, clk))


@rule("tt.ptr_to_int")
def ptr_to_int(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    element = g.result_type(op).element
    match value:
        case Pointer():
            g.set(op, Scalar(value.base, element, value.clk))
        case PointerTile():
            g.set(op, IndexTile(value.lattice, element, value.clk))
        case _:
            g.set(op, replace(g.tile(value), element=element))


@rule("tt.int_to_ptr")
def int_to_ptr(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    info = g.result_type(op)
    if not isinstance(value, Scalar):
        raise g.error(op, "int_to_ptr of a tensor: the allocation of each lane cannot be checked; convert a scalar")
    address = g.exact(value)
    al = g.emit.bind(f"ag.pointer({g.poly_text(address)}, {g.site(op)})", "al")
    g.set(op, Pointer(address, Origin(al, info.element, None, True), value.clk))


# --- block pointers


@rule("tt.make_tensor_ptr")
def make_tensor_ptr(g: Generator, op: Operation) -> None:
    pointer, *rest = g.operands(op)
    assert isinstance(pointer, Pointer)
    rank = len(rest) // 3
    polys = [g.exact(v) for v in rest if isinstance(v, Scalar)]
    shape = type_info(op.results[0].type).block
    assert shape is not None
    extents, strides, offsets = polys[:rank], polys[rank : 2 * rank], polys[2 * rank :]
    clk = g.clk_of(pointer, *rest)
    g.set(op, BlockPointer(pointer, tuple(extents), tuple(strides), tuple(offsets), shape, clk))


@rule("tt.advance")
def advance(g: Generator, op: Operation) -> None:
    pointer, *steps = g.operands(op)
    assert isinstance(pointer, BlockPointer)
    moved = tuple(o + s.poly for o, s in zip(pointer.offsets, steps, strict=True) if isinstance(s, Scalar))
    g.set(op, replace(pointer, offsets=moved, clk=g.clk_of(pointer, *steps)))


def block_access(g: Generator, op: Operation, pointer: BlockPointer, mask: Value | None) -> Access:
    """A block pointer's access as a pointer tile and a box."""
    size = Poly.const(pointer.element.size_bytes)
    base = pointer.pointer.base
    for offset, stride in zip(pointer.offsets, pointer.strides, strict=True):
        base = base + offset * stride * size
    lattice = Lattice(pointer.shape, base, tuple(s * size for s in pointer.strides))
    tile = PointerTile(lattice, pointer.pointer.origin, pointer.clk)
    checked = [int(a) for a in prop(op, "boundaryCheck", ())]
    bounds = tuple(Bound(a, -pointer.offsets[a], pointer.extents[a] - pointer.offsets[a]) for a in checked)
    if not bounds:
        return Access(tile, mask, None)
    fill = None
    if pointer.element.is_float and prop(op, "padding") is not None:
        text = "0.0" if prop(op, "padding") == 1 else "nan"
        fill = Splat(pointer.shape, text, pointer.element)
    elif prop(op, "padding") == 1:
        fill = IndexTile(Lattice.uniform(pointer.shape, ZERO), pointer.element)
    return Access(tile, Box(pointer.shape, bounds, (), pointer.clk), fill)


# --- loads


@rule("tt.load")
def load(g: Generator, op: Operation) -> None:
    pointer, mask, fill = _load_operands(g, op)
    if isinstance(pointer, BlockPointer):
        access = block_access(g, op, pointer, mask)
    elif isinstance(pointer, Pointer):
        _load_scalar(g, op, pointer, mask, fill)
        return
    else:
        assert isinstance(pointer, (PointerTile, AddressTile))
        access = Access(pointer, mask, fill)
    if g.fusion is not None:
        g.fusion.load(op, access)
        return
    if access.pointer.origin.remote or g.module.options.adversarial:
        g.emit.line("yield")
    if isinstance(access.pointer, PointerTile) and (access.mask is None or isinstance(access.mask, Box)):
        _load_box(g, op, access)
    else:
        _load_lanes(g, op, access)


def _load_operands(g: Generator, op: Operation) -> tuple[Value, Value | None, Value | None]:
    values = g.operands(op)
    return values[0], values[1] if len(values) > 1 else None, values[2] if len(values) > 2 else None


def spec_text(g: Generator, op: Operation, pointer: Pointer | PointerTile | AddressTile, kind: str) -> str:
    """The `Spec` of an access, as generated code builds it."""
    shape = () if isinstance(pointer, Pointer) else pointer.shape
    site = g.site(op, kind, pointer.origin)
    return f"Spec({site}, {shape}, {pointer.element.text}, {g.module.options.detect})"


def fill_text(g: Generator, access: Access) -> str:
    """What masked-off lanes hold: a number, a tensor, or None for poison."""
    return "None" if access.fill is None else g.operand(access.fill)


def load_clock(g: Generator, access: Access) -> str:
    """The clock with which a load is ordered: that of every operand and of what controls it."""
    return g.clock(g.clk_of(access.pointer, access.mask, access.fill) | g.control)


def _load_box(g: Generator, op: Operation, access: Access) -> None:
    pointer = access.pointer
    assert isinstance(pointer, PointerTile)
    result = op.results[0]
    narrow = pointer.element.name in NARROW
    wide = narrow and feeds_only_dot(result)
    is_plain_fill = access.fill is None or g.is_uniform(access.fill)
    cached = wide and is_plain_fill and (access.mask is None or access.fill is not None)
    view = not wide and view_is_safe(op) and not g.module.options.adversarial
    abstract = g.is_abstract(result)
    options = f"wide={wide}, view={view}, raw={view and only_stored(op)}, cache={'TILES' if cached else None}"
    spec = spec_text(g, op, pointer, "load")
    if abstract:
        function = g.module.define("L", f"digest_box({spec})")
    else:
        function = needing(g, op, spec, "L", "load_box", options)
    g.count(op, "rows" if pointer.lattice.vecs else "slice")
    g.note_access(op, view=view, cached=cached)
    arguments = [*place_texts(g, pointer, access.mask), fill_text(g, access)]
    clk = load_clock(g, access)
    if clk != "None" or pointer.lattice.vecs:
        arguments.append(clk)
    if pointer.lattice.vecs:
        arguments.append(g.vecs_text(pointer.lattice))
    carried = g.clk_of(pointer, access.mask, access.fill)
    if abstract:
        set_digest(g, result, f"{function}({', '.join(arguments)})", carried)
        return
    local = g.emit.bind(f"{function}({', '.join(arguments)})", result.name_hint or "t")
    _keep_marks(g, op, pointer)
    view_of = pointer.origin.al if view else None
    owned = not view and not cached
    g.set(op, Tile(local, pointer.shape, pointer.element, owned, wide, carried, view_of))


def place_texts(g: Generator, pointer: PointerTile, mask: Value | None) -> list[str]:
    """`ag, al, address, strides, box` of a separable access."""
    lattice = pointer.lattice
    strides = "".join(f"{g.poly_text(s)}, " for s in lattice.strides)
    box = g.box_text(mask) if isinstance(mask, Box) else None
    return ["ag", pointer.origin.al, g.poly_text(lattice.base), f"({strides})", box or "None"]


def view_is_safe(op: Operation) -> bool:
    """Whether memory itself may stand for the loaded value: nothing can write between the load and its last use."""
    uses = users(op.results[0])
    if not uses or any(u.name in ALIASING or u.regions for u in uses):
        return False
    return all(quiet_between(op, u) for u in uses)


_VALUE_ONLY = ([False, True], [False, True, False])


def only_stored(op: Operation) -> bool:
    """Whether the loaded value goes into stores as it is, and nowhere else."""
    loaded = op.results[0]
    return all(u.name == "tt.store" and [v is loaded for v in u.operands[:3]] in _VALUE_ONLY for u in users(loaded))


def _load_lanes(g: Generator, op: Operation, access: Access) -> None:
    pointer = access.pointer
    wide = pointer.element.name in NARROW and feeds_only_dot(op.results[0])
    abstract = g.is_abstract(op.results[0])
    spec = spec_text(g, op, pointer, "load")
    if abstract:
        function = g.module.define("G", f"digest_lanes(load_lanes({spec}))")
    else:
        function = needing(g, op, spec, "G", "load_lanes", f"wide={wide}")
    g.count(op, "gather")
    mask = "None" if access.mask is None else g.tile(access.mask).local
    address = g.addresses(pointer).local
    arguments = ["ag", pointer.origin.al, address, mask, fill_text(g, access), load_clock(g, access)]
    carried = g.clk_of(pointer, access.mask, access.fill)
    if abstract:
        set_digest(g, op.results[0], f"{function}({', '.join(arguments)})", carried)
        return
    local = g.emit.bind(f"{function}({', '.join(arguments)})", op.results[0].name_hint or "t")
    _keep_marks(g, op, pointer)
    g.set(op, Tile(local, pointer.shape, pointer.element, True, wide, carried))


def needing(g: Generator, op: Operation, spec: str, prefix: str, factory: str, options: str) -> str:
    """What makes an access that needs numbers: where tiles are symbolic, it looks for marks (`symbolic_access.py`)."""
    symbolic = g.module.symbolic
    if symbolic is None or op in symbolic.moved:
        return g.module.access(prefix, factory, spec, options, op)
    made = f"{factory}({spec}{', ' if options else ''}{options})"
    made = f"needing_lanes({made})" if factory.endswith("lanes") else f"needing_{factory[5:]}({made}, {spec})"
    return g.module.define(prefix, made)


def _keep_marks(g: Generator, op: Operation, pointer: PointerTile | AddressTile) -> None:
    """A tile that is only moved takes along where the patterns in it come from."""
    if g.module.symbolic is not None and op in g.module.symbolic.moved:
        g.emit.line(f"{g.module.symbolic.moved[op]} = {pointer.origin.al}.marks")


def _pass_marks(g: Generator, op: Operation, pointer: PointerTile | AddressTile) -> None:
    """Behind the store of a tile that was only moved."""
    marks = g.module.symbolic.source_of(op) if g.module.symbolic is not None else None
    if marks is not None:
        g.emit.line(f"if {marks}: pass_marks({marks}, {pointer.origin.al})")


def _load_scalar(g: Generator, op: Operation, pointer: Pointer, mask: Value | None, fill: Value | None) -> None:
    if g.fusion is not None:
        g.fusion.refuse("a scalar load")
    is_volatile = bool(prop(op, "isVolatile", False))
    if pointer.origin.remote or is_volatile or g.module.options.adversarial:
        g.emit.line("yield")
    clk = g.clk_of(pointer, mask, fill)
    expression = _scalar_load_text(g, op, pointer, clk, is_volatile)
    if mask is not None:
        otherwise = g.operand(fill) if fill is not None else f"poison_value({pointer.element.text}, ag.poison)"
        expression = f"{expression} if {g.condition(mask).text} else {otherwise}"
    g.count(op, "scalar")
    g.set(op, g.scalar_of(expression, pointer.element, clk))


def _scalar_load_text(g: Generator, op: Operation, pointer: Pointer, clk: frozenset[str], is_volatile: bool) -> str:
    address, clock = g.poly_text(pointer.base), g.clock(clk | g.control)
    if not is_volatile:
        function = needing(g, op, spec_text(g, op, pointer, "load"), "L", "load_scalar", "")
        return f"{function}(ag, {pointer.origin.al}, {address}, {clock})"
    site = g.site(op, "volatile load", pointer.origin)
    element = pointer.element
    raw = f"ag.volatile_load({address}, {pointer.origin.al}, {element.size_bytes}, {clock}, {site})"
    return from_bits(raw, element)


def from_bits(raw: str, element: Element) -> str:
    """An expression for the value of a word that the engine gives as an integer."""
    if element.is_float:
        bits = f"torch.int{element.bits}"
        return f"bitcast_scalar(wrap({raw}, {element.bits}), {bits}, {element.text})"
    return f"bool({raw})" if element.is_bool else f"wrap({raw}, {element.bits})"


def to_bits(text: str, element: Element) -> str:
    """An expression for the integer whose bits are those of a value."""
    if element.is_float:
        return f"bitcast_scalar({text}, {element.text}, torch.int{element.bits})"
    return f"int({text})" if element.is_bool else text


# --- stores


@rule("tt.store")
def store(g: Generator, op: Operation) -> None:
    values = g.operands(op)
    pointer, value = values[0], values[1]
    mask = values[2] if len(values) > 2 else None
    if isinstance(pointer, Pointer):
        _store_scalar(g, op, pointer, value, mask)
        return
    if isinstance(pointer, BlockPointer):
        access = block_access(g, op, pointer, mask)
        pointer, mask = access.pointer, access.mask
    assert isinstance(pointer, (PointerTile, AddressTile))
    if g.fusion is not None:
        g.fusion.store(op, Access(pointer, mask, None), value)
        return
    if pointer.origin.remote or g.module.options.adversarial:
        g.emit.line("yield")
    if isinstance(pointer, PointerTile) and (mask is None or isinstance(mask, Box)):
        _store_box(g, op, pointer, value, mask)
        return
    g.count(op, "gather")
    function = _store(g, op, pointer, "C", "lanes")
    lanes = "None" if mask is None else g.tile(mask).local
    arguments = ["ag", pointer.origin.al, g.addresses(pointer).local, lanes, g.operand(value)]
    g.emit.line(f"{function}({', '.join(arguments)})")
    _pass_marks(g, op, pointer)


def _store(g: Generator, op: Operation, pointer: PointerTile | AddressTile, prefix: str, tier: str) -> str:
    """What makes a store of a tile, or of a digest."""
    spec = spec_text(g, op, pointer, "store")
    if g.is_abstract(op.operands[1]):
        return g.module.define(prefix, f"pattern_{tier}({spec})")
    return g.module.access(prefix, f"store_{tier}", spec, "", op)


def _store_box(g: Generator, op: Operation, pointer: PointerTile, value: Value, mask: Box | None) -> None:
    g.count(op, "rows" if pointer.lattice.vecs else "slice")
    function = _store(g, op, pointer, "W", "box")
    arguments = [*place_texts(g, pointer, mask), g.operand(value)]
    source = value.view_of if isinstance(value, Tile) and value.view_of else "None"
    if source != "None" or pointer.lattice.vecs:
        arguments.append(source)
    if pointer.lattice.vecs:
        arguments.append(g.vecs_text(pointer.lattice))
    g.emit.line(f"{function}({', '.join(arguments)})")
    _pass_marks(g, op, pointer)


def _store_scalar(g: Generator, op: Operation, pointer: Pointer, value: Value, mask: Value | None) -> None:
    if g.fusion is not None:
        g.fusion.refuse("a scalar store")
    if pointer.origin.remote or g.module.options.adversarial:
        g.emit.line("yield")
    g.count(op, "scalar")
    function = g.module.access("W", "store_scalar", spec_text(g, op, pointer, "store"), "", op)
    text = f"{function}(ag, {pointer.origin.al}, {g.poly_text(pointer.base)}, {g.operand(value)})"
    g.emit.line(text if mask is None else f"if {g.condition(mask).text}: {text}")


# --- atomics


@rule("tt.atomic_rmw")
def atomic_rmw(g: Generator, op: Operation) -> None:
    values = g.operands(op)
    kind = RMW[prop(op, "atomic_rmw_op")]
    kind = "xchg" if kind == "exch" else kind
    mask = values[2] if len(values) > 2 else None
    _atomic(g, op, kind, values[0], (values[1],), mask)


@rule("tt.atomic_cas")
def atomic_cas(g: Generator, op: Operation) -> None:
    pointer, compare, new = g.operands(op)
    _atomic(g, op, "cas", pointer, (compare, new), None)


def _atomic(
    g: Generator, op: Operation, kind: str, pointer: Value, values: tuple[Value, ...], mask: Value | None
) -> None:
    g.emit.line("yield")
    if not isinstance(pointer, Pointer):
        assert isinstance(pointer, (PointerTile, AddressTile))
        _atomic_tile(g, op, kind, pointer, values, mask)
        return
    element = pointer.element
    operands = [to_bits(g.operand(v), element) if kind == "cas" else g.operand(v) for v in values]
    value = f"({', '.join(operands)})" if kind == "cas" else operands[0]
    number = _number(element, kind)
    sem, scope = SEMANTIC[prop(op, "sem", 4)], SCOPE[prop(op, "scope", 1)]
    used = bool(users(op.results[0]))
    site = g.site(op, f"atomic_{kind}", pointer.origin)
    text = (
        f"ag.atomic({g.poly_text(pointer.base)}, {pointer.origin.al}, {kind!r}, {value}, {element.size_bytes}, "
        f"{number!r}, {sem!r}, {scope!r}, {used}, {site})"
    )
    text = f"float({text})" if number in ("float", "bfloat") else from_bits(text, element)
    if mask is not None and g.condition(mask).text != "True":
        text = f"{text} if {g.condition(mask).text} else poison_value({element.text}, ag.poison)"
    g.set(op, g.scalar_of(text, element, g.clk_of(pointer, mask, *values)))


def _number(element: Element, kind: str) -> str:
    """How an atomic reads the bits of its word."""
    if element.is_float and kind != "cas":
        return "bfloat" if element.name == "bf16" else "float"
    return "uint" if kind in ("umax", "umin") else "int"


def _atomic_tile(
    g: Generator,
    op: Operation,
    kind: str,
    pointer: PointerTile | AddressTile,
    values: tuple[Value, ...],
    mask: Value | None,
) -> None:
    g.count(op, "gather")
    used = bool(users(op.results[0]))
    spec = spec_text(g, op, pointer, f"atomic_{kind}")
    function = needing(g, op, spec, "A", "atomic_lanes", f"{kind!r}, {used}")
    texts = [g.operand(v) for v in values]
    value = f"({', '.join(texts)})" if len(texts) > 1 else texts[0]
    lanes = "None" if mask is None else g.tile(mask).local
    arguments = ["ag", pointer.origin.al, g.addresses(pointer).local, lanes, value]
    local = g.emit.bind(f"{function}({', '.join(arguments)})", "old")
    g.set(op, Tile(local, pointer.shape, pointer.element, True, clk=g.clk_of(pointer, mask, *values)))
