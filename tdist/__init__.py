"""Find out whether multi-card fused Triton kernels over symmetric memory are right.

`World` runs a host function on N simulated ranks in this process; `tdist.verify` declares and verifies operators;
`tdist.language` is `dl`, `tdist.shmem` is `ash`. Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdist.platforms.base import RankRuntime, current
    from tdist.platforms.sim.world import World

__version__ = "0.1.0"
__all__ = ["RankRuntime", "World", "__version__", "current"]

_PUBLIC = {
    "RankRuntime": "tdist.platforms.base",
    "World": "tdist.platforms.sim.world",
    "current": "tdist.platforms.base",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
