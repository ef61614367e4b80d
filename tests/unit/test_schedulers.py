"""Conformance kit: every registered scheduler, and replay, obey the same rules."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from engine_kit import Driver, HandKernel, site

from tdist.errors import UsageError
from tdist.platforms.sim.schedulers import ReplayScheduler, make_scheduler, names


@dataclass
class FakeAgent:
    position: int
    at_wait: bool = False
    rank: int = 0
    program: int = 0
    core: int = 0


def agents(*at_wait: bool) -> list[FakeAgent]:
    return [FakeAgent(i, waits) for i, waits in enumerate(at_wait)]


def picks(name: str, seed: int, n: int = 60) -> list[int]:
    made = make_scheduler(name)
    made.start(seed)
    got, current = [], None
    for step in range(n):
        pool = agents(*[False] * (1 + step % 5))
        current = pool[min(step % 3, len(pool) - 1)] if step % 4 else None
        got.append(made.pick(pool, current))
        assert 0 <= got[-1] < len(pool)
        assert made.choose(2) in (0, 1)
    return got


@pytest.mark.parametrize("name", names())
def test_a_seed_decides_everything(name):
    assert picks(name, 3) == picks(name, 3)


@pytest.mark.parametrize("name", names())
def test_start_forgets(name):
    made = make_scheduler(name)
    runs = []
    for _ in range(2):
        made.start(11)
        runs.append([made.pick(agents(False, False, False), None) for _ in range(40)])
    assert runs[0] == runs[1]


def test_random_depends_on_its_seed_and_reaches_everyone():
    assert picks("random", 1) != picks("random", 2)
    made = make_scheduler("random")
    made.start(0)
    assert {made.pick(agents(*[False] * 4), None) for _ in range(200)} == {0, 1, 2, 3}
    assert {made.choose(2) for _ in range(50)} == {0, 1}


@pytest.mark.parametrize("name", names())
def test_no_agent_is_starved_by_one_that_never_blocks(name):
    made = make_scheduler(name)
    made.start(0)
    pool = agents(False, False, False)
    current, seen = None, set()
    for _ in range(20_000):
        current = pool[made.pick(pool, current)]
        seen.add(current.position)
    assert len(seen) == 3


def test_run_to_block_stays_with_the_current_agent():
    made = make_scheduler("run-to-block")
    made.start(0)
    pool = agents(False, False, False)
    assert [made.pick(pool, pool[2]) for _ in range(5)] == [2] * 5
    assert made.pick(pool, None) == 0


def test_max_sync_lets_everyone_else_run_before_a_wait_returns():
    made = make_scheduler("max-sync")
    made.start(0)
    pool = agents(True, True, False)
    assert made.pick(pool, pool[0]) == 2
    assert made.pick(pool, None) == 2
    assert made.pick(agents(True, True), None) == 0


def test_an_unknown_scheduler_is_a_usage_error_that_names_the_known():
    with pytest.raises(UsageError, match="run-to-block"):
        make_scheduler("fifo")


def test_a_replay_that_does_not_fit_is_refused():
    made = ReplayScheduler([5])
    made.start(0)
    with pytest.raises(UsageError, match="choice 0 is 5"):
        made.pick(agents(False, False), None)


def _ping_pong(ag, pid, n, sig, sig_al):
    peer = 1 - ag.rank
    for i in range(1, 6):
        yield
        ag.notify(sig + 64 * pid[0], sig_al, i, peer, 2, 8, site(10, "notify", "sig"))
        yield from ag.wait(sig + 64 * pid[0], sig_al, 1, i, 8, "acquire", site(11, "wait", "sig"))


def _events(**config) -> tuple[list[int], list[str]]:
    driver = Driver(2, **config)
    sig = driver.malloc(64 * 3, "sig")
    driver.launch(HandKernel(_ping_pong, args=["sig"]), sig, grid=3)
    driver.sync()
    return driver.engine.events, driver.kinds()


@pytest.mark.parametrize("name", names())
def test_the_recorded_choices_replay_the_run(name):
    events, kinds = _events(scheduler=name, seed=4)
    assert events and _events(choices=tuple(events)) == (events, kinds)
    assert _events(scheduler=name, seed=4) == (events, kinds)


def test_detection_does_not_change_the_interleaving():
    assert _events(scheduler="random", seed=9)[0] == _events(scheduler="random", seed=9, detect=False)[0]
