"""`tdist explain`: what a finding's id means, without a run."""

from __future__ import annotations

import click

from tdist.findings.kinds import KINDS, Kind, kind_of

_WEIGHTS = {
    "error": "error: fails every run",
    "hazard": "hazard: always shown, fails where Ascend is the target or --profile ascend is given",
    "note": "note: fails nothing",
}


@click.command("explain")
@click.argument("ids", nargs=-1, metavar="[ID]...")
def explain_command(ids: tuple[str, ...]) -> int:
    """Say what findings mean and what to try: `tdist explain race hazard.stale-cache`. Without an id, list them all.

    docs/findings/ has a page with an example for each.
    """
    if not ids:
        for name, kind in KINDS.items():
            click.echo(f"{name:34} {kind.severity.value:7} {_plain(kind.title)}")
        return 0
    for kind in [kind_of(name) for name in ids]:
        _print(kind)
    return 0


def _print(kind: Kind) -> None:
    click.echo(f"tdist.{kind.id}: {_plain(kind.title)}")
    for label, text in (
        ("severity", _WEIGHTS[kind.severity.value]),
        ("means", kind.explanation),
        ("why", _plain(kind.why)),
        ("try", _plain(kind.cure)),
    ):
        click.echo(f"  {label:9}{text}")


def _plain(template: str) -> str:
    """A template for a reader: `{first} of {tensor}` → `<first> of <tensor>`."""
    return template.replace("{", "<").replace("}", ">")
