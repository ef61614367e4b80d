"""Every planted fault of `corpus/` is found by the default run, at its lines; its corrected twin is silent."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fault_kit import MARKER, Outcome, Pair, module_pairs, weighs

from tdist.findings.kinds import KINDS
from tdist.verify import Operator, verify
from tdist.verify.results import StepResult

FILES = sorted((Path(__file__).parent / "corpus").glob("corpus_*.py"))
PAIRS = module_pairs(*(importlib.import_module(file.stem) for file in FILES))


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def default_run(pair: Pair, variant: Operator) -> Outcome:
    """What `tdist-verify` would say, in this process."""
    report = verify(variant, pair.options(variant), in_process=True)
    steps = [step for mode in report.modes for step in mode.steps]
    wrong = {(rank, tile[0]) for step in steps if step.name == "exact" for rank, tile in wrong_tiles(step)}
    errors = [error for step in steps for error in (step.error, *(run.error for run in step.runs)) if error]
    return Outcome(report.verdict, tuple(report.log), frozenset(wrong), tuple(dict.fromkeys(errors)))


def wrong_tiles(step: StepResult) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(rank, tile) of all outputs of a step that are not the golden's."""
    for rank, _, _, comparison in step.comparisons():
        yield from ((rank, tile) for tile in comparison.wrong_tiles)


def params(excuse: str) -> list:
    """All pairs; those with an excuse have to fail."""
    given = []
    for pair in PAIRS:
        reason = getattr(pair, excuse)
        marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
        given.append(pytest.param(pair, id=pair.name, marks=marks))
    return given


@pytest.mark.parametrize("pair", params("missed"))
def test_the_default_run_finds_the_fault_at_its_lines(pair: Pair):
    outcome = default_run(pair, pair.faulty)
    assert outcome.verdict != "verified", "the faulty variant passes"
    missing = [expected for expected in pair.expected if not expected.is_in(outcome)]
    assert not missing, f"{'; '.join(map(str, missing))} not found; the run gave\n{outcome}"


@pytest.mark.parametrize("pair", params("false_alarm"))
def test_the_twin_is_silent(pair: Pair):
    outcome = default_run(pair, pair.twin)
    loud = [f for f in outcome.findings if weighs(f) or f.kind.removeprefix("tdist.") not in pair.notes]
    assert outcome.verdict == "verified" and not loud, str(outcome)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_declaration_is_sound(pair: Pair):
    assert pair.expected and pair.why and pair.source
    named = set().union(*(expected.lines for expected in pair.expected))
    known = MARKER.findall(pair.faulty.source.read_text(encoding="utf-8"))
    assert named <= set(known), f"no such line: {named - set(known)}"
    assert not [line for line in named if known.count(line) > 1], "a marker stands at two lines"
    for expected in pair.expected:
        assert expected.kind in ("wrong", "refused") or f"tdist.{expected.kind}" in KINDS, expected.kind


def test_there_are_many_faults_of_many_kinds():
    kinds = {expected.kind for pair in PAIRS for expected in pair.expected}
    assert len(PAIRS) >= 80
    assert len(kinds) >= 15, sorted(kinds)


NOT_PLANTED = frozenset[str]()
"""Kinds that the simulator gives and no fault of the corpus is for."""


def test_every_kind_that_the_simulator_gives_has_a_fault():
    given = {kind.removeprefix("tdist.") for kind in KINDS if not kind.startswith("tdist.compiled.")}
    planted = {expected.kind for pair in PAIRS if not pair.missed for expected in pair.expected}
    assert given - planted == NOT_PLANTED
