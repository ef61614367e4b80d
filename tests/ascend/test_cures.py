"""Cures are applied, compiled and checked again: what goes, what stays, what they bring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, whose adapter it runs")
pytest.importorskip("ascendnpuir", reason="waits for ascendnpu-ir, whose compiler it runs")

import effects_kernels as kernels
from effects_kit import TARGET, build, kinds, operator

from tdist.errors import KernelError
from tdist.findings import KINDS, Finding, Party, make, to_text
from tdist.kernels.ag_gemm import ag_gemm_fine_kernel
from tdist.platforms.ascend import cures
from tdist.platforms.ascend.cures import (
    BARRIER_ALL,
    CURES,
    ORDER_CURES,
    WITHOUT_CURE,
    Clinic,
    Trial,
    candidates,
    default_check,
    describe,
    with_cures,
)
from tdist.platforms.ascend.lowering.prepare import Prepared
from tdist.platforms.ascend.multiplicity import check_multiplicity
from tdist.platforms.ascend.options import CompileOptions
from tdist.platforms.ascend.rewrites import REWRITES

I64, F32 = {"sig": "*i64"}, {"buf": "*fp32"}
CLINIC = Clinic(TARGET, CompileOptions(), check_multiplicity)


def examined(fn: Any, types: dict[str, str], **constants: Any) -> tuple[Prepared, list[Finding]]:
    prepared, final = build(fn, types, **constants)
    return prepared, check_multiplicity(prepared, final)


CASES: list[tuple[Any, dict[str, str], dict[str, Any], str]] = [
    (kernels.copy_beside_a_dot, {}, {"FENCE": False}, "int64"),
    (kernels.copy_beside_a_dot, {}, {"FENCE": True}, "int64 no-fence"),
    (kernels.copy_beside_a_dot, I64, {"FENCE": True}, "no-fence"),
    (kernels.copy_beside_a_dot, {"sig": "*u64"}, {"FENCE": False}, "signed"),
    (kernels.product_sent, F32, {}, "int64"),
    (kernels.product_sent_past_a_copy, {**I64, **F32}, {}, "close"),
    (kernels.pushed_after_a_product, I64, {"GATE": False, "SHARE": False}, "gate"),
    (kernels.flag_exchanged, {}, {}, "int_p"),
    (kernels.signal_at, {}, {"TRANSLATED": True}, "local-address"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__}-{case[3].replace(' ', '+')}")
def test_the_first_clean_cure(case: tuple) -> None:
    fn, types, constants, cure = case
    prepared, before = examined(fn, types, **constants)
    text = str(prepared.module)
    trials = CLINIC.try_all(prepared, before)
    assert trials[-1].clean and trials[-1].cure == cure, [trial.cure for trial in trials]
    assert [f.kind for f in trials[-1].gone] == [f.kind for f in before]
    assert not any(trial.clean for trial in trials[:-1])
    assert str(prepared.module) == text, "the kernel itself is left as it is"
    advice = with_cures(before, trials)
    assert all(f"with {describe(cure)}: finding gone" in finding.cure for finding in advice)
    assert [finding.key for finding in advice] == [finding.key for finding in before]


def test_a_fence_brings_the_doubled_signal_back() -> None:
    """The dilemma of a mix kernel: an int64 SET follows its data, unless a fence stands between them."""
    prepared, before = examined(kernels.copy_beside_a_dot, I64, FENCE=False)
    assert before == []
    trial = CLINIC.try_cure(prepared, before, "fence")
    assert trial is not None and not trial.clean and kinds(list(trial.new)) == ["both-cores"]


def test_a_barrier_of_all_pipes_does_not_double_it() -> None:
    prepared, before = examined(kernels.copy_beside_a_dot, I64, FENCE=False)
    for cure in (BARRIER_ALL, "pipe-barrier"):
        trial = CLINIC.try_cure(prepared, before, cure)
        assert trial is not None and trial.clean, cure


def test_a_point_write_follows_its_data_too() -> None:
    prepared, before = examined(kernels.copy_beside_a_dot, {}, FENCE=False)
    trial = CLINIC.try_cure(prepared, before, "point-write")
    assert trial is not None and trial.clean
    assert CLINIC.try_cure(prepared, before, "signed") is None


def test_a_cure_that_changes_nothing_is_not_tried() -> None:
    prepared, before = examined(kernels.copy_beside_a_dot, I64, FENCE=False)
    assert CLINIC.try_cure(prepared, before, "no-fence") is None
    assert CLINIC.try_cure(prepared, before, "int64") is None
    already = Clinic(TARGET, CompileOptions(inject_barrier_all=True), check_multiplicity)
    assert already.try_cure(prepared, before, BARRIER_ALL) is None


def test_what_only_a_new_protocol_cures_is_said_without_trials() -> None:
    prepared, before = examined(kernels.tile_to_everyone, {}, ADD=True)
    assert kinds(before) == ["staging-overlap"]
    assert CLINIC.try_all(prepared, before) == []
    assert with_cures(before, []) == before


def test_a_cure_that_the_vendor_refuses_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, before = examined(kernels.copy_beside_a_dot, {}, FENCE=False)

    def refuse(*_: object) -> None:
        raise KernelError("k.py:1: ub overflow\nmore")

    monkeypatch.setattr(cures, "compile_linalg", refuse)
    trial = CLINIC.try_cure(prepared, before, "int64")
    assert trial is not None and not trial.clean
    assert trial.verdict(before[0]) == "cannot be compiled: k.py:1: ub overflow"
    assert "cannot be compiled" in with_cures(before, [trial])[0].cure


def test_verdicts_say_what_stays_and_what_comes() -> None:
    one, other = (
        make("compiled.both-cores", [Party(0, file="k.py", line=line, op="a")], op="a", reason="r") for line in (1, 2)
    )
    new = make("compiled.wrong-core", [Party(0, file="k.py", line=3)], op="a", core="c", other="d", tensor="t")
    trial = Trial("no-fence", "no fence", gone=(one,), left=(other,), new=(new,))
    assert trial.verdict(one) == "finding gone, but brings wrong-core"
    assert trial.verdict(other) == "finding stays"
    assert with_cures([one, other], [trial])[0].data["tried"] == {"no-fence": "finding gone, but brings wrong-core"}


def test_notes_need_no_cure() -> None:
    note = make("compiled.not-understood", [Party(0, file="k.py", line=9)], op="x", beside=0)
    prepared, before = examined(kernels.copy_beside_a_dot, {}, FENCE=False)
    clinic = Clinic(TARGET, CompileOptions(), lambda *_: [*check_multiplicity(*_), note])
    trials = clinic.try_all(prepared, [*before, note])
    assert trials[-1].clean and trials[-1].cure == "int64"
    assert with_cures([note], trials) == [note]


def test_every_step_of_a_cure_exists() -> None:
    steps = {step for cures in (*CURES.values(), ORDER_CURES) for cure in cures for step in cure.split()}
    assert steps <= {*REWRITES, BARRIER_ALL} and set(REWRITES) <= steps
    compiled = {kind.removeprefix("tdist.compiled.") for kind in KINDS if kind.startswith("tdist.compiled.")}
    assert set(WITHOUT_CURE) <= compiled and not set(WITHOUT_CURE) & set(CURES)
    assert all(candidates(make("compiled.both-cores", op="a", reason="r")))


DILEMMA = {
    ("int32", False): ({"both-cores", "undrained-release"}, {"both-cores"}),
    ("int32", True): ({"both-cores"}, {"both-cores"}),
    ("int64", False): ({"undrained-release"}, set()),
    ("int64", True): ({"both-cores"}, {"both-cores"}),
}
DOC = Path(__file__).parents[2] / "docs" / "compiled-effects.md"


@pytest.mark.parametrize(("words", "fence"), DILEMMA, ids=str)
def test_the_dilemma_of_a_mix_kernel(words: str, fence: bool) -> None:
    types = {"sig": "*i64" if words == "int64" else "*i32"}
    for barrier_all, expected in zip((False, True), DILEMMA[words, fence], strict=True):
        found = default_check(*build(kernels.copy_beside_a_dot, types, barrier_all=barrier_all, FENCE=fence))
        assert set(kinds(found)) == expected, [to_text(finding) for finding in found]


def test_the_page_shows_the_dilemma() -> None:
    for (words, fence), answers in DILEMMA.items():
        cells = (words, "yes" if fence else "no", *(", ".join(sorted(found)) or "clean" for found in answers))
        assert f"| {' | '.join(cells)} |" in DOC.read_text(encoding="utf-8")


def test_the_way_out_is_found_by_itself() -> None:
    """int64 without fence and with barrier-all: what cures order doubles, what cures doubling leaves no order."""
    prepared, final = build(kernels.copy_beside_a_dot, FENCE=False)
    clinic = Clinic(TARGET, CompileOptions())
    before = default_check(prepared, final)
    trials = clinic.try_all(prepared, before)
    assert trials[-1].clean and trials[-1].cure == "int64 barrier-all", [(t.cure, t.clean) for t in trials]


def test_a_shared_panel_is_cured_by_a_gate() -> None:
    """The other way out, a panel for each core, is a change of the loop that only the kernel's author can make."""
    prepared, final = operator(ag_gemm_fine_kernel, FENCE=True, OWN_PANELS=False)
    before = default_check(prepared, final)
    trials = Clinic(TARGET, CompileOptions()).try_all(prepared, before)
    assert kinds(before) == ["split-store"] and trials[-1].clean and trials[-1].cure == "gate"
