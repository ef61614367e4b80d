"""Products that are stored and not looked at: multiplied later, many in a row.

A fused K-loop (`codegen/fuse.py`) ends in one multiplication of two panels, and mostly nothing but a store follows.
Neither the schedule nor the detector depends on the numbers. So the store is checked, recorded and counted at once, and
only the numbers come later: whoever asks for the allocation's memory (`Allocation.view`, `Allocation.words`) settles
what was put off first, in the order of the stores, and so does the end of a run, before any host goes on. Until then
nobody can tell the difference: the operands are converted copies of what was loaded, which nothing writes to, and
memory that holds synchronisation words, which are watched without being asked for, is stored to at once.

Why: a multiplication of panels sweeps the second-level cache, and everything that the engine does between two of them
then starts cold. Apart, both are faster: docs/decisions/0023-products-later.md has the figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from .codegen.arithmetic import multiply

if TYPE_CHECKING:
    from .access import Region
    from .memory import Allocation

_HELD_BYTES: Final = 64 << 20
_MOST: Final = 256


class Product:
    """`left @ right` in `dtype`, not computed yet. Both are tiles that nothing writes to."""

    __slots__ = ("_tile", "dtype", "left", "right")

    def __init__(self, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> None:
        self.left = left
        self.right = right
        self.dtype = dtype
        self._tile: torch.Tensor | None = None

    def tile(self) -> torch.Tensor:
        """The product itself."""
        if self._tile is None:
            self._tile = multiply(self.left, self.right, self.dtype)
        return self._tile


class PutOff:
    """The stores of products into one allocation that are still to be made, in order."""

    __slots__ = ("stores",)

    def __init__(self) -> None:
        self.stores: list[tuple[Region, torch.dtype, Product]] = []

    def settle(self, al: Allocation) -> None:
        """Make them. Multiplications that share their right operand follow each other, as it is then still near."""
        first: dict[int, int] = {}
        for number, (_, _, product) in enumerate(self.stores):
            first.setdefault(id(product.right), number)
        for _, _, product in sorted(self.stores, key=lambda made: first[id(made[2].right)]):
            product.tile()
        for region, dtype, product in self.stores:
            target = torch.as_strided(al.view(dtype), region.extents, region.strides, region.offset_elems)
            tile = product.tile()
            target.copy_(tile[region.lanes] if region.partial else tile)


class LaterProducts:
    """All stores of products of a world that are put off, so many at most."""

    def __init__(self) -> None:
        self._where: dict[int, Allocation] = {}
        self._operands: dict[int, torch.Tensor] = {}
        self._held_bytes = 0
        self._stores = 0

    def put_off(self, al: Allocation, region: Region, dtype: torch.dtype, product: Product) -> None:
        """A store of `product` to a region of `al` (no lane twice, none backwards), already checked and recorded."""
        if al.put_off is None:
            al.put_off = PutOff()
        al.put_off.stores.append((region, dtype, product))
        self._where[id(al)] = al
        self._stores += 1
        for operand in (product.left, product.right):
            if id(operand) not in self._operands:
                self._operands[id(operand)] = operand
                self._held_bytes += operand.nbytes
        if self._held_bytes > _HELD_BYTES or self._stores > _MOST:
            self.settle()

    def settle(self) -> None:
        """Make all of them."""
        where, self._where, self._operands = self._where, {}, {}
        self._held_bytes = self._stores = 0
        for al in where.values():
            al.settle()
