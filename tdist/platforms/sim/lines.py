"""64-byte lines that a signal SET or `_p` writes back, against plain writes to their other bytes.

The write-back of a line can undo any unordered write to other bytes of it. Words see to each other (`words.py`); here
are stores and host writes: those that came before a SET are asked from the race detector, those that come after are
checked when they happen. Own stores are in program order.

Source: docs/ordering-model.md, "Signals"; the ACLSHMEM device headers (64-byte rule).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdist.findings import Finding, Party, Severity, make
from tdist.findings.kinds import OWN_LINES
from tdist.platforms.sim.clocks import AgentClocks
from tdist.platforms.sim.memory import LINE_BYTES, AddressSpace, Allocation
from tdist.platforms.sim.race_report import tensor_name
from tdist.platforms.sim.records import entries
from tdist.platforms.sim.regions import box_of, overlap

if TYPE_CHECKING:
    from tdist.platforms.sim.detector import Detector
    from tdist.platforms.sim.words import Record, Word


@dataclass(slots=True, eq=False)
class GuardedSpan:
    """Bytes `[lo, hi)` of `al` that lie in the line of `word`, which reaches into other memory too."""

    al: Allocation
    lo: int
    hi: int
    word: Word

    def words(self) -> Iterable[Word]:
        """Whose write-back may touch the span."""
        return (self.word,)

    def span_of(self, word: Word) -> tuple[int, int]:
        """Bytes of `al` that the write-back of `word` touches."""
        return self.lo, self.hi


@dataclass(slots=True, eq=False)
class OwnLines:
    """The lines of `al` that lie in it as a whole and in which signals land."""

    al: Allocation

    def words(self) -> Iterable[Word]:
        """Whose write-back may touch the allocation."""
        return [word for word in self.al.sync.values() if word.guards is self]

    def span_of(self, word: Word) -> tuple[int, int]:
        """Bytes of `al` that the write-back of `word` touches."""
        start = word.address // LINE_BYTES * LINE_BYTES - self.al.lo
        return start, start + LINE_BYTES


def _meets(off: int, rows: int, stride: int, width: int, lo: int, hi: int) -> bool:
    """Whether `rows` runs of `width` bytes from `off`, `stride` apart, touch `[lo, hi)`."""
    if stride < 0:
        off, stride = off + (rows - 1) * stride, -stride
    if rows == 1 or stride == 0:
        return off < hi and off + width > lo
    first = max(0, (lo - off - width) // stride + 1)
    return first < rows and off + first * stride < hi


class LineGuard:
    """Finds plain writes that a signal's write-back can undo.

    Args:
        report: takes findings.
        detector: knows earlier plain writes.
        memory: knows which allocations a line reaches into.
    """

    def __init__(self, report: Callable[[Finding], object], detector: Detector, memory: AddressSpace) -> None:
        self.report = report
        self.detector = detector
        self.memory = memory
        self._watched: dict[int, list[Word]] = {}
        self._near: dict[tuple[int, int], tuple[Any, list[Any]]] = {}

    def signalled(self, clocks: AgentClocks, word: Word, record: Record) -> None:
        """A SET of `word`: check the plain writes before it, and watch its line from now on."""
        parts = word.guards
        if parts is None:
            parts = word.guards = self._watch(word)
        entry, m = clocks.entry, clocks.W.m
        for part in (parts,) if isinstance(parts, OwnLines) else parts:
            few = self.detector.few_plain(part.al)
            if few is None:
                self._check_plain(clocks, word, record, part, self._look(part, word))
                continue
            for plain in few:
                e = plain.we
                if plain.aw is not None or (e != entry and (e >= len(m) or m[e] < plain.wc)):
                    self._check_plain(clocks, word, record, part, [r for r in few if _beside(r, part, word)])
                    break

    def _check_plain(
        self, clocks: AgentClocks, word: Word, record: Record, part: OwnLines | GuardedSpan, beside: Iterable[Any]
    ) -> None:
        """A SET against earlier plain accesses beside the word in its line."""
        for plain in beside:
            if plain.ww is not None and plain.we != clocks.entry and not _knows(clocks, plain.we // 2, plain.wc):
                self._report(word, record, plain.ww, plain.ws, part.al, first_plain=True)
            self._after_atomics(clocks, word, record, plain, part.al)

    def _after_atomics(self, clocks: AgentClocks, word: Word, record: Record, tile: Any, al: Allocation) -> None:
        """Atomics on a tile have one stamp a writer."""
        for entry, stamp, site, who, _ in entries(tile.aw):
            if entry != clocks.entry and not _knows(clocks, entry // 2, stamp):
                self._report(word, record, who, site, al, first_plain=True)

    def written(
        self, clocks: AgentClocks, who: Any, al: Allocation, off: int, rows: int, stride: int, width: int, site: Any
    ) -> None:
        """A plain write of a box to an allocation with watched lines."""
        for part in al.guards:
            for word in part.words():
                for record in word.sets.values():
                    unordered = record.slot != clocks.slot and not _knows(clocks, record.slot, record.stamp)
                    if unordered and _hits(part, word, off, rows, stride, width):
                        self._report(word, record, who, site, al, first_plain=False)

    def _watch(self, word: Word) -> OwnLines | list[GuardedSpan]:
        al = word.al
        start = (al.lo + word.off) // LINE_BYTES * LINE_BYTES
        if start < al.lo or start + LINE_BYTES > al.hi:
            self._watched.setdefault(start, []).append(word)
            return [self._span(word, near, start) for near in self.memory.between(start, start + LINE_BYTES)]
        own = al.guards[0] if al.guards else None  # nobody else has a part of the line
        if not isinstance(own, OwnLines):
            own = OwnLines(al)
            al.guards.insert(0, own)
        return own

    def _span(self, word: Word, al: Allocation, start: int) -> GuardedSpan:
        span = GuardedSpan(al, max(start, al.lo) - al.lo, min(start + LINE_BYTES, al.hi) - al.lo, word)
        al.guards.append(span)
        return span

    def appeared(self, al: Allocation) -> None:
        """A new allocation: its first and last line may be those of words that are watched already."""
        for start in {al.lo // LINE_BYTES * LINE_BYTES, (al.hi - 1) // LINE_BYTES * LINE_BYTES}:
            for word in self._watched.get(start, ()):
                if isinstance(word.guards, list):
                    word.guards.append(self._span(word, al, start))

    def gone(self, al: Allocation) -> None:
        """An allocation was freed: words that live on watch it no longer."""
        for part in al.guards:
            for word in part.words():
                if isinstance(word.guards, list):
                    word.guards = [other for other in word.guards if other is not part]
                self._near.pop((al.lo, word.address), None)
        al.guards.clear()

    def forget(self, word: Word) -> None:
        """A word is no more: its line is not watched for its sake."""
        parts, word.guards = word.guards, None
        if isinstance(parts, OwnLines):
            self._near.pop((parts.al.lo, word.address), None)
        else:
            for part in parts or ():
                part.al.guards.remove(part)
                self._near.pop((part.al.lo, word.address), None)
        start = word.address // LINE_BYTES * LINE_BYTES
        if word in self._watched.get(start, ()):
            self._watched[start].remove(word)
            if not self._watched[start]:
                del self._watched[start]

    def _look(self, part: OwnLines | GuardedSpan, word: Word) -> list[Any]:
        """The detector's records of plain accesses beside the word in its line, which it keeps in an index."""
        generation, key = self.detector.generation(part.al), (part.al.lo, word.address)
        found = self._near.get(key)
        if found is None or found[0] != generation:
            records = self.detector.plain_records(part.al, *part.span_of(word))
            found = self._near[key] = generation, [r for r in records if _beside(r, part, word)]
        return found[1]

    def _report(self, word: Word, record: Record, who: Any, site: Any, al: Allocation, first_plain: bool) -> None:
        other = tensor_name(al, getattr(site, "arg", None))
        signal = _party(record.who, record.site, word.title, f"element {word.index} (byte {word.off})")
        plain = _party(who, site, other, "other bytes of its 64-byte line")
        self.report(
            make(
                "line-sharing",
                [plain, signal] if first_plain else [signal, plain],
                severity=Severity.ERROR,
                expected=f"no other write in the 64-byte line of {word.place()}",
                got="an unordered write to other bytes of the line, which the signal's write-back can undo",
                cure=None if al is word.al else OWN_LINES,
                tensor=tensors_of(word.title, other, al is word.al),
                profile="seed",
            )
        )


def tensors_of(signalled: str, other: str, same: bool) -> str:
    """What the title of a shared line calls the memory that both writers touch; `same`: it is one allocation."""
    return signalled if same else f"{signalled} and of its neighbour {other}"


def _knows(clocks: AgentClocks, slot: int, stamp: int) -> bool:
    known = clocks.W.m
    return 2 * slot < len(known) and known[2 * slot] >= stamp


def _hits(part: OwnLines | GuardedSpan, word: Word, off: int, rows: int, stride: int, width: int) -> bool:
    """Whether a box of the part's allocation touches the line but not the word itself (that would be a race)."""
    lo, hi = part.span_of(word)
    at = word.address - part.al.lo
    return _meets(off, rows, stride, width, lo, hi) and not _meets(off, rows, stride, width, at, at + word.width)


def _beside(plain: Any, part: OwnLines | GuardedSpan, word: Word) -> bool:
    """The same of a record's bytes."""
    lo, hi = part.span_of(word)
    line, own = box_of(part.al.lo + lo, 1, 0, hi - lo), box_of(word.address, 1, 0, word.width)
    assert line is not None and own is not None
    return overlap(plain.shape, line) and not overlap(plain.shape, own)


def _party(who: Any, site: Any, tensor: str, where: str) -> Party:
    return Party(
        who.rank,
        who.launch,
        who.program,
        who.core,
        getattr(site, "file", None),
        getattr(site, "line", None),
        getattr(site, "op", "write"),
        tensor,
        where,
    )
