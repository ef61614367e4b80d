"""Small protocols of hand-written kernels, recorded; and all their schedules by brute force."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from engine_kit import HandKernel

from tdist.platforms.sim.codegen.site import Site
from tdist.platforms.sim.explore.exhaustive import finding_key, outcome_of
from tdist.platforms.sim.explore.recording import Recording, RecordingWorld
from tdist.platforms.sim.explore.rerun import replica

LINE = 64
CELLS, WORDS, SLOTS = 2, 2, 16


@dataclass(frozen=True)
class Op:
    """One operation. `place` is (rank, number) of a data cell or of a signal word."""

    kind: str  # store load set add wait vload atomic spin barrier
    place: tuple[int, int] = (0, 0)
    value: int = 0


Program = tuple[Op, ...]


def kernel_of(programs: Sequence[Sequence[Program]], grid: int, first_line: int = 1) -> HandKernel:
    """A kernel that runs `programs[rank][program]`; what each op read goes to the agent's own part of `out`."""
    lines: dict[tuple[int, int, int], int] = {}
    for rank, mine in enumerate(programs):
        for program, ops in enumerate(mine):
            for at in range(len(ops)):
                lines[rank, program, at] = first_line + len(lines)

    def body(ag, pids, nps, data, data_al, signals, signals_al, out, out_al):
        def keep(at, value):
            index = ag.program * SLOTS + at
            out_al.words(8)[index] = value
            ag.wr(out_al, 8 * index, 1, 0, 8, Site("k", "k.py", 9999, 0, "keep", None, ""))

        tokens: list[Any] = [None]
        for at, op in enumerate(programs[ag.rank][ag.program]):
            site = Site("k", "k.py", lines[ag.rank, ag.program, at], 0, op.kind, None, "")
            yield from execute(ag, op, site, data_al, signals_al, lambda value, at=at: keep(at, value), tokens)

    barrier = any(op.kind == "barrier" for mine in programs for ops in mine for op in ops)
    return HandKernel(body, barrier=barrier, args=["data", "signals", "out"])


def execute(ag, op, site, data_al, signals_al, keep, tokens):
    """One operation, with the scheduling points of generated code; a load with a value consumes the last token."""
    rank, number = op.place
    data, signals = data_al.peers[rank], signals_al.peers[rank]
    address = signals_al.lo + LINE * number
    if op.kind in ("store", "load"):
        if rank != ag.rank:
            yield
        if op.kind == "store":
            data.words(8)[number] = op.value
            data.version += 1
            ag.wr(data, 8 * number, 1, 0, 8, site)
        else:
            ag.rd(data, 8 * number, 1, 0, 8, tokens[-1] if op.value else None, site)
            keep(data.words(8)[number])
    elif op.kind in ("set", "add"):
        yield
        ag.notify(address, signals_al, op.value, rank, op.kind, 8, site)
    elif op.kind == "wait":
        tokens.append((yield from ag.wait(signals.lo + LINE * number, signals, 1, op.value, 8, "acquire", site)))
    elif op.kind == "vload":
        yield
        keep(ag.volatile_load(signals.lo + LINE * number, signals, 8, None, site))
    elif op.kind == "atomic":
        yield
        keep(ag.atomic(signals.lo + LINE * number, signals, "add", op.value, 8, "int", "acq_rel", "sys", True, site))
    elif op.kind == "word-store":  # a plain store to a word that others may wait for
        if rank != ag.rank:
            yield
        signals.words(8)[LINE // 8 * number] = op.value
        ag.wr(signals, LINE * number, 1, 0, 8, site)
    elif op.kind == "spin":
        while ag.volatile_load(signals.lo + LINE * number, signals, 8, None, site) != op.value:
            yield from ag.poll((), site)
    elif op.kind == "barrier":
        yield from ag.barrier("all", site)


def recorded(
    launches: Sequence[Sequence[Sequence[Program]]],
    *,
    sync_between: bool = False,
    barrier_between: bool = False,
    read_early: bool = False,
    zero_between: bool = False,
    **config: Any,
) -> Recording:
    """A recording of these launches, one after another on each rank."""
    nranks = len(launches[0])
    grid = len(launches[0][0])
    kernels = [kernel_of(programs, grid, 1 + 100 * index) for index, programs in enumerate(launches)]

    def host(rt):
        data = rt.tensor(rt.malloc(8 * CELLS, name="data"), (CELLS,), torch.int64)
        signals = rt.tensor(rt.malloc(LINE * WORDS, 64, name="sig"), (LINE * WORDS // 8,), torch.int64)
        out = torch.full((len(launches), grid * SLOTS), -7, dtype=torch.int64)
        data.zero_()
        signals.zero_()
        rt.synchronize()
        rt.host_barrier()
        for index, kernel in enumerate(kernels):
            rt.launch(kernel, (grid,), [data, signals, out[index]])
            if sync_between and index + 1 < len(kernels):
                rt.synchronize()
            if barrier_between and index + 1 < len(kernels):
                rt.host_barrier()
            if zero_between and index + 1 < len(kernels):
                data.zero_()
                signals[:1].zero_()
        rt.synchronize()
        if read_early:
            data.tolist()
        world.output(rt, ("out",), out)
        rt.host_barrier()

    config.setdefault("heap_bytes", 1 << 14)
    for scheduler in ("run-to-block", "max-sync", "random"):
        with RecordingWorld(nranks=nranks, scheduler=scheduler, **config) as world:
            world.run(host)
            made = world.recording()
        if made.whole:
            break
    return made


class Enumerating:
    """Follows `choices`, then takes the first of each; `widths` says how many there were."""

    def __init__(self, choices: list[int]) -> None:
        self.choices = choices
        self.widths: list[int] = []

    def start(self, seed: int) -> None:
        self.widths = []

    def pick(self, runnable: Sequence[Any], current: Any) -> int:
        return self.choose(len(runnable))

    def choose(self, n: int) -> int:
        at = len(self.widths)
        self.widths.append(n)
        return self.choices[at] if at < len(self.choices) else 0


@dataclass
class All:
    """What all schedules came to."""

    runs: int
    outcomes: set[str]
    findings: set[tuple]


def brute_force(recording: Recording, most: int) -> All | None:
    """Every schedule of the engine, or None if there are more than `most`."""
    choices: list[int] = []
    seen = All(0, set(), set())
    while True:
        scheduler = Enumerating(choices)
        with replica(recording, choices=None, detect=True) as played:
            played.engine.scheduler = scheduler
            result = played.run()
            seen.outcomes.add(outcome_of(played, result))
            taken = list(played.engine.events)
        seen.runs += 1
        seen.findings |= {finding_key(found) for found in result.findings}
        if seen.runs > most:
            return None
        widths = scheduler.widths
        while taken and taken[-1] + 1 >= widths[len(taken) - 1]:
            taken.pop()
        if not taken:
            return seen
        taken[-1] += 1
        choices = taken


class Dice:
    """Draws protocols: few places, few operations, mostly about signals."""

    KINDS = ("store", "load", "set", "set", "add", "wait", "wait", "vload", "atomic", "spin", "word-store")

    def __init__(self, seed: int, most_ops: int = 3) -> None:
        self.r = random.Random(seed)
        self.most_ops = most_ops

    def protocol(self) -> dict[str, Any]:
        nranks, grid = self.r.choice([(2, 1), (2, 1), (2, 1), (3, 1), (1, 2), (1, 3), (2, 2)])
        launches = [self.launch(nranks, grid)]
        if self.r.random() < 0.3:
            launches.append(self.launch(nranks, grid))
        between = self.r.random()
        more: dict[str, Any] = {"sync_between": between < 0.6, "barrier_between": between < 0.2}
        more["read_early"] = self.r.random() < 0.3
        if grid > 1 and self.r.random() < 0.5:
            more |= {"cube_cores": 1, "vector_cores": 1}
        more["zero_between"] = self.r.random() < 0.25
        return {"launches": launches, **more}

    def launch(self, nranks: int, grid: int) -> list[list[Program]]:
        agents = nranks * grid
        most = self.most_ops if agents <= 2 else max(1, self.most_ops - 1)
        made = [[[self.op(nranks) for _ in range(self.r.randint(1, most))] for _ in range(grid)] for _ in range(nranks)]
        if self.r.random() < 0.15:
            for mine in made:
                for ops in mine:
                    ops.insert(self.r.randint(0, len(ops)), Op("barrier"))
        return [[tuple(ops) for ops in mine] for mine in made]

    def op(self, nranks: int) -> Op:
        kind = self.r.choice(self.KINDS)
        place = (self.r.randrange(nranks), self.r.randrange(1 if self.r.random() < 0.7 else 2))
        return Op(
            kind, place, self.r.choice([0, 1, 1, 2]) if kind in ("wait", "spin", "set", "word-store", "load") else 1
        )
