"""all_gather: right and clean for any shape, rank count, tile, schedule, dtype, and launched again and again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_kit import LAUNCHES, assert_clean, gather_expected, gather_host, run

from tdist.errors import UsageError

SYNC = ("fine", "barrier")


def check(nranks, m, n, dtype=torch.float16, **how):
    results, findings = run(nranks, gather_host, m, n, dtype, **how)
    assert_clean(findings)
    for outputs in results:
        for launch, out in enumerate(outputs):
            assert torch.equal(out, gather_expected(m, n, nranks, dtype, launch))


@pytest.mark.parametrize("sync", SYNC)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32])
def test_dtypes(sync, dtype):
    check(4, 12, 40, dtype, sync=sync, block_elems=32)


@pytest.mark.parametrize("sync", SYNC)
@pytest.mark.parametrize(
    ("nranks", "m", "n", "block"),
    [(1, 5, 7, 16), (2, 1, 3, 64), (5, 3, 10, 16), (3, 7, 33, 16), (8, 8, 16, 16), (4, 9, 1, 16)],
    ids=["one-rank", "rank-without-rows", "two-ranks-without-rows", "uneven", "eight", "tile-over-shard"],
)
def test_shapes(sync, nranks, m, n, block):
    check(nranks, m, n, sync=sync, block_elems=block)


@pytest.mark.parametrize("sync", SYNC)
@pytest.mark.parametrize("scheduler", ["run-to-block", "random", "max-sync"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_schedules(sync, scheduler, seed):
    check(3, 7, 30, sync=sync, block_elems=16, world={"scheduler": scheduler, "seed": seed})


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    nranks=st.integers(1, 5),
    m=st.integers(1, 17),
    n=st.integers(1, 40),
    block=st.sampled_from([16, 32, 64]),
    programs=st.integers(1, 7),
    sync=st.sampled_from(SYNC),
    seed=st.integers(0, 99),
)
def test_any_shape(nranks, m, n, block, programs, sync, seed):
    check(nranks, m, n, sync=sync, block_elems=block, programs=programs, world={"seed": seed})


def test_without_the_fence_it_is_right_and_hazardous_on_ascend_only():
    results, findings = run(3, gather_host, 9, 20, torch.float16, fence=False, block_elems=16)
    assert all(
        torch.equal(out, gather_expected(9, 20, 3, torch.float16, i)) for outs in results for i, out in enumerate(outs)
    )
    hazards = {finding.kind for finding in findings if finding.fails("ascend")}
    # The panel or tile that a program pushes to its own rank and then loads is an alias that only a drain orders.
    assert "tdist.hazard.undrained-release" in hazards
    assert hazards <= {"tdist.hazard.undrained-release", "tdist.hazard.hidden-alias"}
    assert not [finding for finding in findings if finding.fails("seed")]


def test_a_wrong_shard_is_refused():
    def host(rt):
        from tdist.kernels import all_gather
        from tdist.verify import ensure_shmem

        ensure_shmem(rt)
        context = all_gather.create_context(rt, 4, 4, torch.float16)
        all_gather.all_gather(context, torch.zeros(3, 4, dtype=torch.float16))

    from tdist.platforms.sim.world import World

    with World(nranks=2) as world, pytest.raises(UsageError, match=r"takes a shard of shape \(2, 4\).*got \(3, 4\)"):
        world.run(host)


def test_launches_are_more_than_the_halves_of_the_workspace():
    assert LAUNCHES > 2
