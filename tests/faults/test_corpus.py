"""Every planted fault of `corpus/` is found by the default run, at its lines, and called what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fault_kit import MARKER, Pair
from fault_runs import all_pairs, default_run, parameters

from tdist.findings.kinds import KINDS

PAIRS = all_pairs()


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("pair", parameters(PAIRS, "missed"))
def test_the_default_run_finds_the_fault_at_its_lines(pair: Pair):
    outcome = default_run(pair, pair.faulty)
    assert outcome.verdict != "verified", "the faulty variant passes"
    missing = [expected for expected in pair.expected if not expected.is_in(outcome)]
    assert not missing, f"{'; '.join(map(str, missing))} not found; the run gave\n{outcome}"
    decisive = replace(outcome, findings=tuple(f for f in outcome.findings if f.fails(pair.profile)))
    assert any(expected.is_in(decisive) for expected in pair.expected), f"only notes were declared\n{outcome}"


@pytest.mark.parametrize("pair", parameters([pair for pair in PAIRS if pair.bug], "misjudged"))
def test_the_report_names_the_kind_of_bug(pair: Pair):
    outcome = default_run(pair, pair.faulty)
    assert outcome.bug == pair.bug, str(outcome)


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
    found = [pair for pair in PAIRS if not pair.missed]
    kinds = {expected.kind for pair in found for expected in pair.expected}
    assert len(found) >= 80
    assert len(kinds) >= 15, sorted(kinds)


NOT_PLANTED = frozenset[str]()
"""Kinds that the simulator gives and no fault of the corpus is for."""


def test_every_kind_that_the_simulator_gives_has_a_fault():
    given = {kind.removeprefix("tdist.") for kind in KINDS if not kind.startswith("tdist.compiled.")}
    planted = {expected.kind for pair in PAIRS if not pair.missed for expected in pair.expected}
    assert given - planted == NOT_PLANTED
