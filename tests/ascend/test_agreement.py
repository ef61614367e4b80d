"""Simulated ranks and compiled code side by side: where they agree, where not, and why."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import pytest
import torch

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, whose adapter it runs")
pytest.importorskip("ascendnpuir", reason="waits for ascendnpu-ir, whose compiler it runs")

import effects_kernels
from effects_kit import build, operator

from tdist.findings import KINDS, Finding, Party, make
from tdist.kernels import ag_gemm as gemm
from tdist.kernels import all_gather as gather
from tdist.platforms.ascend.agreement import (
    ALIAS,
    CODE_TOPICS,
    DRAINED,
    ELSE,
    FRESH,
    KEPT,
    LANGUAGE_TOPICS,
    ONCE,
    REASONS,
    Question,
    Row,
    agreement_json,
    compare,
    to_text,
    topic_of,
)
from tdist.platforms.ascend.assumptions import ASSUMPTIONS
from tdist.platforms.ascend.cures import default_check
from tdist.platforms.ascend.multiplicity import check_multiplicity
from tdist.platforms.sim.world import World
from tdist.verify.heap import ensure_shmem


def run_gather(runtime: Any, fence: bool) -> None:
    ensure_shmem(runtime)
    context = gather.create_context(runtime, 8, 64, torch.float16, block_elems=128)
    shard = torch.full((4, 64), float(runtime.rank + 1), dtype=torch.float16)
    gather.all_gather(context, shard, fence=fence)
    runtime.synchronize()
    context.close()


def run_gemm(runtime: Any, fence: bool, own_panels: bool) -> None:
    ensure_shmem(runtime)
    context = gemm.create_context(runtime, 64, 32, 32, torch.float16)
    a, b = torch.ones((32, 32), dtype=torch.float16), torch.ones((32, 32), dtype=torch.float16)
    gemm.ag_gemm(context, a, b, fence=fence, own_panels=own_panels)
    runtime.synchronize()
    context.close()


@functools.cache
def simulated(run: Any, *args: bool) -> tuple[Finding, ...]:
    with World(nranks=2) as world:
        world.run(run, *args)
        return tuple(world.findings)


def side_by_side(fn: Any, language: Iterable[Finding], words: str, **constants: Any) -> list[Row]:
    code = {}
    for name, barrier_all in (("fine", False), ("barrier-all", True)):
        prepared, final = operator(fn, words=words, barrier_all=barrier_all, **constants)
        code[name] = default_check(prepared, final)
    return compare(prepared, language, code)


def of(rows: list[Row], topic: str) -> list[Row]:
    return [row for row in rows if row.question.topic == topic]


def test_a_clean_kernel_has_each_question_answered_alike() -> None:
    rows = side_by_side(gather.all_gather_fine_kernel, simulated(run_gather, True), "i32", FENCE=True)
    assert {row.question.topic for row in rows} == {DRAINED, ONCE, KEPT}
    assert all(row.agrees for row in rows)
    assert {answer for row in rows for answer in (row.seed, row.ascend, *row.code.values())} == {"clean"}


def test_a_missing_fence_is_seen_by_both_and_barrier_all_is_why_one_form_is_clean() -> None:
    rows = side_by_side(gather.all_gather_fine_kernel, simulated(run_gather, False), "i32", FENCE=False)
    (drained,) = of(rows, DRAINED)
    assert (drained.seed, drained.ascend) == ("clean", "undrained-release")
    assert dict(drained.code) == {"fine": "undrained-release", "barrier-all": "clean"}
    assert {form: reason.id for form, reason in drained.reasons.items()} == {"barrier-all": "barrier-all"}
    (alias,) = of(rows, ALIAS)  # a rank pushes to itself, too
    assert alias.ascend == "hidden-alias" and {r.id for r in alias.reasons.values()} == {"alias", "barrier-all"}
    assert all(row.agrees for row in rows if row not in (drained, alias))
    text = to_text(rows)
    assert "all_gather.py:" in text and "barrier-all: the profile judges flags between pipes" in text


def test_a_store_that_the_compiler_splits_is_named_as_the_compilers() -> None:
    language = simulated(run_gemm, True, False)
    code = {}
    for name, barrier_all in (("fine", False), ("barrier-all", True)):
        prepared, final = operator(gemm.ag_gemm_fine_kernel, barrier_all=barrier_all, FENCE=True, OWN_PANELS=False)
        code[name] = check_multiplicity(prepared, final)
    rows = compare(prepared, language, code)
    (split,) = [row for row in rows if not row.agrees]
    assert split.question.topic == ONCE and split.ascend == "clean"
    assert dict(split.code) == {"fine": "split-store", "barrier-all": "split-store"}
    assert {reason.id for reason in split.reasons.values()} == {"halves"}


def test_both_judges_agree_on_the_form_that_ships() -> None:
    rows = side_by_side(gemm.ag_gemm_fine_kernel, simulated(run_gemm, True, True), "i64", FENCE=True, OWN_PANELS=True)
    assert len(of(rows, DRAINED)) == 2 and len(of(rows, KEPT)) == 2
    assert all(row.agrees for row in rows), to_text(rows)


# ---- rules ----------------------------------------------------------------------------------------------------------


def handshake_lines() -> tuple[Any, str, dict[str, int]]:
    prepared, _ = build(effects_kernels.handshake)
    calls = {call.symbol: call.loc for call in prepared.calls if call.loc is not None}
    lines = {symbol: loc.line for symbol, loc in calls.items()}
    return prepared, next(iter(calls.values())).file, lines


def finding(kind: str, file: str, *lines: int, **data: Any) -> Finding:
    return make(kind, [Party(0, file=file, line=line) for line in lines], **data)


@pytest.mark.parametrize(
    ("language", "code", "reason"),
    [
        (True, False, "compiler-ordered"),
        (False, True, "not-run"),
        (True, True, None),
        (False, False, None),
    ],
)
def test_which_side_is_alone_decides_the_reason(language: bool, code: bool, reason: str | None) -> None:
    prepared, file, lines = handshake_lines()
    signal = lines["aclshmemx_signal_op"]
    (row,) = [row for row in of(compare(prepared, [], {"fine": []}), DRAINED) if row.question.at == f"{file}:{signal}"]
    store = next(line for _, line in row.question.lines if line != signal)
    said = [finding("hazard.undrained-release", file, store, signal, first="s", second="l", tensor="b")]
    found = [finding("compiled.undrained-release", file, store, signal, first="s", second="n", tensor="b")]
    rows = compare(prepared, said if language else [], {"fine": found if code else []})
    (row,) = [row for row in of(rows, DRAINED) if row.question.at == f"{file}:{signal}"]
    assert [r.id for r in row.reasons.values()] == ([reason] if reason else [])


def test_what_answers_no_question_has_a_row_of_its_own() -> None:
    prepared, file, lines = handshake_lines()
    wait = lines["aclshmem_wait_int32"]
    stale = finding("hazard.stale-cache", file, wait, wait + 1, first="s", second="l", tensor="b")
    race = finding("race", file, wait, first="s", second="l", tensor="b")
    elsewhere = finding("race", "other.py", 1, first="s", second="l", tensor="b")
    rows = compare(prepared, [stale, race, elsewhere], {"fine": []})
    extra = [row for row in rows if row.question.topic in (FRESH, ELSE)]
    assert {row.question.topic: [r.id for r in row.reasons.values()] for row in extra} == {
        FRESH: ["cache-profile"],
        ELSE: ["protocol"],
    }
    assert [(row.seed, row.ascend) for row in of(rows, ELSE)] == [("race", "race")]


def test_every_kind_has_a_topic_and_every_reason_known_assumptions() -> None:
    assert {f"tdist.{kind}" for kind in LANGUAGE_TOPICS} <= set(KINDS)
    assert {f"tdist.compiled.{kind}" for kind in CODE_TOPICS} <= set(KINDS)
    assert all(set(reason.assumptions) <= set(ASSUMPTIONS) for reason in REASONS.values())
    hazards = {kind.removeprefix("tdist.") for kind in KINDS if kind.startswith("tdist.hazard.")}
    assert hazards <= set(LANGUAGE_TOPICS)
    order = make("compiled.stale-cache", first="w", second="r", tensor="t")
    assert topic_of(order) == FRESH


def test_80_columns_hold_a_row_and_no_kind_is_cut() -> None:
    question = Question("made once", "kernels.py:40", frozenset({("kernels.py", 40)}))
    cell = "both-vector-cores, undrained-release"
    row = Row(question, "clean", "clean", {"fine": cell, "barrier-all": cell}, {"fine": REASONS["halves"]})
    table = to_text([row], 80).split("halves:")[0].splitlines()
    assert max(map(len, table)) <= 80
    words = " ".join(table).split()
    assert words.count("both-vector-cores") == words.count("undrained-release") == 2
    assert cell in to_text([row], 160)


def test_json_says_what_the_table_says() -> None:
    rows = side_by_side(gather.all_gather_fine_kernel, simulated(run_gather, False), "i32", FENCE=False)
    values = agreement_json(rows)
    assert [value["agrees"] for value in values] == [row.agrees for row in rows]
    (drained,) = [value for value in values if value["topic"] == DRAINED]
    assert drained["reasons"]["barrier-all"]["assumptions"] == ["flag-covers-pipe", "scalar-does-not-wait"]
