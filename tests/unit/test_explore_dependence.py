"""The dependence relation, row by row of its table."""

from __future__ import annotations

import pytest

from tdist.platforms.sim.explore.dependence import Access, Kind, collide, conflict, dependent, may_pass_without
from tdist.platforms.sim.regions import box_of

READS = (Kind.READ, Kind.PASS, Kind.BLOCK)
SIGNALS = (Kind.SET, Kind.ADD)


def access(kind: Kind, lo: int = 0, width: int = 8, base: int = 64, **more: int) -> Access:
    shape = box_of(lo, 1, 0, width)
    assert shape is not None
    return Access(base, shape, kind, **more)


@pytest.mark.parametrize("a", Kind)
@pytest.mark.parametrize("b", Kind)
def test_the_relation_is_symmetric_and_as_the_table_says(a, b):
    commute = (a in READS and b in READS) or {a, b} == {Kind.ADD}
    commute = commute or (Kind.BLOCK in (a, b) and ({a, b} - {Kind.BLOCK}) <= set(SIGNALS))
    assert conflict(access(a), access(b)) == conflict(access(b), access(a)) == (not commute)


def test_places_that_do_not_meet_never_conflict():
    store = access(Kind.WRITE)
    assert not conflict(store, access(Kind.WRITE, lo=8))
    assert not conflict(store, access(Kind.WRITE, base=128))
    assert dependent([access(Kind.READ, lo=8), access(Kind.READ)], [store])


def test_adds_of_different_width_do_not_commute():
    assert conflict(access(Kind.ADD), access(Kind.ADD, width=4))


@pytest.mark.parametrize(
    ("before", "delta", "kind", "want", "now", "may"),
    [
        (0, 0, Kind.SET, 1, 1, False),  # it is what the wait waited for
        (1, 0, Kind.SET, 1, 2, True),  # the word had the value, and was overwritten
        (2, 1, Kind.ADD, 3, 3, False),  # the last arrival
        (0, 1, Kind.ADD, 3, 3, False),  # an earlier one: all are needed
        (3, 1, Kind.ADD, 3, 4, True),  # one too many
        (0, 1, Kind.ADD, 3, 4, True),  # whichever that is
        (0, 1, Kind.ADD, 3, 2, False),  # too few: leaving one out leads away
        (4, -1, Kind.ADD, 3, 3, True),  # down and up again: no telling
    ],
)
def test_whether_a_wait_might_pass_without_a_signal(before, delta, kind, want, now, may):
    write = access(kind, before=before, delta=delta)
    wait = access(Kind.PASS if now == want else Kind.BLOCK, value=want, before=now)
    assert may_pass_without(write, wait) is may
    if wait.kind is Kind.BLOCK:
        assert collide(write, wait) is may


def test_a_blocked_wait_is_nothing_to_later_signals():
    blocked = access(Kind.BLOCK, value=1, before=0)
    assert not any(collide(blocked, access(kind, before=0, delta=1)) for kind in SIGNALS)
    assert collide(blocked, access(Kind.WRITE)) and collide(blocked, access(Kind.HOST))
