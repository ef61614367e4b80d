"""Garbage collection around a run: nothing inside, no look at what the run made, but no leak either."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from tdist.platforms.sim import collection


class Knot:
    """Cyclic garbage as soon as nobody holds it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def gc_as_it_was() -> Iterator[None]:
    yield
    gc.enable()


def test_objects_made_inside_are_old_afterwards() -> None:
    with collection.paused():
        assert not gc.isenabled()
        kept = [Knot() for _ in range(10)]
    assert gc.isenabled() and not gc.get_freeze_count()
    young = {id(o) for generation in (0, 1) for o in gc.get_objects(generation)}
    assert not young & {id(o) for o in kept}


def test_collection_that_is_off_stays_off() -> None:
    gc.disable()
    with collection.paused():
        pass
    assert not gc.isenabled()


def test_objects_that_somebody_froze_stay_frozen() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with collection.paused():
            assert not gc.isenabled()
            Knot()
        assert gc.isenabled() and gc.get_freeze_count() == before
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(("growth", "alive"), [(0.5, False), (100.0, True)])
def test_garbage_goes_when_objects_have_become_many(
    growth: float, alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a full collection now and then, cycles that runs leave would pile up among the old objects."""
    monkeypatch.setattr(collection, "_LOOK_AFTER_OBJECTS", 100)
    monkeypatch.setattr(collection, "_GROWTH", growth)
    monkeypatch.setattr(collection, "_growth", collection._Growth())
    with collection.paused():
        knot = weakref.ref(Knot())
        held = [[] for _ in range(200)]
    assert (knot() is not None) is alive and len(held) == 200
