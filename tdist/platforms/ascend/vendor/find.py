"""Where the vendor's programs are, of which package and version, and what exactly they are (SHA-256)."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from tdist.errors import EnvironmentUnfit
from tdist.platforms.ascend.vendor import cache

INSTALL = (
    "install them into this environment with `pip install 'tdist[ascend]'`; where it has stock Triton, "
    "`tdist toolchain ascend` makes a separate environment for them"
)
_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclass(frozen=True)
class Program:
    """A program as a package brings it: distribution, import package, path in it."""

    name: str
    distribution: str
    package: str
    path: str


_PROGRAMS = {
    program.name: program
    for program in (
        Program("bishengir-compile", "ascendnpu-ir", "ascendnpuir", "bin/bishengir-compile"),
        Program("bishengir-opt", "ascendnpu-ir", "ascendnpuir", "bin/bishengir-opt"),
        Program("triton-adapter-opt", "triton-ascend", "triton", "backends/ascend/triton-adapter-opt"),
    )
}


@dataclass(frozen=True)
class Tool:
    """A program that is there and can run here. `version` is its package's, None for one found on PATH."""

    name: str
    path: Path
    version: str | None

    @property
    def digest(self) -> str:
        """SHA-256 of the file. It is computed once for each state of the file, and kept with the results."""
        info = self.path.stat()
        return _digest(str(self.path), info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)

    def __str__(self) -> str:
        return f"{self.name} {self.version or self.path}"


def bishengir_compile() -> Tool:
    """Linalg to the final module.

    Raises:
        EnvironmentUnfit: it is missing or cannot run, as in all functions of this file.
    """
    return find("bishengir-compile")


def bishengir_opt() -> Tool:
    """Reads and prints modules of the vendor's dialects."""
    return find("bishengir-opt")


def triton_adapter_opt() -> Tool:
    """TTIR to Linalg."""
    return find("triton-adapter-opt")


def hivmc() -> Tool | None:
    """The vendor's last code generator, which comes with CANN only; None if it is not on PATH."""
    path = shutil.which("hivmc")
    return None if path is None else Tool("hivmc", Path(path).resolve(), None)


def find(name: str) -> Tool:
    """The program `name` of the installed packages, looked up again in each call; nothing is imported."""
    program = _PROGRAMS[name]
    root = _package_folder(program)
    path = root / program.path
    if not path.is_file():
        raise EnvironmentUnfit(_missing_file(program, root))
    _check_runs_here(program, path)
    _make_runnable(path)
    return Tool(name, path, _version(program.distribution))


def check_whole(tool: Tool) -> None:
    """Refuse a program that is not the file that its package brought: asked where it fails without a reason.

    Raises:
        EnvironmentUnfit: what pip has noted of the file differs, as after a copy or a disk that was cut short.
    """
    program = _PROGRAMS.get(tool.name)
    noted = _noted_digest(program, tool.path) if program is not None else None
    if program is not None and noted is not None and noted != tool.digest:
        raise EnvironmentUnfit(
            f"{tool.path} is damaged: it is not the file that {program.distribution} {tool.version} was installed "
            f"with; {_again(program, tool.version)}"
        )


def _noted_digest(program: Program, path: Path) -> str | None:
    """SHA-256 of a file as its package's RECORD has it."""
    try:
        package = importlib.metadata.distribution(program.distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in package.files or ():
        if file.name == path.name and file.hash is not None and Path(str(package.locate_file(file))) == path:
            return base64.urlsafe_b64decode(f"{file.hash.value}==").hex() if file.hash.mode == "sha256" else None
    return None


def _again(program: Program, version: str | None) -> str:
    return f"install it again: pip install --force-reinstall --no-deps {program.distribution}=={version}"


def _package_folder(program: Program) -> Path:
    found = importlib.util.find_spec(program.package)
    if found is None or not found.submodule_search_locations:
        raise EnvironmentUnfit(f"{program.name} is not installed: it comes with {program.distribution}; {INSTALL}")
    return Path(next(iter(found.submodule_search_locations)))


def _missing_file(program: Program, root: Path) -> str:
    version = _version(program.distribution)
    if version is None:
        other = _version(program.package)
        what = f"{root} is {program.package} {other}" if other else f"{root} belongs to another package"
        return f"{program.name} is not installed: {what}, not {program.distribution}; {INSTALL}"
    return f"{program.distribution} {version} is installed without {root / program.path}; {_again(program, version)}"


def _check_runs_here(program: Program, path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(20)
    machine = _ELF_MACHINES.get(int.from_bytes(head[18:20], "little")) if head[:4] == b"\x7fELF" else None
    here = platform.machine()
    if machine is not None and machine != here:
        raise EnvironmentUnfit(
            f"{path} is built for {machine}, this machine is {here}; "
            f"install {program.distribution} on this machine itself: {INSTALL}"
        )
    if not head:
        raise EnvironmentUnfit(f"{path} is empty: {program.distribution} is half installed; {INSTALL}")


def _make_runnable(path: Path) -> None:
    """Set the run bit, which a wheel need not keep."""
    if os.access(path, os.X_OK):
        return
    try:
        path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o111)
    except OSError as error:
        command = f"chmod a+x {shlex.quote(str(path))}"
        raise EnvironmentUnfit(f"{path} may not be run by this user; let its owner run: {command}") from error
    if not os.access(path, os.X_OK):
        raise EnvironmentUnfit(f"{path} may not be run by this user: its file system is mounted noexec")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _digest(path: str, *state: int) -> str:
    key = cache.key("digest", path, *(str(number) for number in state))
    kept = cache.load(key)
    if isinstance(kept, str):
        return kept
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    cache.save(key, digest)
    return digest
