"""Maximally synchronous: everyone else runs to quiescence before a wait or a barrier returns."""

from __future__ import annotations

from collections.abc import Sequence

from tdist.platforms.sim.schedulers.base import Runnable, register


@register("max-sync")
class MaxSyncScheduler:
    """Use when a failure may come from synchronisation: the friendliest schedule there is.

    A kernel that computes right here and wrong elsewhere has a synchronisation fault.
    """

    def start(self, seed: int) -> None:
        self._seed = seed

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        if current is not None and not current.at_wait:
            return current.position
        for index, agent in enumerate(runnable):
            if not agent.at_wait:
                return index
        return 0

    def choose(self, n: int) -> int:
        return 0
