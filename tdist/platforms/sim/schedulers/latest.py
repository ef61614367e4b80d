"""Latest legal delivery: what an agent does to others comes when nothing else can happen any more.

Memory of a simulated world changes when an agent executes a store or a signal, so in plain memory a delivery is as late
as its execution. There are three kinds of agents that can run:

1. those that stand before nothing that others see: they have just started, were woken, or turn in a polling loop;
2. those whose wait or barrier has just been satisfied;
3. those that stand before a notify, a remote access or an atomic.

The first go before the second, and both before the third. So no effect on others happens while anybody can do without
it, and whoever has waited for one effect goes on before a second one comes: a consumer that ought to have waited for
both meets the second missing. What may arrive even later, since nothing orders it, is adversarial memory's business.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from tdist.platforms.sim.schedulers.base import Runnable, register

_SPARE_STEPS: Final = 64
_STEPS_EACH: Final = 4
"""So many steps an agent may take between two effects: it starts, is woken, leaves a wait. More is spinning."""


@register("latest")
class LatestScheduler:
    """Use when somebody may rely on what he did not wait for: signals and remote stores come as late as is legal.

    Which of several agents of one kind goes on is drawn from the seed. When agents have taken more steps without an
    effect than they need for anything but spinning, one effect comes true.
    """

    def start(self, seed: int) -> None:
        self._draw = random.Random(seed).random
        self._without_effect = 0

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        effects: list[int] = []
        waits: list[int] = []
        plain: list[int] = []
        for index, agent in enumerate(runnable):
            (waits if agent.at_wait else effects if agent.at_effect else plain).append(index)
        self._without_effect += 1
        if self._without_effect > _SPARE_STEPS + _STEPS_EACH * len(runnable) and (effects or waits):
            self._without_effect = 0
            return self._one_of(waits + effects)
        if plain or waits:
            return self._one_of(plain or waits)
        self._without_effect = 0
        return self._one_of(effects)

    def choose(self, n: int) -> int:
        return 0

    def _one_of(self, indices: Sequence[int]) -> int:
        return indices[int(self._draw() * len(indices))]
