"""Modes: what `--sync` moves, and what a table of their verdicts says about the kind of fault.

Three axes move together. *Protocol form*: signals or `barrier_all`, where the operator has both. *Pipe ordering*: weak,
or drained at every operation, which is what the vendor's inject-barrier-all-sync does inside a core. *Schedule*:
adversarial, or maximally synchronous. The last two exist for every kernel, so the toggle always means something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tdist.findings import Finding
from tdist.verify.operator import Operator

ADVERSARIAL = "random"
SYNCHRONOUS = "max-sync"


@dataclass(frozen=True)
class Mode:
    """One setting of the three axes."""

    name: str
    protocol: str
    drained: bool
    schedule: str

    @property
    def axes(self) -> str:
        """In words, for the report; a mode whose protocol form the operator lacks says which one runs instead."""
        pipes = "drained pipes" if self.drained else "weak pipes"
        form = f"{self.protocol} protocol"
        if self.protocol != self.name:
            form += f" (no {self.name} form declared)"
        return f"{form}, {pipes}, {self.schedule} schedule"


def modes_for(operator: Operator, sync: str, schedule: str = "") -> tuple[Mode, ...]:
    """The modes that `sync` ("fine", "barrier", "both") names, fine first.

    Args:
        schedule: one scheduler for all modes; empty for each mode's own.
    """
    names = ("fine", "barrier") if sync == "both" else (sync,)
    return tuple(mode_of(name, operator.sync, schedule) for name in names)


def mode_of(name: str, forms: tuple[str, ...], schedule: str = "") -> Mode:
    """One mode for something that has these protocol forms; its only form where it lacks the one of that name."""
    protocol = name if name in forms else forms[0]
    if name == "barrier":
        return Mode(name, protocol, drained=True, schedule=schedule or SYNCHRONOUS)
    return Mode(name, protocol, drained=False, schedule=schedule or ADVERSARIAL)


_GROUPS: Mapping[str, str] = {
    "race": "synchronisation",
    "hazard": "synchronisation",
    "deadlock": "synchronisation",
    "endless-loop": "synchronisation",
    "barrier-divergence": "synchronisation",
    "lost-wait": "synchronisation",
    "merged-wait": "synchronisation",
    "concurrent-set": "synchronisation",
    "line-sharing": "synchronisation",
    "overshoot": "synchronisation",
    "short-signal": "synchronisation",
    "out-of-bounds": "addresses or masks",
    "pointer-misuse": "addresses or masks",
    "canary": "addresses or masks",
    "uninitialised": "memory that nobody wrote",
    "asymmetric-alloc": "symmetric allocation",
    "grid-too-large": "launch size",
    "arithmetic": "arithmetic",
}
"""What each kind of finding is about; kinds that already say all there is to say have no entry."""


def explain(findings: Iterable[Finding]) -> str:
    """What failing findings are about, in a sentence; empty where their own texts say it already."""
    about = [_GROUPS.get(finding.kind.removeprefix("tdist.").partition(".")[0]) for finding in findings]
    named = list(dict.fromkeys(group for group in about if group))
    return f"the findings are about {_joined(named)}" if named else ""


def _joined(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def diagnose(modes: Mapping[Mode, bool]) -> str:
    """What a table of verdicts says where wrong numbers are all there is; empty where it says nothing.

    Args:
        modes: whether each mode passed. Modes that could not run and modes with failing findings do not belong here:
            the first say nothing about the kernel, the second say it themselves.
    """
    named = {mode.name: (mode, passed) for mode, passed in modes.items()}
    if set(named) != {"fine", "barrier"} or all(modes.values()):
        return ""
    (fine, fine_passed), (barrier, barrier_passed) = named["fine"], named["barrier"]
    basis = "no finding says where: try other seeds and schedules"
    if barrier_passed:
        return f"fine fails, barrier passes: points at synchronisation or pipe ordering; {basis}"
    two_forms = fine.protocol != barrier.protocol
    if fine_passed:
        return f"barrier fails, fine passes: points at {'the barrier form' if two_forms else 'its schedule'}; {basis}"
    shared = ", or at a fault that both forms share" if two_forms else ""
    return f"wrong also with drained pipes and full synchronisation: points at addresses, masks or arithmetic{shared}"
