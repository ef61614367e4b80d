"""What the engine knows of an agent that loads, for the texts of races: lost waits, waits that ordered nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tdist.platforms.sim.race_report import NOTHING_KNOWN, ReaderFacts, Who

if TYPE_CHECKING:
    from tdist.platforms.sim.engine import Engine
    from tdist.platforms.sim.streams import Launch

_WAITS: Final = ("distributed.wait", "scf.for", "scf.while")
"""What the compiler may delete that a user meant as a wait: waits, and loops that only read."""


def facts_of(engine: Engine, who: Who, slot: int) -> ReaderFacts:
    """Facts of the agent `who`, whose clocks have `slot`, in its present launch; none if that has been replaced."""
    launch = _launch_of(engine, who)
    if launch is None:
        return NOTHING_KNOWN
    missed = tuple(m for at, m in engine.words.missed.get(slot, {}).values() if at == who.launch)
    return ReaderFacts(lost_waits(launch.kernel), missed, launch.start_clock)


def lost_waits(kernel: Any) -> tuple[Any, ...]:
    """Positions of waits and polling loops that the compiled kernel does not have."""
    report = getattr(kernel, "report", None)
    lost = () if report is None else report.lost
    return tuple(dict.fromkeys(op.loc for op in lost if op.op_name in _WAITS and op.loc is not None))


def _launch_of(engine: Engine, who: Who) -> Launch | None:
    stream = engine.streams[who.rank]
    launch = stream.current or stream.last_launch
    return launch if launch is not None and launch.id == who.launch else None
