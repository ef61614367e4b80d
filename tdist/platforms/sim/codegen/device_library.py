"""Functions of the vendor's device library that triton-ascend reaches through `tt.extern_elementwise`.

Source: triton-ascend 3.2.0, `language/extra/ascend/libdevice.py` (symbols, argument types). Rounding differs on the
device in the last places; `ilogb` gives a float there as here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .arithmetic import as_tile


def device_function(symbol: str, dtypes: tuple[torch.dtype, ...], result: torch.dtype, *operands: Any) -> Any:
    """A library function of tiles or numbers; a number if all operands are.

    Narrow floats are computed in float32 and rounded once.
    """
    tiles = [as_tile(value, dtype) for value, dtype in zip(operands, dtypes, strict=True)]
    wide = [t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in tiles]
    value = DEVICE_LIBRARY[symbol](*wide).to(result)
    return value if any(isinstance(operand, torch.Tensor) for operand in operands) else value.item()


def integer_power(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Power modulo the width; with a negative exponent 1/base^n truncates to 0 but for bases 1 and -1."""
    power = torch.pow(base, exponent.clamp(min=0))
    odd = torch.where(exponent % 2 == 0, 1, base)
    inverse = torch.where(base.abs() == 1, odd, 0)
    return torch.where(exponent < 0, inverse, power)


def _round_half_away(tile: torch.Tensor) -> torch.Tensor:
    wide = tile.double()
    return torch.trunc(wide + torch.copysign(torch.full_like(wide, 0.5), wide)).copysign(wide).to(tile.dtype)


def _exponent(tile: torch.Tensor) -> torch.Tensor:
    return torch.frexp(tile.double()).exponent.to(torch.float32) - 1.0


def _both(names: str, function: Callable[..., torch.Tensor]) -> dict[str, Callable[..., torch.Tensor]]:
    """The f32 and the f16 symbol of a function."""
    return {f"__hmf_{names}{suffix}": function for suffix in ("f", "Dh")}


DEVICE_LIBRARY: dict[str, Callable[..., torch.Tensor]] = {
    **_both("atan", torch.atan),
    **_both("ilogb", _exponent),
    **_both("ldexp", lambda x, n: (x.double() * torch.exp2(n.double())).to(x.dtype)),
    **_both("log1p", torch.log1p),
    **_both("recip", torch.reciprocal),
    **_both("relu", torch.relu),
    **_both("tan", torch.tan),
    **_both("tanh", torch.tanh),
    "__hmf_isinf": torch.isinf,
    "__hmf_isnan": torch.isnan,
    "__hmf_powf": torch.pow,
    "__hmf_powi": integer_power,
    "__hmf_roundf": _round_half_away,
}
