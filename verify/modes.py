"""Modes: what `--sync` moves. What a table of their results says of the kind of bug is `verdict.py`'s.

Three axes move together. *Protocol form*: signals or `barrier_all`, where the operator has both. *Pipe ordering*: weak,
or drained at every operation, which is what the vendor's inject-barrier-all-sync does inside a core. *Schedule*:
adversarial, or maximally synchronous. The last two exist for every kernel, so the toggle always means something.
"""

from __future__ import annotations

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
