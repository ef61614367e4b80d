"""What each scheduler does; that each passes the conformance kit."""

from __future__ import annotations

from collections import Counter

import pytest
from engine_kit import Driver, HandKernel, site

from tdist.errors import UsageError
from tdist.platforms.sim.schedulers import ReplayScheduler, make_scheduler, names
from tdist.platforms.sim.schedulers.base import PATIENCE_STEPS
from tdist.platforms.sim.schedulers.conformance import RULES, StillAgent, run_scheduler_conformance

SPECS = [
    *(name for name in names() if name != "starved"),
    "pct:depth=5,steps=30",
    "skewed:rank=1,factor=100",
    "skewed:program=1,factor=100",
    "starved:rank=0",
    "starved:program=1",
    "starved:rank=1,program=0",
]


def agents(*at_wait: bool) -> list[StillAgent]:
    return [StillAgent(i, waits, program=i) for i, waits in enumerate(at_wait)]


def started(spec: str, seed: int = 0):
    made = make_scheduler(spec)
    made.start(seed)
    return made


@pytest.mark.parametrize("spec", SPECS)
def test_every_scheduler_obeys_the_rules(spec):
    assert run_scheduler_conformance(lambda: make_scheduler(spec), seeds=(3,)) == tuple(RULES)


def test_random_depends_on_its_seed_and_reaches_everyone():
    runs = [[started("random", seed).pick(agents(*[False] * 9), None) for _ in range(1)] for seed in range(20)]
    assert len(set(map(tuple, runs))) > 3
    made = started("random")
    assert {made.pick(agents(*[False] * 4), None) for _ in range(200)} == {0, 1, 2, 3}
    assert {made.choose(2) for _ in range(50)} == {0, 1}


def test_run_to_block_stays_with_the_current_agent():
    made = started("run-to-block")
    pool = agents(False, False, False)
    assert [made.pick(pool, pool[2]) for _ in range(5)] == [2] * 5
    assert made.pick(pool, None) == 0


def test_max_sync_lets_everyone_else_run_before_a_wait_returns():
    made = started("max-sync")
    pool = agents(True, True, False)
    assert made.pick(pool, pool[0]) == 2
    assert made.pick(pool, None) == 2
    assert made.pick(agents(True, True), None) == 0


def test_max_sync_does_not_spin_for_one_whose_wait_has_returned():
    made = started("max-sync")
    pool = agents(False, True)
    picks = [made.pick(pool, pool[0]) for _ in range(PATIENCE_STEPS + 1)]
    assert picks == [0] * PATIENCE_STEPS + [1]


def test_round_robin_takes_turns_by_place_whatever_the_order_of_the_list():
    made = started("round-robin")
    pool = agents(False, False, False)
    shuffled = [StillAgent(i, program=p) for i, p in enumerate((2, 0, 1))]
    assert [pool[made.pick(pool, None)].program for _ in range(2)] == [0, 1]
    assert shuffled[made.pick(shuffled, None)].program == 2
    assert [shuffled[made.pick(shuffled, None)].program for _ in range(4)] == [0, 1, 2, 0]
    assert pool[:2][made.pick(pool[:2], None)].program == 1, "the one whose turn it is has ended: the next"


@pytest.mark.parametrize(
    ("spec", "hungry"),
    [("starved:rank=1", [1, 4]), ("starved:program=1", [3, 4, 5]), ("starved:rank=1,program=1", [4])],
)
def test_the_starved_run_only_when_nobody_else_can(spec, hungry):
    pool = [StillAgent(i, rank=i % 3, program=i // 3) for i in range(6)]
    made = started(spec)
    picked = {made.pick(pool, None) for _ in range(PATIENCE_STEPS - 1)}
    assert picked == set(range(6)) - set(hungry)
    assert made.pick(pool, None) in hungry, "others may be spinning for them"
    only = [pool[i] for i in hungry]
    assert {only[made.pick(only, None)].position for _ in range(100)} == set(hungry)


@pytest.mark.parametrize(
    ("whom", "slow"),
    [("rank=1", {0, 2}), ("program=0", {0, 1}), ("rank=1,program=2", {2}), ("", {1})],
)
def test_a_skewed_rank_or_program_gets_one_of_so_many_turns(whom, slow):
    pool = [StillAgent(i, rank=rank, program=p) for i, (rank, p) in enumerate(((1, 0), (0, 0), (1, 2), (2, 1)))]
    made = started(f"skewed:{whom}{',' if whom else ''}factor=5", seed=1)
    picked = Counter(made.pick(pool, None) for _ in range(24_000))
    each = 24_000 / (4 - len(slow) + len(slow) / 5)
    for agent in pool:
        expected = each / 5 if agent.position in slow else each
        assert abs(picked[agent.position] - expected) < 0.1 * expected, picked


def test_latest_delivers_when_nothing_else_can_happen():
    plain, waited, effect = StillAgent(0), StillAgent(1, at_wait=True), StillAgent(2, at_effect=True)
    made = started("latest")
    assert made.pick([effect, waited, plain], None) == 2
    assert made.pick([effect, waited], None) == 1
    assert made.pick([effect, effect], None) in (0, 1)


def _ping_pong(ag, pid, n, sig, sig_al):
    peer = 1 - ag.rank
    for i in range(1, 6):
        yield
        ag.notify(sig + 64 * pid[0], sig_al, i, peer, 1, 8, site(10, "notify", "sig"))
        yield from ag.wait(sig + 64 * pid[0], sig_al, 1, i, 8, "acquire", site(11, "wait", "sig"))


def _where_agents_stand(ag, pid, n, sig, sig_al, seen):
    """Collects `at_effect` of all agents whenever one of them goes on."""
    seen.append([(other.rank, other.at_effect, other.at_wait) for other in ag.engine.runnable])
    yield
    ag.notify(sig, sig_al, 1, 1 - ag.rank, 1, 8, site(10, "notify", "sig"))
    yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", site(11, "wait", "sig"))
    seen.append([(other.rank, other.at_effect, other.at_wait) for other in ag.engine.runnable])


def test_an_agent_says_that_it_stands_before_an_effect():
    seen: list = []
    driver = Driver(2, scheduler="latest")
    sig = driver.malloc(64, "sig")
    kernel = HandKernel(lambda ag, pid, n, a, al: _where_agents_stand(ag, pid, n, a, al, seen))
    driver.launch(kernel, sig)
    driver.sync()
    first, second = sorted(seen[0]), sorted(seen[1])
    assert not any(at_effect for _, at_effect, _ in first), "nobody has begun"
    assert [at_effect for _, at_effect, _ in second].count(True) == 1, "the one that began before stands at its notify"


def test_latest_shows_what_a_consumer_did_not_wait_for():
    """One wait where two were needed: the second producer's data is missing, whatever the seed."""

    def two_producers(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", site(1, "wait", "sig"))
            found.append(sum(ag.engine.memory.lookup(data).words(8)[1:3]))
            return
        yield
        peer, address = ag.symm_at(data, data_al, 0, site(2, "symm_at"))[::-1]
        peer.words(8)[ag.rank] = 1
        del address
        if ag.rank == 1:
            yield
            ag.notify(sig, sig_al, 1, 0, 1, 8, site(3, "notify", "sig"))

    for seed in range(10):
        found: list[int] = []
        driver = Driver(3, scheduler="latest", seed=seed, detect=False)
        data, sig = driver.malloc(64, "data"), driver.malloc(64, "sig")
        driver.launch(HandKernel(two_producers), data, sig)
        driver.sync()
        if found == [1]:
            return
    pytest.fail("no seed in ten delivered the second producer's store after the wait")


def test_a_replay_that_does_not_fit_is_refused():
    made = ReplayScheduler([5])
    made.start(0)
    with pytest.raises(UsageError, match="choice 0 is 5"):
        made.pick(agents(False, False), None)


def _events(**config) -> tuple[list[int], list[str]]:
    driver = Driver(2, **config)
    sig = driver.malloc(64 * 3, "sig")
    driver.launch(HandKernel(_ping_pong, args=["sig"]), sig, grid=3)
    driver.sync()
    return driver.engine.events, driver.kinds()


@pytest.mark.parametrize("spec", SPECS)
def test_the_recorded_choices_replay_the_run(spec):
    events, kinds = _events(scheduler=spec, seed=4)
    assert events and _events(choices=tuple(events)) == (events, kinds)
    assert _events(scheduler=spec, seed=4) == (events, kinds)


def test_detection_does_not_change_the_interleaving():
    assert _events(scheduler="random", seed=9)[0] == _events(scheduler="random", seed=9, detect=False)[0]
