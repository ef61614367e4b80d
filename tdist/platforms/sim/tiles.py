"""A bounded cache of converted tiles: f16 and bf16 operands of a multiplication, kept in float32."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

import torch

DEFAULT_BYTES = 256 << 20


class Entry:
    """A tile, and what it was made from; `used` grows with time."""

    __slots__ = ("hi", "lo", "owner", "tile", "used", "version")

    def __init__(self, al: Any, lo: int, hi: int, tile: torch.Tensor, used: int) -> None:
        self.owner = weakref.ref(al)
        self.lo = lo
        self.hi = hi
        self.version = al.version
        self.tile = tile
        self.used = used


class TileCache:
    """Recently used tiles by (allocation, place); an entry is valid while the bytes that it was made from are the same.

    When it is full, the quarter of it that was not used for longest is dropped at once, so that a hit has next to
    nothing to note. Tiles in it are shared and must never be written to.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._tiles: dict[Hashable, Entry] = {}
        self._now = 0

    def find(self, al: Any, key: Hashable) -> torch.Tensor | None:
        """The tile, if nothing has been written where it comes from since it was kept."""
        entry = self._tiles.get((id(al), key))
        if entry is None:
            return None
        if entry.version != al.version or entry.owner() is not al:
            if entry.owner() is not al or not al.unchanged(entry.version, entry.lo, entry.hi):
                self._drop((id(al), key))
                return None
            entry.version = al.version
        entry.used = self._now = self._now + 1
        return entry.tile

    def keep(self, al: Any, key: Hashable, lo: int, hi: int, tile: torch.Tensor) -> None:
        """Keep a tile that was made from bytes `[lo, hi)` of `al`."""
        size = tile.nbytes
        if size * 4 > self.limit_bytes:
            return
        place = (id(al), key)
        self._drop(place)
        self._now += 1
        self._tiles[place] = Entry(al, lo, hi, tile, self._now)
        self.held_bytes += size
        if self.held_bytes > self.limit_bytes:
            self._shrink()

    def clear(self) -> None:
        self._tiles.clear()
        self.held_bytes = 0

    def _shrink(self) -> None:
        for place, _ in sorted(self._tiles.items(), key=lambda item: item[1].used):
            if self.held_bytes * 4 <= self.limit_bytes * 3:
                return
            self._drop(place)

    def _drop(self, place: Hashable) -> None:
        entry = self._tiles.pop(place, None)
        if entry is not None:
            self.held_bytes -= entry.tile.nbytes
