"""What host functions raise, as findings: an error that ranks share is told once, with who has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tdist.errors import Place, TdistError
from tdist.findings import Finding, FindingLog, Party, make


@dataclass(frozen=True)
class HostError:
    """Why a host function failed.

    Attributes:
        text: type and message, in as many lines as it has.
        place: file and line of the user's source, where they are known.
    """

    text: str
    place: Place | None = None

    @classmethod
    def of(cls, error: BaseException) -> HostError:
        """The same of an exception."""
        place = error.place if isinstance(error, TdistError) else None
        return cls(str(error) if type(error) is TdistError else f"{type(error).__name__}: {error}", place)


@dataclass
class _Shared:
    finding: Finding
    by_rank: dict[int, HostError] = field(default_factory=dict)


class HostErrors:
    """The host errors of a world in its log, one finding for each place in the source, or for each text without one.

    Args:
        log: where the findings stand; one that another rank joins is replaced.
    """

    def __init__(self, nranks: int, log: FindingLog) -> None:
        self._nranks = nranks
        self._log = log
        self._shared: dict[object, _Shared] = {}

    def add(self, party: Party, error: HostError) -> None:
        """The host function of a rank failed.

        Args:
            party: the host; its place is that of the error where this has one.
        """
        key = error.place or error.text
        known = self._shared.get(key)
        by_rank = {**(known.by_rank if known else {}), party.rank: error}
        finding = self._finding(party, by_rank)
        if known is None:
            self._log.add(finding)
        else:
            self._log.replace(known.finding, finding)
        self._shared[key] = _Shared(finding, by_rank)

    def forget(self) -> None:
        """The world takes other host functions: what they raise is told anew."""
        self._shared.clear()

    def _finding(self, party: Party, by_rank: dict[int, HostError]) -> Finding:
        ranks = sorted(by_rank)
        error = by_rank[ranks[0]]
        headline, _, rest = error.text.partition("\n")
        others = [f"rank {rank}: {_headline(by_rank[rank])}" for rank in ranks if by_rank[rank].text != error.text]
        whose = _whose(ranks, self._nranks)
        note = "\n".join([*([rest] if rest else ()), *others])
        party = replace(party, rank=ranks[0], role=f"{whose}, host side", note=note)
        if error.place is not None:
            party = replace(party, file=error.place[0], line=error.place[1])
        cure = None if error.place is None else "change this line, or what it calls: nothing after it was run"
        why = "no rank could go on" if len(ranks) == self._nranks else None
        finding = make("host-error", [party], rank=ranks[0], error=headline, ranks=ranks, cure=cure, why=why)
        return replace(finding, title=f"host error on {whose}: {headline}")


def _headline(error: HostError) -> str:
    return error.text.partition("\n")[0]


def _whose(ranks: Sequence[int], nranks: int) -> str:
    if len(ranks) == nranks > 1:
        return "all ranks"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
