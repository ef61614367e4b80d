"""The vendor's generic text ↔ xDSL: what is printed again, the vendor's own tool reads to the same module."""

from __future__ import annotations

import time

import pytest
from vendor_oracle import canonical, needs_compiler
from xdsl.dialects.builtin import AffineMapAttr, FloatAttr, NameLoc, UnregisteredOp

from tdist.errors import EnvironmentUnfit
from tdist.ir.hivm import Pipe, SetFlagOp
from tdist.ir.location import SourceLoc, loc_of
from tdist.platforms.ascend.compiled.generic_text import VerbatimAttr, print_generic, read_generic

LOCATIONS = """#loc = loc("k.py":1:0)
#loc9 = loc(unknown)
"builtin.module"() ({
  "func.func"() <{function_type = (i32) -> i32, sym_name = "f"}> ({
  ^bb0(%arg0: i32 loc("k.py":1:2)):
    %0 = "arith.addi"(%arg0, %arg0) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32 loc(#loc3)
    %1 = "arith.addi"(%0, %0) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32 loc(#loc4)
    %2 = "arith.addi"(%1, %0) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32 loc(#loc5)
    %3 = "arith.addi"(%2, %0) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32 loc(#loc9)
    "func.return"(%3) : (i32) -> () loc(#loc)
  }) : () -> () loc(#loc)
}) : () -> () loc(#loc)
#loc1 = loc("k.py":7:4)
#loc2 = loc("a \\"b\\" c.py":3:5)
#loc3 = loc("name"(#loc1))
#loc4 = loc(callsite(#loc1 at #loc2))
#loc5 = loc(fused[#loc9, #loc4])
"""

SHAPES = """#map = affine_map<()[s0, s1, s2] -> (s0 + s1 * s2)>
#map1 = affine_map<()[s0, s1] -> (s0 floordiv s1)>
#map2 = affine_map<(d0) -> (d0 mod 2)>
#set = affine_set<(d0) : (d0 - 1 >= 0)>
"builtin.module"() ({
  "func.func"() <{function_type = (index, memref<?x4xf16, strided<[?, 1], offset: ?>>) -> (), sym_name = "f"}> ({
  ^bb0(%arg0: index, %arg1: memref<?x4xf16, strided<[?, 1], offset: ?>>):
    %0 = "affine.apply"(%arg0, %arg0, %arg0) <{map = #map}> : (index, index, index) -> index
    %1 = "affine.apply"(%0, %arg0) <{map = #map1}> : (index, index) -> index
    %2 = "affine.apply"(%1) <{map = #map2}> : (index) -> index
    %3 = "arith.constant"() <{value = 0xFF800000 : f32}> : () -> f32
    %4 = "arith.constant"() <{value = dense<0x7E00> : tensor<4xf16>}> : () -> tensor<4xf16>
    %5 = "arith.constant"() <{value = true}> : () -> i1
    %9 = "arith.constant"() <{value = dense<[0x7E00, 1.000000e+00]> : tensor<2xf16>}> : () -> tensor<2xf16>
    %6:2 = "scf.if"(%5) ({
      "scf.yield"(%0, %3) : (index, f32) -> ()
    }, {
      "scf.yield"(%1, %3) : (index, f32) -> ()
    }) {hivm.unlikely_condition, note = "#map1 stays", floats = [0x7F800000 : f32]} : (i1) -> (index, f32)
    "scf.if"(%5) ({
      %8 = "some.where"(%6#1, %6#0) <{a = array<i32: 1, 2>, set = #set}> : (f32, index) -> !some.kind<4, "x">
      "scf.yield"() : () -> ()
    }, {
    }) : (i1) -> ()
    "hivm.hir.set_flag"() <{set_pipe = #hivm.pipe<PIPE_V>, static_event_id = #hivm.event<EVENT_ID0>, wait_pipe = #hivm.pipe<PIPE_MTE3>}> : () -> ()
    "func.return"() : () -> ()
  }) {hacc.function_kind = #hacc.function_kind<DEVICE>} : () -> ()
  "func.func"() <{function_type = (i1, i32) -> i32, sym_name = "g"}> ({
  ^bb0(%arg0: i1, %arg1: i32):
    "cf.cond_br"(%arg0, %arg1)[^bb1, ^bb2] <{operandSegmentSizes = array<i32: 1, 1, 0>}> : (i1, i32) -> ()
  ^bb1(%0: i32):  // pred: ^bb0
    "func.return"(%0) : (i32) -> ()
  ^bb2:  // pred: ^bb0
    %1:2 = "some.pair"() : () -> (i32, i32)
    "cf.br"(%1#1)[^bb1] : (i32) -> ()
  }) : () -> ()
}) : () -> ()
"""  # noqa: E501


def all_named(module, name: str):
    found = [op for op in module.walk() if (op.op_name.data if isinstance(op, UnregisteredOp) else op.name) == name]
    assert found
    return found


def test_every_kind_of_location_leads_to_the_kernel() -> None:
    module = read_generic(LOCATIONS)
    named, called, fused, unknown = all_named(module, "arith.addi")
    inner, outer = SourceLoc("k.py", 7, 4), SourceLoc('a "b" c.py', 3, 5)
    assert loc_of(named) == inner
    assert isinstance(named.location, NameLoc)
    assert loc_of(called) == SourceLoc(inner.file, inner.line, inner.col, (outer,))
    assert loc_of(fused) == loc_of(called)
    assert loc_of(unknown) is None
    assert loc_of(all_named(module, "func.return")[0]) == SourceLoc("k.py", 1, 0)


def test_maps_that_xdsl_cannot_take_stay_text() -> None:
    product, quotient, plain = (op.properties["map"] for op in all_named(read_generic(SHAPES), "affine.apply"))
    assert isinstance(product, VerbatimAttr)
    assert quotient == VerbatimAttr("affine_map<()[s0, s1] -> (s0 floordiv s1)>")
    assert isinstance(plain, AffineMapAttr)


def test_floats_by_their_bits_are_numbers() -> None:
    minus_infinity, nans, _, mixed = (
        op.properties["value"] for op in all_named(read_generic(SHAPES), "arith.constant")
    )
    assert isinstance(mixed, VerbatimAttr)
    assert isinstance(minus_infinity, FloatAttr)
    assert minus_infinity.value.data == float("-inf")
    assert all(value != value for value in nans.get_values())  # pyright: ignore[reportAttributeAccessIssue]


def test_our_classes_are_used_where_we_have_them() -> None:
    (flag,) = all_named(read_generic(SHAPES), "hivm.hir.set_flag")
    assert isinstance(flag, SetFlagOp)
    assert flag.set_pipe.data is Pipe.V
    (unknown,) = all_named(read_generic(SHAPES), "some.where")
    assert isinstance(unknown, UnregisteredOp)
    assert "a" in unknown.properties


@pytest.mark.parametrize("text", [LOCATIONS, SHAPES], ids=["locations", "shapes"])
def test_printing_and_reading_again_changes_nothing(text: str) -> None:
    once = print_generic(read_generic(text))
    assert print_generic(read_generic(once)) == once


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "there is no module in it"),
        ('"builtin.module"() ({\n', "ends before its module does"),
        ('"builtin.module"() ({\n  "a.b"(%0) : (i32) -> ()\n}) : () -> ()\n', r"line 2: unknown name '%0'"),
        ('"builtin.module"() ({\n  "a.b"() : () -> i\n}) : () -> ()\n', "line 2: cannot read 'i'"),
        ('"builtin.module"() ({\n  a.b : () -> i32\n}) : () -> ()\n', "line 2: expected an operation in generic form"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, words: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=words):
        read_generic(text)


def test_a_module_of_many_operations_is_read_and_printed_in_a_fraction_of_a_millisecond_each() -> None:
    line = '    %{0} = "arith.addi"(%arg0, %arg0) <{{overflowFlags = #arith.overflow<none>}}> : (i32, i32) -> i32'
    line += " loc(#loc{0})\n"
    head, _, tail = LOCATIONS.partition('    %0 = "arith.addi"')
    body = "".join(line.format(number) for number in range(10, 2010))
    places = "".join(f'#loc{number} = loc("k.py":{number}:0)\n' for number in range(10, 2010))
    text = f'{head}{body}    %0 = "arith.addi"{tail}{places}'
    began = time.process_time()
    module = read_generic(text)
    print_generic(module)
    assert time.process_time() - began < 2.0
    assert len(all_named(module, "arith.addi")) == 2004


@needs_compiler
@pytest.mark.parametrize("text", [LOCATIONS, SHAPES], ids=["locations", "shapes"])
def test_the_vendors_tool_reads_what_is_printed_to_the_same_module(text: str) -> None:
    printed = canonical(text, "--mlir-print-op-generic")
    assert canonical(print_generic(read_generic(printed))) == canonical(printed)
