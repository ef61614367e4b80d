"""What is recognised again of a finding in another run: its kind and its places in the source, not who met it there."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tdist.findings import Finding
from tdist.verify.rank_job import LaunchResult

PAIR = 2


@dataclass(frozen=True, order=True)
class Site:
    """A place in a source: the file's name without folders, line (0 if unknown), operation, tensor."""

    file: str
    line: int
    op: str
    tensor: str

    @property
    def at(self) -> str:
        """`file:line`, as far as it is known."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Sighting:
    """A finding without ranks, programs, launches and folders: what stays when the run gets smaller or moves."""

    id: str
    profile: str | None
    title: str
    sites: tuple[Site, ...]

    @classmethod
    def of(cls, finding: Finding) -> Sighting:
        """What is recognised of `finding`."""
        placed = (Site(_name(p.file), p.line or 0, p.op, p.tensor or "") for p in finding.parties)
        return cls(finding.kind, finding.profile, finding.title, tuple(sorted(set(placed))))

    def same_as(self, other: Sighting, *, moved: bool = False) -> bool:
        """Whether `other`, met in another run, is this defect.

        A finding of one or two places is the same at the same places; one of a crowd (who waits in a deadlock) also
        where a smaller run has only some of the waiters.

        Args:
            moved: the source has changed since: lines do not count.
        """
        if (self.id, self.profile) != (other.id, other.profile):
            return False
        mine, others = _places(self.sites, moved), _places(other.sites, moved)
        if not any(site.file for site in self.sites):
            return self.title == other.title
        if len(mine) <= PAIR:
            return mine == others
        return bool(others) and others <= mine

    @property
    def where(self) -> str:
        """Its places in words, each once."""
        return ", ".join(dict.fromkeys(site.at for site in self.sites if site.file)) or "no place in a source"

    def to_json(self) -> dict[str, Any]:
        """JSON values; `sites` are lists of file, line, operation, tensor."""
        sites = [[site.file, site.line, site.op, site.tensor] for site in self.sites]
        return {"id": self.id, "profile": self.profile, "title": self.title, "sites": sites}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Sighting:
        sites = tuple(Site(*site) for site in value["sites"])
        return cls(value["id"], value["profile"], value["title"], sites)


def sightings(findings: Iterable[Finding], profile: str) -> tuple[Sighting, ...]:
    """Those of the findings that fail a run judged under `profile`, each once."""
    return tuple(dict.fromkeys(Sighting.of(finding) for finding in findings if finding.fails(profile)))


def _places(sites: tuple[Site, ...], moved: bool) -> set[tuple]:
    return {(site.file, 0 if moved else site.line, site.op, site.tensor) for site in sites}


def _name(file: str | None) -> str:
    return PurePath(file).name if file else ""


def output_digests(ranks: Sequence[list[LaunchResult] | None]) -> tuple[dict[str, str], ...]:
    """A digest of each output over all launches, by rank."""
    return tuple(_rank_digests(launches or ()) for launches in ranks)


def _rank_digests(launches: Sequence[LaunchResult]) -> dict[str, str]:
    digests: dict[str, int] = {}
    for launch in launches:
        for name, tiles in launch.checksums.items():
            packed = b"".join(tile.to_bytes(4, "little") for tile in tiles)
            digests[name] = zlib.crc32(packed, digests.get(name, 0))
    return {name: f"{digest:08x}" for name, digest in digests.items()}
