"""Generated source on disk. It is code to be executed: see `tdist.private_cache` for what is trusted."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from tdist.private_cache import PrivateCache

from .codegen.function import Generated, Stats

PACKAGES = ("platforms/sim/codegen", "passes", "ir", "frontend")
_CACHE = PrivateCache("sim", "generated code")


@cache
def generator_digest() -> str:
    """A digest of the sources of everything that decides what is generated: a new tdist misses the old entries."""
    import tdist

    root = Path(tdist.__file__).parent
    files = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    digest = hashlib.sha256()
    for path in [*files, root / "platforms/sim/access.py", root / "platforms/sim/compiler.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def load(key: str) -> Generated | None:
    """The source kept under `key`, if it is there and passes all checks."""
    kept = _CACHE.load(key)
    return None if kept is None else _decode(kept)


def save(key: str, made: Generated) -> None:
    """Keep a source; failing to do so is only noted."""
    _CACHE.save(key, _encode(made))


def _encode(made: Generated) -> dict:
    stats = made.stats
    tiers = [[*place, count] for place, count in stats.tiers.items()]
    numbers = {"fused_loops": stats.fused_loops, "views": stats.views, "cached": stats.cached}
    return {"source": made.source, "tiers": tiers, "notes": stats.notes, **numbers}


def _decode(data: Any) -> Generated | None:
    """None where the file, though it passes all checks, holds something else than what `_encode` makes."""
    try:
        return _source_of(data)
    except (KeyError, TypeError, ValueError):
        return None


def _source_of(data: Any) -> Generated:
    tiers = {(file, line, op, tier): count for file, line, op, tier, count in data["tiers"]}
    stats = Stats(tiers, data["fused_loops"], data["views"], data["cached"], data["notes"])
    return Generated(data["source"], stats)
