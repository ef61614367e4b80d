"""Pointers that a loop carries point into one memory, or the kernel is refused: the vendor's adapter would not say."""

from __future__ import annotations

import inspect

import pytest
import triton
import triton.language as tl

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

import tdist.language as dl
from tdist.errors import KernelError
from tdist.frontend.triton_ascend import compile_source
from tdist.platforms.ascend.lowering.carried_memory import check_carried_memory
from tdist.platforms.ascend.lowering.prepare import prepare

SIGNATURE = {"x": "*fp16", "y": "*fp16", "out": "*fp16", "sig": "*i32", "n": "i32"}
TWO = r"pointers of two arguments, '[xy]' and '[xy]'"
LAYOUT = "block pointers of different base, shape, strides or order"
REFUSED, FINE = [], []


def refused(says: str):
    def add(fn):
        REFUSED.append((fn, says))
        return fn

    return add


def fine(fn):
    FINE.append(fn)
    return fn


@refused(TWO)
@triton.jit
def next_turn_reads_another_argument(x, y, out, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    here = x + offsets
    for turn in range(0, n):  # <here>
        tl.store(out + turn * B + offsets, tl.load(here))
        here = y + turn * B + offsets


@refused(TWO)
@triton.jit
def next_turn_reads_a_carried_one(x, y, out, sig, n, B: tl.constexpr):
    """What comes next is carried itself, and comes from elsewhere."""
    offsets = tl.arange(0, B)
    here = x + offsets
    other = y + offsets
    for turn in range(0, n):  # <here>
        tl.store(out + turn * B + offsets, tl.load(here) + tl.load(other))
        here = other + B
        other = other + B


@refused(TWO)
@triton.jit
def two_buffers_swap(x, y, out, sig, n, B: tl.constexpr):
    here = tl.make_block_ptr(x, (n,), (1,), (0,), (B,), (0,))
    other = tl.make_block_ptr(y, (n,), (1,), (0,), (B,), (0,))
    for turn in range(0, n):  # <here>
        tl.store(out + turn * B + tl.arange(0, B), tl.load(here))
        here, other = other, here


@refused(TWO)
@triton.jit
def two_buffers_swap_in_a_while(x, y, out, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    here = x + offsets
    other = y + offsets
    turn = 0
    while turn < n:  # <here>
        tl.store(out + turn * B + offsets, tl.load(here))
        here, other = other, here
        turn += 1


@refused(TWO)
@triton.jit
def a_branch_in_the_loop_changes_it(x, y, out, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    here = x + offsets
    for turn in range(0, n):  # <here>
        tl.store(out + turn * B + offsets, tl.load(here))
        if turn > 3:
            here = y + offsets


@refused(TWO)
@triton.jit
def a_token_on_another_argument(x, y, out, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    here = x + offsets
    for turn in range(0, n):  # <here>
        tl.store(out + turn * B + offsets, tl.load(here))
        here = dl.consume_token(y, dl.wait(sig, 1, "gpu", "acquire")) + offsets


@refused(TWO)
@triton.jit
def a_choice_of_many(x, y, out, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    here = tl.where(offsets > n, x + offsets, y + offsets)  # <here>
    tl.store(out + offsets, tl.load(here))


@refused(LAYOUT)
@triton.jit
def other_strides(x, y, out, sig, n, B: tl.constexpr):
    here = tl.make_block_ptr(x, (n, n), (n, 1), (0, 0), (16, 16), (1, 0))
    other = tl.make_block_ptr(x, (n, n), (1, n), (0, 0), (16, 16), (1, 0))
    there = tl.make_block_ptr(out, (n, n), (n, 1), (0, 0), (16, 16), (1, 0))
    for _ in range(0, n):  # <here>
        tl.store(there, tl.load(here))
        here = tl.advance(other, (0, 16))


@refused(LAYOUT)
@triton.jit
def other_base_in_one_argument(x, y, out, sig, n, B: tl.constexpr):
    """Its offsets would be counted from the first base."""
    here = tl.make_block_ptr(x, (n,), (1,), (0,), (B,), (0,))
    other = tl.make_block_ptr(x + n, (n,), (1,), (0,), (B,), (0,))
    for turn in range(0, n):  # <here>
        tl.store(out + turn * B + tl.arange(0, B), tl.load(here))
        here, other = other, here


@refused(LAYOUT)
@triton.jit
def peers_swap(x, y, out, sig, n, B: tl.constexpr):
    here = tl.make_block_ptr(dl.symm_at(x, 1), (n,), (1,), (0,), (B,), (0,))
    other = tl.make_block_ptr(dl.symm_at(x, 2), (n,), (1,), (0,), (B,), (0,))
    for _ in range(0, n):  # <here>
        tl.store(here, tl.load(y + tl.arange(0, B)))
        here, other = other, here


@fine
@triton.jit
def offsets_swap(x, y, out, sig, n, B: tl.constexpr):
    here = tl.make_block_ptr(x, (n * 2,), (1,), (0,), (B,), (0,))
    other = tl.make_block_ptr(x, (n * 2,), (1,), (512,), (B,), (0,))
    for turn in range(0, n):
        tl.store(out + turn * B + tl.arange(0, B), tl.load(here))
        here, other = other, here


@fine
@triton.jit
def counted_anew_in_each_turn(x, y, out, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    here = x + offsets
    there = out + offsets
    for turn in range(0, n):
        tl.store(there, tl.load(here))
        here = x + turn * B * 3 + offsets
        there += B


@fine
@triton.jit
def consumed_and_advanced(x, y, out, sig, n, B: tl.constexpr):
    here = dl.symm_at(x, 1) + tl.arange(0, B)
    turn = 0
    while turn < n:
        here = dl.consume_token(here, dl.wait(sig, 1, "gpu", "acquire"))
        for _ in range(0, n):
            tl.store(out + tl.arange(0, B), tl.load(here))
            here += B
        turn += 1


def check(fn) -> None:
    prepared = prepare(compile_source(fn, SIGNATURE, {"B": 64}))
    check_carried_memory(prepared.module, [argument.name for argument in prepared.args])


@pytest.mark.parametrize(("fn", "says"), REFUSED, ids=[fn.__name__ for fn, _ in REFUSED])
def test_a_change_of_memory_is_refused_at_its_line(fn, says: str) -> None:
    lines, first = inspect.getsourcelines(fn.fn)
    line = first + next(k for k, text in enumerate(lines) if "# <here>" in text)
    with pytest.raises(KernelError, match=rf"test_carried_memory\.py:{line}\b.*{says}"):
        check(fn)


@pytest.mark.parametrize("fn", FINE, ids=[fn.__name__ for fn in FINE])
def test_one_memory_goes_through(fn) -> None:
    check(fn)
