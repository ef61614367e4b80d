"""Inputs: exact where they say so, different wherever data could be mistaken for other data."""

from __future__ import annotations

import itertools

import pytest
import torch

from tdist.verify.inputs import EXACT_LIMIT, factor, payload
from tdist.verify.operator import Case


def case(dtype="fp16", fill="exact", seed=0):
    return Case("op", {"m": 1}, dtype, 4, seed=seed, fill=fill)


@pytest.mark.parametrize("dtype", list(EXACT_LIMIT))
def test_payload_is_exact_and_spread(dtype):
    value = payload(case(dtype), 0, 0, "x", (64, 64)).double()
    assert torch.equal(value, value.round())
    assert value.abs().max() <= EXACT_LIMIT[dtype]
    assert value.unique().numel() > min(EXACT_LIMIT[dtype], 2000)


@pytest.mark.parametrize("fill", ["exact", "float"])
def test_payload_differs_by_rank_launch_name_and_seed(fill):
    def draw(rank=0, launch=0, name="x", seed=0):
        return payload(case(fill=fill, seed=seed), rank, launch, name, (16, 16))

    draws = [draw(), draw(rank=1), draw(launch=1), draw(name="y"), draw(seed=1)]
    for one, other in itertools.combinations(draws, 2):
        assert (one != other).float().mean() > 0.9
    assert torch.equal(draw(), draw())


def test_payload_tells_tiles_apart():
    value = payload(case(), 0, 0, "x", (64, 64))
    tiles = [tile for rows in value.split(16) for tile in rows.split(16, dim=1)]
    for one, other in itertools.combinations(tiles, 2):
        assert not torch.equal(one, other)


@pytest.mark.parametrize(("dtype", "k"), [("fp16", 4096), ("bf16", 1024), ("bf16", 256), ("fp32", 512)])
def test_products_of_factors_are_representable_in_any_order(dtype, k):
    a = factor(case(dtype), 0, 0, "a", (16, k), terms=k).double()
    b = factor(case(dtype), 0, 0, "b", (k, 16), terms=0).double()
    assert (a.abs() @ b.abs()).max() <= EXACT_LIMIT[dtype]
    assert (a.abs() @ torch.ones_like(b)).max() <= EXACT_LIMIT[dtype]


@pytest.mark.parametrize(("dtype", "k"), [("fp16", 4096), ("bf16", 4096)])
def test_every_block_of_a_thinned_factor_matters(dtype, k):
    a = factor(case(dtype), 0, 0, "a", (64, k), terms=k)
    for block in a.split(16, dim=1):
        assert block.abs().sum() > 0


def test_factor_thins_along_the_axis_that_is_summed():
    b = factor(case("bf16"), 0, 0, "b", (1024, 8), terms=1024, axis=0)
    assert (b != 0).sum(dim=0).max() <= EXACT_LIMIT["bf16"]
    assert b.is_contiguous()


def test_float_fill_is_normal():
    value = factor(case(fill="float"), 0, 0, "a", (128, 128), terms=128).float()
    assert abs(value.mean().item()) < 0.05
    assert abs(value.std().item() - 1) < 0.05
