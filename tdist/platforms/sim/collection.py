"""Python's garbage collection around a run.

A run makes very many objects that live as long as its world, and no cyclic garbage. A collection during the run, or of
the young objects at its end, would look at each of them and find nothing; it costs as much as making them does.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LOOK_AFTER_OBJECTS: Final = 100_000
_GROWTH: Final = 1.5


class _Growth:
    """When all objects of the process are worth a full collection; CPython asks the same of a quarter."""

    def __init__(self) -> None:
        self.made = 0
        self.before = 0

    def due(self, made: int) -> bool:
        """Whether there are half as many more as after the last full collection; call it with everything frozen."""
        self.made += made
        if self.made < _LOOK_AFTER_OBJECTS:
            return False
        self.made, now = 0, gc.get_freeze_count()
        if not self.before:
            self.before = now
        return now > _GROWTH * self.before

    def collect(self) -> None:
        """A full collection."""
        gc.collect()
        self.before = len(gc.get_objects())


_growth = _Growth()


@contextmanager
def paused() -> Iterator[None]:
    """No garbage collection inside; what is made inside counts as old afterwards.

    So collections of young objects do not see it. Does nothing where collection is off, or where somebody else has
    frozen objects.
    """
    if not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        made = gc.get_count()[0]
        gc.freeze()
        due = _growth.due(made)
        gc.unfreeze()
        gc.enable()
        if due:
            _growth.collect()


__all__ = ["paused"]
