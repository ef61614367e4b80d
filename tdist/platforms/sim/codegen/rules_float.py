"""Floats: arithmetic that rounds after every operation, comparison, functions, casts, selection."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from .arithmetic import UNARY
from .elements import Element, type_info
from .generator import Generator, rule
from .ir_access import only_user, prop
from .rules_int import element_wise, float_literal, set_condition, tile_shape, uniform_result, uniform_scalar
from .values import AddressTile, Box, Cond, Pointer, PointerTile, Splat, Tile, Value, carrying

BINARY = {"arith.addf": "{} + {}", "arith.subf": "{} - {}", "arith.mulf": "{} * {}"}
EXTREMES = {
    "arith.minnumf": "min_num",
    "arith.maxnumf": "max_num",
    "arith.minimumf": "minimum",
    "arith.maximumf": "maximum",
}
FUNCTIONS = tuple(name for name in UNARY if name not in ("negf", "precise_sqrt"))
CMPF = (
    "false",
    "oeq",
    "ogt",
    "oge",
    "olt",
    "ole",
    "one",
    "ord",
    "ueq",
    "ugt",
    "uge",
    "ult",
    "ule",
    "une",
    "uno",
    "true",
)
PYTHON = {"oeq": "==", "ogt": ">", "oge": ">=", "olt": "<", "ole": "<=", "une": "!="}


def rounding(element: Element) -> str:
    """The function that rounds a double to the element."""
    return f"round_{element.name}"


def compute(g: Generator, op: Operation, template: str, scalar_template: str | None = None) -> None:
    """An element-wise float operation; a uniform one is computed once, in double, and rounded."""
    values = g.operands(op)
    element = g.result_type(op).element
    if all(isinstance(v, Splat) for v in values):
        text = (scalar_template or template).format(*[g.operand(v) for v in values])
        rounded = text if element.name == "f64" else f"{rounding(element)}({text})"
        local = g.emit.reuse(("float", rounded), rounded, "x")
        g.set(op, Splat(g.result_type(op).shape, local, element, g.clk_of(*values)))
        return
    texts = [g.operand(v) for v in values]
    g.set(op, g.result(template.format(*texts), tile_shape(g, op, values), element, g.clk_of(*values)))


@rule(*BINARY)
def binary(g: Generator, op: Operation) -> None:
    compute(g, op, BINARY[op.name])


@rule("arith.divf", "tt.precise_divf")
def divf(g: Generator, op: Operation) -> None:
    compute(g, op, "{} / {}", "div_float({}, {})")


@rule("arith.remf", "tt.mod")
def remf(g: Generator, op: Operation) -> None:
    compute(g, op, "torch_fmod({}, {})")


@rule("arith.negf")
def negf(g: Generator, op: Operation) -> None:
    compute(g, op, "-{}")


@rule(*EXTREMES)
def extremes(g: Generator, op: Operation) -> None:
    compute(g, op, f"{EXTREMES[op.name]}({{}}, {{}})")


@rule(*[f"math.{name}" for name in FUNCTIONS], "tt.precise_sqrt")
def function(g: Generator, op: Operation) -> None:
    name = op.name.split(".")[1]
    compute(g, op, f"apply({name!r}, {{}}, {g.result_type(op).element.text})")


@rule("math.fma")
def fma(g: Generator, op: Operation) -> None:
    compute(g, op, f"fma({{}}, {{}}, {{}}, {g.result_type(op).element.text})")


@rule("math.powf", "math.copysign", "math.atan2")
def two_arguments(g: Generator, op: Operation) -> None:
    name = {"powf": "power", "copysign": "copysign", "atan2": "arctan2"}[op.name.split(".")[1]]
    compute(g, op, f"{name}({{}}, {{}})")


@rule("tt.clampf")
def clampf(g: Generator, op: Operation) -> None:
    propagate = prop(op, "propagateNan", 0) != 0
    compute(g, op, f"clamp_float({{}}, {{}}, {{}}, {propagate})")


@rule("arith.cmpf")
def cmpf(g: Generator, op: Operation) -> None:
    predicate = CMPF[prop(op, "predicate")]
    values = g.operands(op)
    if predicate in ("true", "false"):
        set_condition(g, op, predicate.capitalize(), g.clk_of(*values))
        return
    template = f"{{}} {PYTHON[predicate]} {{}}" if predicate in PYTHON else f"ordered({predicate!r}, {{}}, {{}})"
    if all(isinstance(v, Splat) for v in values):
        text = template.format(*[g.operand(v) for v in values])
        set_condition(g, op, g.emit.bind(text, "c"), g.clk_of(*values))
        return
    element_wise(g, op, template, values)


# --- casts


@rule("arith.extf", "arith.truncf", "tt.fp_to_fp")
def convert_float(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    element = g.result_type(op).element
    if isinstance(value, Splat):
        narrowing = value.text != "0.0" and (element.bits < value.element.bits or element.name in ("f16", "bf16"))
        text = g.emit.bind(f"{rounding(element)}({value.text})", "x") if narrowing else value.text
        g.set(op, Splat(value.shape, text, element, value.clk))
        return
    tile = g.tile(value)
    if _stored_at_once(op, element) and prop(op, "rounding") in (None, 1):
        g.set(op, Tile(tile.local, tile.shape, element, clk=tile.clk))
        return
    g.set(op, g.result(f"{tile.local}.to({element.text})", tile.shape, element, tile.clk))


def _stored_at_once(op: Operation, element: Element) -> bool:
    """Whether the store that follows can do the rounding (its copy rounds to nearest even as the cast does)."""
    user = only_user(op.results[0])
    return user is not None and user.name == "tt.store" and user.operands[1] is op.results[0] and element.is_float


@rule("arith.sitofp", "arith.uitofp")
def int_to_float(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    info = g.result_type(op)
    is_signed = op.name == "arith.sitofp"
    bits = type_info(op.operands[0].type).element.bits
    scalar = uniform_scalar(value)
    if scalar is not None or isinstance(value, Cond):
        text = g.operand(value) if is_signed or scalar is None else f"unsigned({g.operand(value)}, {bits})"
        number = None if scalar is None else scalar.poly.value
        if number is not None and 0 <= number <= 2048 // (8 if info.element.name == "bf16" else 1):
            rounded = float_literal(float(number))
        else:
            rounded = g.emit.bind(f"{rounding(info.element)}(float({text}))", "x")
        g.set(op, Splat(info.shape, rounded, info.element, value.clk))
        return
    tile = g.tile(value)
    text = f"{tile.local}.to({info.element.text})"
    if not is_signed and bits > 1:
        text = f"tile_unsigned_to_float({tile.local}, {bits}, {info.element.text})"
    g.set(op, g.result(text, tile.shape, info.element, value.clk))


@rule("arith.fptosi", "arith.fptoui")
def float_to_int(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    element = g.result_type(op).element
    is_signed = op.name == "arith.fptosi"
    if isinstance(value, Splat):
        text = f"float_to_int(ag, {g.site(op)}, {value.text}, {element.bits}, {is_signed})"
        uniform_result(g, op, g.opaque(text), value.clk)
        return
    tile = g.tile(value)
    text = f"tile_float_to_int({tile.local}, {element.bits}, {is_signed})"
    g.set(op, g.result(text, tile.shape, element, value.clk))


@rule("arith.bitcast", "tt.bitcast")
def bitcast(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    info = g.result_type(op)
    if isinstance(value, (Pointer, PointerTile, AddressTile)):
        g.set(op, _recast(value, info.element))
        return
    source = type_info(op.operands[0].type).element
    if source == info.element:
        g.set(op, value)
    elif info.shape or isinstance(value, Tile):
        tile = g.tile(value)
        g.set(op, g.result(f"bitcast_tile({tile.local}, {info.element.text})", tile.shape, info.element, value.clk))
    else:
        text = f"bitcast_scalar({g.operand(value)}, {source.text}, {info.element.text})"
        g.set(op, g.scalar_of(text, info.element, value.clk))


def _recast(value: Pointer | PointerTile | AddressTile, element: Element) -> Value:
    from dataclasses import replace

    return replace(value, origin=replace(value.origin, element=element))


# --- selection


@rule("arith.select")
def select(g: Generator, op: Operation) -> None:
    condition, a, b = g.operands(op)
    if isinstance(condition, Cond) or (isinstance(condition, Box) and not condition.bounds):
        from .merge import choose

        g.set(op, carrying(choose(g, op, g.condition(condition), a, b), condition.clk))
        return
    element = g.result_type(op).element
    clk = g.clk_of(condition, a, b)
    shape = tile_shape(g, op, [condition, a, b])
    if isinstance(a, (PointerTile, AddressTile)) and isinstance(b, (PointerTile, AddressTile)):
        _select_pointers(g, op, condition, a, b)
        return
    texts = [g.operand(v) for v in (a, b)]
    text = f"select({g.tile(condition).local}, {texts[0]}, {texts[1]}, {element.text})"
    g.set(op, g.result(text, shape, element, clk))


def _select_pointers(
    g: Generator, op: Operation, condition: Value, a: PointerTile | AddressTile, b: PointerTile | AddressTile
) -> None:
    if a.origin.al != b.origin.al:
        raise g.error(op, "select, lane by lane, between pointers into different allocations: select values instead")
    x, y = g.addresses(a).local, g.addresses(b).local
    text = g.emit.bind(f"torch.where({g.tile(condition).local}, {x}, {y})", "addr")
    origin = g.origin_of(op.results[0], a.element, a.origin.al)
    g.set(op, AddressTile(text, a.shape, origin, g.clk_of(condition, a, b)))


def goes_to_a_store(value: SSAValue) -> bool:
    """Whether the only use is to be stored, rounded by the store or as it is."""
    user = only_user(value)
    if user is None:
        return False
    if user.name in ("arith.truncf", "tt.fp_to_fp"):
        element = type_info(user.results[0].type).element
        return _stored_at_once(user, element) and prop(user, "rounding") in (None, 1)
    return user.name == "tt.store" and user.operands[1] is value


def feeds_only_dot(value: SSAValue) -> bool:
    """Whether every use is an operand of a multiplication, directly or transposed."""
    uses = list(value.uses)
    if not uses:
        return False
    for use in uses:
        op = use.operation
        if op.name == "tt.dot" and use.index < 2:
            continue
        if op.name == "tt.trans" and feeds_only_dot(op.results[0]):
            continue
        return False
    return True
