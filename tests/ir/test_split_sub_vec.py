"""The second vector core's part of a kernel."""

from __future__ import annotations

import pytest
from ir_oracle import assert_same, parse

from tdist.passes import run_pipeline, split_sub_vec
from tdist.passes.split_sub_vec import SplitSubVecPass

WAIT = "distributed.wait %s, %one, %one, scope = gpu semantic = acquire : !tt.ptr<i32>, i32, i32 -> i32"
CALL = 'distributed.extern_call {libname = "l", libpath = "", symbol = "SYMBOL", pure = false} : () -> ()'
NOTIFY = '"distributed.notify"(%s, %l, %one) <{sigOp = 1 : i32, commScope = 2 : i32}> : (!tt.ptr<i32>, i64, i32) -> ()'


def kernel(body: str):
    text = f"""module {{
tt.func @k(%p: !tt.ptr<f16>, %q: !tt.ptr<f16>, %s: !tt.ptr<i32>, %n: i32, %v: f16, %l: i64) {{
%one = arith.constant 1 : i32
%zero = arith.constant 0 : i32
%id = hivm.hir.get_sub_block_idx -> i64
%sub = arith.trunci %id : i64 to i32
%is0 = arith.cmpi eq, %sub, %zero : i32
{body}
tt.return
}}
}}"""
    module = parse(text)
    module.verify()
    return module


def names(module) -> list[str]:
    dull = {"builtin.module", "tt.func", "tt.return", "arith.constant", "scf.yield"}
    return [op.name for op in module.walk() if op.name not in dull]


def second(body: str) -> list[str]:
    module = kernel(body)
    before = module.clone()
    main, other = split_sub_vec(module)
    assert_same(module, before)
    assert other is not None
    main.verify()
    other.verify()
    assert "hivm.hir.get_sub_block_idx" not in names(main) + names(other)
    effects = [name for name in names(before) if name in WRITES]
    assert [name for name in names(main) if name in WRITES] == effects
    return names(other)


WRITES = {"tt.store", "distributed.notify", "distributed.extern_call", "tt.atomic_rmw", "tt.print"}
SPLIT_STORE = "%a = tt.addptr %p, %sub : !tt.ptr<f16>, i32\ntt.store %a, %v : !tt.ptr<f16>"


def test_effects_that_depend_by_data_are_on_both_cores() -> None:
    assert second(SPLIT_STORE) == ["tt.addptr", "tt.store"]


@pytest.mark.parametrize(
    "effect",
    [
        "tt.store %p, %v : !tt.ptr<f16>",
        NOTIFY,
        CALL.replace("SYMBOL", "aclshmem_fence"),
        "%t = arith.constant true\n%o = tt.atomic_rmw add, acq_rel, gpu, %s, %one, %t : (!tt.ptr<i32>, i32, i1) -> i32",
        'tt.print "x" {hex = false} : %n : i32',
    ],
)
def test_other_effects_stay_with_the_main_core(effect: str) -> None:
    assert second(f"{effect}\n{SPLIT_STORE}") == ["tt.addptr", "tt.store"]


@pytest.mark.parametrize("symbol", ["aclshmem_barrier_all", "aclshmemx_barrier_all_vec", "aclshmem_barrier"])
def test_barriers_are_on_both_cores(symbol: str) -> None:
    assert second(CALL.replace("SYMBOL", symbol)) == ["distributed.extern_call"]


def test_what_is_gated_to_core_0_is_not_on_the_second() -> None:
    assert second(f"scf.if %is0 {{\n{NOTIFY}\n}}") == []


def test_what_is_gated_to_core_1_is_on_the_second() -> None:
    body = f"scf.if %is0 {{\n{CALL.replace('SYMBOL', 'aclshmem_barrier_all')}\n}} else {{\n{NOTIFY}\n}}"
    assert second(body) == ["distributed.notify"]


def test_waits_and_loads_that_its_stores_need_come_along() -> None:
    body = f"""%t = {WAIT}
%r = distributed.consume_token %q, %t : !tt.ptr<f16>, i32 -> !tt.ptr<f16>
%x = tt.load %r : !tt.ptr<f16>
%y = tt.load %q : !tt.ptr<f16>
tt.store %q, %y : !tt.ptr<f16>
%a = tt.addptr %p, %sub : !tt.ptr<f16>, i32
tt.store %a, %x : !tt.ptr<f16>"""
    assert second(body) == ["distributed.wait", "distributed.consume_token", "tt.load", "tt.addptr", "tt.store"]


def test_dependence_goes_through_loops_and_their_carried_values() -> None:
    body = """%a:2 = scf.for %i = %zero to %n step %one iter_args(%u = %zero, %w = %zero) -> (i32, i32) : i32 {
%d = arith.addi %u, %sub : i32
%e = arith.addi %w, %one : i32
%x = tt.addptr %p, %e : !tt.ptr<f16>, i32
tt.store %x, %v : !tt.ptr<f16>
scf.yield %d, %e : i32, i32
}
%y = tt.addptr %q, %a#0 : !tt.ptr<f16>, i32
%z = tt.addptr %q, %a#1 : !tt.ptr<f16>, i32
tt.store %y, %v : !tt.ptr<f16>
tt.store %z, %v : !tt.ptr<f16>"""
    found = second(body)
    assert found.count("tt.store") == 1
    assert "scf.for" in found


def test_a_loop_whose_bound_depends_takes_its_body_along() -> None:
    body = "scf.for %i = %zero to %sub step %one : i32 {\ntt.store %p, %v : !tt.ptr<f16>\n}"
    assert second(body) == ["tt.store"]


def test_a_grid_stride_loop_starting_at_the_core() -> None:
    body = """%two = arith.constant 2 : i32
scf.for %i = %sub to %n step %two : i32 {
tt.store %p, %v : !tt.ptr<f16>
}
tt.store %q, %v : !tt.ptr<f16>"""
    assert second(body) == ["scf.for", "tt.store"]


def test_a_while_whose_condition_depends() -> None:
    body = """%r = scf.while (%i = %zero) : (i32) -> i32 {
%c = arith.cmpi slt, %i, %sub : i32
scf.condition(%c) %i : i32
} do {
^bb0(%j: i32):
tt.store %p, %v : !tt.ptr<f16>
%k = arith.addi %j, %one : i32
scf.yield %k : i32
}"""
    assert "tt.store" in second(body)


def test_polls_that_acquire_are_on_both_cores() -> None:
    poll = """scf.while () : () -> () {
%x = tt.load %s {isVolatile = true} : !tt.ptr<i32>
%w = arith.cmpi ne, %x, %one : i32
scf.condition(%w)
} do {
scf.yield
}"""
    found = second(f"{poll}\n{SPLIT_STORE}")
    assert found[:2] == ["scf.while", "tt.load"]


def test_a_kernel_that_does_not_ask_has_no_second_core() -> None:
    module = kernel("tt.store %p, %v : !tt.ptr<f16>")
    run_pipeline(module)
    main, other = split_sub_vec(module)
    assert other is None
    assert_same(main, module)


def test_the_pass_takes_the_core_as_its_option() -> None:
    assert SplitSubVecPass().core == 0
    module = kernel(SPLIT_STORE)
    run_pipeline(module, ["split-sub-vec"])
    assert_same(module, split_sub_vec(kernel(SPLIT_STORE))[0])
