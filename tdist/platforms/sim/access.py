"""Memory accesses of generated code: strided boxes, rows by index, gathers, scalars.

The generator picks a tier per source operation at compile time:

- *slice*: a box of a strided view (`load_box`, `store_box`), the common case;
- *rows*: the same, but with an index vector on one axis that may turn out at run time not to be affine (`offs % M`);
- *gather*: addresses lane by lane (`load_lanes`, `store_lanes`).

Each factory makes a closure for one source operation, with its shape, dtype and site as constants. All closures check
bounds against the allocation that the pointer came from, lanes that the mask turns off excepted, and report to the
agent's detector hooks when compiled with detection.

Shape: addresses are simulated byte addresses; `strides` and `scale` are in bytes; `box` is `(low, high)` per axis,
flattened, in lanes, or None for all lanes; `vecs` is a tuple of `(axis, vector or None, scale)`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from .codegen.arithmetic import BITS_DTYPE, arange, wrap
from .codegen.site import Site
from .products import Product
from .tiles import TileCache

as_strided = torch.as_strided
ndarray = np.ndarray
BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
OUT_OF_BOUNDS = "tdist.out-of-bounds"
MISUSE = "tdist.pointer-misuse"
Vecs = Sequence[tuple[int, torch.Tensor | None, int]]


@dataclass(frozen=True)
class Spec:
    """What is constant about one access: who makes it, of what, and whether it is reported to the detector."""

    site: Site
    shape: tuple[int, ...]
    dtype: torch.dtype
    detect: bool

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize


class Region(NamedTuple):
    """Where a box lies: offset in elements from the allocation's start, extents, non-negative strides in elements.

    `low` is the first lane per axis, `flips` the axes that run backwards, `partial` if some lanes are off.
    """

    offset_elems: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    low: tuple[int, ...]
    flips: tuple[int, ...]
    partial: bool

    def span_bytes(self, size: int) -> tuple[int, int]:
        """The first byte that it touches, and the one behind the last; its elements have `size` bytes."""
        last = sum((n - 1) * s for n, s in zip(self.extents, self.strides, strict=True))
        return self.offset_elems * size, (self.offset_elems + last + 1) * size

    @property
    def lanes(self) -> tuple[slice, ...]:
        """The lanes of the access that it holds."""
        return tuple(slice(a, a + n) for a, n in zip(self.low, self.extents, strict=True))


_poison: dict[tuple[torch.dtype, int], Any] = {}


def poison_value(dtype: torch.dtype, pattern: int) -> Any:
    """The number whose bytes are all `pattern`: what a masked-off lane holds when the kernel gave no `other`."""
    key = (dtype, pattern)
    if key not in _poison:
        raw = torch.full((dtype.itemsize,), pattern, dtype=torch.uint8)
        _poison[key] = bool(pattern & 1) if dtype == torch.bool else raw.view(dtype).item()
    return _poison[key]


# --- placing a box


def place(ag: Any, al: Any, address: int, spec: Spec, shape: tuple[int, ...], strides: Sequence[int], box: Any) -> Any:
    """The `Region` of a box, checked; None if no lane is on."""
    if len(shape) == 2 and strides[0] >= 0 and strides[1] >= 0:
        quick = _place_2d(al, address - al.lo, spec.dtype.itemsize, shape, strides, box)
        if quick is not NotImplemented:
            return quick
    size = spec.dtype.itemsize
    start = address - al.lo
    extents: tuple[int, ...] = shape
    low: tuple[int, ...] = (0,) * len(shape)
    partial = False
    if box is not None:
        clipped = _clip(shape, box)
        if clipped is None:
            return None
        low, extents, partial = clipped
        for first, stride in zip(low, strides, strict=True):
            start += first * stride
    least = most = start
    backwards = False
    for extent, stride in zip(extents, strides, strict=True):
        if stride < 0:
            least += (extent - 1) * stride
            backwards = backwards or extent > 1
        else:
            most += (extent - 1) * stride
    if least < 0 or most + size > al.hi - al.lo:
        _report_box(ag, al, start, spec, extents, strides, low, box is not None)
    if start % size or any(s % size for s in strides):
        ag.fault(MISUSE, spec.site, reason="misaligned", address=address, element_bytes=size, allocation=al.name)
    if backwards:
        return _ascending(least, extents, strides, low, partial, size)
    return Region(start // size, extents, tuple([abs(s) // size for s in strides]), low, (), partial)


def _place_2d(al: Any, start: int, size: int, shape: tuple[int, ...], strides: Sequence[int], box: Any) -> Any:
    """`place` for the common case, unrolled; NotImplemented if there is something to report."""
    rows, columns = shape
    down, right = strides
    low_row = low_column = 0
    if box is not None:
        low_row, end_row, low_column, end_column = box
        low_row, low_column = max(low_row, 0), max(low_column, 0)
        rows = (end_row if end_row < rows else rows) - low_row
        columns = (end_column if end_column < columns else columns) - low_column
        if rows <= 0 or columns <= 0:
            return None
        start += low_row * down + low_column * right
    end = start + (rows - 1) * down + (columns - 1) * right + size
    if start < 0 or end > al.hi - al.lo or start % size or down % size or right % size:
        return NotImplemented
    partial = rows != shape[0] or columns != shape[1]
    extents, steps = (rows, columns), (down // size, right // size)
    return Region(start // size, extents, steps, (low_row, low_column), (), partial)


def panel_fits(
    al: Any, shape: tuple[int, ...], address: int, strides: Sequence[int], box: Any, size_bytes: int
) -> bool:
    """Whether all lanes of a panel that are on lie inside its allocation."""
    start = address - al.lo
    if len(shape) == 2:
        (rows, columns), (down, right) = shape, strides
        all_on = box is None or (box[0] <= 0 and box[2] <= 0 and box[1] >= rows and box[3] >= columns)
        if all_on and down >= 0 and right >= 0:
            return 0 <= start <= al.hi - al.lo - size_bytes - (rows - 1) * down - (columns - 1) * right
    if box is not None:
        clipped = _clip(shape, box)
        if clipped is None:
            return True
        low, shape, _ = clipped
        start += sum(first * stride for first, stride in zip(low, strides, strict=True))
    least = start + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    most = start + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    return least >= 0 and most + size_bytes <= al.hi - al.lo


def _clip(shape: tuple[int, ...], box: Sequence[int]) -> Any:
    low, extents, partial = [], [], False
    for axis, lanes in enumerate(shape):
        first, end = box[2 * axis], box[2 * axis + 1]
        first = max(first, 0)
        end = min(end, lanes)
        if end <= first:
            return None
        partial = partial or end - first != lanes
        low.append(first)
        extents.append(end - first)
    return tuple(low), tuple(extents), partial


def _ascending(
    least: int, extents: tuple[int, ...], strides: Sequence[int], low: tuple[int, ...], partial: bool, size: int
) -> Region:
    flips = tuple(a for a, s in enumerate(strides) if s < 0)
    return Region(least // size, extents, tuple([abs(s) // size for s in strides]), low, flips, partial)


def _report_box(
    ag: Any,
    al: Any,
    start: int,
    spec: Spec,
    extents: Sequence[int],
    strides: Sequence[int],
    low: Sequence[int],
    masked: bool,
) -> None:
    """Fault with the first lane, in row-major order, that lies outside the allocation."""
    size, end = spec.size_bytes, al.hi - al.lo
    # An index that left 64 bits is no less out of bounds: whole numbers of any size.
    far = max(abs(start), *(abs(n * s) for n, s in zip(extents, strides, strict=True)), 0) >> 60
    grid = np.full(tuple(extents), start, dtype=object if far else np.int64)
    for axis, (extent, stride) in enumerate(zip(extents, strides, strict=True)):
        along = [-1 if a == axis else 1 for a in range(grid.ndim)]
        grid += (np.arange(extent, dtype=grid.dtype) * stride).reshape(along)
    bad = np.argwhere((grid < 0) | (grid + size > end))[0]
    lane = tuple(int(i) + first for i, first in zip(bad, low, strict=True))
    _fault_at(ag, al, int(grid[tuple(bad)]), spec, lane, masked)


def _fault_at(ag: Any, al: Any, offset_bytes: int, spec: Spec, lane: tuple[int, ...], masked: bool) -> None:
    size = spec.size_bytes
    ag.fault(
        OUT_OF_BOUNDS,
        spec.site,
        index=offset_bytes // size,
        lane=lane,
        masked=masked,
        allocation=al.name,
        elements=(al.hi - al.lo) // size,
        element_bytes=size,
        rank=al.rank,
    )


# --- detector records


def runs(region: Region, size: int) -> Iterator[tuple[int, int, int, int]]:
    """A region as boxes `(offset, rows, stride, width)` in bytes: the unit-stride axis is the run, the next rows."""
    axes = [(s, n) for s, n in zip(region.strides, region.extents, strict=True) if n > 1 and s]
    axes.sort()
    width = 1
    if axes and axes[0][0] == 1:
        width = axes.pop(0)[1]
    stride, rows = axes.pop(0) if axes else (0, 1)
    base = region.offset_elems
    for steps in itertools.product(*(range(n) for _, n in axes)):
        shift = sum(i * s for i, (s, _) in zip(steps, axes, strict=True))
        yield (base + shift) * size, rows, stride * size, width * size


def record_read(ag: Any, al: Any, region: Region, size: int, clk: Any, site: Site) -> None:
    if len(region.extents) == 2 and region.strides[1] == 1 < region.strides[0]:
        rows, columns = region.extents
        ag.rd(al, region.offset_elems * size, rows, region.strides[0] * size, columns * size, clk, site)
        return
    for offset, rows, stride, width in runs(region, size):
        ag.rd(al, offset, rows, stride, width, clk, site)


def record_write(ag: Any, al: Any, region: Region, size: int, site: Site) -> None:
    if len(region.extents) == 2 and region.strides[1] == 1 < region.strides[0]:
        rows, columns = region.extents
        ag.wr(al, region.offset_elems * size, rows, region.strides[0] * size, columns * size, site)
        return
    for offset, rows, stride, width in runs(region, size):
        ag.wr(al, offset, rows, stride, width, site)


# --- tile loads


def load_box(
    spec: Spec, *, wide: bool = False, view: bool = False, raw: bool = False, cache: TileCache | None = None
) -> Callable[..., Any]:
    """A tile load from a separable pointer.

    `wide` converts f16/bf16 to float32 (exact) for a multiplication, through `cache` if one is given (the generator
    gives one only where `fill` is a number or no lane is off); `view` returns
    memory itself and not a snapshot, which the generator asks for only where nothing can write before the last use.
    `raw`: such a view that is only stored again may be a numpy array of its bits, which costs a third of a tensor.
    """
    shape, dtype, site, detect = spec.shape, spec.dtype, spec.site, spec.detect
    size, bits = dtype.itemsize, BITS[dtype.itemsize]
    out_dtype = torch.float32 if wide else dtype
    finish = _finisher(dtype, wide, view)
    planar, linear = len(shape) == 2, len(shape) == 1 and cache is None

    def load(ag, al, address, strides, box, fill, clk=None, vecs=(), shape: tuple[int, ...] = shape):
        if planar and not vecs:  # a whole tile of rows apart from each other: what `place` says, in line
            rows, columns = shape
            down, right = strides
            at, width = address - al.lo, columns * size
            if (
                (box is None or (box[0] <= 0 and box[2] <= 0 and box[1] >= rows and box[3] >= columns))
                and right == size
                and down >= width
                and 0 <= at <= al.hi - al.lo - width - (rows - 1) * down
                and not (at % size or down % size)
            ):
                if detect:
                    ag.rd(al, at, rows, down, width, clk, site)
                if raw:
                    return ndarray(shape, bits, al.words(size), at, (down, size))
                if cache is None:
                    return finish(as_strided(al.view(dtype), shape, (down // size, 1), at // size))
                key = (at, down, shape, dtype)
                tile = cache.find(al, key)
                if tile is None:
                    tile = finish(as_strided(al.view(dtype), shape, (down // size, 1), at // size))
                    cache.keep(al, key, at, at + (rows - 1) * down + width, tile)
                return tile
        elif linear and not vecs:
            at, width = address - al.lo, shape[0] * size
            if (
                (box is None or (box[0] <= 0 and box[1] >= shape[0]))
                and strides[0] == size
                and 0 <= at <= al.hi - al.lo - width
                and not at % size
            ):
                if detect:
                    ag.rd(al, at, 1, 0, width, clk, site)
                if raw:
                    return ndarray(shape, bits, al.words(size), at)
                return finish(as_strided(al.view(dtype), shape, (1,), at // size))
        if vecs and any(v is not None for _, v, _ in vecs):
            return _load_rows(ag, al, address, strides, box, fill, clk, vecs, spec, shape, out_dtype)
        region = place(ag, al, address, spec, shape, strides, box)
        if region is None:
            return filled(ag, shape, out_dtype, fill, dtype)
        if detect:
            record_read(ag, al, region, size, clk, site)
        key: Any = None
        if cache is not None:
            key = (address, region.strides, region.extents, region.low, shape, dtype, fill)
            found = cache.find(al, key)
            if found is not None:
                return found
        tile = as_strided(al.view(dtype), region.extents, region.strides, region.offset_elems)
        tile = tile.flip(region.flips) if region.flips else tile
        tile = _embed(ag, finish(tile), region, shape, fill, dtype) if region.partial else finish(tile)
        if cache is not None:
            first, end = region.span_bytes(size)
            cache.keep(al, key, first, end, tile)
        return tile

    return load


def _finisher(dtype: torch.dtype, wide: bool, view: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    if wide and dtype != torch.float32:
        return torch.Tensor.float
    if view:
        return lambda tile: tile
    return lambda tile: tile.clone(memory_format=torch.contiguous_format)


def filled(ag: Any, shape: tuple[int, ...], out_dtype: torch.dtype, fill: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tile of `fill`: a number, a tensor (`other`), or None for poison."""
    if isinstance(fill, torch.Tensor):
        return fill.to(out_dtype).expand(shape).clone(memory_format=torch.contiguous_format)
    if fill is None:
        fill = poison_value(dtype, ag.poison)
    return torch.full(shape, fill, dtype=out_dtype) if fill else torch.zeros(shape, dtype=out_dtype)


def _embed(
    ag: Any, tile: torch.Tensor, region: Region, shape: tuple[int, ...], fill: Any, dtype: torch.dtype
) -> torch.Tensor:
    out = filled(ag, shape, tile.dtype, fill, dtype)
    out[region.lanes] = tile
    return out


# --- rows by index vector


class _Rows(NamedTuple):
    """A box with an index vector on `axis`: `offsets` are byte offsets of its positions from the allocation's start."""

    axis: int
    offsets: np.ndarray
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    low: tuple[int, ...]
    partial: bool


def _rows_of(al: Any, address: int, shape: tuple[int, ...], strides: Sequence[int], box: Any, vecs: Vecs) -> Any:
    """`_Rows` for a pointer with one live index vector; None if no lane is on."""
    low, extents, partial = (0,) * len(shape), shape, False
    if box is not None:
        clipped = _clip(shape, box)
        if clipped is None:
            return None
        low, extents, partial = clipped
    ((axis, vector, scale),) = [v for v in vecs if v[1] is not None]
    assert vector is not None
    first, count = low[axis], extents[axis]
    offsets = vector.numpy()[first : first + count] * scale + (np.arange(first, first + count) * strides[axis])
    start = address - al.lo + sum(f * s for a, (f, s) in enumerate(zip(low, strides, strict=True)) if a != axis)
    return _Rows(axis, offsets + start, extents, tuple(strides), low, partial)


def _live(vecs: Vecs) -> int:
    return sum(v is not None for _, v, _ in vecs)


def _load_rows(ag, al, address, strides, box, fill, clk, vecs, spec, shape, out_dtype) -> torch.Tensor:
    if _live(vecs) > 1:
        return _load_dense(ag, al, address, strides, box, fill, clk, vecs, spec, shape, out_dtype)
    rows = _rows_of(al, address, shape, strides, box, vecs)
    if rows is None:
        return filled(ag, shape, out_dtype, fill, spec.dtype)
    size = spec.size_bytes
    step = max(size, int(np.gcd.reduce(np.abs(rows.offsets - rows.offsets[0]))))
    first, last = int(rows.offsets.min()), int(rows.offsets.max())
    whole = (*rows.extents[: rows.axis], (last - first) // step + 1, *rows.extents[rows.axis + 1 :])
    steps = (*rows.strides[: rows.axis], step, *rows.strides[rows.axis + 1 :])
    if any(s < 0 for s in steps):
        return _load_dense(ag, al, address, strides, box, fill, clk, vecs, spec, shape, out_dtype)
    region = place(ag, al, al.lo + first, spec, whole, steps, None)
    if spec.detect:
        for run in _row_regions(rows, size):
            record_read(ag, al, run, size, clk, spec.site)
    source = as_strided(al.view(spec.dtype), region.extents, region.strides, region.offset_elems)
    index = torch.from_numpy((rows.offsets - first) // step)
    tile = source.index_select(rows.axis, index).to(out_dtype)
    if not rows.partial:
        return tile
    shown = Region(0, rows.extents, (), rows.low, (), True)
    return _embed(ag, tile, shown, shape, fill, spec.dtype)


def _row_regions(rows: _Rows, size: int) -> Iterator[Region]:
    """The rows as regions, one for each stretch of equal steps."""
    offsets = rows.offsets
    start = 0
    while start < len(offsets):
        end = start + 1
        step = int(offsets[end] - offsets[start]) if end < len(offsets) else 0
        while end < len(offsets) and offsets[end] - offsets[end - 1] == step:
            end += 1
        first = int(min(offsets[start], offsets[end - 1]))
        extents = (*rows.extents[: rows.axis], end - start, *rows.extents[rows.axis + 1 :])
        steps = (*rows.strides[: rows.axis], abs(step), *rows.strides[rows.axis + 1 :])
        yield Region(first // size, extents, tuple(s // size for s in steps), (), (), False)
        start = end


def _load_dense(ag, al, address, strides, box, fill, clk, vecs, spec, shape, out_dtype) -> torch.Tensor:
    addresses = lattice(shape, address, strides, vecs)
    mask = None if box is None else box_mask(shape, box)
    return load_lanes(spec)(ag, al, addresses, mask, fill, clk).to(out_dtype)


# --- materialising


def lattice(shape: tuple[int, ...], base: int, strides: Sequence[int], vecs: Vecs = ()) -> torch.Tensor:
    """A separable integer tensor, int64."""
    result = torch.full((1,) * len(shape), wrap(base, 64), dtype=torch.int64)
    for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        if stride:
            result = result + (arange(extent) * stride).view(_along(axis, len(shape)))
    for axis, vector, scale in vecs:
        if vector is not None:
            result = result + (vector * scale).view(_along(axis, len(shape)))
    return result.expand(shape)


def box_mask(shape: tuple[int, ...], box: Sequence[int]) -> torch.Tensor:
    """A box as a tensor of bools."""
    result = torch.ones((1,) * len(shape), dtype=torch.bool)
    for axis, extent in enumerate(shape):
        low, high = box[2 * axis], box[2 * axis + 1]
        if low > 0 or high < extent:
            index = arange(extent)
            result = result & ((index >= low) & (index < high)).view(_along(axis, len(shape)))
    return result.expand(shape)


def _along(axis: int, rank: int) -> tuple[int, ...]:
    return tuple(-1 if a == axis else 1 for a in range(rank))


# --- tile stores


def store_box(spec: Spec) -> Callable[..., None]:
    """A tile store to a separable pointer; `value` is a tensor, a number, or the bits of a `raw` load of this dtype.

    `source` is the allocation that `value` is a view of, if it may be one: then a copy within one allocation goes
    through a snapshot, since the ranges may overlap. Where several lanes name one address the last one wins.
    """
    shape, dtype, site, detect = spec.shape, spec.dtype, spec.site, spec.detect
    size = dtype.itemsize
    planar, linear = len(shape) == 2, len(shape) == 1
    rows, columns = shape if planar else (1, shape[-1] if shape else 1)
    width, bits = columns * size, BITS[size]

    def store(ag, al, address, strides, box, value: Any, source=None, vecs=()):
        later = type(value) is Product
        if later and (al.sync or al.aliases or vecs):  # memory that others may look at, or no box
            value, later = value.tile(), False
        if planar and not vecs and source is not al:
            down, right = strides
            at = address - al.lo
            if (
                (box is None or (box[0] <= 0 and box[2] <= 0 and box[1] >= rows and box[3] >= columns))
                and right == size
                and down >= width
                and 0 <= at <= al.hi - al.lo - width - (rows - 1) * down
                and not (at % size or down % size)
                and (later or isinstance(value, (torch.Tensor, ndarray)))
            ):
                if detect:
                    ag.wr(al, at, rows, down, width, site)
                if later:
                    ag.later.put_off(al, Region(at // size, shape, (down // size, 1), (0, 0), (), False), dtype, value)
                elif isinstance(value, ndarray):
                    ndarray(shape, bits, al.words(size), at, (down, size))[...] = value
                else:
                    as_strided(al.view(dtype), shape, (down // size, 1), at // size).copy_(value)
                al.note_write(at, at + (rows - 1) * down + width)
                return None
        elif linear and not vecs and source is not al:
            at = address - al.lo
            if (
                (box is None or (box[0] <= 0 and box[1] >= columns))
                and strides[0] == size
                and 0 <= at <= al.hi - al.lo - width
                and not at % size
                and isinstance(value, (torch.Tensor, ndarray))
            ):
                if detect:
                    ag.wr(al, at, 1, 0, width, site)
                if isinstance(value, ndarray):
                    ndarray(shape, bits, al.words(size), at)[...] = value
                else:
                    as_strided(al.view(dtype), shape, (1,), at // size).copy_(value)
                al.note_write(at, at + width)
                return None
        if isinstance(value, ndarray):
            value = from_bits(value, dtype)
        if vecs and any(v is not None for _, v, _ in vecs):
            addresses = lattice(shape, address, strides, vecs)
            mask = None if box is None else box_mask(shape, box)
            return store_lanes(spec)(ag, al, addresses, mask, value)
        region = place(ag, al, address, spec, shape, strides, box)
        if region is None:
            return None
        if detect:
            record_write(ag, al, region, size, site)
        if later and not region.flips and min(region.strides) > 0:
            ag.later.put_off(al, region, dtype, value)
            al.note_write(*region.span_bytes(size))
            return None
        value = value.tile() if later else value
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor:
            value = value.clone() if source is al else value
            value = value[region.lanes] if region.partial else value
            value = value.flip(region.flips) if region.flips else value
        if 0 in region.strides:
            region, value = _last_lanes(region, value)
        target = as_strided(al.view(dtype), region.extents, region.strides, region.offset_elems)
        if is_tensor:
            target.copy_(value)
        else:
            target.fill_(value)
        al.note_write(*region.span_bytes(size))
        return None

    return store


def copy_box(source: Spec, target: Spec, axis: int, tile: int) -> Callable[..., None]:
    """All loads and stores of a loop that copies tiles, `tile` lanes each, adjacent along `axis` (`codegen/copies.py`).

    `shape` and `box` are those of the whole panel, which lies inside both allocations, two different ones. Generated
    code asks before that no stride is negative and no target stride 0.
    """
    size, detect = source.size_bytes, source.detect
    bits = BITS[size]

    def copy(ag, al, address, strides, to, to_address, to_strides, box, shape, clk):
        read = place(ag, al, address, source, shape, strides, box)
        written = place(ag, to, to_address, target, shape, to_strides, box)
        if read is None or written is None:
            return
        if detect:
            _record_copy(ag, al, read, to, written, clk)
        place_of = [size * s for s in read.strides], [size * s for s in written.strides]
        values = ndarray(read.extents, bits, al.words(size), size * read.offset_elems, place_of[0])
        ndarray(written.extents, bits, to.words(size), size * written.offset_elems, place_of[1])[...] = values
        to.note_write(*written.span_bytes(size))

    def _record_copy(ag, al, read, to, written, clk):
        """The first trip's load is ordered by R; its store raises R to W, which orders the others'."""
        clocks = ag.clocks
        if clocks.R is clocks.W or read.extents[axis] <= tile:
            record_read(ag, al, read, size, clk, source.site)
            record_write(ag, to, written, size, target.site)
            return
        extents, rest = list(read.extents), list(read.extents)
        extents[axis], rest[axis] = tile, read.extents[axis] - tile
        record_read(ag, al, read._replace(extents=tuple(extents)), size, clk, source.site)
        record_write(ag, to, written, size, target.site)
        after = read.offset_elems + tile * read.strides[axis]
        record_read(ag, al, read._replace(extents=tuple(rest), offset_elems=after), size, clk, source.site)

    return copy


def from_bits(bits: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """The tile that a `raw` load gave the bits of."""
    return torch.from_numpy(bits).view(dtype)


def _last_lanes(region: Region, value: Any) -> tuple[Region, Any]:
    """The region without its repeated axes, and the lanes that are stored last."""
    for axis, (stride, extent) in enumerate(zip(region.strides, region.extents, strict=True)):
        if stride == 0 and extent > 1 and isinstance(value, torch.Tensor):
            value = value.narrow(axis, extent - 1, 1)
    extents = tuple(1 if s == 0 else n for s, n in zip(region.strides, region.extents, strict=True))
    strides = tuple(s or 1 for s in region.strides)
    return region._replace(extents=extents, strides=strides), value


# --- lanes


def _offsets(ag: Any, al: Any, addresses: torch.Tensor, mask: torch.Tensor | None, spec: Spec) -> np.ndarray:
    """Byte offsets of the lanes that are on, in row-major order, checked."""
    flat = addresses.reshape(-1) if mask is None else addresses[mask.expand(addresses.shape)]
    offsets = flat.numpy() - al.lo
    size = spec.size_bytes
    if not len(offsets):
        return offsets
    bad = (offsets < 0) | (offsets + size > al.hi - al.lo)
    if bad.any():
        which = int(np.argmax(bad))
        lanes = np.argwhere(np.ones(addresses.shape, bool) if mask is None else mask.expand(addresses.shape).numpy())
        _fault_at(ag, al, int(offsets[which]), spec, tuple(int(i) for i in lanes[which]), mask is not None)
    if size > 1 and (offsets % size).any():
        ag.fault(MISUSE, spec.site, reason="misaligned", element_bytes=size, allocation=al.name)
    return offsets


def load_lanes(spec: Spec, wide: bool = False) -> Callable[..., torch.Tensor]:
    """A gather: `addresses` is an int64 tensor of byte addresses, `mask` a tensor of bools or None."""
    dtype, site, detect = spec.dtype, spec.site, spec.detect

    def load(ag, al, addresses, mask, fill, clk=None):
        offsets = _offsets(ag, al, addresses, mask, spec)
        if detect and len(offsets):
            ag.rd_lanes(al, offsets, dtype.itemsize, clk, site)
        lanes = al.view(dtype)[torch.from_numpy(offsets // dtype.itemsize)]
        if mask is None:
            tile = lanes.view(addresses.shape)
        else:
            tile = filled(ag, tuple(addresses.shape), dtype, fill, dtype)
            tile[mask.expand(addresses.shape)] = lanes
        return tile.float() if wide else tile

    return load


def store_lanes(spec: Spec) -> Callable[..., None]:
    """A scatter; where several lanes name one address the last one wins."""
    dtype, site, detect = spec.dtype, spec.site, spec.detect

    def store(ag, al, addresses, mask, value):
        offsets = _offsets(ag, al, addresses, mask, spec)
        if not len(offsets):
            return
        if detect:
            ag.wr_lanes(al, offsets, dtype.itemsize, site)
        value = from_bits(value, dtype) if type(value) is ndarray else value
        value = value.tile() if type(value) is Product else value
        lanes = _lane_values(value, addresses.shape, mask, dtype)
        index = offsets // dtype.itemsize
        if lanes.numel() > 1 and len(np.unique(index)) < len(index):
            _, last = np.unique(index[::-1], return_index=True)
            keep = np.sort(len(index) - 1 - last)
            index, lanes = index[keep], lanes[torch.from_numpy(keep)]
        al.view(dtype)[torch.from_numpy(np.ascontiguousarray(index))] = lanes
        al.note_write(0, len(al))

    return store


def _lane_values(value: Any, shape: torch.Size, mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    tile = value.to(dtype) if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)
    tile = tile.expand(shape)
    return tile.reshape(-1) if mask is None else tile[mask.expand(shape)]


# --- scalars


def _scalar_index(ag: Any, al: Any, address: int, spec: Spec) -> int:
    offset = address - al.lo
    size = spec.size_bytes
    if offset < 0 or offset + size > al.hi - al.lo:
        _fault_at(ag, al, offset, spec, (), False)
    if offset % size:
        ag.fault(MISUSE, spec.site, reason="misaligned", address=address, element_bytes=size, allocation=al.name)
    return offset // size


def load_scalar(spec: Spec) -> Callable[..., Any]:
    """A scalar load, through the data cache: a Python int, bool or float."""
    dtype, site, detect, size = spec.dtype, spec.site, spec.detect, spec.size_bytes
    is_float, bits = dtype.is_floating_point, size * 8

    def load(ag, al, address, clk=None):
        index = _scalar_index(ag, al, address, spec)
        if detect:
            ag.rd_cached(al, index * size, 1, 0, size, clk, site)
        if is_float:
            return al.view(dtype)[index].item()
        raw = al.words(size)[index]
        return bool(raw) if dtype == torch.bool else wrap(raw, bits)

    return load


def store_scalar(spec: Spec) -> Callable[..., None]:
    """A scalar store."""
    dtype, site, detect, size = spec.dtype, spec.site, spec.detect, spec.size_bytes

    def store(ag, al, address, value):
        index = _scalar_index(ag, al, address, spec)
        if detect:
            ag.wr(al, index * size, 1, 0, size, site)
        al.view(dtype)[index] = value
        al.note_write(index * size, (index + 1) * size)

    return store


# --- atomics on tiles


def atomic_lanes(spec: Spec, kind: str, used: bool) -> Callable[..., torch.Tensor | None]:
    """A read-modify-write of each lane, in row-major order; returns the old values if they are used.

    `kind` is Triton's: add, fadd, and, or, xor, max, min, umax, umin, xchg, cas (`value` is then `(compare, new)`).
    """
    dtype, site = spec.dtype, spec.site

    def update(ag, al, addresses, mask, value):
        offsets = _offsets(ag, al, addresses, mask, spec)
        if len(offsets) and spec.detect:
            ag.atomic_lanes(al, offsets, dtype.itemsize, site, used)
        index = torch.from_numpy(offsets // dtype.itemsize)
        view = al.view(dtype)
        parts = value if isinstance(value, tuple) else (value,)
        lanes = [_lane_values(p, addresses.shape, mask, dtype) for p in parts]
        old = _update(view, index, lanes, kind)
        al.note_write(0, len(al))
        if not used:
            return None
        tile = filled(ag, tuple(addresses.shape), dtype, None, dtype)
        if mask is None:
            return old.view(addresses.shape)
        tile[mask.expand(addresses.shape)] = old
        return tile

    return update


def _update(view: torch.Tensor, index: torch.Tensor, lanes: list[torch.Tensor], kind: str) -> torch.Tensor:
    if len(torch.unique(index)) == len(index):
        old = view[index]
        view[index] = COMBINE[kind](old, *lanes)
        return old
    old = torch.empty(len(index), dtype=view.dtype)
    for lane in range(len(index)):
        at = int(index[lane])
        old[lane] = view[at]
        view[at] = COMBINE[kind](old[lane], *[part[lane] for part in lanes])
    return old


def _unsigned(pick: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def combine(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        flip = torch.iinfo(old.dtype).min
        return pick(old ^ flip, new ^ flip) ^ flip

    return combine


COMBINE: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "fadd": torch.add,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "max": torch.fmax,
    "min": torch.fmin,
    "umax": _unsigned(torch.maximum),
    "umin": _unsigned(torch.minimum),
    "xchg": lambda old, new: new,
    "cas": lambda old, compare, new: torch.where(_bits(old) == _bits(compare), new, old),
}


def _bits(tile: torch.Tensor) -> torch.Tensor:
    return tile.view(BITS_DTYPE[tile.dtype]) if tile.dtype.is_floating_point else tile
