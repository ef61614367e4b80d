"""A bounded cache of converted tiles: f16 and bf16 operands of a multiplication, kept in float32."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch

DEFAULT_BYTES = 256 << 20


class TileCache:
    """Least recently used tiles by (allocation, place); an entry is valid while the allocation's version is the same.

    Tiles in it are shared and must never be written to.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._tiles: OrderedDict[Hashable, tuple[Any, int, torch.Tensor]] = OrderedDict()

    def find(self, al: Any, key: Hashable) -> torch.Tensor | None:
        """The tile, if the allocation has not been written to since it was kept."""
        place = (id(al), key)
        entry = self._tiles.get(place)
        if entry is None:
            return None
        owner, version, tile = entry
        if version != al.version or owner() is not al:
            self._drop(place)
            return None
        self._tiles.move_to_end(place)
        return tile

    def keep(self, al: Any, key: Hashable, tile: torch.Tensor) -> None:
        size = tile.nbytes
        if size * 4 > self.limit_bytes:
            return
        place = (id(al), key)
        self._drop(place)
        self._tiles[place] = (weakref.ref(al), al.version, tile)
        self.held_bytes += size
        while self.held_bytes > self.limit_bytes:
            self._drop(next(iter(self._tiles)))

    def clear(self) -> None:
        self._tiles.clear()
        self.held_bytes = 0

    def _drop(self, place: Hashable) -> None:
        entry = self._tiles.pop(place, None)
        if entry is not None:
            self.held_bytes -= entry[2].nbytes
