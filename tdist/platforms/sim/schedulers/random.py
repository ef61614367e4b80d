"""Any runnable agent may go on at any scheduling point, with equal chances, from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tdist.platforms.sim.schedulers.base import Runnable, register


@register("random")
class RandomScheduler:
    """Use when a protocol is to be tried under many interleavings; vary the seed."""

    def start(self, seed: int) -> None:
        self._draw = random.Random(seed).random

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        return int(self._draw() * len(runnable))

    def choose(self, n: int) -> int:
        return int(self._draw() * n)
