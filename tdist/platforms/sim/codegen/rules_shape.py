"""Programs, ranges and shapes: splat, expand, broadcast, reshape, transpose, join, split, cat, gather, flip."""

from __future__ import annotations

from dataclasses import replace

from xdsl.ir import Operation

from .elements import I32
from .generator import Generator, rule, uniform_like
from .ir_access import prop
from .poly import ONE, Poly
from .values import (
    AddressTile,
    Bound,
    Box,
    Cond,
    IndexTile,
    Lattice,
    Pointer,
    PointerTile,
    Scalar,
    Splat,
    Tile,
    Value,
    carrying,
)


@rule("tt.get_program_id")
def get_program_id(g: Generator, op: Operation) -> None:
    g.set(op, Scalar(Poly.symbol(f"pid{prop(op, 'axis')}"), I32))


@rule("tt.get_num_programs")
def get_num_programs(g: Generator, op: Operation) -> None:
    g.set(op, Scalar(Poly.symbol(f"np{prop(op, 'axis')}"), I32))


@rule("tt.make_range")
def make_range(g: Generator, op: Operation) -> None:
    info = g.result_type(op)
    g.set(op, IndexTile(Lattice(info.shape, Poly.const(prop(op, "start")), (ONE,)), info.element))


@rule("tt.splat")
def splat(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    g.set(op, splatted(g, op, value, g.result_type(op).shape))


def splatted(g: Generator, op: Operation, value: Value, shape: tuple[int, ...]) -> Value:
    """A scalar in all lanes."""
    match value:
        case Scalar():
            return uniform_like(shape, value)
        case Pointer():
            return PointerTile(Lattice.uniform(shape, value.base), value.origin, value.clk)
        case Cond():
            return Box(shape, (), () if value.text == "True" else (value.text,), value.clk)
        case Splat():
            return replace(value, shape=shape)
        case Tile():
            return g.result(f"{value.local}.expand({shape})", shape, value.element, value.clk, owned=False)
    raise g.error(op, f"cannot splat a {type(value).__name__}")


@rule("tt.unsplat")
def unsplat(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    info = g.result_type(op)
    g.set(op, g.scalar_of(f"{g.tile(value).local}.reshape(()).item()", info.element, value.clk))


@rule("tt.expand_dims")
def expand_dims(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    axis, shape = prop(op, "axis"), g.result_type(op).shape
    match value:
        case IndexTile() | PointerTile():
            g.set(op, replace(value, lattice=value.lattice.with_axis(axis)))
        case Box():
            bounds = tuple(replace(b, axis=b.axis + (b.axis >= axis)) for b in value.bounds)
            g.set(op, replace(value, shape=shape, bounds=bounds))
        case _:
            _view(g, op, value, shape, f"unsqueeze({axis})")


def _view(g: Generator, op: Operation, value: Value, shape: tuple[int, ...], method: str) -> None:
    """A view of a materialised tensor."""
    match value:
        case Splat():
            g.set(op, replace(value, shape=shape))
        case AddressTile():
            local = g.emit.bind(f"{value.local}.{method}", "addr")
            g.set(op, replace(value, local=local, shape=shape))
        case _:
            tile = g.tile(value)
            local = g.emit.bind(f"{tile.local}.{method}", "t")
            result = Tile(local, shape, tile.element, wide=tile.wide, clk=tile.clk)
            g.set(op, result)


@rule("tt.broadcast")
def broadcast(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    shape = g.result_type(op).shape
    match value:
        case IndexTile() | PointerTile() if _can_grow(value.lattice, shape):
            g.set(op, replace(value, lattice=value.lattice.broadcast(shape)))
        case Box():
            g.set(op, _broadcast_box(value, shape, g))
        case PointerTile():
            g.set(op, value)
            _view(g, op, g.addresses(value), shape, f"expand({shape})")
        case _:
            _view(g, op, value, shape, f"expand({shape})")


def _can_grow(lattice: Lattice, shape: tuple[int, ...]) -> bool:
    return all(lattice.shape[v.axis] == shape[v.axis] for v in lattice.vecs)


def _broadcast_box(box: Box, shape: tuple[int, ...], g: Generator) -> Box:
    """Bounds on an axis that grows hold for its one index, 0: they become conditions."""
    kept: list[Bound] = []
    conditions = list(box.conditions)
    for bound in box.bounds:
        if box.shape[bound.axis] == shape[bound.axis]:
            kept.append(bound)
            continue
        if bound.low is not None:
            conditions.append(g.emit.bind(f"{g.poly_text(bound.low)} <= 0", "c"))
        if bound.high is not None:
            conditions.append(g.emit.bind(f"{g.poly_text(bound.high)} > 0", "c"))
    return Box(shape, tuple(kept), tuple(conditions), box.clk)


@rule("tt.reshape")
def reshape(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    shape = g.result_type(op).shape
    if isinstance(value, (IndexTile, PointerTile)):
        lattice = _reshape_lattice(value.lattice, shape)
        if lattice is not None:
            g.set(op, replace(value, lattice=lattice))
            return
    if isinstance(value, PointerTile):
        value = g.addresses(value)
    if isinstance(value, Box) and not value.bounds:
        g.set(op, replace(value, shape=shape))
        return
    _view(g, op, value, shape, f"reshape({shape})")


def _reshape_lattice(lattice: Lattice, shape: tuple[int, ...]) -> Lattice | None:
    """Uniform tensors, one axis cut into several, and extents of 1 stay separable."""
    if lattice.is_uniform:
        return Lattice.uniform(shape, lattice.base)
    if lattice.vecs or len([n for n in lattice.shape if n > 1]) > 1:
        return None
    step = next(s for n, s in zip(lattice.shape, lattice.strides, strict=True) if n > 1)
    strides, inner = [], 1
    for extent in reversed(shape):
        strides.append(step.scaled(inner))
        inner *= extent
    return Lattice(shape, lattice.base, tuple(reversed(strides)))


@rule("tt.trans")
def trans(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    order = tuple(int(i) for i in prop(op, "order"))
    shape = g.result_type(op).shape
    if g.fusion is not None and g.fusion.transpose(op, value, order):
        return
    match value:
        case IndexTile() | PointerTile():
            g.set(op, replace(value, lattice=value.lattice.transposed(order)))
        case Box():
            where = {old: new for new, old in enumerate(order)}
            bounds = tuple(replace(b, axis=where[b.axis]) for b in value.bounds)
            g.set(op, replace(value, shape=shape, bounds=bounds))
        case _:
            _view(g, op, value, shape, f"permute({order})")


@rule("tt.join")
def join(g: Generator, op: Operation) -> None:
    a, b = g.operands(op)
    info = g.result_type(op)
    text = f"torch.stack(({g.tile(a).local}, {g.tile(b).local}), -1)"
    g.set(op, g.result(text, info.shape, info.element, g.clk_of(a, b)))


@rule("tt.cat")
def cat(g: Generator, op: Operation) -> None:
    a, b = g.operands(op)
    info = g.result_type(op)
    text = f"torch.cat(({g.tile(a).local}, {g.tile(b).local}))"
    g.set(op, g.result(text, info.shape, info.element, g.clk_of(a, b)))


@rule("tt.split")
def split(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    info = g.result_type(op)
    tile = g.tile(value)
    for index, result in enumerate(op.results):
        part = g.result(f"{tile.local}[..., {index}]", info.shape, info.element, tile.clk, owned=False)
        g.env[result] = carrying(part, g.control)


@rule("tt.flip")
def flip(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    info = g.result_type(op)
    g.set(op, g.result(f"{g.tile(value).local}.flip({prop(op, 'dim')})", info.shape, info.element, value.clk))


@rule("tt.gather")
def gather(g: Generator, op: Operation) -> None:
    source, indices = g.operands(op)
    info = g.result_type(op)
    text = f"torch.gather({g.tile(source).local}, {prop(op, 'axis')}, {g.tile(indices).local}.to(torch.int64))"
    g.set(op, g.result(text, info.shape, info.element, g.clk_of(source, indices)))


@rule("tt.histogram")
def histogram(g: Generator, op: Operation) -> None:
    (value, *_) = g.operands(op)
    info = g.result_type(op)
    text = f"torch.bincount({g.tile(value).local}.reshape(-1), minlength={info.shape[0]})[:{info.shape[0]}]"
    g.set(op, g.result(f"{text}.to({info.element.text})", info.shape, info.element, value.clk))


@rule("tt.sort")
def sort(g: Generator, op: Operation) -> None:
    value = g.operands(op)[0]
    info = g.result_type(op)
    text = f"{g.tile(value).local}.sort({prop(op, 'dim', -1)}, {bool(prop(op, 'descending', False))}).values"
    g.set(op, g.result(text, info.shape, info.element, value.clk))
