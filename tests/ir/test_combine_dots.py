"""`acc + dot(a, b, 0)` accumulates in the dot, and nothing else does."""

from __future__ import annotations

import pytest
from ir_oracle import parse

from tdist.ir.location import loc_of
from tdist.passes import run_pipeline

TEXT = """
module {{
  tt.func public @k(%a: tensor<16x16xf16>, %b: tensor<16x16xf16>, %acc: tensor<16x16xf32>) -> tensor<16x16xf32> {{
    %zero = arith.constant dense<{init}> : tensor<16x16xf32> loc("k.py":1:0)
    %dot = tt.dot %a, %b, %zero : tensor<16x16xf16> * tensor<16x16xf16> -> tensor<16x16xf32> loc("k.py":2:0)
    %sum = arith.addf {sum} : tensor<16x16xf32> loc("k.py":3:0)
    tt.return %sum : tensor<16x16xf32> loc("k.py":4:0)
  }} loc("k.py":0:0)
}} loc("k.py":0:0)
"""


def combined(init: str, addition: str):
    module = parse(TEXT.format(init=init, sum=addition))
    run_pipeline(module, ["combine-dots", "dce"])
    once = str(module)
    run_pipeline(module, ["combine-dots", "dce"])
    assert str(module) == once
    return [op for op in module.walk() if op.name in ("tt.dot", "arith.addf")]


@pytest.mark.parametrize("addition", ["%acc, %dot", "%dot, %acc"])
def test_an_addition_to_a_product_becomes_its_accumulator(addition: str) -> None:
    (dot,) = combined("0.000000e+00", addition)
    assert dot.name == "tt.dot" and dot.operands[2].name_hint == "acc"
    assert str(loc_of(dot)) == "k.py:3"


@pytest.mark.parametrize(
    ("init", "addition"),
    [("1.000000e+00", "%acc, %dot"), ("0.000000e+00", "%dot, %dot")],
    ids=["starts-at-one", "used-twice"],
)
def test_other_sums_stay(init: str, addition: str) -> None:
    assert [op.name for op in combined(init, addition)] == ["tt.dot", "arith.addf"]


def test_what_is_added_to_a_sum_that_began_with_zero_is_its_accumulator() -> None:
    """A loop that goes round once, with a bias behind it."""
    text = TEXT.format(init="0.000000e+00", sum="%dot, %zero").replace(
        "    tt.return %sum", '    %all = arith.addf %sum, %acc : tensor<16x16xf32> loc("k.py":5:0)\n    tt.return %all'
    )
    module = parse(text)
    run_pipeline(module, ["combine-dots", "dce"])
    (dot,) = [op for op in module.walk() if op.name in ("tt.dot", "arith.addf")]
    assert dot.name == "tt.dot" and dot.operands[2].name_hint == "acc"
    assert str(loc_of(dot)) == "k.py:5"
