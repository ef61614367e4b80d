"""Bytes, masks, poison, pointers, widths, arithmetic (rules FND-*)."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from litmus_kit import DATA, OUT, SIG, STOPPED, Buf, covers, finding, observe, race

import tdist.language as dl
from tdist.language.extra import libshmem_device as shmem_dev

PRIVATE = Buf("private", 64, symmetric=False)
FRESH = Buf("data", 16, fill=None)
BYTES = Buf("data", 64, torch.int8)
STOP = {STOPPED}


@triton.jit
def side_by_side(data, out, START: tl.constexpr):
    offs = tl.arange(0, 5)
    home = dl.symm_at(data, 0)
    if dl.rank() == 0:
        tl.store(home + offs, 1)  # <first>
    else:
        tl.store(home + START + offs, 2)  # <second>


@covers("FND-1")
def test_neighbouring_bytes_do_not_race():
    seen = observe(side_by_side, BYTES, OUT, read="data", START=5)
    seen.clean()
    zeros = (0, 0, 0)
    seen.outcomes({(((*[1] * 5, *[2] * 5, *[0] * 6), *zeros), (0, *zeros))})


@covers("FND-1")
def test_one_common_byte_races():
    observe(side_by_side, BYTES, OUT, START=4).always(race("first", "second"))


@triton.jit
def columns(data, out, SECOND: tl.constexpr):
    rows = tl.arange(0, 4)[:, None] * 16
    cols = tl.arange(0, 8)[None, :]
    home = dl.symm_at(data, 0)
    if dl.rank() == 0:
        tl.store(home + rows + cols, 1)  # <first>
    else:
        tl.store(home + rows + cols + SECOND, 2)  # <second>


@covers("FND-1")
@pytest.mark.parametrize(("second", "races"), [(8, False), (7, True), (12, True)])
def test_tiles_are_compared_byte_by_byte(second, races):
    seen = observe(columns, Buf("data", 80), OUT, SECOND=second)
    seen.always(*([race("first", "second")] if races else []))


@triton.jit
def two_readers(data, out):
    offs = tl.arange(0, 16)
    tl.store(out + offs, tl.load(dl.symm_at(data, 0) + offs))


@covers("FND-1")
def test_two_reads_do_not_race():
    seen = observe(two_readers, DATA, OUT, nranks=3)
    seen.clean()
    seen.outcomes({(0, 0, 0)})


@triton.jit
def masked(data, out, n0, n1):
    offs = tl.arange(0, 16)
    home = dl.symm_at(data, 0)
    if dl.rank() == 0:
        tl.store(home + offs, 1, mask=offs < n0)  # <first>
    else:
        tl.store(home + offs, 2, mask=offs >= n1)  # <second>


@covers("FND-2")
def test_lanes_that_a_mask_turns_off_make_no_access():
    seen = observe(masked, DATA, OUT, read="data", n0=7, n1=7)
    seen.clean()
    seen.outcomes({(((*[1] * 7, *[2] * 9), 0, 0, 0), (0, 0, 0, 0))})


@covers("FND-2", "FND-1")
def test_one_lane_that_both_masks_leave_on_races():
    observe(masked, DATA, OUT, n0=8, n1=7).always(race("first", "second"))


@triton.jit
def masked_out_of_bounds(data, out, n):
    offs = tl.arange(0, 64)
    got = tl.load(data + offs, mask=offs < n, other=5)  # <load>
    tl.store(out + offs, got)


@covers("FND-2", "FND-11")
def test_masked_lanes_may_lie_outside_the_allocation():
    seen = observe(masked_out_of_bounds, Buf("data", 48), OUT, nranks=1, n=48)
    seen.clean()
    seen.outcomes({((0, 0, 0, 5),)})


@covers("FND-11")
def test_one_lane_outside_the_allocation_is_out_of_bounds():
    seen = observe(masked_out_of_bounds, Buf("data", 48), OUT, nranks=1, n=49)
    seen.always(finding("out-of-bounds", "load"))
    assert "why: the access has a mask, but it lets lane (48) through" in seen.text()
    seen.outcomes(STOP)


@triton.jit
def beyond_my_buffer(data, other, out):
    offs = tl.arange(0, 16)
    tl.store(dl.symm_at(data, 1) + 16 + offs, 1)  # <store>


@covers("FND-11")
def test_an_access_that_lands_in_the_next_allocation_is_out_of_bounds():
    seen = observe(beyond_my_buffer, Buf("data", 16), Buf("other", 16), OUT)
    seen.always(finding("out-of-bounds", "store"))
    assert "data" in seen.text()
    assert "why: the access has no mask" in seen.text()


@triton.jit
def masked_tail(data, out, n, USE: tl.constexpr):
    offs = tl.arange(0, 16)
    got = tl.load(data + offs, mask=offs < n, care_padding=False)
    if USE == "other":
        got = tl.load(data + offs, mask=offs < n, other=0)
    if USE == "drop":
        tl.store(out + offs, got, mask=offs < n)
    else:
        tl.store(out + offs, got)


def poisoned_outcomes(kernel, *bufs: Buf, **scalars) -> set:
    """The outcomes of two runs that differ in nothing but the poison of memory that nobody wrote."""
    seen = [
        observe(kernel, *bufs, nranks=1, schedules=[("run-to-block", 0)], world={"poison": poison}, **scalars)
        for poison in (0x5A, 0xA5)
    ]
    for one in seen:
        one.clean()
    return {run.outcome for one in seen for run in one.runs}


@covers("FND-3")
def test_a_masked_tail_that_is_dropped_is_no_use_of_poison():
    assert len(poisoned_outcomes(masked_tail, DATA, OUT, n=10, USE="drop")) == 1


@covers("FND-3")
def test_a_masked_tail_with_other_is_no_use_of_poison():
    assert poisoned_outcomes(masked_tail, DATA, OUT, n=10, USE="other") == {(0,)}


@covers("FND-3")
def test_a_masked_tail_without_other_that_reaches_an_output_differs_with_the_poison():
    assert len(poisoned_outcomes(masked_tail, DATA, OUT, n=10, USE="keep")) == 2


@triton.jit
def copy_fresh(data, out, DROP: tl.constexpr):
    offs = tl.arange(0, 16)
    got = tl.load(data + offs)
    tl.store(out + offs, got * 0 if DROP else got)


@covers("FND-3")
def test_memory_that_nobody_wrote_may_be_loaded_and_dropped_but_not_kept():
    assert poisoned_outcomes(copy_fresh, FRESH, OUT, DROP=True) == {(0,)}
    assert len(poisoned_outcomes(copy_fresh, FRESH, OUT, DROP=False)) == 2


@triton.jit
def translate(private, data, out, pe, WHAT: tl.constexpr):
    offs = tl.arange(0, 16)
    if WHAT == "private":
        target = dl.symm_at(private, pe)  # <translate>
    elif WHAT == "remote_ptr":
        target = shmem_dev.remote_ptr(private, pe)  # <remote>
    elif WHAT == "twice":
        target = dl.symm_at(dl.symm_at(data, pe), pe)  # <twice>
    else:
        target = dl.symm_at(data, pe)  # <pe>
    tl.store(target + offs, 1)


@covers("FND-8", "FND-9")
@pytest.mark.parametrize(
    ("what", "pe", "line"),
    [
        ("private", 1, "translate"),
        ("remote_ptr", 1, "remote"),
        ("symmetric", 2, "pe"),
        ("symmetric", -1, "pe"),
        ("twice", 1, "twice"),
    ],
)
def test_symm_at_wants_an_own_symmetric_pointer_and_an_existing_pe(what, pe, line):
    def host(rt, t):
        if rt.rank == 0:
            translate[(1,)](t.private, t.data, t.out, pe, WHAT=what)

    seen = observe(None, PRIVATE, DATA, OUT, host=host)
    seen.always(finding("pointer-misuse", line))
    seen.outcomes(STOP)


@covers("FND-8")
def test_symm_at_of_the_own_rank_is_the_pointer_itself():
    def host(rt, t):
        translate[(1,)](t.private, t.data, t.out, rt.rank, WHAT="symmetric")

    seen = observe(None, PRIVATE, DATA, OUT, host=host, read="data")
    seen.clean()
    seen.outcomes({((1, 0, 0, 0), (1, 0, 0, 0))})


@triton.jit
def notify_translated(sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        dl.notify(dl.symm_at(sig, 1), 1, signal=1, sig_op="set")  # <notify>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(out, token) + offs))


@covers("FND-9")
def test_notify_translates_by_itself():
    seen = observe(notify_translated, SIG, OUT)
    seen.always(finding("pointer-misuse", "notify"))
    seen.outcomes(STOP)


@triton.jit
def notify_private(private, out):
    dl.notify(private, 1, signal=1, sig_op="set")  # <notify>


@covers("FND-8")
def test_notify_wants_a_symmetric_word():
    observe(notify_private, PRIVATE, OUT).always(finding("pointer-misuse", "notify"))


@triton.jit
def store_through(address, out):
    offs = tl.arange(0, 16)
    tl.store(address.to(tl.pointer_type(tl.int32)) + offs, 1)  # <store>


@covers("FND-10")
def test_a_raw_pointer_of_another_rank_is_caught():
    addresses = {}

    def host(rt, t):
        addresses[rt.rank] = t.data.data_ptr()
        rt.host_barrier()
        if rt.rank == 0:
            store_through[(1,)](addresses[1], t.out)

    seen = observe(None, DATA, OUT, host=host)
    seen.always(finding("pointer-misuse", "store"))
    seen.outcomes(STOP)


@triton.jit
def wrong_width(sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        wide = sig.to(tl.pointer_type(tl.int64))
        dl.notify(wide, 1, signal=1, sig_op="set")  # <notify>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")  # <wait>
        tl.store(out + offs, tl.load(dl.consume_token(out, token) + offs))


@covers("FND-7")
def test_a_64_bit_signal_on_32_bit_words_is_a_finding():
    seen = observe(wrong_width, SIG, OUT)
    assert {f.kind for run in seen.runs for f in run.found} == {"width-mismatch"}, seen.text()
    assert all("notify" in f.lines for run in seen.runs for f in run.found)


@triton.jit
def wide_signal(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, 7)
        shmem_dev.fence()
        dl.notify(sig + 8, 1, signal=1 << 40, sig_op="set")
    else:
        token = dl.wait(sig + 8, 1, "gpu", "acquire", waitValue=1 << 40)
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("FND-7", "SIG-8")
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64])
def test_64_bit_words_carry_64_bit_values(dtype):
    seen = observe(wide_signal, DATA, Buf("sig", 32, dtype), OUT)
    seen.clean()
    seen.outcomes({(-1, 7)})


@triton.jit
def integers(out, a, b, OP: tl.constexpr):
    offs = tl.arange(0, 16)
    if OP == "div":
        got = a // b  # <div>
    elif OP == "rem":
        got = a % b  # <rem>
    elif OP == "shl":
        got = a << b  # <shl>
    else:
        got = a + b
    tl.store(out + offs, got)


@covers("FND-12")
@pytest.mark.parametrize(("op", "a", "b", "want"), [("div", -7, 2, -3), ("rem", -7, 2, -1), ("shl", 3, 4, 48)])
def test_integer_division_truncates(op, a, b, want):
    seen = observe(integers, OUT, nranks=1, a=a, b=b, OP=op)
    seen.clean()
    seen.outcomes({(want,)})


@covers("FND-12")
@pytest.mark.parametrize(("op", "a", "b"), [("div", 7, 0), ("rem", 7, 0), ("shl", 3, 32)])
def test_an_undefined_integer_operation_is_a_finding(op, a, b):
    seen = observe(integers, OUT, nranks=1, a=a, b=b, OP=op)
    seen.always(finding("arithmetic", op))


@triton.jit
def tiles(out, a, b):
    offs = tl.arange(0, 16)
    tl.store(out + offs, (offs * 0 + a) * b)


@covers("FND-12")
def test_a_tile_of_32_bit_integers_wraps():
    seen = observe(tiles, OUT, nranks=1, a=1 << 20, b=(1 << 12) + 1)
    seen.outcomes({(1 << 20,)})


@triton.jit
def to_integer(out, x):
    offs = tl.arange(0, 16)
    tl.store(out + offs, (x + 0.0).to(tl.int32))  # <cast>


@covers("FND-12")
def test_a_float_outside_the_integers_is_a_finding():
    observe(to_integer, OUT, nranks=1, x=3.0e9).always(finding("arithmetic", "cast"))
    seen = observe(to_integer, OUT, nranks=1, x=-3.75)
    seen.clean()
    seen.outcomes({(-3,)})
