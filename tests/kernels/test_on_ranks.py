"""The built-in operators on as many ranks as `--nranks` asks for, in both modes: what users do with `ranks.verify`."""

from __future__ import annotations

import pytest


@pytest.mark.tdist(sync="both")
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("operator", ["all_gather", "ag_gemm"])
def test_a_built_in_operator_is_verified(ranks, operator, dtype) -> None:
    report = ranks.verify(operator, dtype=dtype, profile="ascend")
    assert report.passed
    assert not ranks.findings


@pytest.mark.tdist(sync="both")
@pytest.mark.parametrize("shape", ["m=1,n=1,k=1", "m=61,n=37,k=129"])
def test_ag_gemm_takes_shapes_that_nothing_divides(ranks, shape) -> None:
    sizes = {name: int(value) for name, value in (part.split("=") for part in shape.split(","))}
    ranks.verify("ag_gemm", dtype="fp16", shape=sizes, profile="ascend")
