"""Suppressions: findings that somebody has looked at and accepts, by id and with the reason.

A suppressed finding is shown in every report, with its reason, and fails nothing. There are no wildcards: who accepts a
kind of finding names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tdist.errors import UsageError
from tdist.findings import Finding, Severity
from tdist.findings.kinds import PREFIX, kind_of

if TYPE_CHECKING:
    from tdist.verify.operator import Operator
    from tdist.verify.options import Options

_WILD = frozenset("*?[")


@dataclass(frozen=True)
class Suppression:
    """One accepted kind of finding.

    Attributes:
        id: of the kind, with its prefix.
        origin: who accepts it: `--suppress` or the operator's declaration.
    """

    id: str
    reason: str
    origin: str


def parse_suppressions(texts: Sequence[str]) -> dict[str, str]:
    """`("race=known", …)` → reasons by full id.

    Raises: UsageError for an unknown id, a wildcard, a missing reason, an id that is given twice.
    """
    reasons: dict[str, str] = {}
    for text in texts:
        name, _, reason = text.partition("=")
        full = full_id(name.strip(), "--suppress")
        if not reason.strip():
            raise UsageError(
                f"--suppress {name.strip()} needs a reason: --suppress {name.strip()}='why it is accepted'"
            )
        if full in reasons:
            raise UsageError(f"--suppress names {full} twice")
        reasons[full] = reason.strip()
    return reasons


def format_suppressions(reasons: Mapping[str, str]) -> list[str]:
    """The same as `--suppress` reads it, one text each."""
    return [f"{name}={reason}" for name, reason in reasons.items()]


def full_id(name: str, where: str) -> str:
    """An id with its prefix.

    Args:
        where: what is to be named in the message.

    Raises: UsageError if it is no id of a finding.
    """
    if _WILD & set(name) or name in ("", "tdist", PREFIX):
        raise UsageError(f"{where} takes the id of one kind of finding, no wildcards: {name!r} would hide what is new")
    try:
        return PREFIX + kind_of(name).id
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def suppressions_of(operator: Operator, options: Options) -> tuple[Suppression, ...]:
    """Those of the command line, then those of the declaration that it does not repeat.

    Raises: UsageError for ids that do not exist.
    """
    where = f"suppress=… of operator {operator.name}"
    declared = {full_id(name, where): reason for name, reason in operator.suppress.items()}
    asked = {full_id(name, "--suppress"): reason for name, reason in options.suppress.items()}
    mine = [Suppression(name, reason, "--suppress") for name, reason in asked.items()]
    theirs = [Suppression(n, reason, where) for n, reason in declared.items() if n not in asked]
    return (*mine, *theirs)


def unused(suppressions: Iterable[Suppression], findings: Iterable[Finding]) -> list[Suppression]:
    """Those that no finding needs."""
    met = {finding.kind for finding in findings}
    return [suppression for suppression in suppressions if suppression.id not in met]


def accept(findings: Iterable[Finding], suppressions: Iterable[Suppression]) -> tuple[Finding, ...]:
    """The same findings, suppressed ones as notes that say who accepts them and why: a note fails nothing."""
    reasons = {suppression.id: suppression for suppression in suppressions}
    return tuple(_accepted(f, reasons[f.kind]) if f.kind in reasons else f for f in findings)


def _accepted(finding: Finding, by: Suppression) -> Finding:
    more = {"suppressed": by.reason, "suppressed_by": by.origin, "suppressed_severity": finding.severity.value}
    return replace(finding, severity=Severity.NOTE, data={**finding.data, **more})


def is_suppressed(finding: Finding) -> bool:
    """Whether somebody accepts it."""
    return "suppressed" in finding.data
