"""The guard of signal lines says the same whichever way it finds earlier plain writes, and what a plain check says."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tdist.platforms.sim import detector, records
from tdist.platforms.sim.clocks import AgentClocks, SlotSpace
from tdist.platforms.sim.detector import Detector
from tdist.platforms.sim.lines import LineGuard
from tdist.platforms.sim.memory import AddressSpace
from tdist.platforms.sim.race_report import Who
from tdist.platforms.sim.words import Record, Word

LINES = 4
Write = tuple[int, int, bool]  # first byte, bytes, whether it is a SET


class Bench:
    """Two agents that know nothing of each other, on an allocation of a few lines that does not start at one."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []
        self.detector = Detector(lambda finding: None)
        memory = AddressSpace(1, 4096, poison=0xA5)
        memory.malloc(16, 16, "before")
        made = memory.malloc(64 * LINES, 16, "sig")
        assert made is not None
        self.al = made[0]
        self.memory = memory
        self.guard = LineGuard(self._note, self.detector, memory)
        space = SlotSpace()
        self.agents = [self._agent(space, program) for program in range(2)]
        self.words: dict[int, Word] = {}

    def _agent(self, space: SlotSpace, program: int) -> Any:
        clocks = AgentClocks(space, space.slot((0, program, 0)))
        agent = SimpleNamespace(clocks=clocks, who=Who(0, 0, program))
        self.detector.bind(agent)
        return agent

    def _note(self, finding: Any) -> None:
        self.found.append((finding.parties[0].line, finding.parties[1].line))

    def store(self, a: int, off: int, width: int, line: int) -> None:
        agent, site = self.agents[a], SimpleNamespace(file="k.py", line=line, op="store", arg="x")
        agent.wr(self.al, off, 1, 0, width, site)
        if self.al.guards:
            self.guard.written(agent.clocks, agent.who, self.al, off, 1, 0, width, site)

    def set(self, a: int, off: int, line: int) -> None:
        agent, site = self.agents[a], SimpleNamespace(file="k.py", line=line, op="notify", arg="sig")
        word = self.words.get(off)
        if word is None:
            word = self.words[off] = self.al.sync[off] = Word(self.al, off, 4)
        clocks = agent.clocks
        record: Any = Record(clocks.slot, clocks.counter, agent.who, site, line)  # pyright: ignore[reportArgumentType]
        self.guard.signalled(clocks, word, record)
        word.sets = {clocks.slot: record}
        agent.access_word(word, True, None, site, True)
        clocks.release(False, site)


def play(seed: int) -> tuple[list[tuple[int, int]], set[tuple[int, int]]]:
    """What the guard reports, and which pairs of writes of two agents share a line but no byte."""
    dice, bench = random.Random(seed), Bench()
    made: list[tuple[int, range, bool, int]] = []
    expected: set[tuple[int, int]] = set()
    for line in range(1, 40):
        a, is_set = dice.randrange(2), dice.random() < 0.3
        width = 4 if is_set else dice.choice([1, 4, 20, 70])
        off = dice.randrange(0, 64 * LINES - width, 4)
        mine = range(off, off + width)
        for other, bytes_, was_set, earlier in made:
            if other != a and is_set != was_set and _lines_meet(bench, mine, bytes_) and not _meet(mine, bytes_):
                expected.add((earlier, line))
        if is_set:
            bench.set(a, off, line)
        else:
            bench.store(a, off, width, line)
        made.append((a, mine, is_set, line))
    return bench.found, expected


def _meet(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _lines_meet(bench: Bench, a: range, b: range) -> bool:
    lines = [{(bench.al.lo + at) // 64 for at in (r.start, r.stop - 1)} for r in (a, b)]
    return max(min(lines[0]), min(lines[1])) <= min(max(lines[0]), max(lines[1]))


@pytest.mark.parametrize("seed", range(20))
def test_guard_finds_the_same_among_few_and_many_writes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`FEW_PLAIN` decides whether earlier writes are asked one by one or looked up."""
    found = []
    for few in (0, 4, 100):
        monkeypatch.setattr(detector, "FEW_PLAIN", few)
        monkeypatch.setattr(records, "FEW_PLAIN", few)
        reported, expected = play(seed)
        assert set(reported) <= expected, "a report that is none"
        found.append(sorted(reported))
    assert found[0] == found[1] == found[2] and found[0]


def test_freed_neighbours_are_watched_no_longer() -> None:
    bench = Bench()
    bench.set(0, 0, 1)  # in the line of "before"
    before = next(iter(bench.memory))
    assert before.guards and bench.al.guards
    bench.guard.gone(before)
    assert not before.guards and bench.words[0].guards
    bench.guard.forget(bench.words[0])
    assert not bench.al.guards and bench.words[0].guards is None
