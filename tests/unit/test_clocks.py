"""Vector clocks, sentence by sentence of the ordering model's "Clocks" and "What a release covers"."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tdist.platforms.sim.clocks import (
    AgentClocks,
    Clock,
    SlotSpace,
    WordClock,
    floor_of,
    join_all,
    join_ends,
    join_vectors,
    join_words,
    later,
)


def pair() -> tuple[SlotSpace, AgentClocks, AgentClocks]:
    space = SlotSpace(4)
    return space, AgentClocks(space, space.slot("a")), AgentClocks(space, space.slot("b"))


def entry(clock: Clock | WordClock, agent: AgentClocks) -> tuple[int, int]:
    """What `clock` knows of `agent`, under seed and ascend."""
    return int(clock.seed[agent.slot]), int(clock.ascend[agent.slot])


def test_release_covers_what_was_before_and_nothing_after() -> None:
    _, a, b = pair()
    before = a.counter
    b.acquire(a.release(drains=True))
    assert entry(b.W, a) == (before, before)
    assert a.counter > before


def test_undrained_release_exports_the_last_drain_under_ascend_only() -> None:
    _, a, _ = pair()
    a.drain(flush_cache=False)
    drained, stamp = a.last_drain, a.counter
    assert entry(a.release(drains=False), a) == (stamp, drained)
    assert drained < stamp


def test_what_was_acquired_from_others_passes_on_unreduced() -> None:
    space, a, b = pair()
    c = AgentClocks(space, space.slot("c"))
    word = a.release(drains=True)
    b.acquire(word)
    c.acquire(b.release(drains=False))
    assert entry(c.W, a) == entry(word, a)
    assert entry(c.W, b)[1] < entry(c.W, b)[0]


def test_draining_release_moves_the_last_drain() -> None:
    _, a, _ = pair()
    stamp = a.counter
    a.release(drains=True)
    assert a.last_drain == stamp
    assert entry(a.release(drains=False), a) == (stamp + 1, stamp)


def test_every_drain_advances_so_that_later_accesses_are_not_covered() -> None:
    _, a, _ = pair()
    a.drain(flush_cache=False)
    assert a.counter == a.last_drain + 1


def test_wait_moves_w_and_leaves_r_until_a_write_effect() -> None:
    _, a, b = pair()
    start = b.R
    token = b.acquire(a.release(drains=True))
    assert b.R is start and token is b.W
    b.effect()
    assert b.R is b.W


def test_release_and_drain_are_write_effects() -> None:
    _, a, b = pair()
    b.acquire(a.release(drains=True))
    b.release(drains=False)
    assert b.R is b.W
    b.acquire(a.release(drains=True))
    b.drain(flush_cache=False)
    assert b.R is b.W


def test_cache_clock_moves_by_fence_only() -> None:
    _, a, b = pair()
    b.acquire(a.release(drains=True))
    b.effect()
    join_all([a, b])
    assert entry(b.F, a) == (0, 0)
    b.drain(flush_cache=False)
    assert entry(b.F, a) == (0, 0)
    b.drain(flush_cache=True)
    assert b.F is b.W


def test_relaxed_token_carries_r() -> None:
    _, a, b = pair()
    b.acquire(a.release(drains=True))
    assert b.snapshot() is b.R and b.R is not b.W


def test_later_is_the_newer_moment_of_one_agent() -> None:
    _, a, b = pair()
    old = b.acquire(a.release(drains=True))
    new = b.acquire(a.release(drains=True))
    assert later(old, new) is new and later(new, old) is new
    assert later(None, old) is old and later(old, None) is old and later(None, None) is None


def test_token_is_a_moment_that_later_acquires_do_not_change() -> None:
    _, a, b = pair()
    token = b.acquire(a.release(drains=True))
    known = entry(token, a)
    b.acquire(a.release(drains=True))
    assert entry(token, a) == known and entry(b.W, a) > known


def test_words_join_on_add_and_release_nothing_when_none() -> None:
    _, a, b = pair()
    first, second = a.release(drains=True), b.release(drains=True)
    both = join_words(first, second)
    assert both is not None and entry(both, a) == entry(first, a) and entry(both, b) == entry(second, b)
    assert join_words(None, first) is first and join_words(first, None) is first and join_words(None, None) is None
    known = b.W
    assert b.acquire(None) is known


def test_word_for_one_profile_only() -> None:
    _, a, b = pair()
    word = a.release(drains=True)
    b.acquire(word.only_seed())
    assert entry(b.W, a) == (int(word.seed[a.slot]), 0)
    b.acquire(word.only_ascend())
    assert entry(b.W, a) == entry(word, a)


def test_barrier_joins_everyone_and_drains() -> None:
    space, a, b = pair()
    c = AgentClocks(space, space.slot("c"))
    stamps = [x.counter for x in (a, b, c)]
    join_all([a, b, c])
    for x in (a, b, c):
        assert [entry(x.W, y) for y in (a, b, c)] == [(s, s) for s in stamps]
        assert x.R is x.W and x.counter == stamps[0] + 1


def test_soft_barrier_does_not_drain_under_ascend() -> None:
    _, a, b = pair()
    stamp, drained = a.counter, a.last_drain
    join_all([a, b], drains=False)
    assert entry(b.W, a) == (stamp, drained)


def test_barrier_tokens_are_newer_than_those_before_it() -> None:
    _, a, b = pair()
    token = b.acquire(a.release(drains=True))
    join_all([a, b])
    assert later(token, b.R) is b.R


def test_launch_starts_with_the_streams_clock_in_every_clock() -> None:
    space, a, stream = pair()
    stream.receive(a.end())
    agent = AgentClocks(space, space.slot("agent"))
    agent.start(stream.release(drains=True), agent.slot)
    for clock in (agent.W, agent.R, agent.F):
        assert entry(clock, a) == (a.counter - 1, a.counter - 1)


def test_a_reused_slot_goes_on_counting() -> None:
    _, stream, a = pair()
    a.release(drains=False)
    stamp = a.counter
    stream.receive(a.end())
    a.start(stream.release(drains=True), a.slot)
    assert a.counter == stamp + 1 and a.last_drain == stamp


def test_vectors_of_different_length_join_as_if_padded() -> None:
    short, long = np.array([3, 1], np.int32), np.array([2, 5, 7, 0], np.int32)
    assert join_vectors(short, long).tolist() == [3, 5, 7, 0]
    assert join_vectors(long, short).tolist() == [3, 5, 7, 0]
    assert short.tolist() == [3, 1] and long.tolist() == [2, 5, 7, 0]


def test_slots_may_be_given_out_while_agents_run() -> None:
    space = SlotSpace(1)
    a = AgentClocks(space, space.slot("a"))
    word = a.release(drains=True)
    late = [AgentClocks(space, space.slot(key)) for key in range(9)]
    assert space.capacity_slots >= 10 and space.slot("a") == 0
    late[8].acquire(word)
    a.acquire(late[8].release(drains=True))
    assert entry(late[8].W, a) == entry(word, a)
    assert entry(a.W, late[8]) == (1, 1)
    join_all([a, *late])
    assert entry(a.W, late[3]) == (1, 1)


def test_a_grown_clock_knows_the_same() -> None:
    space = SlotSpace(1)
    a = AgentClocks(space, space.slot("a"))
    known = a.W.seed.tolist()
    space.slot("b")
    a.grow()
    grown = a.W.seed.tolist()
    assert len(grown) == space.capacity_slots > len(known) and grown == known + [0] * (len(grown) - len(known))
    assert a.W.m[2] == 0


def test_a_released_vector_is_shared_and_its_own_entries_stand_beside_it() -> None:
    _, a, b = pair()
    a.drain(flush_cache=False)
    word = a.release(drains=False)
    assert word.base is a.W.vec
    assert entry(a.W, a) == (0, 0) and entry(word, a) == (2, 1)
    b.acquire(word)
    assert entry(b.W, a) == (2, 1) and entry(a.W, a) == (0, 0)


def test_a_wait_for_several_words_fills_one_vector_that_nobody_else_has() -> None:
    space, a, b = pair()
    c = AgentClocks(space, space.slot("c"))
    known = b.W
    first = b.acquire(a.release(drains=True))
    assert first is not known and entry(known, a) == (0, 0)
    version = first.version
    second = b.acquire(c.release(drains=True), private=first)
    assert second is first is b.W and second.version > version
    assert entry(b.W, a) == entry(b.W, c) == (1, 1)
    assert b.acquire(a.release(drains=True)) is not second


def test_a_word_that_several_released_brings_news_of_any_of_them() -> None:
    space, a, b = pair()
    c = AgentClocks(space, space.slot("c"))
    joined = join_words(a.release(drains=True), c.release(drains=False))
    known = b.W
    assert b.acquire(joined) is not known and entry(b.W, a) == (1, 1) and entry(b.W, c) == (1, 0)
    known = b.W
    assert b.acquire(joined) is known


def test_published_vectors_are_shared_and_never_written() -> None:
    _, a, b = pair()
    word = a.release(drains=True)
    vectors = [(x.vec, x.vec.copy()) for x in (word, a.W, b.W, b.R, b.F)]
    b.acquire(word)
    a.release(drains=False)
    join_all([a, b])
    b.drain(flush_cache=True)
    for vector, copy in vectors:
        assert vector.tolist() == copy.tolist()


def test_releases_remember_their_site() -> None:
    _, a, _ = pair()
    stamp = a.counter
    a.release(drains=False, site="notify")
    assert a.release_site(stamp) == "notify" and a.release_site(stamp + 1) is None


def test_floor_is_what_everyone_knows() -> None:
    _, a, b = pair()
    b.receive(a.release(drains=True))
    floor = floor_of([a, b])
    assert floor[a.entry] == 1 and floor[b.entry] == 0


def test_floor_counts_the_cache_clock() -> None:
    """An access that a cached load may still miss is not settled."""
    _, a, b = pair()
    b.acquire(a.release(drains=True))
    b.effect()
    assert floor_of([a, b])[a.entry + 1] == 0
    b.drain(flush_cache=True)
    assert floor_of([a, b])[a.entry + 1] == 1


@pytest.mark.parametrize("seed", range(20))
def test_acquire_is_a_join_whichever_way_it_is_made(seed: int) -> None:
    """Of bases joined before and of new ones, after barriers too; what was published before stays what it was."""
    dice, space = random.Random(seed), SlotSpace(5)
    agents = [AgentClocks(space, space.slot(name)) for name in range(4)]
    words, published = [agents[0].release(True)], []
    for _ in range(200):
        agent = dice.choice(agents)
        if dice.random() < 0.4:
            words.append(agent.release(dice.random() < 0.5))
        elif dice.random() < 0.05:
            join_all(agents, drains=dice.random() < 0.5)
        else:
            word, private = dice.choice(words[-6:]), None
            for _ in range(dice.randint(1, 3)):
                expected = join_vectors(agent.W.vec, word.vec).tolist()
                before = agent.W
                after = agent.acquire(word, private)
                assert after.vec.tolist() == expected and after is agent.W
                private = after if after is not before else private
                word = dice.choice(words[-6:])
            published.append((agent.W, agent.W.vec.tolist()))
        for clock, vector in published[-20:]:
            assert clock.vec.tolist() == vector


def test_ends_are_joined_as_one_after_another() -> None:
    space, a, b = pair()
    c = AgentClocks(space, space.slot("c"))
    b.acquire(a.release(drains=False))
    ends = [c.end(), b.end(), a.end()]
    one_by_one = join_words(join_words(ends[0], ends[1]), ends[2])
    assert one_by_one is not None
    assert join_ends(ends).vec.tolist() == one_by_one.vec.tolist()
    assert join_ends([join_ends(ends[:2]), ends[2]]).vec.tolist() == one_by_one.vec.tolist()
    assert join_ends(ends[:1]).vec.tolist() == ends[0].vec.tolist()


def test_ends_of_shorter_vectors_count_as_zero_beyond() -> None:
    space, a, b = pair()
    early = a.end()
    for name in range(9):
        space.slot(name)
    b.grow()
    joined = join_ends([early, b.end()])
    assert len(joined.vec) == 2 * space.capacity_slots
    assert joined.vec[a.entry] == early.stamp and joined.vec[b.entry] == 1


@pytest.mark.parametrize("seed", range(40))
def test_acquiring_several_at_once_is_acquiring_them_one_after_another(seed: int) -> None:
    dice, space = random.Random(seed), SlotSpace(8)
    agents = [AgentClocks(space, space.slot(n)) for n in range(6)]
    released = [agents[0].release(drains=True)]
    for _ in range(60):
        agent = dice.choice(agents)
        if dice.random() < 0.4:
            agent.acquire(dice.choice(released))
        else:
            released.append(agent.release(drains=dice.random() < 0.3))
    together, apart = AgentClocks(space, space.slot("x")), AgentClocks(space, space.slot("x"))
    for _ in range(4):
        words = dice.choices(released, k=dice.randint(1, 9))
        told = []
        for word in words:
            before = apart.W
            told.append(apart.acquire(word) is not before)
        before = together.W
        assert together.acquire_all(words) == told
        assert (together.W is not before) == any(told)
        assert (together.W.version > before.version) == any(told)
        assert together.W.vec.tolist() == apart.W.vec.tolist() == list(together.W.m)
