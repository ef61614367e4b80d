"""Helpers of the IR tests: the vendor's tool as an oracle, printing, parsing, comparing."""

from __future__ import annotations

import functools
import importlib.util
import io
import subprocess
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.printer import Printer

from tdist.ir.context import make_context


@functools.cache
def adapter() -> str | None:
    """The path of `triton-adapter-opt`, if triton-ascend is installed."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "backends" / "ascend" / "triton-adapter-opt"
    return str(path) if path.exists() else None


needs_adapter = pytest.mark.skipif(
    adapter() is None, reason="waits for triton-ascend, whose triton-adapter-opt it asks"
)


def adapter_generic(text: str) -> str:
    """What the vendor's tool makes of `text`, in generic form with locations."""
    command = [str(adapter()), "--mlir-print-op-generic", "--mlir-print-debuginfo"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[:2000]
    return done.stdout


def mlir_passes(text: str, names: list[str], folder: Path) -> str:
    """What MLIR's own passes make of `text`, through Triton's library."""
    from triton._C.libtriton import ir, passes

    context = ir.context()
    ir.load_dialects(context)
    path = folder / "input.ttir"
    path.write_text(text, encoding="utf-8")
    module = ir.parse_mlir_module(str(path), context)
    module.context = context  # the module does not keep it alive
    manager = ir.pass_manager(context)
    for name in names:
        getattr(passes.common, f"add_{name}")(manager)
    manager.run(module)
    printed = str(module)
    context.disable_multithreading()
    return printed


def parse(text: str) -> ModuleOp:
    """Parse with xDSL's own parser."""
    from tdist.tools.opt import inline_locations

    return Parser(make_context(), inline_locations(text)).parse_module()


def show(module: ModuleOp, generic: bool = False) -> str:
    """Print a module."""
    stream = io.StringIO()
    Printer(stream=stream, print_generic_format=generic).print_op(module)
    return stream.getvalue()


def assert_same(left: ModuleOp, right: ModuleOp) -> None:
    """Equal operations, operands, types, attributes and regions; the texts are shown if not."""
    if not left.is_structurally_equivalent(right):
        assert show(left, generic=True) == show(right, generic=True)
        raise AssertionError("modules differ, but print alike")
