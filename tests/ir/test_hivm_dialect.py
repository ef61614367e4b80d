"""`hivm` and `annotation`: round trips, and our syntax, enumerations and verifiers against the vendor's own."""

from __future__ import annotations

import re
from enum import StrEnum

import pytest
from hivm_oracle import ask_vendor, needs_bishengir, parse_any, vendor_reads
from ir_oracle import assert_same, show
from xdsl.utils.exceptions import ParseError, VerifyException

from tdist.ir import hivm
from tdist.ir.effects import Effects, effects

ON_VECTOR = "hivm.pipe = #hivm.pipe<PIPE_S>, hivm.tcore_type = #hivm.tcore_type<VECTOR>"
VALUES = '%e, %t, %m, %i = "t.values"() : () -> (i64, tensor<4xf16>, memref<16xi8>, i32)'
FORMS = {
    "set_flag": "hivm.hir.set_flag[<PIPE_MTE3>, <PIPE_S>, <EVENT_ID0>] {x = 1 : i32}",
    "set_flag by value": "hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, %e]",
    "wait_flag": "hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID7>]",
    "wait_flag by value": "hivm.hir.wait_flag[<PIPE_MTE3>, <PIPE_S>, %e]",
    "pipe_barrier": "hivm.hir.pipe_barrier[<PIPE_ALL>] {x}",
    "sync_block_set": "hivm.hir.sync_block_set[<CUBE>, <PIPE_FIX>, <PIPE_S>] flag = 0",
    "sync_block_set in full": (
        "hivm.hir.sync_block_set {x}[<CUBE>, <PIPE_FIX>, <PIPE_S>] flag = %e ffts_base_addr = %e"
        " sync_instr_mode = <INTER_BLOCK_SYNCHRONIZATION>"
    ),
    "sync_block_set with a mode": (
        "hivm.hir.sync_block_set[<VECTOR>, <PIPE_MTE3>, <PIPE_MTE2>] flag = 4"
        " sync_instr_mode = <INTRA_BLOCK_SYNCHRONIZATION>"
    ),
    "sync_block_wait": "hivm.hir.sync_block_wait {y}[<VECTOR>, <PIPE_FIX>, <PIPE_S>] flag = -3",
    "sync_block_wait by value": "hivm.hir.sync_block_wait[<CUBE_AND_VECTOR>, <PIPE_FIX>, <PIPE_S>] flag = %e",
    "mark": "annotation.mark %t {ContinuousMemAccess} : tensor<4xf16>",
    "custom, bare": f'hivm.hir.custom {{{ON_VECTOR}, symbol = "f"}} "x"',
    "custom, operands": f'hivm.hir.custom {{{ON_VECTOR}, symbol = "f"}} "x" ins(%i, %m : i32, memref<16xi8>)',
    "custom, result": f'%r = hivm.hir.custom {{{ON_VECTOR}, no_side_effect, symbol = "f"}} "x" ins(%i : i32) -> i32',
    "custom, every part": (
        f'%r, %s = hivm.hir.custom {{{ON_VECTOR}, symbol = "f"}} "x" ins(%i, %e : i32, i64)'
        " outs(%t : tensor<4xf16>) tmps(%m : memref<16xi8>) -> (tensor<4xf16>, i32)"
    ),
    "custom, modes": (
        f'hivm.hir.custom {{{ON_VECTOR}, hivm.vf_mode = #hivm.vf_mode<SIMT>, symbol = "f"}} "x"'
        " outs(%m : memref<16xi8>)"
    ),
    "get_sub_block_idx": "%r = hivm.hir.get_sub_block_idx -> i64",
    "get_block_idx": "%r = hivm.hir.get_block_idx -> i64",
    "set_mask_norm": "hivm.hir.set_mask_norm",
    "set_ffts_base_addr": "hivm.hir.set_ffts_base_addr %e",
    "bitcast": "%r = hivm.hir.bitcast %m : memref<16xi8> -> memref<16xf8E5M2>",
    "pointer_cast": "%r = hivm.hir.pointer_cast(%e) : memref<16xf16, #hivm.address_space<ub>>",
    "pointer_cast of two": "%r = hivm.hir.pointer_cast(%e, %e) {x} : memref<16xf16, #hivm.address_space<cc>>",
}


def module_of(*lines: str):
    return parse_any("\n".join((VALUES, *lines)))


@pytest.mark.parametrize("form", FORMS)
def test_round_trip_keeps_the_text(form: str) -> None:
    module = module_of(FORMS[form])
    module.verify()
    printed = show(module)
    assert FORMS[form] in printed
    assert_same(parse_any(printed), module)
    assert_same(parse_any(show(module, generic=True)), module)


def test_every_operation_has_a_form() -> None:
    names = {op.name for text in FORMS.values() for op in module_of(text).walk()}
    assert {cls.name for cls in hivm.Hivm.operations} <= names


@needs_bishengir
def test_the_vendors_tool_reads_both_forms_as_we_do() -> None:
    module = module_of(*(text.replace("%r", f"%r{i}").replace("%s", f"%s{i}") for i, text in enumerate(FORMS.values())))
    for text in (show(module), show(module, generic=True)):
        assert_same(parse_any(vendor_reads(text)), module)
        assert_same(parse_any(vendor_reads(text, "--mlir-print-op-generic")), module)


REFUSED = {
    "no core type": ('hivm.hir.custom "x"', "Missing core type information"),
    "core type of another kind": (
        'hivm.hir.custom {hivm.tcore_type = 1 : i32} "x"',
        "Missing core type information",
    ),
    "no pipe": (
        'hivm.hir.custom {hivm.tcore_type = #hivm.tcore_type<CUBE>, symbol = "f"} "x"',
        "Missing pipe information",
    ),
    "no symbol": (f'hivm.hir.custom {{{ON_VECTOR}}} "x"', "Missing implementation function name"),
    "empty symbol": (f'hivm.hir.custom {{{ON_VECTOR}, symbol = ""}} "x"', "Missing implementation function name"),
    "buffers without sizes": (
        f'hivm.hir.custom {{{ON_VECTOR}, extra_buffers_types = [f16], symbol = "f"}} "x"',
        "Either extra buffers' types or sizes missing",
    ),
    "fewer sizes than buffers": (
        f'hivm.hir.custom {{{ON_VECTOR}, extra_buffers_sizes = [], extra_buffers_types = [f16], symbol = "f"}} "x"',
        "Extra buffers' types and sizes mismatch",
    ),
    "a tensor result without destination": (
        f'%r = hivm.hir.custom {{{ON_VECTOR}, symbol = "f"}} "x" -> tensor<4xf16>',
        "expected the number of tensor results (1) to be equal to the number of output tensors (0)",
    ),
    "no event": (
        '"hivm.hir.set_flag"() <{set_pipe = #hivm.pipe<PIPE_V>, wait_pipe = #hivm.pipe<PIPE_S>}> : () -> ()',
        "Event ID is needed!",
    ),
    "two events": (
        '"hivm.hir.wait_flag"(%e) <{set_pipe = #hivm.pipe<PIPE_V>, static_event_id = #hivm.event<EVENT_ID0>,'
        " wait_pipe = #hivm.pipe<PIPE_S>}> : (i64) -> ()",
        "Only one Event ID is supported!",
    ),
    "no flag": (
        '"hivm.hir.sync_block_wait"() <{pipe = #hivm.pipe<PIPE_S>, tcore_type = #hivm.tcore_type<CUBE>,'
        " tpipe = #hivm.pipe<PIPE_FIX>}> : () -> ()",
        "Flag ID is needed!",
    ),
    "no address": (
        '"hivm.hir.pointer_cast"() <{operandSegmentSizes = array<i32: 0, 0>}> : () -> memref<4xf16>',
        "addrs of PointerCastOp should not be empty!",
    ),
    "a size too few": (
        "%r = hivm.hir.pointer_cast(%e) : memref<?xf16>",
        "expected 1 dynamic size operands, but found 0",
    ),
    "two flags": (
        '"hivm.hir.sync_block_set"(%e) <{operandSegmentSizes = array<i32: 1, 0>, pipe = #hivm.pipe<PIPE_S>,'
        " static_flag_id = 0 : i64, tcore_type = #hivm.tcore_type<CUBE>, tpipe = #hivm.pipe<PIPE_FIX>}>"
        " : (i64) -> ()",
        "Only one flag ID is supported!",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_verifier_texts(case: str) -> None:
    text, message = REFUSED[case]
    with pytest.raises(VerifyException, match=re.escape(message)):
        module_of(text).verify()


@needs_bishengir
@pytest.mark.parametrize("case", REFUSED)
def test_verifier_texts_are_the_vendors(case: str) -> None:
    text, message = REFUSED[case]
    done = ask_vendor(f"{VALUES}\n{text}\n")
    assert done.returncode != 0
    assert f"op {message}" in done.stderr


ENUMERATIONS = {
    "pipe": hivm.Pipe,
    "tcore_type": hivm.TCoreType,
    "vf_mode": hivm.VFMode,
    "event": hivm.Event,
    "sync_block_instr_mode": hivm.SyncBlockInstrMode,
}


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_an_unknown_keyword_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ParseError, match=f"expected one of {', '.join(ENUMERATIONS[name])}, got 'NONE'"):
        parse_any(f"module attributes {{t.x = #hivm.{name}<NONE>}} {{}}")


@needs_bishengir
@pytest.mark.parametrize("name", ENUMERATIONS)
def test_enumerations_are_the_vendors(name: str) -> None:
    keywords: type[StrEnum] = ENUMERATIONS[name]
    done = ask_vendor(f"module attributes {{t.x = #hivm.{name}<NONE>}} {{}}")
    (listed,) = re.findall(r"to be one of: (.*)", done.stderr)
    assert listed.split(", ") == list(keywords)


def test_effects_follow_the_mark() -> None:
    module = module_of(*(text for form, text in FORMS.items() if form in ("custom, bare", "custom, result")))
    calls = [op for op in module.walk() if isinstance(op, hivm.CustomOp)]
    assert [effects(call) for call in calls] == [Effects.BOTH, Effects.NONE]


@pytest.mark.parametrize("form", ["set_flag", "wait_flag", "pipe_barrier", "sync_block_set", "sync_block_wait", "mark"])
def test_nothing_may_drop_what_orders(form: str) -> None:
    (*_, op) = module_of(FORMS[form]).walk()
    assert effects(op) == Effects.BOTH
