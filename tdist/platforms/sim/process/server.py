"""The engine process: serves the ranks' requests, schedules when all of them are quiescent.

Requests of a rank are put aside until every rank is quiescent, then applied rank by rank: the order of everything is a
function of the program and the seed, whatever the operating system does with the rank processes. Kernels are compiled
as they arrive, while the hosts still run.
"""

from __future__ import annotations

import bisect
import dataclasses
import mmap
import os
import selectors
import traceback
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from tdist.errors import TdistError, UsageError, WorldStopped
from tdist.frontend.kernel_ir import KernelArg, KernelIR
from tdist.platforms.sim.device_tensors import Box
from tdist.platforms.sim.process.protocol import Channel, Message, ProtocolError, close_fds
from tdist.platforms.sim.process.wire import config_from_json, error_to_json, place_from_json, view_from_json
from tdist.platforms.sim.rank import DevicePointer
from tdist.platforms.sim.streams import HostSite

RUNNING, BLOCKED, IDLE, GONE = "running", "waiting", "idle", "gone"


@dataclass
class _Peer:
    """One rank process as the engine sees it."""

    rank: int
    channel: Channel
    state: str = IDLE
    reading: bool = False  # a read that the rank does not wait for is not completed yet
    queue: deque[Message] = field(default_factory=deque)
    site: HostSite = field(default_factory=HostSite)
    kernels: dict[int, KernelIR] = field(default_factory=dict)
    bases: list[int] = field(default_factory=list)  # private storages: the client's addresses, ascending
    private: dict[int, tuple[int, int]] = field(default_factory=dict)  # client's address → (engine's address, bytes)

    def translate(self, address: int) -> int:
        """An address as the rank spells it, in the engine's address space."""
        at = bisect.bisect_right(self.bases, address) - 1
        if at < 0:
            return address
        base = self.bases[at]
        engine_address, nbytes = self.private[base]
        return engine_address + address - base if address <= base + nbytes else address

    def discard(self) -> None:
        """Forget what has not been applied."""
        self.reading = False
        while self.queue:
            close_fds(self.queue.popleft().fds)

    def add_private(self, base: int, engine_address: int, nbytes: int) -> None:
        bisect.insort(self.bases, base)
        self.private[base] = (engine_address, nbytes)

    def drop_private(self, base: int) -> int:
        self.bases.remove(base)
        return self.private.pop(base)[0]


class Server:
    """One world after another (`reset`), for the same rank processes."""

    def __init__(self, control: Channel, ranks: list[Channel]) -> None:
        self._control = control
        self._peers = [_Peer(rank, channel) for rank, channel in enumerate(ranks)]
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, None)
        for peer in self._peers:
            self._selector.register(peer.channel, selectors.EVENT_READ, peer)
        self._generation = 0
        self._stopped: WorldStopped | None = None
        self._completed = 0
        self._port: Any = None

    # the loop

    def serve(self) -> None:
        """Until the launcher goes away."""
        while True:
            self._selector.select()
            asked = self._from_ranks()
            self._advance()
            if asked and not self._from_launcher(self._control.receive()):
                return

    def _from_ranks(self) -> bool:
        """Take in all that ranks have sent; whether the launcher has asked for something.

        A rank reports its end to the engine before it answers the launcher. So whatever the launcher asks for next
        finds nothing of an earlier run under way, however the sockets were served.
        """
        while True:
            ready = [key.data for key, _ in self._selector.select(0)]
            for peer in ready:
                if peer is not None:
                    self._from_rank(peer)
            if all(peer is None for peer in ready):
                return bool(ready)

    def _from_launcher(self, message: Message | None) -> bool:
        if message is None:
            return False
        if message.op == "reset":
            self._reset(message.data["config"])
            self._control.send({"op": "reset"})
        elif message.op == "run":
            self._start()
            self._control.send({"op": "run"})
        elif message.op == "findings":
            self._control.send({"op": "findings", **self._report()})
        elif message.op == "trace":
            trace = self._port.engine.tracer
            self._control.send({"op": "trace"}, trace.trace().to_blobs() if trace is not None else ())
        elif message.op == "status":
            self._control.send({"op": "status", "ranks": [self._status(peer) for peer in self._peers]})
        elif message.op == "stop":
            self._stop(message.data["why"])
        return True

    def _start(self) -> None:
        """A host function is about to be given to all ranks: until they block or end, they run."""
        self._port.begin()
        for peer in self._peers:
            peer.state = RUNNING

    def _report(self) -> dict[str, Any]:
        engine = self._port.engine
        self._port.check_memory()
        return {
            "findings": [found.to_json() for found in engine.findings],
            "prints": [list(line) for line in engine.prints],
            "events": list(engine.events),
        }

    def _status(self, peer: _Peer) -> dict[str, Any]:
        return {"state": peer.state, "file": peer.site.file, "line": peer.site.line, "doing": peer.site.op}

    def _reset(self, config: dict[str, Any]) -> None:
        from tdist.platforms.sim.engine import Engine
        from tdist.platforms.sim.engine_port import EnginePort

        if self._port is not None:
            self._port.close()
        self._port = EnginePort(Engine(config_from_json(config)))
        self._generation += 1
        self._stopped = None
        for peer in self._peers:
            peer.bases, peer.private, peer.kernels = [], {}, {}
            peer.discard()

    # requests of ranks

    def _from_rank(self, peer: _Peer) -> None:
        try:
            message = peer.channel.receive()
        except ProtocolError as error:
            self._lost(peer, str(error))
            return
        if message is None:
            self._lost(peer, "its process ended")
            return
        if "site" in message.data:
            peer.site = HostSite(*message.data["site"])
        if message.op == "begin":
            self._begin(peer)
        elif message.op == "kernel":
            self._kernel(peer, message)
        else:
            peer.queue.append(message)
            peer.state = BLOCKED if message.data.get("blocks") else IDLE if message.op == "end" else peer.state
            if message.op == "end" and message.data["failed"]:
                error = message.data["error"]
                self._port.end(peer.rank, error, place_from_json(message.data))
                self._stop(f"rank {peer.rank}: its host function raised {error}")

    def _lost(self, peer: _Peer, why: str) -> None:
        self._selector.unregister(peer.channel)
        running = peer.state in (RUNNING, BLOCKED)
        peer.state = GONE
        if running:
            self._port.end(peer.rank, why)
            self._stop(f"rank {peer.rank}: {why}")

    def _begin(self, peer: _Peer) -> None:
        """A host function starts: tell the rank which world it is in, and give it the heap."""
        heap = self._port.heap_fd(peer.rank)
        data = {
            "generation": self._generation,
            "heap": self._port.heap_bases()[peer.rank],
            "bases": self._port.heap_bases(),
            "mapped_bytes": os.fstat(heap).st_size,
        }
        peer.channel.send(data, fds=[heap])

    def _kernel(self, peer: _Peer, message: Message) -> None:
        data = message.data
        args = tuple(KernelArg(name, kind) for name, kind in data["args"])
        kernel = KernelIR(data["name"], message.blobs[0].decode(), args)
        try:
            self._port.compile(kernel)
        except TdistError as error:
            peer.channel.send({"late": error_to_json(error)})
            return
        peer.kernels[data["id"]] = kernel

    # scheduling

    def _advance(self) -> None:
        """If every rank is quiescent: apply what they asked for, and let the engine run until one of them can go on."""
        if self._port is None:
            return
        try:
            while not self._any(RUNNING) and self._apply_all():
                if not self._any(RUNNING):
                    self._run_engine()
        except UsageError as error:  # such as a choice list that does not fit the run
            self._stop(str(error))
        except Exception:  # a bug of ours must end the run with its text, not hang the ranks
            self._stop("internal error of the engine\n" + traceback.format_exc())

    def _run_engine(self) -> None:
        before = self._completed
        self._port.engine.run()
        if self._completed == before:
            raise TdistError("the engine ran and completed no request")

    def _any(self, state: str) -> bool:
        return any(peer.state == state for peer in self._peers)

    def _apply_all(self) -> bool:
        """Apply what is queued, rank by rank; whether any rank waits for the engine then."""
        for peer in self._peers:
            while peer.queue and not peer.reading:
                self._apply(peer, peer.queue.popleft())
        return any(peer.state == BLOCKED or peer.reading for peer in self._peers)

    def _apply(self, peer: _Peer, message: Message) -> None:
        if self._stopped is not None:
            close_fds(message.fds)
            if message.data.get("blocks"):
                self._answer(peer, self._stopped)
            return
        try:
            getattr(self, f"_do_{message.op}")(peer, message)
        except TdistError as error:
            if message.data.get("blocks"):
                self._answer(peer, error)
            else:
                peer.channel.send({"late": error_to_json(error)})

    def _answer(self, peer: _Peer, result: Any) -> None:
        if peer.state != BLOCKED:
            return
        self._completed += 1
        peer.state = RUNNING
        is_error = isinstance(result, BaseException)
        peer.channel.send({"error": error_to_json(result)} if is_error else {"value": result})

    def _done(self, peer: _Peer) -> Any:
        return lambda result=None: self._answer(peer, result)

    def _stop(self, why: str) -> None:
        if self._stopped is None:
            findings = tuple(self._port.engine.findings) if self._port is not None else ()
            self._stopped = WorldStopped(f"the world has stopped: {why}", findings)
        for peer in self._peers:
            self._answer(peer, self._stopped)
            peer.discard()

    # one method an operation

    def _do_launch(self, peer: _Peer, message: Message) -> None:
        data = message.data
        kernel = peer.kernels.get(data["kernel"])
        if kernel is None:
            return  # did not compile; the rank has been told
        args = [self._argument(peer, arg) for arg in data["args"]]
        self._port.launch(peer.rank, kernel, tuple(data["grid"]), args, HostSite(*data["site"]))

    def _argument(self, peer: _Peer, arg: dict[str, Any]) -> Any:
        if "p" in arg:
            return DevicePointer(peer.translate(arg["p"]))
        return float(arg["f"]) if "f" in arg else arg["i"]

    def _do_describe(self, peer: _Peer, message: Message) -> None:
        data, view = message.data, view_from_json(message.data["view"])
        view = dataclasses.replace(view, address=peer.translate(view.address))
        self._port.describe(peer.rank, view, data["name"], data["role"], data["launch"])

    def _do_register(self, peer: _Peer, message: Message) -> None:
        nbytes = message.data["nbytes"]
        try:
            mapped = mmap.mmap(message.fds[0], nbytes)
        finally:
            close_fds(message.fds)
        storage = torch.frombuffer(mapped, dtype=torch.uint8)
        peer.add_private(message.data["address"], self._port.register(peer.rank, storage, None), nbytes)

    def _do_unregister(self, peer: _Peer, message: Message) -> None:
        self._port.unregister(peer.rank, peer.drop_private(message.data["address"]))

    def _boxes(self, peer: _Peer, message: Message) -> list[Box]:
        return [Box(peer.translate(address), *rest) for address, *rest in message.data["boxes"]]

    def _do_write(self, peer: _Peer, message: Message) -> None:
        data = torch.frombuffer(message.blobs[0], dtype=torch.uint8)
        self._port.host_write(peer.rank, self._boxes(peer, message), data, peer_site(message))

    def _do_copy(self, peer: _Peer, message: Message) -> None:
        views = [view_from_json(message.data[key]) for key in ("target", "source")]
        target, source = [dataclasses.replace(view, address=peer.translate(view.address)) for view in views]
        self._port.host_copy(peer.rank, target, source, peer_site(message))

    def _do_read(self, peer: _Peer, message: Message) -> None:
        done = self._done(peer) if message.data.get("blocks") else self._read_done(peer)
        self._port.host_read(peer.rank, self._boxes(peer, message), peer_site(message), done)

    def _read_done(self, peer: _Peer) -> Any:
        """For a read that the rank does not wait for; what it asked for next is applied after it."""
        peer.reading = True

        def done(result: Any = None) -> None:
            self._completed += 1
            peer.reading = False

        return done

    def _do_synchronize(self, peer: _Peer, message: Message) -> None:
        self._port.synchronize(peer.rank, peer_site(message), self._done(peer))

    def _do_malloc(self, peer: _Peer, message: Message) -> None:
        data = message.data
        name = data["name"]
        self._port.malloc(peer.rank, data["nbytes"], data["alignment"], name, peer_site(message), self._done(peer))

    def _do_free(self, peer: _Peer, message: Message) -> None:
        self._port.free(peer.rank, message.data["address"], peer_site(message), self._done(peer))

    def _do_collective(self, peer: _Peer, message: Message) -> None:
        data, done = message.data, self._done(peer)
        self._port.collective(peer.rank, tuple(data["group"]), data["sequence"], data["kind"], peer_site(message), done)

    def _do_end(self, peer: _Peer, message: Message) -> None:
        self._port.end(peer.rank, message.data["error"], place_from_json(message.data))


def peer_site(message: Message) -> HostSite:
    return HostSite(*message.data["site"])


def main(spec: dict[str, Any], fds: list[int]) -> int:
    """Entry of the forked engine process; `fds`: the launcher's socket, then one per rank."""
    torch.set_num_threads(1)
    channels = [Channel.from_fd(fd) for fd in fds]
    Server(channels[0], channels[1:]).serve()
    return 0
