"""One agent runs until it blocks or ends, then the next. The fastest, and the most lopsided, schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tdist.platforms.sim.schedulers.base import Runnable, register

_PATIENCE_STEPS: Final = 4096
"""After so many steps without a block another agent gets its turn: it may be what this one spins for."""


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
        if self._steps < _PATIENCE_STEPS:
            return current.position
        self._steps = 0
        return (current.position + 1) % len(runnable)

    def choose(self, n: int) -> int:
        return 0
