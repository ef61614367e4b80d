"""Multiplication, reductions and scans."""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from .elements import Element, type_info
from .generator import Generator, rule
from .ir_access import only_user, prop, yielded
from .values import Clk, Splat, Tile, Value, carrying

NARROW = ("f16", "bf16")


# --- multiplication


@rule("tt.dot")
def dot(g: Generator, op: Operation) -> None:
    """`c + a @ b`: f16 and bf16 are multiplied in float32 and accumulated there, as the cube unit does."""
    if g.fusion is not None:
        g.fusion.dot(op)
        return
    a, b, c = g.operands(op)
    element = g.result_type(op).element
    shape = g.result_type(op).shape
    clk = g.clk_of(a, b, c)
    x, y = multiplicand(g, a), multiplicand(g, b)
    if is_zero(c):
        text = f"multiply({x}, {y}, {'torch.float32' if element.name in NARROW else element.text})"
    elif element.name in NARROW:
        text = f"multiply_add({g.tile(c).local}.float(), {x}, {y})"
    else:
        accumulator = g.tile(c)
        in_place = accumulator.owned and only_user(op.operands[2]) is op
        target = accumulator.local if in_place else f"{accumulator.local}.clone()"
        g.module.notes.append(f"dot {'in place' if in_place else 'with a copied accumulator'}")
        text = f"multiply_add({target}, {x}, {y})"
    if element.name in NARROW:
        text = f"{text}.to({element.text})"
    g.set(op, g.result(text, shape, element, clk))
    note_dot(g, op, str(type_info(op.operands[0].type).shape[-1]))


def note_dot(g: Generator, op: Operation, inner: str) -> None:
    """Where runs are traced, tell the tracer of a multiplication; `inner` is the text of its inner extent."""
    if g.module.options.trace:
        extents = ", ".join([*map(str, g.result_type(op).shape), inner])
        g.emit.line(f"ag.dot({g.site(op)}, ({extents}), {g.module.numbers.get(op, -1)})")


def multiplicand(g: Generator, value: Value) -> str:
    """An operand of a multiplication, widened if it is narrow."""
    tile = g.tile(value)
    if tile.wide or tile.element.name not in NARROW:
        return tile.local
    return f"{tile.local}.float()"


def is_zero(value: Value) -> bool:
    """Whether a value is 0 in all lanes, statically."""
    if isinstance(value, Splat):
        return value.text == "0.0"
    lattice = getattr(value, "lattice", None)
    return lattice is not None and lattice.is_uniform and lattice.base.value == 0


# --- reductions

REDUCERS = {
    "arith.addf": "reduce_sum",
    "arith.addi": "reduce_sum",
    "arith.mulf": "reduce_product",
    "arith.muli": "reduce_product",
    "arith.maximumf": "reduce_maximum",
    "arith.minimumf": "reduce_minimum",
    "arith.maxnumf": "reduce_max_num",
    "arith.minnumf": "reduce_min_num",
    "arith.maxsi": "reduce_maximum",
    "arith.minsi": "reduce_minimum",
}
SCANNERS = {"arith.addf": "scan_sum", "arith.addi": "scan_sum", "arith.mulf": "scan_product"}


def known_combiner(block: Block, table: dict[str, str]) -> str | None:
    """The helper for a combiner that is one operation on the two arguments, in any order."""
    ops = list(block.ops)
    if len(ops) != 2 or len(block.args) != 2 or set(ops[0].operands) != set(block.args):
        return None
    return table.get(ops[0].name) if list(ops[1].operands) == list(ops[0].results) else None


@rule("tt.reduce")
def reduce(g: Generator, op: Operation) -> None:
    tiles = [g.tile(v) for v in g.operands(op)]
    axis = prop(op, "axis")
    block = op.regions[0].block
    clk = g.clk_of(*tiles)
    known = known_combiner(block, REDUCERS)
    if known is not None:
        locals_ = [g.emit.bind(f"{known}({tiles[0].local}, {axis})", "r")]
    else:
        combiner = _combiner(g, op, block, tiles)
        locals_ = [g.emit.fresh("r") for _ in tiles]
        sources = "".join(f"{t.local}, " for t in tiles)
        g.emit.line(f"{''.join(n + ', ' for n in locals_)} = fold(({sources}), {axis}, {combiner})")
    for result, local in zip(op.results, locals_, strict=True):
        _set_reduced(g, result, local, clk)


def _set_reduced(g: Generator, result: SSAValue, local: str, clk: Clk) -> None:
    info = type_info(result.type)
    value: Value = Tile(local, info.shape, info.element, True)
    if not info.shape:
        value = g.scalar_of(f"{local}.item()", info.element, clk)
    g.set_value(result, carrying(value, clk))


def _combiner(g: Generator, op: Operation, block: Block, tiles: list[Tile]) -> str:
    """A nested function from the combiner's region; it works on whole tiles."""
    name = g.emit.fresh("combine")
    scope = g.emit.push("def")
    parameters = []
    for index, arg in enumerate(block.args):
        element: Element = type_info(arg.type).element
        local = g.emit.fresh("p")
        parameters.append(local)
        g.env[arg] = Tile(local, tiles[index % len(tiles)].shape, element)
    g.block(block)
    results = "".join(f"{g.tile(g.value(v)).local}, " for v in yielded(block))
    g.emit.line(f"return ({results})")
    g.emit.pop()
    g.emit.block(f"def {name}({', '.join(parameters)}):", scope)
    return name


@rule("tt.scan")
def scan(g: Generator, op: Operation) -> None:
    tiles = [g.tile(v) for v in g.operands(op)]
    axis, reverse = prop(op, "axis"), bool(prop(op, "reverse", False))
    block = op.regions[0].block
    known = known_combiner(block, SCANNERS)
    if known is not None:
        locals_ = [g.emit.bind(f"{known}({tiles[0].local}, {axis}, {reverse})", "t")]
    else:
        combiner = _combiner(g, op, block, tiles)
        locals_ = [g.emit.fresh("t") for _ in tiles]
        sources = "".join(f"{t.local}, " for t in tiles)
        g.emit.line(f"{''.join(n + ', ' for n in locals_)} = scan(({sources}), {axis}, {reverse}, {combiner})")
    for result, local in zip(op.results, locals_, strict=True):
        info = type_info(result.type)
        g.set_value(result, Tile(local, info.shape, info.element, True, clk=g.clk_of(*tiles)))
