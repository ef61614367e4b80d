"""Loops that poll, count or never end: what is a deadlock, what is progress, and that nothing hangs."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from litmus_kit import OUT, SIG, Buf, covers, finding, observe

import tdist.language as dl
from tdist.language.extra import libshmem_device as shmem_dev
from tdist.platforms.sim import agents, engine

QUICK = (("run-to-block", 0), ("max-sync", 0), ("random", 1))
COUNT = Buf("count", 16)


@pytest.fixture
def few_rounds(monkeypatch):
    """The limits, lowered: what matters is which loops they apply to."""
    monkeypatch.setattr(engine, "_IDLE_POLLS", 500)
    monkeypatch.setattr(agents, "ROUNDS", range(3000))


@triton.jit
def gives_up(sig, out, LIMIT: tl.constexpr):
    i = 0
    while (tl.atomic_add(sig, 0) == 0) & (i < LIMIT):
        i += 1
    tl.store(out + tl.arange(0, 16), i)


@triton.jit
def gives_up_counting_down(sig, out, LIMIT: tl.constexpr):
    left = LIMIT
    while (left > 0) & (tl.atomic_add(sig, 0) == 0):
        left -= 2
    tl.store(out + tl.arange(0, 16), left)


@triton.jit
def gives_up_on_the_right(sig, out, LIMIT: tl.constexpr):
    i = 0
    while (tl.num_programs(0) * LIMIT >= i) & (tl.atomic_add(sig, 0) == 0):
        i += 1
    tl.store(out + tl.arange(0, 16), i)


@triton.jit
def polls_so_often(sig, out, LIMIT: tl.constexpr):
    seen = 0
    for _ in range(LIMIT):
        seen += tl.atomic_add(sig, 0)
    tl.store(out + tl.arange(0, 16), seen)


@pytest.mark.parametrize(
    ("kernel", "result"),
    [(gives_up, 4000), (gives_up_counting_down, 0), (gives_up_on_the_right, 4001), (polls_so_often, 0)],
)
@covers("DLK-3")
def test_a_poll_that_counts_towards_a_bound_is_progress(few_rounds, kernel, result):
    seen = observe(kernel, SIG, OUT, schedules=QUICK, nranks=1, LIMIT=4000)
    seen.clean()
    seen.outcomes({(result,)})


@triton.jit
def counts_for_ever(sig, out):
    i = 0
    while tl.atomic_add(sig, 0) == 0:  # <poll>
        i += 1
    tl.store(out, i)


@triton.jit
def counts_away_from_the_limit(sig, out):
    i = 0
    while (tl.atomic_add(sig, 0) == 0) & (i < 10):  # <poll>
        i -= 1
    tl.store(out, i)


@triton.jit
def limit_moves(sig, out):
    i = 0
    limit = 10
    while (tl.atomic_add(sig, 0) == 0) & (i < limit):  # <poll>
        i += 1
        limit += 1
    tl.store(out, i)


@triton.jit
def either_will_do(sig, out):
    i = 0
    while (tl.atomic_add(sig, 0) == 0) | (i < 10):  # <poll>
        i += 1
    tl.store(out, i)


@pytest.mark.parametrize("kernel", [counts_for_ever, counts_away_from_the_limit, limit_moves, either_will_do])
@covers("DLK-3")
def test_a_counter_without_a_bound_does_not_save_a_poll(few_rounds, kernel):
    seen = observe(kernel, SIG, OUT, schedules=QUICK, nranks=1)
    seen.always(finding("deadlock", "poll"))


@triton.jit
def late_signal(sig, out):
    i = 0
    if tl.program_id(0) == tl.num_programs(0) - 1:
        for _ in range(20):
            shmem_dev.fence()
        dl.notify(sig, dl.rank(), signal=1, sig_op="add")
    else:
        while tl.atomic_add(sig, 0, sem="relaxed") == 0:
            i += 1
    tl.store(out + tl.arange(0, 16), 1, mask=tl.arange(0, 16) < i * 0)


@covers("DLK-3")
def test_whoever_has_not_had_a_turn_may_still_end_the_polls(monkeypatch):
    """Many pollers use up any limit on polls before the last program has run at all."""
    monkeypatch.setattr(engine, "_IDLE_POLLS", 500)
    seen = observe(late_signal, SIG, OUT, schedules=QUICK, nranks=2, grid=9)
    assert {found.kind for run in seen.runs for found in run.found} <= {"hazard.atomic-turn"}
    seen.outcomes({(-1, -1)})


@triton.jit
def counter_in_memory(count, sig, out):
    while tl.load(count) < 300:
        tl.store(count, tl.load(count) + 1)
        tl.atomic_add(sig, 0)
    tl.store(out + tl.arange(0, 16), tl.load(count))


@covers("DLK-2", "DLK-3")
def test_a_counter_in_plain_memory_is_a_change():
    seen = observe(counter_in_memory, COUNT, SIG, OUT, schedules=QUICK, nranks=1)
    seen.clean()
    seen.outcomes({(300,)})


@triton.jit
def spins(sig, out):
    i = tl.program_id(0)
    while i >= 0:  # <loop>
        i = i ^ 1
    tl.store(out, i)


@triton.jit
def spins_over_fences(sig, out):
    i = tl.program_id(0)
    while i >= 0:  # <loop>
        shmem_dev.fence()
        i = i ^ 1
    tl.store(out, i)


@triton.jit
def signals_for_ever(sig, out):
    i = tl.program_id(0)
    while i >= 0:  # <loop>
        dl.notify(sig, dl.rank(), signal=1, sig_op="add")
    tl.store(out, i)


@pytest.mark.parametrize("kernel", [spins, spins_over_fences, signals_for_ever])
@covers("DLK-6")
def test_a_loop_without_an_end_is_reported_and_does_not_hang(few_rounds, kernel):
    seen = observe(kernel, SIG, OUT, schedules=QUICK)
    seen.always(finding("endless-loop", "loop"))
    seen.outcomes({"stopped"})


@triton.jit
def doubles(sig, out):
    i = 1
    while i < 1 << 20:
        i = i * 2
    tl.store(out + tl.arange(0, 16), i)


def test_a_loop_that_ends_is_none_of_these(few_rounds):
    seen = observe(doubles, SIG, OUT, schedules=QUICK)
    seen.clean()
    seen.outcomes({(1 << 20, 1 << 20)})


@triton.jit
def add_bf16(words, out):
    old = tl.atomic_add(words, 300.0)
    tl.atomic_max(words + 1, 7.0)
    tl.store(out + tl.arange(0, 16), old)


def test_scalar_atomics_compute_in_the_words_own_type():
    """bf16 has the width of fp16 and other values."""
    words = Buf("words", 64, torch.bfloat16, fill=1000)
    out = Buf("out", 16, torch.float32, symmetric=False)
    observe(add_bf16, words, out, nranks=1, schedules=QUICK).outcomes({(1000.0,)})
    whole = observe(add_bf16, words, out, nranks=1, read="words", schedules=QUICK)
    whole.outcomes({(((1296.0, *[1000.0] * 15), 1000.0, 1000.0, 1000.0),)})
