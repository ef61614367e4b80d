"""The ordering model evaluated by brute force over the executed operations: explicit sets of events, no clocks.

Every operation that ran is an event with a number. What an agent is ordered after is a set of such numbers, one a
profile; releases hand sets on. Two accesses race if neither is in the other's set. Nothing here knows of vector clocks,
stamps, regions or pruning: it is the text of docs/ordering-model.md, word by word, for straight-line programs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

PROFILES = ("seed", "ascend")
Sets = dict[str, frozenset[int]]
SIGNALS = 8  # words from this number on are signals, those below are data
NONE: Sets = dict.fromkeys(PROFILES, frozenset())


def join(*many: Sets) -> Sets:
    return {p: frozenset().union(*(sets[p] for sets in many)) for p in PROFILES}


@dataclass(frozen=True)
class Op:
    """One operation of a program. `place` is (rank, word number); data and signal words do not overlap."""

    kind: str  # store load cached set add wait vload fence barrier atomic
    place: tuple[int, int] = (0, 0)
    value: int = 0
    token: int | None = None  # of the n-th wait of this program, for loads
    semantic: str = "acquire"
    hidden: str = ""
    scope: str = "gpu"
    used: bool = False


@dataclass
class Known:
    """An agent: its rank, what orders its writes (W), its loads (R), its cached loads (F), and its own events."""

    rank: int
    W: Sets = field(default_factory=lambda: NONE)
    R: Sets = field(default_factory=lambda: NONE)
    F: frozenset[int] = frozenset()
    own: frozenset[int] = frozenset()
    drained: frozenset[int] = frozenset()
    tokens: list[Sets] = field(default_factory=list)

    def export(self, drains: bool) -> Sets:
        if drains:
            self.drained = self.own
        return {"seed": self.W["seed"] | self.own, "ascend": self.W["ascend"] | self.drained}


@dataclass
class Word:
    """`released`: (rank, reaches other ranks, sets), since the last SET; `held`: the same when its value came to be."""

    value: int = 0
    released: list[tuple[int, bool, Sets]] = field(default_factory=list)
    held: list[tuple[int, bool, Sets]] = field(default_factory=list)
    lock: dict[tuple[int, int], Sets] = field(default_factory=dict)
    writes: list[tuple[int, int, bool]] = field(default_factory=list)  # event, agent, whether a SET
    polls: list[tuple[int, int, int]] = field(default_factory=list)  # event, agent, value
    met: bool = False  # a signal of it was lost before

    def forget(self) -> None:
        self.released, self.held, self.lock, self.writes = [], [], {}, []


@dataclass(frozen=True)
class Access:
    event: int
    agent: int
    place: tuple[int, int]
    writes: bool
    word: bool
    hidden: str


class Oracle:
    """Feed it the operations in the order in which they took effect; `races`, `lost` are pairs of event numbers."""

    def __init__(self) -> None:
        self.agents: dict[int, Known] = {}
        self.words: dict[tuple[int, int], Word] = {}
        self.accesses: list[Access] = []
        self.complete: set[int] = set()
        self.races: dict[str, set[tuple[int, int]]] = {p: set() for p in PROFILES}
        self.first_races: dict[str, set[int]] = {p: set() for p in PROFILES}
        self.tainted: dict[str, set[tuple[int, int]]] = {p: set() for p in PROFILES}
        self.lost: dict[str, set[tuple[int, int]]] = {"concurrent-set": set(), "overshoot": set()}
        self.first_lost: dict[str, set[int]] = {"concurrent-set": set(), "overshoot": set()}
        self.launch = 0

    def begin(self, agent: int, rank: int, start: Sets) -> None:
        """A launch's agent starts with the stream's knowledge: W = R = F."""
        before = start["ascend"]
        self.agents[agent] = Known(rank, start, start, before, own=before, drained=before)

    def end(self, agents: list[int]) -> Sets:
        """All agents of a launch have ended: everything that they did is complete."""
        return join(*(self.agents[a].export(True) for a in agents))

    def word(self, place: tuple[int, int]) -> Word:
        return self.words.setdefault(place, Word())

    def barrier(self, agents: list[int], drains: bool) -> None:
        joined = join(*(self.agents[a].export(drains) for a in agents))
        for a in agents:
            self.agents[a].W = self.agents[a].R = joined

    def step(self, agent: int, event: int, op: Op) -> None:
        rules: dict[str, Callable[[int, Known, int, Op], None]] = {
            "store": self._store,
            "load": self._load,
            "cached": self._load,
            "set": self._signal,
            "add": self._signal,
            "wait": self._wait,
            "vload": self._vload,
            "fence": self._fence,
            "atomic": self._atomic,
        }
        known = self.agents[agent]
        rules[op.kind](agent, known, event, op)
        known.own |= {event}

    # ---- one rule each

    def _store(self, agent: int, known: Known, event: int, op: Op) -> None:
        self._access(agent, event, op, known.W, writes=True)
        known.R = known.W
        if op.place[1] >= SIGNALS and self.word(op.place).value != op.value:
            self.word(op.place).forget()
            self.word(op.place).value = op.value

    def _load(self, agent: int, known: Known, event: int, op: Op) -> None:
        ordering = known.R if op.token is None else join(known.R, known.tokens[op.token])
        if op.kind == "cached":
            ordering = {"seed": ordering["seed"], "ascend": known.F}
        self._access(agent, event, op, ordering, writes=False)

    def _fence(self, agent: int, known: Known, event: int, op: Op) -> None:
        known.drained = known.own
        known.R, known.F = known.W, known.W["ascend"]

    def _vload(self, agent: int, known: Known, event: int, op: Op) -> None:
        self.complete.add(event)
        self._access(agent, event, op, known.W, writes=False, word=True)
        known.R = known.W

    def _wait(self, agent: int, known: Known, event: int, op: Op) -> None:
        word = self.word(op.place)
        assert word.value == op.value
        self.complete.add(event)
        word.polls.append((event, agent, op.value))
        self._access(agent, event, op, known.W, writes=False, word=True)
        if op.semantic in ("acquire", "acq_rel"):
            known.W = join(known.W, *(s for rank, far, s in word.held if far or rank == known.rank))
            known.tokens.append(known.W)
        else:
            known.tokens.append(known.R)

    def _signal(self, agent: int, known: Known, event: int, op: Op) -> None:
        word = self.word(op.place)
        after = op.value + (word.value if op.kind == "add" else 0)
        self._check_word(agent, known, event, word, after, op.kind == "set")
        self.complete.add(event)
        self._access(agent, event, op, known.W, writes=True, word=True)
        known.R = known.W
        known.own |= {event}
        released = (known.rank, True, known.export(op.kind == "add"))
        changed = after != word.value
        word.value = after
        if op.kind == "add":
            word.released = [*word.released, released]
        elif changed:
            word.released = [released]
        if changed:
            word.held = word.released

    def _atomic(self, agent: int, known: Known, event: int, op: Op) -> None:
        word = self.word(op.place)
        after = word.value + op.value
        changed = after != word.value
        if changed:
            self._check_word(agent, known, event, word, after, False)
        self._access(agent, event, op, known.W, writes=True, word=True)
        far = op.scope == "sys"
        if op.semantic in ("acquire", "acq_rel"):
            seen = [s for rank, reaches, s in word.released if rank == known.rank or (far and reaches)]
            known.W = join(known.W, *({"seed": s["seed"], "ascend": frozenset()} for s in seen))
        lock = (known.rank, self.launch)
        if op.used and lock in word.lock:
            known.W = join(known.W, word.lock[lock])
        known.R = known.W
        known.own |= {event}
        released = known.export(op.used)
        if op.used:
            mine = {"seed": frozenset[int](), "ascend": released["ascend"]}
            word.lock = {lock: join(word.lock.get(lock, NONE), mine)}
            released = {"seed": released["seed"], "ascend": frozenset()}
        if op.semantic in ("release", "acq_rel"):
            word.released = [*word.released, (known.rank, far, released)]
        word.value = after
        if changed:
            word.held = word.released

    # ---- findings

    def _check_word(self, agent: int, known: Known, event: int, word: Word, after: int, is_set: bool) -> None:
        known_ones = known.W["seed"]
        sets = {w for w, by, was_set in word.writes if by != agent and (is_set or was_set) and w not in known_ones}
        steps = {w for w, by, seen in word.polls if by != agent and after not in (word.value, seen)} - known_ones
        for found, pairs in (("concurrent-set", sets), ("overshoot", steps)):
            self.lost[found] |= {(earlier, event) for earlier in pairs}
            if pairs and not word.met:
                self.first_lost[found].add(event)
                word.met = True
        word.writes.append((event, agent, is_set))

    def _access(self, agent: int, event: int, op: Op, known: Sets, writes: bool, word: bool = False) -> None:
        made = Access(event, agent, op.place, writes, word, op.hidden)
        for earlier in self.accesses:
            if earlier.place == made.place and (earlier.writes or writes) and not (earlier.word and word):
                self._judge(earlier, made, known)
        self.accesses.append(made)

    def _judge(self, earlier: Access, made: Access, known: Sets) -> None:
        ordered = {"seed": earlier.event in known["seed"], "ascend": earlier.event in known["ascend"]}
        if earlier.event in self.complete:
            ordered["ascend"] = ordered["seed"]
        if earlier.agent == made.agent:
            passes = self._passes(earlier, made)
            ordered = {"seed": True, "ascend": not passes}
        for profile in PROFILES:
            if ordered[profile]:
                continue
            self.races[profile].add((earlier.event, made.event))
            if made.place not in self.tainted[profile]:
                self.first_races[profile].add(made.event)
        for profile in PROFILES:
            if not ordered[profile]:
                self.tainted[profile].add(made.place)

    def _passes(self, store: Access, load: Access) -> bool:
        """Whether an own load may pass an own store; stores stay in order, so only the latest can be passed."""
        if not store.writes or load.writes or store.event in self.agents[load.agent].drained:
            return False
        own = [a.event for a in self.accesses if a.agent == load.agent and a.writes and a.place == load.place]
        return store.event == own[-1] and store.hidden != load.hidden
