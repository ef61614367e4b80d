"""What a golden returns: the value, and what a policy needs to judge a difference from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Reference:
    """A reference output of one rank.

    Shape: all tensors have the shape of the output.
    Dtype: `value` and `magnitude` float64 (or the output's own dtype for pure movement); `same_precision` the output's.

    Attributes:
        value: the golden result.
        magnitude: component-wise `|A| @ |B|` of a reduction, None where data only moves.
        terms: how many products are summed into an element (`K`), 0 where data only moves.
        partials_sq: sum over ranks of the squared partial results, for operators that declare low-precision partials.
        same_precision: what torch computes in the output's precision, accumulating in float32, for the bias policy.
    """

    value: torch.Tensor
    magnitude: torch.Tensor | None = None
    terms: int = 0
    partials_sq: torch.Tensor | None = None
    same_precision: torch.Tensor | None = None

    @property
    def moves_only(self) -> bool:
        """True if no arithmetic is done, so that every bit has to arrive as it was sent."""
        return self.magnitude is None and self.terms == 0
