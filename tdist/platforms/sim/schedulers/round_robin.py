"""Every agent in turn, one scheduling point each."""

from __future__ import annotations

from collections.abc import Sequence

from tdist.platforms.sim.schedulers.base import Runnable, place_of, register


@register("round-robin")
class RoundRobinScheduler:
    """Use when agents are to go at one pace: the schedule nearest to what a quiet machine does.

    The turn goes by (rank, program, core), whatever has blocked, ended or woken in between.
    """

    def start(self, seed: int) -> None:
        self._last = (-1, -1, -1)

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        last = self._last
        first = after = -1
        for index, agent in enumerate(runnable):
            place = place_of(agent)
            if first < 0 or place < place_of(runnable[first]):
                first = index
            if place > last and (after < 0 or place < place_of(runnable[after])):
                after = index
        index = after if after >= 0 else first
        self._last = place_of(runnable[index])
        return index

    def choose(self, n: int) -> int:
        return 0
