"""ag_gemm: right and clean for any shape, rank count, tiling, schedule, dtype, and launched again and again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_kit import assert_clean, gemm_expected, gemm_host, run

from tdist.errors import UsageError
from tdist.kernels.ag_gemm import Tiling, default_tiling

SYNC = ("fine", "barrier")
SMALL = Tiling(16, 16, 16, panels=1)


def check(nranks, m, n, k, dtype=torch.float16, **how):
    results, findings = run(nranks, gemm_host, m, n, k, dtype, **how)
    assert_clean(findings)
    for rank, outputs in enumerate(results):
        for launch, out in enumerate(outputs):
            assert torch.equal(out, gemm_expected(m, n, k, nranks, rank, dtype, launch)), (rank, launch)


@pytest.mark.parametrize("sync", SYNC)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(sync, dtype):
    check(3, 50, 40, 36, dtype, sync=sync, tiling=SMALL)


@pytest.mark.parametrize("sync", SYNC)
@pytest.mark.parametrize(
    ("nranks", "m", "n", "k", "tiling"),
    [
        (1, 40, 20, 24, SMALL),
        (1, 1, 1, 1, SMALL),
        (4, 2, 5, 7, SMALL),
        (5, 6, 17, 33, SMALL),
        (2, 9, 8, 7, Tiling(32, 64, 64)),
        (2, 70, 33, 16, Tiling(16, 16, 16, panels=3)),
        (3, 100, 20, 16, Tiling(16, 32, 16, panels=1, buffers=3)),
        (8, 33, 16, 16, SMALL),
    ],
    ids=["one", "ones", "without-rows", "uneven", "tile-over-shape", "panels", "three-buffers", "eight"],
)
def test_shapes(sync, nranks, m, n, k, tiling):
    check(nranks, m, n, k, sync=sync, tiling=tiling)


@pytest.mark.parametrize("sync", SYNC)
@pytest.mark.parametrize("scheduler", ["run-to-block", "random", "max-sync"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_schedules(sync, scheduler, seed):
    check(3, 100, 20, 20, sync=sync, tiling=SMALL, world={"scheduler": scheduler, "seed": seed})


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    nranks=st.integers(1, 4),
    m=st.integers(1, 90),
    n=st.integers(1, 40),
    k=st.integers(1, 40),
    panels=st.integers(1, 3),
    buffers=st.integers(2, 4),
    programs=st.integers(1, 6),
    sync=st.sampled_from(SYNC),
    seed=st.integers(0, 99),
)
def test_any_shape(nranks, m, n, k, panels, buffers, programs, sync, seed):
    tiling = Tiling(16, 16, 16, panels, buffers)
    check(nranks, m, n, k, sync=sync, tiling=tiling, programs=programs, world={"seed": seed})


@pytest.mark.parametrize("signal_dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("own_panels", [True, False], ids=["own-panels", "shared-panels"])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_choice_of_signals_and_pushers(signal_dtype, own_panels, seed):
    tiling = Tiling(16, 16, 16, panels=3)
    how = {"signal_dtype": signal_dtype, "own_panels": own_panels, "tiling": tiling, "programs": 2}
    check(3, 130, 20, 20, **how, world={"seed": seed})


def test_signals_of_another_type_are_refused():
    with pytest.raises(UsageError, match=r"signals with torch\.int64 or torch\.int32 words, got torch\.uint8"):
        run(1, gemm_host, 4, 4, 4, torch.float16, signal_dtype=torch.uint8)


def test_without_the_fence_it_is_right_and_hazardous_on_ascend_only():
    results, findings = run(3, gemm_host, 60, 20, 20, torch.float16, fence=False, tiling=SMALL)
    for rank, outputs in enumerate(results):
        for launch, out in enumerate(outputs):
            assert torch.equal(out, gemm_expected(60, 20, 20, 3, rank, torch.float16, launch))
    hazards = {finding.kind for finding in findings if finding.fails("ascend")}
    # The panel or tile that a program pushes to its own rank and then loads is an alias that only a drain orders.
    assert "tdist.hazard.undrained-release" in hazards
    assert hazards <= {"tdist.hazard.undrained-release", "tdist.hazard.hidden-alias"}
    assert not [finding for finding in findings if finding.fails("seed")]


def test_the_default_tiling_gives_rounds_and_columns_where_there_is_room():
    tiling = default_tiling(1024, 1024, 1024, 4)
    assert (tiling.block_m, tiling.block_n, tiling.block_k) == (64, 256, 256)
    assert default_tiling(1, 1, 1, 4) == Tiling(16, 16, 16)


@pytest.mark.parametrize(
    ("fields", "text"), [({"buffers": 1}, "buffers >= 2, got 1"), ({"block_k": 0}, "block_k >= 1, got 0")]
)
def test_an_impossible_tiling_is_refused(fields, text):
    with pytest.raises(UsageError, match=text):
        Tiling(**{"block_m": 16, "block_n": 16, "block_k": 16, **fields})


def test_offsets_beyond_32_bits_are_refused():
    def host(rt):
        from tdist.kernels import ag_gemm

        ag_gemm.create_context(rt, 2**16, 2**16, 16, torch.float16)

    from tdist.platforms.sim.world import World

    with World(nranks=1) as world, pytest.raises(UsageError, match=r"C has 4294967296 elements"):
        world.run(host)
