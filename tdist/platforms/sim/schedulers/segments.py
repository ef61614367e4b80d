"""Schedules by who runs: what a choice list says with positions in a list that changes from step to step.

A position means nothing in another run; an agent does. So a schedule with parts taken out is still one that can be
followed, as far as it fits: what shrinking needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tdist.platforms.sim.schedulers.base import PATIENCE_STEPS, Runnable, Scheduler, place_of
from tdist.platforms.sim.schedulers.run_to_block import RunToBlockScheduler

UNTIL_BLOCKED: Final = 0


class Segment(NamedTuple):
    """An agent and how many picks in a row it gets; `UNTIL_BLOCKED` is until it waits or ends."""

    rank: int
    program: int
    core: int
    steps: int = UNTIL_BLOCKED

    @property
    def who(self) -> tuple[int, int, int]:
        """The agent, as `place_of` names it."""
        return self.rank, self.program, self.core

    @property
    def preempts(self) -> bool:
        """Whether it ends while its agent could go on."""
        return self.steps != UNTIL_BLOCKED


def context_switches(segments: Sequence[Segment]) -> int:
    """How often an agent had to stop that could have gone on; the last segment stops for nobody."""
    return sum(segment.preempts for segment in segments[:-1])


class SegmentScheduler:
    """Follows segments: one whose agent cannot run is left out, one whose agent blocks is over. Then runs to block."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = tuple(segments)
        self._after = RunToBlockScheduler()

    def start(self, seed: int) -> None:
        self._queue = deque(self._segments)
        self._left = 0
        self._who: tuple[int, int, int] | None = None
        self._after.start(seed)

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        if current is not None and self._left and place_of(current) == self._who:
            self._left -= 1
            return current.position
        while self._queue:
            segment = self._queue.popleft()
            index = next((i for i, agent in enumerate(runnable) if place_of(agent) == segment.who), None)
            if index is not None:
                self._who = segment.who
                self._left = segment.steps - 1 if segment.preempts else PATIENCE_STEPS
                return index
        return self._after.pick(runnable, current)

    def choose(self, n: int) -> int:
        return 0


class NotedScheduler:
    """Another scheduler, whose schedule is noted as segments."""

    def __init__(self, inner: Scheduler) -> None:
        self._inner = inner
        self._who: list[tuple[int, int, int]] = []
        self._steps: list[int] = []

    def start(self, seed: int) -> None:
        self._who, self._steps = [], []
        self._inner.start(seed)

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        index = self._inner.pick(runnable, current)
        who = place_of(runnable[index])
        # nobody is asked where one agent alone can run: another current one than the last picked means that it blocked
        if self._steps and (current is None or place_of(current) != self._who[-1]):
            self._steps[-1] = UNTIL_BLOCKED
        if current is not None and self._who and self._who[-1] == who and self._steps[-1] != UNTIL_BLOCKED:
            self._steps[-1] += 1
        else:
            self._who.append(who)
            self._steps.append(1)
        return index

    def choose(self, n: int) -> int:
        return self._inner.choose(n)

    @property
    def segments(self) -> list[Segment]:
        """What has been picked so far."""
        return [Segment(*who, steps) for who, steps in zip(self._who, self._steps, strict=True)]
