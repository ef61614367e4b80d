"""What the compiled code does more often, elsewhere or not at all: found, and silent on the cured form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, whose adapter it runs")
pytest.importorskip("ascendnpuir", reason="waits for ascendnpu-ir, whose compiler it runs")

import effects_kernels as kernels
from effects_kit import build, effects, finish, front_end, kinds, operator
from ordinary_kernels import ORDINARY
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IntegerAttr, UnitAttr, UnknownLoc
from xdsl.ir import Operation

from tdist.findings import Finding, to_text
from tdist.frontend.triton_ascend import compile_source
from tdist.ir import hivm
from tdist.ir.location import loc_of
from tdist.kernels.ag_gemm import ag_gemm_barrier_kernel, ag_gemm_fine_kernel
from tdist.kernels.all_gather import all_gather_barrier_kernel, all_gather_fine_kernel
from tdist.platforms.ascend.compiled.final_module import FinalModule, OpRef
from tdist.platforms.ascend.effects_in_code import BARRIER, DRAIN, ONCE, WAIT, kind_of_symbol
from tdist.platforms.ascend.lowering.prepare import Prepared, prepare
from tdist.platforms.ascend.multiplicity import check_multiplicity
from tdist.platforms.ascend.options import CompileOptions
from tdist.platforms.ascend.provenance import enclosing, full_name, library_symbol
from tdist.platforms.ascend.rewrites import _wrap, changed

I64, F32 = {"sig": "*i64"}, {"buf": "*fp32"}
COPY, SENT, PAST = kernels.copy_beside_a_dot, kernels.product_sent, kernels.product_sent_past_a_copy
PUSHED, SIGNALS, COUNT = kernels.pushed_after_a_product, kernels.one_core_signals_for_both, kernels.count_where

CASES: list[tuple[Any, dict[str, str], dict[str, Any], list[str]]] = [
    # both kinds of core: int32 always; int64 once a call of both kinds stands before it
    (COPY, {}, {"FENCE": False}, ["both-cores"]),
    (COPY, {}, {"FENCE": True}, ["both-cores"]),
    (COPY, I64, {"FENCE": True}, ["both-cores"]),
    (COPY, I64, {"FENCE": False}, []),
    (COPY, {"sig": "*u64"}, {"FENCE": False}, ["both-cores"]),  # the compiler's list has the signed ones only
    (SENT, F32, {}, ["both-cores", "both-vector-cores"]),
    (SENT, {**I64, **F32}, {}, []),
    # the core of the operation before the signal, not of the data
    (PAST, {**I64, **F32}, {}, ["both-vector-cores", "wrong-core"]),
    # both vector cores
    (PUSHED, I64, {"GATE": False, "SHARE": False}, ["both-vector-cores"]),
    (PUSHED, I64, {"GATE": True, "SHARE": False}, []),
    (PUSHED, I64, {"GATE": False, "SHARE": True}, []),
    (SIGNALS, I64, {"MEET": False}, ["split-store"]),
    (kernels.stored_by_both_signalled_by_one, I64, {"MEET": False}, ["both-vector-cores"]),
    (kernels.stored_by_both_signalled_by_one, I64, {"MEET": True}, ["both-cores"]),  # the barrier belongs to both
    (kernels.counted_on_both_vector_cores, F32, {"GATE": False}, ["both-vector-cores"]),
    (kernels.counted_on_both_vector_cores, F32, {"GATE": True}, []),
    # UB offset 0
    (kernels.tile_to_everyone, {}, {"ADD": True}, ["staging-overlap"]),
    (kernels.tile_to_everyone, {}, {"ADD": False}, []),
    (kernels.reloaded_for_everyone, {}, {}, []),
    (kernels.put_beside_a_tile, {}, {"AFTER": False}, ["staging-overlap"]),
    (kernels.put_beside_a_tile, {}, {"AFTER": True}, []),
    # deleted, not atomic, in turn
    (kernels.flag_exchanged, {}, {}, ["lost-effect"]),
    (kernels.flag_put, {}, {}, []),
    (kernels.compare_and_swap, {}, {"REMOTE": True}, ["lock-atomic"]),
    (kernels.compare_and_swap, {}, {"REMOTE": False}, []),
    (COUNT, {}, {"WHERE": "block"}, ["lock-turn"]),
    (COUNT, {}, {"WHERE": "data"}, ["lock-turn"]),
    (COUNT, {}, {"WHERE": "launch"}, []),
    (COUNT, {}, {"WHERE": "loop"}, []),
    (COUNT, {}, {"WHERE": "grid"}, []),  # the compiler takes the lock once, around the loop
    (COUNT, {}, {"WHERE": "always"}, []),
    (kernels.waits_while_it_counts, {}, {"APART": False}, ["lock-turn"]),
    (kernels.waits_while_it_counts, {}, {"APART": True}, []),
    # addresses
    (kernels.signal_at, {}, {"TRANSLATED": True}, ["translated-twice"]),
    (kernels.signal_at, {}, {"TRANSLATED": False}, []),
    (kernels.through_two_ranks, {}, {}, ["translated-twice"]),
    # plain
    (kernels.handshake, {}, {}, []),
    (kernels.signals_unrolled, {}, {}, []),
]


def name(case: tuple) -> str:
    fn, types, constants, _ = case
    return "-".join([fn.__name__, *map(str, types.values()), *(f"{k}={v}" for k, v in constants.items())])


@pytest.mark.parametrize("barrier_all", [False, True], ids=["fine", "barrier-all"])
@pytest.mark.parametrize("case", CASES, ids=name)
def test_each_case_is_found_and_its_cure_is_silent(case: tuple, barrier_all: bool) -> None:
    fn, types, constants, expected = case
    found = effects(fn, types, barrier_all=barrier_all, **constants)
    assert kinds(found) == expected, [to_text(finding) for finding in found]


def test_a_finding_says_line_function_source_and_code() -> None:
    (finding,) = effects(COPY, {}, FENCE=False)
    text = to_text(finding)
    assert [party.role for party in finding.parties] == [
        "kernel copy_beside_a_dot, cube core",
        "kernel copy_beside_a_dot, vector cores",
    ]
    assert {party.line for party in finding.parties} == {_line(COPY, "dl.notify")}
    store = f"{kernels.__file__}:{_line(COPY, 'tl.store(remote')}"
    assert "has no access to buf" in text and f"accesses buf at {store}" in text
    assert "not ordered after the data on the cube core" in text
    assert "int64" in finding.cure and finding.profile == "ascend"


def test_a_barrier_before_the_doubled_signal_orders_both() -> None:
    (finding,) = effects(SIGNALS, I64, MEET=True)
    assert kinds([finding]) == ["both-cores"] and "not ordered" not in finding.got


def _line(fn: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(fn.fn)
    return next(first + index for index, line in enumerate(lines) if text in line)


# ---- silence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("barrier_all", [False, True], ids=["fine", "barrier-all"])
@pytest.mark.parametrize("kernel", ORDINARY)
def test_ordinary_kernels_are_silent(kernel: str, barrier_all: bool) -> None:
    prepared = prepare(compile_source(*ORDINARY[kernel]))
    final = finish(prepared, CompileOptions.of_launch({}, barrier_all=barrier_all))
    assert check_multiplicity(prepared, final) == []


# ---- our operators --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("barrier_all", [False, True], ids=["fine-pipes", "barrier-all"])
@pytest.mark.parametrize("type_", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize(
    ("fn", "constants"),
    [
        (ag_gemm_fine_kernel, {"OWN_PANELS": True}),
        (ag_gemm_barrier_kernel, {}),
        (all_gather_fine_kernel, {}),
        (all_gather_barrier_kernel, {}),
    ],
    ids=["ag_gemm-fine", "ag_gemm-barrier", "all_gather-fine", "all_gather-barrier"],
)
def test_both_operators_do_what_they_say(fn: Any, constants: dict, type_: str, barrier_all: bool) -> None:
    words = "i64" if fn is ag_gemm_fine_kernel else "i32"
    found = check_multiplicity(*operator(fn, type_, words, barrier_all, **constants))
    assert found == [], [to_text(finding) for finding in found]


# ---- power: what is taken away or moved is found --------------------------------------------------------------------

MUTATED = {
    "handshake": lambda: build(kernels.handshake),
    "all_gather": lambda: operator(all_gather_fine_kernel, words="i32"),
    "ag_gemm": lambda: operator(ag_gemm_fine_kernel, OWN_PANELS=True),
}
SEEN = (*ONCE, WAIT, BARRIER, DRAIN)


def effect_calls(final: FinalModule) -> list[OpRef]:
    named = [(op, library_symbol(op)) for op in final.all_ops()]
    return [final.ref(op) for op, symbol in named if symbol.startswith("aclshmem") and kind_of_symbol(symbol) in SEEN]


def mutants(
    prepared: Prepared, final: FinalModule, change: Callable[[Operation], bool]
) -> Iterator[tuple[Operation, list[Finding]]]:
    for ref in effect_calls(final):
        clone = final.clone()
        op = clone.op(ref)
        if change(op):
            yield final.op(ref), check_multiplicity(prepared, clone)


def _delete(op: Operation) -> bool:
    for result in op.results:  # the token of a wait: any other value of the type will do
        block = op.parent_block()
        assert block is not None
        zero = ConstantOp(IntegerAttr(0, result.type))
        block.insert_op_before(zero, op)
        result.replace_all_uses_with(zero.result)
    op.detach()
    op.erase()
    return True


@pytest.mark.parametrize("which", MUTATED)
def test_every_deleted_call_is_found(which: str) -> None:
    prepared, final = MUTATED[which]()
    assert check_multiplicity(prepared, final) == []
    total = 0
    for op, found in mutants(prepared, final, _delete):
        total += 1
        assert kinds(found) == ["lost-effect"], library_symbol(op)
        assert found[0].parties[0].line == (loc_of(op) or pytest.fail("no line")).line
    assert total >= 3


def _to_front(op: Operation) -> bool:
    """Put a call without results at the head of the loop around it, before the stores that it follows."""
    loop = next((outer for outer in enclosing(op) if full_name(outer) == "scf.for"), None)
    if op.results or loop is None:
        return False
    target = loop.regions[0].blocks.first
    if target is None or target.first_op is op:
        return False
    op.detach()
    target.insert_op_before(op, target.first_op)
    return True


@pytest.mark.parametrize("which", MUTATED)
def test_every_call_moved_before_its_stores_is_found(which: str) -> None:
    prepared, final = MUTATED[which]()
    cases = list(mutants(prepared, final, _to_front))
    assert len(cases) >= 2
    for op, found in cases:
        assert "moved-effect" in kinds(found), library_symbol(op)


def _out_of_the_loop(op: Operation) -> bool:
    loop = next((outer for outer in enclosing(op) if full_name(outer) == "scf.for"), None)
    block = None if loop is None else loop.parent_block()
    if op.results or loop is None or block is None:
        return False
    op.detach()
    block.insert_op_after(op, loop)
    return True


@pytest.mark.parametrize("which", MUTATED)
def test_every_call_moved_out_of_its_loop_is_found(which: str) -> None:
    prepared, final = MUTATED[which]()
    cases = list(mutants(prepared, final, _out_of_the_loop))
    assert len(cases) >= 2
    for op, found in cases:
        assert "moved-effect" in kinds(found), library_symbol(op)


def _again(op: Operation) -> bool:
    block = op.parent_block()
    if kind_of_symbol(library_symbol(op)) not in ONCE or block is None:
        return False
    block.insert_op_after(op.clone(), op)
    return True


@pytest.mark.parametrize("which", MUTATED)
def test_every_repeated_signal_is_found(which: str) -> None:
    prepared, final = MUTATED[which]()
    cases = list(mutants(prepared, final, _again))
    assert cases
    for op, found in cases:
        assert "repeated-effect" in kinds(found), library_symbol(op)


def test_what_the_vendor_deletes_for_lack_of_effects_is_found() -> None:
    """Upstream's rule marked waits free of effects; the vendor's compiler then drops those whose token is not used."""
    prepared = prepare(front_end(kernels.signals_unrolled, {}))
    marked = prepare(front_end(kernels.signals_unrolled, {}))
    for op in marked.module.walk():
        if isinstance(op, hivm.CustomOp) and kind_of_symbol(op.symbol) in ONCE:
            op.properties["no_side_effect"] = UnitAttr()
    found = check_multiplicity(prepared, finish(marked, CompileOptions()))
    assert kinds(found) == ["lost-effect"] and found[0].data["op"] == "aclshmemx_signal_op"


def mixed_barriers() -> tuple[Prepared, FinalModule]:
    return operator(ag_gemm_barrier_kernel)


@pytest.mark.parametrize("barrier_all", [False, True])
@pytest.mark.parametrize(
    ("kernel", "silent"),
    [
        (kernels.stored_to_a_peer_but_one, False),
        (kernels.stored_to_a_peer_in_a_range, True),
        (kernels.changed_on_a_peer, True),
    ],
)
def test_a_store_of_more_than_its_mask_is_found(kernel: Any, silent: bool, barrier_all: bool) -> None:
    found = [f for f in effects(kernel, barrier_all=barrier_all) if f.kind.endswith(".widened-store")]
    lines, first = inspect.getsourcelines(kernel.fn)
    named = [first + k for k, text in enumerate(lines) if "# <store>" in text]
    assert [finding.parties[0].line for finding in found] == ([] if silent else named)


@pytest.mark.parametrize(
    ("kernel", "silent"),
    [
        (kernels.wait_that_nobody_uses, False),
        (kernels.wait_that_never_runs, True),
        (kernels.wait_of_a_loop_that_may_run, False),
        (kernels.wait_consumed_on_an_unused_pointer, False),
        (kernels.polls_with_plain_loads, False),
        (kernels.wait_that_is_used, True),
    ],
)
def test_a_wait_that_was_gone_before_the_vendors_passes_is_found(kernel: Any, silent: bool) -> None:
    found = [finding for finding in effects(kernel) if finding.kind.endswith(".lost-effect")]
    lines, first = inspect.getsourcelines(kernel.fn)
    named = [first + k for k, text in enumerate(lines) if "# <wait>" in text]
    assert [finding.parties[0].line for finding in found] == ([] if silent else named)


@pytest.mark.parametrize("core", ["aic", "aiv"])
def test_a_barrier_that_one_kind_of_core_lost_is_found(core: str) -> None:
    prepared, final = mixed_barriers()
    clone = final.clone()
    (code,) = [function for function in clone.functions if function.core == core]
    (barrier,) = [op for op in code.ops if library_symbol(op) == "aclshmem_barrier_all"]
    _delete(barrier)
    (finding,) = check_multiplicity(prepared, clone)
    assert kinds([finding]) == ["lost-effect"] and finding.parties[0].role.endswith(
        "cube core" if core == "aic" else "vector cores"
    )


def test_a_barrier_that_one_vector_core_skips_is_found() -> None:
    """Newer compilers than 1.2.0 put such a gate around every call without result."""
    prepared, final = mixed_barriers()
    clone = final.clone()
    (code,) = [function for function in clone.functions if function.core == "aiv"]
    (barrier,) = [op for op in code.ops if library_symbol(op) == "aclshmem_barrier_all"]
    _wrap([barrier])
    (finding,) = check_multiplicity(prepared, clone)
    assert kinds([finding]) == ["moved-effect"] and "only vector core 0" in finding.title


def test_a_wait_that_only_the_half_without_the_data_keeps_is_found() -> None:
    prepared, final = build(COPY, I64, FENCE=False)
    clone = final.clone()
    (cube,) = [function for function in clone.functions if function.core == "aic"]
    (wait,) = [op for op in cube.ops if kind_of_symbol(library_symbol(op)) == WAIT]
    line = (loc_of(wait) or pytest.fail("no line")).line
    _delete(wait)
    (finding,) = check_multiplicity(prepared, clone)
    assert kinds([finding]) == ["lost-effect"] and finding.parties[0].line == line
    assert "token" in finding.why and finding.parties[0].role.endswith("cube core")


@pytest.mark.parametrize("which", ["source", "code"])
def test_missing_places_are_no_findings(which: str) -> None:
    """Line information can be switched off, and a compiler may drop it."""
    prepared, final = build(COPY, I64, FENCE=False)
    clone = final.clone()
    module = prepared.module.clone()
    for op in (module if which == "source" else clone.module).walk():
        op.location = UnknownLoc()
    assert check_multiplicity(changed(prepared, module), clone) == []
