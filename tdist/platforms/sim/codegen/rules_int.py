"""Integers: constants, ring arithmetic, division, comparison, masks, casts between integers."""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.ir import Operation

from .arithmetic import unsigned, wrap
from .elements import Element, type_info
from .generator import Generator, rule, static_span
from .ir_access import attr, dense_values, prop
from .poly import ONE, ZERO, Poly
from .values import Bound, Box, Clk, Cond, IndexTile, Lattice, Scalar, Splat, Tile, Value, Vec

MAX_TERMS = 12
PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
PYTHON = {"eq": "==", "ne": "!=", "slt": "<", "sle": "<=", "sgt": ">", "sge": ">="}
MIRROR = {"slt": "sgt", "sle": "sge", "sgt": "slt", "sge": "sle", "eq": "eq"}


def float_literal(value: float) -> str:
    """A float as generated code spells it."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "(-inf)"
    return repr(value) if math.copysign(1.0, value) > 0 else f"({value!r})"


# --- constants


@rule("arith.constant")
def constant(g: Generator, op: Operation) -> None:
    info = g.result_type(op)
    value = attr(op, "value")
    assert value is not None
    numbers = dense_values(value)
    if len(numbers) > 1 and len(set(numbers)) > 1:
        text = f"torch.tensor({numbers!r}, dtype={info.element.text}).reshape({info.shape})"
        g.set(op, g.result(text, info.shape, info.element, frozenset(), owned=False))
        return
    g.set(op, constant_value(numbers[0], info.shape, info.element))


def constant_value(number: int | float, shape: tuple[int, ...], element: Element) -> Value:
    """A number as a scalar or splat value."""
    if element.is_float:
        return Splat(shape, float_literal(float(number)), element)
    if element.is_bool:
        text = "True" if number else "False"
        return Box(shape, (), () if number else ("False",)) if shape else Cond(text)
    poly = Poly.const(wrap(int(number), element.bits))
    return IndexTile(Lattice.uniform(shape, poly), element) if shape else Scalar(poly, element)


@rule("ub.poison")
def poison(g: Generator, op: Operation) -> None:
    """A value that the kernel never gave: the poison of the run, as masked-off lanes hold it."""
    info = g.result_type(op)
    if info.is_pointer:
        raise g.error(op, "a pointer is used on a path on which the kernel gives it no value: assign it on every path")
    text = f"poison_value({info.element.text}, ag.poison)"
    if not info.shape:
        g.set(op, g.scalar_of(text, info.element, frozenset()))
        return
    g.set(
        op,
        g.result(f"torch.full({info.shape}, {text}, dtype={info.element.text})", info.shape, info.element, frozenset()),
    )


# --- helpers


def lattice_of(value: Value) -> Lattice | None:
    """The separable form of an integer tensor, if it has one."""
    return value.lattice if isinstance(value, IndexTile) else None


def uniform_scalar(value: Value) -> Scalar | None:
    """A scalar, or an index tensor that is the same in all lanes, as a scalar."""
    if isinstance(value, Scalar):
        return value
    if isinstance(value, IndexTile) and value.lattice.is_uniform:
        return Scalar(value.lattice.base, value.element, value.clk)
    return None


def uniform_result(g: Generator, op: Operation, poly: Poly, clk: Clk) -> None:
    """Set an integer result that is uniform, in the shape of the result type."""
    info = g.result_type(op)
    if info.shape:
        g.set(op, IndexTile(Lattice.uniform(info.shape, poly), info.element, clk))
    else:
        g.set(op, Scalar(poly, info.element, clk))


def tile_shape(g: Generator, op: Operation, values: list[Value]) -> tuple[int, ...]:
    """The shape of an element-wise result; inside combiners, where types are scalar, that of the first tile."""
    shape = g.result_type(op).shape
    if shape:
        return shape
    return next((v.shape for v in values if isinstance(v, (Tile, IndexTile, Box)) and v.shape), ())


def element_wise(
    g: Generator, op: Operation, template: str, values: list[Value], element: Element | None = None
) -> None:
    """A torch expression over operands, at least one of which is a tensor at run time."""
    element = element or g.result_type(op).element
    texts = [g.operand(v) for v in values]
    if all(g.is_uniform(v) for v in values):
        texts[0] = g.tile(values[0]).local
    g.set(op, g.result(template.format(*texts), tile_shape(g, op, values), element, g.clk_of(*values)))


# --- the ring


def _ring(g: Generator, op: Operation, sign: str, combine: Callable) -> None:
    a, b = g.operands(op)
    if isinstance(a, (Cond, Box)) or isinstance(b, (Cond, Box)) or _is_bool(g, op):
        _bool_binary(g, op, "arith.xori" if sign != "*" else "arith.andi")
        return
    clk = g.clk_of(a, b)
    left, right = uniform_scalar(a), uniform_scalar(b)
    if left is not None and right is not None:
        poly = combine(left.poly, right.poly)
        if len(poly.terms) > MAX_TERMS:
            poly = combine(g.exact(left), g.exact(right))
        uniform_result(g, op, poly, clk)
        return
    lattice = combine_lattices(a, b, combine)
    if lattice is not None:
        g.set(op, IndexTile(lattice, g.result_type(op).element, clk))
        return
    element_wise(g, op, f"{{}} {sign} {{}}", [a, b])


def _is_bool(g: Generator, op: Operation) -> bool:
    return g.result_type(op).element.is_bool


def combine_lattices(a: Value, b: Value, combine: Callable) -> Lattice | None:
    """Sum, difference or product of separable tensors, if separable."""
    x, y = lattice_of(a), lattice_of(b)
    if x is None or y is None:
        return None
    probe = combine(Poly.symbol("x"), Poly.symbol("y"))
    if ("x", "y") not in probe.terms:
        return combine(x, y)
    if x.is_uniform:
        return y.scaled(x.base)
    return x.scaled(y.base) if y.is_uniform else None


@rule("arith.addi")
def addi(g: Generator, op: Operation) -> None:
    _ring(g, op, "+", lambda x, y: x + y)


@rule("arith.subi")
def subi(g: Generator, op: Operation) -> None:
    _ring(g, op, "-", lambda x, y: x - y)


@rule("arith.muli")
def muli(g: Generator, op: Operation) -> None:
    _ring(g, op, "*", lambda x, y: x * y)


# --- division

DIVISIONS = {
    "arith.divsi": ("divs", "div_trunc", "//", "axis_div"),
    "arith.remsi": ("rems", "rem_trunc", "%", "axis_rem"),
    "arith.divui": ("divu", "div_unsigned", "//", "axis_div"),
    "arith.remui": ("remu", "rem_unsigned", "%", "axis_rem"),
    "arith.floordivsi": ("floordivs", "div_floor", "//", None),
    "arith.ceildivsi": ("ceildivs", "div_ceil", None, None),
}


@rule(*DIVISIONS)
def division(g: Generator, op: Operation) -> None:
    kind, function, operator, axis_function = DIVISIONS[op.name]
    a, b = g.operands(op)
    clk = g.clk_of(a, b)
    left, right = uniform_scalar(a), uniform_scalar(b)
    if left is not None and right is not None:
        poly = _divide_scalars(g, op, g.exact(left), g.exact(right), function, operator, left.element.bits)
        uniform_result(g, op, poly, clk)
        return
    lattice = _divide_axis(g, op, a, b, axis_function) if axis_function and kind in ("divs", "rems") else None
    if lattice is not None:
        g.set(op, IndexTile(lattice, g.result_type(op).element, clk))
        return
    element_wise(
        g, op, f"tile_divide(ag, {g.site(op)}, {kind!r}, {{}}, {{}}, {g.result_type(op).element.bits})", [a, b]
    )


def _divide_scalars(
    g: Generator, op: Operation, a: Poly, b: Poly, function: str, operator: str | None, bits: int
) -> Poly:
    if a.value is not None and a.value >= 0 and b.value is not None and b.value > 0 and operator:
        return Poly.const(a.value // b.value if operator == "//" else a.value % b.value)
    x, y = g.poly_text(a), g.poly_text(b)
    slow = f"{function}(ag, {g.site(op)}, {x}, {y}, {bits})"
    if operator is None:
        text = slow
    elif b.value is not None and b.value > 0:
        text = f"{x} {operator} {y} if {x} >= 0 else {slow}"
    else:
        text = f"{x} {operator} {y} if {x} >= 0 < {y} else {slow}"
    return Poly.symbol(g.emit.reuse((op.name, a, b, bits), text, "q"))


def _divide_axis(g: Generator, op: Operation, a: Value, b: Value, function: str) -> Lattice | None:
    """Division of an index vector by a uniform divisor: separable still, with a guard at run time."""
    x, divisor = lattice_of(a), uniform_scalar(b)
    if x is None or divisor is None or x.vecs or len(x.moving_axes) != 1:
        return None
    (axis,) = x.moving_axes
    base, stride, by = g.poly_text(x.base), g.poly_text(x.strides[axis]), g.exact_text(divisor)
    site, bits = g.site(op), divisor.element.bits
    key = (function, x, by)
    known = g.emit.find(key)
    if known is None:
        stem = [g.emit.fresh(hint) for hint in ("qb", "qs", "qv")]
        known = ", ".join(stem)
        g.emit.line(f"{known} = {function}(ag, {site}, {base}, {x.shape[axis]}, {stride}, {by}, {bits})")
        g.emit.scopes[-1].known[key] = known
    new_base, new_stride, vector = known.split(", ")
    strides = tuple(Poly.symbol(new_stride) if i == axis else ZERO for i in range(len(x.shape)))
    return Lattice(x.shape, Poly.symbol(new_base), strides, (Vec(axis, vector, ONE),))


# --- minimum, maximum, shifts, bits


@rule("arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui")
def extreme(g: Generator, op: Operation) -> None:
    kind = op.name.split(".")[1]
    a, b = g.operands(op)
    bits = g.result_type(op).element.bits
    left, right = uniform_scalar(a), uniform_scalar(b)
    if left is not None and right is not None:
        x, y = g.exact(left), g.exact(right)
        uniform_result(g, op, _pick_scalar(g, kind, x, y, bits), g.clk_of(a, b))
    elif kind.endswith("ui"):
        element_wise(g, op, f"tile_pick_unsigned({kind[:4]!r}, {{}}, {{}}, {bits})", [a, b])
    else:
        function = "minimum" if kind == "minsi" else "maximum"
        texts = [g.tile(v).local for v in (a, b)]
        text = f"torch.{function}({texts[0]}, {texts[1]})"
        g.set(op, g.result(text, tile_shape(g, op, [a, b]), g.result_type(op).element, g.clk_of(a, b)))


def _pick_scalar(g: Generator, kind: str, x: Poly, y: Poly, bits: int) -> Poly:
    if x.value is not None and y.value is not None and kind.endswith("si"):
        return Poly.const(min(x.value, y.value) if kind == "minsi" else max(x.value, y.value))
    a, b = g.poly_text(x), g.poly_text(y)
    relation = "<" if kind.startswith("min") else ">"
    test = f"{a} {relation} {b}"
    if kind.endswith("ui"):
        test = f"unsigned({a}, {bits}) {relation} unsigned({b}, {bits})"
    return Poly.symbol(g.emit.reuse((kind, x, y, bits), f"{a} if {test} else {b}", "m"))


SHIFTS = {"arith.shli": "shl", "arith.shrsi": "shrs", "arith.shrui": "shru"}


@rule(*SHIFTS)
def shift(g: Generator, op: Operation) -> None:
    kind = SHIFTS[op.name]
    a, b = g.operands(op)
    bits = g.result_type(op).element.bits
    by = uniform_scalar(b)
    if kind == "shl" and by is not None and by.poly.value is not None and 0 <= by.poly.value < bits:
        factor = Poly.const(1 << by.poly.value)
        if isinstance(a, Scalar):
            g.set(op, Scalar(a.poly * factor, a.element, g.clk_of(a, b)))
            return
        if isinstance(a, IndexTile):
            g.set(op, IndexTile(a.lattice.scaled(factor), a.element, g.clk_of(a, b)))
            return
    left = uniform_scalar(a)
    if left is not None and by is not None:
        text = f"shift(ag, {g.site(op)}, {kind!r}, {g.exact_text(left)}, {g.exact_text(by)}, {bits})"
        uniform_result(g, op, g.opaque(text), g.clk_of(a, b))
        return
    element_wise(g, op, f"tile_shift({kind!r}, {{}}, {{}}, {bits})", [a, b])


BITWISE = {"arith.andi": "&", "arith.ori": "|", "arith.xori": "^"}


@rule(*BITWISE)
def bitwise(g: Generator, op: Operation) -> None:
    a, b = g.operands(op)
    if _is_bool(g, op):
        _bool_binary(g, op, op.name)
        return
    sign = BITWISE[op.name]
    left, right = uniform_scalar(a), uniform_scalar(b)
    if left is not None and right is not None:
        text = f"{g.exact_text(left)} {sign} {g.exact_text(right)}"
        uniform_result(g, op, g.opaque(text), g.clk_of(a, b))
        return
    element_wise(g, op, f"{{}} {sign} {{}}", [a, b])


def _bool_binary(g: Generator, op: Operation, name: str) -> None:
    a, b = g.operands(op)
    clk = g.clk_of(a, b)
    if name == "arith.andi" and isinstance(a, Box) and isinstance(b, Box):
        bounds = tuple(dict.fromkeys(a.bounds + b.bounds))
        g.set(op, Box(a.shape, bounds, tuple(dict.fromkeys(a.conditions + b.conditions)), clk))
        return
    if _is_uniform_bool(a) and _is_uniform_bool(b):
        _uniform_bool(g, op, name, a, b)
        return
    texts = [g.tile(v).local for v in (a, b)]
    text = f"{texts[0]} {BITWISE[name]} {texts[1]}"
    shape = tile_shape(g, op, [a, b])
    g.set(op, g.result(text, shape, g.result_type(op).element, clk))


def _is_uniform_bool(value: Value) -> bool:
    return isinstance(value, Cond) or (isinstance(value, Box) and not value.bounds)


def _uniform_bool(g: Generator, op: Operation, name: str, a: Value, b: Value) -> None:
    x, y = g.condition(a).text, g.condition(b).text
    python = {"arith.andi": f"{x} and {y}", "arith.ori": f"{x} or {y}", "arith.xori": f"{x} is not {y}"}[name]
    if name == "arith.xori" and "True" in (x, y):
        python = f"not {y if x == 'True' else x}"
    set_condition(g, op, g.emit.bind(python, "c"), g.clk_of(a, b))


def set_condition(g: Generator, op: Operation, text: str, clk: Clk) -> None:
    """Set a one-bit result that is uniform, in the shape of the result type."""
    shape = g.result_type(op).shape
    g.set(op, Box(shape, (), (text,), clk) if shape else Cond(text, clk))


# --- comparison


@rule("arith.cmpi")
def cmpi(g: Generator, op: Operation) -> None:
    predicate = PREDICATES[prop(op, "predicate")]
    a, b = g.operands(op)
    element = type_info(op.operands[0].type).element
    left, right = uniform_scalar(a), uniform_scalar(b)
    if left is not None and right is not None:
        set_condition(g, op, _compare_scalars(g, predicate, left, right), g.clk_of(a, b))
        return
    if isinstance(a, (Cond, Box)) or isinstance(b, (Cond, Box)):
        _compare_bools(g, op, predicate, a, b)
        return
    box = _compare_lattices(g, op, predicate, a, b, element) if predicate in PYTHON else None
    if box is not None:
        g.set(op, box)
    elif predicate in PYTHON:
        element_wise(g, op, f"{{}} {PYTHON[predicate]} {{}}", [a, b])
    else:
        element_wise(g, op, f"tile_compare_unsigned({predicate!r}, {{}}, {{}}, {element.bits})", [a, b])


def _compare_scalars(g: Generator, predicate: str, a: Scalar, b: Scalar) -> str:
    x, y = g.exact(a), g.exact(b)
    signed = predicate in PYTHON
    python = PYTHON.get(predicate) or PYTHON["s" + predicate[1:]]
    bits = a.element.bits
    if x.value is not None and y.value is not None:
        left, right = (x.value, y.value) if signed else (unsigned(x.value, bits), unsigned(y.value, bits))
        return str(_holds(python, left, right))
    left_text, right_text = g.poly_text(x), g.poly_text(y)
    if not signed:
        left_text, right_text = f"unsigned({left_text}, {bits})", f"unsigned({right_text}, {bits})"
    return g.emit.reuse(("cmp", predicate, x, y, bits), f"{left_text} {python} {right_text}", "c")


def _holds(python: str, a: int, b: int) -> bool:
    return {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[python]


def _compare_bools(g: Generator, op: Operation, predicate: str, a: Value, b: Value) -> None:
    python = PYTHON[predicate if predicate in PYTHON else "s" + predicate[1:]]
    if _is_uniform_bool(a) and _is_uniform_bool(b):
        text = g.emit.bind(f"{g.condition(a).text} {python} {g.condition(b).text}", "c")
        set_condition(g, op, text, g.clk_of(a, b))
        return
    element_wise(g, op, f"{{}} {python} {{}}", [a, b])


def _compare_lattices(g: Generator, op: Operation, predicate: str, a: Value, b: Value, element: Element) -> Box | None:
    """A comparison that is a bound on one axis."""
    x, y = lattice_of(a), lattice_of(b)
    if x is None or y is None or predicate == "ne":
        return None
    difference = x - y
    moving = difference.moving_axes
    if len(moving) != 1 or difference.vecs:
        return None
    (axis,) = moving
    step = difference.strides[axis].value
    if step is None or (predicate == "eq" and abs(step) != 1):
        return None
    if False in (static_span(x, element), static_span(y, element)):
        return None
    for side in (x, y):
        g.guard(op, side, element)
    base = difference.base if step > 0 else -difference.base
    predicate = predicate if step > 0 else MIRROR[predicate]
    bound = _bound(g, predicate, axis, base, abs(step))
    return Box(x.shape, (bound,), (), g.clk_of(a, b))


def _bound(g: Generator, predicate: str, axis: int, base: Poly, step: int) -> Bound:
    """Where `base + step*i` compares with 0 as the predicate says; `step` > 0."""
    if predicate == "eq":
        return Bound(axis, -base, ONE - base)
    if predicate == "slt":
        return Bound(axis, None, _ceil_div(g, -base, step))
    if predicate == "sle":
        return Bound(axis, None, _ceil_div(g, ONE - base, step))
    if predicate == "sgt":
        return Bound(axis, _ceil_div(g, ONE - base, step), None)
    return Bound(axis, _ceil_div(g, -base, step), None)


def _ceil_div(g: Generator, poly: Poly, step: int) -> Poly:
    exact = poly.divided(step)
    if exact is not None:
        return exact
    if poly.value is not None:
        return Poly.const(-(-poly.value // step))
    return g.opaque(f"-({g.poly_text(-poly)} // {step})", "b")


# --- casts between integers


@rule("arith.extsi", "arith.index_cast")
def extsi(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    element = g.result_type(op).element
    match value:
        case Scalar():
            g.set(op, Scalar(g.exact(value), element, value.clk))
        case IndexTile() if static_span(value.lattice, value.element) is not False:
            g.guard(op, value.lattice, value.element)
            g.set(op, IndexTile(value.lattice, element, value.clk))
        case Cond() | Box() if _is_uniform_bool(value):
            uniform_result(g, op, g.opaque(f"-1 if {g.condition(value).text} else 0"), value.clk)
        case Box():
            element_wise(g, op, f"-({{}}.to({element.text}))", [g.tile(value)])
        case _:
            sign = "-" if value.element.is_bool else ""
            element_wise(g, op, f"{sign}{{}}.to({element.text})", [value])


@rule("arith.extui")
def extui(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    element = g.result_type(op).element
    bits = type_info(op.operands[0].type).element.bits
    scalar = uniform_scalar(value)
    if scalar is not None:
        exact = g.exact(scalar)
        text = f"unsigned({g.poly_text(exact)}, {bits})"
        poly = exact if (exact.value or -1) >= 0 else g.opaque(text)
        uniform_result(g, op, poly, value.clk)
    elif _is_uniform_bool(value):
        uniform_result(g, op, g.opaque(f"1 if {g.condition(value).text} else 0"), value.clk)
    elif bits == 1:
        element_wise(g, op, f"{{}}.to({element.text})", [g.tile(value)])
    else:
        element_wise(g, op, f"widened({{}}, {bits}).to({element.text})", [g.tile(value)])


@rule("arith.trunci")
def trunci(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    element = g.result_type(op).element
    scalar = uniform_scalar(value)
    if scalar is not None and element.is_bool:
        set_condition(g, op, g.emit.bind(f"{g.poly_text(scalar.poly)} & 1 == 1", "c"), value.clk)
    elif scalar is not None:
        uniform_result(g, op, _truncated(g, scalar.poly, element), value.clk)
    elif isinstance(value, IndexTile) and static_span(value.lattice, element) and not element.is_bool:
        g.set(op, IndexTile(value.lattice, element, value.clk))
    else:
        suffix = " & 1).bool()" if element.is_bool else f").to({element.text})"
        element_wise(g, op, f"({{}}{suffix}", [g.tile(value)])


def _truncated(g: Generator, poly: Poly, element: Element) -> Poly:
    """A symbol of the narrower type: one of the wider type would pass for a value of the narrower one."""
    if poly.value is not None:
        return Poly.const(wrap(poly.value, element.bits))
    key = ("trunc", poly, element.bits)
    return Poly.symbol(g.emit.reuse(key, f"wrap({g.poly_text(poly)}, {element.bits})", "w"))


@rule("math.absi")
def absi(g: Generator, op: Operation) -> None:
    (value,) = g.operands(op)
    scalar = uniform_scalar(value)
    if scalar is not None:
        uniform_result(g, op, g.opaque(f"wrap(abs({g.exact_text(scalar)}), {scalar.element.bits})"), value.clk)
    else:
        element_wise(g, op, "torch.abs({})", [g.tile(value)])


@rule("tt.mulhiui")
def mulhiui(g: Generator, op: Operation) -> None:
    a, b = g.operands(op)
    bits = g.result_type(op).element.bits
    left, right = uniform_scalar(a), uniform_scalar(b)
    if left is not None and right is not None:
        text = f"mul_high({g.exact_text(left)}, {g.exact_text(right)}, {bits}, False)"
        uniform_result(g, op, g.opaque(text), g.clk_of(a, b))
        return
    element_wise(g, op, f"tile_mul_high({{}}, {{}}, {bits}, False)", [a, b])


@rule("arith.mului_extended", "arith.mulsi_extended")
def mul_extended(g: Generator, op: Operation) -> None:
    a, b = g.operands(op)
    info = g.result_type(op)
    signed = op.name == "arith.mulsi_extended"
    x, y = g.tile(a).local, g.tile(b).local
    clk = g.clk_of(a, b) | g.control
    low = f"{x} * {y}"
    high = f"tile_mul_high({x}, {y}, {info.element.bits}, {signed})"
    for result, text in zip(op.results, (low, high), strict=True):
        if info.shape:
            g.env[result] = g.result(text, info.shape, info.element, clk)
        else:
            g.env[result] = Scalar(g.opaque(f"({text}).item()"), info.element, clk)
