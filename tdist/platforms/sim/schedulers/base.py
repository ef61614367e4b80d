"""What a scheduler is: who runs next, and which of several equal possibilities comes true.

A run's interleaving is decided by nothing else: the same answers give the same run. The engine records them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

PATIENCE_STEPS: Final = 4096
"""After so many steps without a block another agent gets its turn: it may be what the present one spins for."""


class Runnable(Protocol):
    """What a scheduler may know of an agent. It is one agent for all launches of its rank: they follow each other."""

    rank: int
    program: int
    core: int
    position: int
    """Index in the list of runnable agents."""
    at_wait: bool
    """Its last operation was a wait or a barrier that has just been satisfied; it has not gone on yet."""

    @property
    def at_effect(self) -> bool:
        """Its next operation reaches beyond it: a notify, a remote load or store, an atomic, a volatile load."""
        ...


class Scheduler(Protocol):
    """Three small methods; everything else wraps them."""

    def start(self, seed: int) -> None:
        """Begin a run: forget everything, and draw from `seed` only."""
        ...

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        """Index of the agent that goes on; `current` is the one that ran last, None if it can run no more.

        Asked only where there is a choice. The order of `runnable` means nothing and changes from call to call.
        """
        ...

    def choose(self, n: int) -> int:
        """One of `n` possibilities that are not agents.

        Whether a host call completes now (1) or later (0); with adversarial memory, whether a write that nothing orders
        comes late (0) or in time (1).
        """
        ...


def stay(scheduler: Scheduler, picks: int) -> bool:
    """Count so many picks of the current agent as made, if each would be its in any case; else nothing, and False.

    A scheduler may have a fourth method for it, `stay(picks)`: loops of copies to another rank are then simulated at
    once (`codegen/copies.py`).
    """
    answers: Callable[[int], bool] | None = getattr(scheduler, "stay", None)
    return answers is not None and answers(picks)


@dataclass(frozen=True)
class Parameter:
    """What may follow a scheduler's name in a spec: `name=value`.

    Attributes:
        about: what it means, for `--list`.
        kind: `int` or `float`.
        low: its least value.
        high: its greatest value; None if there is none.
        default: what it is where a spec does not say, for `--list`; None for nothing.
        of_ranks: it names a rank, so the world has to have that one.
    """

    name: str
    about: str
    kind: type[int] | type[float] = int
    low: int = 0
    high: int | None = None
    default: Any = None
    of_ranks: bool = False


Maker = Callable[..., Scheduler]
"""A scheduler's class, mostly: called with the values of a spec by name. `parameters`, a tuple of `Parameter`, says
which there are; without it there are none. The first line of its docstring says what it is for."""
S = TypeVar("S", bound=Maker)

REGISTRY: dict[str, Maker] = {}


def register(name: str) -> Callable[[S], S]:
    """Class decorator: make a scheduler known as `name` to `--schedule` and `WorldConfig.scheduler`."""

    def enter(made: S) -> S:
        REGISTRY[name] = made
        return made

    return enter


def place_of(agent: Runnable) -> tuple[int, int, int]:
    """Which agent it is: no two runnable ones have the same."""
    return agent.rank, agent.program, agent.core


def positions_of(runnable: Sequence[Runnable], rank: int | None, program: int | None) -> list[int]:
    """Indices of the agents of a rank, of a program, or of a program of a rank; None stands for any."""
    return [
        index
        for index, agent in enumerate(runnable)
        if (rank is None or agent.rank == rank) and (program is None or agent.program == program)
    ]
