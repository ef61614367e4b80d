"""What the poison step says of outputs that differ: how many tiles, and which elements the first of them has."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tdist.verify.rank_job import LaunchResult, tile_checksums, tile_elements
from tdist.verify.results import StepResult
from tdist.verify.run import judge_poison

SHAPES = [(), (1,), (7,), (5, 7), (4, 8), (2, 3, 7)]
TILES = [(1,), (3,), (2, 3), (4, 8), (16, 16), (1, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tile", TILES)
def test_the_elements_named_are_those_that_the_checksum_is_of(shape, tile):
    value = torch.zeros(shape)
    before = tile_checksums(value, tile)
    met = torch.zeros(shape, dtype=torch.int64)
    for index in range(len(before)):
        text, _, rest = tile_elements(shape, tile, index).partition("]")
        slices = tuple(slice(*map(int, part.split(":"))) for part in text.removeprefix("[").split(", "))
        flat = value.reshape(-1) if len(slices) == 1 else value.reshape(-1, shape[-1])
        assert bool(rest) == (flat.dim() != max(len(shape), 1))
        flat[slices] = 1.0
        changed = tile_checksums(value, tile)
        assert [i for i, pair in enumerate(zip(before, changed, strict=True)) if pair[0] != pair[1]] == [index]
        flat[slices] = 0.0
        met.reshape(flat.shape)[slices] += 1
    assert bool((met == 1).all())


def result(value: torch.Tensor, tile: tuple[int, ...]) -> LaunchResult:
    made = LaunchResult({}, {"y": tile_checksums(value, tile)}, {"y": (tuple(value.shape), tile)})
    assert LaunchResult.from_json(json.loads(json.dumps(asdict(made)))) == made
    return made


def test_the_first_tile_that_differs_is_named_with_its_elements_and_who_may_not_have_stored_them():
    operator: Any = SimpleNamespace(name="op", source=Path("op.py"), host=None)
    value = torch.zeros(8, 11)
    other = value.clone()
    other[5, 9] = 1.0
    steps = [StepResult("", ([result(v, (4, 4))],)) for v in (value, other)]
    (found,) = judge_poison(steps[0], steps[1], operator).findings
    assert found.got == "1 of 6 tiles, the first is tile 5 in row-major order, elements [4:8, 8:11] differ"
    assert "nobody stored these elements" in found.cure and "other=" in found.cure
