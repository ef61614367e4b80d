"""Distributed kernels through triton-ascend's own compilation, and that it is untouched otherwise."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from vendor_oracle import needs_adapter, needs_compiler

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, whose stages are extended")

import triton
from carried_kit import KERNELS, constants, kernel_ir, line, prepared, signature
from memory_origins import accesses
from triton.backends import backends
from triton.backends.ascend.compiler import AscendBackend
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.errors import MLIRCompilationError

from tdist.ir.hivm import CustomOp
from tdist.ir.location import loc_of
from tdist.platforms.ascend.compiled.generic_text import read_generic
from tdist.platforms.ascend.lowering.bishengir import compile_linalg
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions
from tdist.platforms.ascend.triton_stage import distributed_stage
from tdist.platforms.ascend.triton_stage import kernel_ir as kernel_of_text

TARGET = GPUTarget("npu", "Ascend910B3", 0)
BACKENDS = (AscendBackend, backends["ascend"].compiler)
COMPILER = """#!/bin/sh
here=$(dirname "$0")
[ "$1" = "--help" ] && exit 0
echo "$@" > "$here/flags"
cp "$1" "$here/given"
while [ "$1" != "-o" ]; do shift; done
echo object > "$2_reloc.o"
"""


class OneCard:
    """What the back end asks of its driver to know the chip."""

    def get_arch(self) -> str:
        return TARGET.arch


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a compiler that notes its flags and input, in front of PATH; and a cache of Triton's of its own."""
    path = tmp_path / "bishengir-compile"
    path.write_text(COMPILER)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for backend in BACKENDS:
        monkeypatch.setitem(backend.__dict__["add_stages"].__globals__, "NPUUtils", OneCard)
    return tmp_path


def source(name: str) -> ASTSource:
    return ASTSource(fn=KERNELS[name], signature=signature(name), constants=constants(name))


def compiled(name: str, **options: object):
    return triton.compile(source(name), target=TARGET, options=options)


def parts_of_backends() -> list[object]:
    return [backend.__dict__[name] for backend in BACKENDS for name in ("add_stages", "hash")]


def stages(backend: type) -> dict:
    made: dict = {}
    instance = backend(TARGET)
    instance.add_stages(made, instance.parse_options({}))
    return made


def test_outside_of_the_scope_the_back_end_is_itself() -> None:
    before = parts_of_backends()
    with distributed_stage():
        inside = parts_of_backends()
        with distributed_stage():
            assert parts_of_backends() == inside
        assert parts_of_backends() == inside
    assert all(old is not new for old, new in zip(before, inside, strict=True))
    assert all(old is new for old, new in zip(before, parts_of_backends(), strict=True))
    with pytest.raises(RuntimeError, match="in the scope"), distributed_stage():
        raise RuntimeError("in the scope")
    assert all(old is new for old, new in zip(before, parts_of_backends(), strict=True))


@pytest.mark.parametrize("backend", BACKENDS, ids=["imported", "found by folder"])
def test_the_scope_changes_one_stage(backend: type) -> None:
    alone = stages(backend)
    with distributed_stage():
        ours = stages(backend)
    assert list(alone) == list(ours) == ["ttir", "ttadapter", "npubin"]
    changed = [name for name in alone if alone[name].__code__ is not ours[name].__code__]
    assert changed == ["ttadapter"]


@needs_adapter
@pytest.mark.parametrize("name", ["plain_table", "plain_cast"])
def test_a_kernel_of_one_card_is_the_same_byte_for_byte(name: str, vendor: Path) -> None:
    alone = compiled(name)
    with distributed_stage():
        inside = compiled(name)
    assert alone.hash != inside.hash
    assert inside.asm["ttadapter"] == alone.asm["ttadapter"]
    assert inside.asm["npubin"] == alone.asm["npubin"]


@needs_adapter
@pytest.mark.parametrize("name", ["push", "if_local", "dot_after_wait"])
def test_a_distributed_kernel_reaches_the_vendors_compiler(name: str, vendor: Path) -> None:
    with distributed_stage():
        kernel = compiled(name)
    given = read_generic((vendor / "given").read_text())
    calls = sorted((op.symbol, str(loc_of(op))) for op in given.walk() if isinstance(op, CustomOp))
    assert calls == sorted((call.symbol, str(call.loc)) for call in prepared(name).calls)
    has_dot = prepared(name).has_dot
    assert kernel.metadata.name == f"{name} {'mix' if has_dot else 'aiv'}"
    assert kernel.metadata.kernel_name == name
    assert len(kernel.metadata.tensor_kinds) == kernel.asm["ttadapter"].count("//   %arg") > 0
    assert kernel.asm["npubin"] == b"object\n"


@needs_adapter
def test_launch_options_reach_the_vendors_compiler(vendor: Path) -> None:
    options = {
        "inject_barrier_all": True,
        "inject_block_all": False,
        "multibuffer": False,
        "sync_solver": True,
        "unit_flag": False,
        "enable_auto_bind_sub_block": False,
    }
    with distributed_stage():
        kernel = compiled("push", **options)
    flags = (vendor / "flags").read_text().split()
    assert {
        "--enable-hivm-inject-barrier-all-sync=True",
        "--enable-hivm-inject-block-all-sync=False",
        "--enable-auto-multi-buffer=False",
        "--enable-hivm-graph-sync-solver=True",
        "--enable-hivm-unit-flag-sync=False",
        "--enable-auto-bind-sub-block=False",
    } <= set(flags)
    assert all(getattr(kernel.metadata, name) is value for name, value in options.items())


@needs_adapter
@needs_compiler
def test_the_real_compiler_takes_what_the_stage_makes(vendor: Path) -> None:
    with distributed_stage():
        compiled("chain")
    with Steps() as steps:
        text = compile_linalg((vendor / "given").read_text(), TARGET.arch, CompileOptions(), steps).final_text
    names = [arg.name for arg in prepared("chain").args]
    assert accesses(text, names) == {"load token(token(buf))", "load token(ptr(buf))", "store out"}


@needs_adapter
def test_what_is_refused_says_why_through_triton(vendor: Path) -> None:
    name = "walking_from_peer_to_peer"
    with distributed_stage(), pytest.raises(MLIRCompilationError, match="changes from one turn of the loop") as error:
        compiled(name)
    assert line(name, "for i in") in str(error.value)


def test_a_kernel_is_known_by_its_text() -> None:
    known, ir = kernel_of_text(kernel_ir("derived").ttir), kernel_ir("derived")
    assert (known.name, known.ttir) == (ir.name, ir.ttir)
    assert [arg.type for arg in known.args] == [arg.type for arg in ir.args] == ["*fp16", "*fp16", "*i32", "i32"]
