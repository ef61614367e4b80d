"""Random straight-line protocols: the engine against the ordering model evaluated by brute force.

Each operation runs once and has a line of its own, so findings name events. The engine keeps the last access of a
region only; so a place that has raced once may hide later races there, and is checked up to its first.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from protocol_oracle import NONE, SIGNALS, Op, Oracle

from tdist.platforms.sim.clocks import AgentClocks
from tdist.platforms.sim.codegen.site import Site
from tdist.platforms.sim.words import Word

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from engine_kit import Driver, HandKernel

DATA_STEP, LINE = 16, 64
SCHEDULES = (("run-to-block", 0), ("max-sync", 0), ("random", 1))


@dataclass(frozen=True)
class Protocol:
    """`programs[launch][agent]` are (event, operation); agents are numbered rank by rank."""

    nranks: int
    grid: int
    drains: bool
    programs: tuple[tuple[tuple[tuple[int, Op], ...], ...], ...]


class Dice:
    """Draws protocols: few places, so that agents meet; messages more often than not."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.nranks = self.r.choice([1, 2, 2, 3])
        self.grid = self.r.choice([1, 2]) if self.nranks < 3 else 1
        if self.nranks == 1:
            self.grid = 2
        self.events = self.value = self.arrivals = 0
        self.orderly = self.r.random() < 0.5

    def protocol(self) -> Protocol:
        launches = self.r.choice([1, 1, 2])
        return Protocol(self.nranks, self.grid, self.r.random() < 0.5, tuple(self.programs() for _ in range(launches)))

    def programs(self) -> tuple[tuple[tuple[int, Op], ...], ...]:
        count = self.nranks * self.grid
        made: list[list[tuple[int, Op]]] = [[] for _ in range(count)]
        self.waits = [0] * count
        for phase in range(self.r.choice([1, 1, 2])):
            if phase:
                for agent in range(count):
                    self.add(made[agent], Op("barrier"))
            for _ in range(self.r.randint(1, 4)):
                self.pattern(made) if self.orderly else self.exchange(made)
        return tuple(tuple(ops) for ops in made)

    def add(self, ops: list[tuple[int, Op]], op: Op) -> None:
        self.events += 1
        ops.append((self.events, op))

    def pattern(self, made: list[list[tuple[int, Op]]]) -> None:
        """An exchange that is ordered but for what is left out: arrivals at a counter, or one value set twice."""
        b = self.r.randrange(len(made))
        rank = b // self.grid
        counted = self.r.random() < 0.5
        place = (rank, SIGNALS + 3) if counted else (rank, SIGNALS + self.r.randrange(3))
        cells = [(rank, 2 + cell) for cell in range(2)]
        writers = list(range(len(made)))[:2] if counted else [self.r.randrange(len(made))] * 2
        self.value += 1
        for cell, writer in zip(cells, writers, strict=False):
            self.add(made[writer], Op("store", cell))
            if self.r.random() < 0.6:
                self.add(made[writer], Op("fence"))
            self.add(made[writer], Op("add", place, 1) if counted else Op("set", place, self.value))
            self.arrivals += counted
        self.add(made[b], Op("wait", place, self.arrivals if counted else self.value))
        self.waits[b] += 1
        if self.r.random() < 0.3:
            self.add(made[b], self.r.choice([Op("vload", place), Op("fence")]))
        for cell in cells:
            token = self.waits[b] - 1 if self.r.random() < 0.7 else None
            self.add(made[b], Op(self.r.choice(["load", "load", "cached", "store"]), cell, token=token))

    def exchange(self, made: list[list[tuple[int, Op]]]) -> None:
        """Mostly a message: accesses, perhaps a fence, a signal; a wait, perhaps a fence, accesses."""
        a, b = self.r.randrange(len(made)), self.r.randrange(len(made))
        rank = b // self.grid
        self.accesses(made[a], a)
        if self.r.random() < 0.15:
            self.odd(made[a])
        if self.r.random() < 0.75:
            self.message(made, a, b, rank)
        self.accesses(made[b], b)

    def message(self, made: list[list[tuple[int, Op]]], a: int, b: int, rank: int) -> None:
        place = (rank, SIGNALS + self.r.randrange(3))
        if self.r.random() < 0.4:
            self.add(made[a], Op("fence"))
        self.value += self.r.choice([0, 1, 1, 1])
        self.add(
            made[a],
            Op("set", place, self.value) if self.r.random() < 0.7 else Op("add", place, self.r.choice([0, 1, 1, 1])),
        )
        if self.r.random() < 0.8:
            value = self.value if self.r.random() < 0.8 else self.r.randint(0, 2)
            self.add(made[b], Op("wait", place, value, semantic=self.r.choice(["acquire", "acquire", "relaxed"])))
            self.waits[b] += 1
        if self.r.random() < 0.3:
            self.add(made[b], Op("fence"))

    def accesses(self, ops: list[tuple[int, Op]], agent: int) -> None:
        for _ in range(self.r.randint(0, 2)):
            kind = self.r.choice(["store", "load", "load", "cached"])
            place = (self.r.randrange(self.nranks), self.r.randrange(2))
            token = self.r.randrange(self.waits[agent]) if self.waits[agent] and self.r.random() < 0.6 else None
            hidden = self.r.choice(["", "", "remote"])
            self.add(ops, Op(kind, place, token=None if kind == "store" else token, hidden=hidden))

    def odd(self, ops: list[tuple[int, Op]]) -> None:
        """Atomics, and other accesses to signal words."""
        place = (self.r.randrange(self.nranks), SIGNALS + self.r.randrange(3))
        kind = self.r.choice(["atomic", "atomic", "vload", "load", "store"])
        if kind != "atomic":
            self.add(ops, Op(kind, place, 1000 + self.events))
            return
        semantic = self.r.choice(["relaxed", "acq_rel", "acquire", "release"])
        scope, used = self.r.choice(["gpu", "sys"]), self.r.random() < 0.5
        self.add(ops, Op("atomic", place, self.r.choice([0, 1]), semantic=semantic, scope=scope, used=used))


class Run:
    """A protocol in the engine; `trace` is what took effect, in order. A store to data stores its event's number.

    `loads` are the numbers that plain loads have read, `choices` what the scheduler chose.
    """

    def __init__(self, protocol: Protocol, schedule: tuple[str, int], **world: Any) -> None:
        self.protocol = protocol
        self.trace: list[tuple] = []
        self.loads: dict[int, int] = {}
        name, seed = schedule
        self.driver = Driver(protocol.nranks, scheduler=name, seed=seed, heap_bytes=1 << 14, **world)
        data = self.driver.malloc(DATA_STEP * SIGNALS, "data", alignment=LINE)
        signals = self.driver.malloc(LINE * 4, "sig", alignment=LINE)
        self._spy_barriers()
        for launch in range(len(protocol.programs)):
            kernel = HandKernel(self._body(launch), barrier=protocol.drains, barrier_vec=not protocol.drains)
            self.driver.launch(kernel, data, signals, grid=protocol.grid)
        self.driver.sync()
        self.findings = self.driver.findings
        self.choices = tuple(self.driver.engine.events)
        self.driver.engine.close()

    def _spy_barriers(self) -> None:
        barriers = self.driver.engine.barriers
        joined = barriers._join

        def join(arrived: list[Any]) -> None:
            self.trace.append(("barrier", [self._agent(ag) for ag in arrived]))
            joined(arrived)

        barriers._join = join  # pyright: ignore[reportAttributeAccessIssue]

    def _agent(self, ag: Any) -> int:
        return ag.rank * self.protocol.grid + ag.program

    def _body(self, launch: int):
        def body(ag, pids, nps, data, data_al, signals, signals_al):
            agent = self._agent(ag)
            self.trace.append(("begin", agent, launch))
            self._spy_waits(ag, agent)
            for event, op in self.protocol.programs[launch][agent]:
                self.now = (event, op)
                yield from self._execute(ag, agent, event, op, data_al, signals_al)

        return body

    def _spy_waits(self, ag: Any, agent: int) -> None:
        """A wait takes effect when it has seen its value, a moment before it returns."""
        record = ag.access_word

        def access_word(word, writes, clk, site, *more):
            if site.op == "wait":
                self.trace.append(("op", agent, site.line))
            record(word, writes, clk, site, *more)

        ag.access_word = access_word

    def _execute(self, ag, agent, event, op, data_al, signals_al):
        site = Site("k", "k.py", event, 0, op.kind, None, op.hidden)
        signal = op.place[1] >= SIGNALS
        home = signals_al if signal else data_al
        off = LINE * (op.place[1] - SIGNALS) if signal else DATA_STEP * op.place[1]
        al, mine = home.peers[op.place[0]], home.lo + off
        if op.kind == "wait":
            token = yield from ag.wait(mine, home, 1, op.value, 4, op.semantic, site)
            ag.__dict__.setdefault("tokens", []).append(token)
            return
        if op.kind == "barrier":
            yield from ag.barrier("all" if self.protocol.drains else "all_vec", site)
            return
        yield
        self.trace.append(("op", agent, event))
        if op.kind == "store":
            ag.wr(al, off, 1, 0, 4, site)
            al.words(4)[off // 4] = op.value if signal else event
        elif op.kind in ("load", "cached"):
            clk = None if op.token is None else ag.tokens[op.token]
            (ag.rd if op.kind == "load" else ag.rd_cached)(al, off, 1, 0, 4, clk, site)
            self.loads[event] = al.words(4)[off // 4]
        elif op.kind in ("set", "add"):
            ag.notify(mine, home, op.value, op.place[0], op.kind, 4, site)
        elif op.kind == "fence":
            ag.fence(site)
        elif op.kind == "vload":
            ag.volatile_load(al.lo + off, al, 4, None, site)
        else:
            assert op.kind == "atomic"
            ag.atomic(al.lo + off, al, "add", op.value, 4, "int", op.semantic, op.scope, op.used, site)


def judge(protocol: Protocol, trace: list[tuple]) -> Oracle:
    """What the model says of an execution."""
    oracle, starts = Oracle(), {}
    ops = {event: op for programs in protocol.programs for program in programs for event, op in program}
    launch_of: dict[int, int] = {}
    for what, *details in trace:
        if what == "begin":
            agent, launch = details
            rank = agent // protocol.grid
            mine = list(range(rank * protocol.grid, (rank + 1) * protocol.grid))
            if (rank, launch) not in starts:
                starts[rank, launch] = oracle.end(mine) if launch else NONE
            oracle.begin(agent, rank, starts[rank, launch])
            launch_of[agent] = launch
        elif what == "barrier":
            oracle.barrier(details[0], protocol.drains)
        else:
            agent, event = details
            oracle.launch = launch_of[agent]
            oracle.step(agent, event, ops[event])
    return oracle


def check(protocol: Protocol, run: Run) -> int:
    """Compare; returns how many races there were."""
    oracle = judge(protocol, run.trace)
    reported: dict[str, set[tuple[int, ...]]] = {}
    for found in run.findings:
        lines = tuple(party.line for party in found.parties if party.line is not None)
        kind = found.kind.removeprefix("tdist.")
        if kind.startswith("hazard.atomic-") and kind != "hazard.atomic-edge":
            continue
        reported.setdefault("hazard" if kind.startswith("hazard.") else kind, set()).add(lines)
    races, hazards = reported.get("race", set()), reported.get("hazard", set())
    assert races <= oracle.races["seed"], f"false races {races - oracle.races['seed']}"
    only_ascend = oracle.races["ascend"] - oracle.races["seed"]
    assert hazards <= only_ascend, f"false hazards {hazards - only_ascend}"
    missed = oracle.first_races["seed"] - {second for _, second in races}
    assert not missed, f"missed races at {missed}: {oracle.races['seed']}"
    missed = oracle.first_races["ascend"] - {second for _, second in races | hazards}
    assert not missed, f"missed hazards at {missed}: {only_ascend}"
    for kind in ("concurrent-set", "overshoot"):
        found = reported.get(kind, set())
        assert found <= oracle.lost[kind], f"false {kind} {found - oracle.lost[kind]}"
        missed = oracle.first_lost[kind] - {second for _, second in found}
        assert not missed, f"missed {kind} at {missed}: {oracle.lost[kind]}"
    return len(oracle.races["seed"])


def short(op: Op) -> str:
    """An operation without what is as usual."""
    usual = Op(op.kind)
    facts = [f"{name}={value}" for name, value in vars(op).items() if value != getattr(usual, name)]
    return " ".join([op.kind, *facts])


def explain(seed: int, protocol: Protocol, run: Run) -> str:
    """The protocol and what ran, for whoever must find out."""
    lines = [f"seed {seed}: {protocol.nranks} ranks x {protocol.grid}, barriers drain: {protocol.drains}"]
    for launch, programs in enumerate(protocol.programs):
        for agent, program in enumerate(programs):
            lines += [f"launch {launch} agent {agent}: {event} {short(op)}" for event, op in program]
    lines += [f"ran {entry}" for entry in run.trace]
    return "\n".join([*lines, *(f"{f.kind} {[p.line for p in f.parties]} {f.why}" for f in run.findings)])


@pytest.mark.parametrize("block", range(4))
def test_findings_are_those_of_the_model(block: int) -> None:
    raced = clean = 0
    for seed in range(60 * block, 60 * block + 60):
        protocol = Dice(seed).protocol()
        for schedule in SCHEDULES:
            run = Run(protocol, schedule)
            try:
                raced += check(protocol, run)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{schedule} {explain(seed, protocol, run)}") from error
            clean += not run.findings
    assert raced > 20 and clean > 10, "the generator makes too little of one sort"


def _always_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    release = AgentClocks.release
    monkeypatch.setattr(AgentClocks, "release", lambda self, drains, site=None: release(self, True, site))


def _fence_leaves_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    drain = AgentClocks.drain
    monkeypatch.setattr(AgentClocks, "drain", lambda self, flush_cache: drain(self, False))


def _stores_do_not_raise_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentClocks, "effect", lambda self: None)


def _add_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Word, "join", lambda self, released, rank, everywhere, changed: self.replace(released, rank))


MUTANTS = (_always_drains, _fence_leaves_cache, _stores_do_not_raise_reads, _add_replaces)


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__.strip("_"))
def test_a_wrong_engine_is_caught(mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match=r"missed|false"):
        for seed in range(400):
            protocol = Dice(seed).protocol()
            check(protocol, Run(protocol, ("random", seed)))
