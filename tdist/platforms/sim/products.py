"""Products that are stored and not looked at: multiplied later, many in a row.

A fused K-loop (`codegen/fuse.py`) ends in one multiplication of two panels, and mostly nothing but a store follows.
Neither the schedule nor the detector depends on the numbers. So the store is checked, recorded and counted at once, and
only the numbers come later: whoever asks for the allocation's memory (`Allocation.view`, `Allocation.words`) settles
what was put off first, and so does the end of a run, before any host goes on. Until then nobody can tell the
difference: the operands are converted copies of what was loaded, which nothing writes to, and memory that holds
synchronisation words, which are watched without being asked for, is stored to at once.

Why: a multiplication of panels sweeps the second-level cache, and everything that the engine does between two of them
then starts cold; and products with a common operand are faster together. docs/decisions/0023-products-later.md has the
figures.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import torch

from .codegen.arithmetic import multiply

if TYPE_CHECKING:
    from .access import Region
    from .memory import Allocation

_MOST_HELD_BYTES: Final = 64 << 20
_MOST_STORES: Final = 4096
_WORTH_JOINING: Final = 4
"""So many left operands, or more, have the same right ones: then it pays to copy these side by side."""
_MOST_JOINED_BYTES: Final = 8 << 20
_JOINED_KEPT: Final = 8


class Product:
    """`left @ right` in `dtype`, not computed yet. Both are tiles that nothing writes to."""

    __slots__ = ("column", "dtype", "left", "made", "right")

    def __init__(self, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> None:
        self.left = left
        self.right = right
        self.dtype = dtype
        self.made: torch.Tensor | None = None  # it or, if `column` is one, a row of products in which it begins there
        self.column = -1

    @property
    def nbytes(self) -> int:
        """What it takes as soon as it is computed."""
        return self.left.shape[0] * self.right.shape[1] * self.dtype.itemsize

    def tile(self) -> torch.Tensor:
        """The product itself."""
        if self.made is None:
            self.made = multiply(self.left, self.right, self.dtype)
        if self.column < 0:
            return self.made
        return self.made[:, self.column : self.column + self.right.shape[1]]


Store = tuple["Region", torch.dtype, Product]
"""A store of a product to a region, in elements of a dtype; checked and recorded, but not made."""


class PutOff:
    """The stores into one allocation that are still to be made, in order."""

    __slots__ = ("stores", "world")

    def __init__(self, world: LaterProducts) -> None:
        self.world = world
        self.stores: list[Store] = []

    def settle(self, al: Allocation) -> None:
        """Make them. Where no two of them overlap, each is made as soon as its product is there."""
        self.world.forget(al, len(self.stores))
        at_once = are_apart([region for region, _, _ in self.stores]) and len({made[1] for made in self.stores}) == 1
        for row in self.world.multiplied(self.stores):
            if at_once:
                _make(al, *row)
        if not at_once:
            for store in self.stores:
                _make(al, [store])


def _make(al: Allocation, stores: Sequence[Store], whole: torch.Tensor | None = None) -> None:
    """Make stores; of a row of products that lie in `whole` side by side, those of one run of elements together."""
    for first, count in _runs(stores) if whole is not None else ((n, 1) for n in range(len(stores))):
        region, dtype, product = stores[first]
        if whole is not None and count > 1:
            columns = region.extents[1]
            tile = whole[:, first * columns : (first + count) * columns]
            region = region._replace(extents=(region.extents[0], count * columns))
        else:
            tile = product.tile()[region.lanes] if region.partial else product.tile()
        target = torch.as_strided(al.view(dtype), region.extents, region.strides, region.offset_elems)
        target.copy_(tile)


def _runs(stores: Sequence[Store]) -> Iterator[tuple[int, int]]:
    """`(first, count)` of stores of whole tiles, of one dtype, each to the right of the one before."""
    first = 0
    for number in range(1, len(stores) + 1):
        if number == len(stores) or not _beside(stores[number - 1], stores[number]):
            yield first, number - first
            first = number


def _beside(a: Store, b: Store) -> bool:
    (left, dtype, _), (right, other, _) = a, b
    whole = not (left.partial or right.partial) and dtype == other
    same = left.extents == right.extents and left.strides == right.strides
    return whole and same and left.strides[1] == 1 and right.offset_elems - left.offset_elems == left.extents[1]


def are_apart(regions: Sequence[Region]) -> bool:
    """Whether no element is in two of them: tiles of one grid, each at most once. False if that is not seen at once."""
    first = regions[0]
    if len(first.extents) != 2 or first.strides[1] != 1 or first.strides[0] < 1:
        return False
    if any(r.strides != first.strides for r in regions):
        return False
    rows, columns = (max(r.extents[axis] for r in regions) for axis in (0, 1))
    down = first.strides[0]
    places = [divmod(r.offset_elems, down) for r in regions]
    if any(column + columns > down for _, column in places):
        return False
    grid = {(row % rows, column % columns) for row, column in places}
    return len(grid) == 1 and len(set(places)) == len(places)


class LaterProducts:
    """All stores of products of a world that are put off, so many at most."""

    def __init__(self) -> None:
        self._where: dict[int, Allocation] = {}
        self._operands: dict[int, torch.Tensor] = {}
        self._held_bytes = 0
        self._stores = 0
        self._stack = torch.empty(0)
        self._joined: OrderedDict[tuple[int, ...], tuple[list[torch.Tensor], torch.Tensor]] = OrderedDict()

    def put_off(self, al: Allocation, region: Region, dtype: torch.dtype, product: Product) -> None:
        """A store of `product` to a region of `al` (no lane twice, none backwards), already checked and recorded."""
        if al.put_off is None:
            al.put_off = PutOff(self)
            self._where[id(al)] = al
        al.put_off.stores.append((region, dtype, product))
        self._stores += 1
        self._held_bytes += product.nbytes
        for operand in (product.left, product.right):
            if id(operand) not in self._operands:
                self._operands[id(operand)] = operand
                self._held_bytes += operand.nbytes
        if self._held_bytes > _MOST_HELD_BYTES or self._stores > _MOST_STORES:
            self.settle()

    def settle(self) -> None:
        """Make all of them."""
        where, self._where, self._operands = self._where, {}, {}
        self._held_bytes = self._stores = 0
        for al in where.values():
            al.settle()

    def forget(self, al: Allocation, stores: int) -> None:
        """So many stores to an allocation are about to be made."""
        if self._where.pop(id(al), None) is None:
            return
        self._stores -= stores
        if not self._where:
            self._operands, self._held_bytes = {}, 0

    def close(self) -> None:
        """The world is gone: keep no tile alive."""
        self.settle()
        self._joined.clear()
        self._stack = torch.empty(0)

    def multiplied(self, stores: Sequence[Store]) -> Iterator[tuple[Sequence[Store], torch.Tensor | None]]:
        """Compute the products; gives the stores as their products come, with what holds them all if one tensor does.

        Products of one left operand follow each other. Where several left operands have the same right ones, these are
        put side by side: one multiplication for a row of products. That changes no bits as long as a column of a
        product does not depend on how many there are (tests/unit/test_products.py).
        """
        rows: dict[tuple[int, int, int], list[Store]] = {}
        for store in stores:
            product = store[2]
            rows.setdefault((id(product.left), product.left.shape[0], product.right.shape[1]), []).append(store)
        shared: dict[tuple[int, tuple[int, ...]], list[list[Store]]] = {}
        for row in rows.values():
            row.sort(key=lambda store: store[0].offset_elems)
            height = row[0][2].left.shape[0]
            shared.setdefault((height, tuple([id(product.right) for _, _, product in row])), []).append(row)
        for same in shared.values():
            if len(same) >= _WORTH_JOINING and len(same[0]) > 1:
                yield from self._multiplied_rows(same)
            else:
                for store in itertools.chain(*same):
                    store[2].tile()
                    yield (store,), None

    def _multiplied_rows(self, rows: list[list[Store]]) -> Iterator[tuple[Sequence[Store], torch.Tensor | None]]:
        """Rows of products that have the same right operands each, in one order: left ones stacked, too."""
        _, _, first = rows[0][0]
        height, columns = first.left.shape[0], first.right.shape[1]
        wide = max(1, _MOST_JOINED_BYTES // first.right.nbytes)
        high = max(1, _MOST_JOINED_BYTES // first.left.nbytes)
        for start, top in itertools.product(range(0, len(rows[0]), wide), range(0, len(rows), high)):
            parts = [row[start : start + wide] for row in rows[top : top + high]]
            joined = self._side_by_side([product.right for _, _, product in parts[0]])
            whole = multiply(self._stacked([part[0][2].left for part in parts]), joined, first.dtype)
            for part, row in zip(parts, whole.view(len(parts), height, -1).unbind(), strict=True):
                for number, (_, _, product) in enumerate(part):
                    product.made, product.column = row, number * columns
                yield part, row

    def _stacked(self, tiles: list[torch.Tensor]) -> torch.Tensor:
        """Tiles of one shape below each other, in memory that is used again."""
        shape = (len(tiles) * tiles[0].shape[0], tiles[0].shape[1])
        if self._stack.numel() < shape[0] * shape[1]:
            with torch.inference_mode(False):  # it may be used again outside of one
                self._stack = torch.empty(shape[0] * shape[1], dtype=tiles[0].dtype, device="cpu")
        return torch.cat(tiles, out=self._stack[: shape[0] * shape[1]].view(shape))

    def _side_by_side(self, tiles: list[torch.Tensor]) -> torch.Tensor:
        """Tiles of one height side by side; the latest few are kept, since weights are multiplied again and again."""
        key = tuple([id(tile) for tile in tiles])
        found = self._joined.get(key)
        if found is None:
            found = tiles, torch.cat(tiles, 1)
            if found[1].nbytes > _MOST_JOINED_BYTES:
                return found[1]
            self._joined[key] = found
            if len(self._joined) > _JOINED_KEPT:
                self._joined.popitem(last=False)
        self._joined.move_to_end(key)
        return found[1]
