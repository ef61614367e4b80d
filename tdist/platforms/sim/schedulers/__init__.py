"""Schedulers by name. A new one: its file, its `@register` line, its import here; of another package: entry points."""

from __future__ import annotations

from tdist.platforms.sim.schedulers.base import Parameter, Runnable, Scheduler, register
from tdist.platforms.sim.schedulers.latest import LatestScheduler
from tdist.platforms.sim.schedulers.max_sync import MaxSyncScheduler
from tdist.platforms.sim.schedulers.pct import PCTScheduler, bound
from tdist.platforms.sim.schedulers.random import RandomScheduler
from tdist.platforms.sim.schedulers.replay import ReplayScheduler
from tdist.platforms.sim.schedulers.round_robin import RoundRobinScheduler
from tdist.platforms.sim.schedulers.run_to_block import RunToBlockScheduler
from tdist.platforms.sim.schedulers.skewed import SkewedScheduler
from tdist.platforms.sim.schedulers.specs import about, check, make_scheduler, names, why_not
from tdist.platforms.sim.schedulers.starved import StarvedScheduler

__all__ = [
    "LatestScheduler",
    "MaxSyncScheduler",
    "PCTScheduler",
    "Parameter",
    "RandomScheduler",
    "ReplayScheduler",
    "RoundRobinScheduler",
    "RunToBlockScheduler",
    "Runnable",
    "Scheduler",
    "SkewedScheduler",
    "StarvedScheduler",
    "about",
    "bound",
    "check",
    "make_scheduler",
    "names",
    "register",
    "why_not",
]
