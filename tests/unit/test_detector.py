"""The race detector's rules one by one, and its memory: what is dropped, pruned and counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tdist.findings import FindingLog
from tdist.platforms.sim.clocks import AgentClocks, SlotSpace
from tdist.platforms.sim.detector import Detector
from tdist.platforms.sim.race_report import Who


def site(op: str, line: int, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(file="k.py", line=line, op=op, arg="x", **more)


STORE, LOAD, WORD = site("store", 1), site("load", 2), site("notify", 3)


class Bench:
    def __init__(self, size_bytes: int = 1 << 20) -> None:
        self.log = FindingLog()
        self.detector = Detector(self.log.add)
        self.space = SlotSpace()
        self.al = SimpleNamespace(rank=0, lo=1 << 20, hi=(1 << 20) + size_bytes, name="x", symmetric=True)
        self.a, self.b = self.agent(0), self.agent(1)

    def agent(self, program: int) -> Any:
        clocks = AgentClocks(self.space, self.space.slot((0, program, 0)))
        agent = SimpleNamespace(clocks=clocks, who=Who(0, 0, program))
        self.detector.bind(agent)
        return agent

    def word(self, off: int, width: int) -> Any:
        return SimpleNamespace(al=self.al, off=off, width=width, access=None)

    def message(self, sender: Any, receiver: Any, drains: bool = True) -> Any:
        return receiver.clocks.acquire(sender.clocks.release(drains))

    @property
    def kinds(self) -> list[str]:
        return [finding.kind.removeprefix("tdist.") for finding in self.log]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_two_loads_never_race(bench: Bench) -> None:
    bench.a.rd(bench.al, 0, 4, 64, 16, None, LOAD)
    bench.b.rd(bench.al, 0, 4, 64, 16, None, LOAD)
    assert not bench.kinds


def test_neighbouring_bytes_of_one_line_do_not_race(bench: Bench) -> None:
    bench.a.wr(bench.al, 0, 1, 0, 7, STORE)
    bench.b.wr(bench.al, 7, 1, 0, 1, STORE)
    assert not bench.kinds


def test_columns_of_interleaved_tiles_do_not_race(bench: Bench) -> None:
    bench.a.wr(bench.al, 0, 100, 30, 15, STORE)
    bench.b.wr(bench.al, 15, 100, 30, 15, STORE)
    assert not bench.kinds


def test_a_box_that_wraps_over_its_row_end_is_compared(bench: Bench) -> None:
    """The row end used to hide the part of a box that goes on in the next row."""
    bench.a.wr(bench.al, 28, 3, 32, 8, STORE)
    bench.b.rd(bench.al, 32, 1, 32, 4, None, LOAD)
    assert bench.kinds == ["race"]


def test_rows_of_different_strides_are_compared_exactly(bench: Bench) -> None:
    bench.a.wr(bench.al, 0, 50, 30, 2, STORE)
    bench.b.wr(bench.al, 7, 50, 10, 2, STORE)
    assert not bench.kinds
    bench.b.wr(bench.al, 8, 50, 21, 2, STORE)
    assert bench.kinds == ["race"]


def test_masked_off_access_is_none(bench: Bench) -> None:
    bench.a.wr(bench.al, 0, 0, 64, 16, STORE)
    bench.a.wr(bench.al, 0, 4, 64, 0, STORE)
    bench.a.rd_lanes(bench.al, np.array([], np.int64), 4, None, LOAD)
    assert bench.detector.stats().records == 0


def test_wait_without_token_orders_a_store_but_not_a_load(bench: Bench) -> None:
    bench.a.wr(bench.al, 0, 1, 0, 8, STORE)
    bench.message(bench.a, bench.b)
    bench.b.wr(bench.al, 0, 1, 0, 8, STORE)
    assert not bench.kinds
    other = Bench()
    other.a.wr(other.al, 0, 1, 0, 8, STORE)
    other.message(other.a, other.b)
    other.b.rd(other.al, 0, 1, 0, 8, None, LOAD)
    assert other.kinds == ["race"]


def test_a_store_between_wait_and_load_orders_the_load(bench: Bench) -> None:
    bench.a.wr(bench.al, 0, 1, 0, 8, STORE)
    bench.message(bench.a, bench.b)
    bench.b.wr(bench.al, 512, 1, 0, 8, STORE)
    bench.b.rd(bench.al, 0, 1, 0, 8, None, LOAD)
    assert not bench.kinds


def test_consumed_token_orders_the_load(bench: Bench) -> None:
    bench.a.wr(bench.al, 0, 1, 0, 8, STORE)
    bench.b.rd(bench.al, 0, 1, 0, 8, bench.message(bench.a, bench.b), LOAD)
    assert not bench.kinds


def test_write_after_read_needs_a_release_of_the_reader(bench: Bench) -> None:
    bench.a.rd(bench.al, 0, 1, 0, 8, None, LOAD)
    bench.message(bench.a, bench.b)
    bench.b.wr(bench.al, 0, 1, 0, 8, STORE)
    assert not bench.kinds
    bench.a.rd(bench.al, 0, 1, 0, 8, bench.message(bench.b, bench.a), LOAD)
    bench.b.wr(bench.al, 4, 1, 0, 1, STORE)
    assert bench.kinds == ["race"]


def test_every_reader_counts(bench: Bench) -> None:
    """One epoch for all readers would forget the first."""
    c = bench.agent(2)
    bench.a.rd(bench.al, 0, 1, 0, 8, None, LOAD)
    bench.b.rd(bench.al, 0, 1, 0, 8, None, LOAD)
    bench.message(bench.b, c)
    c.wr(bench.al, 0, 1, 0, 8, STORE)
    assert [finding.parties[0].program for finding in bench.log] == [0]


def test_undrained_release_is_a_hazard_and_fence_cures_it(bench: Bench) -> None:
    bench.a.wr(bench.al, 0, 1, 0, 8, STORE)
    bench.b.rd(bench.al, 0, 1, 0, 8, bench.message(bench.a, bench.b, drains=False), LOAD)
    assert bench.kinds == ["hazard.undrained-release"]
    cured = Bench()
    cured.a.wr(cured.al, 0, 1, 0, 8, STORE)
    cured.a.clocks.drain(flush_cache=True)
    cured.b.rd(cured.al, 0, 1, 0, 8, cured.message(cured.a, cured.b, drains=False), LOAD)
    assert not cured.kinds


@pytest.mark.parametrize("gather", [False, True])
def test_cached_load_needs_a_fence_after_the_wait(bench: Bench, gather: bool) -> None:
    def load(bench: Bench, token: Any) -> None:
        if gather:
            bench.b.rd_lanes(bench.al, np.array([0, 4]), 4, token, LOAD)
        else:
            bench.b.rd_cached(bench.al, 0, 1, 0, 8, token, LOAD)

    bench.a.wr(bench.al, 0, 1, 0, 8, STORE)
    load(bench, bench.message(bench.a, bench.b))
    assert bench.kinds == ["hazard.stale-cache"]
    cured = Bench()
    cured.a.wr(cured.al, 0, 1, 0, 8, STORE)
    token = cured.message(cured.a, cured.b)
    cured.b.clocks.drain(flush_cache=True)
    load(cured, token)
    assert not cured.kinds


def test_own_store_does_not_make_older_data_visible_to_a_cached_load(bench: Bench) -> None:
    bench.a.wr(bench.al, 0, 1, 0, 8, STORE)
    bench.message(bench.a, bench.b)
    bench.b.wr(bench.al, 0, 1, 0, 8, STORE)
    bench.b.rd_cached(bench.al, 0, 1, 0, 8, None, LOAD)
    assert bench.kinds == ["hazard.stale-cache"]


@pytest.mark.parametrize(("store", "load", "drained", "kinds"), [
    ("", "", False, []),
    ("remote", "", False, ["hazard.hidden-alias"]),
    ("", "remote", False, ["hazard.hidden-alias"]),
    ("remote", "consumed", False, ["hazard.hidden-alias"]),
    ("?", "?", False, ["hazard.hidden-alias"]),
    ("remote", "remote", False, []),
    ("remote", "", True, []),
])  # fmt: skip
def test_own_store_then_own_load_through_a_hidden_alias(
    bench: Bench, store: str, load: str, drained: bool, kinds: list[str]
) -> None:
    bench.a.wr(bench.al, 0, 4, 64, 32, site("store", 1, hidden=store))
    if drained:
        bench.a.clocks.drain(flush_cache=False)
    bench.a.rd(bench.al, 16, 2, 64, 32, None, site("load", 2, hidden=load))
    assert bench.kinds == kinds


def test_words_of_one_address_and_width_never_race_here(bench: Bench) -> None:
    bench.a.access_word(bench.word(0, 4), True, None, WORD)
    bench.b.access_word(bench.word(0, 4), True, None, WORD)
    bench.b.access_word(bench.word(0, 4), False, None, WORD)
    bench.a.access_atomics(bench.al, np.arange(0, 64, 4), 4, WORD)
    bench.b.access_atomics(bench.al, np.arange(32, 96, 4), 4, WORD)
    assert not bench.kinds


@pytest.mark.parametrize("words_first", [False, True])
def test_plain_access_races_with_a_word(bench: Bench, words_first: bool) -> None:
    if words_first:
        bench.a.access_word(bench.word(4, 4), True, None, WORD)
    bench.b.wr(bench.al, 0, 1, 0, 64, STORE)
    if not words_first:
        bench.a.access_word(bench.word(4, 4), False, None, WORD)
    assert bench.kinds == ["race"]


def test_ordered_reset_of_a_word_is_no_race(bench: Bench) -> None:
    bench.a.access_word(bench.word(4, 4), True, None, WORD)
    bench.message(bench.a, bench.b)
    bench.b.wr(bench.al, 0, 1, 0, 64, STORE)
    assert not bench.kinds


def test_atomics_of_other_width_or_phase_race(bench: Bench) -> None:
    bench.a.access_atomics(bench.al, np.arange(0, 64, 4), 4, WORD)
    bench.b.access_atomics(bench.al, np.arange(2, 66, 4), 4, site("atomic", 7))
    bench.b.access_atomics(bench.al, np.arange(0, 64, 8), 8, site("atomic", 8))
    assert bench.kinds == ["race", "race"]


def test_scatter_is_byte_exact(bench: Bench) -> None:
    bench.a.wr_lanes(bench.al, np.array([40, 0, 12, 13]), 2, STORE)
    bench.b.wr(bench.al, 2, 1, 0, 10, STORE)
    bench.b.wr(bench.al, 15, 1, 0, 25, STORE)
    assert not bench.kinds
    bench.b.wr(bench.al, 41, 1, 0, 1, STORE)
    assert bench.kinds == ["race"]


def test_host_and_stream_are_actors(bench: Bench) -> None:
    stream = SimpleNamespace(clocks=AgentClocks(bench.space, bench.space.slot("s")), who=Who(0, role="stream"))
    bench.a.wr(bench.al, 0, 1, 0, 8, STORE)
    bench.detector.host_read(stream, bench.al, 0, 1, 0, 64, site("cpu", 9))
    assert bench.kinds == ["race"]
    ordered = Bench()
    ordered.a.wr(ordered.al, 0, 1, 0, 8, STORE)
    stream = SimpleNamespace(clocks=AgentClocks(ordered.space, ordered.space.slot("s")), who=Who(0, role="stream"))
    stream.clocks.receive(ordered.a.clocks.end())
    ordered.detector.host_read(stream, ordered.al, 0, 1, 0, 64, site("cpu", 9))
    ordered.detector.host_write(stream, ordered.al, 0, 1, 0, 64, site("zero_", 9))
    assert not ordered.kinds


def test_a_race_met_again_is_counted_not_repeated(bench: Bench) -> None:
    for tile in range(5):
        bench.a.wr(bench.al, 64 * tile, 1, 0, 64, STORE)
        bench.b.rd(bench.al, 64 * tile, 1, 0, 64, None, LOAD)
    (finding,) = bench.log
    assert bench.log.count(finding) == 5 == bench.detector.stats().races_met


def test_freed_memory_is_forgotten(bench: Bench) -> None:
    bench.a.wr(bench.al, 0, 4, 64, 32, STORE)
    bench.a.wr_lanes(bench.al, np.array([0, 9]), 1, STORE)
    bench.a.access_word(bench.word(128, 4), True, None, WORD)
    bench.detector.drop(bench.al)
    bench.b.wr(bench.al, 0, 4, 64, 32, STORE)
    bench.b.wr(bench.al, 0, 1, 0, 256, LOAD)
    assert not bench.kinds


def test_launches_with_ever_new_shapes_do_not_grow_the_shadow(bench: Bench) -> None:
    """Everything is ordered before the next launch, so what is remembered stays bounded."""
    stream = AgentClocks(bench.space, bench.space.slot("s"))
    most = 0
    for launch in range(40):
        for agent in (bench.a, bench.b):
            agent.clocks.start(stream.release(drains=True), agent.clocks.slot)
        for row in range(300):
            agent = (bench.a, bench.b)[row % 2]
            agent.wr(bench.al, row * 2048 + launch, 1, 0, 1024 + launch, STORE)
        for agent in (bench.a, bench.b):
            stream.receive(agent.clocks.end())
        bench.detector.prune([stream])
        most = max(most, bench.detector.stats().records)
    assert not bench.kinds and most < 8500


def test_pruning_keeps_what_somebody_may_still_race_with(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.detector, "_prune_at", 0)
    bench.a.wr(bench.al, 0, 1, 0, 8, STORE)
    bench.b.wr(bench.al, 64, 1, 0, 8, STORE)
    bench.message(bench.a, bench.b)
    bench.b.clocks.drain(flush_cache=True)
    assert bench.detector.prune([bench.a.clocks, bench.b.clocks]) == 1
    bench.a.wr(bench.al, 64, 1, 0, 8, STORE)
    assert bench.kinds == ["race"]


def test_shadow_of_tiles_is_a_quarter_of_their_memory_at_most() -> None:
    """64 × 64 tiles of two bytes, four readers each."""
    bench = Bench()
    readers = [bench.agent(program) for program in range(2, 6)]
    for row in range(0, 512, 64):
        for column in range(0, 1024, 128):
            bench.a.wr(bench.al, row * 1024 + column, 64, 1024, 128, STORE)
            for reader in readers:
                reader.rd(bench.al, row * 1024 + column, 64, 1024, 128, None, LOAD)
    stats = bench.detector.stats()
    assert stats.records == 64 and stats.shadow_bytes < 0.25 * 512 * 1024


def test_bound_recorders_know_slots_given_out_later() -> None:
    """An agent with a short vector meets a write of a slot beyond its end."""
    bench = Bench()
    bench.space = SlotSpace(1)
    early = bench.agent(0)
    late = [bench.agent(program) for program in range(1, 8)][-1]
    late.wr(bench.al, 0, 1, 0, 8, STORE)
    early.rd(bench.al, 0, 1, 0, 8, None, LOAD)
    early.wr(bench.al, 0, 1, 0, 8, site("store", 4))
    assert bench.kinds == ["race", "race"]


def test_gathers_link_when_one_of_them_is_written(bench: Bench) -> None:
    """Gathers are not compared with each other; the first scatter to one of them must find the others."""
    even, odd = np.array([0, 8, 64, 72]), np.array([4, 12, 72, 80])
    bench.a.rd_lanes(bench.al, even, 4, None, LOAD)
    bench.b.rd_lanes(bench.al, odd, 4, None, LOAD)
    assert bench.detector.stats().overlaps == 0
    bench.b.wr_lanes(bench.al, odd, 4, STORE)
    assert bench.kinds == ["race"] and bench.detector.stats().overlaps == 2


def write_panel(bench: Bench, agents: list[Any]) -> None:
    """Four tiles of 4 rows and 16 bytes, beside each other."""
    for tile, agent in enumerate(agents):
        agent.wr(bench.al, 16 * tile, 4, 64, 16, STORE)


def read_panel(bench: Bench, reader: Any, token: Any) -> None:
    reader.rd(bench.al, 0, 4, 64, 64, token, LOAD)


def test_what_is_known_of_the_tiles_of_a_panel_ends_with_the_next_write(bench: Bench) -> None:
    c = bench.agent(2)
    write_panel(bench, [bench.a] * 4)
    token = bench.message(bench.a, bench.b)
    read_panel(bench, bench.b, token)
    read_panel(bench, bench.b, token)
    assert not bench.kinds
    c.clocks.acquire(bench.b.clocks.release(drains=True))
    c.wr(bench.al, 16, 4, 64, 16, STORE)
    assert not bench.kinds
    read_panel(bench, bench.b, token)
    assert bench.kinds == ["race"]


@pytest.mark.parametrize("lanes", [False, True])
def test_what_is_known_of_a_panels_readers_ends_with_the_next_read(bench: Bench, lanes: bool) -> None:
    write_panel(bench, [bench.a] * 4)
    read_panel(bench, bench.b, bench.message(bench.a, bench.b))
    bench.message(bench.b, bench.a)
    write_panel(bench, [bench.a] * 3)
    assert not bench.kinds
    token = bench.message(bench.a, bench.b)
    if lanes:
        bench.b.rd_lanes(bench.al, np.arange(0, 64, 4), 4, token, LOAD)
    else:
        read_panel(bench, bench.b, token)
    assert "race" not in bench.kinds
    bench.a.wr(bench.al, 0, 4, 64, 16, STORE)
    assert bench.kinds[-1] == "race"


def test_tiles_of_several_writers_are_compared_one_by_one(bench: Bench) -> None:
    c = bench.agent(2)
    write_panel(bench, [bench.a, c, bench.a, c])
    read_panel(bench, bench.b, bench.message(bench.a, bench.b))
    assert bench.kinds == ["race"]


def test_a_scatter_over_a_panel_is_a_write_like_any_other(bench: Bench) -> None:
    write_panel(bench, [bench.a] * 4)
    token = bench.message(bench.a, bench.b)
    read_panel(bench, bench.b, token)
    c = bench.agent(2)
    c.clocks.acquire(bench.b.clocks.release(drains=True))
    c.wr_lanes(bench.al, np.arange(0, 64, 4), 4, STORE)
    assert not bench.kinds
    read_panel(bench, bench.b, token)
    assert bench.kinds == ["race"]
