"""Which Triton this environment has: triton-ascend and stock Triton install into the same folder."""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from tdist.errors import EnvironmentUnfit

WANTED = "3.2.0"
_REPAIR = (
    f"python -m pip uninstall -y triton triton-ascend && "
    f'python -m pip install --no-deps "triton-ascend=={WANTED}" && python -m pip install pybind11'
)
# Files that both packages bring; the one installed last wins.
_TELLTALES = ("triton/__init__.py", "triton/compiler/code_generator.py", "triton/_C/libtriton.so")


@dataclass(frozen=True)
class FrontEnd:
    """A usable front end."""

    package: str
    version: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.package} {self.version} ({self.folder})"


def check_front_end() -> FrontEnd:
    """The front end of this environment.

    Raises:
        EnvironmentUnfit: none, another one, or a mixture of two in one folder; says how to repair it.
    """
    installed = {name: version for name in ("triton-ascend", "triton") if (version := _version(name))}
    if "triton-ascend" not in installed:
        raise EnvironmentUnfit(_without_ascend(installed.get("triton")))
    overwritten = _overwritten()
    if overwritten:
        by = f" by triton {installed['triton']}" if "triton" in installed else ""
        raise EnvironmentUnfit(
            f"triton-ascend {installed['triton-ascend']} is installed, but its files were overwritten{by} "
            f"({', '.join(overwritten)}): both install into the folder `triton`. Repair it with: {_REPAIR}"
        )
    if installed["triton-ascend"] != WANTED:
        raise EnvironmentUnfit(f"triton-ascend {WANTED} is needed, {installed['triton-ascend']} is installed. {_fix()}")
    return FrontEnd("triton-ascend", installed["triton-ascend"], _imported_folder())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _fix() -> str:
    return f"Run: {_REPAIR}"


def _without_ascend(stock: str | None) -> str:
    if stock is None:
        return f"no Triton front end is installed; tdist needs triton-ascend {WANTED}. {_fix()}"
    return (
        f"stock triton {stock} is installed where tdist needs triton-ascend {WANTED} "
        f"(a CUDA build of torch requires it and installs it into the same folder). {_fix()}"
    )


def _overwritten() -> list[str]:
    """Files of triton-ascend that are not as its own record says."""
    files = {str(file): file for file in importlib.metadata.files("triton-ascend") or ()}
    return [name for name in _TELLTALES if name in files and _differs(files[name])]


def _differs(file: importlib.metadata.PackagePath) -> bool:
    path = Path(str(file.locate()))
    return not path.exists() or (file.size is not None and path.stat().st_size != file.size)


def _imported_folder() -> Path:
    try:
        triton = importlib.import_module("triton")
        importlib.import_module("triton.backends.ascend.compiler")
    except Exception as error:
        raise EnvironmentUnfit(
            f"triton-ascend {WANTED} does not import ({type(error).__name__}: {error}). {_fix()}"
        ) from error
    return Path(str(triton.__file__)).parent
