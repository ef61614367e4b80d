"""Schedulers by name. A new one: its file, its `@register` line, its import here."""

from __future__ import annotations

from tdist.errors import UsageError
from tdist.platforms.sim.schedulers.base import REGISTRY, Scheduler, register
from tdist.platforms.sim.schedulers.max_sync import MaxSyncScheduler
from tdist.platforms.sim.schedulers.random import RandomScheduler
from tdist.platforms.sim.schedulers.replay import ReplayScheduler
from tdist.platforms.sim.schedulers.run_to_block import RunToBlockScheduler

__all__ = [
    "MaxSyncScheduler",
    "RandomScheduler",
    "ReplayScheduler",
    "RunToBlockScheduler",
    "Scheduler",
    "make_scheduler",
    "names",
    "register",
]


def names() -> list[str]:
    """Known schedulers, sorted."""
    return sorted(REGISTRY)


def make_scheduler(name: str) -> Scheduler:
    """A fresh scheduler.

    Raises:
        UsageError: there is none of that name.
    """
    made = REGISTRY.get(name)
    if made is None:
        raise UsageError(f"unknown scheduler {name!r}; there are: {', '.join(names())}")
    return made()
