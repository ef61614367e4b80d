"""A separate environment with the vendor's tools, for where stock Triton occupies the folder `triton`.

triton-ascend and stock Triton install into the same folder, so one environment holds one. This one is a directory of
packages in the user's cache: exact versions, each wheel checked against the SHA-256 in `toolchain.txt`, built beside
its place and renamed into it when it is whole. A command that needs it starts itself again with that directory before
everything else on its path; the user's own packages stay importable behind it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdist import env
from tdist.errors import EnvironmentUnfit

REQUIREMENTS = Path(__file__).with_name("toolchain.txt")
COMMAND = "tdist toolchain ascend"
REBUILD = f"{COMMAND} --rebuild"
NEEDED_BYTES = 1200 << 20
"""Wheels, what they unpack to, and pip's own temporary copies, rounded up."""
BUILD_SECONDS = 1800.0
PROGRAMS = (
    "triton/backends/ascend/triton-adapter-opt",
    "ascendnpuir/bin/bishengir-compile",
    "ascendnpuir/bin/bishengir-opt",
)
_RECORD = "tdist-toolchain.json"
_NEW = ".new-"

# Run with -c: the toolchain first, then the launcher's sys.path as it is.
_MAIN = """
import json, runpy, sys
sys.path[:] = json.loads(sys.argv[1])
sys.argv[:] = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Program:
    """A program of the toolchain: where it is, its SHA-256, whether it may be run and is what was installed."""

    path: Path
    digest: str
    runnable: bool
    as_installed: bool

    @property
    def trouble(self) -> str:
        """What is wrong with it; empty if nothing is."""
        if not self.digest:
            return "missing"
        if not self.as_installed:
            return "not what was installed"
        return "" if self.runnable else "no permission to run"


@dataclass(frozen=True)
class Toolchain:
    """A whole environment. `versions` is by distribution."""

    folder: Path
    versions: dict[str, str]

    def programs(self) -> list[Program]:
        """Each of the vendor's programs as it is on disk now; reads all of them."""
        recorded = _record(self.folder).get("programs", {})
        return [_program(self.folder, name, recorded.get(name, {})) for name in PROGRAMS]


def requirements() -> dict[str, str]:
    """Distribution → pinned version."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    pins = [line.split()[0].split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {pin[0]: pin[1] for pin in pins}


def place() -> Path:
    """Where the environment of this Python, machine and set of pins is or would be."""
    pins = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return _home() / f"ascend-{python}-{platform.machine()}-{pins}"


def _home() -> Path:
    return Path(env.CACHE_DIR.get()) / "toolchains"


def find() -> Toolchain | None:
    """The environment, if it has been made.

    Raises:
        EnvironmentUnfit: it is half made, damaged, or somebody else could have written it.
    """
    folder = place()
    if not os.path.lexists(folder):
        return None
    _check_private(_home())
    _check_private(folder)
    record = _record(folder)
    if not record:
        raise EnvironmentUnfit(f"the environment {folder} is half made: build it again with `{REBUILD}`")
    for name, facts in record["programs"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != facts["bytes"]:
            raise EnvironmentUnfit(f"the environment {folder} is damaged: {name} is missing or cut off; `{REBUILD}`")
    return Toolchain(folder, record["versions"])


def inside() -> bool:
    """Whether this process runs in the environment already."""
    return str(place()) in sys.path


def run_there(module: str, arguments: Sequence[str]) -> int:
    """Run `python -m module arguments` with the environment's packages first; its exit status.

    The process shares our terminal; Ctrl-C reaches it directly.

    Raises:
        EnvironmentUnfit: there is no whole environment.
    """
    toolchain = find()
    if toolchain is None:
        raise EnvironmentUnfit(f"there is no environment with the vendor's tools yet: make it with `{COMMAND}`")
    return _run([str(toolchain.folder), *sys.path], module, arguments)


def run_where_it_fits(module: str, arguments: Sequence[str]) -> int:
    """The same, in this environment if the vendor's tools can be used here.

    Raises:
        EnvironmentUnfit: they can be used in neither.
    """
    if where_to_run() is None:
        return _run(list(sys.path), module, arguments)
    return run_there(module, arguments)


def _run(path: list[str], module: str, arguments: Sequence[str]) -> int:
    words = [sys.executable, "-c", _MAIN, json.dumps(path), module, *arguments]
    process = subprocess.Popen(words)
    while True:
        try:
            status = process.wait()
            return 128 - status if status < 0 else status
        except KeyboardInterrupt:  # the child has it too, and ends
            continue


def build(rebuild: bool = False, say: Callable[[str], None] = print) -> Toolchain:
    """Make the environment unless it is there; an existing half-made one is replaced only by `rebuild`.

    Args:
        say: told what happens, in a line each.

    Raises:
        EnvironmentUnfit: no network, no space, no pip, a wheel that is not the pinned one, …; nothing of it is left.
    """
    folder = place()
    if not rebuild:
        found = find()
        if found is not None:
            return found
    _make_home()
    with _locked():
        _sweep()
        _check_space()
        work = _new_folder()
        try:
            say(f"installing {', '.join(f'{n} {v}' for n, v in requirements().items())} into {folder}")
            _install(work / "whole", temporary=work)
            _write_record(work / "whole")
            _replace(work / "whole", folder)
        except OSError as error:
            raise EnvironmentUnfit(f"cannot build {folder}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
    found = find()
    assert found is not None  # just renamed, under the lock
    return found


def _make_home() -> None:
    home = _home()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnfit(f"cannot make {home}: {error.strerror}; TDIST_CACHE_DIR names another place") from error
    _check_private(home)


def _check_private(folder: Path) -> None:
    """What others could have written is not run."""
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise EnvironmentUnfit(
            f"{folder} is not a directory of this user that only this user can write; others could have put programs "
            "there: delete it, or set TDIST_CACHE_DIR"
        )


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One builder at a time; the lock goes with the process that has it."""
    with open(_home() / ".lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentUnfit(f"another process is building in {_home()} now; try again when it is done") from None
        yield


def _sweep() -> None:
    """Under the lock: what killed builders have left."""
    for left in _home().glob(f"{_NEW}*"):
        shutil.rmtree(left, ignore_errors=True)


def _check_space() -> None:
    free = shutil.disk_usage(_home()).free
    if free < NEEDED_BYTES:
        raise EnvironmentUnfit(
            f"{_home()} has {free >> 20} MiB free, the environment needs {NEEDED_BYTES >> 20} MiB while it is built: "
            "free some, or let TDIST_CACHE_DIR name a place with more"
        )


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp(dir=_home(), prefix=_NEW))


def _install(target: Path, temporary: Path) -> None:
    """Let pip install the pinned wheels, which it checks. Its own temporary files go to the same disk."""
    target.mkdir(mode=0o700)
    words = [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-deps"]
    words += [
        "--require-hashes",
        "--only-binary=:all:",
        "--no-compile",
        "--target",
        str(target),
        "-r",
        str(REQUIREMENTS),
    ]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=BUILD_SECONDS,
            env={**os.environ, "PIP_USER": "0", "TMPDIR": str(temporary)},
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentUnfit(
            f"pip was not done after {BUILD_SECONDS:.0f} s: is the network slow? Try again"
        ) from None
    if done.returncode:
        raise EnvironmentUnfit(_told(done.stdout + done.stderr))


_PIPS_CONFIGURATION = "check network, proxy and pip's configuration (`pip config list`)"
_SUPPORTED = "Linux on x86-64 or aarch64 with Python 3.11 is needed"
_CAUSES = (
    ("No module named pip", "this Python has no pip: run `python -m ensurepip` first"),
    ("No space left on device", "no space is left: free some, or let TDIST_CACHE_DIR name a place with more"),
    ("Disk quota exceeded", "the disk quota is used up: free some, or let TDIST_CACHE_DIR name a place with more"),
    ("DO NOT MATCH THE HASHES", "the package index gave a file that is not the pinned one, and nothing was installed"),
    ("establish a new connection", f"the package index is out of reach: {_PIPS_CONFIGURATION}"),
    ("ProxyError", f"the proxy is out of reach: {_PIPS_CONFIGURATION}"),
    ("from versions: none", f"the package index is out of reach or has none of these packages: {_PIPS_CONFIGURATION}"),
    ("No matching distribution", f"the package index has no wheel for this Python and machine ({_SUPPORTED})"),
    ("not a supported wheel", f"there is no wheel for this Python and machine ({_SUPPORTED})"),
    ("Permission denied", "no permission to write there"),
)


def _told(output: str) -> str:
    """Why pip failed, in one line of ours and its own last words."""
    cause = next((text for sign, text in _CAUSES if sign in output), "pip failed")
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")] or output.strip().splitlines()[-1:]
    words = f" (pip: {errors[-1].removeprefix('ERROR: ')})" if errors else ""
    return f"cannot make the environment with the vendor's tools: {cause}{words}"


def _write_record(folder: Path) -> None:
    missing = [name for name in PROGRAMS if not (folder / name).is_file()]
    if missing:
        raise EnvironmentUnfit(f"the installed wheels lack {', '.join(missing)}")
    programs = {}
    for name in PROGRAMS:
        path = folder / name
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        programs[name] = {"sha256": _digest(path), "bytes": path.stat().st_size}
    text = json.dumps({"versions": requirements(), "programs": programs}, indent=1)
    (folder / _RECORD).write_text(text, encoding="utf-8")


def _replace(new: Path, folder: Path) -> None:
    """Put `new` in the place of `folder`; at no moment is a mixture of the two there."""
    if os.path.lexists(folder):
        old = _new_folder()
        os.rename(folder, old / "old")
        os.rename(new, folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(new, folder)


def _record(folder: Path) -> dict[str, Any]:
    """What was written last, so that it stands for a whole environment; empty if it is not there."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and set(record) == {"versions", "programs"} else {}


def _program(folder: Path, name: str, recorded: dict[str, Any]) -> Program:
    path = folder / name
    digest = _digest(path) if path.is_file() else ""
    return Program(path, digest, os.access(path, os.X_OK), digest == recorded.get("sha256"))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def missing_here() -> str:
    """Why the vendor's tools cannot be used in this process; empty if they can."""
    from tdist.frontend.environment import check_front_end
    from tdist.platforms.ascend.vendor import find as vendor

    try:
        check_front_end()
        for look in (vendor.triton_adapter_opt, vendor.bishengir_compile, vendor.bishengir_opt):
            look()
    except EnvironmentUnfit as error:
        return str(error)
    return ""


def check_here() -> None:
    """Refuse to go on where the vendor's tools cannot be used in this process.

    Raises: EnvironmentUnfit.
    """
    reason = missing_here()
    if reason:
        raise EnvironmentUnfit(f"{reason}\n`{COMMAND}` makes a separate environment for the vendor's tools")


def where_to_run() -> Toolchain | None:
    """None if the tools can be used in this process, else the environment that has them.

    Raises:
        EnvironmentUnfit: neither.
    """
    reason = missing_here()
    if not reason:
        return None
    if inside():
        raise EnvironmentUnfit(f"{reason} (in the environment {place()}; build it again with `{REBUILD}`)")
    found = find()
    if found is None:
        raise EnvironmentUnfit(f"{reason}\nOr make a separate environment for the vendor's tools: `{COMMAND}`")
    return found
