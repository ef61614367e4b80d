"""What a release covers, under both profiles (rules REL-*)."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl
from litmus_kit import DATA, OUT, SIG, Buf, covers, hidden_alias, observe, race, stale, undrained
from producers import produce

import tdist.language as dl
from tdist.language.extra import libshmem_device as shmem_dev

COUNT = Buf("count", 16, symmetric=False)
INDEX = Buf("index", 16, symmetric=False, fill=3)


@triton.jit
def drained_by(data, sig, count, out, BY: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, 7)  # <store>
        if BY == "fence":
            shmem_dev.fence()
        elif BY == "quiet":
            shmem_dev.quiet()
        elif BY == "add elsewhere":
            dl.notify(sig + 16, 1, signal=1, sig_op="add")
        elif BY == "used atomic":
            tl.store(out + 16 + offs, tl.atomic_add(count, 1))
        elif BY == "unused atomic":
            tl.atomic_add(count, 1)
        elif BY == "another set":
            dl.notify(sig + 16, 1, signal=1, sig_op="set")
        elif BY == "another store":
            tl.store(count + offs, 1)
        if BY == "point write":
            shmem_dev.int_p(sig, 1, 1)
        elif BY == "add":
            dl.notify(sig, 1, signal=1, sig_op="add")
        else:
            dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <load>


@covers("REL-1", "REL-10")
@pytest.mark.parametrize("by", ["nothing", "point write", "another set", "another store", "unused atomic"])
def test_a_store_may_be_in_flight_when_its_signal_arrives(by):
    seen = observe(drained_by, DATA, SIG, COUNT, OUT, BY=by)
    seen.always(undrained("store", "load"))


@covers("REL-2", "REL-5")
@pytest.mark.parametrize("by", ["fence", "quiet", "add", "add elsewhere", "used atomic"])
def test_a_drain_before_the_signal_makes_it_safe(by):
    observe(drained_by, DATA, SIG, COUNT, OUT, BY=by).clean()


@triton.jit
def drain_between_stores(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        remote = dl.symm_at(data, 1)
        tl.store(remote + offs, 7)
        shmem_dev.fence()
        tl.store(remote + 16 + offs, 8)  # <store2>
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire"))
        tl.store(out + offs, tl.load(ready + offs))
        tl.store(out + 16 + offs, tl.load(ready + 16 + offs))  # <load2>


@covers("REL-1")
def test_only_what_follows_the_last_drain_is_in_flight():
    seen = observe(drain_between_stores, DATA, SIG, OUT)
    seen.always(undrained("store2", "load2"))


@triton.jit
def barrier_then_signal(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 2) + offs, 7)
    shmem_dev.barrier_all()
    if dl.rank() == 0:
        dl.notify(sig, 1, signal=1, sig_op="set")
    if dl.rank() == 1:
        token = dl.wait(sig, 1, "gpu", "acquire")
        dl.notify(dl.consume_token(sig, token), 2, signal=1, sig_op="set")
    if dl.rank() == 2:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


@covers("REL-2", "REL-4")
def test_a_barrier_drains():
    observe(barrier_then_signal, DATA, SIG, OUT, nranks=3).clean()


@triton.jit
def give_back(data, sig, out, DRAIN: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        got = tl.load(data + offs)  # <load>
        tl.store(out + offs, got)
        if DRAIN:
            shmem_dev.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        remote = dl.consume_token(dl.symm_at(data, 0), token)
        tl.store(remote + offs, 7)  # <store>


@covers("REL-3", "CLK-12")
def test_a_load_may_be_in_flight_when_its_buffer_is_given_back():
    seen = observe(give_back, DATA, SIG, OUT, DRAIN=False)
    seen.always(undrained("load", "store"))
    seen.outcomes({(0, -1)})


@covers("REL-3")
def test_a_drain_before_giving_back_covers_the_loads():
    seen = observe(give_back, DATA, SIG, OUT, DRAIN=True)
    seen.clean()
    seen.outcomes({(0, -1)})


@triton.jit
def relay(data, sig, out, DRAIN: tl.constexpr):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me == 0:
        tl.store(dl.symm_at(data, 2) + offs, 7)  # <store>
        if DRAIN:
            shmem_dev.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    elif me == 1:
        token = dl.wait(sig, 1, "gpu", "acquire")
        dl.notify(dl.consume_token(sig, token), 2, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <load>


@covers("REL-4")
def test_what_was_acquired_passes_on_without_a_drain():
    seen = observe(relay, DATA, SIG, OUT, nranks=3, DRAIN=True)
    seen.clean()
    seen.outcomes({(-1, -1, 7)})


@covers("REL-4", "REL-1")
def test_a_relay_does_not_make_up_for_the_missing_drain():
    observe(relay, DATA, SIG, OUT, nranks=3, DRAIN=False).always(undrained("store", "load"))


@triton.jit
def own_bytes(data, sig, out, limit, THROUGH: tl.constexpr, DRAIN: tl.constexpr):
    offs = tl.arange(0, 16)
    target = data
    if THROUGH == "symm_at":
        target = dl.symm_at(data, dl.rank())
    elif THROUGH == "consume_token":
        target = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire"))
    tl.store(target + offs, 7)  # <store>
    if DRAIN:
        shmem_dev.fence()
    tl.store(out + offs, tl.load(data + offs))  # <load>


RAISED = Buf("sig", 64, fill=1)


@covers("REL-6")
@pytest.mark.parametrize("through", ["symm_at", "consume_token"])
def test_an_own_store_behind_a_hidden_alias_may_pass_the_own_load(through):
    seen = observe(own_bytes, DATA, RAISED, OUT, limit=16, THROUGH=through, DRAIN=False)
    seen.always(hidden_alias("store", "load"))


@covers("REL-6")
@pytest.mark.parametrize("through", ["symm_at", "consume_token"])
def test_a_drain_between_own_store_and_own_load_orders_them(through):
    seen = observe(own_bytes, DATA, RAISED, OUT, limit=16, THROUGH=through, DRAIN=True)
    seen.clean()
    seen.outcomes({(7, 7)})


@covers("REL-6")
def test_own_accesses_through_one_pointer_are_in_program_order():
    seen = observe(own_bytes, DATA, RAISED, OUT, limit=16, THROUGH="nothing", DRAIN=False)
    seen.clean()
    seen.outcomes({(7, 7)})


@triton.jit
def own_bytes_one_pointer(data, sig, out, THROUGH: tl.constexpr):
    offs = tl.arange(0, 16)
    target = dl.symm_at(data, dl.rank())
    if THROUGH == "consume_token":
        target = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire"))
    tl.store(target + offs, 7)
    tl.store(out + offs, tl.load(target + offs))


@covers("REL-6")
@pytest.mark.parametrize("through", ["symm_at", "consume_token"])
def test_own_accesses_through_one_translated_pointer_hide_nothing(through):
    seen = observe(own_bytes_one_pointer, DATA, RAISED, OUT, THROUGH=through)
    seen.clean()
    seen.outcomes({(7, 7)})


@triton.jit
def through_cache(data, sig, index, out, HOW: tl.constexpr, DRAIN: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire"))
        if DRAIN:
            shmem_dev.fence()
        if HOW == "scalar":
            tl.store(out + offs, tl.load(ready + 3))  # <scalar>
        elif HOW == "gather":
            tl.store(out + offs, tl.load(ready + tl.load(index + offs)))  # <gather>
        else:
            tl.store(out + offs, tl.load(ready + offs))


@covers("REL-7")
@pytest.mark.parametrize("how", ["scalar", "gather"])
def test_a_load_through_the_data_cache_may_miss_what_a_wait_brought(how):
    seen = observe(through_cache, DATA, SIG, INDEX, OUT, HOW=how, DRAIN=False)
    seen.always(stale("store", how))


@covers("REL-7")
@pytest.mark.parametrize("how", ["scalar", "gather", "tile"])
def test_a_fence_between_wait_and_load_makes_the_data_cache_fresh(how):
    seen = observe(through_cache, DATA, SIG, INDEX, OUT, HOW=how, DRAIN=True)
    seen.clean()
    seen.outcomes({(-1, 7)})


@triton.jit
def fence_before_wait(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        produce(data, sig)
    else:
        shmem_dev.fence()
        ready = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire"))
        tl.store(out + offs, tl.load(ready + 3))  # <scalar>


@covers("REL-7")
def test_a_fence_before_the_wait_does_not_refresh_the_data_cache():
    observe(fence_before_wait, DATA, SIG, OUT).always(stale("store", "scalar"))


@covers("REL-7")
def test_a_tile_load_does_not_go_through_the_data_cache():
    observe(through_cache, DATA, SIG, INDEX, OUT, HOW="tile", DRAIN=False).clean()


@triton.jit
def cache_after_barrier(data, out):
    offs = tl.arange(0, 16)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, 7)  # <store>
    shmem_dev.barrier_all()
    tl.store(out + offs, tl.load(data + 3))  # <scalar>


@covers("REL-7")
def test_a_barrier_does_not_refresh_the_data_cache():
    seen = observe(cache_after_barrier, DATA, OUT)
    seen.always(stale("store", "scalar"))


@triton.jit
def fresh_inputs(data, count, out):
    offs = tl.arange(0, 16)
    tl.store(count, tl.load(data + 3) + 1)
    tl.store(out + offs, tl.load(count))


@covers("REL-8")
def test_inputs_of_a_launch_and_own_stores_are_fresh_in_the_data_cache():
    seen = observe(fresh_inputs, Buf("data", 64, fill=4), COUNT, OUT)
    seen.clean()
    seen.outcomes({(5, 5)})


@triton.jit
def soft_barrier(data, out, KIND: tl.constexpr, DRAIN: tl.constexpr):
    offs = tl.arange(0, 16)
    peer = (dl.rank() + 1) % dl.num_ranks()
    if KIND == "all and vec":
        shmem_dev.barrier_all()
    tl.store(dl.symm_at(data, peer) + offs, dl.rank() + 10)  # <store>
    if DRAIN:
        shmem_dev.fence()
    if KIND == "all":
        shmem_dev.barrier_all()
    else:
        shmem_dev.barrier_all_vec()
    tl.store(out + offs, tl.load(data + offs))  # <load>


@covers("REL-9")
def test_the_soft_barrier_of_a_pure_vector_kernel_drains_nothing():
    seen = observe(soft_barrier, DATA, OUT, KIND="vec", DRAIN=False)
    seen.always(undrained("store", "load"))
    seen.outcomes({(11, 10)})


@covers("REL-9", "BAR-1")
@pytest.mark.parametrize(("kind", "drain"), [("vec", True), ("all", False), ("all and vec", False)])
def test_a_barrier_with_a_drain_of_its_own_or_before_it_orders(kind, drain):
    seen = observe(soft_barrier, DATA, OUT, KIND=kind, DRAIN=drain)
    seen.clean()
    seen.outcomes({(11, 10)})


@triton.jit
def store_once(data):
    offs = tl.arange(0, 16)
    tl.store(dl.symm_at(data, dl.rank()) + offs, 7)


@triton.jit
def load_once(data, out):
    offs = tl.arange(0, 16)
    tl.store(out + offs, tl.load(data + 3) + tl.load(data + offs))


@covers("WHO-10", "REL-8")
def test_the_end_of_a_launch_completes_its_stores():
    def host(rt, t):
        store_once[(1,)](t.data)
        load_once[(1,)](t.data, t.out)

    seen = observe(None, DATA, OUT, host=host)
    seen.clean()
    seen.outcomes({(14, 14)})


@triton.jit
def volatile_does_not_release(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, 7)  # <store>
    else:
        tl.store(out + offs, tl.load(data + offs))  # <load>


@covers("FND-1", "REL-10")
def test_no_signal_at_all_is_an_error_and_not_a_hazard():
    seen = observe(volatile_does_not_release, DATA, SIG, OUT)
    seen.always(race("store", "load"))
    seen.outcomes({(-1, 7), (-1, 0)})
