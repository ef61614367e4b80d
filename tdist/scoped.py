"""Process-wide state that several scopes share: the first one in sets it up, the last one out undoes it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class CountedScope:
    """Counted, because scopes nest and overlap in threads.

    Args:
        set_up: called by the first one in; puts what undoes its work on the stack it is given. If it raises, what it
            has put there so far is undone and nobody is in.
    """

    def __init__(self, set_up: Callable[[contextlib.ExitStack], None]) -> None:
        self._set_up = set_up
        self._lock = threading.RLock()
        self._users = 0
        self._undo = contextlib.ExitStack()

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Be in for the length of the block."""
        self._join()
        try:
            yield
        finally:
            self._leave()

    def _join(self) -> None:
        with self._lock:
            if self._users == 0:
                with contextlib.ExitStack() as stack:
                    self._set_up(stack)
                    self._undo = stack.pop_all()
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._undo.close()
