"""Each pass: a case where it must fire, one where it must not, idempotence, and what the report says of lines."""

from __future__ import annotations

import pytest
from ir_oracle import assert_same, mlir_passes, needs_adapter, parse, show

from tdist.errors import KernelError, UsageError
from tdist.frontend.reader import read_ttir
from tdist.ir.effects import Effects, effects
from tdist.ir.location import loc_of
from tdist.passes import DEFAULT_PIPELINE, PASSES, run_pipeline

ARGUMENTS = "%p: !tt.ptr<f16>, %q: !tt.ptr<f16>, %s: !tt.ptr<i32>, %n: i32, %c: i1, %v: f16"
WAIT = "distributed.wait %s, %one, %one, scope = gpu semantic = acquire : !tt.ptr<i32>, i32, i32 -> i32"
CONSUME = "distributed.consume_token %p, %t : !tt.ptr<f16>, i32 -> !tt.ptr<f16>"
BARRIER = (
    'distributed.extern_call {libname = "l", libpath = "", symbol = "aclshmem_barrier_all", pure = false} : () -> ()'
)
CAS = "tt.atomic_cas acq_rel, gpu, %s, %one, %one : (!tt.ptr<i32>, i32, i32) -> i32"


def kernel(body: str):
    """A module with one kernel; each line of `body` is at k.py:<its number>."""
    lines = []
    for number, line in enumerate(body.strip("\n").splitlines(), 1):
        opens = line.rstrip().endswith(("{", ":")) or not line.strip()
        lines.append(line if opens or "} else" in line else f'{line} loc("k.py":{number}:0)')
    constants = "%one = arith.constant 1 : i32\n%zero = arith.constant 0 : i32\n%nine = arith.constant 9 : i32\n"
    text = f"module {{\ntt.func @k({ARGUMENTS}) {{\n{constants}{chr(10).join(lines)}\ntt.return\n}}\n}}\n"
    module = parse(text)
    module.verify()
    return module


def names(module) -> list[str]:
    """The kernel's operations by name, constants and terminators left out."""
    dull = {"builtin.module", "tt.func", "tt.return", "arith.constant", "scf.yield"}
    return [op.name for op in module.walk() if op.name not in dull]


def lines(found) -> list[tuple[str, int | None]]:
    return [(one.op_name, one.loc.line if one.loc else None) for one in found]


def run(body: str, *passes: str):
    module = kernel(body)
    report = run_pipeline(module, passes or DEFAULT_PIPELINE)
    module.verify()
    again = module.clone()
    repeated = run_pipeline(again, passes or DEFAULT_PIPELINE)
    assert_same(again, module)
    assert not repeated.lost and not repeated.merged
    return module, report


# ---- what the effects of distributed operations mean for a kernel ---------------------------------------------------


def test_a_wait_whose_token_nobody_consumes_is_gone_and_its_line_is_known() -> None:
    module, report = run(f"%t = {WAIT}\n%x = tt.load %p : !tt.ptr<f16>\ntt.store %q, %x : !tt.ptr<f16>")
    assert names(module) == ["tt.load", "tt.store"]
    assert lines(report.lost) == [("distributed.wait", 1)]


def test_a_wait_with_a_consumed_token_stays() -> None:
    module, report = run(f"%t = {WAIT}\n%r = {CONSUME}\n%x = tt.load %r : !tt.ptr<f16>\ntt.store %q, %x : !tt.ptr<f16>")
    assert names(module) == ["distributed.wait", "distributed.consume_token", "tt.load", "tt.store"]
    assert not report.lost and not report.merged


def test_a_wait_whose_consumed_value_nobody_uses_is_gone() -> None:
    module, report = run(f"%t = {WAIT}\n%r = {CONSUME}\ntt.store %q, %v : !tt.ptr<f16>")
    assert names(module) == ["tt.store"]
    assert lines(report.lost) == [("distributed.wait", 1)]


TWO_WAITS = f"""%t = {WAIT}
BETWEEN
%u = {WAIT}
%r = {CONSUME}
%w = distributed.consume_token %r, %u : !tt.ptr<f16>, i32 -> !tt.ptr<f16>
tt.store %w, %v : !tt.ptr<f16>"""


def test_two_equal_waits_merge_and_both_lines_are_known() -> None:
    module, report = run(TWO_WAITS.replace("BETWEEN", "%x = arith.addi %n, %n : i32"))
    assert names(module).count("distributed.wait") == 1
    ((name, kept, dropped),) = [(m.op_name, m.kept, m.dropped) for m in report.merged]
    assert (name, kept.line, dropped.line) == ("distributed.wait", 1, 3)


@pytest.mark.parametrize("between", [BARRIER, "tt.store %q, %v : !tt.ptr<f16>", f"%o = {CAS}"])
def test_two_equal_waits_around_a_write_do_not_merge(between: str) -> None:
    module, report = run(TWO_WAITS.replace("BETWEEN", between))
    assert names(module).count("distributed.wait") == 2
    assert not report.merged


def test_waits_of_different_semantic_do_not_merge() -> None:
    body = TWO_WAITS.replace("BETWEEN", "").replace("acquire", "acq_rel", 1)
    module, _ = run(body)
    assert names(module).count("distributed.wait") == 2


TWO_LOADS = """%x = tt.load %p : !tt.ptr<f16>
BETWEEN
%y = tt.load %p : !tt.ptr<f16>
tt.store %q, %x : !tt.ptr<f16>
tt.store %q, %y : !tt.ptr<f16>"""


def test_two_equal_loads_around_a_barrier_do_not_merge() -> None:
    module, report = run(TWO_LOADS.replace("BETWEEN", BARRIER))
    assert names(module).count("tt.load") == 2
    assert not report.merged


def test_two_equal_loads_around_a_barrier_inside_an_if_do_not_merge() -> None:
    module, _ = run(TWO_LOADS.replace("BETWEEN", f"scf.if %c {{\n{BARRIER}\n}}"))
    assert names(module).count("tt.load") == 2


def test_two_equal_loads_around_an_unconsumed_wait_merge() -> None:
    module, report = run(TWO_LOADS.replace("BETWEEN", f"%t = {WAIT}"))
    assert names(module) == ["tt.load", "tt.store", "tt.store"]
    assert lines(report.lost) == [("distributed.wait", 2)]
    assert [(m.op_name, m.kept.line, m.dropped.line) for m in report.merged] == [("tt.load", 1, 3)]


def test_two_equal_loads_around_a_consumed_wait_merge_too() -> None:
    """A wait only reads: nothing orders it against a load that does not consume its token."""
    wait = f"%t = {WAIT}\n%r = {CONSUME}\ntt.store %r, %v : !tt.ptr<f16>"
    module, report = run(TWO_LOADS.replace("BETWEEN", f"%t = {WAIT}") + "\n" + wait.split("\n", 1)[1])
    assert names(module).count("tt.load") == 1
    assert lines(report.lost) == []
    assert len(report.merged) == 1


def test_volatile_loads_neither_merge_nor_vanish() -> None:
    module, report = run(
        "%x = tt.load %s {isVolatile = true} : !tt.ptr<i32>\n%y = tt.load %s {isVolatile = true} : !tt.ptr<i32>"
    )
    assert names(module) == ["tt.load", "tt.load"]
    assert not report.lost and not report.merged


def test_loads_of_different_blocks_do_not_merge() -> None:
    body = """%x = tt.load %p : !tt.ptr<f16>
scf.if %c {
%y = tt.load %p : !tt.ptr<f16>
tt.store %q, %y : !tt.ptr<f16>
}
tt.store %q, %x : !tt.ptr<f16>"""
    module, _ = run(body)
    assert names(module).count("tt.load") == 2


POLL = """scf.while () : () -> () {
%x = tt.load %s : !tt.ptr<i32>
%w = arith.cmpi ne, %x, %one : i32
scf.condition(%w)
} do {
scf.yield
}
tt.store %q, %v : !tt.ptr<f16>"""


def test_a_loop_that_only_polls_with_loads_vanishes_and_is_reported() -> None:
    module, report = run(POLL)
    assert names(module) == ["tt.store"]
    assert lines(report.lost) == [("scf.while", 7), ("tt.load", 2)]
    assert "only reads" in report.lost[0].why


@pytest.mark.parametrize("access", [f"%x = {CAS}", "%x = tt.load %s {isVolatile = true} : !tt.ptr<i32>"])
def test_a_loop_that_polls_with_an_effect_stays(access: str) -> None:
    module, report = run(POLL.replace("%x = tt.load %s : !tt.ptr<i32>", access))
    assert "scf.while" in names(module)
    assert not report.lost


def test_a_wait_never_leaves_a_loop_and_what_does_not_change_does() -> None:
    body = f"""scf.for %i = %zero to %n step %one : i32 {{
%a = tt.addptr %p, %n : !tt.ptr<f16>, i32
%t = {WAIT}
%r = distributed.consume_token %a, %t : !tt.ptr<f16>, i32 -> !tt.ptr<f16>
tt.store %r, %v : !tt.ptr<f16>
}}"""
    module, _ = run(body)
    assert names(module) == ["tt.addptr", "scf.for", "distributed.wait", "distributed.consume_token", "tt.store"]


def test_a_token_that_a_loop_carries_out_unused_takes_its_wait_along() -> None:
    body = f"""%e = scf.for %i = %zero to %n step %one iter_args(%u = %zero) -> (i32) : i32 {{
%t = {WAIT}
tt.store %q, %v : !tt.ptr<f16>
scf.yield %t : i32
}}"""
    module, report = run(body)
    assert names(module) == ["scf.for", "tt.store"]
    assert lines(report.lost) == [("distributed.wait", 2)]


def test_a_sum_of_tokens_keeps_its_waits_as_mlir_does() -> None:
    body = f"""%e = scf.for %i = %zero to %n step %one iter_args(%u = %zero) -> (i32) : i32 {{
%t = {WAIT}
%w = arith.addi %u, %t : i32
tt.store %q, %v : !tt.ptr<f16>
scf.yield %w : i32
}}"""
    module, report = run(body)
    assert "distributed.wait" in names(module)
    assert not report.lost


# ---- canonicalize ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("high", "expected"), [("%zero", []), ("%one", ["tt.store"]), ("%nine", ["scf.for", "tt.store"])]
)
def test_loops_of_no_and_one_iteration(high: str, expected: list[str]) -> None:
    body = f"scf.for %i = %zero to {high} step %one : i32 {{\ntt.store %q, %v : !tt.ptr<f16>\n}}"
    module, _ = run(body, "canonicalize")
    assert names(module) == expected


def test_a_decided_if_is_inlined_and_the_other_arm_is_reported() -> None:
    body = f"""%d = arith.cmpi sgt, %zero, %one : i32
%y = scf.if %d -> (f16) {{
%t = {WAIT}
%r = {CONSUME}
%x = tt.load %r : !tt.ptr<f16>
scf.yield %x : f16
}} else {{
scf.yield %v : f16
}}
tt.store %q, %y : !tt.ptr<f16>"""
    module, report = run(body, "canonicalize")
    assert names(module) == ["tt.store"]
    assert lines(report.lost) == [("distributed.wait", 3), ("tt.load", 5)]
    assert "never true" in report.lost[0].why


def test_an_undecided_if_stays() -> None:
    module, _ = run("scf.if %c {\ntt.store %q, %v : !tt.ptr<f16>\n}", "canonicalize")
    assert names(module) == ["scf.if", "tt.store"]


def test_results_of_an_if_that_nobody_uses_are_dropped() -> None:
    body = """%y:2 = scf.if %c -> (f16, f16) {
%x = tt.load %p : !tt.ptr<f16>
scf.yield %x, %v : f16, f16
} else {
scf.yield %v, %v : f16, f16
}
tt.store %q, %y#1 : !tt.ptr<f16>"""
    module, report = run(body, "canonicalize")
    (branch,) = [op for op in module.walk() if op.name == "scf.if"]
    assert len(branch.results) == 1
    assert lines(report.lost) == [("tt.load", 2)]


FOLDS = [
    ("arith.addi %nine, %one : i32", 10),
    ("arith.subi %zero, %nine : i32", -9),
    ("arith.divsi %m, %two : i32", -4),
    ("arith.remsi %m, %two : i32", -1),
    ("arith.minsi %m, %two : i32", -9),
    ("arith.xori %nine, %one : i32", 8),
    ("arith.muli %n, %zero : i32", 0),
    ("arith.select %d, %one, %two : i32", 1),
    ("arith.extui %d : i1 to i32", 1),
    ("arith.extsi %d : i1 to i32", -1),
]


@pytest.mark.parametrize(("expression", "value"), FOLDS)
def test_scalar_integers_fold(expression: str, value: int) -> None:
    body = f"""%two = arith.constant 2 : i32
%m = arith.constant -9 : i32
%d = arith.cmpi slt, %m, %two : i32
%e = {expression}
tt.store %s, %e : !tt.ptr<i32>"""
    module, _ = run(body, "canonicalize")
    (store,) = [op for op in module.walk() if op.name == "tt.store"]
    assert store.operands[1].owner.properties["value"].value.data == value


@pytest.mark.parametrize(
    "expression",
    [
        "arith.addi %big, %one : i32",
        "arith.muli %big, %big : i32",
        "arith.divsi %one, %zero : i32",
        "arith.addi %n, %n : i32",
    ],
)
def test_what_would_wrap_or_trap_does_not_fold(expression: str) -> None:
    body = f"%big = arith.constant 2147483647 : i32\n%e = {expression}\ntt.store %s, %e : !tt.ptr<i32>"
    module, _ = run(body, "canonicalize")
    assert names(module) == [expression.split()[0], "tt.store"]


# ---- licm, dce, cse on plain code -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("divisor", "leaves"), [("%nine", True), ("%n", False)])
def test_a_division_leaves_a_loop_only_if_it_cannot_trap(divisor: str, leaves: bool) -> None:
    inside = f"%a = arith.divsi %n, {divisor} : i32\ntt.store %s, %a : !tt.ptr<i32>"
    body = f"scf.for %i = %zero to %n step %one : i32 {{\n{inside}\n}}"
    module, _ = run(body, "licm")
    assert (names(module)[0] == "arith.divsi") is leaves


def test_loads_stay_in_loops() -> None:
    body = (
        "scf.for %i = %zero to %n step %one : i32 {\n%x = tt.load %p : !tt.ptr<f16>\ntt.store %q, %x : !tt.ptr<f16>\n}"
    )
    module, _ = run(body, "licm")
    assert names(module) == ["scf.for", "tt.load", "tt.store"]


def test_dce_keeps_effects() -> None:
    dead = "%x = tt.load %p : !tt.ptr<f16>\n%y = arith.addi %n, %n : i32"
    body = f"tt.store %q, %v : !tt.ptr<f16>\n%o = {CAS}\n{BARRIER}\n{dead}"
    module, report = run(body, "dce")
    assert names(module) == ["tt.store", "tt.atomic_cas", "distributed.extern_call"]
    assert lines(report.lost) == [("tt.load", 4)]


def test_equal_arithmetic_of_an_outer_block_is_used_inside_but_not_the_other_way_round() -> None:
    body = """%a = arith.addi %n, %n : i32
tt.store %s, %a : !tt.ptr<i32>
scf.if %c {
%b = arith.addi %n, %n : i32
%d = arith.muli %n, %n : i32
tt.store %s, %b : !tt.ptr<i32>
tt.store %s, %d : !tt.ptr<i32>
}
%e = arith.muli %n, %n : i32
tt.store %s, %e : !tt.ptr<i32>"""
    module, _ = run(body, "cse")
    assert names(module).count("arith.addi") == 1
    assert names(module).count("arith.muli") == 2


PLAIN = """
module {
  tt.func public @k(%p: !tt.ptr<f32>, %n: i32, %c: i1) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    scf.for %i = %c0 to %n step %c1  : i32 {
      %a = arith.muli %n, %n : i32
      %b = arith.muli %n, %n : i32
      %d = tt.addptr %p, %a : !tt.ptr<f32>, i32
      %e = tt.addptr %p, %b : !tt.ptr<f32>, i32
      %x = tt.load %d : !tt.ptr<f32>
      %y = tt.load %e : !tt.ptr<f32>
      %z = arith.addf %x, %y : f32
      tt.store %d, %z : !tt.ptr<f32>
      %w = tt.load %e : !tt.ptr<f32>
      scf.if %c {
        %u = tt.load %e : !tt.ptr<f32>
        %v = arith.addf %u, %w : f32
        tt.store %e, %v : !tt.ptr<f32>
      }
      %dead = tt.load %e : !tt.ptr<f32>
    }
    tt.return
  }
}
"""


@needs_adapter
@pytest.mark.parametrize("passes", [["cse"], ["licm"], ["cse", "licm", "cse"]])
def test_mlirs_own_passes_do_the_same(passes: list[str], tmp_path) -> None:
    module = read_ttir(PLAIN)
    run_pipeline(module, passes)
    assert_same(module, read_ttir(mlir_passes(PLAIN, passes, tmp_path)))


# ---- early returns --------------------------------------------------------------------------------------------------

RETURNS = """
module {
  tt.func @k(%s: !tt.ptr<i32>, %c: i1, %d: i1) {
    %one = arith.constant 1 : i32
    cf.cond_br %c, ^bb1, ^bb2 loc("k.py":1:0)
  ^bb1:
    tt.store %s, %one : !tt.ptr<i32>
    cf.cond_br %d, ^bb3, ^bb4(%one : i32)
  ^bb2:
    %two = arith.constant 2 : i32
    cf.br ^bb4(%two : i32)
  ^bb3:
    tt.return
  ^bb4(%x: i32):
    tt.store %s, %x : !tt.ptr<i32> loc("k.py":9:0)
    tt.return
  }
}
"""


def test_early_returns_become_ifs() -> None:
    module = read_ttir(RETURNS)
    run_pipeline(module, ["lift-early-returns"])
    module.verify()
    assert names(module) == ["scf.if", "tt.store", "scf.if", "tt.store", "tt.store"]
    stores = [op for op in module.walk() if op.name == "tt.store"]
    assert [op.operands[1].owner.properties["value"].value.data for op in stores] == [1, 1, 2]
    assert [getattr(loc_of(op), "line", None) for op in stores] == [None, 9, 9]
    again = module.clone()
    run_pipeline(again, ["lift-early-returns"])
    assert_same(again, module)


def test_a_cycle_of_branches_is_refused() -> None:
    with pytest.raises(KernelError, match="cycle of branches"):
        run_pipeline(
            read_ttir(
                RETURNS.replace("cf.br ^bb4(%two : i32)", "cf.br ^bb1")
                .replace("^bb3, ^bb4(%one : i32)", "^bb3, ^bb2")
                .replace("^bb4(%x: i32):", "^bb4:")
                .replace("%s, %x", "%s, %one")
            ),
            ["lift-early-returns"],
        )


# ---- carriers -------------------------------------------------------------------------------------------------------


def carrier(symbol: str, operands: str, types: str) -> str:
    fields = f'libname = "tdist", libpath = "", pure = false, symbol = "{symbol}"'
    return f"tt.extern_elementwise {operands} {{{fields}}} : {types}"


LIFTS = [
    (carrier("tdist.rank", "%one", "(i32) -> i32"), "distributed.get_rank"),
    (carrier("tdist.num_ranks", "%one", "(i32) -> i32"), "distributed.get_num_ranks"),
    (carrier("tdist.symm_at", "%p, %one", "(!tt.ptr<f16>, i32) -> !tt.ptr<f16>"), "distributed.symm_at"),
    (carrier("tdist.consume_token", "%n, %one", "(i32, i32) -> i32"), "distributed.consume_token"),
    (carrier("tdist.sub_vec_id", "%one", "(i32) -> i64"), "hivm.hir.get_sub_block_idx"),
]


@pytest.mark.parametrize(("text", "expected"), LIFTS)
def test_carriers_are_lifted(text: str, expected: str) -> None:
    module, _ = run(f"%r = {text}", "lift-carriers")
    assert names(module) == [expected]
    (lifted,) = [op for op in module.walk() if op.name == expected]
    assert loc_of(lifted).line == 1


def test_a_wait_keeps_scope_semantic_and_signedness() -> None:
    text = carrier("tdist.wait;scope=sys;semantic=relaxed;el=uint32", "%s, %one, %n", "(!tt.ptr<i32>, i32, i32) -> i32")
    module, _ = run(f"%t = {text}", "lift-carriers")
    assert 'scope = sys semantic = relaxed {tdist.signal_type = "uint32"}' in show(module)


def test_a_notify_has_no_result_left() -> None:
    symbol = "tdist.notify;sigOp=add;commScope=intra_node;el=int32"
    text = carrier(symbol, "%s, %w, %one", "(!tt.ptr<i32>, i64, i32) -> i32")
    module, _ = run(f"%w = arith.constant 7 : i64\n%t = {text}", "lift-carriers")
    (notify,) = [op for op in module.walk() if op.name == "distributed.notify"]
    assert not notify.results
    assert (notify.sigOp.value.data, notify.commScope.value.data) == (2, 2)
    assert notify.attributes["tdist.signal_type"].data == "int32"


def test_an_extern_call_loses_its_dummies_and_escapes() -> None:
    symbol = "tdist.extern_call;libname=a%3Bb;libpath=;symbol=f%3Dg;pure=0;dummy=1;void=1"
    module, _ = run(f"%t = {carrier(symbol, '%one', '(i32) -> i32')}", "lift-carriers")
    (call,) = [op for op in module.walk() if op.name == "distributed.extern_call"]
    assert (len(call.operands), len(call.results)) == (0, 0)
    assert (call.libname.data, call.symbol.data, call.is_pure) == ("a;b", "f=g", False)


def test_a_consumed_block_pointer() -> None:
    body = f"""%e = arith.constant 4 : i64
%b = tt.make_tensor_ptr %p, [%e, %e], [%e, %e], [%zero, %zero] {{order = array<i32: 1, 0>}} : <tensor<2x2xf16>>
%t = {WAIT}
%d = {carrier("tdist.consume_block", "%t", "(i32) -> i32")}
%a = tt.advance %b, [%zero, %d] : <tensor<2x2xf16>>
%x = tt.load %a : !tt.ptr<tensor<2x2xf16>>
tt.store %b, %x : !tt.ptr<tensor<2x2xf16>>"""
    module, _ = run(body)
    expected = ["tt.make_tensor_ptr", "distributed.wait", "distributed.consume_token", "tt.load", "tt.store"]
    assert names(module) == expected


@pytest.mark.parametrize(
    "text",
    [
        carrier("tdist.nonsense", "%one", "(i32) -> i32"),
        carrier("tdist.wait;scope=moon;semantic=acquire;el=int32", "%s, %one, %n", "(!tt.ptr<i32>, i32, i32) -> i32"),
        carrier("tdist.symm_at", "%p", "(!tt.ptr<f16>) -> !tt.ptr<f16>"),
        carrier("tdist.notify;sigOp=add", "%s, %one, %n", "(!tt.ptr<i32>, i32, i32) -> i32"),
    ],
)
def test_a_carrier_that_is_none_of_ours_is_an_error_with_its_line(text: str) -> None:
    with pytest.raises(KernelError, match=r"k\.py:1.*cannot compile this call"):
        run_pipeline(kernel(f"%r = {text}"), ["lift-carriers"])


# ---- effects, registry ----------------------------------------------------------------------------------------------

EFFECTS = [
    (f"%t = {WAIT}", Effects.READ),
    (f"%t = arith.constant 1 : i32\n%r = {CONSUME}", Effects.NONE),
    ("%r = distributed.symm_at %p, %one, : !tt.ptr<f16>", Effects.READ),
    ("%r = distributed.get_rank %one : i32", Effects.NONE),
    (BARRIER, Effects.BOTH),
    (BARRIER.replace("pure = false", "pure = true"), Effects.NONE),
    ("%x = tt.load %p : !tt.ptr<f16>", Effects.READ),
    ("%x = tt.load %p {isVolatile = true} : !tt.ptr<f16>", Effects.BOTH),
    ("tt.store %p, %v : !tt.ptr<f16>", Effects.WRITE),
    (f"%o = {CAS}", Effects.BOTH),
    ('tt.print "x" {hex = false} : %n : i32', Effects.WRITE),
    ('tt.assert %c, "m" : i1', Effects.WRITE),
    ("scf.if %c {\n%x = tt.load %p : !tt.ptr<f16>\n}", Effects.READ),
    ("scf.for %i = %zero to %n step %one : i32 {\ntt.store %p, %v : !tt.ptr<f16>\n}", Effects.WRITE),
    (POLL.rpartition("\n")[0], Effects.READ),
]


@pytest.mark.parametrize(("body", "expected"), EFFECTS)
def test_effects(body: str, expected: Effects) -> None:
    function = kernel(body).body.block.first_op
    last = function.body.block.last_op.prev_op
    assert effects(last) == expected
    assert effects(function) == expected


def test_what_is_not_known_reads_and_writes() -> None:
    module = read_ttir(
        "module {\ntt.func @f() {\ntt.return\n}\ntt.func @k() {\ntt.call @f() : () -> ()\ntt.return\n}\n}"
    )
    (call,) = [op for op in module.walk() if op.name == "tt.call"]
    assert effects(call) == Effects.BOTH


def test_pass_names_are_kebab_case_and_documented() -> None:
    for name, cls in PASSES.items():
        assert name == name.lower() and "_" not in name
        assert cls.__doc__ and cls.name == name
    assert set(DEFAULT_PIPELINE) <= set(PASSES)


def test_an_unknown_pass_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no pass is called 'magic'"):
        run_pipeline(kernel(""), ["magic"])
