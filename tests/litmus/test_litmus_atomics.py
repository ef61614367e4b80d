"""Triton's own atomics: scope, semantics, read-modify-write chains (rules ATM-*)."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl
from litmus_kit import DATA, MANY, OUT, SIG, Buf, atomic_edge, covers, finding, observe, race, undrained
from producers import copy_tiles, produce

import tdist.language as dl
from tdist.language.extra import libshmem_device as shmem_dev

COUNT = Buf("count", 16)
SUM = Buf("data", 16)


@triton.jit
def last_arriver(data, count, out, SEM: tl.constexpr, SCOPE: tl.constexpr):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    tl.store(data + pid * 16 + offs, pid + 10)  # <store>
    order = tl.atomic_add(count, 1, sem=SEM, scope=SCOPE)
    if order == 1:
        copy_tiles(data, out, 2)


@covers("ATM-1", "ATM-2")
@pytest.mark.parametrize("scope", ["gpu", "sys"])
def test_an_acq_rel_atomic_orders_the_programs_of_a_rank(scope):
    seen = observe(last_arriver, DATA, COUNT, OUT, nranks=1, grid=2, SEM="acq_rel", SCOPE=scope)
    seen.clean()
    seen.outcomes({((10, 11),)})


@covers("ATM-1", "ATM-3")
@pytest.mark.parametrize("sem", ["relaxed", "acquire", "release"])
def test_half_an_edge_is_none(sem):
    seen = observe(last_arriver, DATA, COUNT, OUT, nranks=1, grid=2, SEM=sem, SCOPE="gpu")
    seen.always(race("store", "load"))


@covers("ATM-2")
def test_scope_cta_reaches_no_other_agent():
    seen = observe(last_arriver, DATA, COUNT, OUT, nranks=1, grid=2, SEM="acq_rel", SCOPE="cta")
    seen.always(race("store", "load"))


@triton.jit
def signal_by_atomic(data, sig, out, SEM: tl.constexpr, SCOPE: tl.constexpr, DRAIN: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, 7)  # <store>
        if DRAIN:
            shmem_dev.fence()
        tl.atomic_add(dl.symm_at(sig, 1), 1, sem=SEM, scope=SCOPE)
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <load>


@covers("ATM-2", "ATM-8")
@pytest.mark.parametrize("sem", ["release", "acq_rel"])
def test_a_sys_atomic_releases_to_a_wait_on_another_rank(sem):
    seen = observe(signal_by_atomic, DATA, SIG, OUT, SEM=sem, SCOPE="sys", DRAIN=True)
    seen.clean()
    seen.outcomes({(-1, 7)})


@covers("ATM-2")
@pytest.mark.parametrize(("sem", "scope"), [("acq_rel", "gpu"), ("acq_rel", "cta"), ("relaxed", "sys")])
def test_an_atomic_of_narrow_scope_or_relaxed_releases_nothing_to_another_rank(sem, scope):
    seen = observe(signal_by_atomic, DATA, SIG, OUT, SEM=sem, SCOPE=scope, DRAIN=True)
    seen.always(race("store", "load"))


@covers("ATM-8", "REL-1")
def test_an_atomic_without_a_used_result_does_not_drain():
    seen = observe(signal_by_atomic, DATA, SIG, OUT, SEM="acq_rel", SCOPE="sys", DRAIN=False)
    seen.always(undrained("store", "load"))


@triton.jit
def relaxed_chain(data, sig, out):
    offs = tl.arange(0, 16)
    me = dl.rank()
    remote = dl.symm_at(data, 2)
    if me == 0:
        tl.store(remote + offs, 10)
        dl.notify(sig, 2, signal=1, sig_op="add")
    elif me == 1:
        tl.store(remote + 16 + offs, 11)  # <store>
        shmem_dev.fence()
        tl.atomic_add(dl.symm_at(sig, 2), 1, sem="relaxed", scope="sys")
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire", waitValue=2))
        tl.store(out + offs, tl.load(ready + offs))
        tl.store(out + 16 + offs, tl.load(ready + 16 + offs))  # <load>


@covers("ATM-3")
def test_a_relaxed_read_modify_write_continues_a_release_and_adds_none():
    seen = observe(relaxed_chain, DATA, SIG, OUT, nranks=3)
    seen.always(race("store", "load"))


@triton.jit
def tile_atomic_as_flag(data, count, out):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    tl.store(data + pid * 16 + offs, pid + 10)  # <store>
    order = tl.max(tl.atomic_add(count + offs, 1), axis=0)
    if order == 1:
        copy_tiles(data, out, 2)


@covers("ATM-4")
def test_an_atomic_on_a_tile_orders_nothing():
    seen = observe(tile_atomic_as_flag, DATA, COUNT, OUT, nranks=1, grid=2)
    seen.always(race("store", "load"))


@triton.jit
def accumulate(data, out, SCOPE: tl.constexpr):
    offs = tl.arange(0, 16)
    tl.atomic_add(dl.symm_at(data, 0) + offs, dl.rank() + 1, scope=SCOPE)


@covers("ATM-5")
@pytest.mark.parametrize("scope", ["cta", "gpu", "sys"])
def test_atomics_of_one_address_do_not_race_whatever_their_scope(scope):
    seen = observe(accumulate, SUM, OUT, nranks=3, read="data", SCOPE=scope)
    seen.clean()
    seen.outcomes({(6, 0, 0)})


@triton.jit
def atomic_and_plain(data, out, PLAIN: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.atomic_add(data + offs, 1, scope="sys")  # <atomic>
    elif PLAIN == "load":
        tl.store(out + offs, tl.load(dl.symm_at(data, 0) + offs))  # <load>
    else:
        tl.store(dl.symm_at(data, 0) + offs, 5)  # <store>


@covers("ATM-6")
@pytest.mark.parametrize("plain", ["load", "store"])
def test_an_atomic_races_with_a_plain_access(plain):
    observe(atomic_and_plain, SUM, OUT, PLAIN=plain).always(race("atomic", plain))


@triton.jit
def last_arriver_signals(data, sig, count, out):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + pid * 16 + offs, pid + 10)
        order = tl.atomic_add(count, 1)
        if order == tl.num_programs(0) - 1:
            dl.notify(sig, 1, signal=1, sig_op="set")
    elif pid == 0:
        ready = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire"))
        copy_tiles(ready, out, 3)


@covers("ATM-7")
def test_the_last_arriver_releases_for_all_programs_of_its_rank():
    seen = observe(last_arriver_signals, DATA, SIG, COUNT, OUT, grid=3, schedules=MANY)
    seen.clean()
    seen.outcomes({(-1, (10, 11, 12))})


@triton.jit
def any_arriver_signals(data, sig, count, out):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + pid * 16 + offs, pid + 10)  # <store>
        order = tl.atomic_add(count, 1)
        if order == 0:
            dl.notify(sig, 1, signal=1, sig_op="set")
    elif pid == 0:
        ready = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire"))
        copy_tiles(ready, out, 2)


@covers("ATM-7")
def test_the_first_arriver_releases_only_for_itself():
    seen = observe(any_arriver_signals, DATA, SIG, COUNT, OUT, grid=2)
    seen.always(race("store", "load"))


@triton.jit
def ticket(count, out):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    tl.store(out + pid * 16 + offs, tl.atomic_add(count, 1))


@covers("ATM-5", "SIG-1")
def test_tickets_are_given_out_once_each_in_any_order():
    seen = observe(ticket, COUNT, OUT, nranks=1, grid=2, schedules=MANY)
    seen.clean()
    seen.outcomes({((0, 1),), ((1, 0),)})


@triton.jit
def compare_and_swap(count, out):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    tl.store(out + pid * 16 + offs, tl.atomic_cas(count, 0, pid + 1))


@covers("ATM-5")
def test_one_compare_and_swap_wins():
    seen = observe(compare_and_swap, COUNT, OUT, nranks=1, grid=2, schedules=MANY)
    seen.clean()
    seen.outcomes({((0, 1),), ((2, 0),)})


@triton.jit
def remote_last_arriver(data, count, out, SCOPE: tl.constexpr):
    offs = tl.arange(0, 16)
    me = dl.rank()
    home = dl.symm_at(data, 0)
    tl.store(home + me * 16 + offs, me + 10)  # <store>
    order = tl.atomic_add(dl.symm_at(count, 0), 1, scope=SCOPE)  # <atomic>
    if order == 1:
        copy_tiles(home, out, 2)


@covers("ATM-9", "ATM-2")
def test_a_used_atomic_from_another_rank_is_a_hazard():
    seen = observe(remote_last_arriver, DATA, COUNT, OUT, SCOPE="sys")
    seen.always(finding("hazard.atomic-lock", "atomic", severity="hazard"), atomic_edge("store", "load"))


@covers("ATM-2")
def test_a_gpu_atomic_does_not_order_two_ranks():
    seen = observe(remote_last_arriver, DATA, COUNT, OUT, SCOPE="gpu")
    seen.always(finding("hazard.atomic-lock", "atomic", severity="hazard"), race("store", "load"))


@triton.jit
def taking_turns(count, out, FIRST: tl.constexpr):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    if pid >= FIRST:
        order = tl.atomic_add(count, 1)  # <atomic>
        tl.store(out + pid * 16 + offs, order)


@covers("ATM-9")
def test_a_used_atomic_that_one_program_leaves_out_is_a_hazard():
    seen = observe(taking_turns, COUNT, OUT, nranks=1, grid=3, FIRST=1)
    seen.always(finding("hazard.atomic-turn", "atomic", severity="hazard"))


@covers("ATM-9")
def test_a_used_atomic_that_every_program_makes_is_none():
    observe(taking_turns, COUNT, OUT, nranks=1, grid=3, FIRST=0).clean()
    observe(taking_turns, COUNT, OUT, nranks=1, grid=1, FIRST=1).clean()


@triton.jit
def unused_acquire(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        word = dl.consume_token(sig, dl.wait(sig, 1, "gpu", "relaxed"))
        tl.atomic_add(word, 0, sem="acquire", scope="sys")
        tl.store(out + offs, tl.load(data + offs))  # <load>


@covers("ATM-8", "CLK-8")
def test_an_unused_atomic_acquires_in_the_language_and_not_on_ascend():
    seen = observe(unused_acquire, DATA, SIG, OUT)
    seen.always(atomic_edge("store", "load"))
    seen.outcomes({(-1, 7)})
