"""Memory accesses of generated code whose tiles are symbolic: digests instead of tensors (`codegen/symbolic.py`).

A *digest* is a number of 63 bits that stands for a tile. A load gives the digest of the bytes that it saw, an operation
the digest of itself and of its operands' digests, and a store fills its lanes with a pattern that the digest
determines. So memory, bytewise, is a function of what was loaded, as with concrete tiles; only what function it is
differs. All checks and all reports to the detector are those of `access.py`, whose closures are wrapped here.

What lies in a pattern's place must never decide anything. `Allocation.marks` says where patterns may lie: by source
operation of the store, the span of bytes that it covered. An access that needs numbers and meets a mark ends the run
with `TilesNeeded`, and the search begins again with those stores concrete.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import torch

from tdist.errors import TdistError

from .access import Spec, load_box, store_box, store_lanes

Access = Callable[..., Any]
Place = tuple[str, int, int]
"""File, line and column of a store."""
Marks = dict[Place, list[int]]
_DIGEST_BITS: Final = (1 << 63) - 1
_KEPT_PATTERNS: Final = 128
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)


class TilesNeeded(TdistError):
    """Something decides by, or computes with, bytes that symbolic stores have written. `places`: those stores."""

    def __init__(self, places: frozenset[Place]) -> None:
        super().__init__("symbolic tiles are needed as numbers; their stores have to be concrete")
        self.places = places


# --- digests


def mix(*parts: Any) -> int:
    """The digest of an operation: `parts` are its number, numbers, and digests of operands."""
    return _number(blake2b(repr(parts).encode(), digest_size=8))


def digest_tile(tile: Any) -> int:
    """The digest of a tensor, or of a numpy array of bits: of its bytes in row-major order, and of its shape.

    Two given tiles have one digest with a probability of at most 2^-32 over the keys: sums of products with random odd
    keys modulo 2^64 tell words apart by their lowest byte that differs, and the second sum takes the bytes of each word
    in reverse. Source: Lemire, Kaser, "Strongly universal string hashing is fast", 2014 (multilinear hashing).
    """
    bits = tile if isinstance(tile, np.ndarray) else _bits(tile)
    raw = np.ascontiguousarray(bits).reshape(-1).view(np.uint8)
    if len(raw) % 8:
        raw = np.concatenate((raw, _PADDING[: -len(raw) % 8]))
    words = raw.view(np.int64)
    keys = _noise(len(words))
    return mix(bits.shape, bits.dtype.itemsize, int(np.dot(words, keys)), int(np.dot(words.byteswap(), keys)))


def _number(made: Any) -> int:
    return int.from_bytes(made.digest(), "little") & _DIGEST_BITS


class Digests:
    """Digests of an allocation's tiles by place: of the bytes that it was made with, and of those that it has now.

    `first` may be shared by runs in which the allocation begins with the same bytes.
    """

    __slots__ = ("_now", "_version", "first")

    def __init__(self, first: dict[Any, int]) -> None:
        self.first = first
        self._now: dict[Any, int] = {}
        self._version = 0

    def known(self, version: int) -> dict[Any, int]:
        """Those of an allocation that has been written to `version` times."""
        if version == 0:
            return self.first
        if version != self._version:
            self._now.clear()
            self._version = version
        return self._now


_PADDING: Final = np.zeros(8, np.uint8)
_SAME_WIDTH: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tile: torch.Tensor) -> np.ndarray:
    return tile.view(_SAME_WIDTH[tile.dtype.itemsize]).numpy()


@functools.lru_cache(maxsize=_KEPT_PATTERNS)
def pattern(digest: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tile that `digest` determines; its lanes differ from each other and from those of other digests by chance.

    Shared: never to be written to.
    """
    nbytes = dtype.itemsize * int(np.prod(shape))
    words = _noise(-(-nbytes // 8)).view(np.uint64) ^ np.uint64(digest)
    words *= _ODD
    words ^= words >> _HALF
    raw = words.view(np.uint8)[:nbytes]
    return torch.from_numpy(raw).view(dtype).view(shape)


@functools.lru_cache(maxsize=16)
def _noise(count: int) -> np.ndarray:
    """Random odd numbers, always the same."""
    return (np.random.default_rng(0).integers(0, 1 << 64, count, dtype=np.uint64) | np.uint64(1)).view(np.int64)


# --- marks


def mark(al: Any, low: int, high: int, place: Place) -> None:
    """Note that bytes `[low, high)` of an allocation may hold patterns of the store at `place`.

    Raises:
        TilesNeeded: a synchronisation word lies there.
    """
    if any(off < high and low < off + 8 for off in al.sync):
        raise TilesNeeded(frozenset({place}))
    if al.marks is None:
        al.marks = {}
    span = al.marks.setdefault(place, [low, high])
    span[0], span[1] = min(span[0], low), max(span[1], high)


def need(al: Any, low: int, high: int) -> None:
    """Bytes `[low, high)` of an allocation with marks are needed as numbers.

    Raises:
        TilesNeeded: patterns may lie there.
    """
    met = frozenset(place for place, (first, end) in al.marks.items() if first < high and low < end)
    if met:
        raise TilesNeeded(met)


def pass_marks(marks: Marks, al: Any) -> None:
    """What a copy moved may have been patterns: then they may lie in its target."""
    for place in list(marks):
        mark(al, 0, len(al), place)


def _hull(
    spec: Spec, al: Any, address: int, strides: Sequence[int], vecs: Any, shape: tuple[int, ...]
) -> tuple[int, int]:
    """The bytes between the first and the last lane of a box, those that a mask turns off included."""
    if vecs:
        return 0, len(al)
    low = high = address - al.lo
    for extent, stride in zip(shape, strides, strict=True):
        reach = (extent - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return max(low, 0), min(high + spec.size_bytes, len(al))


def _place(spec: Spec) -> Place:
    return spec.site.file, spec.site.line, spec.site.col


# --- loads and stores that move nothing


def digest_box(spec: Spec) -> Access:
    """See `access.load_box`; gives the digest of the tile."""
    load = load_box(spec, view=True)

    def digest(ag, al, address, strides, box, fill, clk=None, vecs=(), shape=spec.shape):
        tile = load(ag, al, address, strides, box, fill, clk, vecs, shape)
        if vecs or isinstance(fill, torch.Tensor):
            return digest_tile(tile)
        if al.digests is None:
            al.digests = Digests({})
        known = al.digests.known(al.version)
        key = (address, strides, box, shape, spec.dtype, ag.poison if fill is None else repr(fill))
        found = known.get(key)
        if found is None:
            found = known[key] = digest_tile(tile)
        return found

    return digest


def digest_lanes(load: Access) -> Access:
    """See `access.load_lanes`; gives the digest of the tile."""
    return lambda *args: digest_tile(load(*args))


def pattern_box(spec: Spec) -> Access:
    """See `access.store_box`; stores a digest's pattern."""
    store, place = store_box(spec), _place(spec)
    shape, dtype = spec.shape, spec.dtype

    def keep(ag, al, address, strides, box, digest, source=None, vecs=()):
        store(ag, al, address, strides, box, pattern(digest, shape, dtype), None, vecs)
        mark(al, *_hull(spec, al, address, strides, vecs, shape), place)

    return keep


def pattern_lanes(spec: Spec) -> Access:
    """See `access.store_lanes`; stores a digest's pattern."""
    store, place = store_lanes(spec), _place(spec)

    def keep(ag, al, addresses, mask, digest):
        store(ag, al, addresses, mask, pattern(digest, tuple(addresses.shape), spec.dtype))
        mark(al, 0, len(al), place)

    return keep


# --- accesses that need numbers


def needing_box(load: Access, spec: Spec) -> Access:
    """See `access.load_box`."""

    def needing(ag, al, address, strides, box, fill, clk=None, vecs=(), shape=spec.shape):
        if al.marks is not None:
            need(al, *_hull(spec, al, address, strides, vecs, shape))
        return load(ag, al, address, strides, box, fill, clk, vecs, shape)

    return needing


def needing_lanes(access: Access) -> Access:
    """See `access.load_lanes`, `access.atomic_lanes`."""

    def needing(ag, al, *rest):
        if al.marks is not None:
            need(al, 0, len(al))
        return access(ag, al, *rest)

    return needing


def needing_scalar(load: Access, spec: Spec) -> Access:
    """See `access.load_scalar`."""

    def needing(ag, al, address, clk=None):
        if al.marks is not None:
            need(al, address - al.lo, address - al.lo + spec.size_bytes)
        return load(ag, al, address, clk)

    return needing
