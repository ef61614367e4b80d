"""Ordinary kernels, without distributed operations: the check has nothing to say about what the vendor's solver did."""

from __future__ import annotations

import pytest
from order_kit import kinds, ordinary
from ordinary_kernels import ORDINARY
from vendor_oracle import needs_adapter, needs_compiler

from tdist.platforms.ascend.compiled.order import check_order
from tdist.platforms.ascend.ordering import check_ordering

pytestmark = [needs_adapter, needs_compiler]

SCALAR_READS = {"softmax", "softmax_rows", "layer_norm", "rms_norm", "running_sum"}
"""Kernels that read a reduction's result from the unified buffer by the scalar unit."""


@pytest.mark.parametrize("name", ORDINARY)
def test_silent_on_the_compilers_own_synchronisation(name: str) -> None:
    assert check_ordering(ordinary(name)) == []


@pytest.mark.parametrize("name", sorted(set(ORDINARY) - SCALAR_READS))
def test_silent_on_the_barrier_mode(name: str) -> None:
    assert check_ordering(ordinary(name, barrier_all=True)) == []


@pytest.mark.parametrize("name", sorted(SCALAR_READS))
def test_the_barrier_mode_forgets_scalar_reads_of_the_unified_buffer(name: str) -> None:
    """1.2.0 puts a barrier before every operation of a pipe, but `memref.load` is none; its own solver puts a flag."""
    findings = check_ordering(ordinary(name, barrier_all=True))
    assert findings and set(kinds(findings)) == {"pipe-order"}
    assert {finding.parties[1].op for finding in findings} == {"scalar load (memref.load, PIPE_S)"}
    assert {finding.parties[1].tensor for finding in findings} == {"the unified buffer"}
    flags = [op for op in ordinary(name).all_ops() if op.name == "hivm.hir.wait_flag"]
    assert any("PIPE_S" in str(op.properties["wait_pipe"]) for op in flags)


@pytest.mark.parametrize("barrier_all", [False, True], ids=["fine", "barrier-all"])
def test_a_maximum_is_waited_for_inside_and_a_sum_is_not(barrier_all: bool) -> None:
    """As the device templates' bitcode has it: softmax reads both by the scalar unit, without its flags."""
    final = ordinary("softmax", barrier_all=barrier_all).clone()
    for op in [op for op in final.all_ops() if op.name in ("hivm.hir.set_flag", "hivm.hir.wait_flag")]:
        if "PIPE_S" in str(op.properties["wait_pipe"]):
            op.detach()
            op.erase()
    findings = check_ordering(final)
    assert set(kinds(findings)) == {"pipe-order"}
    made = " ".join(party.op for finding in findings for party in finding.parties)
    assert "enablevc_reduce_sum_r_float" in made and "reduce_max" not in made


def test_every_way_through_is_walked() -> None:
    for name in ORDINARY:
        assert check_order(ordinary(name)).complete, name


def test_there_are_more_than_ten_with_loops_branches_and_both_cores() -> None:
    assert len(ORDINARY) >= 10
    assert sum(ordinary(name).mixed for name in ORDINARY) >= 3
