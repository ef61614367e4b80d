"""What a scheduler is: who runs next, and which of several equal possibilities comes true.

A run's interleaving is decided by nothing else: the same answers give the same run. The engine records them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

PATIENCE_STEPS: Final = 4096
"""After so many steps without a block another agent gets its turn: it may be what the present one spins for."""


class Runnable(Protocol):
    """What a scheduler may know of an agent."""

    rank: int
    program: int
    core: int
    position: int
    """Index in the list of runnable agents."""
    at_wait: bool
    """Its last operation was a wait or a barrier that has just been satisfied; it has not gone on yet."""


class Scheduler(Protocol):
    """Three small methods; everything else wraps them."""

    def start(self, seed: int) -> None:
        """Begin a run: forget everything, and draw from `seed` only."""
        ...

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        """Index of the agent that goes on; `current` is the one that ran last, None if it can run no more."""
        ...

    def choose(self, n: int) -> int:
        """One of `n` possibilities that are not agents: whether a host call completes now (1) or later (0)."""
        ...


S = TypeVar("S", bound=Callable[[], Scheduler])

REGISTRY: dict[str, Callable[[], Scheduler]] = {}


def register(name: str) -> Callable[[S], S]:
    """Class decorator: make a scheduler known as `name` to `--schedule` and `WorldConfig.scheduler`."""

    def enter(made: S) -> S:
        REGISTRY[name] = made
        return made

    return enter
