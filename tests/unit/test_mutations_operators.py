"""Faults in both forms of both operators at 3 ranks: a seeded sample of each kernel is caught, or equivalent by proof.

`benchmarks/mutation_power.py` judges all of them.
"""

from __future__ import annotations

import random

import pytest

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which prints the kernels")

from tdist.mutations import Mutant
from tdist.verify.loader import load_operator
from tdist.verify.mutation.mutate import EQUIVALENT, mutate_operator
from tdist.verify.options import Options

SEED = 4
SAMPLE = 6
RANKS = 3
FORMS = [(name, form) for name in ("all_gather", "ag_gemm") for form in ("fine", "barrier")]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_a_sample_is_caught(name, form):
    options = Options(name, nranks=RANKS, profile="ascend", sync=form)
    report = mutate_operator(load_operator(name), options, pick=_sample)
    assert report.total >= SAMPLE
    unproved = [f"{each.mutant.name}: {each.mutant.what}: {each.verdict}" for each in report.judged]
    assert report.exit_code == 0, f"sample of seed {SEED}: {unproved}"


def _sample(mutants):
    return [*random.Random(SEED).sample(list(mutants), SAMPLE), *_fences(mutants)]


def _fences(mutants: list[Mutant]) -> list[Mutant]:
    """What plain comparison cannot see."""
    return [mutant for mutant in mutants if mutant.kind == "drop-fence"]


def test_what_is_redundant_is_proved_so():
    """The barrier form stores to every rank in turn: to begin with another one is no fault."""
    options = Options("all_gather", nranks=RANKS, profile="ascend", sync="barrier")
    report = mutate_operator(load_operator("all_gather"), options, ["wrong-peer"])
    (judged,) = report.judged
    assert judged.verdict == EQUIVALENT and judged.proof.startswith("all inequivalent schedules ran")
    assert judged.golden == ""


def test_a_fence_is_redundant_under_seed_and_said_to_count_under_ascend():
    options = Options("all_gather", nranks=2, profile="seed", sync="fine")
    (judged,) = mutate_operator(load_operator("all_gather"), options, ["drop-fence"]).judged
    assert judged.verdict == EQUIVALENT
    assert judged.remark.startswith("fails --profile ascend: tdist.hazard.")
