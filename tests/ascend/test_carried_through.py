"""Distributed calls through the vendor's adapter and compiler: each access ends in the memory that it was meant for."""

from __future__ import annotations

import functools
import re

import pytest
from vendor_oracle import needs_adapter, needs_compiler

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

from carried_kit import KERNELS, line, prepared
from memory_origins import accesses, library_calls

from tdist.errors import KernelError
from tdist.platforms.ascend.lowering.adapter import Linalg, to_linalg
from tdist.platforms.ascend.lowering.bishengir import compile_linalg
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions

MEMORY: dict[str, tuple[str, ...]] = {
    "push": ("load x", "store ptr(buf)", "load token(buf)", "store out"),
    "derived": ("load x", "store ptr(buf)", "load token(buf)", "store x"),
    "chain": ("load token(token(buf))", "load token(ptr(buf))", "store out"),
    "wide_words": ("store token(out)",),
    "values": ("store out",),
    "consumed_values": ("load buf", "store out"),
    "transfers": (),
    "barrier": ("load x", "store ptr(buf)", "load buf", "store out"),
    "scalars": ("load token(buf)", "store ptr(buf)"),
    "gather": ("load sig", "load ptr(buf)", "store out"),
    "atomics": ("load x", "store token(out)", "store ptr(buf)"),
    "remote_cas": ("load ptr(sig)", "store ptr(sig)", "store sig"),
    "for_scalar": ("load x", "store ptr(buf)"),
    "for_tensor": ("load x", "store ptr(buf)"),
    "while_scalar": ("load x", "store ptr(buf)"),
    "if_both": ("load x", "store ptr(buf)"),
    "if_local": ("load x", "store buf | ptr(buf)"),
    "if_nested": ("load x", "store ptr(buf)", "store buf | token(ptr(buf))"),
    "if_tensor": ("load x", "store ptr(buf) | token(ptr(buf))"),
    "if_stores": ("load x", "store buf", "store ptr(buf)"),
    "if_notifies": (),
    "choice": ("load x", "store buf | token(ptr(buf))"),
    "early_return": ("load x", "store ptr(buf)"),
    "through_integers": ("load x", "store address"),
    "token_carried": ("load token(buf)", "store out"),
    "token_merged": ("load token(buf)", "store out"),
    "consume_tensor": ("load token(buf)", "store out"),
    "consume_remote_tensor": ("load token(token(ptr(buf)))", "store out"),
    "consume_tensor_in_loop": ("load token(buf)", "store out"),
    "consume_tensor_in_while": ("load token(ptr(buf))", "store out"),
    "consume_scalar_in_loop": ("load token(buf)", "store out"),
    "consume_sometimes_in_loop": ("load buf | token(buf)", "store out"),
    "consume_block": ("load token(buf)", "store out"),
    "consume_block_in_loop": ("load token(buf)", "store out"),
    "block_on_remote": ("load x", "store ptr(buf)"),
    "block_on_consumed": ("load token(buf)", "store out"),
    "cast_then_remote": ("store ptr(buf)",),
    "remote_then_cast": ("store ptr(buf)",),
    "cast_to_words": ("store wide",),
    "plain_if_tensor": ("store x",),
    "plain_if": ("store x",),
    "plain_cast": ("store x",),
    "plain_table": ("load wide", "load address", "store out"),
    "dot_after_wait": ("load x", "store ptr(buf)", "load token(buf)", "store out"),
}
"""What each kernel accesses, read off its source."""

REFUSED: dict[str, tuple[str, str]] = {
    "two_arguments": ("`if` merges pointers of two arguments, 'buf' and 'x'", "if n > 0"),
    "two_arguments_carried": ("`for` carries.* pointers of two arguments, 'x' and 'buf'", "for i in"),
    "walking_from_peer_to_peer": ("changes from one turn of the loop to the next, by aclshmem_ptr_half", "for i in"),
    "walking_while": ("changes from one turn of the loop to the next, by aclshmem_ptr_half", "while i"),
    "from_an_integer": ("comes from an integer, not from an argument", "<integer>"),
    "cast_after_odd_step": ("no whole number of the new elements", "<cast>"),
    "cast_out_of_a_table": ("triton-adapter-opt .* crashes on kernel", "def cast_out_of_a_table"),
    "tensors_of_two_memories": ("triton-adapter-opt .* crashes on kernel", "tl.where"),
}

ADDED = {"if_nested": 1, "choice": 1}
"""Identity calls that make the vendor's compiler see memory behind branches."""

OTHER_FORM = {"consume_block_in_loop": "extern"}
OFFSETS = {"plain_if", "plain_if_tensor", "cast_to_words"}
"""Kernels of one card whose pointers travel as offsets."""


@functools.cache
def linalg(name: str) -> Linalg:
    with Steps() as steps:
        return to_linalg(prepared(name), CompileOptions(), steps)


@functools.cache
def final_text(name: str, barrier_all: bool) -> str:
    options = CompileOptions(inject_barrier_all=barrier_all)
    with Steps() as steps:
        return compile_linalg(linalg(name), "Ascend910B3", options, steps).final_text


def test_every_kernel_has_its_expectation() -> None:
    assert {*MEMORY, *REFUSED} == set(KERNELS)
    assert len(MEMORY) >= 40


@needs_adapter
@needs_compiler
@pytest.mark.parametrize("barrier_all", [False, True], ids=["fine", "barrier"])
@pytest.mark.parametrize("name", MEMORY)
def test_each_access_is_in_the_memory_that_it_was_meant_for(name: str, barrier_all: bool) -> None:
    names = [arg.name for arg in prepared(name).args]
    assert accesses(final_text(name, barrier_all), names) == set(MEMORY[name])


@needs_adapter
@needs_compiler
@pytest.mark.parametrize("name", MEMORY)
def test_each_call_is_in_the_final_module_once_a_core_at_its_line(name: str) -> None:
    expected = [(_of_memory(call.symbol), call.loc) for call in prepared(name).calls]
    by_core = library_calls(final_text(name, False))
    for core, found in by_core.items():
        known = [call for call in found if call in expected]
        if core:  # halves of a mix kernel need not have what only the other half uses
            assert set(known) <= set(expected)
        else:
            assert sorted(known, key=str) == sorted(expected, key=str)
            assert len(found) - len(known) == ADDED.get(name, 0)
    together = {call for found in by_core.values() for call in found}
    assert set(expected) <= together


def _of_memory(symbol: str) -> str:
    """On memory, a token is consumed on all that is behind many pointers."""
    return re.sub(r"_ptr_\dd$", "_ptr_1d", symbol)


@needs_adapter
@pytest.mark.parametrize("name", MEMORY)
def test_the_form_and_what_is_noted_of_it(name: str) -> None:
    made = linalg(name)
    travels = bool(prepared(name).calls) or name in OFFSETS
    assert made.form == (OTHER_FORM.get(name, "call") if travels else "direct")
    assert len(made.notes) == (name in OTHER_FORM) + (name in ADDED)
    assert all(str(prepared(name).calls[0].loc).rpartition(":")[0] in note for note in made.notes if name in ADDED)
    assert "tdist_site" not in made.text


@needs_adapter
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_is_refused_with_reason_and_line(name: str) -> None:
    words, marker = REFUSED[name]
    with pytest.raises(KernelError, match=words) as refused:
        linalg(name)
    assert line(name, marker) in str(refused.value)
