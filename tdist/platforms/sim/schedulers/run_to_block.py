"""One agent runs until it blocks or ends, then the next. The fastest, and the most lopsided, schedule."""

from __future__ import annotations

from collections.abc import Sequence

from tdist.platforms.sim.schedulers.base import PATIENCE_STEPS, Runnable, register


@register("run-to-block")
class RunToBlockScheduler:
    """Use when speed matters or as the first schedule to try; a hard bug may hide from it."""

    def start(self, seed: int) -> None:
        self._steps = 0

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        if current is None:
            self._steps = 0
            return 0
        self._steps += 1
        if self._steps < PATIENCE_STEPS:
            return current.position
        self._steps = 0
        return (current.position + 1) % len(runnable)

    def stay(self, picks: int) -> bool:
        if self._steps + picks >= PATIENCE_STEPS:
            return False
        self._steps += picks
        return True

    def choose(self, n: int) -> int:
        return 0
