"""What the race detector remembers of an allocation that is accessed in boxes of one shape, side by side.

That is how tiles of a vector or matrix, slots of a table and chunks of a transfer are accessed. Each box is a byte set
of its own and none overlaps another, so instead of a `Record` a box has two places in a page of sixteen: its last write
and its readers. Accesses of any other shape to the same allocation, the odd ones, have records; each access to one kind
is compared with the other kind when it is made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from tdist.platforms.sim.race_report import Access
from tdist.platforms.sim.records import Record, Shadow, entries, settled, unordered
from tdist.platforms.sim.regions import Shape, overlap

_PAGE_TILES: Final = 16
Page = list[Any]


class Tiling:
    """Accesses to boxes of `rows` runs of `width` bytes, `stride` apart, on a grid that starts at byte `first`.

    Tile `i` has places `i & 15` (last write: entry, stamp, site, agent) and `16 + (i & 15)` (readers, as in a `Record`)
    of page `i >> 4`; `prev` has the last write by another agent than that of the last one, where there was one. `odd`
    are the records of all other plain accesses, with the bytes that they lie in.

    Single runs are numbered as they follow each other, tiles of several rows along the `columns` of them that fit into
    a stride, one band of `rows` after another. From its first to behind its last byte a tile has `extent` bytes, a band
    has `band`.

    Args:
        off: where in the allocation one of the tiles begins.
    """

    __slots__ = (
        "band",
        "columns",
        "count",
        "extent",
        "first",
        "odd",
        "pages",
        "prev",
        "rows",
        "shadow",
        "stride",
        "width",
    )

    def __init__(self, shadow: Shadow, off: int, rows: int, stride: int, width: int) -> None:
        self.shadow = shadow
        self.rows = rows
        self.stride = stride if rows > 1 else 0
        self.width = width
        if rows == 1:
            self.first, self.columns, self.band = off % width, 1, width
        else:
            row, column = divmod(off, stride)
            wraps = column + width > stride
            self.first = row % rows * stride + (column if wraps else column % width)
            self.columns, self.band = stride // width, rows * stride
        self.extent = (rows - 1) * self.stride + width
        self.count = 0
        self.pages: dict[int, Page] = {}
        self.prev: dict[int, tuple] = {}
        self.odd: list[tuple[int, int, Record]] = []

    def find(self, off: int, rows: int, stride: int, width: int) -> int | None:
        """The number of the tile that a box is; None if it is none."""
        if rows != self.rows or width != self.width:
            return None
        at, beside = self.locate(off, stride)
        return None if beside else at

    def locate(self, off: int, stride: int) -> tuple[int, int]:
        """The number of the tile that a box of its rows and width is, and 0; anything but 0 if it is none."""
        band, within = divmod(off - self.first, self.band)
        if self.rows == 1:
            return band, within
        column, beside = divmod(within, self.width)
        if column >= self.columns or stride != self.stride:
            return band, 1
        return band * self.columns + column, beside

    def place(self, at: int) -> int:
        """Where in the allocation tile `at` begins."""
        band, column = divmod(at, self.columns)
        return self.first + band * self.band + column * self.width

    def page(self, number: int) -> Page:
        """A new page."""
        made = self.pages[number] = [None] * (2 * _PAGE_TILES)
        return made

    def take(self, record: Record) -> None:
        """What is known of a tile that had a record until now."""
        lo, _, stride, _ = record.key
        at, _ = self.locate(lo - self.shadow.allocation.lo, stride)
        page = self.pages.get(at >> 4) or self.page(at >> 4)
        page[at & 15] = None if record.ww is None else (record.we, record.wc, record.ws, record.ww)
        page[16 + (at & 15)] = record.rd
        if record.prev is not None:
            self.prev[at] = (record.prev.entry, record.prev.stamp, record.prev.site, record.prev.who)
        self.count += 1

    def add_odd(self, record: Record) -> None:
        """One more record of another shape."""
        base, shape = self.shadow.allocation.lo, record.shape
        self.odd.append((shape.lo - base, shape.hi - base, record))

    def record(self, at: int) -> Record:
        """Tile `at` as a record, linked with the odd ones that it overlaps."""
        made = self._bare(at)
        made.ov = [odd for _, _, odd in self.odd if overlap(odd.shape, made.shape)]
        return made

    def _bare(self, at: int) -> Record:
        lo = self.shadow.allocation.lo + self.place(at)
        made = Record(self.shadow, (lo, self.rows, self.stride, self.width), None)
        page = self.pages[at >> 4]
        if page[at & 15] is not None:
            made.we, made.wc, made.ws, made.ww = page[at & 15]
        made.rd = page[16 + (at & 15)]
        before = self.prev.get(at)
        if before is not None:
            entry, stamp, site, who = before
            made.prev = Access(entry, stamp, site, who, True, made.shape)
        return made

    def records(self) -> Iterator[Record]:
        """All tiles as records, not linked."""
        for number, page in self.pages.items():
            for place in range(_PAGE_TILES):
                if page[place] is not None or page[16 + place] is not None:
                    yield self._bare(16 * number + place)

    def suspects(
        self, shape: Shape, writes: bool, entry: int, last_drain: int, seed: memoryview, ascend: memoryview
    ) -> Iterator[Record]:
        """Tiles that overlap an access of another shape and may conflict with it; clocks know every entry."""
        for at, page in self._near(shape):
            last = page[at & 15]
            if last is None:
                suspect = False
            elif last[0] == entry:
                suspect = last[1] > last_drain or at in self.prev
            else:
                suspect = last[1] > seed[last[0]] or last[1] > ascend[last[0] + 1]
            readers = page[16 + (at & 15)]
            if suspect or (writes and readers is not None and unordered(readers, entry, seed)):
                made = self._bare(at)
                if overlap(made.shape, shape):
                    yield made

    def _near(self, shape: Shape) -> Iterator[tuple[int, Page]]:
        """Tiles of the bands between the first and the last byte of `shape`, with their pages."""
        base = self.shadow.allocation.lo + self.first
        first = (shape.lo - base) // self.band * self.columns
        last = (shape.hi - 1 - base) // self.band * self.columns + self.columns - 1
        numbers = range(first >> 4, (last >> 4) + 1)
        for number in numbers if len(numbers) <= len(self.pages) else [n for n in self.pages if n in numbers]:
            page = self.pages.get(number)
            if page is not None:
                for at in range(max(first, 16 * number), min(last, 16 * number + 15) + 1):
                    yield at, page

    def forget_settled(self, floor: memoryview) -> int:
        """Forget tiles that no later access can race with; returns how many."""
        before, prev = self.count, self.prev
        for number, page in list(self.pages.items()):
            for place in range(_PAGE_TILES):
                last, readers = page[place], page[16 + place]
                if last is None and readers is None:
                    continue
                if not (settled(last, floor) and settled(readers, floor)):
                    continue
                if prev and not settled(prev.get(16 * number + place), floor):
                    continue
                prev.pop(16 * number + place, None)
                page[place] = page[16 + place] = None
                self.count -= 1
            if page.count(None) == len(page):
                del self.pages[number]
        return before - self.count

    def size_bytes(self) -> int:
        """Estimate from `sys.getsizeof`; stamps, sites and agents are shared."""
        size = sys.getsizeof(self) + sys.getsizeof(self.pages) + sys.getsizeof(self.prev) + sys.getsizeof(self.odd)
        for page in self.pages.values():
            size += sys.getsizeof(page)
            for table in page:
                size += sum(map(sys.getsizeof, entries(table))) + (sys.getsizeof(table) if type(table) is dict else 0)
        return size + sum(map(sys.getsizeof, self.prev.values()))
