"""Modes: what `--sync` moves, and what a table of their verdicts says about the kind of fault.

Three axes move together. *Protocol form*: signals or `barrier_all`, where the operator has both. *Pipe ordering*: weak,
or drained at every operation, which is what the vendor's inject-barrier-all-sync does inside a core. *Schedule*:
adversarial, or maximally synchronous. The last two exist for every kernel, so the toggle always means something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
        """In words, for the report."""
        pipes = "drained pipes" if self.drained else "weak pipes"
        return f"{self.protocol} protocol, {pipes}, {self.schedule} schedule"


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


def diagnose(passed: Mapping[str, bool], explained: bool) -> str:
    """What the table of modes adds to the findings, in a sentence; empty where it adds nothing.

    Args:
        passed: mode name → whether it passed.
        explained: whether findings already say what is wrong.
    """
    if set(passed) != {"fine", "barrier"} or all(passed.values()):
        return ""
    basis = "the findings say where" if explained else "no finding says where: try other seeds and schedules"
    if passed["barrier"]:
        return f"fine fails, barrier passes: points at synchronisation or pipe ordering; {basis}"
    if passed["fine"]:
        return f"barrier fails, fine passes: points at the barrier form of the protocol; {basis}"
    return f"both modes fail: points at addressing, masks or arithmetic, or at a fault that both forms share; {basis}"
