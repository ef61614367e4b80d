"""Integers of advanced pointers hold the distance, which the vendor's adapter would lose, or the kernel is refused."""

from __future__ import annotations

import inspect

import pytest
import triton
import triton.language as tl
from vendor_oracle import needs_adapter
from xdsl.ir import Operation, SSAValue

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

import tdist.language as dl
from tdist.errors import KernelError
from tdist.frontend.triton_ascend import compile_source
from tdist.platforms.ascend.compiled.generic_text import read_generic
from tdist.platforms.ascend.lowering.adapter import to_linalg
from tdist.platforms.ascend.lowering.prepare import prepare
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions

SIGNATURE = {"x": "*fp16", "out": "*i64", "n": "i32"}


@triton.jit
def advanced(x, out, n):
    tl.store(out, (x + n + 3).to(tl.int64))


@triton.jit
def remote_and_advanced(x, out, n):
    tl.store(out, (dl.symm_at(x, 1) + n + 3).to(tl.int64))


@triton.jit
def cast_and_advanced(x, out, n):
    tl.store(out, ((x + n).to(tl.pointer_type(tl.int32), bitcast=True) + n).to(tl.int64))


@triton.jit
def not_advanced(x, out, n):
    tl.store(out, dl.symm_at(x, n).to(tl.int64))


@triton.jit
def out_of_a_loop(x, out, n):
    here = x
    for _ in range(0, n):
        here += 2
    tl.store(out, here.to(tl.int64))  # <here>


@triton.jit
def of_a_call_on_an_advanced_pointer(x, out, n):
    tl.store(out, dl.symm_at(x + n, 1).to(tl.int64))  # <here>


def lower(fn):
    return prepare(compile_source(fn, {name: SIGNATURE[name] for name in fn.arg_names}, {}))


def value(of: SSAValue, n: int) -> int:
    """What an integer is if every address is 0 and the argument is `n`; of Linalg as the adapter made it."""
    op = of.owner
    if not isinstance(op, Operation):
        return n
    name = getattr(getattr(op, "op_name", None), "data", op.name)
    operands = [value(each, n) for each in op.operands] if name.startswith("arith.") else []
    match name:
        case "arith.addi":
            return sum(operands)
        case "arith.muli":
            return operands[0] * operands[1]
        case "arith.constant":
            return op.properties["value"].value.data  # pyright: ignore[reportAttributeAccessIssue]
        case "memref.extract_aligned_pointer_as_index":
            return 0
    assert name in ("arith.extsi", "arith.index_cast"), name
    return operands[0]


@needs_adapter
@pytest.mark.parametrize(
    ("fn", "distance_bytes"),
    [(advanced, 2 * 103), (remote_and_advanced, 2 * 103), (cast_and_advanced, 6 * 100), (not_advanced, 0)],
)
def test_the_distance_is_in_what_is_stored(fn, distance_bytes: int) -> None:
    with Steps() as steps:
        module = read_generic(to_linalg(lower(fn), CompileOptions(), steps).text)
    (stored,) = [
        op for op in module.walk() if "tensor.insert" in (op.name, getattr(op, "op_name", None) and op.op_name.data)
    ]
    assert value(stored.operands[0], 100) == distance_bytes


@pytest.mark.parametrize("fn", [out_of_a_loop, of_a_call_on_an_advanced_pointer])
def test_a_distance_that_would_be_lost_is_refused_at_its_line(fn) -> None:
    lines, first = inspect.getsourcelines(fn.fn)
    line = first + next(k for k, text in enumerate(lines) if "# <here>" in text)
    with pytest.raises(KernelError, match=rf"test_pointer_integers\.py:{line}\b.*would lose its distance"):
        lower(fn)
