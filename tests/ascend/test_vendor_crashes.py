"""Crashes with a known cause are crashes of the real adapter, and are told as such.

Those of the compiler are in `test_bishengir.py`.
"""

from __future__ import annotations

import signal

import pytest
from vendor_oracle import needs_adapter

from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions, adapter_flags
from tdist.platforms.ascend.vendor import find
from tdist.platforms.ascend.vendor.messages import About, explain

pytestmark = needs_adapter

TILE = "tensor<64x!tt.ptr<f16>>"
OPAQUE_STEP = f"""
  tt.func public @k(%x: !tt.ptr<f16>, %out: !tt.ptr<f16>, %n: i32) {{
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %lanes = tt.make_range {{end = 64 : i32, start = 0 : i32}} : tensor<64xi32>
    %from = tt.splat %x : !tt.ptr<f16> -> {TILE}
    %first = tt.addptr %from, %lanes : {TILE}, tensor<64xi32>
    %to = tt.splat %out : !tt.ptr<f16> -> {TILE}
    %target = tt.addptr %to, %lanes : {TILE}, tensor<64xi32>
    %last = scf.for %i = %zero to %n step %one iter_args(%p = %first) -> ({TILE})  : i32 {{
      %step = tt.extern_elementwise %i {{libname = "l", libpath = "", pure = false, symbol = "s"}} : (i32) -> i32
      %steps = tt.splat %step : i32 -> tensor<64xi32>
      %q = tt.addptr %p, %steps : {TILE}, tensor<64xi32>
      %value = tt.load %q : {TILE}
      tt.store %target, %value : {TILE}
      scf.yield %q : {TILE}
    }}
    tt.return
  }}
"""
BLOCK = "!tt.ptr<tensor<64x64xf16>>"
BLOCK_STEP = f"""
  func.func private @opaque(i32) -> i32
  tt.func public @k(%x: !tt.ptr<f16>, %out: !tt.ptr<f16>, %m: i32, %n: i32) {{
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %unit = arith.constant 1 : i64
    %rows = arith.extsi %m : i32 to i64
    %columns = arith.extsi %n : i32 to i64
    %from = tt.make_tensor_ptr %x, [%rows, %columns], [%columns, %unit], [%zero, %zero] \
{{order = array<i32: 1, 0>}} : <tensor<64x64xf16>>
    %to = tt.make_tensor_ptr %out, [%rows, %columns], [%columns, %unit], [%zero, %zero] \
{{order = array<i32: 1, 0>}} : <tensor<64x64xf16>>
    %last = scf.for %i = %zero to %n step %one iter_args(%p = %from) -> ({BLOCK})  : i32 {{
      %step = func.call @opaque(%i) : (i32) -> i32
      %q = tt.advance %p, [%zero, %step] : <tensor<64x64xf16>>
      %value = tt.load %q {{boundaryCheck = array<i32: 0, 1>, padding = 1 : i32}} : {BLOCK}
      tt.store %to, %value {{boundaryCheck = array<i32: 0, 1>}} : {BLOCK}
      scf.yield %q : {BLOCK}
    }}
    tt.return
  }}
"""
POINTER_OF_AN_IF = """
  tt.func public @k(%x: !tt.ptr<f16>, %n: i32) {
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %value = arith.constant 1.0 : f16
    %positive = arith.cmpi sgt, %n, %zero : i32
    %p = scf.if %positive -> (!tt.ptr<f16>) {
      %there = tt.addptr %x, %n : !tt.ptr<f16>, i32
      scf.yield %there : !tt.ptr<f16>
    } else {
      %here = tt.addptr %x, %one : !tt.ptr<f16>, i32
      scf.yield %here : !tt.ptr<f16>
    } loc("/src/k.py":12:4)
    tt.store %p, %value : !tt.ptr<f16>
    tt.return
  }
"""
CHOICE_OF_POINTERS = f"""
  tt.func public @k(%x: !tt.ptr<f16>, %n: i32) {{
    %zero = arith.constant 0 : i32
    %positive = arith.cmpi sgt, %n, %zero : i32
    %there = tt.addptr %x, %n : !tt.ptr<f16>, i32
    %p = arith.select %positive, %x, %there : !tt.ptr<f16>
    %lanes = tt.make_range {{end = 64 : i32, start = 0 : i32}} : tensor<64xi32>
    %from = tt.splat %p : !tt.ptr<f16> -> {TILE}
    %source = tt.addptr %from, %lanes : {TILE}, tensor<64xi32>
    %value = tt.load %source : {TILE}
    tt.store %source, %value : {TILE}
    tt.return
  }}
"""


@pytest.mark.parametrize(
    ("body", "number", "cause"),
    [
        (OPAQUE_STEP, signal.SIGABRT, "a loop carries a tensor of pointers"),
        (BLOCK_STEP, signal.SIGABRT, "a loop carries a block pointer"),
        (POINTER_OF_AN_IF, signal.SIGABRT, "an `if` or a choice between values merges two scalar pointers"),
        (CHOICE_OF_POINTERS, signal.SIGSEGV, "an `if` or a choice between values merges two scalar pointers"),
    ],
)
def test_a_known_crash_of_the_adapter(body, number, cause):
    tool = find.triton_adapter_opt()
    text = f"module {{{body}}}\n"
    with Steps() as steps:
        run = steps.run("adapter", [tool.path, steps.write("in.ttir", text), *adapter_flags(CompileOptions())])
    assert run.crashed and run.signal == number, run.stderr
    said = str(explain(run, About(str(tool), "k", "/src/k.py:10", source=text, source_name="in.ttir")))
    assert f"crashes on kernel `k`: {number.name} (exit {128 + number})" in said
    assert f"\n  known cause: {cause}" in said


def test_a_pointer_that_is_merged_in_generic_form_is_found_at_its_line():
    tool = find.triton_adapter_opt()
    with Steps() as steps:
        generic = steps.run(
            "print",
            [tool.path, "--mlir-print-op-generic", "--mlir-print-debuginfo"],
            stdin=f"module {{{POINTER_OF_AN_IF}}}\n",
        )
        run = steps.run(
            "adapter", [tool.path, steps.write("in.ttir", generic.stdout), *adapter_flags(CompileOptions())]
        )
    said = str(explain(run, About(str(tool), "k", "/src/k.py:10", source=generic.stdout, source_name="in.ttir")))
    assert said.startswith("/src/k.py:12: triton-adapter-opt") and "known cause: an `if`" in said
