"""Generated source on disk. It is code to be executed, so nothing is trusted that another user could have written.

The directory must belong to this user and be closed to all others (0700). A file is one line with the SHA-256 of the
rest, then JSON. Files are written under a temporary name and renamed. Whatever fails a check is ignored, with a note.

`TDIST_CACHE_DIR` moves the cache; `TDIST_NO_CACHE=1` turns it off.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from tdist import env

from .codegen.function import Generated, Stats

logger = logging.getLogger("tdist")
PACKAGES = ("platforms/sim/codegen", "passes", "ir", "frontend")


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


def folder() -> Path | None:
    """The cache directory, made if need be; None if it is off or not private."""
    if env.NO_CACHE.get():
        return None
    path = Path(env.CACHE_DIR.get()) / "sim"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
    except OSError as error:
        logger.info("cache of generated code is off: %s", error)
        return None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
        logger.warning("cache of generated code is off: %s is not a directory of this user with mode 0700", path)
        return None
    return path


def load(key: str) -> Generated | None:
    """The source kept under `key`, if it is there and passes all checks."""
    where = folder()
    if where is None:
        return None
    path = where / f"{key}.json"
    try:
        content = _read_own(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("ignoring %s: %s", path, error)
        return None
    digest, _, body = content.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        logger.warning("ignoring %s: its digest does not fit its content", path)
        return None
    return _decode(json.loads(body))


def _read_own(path: Path) -> bytes:
    """The bytes of a regular file of this user; no link is followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if info.st_uid != os.getuid() or not stat.S_ISREG(info.st_mode):
            raise PermissionError("not a regular file of this user")
        return file.read()


def save(key: str, made: Generated) -> None:
    """Keep a source; failing to do so is only noted."""
    where = folder()
    if where is None:
        return
    body = json.dumps(_encode(made)).encode()
    try:
        descriptor, temporary = tempfile.mkstemp(dir=where, prefix=".new-")
        with open(descriptor, "wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        os.replace(temporary, where / f"{key}.json")
    except OSError as error:
        logger.info("could not keep generated code: %s", error)


def _encode(made: Generated) -> dict:
    stats = made.stats
    tiers = [[*place, count] for place, count in stats.tiers.items()]
    numbers = {"fused_loops": stats.fused_loops, "views": stats.views, "cached": stats.cached}
    return {"source": made.source, "tiers": tiers, "notes": stats.notes, **numbers}


def _decode(data: dict) -> Generated:
    tiers = {(file, line, op, tier): count for file, line, op, tier, count in data["tiers"]}
    stats = Stats(tiers, data["fused_loops"], data["views"], data["cached"], data["notes"])
    return Generated(data["source"], stats)
