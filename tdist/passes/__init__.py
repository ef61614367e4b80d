"""Passes over a kernel's module: one file each, one line each in `PASSES`."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from tdist.errors import UsageError
from tdist.ir.collection import no_collection
from tdist.passes.base import KernelPass
from tdist.passes.canonicalize import CanonicalizePass
from tdist.passes.combine_dots import CombineDotsPass
from tdist.passes.convert_triton_distributed_to_hivm import ConvertTritonDistributedToHivmPass
from tdist.passes.cse import CsePass
from tdist.passes.dce import DcePass
from tdist.passes.inline_calls import InlineCallsPass
from tdist.passes.licm import LicmPass
from tdist.passes.lift_carriers import LiftCarriersPass
from tdist.passes.lift_early_returns import LiftEarlyReturnsPass
from tdist.passes.report import CompileReport, LostOp, MergedOp
from tdist.passes.split_sub_vec import SplitSubVecPass, split_sub_vec

PASSES: dict[str, type[KernelPass]] = {
    cls.name: cls
    for cls in (
        LiftCarriersPass,
        LiftEarlyReturnsPass,
        InlineCallsPass,
        CanonicalizePass,
        CsePass,
        LicmPass,
        DcePass,
        SplitSubVecPass,
        CombineDotsPass,
        ConvertTritonDistributedToHivmPass,
    )
}

DEFAULT_PIPELINE: tuple[str, ...] = (
    "lift-carriers",
    "lift-early-returns",
    "inline-calls",
    "canonicalize",
    "cse",
    "licm",
    "cse",
    "canonicalize",
    "dce",
)
"""What a platform runs. CSE comes twice: LICM brings equal operations together."""


def run_pipeline(module: ModuleOp, names: Sequence[str] = DEFAULT_PIPELINE) -> CompileReport:
    """Run passes by name over `module`, in place.

    Returns:
        What was lost and merged, over all passes.

    Raises:
        UsageError: A name that is no pass.
        KernelError: The kernel cannot be compiled; names its own file and line.
    """
    unknown = [name for name in names if name not in PASSES]
    if unknown:
        raise UsageError(f"no pass is called '{unknown[0]}'; there are: {', '.join(PASSES)}")
    report = CompileReport()
    with no_collection():
        for name in names:
            PASSES[name]().transform(module, report)
    return report


__all__ = [
    "DEFAULT_PIPELINE",
    "PASSES",
    "CompileReport",
    "KernelPass",
    "LostOp",
    "MergedOp",
    "run_pipeline",
    "split_sub_vec",
]
