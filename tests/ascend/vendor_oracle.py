"""The vendor's programs as oracles: which are here, and what they say. Each runs in a process of its own."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import subprocess
from pathlib import Path

import pytest


@functools.cache
def vendor_tool(package: str, *below: str) -> str | None:
    """The path of a program inside an installed package, if both are there."""
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(next(iter(found.submodule_search_locations))).joinpath(*below)
    if not path.exists():
        return None
    if not os.access(path, os.X_OK):  # a wheel need not keep the mode
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode | 0o111)
    return str(path)


def adapter() -> str | None:
    return vendor_tool("triton.backends.ascend", "triton-adapter-opt")


def bishengir(name: str) -> str | None:
    return vendor_tool("ascendnpuir", "bin", name)


needs_adapter = pytest.mark.skipif(
    adapter() is None, reason="waits for triton-ascend, whose triton-adapter-opt it runs"
)
needs_compiler = pytest.mark.skipif(
    bishengir("bishengir-compile") is None, reason="waits for ascendnpu-ir, whose bishengir-compile and -opt it runs"
)

needs_vendor = pytest.mark.skipif(
    adapter() is None or bishengir("bishengir-compile") is None,
    reason="waits for triton-ascend's and AscendNPU-IR's programs, which compile the kernels",
)


def canonical(text: str, *options: str) -> str:
    """`text` as `bishengir-opt` prints it; the test fails with its words if it refuses."""
    command = [str(bishengir("bishengir-opt")), "--allow-unregistered-dialect", "--mlir-print-debuginfo", *options]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{done.stderr[:3000]}\n{text[:5000]}"
    return done.stdout
