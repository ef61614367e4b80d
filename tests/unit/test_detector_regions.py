"""Byte sets: overlap, common range and the index, against explicit sets."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tdist.platforms.sim.regions import Box, RegionIndex, Runs, box_of, common, floor_sum, overlap, runs_of

raw_boxes = st.tuples(st.integers(200, 300), st.integers(1, 8), st.integers(-30, 45), st.integers(1, 30))
raw_lanes = st.tuples(st.lists(st.integers(100, 400), min_size=1, max_size=8), st.sampled_from([1, 2, 4]))
raw = st.one_of(raw_boxes, raw_boxes, raw_lanes)


def explicit(shape: tuple) -> tuple:
    """The shape as the product has it, and as a set of bytes."""
    if len(shape) == 2:
        offs, width = shape
        return runs_of(np.array(offs, np.int64), width), {off + k for off in offs for k in range(width)}
    lo, rows, stride, width = shape
    return box_of(lo, rows, stride, width), {lo + i * stride + k for i in range(rows) for k in range(width)}


@settings(derandomize=True, deadline=None, max_examples=600)
@given(raw, raw)
def test_overlap_and_common_range_are_those_of_the_sets(a: tuple, b: tuple) -> None:
    (left, left_bytes), (right, right_bytes) = explicit(a), explicit(b)
    shared = left_bytes & right_bytes
    assert overlap(left, right) == overlap(right, left) == bool(shared)
    if shared:
        assert common(left, right) == common(right, left) == (min(shared), max(shared) + 1)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(raw, min_size=2, max_size=14), st.integers(0, 100))
def test_index_finds_exactly_the_overlapping(shapes: list[tuple], base: int) -> None:
    index, stored = RegionIndex(base), []
    for shape in shapes:
        product, touched = explicit(shape)
        item = SimpleNamespace(shape=product)
        found = index.add(item)
        assert len(found) == len({id(other) for other in found})
        assert {id(other) for other in found} == {id(other) for other, bytes_ in stored if bytes_ & touched}
        stored.append((item, touched))


tilings = st.tuples(st.integers(1, 3), st.sampled_from([4, 6, 8]), st.sampled_from([12, 24, 31]))


@settings(derandomize=True, deadline=None, max_examples=300)
@given(tilings, st.lists(st.tuples(st.integers(-4, 4), st.integers(-3, 3)), min_size=2, max_size=24), st.lists(raw))
def test_index_that_only_lists_tiles_finds_the_overlapping(tiling: tuple, places: list, others: list[tuple]) -> None:
    """Tiles of one tiling, some of which wrap over the end of a row, then anything else; each shape once."""
    rows, width, stride = tiling
    tiles = [(250 + row * rows * stride + column * width, rows, stride, width) for row, column in places]
    index, stored = RegionIndex(0), {}
    for shape in [*tiles, *others]:
        product, touched = explicit(shape)
        assert product is not None
        asked = index.overlapping(product)
        assert {id(item) for item in asked} == {id(item) for item, bytes_ in stored.values() if bytes_ & touched}
        if product.key in stored:
            continue
        item = SimpleNamespace(shape=product)
        found = index.add(item, distinct=True)
        assert {id(other) for other in found} == {id(other) for other, bytes_ in stored.values() if bytes_ & touched}
        stored[product.key] = (item, touched)


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 40), st.integers(1, 30), st.integers(0, 60), st.integers(-100, 100))
def test_floor_sum(n: int, m: int, a: int, b: int) -> None:
    assert floor_sum(n, m, a, b) == sum((a * i + b) // m for i in range(n))


def test_canonical_forms() -> None:
    assert box_of(0, 0, 8, 4) is None and box_of(0, 4, 8, 0) is None
    assert box_of(0, 4, 8, 8).key == box_of(0, 1, 3, 32).key
    assert box_of(0, 4, 0, 8).key == box_of(0, 1, 0, 8).key
    assert box_of(24, 4, -8, 4).key == box_of(0, 4, 8, 4).key


def test_regular_lanes_are_boxes_whatever_their_order() -> None:
    rows, columns = np.meshgrid(np.arange(5) * 64, np.arange(8) * 2, indexing="ij")
    shuffled = np.random.default_rng(0).permutation((rows + columns).ravel())
    shape = runs_of(shuffled, 2)
    assert isinstance(shape, Box) and shape.key == box_of(0, 5, 64, 16).key
    assert isinstance(runs_of(np.array([0, 10, 11, 40]), 2), Runs)


def test_huge_boxes_cost_no_loop_over_rows() -> None:
    """2^40 rows: a loop or an array would not end."""
    rows = 1 << 40
    even, odd = box_of(0, rows, 6, 1), box_of(1, rows, 4, 1)
    assert not overlap(even, box_of(3, rows, 12, 1)) and overlap(even, box_of(2, rows, 4, 1))
    assert overlap(odd, box_of(0, rows, 7, 1))
