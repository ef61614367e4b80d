"""Blocked agents, polling loops, the wait graph (rules DLK-*)."""

from __future__ import annotations

import triton
import triton.language as tl
from litmus_kit import DATA, MANY, OUT, SIG, STOPPED, Buf, covers, finding, observe, race
from producers import produce

import tdist.language as dl
from tdist.language.extra import libshmem_device as shmem_dev

COUNT = Buf("count", 16, symmetric=False)
SMALL = {"cube_cores": 1, "vector_cores": 2}


@triton.jit
def never_notified(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 1:
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=3)  # <wait>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("DLK-1")
def test_a_wait_that_nobody_answers_ends_the_run_with_the_value_it_saw():
    seen = observe(never_notified, DATA, SIG, OUT)
    seen.always(finding("deadlock", "wait"))
    seen.outcomes({STOPPED})
    text = seen.text()
    assert "rank 1" in text and "3" in text and "sig" in text


@triton.jit
def each_waits_first(data, sig, out):
    offs = tl.arange(0, 16)
    peer = 1 - dl.rank()
    token = dl.wait(sig, 1, "gpu", "acquire")  # <wait>
    tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))
    dl.notify(sig, peer, signal=1, sig_op="set")


@covers("DLK-1")
def test_two_ranks_that_wait_for_each_other_are_both_named():
    seen = observe(each_waits_first, DATA, SIG, OUT)
    seen.always(finding("deadlock", "wait"))
    seen.outcomes({STOPPED})
    assert "rank 0" in seen.text() and "rank 1" in seen.text()


@triton.jit
def wrong_value(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        dl.notify(sig, 1, signal=5, sig_op="set")  # <notify>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=6)  # <wait>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("DLK-1", "SIG-9")
def test_the_report_says_who_wrote_the_word_last():
    seen = observe(wrong_value, DATA, SIG, OUT)
    seen.always(finding("deadlock", "wait"))
    text = seen.text()
    assert "5" in text and "6" in text and "rank 0" in text


@triton.jit
def wrong_slot(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        dl.notify(sig + 3, 1, signal=1, sig_op="set")  # <notify>
    else:
        token = dl.wait(sig + 48, 1, "gpu", "acquire")  # <wait>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("DLK-4")
def test_a_signal_in_the_wrong_slot_shows_the_slot_arithmetic():
    seen = observe(wrong_slot, DATA, SIG, OUT)
    seen.always(finding("deadlock", "wait"))
    text = seen.text()
    assert "48" in text and "64" in text


@triton.jit
def spin(data, sig, out, HOW: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 1:
        seen = 0
        while seen != 1:  # <spin>
            if HOW == "volatile":
                seen = tl.load(sig, volatile=True)  # <volatile>
            elif HOW == "add zero":
                seen = tl.atomic_add(sig, 0, scope="sys")  # <add>
            else:
                seen = tl.atomic_cas(sig, 1, 1, scope="sys")  # <cas>
        tl.store(out + offs, seen)


@covers("DLK-2")
def test_a_spin_that_nothing_can_end_is_a_deadlock():
    for how in ("volatile", "add zero", "cas"):
        seen = observe(spin, DATA, SIG, OUT, HOW=how, schedules=MANY[:4])
        seen.always(finding("deadlock", "spin"))
        seen.outcomes({STOPPED})


@triton.jit
def spin_and_signal(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        seen = tl.load(sig, volatile=True)
        while seen != 1:
            seen = tl.load(sig, volatile=True)
        tl.store(out + offs, seen)


@covers("DLK-2")
def test_a_spin_that_a_signal_ends_is_none():
    seen = observe(spin_and_signal, DATA, SIG, OUT)
    seen.clean()
    seen.outcomes({(-1, 1)})


@triton.jit
def bounded_spin(data, sig, out, limit):
    offs = tl.arange(0, 16)
    if dl.rank() == 1:
        tries = 0
        seen = tl.load(sig, volatile=True)
        while (seen != 1) & (tries < limit):
            seen = tl.load(sig, volatile=True)
            tries += 1
        tl.store(out + offs, tries)


@covers("DLK-3")
def test_a_spin_with_a_bound_ends_by_itself():
    seen = observe(bounded_spin, DATA, SIG, OUT, limit=20)
    seen.clean()
    seen.outcomes({(-1, 20)})


@triton.jit
def counting_spin(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 1:
        tries = 0
        seen = tl.load(sig, volatile=True)
        while seen != 1:  # <spin>
            seen = tl.load(sig, volatile=True)
            tries += 1
        tl.store(out + offs, tries)


@covers("DLK-3", "DLK-2")
def test_a_spin_with_a_counter_but_no_bound_is_a_deadlock():
    seen = observe(counting_spin, DATA, SIG, OUT, schedules=MANY[:1])  # found only after many rounds
    seen.always(finding("deadlock", "spin"))
    seen.outcomes({STOPPED})


@triton.jit
def waits_for_the_last(data, sig, out):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    if pid == tl.num_programs(0) - 1:
        tl.store(data + offs, 7)
        shmem_dev.fence()
        dl.notify(sig, dl.rank(), signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")  # <wait>
        tl.store(out + pid * 16 + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("DLK-5")
def test_programs_that_wait_for_one_beyond_the_cores_are_stuck():
    seen = observe(waits_for_the_last, DATA, SIG, OUT, nranks=1, grid=4, world=SMALL)
    seen.always(finding("deadlock", "wait"), finding("grid-too-large", "wait"))
    seen.outcomes({STOPPED})
    assert "core" in seen.text()


@covers("DLK-5")
def test_the_same_programs_within_the_cores_are_not():
    seen = observe(waits_for_the_last, DATA, SIG, OUT, nranks=1, grid=2, world=SMALL)
    seen.clean()
    seen.outcomes({(7,)})


@triton.jit
def waits_for_an_earlier_one(data, sig, out):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    if pid == 0:
        tl.store(data + offs, 7)
        shmem_dev.fence()
        dl.notify(sig, dl.rank(), signal=1, sig_op="set")
    elif pid == tl.num_programs(0) - 1:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("DLK-5", "WHO-9")
def test_more_programs_than_cores_are_fine_when_later_ones_wait_for_earlier_ones():
    seen = observe(waits_for_an_earlier_one, DATA, SIG, OUT, nranks=1, grid=9, world=SMALL)
    seen.clean()
    seen.outcomes({(7,)})


@triton.jit
def wait_only(data, sig, out):
    offs = tl.arange(0, 16)
    token = dl.wait(sig, 1, "gpu", "acquire")  # <wait>
    tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@triton.jit
def produce_only(data, sig):
    produce(data, sig)


@covers("DLK-1", "WHO-5")
def test_a_host_that_has_not_launched_yet_is_no_deadlock():
    def host(rt, t):
        if rt.rank == 1:
            wait_only[(1,)](t.data, t.sig, t.out)
            return None
        for _ in range(3):
            rt.synchronize()
        produce_only[(1,)](t.data, t.sig)
        return None

    seen = observe(None, DATA, SIG, OUT, host=host)
    seen.clean()
    seen.outcomes({(-1, 7)})


@triton.jit
def lock(data, count, out, RELEASE: tl.constexpr):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    taken = 1
    while taken != 0:  # <spin>
        taken = tl.atomic_cas(count, 0, 1)  # <cas>
    got = tl.load(data + offs)
    tl.store(data + offs, got + 1)
    tl.store(out + pid * 16 + offs, got)
    if RELEASE:
        tl.atomic_xchg(count, 0)


@covers("DLK-2", "ATM-1")
def test_a_lock_that_is_never_given_back_is_a_deadlock():
    seen = observe(lock, DATA, COUNT, OUT, nranks=1, grid=2, RELEASE=False)
    assert all(finding("deadlock", "spin") in run.found for run in seen.runs), seen.text()


@covers("ATM-1", "ATM-9")
def test_a_spin_lock_is_ordered_in_the_language_and_a_hazard_on_ascend():
    seen = observe(lock, DATA, COUNT, OUT, nranks=1, grid=2, RELEASE=True)
    assert all({f.severity for f in run.found} == {"hazard"} for run in seen.runs), seen.text()
    seen.outcomes({((0, 1),), ((1, 0),)})


@triton.jit
def unordered_after_deadlock(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, 7)  # <store>
    else:
        got = tl.load(data + offs)  # <load>
        token = dl.wait(sig, 1, "gpu", "acquire")  # <wait>
        tl.store(out + offs, got + tl.load(dl.consume_token(out, token) + offs))


@covers("DLK-1", "FND-1")
def test_what_was_found_before_a_deadlock_is_kept():
    observe(unordered_after_deadlock, DATA, SIG, OUT).always(race("store", "load"), finding("deadlock", "wait"))


@triton.jit
def give(sig):
    dl.notify(sig, 1 - dl.rank(), signal=1, sig_op="add")  # <give>


@triton.jit
def take(sig, out):
    offs = tl.arange(0, 16)
    token = dl.wait(sig, 1, "gpu", "acquire")  # <take>
    tl.store(out + offs, dl.consume_token(1, token))


@covers("DLK-1")
def test_the_report_names_a_signal_that_is_queued_behind_the_wait():
    """Both ranks launch the wait first: each of the signals stands behind one."""

    def host(rt, t):
        take[(1,)](t.sig, t.out)
        give[(1,)](t.sig)

    seen = observe(None, SIG, OUT, host=host)
    seen.always(finding("deadlock", "take"))
    text = seen.text()
    assert "launch 1 (give), queued behind launch 0" in text
    assert "each waits for the next" in text


@covers("DLK-1")
def test_launches_in_opposite_orders_are_no_deadlock():
    def host(rt, t):
        if rt.rank == 0:
            give[(1,)](t.sig)
        take[(1,)](t.sig, t.out)
        if rt.rank == 1:
            give[(1,)](t.sig)

    seen = observe(None, SIG, OUT, host=host)
    seen.clean()
    seen.outcomes({(1, 1)})
