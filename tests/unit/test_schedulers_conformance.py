"""The conformance kit can fail: each broken scheduler is refused at the rule that it breaks."""

from __future__ import annotations

import random

import pytest

from tdist.errors import TdistError
from tdist.platforms.sim.schedulers import RandomScheduler, RunToBlockScheduler
from tdist.platforms.sim.schedulers.conformance import RULES, ConformanceError, run_scheduler_conformance


class OneTooFar(RandomScheduler):
    def pick(self, runnable, current):
        return min(super().pick(runnable, current) + 1, 4)


class Negative(RandomScheduler):
    def pick(self, runnable, current):
        return super().pick(runnable, current) - len(runnable)


class Truth(RandomScheduler):
    def pick(self, runnable, current):
        return len(runnable) > 1 and bool(super().pick(runnable, current))


class NeedsCurrent(RunToBlockScheduler):
    def pick(self, runnable, current):
        return current.position


class NoCurrentGivesNone(RunToBlockScheduler):
    def pick(self, runnable, current):
        return None if current is None else current.position


class ChoosesTwoAlways(RandomScheduler):
    def choose(self, n):
        return int(self._draw() * 2)


class Sorts(RandomScheduler):
    def pick(self, runnable, current):
        runnable.sort(key=lambda agent: -agent.program)
        return super().pick(runnable, current)


class Marks(RandomScheduler):
    def pick(self, runnable, current):
        runnable[0].at_wait = True
        return super().pick(runnable, current)


class GlobalRandom:
    def start(self, seed):
        random.seed()

    def pick(self, runnable, current):
        return random.randrange(len(runnable))

    def choose(self, n):
        return 0


class Remembers(RandomScheduler):
    def __init__(self):
        self._runs = 0

    def start(self, seed):
        super().start(seed + 1000 * self._runs)
        self._runs += 1


class Shared(RandomScheduler):
    drawn: random.Random

    def start(self, seed):
        type(self).drawn = random.Random(seed)

    def pick(self, runnable, current):
        return self.drawn.randrange(len(runnable))

    def choose(self, n):
        return self.drawn.randrange(n)


class Impatient(RunToBlockScheduler):
    """Never leaves one that spins."""

    def pick(self, runnable, current):
        return 0 if current is None else current.position


class FavoursRankZero(RandomScheduler):
    def pick(self, runnable, current):
        return min(range(len(runnable)), key=lambda index: (runnable[index].rank, runnable[index].program))


class PromisesTooMuch(RunToBlockScheduler):
    """Grants more steps than its patience has."""

    def stay(self, picks):
        return True


class ForgetsItsSteps(RunToBlockScheduler):
    """Grants steps without counting them."""

    def stay(self, picks):
        return picks < 1000


class ForgetsToStart(RandomScheduler):
    def start(self, seed):
        raise RuntimeError("no seed")


class DrawsFromTheSystem(RandomScheduler):
    """Its seed decides only as long as nobody runs."""

    def pick(self, runnable, current):
        if not hasattr(runnable[0], "engine"):
            return super().pick(runnable, current)
        return random.SystemRandom().randrange(len(runnable))


class AddsChoices(RandomScheduler):
    """Makes choices that nobody asked for."""

    def pick(self, runnable, current):
        if hasattr(runnable[0], "engine"):
            runnable[0].engine.events.append(1)
        return super().pick(runnable, current)


class LooksInto(RandomScheduler):
    """Changes the world that it only has to schedule, by its first choices."""

    def start(self, seed):
        super().start(seed)
        self._left = 3

    def pick(self, runnable, current):
        words = getattr(runnable[0], "words", None)
        if words is not None and self._left:
            self._left -= 1
            words.changes += 1
            launch = runnable[0].launch
            launch.args[1].words(8)[7] += 1
        return super().pick(runnable, current)


BROKEN = [
    (OneTooFar, "pick-in-range"),
    (Negative, "pick-in-range"),
    (Truth, "pick-in-range"),
    (NeedsCurrent, "current-none"),
    (NoCurrentGivesNone, "current-none"),
    (ChoosesTwoAlways, "choose-in-range"),
    (Sorts, "only-looks"),
    (Marks, "only-looks"),
    (GlobalRandom, "seed-decides"),
    (Remembers, "start-forgets"),
    (Shared, "runs-apart"),
    (Impatient, "everyone-runs"),
    (FavoursRankZero, "everyone-runs"),
    (PromisesTooMuch, "stays"),
    (ForgetsItsSteps, "stays"),
    (ForgetsToStart, "start"),
    (LooksInto, "live-protocols-end"),
    (DrawsFromTheSystem, "same-run-twice"),
    (AddsChoices, "replays"),
]


@pytest.mark.parametrize(("broken", "rule"), BROKEN)
def test_a_broken_scheduler_is_refused_at_its_rule(broken, rule):
    with pytest.raises(ConformanceError) as refused:
        run_scheduler_conformance(broken, seeds=(5,))
    assert refused.value.rule == rule
    assert str(refused.value).startswith(f"rule {rule}: ")
    assert isinstance(refused.value, TdistError) and isinstance(refused.value, AssertionError)


class SpinsInWorlds(RandomScheduler):
    """Fair to agents that stand still, but in a world stays with the first program."""

    def pick(self, runnable, current):
        if not hasattr(runnable[0], "engine"):
            return super().pick(runnable, current)
        return max(range(len(runnable)), key=lambda index: (runnable[index].program, runnable[index].rank))


def test_a_live_lock_ends_at_a_limit(monkeypatch):
    from tdist.platforms.sim.schedulers import conformance

    monkeypatch.setattr(conformance.Checked.__init__, "__defaults__", (20_000,))
    with pytest.raises(ConformanceError) as refused:
        run_scheduler_conformance(SpinsInWorlds, seeds=(5,))
    assert refused.value.rule == "ends"


def test_the_rules_are_named_once():
    assert len(RULES) == 12
    assert run_scheduler_conformance(RandomScheduler, seeds=(1,)) == tuple(RULES)
