"""What the race detector remembers: one record a byte set that was accessed, and a shadow an allocation."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from tdist.platforms.sim.race_report import Access, Who
from tdist.platforms.sim.regions import Box, RegionIndex, Runs, Shape, box_of

if TYPE_CHECKING:
    from tdist.platforms.sim.tilings import Tiling

FEW_PLAIN: Final = 8
"""So many plain records are asked one by one for each new word."""
FORGOTTEN: Final[Any] = None
"""In the place of the shadow of a record that is no longer kept."""
UNLINKED: Final[Any] = (None,)
"""In the place of a plain record's words, while its shadow has loose ones: whoever wants them links them first."""


_numbers: Final = itertools.count()


class WordLike(Protocol):
    """What the detector needs of a synchronisation word; `access` is its record, which the detector keeps there."""

    al: Any
    off: int
    width: int
    access: WordRecord | None


class AllocationLike(Protocol):
    """What the detector needs of an allocation: `[lo, hi)` are simulated addresses, unique among live ones."""

    rank: int
    lo: int
    hi: int
    name: str | None


class Shadow:
    """All records of one allocation.

    `few` are the plain records while there are few, else None. `loose` are words that were not compared with them: all
    of one width and alignment, so that they do not overlap each other. Their `ov` is `few`. Signals are written and
    polled again and again and hardly ever stored to, so most are never compared. With a `tiling` there are no words,
    and all records are odd ones.
    """

    __slots__ = (
        "allocation",
        "few",
        "index",
        "keys",
        "looks",
        "loose",
        "number",
        "plain",
        "records",
        "tiles",
        "tiling",
        "words",
    )

    def __init__(self, allocation: AllocationLike) -> None:
        self.number = next(_numbers)
        self.allocation = allocation
        self.index = RegionIndex(allocation.lo)
        self.words = RegionIndex(allocation.lo)
        self.records: list[Record] = []
        self.keys: list[tuple] = []  # other spellings of records
        self.plain = self.tiles = 0  # records of accesses that are no signals; those of them that are atomics on tiles
        self.few: list[Record] | None = []
        self.loose: list[Record] = []
        self.looks = 0
        self.tiling: Tiling | None = None  # what else is accessed, in runs without records

    def note_plain(self, record: Record) -> None:
        """One more record of accesses that are no signals."""
        self.plain += 1
        if self.few is None:
            return
        if self.plain > FEW_PLAIN:
            self.few = None
        else:
            self.few.append(record)

    def takes_loose(self, key: tuple[int, int], width: int) -> bool:
        """Whether a new word at `key` is of the kind of the loose ones that there are."""
        loose = self.loose
        if not loose:
            return False
        first = loose[0]
        return first.word == width and not (first.key[0] - key[0]) % width

    def keep_loose(self, record: WordRecord) -> bool:
        """Store a word without comparing it, if that is possible."""
        if self.loose:
            if not self.takes_loose(record.key, record.word):
                return False
        elif self.few is None or self.tiling is not None or self.tiles or len(self.records) != self.plain:
            return False
        else:
            for plain in self.few:
                plain.ow = UNLINKED
        assert self.few is not None
        record.ov = self.few
        self.loose.append(record)
        self.records.append(record)
        return True

    def dissolve(self) -> None:
        """Out of the cycles with those records that are still its own: nobody needs them any more."""
        for record in self.records:
            if record.shadow is self:
                record.ov = record.ow = ()
                record.shadow = FORGOTTEN
        self.records.clear()
        self.loose.clear()
        self.few = self.tiling = None
        self.index = self.words = RegionIndex(self.allocation.lo)

    def may_be_tiled(self) -> bool:
        """Whether all records are plain, few, and all there is."""
        return self.few is not None and self.tiling is None and len(self.records) == self.plain and not self.tiles

    def has_words(self) -> bool:
        """Whether there are records of words."""
        return len(self.records) > self.plain - self.tiles

    def size_bytes(self) -> int:
        """Estimate of what it holds beside the records."""
        lists = sys.getsizeof(self.records) + sys.getsizeof(self.keys) + sum(map(sys.getsizeof, self.keys))
        return lists + self.index.size_bytes() + self.words.size_bytes()


Reader = tuple[int, int, Any, Who]
"""Entry, stamp, site and agent of a read."""
Writer = tuple[int, int, Any, Who, bool]
"""The same of a word or atomic write, and whether the scalar pipe makes it in order."""


class Record:
    """What is known of the plain accesses to one byte set.

    `we, wc, ws, ww`: entry, stamp, site and agent of the last plain write (stamp 0: none).
    `prev`: the last write by another agent than `we`; only a cached load of the last writer itself needs it.
    `rd`: the last read of each agent; `aw`: the last word or atomic write of each. One of them stands by itself, more
    in a dict by entry: see `entries`.
    `ov` and `ow`: overlapping plain records, and overlapping word records that are not the same words.
    """

    __slots__ = ("_shape", "key", "ov", "ow", "prev", "rd", "shadow", "wc", "we", "ws", "ww")

    word = 0
    tile = False
    quiet = False
    aw: Writer | dict[int, Writer] | None = None

    def __init__(self, shadow: Shadow, key: tuple, shape: Shape | None) -> None:
        self.shadow = shadow
        self.key = key
        self._shape: Shape | None = shape
        self.we = self.wc = 0
        self.ws: Any
        self.ww: Who | None
        self.prev: Access | None
        self.rd: Reader | dict[int, Reader] | None
        self.ov: Sequence[Record]
        self.ow: Sequence[Record]
        self.ws = self.ww = self.prev = self.rd = None
        self.ov = self.ow = ()

    @property
    def shape(self) -> Shape:
        """The byte set."""
        if self._shape is None:
            self._shape = box_of(self.key[0], 1, 0, self.word) if self.word else Box.of_key(self.key)
        assert self._shape is not None
        return self._shape

    def compact(self) -> None:
        """Of a box that hardly anybody will ask for: its key says all."""
        self._shape = None

    def last_write(self) -> Access | None:
        """The last plain write."""
        if self.ww is None:
            return None
        return Access(self.we, self.wc, self.ws, self.ww, True, self.shape)

    def writes(self) -> Iterator[Access]:
        """Remembered writes, plain and word."""
        if self.ww is not None:
            yield Access(self.we, self.wc, self.ws, self.ww, True, self.shape)
        for entry, stamp, site, who, in_order in entries(self.aw):
            yield Access(entry, stamp, site, who, True, self.shape, self.word, in_order)

    def reads(self) -> Iterator[Access]:
        """Remembered reads."""
        for entry, stamp, site, who in entries(self.rd):
            yield Access(entry, stamp, site, who, False, self.shape, self.word)

    def settled(self, floor: memoryview) -> bool:
        """Whether everyone alive knows all accesses: no later one can race with them."""
        if self.ww is not None and not _known(floor, self.we, self.wc):
            return False
        if self.prev is not None and not _known(floor, self.prev.entry, self.prev.stamp):
            return False
        return settled(self.rd, floor) and settled(self.aw, floor)


class WordRecord(Record):
    """Of words `word` bytes wide; `tile`: of atomics on a tile, which are no signals and need a shape."""

    __slots__ = ("aw", "tile", "word")

    we = wc = 0  # no plain write ever
    ws = ww = prev = None

    def __init__(self, shadow: Shadow, key: tuple, shape: Shape | None, word: int, tile: bool) -> None:
        self.shadow = shadow
        self.key = key
        self._shape = shape
        self.rd = self.aw = None
        self.ov = self.ow = ()
        self.word = word
        self.tile = tile


class GatherRecord(Record):
    """Of a gather; `quiet` as long as it was never written: such records are not linked with each other."""

    __slots__ = ("quiet",)

    def __init__(self, shadow: Shadow, key: tuple, shape: Shape) -> None:
        super().__init__(shadow, key, shape)
        self.quiet = True


def entries(table: tuple | dict[int, Any] | None) -> Collection[tuple]:
    """The reads or writes in a `Record`'s table."""
    if table is None:
        return ()
    return (table,) if isinstance(table, tuple) else table.values()


def noted(table: Any, access: tuple) -> Any:
    """A table with `access` in it, in the place of its agent's last one."""
    if table is None:
        return access
    if type(table) is tuple:
        return access if table[0] == access[0] else {table[0]: table, access[0]: access}
    table[access[0]] = access
    return table


def unordered(readers: Any, entry: int, m: memoryview) -> bool:
    """Whether a read by another agent than `entry` is not known to `m`; may raise IndexError."""
    if type(readers) is tuple:
        e = readers[0]
        return e != entry and (readers[1] > m[e] or readers[1] > m[e + 1])
    for e, reader in readers.items():
        if e != entry:
            stamp = reader[1]
            if stamp > m[e] or stamp > m[e + 1]:
                return True
    return False


def settled(table: Any, floor: memoryview) -> bool:
    """Whether everyone alive knows the accesses in a table; `floor` has all entries."""
    if table is None:
        return True
    if type(table) is tuple:
        e, stamp = table[0], table[1]
        return stamp <= floor[e] and stamp <= floor[e + 1]
    return all(_known(floor, e, access[1]) for e, access in table.items())


def _known(floor: memoryview, entry: int, stamp: int) -> bool:
    return stamp <= floor[entry] and stamp <= floor[entry + 1]


def same_words(a: Record, b: Record) -> bool:
    """Two word records of one width whose lanes coincide: their accesses never race with each other."""
    if not a.word or a.word != b.word:
        return False
    return (a.shape.lo - b.shape.lo) % a.word == 0


def hidden(a: Any, b: Any) -> bool:
    """Whether the compiler cannot see that two source operations mean the same bytes: their pointers were translated,
    and not by the same operation."""
    first, second = getattr(a, "hidden", ""), getattr(b, "hidden", "")
    return first != second or first == "?"


class Overlaps(list["Record"]):
    """The records that overlap one, and what was found out about them.

    `writer`: the entry of the agent that made all their last writes, the latest of which is stamped `latest`; NOBODY,
    SEVERAL, or None if it has to be found out again. `reads_known`: a clock that knows all reads of the one itself,
    those of the clock's agent aside; None if there may be later ones.
    """

    __slots__ = ("latest", "reads_known", "writer")

    def __init__(self, first: Record) -> None:
        super().__init__((first,))
        self.writer: int | None = None
        self.latest = 0
        self.reads_known: Any = None

    def find_writer(self) -> int:
        """Sets `writer` and `latest`."""
        writer, latest = NOBODY, 0
        for record in self:
            if not record.wc:
                continue
            if writer != record.we and writer != NOBODY:
                writer = SEVERAL
                break
            writer, latest = record.we, max(latest, record.wc)
        self.writer, self.latest = writer, latest
        return writer


NOBODY: Final = -1
SEVERAL: Final = -2


def with_other(others: Sequence[Record], other: Record) -> list[Record]:
    """`others`, to be changed in place, and one more; there is one empty tuple for all that have none."""
    if not isinstance(others, Overlaps):
        return Overlaps(other)
    others.append(other)
    others.writer = others.reads_known = None
    return others


def note_read(record: Record) -> None:
    """A plain record got a reader: who writes over it has to look again."""
    if type(record.ov) is Overlaps:
        record.ov.reads_known = None


def note_write(record: Record) -> None:
    """A plain record was written."""
    for other in record.ov:
        if type(other.ov) is Overlaps:
            other.ov.writer = None


def linked(record: Record) -> Iterator[Sequence[Record]]:
    """The lists of overlapping records that are the record's own."""
    if record.ov is not record.shadow.few:
        yield record.ov
    if record.ow is not UNLINKED:
        yield record.ow


def count_overlaps(record: Record) -> int:
    return sum(map(len, linked(record)))


_INT_BYTES: Final = 32


def size_bytes_of(record: Record) -> int:
    """A record, its shape and key with an address of their own, and its tables; stamps, sites and agents are shared."""
    shape = record._shape
    size = sys.getsizeof(record) + sys.getsizeof(record.key) + _INT_BYTES
    size += 0 if shape is None else sys.getsizeof(shape)
    size += sum(sys.getsizeof(others) for others in linked(record) if others)
    if isinstance(shape, Runs):
        size += shape.starts.nbytes + shape.ends.nbytes
    for table in (record.rd, record.aw):
        size += sum(map(sys.getsizeof, entries(table))) + (sys.getsizeof(table) if type(table) is dict else 0)
    return size
