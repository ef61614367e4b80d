"""What a user reads when a kernel uses something unsupported, or faults: operation, file:line, lane, what to do."""

from __future__ import annotations

import inspect

import pytest
import torch
import triton
import triton.language as tl

from tdist.errors import KernelError
from tdist.findings import to_text
from tdist.platforms.sim.world import World


def line_of(kernel, text: str) -> int:
    """The line of this file on which `text` stands in the kernel."""
    source, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(source) if text in line)


def launched(kernel, *args, **constexprs):
    """The findings of a launch on copies of the tensors, and what the kernel printed."""

    def host(rt):
        copies = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
        kernel[(1,)](*copies, **constexprs)
        return [arg for arg in copies if isinstance(arg, torch.Tensor)]

    with World(nranks=1) as world:
        world.run(host)
        return world.findings, world.prints


# --- not supported


@triton.jit
def inline_assembly(x, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.inline_asm_elementwise("mov $0, $1;", "=r,r", [tl.load(x + o)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(x + o, a)


@triton.jit
def descriptor(x, B: tl.constexpr):
    d = tl.make_tensor_descriptor(x, [16, 16], [16, 1], [B, B])
    d.store([0, 0], d.load([0, 0]))


@triton.jit
def tensor_of_addresses(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    p = tl.load(y + o).to(tl.pointer_type(tl.int32))
    tl.store(x + o, tl.load(p))


@triton.jit
def lanes_of_two_tensors(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    p = tl.where(o < 3, x + o, y + o)
    tl.store(x + o, tl.load(p))


UNSUPPORTED = [
    (inline_assembly, (torch.zeros(4, dtype=torch.int32),), "inline_asm", "elementwise_inline_asm", "tl operations"),
    (descriptor, (torch.zeros(256),), "make_tensor_descriptor", "tensor", "tl.make_block_ptr"),
    (
        tensor_of_addresses,
        (torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)),
        ".to(tl.pointer",
        "int_to_ptr",
        "convert a scalar",
    ),
    (lanes_of_two_tensors, (torch.zeros(4), torch.zeros(4)), "tl.where", "select", "select values instead"),
]


@pytest.mark.parametrize("kernel,args,text,operation,cure", UNSUPPORTED)
def test_an_unsupported_construct_names_itself_its_line_and_a_cure(kernel, args, text, operation, cure):
    with pytest.raises(KernelError) as caught:
        launched(kernel, *args, B=4)
    message = str(caught.value)
    assert f"test_ops_errors.py:{line_of(kernel, text)}" in message
    assert operation in message and cure in message


# --- faults


@triton.jit
def beyond_the_rows(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.arange(0, BM)
    n = tl.arange(0, BN)
    a = tl.load(x + m[:, None] * N + n[None, :], mask=m[:, None] <= M, other=0)
    tl.store(y + m[:, None] * BN + n[None, :], a, mask=m[:, None] < 3)


@triton.jit
def before_the_start(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    tl.store(y + tl.arange(0, BM), tl.load(x + tl.arange(0, BM) - 2))


@triton.jit
def scattered(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    o = tl.arange(0, BM)
    tl.store(y + (o * o * o), tl.load(x + o))


@triton.jit
def wraps_in_a_tail(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    o = (3 + tl.arange(0, BM)) % M * N
    tl.store(y + tl.arange(0, BM), tl.load(x + o))


@triton.jit
def wraps(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    o = N * 65536 + tl.arange(0, BM)
    tl.store(y + o, 1.0)


FAULTS = [
    (beyond_the_rows, (3, 5), "tl.load", "lane (3, 0) is element 15", "elements 0 … 14 of x"),
    (before_the_start, (3, 5), "tl.load", "lane (0) is element -2", "elements 0 … 14 of x"),
    (scattered, (3, 5), "tl.store", "lane (3) is element 27", "elements 0 … 19 of y"),
    (wraps_in_a_tail, (5, 2**30), "tl.load", "to 4294967296", "32"),
    (wraps, (5, 40000), "tl.store", "2621440000", "32"),
]


@pytest.mark.parametrize("kernel,numbers,text,got,expected", FAULTS)
def test_a_fault_names_its_line_lane_and_range(kernel, numbers, text, got, expected):
    findings, _ = launched(kernel, torch.zeros(3, 5), torch.zeros(20), *numbers, BM=4, BN=5)
    (finding,) = findings
    report = to_text(finding)
    assert f"test_ops_errors.py:{line_of(kernel, text)}" in report
    assert got in report and expected in report


@triton.jit
def divides_by_a_zero_lane(x, y, BM: tl.constexpr, BN: tl.constexpr):
    at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(y + at, (at + 100) // tl.load(x + at))


def test_a_division_by_zero_names_dividend_and_lane():
    x = torch.arange(8, dtype=torch.int32) - 6
    (finding,), _ = launched(divides_by_a_zero_lane, x, torch.zeros(8, dtype=torch.int32), BM=2, BN=4)
    report = to_text(finding)
    assert finding.kind == "tdist.arithmetic" and "106 divided by 0 in lane (1, 2)" in report
    assert f"test_ops_errors.py:{line_of(divides_by_a_zero_lane, '//')}" in report


@triton.jit
def copies_in_a_loop(x, y, lo, hi, step, B: tl.constexpr):
    for i in range(lo, hi, step):
        o = i * B + tl.arange(0, B)
        tl.store(y + o, tl.load(x + o))


@pytest.mark.parametrize("step", [0, -1])
def test_a_loop_that_does_not_count_up_names_its_line(step: int):
    (finding,), _ = launched(copies_in_a_loop, torch.zeros(16), torch.zeros(16), 0, 4, step, B=4)
    report = to_text(finding)
    assert finding.kind == "tdist.arithmetic" and f"a step of {step}" in report
    assert f"test_ops_errors.py:{line_of(copies_in_a_loop, 'range')}" in report


def test_more_trips_than_64_bits_count_are_out_of_bounds_as_others_are():
    (finding,), _ = launched(copies_in_a_loop, torch.zeros(16), torch.zeros(16), -(2**63), 2**63 - 1, 1, B=4)
    assert finding.kind == "tdist.out-of-bounds"
    assert f"element {-4 * 2**63}" in to_text(finding)


# --- printing and assertions


@triton.jit
def talks(x, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.device_print("n and values", n, tl.load(x + o))
    tl.device_assert(tl.load(x + o) < n, "too large")


def test_print_shows_values_and_a_failed_assertion_is_a_finding():
    findings, prints = launched(talks, torch.arange(4, dtype=torch.int32), 9, B=4)
    assert findings == [] and len(prints) == 1
    assert all(part in str(prints[0]) for part in ("n and values", "9", "[0, 1, 2, 3]"))
    (finding,), _ = launched(talks, torch.arange(4, dtype=torch.int32), 2, B=4)
    assert finding.kind == "tdist.kernel-assert" and "too large" in to_text(finding)
