"""A kernel with its distributed calls lowered: which they are, where, on which cores."""

from __future__ import annotations

import pytest

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

from carried_kit import kernel_ir, prepared

from tdist.errors import KernelError
from tdist.frontend.kernel_ir import KernelIR
from tdist.ir.hivm import CustomOp, TCoreType
from tdist.ir.location import loc_of
from tdist.platforms.ascend.lowering.prepare import prepare


def test_calls_are_listed_in_order_with_symbol_line_and_core() -> None:
    made = prepared("derived")
    assert [call.symbol for call in made.calls] == [
        "aclshmem_my_pe",
        "aclshmem_ptr_half",
        "aclshmemx_signal_op",
        "aclshmem_wait_int32",
        "aclshmem_consume_token_half_ptr_1d",
    ]
    lines = [call.loc.line for call in made.calls if call.loc is not None]
    assert lines == sorted(lines)
    assert len(lines) == len(made.calls)
    assert {call.core for call in made.calls} == {TCoreType.VECTOR}
    assert not made.has_dot


def test_a_dot_puts_calls_on_both_kinds_of_core() -> None:
    made = prepared("dot_after_wait")
    assert made.has_dot
    assert {call.core for call in made.calls} == {TCoreType.CUBE_AND_VECTOR}


def test_the_module_keeps_its_lines() -> None:
    calls = [op for op in prepared("push").module.walk() if isinstance(op, CustomOp)]
    assert [loc_of(op) for op in calls] == [call.loc for call in prepared("push").calls]


def test_what_the_passes_lose_is_reported() -> None:
    assert [lost.op_name for lost in prepared("consumed_values").report.lost] == ["distributed.consume_token"]


def test_a_symbol_that_the_library_has_not_is_refused_at_its_line() -> None:
    ir = kernel_ir("transfers")
    misspelt = ir.ttir.replace("aclshmem_half_putmem_signal", "aclshmem_half_putmen_signal")
    with pytest.raises(KernelError, match=r"carried_kernels\.py:\d+: .*did you mean `aclshmem_half_putmem_signal`"):
        prepare(KernelIR(ir.name, misspelt, ir.args))
