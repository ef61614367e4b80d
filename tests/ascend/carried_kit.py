"""The kernels of `carried_kernels`, compiled as far as a test needs."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

import carried_kernels
from triton.runtime import JITFunction

from tdist.frontend.kernel_ir import KernelIR
from tdist.frontend.triton_ascend import compile_source
from tdist.platforms.ascend.lowering.prepare import Prepared, prepare

TYPES = {"x": "*fp16", "buf": "*fp16", "out": "*fp16", "sig": "*i32", "wide": "*i64"}
CONSTANTS = {"B": 64, "C": 32}
KERNELS: dict[str, JITFunction] = {
    name: value for name, value in vars(carried_kernels).items() if isinstance(value, JITFunction)
}


def signature(name: str) -> dict[str, str]:
    """Types of a kernel's arguments, by their names."""
    return {each: TYPES.get(each, "i32") for each in KERNELS[name].arg_names if each not in CONSTANTS}


def constants(name: str) -> dict[str, int]:
    return {each: CONSTANTS[each] for each in KERNELS[name].arg_names if each in CONSTANTS}


@functools.cache
def kernel_ir(name: str) -> KernelIR:
    return compile_source(KERNELS[name], signature(name), constants(name))


@functools.cache
def prepared(name: str) -> Prepared:
    return prepare(kernel_ir(name))


def line(name: str, text: str) -> str:
    """`file:line` of the one line of a kernel that has `text`."""
    lines, first = inspect.getsourcelines(KERNELS[name].fn)
    found = [first + index for index, source in enumerate(lines) if text in source]
    assert len(found) == 1, f"{name}: {len(found)} lines have {text!r}"
    return f"{Path(carried_kernels.__file__).name}:{found[0]}"
