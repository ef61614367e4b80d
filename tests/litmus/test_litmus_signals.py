"""Synchronisation words: SET and ADD, equality, slots, lines, plain accesses (rules SIG-*)."""

from __future__ import annotations

import triton
import triton.language as tl
from litmus_kit import DATA, MANY, OUT, SIG, SIG64, STOPPED, Buf, covers, finding, lost_wait, observe, race
from producers import copy_tiles, produce, produce_slot

import tdist.language as dl
from tdist.language.extra import libshmem_device as shmem_dev

RAISED = Buf("sig", 64, fill=1)


@triton.jit
def two_waiters(data, sig, out):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    if dl.rank() == 0:
        if pid == 0:
            produce(data, sig)
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + pid * 16 + offs, tl.load(dl.consume_token(data, token) + pid * 16 + offs))


@covers("SIG-18", "SIG-1")
def test_a_wait_does_not_consume_the_signal():
    seen = observe(two_waiters, DATA, SIG, OUT, grid=2)
    seen.clean()
    seen.outcomes({(-1, (7, 8))})


@triton.jit
def two_setters(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() < 2:
        dl.notify(sig, 2, signal=1, sig_op="set")  # <set>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("SIG-2")
def test_two_unordered_sets_of_one_word_are_a_finding():
    observe(two_setters, DATA, SIG, OUT, nranks=3).always(finding("concurrent-set", "set"))


@triton.jit
def set_and_add(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        dl.notify(sig, 2, signal=1, sig_op="set")  # <set>
    elif dl.rank() == 1:
        dl.notify(sig + 16, 2, signal=1, sig_op="add")
        dl.notify(sig, 2, signal=0, sig_op="add")  # <add>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire") + dl.wait(sig + 16, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("SIG-2")
def test_an_add_beside_an_unordered_set_is_a_finding():
    observe(set_and_add, DATA, SIG, OUT, nranks=3).always(finding("concurrent-set", "set", "add"))


@triton.jit
def relayed_set(data, sig, out):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me == 0:
        dl.notify(sig, 2, signal=1, sig_op="set")
        dl.notify(sig + 16, 1, signal=1, sig_op="set")
    elif me == 1:
        token = dl.wait(sig + 16, 1, "gpu", "acquire")
        dl.notify(dl.consume_token(sig, token), 2, signal=2, sig_op="set")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=2)
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("SIG-2")
def test_two_sets_of_one_word_in_a_chain_are_ordered():
    observe(relayed_set, DATA, SIG, OUT, nranks=3).clean()


@triton.jit
def counter(data, sig, out):
    me = dl.rank()
    last = dl.num_ranks() - 1
    offs = tl.arange(0, 16)
    if me < last:
        tl.store(dl.symm_at(data, last) + me * 16 + offs, me + 10)
        dl.notify(sig, last, signal=1, sig_op="add")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=3)
        copy_tiles(dl.consume_token(data, token), out, 3)


@covers("SIG-6", "SIG-2", "REL-5")
def test_a_counter_of_three_producers_releases_for_all_three():
    seen = observe(counter, DATA, SIG, OUT, nranks=4)
    seen.clean()
    seen.outcomes({(-1, -1, -1, (10, 11, 12))})


@triton.jit
def replaced(data, sig, out):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me == 0:
        tl.store(dl.symm_at(data, 2) + offs, 7)  # <store>
        shmem_dev.fence()
        dl.notify(sig, 2, signal=1, sig_op="set")  # <first>
    elif me == 1:
        seen = tl.load(dl.symm_at(sig, 2), volatile=True)
        while seen != 1:
            seen = tl.load(dl.symm_at(sig, 2), volatile=True)
        dl.notify(sig, 2, signal=2, sig_op="set")  # <second>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=2)
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <load>


@covers("SIG-5", "SIG-4")
def test_a_set_replaces_what_the_word_released():
    seen = observe(replaced, DATA, SIG, OUT, nranks=3)
    seen.always(finding("concurrent-set", "first", "second"), race("store", "load"))


@triton.jit
def joined(data, sig, out):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me == 0:
        tl.store(dl.symm_at(data, 2) + offs, 7)
        dl.notify(sig, 2, signal=1, sig_op="add")
    elif me == 1:
        seen = tl.load(dl.symm_at(sig, 2), volatile=True)
        while seen != 1:
            seen = tl.load(dl.symm_at(sig, 2), volatile=True)
        dl.notify(sig, 2, signal=1, sig_op="add")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=2)
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("SIG-6", "SIG-4")
def test_an_add_joins_what_the_word_released():
    seen = observe(joined, DATA, SIG, OUT, nranks=3)
    seen.clean()
    seen.outcomes({(-1, -1, 7)})


@triton.jit
def plain_store_on_word(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)  # signals at <notify>
    else:
        tl.store(sig, 1)  # <plain>
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(out, token) + offs))


@covers("SIG-3")
def test_a_plain_store_to_a_word_races_with_its_signal():
    observe(plain_store_on_word, DATA, SIG, OUT).always(race("plain", "notify"))


@triton.jit
def plain_load_of_word(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        peek = tl.load(sig + offs)  # <peek>
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))
        tl.store(out + 16 + offs, peek)


@covers("SIG-3")
def test_a_plain_load_of_a_word_races_with_its_signal():
    observe(plain_load_of_word, DATA, SIG, OUT).always(race("peek", "notify"))


@triton.jit
def reset_and_acknowledge(data, sig, out, n):
    offs = tl.arange(0, 16)
    for i in range(n):
        if dl.rank() == 0:
            free = data
            if i > 0:
                free = dl.consume_token(data, dl.wait(sig + 16, 1, "gpu", "acquire", waitValue=i))
            tl.store(dl.symm_at(free, 1) + offs, i + 10)
            shmem_dev.fence()
            dl.notify(sig, 1, signal=1, sig_op="set")
        else:
            token = dl.wait(sig, 1, "gpu", "acquire")
            got = tl.load(dl.consume_token(data, token) + offs)
            tl.store(out + i * 16 + offs, got)
            tl.store(sig, 0)
            shmem_dev.fence()
            dl.notify(sig + 16, 0, signal=i + 1, sig_op="set")


@covers("SIG-3", "SIG-7")
def test_a_plain_reset_that_is_acknowledged_is_ordered():
    seen = observe(reset_and_acknowledge, DATA, SIG, OUT, n=3)
    seen.clean()
    seen.outcomes({(-1, (10, 11, 12))})


@triton.jit
def volatile_spin(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        seen = tl.load(sig, volatile=True)
        while seen != 1:
            seen = tl.load(sig, volatile=True)
        tl.store(out + offs, tl.load(data + offs))  # <load>


@covers("SIG-4")
def test_a_volatile_spin_does_not_race_and_acquires_nothing():
    seen = observe(volatile_spin, DATA, SIG, OUT)
    seen.always(race("store", "load"))
    seen.outcomes({(-1, 7)})


@triton.jit
def plain_flag(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, 7)  # <store>
        shmem_dev.fence()
        tl.store(dl.symm_at(sig, 1), 1)  # <flag>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")  # <wait>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <load>


@covers("SIG-7", "SIG-3")
def test_a_plain_store_releases_nothing():
    seen = observe(plain_flag, DATA, SIG, OUT)
    seen.always(race("flag", "wait"), race("store", "load"))


@triton.jit
def signal_overwritten(data, sig, out):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me == 0:
        tl.store(dl.symm_at(data, 2) + offs, 7)  # <store>
        shmem_dev.fence()
        dl.notify(sig, 2, signal=1, sig_op="set")
        dl.notify(sig + 16, 1, signal=1, sig_op="set")
    elif me == 1:
        token = dl.wait(sig + 16, 1, "gpu", "acquire")
        tl.store(dl.symm_at(dl.consume_token(sig, token), 2), 2)  # <plain>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=2)  # <wait>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <load>


@covers("SIG-7", "SIG-3")
def test_a_plain_store_over_a_signal_takes_away_what_it_released():
    seen = observe(signal_overwritten, DATA, SIG, OUT, nranks=3)
    seen.always(race("plain", "wait"), race("store", "load"))
    seen.outcomes({(-1, -1, 7)})


@triton.jit
def initial_value(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, 7)  # <store>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <load>


@covers("SIG-7")
def test_the_initial_value_releases_nothing():
    observe(initial_value, DATA, RAISED, OUT).always(race("store", "load"))


@triton.jit
def two_slots(data, sig, out, STRIDE: tl.constexpr):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me < 2:
        tl.store(dl.symm_at(data, 2) + me * 16 + offs, me + 10)
        shmem_dev.fence()
        dl.notify(sig + me * STRIDE, 2, signal=1, sig_op="add")  # <add>
    else:
        token = dl.wait(sig, 2, "gpu", "acquire")  # <wait>
        copy_tiles(dl.consume_token(data, token), out, 2)


@covers("SIG-8")
def test_a_wait_for_two_slots_polls_words_64_bytes_apart():
    seen = observe(two_slots, DATA, SIG, OUT, nranks=3, STRIDE=16)
    seen.clean()
    seen.outcomes({(-1, -1, (10, 11))})


@covers("SIG-8", "DLK-4")
def test_signals_in_packed_slots_never_reach_the_second_wait():
    seen = observe(two_slots, DATA, SIG, OUT, nranks=3, STRIDE=1)
    seen.always(finding("deadlock", "wait"), finding("line-sharing", "add", severity="note"))
    seen.outcomes({STOPPED})
    assert "64" in seen.text()


@triton.jit
def two_wide_slots(data, sig, out):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me < 2:
        tl.store(dl.symm_at(data, 2) + me * 16 + offs, me + 10)
        shmem_dev.fence()
        dl.notify(sig + me * 8, 2, signal=5, sig_op="set")
    else:
        token = dl.wait(sig, 2, "gpu", "acquire", waitValue=5)
        copy_tiles(dl.consume_token(data, token), out, 2)


@covers("SIG-8")
def test_slots_of_64_bit_words_are_64_bytes_apart_too():
    seen = observe(two_wide_slots, DATA, SIG64, OUT, nranks=3)
    seen.clean()
    seen.outcomes({(-1, -1, (10, 11))})


@triton.jit
def wait_for(data, sig, out, FIRST: tl.constexpr, SECOND: tl.constexpr, ACK: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, 7)
        shmem_dev.fence()
        dl.notify(sig, 1, signal=FIRST, sig_op="set")  # <first>
        word = sig
        if ACK:
            word = dl.consume_token(sig, dl.wait(sig + 16, 1, "gpu", "acquire"))
        if SECOND > 0:
            dl.notify(word, 1, signal=SECOND, sig_op="set")  # <second>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")  # <wait>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))
        if ACK:
            shmem_dev.fence()
            dl.notify(sig + 16, 0, signal=1, sig_op="set")


@covers("SIG-9", "DLK-1")
def test_a_wait_is_for_equality():
    seen = observe(wait_for, DATA, SIG, OUT, FIRST=2, SECOND=0, ACK=False)
    seen.always(finding("deadlock", "wait"))
    seen.outcomes({STOPPED})


@covers("SIG-10")
def test_a_second_value_can_overshoot_the_poll():
    seen = observe(wait_for, DATA, SIG, OUT, FIRST=1, SECOND=2, ACK=False, schedules=MANY)
    seen.one_of({finding("overshoot", "second", "wait")}, {finding("deadlock", "wait")})


@covers("SIG-11")
def test_the_same_value_again_overshoots_nothing():
    seen = observe(wait_for, DATA, SIG, OUT, FIRST=1, SECOND=1, ACK=False)
    seen.clean()
    seen.outcomes({(-1, 7)})


@covers("SIG-11")
def test_an_acknowledged_second_value_overshoots_nothing():
    seen = observe(wait_for, DATA, SIG, OUT, FIRST=1, SECOND=2, ACK=True)
    seen.clean()
    seen.outcomes({(-1, 7)})


@triton.jit
def wait_beyond(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 2, "gpu", "acquire")  # <wait>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("SIG-12")
def test_a_wait_beyond_its_tensor_names_the_stride():
    seen = observe(wait_beyond, DATA, Buf("sig", 16), OUT)
    seen.always(finding("short-signal", "wait"))
    seen.outcomes({STOPPED})
    assert "64" in seen.text() and "sig" in seen.text()


@triton.jit
def neighbours(data, sig, out, STRIDE: tl.constexpr, OP: tl.constexpr):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me == 0:
        if OP == "add":
            dl.notify(sig, 2, signal=1, sig_op="add")  # <add>
        elif OP == "int_p":
            shmem_dev.int_p(sig, 1, 2)  # <point>
        else:
            dl.notify(sig, 2, signal=1, sig_op="set")  # <set>
    elif me == 1:
        if OP == "store":
            tl.store(dl.symm_at(sig, 2) + STRIDE, 1)  # <plain>
        elif OP == "atomic":
            tl.atomic_add(dl.symm_at(sig, 2) + STRIDE, 1, scope="sys")  # <atomic>
        elif OP == "set":
            dl.notify(sig + STRIDE, 2, signal=1, sig_op="set")  # <other>
        else:
            dl.notify(sig + STRIDE, 2, signal=1, sig_op="add")  # <other>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("SIG-13")
def test_two_sets_in_one_line_can_lose_an_update():
    seen = observe(neighbours, DATA, SIG, OUT, nranks=3, STRIDE=1, OP="set")
    seen.always(finding("line-sharing", "set", "other"))


@covers("SIG-13")
def test_a_set_beside_a_write_of_any_other_kind_can_lose_an_update():
    for op, first, second in [
        ("mixed", "set", "other"),
        ("int_p", "point", "other"),
        ("store", "set", "plain"),
        ("atomic", "set", "atomic"),
    ]:
        seen = observe(neighbours, DATA, SIG, OUT, nranks=3, STRIDE=1, OP=op)
        seen.always(finding("line-sharing", first, second))


@covers("SIG-14")
def test_two_adds_in_one_line_are_a_note():
    seen = observe(neighbours, DATA, SIG, OUT, nranks=3, STRIDE=1, OP="add")
    seen.always(finding("line-sharing", "add", "other", severity="note"))


@covers("SIG-13", "SIG-14")
def test_slots_64_bytes_apart_share_no_line():
    for op in ("set", "add", "mixed", "store"):
        observe(neighbours, DATA, SIG, OUT, nranks=3, STRIDE=16, OP=op).clean()


@triton.jit
def two_tensors(data, sig, sig2, out):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me == 0:
        dl.notify(sig, 2, signal=1, sig_op="set")  # <set>
    elif me == 1:
        dl.notify(sig2, 2, signal=1, sig_op="set")  # <other>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire") + dl.wait(sig2, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("SIG-15", "SIG-13")
def test_two_one_element_tensors_share_a_line():
    seen = observe(two_tensors, DATA, Buf("sig", 1), Buf("sig2", 1), OUT, nranks=3)
    seen.always(finding("line-sharing", "set", "other"))


@triton.jit
def polling_loop(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        seen = tl.load(sig)
        while seen != 1:
            seen = tl.load(sig)  # <poll>
        tl.store(out + offs, tl.load(data + offs))  # <load>


@covers("SIG-16")
def test_a_loop_that_only_polls_is_deleted():
    seen = observe(polling_loop, DATA, SIG, OUT)
    seen.always(lost_wait("poll"), race("store", "load"))
    seen.outcomes({(-1, 7), (-1, 0)})
    assert "dl.wait" in seen.text()


@triton.jit
def polling_loop_kept(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        seen = 0
        while seen != 1:
            seen = tl.load(sig)  # <poll>
        tl.store(out + offs, tl.load(data + offs))  # <load>
        tl.store(out + 16 + offs, seen)


@covers("SIG-17", "SIG-3")
def test_a_polling_loop_that_survives_acquires_nothing():
    seen = observe(polling_loop_kept, DATA, SIG, OUT)
    seen.always(race("poll", "notify"), race("store", "load"))


@triton.jit
def mixed_kinds_on_a_word(data, sig, out):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me == 0:
        tl.store(dl.symm_at(data, 2) + offs, 10)
        dl.notify(sig, 2, signal=1, sig_op="add")
    elif me == 1:
        tl.store(dl.symm_at(data, 2) + 16 + offs, 11)
        shmem_dev.fence()
        tl.atomic_add(dl.symm_at(sig, 2), 1, scope="sys")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=2)
        copy_tiles(dl.consume_token(data, token), out, 2)


@covers("SIG-1", "ATM-2")
def test_notify_and_atomic_on_one_word_do_not_race():
    seen = observe(mixed_kinds_on_a_word, DATA, SIG, OUT, nranks=3)
    seen.clean()
    seen.outcomes({(-1, -1, (10, 11))})


@triton.jit
def push_to_all(data, sig, out):
    me = dl.rank()
    for shift in range(1, dl.num_ranks()):
        produce_slot(data, sig, (me + shift) % dl.num_ranks())
    for shift in range(1, dl.num_ranks()):
        src = (me + shift) % dl.num_ranks()
        ready = dl.consume_token(data, dl.wait(sig + src * 16, 1, "gpu", "acquire"))
        copy_tiles(ready + src * 16, out + src * 16, 1)


@covers("SIG-1", "SIG-8", "CLK-1")
def test_a_push_all_gather_with_a_slot_for_each_rank_is_ordered():
    seen = observe(push_to_all, DATA, SIG, OUT, nranks=4)
    seen.clean()
    seen.outcomes({((-1, 11, 12, 13), (10, 12, 13), (10, 11, 13), (10, 11, 12))})


@triton.jit
def two_point_writes(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() < 2:
        shmem_dev.int_p(sig, 1, 2)  # <point>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("SIG-2")
def test_two_unordered_point_writes_are_two_sets():
    observe(two_point_writes, DATA, SIG, OUT, nranks=3).always(finding("concurrent-set", "point"))


@triton.jit
def counter_too_small(data, sig, out):
    me = dl.rank()
    last = dl.num_ranks() - 1
    offs = tl.arange(0, 16)
    if me < last:
        tl.store(dl.symm_at(data, last) + me * 16 + offs, me + 10)  # <store>
        dl.notify(sig, last, signal=1, sig_op="add")  # <add>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=2)  # <wait>
        copy_tiles(dl.consume_token(data, token), out, 3)


@covers("SIG-6", "SIG-10")
def test_waiting_for_two_of_three_producers_orders_neither_the_third_nor_its_signal():
    seen = observe(counter_too_small, DATA, SIG, OUT, nranks=4, schedules=MANY)
    right_numbers = {race("store", "load"), finding("overshoot", "add", "wait")}
    seen.one_of(right_numbers, {finding("deadlock", "wait")})
