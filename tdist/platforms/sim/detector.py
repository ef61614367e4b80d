"""Race detector: byte-exact, keyed by region, under both release profiles at once.

Every distinct byte set that accesses touch has one `Record`: its last plain write and one stamp a reader. An access
whose set was seen before costs one dictionary lookup plus one comparison for each overlapping record; the list of those
is found once, when a record is made. Where most accesses are boxes of one shape side by side, these share a `Tiling`.
Accesses to synchronisation words and atomics have records of their own, one a (byte set, word width), with one stamp a
writer: among themselves equal words never race. Words are compared with plain records of their allocation when one of
those is accessed again, not before.

Keeping only the last plain write of a record loses no race per byte and profile: if the one before was ordered before
it, whoever races with the earlier races with the later too; if not, that race has been reported. The same holds for
readers that a write clears.

Source: FastTrack (Flanagan and Freund, PLDI 2009) on regions; docs/ordering-model.md, "Race".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdist.findings.model import Finding
from tdist.platforms.sim import race_report
from tdist.platforms.sim.clocks import AgentClocks, Clock, floor_of
from tdist.platforms.sim.race_report import Access, Conflict, ReaderFacts, Who
from tdist.platforms.sim.records import (
    FEW_PLAIN,
    NOBODY,
    UNLINKED,
    AllocationLike,
    GatherRecord,
    Record,
    Shadow,
    WordLike,
    WordRecord,
    count_overlaps,
    hidden,
    note_read,
    note_write,
    noted,
    same_words,
    size_bytes_of,
    unordered,
    with_other,
)
from tdist.platforms.sim.regions import Box, Runs, Shape, box_of, runs_of
from tdist.platforms.sim.tilings import Tiling

_PRUNE_FROM_RECORDS: Final = 8192
"""So many are kept without a look at which are settled: some megabytes."""
_TILES_A_RECORD: Final = 4
"""So many tiles of a `Tiling` take the room of one record."""
_LOOKS: Final = 8
"""So often is a new allocation looked at whether all accesses to it are settled."""
_WORTH_REBUILDING: Final = 4
"""A shadow is rebuilt to drop that part of its records, or more."""
RARE: Final = frozenset({"rd_cached", "rd_lanes", "wr_lanes", "polled", "access_atomics"})
R = TypeVar("R", bound="Record")
Watch = Callable[..., None]
"""`LineGuard.written`."""


class Actor(Protocol):
    """An agent, host or stream that accesses memory."""

    clocks: AgentClocks
    who: Who


@dataclass(frozen=True)
class DetectorStats:
    """Sizes and counts. `shadow_bytes` is an estimate from `sys.getsizeof` of what records hold."""

    records: int
    allocations: int
    overlaps: int
    irregular: int
    races_met: int
    shadow_bytes: int


class Detector:
    """Records accesses and reports races.

    Args:
        sink: gets a finding each time a race is met; the same object for the same pair of source operations.
    """

    def __init__(self, sink: Callable[[Finding], object]) -> None:
        self._sink = sink
        self._records: dict[tuple, Record] = {}
        self._shadows: dict[int, Shadow] = {}
        self._tilings: dict[int, Tiling] = {}
        self._fresh: list[Shadow] = []  # may soon be settled as a whole
        self._met: dict[tuple, tuple[Finding, Any, Any]] = {}
        self._clocks: dict[int, AgentClocks] = {}
        self.facts: Callable[[Who, int], ReaderFacts] | None = None  # of the agent (who, slot) that loads
        self._races_met = 0
        self._prune_at = _PRUNE_FROM_RECORDS

    # ---- recording -------------------------------------------------------------------------------------------------

    def bind(self, agent: Any, watch: Watch | None = None, lazily: bool = False) -> None:
        """Install the recording methods on `agent`, after its clocks started: it has `clocks` and `who`.

        Installs `rd, rd_cached, rd_lanes, wr, wr_lanes` as Seam 3 has them; the two stores have a Write effect and
        raise R to W. Also `access_word(word, writes, clk, site)`, `polled(words, site)` and
        `access_atomics(al, offs, width, site)`, whose effects are the caller's: `polled` is `access_word` of several
        words that are read, and may do nothing and return False if one of them has to be looked at more closely, as
        each then is by itself. Word accesses of one address and width never race with each other here
        (unordered SETs are another finding). They are ordered by W, or by `clk` if one is given: those that write
        cannot move, and two waits are never exchanged. Call `access_word` before the acquire or release of the same
        operation: it is ordered by what was known before, and covered by its own release.

        Args:
            watch: called with each box that is written, signals aside, in an allocation that has `guards`.
            lazily: without the methods that `RARE` names: the agent makes those by `rare` if it is asked for them.
        """
        self._clocks[agent.clocks.entry] = agent.clocks
        agent.rd = self._make_rd(agent.clocks, agent.who, cached=False)
        agent.wr = self._make_wr(agent.clocks, agent.who, watch)
        agent.access_word = self._make_access_word(agent.clocks, agent.who)
        for name in () if lazily else RARE:
            setattr(agent, name, self.rare(name, agent, watch))

    def rare(self, name: str, agent: Any, watch: Watch | None = None) -> Callable[..., Any]:
        """A method that few agents need, for `agent`."""
        clocks, who = agent.clocks, agent.who
        if name == "rd_cached":
            return self._make_rd(clocks, who, cached=True)
        if name == "rd_lanes":
            return self._make_rd_lanes(clocks, who)
        if name == "wr_lanes":
            return self._make_wr_lanes(clocks, who, watch)
        if name == "polled":
            return self._make_polled(clocks, who)
        return self._make_access_atomics(clocks, who, watch)

    def host_read(
        self, actor: Actor, al: AllocationLike, off: int, rows: int, stride: int, width: int, site: Any
    ) -> None:
        """A host's or stream's read of a box, ordered by its R."""
        self._clocks[actor.clocks.entry] = actor.clocks
        self._make_rd(actor.clocks, actor.who, cached=False)(al, off, rows, stride, width, None, site)

    def host_write(
        self, actor: Actor, al: AllocationLike, off: int, rows: int, stride: int, width: int, site: Any
    ) -> None:
        """A host's or stream's write of a box, ordered by its W."""
        self._clocks[actor.clocks.entry] = actor.clocks
        self._make_wr(actor.clocks, actor.who)(al, off, rows, stride, width, site)

    def _make_rd(self, ac: AgentClocks, who: Who, cached: bool) -> Callable[..., None]:
        find, make, check, entry = self._records.get, self._record, self._check, ac.entry
        tilings, rd_tile = self._tilings.get, self._make_rd_tile(ac, who, cached)

        def rd(al, off, rows, stride, width, clk, site):
            tiling = tilings(al.lo)
            if tiling is not None and tiling.width == width and tiling.rows == rows:
                at, beside = divmod(off - tiling.first, width) if rows == 1 else tiling.locate(off, stride)
                if not beside:
                    return rd_tile(tiling, at, off, clk, site)
            r = find((al.lo + off, rows, stride, width))
            if r is None:
                r = make(al, off, rows, stride, width)
                if r is None:
                    return None
                if isinstance(r, Tiling):
                    return rd_tile(r, r.locate(off, stride)[0], off, clk, site)
            known = ac.R
            if clk is not None and clk.version > known.version:
                known = clk
            m = known.m
            f = ac.F.m if cached else m
            try:
                e = r.we
                if e != entry:
                    suspect = r.wc > m[e] or r.wc > f[e + 1]
                else:
                    suspect = (cached and r.prev is not None) or (r.wc > ac.last_drain and hidden(r.ws, site))
                if r.ov:
                    over: Any = r.ov
                    over.reads_known = None
                    e = over.find_writer() if over.writer is None else over.writer
                    if e >= 0 and e != entry:
                        if over.latest > m[e] or over.latest > f[e + 1]:
                            suspect = True
                    elif e != NOBODY:
                        for o in over:
                            e = o.we
                            if e != entry:
                                if o.wc > m[e] or o.wc > f[e + 1]:
                                    suspect = True
                            elif (cached and o.prev is not None) or (o.wc > ac.last_drain and hidden(o.ws, site)):
                                suspect = True
                if suspect or r.ow:
                    check(r, False, ac, known, ac.F if cached else known, who, site)
            except IndexError:
                check(r, False, ac, known, ac.F if cached else known, who, site)
            readers = r.rd
            if readers is None:
                r.rd = (entry, ac.counter, site, who)
            elif type(readers) is dict:
                readers[entry] = (entry, ac.counter, site, who)
            else:
                r.rd = noted(readers, (entry, ac.counter, site, who))
            return None

        return rd

    def _make_rd_tile(self, ac: AgentClocks, who: Who, cached: bool) -> Callable[..., None]:
        """As `rd`, of a tile of a `Tiling`."""
        check, entry = self._check_tile, ac.entry

        def rd_tile(tiling, at, off, clk, site):
            page = tiling.pages.get(at >> 4)
            if page is None:
                page = tiling.page(at >> 4)
            place = at & 15
            known = ac.R
            if clk is not None and clk.version > known.version:
                known = clk
            m = known.m
            f = ac.F.m if cached else m
            suspect = False
            last = page[place]
            try:
                if last is not None:
                    e = last[0]
                    if e != entry:
                        suspect = last[1] > m[e] or last[1] > f[e + 1]
                    else:
                        suspect = (cached and at in tiling.prev) or (last[1] > ac.last_drain and hidden(last[2], site))
                for lo, hi, o in tiling.odd:
                    if lo < off + tiling.extent and off < hi:
                        e = o.we
                        if e != entry:
                            if o.wc > m[e] or o.wc > f[e + 1]:
                                suspect = True
                        elif (cached and o.prev is not None) or (o.wc > ac.last_drain and hidden(o.ws, site)):
                            suspect = True
            except IndexError:
                suspect = True
            if suspect:
                check(tiling, at, False, ac, known, ac.F if cached else known, who, site)
            readers = page[16 + place]
            if readers is None:
                page[16 + place] = (entry, ac.counter, site, who)
                if last is None:
                    tiling.count += 1
            else:
                page[16 + place] = noted(readers, (entry, ac.counter, site, who))

        return rd_tile

    def _make_wr(self, ac: AgentClocks, who: Who, watch: Watch | None = None) -> Callable[..., None]:
        find, make, check, entry = self._records.get, self._record, self._check, ac.entry
        tilings, wr_tile = self._tilings.get, self._make_wr_tile(ac, who)

        def wr(al, off, rows, stride, width, site):
            if watch is not None and al.guards:
                watch(ac, who, al, off, rows, stride, width, site)
            tiling = tilings(al.lo)
            if tiling is not None and tiling.width == width and tiling.rows == rows:
                at, beside = divmod(off - tiling.first, width) if rows == 1 else tiling.locate(off, stride)
                if not beside:
                    return wr_tile(tiling, at, off, site)
            r = find((al.lo + off, rows, stride, width))
            if r is None:
                r = make(al, off, rows, stride, width)
                if r is None:
                    return None
                if isinstance(r, Tiling):
                    return wr_tile(r, r.locate(off, stride)[0], off, site)
            known = ac.W
            m = known.m
            try:
                e = r.we
                suspect = e != entry and (r.wc > m[e] or r.wc > m[e + 1])
                if r.rd is not None and unordered(r.rd, entry, m):
                    suspect = True
                for o in r.ov:
                    e = o.we
                    if e != entry and (o.wc > m[e] or o.wc > m[e + 1]):
                        suspect = True
                    over: Any = o.ov
                    over.writer = None
                    if o.rd is not None and over.reads_known is not known:
                        if unordered(o.rd, entry, m):
                            suspect = True
                        else:
                            over.reads_known = known
                if suspect or r.ow:
                    check(r, True, ac, known, known, who, site)
            except IndexError:
                check(r, True, ac, known, known, who, site)
            r.rd = None
            if r.wc and r.we != entry:
                r.prev = r.last_write()
            r.we = entry
            r.wc = ac.counter
            r.ws = site
            r.ww = who
            ac.R = known
            return None

        return wr

    def _make_wr_tile(self, ac: AgentClocks, who: Who) -> Callable[..., None]:
        """As `wr`, of a tile of a `Tiling`."""
        check, entry = self._check_tile, ac.entry

        def wr_tile(tiling, at, off, site):
            page = tiling.pages.get(at >> 4)
            if page is None:
                page = tiling.page(at >> 4)
            place = at & 15
            known = ac.W
            m = known.m
            suspect = False
            last, readers = page[place], page[16 + place]
            try:
                if last is not None:
                    e = last[0]
                    suspect = e != entry and (last[1] > m[e] or last[1] > m[e + 1])
                if readers is not None and unordered(readers, entry, m):
                    suspect = True
                for lo, hi, o in tiling.odd:
                    if lo < off + tiling.extent and off < hi:
                        e = o.we
                        if e != entry and (o.wc > m[e] or o.wc > m[e + 1]):
                            suspect = True
                        if o.rd is not None and unordered(o.rd, entry, m):
                            suspect = True
            except IndexError:
                suspect = True
            if suspect:
                check(tiling, at, True, ac, known, known, who, site)
            if last is None:
                tiling.count += readers is None
            elif last[0] != entry:
                tiling.prev[at] = last
            page[place] = (entry, ac.counter, site, who)
            page[16 + place] = None
            ac.R = known

        return wr_tile

    def _make_rd_lanes(self, ac: AgentClocks, who: Who) -> Callable[..., None]:
        def rd_lanes(al, offs, width, clk, site):
            r = self._lanes(al, offs, width, 0, reads_only=True)
            if r is None:
                return
            known = ac.R
            if clk is not None and clk.version > known.version:
                known = clk
            self._check(r, False, ac, known, ac.F, who, site)
            r.rd = noted(r.rd, (ac.entry, ac.counter, site, who))
            note_read(r)

        return rd_lanes

    def _make_wr_lanes(self, ac: AgentClocks, who: Who, watch: Watch | None) -> Callable[..., None]:
        def wr_lanes(al, offs, width, site):
            if watch is not None and al.guards:
                _watch_lanes(watch, ac, who, al, offs, width, site)
            r = self._lanes(al, offs, width, 0)
            if r is None:
                return
            self._check(r, True, ac, ac.W, ac.W, who, site)
            r.rd = None
            if r.wc and r.we != ac.entry:
                r.prev = r.last_write()
            r.we, r.wc, r.ws, r.ww = ac.entry, ac.counter, site, who
            note_write(r)
            ac.effect()

        return wr_lanes

    def _make_access_word(self, ac: AgentClocks, who: Who) -> Callable[..., None]:
        find, check, entry = self._word_record, self._check, ac.entry

        def access_word(word, writes, clk, site, in_order=False):
            """`in_order`: a signal, which the scalar pipe writes back before it makes any later one."""
            r = word.access
            if r is None or r.shadow is None:
                r = find(word)
            if r.ov or r.ow:
                known = ac.W if clk is None else clk
                suspect, m = bool(r.ow), known.m
                try:
                    for o in r.ov:
                        e = o.we
                        if e != entry:
                            if o.wc > m[e] or o.wc > m[e + 1]:
                                suspect = True
                        elif not writes and o.wc > ac.last_drain and hidden(o.ws, site):
                            suspect = True
                        if writes and o.rd is not None and unordered(o.rd, entry, m):
                            suspect = True
                except IndexError:
                    suspect = True
                if suspect:
                    check(r, writes, ac, known, known, who, site)
            if writes:
                write = (entry, ac.counter, site, who, in_order)
                r.aw = write if r.aw is None else noted(r.aw, write)
            else:
                read = (entry, ac.counter, site, who)
                r.rd = read if r.rd is None else noted(r.rd, read)

        return access_word

    def _make_polled(self, ac: AgentClocks, who: Who) -> Callable[..., bool]:
        find, entry = self._word_record, ac.entry

        def polled(words, site):
            """What is known now is less than after the waits for the earlier of the words: it may be more cautious."""
            found, m = [], ac.W.m
            for word in words:
                r = word.access
                if r is None or r.shadow is None:
                    r = find(word)
                if r.ow:
                    return False
                for o in r.ov:
                    e = o.we
                    if e == entry or e + 1 >= len(m) or o.wc > m[e] or o.wc > m[e + 1]:
                        return False
                found.append(r)
            read = (entry, ac.counter, site, who)
            for r in found:
                r.rd = noted(r.rd, read)
            return True

        return polled

    def _make_access_atomics(self, ac: AgentClocks, who: Who, watch: Watch | None) -> Callable[..., None]:
        def access_atomics(al, offs, width, site):
            if watch is not None and al.guards:
                _watch_lanes(watch, ac, who, al, offs, width, site)
            phases = offs % width
            for phase in np.unique(phases):
                r = self._lanes(al, offs[phases == phase], width, width)
                if r is not None:
                    self._check(r, True, ac, ac.W, ac.W, who, site)
                    r.aw = noted(r.aw, (ac.entry, ac.counter, site, who, False))

        return access_atomics

    # ---- records ---------------------------------------------------------------------------------------------------

    def _record(self, al: AllocationLike, off: int, rows: int, stride: int, width: int) -> Record | Tiling | None:
        """The record of a plain box that was not seen in this spelling, or the tiling that it is from now on a tile of.

        None if it touches nothing.
        """
        spelled = (al.lo + off, rows, stride, width)
        shadow = self._shadow(al)
        if shadow.plain == FEW_PLAIN and shadow.may_be_tiled() and (rows == 1 or stride > width):
            tiling = self._tile(shadow, off, rows, stride, width)
            if tiling is not None:
                return tiling
        if shadow.tiling is None and shadow.index.fits(*spelled):
            return self._keep_tile(Record(shadow, spelled, None))
        box = box_of(*spelled)
        if box is None:
            return None
        key = box.key
        record = self._records.get(key)
        if record is None:
            record = self._keep(Record(shadow, key, box))
        if spelled != key:
            self._records[spelled] = record
            record.shadow.keys.append(spelled)
        return record

    def _lanes(
        self, al: AllocationLike, offs: NDArray[np.int64], width: int, word: int, reads_only: bool = False
    ) -> Record | None:
        """The record of a gather's or scatter's bytes; atomic lanes of width `word` are words."""
        shape = runs_of(np.asarray(offs, np.int64) + al.lo, width)
        if shape is None:
            return None
        if word:
            return self._keep_word(al, (shape.key, word), shape, word)
        key = shape.key
        record = self._records.get(key)
        if record is None:
            kind = GatherRecord if reads_only and isinstance(shape, Runs) else Record
            record = self._keep(kind(self._shadow(al), key, shape))
        if isinstance(record, GatherRecord) and record.quiet and not reads_only:
            record.quiet = False
            self._join(record, record.shadow.index.promote(record))
        return record

    def _keep_word(self, al: AllocationLike, key: tuple, shape: Shape, word: int) -> WordRecord:
        """The record of atomics on a tile, of words `word` bytes wide."""
        record = self._records.get(key)
        if record is None:
            record = self._keep(WordRecord(self._wordy_shadow(al), key, shape, word, True))
        assert isinstance(record, WordRecord)
        return record

    def _word_record(self, word: WordLike) -> WordRecord:
        """The record of a word that does not know it, or whose record was dropped."""
        al, width = word.al, word.width
        key = (al.lo + word.off, width)
        found: Any = self._records.get(key)
        if found is None:
            shadow = self._shadows.get(al.lo)
            loose = shadow.loose if shadow is not None else None
            if shadow is not None and loose and shadow.takes_loose(key, width):
                found = self._records[key] = WordRecord(shadow, key, None, width, False)
                found.ov = shadow.few or ()
                loose.append(found)
                shadow.records.append(found)
            else:
                found = WordRecord(self._wordy_shadow(al), key, None, width, False)
                self._keep_signal(found)
        word.access = found
        return found

    def _wordy_shadow(self, al: AllocationLike) -> Shadow:
        shadow = self._shadow(al)
        if shadow.tiling is not None:
            self._untile(shadow)
        return shadow

    def _keep_signal(self, record: WordRecord) -> None:
        """Store a word that is no tile, unlinked if that is possible."""
        if record.shadow.keep_loose(record):
            self._records[record.key] = record
        else:
            self._keep(record)

    def _shadow(self, al: AllocationLike) -> Shadow:
        shadow = self._shadows.get(al.lo)
        if shadow is None:
            shadow = self._shadows[al.lo] = Shadow(al)
            self._fresh.append(shadow)
        return shadow

    def _keep_tile(self, record: Record) -> Record:
        """`_keep` for one more tile of the tiling of all plain records: it overlaps none of them."""
        shadow = record.shadow
        if shadow.loose:
            self._link_loose(shadow)
        self._records[record.key] = record
        shadow.records.append(record)
        shadow.note_plain(record)
        shadow.index.list_tile(record)
        if shadow.has_words():
            self._join(record, shadow.words.overlapping(record.shape))
        return record

    def _keep(self, record: R) -> R:
        """Store a new record in its shadow."""
        shadow = record.shadow
        if shadow.loose:
            self._link_loose(shadow)
        if shadow.tiling is not None:
            if shadow.plain < FEW_PLAIN:
                shadow.tiling.add_odd(record)
                record.ow = UNLINKED
            else:
                self._untile(shadow)
        self._records[record.key] = record
        shadow.records.append(record)
        if not record.word or record.tile:
            shadow.note_plain(record)
            shadow.tiles += record.tile
        self._link(record)
        if shadow.index.tiled and not record.word:
            record.compact()
        return record

    def _tile(self, shadow: Shadow, off: int, rows: int, stride: int, width: int) -> Tiling | None:
        """Of few records and a new box, make a tiling if at least half of them are tiles beside it."""
        al, records = shadow.allocation, shadow.records
        grid = Tiling(shadow, off, rows, stride, width)
        boxes = {id(r): r.key for r in records if isinstance(r.shape, Box)}
        tiles = {at for at, (lo, *box) in boxes.items() if grid.find(lo - al.lo, *box) is not None}
        if 2 * len(tiles) < FEW_PLAIN:
            return None
        self._forget(shadow)
        del self._shadows[al.lo]
        self._refill(al, [r for r in records if id(r) not in tiles], grid)
        for record in records:
            if id(record) in tiles:
                grid.take(record)
        shadow.dissolve()
        return grid

    def _untile(self, shadow: Shadow) -> None:
        """Give every tile a record of its own: other accesses have come."""
        tiling, shadow.tiling = shadow.tiling, None
        assert tiling is not None
        del self._tilings[shadow.allocation.lo]
        for _, _, odd in tiling.odd:
            odd.ow = ()
        for record in tiling.records():
            self._keep(record)

    def _link_loose(self, shadow: Shadow) -> None:
        """Somebody wants to know which words plain accesses overlap."""
        loose, shadow.loose = shadow.loose, []
        for plain in shadow.few or ():
            plain.ow = ()
        for record in loose:
            record.ov = ()
            self._link(record)

    def _link(self, record: Record) -> None:
        """Find what overlaps a new record, and let both sides know."""
        shadow, shape = record.shadow, record.shape
        if record.word:
            found = shadow.words.add(record, distinct=not record.tile)
            if shadow.plain:
                found = found + shadow.index.overlapping(shape, read_only=True)
        else:
            found = shadow.index.add(record, record.quiet, distinct=True)
            if shadow.has_words():
                found = found + shadow.words.overlapping(shape)
        if found:
            self._join(record, found)

    def _join(self, record: Record, found: list[Record]) -> None:
        for other in found:
            if same_words(record, other):
                continue
            for one, two in ((record, other), (other, record)):
                if two.word:
                    one.ow = with_other(one.ow, two)
                else:
                    one.ov = with_other(one.ov, two)

    def generation(self, al: AllocationLike) -> tuple[int, int]:
        """Changes when `plain_records` of `al` may give other records."""
        shadow = self._shadows.get(al.lo)
        return (-1, 0) if shadow is None else (shadow.number, shadow.plain)

    def few_plain(self, al: AllocationLike) -> list[Record] | None:
        """All records of accesses that are no signals, while there are few; None if there are many."""
        shadow = self._shadows.get(al.lo)
        if shadow is None:
            return []
        if shadow.tiling is not None:
            self._untile(shadow)
        return shadow.few

    def plain_records(self, al: AllocationLike, lo: int, hi: int) -> list[Record]:
        """Records of accesses that are no signals (plain ones, atomics on tiles) and touch bytes `[lo, hi)` of `al`."""
        shadow, box = self._shadows.get(al.lo), box_of(al.lo + lo, 1, 0, hi - lo)
        if shadow is None or box is None or not shadow.plain:
            return []
        found = shadow.index.overlapping(box)
        return found + [word for word in shadow.words.overlapping(box) if word.tile] if shadow.tiles else found

    def drop(self, al: AllocationLike) -> None:
        """Forget an allocation that was freed; its addresses may be given out again."""
        shadow = self._shadows.pop(al.lo, None)
        if shadow is None:
            return
        self._forget(shadow)
        self._tilings.pop(al.lo, None)
        shadow.dissolve()

    def close(self) -> None:
        """Forget everything now, and not when a garbage collection comes round."""
        self._records.clear()
        self._tilings.clear()
        for shadow in self._shadows.values():
            shadow.dissolve()
        self._shadows.clear()
        self._fresh.clear()

    def _forget(self, shadow: Shadow) -> None:
        for record in shadow.records:
            self._records.pop(record.key, None)
        for key in shadow.keys:
            self._records.pop(key, None)

    def prune(self, clocks: Iterable[AgentClocks]) -> int:
        """Drop records that no later access can race with; returns how many were dropped.

        All, if there are many; else those of allocations that few accesses have touched since the last time, such as
        what a host writes before a launch: nobody then compares with them.

        Args:
            clocks: of everybody who may still access memory or start somebody who does: running agents, all streams,
                all hosts. Later agents start from a stream's clock.
        """
        many = self._count() >= self._prune_at
        if not many and not self._fresh:
            return 0
        alive = list(clocks)
        if not alive:
            return 0
        floor = floor_of(alive)
        if not many:
            return self._drop_written_before(floor.data)
        dropped = self._rebuild(floor)
        self._prune_at = max(_PRUNE_FROM_RECORDS, 2 * self._count())
        return dropped

    def _drop_written_before(self, floor: memoryview) -> int:
        looked_at, self._fresh = self._fresh, []
        dropped = 0
        for shadow in looked_at:
            gone = self._shadows.get(shadow.allocation.lo) is not shadow
            if gone or shadow.tiling is not None or len(shadow.records) > FEW_PLAIN:
                continue
            if all(record.settled(floor) for record in shadow.records):
                dropped += len(shadow.records)
                self.drop(shadow.allocation)
            elif shadow.looks < _LOOKS:
                shadow.looks += 1
                self._fresh.append(shadow)
        return dropped

    def _count(self) -> int:
        """Records, and tiles by the room that they take."""
        return len(self._records) + sum(tiling.count for tiling in self._tilings.values()) // _TILES_A_RECORD

    def _rebuild(self, floor: NDArray[np.int32]) -> int:
        dropped, known = 0, floor.data
        for base, shadow in list(self._shadows.items()):
            tiling = shadow.tiling
            if tiling is not None:
                dropped += tiling.forget_settled(known)
            kept = [record for record in shadow.records if not record.settled(known)]
            few = _WORTH_REBUILDING * (len(shadow.records) - len(kept)) < len(shadow.records) or not shadow.records
            if few and (tiling is None or tiling.count):
                continue
            dropped += len(shadow.records) - len(kept)
            self._forget(shadow)
            del self._shadows[base]
            self._tilings.pop(base, None)
            if tiling is not None and not tiling.count:
                tiling = None
            if kept or tiling is not None:
                self._refill(shadow.allocation, kept, tiling)
            shadow.dissolve()
        return dropped

    def _refill(self, al: AllocationLike, kept: list[Record], tiling: Tiling | None) -> None:
        """A shadow of these records, and of what they are odd beside."""
        shadow = self._shadow(al)
        if tiling is not None:
            shadow.tiling, tiling.shadow = tiling, shadow
            self._tilings[al.lo] = tiling
            tiling.odd.clear()
        for record in kept:
            record.shadow, record.ov, record.ow = shadow, (), ()
        signals = [record for record in kept if isinstance(record, WordRecord) and not record.tile]
        for record in [record for record in kept if not record.word or record.tile] if signals else kept:
            self._keep(record)
        for record in signals:
            self._keep_signal(record)

    # ---- checking --------------------------------------------------------------------------------------------------

    def _check(self, r: Record, writes: bool, ac: AgentClocks, seed: Clock, ascend: Clock, who: Who, site: Any) -> None:
        """The complete check of an access, clock by clock; reports what it finds."""
        if r.shadow.loose:
            self._link_loose(r.shadow)
        for clock in (seed, ascend):
            if len(clock.vec) < 2 * ac.space.capacity_slots:
                ac.grow()
                clock.grow(ac.space)
        near = r.ow
        if near is UNLINKED:
            assert r.shadow.tiling is not None
            near = r.shadow.tiling.suspects(r.shape, writes, ac.entry, ac.last_drain, seed.m, ascend.m)
        for other in self._earlier(r, near, writes, ac.entry if ascend is not seed else None):
            if other.entry == ac.entry:
                self._check_own(other, writes, ac, who, site, r)
                continue
            in_seed = other.stamp > seed.m[other.entry]
            if in_seed or (other.stamp > ascend.m[other.entry + 1] and not other.complete):
                mine = Access(ac.entry, ac.counter, site, who, writes, r.shape, r.word)
                self._report(Conflict(other, mine, in_seed, ac, seed, ascend, r.shadow.allocation))

    def _check_tile(
        self, tiling: Tiling, at: int, writes: bool, ac: AgentClocks, seed: Clock, ascend: Clock, who: Who, site: Any
    ) -> None:
        self._check(tiling.record(at), writes, ac, seed, ascend, who, site)

    def _earlier(self, r: Record, near: Iterable[Record], writes: bool, cached: int | None) -> Iterator[Access]:
        """What may conflict with an access to `r`: its own words never do, everything else that overlaps may.

        `near` are those that are not in `r.ov`.
        `cached` is the agent of a load through the data cache: its own store does not make it see what came before.
        """
        for record in (*(() if r.word else (r,)), *r.ov, *near):
            yield from record.writes()
            if writes:
                yield from record.reads()
            if record.prev is not None and record.we == cached:
                yield record.prev

    def _check_own(self, other: Access, writes: bool, ac: AgentClocks, who: Who, site: Any, r: Record) -> None:
        """Own store, then own load: not ordered under `ascend` if the compiler cannot see that they alias."""
        if writes or not other.writes or other.stamp <= ac.last_drain:
            return
        if hidden(other.site, site):
            mine = Access(ac.entry, ac.counter, site, who, False, r.shape)
            self._report(Conflict(other, mine, False, ac, ac.R, ac.R, r.shadow.allocation))

    def _report(self, conflict: Conflict) -> None:
        self._races_met += 1
        first, second = conflict.first, conflict.second
        placed = first.site is not None and second.site is not None
        where = None if placed else (conflict.allocation.lo, first.entry, second.entry)
        key = (id(first.site), id(second.site), conflict.in_seed, first.writes, second.writes, conflict.own, where)
        met = self._met.get(key)
        if met is None:
            finding = race_report.finding_of(conflict, self._clocks.get(first.entry), self.facts)
            met = self._met[key] = (finding, first.site, second.site)
        self._sink(met[0])

    @property
    def races_met(self) -> int:
        """How often an access raced."""
        return self._races_met

    def stats(self) -> DetectorStats:
        """Sizes and counts of now."""
        records = [record for shadow in self._shadows.values() for record in shadow.records]
        return DetectorStats(
            records=len(records) + sum(tiling.count for tiling in self._tilings.values()),
            allocations=len(self._shadows),
            overlaps=sum(map(count_overlaps, records)),
            irregular=sum(isinstance(record._shape, Runs) for record in records),
            races_met=self._races_met,
            shadow_bytes=sum(map(size_bytes_of, records))
            + sum(shadow.size_bytes() for shadow in self._shadows.values())
            + sum(tiling.size_bytes() for tiling in self._tilings.values())
            + sys.getsizeof(self._records),
        )


def _watch_lanes(
    watch: Watch, ac: AgentClocks, who: Who, al: Any, offs: NDArray[np.int64], width: int, site: Any
) -> None:
    for off in offs.tolist():
        watch(ac, who, al, off, 1, 0, width, site)


__all__ = ["Actor", "AllocationLike", "Detector", "DetectorStats", "Record", "Who"]
