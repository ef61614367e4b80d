"""How a finding looks on a terminal: six parts, in the order in which a reader asks.

What broke; where, for each party; expected and got; why (the missing edge); what to try; one line that replays it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tdist.findings.model import Finding, FindingLog, Party, Severity

COMPILED = "tdist.compiled."
_BESIDE_A_PATH = len("  expected at ")
_STYLE = {Severity.ERROR: "bold red", Severity.HAZARD: "bold yellow", Severity.NOTE: "bold cyan"}


def renderable(finding: Finding, *, replay: str | None = None, count: int = 1) -> RenderableType:
    """The finding as one rich renderable. `replay` is the line that repeats the run, `count` how often it was met."""
    parts: list[RenderableType] = [_headline(finding, count)]
    body = [*_parties(finding.parties), *_reasons(finding, replay)]
    if body:
        parts.append(Padding(_grid(body), (0, 0, 0, 2)))
    return Group(*parts)


def render(finding: Finding, console: Console, *, replay: str | None = None, count: int = 1) -> None:
    """Print the finding on `console`."""
    console.print(renderable(finding, replay=replay, count=count))


def render_log(log: FindingLog, console: Console, *, replay: str | None = None) -> None:
    """Print every finding of a log: errors first, then hazards, then notes, each with a blank line after it."""
    order = list(Severity)
    for finding in sorted(log, key=lambda f: order.index(f.severity)):
        render(finding, console, replay=replay, count=log.count(finding))
        console.print()


def to_text(finding: Finding, *, replay: str | None = None, count: int = 1, width: int = 120) -> str:
    """The same as plain text without colour, for log files, exceptions and tests."""
    out = io.StringIO()
    widest = max((len(party.at) for party in finding.parties), default=0)  # a folded path opens in no editor
    console = Console(
        file=out,
        width=max(width, widest + _BESIDE_A_PATH),
        color_system=None,
        force_terminal=False,
        highlight=False,
        legacy_windows=False,
    )
    render(finding, console, replay=replay, count=count)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _headline(finding: Finding, count: int) -> Text:
    text = Text()
    text.append(finding.severity.value, style=_STYLE[finding.severity])
    text.append(f" [{finding.kind}] ")
    text.append(finding.title, style="bold")
    if count > 1:
        text.append(f" ({count} times)")
    return text


def _grid(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(Text(label), Text(value))
    return grid


def _parties(parties: tuple[Party, ...]) -> list[tuple[str, str]]:
    labels = ("first", "second") if len(parties) == 2 else ("where",) * len(parties)
    shown = any(party.launch for party in parties)  # launch 0 is worth saying beside a later one only
    return [(label, _party(party, shown)) for label, party in zip(labels, parties, strict=True)]


def _party(party: Party, with_launch: bool) -> str:
    who = party.named(with_launch)
    what = " of ".join(part for part in (party.op, party.tensor) if part)
    lines = [", ".join(part for part in (f"{who}: {what}" if what else who, party.where) if part)]
    lines.append(f"at {party.at}")
    if party.note:
        lines.append(party.note)
    return "\n".join(lines)


def _reasons(finding: Finding, replay: str | None) -> list[tuple[str, str]]:
    rows = (
        ("expected", finding.expected),
        ("got", finding.got),
        ("why", finding.why),
        ("when", _when(finding)),
        ("try", finding.cure),
        ("replay", replay or ""),
    )
    return [(label, value) for label, value in rows if value]


def _when(finding: Finding) -> str:
    """Where it holds that is not everywhere: compiled code has no profile, it was read."""
    if finding.kind.startswith(COMPILED):
        return "in the code that the vendor's compiler made for Ascend"
    return "under the ascend profile only" if finding.severity is Severity.HAZARD else ""
