"""Goldens on a real gloo group: uneven shards, ranks without rows, every dtype."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tdist.golden import all_gather_local, gemm_reference
from tdist.platforms.sim.process.pool import RankPool

RANK_FUNCTION = f"{Path(__file__).with_name('golden_on_gloo.py')}::compare_with_local"


@pytest.fixture(scope="module")
def pool():
    with RankPool(3) as pool:
        yield pool


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (7, 3), (1, 5), (2, 1)])
def test_the_group_gives_what_the_shards_say(pool, rows, columns, dtype):
    for results in pool.run(RANK_FUNCTION, rows=rows, columns=columns, dtype=dtype):
        assert results == [True] * 6


def test_shards_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="3 rows together, expected 4"):
        all_gather_local([torch.zeros(2, 1), torch.zeros(1, 1)], 4)


def test_the_reference_of_a_product_is_wider_than_its_operands():
    a, b = torch.full((1, 3), 2.0**-24).half(), torch.ones(3, 1).half()
    reference = gemm_reference(a, b)
    assert reference.value.item() == 3 * 2.0**-24
    assert reference.terms == 3
    assert reference.magnitude is not None
    assert reference.same_precision is not None
    assert reference.same_precision.dtype == torch.float16
