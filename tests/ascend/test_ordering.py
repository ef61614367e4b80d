"""The check of order in the compiled code: finds the faults, names the lines, and is silent on the cured forms."""

from __future__ import annotations

import json

import order_kernels
import pytest
from deletions import Part, Piece, pieces, without
from order_kit import final, found, kinds, line, lines, ordinary
from order_programs import Barrier, Load, Loop, Signal, Store, Vector, final_module_of
from vendor_oracle import needs_adapter, needs_compiler
from xdsl.dialects.func import CallOp

from tdist.findings import Severity, to_text
from tdist.platforms.ascend.assumptions import ASSUMPTIONS, assumptions
from tdist.platforms.ascend.compiled.final_module import OpRef
from tdist.platforms.ascend.ordering import Cure, check_ordering, cured, with_cure

compiled = [needs_adapter, needs_compiler]
pytestmark = compiled
GEMM = {"c": "*fp32"}

# ---- (a) in flight at a signal --------------------------------------------------------------------------------------


def test_a_store_in_flight_at_a_signal_is_found_with_both_lines() -> None:
    findings = found(order_kernels.push)
    assert kinds(findings) == ["undrained-release"] * 2  # the load of x, the store to the peer
    store = findings[1]
    assert lines(store) == [line(order_kernels.push, "store"), line(order_kernels.push, "notify")]
    assert store.parties[0].tensor == "buf"
    assert "vector core (push)" in store.parties[0].role
    assert "set_flag[PIPE_MTE3, PIPE_S]" in store.why
    assert "fence" in store.cure and "inject_barrier_all" in store.cure
    assert store.severity is Severity.HAZARD and store.fails("ascend") and not store.fails("seed")


@pytest.mark.parametrize(
    "fn", [order_kernels.push_fence, order_kernels.push_quiet, order_kernels.push_add], ids=lambda fn: fn.__name__
)
def test_draining_calls_cure_it(fn) -> None:
    assert found(fn) == []


@pytest.mark.parametrize(
    "fn",
    [
        *(order_kernels.push, order_kernels.push_in_loop, order_kernels.push_on_one_way),
        *(order_kernels.push_vec_barrier, order_kernels.give_back, order_kernels.hidden_alias),
    ],
    ids=lambda fn: fn.__name__,
)
def test_the_barrier_mode_cures_it(fn) -> None:
    assert found(fn)
    assert found(fn, barrier_all=True) == []


def test_a_fence_of_the_turn_before_does_not_help() -> None:
    fn = order_kernels.push_in_loop
    assert {tuple(lines(finding)) for finding in found(fn)} == {(line(fn, "store"), line(fn, "notify"))}


def test_a_fence_on_one_side_of_a_branch_does_not_help() -> None:
    fn = order_kernels.push_on_one_way
    assert {tuple(lines(finding)) for finding in found(fn)} == {(line(fn, "store"), line(fn, "notify"))}


def test_a_load_in_flight_when_its_slot_is_given_back() -> None:
    fn = order_kernels.give_back
    loads = [finding for finding in found(fn) if "MTE2" in finding.parties[0].op]
    assert [lines(finding) for finding in loads] == [[line(fn, "load"), line(fn, "notify")]]
    assert loads[0].parties[0].tensor == "buf"


def test_the_soft_barrier_drains_nothing() -> None:
    fn = order_kernels.push_vec_barrier
    assert {finding.parties[1].op for finding in found(fn)} == {"aclshmemx_barrier_all_vec"}
    assert {lines(finding)[1] for finding in found(fn)} == {line(fn, "barrier")}


def test_a_put_of_what_was_stored() -> None:
    assert found(order_kernels.put_what_was_stored) == []
    fn = order_kernels.put_through_another_pointer
    (finding,) = found(fn)
    assert kinds([finding]) == ["undrained-transfer"]
    assert lines(finding) == [line(fn, "store"), line(fn, "put")]
    assert finding.parties[1].op == "aclshmem_half_putmem" and finding.parties[0].tensor == "buf"


def test_a_put_with_a_signal_drains_unless_it_does_not_block() -> None:
    fn = order_kernels.put_signal_behind_a_store
    assert found(fn, NBI=False) == []
    stores = [finding for finding in found(fn, NBI=True) if "MTE3" in finding.parties[0].op]
    assert [lines(finding) for finding in stores] == [[line(fn, "store"), line(fn, "put")]]
    assert kinds(stores) == ["undrained-release"]


def test_a_fixpipe_store_of_the_cube_core() -> None:
    findings = found(order_kernels.gemm_notify, GEMM)
    cube = [finding for finding in findings if "PIPE_FIX" in finding.parties[0].op]
    assert len(cube) == 1
    assert cube[0].parties[0].tensor == "c" and "cube core" in cube[0].parties[0].role


# ---- (b) cube and vector core ---------------------------------------------------------------------------------------


def test_halves_without_their_flag_are_not_ordered() -> None:
    module = final(order_kernels.gemm_epilogue, GEMM)
    assert check_ordering(module) == []
    (pair,) = (piece for piece in pieces(module) if piece.kind == "cores")
    findings = check_ordering(without(module, pair)[0], names=("a", "b", "c"))
    assert set(kinds(findings)) == {"cross-core"}
    parties = findings[0].parties
    assert ["cube core" in party.role for party in parties] == [True, False]
    assert parties[0].tensor == "workspace"
    assert lines(findings[0])[0] == line(order_kernels.gemm_epilogue, "product")


def test_a_wait_that_the_other_half_never_ends() -> None:
    module = final(order_kernels.gemm_epilogue, GEMM)
    (pair,) = (piece for piece in pieces(module) if piece.kind == "cores")
    set_ = next(part for part in pair.parts if "set" in module.op(part.ref).name)
    findings = check_ordering(without(module, Piece("cores", frozenset({set_})))[0])
    assert "unpaired-flag" in kinds(findings)
    assert any("never sets it" in finding.got for finding in findings)


def without_calls(module, symbol: str):
    """A copy without the calls of a device function."""
    copy = module.clone()
    for op in [op for op in copy.all_ops() if isinstance(op, CallOp) and symbol in op.callee.string_value()]:
        op.detach()
        op.erase()
    return copy.clone()


def test_a_barrier_of_a_mix_kernel_orders_its_halves() -> None:
    fn = order_kernels.halves_meet_in_a_barrier
    module = final(fn, GEMM)
    assert check_ordering(module) == []
    flags = [piece for piece in pieces(module) if piece.kind == "cores"]
    barrier_alone = module
    for piece in flags:
        barrier_alone = without(barrier_alone, piece)[0].clone()
    assert check_ordering(barrier_alone) == []
    (finding,) = check_ordering(without_calls(barrier_alone, "barrier_all"), names=("a", "b", "c", "buf"))
    assert kinds([finding]) == ["cross-core"]
    assert line(fn, "store") in lines(finding)
    assert {party.tensor for party in finding.parties} == {"buf"}


# ---- (f) the data cache ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [order_kernels.scalar_after_wait, order_kernels.gather_after_wait])
@pytest.mark.parametrize("barrier_all", [False, True])
def test_a_read_through_the_cache_after_a_wait(fn, barrier_all: bool) -> None:
    stale = [f for f in found(fn, barrier_all=barrier_all) if "stale" in f.kind]
    assert [lines(finding) for finding in stale] == [[line(fn, "wait"), line(fn, "load")]]
    assert stale[0].parties[1].tensor == "buf" and stale[0].severity is Severity.HAZARD


def test_a_fence_flushes() -> None:
    assert "stale-cache" not in kinds(found(order_kernels.scalar_after_fence))


def test_a_tile_comes_past_the_cache() -> None:
    assert found(order_kernels.tile_after_wait) == []


def test_memory_that_no_peer_writes_is_a_note() -> None:
    fn = order_kernels.table_after_wait
    (finding,) = found(fn)
    assert finding.severity is Severity.NOTE and finding.parties[1].tensor == "x"
    assert lines(finding)[1] == line(fn, "load")


# ---- one core -------------------------------------------------------------------------------------------------------


def test_a_store_and_a_load_that_the_compiler_took_for_different_memory() -> None:
    fn = order_kernels.hidden_alias
    (finding,) = found(fn)
    assert kinds([finding]) == ["pipe-order"]
    assert lines(finding) == [line(fn, "store"), line(fn, "load")]


def test_the_next_turn_of_a_loop_is_met() -> None:
    findings = check_ordering(final_module_of([Loop((Load(0), Vector(0, 1), Store(1)))]))
    pairs = {tuple(lines(finding)) for finding in findings}
    assert {(1, 1), (3, 3)} <= pairs  # a load over the load, and a store over the store, of the turn before


# ---- what is not understood -----------------------------------------------------------------------------------------


def test_an_unknown_call_is_named_and_taken_for_anything() -> None:
    module = final_module_of([Load(0), Signal(), Store(0)])
    module.functions[0].op.walk()
    call = next(op for op in module.all_ops() if isinstance(op, CallOp) and "signal" in op.callee.string_value())
    call.properties["callee"] = type(call.callee)("vfrobnicate_1d_float")
    unknown = [finding for finding in check_ordering(module) if "not-understood" in finding.kind]
    assert [finding.title for finding in unknown] == ["not understood: vfrobnicate_1d_float"]
    assert unknown[0].severity is Severity.HAZARD
    assert "2 accesses may run beside it" in unknown[0].got


def test_an_unknown_call_between_barriers_is_a_note() -> None:
    module = final_module_of([Load(0), Barrier("ALL"), Signal(), Barrier("ALL"), Store(0)])
    call = next(op for op in module.all_ops() if isinstance(op, CallOp) and "signal" in op.callee.string_value())
    call.properties["callee"] = type(call.callee)("vfrobnicate_1d_float")
    (finding,) = check_ordering(module)
    assert finding.severity is Severity.NOTE


# ---- cures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "types"),
    [
        *((order_kernels.push, None), (order_kernels.push_in_loop, None), (order_kernels.push_on_one_way, None)),
        *((order_kernels.give_back, None), (order_kernels.scalar_after_wait, None), (order_kernels.hidden_alias, None)),
        *((order_kernels.gather_after_wait, None), (order_kernels.gemm_notify, GEMM)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_cure_makes_its_finding_go(fn, types) -> None:
    module = final(fn, types)
    before = check_ordering(module)
    for finding in before:
        cure = cured(module, finding)
        assert cure is not None, to_text(finding)
        assert not {other.key for other in cure[1]} - {other.key for other in before}
    assert check_ordering(module) == before  # the module itself is left as it is


def test_a_cure_is_data() -> None:
    module = final(order_kernels.push)
    (value, *_) = json.loads(json.dumps(check_ordering(module)[1].data["cures"]))
    cure = Cure.from_json(value)
    changed = with_cure(module, cure)
    inserted = changed.op(OpRef(cure.function, cure.before))
    assert isinstance(inserted, CallOp) and "fence" in inserted.callee.string_value()
    assert len(changed.functions[0].ops) == len(module.functions[0].ops) + 1


# ---- assumptions ----------------------------------------------------------------------------------------------------


def test_findings_name_what_they_take_for_granted() -> None:
    for fn in (order_kernels.push, order_kernels.scalar_after_wait, order_kernels.hidden_alias):
        for finding in found(fn):
            ids = tuple(finding.data["assumptions"])
            assert ids and len(assumptions(ids)) == len(ids)


def test_every_assumption_has_a_source() -> None:
    assert all(row.text.endswith(".") and row.source for row in ASSUMPTIONS.values())


def test_a_part_of_a_piece_is_a_place() -> None:
    module = ordinary("vector_add")
    assert all(isinstance(part, Part) and module.op(part.ref) for piece in pieces(module) for part in piece.parts)
