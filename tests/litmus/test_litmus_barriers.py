"""barrier_all and barrier_all_vec: what they order, who must come (rules BAR-*, WHO-1 to WHO-4)."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl
from litmus_kit import DATA, MANY, OUT, SIG, STOPPED, Buf, Observed, covers, finding, observe, race
from producers import copy_tiles

import tdist.language as dl
from tdist.language.extra import libshmem_device as shmem_dev
from tdist.language.extra.cann.extension import sub_vec_id

COUNT = Buf("count", 16, symmetric=False)
SMALL = {"cube_cores": 2, "vector_cores": 4}


def assert_divergence(seen: Observed, barrier: str, *said: str) -> None:
    """Every run stopped with a divergence at `barrier`, and nothing else; the report says who is missing and why."""
    for run in seen.runs:
        assert {f.kind for f in run.found} == {"barrier-divergence"}, seen.text()
        assert all(barrier in f.lines for f in run.found), seen.text()
    seen.outcomes({STOPPED})
    assert all(words in seen.text() for words in said), seen.text()


@triton.jit
def shift_round(data, out, BEFORE: tl.constexpr, AFTER: tl.constexpr):
    offs = tl.arange(0, 16)
    me = dl.rank()
    peer = (me + 1) % dl.num_ranks()
    for i in range(2):
        tl.store(dl.symm_at(data, peer) + offs, me * 10 + i)  # <store>
        if BEFORE:
            shmem_dev.barrier_all()
        tl.store(out + i * 16 + offs, tl.load(data + offs))  # <load>
        if AFTER:
            shmem_dev.barrier_all()


@covers("BAR-1")
def test_a_barrier_orders_stores_before_loads_and_loads_before_stores():
    seen = observe(shift_round, DATA, OUT, nranks=3, BEFORE=True, AFTER=True)
    seen.clean()
    seen.outcomes({((20, 21), (0, 1), (10, 11))})


@covers("BAR-1", "FND-6")
@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_one_barrier_a_round_leaves_one_side_unordered(before, after):
    observe(shift_round, DATA, OUT, nranks=3, BEFORE=before, AFTER=after).always(race("store", "load"))


@triton.jit
def barrier_across_programs(data, out):
    offs = tl.arange(0, 16)
    pid = tl.program_id(0)
    n = tl.num_programs(0)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + pid * 16 + offs, dl.rank() * 10 + pid)
    shmem_dev.barrier_all()
    tl.store(out + pid * 16 + offs, tl.load(data + (pid + 1) % n * 16 + offs))


@covers("BAR-1", "BAR-2")
def test_a_barrier_joins_every_program_of_every_rank():
    seen = observe(barrier_across_programs, DATA, OUT, grid=3)
    seen.clean()
    seen.outcomes({((11, 12, 10), (1, 2, 0))})


@triton.jit
def exit_barrier(data, out, launch):
    offs = tl.arange(0, 16)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(data, peer) + offs, dl.rank() * 10 + launch)
    shmem_dev.barrier_all()
    tl.store(out + (launch - 1) * 16 + offs, tl.load(data + offs))
    shmem_dev.barrier_all()


@covers("BAR-2", "BAR-3", "WHO-13")
def test_barriers_match_across_launches_and_a_fast_rank_may_be_one_ahead():
    seen = observe(exit_barrier, DATA, OUT, launches=3, schedules=MANY)
    seen.clean()
    seen.outcomes({((11, 12, 13), (1, 2, 3))})


@triton.jit
def returns_early(data, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 1:
        return
    shmem_dev.barrier_all()  # <barrier>
    tl.store(out + offs, tl.load(data + offs))


@covers("BAR-4")
def test_an_early_return_leaves_the_barrier_one_short():
    seen = observe(returns_early, DATA, OUT, nranks=3)
    assert_divergence(seen, "barrier", "rank 1")


@triton.jit
def one_barrier_less(data, out):
    offs = tl.arange(0, 16)
    shmem_dev.barrier_all()
    if tl.program_id(0) == 0:
        shmem_dev.barrier_all()  # <second>
    tl.store(out + offs, tl.load(data + offs), mask=offs < 0)


@covers("BAR-4")
def test_a_program_that_ended_is_named():
    seen = observe(one_barrier_less, DATA, OUT, grid=2)
    assert_divergence(seen, "second", "program 1")


@triton.jit
def gated_barrier(data, out):
    offs = tl.arange(0, 16)
    if sub_vec_id() == 0:
        shmem_dev.barrier_all()  # <barrier>
    tl.store(out + offs, tl.load(data + offs))


@covers("BAR-4", "WHO-4")
def test_a_barrier_behind_a_sub_vec_gate_diverges():
    seen = observe(gated_barrier, DATA, OUT)
    assert_divergence(seen, "barrier", "sub_vec_id")


@triton.jit
def plain_barrier(data, out):
    offs = tl.arange(0, 16)
    shmem_dev.barrier_all()  # <barrier>
    tl.store(out + tl.program_id(0) * 16 + offs, tl.load(data + offs))


@covers("BAR-5")
def test_a_rank_that_never_launched_is_named():
    def host(rt, t):
        if rt.rank != 1:
            plain_barrier[(1,)](t.data, t.out)

    seen = observe(None, DATA, OUT, host=host, nranks=3)
    assert_divergence(seen, "barrier", "rank 1", "launched no kernel")


@covers("BAR-6")
def test_a_grid_larger_than_the_cores_cannot_meet_in_a_barrier():
    seen = observe(plain_barrier, DATA, OUT, grid=3, world=SMALL)
    seen.always(finding("grid-too-large", "barrier"))
    seen.outcomes({STOPPED})


@covers("BAR-6")
def test_a_grid_of_as_many_programs_as_cores_meets():
    seen = observe(plain_barrier, DATA, OUT, grid=2, world=SMALL)
    seen.clean()
    seen.outcomes({((0, 0), (0, 0))})


@triton.jit
def two_vector_agents(data, out):
    offs = tl.arange(0, 16)
    sub = sub_vec_id()
    tl.store(out + sub * 16 + offs, tl.load(data + offs) + sub)
    tl.store(out + 32 + offs, 5)


@covers("WHO-1", "WHO-2")
def test_what_depends_on_sub_vec_id_happens_on_both_vector_cores():
    seen = observe(two_vector_agents, DATA, OUT)
    seen.clean()
    seen.outcomes({((0, 1, 5), (0, 1, 5))})


@triton.jit
def ungated_effects(count, data, out):
    offs = tl.arange(0, 16)
    sub = sub_vec_id()
    tl.store(data + tl.program_id(0) * 16 + offs, 3)
    if sub == 1:
        tl.store(out + offs, 1)
    tl.atomic_add(count, 1)  # <atomic>


@covers("WHO-2", "FND-5")
def test_an_ungated_atomic_takes_effect_once_and_is_reported():
    seen = observe(ungated_effects, COUNT, DATA, OUT, nranks=1, read="count")
    seen.always(finding("hazard.double-effect", "atomic", severity="hazard"))
    assert "takes effect on both vector cores as compiled" in seen.text()
    seen.outcomes({((1, *[0] * 15),)})


@triton.jit
def signal_both_cores(sig, out, OP: tl.constexpr):
    offs = tl.arange(0, 16)
    sub = sub_vec_id()
    if dl.rank() == 0:
        if OP == "add":
            dl.notify(sig, 1, signal=1, sig_op="add")  # <add>
        elif OP == "set":
            dl.notify(sig, 1, signal=1, sig_op="set")
        else:
            if sub == 0:
                dl.notify(sig, 1, signal=1, sig_op="add")
    tl.store(out + sub * 16 + offs, sub)


@covers("FND-5", "WHO-2")
@pytest.mark.parametrize(("op", "doubled"), [("add", True), ("set", False), ("gated", False)])
def test_an_ungated_add_is_doubled_as_compiled_and_a_set_or_a_gated_add_is_not(op, doubled):
    seen = observe(signal_both_cores, SIG, OUT, read="sig", OP=op)
    seen.always(*([finding("hazard.double-effect", "add", severity="hazard")] if doubled else []))
    seen.outcomes({((0, 0, 0, 0), ((1, *[0] * 15), 0, 0, 0))})


@triton.jit
def vector_agents_race(data, out, ORDER: tl.constexpr):
    offs = tl.arange(0, 16)
    if sub_vec_id() == 0:
        tl.store(data + offs, 7)  # <store>
    if ORDER:
        shmem_dev.barrier_all()
    if sub_vec_id() == 1:
        tl.store(out + offs, tl.load(data + offs))  # <load>


@covers("WHO-3", "WHO-1")
def test_the_vector_agents_of_one_program_race_with_each_other():
    seen = observe(vector_agents_race, DATA, OUT, ORDER=False)
    seen.always(race("store", "load"))


@covers("WHO-4", "BAR-1")
def test_a_barrier_orders_the_vector_agents_of_one_program():
    seen = observe(vector_agents_race, DATA, OUT, ORDER=True)
    seen.clean()
    seen.outcomes({(7, 7)})


@triton.jit
def gated_push(data, sig, out):
    offs = tl.arange(0, 16)
    me = dl.rank()
    peer = (me + 1) % dl.num_ranks()
    if sub_vec_id() == 0:
        tl.store(dl.symm_at(data, peer) + offs, me + 10)
        shmem_dev.fence()
        dl.notify(sig, peer, signal=1, sig_op="set")
    ready = dl.consume_token(data, dl.wait(sig, 1, "gpu", "acquire"))
    tl.store(out + sub_vec_id() * 16 + offs, tl.load(ready + offs))


@covers("WHO-1", "WHO-2")
def test_the_second_vector_agent_makes_the_waits_that_its_loads_need():
    seen = observe(gated_push, DATA, SIG, OUT)
    seen.clean()
    seen.outcomes({((11, 11), (10, 10))})


@triton.jit
def barrier_and_copy(data, out):
    shmem_dev.barrier_all()  # <again>
    copy_tiles(data, out, 1)


@covers("BAR-2")
def test_a_rank_with_one_launch_more_diverges():
    def host(rt, t):
        for _ in range(2 if rt.rank == 0 else 1):
            barrier_and_copy[(1,)](t.data, t.out)

    seen = observe(None, DATA, OUT, host=host)
    assert_divergence(seen, "again", "rank 1")
