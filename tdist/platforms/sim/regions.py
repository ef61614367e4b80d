"""Byte sets that accesses touch, exact overlap tests between them, and an index that finds overlapping ones.

A `Box` is `rows` runs of `width` bytes, `stride` bytes apart: what a tile load or store touches. Any stride is allowed,
also 0, negative, or smaller than the width; the canonical form has `stride > width`, or one row. `Runs` is a set of
disjoint intervals: what a gather touches. Tests cost O(1) or O(log stride) between boxes, never a loop over rows.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

_ONE_ROW: Final = 1 << 62
"""Stride of the family of single runs: everything lies in row 0."""
_FEW_TILES: Final = 8
"""So many are asked one by one."""
_CELL_BYTES: Final = 72 + 64
"""The key of a cell, and its list."""


class Box:
    """`rows` runs of `width` bytes from byte `lo`, `stride` apart; canonical, so build it with `box_of`."""

    __slots__ = ("hi", "lo", "rows", "stride", "width")

    def __init__(self, lo: int, rows: int, stride: int, width: int) -> None:
        self.lo = lo
        self.rows = rows
        self.stride = stride
        self.width = width
        self.hi = lo + (rows - 1) * stride + width

    @property
    def key(self) -> tuple:
        """As an access spells it: a single row has stride 0."""
        return (self.lo, self.rows, self.stride if self.rows > 1 else 0, self.width)

    @classmethod
    def of_key(cls, key: tuple[int, int, int, int]) -> Box:
        """The box with that key."""
        lo, rows, stride, width = key
        return cls(lo, rows, stride if rows > 1 else _ONE_ROW, width)

    def __repr__(self) -> str:
        return f"Box(lo={self.lo}, rows={self.rows}, stride={self.stride}, width={self.width})"


class Runs:
    """Disjoint, sorted, not adjoining intervals `[starts[i], ends[i])`."""

    __slots__ = ("ends", "hi", "lo", "starts")

    def __init__(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self.starts = starts
        self.ends = ends
        self.lo = int(starts[0])
        self.hi = int(ends[-1])

    @property
    def key(self) -> tuple:
        digest = hashlib.blake2b(self.starts.tobytes(), digest_size=16)
        digest.update(self.ends.tobytes())
        return (self.lo, self.hi, len(self.starts), digest.digest())

    def __repr__(self) -> str:
        return f"Runs({len(self.starts)} in [{self.lo}, {self.hi}))"


Shape = Box | Runs


def box_of(lo: int, rows: int, stride: int, width: int) -> Box | None:
    """The canonical box of an access; None if it touches nothing."""
    if rows <= 0 or width <= 0:
        return None
    if stride < 0:
        lo, stride = lo + (rows - 1) * stride, -stride
    if rows == 1 or stride == 0:
        return Box(lo, 1, _ONE_ROW, width)
    if stride <= width:
        return Box(lo, 1, _ONE_ROW, (rows - 1) * stride + width)
    return Box(lo, rows, stride, width)


def runs_of(starts: NDArray[np.int64], width: int) -> Shape | None:
    """The bytes of lanes `[starts[i], starts[i] + width)`: a box if they form one, merged intervals otherwise."""
    if len(starts) == 0 or width <= 0:
        return None
    if len(starts) > 1 and not bool((starts[1:] > starts[:-1]).all()):
        starts = np.unique(starts)
    breaks = np.flatnonzero(starts[1:] > starts[:-1] + width)
    first = starts[np.concatenate(([0], breaks + 1))]
    ends = starts[np.concatenate((breaks, [len(starts) - 1]))] + width
    return _as_box(first, ends) or Runs(first, ends)


def _as_box(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Box | None:
    width = int(ends[0] - starts[0])
    if len(starts) == 1:
        return Box(int(starts[0]), 1, _ONE_ROW, width)
    stride = int(starts[1] - starts[0])
    regular = bool((ends - starts == width).all()) and bool((np.diff(starts) == stride).all())
    return Box(int(starts[0]), len(starts), stride, width) if regular else None


def overlap(a: Shape, b: Shape) -> bool:
    """Whether the two sets have a byte in common."""
    if a.lo >= b.hi or b.lo >= a.hi:
        return False
    if isinstance(a, Box) and isinstance(b, Box):
        return (a.rows == 1 and b.rows == 1) or _boxes_meet(a, b)
    if isinstance(a, Box):
        a, b = b, a
    assert isinstance(a, Runs)
    return bool(_hit(a, b).any())


def _boxes_meet(a: Box, b: Box) -> bool:
    """Is there a row i of `a` and j of `b` with low <= i * a.stride - j * b.stride <= high?"""
    low = b.lo - a.lo - a.width + 1
    high = b.lo - a.lo + b.width - 1
    if a.rows == 1:
        return _multiple_within(b.stride, -high, -low, b.rows)
    if b.rows == 1:
        return _multiple_within(a.stride, low, high, a.rows)
    if a.stride == b.stride:
        return _multiple_within(
            a.stride, low + (b.rows - 1) * b.stride, high + (b.rows - 1) * b.stride, a.rows + b.rows - 1
        )
    return _rows_meet(a, b, low, high)


def _multiple_within(stride: int, low: int, high: int, count: int) -> bool:
    """Whether some k * stride with 0 <= k < count lies in [low, high]."""
    first = -(-low // stride)
    return max(first, 0) <= min(high // stride, count - 1)


def _rows_meet(a: Box, b: Box, low: int, high: int) -> bool:
    """Different strides: row i of `a` wants a multiple of `t` in [i*s - high, i*s - low], from 0 to (rows - 1) * t.

    Rows whose window contains either end of that range are found directly; for those strictly between, the multiples
    in all windows are counted at once by a sum of floors (Euclid's algorithm), so the cost is logarithmic.
    """
    s, t, top = a.stride, b.stride, (b.rows - 1) * b.stride
    if _multiple_within(s, low, high, a.rows) or _multiple_within(s, top + low, top + high, a.rows):
        return True
    first = max(0, high // s + 1)
    last = min(a.rows - 1, -(-(top + low) // s) - 1)
    if first > last:
        return False
    count = last - first + 1
    upper = floor_sum(count, t, s, first * s - low)
    return upper > floor_sum(count, t, s, first * s - high - 1)


def floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Sum of `(a * i + b) // m` for i in 0 … n-1, m > 0, in O(log m).

    Source: the Euclid-like reduction of lattice point counting (Graham, Knuth, Patashnik, Concrete Mathematics, 3.5).
    """
    total = 0
    while n > 0:
        total += (n - 1) * n // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        top = a * n + b
        if top < m:
            break
        n, b, m, a = top // m, top % m, a, m
    return total


def _hit(runs: Runs, other: Shape) -> NDArray[np.bool_]:
    """Which intervals of `runs` share a byte with `other`."""
    if isinstance(other, Runs):
        at = np.searchsorted(other.ends, runs.starts, side="right")
        inside = at < len(other.starts)
        return inside & (other.starts[np.minimum(at, len(other.starts) - 1)] < runs.ends)
    first = np.maximum((runs.starts - other.lo - other.width) // other.stride + 1, 0)
    last = np.minimum(-((other.lo - runs.ends) // other.stride) - 1, other.rows - 1)
    return first <= last


def common(a: Shape, b: Shape) -> tuple[int, int]:
    """First common byte and one past the last; the sets must overlap. For messages: costs O(rows)."""
    if isinstance(a, Box) and isinstance(b, Box) and a.rows == 1 and b.rows == 1:
        return max(a.lo, b.lo), min(a.hi, b.hi)
    left, right = _intervals(a), _intervals(b)
    if len(right.starts) < len(left.starts):
        left, right = right, left
    starts, ends = left.starts[_hit(left, right)], left.ends[_hit(left, right)]
    first = np.searchsorted(right.ends, starts[0], side="right")
    last = np.searchsorted(right.starts, ends[-1], side="left") - 1
    return max(int(starts[0]), int(right.starts[first])), min(int(ends[-1]), int(right.ends[last]))


def _intervals(shape: Shape) -> Runs:
    if isinstance(shape, Runs):
        return shape
    starts = shape.lo + np.arange(shape.rows, dtype=np.int64) * (shape.stride if shape.rows > 1 else 0)
    return Runs(starts, starts + shape.width)


class HasShape(Protocol):
    """What the index stores."""

    shape: Any


T = TypeVar("T", bound=HasShape)


class Level:
    """Items of one family whose boxes fit into cells of one size; each lies in at most six cells."""

    __slots__ = ("cells", "items")

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], list] = {}
        self.items: list = []


class RegionIndex:
    """Finds the stored items whose shape overlaps a new one.

    Boxes of one stride form a family with coordinates (row, column) = divmod(offset, stride); a box that wraps over
    the end of its row stands in the cells of both parts. Within a family a box is hashed into cells of its own size,
    rounded up to powers of two, so it meets few cells; other sizes are asked cell by cell or, if that is more, item
    by item. Candidates are only a superset: `overlap` decides.

    As long as all boxes are different tiles of one tiling, which is what most allocations see, they are only listed:
    none overlaps another.
    """

    __slots__ = ("_base", "_families", "_irregular", "_levels", "_read_only", "_tiles")

    def __init__(self, base: int) -> None:
        self._base = base
        self._families: dict[int, dict[tuple[int, int], Level]] = {}
        self._irregular: list = []
        self._read_only: list = []
        self._levels = 0
        self._tiles: list | None = []

    def add(self, item: HasShape, read_only: bool = False, distinct: bool = False) -> list:
        """Store `item`; returns the stored ones that overlap it. `distinct`: no other item has the same shape.

        Irregular items that are `read_only` are not compared with each other: gathers from a table that nobody writes
        would make a quadratic number of pairs. `promote` makes up for it when one of them is written.
        """
        shape = item.shape
        if self._tiles is not None:
            if distinct and isinstance(shape, Box) and (not self._tiles or self.fits(*shape.key)):
                self._tiles.append(item)
                return []
            self._spread()
        if isinstance(shape, Runs):
            others = [] if read_only else self._read_only
            found = [*self.overlapping(shape), *(other for other in others if overlap(shape, other.shape))]
            (self._read_only if read_only else self._irregular).append(item)
            return found
        level, near = self._insert(item, shape)
        if self._levels > 1:
            near.extend(self._candidates(shape, level))
        near.extend(self._irregular)
        near.extend(self._read_only)
        return [other for other in near if overlap(shape, other.shape)] if near else near

    def promote(self, item: HasShape) -> list:
        """A read-only irregular item is written from now on; returns the read-only ones that overlap it."""
        self._read_only = [other for other in self._read_only if other is not item]
        self._irregular.append(item)
        return [other for other in self._read_only if overlap(item.shape, other.shape)]

    def _level(self, stride: int, size: tuple[int, int]) -> Level:
        levels = self._families.setdefault(stride, {})
        level = levels.get(size)
        if level is None:
            level = levels[size] = Level()
            self._levels += 1
        return level

    def overlapping(self, shape: Shape, read_only: bool = False) -> list:
        """The stored items that overlap `shape`; read-only irregular ones if `read_only`."""
        if self._tiles is not None:
            if len(self._tiles) <= _FEW_TILES:
                return [other for other in self._tiles if overlap(shape, other.shape)]
            self._spread()
        near = (*self._irregular, *(self._read_only if read_only else ()), *self._candidates(shape))
        return [other for other in near if overlap(shape, other.shape)]

    @property
    def tiled(self) -> bool:
        """Whether all items are boxes of one tiling, none of which overlaps another."""
        return self._tiles is not None

    def fits(self, lo: int, rows: int, stride: int, width: int) -> bool:
        """Whether the box with this key is a tile of the tiling of all items: equal to one of them or disjoint."""
        if not self._tiles:
            return False
        first = self._tiles[0].shape
        if width != first.width or rows != first.rows:
            return False
        if rows == 1:
            return stride == 0 and (lo - first.lo) % width == 0
        if stride != first.stride:
            return False
        start = (first.lo - self._base) % stride
        if start + width > stride:  # the family's rows begin elsewhere
            start = 0
        row, column = divmod(lo - first.lo + start, stride)
        return row % rows == 0 and (column - start) % width == 0 and column + width <= stride

    def list_tile(self, item: HasShape) -> None:
        """Store an item that `fits` and has a shape of its own."""
        assert self._tiles is not None
        self._tiles.append(item)

    def size_bytes(self) -> int:
        """Estimate from `sys.getsizeof` of what the index holds beside the items."""
        if self._tiles is not None:
            return sys.getsizeof(self._tiles)
        levels = [level for family in self._families.values() for level in family.values()]
        cells = sum(sys.getsizeof(level.cells) + sys.getsizeof(level.items) for level in levels)
        return cells + sum(_CELL_BYTES * len(level.cells) for level in levels)

    def _spread(self) -> None:
        """The boxes are no tiles of one tiling any more: put them into cells."""
        tiles, self._tiles = self._tiles or (), None
        for item in tiles:
            self._insert(item, item.shape)

    def _insert(self, item: HasShape, box: Box) -> tuple[Level, list]:
        """Put `item` into its cells; returns its level, and those of its own size that were there before."""
        size = ((box.rows - 1).bit_length(), (box.width - 1).bit_length())
        level = self._level(box.stride, size)
        level.items.append(item)
        cells, met = level.cells, []
        crossed = 0
        for rows, columns in self._extents(box, box.stride):
            for cell in _cells(rows, columns, size):
                entry = cells.get(cell)
                if entry is None:
                    cells[cell] = [item]
                elif entry[-1] is not item:
                    met += entry
                    crossed += 1
                    entry.append(item)
        return level, list({id(other): other for other in met}.values()) if crossed > 1 else met

    def _candidates(self, shape: Shape, skip: Level | None = None) -> Iterator[Any]:
        for stride, levels in self._families.items():
            extents = self._extents(shape, stride)
            for size, level in levels.items():
                if level is not skip:
                    yield from _ask(level, size, extents)

    def _extents(self, shape: Shape, stride: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Rectangles (rows, columns), ends inclusive, of a family's coordinates that cover `shape`."""
        row, column = divmod(shape.lo - self._base, stride)
        if isinstance(shape, Box) and shape.stride == stride:
            last, end = row + shape.rows - 1, column + shape.width - 1
            if end < stride:
                return [((row, last), (column, end))]
            return [((row, last), (column, stride - 1)), ((row + 1, last + 1), (0, end - stride))]
        last, end = divmod(shape.hi - 1 - self._base, stride)
        if row == last:
            return [((row, row), (column, end))]
        return [((row, last), (0, stride - 1))]


def _cells(rows: tuple[int, int], columns: tuple[int, int], size: tuple[int, int]) -> list[tuple[int, int]]:
    by_row, by_column = size
    row, column = rows[0] >> by_row, columns[0] >> by_column
    if rows[1] >> by_row == row and columns[1] >> by_column == column:
        return [(row, column)]
    span = range(columns[0] >> by_column, (columns[1] >> by_column) + 1)
    return [(row, column) for row in range(rows[0] >> by_row, (rows[1] >> by_row) + 1) for column in span]


def _count_cells(rows: tuple[int, int], columns: tuple[int, int], size: tuple[int, int]) -> int:
    high = (rows[1] >> size[0]) - (rows[0] >> size[0]) + 1
    return high * ((columns[1] >> size[1]) - (columns[0] >> size[1]) + 1)


def _ask(level: Level, size: tuple[int, int], extents: list) -> Any:
    """Items of `level` that may touch the rectangles, each once."""
    if sum(_count_cells(rows, columns, size) for rows, columns in extents) > len(level.items):
        return level.items
    cells = level.cells
    entries = [cells[cell] for rows, columns in extents for cell in _cells(rows, columns, size) if cell in cells]
    if len(entries) == 1:
        return entries[0]
    return {id(item): item for entry in entries for item in entry}.values()
