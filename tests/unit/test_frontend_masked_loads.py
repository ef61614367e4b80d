"""Masked-off lanes without `other` stay undefined, in the compiled text only and only while we compile."""

from __future__ import annotations

import inspect

import pytest
import torch
import triton
import triton.language as tl

from tdist.frontend.masked_loads import undefined_padding
from tdist.frontend.triton_ascend import compile_source
from tdist.platforms.sim.world import World

SIGNATURE = {"x": "*fp32", "y": "*fp32", "n": "i32"}


@triton.jit
def tail(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + o, mask=o < n))


@triton.jit
def tail_with_zeros(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + o, mask=o < n, care_padding=True))


@triton.jit
def block_tail(x, y, n, B: tl.constexpr):
    p = tl.make_block_ptr(x, (n,), (1,), (0,), (B,), (0,))
    tl.store(y + tl.arange(0, B), tl.load(p, boundary_check=(0,)))


@triton.jit
def scalar(x, y, n, B: tl.constexpr):
    tl.store(y, tl.load(x, mask=n > 100))


def _held() -> tuple:
    from triton.triton_patch.language import semantic

    return inspect.unwrap(tl.load).__defaults__, semantic._load_block_pointer


def _run(kernel, poison: int) -> torch.Tensor:
    def host(rt):
        y = torch.zeros(8)
        kernel[(1,)](torch.arange(1.0, 6.0), y, 5, B=8)
        return y

    with World(nranks=1, poison=poison) as world:
        (result,) = world.run(host)
        assert world.findings == []
    return result


@pytest.mark.parametrize("kernel,lanes", [(tail, 3), (block_tail, 3), (scalar, 1)])
def test_a_load_without_other_gives_the_poison_of_the_run(kernel, lanes):
    for poison in (0xA5, 0x3C):
        pattern = torch.full((4,), poison, dtype=torch.uint8).view(torch.float32)
        result = _run(kernel, poison)
        assert (result == pattern).sum() == lanes


def test_zeros_that_the_kernel_asks_for_are_zeros():
    assert _run(tail_with_zeros, 0xA5).tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


def test_triton_is_as_before_after_a_compilation_and_after_a_failed_one():
    before = _held()
    compile_source(tail, SIGNATURE, {"B": 8})
    with pytest.raises(ZeroDivisionError), undefined_padding():
        assert _held() != before
        raise ZeroDivisionError
    assert _held() == before


def test_only_our_compilation_leaves_the_zero_out():
    assert compile_source(tail, SIGNATURE, {"B": 8}).ttir.count("sitofp") == 0
    assert compile_source(tail_with_zeros, SIGNATURE, {"B": 8}).ttir.count("sitofp") == 1
