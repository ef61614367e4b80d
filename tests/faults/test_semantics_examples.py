"""The examples of the Triton-distributed semantics page are wrong as printed; corrected twins are clean."""

from __future__ import annotations

import pytest
import torch
from litmus_kit import DATA, MANY, OUT, SIG, STOPPED, Buf, finding, observe, race, settle, undrained
from semantics_examples import (
    producer_consumer,
    producer_consumer_as_printed,
    ring_allreduce,
    ring_allreduce_as_printed,
)

TILE = 16


def test_the_printed_snippet_takes_the_second_tiles_signal_for_the_first_and_then_hangs():
    """It signals slot 0 with 0, then 1; the wait for 1 on slot 0 returns late, the one on slot 1 never."""
    seen = observe(producer_consumer_as_printed, DATA, SIG, OUT, num_tiles=2, schedules=MANY)
    seen.always(undrained("store", "load"), finding("deadlock", "wait"))
    seen.outcomes({STOPPED})


def test_the_printed_snippet_with_three_tiles_can_overshoot_even_the_first_wait():
    """Slot 0 is set to 0, 1 and 2: the consumer may never see the 1."""
    seen = observe(producer_consumer_as_printed, DATA, SIG, OUT, num_tiles=3, schedules=MANY)
    stuck = finding("deadlock", "wait")
    seen.one_of({undrained("store", "load"), finding("overshoot", "notify", "wait"), stuck}, {stuck})
    seen.outcomes({STOPPED})


def test_the_corrected_snippet_is_clean_under_both_profiles():
    seen = observe(producer_consumer, DATA, SIG, OUT, num_tiles=4, schedules=MANY)
    seen.clean()
    seen.outcomes({(-1, (10, 11, 12, 13))})


def ring_inputs(rank: int, nranks: int, n: int) -> torch.Tensor:
    """Payload that depends on rank and position, so that no permutation of tiles or ranks goes unseen."""
    return torch.arange(nranks * n, dtype=torch.int32) * (rank + 1) + 1000 * rank


def run_printed(nranks: int, signals: str, schedules=MANY):
    buffers = (Buf("remote", nranks * TILE, fill=0), Buf("sig", 2 * nranks * 16))

    def host(rt, t):
        local = ring_inputs(rt.rank, nranks, TILE)
        ring_allreduce_as_printed[(nranks,)](local, t.remote, t.sig, rt.rank, nranks, nranks, signals)
        settle(rt)
        return tuple(local.tolist())

    return observe(None, *buffers, host=host, nranks=nranks, schedules=schedules)


def total(nranks: int, n: int) -> tuple[int, ...]:
    return tuple(sum(ring_inputs(rank, nranks, n) for rank in range(nranks)).tolist())


@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_the_printed_ring_waits_for_1_where_0_was_sent(nranks):
    """Step 0 sends `signal=step`, that is 0, and waits for 1: every program hangs in its first wait."""
    seen = run_printed(nranks, "as printed")
    seen.always(finding("deadlock", "wait"))
    seen.outcomes({STOPPED})
    assert f"{nranks * nranks} of {nranks * nranks} agents" in seen.text()


@pytest.mark.parametrize("nranks", [2, 3])
def test_the_printed_ring_with_repaired_signals_is_still_wrong(nranks):
    """It adds the tile that it sent, not the one that arrived, and all programs update every tile unordered."""
    seen = run_printed(nranks, "repaired")
    wrong = (total(nranks, TILE),) * nranks
    assert wrong not in {run.outcome for run in seen.runs}
    every = {race("local", "reduce"), race("reduce"), race("gather")}
    for run in seen.runs:
        assert {f.kind for f in run.found} == {"race"}, seen.text()
        assert every <= run.found, run.found
    some = frozenset().union(*(run.found for run in seen.runs))
    assert {race("send", "reduce"), race("send2", "reduce")} <= some, some
    if nranks > 2:  # the gather pushes into tiles that the reduction still reads
        assert race("push2", "receive") in some, some


@pytest.mark.parametrize("nranks", [2, 3, 4])
@pytest.mark.parametrize(("programs", "n"), [(1, TILE), (2, 2 * TILE), (3, 2 * TILE + 5)])
def test_the_corrected_ring_is_clean_and_sums(nranks, programs, n):
    launches = 2
    slots = 2 * (nranks - 1) * programs
    buffers = (Buf("sig", slots * 16), Buf("remote", 2 * nranks * n))  # signals first: whole 64-byte lines

    def host(rt, t):
        results = []
        for epoch in range(1, launches + 1):
            local = ring_inputs(rt.rank, nranks, n) * epoch
            ring_allreduce[(programs,)](local, t.remote, t.sig, epoch, rt.rank, nranks, n)
            results.append(local)
        settle(rt)
        return tuple(tuple(local.tolist()) for local in results)

    seen = observe(None, *buffers, host=host, nranks=nranks)
    seen.clean()
    once = total(nranks, n)
    want = tuple(tuple(v * epoch for v in once) for epoch in range(1, launches + 1))
    seen.outcomes({(want,) * nranks})
