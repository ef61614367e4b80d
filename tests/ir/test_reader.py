"""The TTIR reader against the vendor's own parser, over kernels that use every syntax."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from ir_oracle import adapter_generic, assert_same, needs_adapter, parse, show

from tdist.errors import KernelError
from tdist.frontend.reader import read_ttir
from tdist.ir.location import SourceLoc, loc_of

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which prints the texts")

from reader_kernels import CASES, polling

from tdist.frontend.triton_ascend import compile_source
from tdist.passes import run_pipeline
from tdist.platforms.sim.codegen.ir_access import dense_values


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {name: compile_source(fn, signature, consts).ttir for name, (fn, signature, consts) in CASES.items()}


@needs_adapter
@pytest.mark.parametrize("name", CASES)
def test_reads_what_mlir_reads(texts: dict[str, str], name: str) -> None:
    module = read_ttir(texts[name])
    module.verify()
    assert_same(module, parse(adapter_generic(texts[name])))


@needs_adapter
@pytest.mark.parametrize("name", CASES)
def test_the_vendors_tool_reads_what_we_print(texts: dict[str, str], name: str) -> None:
    module = read_ttir(texts[name])
    assert_same(parse(adapter_generic(show(module))), module)


@pytest.mark.parametrize("name", CASES)
def test_our_own_print_is_read_back(texts: dict[str, str], name: str) -> None:
    module = read_ttir(texts[name])
    assert_same(read_ttir(show(module)), module)
    assert_same(parse(show(module)), module)
    assert_same(read_ttir(show(module, generic=True)), module)


@pytest.mark.parametrize("name", CASES)
def test_locations_are_those_of_a_full_parser(texts: dict[str, str], name: str) -> None:
    ours = [loc_of(op) for op in read_ttir(texts[name]).walk()]
    full = [loc_of(op) for op in parse(texts[name].replace("scf.while : (", "scf.while () : (")).walk()]
    assert ours == full
    assert any(loc is not None for loc in ours)


def test_an_inlined_operation_knows_its_callers(texts: dict[str, str]) -> None:
    module = read_ttir(texts["control"])
    run_pipeline(module, ["lift-early-returns", "inline-calls"])
    module.verify()
    divisions = [loc_of(op) for op in module.walk() if op.name == "arith.divsi"]
    source = CASES["control"][0].fn.__code__.co_filename
    lines = Path(source).read_text(encoding="utf-8").splitlines()
    assert len(divisions) == 2
    for loc in divisions:
        assert loc is not None and loc.file == source
        assert "y // 3" in lines[loc.line - 1]
        assert [("helper(" in lines[caller.line - 1]) for caller in loc.callers] == [True]


def test_a_polling_loop_of_the_source_is_reported_as_lost() -> None:
    """MLIR's inliner would delete it before we see it."""
    module = read_ttir(compile_source(polling, {"x": "*i32", "y": "*i32"}, {}).ttir)
    report = run_pipeline(module)
    lines = Path(polling.fn.__code__.co_filename).read_text(encoding="utf-8").splitlines()
    assert [lost.op_name for lost in report.lost] == ["scf.while", "tt.load"]
    assert all("while tl.load" in lines[lost.loc.line - 1] for lost in report.lost)


def test_a_loop_without_results_keeps_its_last_operation(texts: dict[str, str]) -> None:
    """`scf.for` and `scf.if` without results print no terminator: the last line is an effect, not a yield."""
    stores = [op for op in read_ttir(texts["control"]).walk() if op.name == "tt.store"]
    assert [op.parent_op().name for op in stores] == ["scf.if", "tt.func", "tt.func"]


ALIASES = """
#loc = loc("k.py":1:0)
module {
  tt.func @k(%x: !tt.ptr<f16> {tt.divisibility = 16 : i32} loc("x"(#loc)), %n: i32 loc("n"(#loc))) {
    %c = arith.constant 1 : i32 loc(#loc1)
    %t = arith.cmpi sgt, %n, %c : i32 loc(#loc1)
    %y:2 = scf.if %t -> (i32, i32) {
      %v_1 = arith.addi %n, %c : i32 loc(#loc3)
      scf.yield %v_1, %c : i32, i32 loc(#loc)
    } else {
      %v_1 = arith.muli %n, %c : i32 loc(#loc4)
      scf.yield %v_1, %v_1 : i32, i32 loc(#loc)
    } loc(#loc5)
    %z = arith.addi %y#0, %y#1 : i32 loc(#loc2)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc1 = loc(unknown)
#loc2 = loc("z"(#loc6))
#loc3 = loc(callsite(#loc7 at #loc6))
#loc4 = loc(callsite(#loc7 at #loc8))
#loc5 = loc(fused[#loc1, "a b at c.py":7:8])
#loc6 = loc("k.py":9:4)
#loc7 = loc("v"("h.py":2:3))
#loc8 = loc(callsite(#loc6 at "main.py":20:1))
"""


def test_aliases_of_aliases_names_and_call_sites() -> None:
    module = read_ttir(ALIASES)
    module.verify()
    found = {op.name: loc_of(op) for op in module.walk()}
    assert found["arith.constant"] is None
    assert found["arith.muli"] == SourceLoc("h.py", 2, 3, (SourceLoc("k.py", 9, 4), SourceLoc("main.py", 20, 1)))
    assert found["scf.if"] == SourceLoc("a b at c.py", 7, 8)
    assert str(found["arith.addi"]) == "k.py:9"


def test_names_are_kept_and_those_reused_in_sibling_regions_are_told_apart() -> None:
    module = read_ttir(ALIASES)
    named = [result.name_hint for op in module.walk() for result in op.results]
    assert named == ["c", "t", "y", "y", "v", "v", "z"]
    yields = [op for op in module.walk() if op.name == "scf.yield"]
    assert [op.operands[0].owner.name for op in yields] == ["arith.addi", "arith.muli"]


FLOAT8 = """
module {
  tt.func public @k(%x: tensor<16xf32>, %y: tensor<16xf8E5M2>, %i: i32, %m: tensor<4x4xf32>) {
    %a = tt.fp_to_fp %x, rounding = rtne : tensor<16xf32> -> tensor<16xf8E5M2>
    %b = tt.fp_to_fp %y : tensor<16xf8E5M2> -> tensor<16xf32>
    %c = arith.addf %b, %x fastmath<fast> : tensor<16xf32>
    %d = tt.dot %m, %m, %m, inputPrecision = tf32 {maxNumImpreciseAcc = 4 : i32} : DOT
    %h = arith.constant 0x7F : i32
    %g = arith.addi %i, %h overflow<nsw> : i32
    tt.return
  }
}
""".replace("DOT", "tensor<4x4xf32> * tensor<4x4xf32> -> tensor<4x4xf32>")


@needs_adapter
def test_syntax_that_this_front_end_does_not_make() -> None:
    module = read_ttir(FLOAT8)
    module.verify()
    assert_same(module, parse(adapter_generic(FLOAT8)))
    assert_same(read_ttir(show(module)), module)


def _kernel(body: str) -> str:
    return f'module {{\n  tt.func public @k(%x: !tt.ptr<f16>) {{\n    {body} loc("k.py":7:3)\n    tt.return\n  }}\n}}\n'


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (
            "%d = tt.make_tensor_descriptor %x : !tt.tensordesc<f16>",
            "does not support tt.make_tensor_descriptor: address the tile with tl.make_block_ptr",
        ),
        ('"tt.map_elementwise"(%x) : (!tt.ptr<f16>) -> ()', "tdist does not support tt.map_elementwise"),
        ("%d = tt.load %unknown : !tt.ptr<f16>", "unknown name '%unknown'"),
        ("%d = tt.load %x cacheModifier = cx : !tt.ptr<f16>", "unknown name 'cx'"),
        ("%d = arith.addi %x, %x : nonsense", "cannot read 'nonsense'"),
        ("scf.for unsigned %i = %x to %x step %x : i32 {", "this form of scf.for is not supported"),
        ("%d, %e = tt.load %x : !tt.ptr<f16>", "2 names for 1 results"),
        ("what is this", "expected an operation"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_the_kernels_line(body: str, complaint: str) -> None:
    with pytest.raises(KernelError) as caught:
        read_ttir(_kernel(body))
    assert complaint in str(caught.value)
    assert "k.py:7" in str(caught.value)
    assert body.split()[0] in str(caught.value)


def test_a_text_that_ends_too_early_is_an_error() -> None:
    with pytest.raises(KernelError, match="ends before its module does"):
        read_ttir("module {\n  tt.func public @k() {\n    tt.return\n  }\n")


@pytest.mark.parametrize(
    "literal,want",
    [
        ("0xFF800000 : f32", -math.inf),
        ("dense<0xFF800000> : tensor<4xf32>", -math.inf),
        ("dense<0x7C00> : tensor<2x2xf16>", math.inf),
        ("dense<0xFF80> : tensor<4xbf16>", -math.inf),
        ("0x7FF0000000000000 : f64", math.inf),
        ("dense<0x10> : tensor<4xi32>", 16),
    ],
)
def test_infinities_were_read_as_the_numbers_of_their_digits(literal: str, want: float) -> None:
    """`tl.load(…, other=-float("inf"))` filled masked lanes with 4286578688.0."""
    body = f"module {{\n  tt.func public @k() {{\n    %c = arith.constant {literal}\n    tt.return\n  }}\n}}"
    constant = next(op for op in read_ttir(body).walk() if op.name == "arith.constant")
    assert set(dense_values(constant.properties["value"])) == {want}
