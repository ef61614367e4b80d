"""A rank, a program, or one program of a rank is slower than the others by a factor."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar, Final

from tdist.platforms.sim.schedulers.base import Parameter, Runnable, positions_of, register

FACTOR: Final = 8.0


@register("skewed")
class SkewedScheduler:
    """Use when ranks drift apart: one rank or program is slower by a factor, but goes on.

    Each choice is made at random; a slow agent has 1/factor of the chances of another one.

    Args:
        rank: the slow rank; with `program`, that program of it only. Rank 0 if neither is given.
        program: the slow program, on every rank if `rank` is not given.
        factor: how much slower it is, at least 1.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("rank", "the slow rank; 0 if no program is given either", of_ranks=True),
        Parameter("program", "the slow program, on every rank unless rank is given too"),
        Parameter("factor", "how much slower it is", kind=float, low=1, default=FACTOR),
    )

    def __init__(self, rank: int | None = None, program: int | None = None, factor: float = FACTOR) -> None:
        self._rank = 0 if rank is None and program is None else rank
        self._program = program
        self._weight = 1.0 / factor

    def start(self, seed: int) -> None:
        self._draw = random.Random(seed).random

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        slow = positions_of(runnable, self._rank, self._program)
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
