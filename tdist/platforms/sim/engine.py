"""The engine: takes requests of hosts, runs device agents until nothing can run, reports what it finds.

It is passive and has no thread of its own. It schedules only while every host is quiescent, so a run is decided by
the recorded choices (`events`) and nothing else.

Source: docs/architecture.md, seam 5; docs/ordering-model.md.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np
import torch

from tdist.errors import KernelError, Place, TdistError, UsageError, WorldStopped
from tdist.findings import Finding, FindingLog, Party, make
from tdist.platforms.sim import collection, deadlock
from tdist.platforms.sim.adversary import Adversary
from tdist.platforms.sim.agents import Agent, AgentFault, AtPoll, AtWait
from tdist.platforms.sim.barriers import Barriers
from tdist.platforms.sim.clocks import AgentClocks, SlotSpace, WordClock, floor_of, join_ends
from tdist.platforms.sim.compiled_facts import findings_of
from tdist.platforms.sim.detector import Detector
from tdist.platforms.sim.device_tensors import Box, View
from tdist.platforms.sim.host_errors import HostError, HostErrors
from tdist.platforms.sim.hosts import Collective, Done, Free, Host, HostRequests, Malloc, Read, Request, Synchronize
from tdist.platforms.sim.lines import LineGuard
from tdist.platforms.sim.memory import AddressSpace, Allocation, broken_canary, null_allocation
from tdist.platforms.sim.products import LaterProducts
from tdist.platforms.sim.race_facts import facts_of
from tdist.platforms.sim.schedulers import ReplayScheduler, Scheduler, make_scheduler
from tdist.platforms.sim.schedulers.base import stay
from tdist.platforms.sim.streams import Copy, HostSite, Kernel, Launch, Span, Stream, Strided, Unregister, Write
from tdist.platforms.sim.tracing import TracedAgent, Tracer
from tdist.platforms.sim.words import SyncWords
from tdist.platforms.sim.world_config import WorldConfig

_IDLE_POLLS: Final = 200_000
"""So many polls in a row without a word changed, an agent ended or woken: the loop's counter has no bound."""

_NUMPY_FLOATS: Final = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64, "bf16": np.float32}


@dataclass(frozen=True, slots=True)
class Pointer:
    """A launch argument that is a device address."""

    address: int


class Engine:
    """See seam 5. `sink` is called with each new finding; `findings` holds all of them.

    `events` are the choices that were made, for `WorldConfig.choices`; `prints` are (rank, program, text).
    """

    detector_type: type[Detector] = Detector

    def __init__(self, config: WorldConfig, sink: Callable[[Finding], None] | None = None) -> None:
        self.config = config
        self.log = FindingLog(sink)
        self.host_errors = HostErrors(config.nranks, self.log)
        self.memory = AddressSpace(config.nranks, config.heap_bytes, config.poison)
        self.later = LaterProducts()
        self.events: list[int] = []
        self.prints: list[tuple[int, int, str]] = []
        self.space = SlotSpace()
        self.detector = self.detector_type(self.log.add) if config.detect else None
        self.guard = LineGuard(self.log.add, self.detector, self.memory) if self.detector is not None else None
        self.words = SyncWords(self.log.add, self.wake, _raise, self.guard, config.drained, config.poison)
        self.adversary = self._adversary()
        self.barriers = Barriers(config.nranks, self.wake, self._participants, _raise, config.drained)
        self.tracer = Tracer(self) if config.trace else None
        self.scheduler = self._scheduler()
        self.hosts = [Host(rank, self._clocks("host", rank)) for rank in range(config.nranks)]
        self.streams = [Stream(rank, self._clocks("stream", rank)) for rank in range(config.nranks)]
        self.requests = HostRequests(self)
        self.runnable: list[Agent] = []
        self.stopped: WorldStopped | None = None
        self.steps = 0
        self.milestones = 0
        self._polls_since = 0
        self._polled_at = -1
        self._agent_clocks: dict[tuple[int, int, int], AgentClocks] = {}
        self._current: Agent | None = None
        self._leave = False
        self._double_seen: set[Any] = set()
        self._reported: dict[int, Kernel] = {}
        if self.detector is not None:
            self.detector.facts = functools.partial(facts_of, self)
        weakref.finalize(self, self.memory.close)

    @property
    def findings(self) -> list[Finding]:
        return self.log.findings

    @property
    def progress(self) -> int:
        """Grows when an agent ended or was woken, or a word changed."""
        return self.milestones + self.words.changes

    # ---------------------------------------------------------------- requests that do not block

    def launch(
        self,
        rank: int,
        kernel: Kernel,
        grid: Sequence[int],
        args: Sequence[Pointer | int | float],
        site: Any = None,
        stream: int = 0,
    ) -> None:
        """Queue a launch on the rank's stream.

        Raises:
            UsageError: another stream than 0, a grid that is not 1 to 3 sizes, a wrong number of arguments.
            WorldStopped: the run is over, or a pointer does not point to device memory (the finding says so).
        """
        self._check_running()
        if stream != 0:
            raise UsageError(f"rank {rank}: launch on stream {stream}; the simulated platform has one stream a rank")
        self._report_compiled(rank, kernel)
        flat, bound = self._bind_args(rank, kernel, args, site)
        queue = self.streams[rank]
        cube = kernel.has_dot or kernel.uses_barrier_all
        cores = self.config.cube_cores if cube else self.config.vector_cores
        sizes = _at_most(_grid(grid), self.config.max_programs)
        made = Launch(rank, queue.launches, kernel, sizes, flat, bound, site, self._enqueue(rank, site), cores)
        queue.launches += 1
        queue.queue.append(made)

    def register(self, rank: int, storage: torch.Tensor, name: str | None = None) -> int:
        """Make private storage (1-D uint8 on the CPU) device memory of `rank`; its simulated address."""
        allocation = self.memory.register(rank, storage, name)
        if self.tracer is not None:
            self.tracer.registered(allocation)
        return allocation.lo

    def unregister(self, rank: int, address: int) -> None:
        """Give private memory up; what is queued may still use it."""
        allocation = self.memory.unregister(address)
        if allocation is None:
            raise UsageError(f"rank {rank}: no private memory starts at {address:#x}")
        allocation.freed = False
        if self.stopped is None:
            self.streams[rank].queue.append(Unregister(allocation))

    def describe(self, rank: int, view: View, name: str, role: str, launch: int = -1) -> None:
        """A name for a tensor in device memory of `rank`, for traces; see `tdist.trace.events.NamedTensor`."""
        if self.tracer is not None:
            self.tracer.named(rank, view, name, role, launch)

    def host_write(self, rank: int, boxes: Sequence[Any], data: torch.Tensor, site: Any = None) -> None:
        """Queue a host write: `data` (uint8, copied) goes to `boxes` in order."""
        self._check_running()
        spans = self._spans(rank, boxes)
        flat = data.detach().reshape(-1).view(torch.uint8).clone()
        need_bytes = sum(span.rows * span.width for span in spans)
        if flat.numel() != need_bytes:
            raise UsageError(f"host write of {flat.numel()} bytes into boxes of {need_bytes}")
        self.streams[rank].queue.append(Write(spans, flat, site, self._enqueue(rank, site)))

    def host_copy(self, rank: int, target: View, source: View, site: Any = None) -> None:
        """Queue a copy between two tensors in device memory; a read and a write at that place in the stream."""
        self._check_running()
        to, source_at = self._strided(rank, target), self._strided(rank, source)
        self.streams[rank].queue.append(Copy(to, source_at, site, self._enqueue(rank, site)))

    # ---------------------------------------------------------------- requests that block

    def synchronize(self, rank: int, done: Done, site: Any = None) -> None:
        """Completes when the rank's stream is empty; the host joins its clock."""
        self._request(rank, Synchronize(done, site))

    def host_read(self, rank: int, boxes: Sequence[Any], site: Any, done: Done) -> None:
        """Completes when the stream is empty; counts as the host's read. The host then reads the bytes itself."""
        self._request(rank, Read(done, site, self._spans(rank, boxes)))

    def malloc(self, rank: int, nbytes: int, alignment: int, name: str | None, site: Any, done: Done) -> None:
        """Collective; completes with this rank's address, or with a `UsageError` if there is no room."""
        self._request(rank, Malloc(done, site, nbytes, alignment, name))

    def free(self, rank: int, address: int, site: Any, done: Done) -> None:
        """Collective; completes with None, or at once with a `UsageError` if nothing starts at `address`."""
        al = self.memory.lookup(address)
        if al is None or al.lo != address or not al.symmetric or al.rank != rank:
            why = self.memory.fate_of(address) or "no symmetric allocation of this rank starts there"
            done(UsageError(f"rank {rank}: free of {address:#x}: {why}"))
            return
        user = self.streams[rank].uses(al)
        if user is not None and self.stopped is None:
            self.stop(self._freed_in_use(rank, al, user, site))
        self._request(rank, Free(done, site, al.offset_bytes, al.label))

    def collective(
        self, rank: int, group: tuple[int, ...], sequence: int, kind: str, done: Done, site: Any = None
    ) -> None:
        """A host collective of `group`; completes when every member is in the one of that sequence number."""
        if rank not in group:
            raise UsageError(f"rank {rank} is not in the group {group} of its {kind}")
        self._request(rank, Collective(done, site, tuple(group), sequence, kind))

    def end(self, rank: int, error: str | None = None, place: Place | None = None) -> None:
        """The rank's host has ended; `error` says why if it failed, and `place` where in the user's source."""
        host = self.hosts[rank]
        host.ended, host.error, host.request = True, error, None
        if error is not None and self.stopped is None:
            self.host_errors.add(host.party(), HostError(error, place))
        if self.stopped is None and self.streams[rank].idle:
            with contextlib.suppress(AgentFault), self._stopping():
                self.barriers.rank_gone(rank, f"rank {rank} is gone: {host.state()}")

    def resume_hosts(self) -> None:
        """All hosts run again: the same world takes another host function."""
        self.host_errors.forget()
        for host in self.hosts:
            host.ended, host.error = False, None

    def run(self) -> None:
        """Schedule until at least one blocking request completes, or report why none can.

        Raises:
            UsageError: a host is running.
        """
        running = [host.rank for host in self.hosts if not host.quiescent]
        if running:
            raise UsageError(f"engine asked to run while the hosts of ranks {running} are running")
        if self.stopped is None:
            with collection.paused(), self._stopping():
                try:
                    self._run()
                finally:
                    self.later.settle()
        if self.stopped is not None:
            self.requests.stop(self.stopped)
        self.requests.flush()

    def close(self) -> None:
        """Check canaries and give the memory back."""
        for al in self.memory:
            self.check_canary(al)
        self._abandon()
        for stream in self.streams:
            stream.last_launch = None
        self._current = None
        self.later.close()
        self.words.close()
        if self.tracer is not None:
            self.tracer.close()
        if self.adversary is not None:
            self.adversary.close()
        if self.detector is not None:
            self.detector.close()
        self.memory.close()

    # ---------------------------------------------------------------- scheduling

    def _run(self) -> None:
        if self.detector is not None:
            for stream in self.streams:
                self._give_slots(stream)
            for stream in self.streams:
                stream.look_ahead()
            alive = self._alive()
            self.detector.prune(alive)
            if self.adversary is not None:
                self.adversary.prune(floor_of(alive))
        while self.stopped is None:
            self._leave = False
            for stream in self.streams:
                self._advance(stream)
            self._drive()
            if self._leave or not (self._recheck() or self.runnable):
                if self.requests.complete() or self.stopped is not None:
                    return
                if self.runnable or self._go_on_late():
                    continue
                self._quiescent()
                return

    def _drive(self) -> None:
        """Run agents until all are blocked or ended, or a host call is to complete early."""
        runnable, events = self.runnable, self.events
        pick = self.scheduler.pick
        current: Agent | None = None
        while runnable and not self._leave:
            if len(runnable) > 1:
                index = pick(runnable, current)
                events.append(index)
            else:
                index = 0
            current = self._go_on(runnable[index])

    def _go_on(self, ag: Agent) -> Agent | None:
        """Let an agent take a step; the agent itself unless it has ended or is blocked then."""
        self._current = ag
        self.steps += 1
        try:
            ag.step()
        except StopIteration:
            self._remove(ag)
            self._agent_ended(ag)
            return None
        if ag.blocked is not None:
            self._remove(ag)
            return None
        return ag

    def stay(self, ag: Agent, steps: int) -> bool:
        """Let the agent that runs take so many steps in one, if the scheduler would pick it each time in any case."""
        if len(self.runnable) > 1:
            if not stay(self.scheduler, steps):
                return False
            self.events += [ag.position] * steps
        self.steps += steps
        return True

    def wake(self, ag: Agent) -> None:
        """A blocked agent can run again."""
        ag.blocked = None
        ag.ticket += 1
        self.milestones += 1
        ag.position = len(self.runnable)
        self.runnable.append(ag)

    def _remove(self, ag: Agent) -> None:
        last = self.runnable.pop()
        if last is not ag:
            self.runnable[ag.position] = last
            last.position = ag.position

    def _recheck(self) -> bool:
        """Plain stores wake nobody by themselves: look again before calling it quiescence."""
        woken = False
        for stream in self.streams:
            for ag in list(stream.current.agents.values()) if stream.current is not None else ():
                if ag.blocked is not None and self._can_go_on(ag):
                    self.wake(ag)
                    woken = True
        return woken

    def _can_go_on(self, ag: Agent) -> bool:
        at = ag.blocked
        if isinstance(at, AtWait):
            return at.word.refresh() == at.want
        if isinstance(at, AtPoll):
            if at.reads:
                return any(word.refresh() != seen for word, seen in at.reads)
            return self.progress > at.progress
        return False

    def _quiescent(self) -> None:
        """Nothing can run and no request can complete: all is done, or the world is stuck."""
        stuck = any(stream.current is not None for stream in self.streams)
        waiting = any(host.request is not None for host in self.hosts)
        if not stuck and not waiting:
            return
        found = deadlock.explain(self)
        for finding in found:
            self.log.add(finding)
        self.stop(found[0])

    def note_poll(self, ag: Agent) -> None:
        """A polling loop without a bound went round; that nobody does anything else any more is reported."""
        progress = self.progress
        if progress != self._polled_at:
            self._polled_at, self._polls_since = progress, 0
        self._polls_since += 1
        ag.polled_at = progress
        if self._polls_since <= _IDLE_POLLS:
            return
        if all(other.polled_at == progress for other in self.runnable):
            raise AgentFault(deadlock.spinning(self, self._polls_since - 1))
        self._polls_since = 0

    # ---------------------------------------------------------------- streams and launches

    def _go_on_late(self) -> bool:
        """Let the late rank's stream go on; whether it had anything to do."""
        late = next((stream for stream in self.streams if stream.rank == self.config.late_rank), None)
        if late is None or late.current is not None or not late.queue:
            return False
        self._advance(late, late=True)
        return True

    def _advance(self, stream: Stream, late: bool = False) -> None:
        if stream.rank == self.config.late_rank and not late:
            return
        while stream.current is None and stream.queue and self.stopped is None:
            op = stream.queue.popleft()
            if isinstance(op, Launch):
                self._start(stream, op)
            elif isinstance(op, Write):
                self._write(stream, op)
            elif isinstance(op, Copy):
                self._copy(stream, op)
            else:
                self.forget(op.allocation)

    def _start(self, stream: Stream, launch: Launch) -> None:
        stream.begin(launch.seen)
        launch.start_clock = stream.export(launch.site)
        stream.current = stream.last_launch = launch
        self.milestones += 1
        if self.tracer is not None:
            self.tracer.launch_started(launch)
        for _ in range(min(launch.programs, launch.cores)):
            self._start_program(launch)
        if not launch.programs:
            self._launch_ended(stream, launch)

    def _start_program(self, launch: Launch) -> None:
        program = launch.started
        launch.started += 1
        launch.running += 1
        for core in range(launch.cores_each):
            made_of = Agent if self.tracer is None else TracedAgent
            ag = made_of(self, launch, program, core, self._start_clocks(launch, program, core))
            entry = launch.kernel.entry(core)
            made = entry(ag, *launch.program_id(program), *launch.grid, *launch.args)
            ag.body, ag.step = made, made.__next__
            if self.adversary is not None:
                self.adversary.attend(ag)
            launch.agents[program, core] = ag
            ag.position = len(self.runnable)
            self.runnable.append(ag)

    def _give_slots(self, stream: Stream) -> None:
        """Slots for all who will run in the queued launches' first wave: then their vectors are of one length."""
        for launch in stream.queued():
            for program in range(min(launch.programs, launch.cores)):
                for core in range(launch.cores_each):
                    self.space.slot((launch.rank, program, core))

    def _start_clocks(self, launch: Launch, program: int, core: int) -> AgentClocks | None:
        if launch.start_clock is None:
            return None
        key = (launch.rank, program, core)
        clocks = self._agent_clocks.get(key)
        if clocks is None:
            clocks = self._agent_clocks[key] = AgentClocks(self.space, self.space.slot(key))
        clocks.start(launch.start_clock, clocks.slot)
        return clocks

    def _agent_ended(self, ag: Agent) -> None:
        launch = ag.launch
        if isinstance(ag, TracedAgent):
            ag.ended()
        self.milestones += 1
        end = ag.clocks.end() if ag.clocks is not None else None
        over = launch.note_end(ag.program, ag.core, end)
        self.barriers.agent_ended(launch)
        if not over:
            return
        launch.running -= 1
        if launch.waiting_programs:
            self._start_program(launch)
        elif not launch.running:
            self._launch_ended(self.streams[launch.rank], launch)

    def _launch_ended(self, stream: Stream, launch: Launch) -> None:
        stream.current = None
        if self.tracer is not None:
            self.tracer.launch_ended(launch)
        self._check_turns(launch)
        if stream.detect:
            stream.clocks.receive(join_ends(launch.ends) if launch.ends else None)
        self._advance(stream)
        host = self.hosts[stream.rank]
        if stream.idle and isinstance(host.request, Synchronize | Read) and self._choose(2):
            self._leave = True
        if stream.idle and host.ended:
            self.barriers.rank_gone(stream.rank, f"rank {stream.rank} is gone: {host.state()}")

    def _choose(self, n: int) -> int:
        choice = self.scheduler.choose(n)
        self.events.append(choice)
        return choice

    def _write(self, stream: Stream, op: Write) -> None:
        stream.begin(op.seen)
        start = 0
        for span in op.spans:
            nbytes = span.rows * span.width
            self._note_write(stream, span, op.site)
            span.bytes().copy_(op.data[start : start + nbytes].view(span.rows, span.width))
            self._written(stream, span, op.site)
            start += nbytes
        if self.tracer is not None:
            self.tracer.host_write(stream, op)

    def _copy(self, stream: Stream, op: Copy) -> None:
        stream.begin(op.seen)
        if self.detector is not None:
            for span in op.source.spans:
                self.detector.host_read(stream, span.al, span.off, span.rows, span.stride, span.width, op.site)
        for span in op.target.spans:
            self._note_write(stream, span, op.site)
        op.carry_out()
        for span in op.target.spans:
            self._written(stream, span, op.site)
        if self.tracer is not None:
            self.tracer.host_copy(stream, op)

    def _note_write(self, stream: Stream, span: Span, site: Any) -> None:
        box = (span.off, span.rows, span.stride, span.width)
        if self.adversary is not None:
            self.adversary.host_write(stream, span, site)
        if self.detector is not None:
            self.detector.host_write(stream, span.al, *box, site)
        if self.guard is not None and span.al.guards:
            self.guard.written(stream.clocks, stream.who, span.al, *box, site)

    def _written(self, stream: Stream, span: Span, site: Any) -> None:
        span.al.note_write(span.off, span.off + (span.rows - 1) * max(span.stride, 0) + span.width)
        end = span.off + (span.rows - 1) * span.stride + span.width
        self.words.plain_write(span.al, span.off, end, stream.who, site)

    # ---------------------------------------------------------------- findings and the end

    def stop(self, finding: Finding) -> None:
        """End the run: every blocking request completes with `WorldStopped`, on every rank."""
        self.log.add(finding)
        if self.stopped is None:
            if self.barriers.hopeless and not finding.kind.endswith("barrier-divergence"):
                self.log.add(deadlock.diverged(self))
            self.stopped = WorldStopped(f"the world has stopped: {finding.title}", tuple(self.findings))
            self._abandon()

    def _report_compiled(self, rank: int, kernel: Kernel) -> None:
        """What the compiler did to the kernel's waits; once for a kernel."""
        report = getattr(kernel, "report", None)
        if report is None or id(kernel) in self._reported:
            return
        self._reported[id(kernel)] = kernel
        for finding in findings_of(report, rank, kernel.name):
            self.log.add(finding)

    def _check_turns(self, launch: Launch) -> None:
        """Atomics with used results take a lock in block order under `ascend`: all programs need equally many."""
        unequal, site = launch.unequal_turns(), launch.turn_site
        if unequal is None or site is None:
            return
        parties = [
            Party(launch.rank, launch.id, program, 0, site.file, site.line, site.op, site.arg, "", f"made {turns}")
            for program in unequal
            for turns in (launch.turns.get(program, 0),)
        ]
        expected = f"equally many atomics with used results in each of the {launch.programs} programs"
        got = ", ".join(f"{party.note} in program {party.program}" for party in parties)
        self.log.add(
            make("hazard.atomic-turn", parties, op=site.op, tensor=site.arg or "memory", expected=expected, got=got)
        )

    def check_double_effect(self, ag: Agent, site: Any) -> None:
        """An effect that is not idempotent and that compiled code may make on more than one core.

        In a kernel that uses `sub_vec_id()`, what stands outside its gates runs on both vector cores; in one with a
        dot, a signal can be emitted for the cube core and the vector cores.
        """
        kernel = ag.launch.kernel
        if kernel.has_dot and site.op == "notify" and site not in self._double_seen:
            self._double_seen.add(site)
            cure = (
                "signal with a SET of int64 words directly behind the store: one of 32-bit words is compiled for "
                "both kinds of core, of int64 words a SET follows the core of its data (docs/compiled-effects.md); or "
                "signal from a kernel without tl.dot"
            )
            self._double_effect(
                ag,
                site,
                "on the cube core and the vector cores",
                "in a kernel with tl.dot a signal can be emitted on the cube core and on the vector cores",
                cure,
            )
            return
        if (
            ag.core
            or not kernel.uses_sub_vec
            or site in self._double_seen
            or site in getattr(kernel, "gated_sites", ())
        ):
            return
        self._double_seen.add(site)
        reason = "both vector cores of a program execute what does not depend on sub_vec_id()"
        self._double_effect(ag, site, "on both vector cores", reason)

    def _double_effect(self, ag: Agent, site: Any, where: str, reason: str, cure: str | None = None) -> None:
        op = "signal ADD" if site.op == "notify" else site.op
        once, got = "the effect made once by each program", f"made {where}"
        party = ag.party(site, site.arg)
        self.log.add(
            make("hazard.double-effect", [party], op=op, where=where, reason=reason, cure=cure, expected=once, got=got)
        )

    def check_canary(self, al: Allocation) -> None:
        """Report guard bytes that changed."""
        broken = broken_canary(al)
        if broken is None:
            return
        at_byte, value = broken
        party = Party(al.rank, tensor=al.label, where=f"byte {at_byte}")
        self.log.add(
            make(
                "canary",
                [party],
                expected=f"guard bytes from byte {len(al)} on unchanged",
                got=f"byte {at_byte} is {value:#04x}",
                tensor=al.label,
            )
        )

    def forget(self, al: Allocation) -> None:
        """An allocation is gone: its words and access records too."""
        self.words.drop(al)
        al.freed = True
        if self.guard is not None:
            self.guard.gone(al)
        if self.adversary is not None:
            self.adversary.drop(al)
        if self.detector is not None:
            self.detector.drop(al)

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Faults of agents end the run with their finding; anything else in generated code is our defect."""
        try:
            yield
        except AgentFault as fault:
            self.stop(fault.finding)
        except TdistError:
            self._abandon()
            raise
        except Exception as error:
            ag = self._current
            who = f"{ag.launch.kernel.name}, {ag.who}" if ag is not None else "no agent"
            self._abandon()
            raise TdistError(f"internal error while running {who}: {error!r}; please report this") from error

    def _abandon(self) -> None:
        """Drop all agents and queued operations."""
        self.runnable.clear()
        self.barriers.arrived.clear()
        for stream in self.streams:
            if stream.current is not None:
                stream.current.abandon()
            stream.current = None
            stream.queue.clear()

    def _freed_in_use(self, rank: int, al: Allocation, user: Launch, site: Any) -> Finding:
        party = Party(rank, file=getattr(site, "file", None), line=getattr(site, "line", None), op="free")
        file, line = getattr(user.site, "file", None), getattr(user.site, "line", None)
        return make(
            "pointer-misuse",
            [Party(rank, user.id, file=file, line=line, op=f"launch of {user.kernel.name}"), party],
            expected="a synchronize between the last launch that uses a tensor and its free",
            got=f"launch {user.id} of {user.kernel.name} may still use {al.label}",
            op="free",
            problem=f"{al.label} is freed while a queued launch uses it",
        )

    # ---------------------------------------------------------------- helpers

    def _participants(self) -> int:
        return sum(stream.current.participants for stream in self.streams if stream.current is not None)

    def _scheduler(self) -> Scheduler:
        config = self.config
        made = make_scheduler(config.scheduler) if config.choices is None else ReplayScheduler(config.choices)
        made.start(config.seed)
        return made

    def _adversary(self) -> Adversary | None:
        if self.config.memory == "plain" or self.detector is None:
            return None
        made = Adversary(self._choose, self.detector, self.memory, self.config.profile == "ascend")
        made.listen(self.words, self.guard)
        return made

    def _clocks(self, role: str, rank: int) -> AgentClocks | None:
        if not self.config.detect:
            return None
        return AgentClocks(self.space, self.space.slot((role, rank)))

    def _alive(self) -> list[AgentClocks]:
        owners = [*self.hosts, *self.streams]
        running = [ag.clocks for s in self.streams if s.current is not None for ag in s.current.agents.values()]
        return [owner.clocks for owner in owners] + [clocks for clocks in running if clocks is not None]

    def _enqueue(self, rank: int, site: Any) -> WordClock | None:
        host = self.hosts[rank]
        return host.clocks.release(drains=True, site=site) if host.detect else None

    def _request(self, rank: int, request: Request) -> None:
        if self.stopped is not None:
            request.done(self.stopped)
            return
        host = self.hosts[rank]
        if host.request is not None or host.ended:
            raise UsageError(f"rank {rank}: {request.name} while {host.state()}")
        host.request = request

    def _check_running(self) -> None:
        if self.stopped is not None:
            raise WorldStopped(str(self.stopped), self.stopped.findings)

    def _spans(self, rank: int, boxes: Sequence[Any]) -> list[Span]:
        return [self._span(rank, box) for box in boxes]

    def _span(self, rank: int, box: Any) -> Span:
        al = self.memory.lookup(box.address)
        last = box.address + (box.rows - 1) * box.stride_bytes + box.width_bytes
        if al is None or last > al.hi:
            why = self._why_outside(al, box.address)
            raise UsageError(
                f"rank {rank}: host access to {box.address:#x} … {last:#x} outside device memory{why and f': {why}'}"
            )
        return Span(al, box.address - al.lo, box.rows, box.stride_bytes, box.width_bytes)

    def _why_outside(self, al: Allocation | None, address: int) -> str:
        """What to say of an access from `address` on, near which `al` lies, that leaves device memory."""
        if al is None or address >= al.hi:
            return self.memory.fate_of(address)
        return f"{al.label} ends at {al.hi:#x}"

    def _strided(self, rank: int, view: View) -> Strided:
        whole = self._span(rank, Box(view.address, 1, 0, view.extent_bytes))
        return Strided(whole.al, whole.off, view, self._spans(rank, view.boxes()))

    def _bind_args(
        self, rank: int, kernel: Kernel, args: Sequence[Any], site: Any
    ) -> tuple[tuple[Any, ...], tuple[tuple[str, Allocation], ...]]:
        """Flat arguments of the generator (a pointer is an address and its allocation), and pointers by name."""
        declared = getattr(kernel, "args", None)
        if declared is not None and len(declared) != len(args):
            raise UsageError(f"kernel {kernel.name} takes {len(declared)} arguments, the launch gives {len(args)}")
        flat: list[Any] = []
        bound: list[tuple[str, Allocation]] = []
        for index, arg in enumerate(args):
            name, kind = (declared[index].name, declared[index].type) if declared is not None else (f"#{index}", "")
            if isinstance(arg, Pointer):
                al = self._pointee(rank, kernel, name, arg.address, site)
                flat += (arg.address, al)
                bound.append((name, al))
            else:
                flat.append(_scalar(kernel, name, kind, arg))
        return tuple(flat), tuple(bound)

    def _pointee(self, rank: int, kernel: Kernel, name: str, address: int, site: Any) -> Allocation:
        if address == 0:
            return null_allocation(rank)
        al = self.memory.lookup(address)
        if al is not None and (al.rank == rank or al.symmetric):
            return al
        owner = self.memory.rank_of(address)
        fate = self.memory.fate_of(address)
        where = fate or ("nowhere" if owner is None else f"in memory of rank {owner}")
        party = Party(
            rank, file=getattr(site, "file", None), line=getattr(site, "line", None), op=f"launch of {kernel.name}"
        )
        self.stop(
            make(
                "pointer-misuse",
                [party],
                expected=f"argument {name}: an address of rank {rank}'s device memory",
                got=f"{address:#x}, {where}",
                op=f"launch of {kernel.name}",
                problem=f"argument {name} points to freed memory: {fate}"
                if fate
                else f"argument {name} does not point to device memory of this rank",
            )
        )
        raise WorldStopped(str(self.stopped), tuple(self.findings))


def _raise(finding: Finding) -> NoReturn:
    raise AgentFault(finding)


def _grid(grid: Sequence[int]) -> tuple[int, int, int]:
    if not 1 <= len(grid) <= 3 or any(size < 0 for size in grid):
        raise UsageError(f"grid {tuple(grid)}: 1 to 3 sizes that are not negative")
    x, y, z = (*grid, 1, 1)[:3]
    return int(x), int(y), int(z)


def _at_most(grid: tuple[int, int, int], programs: int) -> tuple[int, int, int]:
    """A grid of no more programs than that, axis by axis; the grid itself where `programs` is 0."""
    if not programs or not all(grid):
        return grid
    x = min(grid[0], programs)
    y = min(grid[1], max(1, programs // x))
    return x, y, min(grid[2], max(1, programs // (x * y)))


def _scalar(kernel: Kernel, name: str, kind: str, value: Any) -> Any:
    """A scalar argument as generated code takes it."""
    made = _NUMPY_FLOATS.get(kind)
    if made is not None:
        return made(value)
    if kind[:1] in ("i", "u") and kind[1:].isdigit():
        bits = int(kind[1:])
        lo, hi = (0, 1 << bits) if kind[0] == "u" or bits == 1 else (-(1 << (bits - 1)), 1 << (bits - 1))
        if not lo <= int(value) < hi:
            raise KernelError(f"kernel {kernel.name}: argument {name} is {value}, which does not fit {kind}")
        return int(value)
    return value


__all__ = ["Engine", "HostSite", "Pointer", "WorldConfig"]
