"""Tolerance policies: when an output is accepted, and what is said about the worst element when it is not.

Symbols: `y` output, `g` float64 golden, `|A||B|` component-wise magnitude, `K` terms of a sum, `W` ranks,
`u` unit roundoff of the output's type, `eta` half its smallest subnormal.

No policy accepts a share of outliers: one stale tile is under 1 % of the elements. NaN and infinities are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from tdist.errors import UsageError
from tdist.golden import Reference
from tdist.text import did_you_mean

LAMBDA = 6.0
"""Calibrated on CPU results with float32 partials; on a card it has to be calibrated again."""
RMSE_RATIO = 2.0
SIGMAS = 6.0
MIN_SAMPLES = 1024
"""Fewer elements than this say nothing about bias."""
ACCUMULATOR_ROUNDOFF = 2.0**-24

UNIT_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
HALF_SUBNORMAL = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134, torch.float32: 2.0**-150}
TORCH_TOLERANCE = {torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5), torch.float32: (1.3e-6, 1e-5)}
CANN_THRESHOLD = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-13}


@dataclass(frozen=True)
class Setting:
    """What a policy has to know beside output and reference.

    Attributes:
        tile: extents of an output tile, for counting wrong tiles.
        partials: whether the operator declares partial results in the output's precision.
    """

    nranks: int = 1
    rtol: float | None = None
    atol: float | None = None
    tile: tuple[int, ...] = (64, 64)
    partials: bool = False


@dataclass(frozen=True)
class Comparison:
    """What a policy says about one output of one rank.

    Attributes:
        policy: the policies that were applied, joined by "+".
        worst_error: largest |y - g| in units of what was allowed there, infinite where nothing was.
        worst_index, got, expected, allowed: the element where that is, and its values; None without elements.
        wrong_tiles: tile coordinates with a wrong element, in order.
        notes: reasons in words, one each.
        metrics: figures that do not gate (`mere`, `mare`, `max_abs_error`, `rmse_ratio`).
    """

    policy: str
    passed: bool
    elems: int
    wrong_elems: int = 0
    worst_error: float = 0.0
    worst_index: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None
    allowed: float | None = None
    tiles: int = 0
    wrong_tiles: tuple[tuple[int, ...], ...] = ()
    notes: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)


def exact(y: torch.Tensor, ref: Reference, setting: Setting) -> Comparison:
    """Every element equals the golden, rounded to the output's type; tolerance 0."""
    return _judge("exact", y, ref, torch.zeros(y.shape, dtype=torch.float64), setting)


def bound(y: torch.Tensor, ref: Reference, setting: Setting) -> Comparison:
    """Calibrated component-wise bound: `|y-g| <= LAMBDA sqrt(K+W) 2^-24 |A||B| + u|g| + eta`.

    Declared low-precision partials `p` add `LAMBDA/2 u sqrt(2 sum p^2) + 2u|g|`.

    Source: probabilistic rounding error analysis grows with sqrt(K) (Ipsen and Zhou, SIAM J. Matrix Anal. 2020);
        LAMBDA from an experiment over ring, random and tree orders (docs/decisions).
    """
    growth = LAMBDA * math.sqrt(ref.terms + setting.nranks) * ACCUMULATOR_ROUNDOFF
    return _judge("bound", y, ref, growth * _magnitude(ref, "bound") + _rounding(y, ref, setting), setting)


def gamma(y: torch.Tensor, ref: Reference, setting: Setting) -> Comparison:
    """Deterministic bound: `gamma_{K+W} |A||B| (1+u) + u|g| + eta`; an element beyond it is proved wrong.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, §3.1: gamma_n = n u / (1 - n u).
    """
    steps = (ref.terms + setting.nranks) * ACCUMULATOR_ROUNDOFF
    factor = steps / (1 - steps) if steps < 1 else math.inf
    allowed = factor * (1 + UNIT_ROUNDOFF[y.dtype]) * _magnitude(ref, "gamma") + _rounding(y, ref, setting)
    return _judge("gamma", y, ref, allowed, setting)


def allclose(y: torch.Tensor, ref: Reference, setting: Setting) -> Comparison:
    """`|y-g| <= atol + rtol |g|`; torch.testing's values for the dtype where none are given."""
    default_rtol, default_atol = TORCH_TOLERANCE[y.dtype]
    rtol = default_rtol if setting.rtol is None else setting.rtol
    atol = default_atol if setting.atol is None else setting.atol
    judged = _judge("allclose", y, ref, atol + rtol * ref.value.double().abs(), setting)
    return _with_note(judged, judged.passed, f"allclose with rtol {rtol:g}, atol {atol:g}")


def bias(y: torch.Tensor, ref: Reference, setting: Setting) -> Comparison:
    """RMSE at most twice that of torch in the same precision, mean signed error no larger than chance.

    Catches accumulation in low precision, which a bound that is wide enough for every legal order misses.
    """
    if ref.same_precision is None:
        raise UsageError("policy bias needs a golden with `same_precision`")
    blank = Comparison("bias", True, y.numel())
    error, peer = _finite_errors(y, ref)
    if error.numel() < MIN_SAMPLES:
        return _with_note(blank, True, f"bias not judged: {error.numel()} finite elements, {MIN_SAMPLES} are needed")
    rmse, peer_rmse = (e.square().mean().sqrt().item() for e in (error, peer))
    mean, chance = error.mean().item(), SIGMAS * peer_rmse / math.sqrt(error.numel())
    ratio = rmse / peer_rmse if peer_rmse else (math.inf if rmse else 1.0)
    mean_limit = RMSE_RATIO * abs(peer.mean().item()) + chance
    passed = ratio <= RMSE_RATIO and abs(mean) <= mean_limit
    judged = Comparison("bias", passed, y.numel(), metrics={"rmse_ratio": ratio, "mean_error": mean})
    if passed:
        return judged
    note = f"RMSE is {ratio:.3g} times torch's (limit {RMSE_RATIO:g}), mean error {mean:.3g} (limit {mean_limit:.3g})"
    return _with_note(judged, False, note)


def auto(y: torch.Tensor, ref: Reference, setting: Setting) -> Comparison:
    """`exact` for pure movement, `bound` and `bias` for reductions, `allclose` where the golden has no magnitude."""
    if ref.moves_only:
        return exact(y, ref, setting) if ref.value.dtype == y.dtype else allclose(y, ref, setting)
    if ref.magnitude is None:
        return allclose(y, ref, setting)
    judged = bound(y, ref, setting)
    if not judged.passed and not gamma(y, ref, setting).passed:
        judged = _with_note(judged, False, "beyond the deterministic bound too: wrong on every machine")
    if ref.same_precision is None or setting.partials:
        return judged
    return _both(judged, bias(y, ref, setting))


Policy = Callable[[torch.Tensor, Reference, Setting], Comparison]
POLICIES: dict[str, Policy] = {
    "auto": auto,
    "exact": exact,
    "bound": bound,
    "gamma": gamma,
    "bias": bias,
    "allclose": allclose,
}


def compare(policy: str, y: torch.Tensor, ref: Reference, setting: Setting) -> Comparison:
    """Judge one output; shapes and types have to agree before any value is looked at.

    Raises: UsageError for an unknown policy, an output type without a known roundoff, or a golden of another shape.
    """
    if policy not in POLICIES:
        raise UsageError(
            f"unknown policy: {policy!r}{did_you_mean(policy, tuple(POLICIES))}; one of {', '.join(POLICIES)}"
        )
    if y.dtype not in UNIT_ROUNDOFF and y.dtype not in INTEGERS:
        known = ", ".join(str(dtype) for dtype in (*UNIT_ROUNDOFF, *INTEGERS))
        raise UsageError(f"outputs of {y.dtype} cannot be compared; policies know {known}")
    if y.shape != ref.value.shape:
        raise UsageError(f"the output has shape {tuple(y.shape)}, its golden {tuple(ref.value.shape)}")
    if y.dtype in INTEGERS:
        return _exact_integers(y, ref.value, setting)
    return POLICIES[policy](y, ref, setting)


def _exact_integers(y: torch.Tensor, golden: torch.Tensor, setting: Setting) -> Comparison:
    """Counts, indices and masks: equality in int64, whatever the policy; float64 would round what is beyond 2^53."""
    if not y.numel():
        return Comparison("exact", True, 0)
    got, wanted = y.to(torch.int64), golden.to(torch.int64)
    right = (got == wanted) & (wanted.to(golden.dtype) == golden)
    index = _worst((~right).double(), right)
    return Comparison(
        "exact",
        passed=bool(right.all()),
        elems=y.numel(),
        wrong_elems=int((~right).sum()),
        worst_error=0.0 if bool(right.all()) else math.inf,
        worst_index=index,
        got=got[index].item(),
        expected=golden[index].item(),
        allowed=0.0,
        tiles=_tile_count(y, setting.tile),
        wrong_tiles=_wrong_tiles(right, setting.tile),
    )


def _tile_count(y: torch.Tensor, tile: tuple[int, ...]) -> int:
    return math.prod(-(-extent // _tile_extent(tile, y.dim(), axis)) for axis, extent in enumerate(y.shape))


def _magnitude(ref: Reference, policy: str) -> torch.Tensor:
    if ref.magnitude is None:
        raise UsageError(f"policy {policy} needs a golden with `magnitude` (|A||B|) and `terms`; use allclose without")
    return ref.magnitude.double()


def _rounding(y: torch.Tensor, ref: Reference, setting: Setting) -> torch.Tensor:
    """What rounding to the output's type may add, and to declared partial results before."""
    unit, golden = UNIT_ROUNDOFF[y.dtype], ref.value.double().abs()
    allowed = unit * golden + HALF_SUBNORMAL[y.dtype]
    if not setting.partials:
        return allowed
    if ref.partials_sq is None:
        raise UsageError("the operator declares low-precision partials, its golden has to give `partials_sq`")
    return allowed + LAMBDA / 2 * unit * (2 * ref.partials_sq.double()).sqrt() + 2 * unit * golden


def _judge(policy: str, y: torch.Tensor, ref: Reference, allowed: torch.Tensor, setting: Setting) -> Comparison:
    """Compare element by element against what is allowed there."""
    if not y.numel():
        return Comparison(policy, True, 0)
    golden = ref.value.double()
    got, rounded = y.double(), golden.to(y.dtype).double()
    error = (got - golden).abs()
    equal = (got == rounded) | (got.isnan() & golden.isnan())
    # What is not finite equals the golden or is wrong, but for an overflow where the allowed error reaches that far.
    overflow = got.isinf() & (golden.abs() + allowed >= _overflow_from(y.dtype)) & (got.sign() == golden.sign())
    right = equal | overflow | (got.isfinite() & golden.isfinite() & (error <= allowed))
    score = torch.where(right & ~(error <= allowed), 0.0, (error / allowed).nan_to_num(nan=math.inf, posinf=math.inf))
    score = torch.where(equal & (error == 0), 0.0, score)
    index = _worst(score, right)
    return Comparison(
        policy,
        passed=bool(right.all()),
        elems=y.numel(),
        wrong_elems=int((~right).sum()),
        worst_error=score[index].item(),
        worst_index=index,
        got=got[index].item(),
        expected=golden[index].item(),
        allowed=allowed.expand(y.shape)[index].item(),
        tiles=_tile_count(y, setting.tile),
        wrong_tiles=_wrong_tiles(right, setting.tile),
        metrics=_metrics(error, golden, y.dtype),
    )


def _overflow_from(dtype: torch.dtype) -> float:
    """The smallest magnitude that rounds to infinity: half a unit in the last place beyond the largest number."""
    largest, unit = torch.finfo(dtype).max, UNIT_ROUNDOFF[dtype]
    return largest + largest * unit / (2 - 2 * unit)


def _worst(score: torch.Tensor, right: torch.Tensor) -> tuple[int, ...]:
    """Index of the worst element, a wrong one if there is any."""
    ranked = score if bool(right.all()) else torch.where(right, -1.0, score)
    flat = int(ranked.reshape(-1).argmax())
    return tuple(int(i) for i in np.unravel_index(flat, score.shape))  # torch's own imports a solver for shapes first


def _tile_extent(tile: tuple[int, ...], dims: int, axis: int) -> int:
    """The tile's extent along an axis; leading axes that the tile does not have count element by element."""
    position = axis - (dims - len(tile))
    return tile[position] if position >= 0 else 1


def _wrong_tiles(right: torch.Tensor, tile: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    places = (~right).nonzero()
    if not len(places):
        return ()
    extents = torch.tensor([_tile_extent(tile, right.dim(), axis) for axis in range(right.dim())])
    return tuple(tuple(int(i) for i in row) for row in (places // extents).unique(dim=0))


def _metrics(error: torch.Tensor, golden: torch.Tensor, dtype: torch.dtype) -> dict[str, float]:
    """MERE and MARE as CANN's community standard defines them (mean and maximum relative error); they do not gate."""
    finite = error.isfinite()
    if not bool(finite.any()):
        return {}
    relative = error[finite] / (golden[finite].abs() + 1e-7)
    mere, mare, threshold = relative.mean().item(), relative.max().item(), CANN_THRESHOLD[dtype]
    within = float(mere < threshold and mare < 10 * threshold)
    return {"max_abs_error": error[finite].max().item(), "mere": mere, "mare": mare, "cann_community": within}


def _finite_errors(y: torch.Tensor, ref: Reference) -> tuple[torch.Tensor, torch.Tensor]:
    """Signed errors of the output and of torch's result, where all three are finite."""
    assert ref.same_precision is not None
    got, golden, peer = y.double(), ref.value.double(), ref.same_precision.double()
    finite = got.isfinite() & golden.isfinite() & peer.isfinite()
    return (got - golden)[finite], (peer - golden)[finite]


def _with_note(judged: Comparison, passed: bool, note: str) -> Comparison:
    return replace(judged, passed=passed, notes=(*judged.notes, note))


def _both(first: Comparison, second: Comparison) -> Comparison:
    """Both verdicts in one; places and counts are the first's."""
    return replace(
        first,
        policy=f"{first.policy}+{second.policy}",
        passed=first.passed and second.passed,
        notes=first.notes + second.notes,
        metrics={**first.metrics, **second.metrics},
    )
