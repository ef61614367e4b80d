"""Streams: what a host has queued on its device, launches and their cores.

A rank has one stream. Operations run in order; launching returns at once. A launch has finitely many cores: programs
beyond them start when earlier ones end, and get nothing more for it.

Source: docs/ordering-model.md, "Who acts"; Single Operator Development §2.1 (launch mode).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from tdist.findings import Party
from tdist.platforms.sim.clocks import AgentClocks, WordClock, join_ends
from tdist.platforms.sim.device_tensors import View
from tdist.platforms.sim.memory import Allocation
from tdist.platforms.sim.race_report import Who

if TYPE_CHECKING:
    from tdist.platforms.sim.agents import Agent
    from tdist.platforms.sim.codegen.site import Site


_ENDS_APART: Final = 64
"""So many ended agents' clocks are kept before they are joined."""


class Kernel(Protocol):
    """What the engine needs of a compiled kernel; `SimKernel` is one."""

    name: str
    has_dot: bool
    uses_barrier_all: bool
    uses_barrier_all_vec: bool
    uses_sub_vec: bool

    def entry(self, core: int) -> Callable[..., Generator[None, Any, Any]]:
        """The generator function of a core: `(ag, pid0, pid1, pid2, np0, np1, np2, *args)`."""
        ...


def _never() -> None:
    """Stands for the next step of an agent that was abandoned."""
    raise StopIteration


@dataclass(frozen=True, slots=True)
class HostSite:
    """Where in the user's host code a request came from."""

    file: str | None = None
    line: int | None = None
    op: str = ""
    arg: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Span:
    """`rows` runs of `width` bytes, `stride` bytes apart, from byte `off` of `al` on."""

    al: Allocation
    off: int
    rows: int
    stride: int
    width: int

    def bytes(self) -> torch.Tensor:
        """The bytes, as a 2-D strided view."""
        whole = self.al.view(torch.uint8)
        return torch.as_strided(
            whole, (self.rows, self.width), (max(self.stride, 1), 1), whole.storage_offset() + self.off
        )


@dataclass
class Write:
    """A host write to device memory, as a stream operation. `data` is uint8, spans after each other."""

    spans: Sequence[Span]
    data: torch.Tensor
    site: Any
    seen: WordClock | None


@dataclass(frozen=True)
class Strided:
    """A strided tensor within one allocation, `off` bytes from its start; `spans` are its bytes."""

    al: Allocation
    off: int
    view: View
    spans: Sequence[Span]

    def tensor(self) -> torch.Tensor:
        whole = self.al.view(torch.uint8)[self.off : self.off + self.view.extent_bytes]
        return torch.as_strided(whole.view(self.view.dtype), self.view.shape, self.view.strides)


@dataclass
class Copy:
    """A copy between device tensors of one rank, as a stream operation. Shapes are equal, types may differ."""

    target: Strided
    source: Strided
    site: Any
    seen: WordClock | None

    def carry_out(self) -> None:
        """Move the elements, as if all were read before the first is written."""
        data = self.source.tensor()
        self.target.tensor().copy_(data.clone() if self.source.al is self.target.al else data)


@dataclass
class Unregister:
    """Private memory that the host gave up; earlier operations may still use it."""

    allocation: Allocation


@dataclass
class Launch:
    """A launch of a kernel over a grid: queued, running or ended.

    `participants` counts agents (programs × cores of each); `arrived` those that wait at the open barrier. `turns`
    counts atomics with a used result, by program; `turn_site` is the latest of them.
    """

    rank: int
    id: int
    kernel: Kernel
    grid: tuple[int, int, int]
    args: tuple[Any, ...]
    bound: tuple[tuple[str, Allocation], ...]
    site: Any
    seen: WordClock | None
    cores: int
    programs: int = field(init=False)
    cores_each: int = field(init=False)
    started: int = 0
    running: int = 0
    arrived: int = 0
    ended: int = 0
    ends: list[WordClock] = field(default_factory=list)
    start_clock: WordClock | None = None
    agents: dict[tuple[int, int], Agent] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    turn_site: Site | None = None
    finished: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        x, y, z = self.grid
        self.programs = x * y * z
        self.cores_each = 2 if self.kernel.uses_sub_vec else 1

    @property
    def participants(self) -> int:
        return self.programs * self.cores_each

    @property
    def mixed(self) -> bool:
        """Built with cube and vector parts: its barriers drain under `ascend`, and it gets cube cores."""
        return self.kernel.has_dot or self.kernel.uses_barrier_all

    @property
    def mode(self) -> str:
        """The launch mode, with the cores that bound it."""
        return "cv1:2, cube cores" if self.mixed else "cv0:1, vector cores"

    @property
    def waiting_programs(self) -> int:
        """Programs that have not started because all cores are taken."""
        return self.programs - self.started

    def program_id(self, program: int) -> tuple[int, int, int]:
        x, y, _ = self.grid
        return program % x, program // x % y, program // (x * y)

    def allocations(self) -> set[Allocation]:
        """Memory that the launch may touch through its arguments."""
        return {al for _, al in self.bound} | {peer for _, al in self.bound for peer in al.peers}

    def party(self, program: int, core: int) -> Party:
        """An ended agent as a side of a finding: it stands at the launch itself."""
        file, line = getattr(self.site, "file", None), getattr(self.site, "line", None)
        note = "ended without reaching the barrier"
        return Party(self.rank, self.id, program, core, file, line, f"launch of {self.kernel.name}", note=note)

    def why_ended(self, programs: Sequence[int], core: int) -> str:
        """Why these agents of one core do not come to a barrier any more."""
        one = len(programs) == 1
        which = f"rank {self.rank}, program{'' if one else 's'} {', '.join(map(str, programs))}"
        if not core:
            return f"{which} ended or returned before it"
        whose = "its second vector core" if one else "their second vector cores"
        return f"{which}: {whose} ended without it (gated by sub_vec_id()?)"

    def abandon(self) -> None:
        """Its agents run no further; what they hold is free at once (an agent and its generator hold each other)."""
        for ag in self.agents.values():
            ag.body, ag.step = None, _never
            ag.blocked = None
        self.agents.clear()

    def note_turn(self, program: int, site: Site) -> None:
        """An atomic whose result is used: under `ascend` a turn at a lock that goes from program to program."""
        self.turns[program] = self.turns.get(program, 0) + 1
        self.turn_site = site

    def unequal_turns(self) -> tuple[int, int] | None:
        """A program that took most turns and one that took fewest, if they differ."""
        if not self.turns or self.programs == 1:
            return None
        count = [self.turns.get(program, 0) for program in range(self.programs)]
        most, fewest = max(count), min(count)
        return None if most == fewest else (count.index(most), count.index(fewest))

    def note_end(self, program: int, core: int, end: WordClock | None) -> bool:
        """An agent ended; whether its program has."""
        self.ended += 1
        self.finished.append((program, core))
        del self.agents[program, core]
        if end is not None:
            self.ends.append(end)
            if len(self.ends) == _ENDS_APART:
                self.ends = [join_ends(self.ends)]
        return not any((program, other) in self.agents for other in range(self.cores_each))


class Stream:
    """One rank's stream: its queue, its running launch, its clocks."""

    def __init__(self, rank: int, clocks: AgentClocks | None) -> None:
        self.rank = rank
        if clocks is not None:
            self.clocks = clocks
        self.detect = clocks is not None
        self.who = Who(rank, role="stream")
        self.queue: deque[Launch | Write | Copy | Unregister] = deque()
        self.current: Launch | None = None
        self.last_launch: Launch | None = None
        self.launches = 0

    @property
    def idle(self) -> bool:
        return self.current is None and not self.queue

    def queued(self) -> list[Launch]:
        """Launches that have not begun."""
        return [op for op in self.queue if isinstance(op, Launch)]

    def uses(self, al: Allocation) -> Launch | None:
        """A queued or running launch that has `al` among its arguments."""
        ops = [self.current, *self.queue] if self.current is not None else list(self.queue)
        return next((op for op in ops if isinstance(op, Launch) and al in op.allocations()), None)

    def begin(self, seen: WordClock | None) -> None:
        """The enqueue edge: an operation comes after all that its host had seen."""
        if self.detect:
            self.clocks.receive(seen)

    def look_ahead(self) -> None:
        """Let an idle stream know what it learns as soon as it begins its first operation."""
        if self.current is None and self.queue:
            first = self.queue[0]
            if not isinstance(first, Unregister):
                self.begin(first.seen)

    def export(self, site: Any) -> WordClock | None:
        """What whoever joins the stream now gets."""
        return self.clocks.release(drains=True, site=site) if self.detect else None
