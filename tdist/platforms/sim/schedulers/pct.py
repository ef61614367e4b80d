"""Probabilistic concurrency testing: random priorities, and a few places where the running agent loses its own.

A fault of depth d is one that shows whenever d operations come in a certain order. With n agents that make at most k
choices together, one run finds it with a probability of at least 1 / (n k^(d-1)).

A choice is a scheduling point at which more than one agent can run; agents yield at signals, waits, remote accesses,
atomics and barriers, and nowhere else. That steps at which one agent is alone are not counted costs nothing: a lower
priority has no effect until the first choice that would have fallen on that agent, and that one is counted.

Source: Burckhardt, Kothari, Musuvathi, Nagarakatte, A Randomized Scheduler with Probabilistic Guarantees of Finding
Bugs, ASPLOS 2010, section 3 and theorem 9.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, Final

from tdist.errors import UsageError
from tdist.platforms.sim.schedulers.base import PATIENCE_STEPS, Parameter, Runnable, place_of, register

DEPTH: Final = 3
_MOST_DOUBLINGS: Final = 20
"""Where nobody says how long the run is, its length is guessed: 2, 4, 8 … 2^20 choices with equal chances."""


def bound(n: int, k: int, d: int) -> float:
    """With which probability, at least, one run finds a fault of depth `d`: 1 / (n k^(d-1)).

    Args:
        n: agents (rank, program, core); all launches of one are one agent.
        k: how many choices a run makes at most.
        d: of how many operations the order matters; 1 for a fault that any order of two agents shows.

    Raises:
        UsageError: one of them is less than 1.
    """
    for name, value in (("n", n), ("k", k), ("d", d)):
        if value < 1:
            raise UsageError(f"the bound of PCT needs {name} of at least 1, got {value}")
    return float(Fraction(1, n * k ** (d - 1)))


@register("pct")
class PCTScheduler:
    """Use when a rare order is suspected: each run finds a fault of that depth with a known probability.

    An agent that makes `PATIENCE_STEPS` choices in a row falls below all others: it may be spinning for one of them.
    Where that happens the bound does not hold. Host calls complete late or early by the toss of a coin, which changes
    nothing about the order of those agents that run already.

    Args:
        depth: of the faults to be found; that many places less one are drawn.
        steps: how many choices the run makes at most; by default it is guessed, which divides the bound by
            20 * 2^(depth-1). `WorldResult.choices` or `Engine.events` of a run before are as long as its choices.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("depth", "of how many operations the order matters", low=1, high=64, default=DEPTH),
        Parameter("steps", "choices that a run makes at most; guessed where it is not given", low=1),
    )

    def __init__(self, depth: int = DEPTH, steps: int | None = None) -> None:
        self._depth = depth
        self._steps = steps

    def start(self, seed: int) -> None:
        self._random = random.Random(seed)
        steps = self._steps or 2 << self._random.randrange(_MOST_DOUBLINGS)
        # Priorities below those that agents begin with; which of two changes gives the lower one is left to chance.
        drawn = [(self._random.randrange(steps), level / self._depth) for level in range(1, self._depth)]
        self._changes = sorted(drawn, reverse=True)
        self._priorities: dict[tuple[int, int, int], float] = {}
        self._made = 0
        self._lowest = 0.0
        self._last: tuple[int, int, int] | None = None
        self._in_a_row = 0

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        index = self._highest(runnable)
        while self._changes and self._changes[-1][0] == self._made:
            self._priorities[place_of(runnable[index])] = self._changes.pop()[1]
            index = self._highest(runnable)
        if self._impatient(runnable[index]):
            self._lowest -= 1.0
            self._priorities[place_of(runnable[index])] = self._lowest
            index = self._highest(runnable)
        self._made += 1
        return index

    def choose(self, n: int) -> int:
        return self._random.randrange(n)

    def _highest(self, runnable: Sequence[Runnable]) -> int:
        known, best, at = self._priorities, -float("inf"), 0
        for index, agent in enumerate(runnable):
            priority = known.get((agent.rank, agent.program, agent.core))
            if priority is None:
                priority = known[place_of(agent)] = 1.0 + self._random.random()
            if priority > best:
                best, at = priority, index
        return at

    def _impatient(self, agent: Runnable) -> bool:
        place = place_of(agent)
        self._in_a_row = self._in_a_row + 1 if place == self._last else 0
        self._last = place
        return self._in_a_row >= PATIENCE_STEPS
