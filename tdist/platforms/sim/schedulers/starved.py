"""A rank, a program, or one program of a rank runs only when nobody else can."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar, Final

from tdist.errors import UsageError
from tdist.platforms.sim.schedulers.base import PATIENCE_STEPS, Parameter, Runnable, positions_of, register

_RELIEF_STEPS: Final = 64
"""So many steps in a row the starved get when the others seem to spin for them."""


@register("starved")
class StarvedScheduler:
    """Use when somebody may depend on others not being late: one rank or program is as slow as can be.

    The others, and the starved ones among themselves, go on at random. When others have gone on for `PATIENCE_STEPS`
    although a starved one could run, it gets a few steps: they may be spinning for it.

    Args:
        rank: the rank that is starved; with `program`, that program of it only.
        program: the program that is starved, on every rank if `rank` is not given.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("rank", "the rank that is starved", of_ranks=True),
        Parameter("program", "the program that is starved, on every rank unless rank is given too"),
    )

    def __init__(self, rank: int | None = None, program: int | None = None) -> None:
        if rank is None and program is None:
            raise UsageError("scheduler starved: who is starved? Give rank=R, program=P or both, as in starved:rank=1")
        self._rank = rank
        self._program = program

    def start(self, seed: int) -> None:
        self._draw = random.Random(seed).random
        self._passed_over = 0
        self._relief = 0

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        starved = positions_of(runnable, self._rank, self._program)
        if not starved or len(starved) == len(runnable):
            return int(self._draw() * len(runnable))
        if self._relieve():
            return starved[int(self._draw() * len(starved))]
        hungry = set(starved)
        others = [index for index in range(len(runnable)) if index not in hungry]
        return others[int(self._draw() * len(others))]

    def choose(self, n: int) -> int:
        return int(self._draw() * n)

    def _relieve(self) -> bool:
        """Whether the starved go on although others could."""
        if self._relief:
            self._relief -= 1
            return True
        self._passed_over += 1
        if self._passed_over < PATIENCE_STEPS:
            return False
        self._passed_over, self._relief = 0, _RELIEF_STEPS - 1
        return True
