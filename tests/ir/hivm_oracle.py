"""`bishengir-opt` as an oracle: what the vendor's tool reads, prints and refuses. It runs in a process of its own.

It does not know Triton's dialect, so `tt.*` operations go to it in generic form and their types are opaque to it:
it checks every `hivm`, `annotation`, `tensor`, `arith` and `scf` operation, and only the syntax of the others.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import subprocess
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.printer import Printer

from tdist.ir.context import make_context

_OWN_SYNTAX = ("hivm.", "annotation.", "tensor.", "builtin.module")


@functools.cache
def vendor_tool(name: str) -> str | None:
    """The path of one of AscendNPU-IR's programs, if the package is installed."""
    found = importlib.util.find_spec("ascendnpuir")
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(next(iter(found.submodule_search_locations))) / "bin" / name
    if not path.exists():
        return None
    if not os.access(path, os.X_OK):  # a wheel need not keep the mode
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode | 0o111)
    return str(path)


needs_bishengir = pytest.mark.skipif(
    vendor_tool("bishengir-opt") is None, reason="waits for ascendnpu-ir, whose bishengir-opt it asks"
)


class _MixedPrinter(Printer):
    """Generic form for what the vendor's tool does not know, custom syntax for the rest."""

    def print_op(self, op: Operation) -> None:
        self.print_generic_format = not op.name.startswith(_OWN_SYNTAX)
        super().print_op(op)


def show_for_vendor(module: ModuleOp) -> str:
    """`module` with `hivm` operations in custom syntax and Triton's in generic form."""
    stream = io.StringIO()
    _MixedPrinter(stream=stream).print_op(module)
    return stream.getvalue()


def ask_vendor(text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """What the vendor's tool makes of `text`."""
    command = [str(vendor_tool("bishengir-opt")), "--allow-unregistered-dialect", *options]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)


def vendor_reads(text: str, *options: str) -> str:
    """`text` as the vendor's tool prints it; the test fails with its words if it refuses."""
    done = ask_vendor(text, *options)
    assert done.returncode == 0, f"{done.stderr[:3000]}\n{text}"
    return done.stdout


def parse_any(text: str) -> ModuleOp:
    """Parse with xDSL's parser; operations that nobody knows are allowed."""
    return Parser(make_context(allow_unregistered=True), text).parse_module()
