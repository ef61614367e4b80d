"""What a finding is: data from which the message, the JSON report and the de-duplication key are made."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self


class Severity(enum.Enum):
    """How much a finding weighs.

    An ERROR fails every run. A HAZARD exists under the `ascend` profile only: always shown, failing where the target
    is Ascend or that profile was asked for. A NOTE never fails a run.
    """

    ERROR = "error"
    HAZARD = "hazard"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Party:
    """One side of a finding: who did what, where in the source and to which bytes.

    `program` and `launch` are None for a host or a stream; `core` is 0 for the main core, 1 for the second vector core.
    `where` is the index range in words; `note` is one remark on this side. `role` says what it is if it is neither a
    program nor a host, such as the compiled kernel.
    """

    rank: int
    launch: int | None = None
    program: int | None = None
    core: int = 0
    file: str | None = None
    line: int | None = None
    op: str = ""
    tensor: str | None = None
    where: str = ""
    note: str = ""
    role: str = ""

    @property
    def who(self) -> str:
        """`rank 1, program 3`, with launch and core where they say something."""
        return self.named(with_launch=bool(self.launch))

    def named(self, with_launch: bool) -> str:
        """The same, with or without the launch; a host or stream has none."""
        if self.role:
            return self.role
        if self.program is None:
            return f"rank {self.rank}, host side"
        core = ", second vector core" if self.core else ""
        launch = f", launch {self.launch}" if with_launch and self.launch is not None else ""
        return f"rank {self.rank}{launch}, program {self.program}{core}"

    @property
    def at(self) -> str:
        """`file:line`, or what is known of it."""
        if self.file is None:
            return "(no source position)"
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a kernel or its use, with everything a reader needs to see why.

    Made by `tdist.findings.kinds.make`; `data` holds JSON values only and is normalised on construction.
    """

    kind: str
    severity: Severity
    title: str
    profile: str | None = None
    parties: tuple[Party, ...] = ()
    expected: str = ""
    got: str = ""
    why: str = ""
    cure: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parties", tuple(self.parties))
        object.__setattr__(self, "data", {str(key): _plain(value) for key, value in self.data.items()})

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> tuple:
        """Two findings with one key are the same defect met again: same kind, profile and source operations.

        Which side came first depends on the schedule and does not matter; without any source position the title
        tells them apart.
        """
        sites = sorted((p.file or "", p.line or 0, p.op, p.tensor or "") for p in self.parties)
        placed = any(p.file for p in self.parties)
        return (self.kind, self.profile, tuple(sites), "" if placed else self.title)

    def fails(self, profile: str = "seed") -> bool:
        """Whether it fails a run judged under `profile` (`"seed"` or `"ascend"`)."""
        if self.severity is Severity.HAZARD:
            return profile == "ascend"
        return self.severity is Severity.ERROR

    def to_json(self) -> dict[str, Any]:
        """JSON values only; `from_json` gives back an equal finding."""
        return {
            "kind": self.kind,
            "severity": self.severity.value,
            "title": self.title,
            "profile": self.profile,
            "parties": [{name: getattr(party, name) for name in Party.__slots__} for party in self.parties],
            "expected": self.expected,
            "got": self.got,
            "why": self.why,
            "cure": self.cure,
            "data": dict(self.data),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        fields = dict(value)
        fields["severity"] = Severity(fields["severity"])
        fields["parties"] = tuple(Party(**party) for party in fields["parties"])
        return cls(**fields)


def _plain(value: Any) -> Any:
    """`value` as JSON holds it: tuples and sets become lists, numpy scalars Python numbers, the rest text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return [_plain(item) for item in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, (int, float)):
        return value
    return str(value)


class FindingLog:
    """Collects findings, each defect once with a count; the first occurrence is kept.

    Args:
        sink: called with each finding that is new.
    """

    def __init__(self, sink: Callable[[Finding], None] | None = None) -> None:
        self._first: dict[tuple, Finding] = {}
        self._counts: dict[tuple, int] = {}
        self._sink = sink

    def add(self, finding: Finding, count: int = 1) -> bool:
        """Note an occurrence; whether it was a new defect."""
        key = finding.key
        self._counts[key] = self._counts.get(key, 0) + count
        if key in self._first:
            return False
        self._first[key] = finding
        if self._sink is not None:
            self._sink(finding)
        return True

    __call__ = add

    def replace(self, old: Finding, new: Finding) -> None:
        """`new` stands where `old` stood, with its count."""
        place = {old.key: new.key}
        self._first = {place.get(key, key): new if key == old.key else found for key, found in self._first.items()}
        self._counts = {place.get(key, key): count for key, count in self._counts.items()}

    def count(self, finding: Finding) -> int:
        """How often this defect was met."""
        return self._counts.get(finding.key, 0)

    @property
    def findings(self) -> list[Finding]:
        """In the order of first occurrence."""
        return list(self._first.values())

    def failing(self, profile: str = "seed") -> list[Finding]:
        """Those that fail a run judged under `profile`."""
        return [finding for finding in self if finding.fails(profile)]

    def merge(self, other: FindingLog) -> None:
        """Add another run's findings, counts included."""
        for finding in other:
            self.add(finding, other.count(finding))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._first.values())

    def __len__(self) -> int:
        return len(self._first)

    def to_json(self) -> list[dict[str, Any]]:
        return [{**finding.to_json(), "count": self.count(finding)} for finding in self]

    @classmethod
    def from_json(cls, values: list[dict[str, Any]]) -> Self:
        log = cls()
        for value in values:
            fields = dict(value)
            count = fields.pop("count", 1)
            log.add(Finding.from_json(fields), count)
        return log


def dumps(log: FindingLog) -> str:
    """The log as JSON text with a stable order of keys."""
    return json.dumps(log.to_json(), sort_keys=True, indent=1)
