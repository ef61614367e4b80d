"""Maximally synchronous: everyone else runs to quiescence before a wait or a barrier returns."""

from __future__ import annotations

from collections.abc import Sequence

from tdist.platforms.sim.schedulers.base import PATIENCE_STEPS, Runnable, register


@register("max-sync")
class MaxSyncScheduler:
    """Use when a failure may come from synchronisation: the friendliest schedule there is.

    A kernel that computes right here and wrong elsewhere has a synchronisation fault.
    """

    def start(self, seed: int) -> None:
        self._steps = 0

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        if current is not None and not current.at_wait and self._steps < PATIENCE_STEPS:
            self._steps += 1
            return current.position
        spinning, self._steps = self._steps >= PATIENCE_STEPS, 0
        start = 0 if current is None else current.position + 1
        order = [*range(start, len(runnable)), *range(start)]
        if spinning:  # perhaps for one that has waited
            return order[0]
        return next((index for index in order if not runnable[index].at_wait), order[0])

    def choose(self, n: int) -> int:
        return 0
