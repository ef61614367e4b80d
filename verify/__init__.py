"""Verification of operators: declare one, run it on simulated ranks, judge it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdist.golden import Reference
    from tdist.verify.heap import ensure_shmem
    from tdist.verify.operator import Case, Operator, operator
    from tdist.verify.options import Options
    from tdist.verify.run import Report, verify

_PUBLIC = {
    "Case": "tdist.verify.operator",
    "Operator": "tdist.verify.operator",
    "Options": "tdist.verify.options",
    "Reference": "tdist.golden",
    "Report": "tdist.verify.run",
    "ensure_shmem": "tdist.verify.heap",
    "operator": "tdist.verify.operator",
    "verify": "tdist.verify.run",
}

__all__ = ["Case", "Operator", "Options", "Reference", "Report", "ensure_shmem", "operator", "verify"]


def __getattr__(name: str) -> Any:
    """Public names on first use: the pytest plugin lives in this package and must not bring torch along."""
    import importlib

    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
