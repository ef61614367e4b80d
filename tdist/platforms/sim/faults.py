"""Texts of faults that generated code raises with bare facts: what was expected, what was got, what is wrong.

`Agent.fault` takes any data; the reasons below are those that the code generator's helpers give.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tdist.findings.kinds import kind_of

if TYPE_CHECKING:
    from tdist.platforms.sim.codegen.site import Site

_REASONS: Final[dict[str, tuple[str, str, str]]] = {
    "index-overflow": (
        "an index leaves {bits}-bit integers",
        "values within {bits} bits",
        "values from {low} to {high}",
    ),
    "division-by-zero": ("division by zero", "a divisor that is not 0", "{dividend} divided by 0{in_lane}"),
    "loop-step": ("a step that is not positive", "a step of 1 or more (scf.for counts up)", "a step of {step}"),
    "shift-past-width": ("shift past the width", "a shift of 0 … {last_bit}", "a shift of {amount}"),
    "float-to-int-range": ("float out of the integers' range", "a value within {bits} bits", "{value}"),
    "misaligned": (
        "the address is not aligned to its element",
        "an address divisible by {element_bytes}",
        "a misaligned address in {allocation}",
    ),
}


def complete(kind_id: str, site: Site, data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with `expected`, `got` and everything that the texts of the kind need."""
    full = dict(data)
    full.setdefault("tensor", site.arg or full.get("allocation") or "memory")
    full.setdefault("op", site.op)
    _add_reason(full)
    if "index" in full and "elements" in full:
        _add_bounds(full)
    for name in kind_of(kind_id).fields - full.keys():
        full[name] = "unknown"
    return full


def _add_reason(full: dict[str, Any]) -> None:
    texts = _REASONS.get(full.get("reason", ""))
    if texts is None:
        return
    lane = full.get("lane")
    in_lane = f" in lane ({', '.join(map(str, lane))})" if lane else ""
    facts = _Facts(full, last_bit=full.get("bits", 0) - 1, in_lane=in_lane)
    for name, text in zip(("problem", "expected", "got"), texts, strict=True):
        full.setdefault(name, text.format_map(facts))


def _add_bounds(full: dict[str, Any]) -> None:
    lane = full.get("lane") or ()
    at = f"lane ({', '.join(map(str, lane))}) is " if lane else ""
    full.setdefault("expected", f"elements 0 … {full['elements'] - 1} of {full['tensor']} on rank {full['rank']}")
    full.setdefault("got", f"{at}element {full['index']}")
    if not lane:
        return
    if full.get("masked"):
        full.setdefault("why", f"the access has a mask, but it lets lane ({', '.join(map(str, lane))}) through")
        full.setdefault("cure", "let the mask compare with the bound of that axis: `offs < n`, not `<=`, and that n")
    else:
        full.setdefault("why", "the access has no mask that turns lanes outside off")
        full.setdefault("cure", "mask the access with the bound of that axis")


class _Facts(dict[str, Any]):
    """Facts that are missing read as `?`: a message must not fail for want of one."""

    def __missing__(self, key: str) -> str:
        return "?"
