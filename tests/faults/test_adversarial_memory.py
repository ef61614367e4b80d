"""Planted races become wrong numbers or hangs under adversarial memory; their corrected twins compute as always."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_kit import Pair, module_pairs
from test_broken_operators import FAULTS, LAUNCHES, Fault

from tdist.verify import Operator
from tdist.verify.loader import load_operator
from tdist.verify.modes import mode_of
from tdist.verify.options import Options
from tdist.verify.rank_job import Job
from tdist.verify.worlds import POISONS, RunSpec, ThreadRunner, WorldResult, world_config

FILES = sorted((Path(__file__).parent / "corpus").glob("corpus_*.py"))
PLAYED = (
    "race",
    "line-sharing",
    "hazard.undrained-release",
    "hazard.stale-cache",
    "hazard.hidden-alias",
    "hazard.atomic-edge",
)
NOT_SHOWN = {
    "credit_without_drain": "a load in flight beyond its own agent's release",
    "every_program_pushes_everything": "both store the same bytes",
    "row_of_the_other_program": "both store the same bytes",
    "frozen_epoch": "needs a replayed launch, a situation of the search step",
    "workspace_of_another_shape": "what is overwritten is in no output",
}
"""Races that stay without consequence here, and why."""
SEEDS = 24


def played(pair: Pair) -> bool:
    """Whether what is planted is something that adversarial memory plays."""
    return any(expected.kind in PLAYED for expected in pair.expected)


PAIRS = [pair for pair in module_pairs(*(importlib.import_module(file.stem) for file in FILES)) if played(pair)]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def schedules(nranks: int) -> list[dict[str, Any]]:
    """Fields of the worlds that are tried: those without luck, one with a late stream a rank, seeds."""
    names = ["run-to-block", "latest", "max-sync", *(f"starved:rank={rank}" for rank in range(nranks))]
    late = [{"scheduler": "run-to-block", "late_rank": rank} for rank in range(nranks)]
    return [{"scheduler": name} for name in names] + late + [{"scheduler": "random", "seed": s} for s in range(SEEDS)]


def run(operator: Operator, options: Options, shape: dict[str, int], schedule: dict[str, Any]) -> WorldResult:
    """One exact run."""
    mode = mode_of("fine", operator.sync)
    case = operator.case(
        dtype=operator.dtypes[0], nranks=options.nranks, shape=shape, seed=options.seed, sync=mode.protocol
    )
    job = Job(options.operator, case, options.launches if operator.relaunchable else 1, policy="exact")
    world = {**world_config(options, mode, POISONS[0]), "memory": "adversarial", **schedule}
    return ThreadRunner(operator, options).execute(RunSpec(job, world))


def is_right(result: WorldResult) -> bool:
    """All ranks ended, with the golden's numbers."""
    compared = [c for rank in result.ranks for launch in rank or () for c in launch.comparisons.values()]
    return not result.error and all(c.passed for c in compared)


def params() -> list:
    """All pairs; those that are not played have to stay unseen, or they leave the list."""
    return [
        pytest.param(
            pair,
            id=pair.name,
            marks=[pytest.mark.xfail(reason=NOT_SHOWN[pair.name], strict=True)] if pair.name in NOT_SHOWN else [],
        )
        for pair in PAIRS
    ]


@pytest.mark.parametrize("pair", params())
def test_a_planted_race_is_shown(pair: Pair):
    options = pair.options(pair.faulty)
    assert not all(is_right(run(pair.faulty, options, {}, schedule)) for schedule in schedules(pair.nranks))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_twin_computes_as_always(pair: Pair):
    options = pair.options(pair.twin)
    for schedule in schedules(pair.nranks)[:2] + schedules(pair.nranks)[-1:]:
        result = run(pair.twin, options, {}, schedule)
        assert is_right(result), f"{schedule}: {result.error}"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.file}-{fault.kind}")
def test_a_broken_operator_is_shown(fault: Fault):
    options = Options(fault.spec, nranks=2, profile=fault.profile, launches=LAUNCHES)
    operator = load_operator(fault.spec)
    assert not all(is_right(run(operator, options, fault.shape, schedule)) for schedule in schedules(2))


def test_there_is_much_to_show():
    assert len(PAIRS) - len(NOT_SHOWN) >= 50
    assert {pair.name for pair in PAIRS} >= set(NOT_SHOWN), "names that are no pairs any more"
