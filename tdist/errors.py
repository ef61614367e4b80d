"""Errors that a user can meet, by whose fault they are.

Every error says what, where, expected and got, and what to do; the command line prints it without a traceback
and exits with `exit_code`.
"""

from __future__ import annotations

from typing import Protocol, Self

Place = tuple[str, int | None]
"""File and line of the user's source."""


class _Located(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...


class TdistError(Exception):
    """Base of all errors that tdist raises on purpose."""

    exit_code = 1
    place: Place | None = None

    def at(self, place: Place | _Located | None) -> Self:
        """The same error, which knows where in the user's source it arose; None leaves it as it is."""
        if place is not None:
            self.place = place if isinstance(place, tuple) else (place.file, place.line)
        return self


class KernelError(TdistError):
    """The user's kernel cannot be compiled or run: names the rule and the kernel's own file:line."""


class VerificationFailed(TdistError):
    """A run finished and its verdict is negative."""


class UsageError(TdistError):
    """Wrong use of the command line, of a fixture or of the Python API."""

    exit_code = 2


class EnvironmentUnfit(TdistError):
    """The machine or the installed packages do not allow the run: says which, and what to install or free."""

    exit_code = 3


class WorldStopped(TdistError):
    """A world ended before a host call could complete (deadlock, divergence, fault, lost rank).

    `findings` holds what was found until then.
    """

    def __init__(self, message: str, findings: tuple = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


class ProcessLost(WorldStopped):
    """A process that runs ranks ended or never started, and not by what the user's code did: the machine's fault.

    The engine, the fork server, or a rank that the kernel or an operator killed (out of memory).
    """

    exit_code = 3
