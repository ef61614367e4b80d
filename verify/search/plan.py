"""The plan of a mode's search step: the exact list of its runs, made before any of them runs.

All runs are of the operator's small shape, with integer inputs. The base runs take every schedule; each situation that
the operator's contract allows takes a few. The first run is judged by the golden, the others by their findings and by
comparison with it; runs whose outputs are others than the base's bring a judged one of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tdist.errors import UsageError
from tdist.verify.loader import absolute_spec
from tdist.verify.modes import Mode
from tdist.verify.operator import Case, Operator
from tdist.verify.options import MAX_SEED, Options
from tdist.verify.rank_job import Job
from tdist.verify.search.situations import Setting, base_launches, chosen
from tdist.verify.worlds import POISONS, RunSpec, world_config

BASE = "base"
SEEDED = ("random", "pct")
"""Schedulers of which another seed makes another schedule."""
FINE_SCHEDULES = ("run-to-block", "max-sync", "latest")
BARRIER_SCHEDULES = ("max-sync", "run-to-block")
BARRIER_SEEDS = 2
STARVED_RANKS = 4
"""So many ranks are starved by name, spread over all: the first, the last, and between."""
_SEEDS_APART = 1000


@dataclass(frozen=True)
class Planned:
    """One run of the search step.

    Attributes:
        name: unique in its plan, such as `late-init/run-to-block, rank 0 late`.
        situation: of `tdist.verify.search.situations`, or `BASE`.
        schedule: spec of the scheduler.
        seed: of the schedule; inputs have the seed of the options.
        spec: the run, whole.
        like: name of the run with whose outputs its own have to agree; its own name if it is judged by the golden.
    """

    name: str
    situation: str
    schedule: str
    seed: int
    spec: RunSpec
    like: str

    def to_json(self) -> dict[str, Any]:
        """JSON values without paths: what a reader needs to see which runs were made."""
        job = self.spec.job
        return {
            "name": self.name,
            "situation": self.situation,
            "schedule": self.schedule,
            "seed": self.seed,
            "shape": dict(job.case.shape),
            "launches": job.launches,
            "like": self.like,
            "world": {key: value for key, value in self.spec.world.items() if key not in ("scheduler", "seed")},
        }


def plan(operator: Operator, options: Options, mode: Mode, dtype: str | None = None) -> tuple[Planned, ...]:
    """The runs of a mode's search step, in order; none if the options leave it out.

    Args:
        dtype: element type; by default the first one of the options or else of the operator.
    """
    if not options.search:
        return ()
    setting = setting_of(operator, options, mode, dtype)
    made = [*_base_runs(setting, mode)]
    if mode.name == "fine":
        for situation in chosen(options):
            if not situation.refusal(setting):
                made += _situation_runs(setting, situation.name, situation.variants(setting), mode)
    return tuple({planned.name: planned for planned in reversed(made)}.values())[::-1]


def setting_of(operator: Operator, options: Options, mode: Mode, dtype: str | None = None) -> Setting:
    """Operator, options, case and base run of a mode's search step."""
    asked = operator.case(
        dtype=dtype or (options.dtype or operator.dtypes)[0],
        nranks=options.nranks,
        shape=dict(options.shape),
        seed=options.seed,
    )
    case = replace(small_case(operator, asked), sync=mode.protocol)
    spec = absolute_spec(options.operator or operator.name)
    job = Job(spec, case, base_launches(operator, options), judge=False, policy="exact")
    return Setting(operator, options, case, RunSpec(job, world_config(options, mode, POISONS[0])))


def small_case(operator: Operator, asked: Case) -> Case:
    """The case of the search step: the smaller one of what is asked for and the operator's declared small shape.

    An operator that declares none has its default shape; a small shape that the operator's constraint refuses at this
    rank count is not run.
    """
    shape = {**operator.shape, **(operator.small or {})}
    if math.prod(asked.shape.values()) <= math.prod(shape.values()):
        return asked
    try:
        return operator.case(dtype=asked.dtype, nranks=asked.nranks, shape=shape, seed=asked.seed)
    except UsageError:
        return asked


def base_schedules(options: Options, mode: Mode, nranks: int) -> Iterator[tuple[str, int]]:
    """(scheduler spec, seed) of each base run of a mode."""
    seeds = [schedule_seed(options.seed, index) for index in range(options.seeds)]
    if options.scheduler:
        yield from _seeded((options.scheduler,), seeds or [options.seed], options.seed)
        return
    if mode.name == "barrier":
        yield from _seeded((*BARRIER_SCHEDULES, "random"), seeds[:BARRIER_SEEDS], options.seed)
        return
    starved = [f"starved:rank={rank}" for rank in starved_ranks(nranks)]
    yield from _seeded((*FINE_SCHEDULES, *starved, "random", "pct"), seeds, options.seed)


def _seeded(schedules: tuple[str, ...], seeds: list[int], seed: int) -> Iterator[tuple[str, int]]:
    for schedule in schedules:
        yield from ((schedule, drawn) for drawn in (seeds if is_seeded(schedule) else [seed]))


def is_seeded(schedule: str) -> bool:
    """Whether a scheduler is worth several seeds; the others draw at most between equals."""
    return schedule.partition(":")[0] in SEEDED


def schedule_seed(seed: int, index: int) -> int:
    """Seed of the schedule of the `index`-th run of one scheduler: readable, and other seeds give others."""
    return (seed * _SEEDS_APART + index) % (MAX_SEED + 1)


def starved_ranks(nranks: int) -> list[int]:
    """The ranks that are starved in turn."""
    if nranks <= STARVED_RANKS:
        return list(range(nranks)) if nranks > 1 else []
    step = (nranks - 1) / (STARVED_RANKS - 1)
    return sorted({round(index * step) for index in range(STARVED_RANKS)})


def _base_runs(setting: Setting, mode: Mode) -> Iterator[Planned]:
    like = ""
    for schedule, seed in base_schedules(setting.options, mode, setting.case.nranks):
        name = _name(BASE, schedule, seed, "")
        like = like or name
        yield _planned(name, BASE, setting.base, schedule, seed, like)


def _situation_runs(setting: Setting, situation: str, variants: Any, mode: Mode) -> Iterator[Planned]:
    reference = next(_base_runs(setting, mode)).name
    like = ""
    for index, variant in enumerate(variants):
        schedule = setting.options.scheduler or variant.schedule
        seed = schedule_seed(setting.options.seed, index) if is_seeded(schedule) else setting.options.seed
        name = _name(situation, schedule, seed, variant.label)
        like = (like or name) if variant.own_golden else reference
        yield _planned(name, situation, variant.spec, schedule, seed, like)


def _name(situation: str, schedule: str, seed: int, label: str) -> str:
    seeded = f"@{seed}" if is_seeded(schedule) else ""
    return f"{situation}/{schedule}{seeded}{f', {label}' if label else ''}"


def _planned(name: str, situation: str, spec: RunSpec, schedule: str, seed: int, like: str) -> Planned:
    job = replace(spec.job, judge=name == like, situation=spec.job.situation or situation)
    whole = replace(spec, job=job).with_world(scheduler=schedule, seed=seed)
    return Planned(name, situation, schedule, seed, whole, like)
