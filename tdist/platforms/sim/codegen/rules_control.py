"""Control flow: scf.for, scf.while, scf.if, early returns, calls of functions that are not inlined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from xdsl.ir import Block, Operation, SSAValue

from . import bounds, copies, fuse
from .elements import type_info
from .emitter import Scope
from .facts import UNKNOWN
from .generator import Generator, Restart, rule
from .ir_access import POLLED, only_user, prop, yielded
from .merge import Mismatch, Slot, incoming, join_forms, open_slot, template_of
from .poly import Poly
from .rules_dot import is_zero, note_dot
from .symbolic import digest_number, digest_text
from .trips import emit_trips
from .values import NO_CLK, BlockPointer, Cond, Pointer, Scalar, Splat, Tile, Value, carrying

# --- slots of loops


def _loop_slots(
    g: Generator, op: Operation, inits: Sequence[SSAValue], args: Sequence[SSAValue]
) -> list[tuple[Slot, bool]]:
    """Slots for loop-carried values, assigned their initial values; each with whether its tensor must be owned."""
    slots = []
    level = len(g.emit.scopes)
    for index, (init, arg) in enumerate(zip(inits, args, strict=True)):
        value = g.value(init)
        roots = g.facts.roots.get(arg, frozenset())
        same_al = len(roots) == 1 and UNKNOWN not in roots and arg not in g.facts.remote
        forced = (op, index) in g.forced or _needs_tensor(value)
        slot = open_slot(g, arg, value, level, materialise=forced, same_al=same_al)
        own = _updated_in_place(arg) and not g.is_abstract(arg)
        texts = incoming(g, slot, _initial(g, value, own, init), own=own)
        for name, text in zip(slot.names, texts, strict=True):
            g.emit.line(f"{name} = {text}")
        if own and isinstance(slot.value, Tile):
            slot.value = Tile(slot.locals[0], slot.value.shape, slot.value.element, owned=True, clk=slot.value.clk)
        slots.append((slot, own))
    return slots


def _needs_tensor(value: Value) -> bool:
    return type(value).__name__ == "Box" or (isinstance(value, Splat) and bool(value.shape))


def _updated_in_place(arg: SSAValue) -> bool:
    user = only_user(arg)
    return user is not None and user.name == "tt.dot" and user.operands[2] is arg


def _initial(g: Generator, value: Value, own: bool, init: SSAValue) -> Value:
    """An initial accumulator that others still use must be copied."""
    if own and isinstance(value, Tile) and only_user(init) is None:
        return Tile(value.local, value.shape, value.element, clk=value.clk)
    if own and not isinstance(value, Tile):
        tile = g.tile(value)
        return tile if tile.owned else Tile(tile.local, tile.shape, tile.element, clk=tile.clk)
    return value


def _assign(g: Generator, op: Operation, slots: list[tuple[Slot, bool]], values: Sequence[SSAValue]) -> None:
    """Carry values into the next iteration, all at once."""
    names: list[str] = []
    texts: list[str] = []
    for index, ((slot, own), ssa) in enumerate(zip(slots, values, strict=True)):
        value = g.value(ssa)
        if own and isinstance(value, Tile) and only_user(ssa) is None:
            value = Tile(value.local, value.shape, value.element, clk=value.clk)
        try:
            incoming_texts = incoming(g, slot, value, own=own)
        except Mismatch:
            if (op, index) in g.forced:
                raise g.error(op, "a loop-carried block pointer changes its base, shape or strides") from None
            raise Restart((op, index)) from None
        for name, text in zip(slot.names, incoming_texts, strict=True):
            if name != text:
                names.append(name)
                texts.append(text)
    if names:
        g.emit.line(f"{', '.join(names)} = {', '.join(texts)}")


def _poll(g: Generator, op: Operation, slots: list[tuple[Slot, bool]], ends: bool) -> None:
    """The back edge of a loop that reads words: the engine blocks an agent whose iteration changed nothing.

    `ends`: the loop has a bound of its own, so that going round is progress.
    """
    carried = []
    for slot, _ in slots:
        is_tensor = isinstance(slot.value, Tile)
        carried += [f"id({name})" if is_tensor else name for name in slot.locals if not name.endswith("_al")]
    facts = f"{ends}, {bounds.stores(op)}"
    g.emit.line(f"yield from ag.poll(({''.join(c + ', ' for c in carried)}), {g.site(op, 'poll')}, {facts})")


def _reads_words(op: Operation, *, plain_loads: bool) -> bool:
    """Whether an iteration reads words that others may change: atomics, volatile loads, in `while` plain ones too."""
    for inner in op.walk():
        if inner.name in POLLED or (inner.name == "tt.load" and prop(inner, "isVolatile", False)):
            return True
        if plain_loads and inner.name == "tt.load" and not type_info(inner.results[0].type).shape:
            return True
    return False


def _publish(g: Generator, op: Operation, slots: list[tuple[Slot, bool]]) -> None:
    """Loop results: the carried locals, which belong to the scope around the loop from here on."""
    level = len(g.emit.scopes) - 1
    for result, (slot, _) in zip(op.results, slots, strict=True):
        for name in slot.names:
            g.emit.level[name] = level
        g.set_value(result, slot.value)


# --- loops


@rule("scf.for")
def for_loop(g: Generator, op: Operation) -> None:
    _check_step(g, op)
    whole = g.module.options.fuse and g.fusion is None
    if whole and (product := fuse.plan(g, op)) is not None:
        _whole_loop(g, op, fuse.emit_condition, _fused_loop, product)
    elif whole and (copy := copies.plan(g, op)) is not None:
        _whole_loop(g, op, copies.emit_condition, _copied_loop, copy)
    else:
        _publish(g, op, _plain_loop(g, op))


def _check_step(g: Generator, op: Operation) -> None:
    step = g.value(op.operands[2])
    assert isinstance(step, Scalar)
    known = step.poly.value
    if known is None or known <= 0:
        g.emit.line(f"check_step(ag, {g.site(op, 'for')}, {g.exact_text(step)})")


Slots = list[tuple[Slot, bool]]
P = TypeVar("P", fuse.Plan, copies.Plan)


def _whole_loop(
    g: Generator,
    op: Operation,
    condition_of: Callable[[Generator, P, str], tuple[str, str]],
    emit: Callable[[Generator, Operation, P, Slots, str, str], None],
    made: P,
) -> None:
    """The loop as a whole where its condition holds, else as written."""
    trips = emit_trips(g, op)
    condition, kk = condition_of(g, made, trips)
    g.emit.push("if")
    slots = _plain_loop(g, op)
    plain = g.emit.pop()
    g.emit.push("if")
    outer = g.control
    g.control = outer | g.clk_of(*(g.value(v) for v in op.operands[:3]))
    emit(g, op, made, slots, trips, kk)
    g.control = outer
    g.emit.block(f"if {condition}:", g.emit.pop())
    g.emit.block("else:", plain)
    g.module.fused_loops += 1
    _publish(g, op, slots)


def _copied_loop(g: Generator, op: Operation, made: copies.Plan, slots: Slots, trips: str, kk: str) -> None:
    """The same stores by one copy."""
    copies.emit_copy(g, made, kk)
    for index, (start, (slot, _)) in enumerate(zip(op.operands[3:], slots, strict=True)):
        _last_value(g, slot, g.value(start), made.finals[index], trips)


def _fused_loop(g: Generator, op: Operation, made: fuse.Plan, slots: Slots, trips: str, kk: str) -> None:
    """The same results from one multiplication of panels."""
    left, right = fuse.emit_panels(g, made, kk)
    for index, (start, slot) in enumerate(zip(op.operands[3:], (s for s, _ in slots), strict=True)):
        value = g.value(start)
        if index == made.accumulator:
            _fused_product(g, made, op.results[index], slot, start, left, right)
            note_dot(g, made.dot, kk)
            continue
        _last_value(g, slot, value, made.finals[index], trips)


def _last_value(g: Generator, slot: Slot, value: Value, parts: list[tuple[Poly, Poly]], trips: str) -> None:
    """A carried value behind the last trip; its allocation and its clock do not change from trip to trip."""
    for name, (first, step) in zip(slot.locals, parts, strict=False):
        last = first + Poly.symbol(trips) * step
        text = g.exact_text(replace(value, poly=last)) if isinstance(value, Scalar) else g.poly_text(last)
        g.emit.line(f"{name} = {text}")
    origin = getattr(value, "origin", None)
    if origin is not None and len(slot.locals) > len(parts):
        g.emit.line(f"{slot.locals[len(parts)]} = {origin.al}")
    if slot.clk_local:
        g.emit.line(f"{slot.clk_local} = {g.clock(value.clk | g.control)}")


def _fused_product(
    g: Generator, made: fuse.Plan, result: SSAValue, slot: Slot, start: SSAValue, left: str, right: str
) -> None:
    (name,), value = slot.locals, g.value(start)
    if g.is_abstract(start):
        number = digest_number(g, made.dot)
        g.emit.line(f"{name} = mix({number}, {left}, {right}, {digest_text(g, value)})")
    elif is_zero(value):
        function = "Product" if fuse.may_wait(g, made, result) else "multiply"
        g.emit.line(f"{name} = {function}({left}, {right}, {slot.value.element.text})")
    else:
        tile = g.tile(value)
        in_place = tile.owned and only_user(start) is not None
        target = tile.local if in_place else f"{tile.local}.clone()"
        g.emit.line(f"{name} = multiply_add({target}, {left}, {right})")
    if slot.clk_local:
        carried = value.clk.union(*(panel.load.clk for panel in made.panels))
        g.emit.line(f"{slot.clk_local} = {g.clock(carried | g.control)}")


def _plain_loop(g: Generator, op: Operation) -> list[tuple[Slot, bool]]:
    """The loop as written; returns its slots."""
    body = op.regions[0].block
    bounds = [g.value(v) for v in op.operands[:3]]
    texts = [g.exact_text(b) for b in bounds if isinstance(b, Scalar)]
    slots = _loop_slots(g, op, op.operands[3:], body.args[1:])
    outer = g.control
    g.control = outer | g.clk_of(*bounds)
    g.emit.push("for")
    induction = g.emit.fresh(body.args[0].name_hint or "i")
    g.env[body.args[0]] = Scalar(Poly.symbol(induction), type_info(body.args[0].type).element, g.control)
    for arg, (slot, _) in zip(body.args[1:], slots, strict=True):
        g.env[arg] = slot.value
    g.block(body)
    _assign(g, op, slots, yielded(body))
    if _reads_words(op, plain_loads=False):
        _poll(g, op, [*slots, (Slot(g.env[body.args[0]], [induction]), False)], ends=True)
    scope = g.emit.pop()
    g.control = outer
    g.emit.block(f"for {induction} in range({', '.join(texts)}):", scope)
    return slots


@rule("scf.while")
def while_loop(g: Generator, op: Operation) -> None:
    before, after = op.regions[0].block, op.regions[1].block
    ends = bounds.must_end(op)
    slots = _loop_slots(g, op, op.operands, before.args)
    outer = g.control
    condition_carries = yielded(before)[0] in g.facts.carries and g.module.options.detect
    clk = g.emit.bind("None", "clk") if condition_carries else None
    g.control = outer | ({clk} if clk else NO_CLK)
    g.emit.push("while")
    for arg, (slot, _) in zip(before.args, slots, strict=True):
        g.env[arg] = slot.value
    g.block(before)
    condition, *forwarded = [g.value(v) for v in yielded(before)]
    if clk:
        g.emit.line(f"{clk} = {g.clock(condition.clk | g.control)}")
    g.emit.line(f"if not {g.condition(condition).text}:")
    g.emit.line("    break")
    for arg, value in zip(after.args, forwarded, strict=True):
        g.env[arg] = carrying(value, g.control)
    g.block(after)
    _assign(g, op, slots, yielded(after))
    if _reads_words(op, plain_loads=True):
        _poll(g, op, slots, ends)
    control = g.control
    scope = g.emit.pop()
    g.control = outer
    _rounds(g, op, scope, ends)
    for result, value in zip(op.results, forwarded, strict=True):
        g.set_value(result, carrying(_after_loop(g, value), control))


def _rounds(g: Generator, op: Operation, scope: Scope, ends: bool) -> None:
    """A `while` around `scope`, which breaks out of it; one without a bound may go round only so often."""
    if ends:
        g.emit.block("while True:", scope)
        return
    g.emit.block("for _ in ag.rounds:", scope)
    g.emit.push("if")
    g.emit.line(f"ag.endless({g.site(op, 'while')})")
    g.emit.block("else:", g.emit.pop())


def _after_loop(g: Generator, value: Value) -> Value:
    """A value forwarded out of a `while`: a scalar gets a local of the scope around the loop."""
    if isinstance(value, Scalar) and value.poly.value is None:
        return Scalar(g.opaque(g.exact_text(value)), value.element, value.clk)
    return value


# --- branches


@rule("scf.if")
def branch(g: Generator, op: Operation) -> None:
    condition = g.condition(g.value(op.operands[0]))
    outer = g.control
    g.control = outer | condition.clk
    scopes, values = [], []
    for region in op.regions:
        g.emit.push("if")
        if region.blocks:
            g.block(region.block)
            values.append([g.value(v) for v in yielded(region.block)])
        scopes.append(g.emit.pop())
    slots = [_branch_slot(g, result, pair) for result, pair in zip(op.results, zip(*values, strict=True), strict=False)]
    for scope, sources in zip(scopes, values, strict=False):
        g.emit.scopes.append(scope)
        for slot, value in zip(slots, sources, strict=False):
            _assign_slot(g, op, slot, value)
        g.emit.pop()
    g.control = outer
    g.emit.block(f"if {condition.text}:", scopes[0])
    if len(scopes) > 1 and scopes[1].lines:
        g.emit.block("else:", scopes[1])
    for result, slot in zip(op.results, slots, strict=True):
        g.set_value(result, slot.value)


def _branch_slot(g: Generator, result: SSAValue, pair: tuple[Value, ...]) -> Slot:
    a, b = pair
    materialise, same_al = join_forms(a, b)
    level = len(g.emit.scopes) - 1
    return open_slot(g, result, template_of(a, b), level, materialise=materialise, same_al=same_al)


def _assign_slot(g: Generator, op: Operation, slot: Slot, value: Value) -> None:
    try:
        texts = incoming(g, slot, value)
    except Mismatch:
        raise g.error(op, "the branches of an `if` give block pointers with different bases or strides") from None
    for name, text in zip(slot.names, texts, strict=True):
        if name != text:
            g.emit.line(f"{name} = {text}")


# --- blocks of a function


def function_body(g: Generator, block: Block, depth: int = 0) -> None:
    """A function's blocks from `block` on. Triton makes several only for early returns: a graph without cycles."""
    if depth > 200:
        raise g.error(next(iter(block.ops)), "the control flow of this function is not structured (a loop of blocks)")
    for op in block.ops:
        if op.name == "cf.br":
            _enter(g, op.successors[0], [g.value(v) for v in op.operands], depth)
            return
        if op.name == "cf.cond_br":
            _conditional(g, op, depth)
            return
        g.operation(op)


def _conditional(g: Generator, op: Operation, depth: int) -> None:
    """The first target goes into an `if`, which always ends in a return; the second follows it."""
    condition = g.condition(g.value(op.operands[0]))
    first, second = op.successors
    passed = [g.value(v) for v in op.operands[1:]]
    g.control = g.control | condition.clk
    control, known = g.control, dict(g.env)
    scope = g.emit.push("if")
    _enter(g, first, passed[: len(first.args)], depth)
    g.emit.pop()
    g.emit.block(f"if {condition.text}:", scope)
    g.control, g.env = control, known
    _enter(g, second, passed[len(first.args) :], depth)


def _enter(g: Generator, block: Block, values: Sequence[Value], depth: int) -> None:
    for arg, value in zip(block.args, values, strict=True):
        g.env[arg] = value
    function_body(g, block, depth + 1)


@rule("tt.return", "func.return")
def return_(g: Generator, op: Operation) -> None:
    texts = []
    for value in g.operands(op):
        texts += flat(g, op, value)
    if texts or g.returns_clock:
        clk = g.clock(g.clk_of(*g.operands(op)) | g.control)
        g.emit.line(f"return ({''.join(t + ', ' for t in [*texts, clk])})")
    else:
        g.emit.line("return")


# --- calls


def flat(g: Generator, op: Operation, value: Value) -> list[str]:
    """A value as the arguments that a function which is not inlined takes for it."""
    match value:
        case Scalar():
            return [g.exact_text(value)]
        case Cond():
            return [value.text]
        case Splat() if not value.shape:
            return [value.text]
        case Pointer():
            return [g.poly_text(value.base), value.origin.al]
    if type(value).__name__ in ("PointerTile", "AddressTile"):
        address = g.addresses(value)  # pyright: ignore[reportArgumentType]
        return [address.local, address.origin.al]
    if isinstance(value, BlockPointer):
        raise g.error(op, "a block pointer cannot cross a call of a noinline function")
    return [g.tile(value).local]


def unflat(g: Generator, ssa: SSAValue, hint: str) -> tuple[list[str], Value]:
    """Parameter names for a value of the type of `ssa`, and the value in terms of them."""
    from .values import AddressTile

    info = type_info(ssa.type)
    name = g.emit.fresh(hint)
    if info.is_pointer:
        al = g.emit.fresh(hint + "_al")
        origin = g.origin_of(ssa, info.element, al)
        if info.shape:
            return [name, al], AddressTile(name, info.shape, origin)
        return [name, al], Pointer(Poly.symbol(name), origin)
    if info.shape:
        return [name], Tile(name, info.shape, info.element)
    if info.element.is_float:
        return [name], Splat((), name, info.element)
    if info.element.is_bool:
        return [name], Cond(name)
    return [name], Scalar(Poly.symbol(name), info.element)


@rule("tt.call")
def call(g: Generator, op: Operation) -> None:
    """A call through `yield from`; clocks go in as one joined clock and come out as one."""
    values = g.operands(op)
    texts = []
    for value in values:
        texts += flat(g, op, value)
    clk = g.clock(g.clk_of(*values) | g.control)
    arguments = ", ".join(["ag", "pid0", "pid1", "pid2", "np0", "np1", "np2", clk, *texts])
    name = function_name(prop(op, "callee"))
    names: list[str] = []
    results: list[tuple[SSAValue, Value]] = []
    for result in op.results:
        parts, value = unflat(g, result, result.name_hint or "r")
        names += parts
        results.append((result, value))
    out = g.emit.fresh("clk")
    g.emit.line(f"{''.join(n + ', ' for n in [*names, out])} = yield from {name}({arguments})")
    carried = frozenset({out}) if g.module.options.detect else NO_CLK
    for result, value in results:
        g.set_value(result, carrying(value, carried))


def function_name(symbol: str) -> str:
    """The Python name of a function that is not inlined."""
    return "f_" + "".join(c if c.isalnum() else "_" for c in symbol)
