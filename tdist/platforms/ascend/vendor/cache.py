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
    try:
        return _CACHE.load(key)
    except (ValueError, RecursionError):  # its digest fits, and it is no JSON
        return None


def fits(value: object, shape: Any) -> bool:
    """Whether a kept value has the shape that a reader goes by.

    Args:
        value: as JSON gives it.
        shape: a type; `[shape]` for a list, `[shape, shape]` for one of so many; a dict of names and shapes, all of
            which must be there; a tuple of alternatives; or None. Numbers: `float` takes whole ones, too, and no bool
            is a number.
    """
    if shape is None:
        return value is None
    if isinstance(shape, tuple):
        return any(fits(value, each) for each in shape)
    if isinstance(shape, list):
        if not isinstance(value, list) or len(shape) not in (1, len(value)):
            return False
        return all(fits(each, shape[0]) for each in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(name in value and fits(value[name], shape[name]) for name in shape)
    if isinstance(value, bool):
        return shape is bool
    return isinstance(value, (int, float) if shape is float else shape)


def save(key: str, value: Any) -> None:
    """Keep a result: of a run that ended by itself, never of one that crashed or was given up."""
    _CACHE.save(key, value)
