"""The corrected twin of every planted fault is verified, with nothing found and nothing suppressed."""

from __future__ import annotations

import pytest
import torch
from fault_kit import Pair, weighs
from fault_runs import all_pairs, default_run, parameters


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("pair", parameters(all_pairs(), "false_alarm"))
def test_the_twin_is_silent(pair: Pair):
    outcome = default_run(pair, pair.twin)
    loud = [f for f in outcome.findings if weighs(f) or f.kind.removeprefix("tdist.") not in pair.notes]
    assert outcome.verdict == "verified" and not loud, str(outcome)
    assert not outcome.suppressed and not outcome.bug
