"""What compilation did to a kernel's waits, as findings: facts about the compiled kernel, beside the verdict.

Source: docs/ordering-model.md, "Clocks" (last paragraph) and "Signals" (polling loops);
Single Operator Development §3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tdist.findings import Finding, Party, make

if TYPE_CHECKING:
    from tdist.passes.report import CompileReport, LostOp

_WAIT: Final = "distributed.wait"
_LOAD: Final = "tt.load"
_LOOPS: Final = ("scf.for", "scf.while")


def findings_of(report: CompileReport, rank: int, kernel: str) -> Iterator[Finding]:
    """Lost waits, lost polling loops and merged waits of `kernel`, which `rank` launches.

    Loads that were lost or merged change no synchronisation.
    """
    lost = list(report.lost)
    for index, op in enumerate(lost):
        if op.op_name == _WAIT:
            yield _lost_wait(op, rank, kernel)
        elif op.op_name in _LOOPS:
            yield _lost_loop(op, lost[index + 1 :], rank, kernel)
    for merged in report.merged:
        if merged.op_name == _WAIT:
            parties = [
                _party(rank, kernel, merged.kept, "wait", "kept"),
                _party(rank, kernel, merged.dropped, "wait", "dropped"),
            ]
            yield make("merged-wait", parties, op="waits")


def _lost_wait(op: LostOp, rank: int, kernel: str) -> Finding:
    return make("lost-wait", [_party(rank, kernel, op.loc, "wait")], op="this wait", reason=op.why)


def _lost_loop(op: LostOp, following: list[LostOp], rank: int, kernel: str) -> Finding:
    """A loop that only reads; it is shown at the load that it polls with, which the report lists right after it."""
    polled = next((inner for inner in following if inner.op_name in (_WAIT, _LOAD)), op)
    return make(
        "lost-wait",
        [_party(rank, kernel, polled.loc or op.loc, "polling loop")],
        op="a loop that polls with plain loads",
        reason=op.why,
        cure="wait with dl.wait and consume its token; a plain load is no wait",
    )


def _party(rank: int, kernel: str, loc: Any, op: str, note: str = "") -> Party:
    file, line = getattr(loc, "file", None), getattr(loc, "line", None)
    return Party(rank, file=file, line=line, op=op, note=note, role=f"kernel {kernel}")
