"""Clocks carried by values and scheduling points in generated code."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from codegen_harness import launch

import tdist.language as dl


@triton.jit
def consume(sig, x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + o))
    p = x
    for i in range(n):
        tok = dl.wait(sig + i * 16, 1, "gpu", "acquire", waitValue=1)
        p = dl.consume_token(p, tok)
        tl.store(y + o, tl.load(p + o))
    tl.store(y + o, tl.load(p + o) + tl.load(x + o))


def test_a_load_carries_the_clock_of_the_token_that_its_pointer_consumed():
    sig, x, y = torch.zeros(64, dtype=torch.int32), torch.ones(8), torch.zeros(8)
    done = launch(consume, (1,), sig, x, y, 2, B=8)
    clocks = [None if r[5] is None else r[5].version for r in done.agent.reads]
    assert clocks[:3] == [None, 1, 2] and sorted(clocks[3:], key=str) == [2, None]


def test_without_detection_no_access_is_reported():
    sig, x, y = torch.zeros(64, dtype=torch.int32), torch.ones(8), torch.zeros(8)
    done = launch(consume, (1,), sig, x, y, 2, detect=False, B=8)
    assert not done.agent.reads and not done.agent.writes and torch.equal(y, torch.full((8,), 2.0))


@triton.jit
def push(x, y, sig, B: tl.constexpr):
    o = tl.arange(0, B)
    remote = dl.symm_at(y, 0)
    tl.store(y + o, tl.load(x + o))
    tl.store(remote + o, tl.load(x + o))
    dl.notify(sig, 0, signal=1, sig_op="set", comm_scope="intra_node")


def test_scheduling_points_stand_before_remote_stores_and_notifies_only():
    x, y, sig = torch.ones(8), torch.zeros(8), torch.zeros(16, dtype=torch.int32)
    done = launch(push, (1,), x, y, sig, B=8)
    assert done.yields == 2
    assert [bool(site.hidden) for *_, site in done.agent.writes] == [False, True]
    assert done.agent.events[-1] == ("notify", 1, 0, 1, 4)
