"""One run of one spec: what the operator, the request or the machine got wrong is a result, not an exception."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tdist.errors import TdistError
from tdist.verify.worlds import Runner, RunSpec, WorldResult

_BY_RANK = re.compile(r"raised by the host function of (rank \d+)")


@dataclass(frozen=True)
class Attempt:
    """What came of a run.

    Attributes:
        exit_code: whose fault an error was: 1 the operator's, 2 the request's, 3 the machine's.
    """

    world: WorldResult
    exit_code: int = 1


def attempt(runner: Runner, spec: RunSpec) -> Attempt:
    """Run `spec`; a defect of ours is raised."""
    try:
        return Attempt(runner.execute(spec))
    except TdistError as error:
        return Attempt(_stopped(error), error.exit_code)
    except Exception as error:
        if not getattr(error, "__notes__", None):
            raise
        return Attempt(_stopped(error))


def _stopped(error: Exception) -> WorldResult:
    """No rank finished; what was found until then is kept."""
    return WorldResult((), tuple(getattr(error, "findings", ())), told(error))


def told(error: Exception) -> str:
    """An exception in words: the rank, its type where it is not ours, its text, its notes."""
    text = str(error) if isinstance(error, TdistError) else f"{type(error).__name__}: {error}"
    notes = [note.split("; its traceback")[0].splitlines()[0] for note in getattr(error, "__notes__", [])]
    ranks = [found[1] for found in map(_BY_RANK.fullmatch, notes) if found]
    rest = [note for note in notes if not _BY_RANK.fullmatch(note)]
    return "; ".join([": ".join([*ranks[:1], text]), *rest])
