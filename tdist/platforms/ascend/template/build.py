"""Builds the device library: `python -m tdist.platforms.ascend.template.build --out DIR [--dry-run]`.

Bitcode for the four kinds of core that a kernel's functions run on, for each architecture: `aic` and `aiv` for kernels
of one kind, `mix_aic` and `mix_aiv` for kernels that have both (barriers work in those only). A kernel is linked with
`bishengir-compile --link-aicore-bitcode=FILE`.

Needs CANN's compiler `bisheng` and ACLSHMEM's headers. The commands follow the public build of AscendNPU-IR's own
template; they have never run on a machine of ours, so `--dry-run` prints them for you to read.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from tdist.errors import EnvironmentUnfit, TdistError
from tdist.platforms.ascend.symbols import link_name, signatures

SOURCE = Path(__file__).with_name("device_library.cpp")
_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Variant:
    """A kind of core: CANN's name of its half of the chip, and whether kernels have both halves."""

    name: str
    unit: str
    mix: bool

    @property
    def suffix(self) -> str:
        """What the vendor's compiler puts behind the names that this half of a mix kernel calls."""
        return (".cube" if self.unit == "cube" else ".vector") if self.mix else ""


VARIANTS = (
    Variant("aic", "cube", mix=False),
    Variant("aiv", "vec", mix=False),
    Variant("mix_aic", "cube", mix=True),
    Variant("mix_aiv", "vec", mix=True),
)
ARCHITECTURES = {"c220": "Ascend 910B and 910_93", "c310": "Ascend 910_95"}


@dataclass(frozen=True)
class Kit:
    """What a build needs: the compiler `bisheng`, CANN's root and ACLSHMEM's root."""

    compiler: Path
    cann: Path
    shmem: Path

    def include_directories(self) -> list[Path]:
        """Where `kernel_operator.h` and `shmem.h` are, and what these include."""
        framework = self.cann / "compiler" / "tikcpp" / "tikcfw"
        own = [framework, framework / "impl", framework / "interface", self.cann / "include"]
        return [SOURCE.parent, *own, self.shmem / "include", self.shmem / "src" / "device"]


def command(kit: Kit, variant: Variant, architecture: str, out: Path) -> list[str]:
    """The compiler call that makes `variant` for `architecture` in the directory `out`."""
    includes = [f"-I{path}" for path in kit.include_directories()]
    mix = ["-cce-enable-mix", f'-DTDIST_CORE_SUFFIX="{variant.suffix}"'] if variant.mix else []
    target = out / f"tdist_shmem.{variant.name}.{architecture}.bc"
    return [
        str(kit.compiler),
        *("-x", "cce", "-std=c++17", "-O2", "--cce-aicore-only", "--cce-auto-sync=off"),
        f"--cce-aicore-arch=dav-{architecture}-{variant.unit}",
        *mix,
        *includes,
        *("-emit-llvm", "-c", str(SOURCE), "-o", str(target)),
    ]


def find_kit(bisheng: Path | None, cann: Path | None, shmem: Path | None) -> Kit:
    """The kit from what the user named, the variables that CANN's and ACLSHMEM's `set_env.sh` set, and PATH.

    Raises:
        EnvironmentUnfit: A part is missing; names each and what provides it.
    """
    compiler = bisheng or _optional(shutil.which("bisheng") or shutil.which("ccec"))
    cann = cann or _optional(os.environ.get("ASCEND_HOME_PATH"))
    shmem = shmem or _optional(os.environ.get("SHMEM_HOME_PATH"))
    missing = [
        *_absent(compiler, "CANN's compiler `bisheng`", "--bisheng, or `source …/set_env.sh` of CANN"),
        *_absent(cann, "CANN's headers", "--cann, or ASCEND_HOME_PATH"),
        *_absent(shmem, "ACLSHMEM's headers", "--shmem, or SHMEM_HOME_PATH"),
    ]
    if compiler is None or cann is None or shmem is None or missing:
        raise EnvironmentUnfit(
            "the device library cannot be built here:\n"
            + "\n".join(f"  {line}" for line in missing)
            + "\nOnly linking a kernel for a card needs it; to see the commands, add --dry-run."
        )
    return Kit(compiler, cann, shmem)


def _optional(text: str | None) -> Path | None:
    return Path(text) if text else None


def _absent(path: Path | None, what: str, instead: str) -> list[str]:
    if path is None:
        return [f"not found: {what} ({instead})"]
    return [] if path.exists() else [f"not at {path}: {what} ({instead})"]


_PLACEHOLDERS = Kit(Path("bisheng"), Path("$ASCEND_HOME_PATH"), Path("$SHMEM_HOME_PATH"))


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Where to put bitcode.")
@click.option("--arch", "architectures", multiple=True, type=click.Choice(list(ARCHITECTURES)), help="Default: all.")
@click.option("--variant", "names", multiple=True, type=click.Choice([v.name for v in VARIANTS]), help="Default: all.")
@click.option("--bisheng", type=click.Path(path_type=Path), help="CANN's compiler.")
@click.option("--cann", type=click.Path(path_type=Path), help="CANN's root.")
@click.option("--shmem", type=click.Path(path_type=Path), help="ACLSHMEM's root.")
@click.option("--dry-run", is_flag=True, help="Print the commands, run nothing.")
def main(
    out: Path,
    architectures: tuple[str, ...],
    names: tuple[str, ...],
    bisheng: Path | None,
    cann: Path | None,
    shmem: Path | None,
    dry_run: bool,
) -> None:
    """Build tdist's device library over ACLSHMEM, as bitcode for each kind of core."""
    variants = [variant for variant in VARIANTS if not names or variant.name in names]
    try:
        kit = _PLACEHOLDERS if dry_run else find_kit(bisheng, cann, shmem)
        for architecture in architectures or ARCHITECTURES:
            for variant in variants:
                argv = command(kit, variant, architecture, out)
                click.echo(shlex.join(argv))
                if not dry_run:
                    _build(argv, variant)
    except TdistError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


def _build(argv: list[str], variant: Variant) -> None:
    target = Path(argv[-1])
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _run(argv)
        missing = missing_names(target.read_bytes() if target.exists() else b"", variant)
        if missing:
            raise EnvironmentUnfit(
                f"{target.name} has not {len(missing)} of the {len(signatures())} link names, `{missing[0]}` for one: "
                "kernels could not be linked with it. TDIST_ENTRY in library.h makes the names."
            )
    except EnvironmentUnfit:
        target.unlink(missing_ok=True)
        raise


def missing_names(bitcode: bytes, variant: Variant) -> list[str]:
    """Link names of the symbol table that `bitcode` has not; its table of names is a row of plain bytes."""
    wanted = (link_name(symbol) + variant.suffix for symbol in signatures())
    return [name for name in wanted if name.encode() not in bitcode]


def _run(argv: list[str]) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentUnfit(f"{argv[0]} did not do its work: {error}") from None
    if done.returncode != 0:
        raise EnvironmentUnfit(
            f"{argv[0]} ended with exit code {done.returncode} on the device library. This tdist has only been checked "
            f"against stub headers; library.h is the place where another release's names go.\n{done.stderr[-4000:]}"
        )


if __name__ == "__main__":
    main()
