"""Seeded inputs that depend on rank, launch and position, in two fills.

*exact*: integers whose products and partial sums are all representable, so that every legal order of additions gives
the same bits and a policy can demand equality. *float*: standard normal, for the numerical policies.

A payload that were equal on two ranks, at two positions or in two launches could arrive in the wrong place unseen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from tdist.verify.operator import Case

EXACT_LIMIT = {"fp16": 2048, "bf16": 256, "fp32": 2**24}
"""Largest integer up to which all integers are representable (significand of 11, 8 and 24 bits)."""


def generator(case: Case, rank: int, launch: int, name: str) -> torch.Generator:
    """A generator that this case, rank, launch and tensor name alone decide; the same on every machine."""
    key = f"{case.seed}/{case.fill}/{case.dtype}/{rank}/{launch}/{name}"
    digest = hashlib.blake2b(key.encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def payload(case: Case, rank: int, launch: int, name: str, shape: Sequence[int]) -> torch.Tensor:
    """A tensor that is only moved: codes of rank, launch and position over all exact integers of the dtype."""
    source = generator(case, rank, launch, name)
    if case.fill == "float":
        return torch.randn(tuple(shape), generator=source).to(case.torch_dtype)
    limit = EXACT_LIMIT[case.dtype]
    return torch.randint(-limit, limit + 1, tuple(shape), generator=source).to(case.torch_dtype)


def factor(
    case: Case, rank: int, launch: int, name: str, shape: Sequence[int], *, terms: int, axis: int = -1
) -> torch.Tensor:
    """A factor of a sum of `terms` products along `axis`.

    In the exact fill its elements are -1, 0 and 1; where `terms` exceeds what the dtype can count, only as many
    elements of each sum are not zero as it can, at random places, so that a lost tile anywhere still changes results.
    One factor of a product takes `terms`; the other may pass `terms=0`, for no limit.

    Shape: as given; `axis` is the one that is summed over.
    """
    source = generator(case, rank, launch, name)
    if case.fill == "float":
        return torch.randn(tuple(shape), generator=source).to(case.torch_dtype)
    values = torch.randint(-1, 2, tuple(shape), generator=source)
    limit = EXACT_LIMIT[case.dtype]
    if terms > limit:
        values = _thin_out(values.movedim(axis, -1), limit, source).movedim(-1, axis)
    return values.to(case.torch_dtype).contiguous()


def _thin_out(values: torch.Tensor, keep: int, source: torch.Generator) -> torch.Tensor:
    """Zero all but `keep` random places of each run along the last axis."""
    order = torch.rand(values.shape, generator=source).argsort(dim=-1)
    return torch.where(order < keep, values, 0)
