"""One rank is slower than the others by a factor."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar, Final

from tdist.platforms.sim.schedulers.base import Parameter, Runnable, register

FACTOR: Final = 8.0


@register("skewed")
class SkewedScheduler:
    """Use when ranks drift apart: one rank is slower by a factor, but goes on.

    Each choice is made at random; an agent of that rank has 1/factor of the chances of an agent of another one.

    Args:
        rank: the slow rank.
        factor: how much slower it is, at least 1.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("rank", "the slow rank", default=0, of_ranks=True),
        Parameter("factor", "how much slower it is", kind=float, low=1, default=FACTOR),
    )

    def __init__(self, rank: int = 0, factor: float = FACTOR) -> None:
        self._rank = rank
        self._weight = 1.0 / factor

    def start(self, seed: int) -> None:
        self._draw = random.Random(seed).random

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        slow = [index for index, agent in enumerate(runnable) if agent.rank == self._rank]
        fast = len(runnable) - len(slow)
        drawn = self._draw() * (fast + len(slow) * self._weight)
        if drawn >= fast:
            return slow[min(int((drawn - fast) / self._weight), len(slow) - 1)]
        at = int(drawn)  # the at-th of those that are not slow
        for index in slow:
            if index > at:
                break
            at += 1
        return at

    def choose(self, n: int) -> int:
        return int(self._draw() * n)
