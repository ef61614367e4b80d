"""A kernel that pushes tiles, multiplies what arrives, sends the products on; its stages arranged in several ways."""

from __future__ import annotations

import triton
import triton.language as tl

import tdist.language as dl
from tdist.language.extra import libshmem_device
from tdist.language.extra.cann.extension import sub_vec_id, sub_vec_num


@triton.jit
def _push(x, box, sig, B: tl.constexpr):
    """Whole tiles for each vector core, each with a signal of its own."""
    offs = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    first = tl.program_id(0) * sub_vec_num() + sub_vec_id().to(tl.int32)
    for task in range(first, dl.num_ranks(), tl.num_programs(0) * sub_vec_num()):
        tl.store(dl.symm_at(box, task) + dl.rank() * B * B + offs, tl.load(x + task * B * B + offs))
        libshmem_device.fence()
        dl.notify(sig + dl.rank() * 16, task, signal=1, sig_op="set")


@triton.jit
def _multiply(b, box, sig, part, done, B: tl.constexpr):
    offs = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    for task in range(tl.program_id(0), dl.num_ranks(), tl.num_programs(0)):
        token = dl.wait(sig + task * 16, 1, "npu", "acquire", waitValue=1)
        arrived = dl.consume_token(box, token) + task * B * B
        product = tl.dot(tl.load(arrived + offs), tl.load(b + offs))
        tl.store(dl.symm_at(part, task) + dl.rank() * B * B + offs, product.to(part.dtype.element_ty))
        libshmem_device.fence()
        dl.notify(done + dl.rank() * 16, task, signal=1, sig_op="set")


@triton.jit
def stages_in_a_loop(x, b, box, sig, part, done, B: tl.constexpr):
    """Each stage under a condition of its own, side by side in one loop of two turns."""
    for stage in range(0, 2):
        if stage == 0:
            _push(x, box, sig, B)
        if stage == 1:
            _multiply(b, box, sig, part, done, B)


@triton.jit
def rounds(x, b, box, sig, part, done, n, B: tl.constexpr):
    """Both stages in each turn of a loop whose limit is known at run time."""
    for _ in range(0, n):
        _push(x, box, sig, B)
        _multiply(b, box, sig, part, done, B)


@triton.jit
def stages_one_after_another(x, b, box, sig, part, done, B: tl.constexpr):
    _push(x, box, sig, B)
    _multiply(b, box, sig, part, done, B)


@triton.jit
def stages_under_conditions(x, b, box, sig, part, done, n, B: tl.constexpr):
    """Conditions without a loop around them."""
    if tl.program_id(0) < n:
        _push(x, box, sig, B)
    if tl.program_id(0) >= n:
        _multiply(b, box, sig, part, done, B)


@triton.jit
def stages_in_two_branches(x, b, box, sig, part, done, n, B: tl.constexpr):
    """One condition with two branches, in a loop."""
    for stage in range(0, n):
        if stage == 0:
            _push(x, box, sig, B)
        else:
            _multiply(b, box, sig, part, done, B)


@triton.jit
def stages_in_a_loop_of_one_turn(x, b, box, sig, part, done, B: tl.constexpr):
    """A loop that the compiler takes away."""
    for _ in range(0, 1):
        _push(x, box, sig, B)
        _multiply(b, box, sig, part, done, B)
