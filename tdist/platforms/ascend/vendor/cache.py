"""Results of the vendor's programs, kept by content: what went in, which programs, which flags, which tdist."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

from tdist.private_cache import PrivateCache

_CACHE = PrivateCache("ascend", "compiled code")
_DECIDING = ("vendor", "lowering", "targets.py", "options.py")


@functools.cache
def our_digest() -> str:
    """A digest of our sources that decide what is kept: a new tdist misses the old entries."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for name in _DECIDING:
        path = root / name
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def key(kind: str, *parts: str) -> str:
    """The key of a result: its kind, and everything that decides it (texts, digests, flags), in order."""
    digest = hashlib.sha256()
    for part in (our_digest(), kind, *parts):
        data = part.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def load(key: str) -> Any | None:
    """What was kept, as JSON gives it; None if there is nothing that can be trusted."""
    return _CACHE.load(key)


def save(key: str, value: Any) -> None:
    """Keep a result: of a run that ended by itself, never of one that crashed or was given up."""
    _CACHE.save(key, value)
