"""What the code generator knows about an SSA value.

Integers, pointers and masks stay symbolic as long as they are *separable* (a sum of one function per axis): then a tile
access is a strided slice and a mask is bounds. Everything else is a `Tile`, a torch tensor in a generated local.

Every value has `clk`, the locals that may hold a clock which the value carries (see `carry.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from .elements import I1, Element
from .poly import ONE, ZERO, Poly

Clk = frozenset[str]
NO_CLK: Clk = frozenset()
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Vec:
    """An index vector along one axis: `local` holds a 1-D int64 tensor, or None at run time if it was not needed."""

    axis: int
    local: str
    scale: Poly


@dataclass(frozen=True, slots=True)
class Lattice:
    """A separable integer tensor: `base + sum(strides[a] * i_a) + sum(vec.scale * vec.local[i_axis])`."""

    shape: Shape
    base: Poly
    strides: tuple[Poly, ...]
    vecs: tuple[Vec, ...] = ()

    @staticmethod
    def uniform(shape: Shape, base: Poly) -> Lattice:
        return Lattice(shape, base, (ZERO,) * len(shape))

    @property
    def is_uniform(self) -> bool:
        return not self.vecs and not any(self.strides)

    @property
    def moving_axes(self) -> list[int]:
        """Axes along which the value may change."""
        vec_axes = {v.axis for v in self.vecs}
        return [a for a, s in enumerate(self.strides) if s or a in vec_axes]

    def __add__(self, other: Lattice) -> Lattice:
        strides = tuple(a + b for a, b in zip(self.strides, other.strides, strict=True))
        return Lattice(self.shape, self.base + other.base, strides, self.vecs + other.vecs)

    def scaled(self, factor: Poly) -> Lattice:
        strides = tuple(s * factor for s in self.strides)
        vecs = tuple(replace(v, scale=v.scale * factor) for v in self.vecs)
        return Lattice(self.shape, self.base * factor, strides, vecs)

    def __sub__(self, other: Lattice) -> Lattice:
        return self + other.scaled(-ONE)

    def with_axis(self, axis: int) -> Lattice:
        """A new axis of extent 1 at `axis`."""
        return Lattice(
            (*self.shape[:axis], 1, *self.shape[axis:]),
            self.base,
            (*self.strides[:axis], ZERO, *self.strides[axis:]),
            tuple(replace(v, axis=v.axis + (v.axis >= axis)) for v in self.vecs),
        )

    def broadcast(self, shape: Shape) -> Lattice:
        """The same values over a larger shape; an axis of extent 1 has index 0 only, so its stride goes."""
        strides = tuple(ZERO if n == 1 != m else s for s, n, m in zip(self.strides, self.shape, shape, strict=True))
        grown = {a for a, (n, m) in enumerate(zip(self.shape, shape, strict=True)) if n == 1 != m}
        vecs = tuple(replace(v, axis=v.axis) for v in self.vecs if v.axis not in grown)
        if len(vecs) != len(self.vecs):
            raise ValueError("index vector on an axis of extent 1")
        return Lattice(shape, self.base, strides, vecs)

    def transposed(self, order: tuple[int, ...]) -> Lattice:
        where = {old: new for new, old in enumerate(order)}
        return Lattice(
            tuple(self.shape[a] for a in order),
            self.base,
            tuple(self.strides[a] for a in order),
            tuple(replace(v, axis=where[v.axis]) for v in self.vecs),
        )


@dataclass(frozen=True, slots=True)
class Scalar:
    """An integer scalar (wider than one bit)."""

    poly: Poly
    element: Element
    clk: Clk = NO_CLK


@dataclass(frozen=True, slots=True)
class Cond:
    """A scalar of one bit: `text` is a local, `True` or `False`."""

    text: str
    clk: Clk = NO_CLK
    element: Element = I1


@dataclass(frozen=True, slots=True)
class Splat:
    """A float that is the same in all lanes; shape () for a scalar. `text` is a local or a literal, rounded already."""

    shape: Shape
    text: str
    element: Element
    clk: Clk = NO_CLK


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a pointer comes from: `al` is the local with its `Allocation`, `remote` if it may have passed symm_at,
    `hidden` names which symm_at or consume_token it passed (see `Site`)."""

    al: str
    element: Element
    arg: str | None
    remote: bool
    hidden: str = ""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A scalar pointer: `base` is its simulated address in bytes."""

    base: Poly
    origin: Origin
    clk: Clk = NO_CLK

    @property
    def element(self) -> Element:
        return self.origin.element


@dataclass(frozen=True, slots=True)
class IndexTile:
    """A separable integer tensor."""

    lattice: Lattice
    element: Element
    clk: Clk = NO_CLK

    @property
    def shape(self) -> Shape:
        return self.lattice.shape


@dataclass(frozen=True, slots=True)
class PointerTile:
    """A separable tensor of pointers; `lattice.base` in bytes, its strides and vector scales in bytes too."""

    lattice: Lattice
    origin: Origin
    clk: Clk = NO_CLK

    @property
    def shape(self) -> Shape:
        return self.lattice.shape

    @property
    def element(self) -> Element:
        return self.origin.element


@dataclass(frozen=True, slots=True)
class AddressTile:
    """A tensor of pointers whose addresses are materialised: `local` is int64, in bytes."""

    local: str
    shape: Shape
    origin: Origin
    clk: Clk = NO_CLK

    @property
    def element(self) -> Element:
        return self.origin.element


@dataclass(frozen=True, slots=True)
class BlockPointer:
    """A block pointer (`tt.make_tensor_ptr`): a base; the parent's extents and strides, and offsets, in elements."""

    pointer: Pointer
    extents: tuple[Poly, ...]
    strides: tuple[Poly, ...]
    offsets: tuple[Poly, ...]
    shape: Shape
    clk: Clk = NO_CLK

    @property
    def element(self) -> Element:
        return self.pointer.element


@dataclass(frozen=True, slots=True)
class Bound:
    """`low <= i_axis < high`; None is unbounded."""

    axis: int
    low: Poly | None
    high: Poly | None


@dataclass(frozen=True, slots=True)
class Box:
    """A mask that is a box: per-axis bounds and scalar conditions, all of which must hold."""

    shape: Shape
    bounds: tuple[Bound, ...] = ()
    conditions: tuple[str, ...] = ()
    clk: Clk = NO_CLK
    element: Element = I1


@dataclass(frozen=True, slots=True)
class Tile:
    """A torch tensor in a local. `owned`: nobody else holds it, so it may be updated in place after its last use.

    `wide`: an f16 or bf16 value kept in float32 (exactly), for `tt.dot`.
    """

    local: str
    shape: Shape
    element: Element
    owned: bool = False
    wide: bool = False
    clk: Clk = NO_CLK
    view_of: str | None = field(default=None)


Value = Scalar | Cond | Splat | Pointer | IndexTile | PointerTile | AddressTile | BlockPointer | Box | Tile
V = TypeVar("V", bound=Value)


def carrying(value: V, clk: Clk) -> V:
    """The value with `clk` added to what it carries."""
    return replace(value, clk=value.clk | clk) if clk - value.clk else value


def shape_of(value: Value) -> Shape:
    """The declared shape; () for scalars and block pointers."""
    if isinstance(value, (Splat, IndexTile, PointerTile, AddressTile, Box, Tile)):
        return value.shape
    return ()
