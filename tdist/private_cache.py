"""Results on disk that a later run trusts: nothing in them could have been written by another user, or half-written.

A cache is a directory in `TDIST_CACHE_DIR` that belongs to this user and is closed to all others (0700). A file is one
line with the SHA-256 of the rest, then JSON. Files are written under a temporary name and renamed. Whatever fails a
check is a miss, with a note.

`TDIST_CACHE_DIR` moves all of them; `TDIST_NO_CACHE=1` turns them off.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdist import env

logger = logging.getLogger("tdist")


@dataclass(frozen=True)
class PrivateCache:
    """A cache by key. `name` is its directory, `what` names its entries in notes."""

    name: str
    what: str

    def folder(self) -> Path | None:
        """The directory, made if need be; None if it is off or not private."""
        if env.NO_CACHE.get():
            return None
        path = Path(env.CACHE_DIR.get()) / self.name
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            info = path.lstat()
        except OSError as error:
            logger.info("cache of %s is off: %s", self.what, error)
            return None
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
            logger.warning("cache of %s is off: %s is not a directory of this user with mode 0700", self.what, path)
            return None
        return path

    def load(self, key: str) -> Any | None:
        """What is kept under `key`, if it is there and passes all checks."""
        where = self.folder()
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
        return json.loads(body)

    def save(self, key: str, value: Any) -> None:
        """Keep a value that JSON can hold; failing to do so is only noted."""
        where = self.folder()
        if where is None:
            return
        body = json.dumps(value).encode()
        temporary = None
        try:
            descriptor, temporary = tempfile.mkstemp(dir=where, prefix=".new-")
            with open(descriptor, "wb") as file:
                file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            os.replace(temporary, where / f"{key}.json")
        except OSError as error:
            logger.info("could not keep %s: %s", self.what, error)
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)


def _read_own(path: Path) -> bytes:
    """The bytes of a regular file of this user; no link is followed, and no pipe is waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if info.st_uid != os.getuid() or not stat.S_ISREG(info.st_mode):
            raise PermissionError("not a regular file of this user")
        return file.read()
