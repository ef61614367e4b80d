"""Proofs that a mutant behaves as the kernel itself. What is not proved here counts as missed.

Two kinds of proof: the passes leave identical code; or all inequivalent schedules of a small case were run, none shows
a finding, and all have the outputs of the original.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp

from tdist.findings import Finding
from tdist.frontend.kernel_ir import KernelIR
from tdist.ir.collection import no_collection
from tdist.mutations import Mutant, has_mutant
from tdist.verify.operator import format_shape

if TYPE_CHECKING:
    from tdist.verify.rank_job import LaunchResult
    from tdist.verify.search.explore import Rerunner
    from tdist.verify.worlds import RunSpec, WorldResult

Fails = Callable[[Finding], bool]


@dataclass(frozen=True)
class Proof:
    """Whether something was proved.

    Attributes:
        text: where it holds, the case; where not, why not.
        schedules: how many inequivalent ones there are of the case.
    """

    holds: bool
    text: str
    schedules: int = 0


def same_code(mutant: Mutant, irs: Sequence[KernelIR]) -> str:
    """Why a mutant is the kernel itself: the passes leave identical code of it. Empty if they do not.

    Args:
        irs: all specialisations of the kernel that are launched.
    """
    for ir in dict.fromkeys(irs):
        if has_mutant(ir, mutant.name) and code_of(ir, mutant.name) != code_of(ir):
            return ""
    return "identical code after the passes"


@lru_cache(maxsize=64)
def code_of(ir: KernelIR, mutation: str = "") -> str:
    """What code is generated from, as text in which values have numbers and no positions."""
    from tdist.platforms.sim.compiler import lower

    with no_collection():
        module, _ = lower(ir, mutation)
        _forget_names(module)
        return str(module)


def _forget_names(module: ModuleOp) -> None:
    for op in module.walk():
        blocks = [block for region in op.regions for block in region.blocks]
        for value in [*op.results, *(argument for block in blocks for argument in block.args)]:
            value.name_hint = None


SECONDS = 60.0
"""For all schedules of one case; more of them make no proof."""


def prove(rerunner: Rerunner, spec: RunSpec, expected: tuple[Any, ...], fails: Fails) -> Proof:
    """Try to prove by exhaustion that a run comes to what is expected, whatever the schedule.

    Args:
        spec: the mutant's run.
        expected: what the original's outputs are.
        fails: whether a finding speaks against it.
    """
    from tdist.platforms.sim.explore.exhaustive import Limits
    from tdist.verify.search.explore import NotRecordable, explore_job

    where = f"{format_shape(spec.job.case.shape)} {spec.job.case.sync} x{spec.job.launches}"
    try:
        explored = explore_job(rerunner, spec, Limits(seconds=SECONDS))
    except NotRecordable as error:
        return Proof(False, f"schedules cannot be exhausted: {error}")
    failing = [sighting.finding.kind for sighting in explored.findings if fails(sighting.finding)]
    if failing:
        return Proof(False, f"another schedule shows {failing[0]} ({where})")
    made = [outputs_of(rerunner.result_of(spec.job, result)) for result in explored.outcomes.values()]
    if any(outputs != expected for outputs in made):
        return Proof(False, f"another schedule has other outputs ({where})")
    if not explored.complete:
        return Proof(False, f"{explored} ({where})")
    return Proof(True, where, explored.runs)


def conclusion(proofs: Sequence[Proof]) -> str:
    """What proofs of several cases say together."""
    cases = [f"{proof.text} ({proof.schedules})" for proof in proofs]
    return f"all inequivalent schedules ran, no finding, the same outputs: {'; '.join(cases)}"


def outputs_of(world: WorldResult) -> tuple[Any, ...]:
    """Checksums of all outputs by rank and launch, None of a rank that did not finish."""
    return tuple(None if rank is None else tuple(map(_checksums, rank)) for rank in world.ranks)


def _checksums(result: LaunchResult) -> tuple[Any, ...]:
    return tuple((name, tuple(tiles)) for name, tiles in sorted(result.checksums.items()))
