"""Running the pairs of the corpus: what `tdist-verify` would say of a variant, and which pairs there are."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_kit import Outcome, Pair, module_pairs

from tdist.verify import Operator, verify
from tdist.verify.results import StepResult
from tdist.verify.verdict import judge

FILES = sorted(Path(__file__).parent.glob("corpus_*.py"))


def all_pairs() -> list[Pair]:
    """The pairs of all files."""
    return module_pairs(*(importlib.import_module(file.stem) for file in FILES))


_OUTCOMES: dict[str, Outcome] = {}


def default_run(pair: Pair, variant: Operator) -> Outcome:
    """The default run of a variant, in this process, once: literally what the command line does by default."""
    if variant.name not in _OUTCOMES:
        _OUTCOMES[variant.name] = _run(pair, variant)
    return _OUTCOMES[variant.name]


def _run(pair: Pair, variant: Operator) -> Outcome:
    report = verify(variant, pair.options(variant), in_process=True)
    steps = [step for mode in report.modes for step in mode.steps]
    wrong = {place for step in steps if step.name == "exact" for place in wrong_tiles(step)}
    errors = [error for step in steps for error in (step.error, *(run.error for run in step.runs)) if error]
    judged = judge(report)
    return Outcome(
        report.verdict,
        tuple(report.log),
        frozenset(wrong),
        tuple(dict.fromkeys(errors)),
        judged.kind if judged else "",
        bool(report.suppressions),
    )


def wrong_tiles(step: StepResult) -> Iterator[tuple[int, int]]:
    """(rank, tile) of all outputs of a step that are not the golden's."""
    for rank, _, _, comparison in step.comparisons():
        yield from ((rank, tile[0]) for tile in comparison.wrong_tiles)


def parameters(pairs: list[Pair], excuse: str) -> list[Any]:
    """Pairs for `parametrize`; those with an excuse have to fail."""
    return [pytest.param(pair, id=pair.name, marks=_marks(getattr(pair, excuse))) for pair in pairs]


def _marks(reason: str) -> list[Any]:
    return [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
