"""Which form a kernel takes through which adapter; adapters here are scripts that behave as one could."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from vendor_oracle import adapter, needs_adapter

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

from carried_kit import line, prepared

from tdist.errors import EnvironmentUnfit, KernelError
from tdist.ir.hivm import CustomOp
from tdist.ir.location import loc_of
from tdist.platforms.ascend.compiled.generic_text import read_generic
from tdist.platforms.ascend.lowering.adapter import knows_custom, to_linalg
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions, adapter_flags
from tdist.platforms.ascend.vendor import find
from tdist.platforms.ascend.vendor.run import Limits

LINALG = """"builtin.module"() ({
  "func.func"() <{function_type = (memref<?xf16>) -> (), sym_name = "k"}> ({
  ^bb0(%arg0: memref<?xf16>):
    "func.return"() : () -> ()
  }) {mix_mode = "aiv"} : () -> ()
}) : () -> ()
"""

HEAD = """#!/bin/sh
here=$(dirname "$0")
echo "$@" >> "$here/calls"
out=""; for word in "$@"; do [ "$last" = "-o" ] && out="$word"; last="$word"; done
"""
PROBE_FAILS = 'if [ "$1" = "-" ]; then echo "unregistered operation hivm.hir.custom" >&2; exit 1; fi\n'
PROBE_PASSES = 'if [ "$1" = "-" ]; then exit 0; fi\n'
CRASH = 'echo "its last words" >&2; kill -SEGV $$; sleep 5\n'
WRITE = f'cp "$1" "$here/given"; cat > "$out" <<\'END\'\n{LINALG}END\n'


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a script in the adapter's place; the result is its folder."""
    monkeypatch.setenv("TDIST_NO_CACHE", "1")

    def install(script: str) -> Path:
        path = tmp_path / "triton-adapter-opt"
        path.write_text(HEAD + script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(find, "triton_adapter_opt", lambda: find.Tool("triton-adapter-opt", path, "0.0"))
        return tmp_path

    return install


def lower(name: str, options: CompileOptions | None = None, limits: Limits | None = None):
    with Steps(limits=limits) as steps:
        made = to_linalg(prepared(name), options or CompileOptions(), steps)
        return made, steps.texts


def forms_tried(folder: Path) -> int:
    return sum(not call.startswith("- ") and call != "-" for call in (folder / "calls").read_text().splitlines())


def test_an_adapter_that_knows_the_calls_gets_them_as_they_are(fake) -> None:
    folder = fake(PROBE_PASSES + WRITE)
    made, texts = lower("push")
    assert (made.form, made.notes) == ("direct", ())
    given = read_generic((folder / "given").read_text())
    calls = [op for op in given.walk() if isinstance(op, CustomOp)]
    assert [(op.symbol, loc_of(op)) for op in calls] == [(call.symbol, call.loc) for call in prepared("push").calls]
    assert list(texts) == ["adapter-direct", "linalg"]
    assert texts["linalg"] == made.text


@needs_adapter
def test_should_the_direct_form_fail_the_calls_are_carried(fake) -> None:
    fake(PROBE_PASSES + f'if grep -q hivm.hir.custom "$1"; then {CRASH}fi\nexec {adapter()} "$@"\n')
    made, _ = lower("push")
    assert made.form == "call"
    assert re.search(r"fails on the calls of this kernel as `direct` \(SIGSEGV", made.notes[0])


@needs_adapter
def test_a_crash_on_functions_is_followed_by_the_other_form(fake) -> None:
    folder = fake(PROBE_FAILS + f'if grep -q func.call "$1"; then {CRASH}fi\nexec {adapter()} "$@"\n')
    made, texts = lower("push")
    assert made.form == "extern"
    assert re.search(r"as `call` \(SIGSEGV \(exit 139\)\); they went through in another form", made.notes[0])
    assert list(texts) == ["adapter-call", "adapter-extern", "linalg"]
    assert forms_tried(folder) == 2
    calls = [op.symbol for op in read_generic(made.text).walk() if isinstance(op, CustomOp)]
    assert calls == [call.symbol for call in prepared("push").calls]


def test_a_crash_in_every_form_is_one_message_in_the_vendors_words(fake) -> None:
    fake(PROBE_FAILS + CRASH)
    with pytest.raises(KernelError) as error:
        lower("consume_tensor_in_loop")
    text = str(error.value)
    assert line("consume_tensor_in_loop", "for i in range") in text
    assert "triton-adapter-opt 0.0 crashes on kernel `consume_tensor_in_loop`: SIGSEGV (exit 139)" in text
    assert "its last words" in text
    assert "in another form it fails, too (as `extern`: SIGSEGV (exit 139))" in text
    assert "try: " in text


def test_a_refusal_with_a_place_names_that_place(fake) -> None:
    where = prepared("push").calls[2].loc
    fake(PROBE_FAILS + f"echo 'loc(\"{where.file}\":{where.line}:4): error: too clever' >&2; exit 1\n")
    with pytest.raises(KernelError, match="too clever") as error:
        lower("push")
    assert f"{where}: " in str(error.value)


def test_an_adapter_that_does_not_end_is_given_up_once(fake) -> None:
    folder = fake(PROBE_FAILS + "sleep 60\n")
    with pytest.raises(KernelError, match="did not finish on kernel `push`"):
        lower("push", limits=Limits(seconds=1.0))
    assert forms_tried(folder) == 1


def test_a_kernel_without_distributed_calls_is_not_asked_about(fake) -> None:
    folder = fake(WRITE)
    made, _ = lower("plain_cast")
    assert made.form == "direct"
    assert (folder / "calls").read_text().count("\n") == 1


def test_launch_options_reach_the_adapter(fake) -> None:
    folder = fake(PROBE_PASSES + WRITE)
    options = CompileOptions(enable_nd2nz_on_vector=True, enable_linearize=True)
    lower("push", options)
    call = (folder / "calls").read_text().splitlines()[-1]
    assert all(flag in call for flag in adapter_flags(options))
    assert "enable-nd2nz-on-vector=True" in call


def test_what_an_adapter_knows_is_asked_once_for_each_build_of_it(
    fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    folder = fake(PROBE_FAILS)
    monkeypatch.setenv("TDIST_NO_CACHE", "0")
    monkeypatch.setenv("TDIST_CACHE_DIR", str(cache))
    with Steps() as steps:
        assert [knows_custom(find.triton_adapter_opt(), steps) for _ in range(3)] == [False] * 3
        assert (folder / "calls").read_text().splitlines() == ["-"]
        fake(PROBE_PASSES)
        assert knows_custom(find.triton_adapter_opt(), steps)
    assert (folder / "calls").read_text().splitlines() == ["-"] * 2


@needs_adapter
def test_the_installed_adapter_knows_none() -> None:
    with Steps() as steps:
        assert not knows_custom(find.triton_adapter_opt(), steps)


def test_what_comes_back_must_be_linalg(fake) -> None:
    fake(PROBE_PASSES + 'echo nonsense > "$out"\n')
    with pytest.raises(EnvironmentUnfit, match="expected an operation in generic form"):
        lower("push")


@needs_adapter
def test_a_pointer_of_another_size_is_not_left_to_the_adapter() -> None:
    """The adapter counts on in the old elements: four of 16 bits would become four of 32."""
    made, _ = lower("cast_to_words")
    module = read_generic(made.text)
    (cast,) = (op for op in module.walk() if op.name == "builtin.unrealized_conversion_cast")
    (access,) = (op for op in module.walk() if op.name == "memref.reinterpret_cast" and op.operands[0].owner is cast)
    offset = access.operands[1].owner.operands[0].owner  # pyright: ignore[reportAttributeAccessIssue]
    assert offset.name == "arith.muli"
