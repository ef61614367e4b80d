"""Kernels compiled by the vendor's tools, checked for order; final modules are kept for a test session."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from effects_kit import build
from ordinary_kernels import ORDINARY

from tdist.findings import Finding
from tdist.platforms.ascend.compiled.final_module import FinalModule
from tdist.platforms.ascend.ordering import check_ordering

PREFIX = "tdist.compiled."


def ordinary(name: str, *, barrier_all: bool = False) -> FinalModule:
    """The final module of an ordinary kernel."""
    fn, signature, constants = ORDINARY[name]
    return build(fn, signature, barrier_all=barrier_all, **constants)[1]


def final(fn: Any, types: dict[str, str] | None = None, **how: Any) -> FinalModule:
    """The final module of a kernel; `barrier_all` and compile-time constants by name."""
    return build(fn, {"out": "*fp16", **(types or {})}, **how)[1]


def found(fn: Any, types: dict[str, str] | None = None, **how: Any) -> list[Finding]:
    """What the check of order finds in a kernel, arguments by name."""
    names = [name for name in fn.arg_names if not name.isupper()]
    return check_ordering(final(fn, types, **how), names=names)


def kinds(findings: Iterable[Finding]) -> list[str]:
    """Kinds without the prefix."""
    return [finding.kind.removeprefix(PREFIX) for finding in findings]


def line(fn: Any, name: str) -> int:
    """The line of the comment `# <name>` in a kernel."""
    lines, first = inspect.getsourcelines(fn.fn)
    return next(first + index for index, text in enumerate(lines) if f"# <{name}>" in text)


def lines(finding: Finding) -> list[int | None]:
    """The lines of a finding's parties."""
    return [party.line for party in finding.parties]
