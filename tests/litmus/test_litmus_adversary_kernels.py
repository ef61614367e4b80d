"""Small kernels under adversarial memory: faults become wrong numbers or hangs, their cures compute as always."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl
from litmus_kit import DATA, OUT, SCHEDULES, SIG, STOPPED, Buf, observe

import tdist.language as dl
from tdist.language.extra import libshmem_device as shmem_dev

SEEDS = (("run-to-block", 0), ("max-sync", 0), ("latest", 0), *(("random", seed) for seed in range(20)))
LINE = Buf("line", 64)


def outcomes(kernel, *bufs, memory="adversarial", profile="seed", schedules=SEEDS, **more) -> set:
    """How the runs ended, over all schedules."""
    world = {"memory": memory, "profile": profile, **more.pop("world", {})}
    seen = observe(kernel, *bufs, world=world, schedules=schedules, **more)
    return {run.outcome for run in seen.runs}


@triton.jit
def message(data, sig, out, FENCE: tl.constexpr, TOKEN: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, 7)
        if FENCE:
            shmem_dev.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        other = tl.load(dl.consume_token(out + 16, token) + offs)
        if TOKEN:
            data = dl.consume_token(data, token)
        tl.store(out + offs, tl.load(data + offs))
        tl.store(out + 32 + offs, other)


def read(seen: set) -> set:
    """What the consumer read."""
    return {outcome[1][0] if isinstance(outcome[1], tuple) else outcome[1] for outcome in seen}


@pytest.mark.parametrize(
    ("fence", "token", "profile", "expected"),
    [
        (True, True, "seed", {7}),
        (True, True, "ascend", {7}),
        (False, True, "seed", {7}),
        (False, True, "ascend", {0, 7}),  # the store is in flight when the signal arrives
        (True, False, "seed", {0, 7}),  # the load need not wait for the wait
        (True, False, "ascend", {0, 7}),
    ],
)
def test_a_message_without_its_order_arrives_late(fence, token, profile, expected):
    assert read(outcomes(message, DATA, SIG, OUT, profile=profile, FENCE=fence, TOKEN=token)) == expected
    after_the_wait = (("run-to-block", 0), ("latest", 0))
    assert read(outcomes(message, DATA, SIG, OUT, memory="plain", profile=profile, FENCE=fence, TOKEN=token)) == {7}
    late = outcomes(message, DATA, SIG, OUT, profile=profile, FENCE=fence, TOKEN=token, schedules=after_the_wait)
    assert read(late) == {min(expected)}, "schedulers without a seed play everything that can be played"


@triton.jit
def scalar_message(data, sig, out, FENCE: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1), 7)
        shmem_dev.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        if FENCE:
            shmem_dev.fence()
        tl.store(out + offs, tl.load(dl.consume_token(data, token)))


@pytest.mark.parametrize(
    ("fence", "profile", "expected"), [(False, "seed", {7}), (False, "ascend", {0, 7}), (True, "ascend", {7})]
)
def test_a_cached_load_may_be_stale(fence, profile, expected):
    assert read(outcomes(scalar_message, DATA, SIG, OUT, profile=profile, FENCE=fence)) == expected


@triton.jit
def own_store(data, out, HIDDEN: tl.constexpr):
    offs = tl.arange(0, 16)
    here = data
    if HIDDEN:
        here = dl.symm_at(data, dl.rank())
    tl.store(here + offs, 7)
    tl.store(out + offs, tl.load(data + offs))


@pytest.mark.parametrize(
    ("hidden", "profile", "expected"), [(True, "seed", {7}), (False, "ascend", {7}), (True, "ascend", {0, 7})]
)
def test_an_own_store_behind_another_pointer_may_be_missed(hidden, profile, expected):
    assert read(outcomes(own_store, DATA, OUT, profile=profile, HIDDEN=hidden)) == expected


@triton.jit
def two_writers(data, sig, out, ORDERED: tl.constexpr):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me < 2:
        target = dl.symm_at(data, 2) + offs
        if ORDERED and me == 1:
            target = dl.consume_token(target, dl.wait(sig, 1, "gpu", "acquire"))
        tl.store(target, 7 + me)
        if ORDERED and me == 0:
            dl.notify(sig, 1, signal=1, sig_op="add")
        dl.notify(sig + 16, 2, signal=1, sig_op="add")
    else:
        token = dl.wait(sig + 16, 1, "gpu", "acquire", waitValue=2)
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


def test_unordered_stores_end_in_the_odd_order():
    in_turn = (("run-to-block", 0),)
    runs = [
        outcomes(two_writers, DATA, SIG, OUT, nranks=3, memory=memory, schedules=in_turn, ORDERED=ordered)
        for ordered in (False, True)
        for memory in ("plain", "adversarial")
    ]
    assert runs == [{(-1, -1, 8)}, {(-1, -1, 7)}, {(-1, -1, 8)}, {(-1, -1, 8)}]
    assert outcomes(two_writers, DATA, SIG, OUT, nranks=3, profile="ascend", ORDERED=True) == {(-1, -1, 8)}


@triton.jit
def two_signals(sig, out, STEP: tl.constexpr):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me < 2:
        dl.notify(sig + STEP * me, 2, signal=1, sig_op="set")
    else:
        first = dl.wait(sig, 1, "gpu", "acquire")
        second = dl.wait(sig + STEP, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(dl.consume_token(out + 16, first), second) + offs) + 6)


def test_a_signal_is_lost_with_its_line_and_its_waiter_hangs():
    plain = observe(two_signals, SIG, OUT, nranks=3, STEP=1, schedules=SEEDS)
    assert STOPPED not in {run.outcome for run in plain.runs}
    assert STOPPED in outcomes(two_signals, SIG, OUT, nranks=3, STEP=1)
    assert STOPPED not in outcomes(two_signals, SIG, OUT, nranks=3, STEP=16)


@triton.jit
def store_beside_signal(line, out, OFFSET: tl.constexpr):
    offs = tl.arange(0, 16)
    me = dl.rank()
    if me == 0:
        dl.notify(line, 2, signal=1, sig_op="set")
    elif me == 1:
        tl.store(dl.symm_at(line, 2) + OFFSET, 9)
        dl.notify(line + 32, 2, signal=1, sig_op="add")
    else:
        first = dl.wait(line, 1, "gpu", "acquire")
        here = dl.consume_token(dl.consume_token(line, first), dl.wait(line + 32, 1, "gpu", "acquire"))
        tl.store(out + offs, tl.load(here + OFFSET))


@pytest.mark.parametrize(("offset", "expected"), [(4, {0, 9}), (16, {9})])
def test_data_beside_a_signal_is_lost(offset, expected):
    lost = outcomes(store_beside_signal, LINE, OUT, nranks=3, OFFSET=offset)
    assert {outcome[2] for outcome in lost} == expected
    plain = outcomes(store_beside_signal, LINE, OUT, nranks=3, memory="plain", OFFSET=offset)
    assert {outcome[2] for outcome in plain} == {9}


def test_nothing_is_played_where_findings_are_for_another_profile_only():
    plain = observe(message, DATA, SIG, OUT, FENCE=False, TOKEN=True, schedules=SCHEDULES)
    played = observe(
        message, DATA, SIG, OUT, FENCE=False, TOKEN=True, schedules=SCHEDULES, world={"memory": "adversarial"}
    )
    assert [(run.outcome, run.found) for run in plain.runs] == [(run.outcome, run.found) for run in played.runs]
