"""Adversarial memory against the ordering model evaluated by brute force, on random straight-line protocols.

Every value that a load is shown has to be one that the model allows: that of a write which no write that the load knows
is known to come after. Where no access races, memory has to be the plain one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import test_litmus_random_protocols as protocols
from protocol_oracle import SIGNALS, Op, Oracle, Sets
from test_litmus_random_protocols import Dice, Protocol, Run, explain, judge

SCHEDULES = (("run-to-block", 0), ("random", 0), ("random", 1), ("latest", 0))
INITIAL = 0


@dataclass
class Seen:
    """What an access to data knew: other agents' events by profile, and its own agent's earlier ones."""

    agent: int
    place: tuple[int, int]
    known: Sets
    own: frozenset[int]
    passed: set[int] = field(default_factory=set)


class Watching(Oracle):
    """Keeps what each access to data knew."""

    def __init__(self) -> None:
        super().__init__()
        self.stores: dict[int, Seen] = {}
        self.reads: dict[int, Seen] = {}

    def _access(self, agent: int, event: int, op: Op, known: Sets, writes: bool, word: bool = False) -> None:
        if op.place[1] < SIGNALS and not word:
            seen = Seen(agent, op.place, known, self.agents[agent].own)
            (self.stores if writes else self.reads)[event] = seen
            made = protocols_access(agent, event, op, writes)
            earlier = [a for a in self.accesses if a.place == made.place and a.agent == agent and a.writes]
            seen.passed = {a.event for a in earlier if self._passes(a, made)}
        super()._access(agent, event, op, known, writes, word)


def protocols_access(agent: int, event: int, op: Op, writes: bool):
    from protocol_oracle import Access

    return Access(event, agent, op.place, writes, False, op.hidden)


def is_before(store: int, later: Seen, profile: str) -> bool:
    """Whether a store is ordered before an access, under everything that fails under `profile`."""
    if store in later.own:
        return profile == "seed" or store not in later.passed
    return store in later.known["seed"] and (profile == "seed" or store in later.known["ascend"])


def allowed(oracle: Watching, load: Seen, made_before: list[int], profile: str) -> set[int]:
    """The values that a load may see, of the stores made before it."""
    here = [event for event in made_before if oracle.stores[event].place == load.place]
    known = [event for event in here if is_before(event, load, profile)]
    replaced = {old for new in known for old in here if old != new and is_before(old, oracle.stores[new], profile)}
    return (set(here) - replaced) | (set() if known else {INITIAL})


def run_and_judge(protocol: Protocol, schedule: tuple[str, int], profile: str, monkeypatch) -> tuple[Run, Watching]:
    monkeypatch.setattr(protocols, "Oracle", Watching)
    run = Run(protocol, schedule, memory="adversarial", profile=profile)
    oracle = judge(protocol, run.trace)
    assert isinstance(oracle, Watching)
    return run, oracle


def check(run: Run, oracle: Watching, profile: str) -> tuple[int, int]:
    """How many loads were shown the newest value, and how many another one."""
    made: list[int] = []
    newest = older = 0
    executed = [details[1] for what, *details in run.trace if what == "op"]
    for event in executed:
        if event in oracle.stores:
            made.append(event)
        elif event in oracle.reads:
            load = oracle.reads[event]
            may = allowed(oracle, load, made, profile)
            assert run.loads[event] in may, f"load {event} saw {run.loads[event]}, allowed are {sorted(may)}"
            here = [store for store in made if oracle.stores[store].place == load.place]
            is_newest = run.loads[event] == (here[-1] if here else INITIAL)
            newest, older = newest + is_newest, older + (not is_newest)
    return newest, older


@pytest.mark.parametrize("profile", ["seed", "ascend"])
def test_a_load_sees_only_what_the_model_allows(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = older = plain = 0
    for seed in range(100):
        protocol = Dice(seed).protocol()
        for schedule in SCHEDULES:
            run, oracle = run_and_judge(protocol, schedule, profile, monkeypatch)
            try:
                seen = check(run, oracle, profile)
                racing = oracle.races["seed"] | (oracle.races["ascend"] if profile == "ascend" else set())
                if not racing:
                    plain += 1
                    assert not seen[1], "an older value although nothing races"
                    assert run.choices == Run(protocol, schedule, profile=profile).choices
            except AssertionError as error:
                raise AssertionError(f"{error}\n{schedule} {explain(seed, protocol, run)}") from error
            newest, older = newest + seen[0], older + seen[1]
    print(f"{profile}: {newest} loads saw the newest value, {older} an older one; {plain} runs without a race")
    assert newest > 200 and older > 100 and plain > 30


def test_more_is_left_open_under_ascend(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {}
    for profile in ("seed", "ascend"):
        runs = [run_and_judge(Dice(seed).protocol(), ("run-to-block", 0), profile, monkeypatch) for seed in range(100)]
        shown[profile] = sum(check(run, oracle, profile)[1] for run, oracle in runs)
    assert shown["ascend"] > 1.2 * shown["seed"], shown


def test_its_choices_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        protocol = Dice(seed).protocol()
        run, _ = run_and_judge(protocol, ("random", seed), "ascend", monkeypatch)
        again = Run(protocol, ("run-to-block", 0), memory="adversarial", profile="ascend", choices=run.choices)
        assert (again.trace, again.loads, again.choices) == (run.trace, run.loads, run.choices)


def test_an_adversary_that_hides_too_much_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from tdist.platforms.sim.adversary import Adversary

    monkeypatch.setattr(Adversary, "_is_open", lambda *_: True)
    with pytest.raises(AssertionError, match="allowed are"):
        test_a_load_sees_only_what_the_model_allows("ascend", monkeypatch)
