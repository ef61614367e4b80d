"""The detector against a brute-force oracle: byte sets and explicit sets of known accesses, no clocks, no regions.

The oracle keeps, for each agent and profile, the *set of accesses* that it is ordered after, and for each byte every
access ever made. A report must be a true race; a race at a byte that has not raced before must be reported.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tdist.findings import Finding
from tdist.platforms.sim import detector, records
from tdist.platforms.sim.clocks import AgentClocks, Clock, SlotSpace, WordClock, join_all, join_words
from tdist.platforms.sim.detector import Detector
from tdist.platforms.sim.race_report import Who

AGENTS = 4
CHANNELS = 3
MEMORY_BYTES = 240
PROFILES = ("seed", "ascend")


@dataclass
class Made:
    """One access, as the oracle sees it: `word` > 0 for words and atomics of that width, `phase` their alignment."""

    number: int
    agent: int
    writes: bool
    touched: frozenset[int]
    word: int = 0
    phase: int = 0

    def conflicts(self, other: Made) -> bool:
        if self.agent == other.agent or not (self.writes or other.writes):
            return False
        return not (self.word and (self.word, self.phase) == (other.word, other.phase))


@dataclass
class Known:
    """What an oracle agent is ordered after, by number of access."""

    W: dict[str, frozenset] = field(default_factory=lambda: {p: frozenset() for p in PROFILES})
    R: dict[str, frozenset] = field(default_factory=lambda: {p: frozenset() for p in PROFILES})
    F: frozenset = frozenset()
    own: frozenset = frozenset()
    drained: frozenset = frozenset()

    def export(self, drains: bool) -> dict[str, frozenset]:
        if drains:
            self.drained = self.own
        self.R = self.W
        return {"seed": self.W["seed"] | self.own, "ascend": self.W["ascend"] | self.drained}

    def acquire(self, word: dict[str, frozenset]) -> None:
        self.W = {p: self.W[p] | word[p] for p in PROFILES}


class Pair:
    """The product and the oracle, driven by the same operations."""

    def __init__(self, slots: int = 1, heals: bool = False) -> None:
        self.heals = heals
        self.start: tuple[WordClock, dict[str, frozenset]] | None = None
        self.findings: list[Finding] = []
        self.detector = Detector(self.findings.append)
        self.space = SlotSpace(slots)
        self.memory = SimpleNamespace(rank=0, lo=4096, hi=4096 + MEMORY_BYTES, name="buf", symmetric=True)
        self.agents: list[SimpleNamespace] = []
        self.known: list[Known] = []
        self.tokens: list[tuple[Clock, dict[str, frozenset]] | None] = []
        self.words: list[WordClock | None] = [None] * CHANNELS
        self.word_sets: list[dict[str, frozenset]] = [dict.fromkeys(PROFILES, frozenset()) for _ in range(CHANNELS)]
        self.made: list[Made] = []
        self.sync: dict[tuple[int, int], SimpleNamespace] = {}
        self.tainted: dict[str, set[int]] = {p: set() for p in PROFILES}

    def agent(self, index: int) -> SimpleNamespace:
        """Agents join late, so that the vectors of earlier ones are too short for them."""
        while len(self.agents) <= index:
            program = len(self.agents)
            clocks = AgentClocks(self.space, self.space.slot((0, program, 0)))
            agent = SimpleNamespace(clocks=clocks, who=Who(0, 0, program))
            known = Known()
            if self.start is not None:
                word, sets = self.start
                clocks.start(word, clocks.slot)
                known = Known(W=sets, R=sets, F=sets["ascend"])
            self.detector.bind(agent)
            self.agents.append(agent)
            self.known.append(known)
            self.tokens.append(None)
        return self.agents[index]

    # ---- synchronisation

    def release(self, a: int, channel: int, drains: bool, add: bool) -> None:
        word = self.agent(a).clocks.release(drains)
        known = self.known[a].export(drains)
        if add:
            before = self.word_sets[channel]
            self.words[channel] = join_words(self.words[channel], word)
            self.word_sets[channel] = {p: known[p] | before[p] for p in PROFILES}
        else:
            self.words[channel], self.word_sets[channel] = word, known

    def acquire(self, a: int, channel: int, keep: bool, effect: bool) -> None:
        token = self.agent(a).clocks.acquire(self.words[channel])
        self.known[a].acquire(self.word_sets[channel])
        if keep:
            self.tokens[a] = (token, self.known[a].W)
        if effect:
            self.agents[a].clocks.effect()
            self.known[a].R = self.known[a].W

    def drain(self, a: int, flush: bool) -> None:
        self.agent(a).clocks.drain(flush)
        known = self.known[a]
        known.drained, known.R = known.own, known.W
        if flush:
            known.F = known.W["ascend"]

    def barrier(self, count: int, drains: bool) -> None:
        members = [self.agent(a).clocks for a in range(count)]
        join_all(members, drains)
        exports = [self.known[a].export(drains) for a in range(count)]
        joined = {p: frozenset().union(*(export[p] for export in exports)) for p in PROFILES}
        for a in range(count):
            self.known[a].W = self.known[a].R = joined

    def send(self, a: int, b: int, fenced: bool, add: bool, keep: bool, effect: bool, flush: bool) -> None:
        """A message from one agent to another, in all the variants that matter."""
        if fenced:
            self.drain(a, False)
        self.release(a, 0, False, add)
        self.acquire(b, 0, keep, effect)
        if flush:
            self.drain(b, True)

    # ---- accesses

    def site(self, op: str) -> SimpleNamespace:
        return SimpleNamespace(file="k.py", line=len(self.made), op=op, arg="x")

    def box(self, a: int, box: tuple, writes: bool, token: bool, cached: bool) -> None:
        agent, mem, site = self.agent(a), self.memory, self.site("store" if writes else "load")
        off, rows, stride, width = box
        touched = frozenset(off + i * stride + k for i in range(rows) for k in range(width))
        clk = self.tokens[a] if token else None
        call = agent.wr if writes else (agent.rd_cached if cached else agent.rd)
        if writes:
            self._check(a, Made(0, a, True, touched), lambda: call(mem, *box, site))
            self.known[a].R = self.known[a].W
        else:
            self._check(a, Made(0, a, False, touched), lambda: call(mem, *box, clk and clk[0], site), clk, cached)

    def lanes(self, a: int, offs: list[int], width: int, kind: str, token: bool) -> None:
        agent, mem, site = self.agent(a), self.memory, self.site(kind)
        array = np.array(offs, np.int64)
        touched = frozenset(off + k for off in offs for k in range(width))
        if kind == "gather":
            clk = self.tokens[a] if token else None
            call = lambda: agent.rd_lanes(mem, array, width, clk and clk[0], site)  # noqa: E731
            self._check(a, Made(0, a, False, touched), call, clk, cached=True)
        else:
            self._check(a, Made(0, a, True, touched), lambda: agent.wr_lanes(mem, array, width, site))
            self.known[a].R = self.known[a].W

    def atomics(self, a: int, first: int, count: int, width: int) -> None:
        agent, site = self.agent(a), self.site("atomic")
        offs = first + width * np.arange(count, dtype=np.int64)
        touched = frozenset(range(first, first + width * count))
        phase = (self.memory.lo + first) % width
        made = Made(0, a, True, touched, width, phase)
        self._check(a, made, lambda: agent.access_atomics(self.memory, offs, width, site))

    def word(self, a: int, off: int, width: int, writes: bool) -> None:
        agent, site = self.agent(a), self.site("notify" if writes else "wait")
        made = Made(0, a, writes, frozenset(range(off, off + width)), width, (self.memory.lo + off) % width)
        word = self.sync.setdefault((off, width), SimpleNamespace(al=self.memory, off=off, width=width, access=None))

        def call() -> None:
            if writes or not agent.polled([word], site):
                agent.access_word(word, writes, None, site)

        self._check(a, made, call, by_w=True)

    def _check(self, a, made, call, token=None, cached=False, by_w=False) -> None:
        made.number = len(self.made)
        before = len(self.findings)
        call()
        reported = self.findings[before:]
        known = self._ordering(a, made.writes or by_w, token, cached)
        polled = frozenset(m.number for m in self.made if m.word and not m.writes)
        # A poll that returned is complete whenever it is ordered.
        known = {"seed": known["seed"], "ascend": known["ascend"] | (known["seed"] & polled)}
        races = {p: self._races(made, known[p], p) for p in PROFILES}
        self._sound(reported, made, known)
        self._complete(reported, races)
        self.made.append(made)
        self.known[a].own |= {made.number}
        if reported and self.heals:
            self.heal()

    def heal(self) -> None:
        """Order everything after everything, so that the rest of the run can race afresh; prune what is settled."""
        self.barrier(len(self.agents), True)
        for a in range(len(self.agents)):
            self.drain(a, True)
            self.tokens[a] = None
        self.start = (self.agents[0].clocks.release(True), self.known[0].export(True))
        self.tainted = {p: set() for p in PROFILES}
        self.detector._prune_at = 0
        self.detector.prune([agent.clocks for agent in self.agents])
        assert self.detector.stats().records == 0

    def _ordering(self, a: int, by_w: bool, token: tuple | None, cached: bool) -> dict[str, frozenset]:
        known = self.known[a]
        if by_w:
            return known.W
        joined = {p: known.R[p] | (token[1][p] if token else frozenset()) for p in PROFILES}
        return {"seed": joined["seed"], "ascend": known.F if cached else joined["ascend"]}

    def _races(self, made: Made, known: frozenset, profile: str) -> set[int]:
        """Bytes at which `made` is the first to race; they do not count again."""
        racy: set[int] = set()
        for other in self.made:
            if other.number not in known and made.conflicts(other):
                racy |= made.touched & other.touched
        fresh = racy - self.tainted[profile]
        self.tainted[profile] |= racy
        return fresh

    def _sound(self, reported: list[Finding], made: Made, known: dict[str, frozenset]) -> None:
        for finding in reported:
            other = self.made[finding.parties[0].line]
            assert finding.parties[1].line == made.number
            assert made.conflicts(other) and made.touched & other.touched, (finding, other, made)
            assert finding.profile is not None and other.number not in known[finding.profile]
            shared = made.touched & other.touched
            assert (finding.data["first_byte"], finding.data["last_byte"]) == (min(shared), max(shared))
            if finding.profile == "ascend":
                assert other.number in known["seed"]

    def _complete(self, reported: list[Finding], races: dict[str, set[int]]) -> None:
        if races["seed"]:
            assert any(finding.profile == "seed" for finding in reported), races
        if races["ascend"]:
            assert reported, races


@st.composite
def boxes(draw: st.DrawFn) -> tuple:
    """Any box inside the memory: wrapping rows, overlapping rows, negative and zero strides, single runs."""
    rows = draw(st.sampled_from([1, 2, 3, 5]))
    width = draw(st.sampled_from([1, 3, 4, 8, 13]))
    stride = draw(st.sampled_from([16, 24, 40, 17, 0, -16, 5]))
    low = max(0, -(rows - 1) * stride)
    high = MEMORY_BYTES - width - max(0, (rows - 1) * stride)
    return draw(st.one_of(st.integers(low, high), st.just(min(low + 12, high)))), rows, stride, width


agents = st.integers(0, AGENTS - 1)
flags = st.booleans()
channels = st.integers(0, CHANNELS - 1)
lanes = st.lists(st.integers(0, MEMORY_BYTES - 8), min_size=1, max_size=6)
accesses = st.one_of(
    st.tuples(st.just("box"), agents, boxes(), st.just(True), flags, flags),
    st.tuples(st.just("box"), agents, boxes(), st.just(False), flags, flags),
    st.tuples(st.just("lanes"), agents, lanes, st.sampled_from([1, 4]), st.sampled_from(["gather", "scatter"]), flags),
    st.tuples(st.just("atomics"), agents, st.integers(0, 40), st.integers(1, 5), st.sampled_from([4, 8])),
    st.tuples(st.just("word"), agents, st.integers(0, 40), st.sampled_from([4, 8]), flags),
)
sends = st.tuples(st.just("send"), agents, agents, flags, flags, flags, flags, flags)
others = st.one_of(
    st.tuples(st.just("release"), agents, channels, flags, flags),
    st.tuples(st.just("acquire"), agents, channels, flags, flags),
    st.tuples(st.just("drain"), agents, flags),
    st.tuples(st.just("barrier"), st.integers(1, AGENTS), flags),
)


def drive(pair: Pair, operations: list[tuple]) -> None:
    for name, *arguments in operations:
        getattr(pair, name)(*arguments)


@pytest.mark.parametrize("slots", [1, 64], ids=["vectors-that-grow", "vectors-that-fit"])
@pytest.mark.parametrize("heals", [False, True], ids=["goes-on-after-a-race", "heals-after-a-race"])
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(operations=st.lists(st.one_of(accesses, sends, sends, others), min_size=6, max_size=50))
def test_detector_reports_exactly_the_true_races(slots: int, heals: bool, operations: list[tuple]) -> None:
    drive(Pair(slots, heals), operations)


class Dice:
    """Random operations with the weights of a kernel: few places, messages most of the time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.places = [self.place() for _ in range(5)]
        self.gathers = [self.lanes() for _ in range(3)]
        self.agents = self.random.choice([2, 3, AGENTS])

    def place(self) -> tuple:
        rows, stride = self.random.choice([1, 2, 3, 4]), self.random.choice([16, 24, 24, 40, 17, 0, -16, 5])
        width = self.random.choice([1, 3, 4, 8, 13, 20])
        low = max(0, -(rows - 1) * stride)
        return self.random.randint(low, MEMORY_BYTES - width - max(0, (rows - 1) * stride)), rows, stride, width

    def flag(self) -> bool:
        return self.random.random() < 0.5

    def operation(self) -> tuple:
        r, a = self.random, self.random.randrange(self.agents)
        pick = r.random()
        if pick < 0.40:
            return ("box", a, r.choice(self.places), r.random() < 0.4, r.random() < 0.7, r.random() < 0.3)
        if pick < 0.75:
            return ("send", a, r.randrange(self.agents), *(r.random() < 0.6 for _ in range(5)))
        if pick < 0.80:
            return ("lanes", a, r.choice(self.gathers), r.choice([1, 4]), r.choice(["gather", "scatter"]), self.flag())
        if pick < 0.85:
            return ("word", a, r.choice([0, 4, 8, 10]), r.choice([4, 8]), self.flag())
        if pick < 0.88:
            return ("atomics", a, r.choice([0, 4, 6, 24]), r.randint(1, 4), r.choice([4, 8]))
        if pick < 0.92:
            return ("release", a, r.randrange(CHANNELS), self.flag(), self.flag())
        if pick < 0.96:
            return ("acquire", a, r.randrange(CHANNELS), self.flag(), self.flag())
        return ("drain", a, self.flag()) if pick < 0.99 else ("barrier", self.agents, self.flag())

    def lanes(self) -> list[int]:
        return [self.random.randrange(MEMORY_BYTES - 8) for _ in range(self.random.randint(1, 5))]


@pytest.mark.parametrize("seed", range(10))
def test_detector_is_exact_where_most_accesses_are_ordered(seed: int) -> None:
    """Long runs in which races are the exception, so that each is decided by one edge."""
    races = 0
    for run in range(25):
        dice = Dice(1000 * seed + run)
        pair = Pair(dice.random.choice([1, 64]), heals=True)
        drive(pair, [dice.operation() for _ in range(120)])
        races += len(pair.findings)
    assert races > 100, "the generator no longer makes races"


class TileDice(Dice):
    """Boxes of one shape side by side, as most allocations see them, and a few accesses of other shapes."""

    def __init__(self, seed: int, flat: bool) -> None:
        super().__init__(seed)
        r = self.random
        tiles = self.runs() if flat else self.grid()
        r.shuffle(tiles)
        self.whole = (0, 1, 0, MEMORY_BYTES)
        self.tiles = tiles[: r.choice([10, 14, 20])]
        self.places = self.places[: r.choice([1, 3])]
        self.words = r.random() < 0.3

    def runs(self) -> list[tuple[int, int, int, int]]:
        width = self.random.choice([1, 3, 4, 8])
        return [(at, 1, 0, width) for at in range(self.random.randrange(width), MEMORY_BYTES - width + 1, width)]

    def grid(self) -> list[tuple[int, int, int, int]]:
        """Tiles of a matrix that begins anywhere, its last columns left over where the width does not divide them."""
        r = self.random
        rows, width, columns = r.choice([2, 3]), r.choice([1, 2]), r.choice([2, 3, 5])
        stride = width * columns + r.choice([0, 0, 1])
        last = MEMORY_BYTES - (rows - 1) * stride - width
        bands = range(r.randrange(stride + 1), last + 1, rows * stride)
        return [(at, rows, stride, width) for b in bands for c in range(columns) if (at := b + c * width) <= last]

    def operation(self) -> tuple:
        r, a = self.random, self.random.randrange(self.agents)
        pick = r.random()
        if pick < 0.4:
            return ("box", a, r.choice(self.tiles), r.random() < 0.4, r.random() < 0.7, r.random() < 0.3)
        if pick < 0.42:
            return ("box", a, self.whole, r.random() < 0.4, r.random() < 0.7, r.random() < 0.3)
        if pick < 0.85:
            return ("send", a, r.randrange(self.agents), *(r.random() < 0.8 for _ in range(5)))
        while True:
            made = super().operation()
            if self.words or made[0] not in ("word", "atomics"):
                return made


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_detector_is_exact_where_most_accesses_are_tiles(
    seed: int, flat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, with tiles beside accesses of other shapes."""
    races = tiled = 0
    for run in range(25):
        dice = TileDice(1000 * seed + run, flat)
        few = dice.random.choice([2, 4, 8])
        monkeypatch.setattr(detector, "FEW_PLAIN", few)
        monkeypatch.setattr(records, "FEW_PLAIN", few)
        pair = Pair(dice.random.choice([1, 64]), heals=True)
        for _ in range(150):
            drive(pair, [dice.operation()])
            tiled += bool(pair.detector._tilings)
        races += len(pair.findings)
    assert races > 100 and tiled > 500, f"{races}, {tiled}: the generator no longer makes races between tiles"


@pytest.mark.parametrize("width", [1, 4])
def test_oracle_itself_can_fail(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A detector that forgets its overlaps is caught by the oracle."""
    monkeypatch.setattr(Detector, "_link", lambda self, record: record.shadow.index.add(record))
    pair = Pair()
    pair.box(0, (0, 1, 0, 8), True, False, False)
    with pytest.raises(AssertionError):
        pair.box(1, (7, 1, 0, width), True, False, False)
