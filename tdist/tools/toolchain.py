"""`tdist toolchain`: environments with a vendor's tools."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tdist.errors import EnvironmentUnfit
from tdist.platforms.ascend import toolchain


@click.group("toolchain")
def toolchain_command() -> None:
    """Make and check environments with a vendor's tools."""


@toolchain_command.command("ascend")
@click.option("--check", "check_only", is_flag=True, help="Make nothing: say what is there and whether it is whole.")
@click.option("--rebuild", is_flag=True, help="Build it again, whatever is there.")
def ascend_command(check_only: bool, rebuild: bool) -> None:
    """Make an environment with triton-ascend and AscendNPU-IR in the user's cache.

    It is for machines whose own environment has stock Triton, which installs into the same folder as triton-ascend.
    Versions are exact and each wheel's SHA-256 is checked; needs pip, a package index and 1200 MiB. `tdist compile` and
    `tdist-verify --compile-for` then use it by themselves.

    Exit status: 0 it is there and whole, 3 not.
    """
    if not check_only:
        made = toolchain.build(rebuild, say=lambda text: click.echo(text, err=True))
        click.echo(f"ready: {made.folder}")
        return
    found = toolchain.find()
    if found is None:
        raise EnvironmentUnfit(f"there is none at {toolchain.place()}: make it with `{toolchain.COMMAND}`")
    _describe(found)


def _describe(found: toolchain.Toolchain) -> None:
    click.echo(f"folder    {found.folder}")
    for name, version in found.versions.items():
        click.echo(f"package   {name} {version}")
    programs = found.programs()
    for program in programs:
        click.echo(f"program   {program.path}\n          sha256 {program.digest or '-'}  {program.trouble or 'ok'}")
    _refuse([program for program in programs if program.trouble])


def _refuse(bad: Sequence[toolchain.Program]) -> None:
    if bad:
        listed = ", ".join(f"{program.path.name}: {program.trouble}" for program in bad)
        raise EnvironmentUnfit(f"the environment is damaged ({listed}): build it again with `{toolchain.REBUILD}`")
