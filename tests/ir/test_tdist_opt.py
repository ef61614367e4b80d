"""`tdist-opt` from outside: what it prints, and its exit codes."""

from __future__ import annotations

import pytest
from ir_oracle import assert_same, parse

from tdist.frontend.reader import read_ttir
from tdist.passes import PASSES
from tdist.tools.opt import main

TRITON = """#loc = loc("k.py":1:0)
module {
  tt.func public @k(%arg0: !tt.ptr<i32> loc("k.py":1:0), %arg1: i32 loc("k.py":1:0)) attributes {noinline = false} {
    scf.while : () -> () {
      %1 = tt.load %arg0 : !tt.ptr<i32> loc(#loc2)
      %2 = arith.cmpi ne, %1, %arg1 : i32 loc(#loc2)
      scf.condition(%2) loc(#loc2)
    } do {
      scf.yield loc(#loc2)
    } loc(#loc1)
    tt.store %arg0, %arg1 : !tt.ptr<i32> loc(#loc3)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc1 = loc("k.py":2:4)
#loc2 = loc("x"(#loc1))
#loc3 = loc("k.py":4:4)
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture
def triton(tmp_path) -> str:
    path = tmp_path / "k.ttir"
    path.write_text(TRITON, encoding="utf-8")
    return str(path)


def test_reads_tritons_text_and_prints_it(capsys, triton: str) -> None:
    code, out, err = run(capsys, triton)
    assert (code, err) == (0, "")
    assert_same(parse(out), read_ttir(TRITON))


def test_generic_and_locations(capsys, triton: str) -> None:
    _, out, _ = run(capsys, triton, "--generic", "--locations")
    assert '"tt.store"(' in out and 'loc("k.py":4:4)' in out and 'loc("x"("k.py":2:4))' in out


def test_runs_passes_by_name_and_reports_what_was_lost(capsys, triton: str) -> None:
    code, out, err = run(capsys, triton, "-p", "cse,dce", "--report")
    assert code == 0
    assert "scf.while" not in out
    assert "lost: scf.while at k.py:2" in err and "lost: tt.load at k.py:2" in err


def test_lists_passes(capsys) -> None:
    code, out, _ = run(capsys, "--list-passes")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(PASSES)


def test_default_pipeline(capsys, triton: str) -> None:
    code, out, _ = run(capsys, triton, "--default-pipeline")
    assert code == 0 and "tt.load" not in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("-p", "magic"), "no pass is called 'magic'"),
        (("-p", "cse", "--default-pipeline"), "exclude each other"),
        (("--nonsense",), "No such option"),
    ],
)
def test_wrong_use_exits_2(capsys, triton: str, arguments: tuple[str, ...], complaint: str) -> None:
    code, out, err = run(capsys, triton, *arguments)
    assert (code, out) == (2, "")
    assert complaint in err and "Traceback" not in err


def test_a_file_that_is_not_there_exits_2(capsys, tmp_path) -> None:
    code, _, err = run(capsys, str(tmp_path / "no.mlir"))
    assert code == 2 and "cannot read" in err


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("module {\n  tt.nonsense\n}", "tt.nonsense"),
        ("tt.func @k(%n: i32) {\n  %x = tt.splat %n : i32 -> tensor<4xi64>\n  tt.return\n}", "cannot splat i32"),
    ],
)
def test_a_wrong_module_exits_1(capsys, tmp_path, text: str, complaint: str) -> None:
    path = tmp_path / "wrong.mlir"
    path.write_text(text, encoding="utf-8")
    code, out, err = run(capsys, str(path))
    assert (code, out) == (1, "")
    assert complaint in err and "Traceback" not in err
