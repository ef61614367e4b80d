"""Synchronisation deleted from real modules, one piece at a time: what is needed is missed, what is not is proven so.

`benchmarks/deleted_flags.py` does it over all kernels of this folder.
"""

from __future__ import annotations

import order_kernels
import pytest
from deletions import Outcome, Piece, meeting_pairs, outcomes, pieces
from order_kit import final, ordinary
from vendor_oracle import needs_adapter, needs_compiler
from xdsl.ir import Operation

from tdist.ir import hivm
from tdist.platforms.ascend.compiled.final_module import FinalModule

pytestmark = [needs_adapter, needs_compiler]

KERNELS = {
    "vector_add_strided": lambda: ordinary("vector_add_strided"),
    "softmax_rows": lambda: ordinary("softmax_rows"),
    "matmul": lambda: ordinary("matmul"),
    "matmul_bias_relu": lambda: ordinary("matmul_bias_relu"),
    "in_place": lambda: ordinary("in_place"),
    "two_phases": lambda: ordinary("two_phases"),
    "push_fence": lambda: final(order_kernels.push_fence),
    "give_back": lambda: final(order_kernels.give_back),
}


REDUNDANT = {
    # the scalar unit has read a buffer before it issues anything that overwrites it; the maximum waits inside
    "softmax_rows": {"PIPE_S → PIPE_V", "PIPE_V → PIPE_S"},
    # a second flag between the same pipes, raised later, says the same and more
    "two_phases": {"PIPE_MTE3 → PIPE_MTE2"},
    # the second of two branches on one condition repeats a barrier of the first, with nothing of its own in between
    "vector_add_strided": {"PIPE_V"},
}
"""Kernel → pipes of what the compiler puts though the order that it gives holds without it, and why."""


def _redundant(module: FinalModule, found: list[Outcome]) -> set[str]:
    """The pipes of redundant pieces."""
    return {_pipes(module.op(part.ref)) for outcome in found if not outcome.reported for part in outcome.piece.parts}


def _pipes(op: Operation) -> str:
    if isinstance(op, hivm.PipeBarrierOp):
        return op.pipe.data.value
    assert isinstance(op, (hivm.SetFlagOp, hivm.WaitFlagOp))
    return f"{op.set_pipe.data.value} → {op.wait_pipe.data.value}"


def _is_last(module: FinalModule, piece: Piece) -> bool:
    """Whether it is the barrier in front of the function's end, behind which nothing comes."""
    following = [module.op(part.ref).next_op for part in piece.parts]
    return all(op is not None and op.name == "func.return" for op in following)


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_needed_is_missed_and_the_rest_is_redundant(name: str) -> None:
    module = KERNELS[name]()
    found = [outcome for outcome in outcomes(module) if not _is_last(module, outcome.piece)]
    assert sum(outcome.order > 0 for outcome in found) >= 1
    assert all(outcome.complete for outcome in found)  # so that silence is a proof
    assert _redundant(module, found) == REDUNDANT.get(name, set())


@pytest.mark.parametrize("name", KERNELS)
def test_behind_the_last_barrier_nothing_needs_order(name: str) -> None:
    module = KERNELS[name]()
    last = [piece for piece in pieces(module) if _is_last(module, piece)]
    assert len(last) == len(module.functions)
    assert not any(outcome.reported for outcome in outcomes(module, last))


def test_a_flag_of_a_loop_meets_before_in_and_behind_it() -> None:
    module = ordinary("in_place")
    pairs = meeting_pairs(module)
    assert len({set_ for set_, _ in pairs}) < len(pairs)  # a set in front of the loop and one in it, one wait in it
    assert any(piece.kind == "group" for piece in pieces(module))
