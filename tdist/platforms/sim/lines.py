"""64-byte lines that a signal SET or `_p` writes back, against plain writes to their other bytes.

The write-back of a line can undo any unordered write to other bytes of it. Words see to each other (`words.py`); here
are stores and host writes: those that came before a SET are asked from the race detector, those that come after are
checked when they happen. Own stores are in program order.

Source: docs/ordering-model.md, "Signals"; the ACLSHMEM device headers (64-byte rule).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tdist.findings import Finding, Party, Severity, make
from tdist.platforms.sim.clocks import AgentClocks
from tdist.platforms.sim.detector import entries
from tdist.platforms.sim.memory import LINE_BYTES, AddressSpace, Allocation
from tdist.platforms.sim.race_report import tensor_name

if TYPE_CHECKING:
    from tdist.platforms.sim.detector import Detector
    from tdist.platforms.sim.words import Record, Word


@dataclass(slots=True, eq=False)
class GuardedSpan:
    """Bytes `[lo, hi)` of `al` that lie in the line of `word`; `near` are the detector's records there."""

    al: Allocation
    lo: int
    hi: int
    word: Word
    generation: Any = None
    near: list[Any] = field(default_factory=list)

    def hit_by(self, off: int, rows: int, stride: int, width: int) -> bool:
        """Whether a box touches the line but not the word itself (that would be a race)."""
        word_lo = self.word.address - self.al.lo
        return _meets(off, rows, stride, width, self.lo, self.hi) and not _meets(
            off, rows, stride, width, word_lo, word_lo + self.word.width
        )


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

    def signalled(self, clocks: AgentClocks, word: Word, record: Record) -> None:
        """A SET of `word`: check the plain writes before it, and watch its line from now on."""
        if word.guards is None:
            word.guards = self._watch(word)
        entry, current = clocks.entry, self.detector.generation
        for span in word.guards:
            for plain in span.near if current(span.al) == span.generation else self._look(span):
                if plain.ww is not None and plain.we != entry and not _knows(clocks, plain.we // 2, plain.wc):
                    self._report(word, record, plain.ww, plain.ws, span, first_plain=True)
                if plain.aw is not None:
                    self._after_atomics(clocks, word, record, plain, span)

    def _after_atomics(self, clocks: AgentClocks, word: Word, record: Record, tile: Any, span: GuardedSpan) -> None:
        """Atomics on a tile have one stamp a writer."""
        for entry, stamp, site, who, _ in entries(tile.aw):
            if entry != clocks.entry and not _knows(clocks, entry // 2, stamp):
                self._report(word, record, who, site, span, first_plain=True)

    def written(
        self, clocks: AgentClocks, who: Any, al: Allocation, off: int, rows: int, stride: int, width: int, site: Any
    ) -> None:
        """A plain write of a box to an allocation with watched lines."""
        for span in al.guards:
            if not span.hit_by(off, rows, stride, width):
                continue
            for record in span.word.sets.values():
                if record.slot != clocks.slot and not _knows(clocks, record.slot, record.stamp):
                    self._report(span.word, record, who, site, span, first_plain=False)

    def _watch(self, word: Word) -> list[GuardedSpan]:
        start = word.address // LINE_BYTES * LINE_BYTES
        self._watched.setdefault(start, []).append(word)
        end, own = start + LINE_BYTES, word.al
        inside = own.lo <= start and end <= own.hi  # then nobody else has a part of the line
        return [self._span(word, al, start) for al in ((own,) if inside else self.memory.between(start, end))]

    def _span(self, word: Word, al: Allocation, start: int) -> GuardedSpan:
        span = GuardedSpan(al, max(start, al.lo) - al.lo, min(start + LINE_BYTES, al.hi) - al.lo, word)
        al.guards.append(span)
        return span

    def appeared(self, al: Allocation) -> None:
        """A new allocation: its first and last line may be those of words that are watched already."""
        for start in {al.lo // LINE_BYTES * LINE_BYTES, (al.hi - 1) // LINE_BYTES * LINE_BYTES}:
            for word in self._watched.get(start, ()):
                if word.guards is not None:
                    word.guards.append(self._span(word, al, start))

    def gone(self, al: Allocation) -> None:
        """An allocation was freed: words that live on watch it no longer."""
        for span in al.guards:
            if span.word.guards is not None:
                span.word.guards.remove(span)
        al.guards.clear()

    def forget(self, word: Word) -> None:
        """A word is no more: its line is not watched for its sake."""
        if word.guards is None:
            return
        for span in word.guards:
            span.al.guards.remove(span)
        word.guards = None
        start = word.address // LINE_BYTES * LINE_BYTES
        self._watched[start].remove(word)
        if not self._watched[start]:
            del self._watched[start]

    def _look(self, span: GuardedSpan) -> list[Any]:
        """The detector's records of plain accesses in the line, but for those that touch the word (those are races)."""
        span.generation = self.detector.generation(span.al)
        records = self.detector.plain_records(span.al, span.lo, span.hi)
        if records:
            word_lo, word_hi = span.word.address, span.word.address + span.word.width
            records = [r for r in records if not _shape_meets(r.shape, word_lo, word_hi)]
        span.near = records
        return records

    def _report(self, word: Word, record: Record, who: Any, site: Any, span: GuardedSpan, first_plain: bool) -> None:
        signal = _party(record.who, record.site, word.title, f"element {word.index} (byte {word.off})")
        plain = _party(who, site, tensor_name(span.al, getattr(site, "arg", None)), "other bytes of its 64-byte line")
        self.report(
            make(
                "line-sharing",
                [plain, signal] if first_plain else [signal, plain],
                severity=Severity.ERROR,
                expected=f"no other write in the 64-byte line of {word.place()}",
                got="an unordered write to other bytes of the line, which the signal's write-back can undo",
                tensor=word.title,
                profile="seed",
            )
        )


def _knows(clocks: AgentClocks, slot: int, stamp: int) -> bool:
    known = clocks.W.m
    return 2 * slot < len(known) and known[2 * slot] >= stamp


def _shape_meets(shape: Any, lo: int, hi: int) -> bool:
    """Whether a record's bytes (a box, or sorted runs) touch `[lo, hi)`."""
    if hasattr(shape, "rows"):
        return _meets(shape.lo, shape.rows, shape.stride, shape.width, lo, hi)
    return bool(((shape.starts < hi) & (shape.ends > lo)).any())


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
