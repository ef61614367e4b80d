"""Results on disk that a later run trusts: nothing in them could have been written by another user, or half-written.

A cache is a directory in `TDIST_CACHE_DIR` that belongs to this user and is closed to all others (0700). A file is one
line with the SHA-256 of the rest, then JSON. Files are written under a temporary name and renamed. Whatever fails a
check is a miss, with a note.

Who is about to make something that others may need at the same time takes its `turn`: they wait for him, for so long.

`TDIST_CACHE_DIR` moves all of them; `TDIST_NO_CACHE=1` turns them off.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdist import env

logger = logging.getLogger("tdist")
_LOCK = "turns"
_LOCK_DIGITS = 14  # of a key, as the offset of its byte in that file, which is empty
_FIRST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.02


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
        """What is kept under `key`, if it is there and passes all checks; its shape is the caller's to check."""
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
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:  # ValueError: also of bytes that are no text
            logger.warning("ignoring %s: not JSON (%s)", path, error)
            return None

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

    @contextlib.contextmanager
    def turn(self, key: str, patience_seconds: float) -> Iterator[bool]:
        """Be the only process of this user that is about to make what `key` (hexadecimal) names.

        The lock ends with its holder, however that ends. It is a courtesy: who has waited for `patience_seconds`, or
        whose file system has no locks, goes on without, and two processes make the same.

        Returns:
            Whether somebody else had the turn, so that there may be something to load by now.
        """
        with contextlib.ExitStack() as held:
            where = self.folder()
            yield where is not None and _wait_for_turn(held, where / _LOCK, key, patience_seconds)


def _wait_for_turn(held: contextlib.ExitStack, path: Path, key: str, patience_seconds: float) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        logger.info("no turns at %s: %s", path, error)
        return False
    held.callback(os.close, descriptor)  # which gives the lock back
    offset, until = int(key[:_LOCK_DIGITS], 16), time.monotonic() + patience_seconds
    pause_seconds, waited = _FIRST_PAUSE_SECONDS, False
    while not _lock(descriptor, offset):
        waited = True
        if time.monotonic() > until:
            logger.info("nobody has made %s in %g s", key, patience_seconds)
            break
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
    return waited


def _lock(descriptor: int, offset: int) -> bool:
    """Whether the byte is this process's now; where there are no locks, nobody waits."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        logger.info("no turns: %s", error)
    return True


def _read_own(path: Path) -> bytes:
    """The bytes of a regular file of this user; no link is followed, and no pipe is waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if info.st_uid != os.getuid() or not stat.S_ISREG(info.st_mode):
            raise PermissionError("not a regular file of this user")
        return file.read()
