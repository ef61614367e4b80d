"""A buffer that a loop hands on unchanged is the one that was chosen before it, not one of those that could be."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import triton
import triton.language as tl

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, whose adapter it runs")
pytest.importorskip("ascendnpuir", reason="waits for ascendnpu-ir, whose compiler it runs")

from effects_kit import build, kinds

from tdist.findings import to_text
from tdist.platforms.ascend.ordering import check_ordering


@triton.jit
def summed_parts(x, c, n, parts, B: tl.constexpr):
    """The sum has two buffers in turn; the inner loop hands on the one of this turn, the store reads it."""
    for start in range(tl.program_id(0) * B, n, tl.num_programs(0) * B):  # pyright: ignore[reportArgumentType]
        offs = start + tl.arange(0, B)
        total = tl.zeros((B,), dtype=tl.float32)
        for part in range(0, parts):
            total += tl.load(x + part * n + offs, mask=offs < n, other=0.0)
        tl.store(c + offs, total, mask=offs < n)


SUM_LINE = inspect.getsourcelines(summed_parts.fn)[1] + 7
TYPES = {"x": "*fp32", "c": "*fp32", "parts": "i32"}


def compiled() -> Any:
    _, final = build(summed_parts, TYPES)
    return final


def test_a_turn_of_the_outer_loop_meets_the_buffer_that_it_chose() -> None:
    """What 1.2.0 leaves unordered is one sum after another into the buffer of one turn; nothing of two turns."""
    loops = [op for op in compiled().all_ops() if op.name == "scf.for" and len(op.operands) > 3]
    assert loops, "no loop carries a buffer: this kernel shows nothing any more"
    findings = check_ordering(compiled())
    text = "\n".join(map(to_text, findings))
    assert {party.line for finding in findings for party in finding.parties} <= {SUM_LINE}, text
    assert all("vadd" in (party.op or "") for finding in findings for party in finding.parties), text


def test_without_the_flags_from_the_store_it_is_not() -> None:
    final = compiled().clone()
    for op in [op for op in final.all_ops() if op.name in ("hivm.hir.set_flag", "hivm.hir.wait_flag")]:
        if "MTE3" in str(op.properties["set_pipe"]) and "PIPE_V" in str(op.properties["wait_pipe"]):
            op.detach()
            op.erase()
    assert set(kinds(check_ordering(final))) == {"pipe-order"}
