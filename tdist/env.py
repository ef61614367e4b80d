"""The one registry of `TDIST_*` environment variables: typed, documented, an invalid value names its variable."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tdist.errors import EnvironmentUnfit, UsageError

T = TypeVar("T")
D = TypeVar("D")
REGISTRY: dict[str, Variable[Any]] = {}


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One variable: `get()` reads it at use, so that a test or a user may change it while the process runs."""

    name: str
    parse: Callable[[str], T]
    default: T
    expects: str
    help: str

    def get(self) -> T:
        """Its value, or the default where it is unset or empty.

        Raises:
            UsageError: the value is not what it should be.
        """
        text = os.environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise UsageError(f"{self.name} must be {self.expects}, got {text!r}") from None


def _declare(name: str, parse: Callable[[str], T], default: T | D, expects: str, help: str) -> Variable[T | D]:
    variable: Variable[T | D] = Variable(name, parse, default, expects, help)
    REGISTRY[name] = variable
    return variable


def one_of(*words: str) -> Callable[[str], str]:
    """A parser that takes exactly these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return parse


def flag(text: str) -> bool:
    """A parser of 1/0, true/false, yes/no, on/off."""
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    try:
        return words[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def positive_seconds(text: str) -> float:
    """A parser of a finite number of seconds above 0."""
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


def positive_count(text: str) -> int:
    """A parser of a whole number above 0."""
    count = int(text)
    if count <= 0:
        raise ValueError(text)
    return count


def directory(text: str) -> Path:
    """A parser of an absolute path, `~` expanded; it need not exist."""
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise ValueError(text)
    return path


def check_environment() -> None:
    """Read every variable, and refuse the ones that are not in the registry.

    Raises:
        UsageError: an invalid value, or a `TDIST_*` variable that does not exist (a misspelling would do nothing).
        EnvironmentUnfit: the working directory is gone; torch ends the process there without saying so.
    """
    try:
        os.getcwd()
    except OSError:
        raise EnvironmentUnfit("the working directory is gone: change to one that exists") from None
    for name in sorted(os.environ):
        if name.startswith("TDIST_") and name not in REGISTRY:
            raise UsageError(f"{name} is not a variable of tdist; it has: {', '.join(sorted(REGISTRY))}")
    for variable in REGISTRY.values():
        variable.get()


PLATFORM = _declare(
    "TDIST_PLATFORM", one_of("sim"), "sim", '"sim"', "Where kernels run: `sim`, the simulated platform of this machine."
)
CACHE_DIR = _declare(
    "TDIST_CACHE_DIR",
    directory,
    Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"), "tdist"),
    "an absolute directory",
    "Where compiled kernels are kept between runs.",
)
WATCHDOG_SECONDS = _declare(
    "TDIST_WATCHDOG_SECONDS",
    positive_seconds,
    60.0,
    "a number of seconds above 0",
    "How long any wait of tdist's own may go without progress before it gives up with a report.",
)
DUMP_DIR = _declare(
    "TDIST_DUMP_DIR", directory, None, "an absolute directory", "Gets a copy of the Python source of each kernel."
)
NO_CACHE = _declare("TDIST_NO_CACHE", flag, False, "1 or 0", "Turns the cache of compiled kernels off.")
VENDOR_SECONDS = _declare(
    "TDIST_VENDOR_SECONDS",
    positive_seconds,
    120.0,
    "a number of seconds above 0",
    "How long one step of the vendor's compiler may take; one that takes longer is ended.",
)
VENDOR_MEMORY_MIB = _declare(
    "TDIST_VENDOR_MEMORY_MIB",
    positive_count,
    8192,
    "a whole number of MiB above 0",
    "How much memory one step of the vendor's compiler may use.",
)
