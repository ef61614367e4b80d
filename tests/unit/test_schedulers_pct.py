"""PCT keeps its promise: over many seeds the hit rate on planted faults is no lower than 1 / (n k^(d-1)).

One engine runs each case with one seed after another. A hit is deterministic for a seed, so a test either always passes
or always fails; its level says how far below the bound a rate has to lie to count as broken.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from engine_kit import Driver, HandKernel, site

from tdist.errors import UsageError
from tdist.platforms.sim.schedulers import PCTScheduler, RandomScheduler, Scheduler, bound
from tdist.platforms.sim.schedulers.pct import _MOST_DOUBLINGS

LEVEL = 1e-3
EXPECTED_HITS = 30
NOTIFY, WAIT = site(1, "notify", "sig"), site(2, "wait", "sig")


@dataclass
class Shared:
    """What the agents of a case have in common; `hit` once the planted order has come."""

    open: tuple[bool, bool] = (False, False)
    hit: bool = False


@dataclass(frozen=True)
class Case:
    """A planted fault: agents (programs of one rank), choices at most, depth, and what each agent does."""

    name: str
    depth: int
    choices: int
    agents: tuple[Callable[[Any, Shared, int, Any], Generator[None, Any, None]], ...]

    @property
    def bound(self) -> float:
        return bound(len(self.agents), self.choices, self.depth)

    @property
    def seeds(self) -> int:
        return math.ceil(EXPECTED_HITS / self.bound)


def window(which: int, ops: int, at: int):
    """`ops` operations; what is wrong in between holds from number `at` until the next one only."""

    def run(ag: Any, shared: Shared, address: int, al: Any) -> Generator[None, Any, None]:
        for op in range(ops):
            yield
            now = list(shared.open)
            now[which] = op == at
            shared.open = (now[0], now[1])

    return run


def check(wanted: tuple[bool, bool]):
    """One operation, which must not come while the windows are as `wanted`."""

    def run(ag: Any, shared: Shared, address: int, al: Any) -> Generator[None, Any, None]:
        shared.hit = shared.open == wanted
        return
        yield

    return run


def answering(slot: int, first: bool, rounds: int):
    """One of two agents that answer each other: they block and are woken."""

    def run(ag: Any, shared: Shared, address: int, al: Any) -> Generator[None, Any, None]:
        mine, theirs = (address + 64 * (slot + first), address + 64 * (slot + (not first)))
        for turn in range(1, rounds + 1):
            if not first:
                yield from ag.wait(mine, al, 1, turn, 8, "acquire", WAIT)
            yield
            ag.notify(theirs, al, 1, 0, "add", 8, NOTIFY)
            if first:
                yield from ag.wait(mine, al, 1, turn, 8, "acquire", WAIT)

    return run


def last(ag: Any, shared: Shared, address: int, al: Any) -> Generator[None, Any, None]:
    """Must not come when nobody else has begun."""
    shared.hit = shared.open == (False, False)
    return
    yield


def opens(ag: Any, shared: Shared, address: int, al: Any) -> Generator[None, Any, None]:
    """One operation before which `last` must not come."""
    shared.open = (True, shared.open[1])
    yield
    yield


# Depth 1: the last of four agents comes first. Random: 1/4.
FIRST = Case("comes first", 1, 9, (opens, opens, opens, last))
# Depth 2: the check has to come in one of 41 places. Random takes either of the two agents with 1/2 until the check has
# been made; the window opens with the 22nd step of its agent, so it is hit with 2^-23.
NARROW = Case("narrow window", 2, 41, (window(0, 40, 20), check((True, False))))
# Depth 3: one window opens, then the other, then comes the check, before either closes. Random: 1.4e-3 (see
# `random_hits`), not far below the bound of 2.3e-3: the bound falls with the square of the choices.
TWO = Case("two windows", 3, 12, (window(0, 5, 3), window(1, 5, 3), check((True, True))))
# Depth 2, beside two agents that block and wake each other all the time. Random: 2^-23 again, since between the two
# agents that matter, which can always run, it chooses as before.
NOISE = (answering(0, True, 3), answering(0, False, 3))
NOISY = Case("narrow window in noise", 2, 51, (window(0, 30, 20), check((True, False)), *NOISE))
CASES = [FIRST, NARROW, TWO, NOISY]


class Counting:
    """Counts the choices of a scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.most = self._made = 0

    def start(self, seed: int) -> None:
        self._made = 0
        self._scheduler.start(seed)

    def pick(self, runnable, current) -> int:
        self._made += 1
        self.most = max(self.most, self._made)
        return self._scheduler.pick(runnable, current)

    def choose(self, n: int) -> int:
        return 0


def hits(case: Case, scheduler: Scheduler, seeds: int) -> tuple[int, int]:
    """How many seeds show the fault, and the most choices that a run made."""
    shared = Shared()

    def body(ag, pids, nps, address, al):
        return case.agents[pids[0]](ag, shared, address, al)

    driver = Driver(1, detect=False)
    signals = driver.malloc(64 * 4, "sig", alignment=64)
    counted = driver.engine.scheduler = Counting(scheduler)
    found = 0
    for seed in range(seeds):
        shared.open, shared.hit = (False, False), False
        driver.al(signals[0]).view(torch.uint8).fill_(0)
        counted.start(seed)
        driver.launch(HandKernel(body), signals, grid=len(case.agents))
        driver.sync()
        found += shared.hit
    assert not driver.findings
    driver.engine.close()
    return found, counted.most


def at_most(hits: int, trials: int, p: float) -> float:
    """The probability of `hits` or fewer of `trials` that succeed with probability `p` each; exact but for rounding."""
    logs = [
        math.log(math.comb(trials, i)) + i * math.log(p) + (trials - i) * math.log1p(-p)
        for i in range(min(hits, trials) + 1)
    ]
    return math.fsum(map(math.exp, logs))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_hit_rate_is_no_lower_than_the_bound(case: Case) -> None:
    assert case.bound * case.seeds >= EXPECTED_HITS
    found, most = hits(case, PCTScheduler(case.depth, case.choices), case.seeds)
    print(f"{case.name}: {found} hits of {case.seeds}, bound {case.bound:.2e}, at most {most} choices")
    assert most <= case.choices, "the bound is stated for too few choices"
    assert at_most(found, case.seeds, case.bound) >= LEVEL, f"{found} hits of {case.seeds}, bound {case.bound}"


@pytest.mark.parametrize("case", [NARROW, NOISY], ids=lambda case: case.name)
def test_random_misses_what_pct_finds_with_as_many_seeds(case: Case) -> None:
    assert hits(case, RandomScheduler(), case.seeds)[0] == 0
    assert hits(case, PCTScheduler(case.depth, case.choices), case.seeds)[0] > 0


def test_a_guessed_length_costs_what_it_says() -> None:
    case = Case("short window", 2, 9, (window(0, 8, 4), check((True, False))))
    promised = case.bound / (_MOST_DOUBLINGS * 2 ** (case.depth - 1))
    seeds = math.ceil(EXPECTED_HITS / promised) // 3
    found, _ = hits(case, PCTScheduler(case.depth), seeds)
    assert at_most(found, seeds, promised) >= LEVEL, f"{found} hits of {seeds}, promised {promised}"
    assert found > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_too_few_changes_find_no_fault_of_more_depth(depth: int) -> None:
    """The promise is about a depth: with one change less the fault cannot show."""
    case = TWO
    assert hits(case, PCTScheduler(depth, case.choices), 1500)[0] == 0


def test_the_test_can_fail() -> None:
    """A scheduler that finds the fault at a third of the bound's rate is noticed."""
    case = NARROW
    assert at_most(EXPECTED_HITS // 3, case.seeds, case.bound) < LEVEL
    assert at_most(EXPECTED_HITS, case.seeds, case.bound) > 0.4
    assert abs(at_most(case.seeds, case.seeds, 0.5) - 1) < 1e-9


@functools.cache
def random_hits(a: int, b: int, ops: int, at: int) -> Fraction:
    """With which probability random shows `TWO`: agents have taken `a` and `b` of `ops` + 2 steps, the check none."""
    here = Fraction(int(a == b == at + 2))
    steps = ops + 1
    able = 1 + (a < steps) + (b < steps)
    return (
        here / able
        + (random_hits(a + 1, b, ops, at) / able if a < steps else 0)
        + (random_hits(a, b + 1, ops, at) / able if b < steps else 0)
    )


def test_the_probability_of_random_is_what_the_comment_says() -> None:
    chance = float(random_hits(0, 0, 5, 3))
    print(f"random on two windows: {chance:.3e}")
    found, _ = hits(TWO, RandomScheduler(), 2000)
    assert at_most(found, 2000, chance) > LEVEL and at_most(2000 - found, 2000, 1 - chance) > LEVEL


def test_the_bound_is_the_papers() -> None:
    assert bound(2, 10, 1) == 1 / 2
    assert bound(3, 10, 3) == 1 / 300
    for wrong in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(UsageError, match="of at least 1"):
            bound(*wrong)
