"""A push and a multiplication with signals each: which arrangement in a mix kernel the vendor's compiler takes apart.

docs/compiled-effects.md ("The arrangement that is clean") says so; what is not clean here is what its table lists.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, whose adapter it runs")
pytest.importorskip("ascendnpuir", reason="waits for ascendnpu-ir, whose compiler it runs")

import staged_kernels as kernels
from effects_kit import build, kinds

from tdist.findings import to_text
from tdist.platforms.ascend.cures import default_check

WORDS = ("*i32", "*i64")
DOUBLED = {"both-cores", "both-vector-cores"}


def found(fn: Any, words: str, barrier_all: bool = False) -> list:
    types = {**dict.fromkeys(("box", "part"), "*fp16"), **dict.fromkeys(("sig", "done"), words)}
    return list(default_check(*build(fn, types, barrier_all=barrier_all, B=16)))


@pytest.mark.parametrize("barrier_all", [False, True])
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("fn", [kernels.stages_in_a_loop, kernels.rounds], ids=lambda fn: fn.__name__)
def test_stages_side_by_side_in_a_loop_belong_to_one_kind_of_core_each(fn: Any, words: str, barrier_all: bool) -> None:
    findings = found(fn, words, barrier_all)
    assert not findings, "\n".join(map(to_text, findings))


OTHERWISE = (
    kernels.stages_one_after_another,
    kernels.stages_under_conditions,
    kernels.stages_in_two_branches,
    kernels.stages_in_a_loop_of_one_turn,
)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("fn", OTHERWISE, ids=lambda fn: fn.__name__)
def test_stages_arranged_otherwise_are_signalled_by_both(fn: Any, words: str) -> None:
    assert set(kinds(found(fn, words))) == DOUBLED
