"""Vector clocks of the ordering model: what each agent knows of every other, under both release profiles at once.

A vector holds two int32 entries a slot, interleaved: `2 * slot` is the entry under the `seed` profile and
`2 * slot + 1` the one under `ascend`. One numpy operation therefore joins both profiles, and a vector grows at its end.
A vector that was published is never written again; copies are made where an entry changes. What an agent releases is
its W and, beside that, its own entries: nothing is copied for it.

Accesses are stamped with their agent's `counter`. A release exports W with the counter in it and then advances the
counter, so it covers every load and store before it and none after it. An access stamped `c` by slot `s` is ordered
before whoever holds a vector whose entry of `s` is at least `c`.

Source: Distributed Architecture Design §2.4 (effects), §6 (runtime);
docs/ordering-model.md, "Clocks" and "What a release covers".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.int32]

_FIRST_SLOTS: Final = 64
_SLOTS_MORE: Final = 16
_RELEASES_KEPT: Final = 64
_LATEST: Final = int(np.iinfo(np.int32).max)
_JOINED_KEPT: Final = 16


class SlotSpace:
    """Which slot belongs to whom: one a (rank, program, core), a host, a stream; grows as needed, never shrinks."""

    def __init__(self, slots: int = _FIRST_SLOTS) -> None:
        self._capacity_slots = max(1, slots)
        self._slots: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def capacity_slots(self) -> int:
        """How many slots new vectors have room for."""
        return self._capacity_slots

    def slot(self, key: Hashable) -> int:
        """The slot of `key`, given out on first use; later launches of one rank reuse it."""
        found = self._slots.get(key)
        if found is None:
            found = self._slots[key] = len(self._slots)
            if found >= self._capacity_slots:
                self._capacity_slots += max(_SLOTS_MORE, self._capacity_slots // 8 // _SLOTS_MORE * _SLOTS_MORE)
        return found

    def zero(self) -> Clock:
        """The clock that knows nothing."""
        return Clock(0, np.zeros(2 * self._capacity_slots, np.int32))

    def fit(self, vector: Vector) -> Vector:
        """`vector` with room for every slot given out; itself if it has that."""
        missing = 2 * self._capacity_slots - len(vector)
        return vector if missing <= 0 else np.concatenate([vector, np.zeros(missing, np.int32)])


class Clock:
    """One moment of one agent's knowledge. Never changes; only its unused end may grow.

    `version` orders the moments of one agent; it means nothing between agents.
    `m` reads single entries quickly: `m[2 * slot]` under `seed`, `m[2 * slot + 1]` under `ascend`.
    """

    __slots__ = ("m", "vec", "version")

    def __init__(self, version: int, vec: Vector, m: memoryview | None = None) -> None:
        self.version = version
        self.vec = vec
        self.m = vec.data if m is None else m

    @property
    def seed(self) -> Vector:
        return self.vec[0::2]

    @property
    def ascend(self) -> Vector:
        return self.vec[1::2]

    def grow(self, space: SlotSpace) -> None:
        """Make room for slots given out since; what is known stays the same."""
        vec = space.fit(self.vec)
        if vec is not self.vec:
            self.vec, self.m = vec, vec.data

    def __repr__(self) -> str:
        return f"Clock(version={self.version}, seed={self.seed.tolist()}, ascend={self.ascend.tolist()})"


class WordClock:
    """What a synchronisation word releases to whoever acquires it. `None` in its place releases nothing.

    What one agent released shares the vector of its W; its own two entries, which W lacks, stand beside it: `stamp` at
    `entry`, `drained` behind that. `entry` is negative where several were joined. An acquirer that does not know
    `stamp` knows at once that there is something to learn.
    """

    __slots__ = ("_vec", "base", "drained", "entry", "stamp")

    def __init__(self, base: Vector, entry: int = -1, stamp: int = 0, drained: int = 0) -> None:
        self.base = base
        self.entry = entry
        self.stamp = stamp
        self.drained = drained
        self._vec: Vector | None = base if entry < 0 else None

    @property
    def vec(self) -> Vector:
        """Everything in one vector."""
        if self._vec is None:
            vec = self.base.copy()
            vec[self.entry] = self.stamp
            vec[self.entry + 1] = self.drained
            self._vec = vec
        return self._vec

    @property
    def seed(self) -> Vector:
        return self.vec[0::2]

    @property
    def ascend(self) -> Vector:
        return self.vec[1::2]

    def only_seed(self) -> WordClock:
        """The same, releasing nothing under `ascend` (an atomic that acquires or releases in one profile only)."""
        return self._without(1)

    def only_ascend(self) -> WordClock:
        """The same, releasing nothing under `seed`."""
        return self._without(0)

    def _without(self, profile: int) -> WordClock:
        vec = self.vec.copy()
        vec[profile::2] = 0
        return WordClock(vec)


def join_vectors(a: Vector, b: Vector) -> Vector:
    """Element-wise later of both, in a new vector; a shorter one counts as zero beyond its end."""
    if len(a) == len(b):
        return np.maximum(a, b)
    if len(a) < len(b):
        a, b = b, a
    joined = a.copy()
    np.maximum(joined[: len(b)], b, out=joined[: len(b)])
    return joined


def join_ends(ends: Sequence[WordClock]) -> WordClock:
    """What several agents, one at least, released together."""
    joined = max((end.base for end in ends), key=len).copy()
    for base in {id(end.base): end.base for end in ends}.values():
        np.maximum(joined[: len(base)], base, out=joined[: len(base)])
    own = joined.data
    for end in ends:
        if end.entry >= 0:
            own[end.entry] = max(own[end.entry], end.stamp)
            own[end.entry + 1] = max(own[end.entry + 1], end.drained)
    return WordClock(joined)


def join_words(a: WordClock | None, b: WordClock | None) -> WordClock | None:
    """What a word releases after an ADD or a read-modify-write: what it did before, and the newcomer's."""
    if a is None or b is None:
        return b if a is None else a
    return WordClock(join_vectors(a.vec, b.vec))


def later(a: Clock | None, b: Clock | None) -> Clock | None:
    """Join of what two operands carried.

    Both are moments of one agent's own history, which only grows: the join is the later of the two.
    """
    if a is None:
        return b
    if b is None or a.version >= b.version:
        return a
    return b


class AgentClocks:
    """The clocks of one agent, host or stream.

    `W` orders everything with a Write effect, `R` plain loads, `F` (under `ascend` only) loads through the data cache.
    R ⊑ W and every token ⊑ W always hold. The agent's own entry in `W` may lag behind: own accesses are in program
    order, and every export puts the counter in.
    """

    __slots__ = ("F", "R", "W", "_joined", "_version", "counter", "entry", "last_drain", "releases", "slot", "space")

    def __init__(self, space: SlotSpace, slot: int) -> None:
        self.space = space
        self.releases: deque[tuple[int, Any, int]] = deque(maxlen=_RELEASES_KEPT)
        self.start(space.zero(), slot)

    def start(self, clock: Clock | WordClock, slot: int) -> None:
        """Begin with all that `clock` knows: W = R = F.

        The slot's earlier user must be covered by `clock` (launches of one rank follow each other on its stream):
        its counter goes on from there, so stamps of both never meet.
        """
        vec = self.space.fit(clock.vec)
        self.slot = slot
        self.entry = 2 * slot
        self._version = 0
        self._joined: dict[int, Vector] = {id(vec): vec}  # some by id: W knows all of them
        self.W = self.R = self.F = Clock(0, vec)
        m = self.W.m
        self.last_drain = max(m[self.entry], m[self.entry + 1])
        self.counter = self.last_drain + 1
        self.releases.clear()

    def acquire(self, word: Clock | WordClock | None, private: Clock | None = None) -> Clock:
        """Join `word` into W; R stays. Returns W as it then stands: the token of the wait.

        W is the same object, of the same version, as before if `word` knows nothing new.

        Args:
            private: a W that only the caller has seen so far, if there is one: it may be changed in place.
        """
        if word is None:
            return self.W
        before = self.W
        mine = before.vec
        if type(word) is not WordClock or word.entry < 0:
            theirs = word.vec
            joined = np.maximum(mine, theirs) if len(mine) == len(theirs) else join_vectors(mine, theirs)
            return before if joined.tobytes() == mine.tobytes() else self._learnt(joined, joined.data)
        theirs, entry, stamp = word.base, word.entry, word.stamp
        if len(mine) != len(theirs):
            joined, news = join_vectors(mine, theirs), False
        else:
            news = stamp > before.m[entry]
            if not news:
                joined = np.maximum(mine, theirs)
            elif id(theirs) in self._joined:
                joined = mine if before is private else mine.copy()
            else:
                joined = np.maximum(mine, theirs, out=mine if before is private else None)
                if len(self._joined) >= _JOINED_KEPT:
                    self._joined.clear()
                self._joined[id(theirs)] = theirs
        m = before.m if joined is mine else joined.data
        if stamp > m[entry]:
            m[entry] = stamp
        if word.drained > m[entry + 1]:
            m[entry + 1] = word.drained
        if joined is mine:
            before.version = self._version = self._version + 1
            return before
        if not news and joined.tobytes() == mine.tobytes():
            return before
        self._version = version = self._version + 1
        self.W = learnt = Clock(version, joined, m)
        return learnt

    def acquire_all(self, words: Sequence[WordClock]) -> list[bool]:
        """Join `words` into W, one after another but at one go. Returns of each whether it told anything new.

        Each is what one agent released, in a vector as long as that of W.
        """
        mine = self.W.vec
        size = len(mine)
        joined = np.concatenate([mine, *[word.base for word in words]])
        m, at = joined.data, 0
        for word in words:
            at += size
            own = at + word.entry
            if word.stamp > m[own]:
                m[own] = word.stamp
            if word.drained > m[own + 1]:
                m[own + 1] = word.drained
        moments = joined.reshape(-1, size)
        rows = list(moments)
        for row, before in zip(rows[1:], rows, strict=False):
            np.maximum(row, before, out=row)
        told = (moments[1:] != moments[:-1]).any(axis=1).tolist()
        if True in told:
            vec = rows[-1].copy()
            self._learnt(vec, vec.data)
        return told

    def _learnt(self, joined: Vector, m: memoryview) -> Clock:
        self._version += 1
        self.W = Clock(self._version, joined, m)
        return self.W

    def receive(self, word: Clock | WordClock | None) -> None:
        """Join `word` into every clock: an edge nothing moves across (enqueue, synchronise, host collective)."""
        self.R = self.F = self.acquire(word)

    def effect(self) -> None:
        """An operation with a Write effect: no later load moves before it, so R becomes W."""
        self.R = self.W

    def release(self, drains: bool, site: Any = None) -> WordClock:
        """Export W for a synchronisation word, then advance the counter. Has a Write effect.

        Under `seed` it covers everything before. Under `ascend` the own entry is put back to the last drain, unless
        the operation drains itself. `site` is kept for messages about what an acquirer has seen.
        """
        stamp = self.counter
        known = self.R = self.W
        if drains:
            self.last_drain = stamp
        drained = self.last_drain
        self.counter = stamp + 1
        self.releases.append((stamp, site, drained))
        return WordClock(known.vec, self.entry, stamp, drained)

    def drain(self, flush_cache: bool) -> None:
        """Complete everything before under `ascend`; `flush_cache` (fence, quiet) also sets F to W. A Write effect."""
        self.R = self.W
        self.last_drain = self.counter
        self.counter += 1
        if flush_cache:
            self.F = self.W

    def end(self) -> WordClock:
        """What the stream joins when this agent has ended: everything, its accesses are complete."""
        return self.release(drains=True)

    def snapshot(self) -> Clock:
        """What a relaxed wait's token carries: R."""
        return self.R

    def grow(self) -> None:
        """Make room in all clocks for slots given out since."""
        for clock in (self.W, self.R, self.F):
            clock.grow(self.space)

    def release_site(self, stamp: int) -> Any:
        """Where the release that exported `stamp` was made, if it is still remembered."""
        return next((site for at, site, _ in self.releases if at == stamp), None)

    def drained_at(self, stamp: int) -> int:
        """What the release that exported `stamp` covered under `ascend`; 0 if it is not remembered."""
        return next((drained for at, _, drained in self.releases if at == stamp), 0)


def join_all(agents: Sequence[AgentClocks], drains: bool = True, site: Any = None) -> Clock | None:
    """A barrier: every participant's W, R become the join of all; with `drains` all are drained under `ascend` too.

    F is not moved: barriers do not touch the data cache. Returns the join, None without participants.
    """
    if not agents:
        return None
    vec = agents[0].space.fit(agents[0].W.vec).copy()
    for agent in agents[1:]:
        known = agent.W.vec
        np.maximum(vec[: len(known)], known, out=vec[: len(known)])
    for agent in agents:
        _enter_barrier(agent, vec, drains, site)
    shared = vec.data
    for agent in agents:
        agent._version += 1
        agent.W = agent.R = Clock(agent._version, vec, shared)
    return agents[0].W


def _enter_barrier(agent: AgentClocks, vec: Vector, drains: bool, site: Any) -> None:
    stamp = agent.counter
    if drains:
        agent.last_drain = stamp
    vec[agent.entry] = stamp
    vec[agent.entry + 1] = max(int(vec[agent.entry + 1]), agent.last_drain)
    agent.counter = stamp + 1
    agent.releases.append((stamp, site, agent.last_drain))


def floor_of(everyone: Sequence[AgentClocks]) -> Vector:
    """What all of `everyone` know, own accesses included: an access at or below it can never race again."""
    floor = np.full(2 * everyone[0].space.capacity_slots, _LATEST, np.int32)
    for agent in everyone:
        for clock in (agent.R,) if agent.F is agent.R else (agent.R, agent.F):
            known = agent.space.fit(clock.vec).copy()
            own = known.data
            own[agent.entry] = agent.counter
            own[agent.entry + 1] = agent.last_drain
            np.minimum(floor, known, out=floor)
    return floor
