"""Where control flow joins: locals that hold a value whichever way it came.

A `Slot` is a value in terms of new locals, and knows which expressions to assign to them for a given incoming value.
Symbolic values stay symbolic as long as all that comes in has the same form: of a separable tensor only its base is
carried, of a pointer its address and, if it is not the same everywhere, its allocation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.ir import Operation, SSAValue

from .generator import Generator
from .poly import Poly
from .values import (
    AddressTile,
    BlockPointer,
    Box,
    Clk,
    Cond,
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


class Mismatch(Exception):
    """The incoming value does not have the slot's form."""


@dataclass
class Slot:
    """`value` is what code after the join sees; `locals` are assigned on every way in, `clk_local` if it carries."""

    value: Value
    locals: list[str]
    clk_local: str | None = None

    @property
    def names(self) -> list[str]:
        return [*self.locals, *([self.clk_local] if self.clk_local else [])]


def open_slot(g: Generator, ssa: SSAValue, like: Value, level: int, *, materialise: bool, same_al: bool) -> Slot:
    """A slot in the form of `like` (or a plain tensor), its locals defined at scope `level`.

    `same_al`: whatever comes in is known to point into the allocation of `like`.
    """
    like = _general(g, like) if materialise else like
    slot = _form(g, ssa, like, level, same_al)
    if ssa in g.facts.carries and g.module.options.detect:
        slot.clk_local = g.emit.fresh("clk", level)
        slot.value = replace(slot.value, clk=frozenset({slot.clk_local}))
    else:
        slot.value = replace(slot.value, clk=frozenset())
    return slot


def _general(g: Generator, value: Value) -> Value:
    """The form that every value of the type can take."""
    if isinstance(value, (PointerTile, AddressTile)):
        return AddressTile("?", value.shape, value.origin, value.clk)
    if isinstance(value, (IndexTile, Box)) or (isinstance(value, Splat) and value.shape):
        return Tile("?", value.shape, value.element, clk=value.clk)
    return value


def _form(g: Generator, ssa: SSAValue, like: Value, level: int, same_al: bool) -> Slot:
    hint = ssa.name_hint or "k"

    def fresh(suffix: str = "") -> str:
        return g.emit.fresh(hint + suffix, level)

    match like:
        case Scalar():
            name = fresh()
            return Slot(Scalar(Poly.symbol(name), like.element), [name])
        case Cond():
            name = fresh()
            return Slot(Cond(name), [name])
        case Splat() if not like.shape:
            name = fresh()
            return Slot(Splat((), name, like.element), [name])
        case Pointer() | PointerTile() | AddressTile():
            return _pointer_form(g, ssa, like, fresh, same_al)
        case IndexTile():
            name = fresh()
            return Slot(replace(like, lattice=replace(like.lattice, base=Poly.symbol(name))), [name])
        case BlockPointer():
            return _block_form(like, fresh)
    name = fresh()
    return Slot(Tile(name, g_shape(like), like.element, owned=False), [name])


def g_shape(value: Value) -> tuple[int, ...]:
    """The shape of a value that is a tensor."""
    assert isinstance(value, (Tile, Box, Splat, IndexTile))
    return value.shape


def _pointer_form(g: Generator, ssa: SSAValue, like, fresh, same_al: bool) -> Slot:
    name = fresh()
    names = [name]
    al = like.origin.al
    if not same_al:
        al = fresh("_al")
        names.append(al)
    origin = g.origin_of(ssa, like.element, al)
    if isinstance(like, Pointer):
        return Slot(Pointer(Poly.symbol(name), origin), names)
    if isinstance(like, PointerTile):
        return Slot(PointerTile(replace(like.lattice, base=Poly.symbol(name)), origin), names)
    return Slot(AddressTile(name, like.shape, origin), names)


def _block_form(like: BlockPointer, fresh) -> Slot:
    names = [fresh("_off") for _ in like.offsets]
    return Slot(replace(like, offsets=tuple(Poly.symbol(n) for n in names)), names)


def incoming(g: Generator, slot: Slot, value: Value, *, own: bool = False) -> list[str]:
    """The expressions to assign to `slot.names` for a value that comes in.

    Raises:
        Mismatch: the value does not have the slot's form.
    """
    texts = _texts(g, slot, value, own)
    if slot.clk_local:
        texts.append(g.clock(value.clk | g.control))
    return texts


def _texts(g: Generator, slot: Slot, value: Value, own: bool) -> list[str]:
    shown = slot.value
    match shown:
        case Scalar() if isinstance(value, Scalar):
            return [g.exact_text(value)]
        case Cond() | Splat() if isinstance(value, (Cond, Splat)):
            return [value.text]
        case Pointer() if isinstance(value, Pointer):
            return _with_al(slot, g.poly_text(value.base), value.origin)
        case PointerTile() if isinstance(value, PointerTile):
            _same_steps(shown.lattice, value.lattice)
            return _with_al(slot, g.poly_text(value.lattice.base), value.origin)
        case IndexTile() if isinstance(value, IndexTile):
            _same_steps(shown.lattice, value.lattice)
            return [g.poly_text(value.lattice.base)]
        case AddressTile() if isinstance(value, (PointerTile, AddressTile)):
            return _with_al(slot, g.addresses(value).local, value.origin)
        case BlockPointer() if isinstance(value, BlockPointer):
            return _block_texts(g, shown, value)
        case Tile() if not isinstance(value, (Pointer, PointerTile, AddressTile, BlockPointer)):
            tile = g.tile(value)
            return [f"{tile.local}.clone()" if own and not tile.owned else tile.local]
    raise Mismatch


def _with_al(slot: Slot, text: str, origin: Origin) -> list[str]:
    names = 2 if len(slot.locals) == 2 else 1
    return [text, origin.al][:names]


def _same_steps(a: Lattice, b: Lattice) -> None:
    if a.strides != b.strides or a.vecs != b.vecs:
        raise Mismatch


def _block_texts(g: Generator, shown: BlockPointer, value: BlockPointer) -> list[str]:
    same = (shown.pointer.base, shown.extents, shown.strides) == (value.pointer.base, value.extents, value.strides)
    if not same:
        raise Mismatch
    return [g.poly_text(p) for p in value.offsets]


def join_forms(a: Value, b: Value) -> tuple[bool, bool]:
    """`(materialise, same_al)` for a slot that takes either of two values."""
    same_al = getattr(getattr(a, "origin", None), "al", None) == getattr(getattr(b, "origin", None), "al", None)
    if type(a) is not type(b):
        return True, same_al
    if isinstance(a, (IndexTile, PointerTile)) and isinstance(b, (IndexTile, PointerTile)):
        equal = a.lattice.strides == b.lattice.strides and a.lattice.vecs == b.lattice.vecs
        return not equal, same_al
    return isinstance(a, Box) or (isinstance(a, Splat) and bool(a.shape)), same_al


def template_of(a: Value, b: Value) -> Value:
    """Which of two values a slot for both is shaped after: a tensor rather than a number."""
    return b if isinstance(a, Splat) and isinstance(b, Tile) else a


def choose(g: Generator, op: Operation, condition: Cond, a: Value, b: Value) -> Value:
    """`a if condition else b` for values of one type (a scalar condition)."""
    materialise, same_al = join_forms(a, b)
    level = len(g.emit.scopes) - 1
    slot = open_slot(g, op.results[0], template_of(a, b), level, materialise=materialise, same_al=same_al)
    slot.clk_local = None
    try:
        left, right = _texts(g, slot, a, False), _texts(g, slot, b, False)
    except Mismatch:
        raise g.error(op, "select between values whose forms differ") from None
    for name, x, y in zip(slot.locals, left, right, strict=True):
        g.emit.line(f"{name} = {x} if {condition.text} else {y}")
    clk: Clk = g.clk_of(a, b, condition)
    return replace(slot.value, clk=clk)
