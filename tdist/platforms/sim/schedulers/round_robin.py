"""Every agent in turn, one scheduling point each."""

from __future__ import annotations

from collections.abc import Sequence

from tdist.platforms.sim.schedulers.base import Runnable, register


@register("round-robin")
class RoundRobinScheduler:
    """Use when agents are to go at one pace: the schedule nearest to what a quiet machine does.

    The turn goes by (rank, program, core), whatever has blocked, ended or woken in between.
    """

    def start(self, seed: int) -> None:
        self._last = (-1, -1, -1)

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        places = [(agent.rank, agent.program, agent.core) for agent in runnable]
        last = self._last
        after = [place for place in places if place > last]
        self._last = min(after or places)
        return places.index(self._last)

    def choose(self, n: int) -> int:
        return 0
