"""The gate over fake stages: verdicts, what is said of what did not run, what is kept, what is printed."""

from __future__ import annotations

import dataclasses
import io
import json
import tempfile
from pathlib import Path

import pytest
from gate_fakes import FakeChain, kernel, undrained
from rich.console import Console

from tdist.errors import UsageError, VerificationFailed
from tdist.platforms.ascend.gate import GateKernel, GateReport, gate
from tdist.platforms.ascend.gate_report import NO_HIVMC, gate_json, render_gate

B3, B2 = "Ascend910B3", "Ascend910B2"


def run(chain: FakeChain, kernels=None, targets=B3, settings=(False, True), **more) -> GateReport:
    return gate(kernels or kernel(), targets, settings, stages=chain.stages(), **more)


def printed(report: GateReport, width: int = 160) -> str:
    out = io.StringIO()
    render_gate(report, Console(file=out, width=width, color_system=None))
    return out.getvalue()


def test_a_clean_kernel_is_clean_with_every_target_and_setting():
    report = run(FakeChain(), [kernel("push"), kernel("pull")], (B3, B2))
    assert [(r.kernel.ir.name, r.target, r.barrier_all, r.verdict) for r in report.results] == [
        (name, target, setting, "clean")
        for name in ("push", "pull")
        for target in (B3, B2)
        for setting in (False, True)
    ]
    assert report.exit_code == 0 and report.passed and not report.failures


def test_shared_stages_run_once_a_kernel():
    chain = FakeChain()
    run(chain, targets=(B3, B2))
    assert [call[0] for call in chain.calls] == ["lowering", "adapter", *["bishengir-compile"] * 4]


@pytest.mark.parametrize("stage", ["lowering", "adapter", "bishengir-compile"])
def test_a_refusal_names_the_stage_and_the_message(stage):
    report = run(FakeChain(refuse={stage: "/src/mine.py:9: ub overflow"}))
    assert report.exit_code == 1
    assert {(r.verdict, r.refusal and r.refusal.stage) for r in report.results} == {("refused", stage)}
    text = printed(report)
    assert text.count(f"refused by {stage}: /src/mine.py:9: ub overflow") == 1, "the same message is told once"
    assert NO_HIVMC not in text, "nothing was compiled, so nothing is said of the result"


def test_a_refused_kernel_does_not_keep_others_from_being_compiled():
    chain = FakeChain(refuse={"adapter": "crash"})
    report = run(chain, [kernel("push"), kernel("pull")])
    assert len(report.results) == 4 and [call[1] for call in chain.calls] == ["push", "push", "pull", "pull"]


def test_findings_fail_the_setting_they_are_in_and_the_clean_one_is_named():
    report = run(FakeChain(findings={False: [undrained(), undrained()]}))
    assert [r.verdict for r in report.results] == ["findings", "clean"]
    assert report.exit_code == 1
    text = printed(report)
    assert "in the compiled code, barrier-all false:" in text
    assert text.count("tdist.hazard.undrained-release") == 1
    assert "push is clean with barrier-all true only" in text


def test_cures_are_tried_once_a_setting_and_shown():
    chain = FakeChain(findings={False: [undrained()]})
    report = run(chain, targets=(B3, B2))
    assert [call for call in chain.calls if call[0] == "cure"] == [("cure", B3, "False")]
    assert printed(report).count("with a fence: finding gone") == 1


def test_cures_that_break_leave_the_findings_their_say():
    report = run(FakeChain(findings={False: [undrained()]}, breaks="cures"), settings=(False,))
    assert report.exit_code == 1 and "trying cures broke (ZeroDivisionError" in printed(report)


def test_counts_of_both_settings_stand_side_by_side():
    lines = [line.split() for line in printed(run(FakeChain())).splitlines()]
    assert ["pipe_barrier", "1", "8"] in lines


def test_memory_is_shown_against_capacity():
    assert "10240 of 196608 B (5 %)" in printed(run(FakeChain()))


def test_notes_of_the_vendor_are_shown_once_with_their_settings():
    text = printed(run(FakeChain(notes=("only fitted after a retry without multi-buffering",))))
    assert text.count("note: only fitted after a retry") == 1


def test_a_fit_only_without_multi_buffering_is_said():
    text = printed(run(FakeChain(retried_without=("enable-auto-multi-buffer",))))
    assert "only fitted after the vendor's retry without multi-buffering (enable-auto-multi-buffer off)" in text


def test_a_cached_result_is_said_to_be():
    assert "cached" in printed(run(FakeChain(cached=True))) and "cached" not in printed(run(FakeChain()))


def test_without_hivmc_every_report_says_so_and_with_it_names_it():
    without = run(FakeChain())
    assert NO_HIVMC in printed(without)
    assert any("no hivmc" in limit for limit in gate_json(without)["limits"])
    named = run(FakeChain(hivmc="hivmc /opt/cann/hivmc sha256 abc"))
    assert "hivmc: hivmc /opt/cann/hivmc sha256 abc" in printed(named)
    assert NO_HIVMC not in printed(named)


@pytest.mark.parametrize(("breaks", "unchecked"), [("order", ("order",)), ("reading", ("order", "effects"))])
def test_a_check_that_breaks_is_named_and_is_not_clean(breaks, unchecked):
    report = run(FakeChain(breaks=breaks))
    assert {r.verdict for r in report.results} == {"undecided"}
    assert report.exit_code == 3, "a defect of ours says nothing about the kernel"
    assert report.results[0].unchecked == unchecked
    assert f"not checked: {', '.join(unchecked)}" in printed(report)


def test_a_broken_check_does_not_hide_what_another_kernel_has():
    chain = FakeChain(breaks="order", refuse={})
    broken = run(chain)
    refused = run(FakeChain(refuse={"adapter": "no"}))
    assert GateReport(broken.results + refused.results).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"targets": "Ascend910B33"}, "did you mean Ascend910B3?"),
        ({"targets": "Ascend950"}, "another compiler, which tdist does not drive"),
        ({"targets": ()}, "at least one target"),
        ({"settings": ()}, "at least one barrier-all setting"),
        ({"kernels": [kernel(multibufer=False)]}, "kernel push: 'multibufer' is not a launch option"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_runs(arguments, text):
    chain = FakeChain()
    with pytest.raises(UsageError, match=text.replace("?", r"\?")):
        run(chain, **arguments)
    assert not chain.calls


def test_launch_options_are_shown():
    assert "  launch options: multibuffer=False, num_warps=4\n" in printed(
        run(FakeChain(), kernel(num_warps=4, multibuffer=False))
    )
    assert "launch options" not in printed(run(FakeChain()))


def test_launch_options_reach_the_compiler():
    seen = []
    chain = FakeChain()
    stages = chain.stages()
    original = stages.compile_linalg
    object.__setattr__(stages, "compile_linalg", lambda *a: (seen.append(a[2]), original(*a))[1])
    gate(kernel(multibuffer=False, num_warps=4), B3, (True,), stages=stages)
    assert [(options.multibuffer, options.inject_barrier_all) for options in seen] == [(False, True)]


# keeping IR


def test_every_stage_is_kept_in_a_folder_of_its_own(tmp_path: Path):
    root = tmp_path / "new" / "ir"
    run(FakeChain(), [kernel(label="fp16 fine"), kernel(label="fp16 fine")], keep_ir=root)
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*.mlir"))
    assert files == sorted(
        f"{name}/{B3}/barrier-all-{setting}/{number}-{stage}.mlir"
        for name in ("push-fp16-fine", "push-fp16-fine-2")
        for setting in ("false", "true")
        for number, stage in (("00", "ttir"), ("01", "lowered"), ("02", "linalg"), ("03", "final"))
    )
    kept = root / "push-fp16-fine" / B3 / "barrier-all-true" / "03-final.mlir"
    assert kept.read_text() == f"final {B3} True"


def test_stages_before_a_refusal_are_kept(tmp_path: Path):
    run(FakeChain(refuse={"bishengir-compile": "no"}), keep_ir=tmp_path / "ir", settings=(False,))
    assert sorted(path.name for path in (tmp_path / "ir").rglob("*.mlir")) == [
        "00-ttir.mlir",
        "01-lowered.mlir",
        "02-linalg.mlir",
    ]


def test_files_that_are_there_are_not_destroyed(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("mine")
    chain = FakeChain()
    with pytest.raises(UsageError, match="has files already"):
        run(chain, keep_ir=tmp_path)
    assert not chain.calls and (tmp_path / "mine.txt").read_text() == "mine"


def test_a_directory_that_cannot_be_made_is_refused_before_anything_runs(tmp_path: Path):
    (tmp_path / "file").write_text("")
    chain = FakeChain()
    with pytest.raises(UsageError, match=r"cannot keep IR in .*file/ir: Not a directory"):
        run(chain, keep_ir=tmp_path / "file" / "ir")
    assert not chain.calls


# the report


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_a_narrow_terminal_loses_no_word(width):
    chain = FakeChain(findings={False: [undrained()]}, notes=("only fitted after a retry",))
    text = printed(run(chain, [kernel(label="fp16 fine")]), width)
    assert "…" not in text
    for word in ("fine]", "barrier-all", "finding", "clean", "10240", "196608", "pipe_barrier", "retry", "FAILED"):
        assert word in text, f"{word} is lost at {width} columns"


def test_two_runs_differ_in_run_only():
    first, second = (gate_json(run(FakeChain(findings={False: [undrained()]}))) for _ in range(2))
    assert first.pop("run") and second.pop("run")
    assert json.dumps(first, sort_keys=True, allow_nan=False) == json.dumps(second, sort_keys=True, allow_nan=False)


def test_json_names_kernel_setting_and_verdict():
    value = gate_json(run(FakeChain(refuse={"adapter": "no"}), settings=(True,)))
    (result,) = value["results"]
    assert (value["verdict"], result["verdict"], result["barrier_all_sync"]) == ("failed", "refused", True)
    assert (result["file"], result["line"], result["arguments"]) == ("/src/mine.py", 7, {"x_ptr": "*fp16"})
    assert result["refusal"] == {"stage": "adapter", "message": "no"}


def test_a_report_that_is_not_clean_can_be_raised():
    run(FakeChain()).raise_for_failures()
    with pytest.raises(VerificationFailed, match=r"(?s)refused by adapter: no.*FAILED  2 of 2"):
        run(FakeChain(refuse={"adapter": "no"})).raise_for_failures()


def test_the_observer_hears_each_result_as_it_comes():
    heard = []
    report = run(FakeChain(), observer=heard.append)
    assert tuple(heard) == report.results


def test_a_path_that_mlir_escapes_is_told_as_it_is():
    ir = dataclasses.replace(kernel().ir, ttir='#loc = loc("/src/m\\C3\\BC \\22q\\22.py":7:0)\nmodule {}\n')
    assert GateKernel(ir).at == '/src/mü "q".py:7'


def test_one_private_directory_at_a_time(tmp_path: Path, monkeypatch):
    """A kill in a step deletes the directory of this step alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[int] = []
    stages = FakeChain().stages()

    def compile_linalg(*what):
        seen.append(len(list(tmp_path.iterdir())))
        return stages.compile_linalg(*what)

    gate(kernel(), [B3, B2], (False, True), stages=dataclasses.replace(stages, compile_linalg=compile_linalg))
    assert seen == [1] * 4 and not list(tmp_path.iterdir())
