"""Verification of operators: declare one, run it on simulated ranks, judge it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Not on first use like the others: the decorator has to stand over the module of the same name.
from tdist.verify.operator import Case, Operator, operator

if TYPE_CHECKING:
    from tdist.golden import Reference
    from tdist.verify.heap import ensure_shmem
    from tdist.verify.options import Options
    from tdist.verify.run import Report, verify

_PUBLIC = {
    "Options": "tdist.verify.options",
    "Reference": "tdist.golden",
    "Report": "tdist.verify.run",
    "ensure_shmem": "tdist.verify.heap",
    "verify": "tdist.verify.run",
}

__all__ = ["Case", "Operator", "Options", "Reference", "Report", "ensure_shmem", "operator", "verify"]


def __getattr__(name: str) -> Any:
    """The other public names, on first use: the pytest plugin lives in this package and must not bring torch along."""
    import importlib

    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
