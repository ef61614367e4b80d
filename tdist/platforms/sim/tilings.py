"""What the race detector remembers of an allocation that is accessed in runs of one width, side by side.

That is how tiles of a vector, slots of a table and chunks of a transfer are accessed. Each run is a byte set of its
own and none overlaps another, so instead of a `Record` a run has two places in a page of sixteen: its last write and
its readers. Accesses of any other shape to the same allocation, the odd ones, have records; each access to one kind is
compared with the other kind when it is made.
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
    """Accesses to runs of `width` bytes, all a multiple of it from byte `first` of the allocation.

    Run `i` has places `i & 15` (last write: entry, stamp, site, agent) and `16 + (i & 15)` (readers, as in a `Record`)
    of page `i >> 4`; `prev` has the last write by another agent than that of the last one, where there was one. `odd`
    are the records of all other plain accesses, with the bytes that they lie in.
    """

    __slots__ = ("count", "first", "odd", "pages", "prev", "shadow", "width")

    def __init__(self, shadow: Shadow, first: int, width: int) -> None:
        self.shadow = shadow
        self.first = first
        self.width = width
        self.count = 0
        self.pages: dict[int, Page] = {}
        self.prev: dict[int, tuple] = {}
        self.odd: list[tuple[int, int, Record]] = []

    def page(self, number: int) -> Page:
        """A new page."""
        made = self.pages[number] = [None] * (2 * _PAGE_TILES)
        return made

    def take(self, record: Record) -> None:
        """What is known of a run that had a record until now."""
        at = (record.key[0] - self.shadow.allocation.lo - self.first) // self.width
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
        """Run `at` as a record, linked with the odd ones that it overlaps."""
        made = self._bare(at)
        made.ov = [odd for _, _, odd in self.odd if overlap(odd.shape, made.shape)]
        return made

    def _bare(self, at: int) -> Record:
        made = Record(self.shadow, (self.shadow.allocation.lo + self.first + at * self.width, 1, 0, self.width), None)
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
        """All runs as records, not linked."""
        for number, page in self.pages.items():
            for place in range(_PAGE_TILES):
                if page[place] is not None or page[16 + place] is not None:
                    yield self._bare(16 * number + place)

    def suspects(
        self, shape: Shape, writes: bool, entry: int, last_drain: int, seed: memoryview, ascend: memoryview
    ) -> Iterator[Record]:
        """Runs that overlap an access of another shape and may conflict with it; clocks know every entry."""
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
        """Runs between the first and the last byte of `shape`, with their pages."""
        base = self.shadow.allocation.lo + self.first
        first, last = (shape.lo - base) // self.width, (shape.hi - 1 - base) // self.width
        numbers = range(first >> 4, (last >> 4) + 1)
        for number in numbers if len(numbers) <= len(self.pages) else [n for n in self.pages if n in numbers]:
            page = self.pages.get(number)
            if page is not None:
                for at in range(max(first, 16 * number), min(last, 16 * number + 15) + 1):
                    yield at, page

    def forget_settled(self, floor: memoryview) -> int:
        """Forget runs that no later access can race with; returns how many."""
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
