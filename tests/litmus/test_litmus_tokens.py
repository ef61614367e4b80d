"""Waits, tokens, and which loads they order (rules CLK-*)."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl
from litmus_kit import DATA, OUT, SIG, Buf, atomic_edge, covers, finding, lost_wait, observe, race
from producers import copy_tiles, produce, produce_slot

import tdist.language as dl
from tdist.language.extra import libshmem_device as shmem_dev

COUNT = Buf("count", 16, symmetric=False)


@triton.jit
def wait_and_load(data, sig, out, SEM: tl.constexpr, SCOPE: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        token = dl.wait(sig, 1, SCOPE, SEM)
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <load>


@covers("CLK-1")
@pytest.mark.parametrize("sem", ["acquire", "acq_rel"])
def test_an_acquiring_wait_orders_the_load_that_consumes_its_token(sem):
    seen = observe(wait_and_load, DATA, SIG, OUT, SEM=sem, SCOPE="gpu")
    seen.clean()
    seen.outcomes({(-1, 7)})


@covers("CLK-8")
@pytest.mark.parametrize("sem", ["relaxed", "release"])
def test_a_wait_that_does_not_acquire_orders_nothing(sem):
    seen = observe(wait_and_load, DATA, SIG, OUT, SEM=sem, SCOPE="gpu")
    seen.always(race("store", "load"))


@covers("CLK-9")
@pytest.mark.parametrize("scope", ["cta", "gpu", "npu", "sys"])
def test_the_scope_of_a_wait_does_not_narrow_it(scope):
    observe(wait_and_load, DATA, SIG, OUT, SEM="acquire", SCOPE=scope).clean()


@triton.jit
def relaxed_then_effect(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        token = dl.wait(sig, 1, "gpu", "relaxed")
        tl.store(out + 16 + offs, dl.consume_token(offs, token))
        shmem_dev.fence()
        tl.store(out + offs, tl.load(data + offs))  # <load>
        tl.store(data + 16 + offs, 5)  # <over>


@covers("CLK-8", "CLK-6", "CLK-5")
def test_no_effect_and_no_store_makes_up_for_a_relaxed_wait():
    observe(relaxed_then_effect, DATA, SIG, OUT).always(race("store", "load"), race("store2", "over"))


@triton.jit
def narrow_notify(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, 7)
        shmem_dev.fence()
        dl.notify(sig, 1, signal=1, sig_op="set", comm_scope="gpu")
    else:
        token = dl.wait(sig, 1, "cta", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("CLK-9")
def test_the_comm_scope_of_a_notify_does_not_narrow_it():
    seen = observe(narrow_notify, DATA, SIG, OUT)
    seen.clean()
    seen.outcomes({(-1, 7)})


@triton.jit
def one_of_three(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        remote = dl.symm_at(data, 1)
        tl.store(remote + offs, 1)
        tl.store(remote + 16 + offs, 2)  # <store2>
        tl.store(remote + 32 + offs, 3)  # <store3>
        shmem_dev.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        first = tl.load(dl.consume_token(data, token) + offs)
        second = tl.load(data + 16 + offs)  # <load2>
        third = tl.load(data + 32 + offs)  # <load3>
        tl.store(out + offs, first + second + third)


@covers("CLK-15", "CLK-2")
def test_a_token_consumed_on_one_of_three_tensors_leaves_two_loads_unordered():
    seen = observe(one_of_three, DATA, SIG, OUT)
    seen.always(race("store2", "load2"), race("store3", "load3"))


@triton.jit
def token_through(data, sig, out, limit, VIA: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        if VIA == "offset":
            got = tl.load(data + dl.consume_token(offs, token))
        elif VIA == "mask":
            got = tl.load(data + offs, mask=dl.consume_token(offs < limit, token), other=0)
        elif VIA == "other":
            got = tl.load(data + offs, mask=offs < limit, other=dl.consume_token(offs, token))
        elif VIA == "pointers":
            got = tl.load(dl.consume_token(data + offs, token))
        elif VIA == "arithmetic":
            shift = dl.consume_token(limit, token) - 16
            got = tl.load(data + shift * 16 + offs)
        else:
            got = tl.load(dl.consume_token(data, token) + offs)
        tl.store(out + offs, got)


@covers("CLK-2", "CLK-4")
@pytest.mark.parametrize("via", ["address", "offset", "mask", "other", "pointers", "arithmetic"])
def test_any_operand_of_a_load_can_carry_the_token(via):
    seen = observe(token_through, DATA, SIG, OUT, limit=16, VIA=via)
    seen.clean()
    seen.outcomes({(-1, 7)})


@triton.jit
def token_in_control(data, sig, out, limit, VIA: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        go = dl.consume_token(limit, dl.wait(sig, 1, "gpu", "acquire"))
        if VIA == "if":
            if go > 0:
                tl.store(out + offs, tl.load(data + offs))
        elif VIA == "for":
            for i in range(go // 16):
                tl.store(out + i * 16 + offs, tl.load(data + offs))
        else:
            while go > 0:
                tl.store(out + offs, tl.load(data + offs))
                go -= 16


@covers("CLK-3")
@pytest.mark.parametrize("via", ["if", "for", "while"])
def test_control_that_carries_the_token_orders_the_loads_under_it(via):
    seen = observe(token_in_control, DATA, SIG, OUT, limit=16, VIA=via)
    seen.clean()
    seen.outcomes({(-1, 7)})


@triton.jit
def token_in_early_return(data, sig, out, limit):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
        return
    go = dl.consume_token(limit, dl.wait(sig, 1, "gpu", "acquire"))
    if go == 0:
        return
    tl.store(out + offs, tl.load(data + offs))


@covers("CLK-3")
def test_an_early_return_that_carries_the_token_orders_what_follows():
    seen = observe(token_in_early_return, DATA, SIG, OUT, limit=16)
    seen.clean()
    seen.outcomes({(-1, 7)})


@triton.jit
def pointer_chase(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        index = tl.max(tl.load(dl.consume_token(data, token) + offs), axis=0)
        tl.store(out + offs, tl.load(data + (index - 6) * 16 + offs))


@covers("CLK-4")
def test_a_loaded_value_carries_the_token_that_its_load_carried():
    seen = observe(pointer_chase, DATA, SIG, OUT)
    seen.clean()
    seen.outcomes({(-1, 8)})


@triton.jit
def carried_pointer(data, sig, out, n):
    if dl.rank() < 2:
        produce_slot(data, sig, 2)
    else:
        ready = data
        for i in range(n):
            ready = dl.consume_token(ready, dl.wait(sig + i * 16, 1, "gpu", "acquire"))
        copy_tiles(ready, out, 2)


@covers("CLK-4")
def test_a_pointer_carried_around_a_loop_keeps_its_tokens():
    seen = observe(carried_pointer, DATA, SIG, OUT, nranks=3, n=2)
    seen.clean()
    seen.outcomes({(-1, -1, (10, 11))})


@covers("CLK-4")
def test_a_loop_that_stops_one_wait_early_leaves_the_last_tile_unordered():
    observe(carried_pointer, DATA, SIG, OUT, nranks=3, n=1).always(race("store", "load"))


@triton.jit
def token_out_of_branch(data, sig, out, flag):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        ready = data
        if flag > 0:
            ready = dl.consume_token(data, token)
        tl.store(out + offs, tl.load(ready + offs))  # <load>


@covers("CLK-4")
def test_the_branch_taken_decides_whether_the_token_is_carried():
    observe(token_out_of_branch, DATA, SIG, OUT, flag=1).clean()
    observe(token_out_of_branch, DATA, SIG, OUT, flag=0).always(race("store", "load"))


@triton.jit
def consume_after_load(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        got = tl.load(data + offs)  # <load>
        tl.store(out + offs, dl.consume_token(got, token))


@covers("CLK-13")
def test_consuming_the_token_on_a_loaded_value_orders_nothing():
    observe(consume_after_load, DATA, SIG, OUT).always(race("store", "load"))


@triton.jit
def store_after_wait(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        zero = tl.load(dl.consume_token(out, token) + offs)
        tl.store(data + offs, 9)
        tl.store(out + offs, zero)


@covers("CLK-5")
def test_a_store_after_a_wait_needs_no_token():
    seen = observe(store_after_wait, DATA, SIG, OUT, read="data")
    seen.clean()
    seen.outcomes({((0, 0, 0, 0), (9, 8, 0, 0))})


@triton.jit
def effect_between(data, sig, count, out, OP: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        second = tl.load(dl.consume_token(data, token) + 16 + offs)
        if OP == "store":
            tl.store(count + offs, 1)
        elif OP == "atomic":
            tl.atomic_add(count, 1, sem="relaxed")
        elif OP == "volatile":
            tl.load(count, volatile=True)
        elif OP == "notify":
            dl.notify(sig + 16, 1, signal=1, sig_op="set")
        elif OP == "int_p":
            shmem_dev.int_p(sig + 16, 1, 1)
        elif OP == "fence":
            shmem_dev.fence()
        elif OP == "quiet":
            shmem_dev.quiet()
        first = tl.load(data + offs)  # <load>
        tl.store(out + offs, first + second)


@covers("CLK-6")
@pytest.mark.parametrize("op", ["store", "atomic", "volatile", "notify", "int_p", "fence", "quiet"])
def test_an_operation_with_a_write_effect_puts_later_loads_behind_earlier_waits(op):
    seen = observe(effect_between, DATA, SIG, COUNT, OUT, OP=op)
    seen.clean()
    seen.outcomes({(-1, 15)})


@triton.jit
def atomic_poll(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        seen = tl.atomic_add(sig, 0, scope="sys")
        while seen != 1:
            seen = tl.atomic_add(sig, 0, scope="sys")
        tl.store(out + offs, tl.load(data + offs))  # <load>


@covers("CLK-6", "ATM-9")
def test_a_poll_by_an_acquiring_atomic_needs_no_token_but_is_no_edge_on_ascend():
    seen = observe(atomic_poll, DATA, SIG, OUT)
    seen.always(atomic_edge("store", "load"))
    seen.outcomes({(-1, 7)})


@triton.jit
def consume_by_cas(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        seen = tl.atomic_cas(sig, 1, 0, scope="sys")
        while seen != 1:
            seen = tl.atomic_cas(sig, 1, 0, scope="sys")
        tl.store(out + offs, tl.load(data + offs))  # <load>


@covers("CLK-6", "ATM-9", "SIG-2")
def test_a_compare_and_swap_that_takes_the_signal_away_comes_after_it():
    seen = observe(consume_by_cas, DATA, SIG, OUT)
    seen.always(atomic_edge("store", "load"))
    seen.outcomes({(-1, 7)})


@covers("CLK-6", "CLK-2")
def test_without_an_effect_between_the_load_is_not_behind_the_wait():
    observe(effect_between, DATA, SIG, COUNT, OUT, OP="none").always(race("store", "load"))


@triton.jit
def last_token(data, sig, out, n):
    if dl.rank() < 2:
        produce_slot(data, sig, 2)
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        for i in range(1, n):
            token = dl.wait(sig + i * 16, 1, "gpu", "acquire")
        copy_tiles(dl.consume_token(data, token), out, 2)


@covers("CLK-7")
def test_the_last_token_of_a_loop_of_waits_carries_the_earlier_waits():
    seen = observe(last_token, DATA, SIG, OUT, nranks=3, n=2)
    seen.clean()
    seen.outcomes({(-1, -1, (10, 11))})


@triton.jit
def last_token_unrolled(data, sig, out):
    if dl.rank() < 2:
        produce_slot(data, sig, 2)
    else:
        token = 0
        for i in tl.static_range(2):
            token = dl.wait(sig + i * 16, 1, "gpu", "acquire")  # <wait>
        copy_tiles(dl.consume_token(data, token), out, 2)


@covers("CLK-7", "CLK-14")
def test_an_unrolled_loop_of_waits_loses_all_but_the_last():
    seen = observe(last_token_unrolled, DATA, SIG, OUT, nranks=3)
    seen.always(lost_wait("wait"), race("store", "load"))


@triton.jit
def crossed_tokens(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() < 2:
        produce_slot(data, sig, 2)
    else:
        first = dl.wait(sig, 1, "gpu", "acquire")
        second = dl.wait(sig + 16, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, second) + offs))
        got = tl.load(dl.consume_token(data, first) + 16 + offs)
        tl.store(out + 16 + offs, got)


@triton.jit
def crossed_tokens_in_time(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() < 2:
        produce_slot(data, sig, 2)
    else:
        first = dl.wait(sig, 1, "gpu", "acquire")
        second = dl.wait(sig + 16, 1, "gpu", "acquire")
        got = tl.load(dl.consume_token(data, first) + 16 + offs)  # <early>
        tl.store(out + offs, got + tl.load(dl.consume_token(data, second) + offs))


@covers("CLK-7", "CLK-2")
def test_the_second_token_covers_the_first_wait_and_not_the_other_way_round():
    observe(crossed_tokens, DATA, SIG, OUT, nranks=3).clean()
    seen = observe(crossed_tokens_in_time, DATA, SIG, OUT, nranks=3)
    seen.always(race("store", "early"))


@triton.jit
def same_value_again(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        remote = dl.symm_at(data, 1)
        tl.store(remote + offs, 7)
        shmem_dev.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
        tl.store(remote + 16 + offs, 8)  # <store2>
        shmem_dev.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire"))
        tl.store(out + offs, tl.load(ready + offs))
        tl.store(out + 16 + offs, tl.load(ready + 16 + offs))  # <load2>


@covers("CLK-10", "SIG-11")
def test_setting_the_value_that_the_word_holds_releases_nothing_more():
    seen = observe(same_value_again, DATA, SIG, OUT)
    seen.always(race("store2", "load2"))
    seen.outcomes({(-1, (7, 8)), (-1, (7, 0))})


@triton.jit
def epoch_round(data, sig, out, launch, EPOCH: tl.constexpr):
    offs = tl.arange(0, 16)
    epoch = launch if EPOCH else 1
    slot = (launch - 1) * 16
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + slot + offs, launch + 10)  # <store>
        shmem_dev.fence()
        dl.notify(sig + slot * EPOCH, 1, signal=epoch, sig_op="set")
    else:
        token = dl.wait(sig + slot * EPOCH, 1, "gpu", "acquire", waitValue=epoch)
        tl.store(out + slot + offs, tl.load(dl.consume_token(data, token) + slot + offs))  # <load>


@covers("CLK-11", "CLK-10", "WHO-13")
def test_a_constant_epoch_races_on_every_schedule():
    seen = observe(epoch_round, DATA, SIG, OUT, launches=2, EPOCH=0)
    seen.always(race("store", "load"))


@covers("CLK-11")
def test_its_own_slot_for_each_round_is_ordered():
    seen = observe(epoch_round, DATA, SIG, OUT, launches=3, EPOCH=1)
    seen.clean()
    seen.outcomes({(-1, (11, 12, 13))})


@triton.jit
def acknowledged(data, sig, out, n, ACK: tl.constexpr):
    offs = tl.arange(0, 16)
    for i in range(1, n + 1):
        if dl.rank() == 0:
            free = data
            if i > 1:
                free = dl.consume_token(data, dl.wait(sig + 16, 1, "gpu", "acquire", waitValue=i - 1))
            tl.store(dl.symm_at(free, 1) + offs, i + 10)  # <store>
            shmem_dev.fence()
            dl.notify(sig, 1, signal=i, sig_op="set")
        else:
            token = dl.wait(sig, 1, "gpu", "acquire", waitValue=i)
            if ACK == "early":
                dl.notify(sig + 16, 0, signal=i, sig_op="set")
            got = tl.load(dl.consume_token(data, token) + offs)  # <load>
            tl.store(out + (i - 1) * 16 + offs, got)
            if ACK == "late":
                shmem_dev.fence()
                dl.notify(sig + 16, 0, signal=i, sig_op="set")


@covers("CLK-12", "CLK-5", "SIG-11")
def test_an_acknowledgement_covers_the_loads_before_it():
    seen = observe(acknowledged, DATA, SIG, OUT, n=3, ACK="late")
    seen.clean()
    seen.outcomes({(-1, (11, 12, 13))})


@covers("CLK-12")
def test_an_acknowledgement_does_not_cover_the_load_after_it():
    observe(acknowledged, DATA, SIG, OUT, n=2, ACK="early").always(race("store", "load"))


@triton.jit
def signal_before_store(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        dl.notify(sig, 1, signal=1, sig_op="set")
        tl.store(dl.symm_at(data, 1) + offs, 7)  # <store>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <load>


@covers("CLK-12")
def test_a_store_after_its_own_signal_is_not_covered():
    seen = observe(signal_before_store, DATA, SIG, OUT)
    seen.always(race("store", "load"))
    seen.outcomes({(-1, 7), (-1, 0)})


@triton.jit
def unused_wait(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        dl.wait(sig, 1, "gpu", "acquire")  # <wait>
        tl.store(out + offs, tl.load(data + offs))  # <load>


@covers("CLK-14")
def test_a_wait_whose_token_nobody_uses_is_gone():
    seen = observe(unused_wait, DATA, SIG, OUT)
    seen.always(lost_wait("wait"), race("store", "load"))
    seen.outcomes({(-1, 7), (-1, 0)})


@triton.jit
def equal_waits(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        one = dl.wait(sig, 1, "gpu", "acquire")  # <kept>
        two = dl.wait(sig, 1, "gpu", "acquire")  # <dropped>
        got = tl.load(dl.consume_token(data, one) + offs)
        tl.store(out + offs, got + tl.load(dl.consume_token(data, two) + 16 + offs))


@covers("CLK-14")
def test_two_equal_waits_become_one_and_still_order():
    seen = observe(equal_waits, DATA, SIG, OUT)
    seen.always(finding("merged-wait", "kept", "dropped", severity="note"))
    seen.outcomes({(-1, 15)})
