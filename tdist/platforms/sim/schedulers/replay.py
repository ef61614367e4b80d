"""Follows a recorded list of choices; beyond its end it runs to block."""

from __future__ import annotations

from collections.abc import Sequence

from tdist.errors import UsageError
from tdist.platforms.sim.schedulers.base import Runnable
from tdist.platforms.sim.schedulers.run_to_block import RunToBlockScheduler


class ReplayScheduler:
    """Replays `choices` as another run's engine recorded them.

    Raises:
        UsageError: from `pick` or `choose`, if the list does not fit the run (other kernel, shapes or ranks).
    """

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = tuple(choices)
        self._after = RunToBlockScheduler()

    def start(self, seed: int) -> None:
        self._next = 0
        self._after.start(seed)

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        if self._next >= len(self._choices):
            return self._after.pick(runnable, current)
        return self._take(len(runnable))

    def choose(self, n: int) -> int:
        return self._take(n) if self._next < len(self._choices) else 0

    def _take(self, n: int) -> int:
        choice = self._choices[self._next]
        if not 0 <= choice < n:
            raise UsageError(
                f"replay: choice {self._next} is {choice}, but only {n} are possible here; "
                "the recording was made with another kernel, shape or rank count"
            )
        self._next += 1
        return choice
