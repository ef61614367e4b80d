"""Hosts, streams and launches: what starts after what (rules WHO-5 to WHO-13)."""

from __future__ import annotations

import triton
import triton.language as tl
from litmus_kit import DATA, OUT, SIG, STOPPED, Buf, contents, covers, finding, observe, race, settle
from producers import produce

import tdist.language as dl
from tdist.language.extra import libshmem_device as shmem_dev

RAW = Buf("data", 64, fill=None)


@triton.jit
def waiter(data, sig, out):
    offs = tl.arange(0, 16)
    ready = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire"))
    tl.store(out + offs, tl.load(ready + offs))


@triton.jit
def producer(data, sig):
    produce(data, sig)


@covers("WHO-5", "WHO-8")
def test_a_launch_does_not_block_its_host():
    def host(rt, t):
        if rt.rank == 1:
            waiter[(1,)](t.data, t.sig, t.out)
        rt.host_barrier()
        if rt.rank == 0:
            producer[(1,)](t.data, t.sig)

    seen = observe(None, DATA, SIG, OUT, host=host)
    seen.clean()
    seen.outcomes({(-1, 7)})


@triton.jit
def fill(data, value):
    offs = tl.arange(0, 16)
    tl.store(data + offs, value)


@triton.jit
def plus_one(data, out):
    offs = tl.arange(0, 16)
    tl.store(out + offs, tl.load(data + offs) + 1)


@covers("WHO-6", "WHO-10")
def test_host_writes_take_place_in_stream_order():
    def host(rt, t):
        fill[(1,)](t.data, 5)
        plus_one[(1,)](t.data, t.out)
        t.data.zero_()
        plus_one[(1,)](t.data, t.out[16:])
        t.data.fill_(8)
        plus_one[(1,)](t.data, t.out[32:])

    seen = observe(None, DATA, OUT, host=host)
    seen.clean()
    seen.outcomes({((6, 1, 9), (6, 1, 9))})


@covers("WHO-5", "WHO-6")
def test_a_copy_between_device_tensors_does_not_block_its_host():
    def host(rt, t):
        if rt.rank == 1:
            waiter[(1,)](t.data, t.sig, t.out)
            t.data[16:32].copy_(t.out[:16])
        rt.host_barrier()
        if rt.rank == 0:
            producer[(1,)](t.data, t.sig)
        return contents(t.data)[1] if rt.rank == 1 else None

    seen = observe(None, DATA, SIG, OUT, host=host)
    seen.clean()
    seen.outcomes({(-1, 7)})


@covers("WHO-6", "WHO-8", "WHO-12")
def test_a_queued_copy_reads_at_its_place_in_the_stream():
    def host(rt, t, settled):
        if rt.rank == 0:
            push[(1,)](t.data, 7)
        if settled:
            settle(rt)
        else:
            rt.host_barrier()
        if rt.rank == 1:
            plus_one[(1,)](t.data[16:], t.out)
            t.out[16:32].copy_(t.data[:16])  # <copy>

    ordered = observe(None, DATA, OUT, host=lambda rt, t: host(rt, t, True))
    ordered.clean()
    ordered.outcomes({(-1, (1, 7))})
    observe(None, DATA, OUT, host=lambda rt, t: host(rt, t, False)).always(race("store", "copy"))


@covers("WHO-6", "WHO-8", "WHO-12")
def test_a_queued_copy_writes_at_its_place_in_the_stream():
    def host(rt, t, settled):
        if rt.rank == 0:
            pull[(1,)](t.data, t.out)
        if settled:
            settle(rt)
        else:
            rt.host_barrier()
        if rt.rank == 1:
            t.data[:16].copy_(t.data[16:32])  # <overwrite>

    ordered = observe(None, DATA, OUT, host=lambda rt, t: host(rt, t, True))
    ordered.clean()
    observe(None, DATA, OUT, host=lambda rt, t: host(rt, t, False)).always(race("load", "overwrite"))


@covers("WHO-7")
def test_a_read_waits_for_the_own_stream():
    def host(rt, t):
        fill[(1,)](t.data, 5)
        return contents(t.data)[0]

    seen = observe(None, DATA, OUT, host=host)
    seen.clean()
    seen.outcomes({(5, 5)})


@triton.jit
def push(data, value):
    offs = tl.arange(0, 16)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, value)  # <store>


@covers("WHO-12", "WHO-8")
def test_zero_synchronize_barrier_launch_is_ordered():
    def host(rt, t):
        t.data.zero_()
        rt.synchronize()
        rt.host_barrier()
        push[(1,)](t.data, 7)

    seen = observe(None, RAW, OUT, host=host, read="data")
    seen.clean()
    seen.outcomes({((7, 0, 0, 0), (7, 0, 0, 0))})


@covers("WHO-12", "SIG-3")
def test_zero_barrier_launch_is_not_ordered():
    def host(rt, t):
        t.data.zero_()  # <zero>
        rt.host_barrier()
        push[(1,)](t.data, 7)

    observe(None, RAW, OUT, host=host, read="data").always(race("zero", "store"))


@covers("WHO-12", "SIG-3")
def test_a_signal_reset_without_synchronise_races_with_the_signal():
    def host(rt, t):
        t.sig.zero_()  # <zero>
        rt.host_barrier()
        if rt.rank == 0:
            producer[(1,)](t.data, t.sig)

    observe(None, DATA, SIG, OUT, host=host).always(race("zero", "notify"))


@covers("WHO-11")
def test_a_synchronise_does_not_wait_for_a_peer_that_stores_into_my_heap():
    def host(rt, t):
        if rt.rank == 0:
            push[(1,)](t.data, 7)
            return None
        rt.synchronize()
        return contents(t.data)[0]

    seen = observe(None, DATA, OUT, host=host)
    seen.always(race("store", "read"))


@covers("WHO-11", "WHO-12", "WHO-7")
def test_a_barrier_after_the_peers_synchronise_orders_the_read():
    def host(rt, t):
        push[(1,)](t.data, 7)
        settle(rt)
        return contents(t.data)[0]

    seen = observe(None, DATA, OUT, host=host)
    seen.clean()
    seen.outcomes({(7, 7)})


@triton.jit
def first_and_last(data, out):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    if pid == 0:
        tl.store(data + offs, 7)  # <store>
    if pid == tl.num_programs(0) - 1:
        tl.store(out + offs, tl.load(data + offs))  # <load>


@covers("WHO-9")
def test_a_program_that_starts_late_is_not_ordered_after_those_that_ended():
    seen = observe(first_and_last, DATA, OUT, grid=9, world={"cube_cores": 1, "vector_cores": 2})
    seen.always(race("store", "load"))


@covers("WHO-10")
def test_the_next_launch_comes_after_every_program_of_this_one():
    def host(rt, t):
        first_and_last[(1,)](t.data, t.out)
        plus_one[(1,)](t.data, t.out)

    seen = observe(None, DATA, OUT, host=host)
    seen.clean()
    seen.outcomes({(8, 8)})


@triton.jit
def relaunched(data, sig, out, launch, EXIT: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, launch + 10)  # <store>
        shmem_dev.fence()
        dl.notify(sig, 1, signal=launch, sig_op="set")  # <notify>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=launch)  # <wait>
        got = tl.load(dl.consume_token(data, token) + offs)  # <load>
        tl.store(out + (launch - 1) * 16 + offs, got)
    if EXIT:
        shmem_dev.barrier_all()


@covers("WHO-13", "FND-6", "SIG-10")
def test_nothing_orders_one_ranks_second_launch_after_anothers_first():
    seen = observe(relaunched, DATA, SIG, OUT, launches=2, EXIT=False)
    right = {race("store", "load"), finding("overshoot", "notify", "wait")}
    seen.one_of(right, {finding("deadlock", "wait")})
    assert any(run.found == right and run.outcome == (-1, (11, 12)) for run in seen.runs)


@covers("WHO-13", "FND-6")
def test_an_exit_barrier_orders_the_launches_of_two_ranks():
    seen = observe(relaunched, DATA, SIG, OUT, launches=3, EXIT=True)
    seen.clean()
    seen.outcomes({(-1, (11, 12, 13))})


@triton.jit
def set_once(data, sig, out, launch):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        if launch == 1:
            produce(data, sig)
    else:
        ready = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire"))
        tl.store(out + (launch - 1) * 16 + offs, tl.load(ready + offs))


@covers("FND-4")
def test_a_flag_set_once_and_read_by_later_launches_is_legal():
    seen = observe(set_once, DATA, SIG, OUT, launches=3)
    seen.clean()
    seen.outcomes({(-1, (7, 7, 7))})


@triton.jit
def credits(data, sig, out, launch):
    offs = tl.arange(0, 16)
    slot = (launch % 2) * 16
    if dl.rank() == 0:
        free = data
        if launch > 2:
            free = dl.consume_token(data, dl.wait(sig + 32 + slot, 1, "gpu", "acquire", waitValue=launch - 2))
        tl.store(dl.symm_at(free, 1) + slot + offs, launch + 10)
        shmem_dev.fence()
        dl.notify(sig + slot, 1, signal=launch, sig_op="set")
    else:
        ready = dl.consume_token(data, dl.wait(sig + slot, 1, "gpu", "acquire", waitValue=launch))
        tl.store(out + (launch - 1) * 16 + offs, tl.load(ready + slot + offs))
        shmem_dev.fence()
        dl.notify(sig + 32 + slot, 0, signal=launch, sig_op="set")


@covers("FND-4", "FND-6", "SIG-11")
def test_two_buffers_with_credits_are_ordered():
    seen = observe(credits, DATA, SIG, OUT, launches=4)
    seen.clean()
    seen.outcomes({(-1, (11, 12, 13, 14))})


@triton.jit
def equality_flag_barrier(sig, data, out, n):
    offs = tl.arange(0, 16)
    me = dl.rank()
    peer = 1 - me
    for i in range(1, n + 1):
        tl.store(dl.symm_at(data, peer) + i * 16 + offs, i)
        shmem_dev.fence()
        dl.notify(sig, peer, signal=i, sig_op="set")  # <notify>
        ready = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire", waitValue=i))  # <wait>
        tl.store(out + i * 16 + offs, tl.load(ready + i * 16 + offs))


@covers("FND-6", "SIG-10", "SIG-9")
def test_a_flag_barrier_that_waits_for_equality_can_be_overshot():
    seen = observe(equality_flag_barrier, SIG, DATA, OUT, n=2)
    seen.one_of({finding("overshoot", "notify", "wait")}, {finding("deadlock", "wait")})
    assert STOPPED not in {run.outcome for run in seen.runs if run.found == {finding("overshoot", "notify", "wait")}}


@triton.jit
def pull(data, out):
    offs = tl.arange(0, 16)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(out + offs, tl.load(dl.symm_at(data, peer) + offs))  # <load>


@covers("WHO-6", "WHO-12")
def test_a_host_write_races_with_a_peer_that_still_reads():
    def host(rt, t):
        if rt.rank == 0:
            pull[(1,)](t.data, t.out)
        rt.host_barrier()
        if rt.rank == 1:
            t.data.fill_(9)  # <fill>

    observe(None, DATA, OUT, host=host).always(race("load", "fill"))


@covers("WHO-8", "WHO-11", "WHO-12")
def test_a_launch_comes_after_what_its_host_learnt_of_a_peer():
    def host(rt, t):
        if rt.rank == 0:
            push[(1,)](t.data, 7)
        settle(rt)
        if rt.rank == 1:
            plus_one[(1,)](t.data, t.out)

    seen = observe(None, DATA, OUT, host=host)
    seen.clean()
    seen.outcomes({(-1, 8)})
