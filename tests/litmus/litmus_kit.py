"""What makes a litmus test short: declare buffers, run a kernel on many schedules, compare the whole outcome.

A test reads like this::

    @triton.jit
    def no_fence(data, sig, out):
        offs = tl.arange(0, 16)
        if dl.rank() == 0:
            tl.store(dl.symm_at(data, 1) + offs, 7)  # <store>
            dl.notify(sig, 1, signal=1, sig_op="set")
        else:
            token = dl.wait(sig, 1, "gpu", "acquire")
            tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <load>

    @covers("REL-1")
    def test_a_notify_does_not_drain():
        seen = observe(no_fence, DATA, SIG, OUT)
        seen.always(undrained("store", "load"))
        seen.outcomes({(-1, 7)})

`# <name>` at the end of a line names that line; findings are compared as (kind, names of the parties' lines, severity).
A line that a finding names and that has no marker shows up as `file.py:123`, so the comparison fails readably.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from tdist.errors import WorldStopped
from tdist.findings import Finding
from tdist.platforms.sim.world import World

MARKER = re.compile(r"#.*?<([\w-]+)>")
SCHEDULES: tuple[tuple[str, int], ...] = (("run-to-block", 0), ("max-sync", 0), *(("random", s) for s in range(7)))
MANY: tuple[tuple[str, int], ...] = (*SCHEDULES, *(("random", s) for s in range(7, 40)))
STOPPED = "stopped"
HEAP_BYTES = 1 << 20


@dataclass(frozen=True)
class Buf:
    """A buffer of every rank: on the symmetric heap or private, filled with one value before the first launch."""

    name: str
    elems: int
    dtype: torch.dtype = torch.int32
    symmetric: bool = True
    fill: int | None = 0

    def allocate(self, rt: Any) -> torch.Tensor:
        """This rank's tensor; `fill=None` leaves new memory as the world made it (poisoned)."""
        tensor = self._raw(rt)
        if self.fill is not None:
            tensor.fill_(self.fill)
        return tensor

    def _raw(self, rt: Any) -> torch.Tensor:
        if not self.symmetric:
            return torch.empty(self.elems, dtype=self.dtype)
        address = rt.malloc(self.elems * self.dtype.itemsize, name=self.name)
        return rt.tensor(address, (self.elems,), self.dtype)


DATA = Buf("data", 64)  # four tiles of 16
SIG = Buf("sig", 64)  # four slots, 64 bytes apart
SIG64 = Buf("sig", 32, torch.int64)
OUT = Buf("out", 64, symmetric=False, fill=-1)


class Found(NamedTuple):
    """One finding, reduced to what a test states: kind without prefix, markers of the parties' lines, severity."""

    kind: str
    lines: frozenset[str]
    severity: str


def finding(kind: str, *lines: str, severity: str = "error") -> Found:
    return Found(kind, frozenset(lines), severity)


def race(*lines: str) -> Found:
    return finding("race", *lines)


def undrained(*lines: str) -> Found:
    return finding("hazard.undrained-release", *lines, severity="hazard")


def stale(*lines: str) -> Found:
    return finding("hazard.stale-cache", *lines, severity="hazard")


def hidden_alias(*lines: str) -> Found:
    return finding("hazard.hidden-alias", *lines, severity="hazard")


def atomic_edge(*lines: str) -> Found:
    return finding("hazard.atomic-edge", *lines, severity="hazard")


def lost_wait(*lines: str) -> Found:
    return finding("lost-wait", *lines, severity="note")


@dataclass(frozen=True)
class Run:
    """One run of the world: its schedule, what was found, what each rank read at the end."""

    schedule: tuple[str, int]
    found: frozenset[Found]
    outcome: Any
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Observed:
    """All runs of one litmus test."""

    runs: tuple[Run, ...]

    def always(self, *expected: Found) -> None:
        """Every run found exactly `expected`."""
        want = frozenset(expected)
        for run in self.runs:
            assert run.found == want, self._say(run, want)

    def clean(self) -> None:
        """No run found anything."""
        self.always()

    def one_of(self, *sets: Iterable[Found]) -> None:
        """Every run found exactly one of `sets`, and each of them was found by some run."""
        want = {frozenset(s) for s in sets}
        got = {run.found for run in self.runs}
        assert got == want, f"expected {_show_sets(want)}\ngot {_show_sets(got)}"

    def outcomes(self, expected: set) -> None:
        """The runs ended in exactly these outcomes: a tuple over ranks, or `STOPPED`."""
        got = {run.outcome for run in self.runs}
        assert got == expected, f"expected outcomes {expected}, got {got}"

    def text(self) -> str:
        """The texts of all findings of the first run, for asserts on what a user reads."""
        return "\n".join(_text(f) for f in self.runs[0].findings)

    @staticmethod
    def _say(run: Run, want: frozenset[Found]) -> str:
        lines = [f"schedule {run.schedule}", f"expected {sorted(want)}", f"got      {sorted(run.found)}"]
        return "\n".join([*lines, *(_text(f) for f in run.findings)])


def observe(
    kernel: Any,
    *bufs: Buf,
    host: Callable[[Any, SimpleNamespace], Any] | None = None,
    nranks: int = 2,
    grid: int = 1,
    launches: int = 1,
    read: str = "out",
    schedules: Iterable[tuple[str, int]] = SCHEDULES,
    world: Mapping[str, Any] | None = None,
    **scalars: Any,
) -> Observed:
    """Run `kernel` (or `host`) on every schedule in a fresh world and collect findings and outcomes.

    Args:
        kernel: a `@triton.jit` kernel whose first parameters are `bufs`, in order, and whose others are `scalars`; a
            parameter `launch` gets the number of the launch, counted from 1.
        host: instead of the launches, `host(rt, t)` with `t.<name>` for each buffer. Its result is the rank's outcome;
            None stands for reading `read`.
        read: the buffer whose contents are a rank's outcome: one value if all its elements up to the first untouched
            tile agree, else a tuple.
        world: more fields of `WorldConfig`.

    Ordering:
        Buffers are filled, then synchronise and a host barrier; after the last launch the same again, then the read.
    """
    body = _host(kernel, bufs, host, grid, launches, read, scalars)
    return Observed(tuple(_run(body, nranks, schedule, dict(world or {})) for schedule in schedules))


def _host(kernel: Any, bufs: tuple[Buf, ...], host: Any, grid: int, launches: int, read: str, scalars: dict) -> Any:
    def body(rt: Any) -> Any:
        tensors = {buf.name: buf.allocate(rt) for buf in bufs}
        settle(rt)
        result = None
        if host is not None:
            result = host(rt, SimpleNamespace(**tensors))
        else:
            _launch(kernel, tensors, grid, launches, scalars)
        settle(rt)
        return result if result is not None else contents(tensors[read])

    return body


def _launch(kernel: Any, tensors: Mapping[str, torch.Tensor], grid: int, launches: int, scalars: dict) -> None:
    for number in range(1, launches + 1):
        numbered = {"launch": number} if "launch" in kernel.arg_names else {}
        kernel[(grid,)](*tensors.values(), **scalars, **numbered)


def settle(rt: Any) -> None:
    """This rank's stream is empty and every rank knows it."""
    rt.synchronize()
    rt.host_barrier()


def contents(tensor: torch.Tensor) -> Any:
    """The tiles of 16 elements that were touched (first element not -1): one value where a tile is uniform."""
    values = tensor.tolist()  # <read>
    tiles = [values[i : i + 16] for i in range(0, len(values), 16)]
    touched = [t for i, t in enumerate(tiles) if i == 0 or set(t) != {-1}]
    short = tuple(t[0] if len(set(t)) == 1 else tuple(t) for t in touched)
    return short[0] if len(short) == 1 else short


def _run(body: Any, nranks: int, schedule: tuple[str, int], config: dict[str, Any]) -> Run:
    name, seed = schedule
    with World(nranks=nranks, scheduler=name, seed=seed, detect=True, heap_bytes=HEAP_BYTES, **config) as world:
        results = tuple(world.run(body))
        findings = tuple(world.findings)
    stopped = any(isinstance(result, WorldStopped) for result in results)
    found = frozenset(map(reduce_finding, findings))
    return Run(schedule, found, STOPPED if stopped else results, findings)


def reduce_finding(found: Finding) -> Found:
    """What a test compares of a finding."""
    lines = frozenset(mark(party.file, party.line) for party in found.parties)
    return Found(found.kind.removeprefix("tdist."), lines, found.severity.name.lower())


def mark(file: str, line: int) -> str:
    """The marker of a source line, or `file.py:line` where it has none."""
    found = MARKER.search(linecache.getline(file, line))
    return found.group(1) if found else f"{Path(file).name}:{line}"


def covers(*rules: str) -> Callable[[Any], Any]:
    """Name the rules of `docs/ordering-model.md` that a test checks; `test_litmus_rules.py` keeps both in step."""

    def keep(test: Any) -> Any:
        test.rules = rules
        return test

    return keep


def _show_sets(sets: Iterable[frozenset[Found]]) -> str:
    return "\n  ".join(str(sorted(s)) for s in sets)


def _text(found: Finding) -> str:
    parts = [f"{found.kind} [{found.severity.name}] {found.title}", f"expected {found.expected}, got {found.got}"]
    parts += [
        f"  {p.op} rank {p.rank} {Path(p.file).name}:{p.line} {p.tensor} {p.where} {p.note}" for p in found.parties
    ]
    return "\n".join([*parts, f"  why: {found.why}", f"  cure: {found.cure}", f"  {found.data}"])
