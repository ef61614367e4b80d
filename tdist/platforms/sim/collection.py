"""Python's garbage collection around a run, and in processes that are ours from their start.

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


class _Loading:
    """Whether a process of ours is importing, and whether what it has imported is frozen."""

    def __init__(self) -> None:
        self.going_on = False
        self.frozen = False


_growth = _Growth()
_loading = _Loading()


def start_loading() -> None:
    """For processes of ours (a command, the fork server): no collection while they import, until `loaded`."""
    _loading.going_on = True
    gc.disable()


def loaded() -> None:
    """What has been imported is there to stay: no collection looks at it, here or in a fork, which would copy it."""
    if not _loading.going_on:
        return
    _loading.going_on, _loading.frozen = False, True
    gc.freeze()
    gc.enable()


@contextmanager
def paused() -> Iterator[None]:
    """No garbage collection inside; what is made inside counts as old afterwards.

    So collections of young objects do not see it; but where somebody else has frozen objects, it stays young. Does
    nothing where collection is off.
    """
    if not gc.isenabled():
        yield
        return
    of_others = not _loading.frozen and gc.get_freeze_count() > 0  # to make ours old would be to thaw theirs
    gc.disable()
    try:
        yield
    finally:
        if of_others:
            gc.enable()
        else:
            _make_old()


def _make_old() -> None:
    """End a pause: by freezing, everything young becomes old."""
    made = gc.get_count()[0]
    gc.freeze()
    due = _growth.due(made)
    if due or not _loading.frozen:
        gc.unfreeze()
    gc.enable()
    if due:
        _growth.collect()
        if _loading.frozen:
            gc.freeze()


__all__ = ["loaded", "paused", "start_loading"]
