"""Which forms of the operators are clean in the compiled code: the table of docs/compiled-effects.md, compiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, whose adapter it runs")
pytest.importorskip("ascendnpuir", reason="waits for ascendnpu-ir, whose compiler it runs")

from effects_kit import kinds, operator

from tdist.findings import to_text
from tdist.kernels.ag_gemm import ag_gemm_barrier_kernel, ag_gemm_fine_kernel
from tdist.kernels.all_gather import all_gather_barrier_kernel, all_gather_fine_kernel
from tdist.platforms.ascend.cures import default_check
from tdist.platforms.ascend.multiplicity import check_multiplicity

DOC = Path(__file__).parents[2] / "docs" / "compiled-effects.md"
SPLIT, LATE = "split-store", "undrained-release"


@dataclass(frozen=True)
class Choice:
    """A form of an operator, the kinds of findings in its code with flags between pipes and with barrier-all."""

    operator: str
    form: str
    fn: Any
    constants: tuple[tuple[str, Any], ...]
    words: tuple[str, ...]
    fine: tuple[str, ...]
    barrier_all: tuple[str, ...]

    @property
    def row(self) -> str:
        cells = (self.operator, self.form, *(", ".join(found) or "clean" for found in (self.fine, self.barrier_all)))
        return f"| {' | '.join(cells)} |"


def fine(fence: bool, own: bool) -> tuple[tuple[str, Any], ...]:
    return (("FENCE", fence), ("OWN_PANELS", own))


BOTH = ("i64", "i32")
CHOICES = (
    Choice("`ag_gemm`", "signals, own panels, fence", ag_gemm_fine_kernel, fine(True, True), BOTH, (), ()),
    Choice("`ag_gemm`", "signals, own panels, no fence", ag_gemm_fine_kernel, fine(False, True), BOTH, (LATE,), ()),
    Choice(
        "`ag_gemm`", "signals, shared panels, fence", ag_gemm_fine_kernel, fine(True, False), BOTH, (SPLIT,), (SPLIT,)
    ),
    Choice(
        "`ag_gemm`",
        "signals, shared panels, no fence",
        ag_gemm_fine_kernel,
        fine(False, False),
        BOTH,
        (SPLIT, LATE),
        (SPLIT,),
    ),
    Choice("`ag_gemm`", "`barrier_all`", ag_gemm_barrier_kernel, (), ("i64",), (), ()),
    Choice("`all_gather`", "signals, fence", all_gather_fine_kernel, (("FENCE", True),), ("i32",), (), ()),
    Choice("`all_gather`", "signals, no fence", all_gather_fine_kernel, (("FENCE", False),), ("i32",), (LATE,), ()),
    Choice("`all_gather`", "`barrier_all_vec`, fence", all_gather_barrier_kernel, (("FENCE", True),), ("i32",), (), ()),
    Choice(
        "`all_gather`",
        "`barrier_all_vec`, no fence",
        all_gather_barrier_kernel,
        (("FENCE", False),),
        ("i32",),
        (LATE,),
        (),
    ),
)
CASES = [
    pytest.param(choice, words, barrier_all, id=f"{choice.row[2:].split(' |')[0]}-{choice.form}-{words}-{barrier_all}")
    for choice in CHOICES
    for words in choice.words
    for barrier_all in (False, True)
]


@pytest.mark.parametrize(("choice", "words", "barrier_all"), CASES)
def test_the_table_is_what_the_compiled_code_says(choice: Choice, words: str, barrier_all: bool) -> None:
    prepared, final = operator(choice.fn, words=words, barrier_all=barrier_all, **dict(choice.constants))
    expected = choice.barrier_all if barrier_all else choice.fine
    found = default_check(prepared, final)
    assert sorted(set(kinds(found))) == sorted(expected), [to_text(finding) for finding in found]


def test_the_page_has_the_table() -> None:
    rows = [line for line in DOC.read_text(encoding="utf-8").splitlines() if line.startswith(("| `ag_g", "| `all_"))]
    assert rows == [choice.row for choice in CHOICES]


def test_each_shared_panel_is_one_finding_at_its_two_lines() -> None:
    prepared, final = operator(ag_gemm_fine_kernel, FENCE=True, OWN_PANELS=False)
    (finding,) = check_multiplicity(prepared, final)
    store, signal = finding.parties
    assert store.tensor == "buffer_ptr" and "auto-bind-sub-block" in finding.why
    assert "each core signals when its own part is stored" in signal.note
