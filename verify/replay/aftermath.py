"""What the command line asks for besides a run: its replay, smaller ones, a script. Imported before anything slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tdist.errors import UsageError

if TYPE_CHECKING:
    from tdist.verify.run import Report


@dataclass(frozen=True)
class Aftermath:
    """What is done with failing runs.

    Attributes:
        replay: file whose run is made instead of a verification.
        shrink: whether to make failing runs smaller.
        repro: folder for a stand-alone script; None for none.
        replays: folder for replay files; made when there is one to write.
    """

    replay: Path | None = None
    shrink: bool = False
    repro: Path | None = None
    replays: Path = Path("tdist-replays")

    def check(self, others: Sequence[str]) -> None:
        """Refuse what does not go together.

        Args:
            others: options of a run that stand on the command line.

        Raises: UsageError.
        """
        if self.replay is not None and others:
            raise UsageError(f"--replay takes the run from its file: leave out {', '.join(others)}")
        if self.repro is not None and self.repro.exists() and not self.repro.is_dir():
            raise UsageError(f"cannot write --repro {self.repro}: it is no folder")

    def concerns(self, report: Report) -> bool:
        """Whether there is something to do once a report has been printed."""
        return bool(report.failures) or self.shrink or self.repro is not None
