"""Small kernels through the whole chain of vendor tools, in both barrier-all settings: what passes, what is refused."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from memory_origins import accesses
from vendor_oracle import needs_vendor
from xdsl.dialects import func

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

import gate_kernels_library
import gate_kernels_memory
import gate_kernels_mix
import gate_kernels_plain
import gate_kernels_pointers
import gate_kernels_signals
from gate_kit import Case, Passes, Refused

from tdist.errors import KernelError
from tdist.frontend.kernel_ir import KernelIR
from tdist.platforms.ascend.compiled.final_module import FinalModule
from tdist.platforms.ascend.gate import GateKernel, GateResult, gate, real_stages
from tdist.platforms.ascend.lowering.prepare import Prepared, prepare
from tdist.platforms.ascend.symbols import LINK_PREFIX

FILES = (
    gate_kernels_signals,
    gate_kernels_pointers,
    gate_kernels_library,
    gate_kernels_mix,
    gate_kernels_memory,
    gate_kernels_plain,
)
CASES = [case for file in FILES for case in file.CASES]
EARLY = ("front end", "lowering")
FRONT = [case for case in CASES if isinstance(case.expect, Refused) and case.expect.stage in EARLY]
THROUGH = [case for case in CASES if case not in FRONT]
PASSING = [case for case in CASES if isinstance(case.expect, Passes)]


@functools.cache
def ir_of(index: int) -> KernelIR:
    return CASES[index].compile()


@functools.cache
def prepared(index: int) -> Prepared:
    return prepare(ir_of(index))


def by_id(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.id for case in cases])


# ---- before the vendor's tools --------------------------------------------------------------------------------------


def test_there_are_enough_of_them_and_each_has_one_name() -> None:
    assert len({case.fn.__name__ for case in CASES}) >= 40
    assert len({case.id for case in CASES}) == len(CASES)


@by_id(PASSING)
def test_lowering_loses_no_more_than_is_said(case: Case) -> None:
    assert isinstance(case.expect, Passes)
    lost = [lost.op_name for lost in prepared(CASES.index(case)).report.lost]
    assert sorted(lost) == sorted(case.expect.lost)


@by_id(FRONT)
def test_refused_before_any_vendor_tool_runs_with_reason_and_line(case: Case) -> None:
    assert isinstance(case.expect, Refused)
    with pytest.raises(KernelError, match=case.expect.says) as caught:
        ir = case.compile()
        assert case.expect.stage == "lowering", "the front end should have refused it"
        prepare(ir)
    assert case.line(case.expect.at) in str(caught.value)


# ---- through them ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What a final module says of itself, without keeping it."""

    cores: frozenset[str]
    calls: Counter[str]
    memory: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a case: a result for each barrier-all setting, and what was compiled, in order."""

    results: tuple[GateResult, ...]
    compiled: tuple[Compiled, ...]


@functools.cache
def outcome(index: int) -> Outcome:
    """The case through all stages and checks, once for all tests."""
    case, stages = THROUGH[index], real_stages()
    ir = ir_of(CASES.index(case))
    names = [*(argument.name for argument in ir.args), *("grid",) * 3, "flags", "lock", "workspace"]
    compiled: list[Compiled] = []

    def read(text: str) -> FinalModule:
        final = stages.read_final_module(text)
        cores = frozenset(function.core for function in final.functions)
        compiled.append(Compiled(cores, Counter(library_calls(final)), frozenset(accesses(text, names))))
        return final

    watched = dataclasses.replace(stages, read_final_module=read)
    report = gate(GateKernel(ir, dict(case.options)), "Ascend910B3", (False, True), stages=watched)
    return Outcome(report.results, tuple(compiled))


def library_calls(final: FinalModule) -> Iterator[str]:
    for op in final.all_ops():
        if isinstance(op, func.CallOp):
            symbol = re.sub(rf"^{LINK_PREFIX}|\.(cube|vector)$", "", op.callee.string_value())
            if symbol.startswith(("aclshmem", "mine_")):
                yield symbol


def reached_by(case: Case) -> Outcome:
    return outcome(THROUGH.index(case))


@needs_vendor
@by_id(THROUGH)
def test_the_vendors_compiler(case: Case) -> None:
    """Both settings: the kernel passes, or is refused with a reason and a line."""
    reached = reached_by(case)
    assert [result.barrier_all for result in reached.results] == [False, True]
    if isinstance(case.expect, Refused):
        assert_refused(case, case.expect, reached)
    else:
        assert_passes(case.expect, reached)


def assert_refused(case: Case, expect: Refused, reached: Outcome) -> None:
    for result in reached.results:
        assert result.refusal is not None, "it passes"
        assert result.refusal.stage == expect.stage, result.refusal
        assert re.search(expect.says, result.refusal.message), result.refusal.message
        assert case.line(expect.at) in result.refusal.message


def assert_passes(expect: Passes, reached: Outcome) -> None:
    for result in reached.results:
        assert result.refusal is None, f"{result.refusal.stage}: {result.refusal.message}"
        assert_notes(expect, result.notes)
        assert all(0 <= use.bytes <= use.capacity_bytes for use in result.use)
    assert [compiled.cores for compiled in reached.compiled] == [expect.cores] * len(reached.results)


def assert_notes(expect: Passes, notes: tuple[str, ...]) -> None:
    unmet = [pattern for pattern in expect.notes if not any(re.search(pattern, note) for note in notes)]
    others = [note for note in notes if not any(re.search(pattern, note) for pattern in expect.notes)]
    assert not unmet and not others, notes


@needs_vendor
@by_id(PASSING)
def test_each_access_is_in_the_memory_that_the_source_means(case: Case) -> None:
    """A product's halves may meet in the workspace besides."""
    for compiled in reached_by(case).compiled:
        assert {access for access in compiled.memory if "workspace" not in access} == case.memory


@needs_vendor
@by_id(PASSING)
def test_no_check_of_the_compiled_code_breaks(case: Case) -> None:
    for result in reached_by(case).results:
        assert not result.broken and not result.unchecked


@needs_vendor
@by_id(PASSING)
def test_each_library_call_of_the_source_is_in_the_compiled_code(case: Case) -> None:
    """Once in a kernel of one kind of core; in one of both, on one of them or on both."""
    calls = prepared(CASES.index(case)).calls
    wanted = Counter(without_rank(call.symbol) for call in calls)
    for compiled in reached_by(case).compiled:
        assert compiled.calls.keys() == wanted.keys()
        most = len(compiled.cores)
        assert all(wanted[symbol] <= compiled.calls[symbol] <= most * wanted[symbol] for symbol in wanted)


def without_rank(symbol: str) -> str:
    """A token on pointers of any rank reaches the compiled code as one on their base."""
    return re.sub(r"_ptr_\dd$", "_ptr_1d", symbol)


@needs_vendor
@by_id(PASSING)
def test_barrier_all_replaces_flags_by_barriers(case: Case) -> None:
    """The setting reaches the vendor's compiler: no flag is left, and there are more barriers than before."""
    fine, drained = (result.counts for result in reached_by(case).results)
    assert not drained["set_flag"] and not drained["wait_flag"]
    assert drained["pipe_barrier"] >= fine["pipe_barrier"]


FOUND: dict[str, tuple[set[str], set[str]]] = {
    "push_to_all_and_wait_for_all-fp16": ({"undrained-release"}, set()),
    "fence_between_store_and_signal": (set(), set()),
    "quiet_between_store_and_signal": (set(), set()),
    "signal_words_of_64_bits-i64": (set(), set()),
    "slot_handed_back_after_its_loads": ({"undrained-release"}, set()),
    "counter_that_all_ranks_add_to": ({"staging-overlap"}, {"staging-overlap"}),
    "signal_to_a_translated_address": ({"translated-twice", "undrained-release"}, {"translated-twice"}),
    "scalar_load_and_store-fp32": ({"stale-cache", "undrained-release"}, {"stale-cache"}),
    "bits_changed_on_a_peer": ({"lock-atomic"}, {"lock-atomic"}),
    "wait_whose_token_nobody_takes": ({"lost-effect"}, {"lost-effect"}),
    "scalar_exchange_of_a_constant": ({"lost-effect"}, {"lost-effect"}),
    "panels_pushed_and_multiplied-fp16": ({"both-cores"}, {"both-cores"}),
    "product_sent_with_a_signal-i64": ({"undrained-release"}, set()),
    "product_reduced_by_atomics_then_scattered": (set(), set()),
}
"""What the checks find without and with barrier-all, by what is known of the vendor's compiler and of the library."""


@needs_vendor
@pytest.mark.parametrize("name", FOUND)
def test_known_findings(name: str) -> None:
    """Barrier-all drains before a signal; it helps against nothing else here."""
    (case,) = [case for case in PASSING if case.id == name]
    found = tuple(
        {finding.kind.removeprefix("tdist.compiled.") for finding in result.findings}
        for result in reached_by(case).results
    )
    assert found == FOUND[name]
