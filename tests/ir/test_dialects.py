"""`distributed`, `tt`, `arith` and `hivm`: round trips, and the texts of their verifiers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from ir_oracle import adapter, assert_same, needs_adapter, parse, show
from xdsl.utils.exceptions import ParseError, VerifyException

from tdist.ir import distributed as dist
from tdist.ir.distributed import Distributed

OPS = """
tt.func @k(%p: !tt.ptr<f16>, %s: !tt.ptr<i32>, %l: !tt.ptr<i64>, %n: i32, %w: i64, %ps: tensor<4x!tt.ptr<i32>>) {
  %one = arith.constant 1 : i32
  %t = distributed.wait %s, %n, %one, scope = gpu semantic = acquire : !tt.ptr<i32>, i32, i32 -> i32
  %t2 = distributed.wait %l, %n, %w, scope = sys semantic = acq_rel {el = "uint64"} : !tt.ptr<i64>, i32, i64 -> i32
  %t3 = distributed.wait %ps, %n, %one, scope = cta semantic = relaxed : tensor<4x!tt.ptr<i32>>, i32, i32 -> i32
  %a = distributed.consume_token %n, %t : i32, i32 -> i32
  %b = distributed.consume_token %p, %t : !tt.ptr<f16>, i32 -> !tt.ptr<f16>
  %c = distributed.consume_token %ps, %t : tensor<4x!tt.ptr<i32>>, i32 -> tensor<4x!tt.ptr<i32>>
  %v = arith.constant dense<0.0> : tensor<4xf16>
  %d = distributed.consume_token %v, %t : tensor<4xf16>, i32 -> tensor<4xf16>
  %bp = tt.make_tensor_ptr %p, [%w], [%w], [%n] {order = array<i32: 0>} : <tensor<4xf16>>
  %e = distributed.consume_token %bp, %t : !tt.ptr<tensor<4xf16>>, i32 -> !tt.ptr<tensor<4xf16>>
  %r = distributed.get_rank %n : i32
  %m = distributed.get_num_ranks %n : i32
  %q = distributed.symm_at %p, %r, : !tt.ptr<f16>
  "distributed.notify"(%s, %w, %r) <{sigOp = 2 : i32, commScope = 3 : i32}> : (!tt.ptr<i32>, i64, i32) -> ()
  %x = distributed.extern_call %p {libname = "l", libpath = "", symbol = "f", pure = true} : (!tt.ptr<f16>) -> i32
  distributed.extern_call {libname = "l", libpath = "", symbol = "g", pure = false} : () -> ()
  %y:2 = distributed.extern_call %n {libname = "l", libpath = "", symbol = "h", pure = false} : (i32) -> (i32, i64)
  %id = hivm.hir.get_sub_block_idx -> i64
  tt.return
}
"""


def test_distributed_round_trip() -> None:
    module = parse(OPS)
    module.verify()
    assert {op.name for op in module.walk() if op.name.startswith("distributed.")} == {
        cls.name for cls in Distributed.operations
    }
    assert_same(parse(show(module)), module)
    assert_same(parse(show(module, generic=True)), module)
    for line in OPS.splitlines():
        if "distributed." in line and "extern" not in line:
            assert line.partition(" = distributed.")[2].partition("%")[0] in show(module)


def test_the_seven_operations_and_no_more() -> None:
    expected = "wait consume_token get_rank get_num_ranks symm_at notify extern_call"
    assert [cls.name.removeprefix("distributed.") for cls in Distributed.operations] == expected.split()


def test_enumerations() -> None:
    assert dist.SIGNAL_OP == {1: "set", 2: "add"}
    assert dist.SCOPE == {1: "gpu", 2: "cta", 3: "sys"}
    assert dist.SEMANTIC == {1: "relaxed", 2: "acquire", 3: "release", 4: "acq_rel"}
    assert dist.COMM_SCOPE == {1: "gpu", 2: "intra_node", 3: "inter_node"}


def test_the_dialect_depends_on_no_other_of_ours() -> None:
    script = (
        "import sys, tdist.ir.distributed\n"
        "print([m for m in sys.modules if m.startswith('tdist.ir.') and m not in"
        " ('tdist.ir.distributed', 'tdist.ir.pointer')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def generic(name: str, operands: str, properties: str, types: str) -> str:
    return f'"{name}"({operands}) <{{{properties}}}> : {types}'


WAIT_PROPERTIES = "scope = 1 : i32, semantic = 2 : i32"
EXTERN = 'libname = "l", libpath = "", symbol = "SYMBOL", pure = false'
WAIT_TYPES = "(!tt.ptr<i32>, i32, i32) -> i32"
SET = "sigOp = 1 : i32, commScope = 1 : i32"
INVALID = [
    (
        f"%t = {generic('distributed.wait', '%s, %n, %w', WAIT_PROPERTIES, '(!tt.ptr<i32>, i32, i64) -> i32')}",
        "waits for a value of i64 in words of i32",
    ),
    (
        f"%t = {generic('distributed.wait', '%n, %n, %n', WAIT_PROPERTIES, '(i32, i32, i32) -> i32')}",
        "expected a pointer or a tensor of pointers, got i32",
    ),
    (
        f"%t = {generic('distributed.wait', '%s, %n, %n', 'scope = 4 : i32, semantic = 2 : i32', WAIT_TYPES)}",
        "'scope' must be an i32 and one of 1 (gpu), 2 (cta), 3 (sys), got 4 : i32",
    ),
    (
        f"%t = {generic('distributed.wait', '%s, %n, %n', 'scope = 1 : i32, semantic = 0 : i32', WAIT_TYPES)}",
        "'semantic' must be an i32 and one of 1 (relaxed), 2 (acquire), 3 (release), 4 (acq_rel), got 0 : i32",
    ),
    (
        generic(
            "distributed.notify", "%s, %w, %n", "sigOp = 3 : i32, commScope = 1 : i32", "(!tt.ptr<i32>, i64, i32) -> ()"
        ),
        "'sigOp' must be an i32 and one of 1 (set), 2 (add), got 3 : i32",
    ),
    (
        generic("distributed.notify", "%p, %w, %n", SET, "(!tt.ptr<f16>, i64, i32) -> ()"),
        "a signal word has 32 or 64 bits, got a pointer to f16",
    ),
    (
        generic(
            "distributed.notify",
            "%ps, %w, %n",
            SET,
            "(tensor<4x!tt.ptr<i32>>, i64, i32) -> ()",
        ),
        "expected a scalar pointer, got tensor<4x!tt.ptr<i32>>",
    ),
    (
        "%q = distributed.symm_at %ps, %n, : tensor<4x!tt.ptr<i32>>",
        "'symmAddr' must be a scalar pointer, got tensor<4x!tt.ptr<i32>>",
    ),
    (
        "%q = distributed.symm_at %bp, %n, : !tt.ptr<tensor<4xf16>>",
        "'symmAddr' must be a scalar pointer, got !tt.ptr<tensor<4xf16>>",
    ),
    (
        '%q = "distributed.symm_at"(%p, %n) : (!tt.ptr<f16>, i32) -> !tt.ptr<i32>',
        "'remoteAddr' must have the type of 'symmAddr', !tt.ptr<f16>, got !tt.ptr<i32>",
    ),
    (
        '%q = "distributed.consume_token"(%p, %tok) : (!tt.ptr<f16>, tensor<4xi32>) -> !tt.ptr<f16>',
        "a token of type tensor<4xi32> cannot be consumed by a value of type !tt.ptr<f16>",
    ),
    (
        '%q = "distributed.consume_token"(%p, %n) : (!tt.ptr<f16>, i32) -> !tt.ptr<i32>',
        "attribute !tt.ptr<f16> expected from variable 'T', but got !tt.ptr<i32>",
    ),
    (
        f"{generic('distributed.extern_call', '%n', EXTERN.replace('SYMBOL', ''), '(i32) -> ()')}",
        "'symbol' must name a function of the library",
    ),
    (
        f"{generic('distributed.extern_call', '%tok', EXTERN, '(tensor<4xi32>) -> ()')}",
        "operands must be scalars, got tensor<4xi32>",
    ),
    (
        '%x = "tt.load"(%p) <{boundaryCheck = array<i32>, cache = 1 : i32, evict = 1 : i32, isVolatile = false,'
        " operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<f16>) -> f32",
        "loads f16, but its result is f32",
    ),
    (
        '"tt.store"(%p, %n) <{boundaryCheck = array<i32>, cache = 1 : i32, evict = 1 : i32}>'
        " : (!tt.ptr<f16>, i32) -> ()",
        "stores i32 through !tt.ptr<f16>",
    ),
    ("%x = tt.make_range {start = 0 : i32, end = 8 : i32} : tensor<4xi32>", "a range of 8 elements cannot have type"),
    ("%x = tt.splat %n : i32 -> tensor<4xi64>", "cannot splat i32 into tensor<4xi64>"),
    ("%x = tt.dot %f, %f, %g : tensor<2x4xf16> * tensor<2x4xf16> -> tensor<2x2xf32>", "cannot multiply"),
    ("%x = arith.extsi %n : i32 to i32", "must be wider than i32"),
    ("%x = arith.trunci %n : i32 to i64", "must be narrower than i32"),
    ("%x = arith.sitofp %n : i32 to tensor<4xf32>", "has not the shape of i32"),
    ("%x = arith.select %k, %n, %n : tensor<4xi1>, i32", "condition tensor<4xi1> has not the shape of i32"),
    ('%x = "arith.cmpi"(%n, %n) <{predicate = 0 : i64}> : (i32, i32) -> tensor<4xi1>', "has not the shape of i32"),
]
FRAME = """
tt.func @k(%p: !tt.ptr<f16>, %s: !tt.ptr<i32>, %n: i32, %w: i64, %ps: tensor<4x!tt.ptr<i32>>, %tok: tensor<4xi32>,
           %bp: !tt.ptr<tensor<4xf16>>, %f: tensor<2x4xf16>, %g: tensor<2x2xf32>, %k: tensor<4xi1>) {
  BODY
  tt.return
}
"""


@pytest.mark.parametrize(("body", "message"), INVALID)
def test_invalid_operations_are_refused_in_these_words(body: str, message: str) -> None:
    module = parse(FRAME.replace("BODY", body))
    with pytest.raises(VerifyException) as caught:
        module.verify()
    assert message in str(caught.value)


UNPARSABLE = [
    (
        "%t = distributed.wait %s, %n, %n, scope = moon semantic = acquire : !tt.ptr<i32>, i32, i32 -> i32",
        "expected one of gpu, cta, sys, got 'moon'",
    ),
    ("%o = tt.atomic_rmw twice, acq_rel, gpu, %s, %n : (!tt.ptr<i32>, i32) -> i32", "expected one of and, or, xor"),
    ("%x = tt.load %p cacheModifier = xy : !tt.ptr<f16>", "expected one of none, ca, cg"),
    ("%x = tt.get_program_id w : i32", "expected one of x, y, z, got 'w'"),
]


@pytest.mark.parametrize(("body", "message"), UNPARSABLE)
def test_unknown_keywords_are_refused_in_these_words(body: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(FRAME.replace("BODY", body))
    assert message in str(caught.value)


@needs_adapter
def test_hivm_syntax_is_the_vendors() -> None:
    text = "module {\ntt.func public @k() {\n%0 = hivm.hir.get_sub_block_idx -> i64\ntt.return\n}\n}\n"
    module = parse(text)
    command = [str(adapter())]
    done = subprocess.run(command, input=show(module), capture_output=True, text=True, timeout=60)
    assert "%0 = hivm.hir.get_sub_block_idx -> i64" in done.stdout, done.stderr
