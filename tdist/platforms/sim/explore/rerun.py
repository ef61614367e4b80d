"""A recording on a fresh engine: no threads, no torch modes, no front end.

The conductor is `World`'s: every rank that can go on does so in rank order until it blocks or ends, then the engine
runs. So the engine meets the same requests in the same states, and the same seed makes the same choices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tdist.errors import TdistError, UsageError, WorldStopped
from tdist.findings import Finding
from tdist.platforms.sim import collection
from tdist.platforms.sim.device_tensors import View
from tdist.platforms.sim.engine import Engine
from tdist.platforms.sim.engine_port import EnginePort
from tdist.platforms.sim.explore import recording as rec
from tdist.platforms.sim.explore.recording import NotRecordable, Recording
from tdist.platforms.sim.symbolic_access import Digests


@dataclass(frozen=True)
class RerunResult:
    """What one re-run gave.

    Attributes:
        choices: for `WorldConfig.choices`.
        outputs: what `RecordingWorld.output` named, by its key; empty for ranks that were stopped before.
        stopped: why the world stopped early; empty if it did not.
        steps: resumptions of device agents.
    """

    findings: tuple[Finding, ...]
    choices: tuple[int, ...]
    outputs: dict[tuple[Any, ...], torch.Tensor] = field(default_factory=dict)
    stopped: str = ""
    steps: int = 0


class _Rank:
    """One rank's script, and how far it has come."""

    def __init__(self, script: list[rec.Request]) -> None:
        self.script = script
        self.at = 0
        self.waiting = False
        self.ended = False
        self.reply: Any = None


class Replica:
    """The hosts of a recording, played to `engine`; `run()` once, then `close()`. `symbolic`: see `SimOptions`."""

    def __init__(self, recording: Recording, engine: Engine, symbolic: rec.Concrete = None) -> None:
        self.symbolic = symbolic
        self.recording = recording
        self.engine = engine
        self.outputs: dict[tuple[Any, ...], torch.Tensor] = {}
        self.stopped = ""
        self.ranks = [_Rank(script) for script in recording.scripts]
        self._port = EnginePort(engine)
        self._alive: list[torch.Tensor] = []  # private memory

    def run(self) -> RerunResult:
        """Play all scripts to their ends.

        Raises:
            NotRecordable: a host would do something here that it did not do in the recording.
        """
        with collection.paused():
            while not all(rank.ended for rank in self.ranks):
                self._step()
            self._port.check_memory()
        engine = self.engine
        return RerunResult(tuple(engine.findings), tuple(engine.events), self.outputs, self.stopped, engine.steps)

    def _step(self) -> None:
        """Let every rank that can go on do so once, in rank order; if none can, let the engine run."""
        ready = [(number, rank) for number, rank in enumerate(self.ranks) if not (rank.ended or rank.waiting)]
        for number, rank in ready:
            self._play(number, rank)
        if not ready:
            self._run_engine()

    def close(self) -> None:
        """Give the memory back, and forget the engine, whose parts all know each other through it.

        So what a re-run has made goes at once. It is little and quickly made: a collector that looks for it among all
        that lives takes a tenth of a search's time.
        """
        self._port.close()
        self._alive.clear()
        vars(self.engine).clear()

    def _run_engine(self) -> None:
        self.engine.run()
        if all(rank.waiting for rank in self.ranks if not rank.ended):
            raise TdistError("internal error: the engine ran and completed no request; please report this")

    def _play(self, number: int, rank: _Rank) -> None:
        """One rank's turn: until it blocks or ends."""
        if isinstance(rank.reply, BaseException):
            self._end(number, rank, rank.reply)
            return
        while not (rank.waiting or rank.ended):
            if rank.at >= len(rank.script):
                raise NotRecordable(f"rank {number} comes farther than in the recording, which was stopped there")
            request = rank.script[rank.at]
            rank.at += 1
            try:
                self._ask(number, rank, request)
            except WorldStopped as stopped:
                self._end(number, rank, stopped)

    def _end(self, number: int, rank: _Rank, error: BaseException) -> None:
        if not isinstance(error, WorldStopped):
            raise NotRecordable(f"rank {number}: {error}")
        self.stopped = self.stopped or str(error)
        rank.ended = True
        self.engine.end(number, None)

    def _ask(self, number: int, rank: _Rank, request: rec.Request) -> None:
        engine = self.engine
        match request:
            case rec.Launch():
                kernel = self.recording.kernel_of(request, self._port, self.symbolic)
                engine.launch(number, kernel, request.grid, request.args, request.site)
            case rec.Write():
                engine.host_write(number, request.boxes, request.data, request.site)
            case rec.Copy():
                engine.host_copy(number, request.target, request.source, request.site)
            case rec.Register():
                self._register(number, request)
            case rec.Unregister():
                engine.unregister(number, request.address)
            case rec.Output():
                self.outputs[request.key] = self._bytes(request.view)
            case rec.End():
                rank.ended = True
                engine.end(number, None)
            case _:
                self._block(number, rank, request)

    def _block(self, number: int, rank: _Rank, request: Any) -> None:
        rank.waiting, rank.reply = True, None

        def done(result: Any = None) -> None:
            if not rank.waiting:
                return
            rank.waiting, rank.reply = False, result
            if isinstance(request, rec.Malloc) and isinstance(result, int) and result != request.address:
                rank.reply = UsageError(f"an allocation of {request.nbytes} bytes came out elsewhere than recorded")

        self._ask_blocking(number, request, done)
        if isinstance(rank.reply, BaseException) and not rank.waiting:
            self._end(number, rank, rank.reply)

    def _ask_blocking(self, number: int, request: Any, done: Any) -> None:
        engine = self.engine
        match request:
            case rec.Synchronize():
                engine.synchronize(number, done, request.site)
            case rec.Read():
                engine.host_read(number, request.boxes, request.site, done)
            case rec.Malloc():
                engine.malloc(number, request.nbytes, request.alignment, request.name, request.site, done)
            case rec.Free():
                engine.free(number, request.address, request.site, done)
            case rec.Collective():
                engine.collective(number, request.group, request.sequence, request.kind, done, request.site)

    def _register(self, number: int, request: rec.Register) -> None:
        data = request.data.clone()
        address = self.engine.register(number, data, None)
        if address != request.address:
            raise NotRecordable(f"rank {number}: private memory came out at {address:#x}, not at {request.address:#x}")
        self._alive.append(data)
        al = self.engine.memory.lookup(address)
        if al is not None and self.symbolic is not None:
            al.digests = Digests(self.recording.digests.setdefault(address, {}))

    def _bytes(self, view: View) -> torch.Tensor:
        """The elements of a view now, as a tensor of its shape and type."""
        al = self.engine.memory.lookup(view.address)
        if al is None or 0 in view.shape:
            return torch.empty(view.shape, dtype=view.dtype)
        off = view.address - al.lo
        whole = al.view(torch.uint8)[off : off + view.extent_bytes].view(view.dtype)
        return torch.as_strided(whole, view.shape, view.strides, whole.storage_offset()).clone()


@contextlib.contextmanager
def replica(
    recording: Recording, engine_type: type[Engine] = Engine, symbolic: rec.Concrete = None, **world: Any
) -> Iterator[Replica]:
    """A replica of the recorded world with other fields, for the length of the block.

    Raises:
        NotRecordable: the recorded hosts may have decided by what they read from device memory.
        UsageError: a field that a world does not have, or the number of ranks or the heap's size changed.
    """
    if recording.depends_on_data:
        raise NotRecordable(f"hosts cannot be left out: {recording.depends_on_data}, which may depend on what it read")
    config = replace(recording.config, **world)
    if (config.nranks, config.heap_bytes) != (recording.config.nranks, recording.config.heap_bytes):
        raise UsageError("a re-run has the recording's number of ranks and heap size: addresses depend on them")
    made = Replica(recording, engine_type(config), symbolic)
    try:
        yield made
    finally:
        made.close()


def rerun(recording: Recording, **world: Any) -> RerunResult:
    """Run a recording again in a world of other fields (scheduler, seed, choices, detect, poison, mutation, …).

    Returns:
        The findings and choices that the whole world would have given, hosts and all.

    Raises:
        NotRecordable: the hosts have to be run: they may decide by what they read, or came farther than recorded.
    """
    with replica(recording, **world) as made:
        return made.run()


__all__ = ["NotRecordable", "Recording", "Replica", "RerunResult", "replica", "rerun"]
