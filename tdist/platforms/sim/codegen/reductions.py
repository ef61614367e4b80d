"""Reductions and scans that generated code calls for common combiners; `arithmetic.fold` and `scan` do any other."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .arithmetic import fold

NARROW = (torch.float16, torch.bfloat16)


def reduce_sum(tile: torch.Tensor, axis: int) -> torch.Tensor:
    """Sum along an axis, a tree of neighbours that rounds every addition of narrow floats; integers wrap.

    Source: docs/decisions/0013.
    """
    if tile.dtype in NARROW:
        return fold((tile,), axis, lambda a, b: (a + b,))[0]
    return tile.sum(axis, dtype=tile.dtype)


def reduce_product(tile: torch.Tensor, axis: int) -> torch.Tensor:
    if tile.dtype in NARROW:
        return fold((tile,), axis, lambda a, b: (a * b,))[0]
    return tile.prod(axis, dtype=tile.dtype)


def reduce_maximum(tile: torch.Tensor, axis: int) -> torch.Tensor:
    """Maximum along an axis; NaN propagates."""
    return tile.amax(axis)


def reduce_minimum(tile: torch.Tensor, axis: int) -> torch.Tensor:
    return tile.amin(axis)


def reduce_max_num(tile: torch.Tensor, axis: int) -> torch.Tensor:
    """Maximum along an axis that ignores NaN; NaN only where all lanes are."""
    return _ignoring_nan(tile, axis, torch.amax, torch.fmax)


def reduce_min_num(tile: torch.Tensor, axis: int) -> torch.Tensor:
    return _ignoring_nan(tile, axis, torch.amin, torch.fmin)


def _ignoring_nan(tile: torch.Tensor, axis: int, fast: Callable, pick: Callable) -> torch.Tensor:
    result = fast(tile, axis)
    if bool(torch.isnan(result).any()):
        (result,) = fold((tile,), axis, lambda a, b: (pick(a, b),))
    return result


def scan_sum(tile: torch.Tensor, axis: int, reverse: bool) -> torch.Tensor:
    """Inclusive sum along an axis."""
    return _scan(tile, axis, reverse, torch.cumsum)


def scan_product(tile: torch.Tensor, axis: int, reverse: bool) -> torch.Tensor:
    return _scan(tile, axis, reverse, torch.cumprod)


def _scan(tile: torch.Tensor, axis: int, reverse: bool, function: Callable) -> torch.Tensor:
    source = tile.flip(axis) if reverse else tile
    result = function(source, axis, dtype=tile.dtype)
    return result.flip(axis) if reverse else result
