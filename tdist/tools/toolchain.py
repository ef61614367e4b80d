"""`tdist toolchain`: environments with a vendor's tools."""

from __future__ import annotations

import click

from tdist.errors import EnvironmentUnfit, UsageError
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

    Exit status: 0 the vendor's tools are there and whole, 3 not.
    """
    if check_only and rebuild:
        raise UsageError("--check makes nothing, --rebuild does: give one of them")
    if check_only:
        _check()
        return
    if not toolchain.missing_here():
        click.echo("this environment has the vendor's tools itself: commands will use those", err=True)
    made = toolchain.build(rebuild, say=lambda text: click.echo(text, err=True))
    click.echo(f"ready: {made.folder}")


@toolchain_command.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("module")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_command(module: str, arguments: tuple[str, ...]) -> int:
    """Run `python -m MODULE ARGUMENTS` where the vendor's tools are: `tdist toolchain run pytest -q`.

    That is this environment, or the separate one with the packages of this one behind its own. The exit status is the
    module's.
    """
    return toolchain.run_where_it_fits(module, arguments)


def _check() -> None:
    """Both places where the tools may be; the separate one first, for it may be half made."""
    found = toolchain.find()
    reason = toolchain.missing_here()
    click.echo("this environment")
    if reason:
        click.echo(f"  not usable: {reason}")
    else:
        _describe_here()
    click.echo(f"separate environment\n  folder    {found.folder if found else 'none'}")
    if found is not None:
        _describe(found)
    elif reason:
        raise EnvironmentUnfit(f"there is none at {toolchain.place()}: make it with `{toolchain.COMMAND}`")


def _describe_here() -> None:
    from tdist.frontend.environment import check_front_end
    from tdist.platforms.ascend.vendor import find

    click.echo(f"  front end {check_front_end()}")
    for tool in (find.triton_adapter_opt(), find.bishengir_compile(), find.bishengir_opt()):
        click.echo(f"  program   {tool.path}  {tool.version}\n            sha256 {tool.digest}  ok")
    hivmc = find.hivmc()
    click.echo(f"  hivmc     {hivmc.path}\n            sha256 {hivmc.digest}" if hivmc else "  hivmc     not on PATH")


def _describe(found: toolchain.Toolchain) -> None:
    for name, version in found.versions.items():
        click.echo(f"  package   {name} {version}")
    programs = found.programs()
    for program in programs:
        click.echo(f"  program   {program.path}\n            sha256 {program.digest or '-'}  {program.trouble or 'ok'}")
    bad = [program for program in programs if program.trouble]
    if bad:
        listed = ", ".join(f"{program.path.name}: {program.trouble}" for program in bad)
        raise EnvironmentUnfit(f"the environment is damaged ({listed}): build it again with `{toolchain.REBUILD}`")
