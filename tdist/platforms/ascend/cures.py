"""What to try against a finding in the compiled code, tried: applied, compiled again, checked again.

A cure is a few rewrites of the kernel (`rewrites`) and launch options. For each kind of finding a row of `CURES` says
which to try, the one that costs least first. What a cure brings along is said, too: the vendor's compiler has rules by
which one finding's cure is another finding (a fence before a signal drains, and may put the signal on both cores).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tdist.errors import KernelError
from tdist.findings import Finding
from tdist.ir.location import SourceLoc
from tdist.platforms.ascend.compiled.final_module import FinalModule, read_final_module
from tdist.platforms.ascend.effects_in_code import written
from tdist.platforms.ascend.lowering.adapter import to_linalg
from tdist.platforms.ascend.lowering.bishengir import compile_linalg
from tdist.platforms.ascend.lowering.prepare import Prepared
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions
from tdist.platforms.ascend.rewrites import REWRITES

Check = Callable[[Prepared, FinalModule], Iterable[Finding]]

BARRIER_ALL = "barrier-all"
_BARRIER_ALL_TEXT = "inject_barrier_all=True at the launch"
_PREFIX = "tdist.compiled."
PROFILE = "ascend"

_DRAIN = (
    *("fence", BARRIER_ALL, "int64 barrier-all", "int64 no-fence barrier-all"),
    *("gate fence", "gate barrier-all", "int64 gate barrier-all", "int64 gate no-fence barrier-all"),
    *("pipe-barrier", "int64 pipe-barrier"),
)
_PLACE = (
    *("signed", "int64", "no-fence", "int64 no-fence", "signed no-fence", "int64 barrier-all", "signed barrier-all"),
    *("no-fence barrier-all", "int64 no-fence barrier-all", "signed no-fence barrier-all", "point-write"),
    *(
        "point-write no-fence",
        "point-write barrier-all",
        "point-write no-fence barrier-all",
        "int64 gate",
        "int64 gate no-fence",
        "int64 gate barrier-all",
    ),
    *("int64 gate no-fence barrier-all", "int64 pipe-barrier"),
)
_ONE_CORE = (
    *("gate", "gate fence", "gate barrier-all", "gate no-fence barrier-all", "int64 gate"),
    *("int64 gate no-fence", "int64 gate barrier-all", "int64 gate no-fence barrier-all"),
)

CURES: dict[str, tuple[str, ...]] = {
    "both-cores": _PLACE,
    "wrong-core": ("close", "fence", *_PLACE),
    "both-vector-cores": ("close", *_ONE_CORE, *_PLACE),
    "split-store": (*_ONE_CORE, *_PLACE),
    "lost-effect": ("int_p",),
    "translated-twice": ("local-address",),
    "stale-cache": ("fence-after-wait", "fence"),
}
"""Kind of finding → what to try, as ids of rewrites in the order in which they are applied."""

ORDER_CURES = _DRAIN
"""For any other finding about order."""

WITHOUT_CURE = (
    *("lock-atomic", "lock-turn", "staging-overlap", "merged-effect", "repeated-effect", "moved-effect"),
    *("unpaired-flag", "not-understood"),
)
"""What a change of the protocol cures, or of the compiler, not a rewrite."""


SHOWN = 2
"""So many cures that bring another finding are shown beside a clean one: what one would try first, and should not."""


@dataclass(frozen=True)
class Trial:
    """A cure, applied to the whole kernel.

    Attributes:
        cure: ids of rewrites and options, in the order in which they were applied.
        does: what a user would write.
        gone: findings of the kernel as it is that the cured one does not have.
        left: those that it still has.
        new: findings that only the cured one has.
        problem: why it could not be compiled; empty if it could.
    """

    cure: str
    does: str
    gone: tuple[Finding, ...] = ()
    left: tuple[Finding, ...] = ()
    new: tuple[Finding, ...] = ()
    problem: str = ""

    @property
    def clean(self) -> bool:
        """Whether nothing is left to complain of."""
        return not (self.problem or self.left or self.new)

    def verdict(self, finding: Finding) -> str:
        """What the cure does about one finding."""
        if self.problem:
            return f"cannot be compiled: {self.problem}"
        if place(finding) in map(place, self.left):
            return "finding stays"
        brings = sorted({_kind(other) for other in self.new})
        return "finding gone" + (f", but brings {', '.join(brings)}" if brings else "")


def place(finding: Finding) -> tuple:
    """Kind and source lines: what is the same finding before and after a change of the kernel."""
    return (finding.kind, frozenset((party.file, party.line) for party in finding.parties if party.line))


def failing(findings: Iterable[Finding]) -> list[Finding]:
    """Those that a cure is for; notes are none."""
    return [finding for finding in findings if finding.fails(PROFILE)]


def _kind(finding: Finding) -> str:
    return finding.kind.removeprefix(_PREFIX)


def candidates(finding: Finding) -> tuple[str, ...]:
    """What to try against one finding, the cheapest first."""
    kind = _kind(finding)
    return () if kind in WITHOUT_CURE else CURES.get(kind, ORDER_CURES)


def default_check(prepared: Prepared, final: FinalModule) -> list[Finding]:
    """Order and effects."""
    from tdist.platforms.ascend.multiplicity import check_multiplicity
    from tdist.platforms.ascend.ordering import check_ordering

    return [
        *check_ordering(final, names=[argument.name for argument in prepared.args]),
        *check_multiplicity(prepared, final),
    ]


@dataclass(frozen=True)
class Clinic:
    """Where cures are tried: a target, the kernel's launch options, and the check that judges."""

    target: str
    options: CompileOptions
    check: Check = default_check

    def examine(self, prepared: Prepared, options: CompileOptions | None = None) -> list[Finding]:
        """Compile a prepared kernel and check it.

        Raises:
            KernelError: the vendor's tools refuse it.
        """
        chosen = options or self.options
        with Steps() as steps:
            linalg = to_linalg(prepared, chosen, steps)
            compiled = compile_linalg(linalg, self.target, chosen, steps)
        return list(self.check(prepared, read_final_module(compiled.final_text)))

    def try_cure(self, prepared: Prepared, findings: Sequence[Finding], cure: str) -> Trial | None:
        """Apply one cure and look again; None if it changes nothing here."""
        changed = self._apply(prepared, findings, cure.split())
        if changed is None:
            return None
        kernel, options = changed
        trial = Trial(cure, describe(cure))
        try:
            after = self.examine(kernel, options)
        except KernelError as error:
            return dataclasses.replace(trial, problem=str(error).splitlines()[0])
        return _compared(trial, findings, after)

    def _apply(
        self, prepared: Prepared, findings: Sequence[Finding], steps: Sequence[str]
    ) -> tuple[Prepared, CompileOptions] | None:
        places = _places(prepared, findings)
        options, kernel = self.options, prepared
        for step in steps:
            if step == BARRIER_ALL:
                if options.inject_barrier_all:
                    return None
                options = dataclasses.replace(options, inject_barrier_all=True)
                continue
            changed = REWRITES[step].apply(kernel, places)
            if changed is None:
                return None
            kernel = changed
        return kernel, options

    def try_all(self, prepared: Prepared, findings: Sequence[Finding]) -> list[Trial]:
        """Try what may help until one cure leaves nothing, each at most once; in the order of trial."""
        trials: list[Trial] = []
        for cure in _in_turn([candidates(finding) for finding in failing(findings)]):
            trial = self.try_cure(prepared, findings, cure)
            if trial is not None:
                trials.append(trial)
                if trial.clean:
                    break
        return trials


def _in_turn(lists: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first of each list, then the second of each, and so on; nothing twice."""
    seen: set[str] = set()
    for index in range(max(map(len, lists), default=0)):
        for names in lists:
            if index < len(names) and names[index] not in seen:
                seen.add(names[index])
                yield names[index]


def _places(prepared: Prepared, findings: Sequence[Finding]) -> set[SourceLoc]:
    """The places in the source that findings name by line: of calls, and of atomics."""
    lines = {(party.file, party.line) for finding in findings for party in finding.parties}
    code = written(prepared.module)
    located = [*(call.loc for call in code.calls), *(access.loc for access in code.accesses)]
    return {loc for loc in located if loc is not None and (loc.file, loc.line) in lines}


def _compared(trial: Trial, before: Sequence[Finding], after: Sequence[Finding]) -> Trial:
    before, after = failing(before), failing(after)
    then, now = set(map(place, before)), set(map(place, after))
    return dataclasses.replace(
        trial,
        gone=tuple(finding for finding in before if place(finding) not in now),
        left=tuple(finding for finding in before if place(finding) in now),
        new=tuple(finding for finding in after if place(finding) not in then),
    )


def describe(cure: str) -> str:
    """What a user does for a cure."""
    return " and ".join(_BARRIER_ALL_TEXT if step == BARRIER_ALL else REWRITES[step].does for step in cure.split())


def with_cures(findings: Sequence[Finding], trials: Sequence[Trial]) -> list[Finding]:
    """The findings with what was tried in their advice: the cure that leaves nothing, and what others bring."""
    return [_advised(finding, trials) if finding.fails(PROFILE) else finding for finding in findings]


def _advised(finding: Finding, trials: Sequence[Trial]) -> Finding:
    tried = [trial for trial in trials if trial.cure in candidates(finding) or trial.clean]
    if not tried:
        return finding
    clean = next((trial for trial in tried if trial.clean), None)
    helped = [trial for trial in tried if trial.verdict(finding).startswith("finding gone")]
    shown = (
        [*([clean] if clean is not None else []), *[trial for trial in helped if trial.new][:SHOWN]] or helped or tried
    )
    lines = [f"with {trial.does}: {trial.verdict(finding)}" for trial in shown]
    told: dict[str, Any] = {trial.cure: trial.verdict(finding) for trial in tried}
    return dataclasses.replace(finding, cure="\n".join([finding.cure, *lines]), data={**finding.data, "tried": told})


__all__ = ["CURES", "Clinic", "Trial", "candidates", "describe", "place", "with_cures"]
