"""A rank process: runs host functions for the launcher, and is a `Port` to the engine process.

Requests that do not block are sent and forgotten; a compile error of a launch comes back with the next answer. Private
tensors are moved to shared memory when they are first launched with, so that rank and engine see the same bytes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import mmap
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tdist.errors import EnvironmentUnfit, UsageError, WorldStopped
from tdist.frontend.kernel_ir import KernelIR
from tdist.platforms.sim.device_tensors import Box, View
from tdist.platforms.sim.host_errors import HostError
from tdist.platforms.sim.host_watch import WatchThread
from tdist.platforms.sim.process.protocol import Channel, Message, close_fds, pack, tensor_bytes, unpack
from tdist.platforms.sim.process.wire import config_from_json, error_from_json, error_to_json, view_to_json
from tdist.platforms.sim.rank import DevicePointer, Heap, SimRank
from tdist.platforms.sim.scope import simulation_scope
from tdist.platforms.sim.streams import HostSite

_PRIVATE_BASE = 0x56_0000_0000_0000  # addresses of private storages as this rank spells them
_PRIVATE_STEP_BYTES = 512
_SHM_RESERVE_BYTES = 8 << 20
_DESCRIPTORS = "/proc/self/fd/"
_OWN_FRAMES = str(Path(__file__).resolve().parents[3]) + os.sep


class EngineLink:
    """This rank's requests to the engine; see `tdist.platforms.sim.rank.Port`."""

    def __init__(self, channel: Channel, watch: WatchThread) -> None:
        self._channel = channel
        self._watch = watch
        self._kernels: dict[KernelIR, int] = {}
        self._next_private = _PRIVATE_BASE
        self._dirty = False  # something is queued on the stream that no read has waited for yet
        self._late: BaseException | None = None

    def begin(self) -> Message:
        """A host function starts; the answer says which world it runs in."""
        self._channel.send({"op": "begin"})
        answer = self._channel.receive()
        if answer is None:
            raise WorldStopped("the engine process is gone")
        return answer

    def new_world(self) -> None:
        self._kernels.clear()
        self._dirty = False
        self._late = None

    def end(self, failed: bool, error: HostError | None) -> None:
        text, place = (error.text, error.place) if error is not None else (None, None)
        self._channel.send({"op": "end", "failed": failed, "error": text, "place": place})

    def launch(self, kernel: KernelIR, grid: tuple[int, int, int], args: Sequence[Any], site: HostSite) -> None:
        self._raise_late()
        message = {"op": "launch", "kernel": self._kernel_id(kernel), "grid": list(grid), "args": []}
        message["args"] = [_argument(arg) for arg in args]
        self._send(message, site)
        self._dirty = True

    def register(self, storage: torch.UntypedStorage) -> int:
        nbytes = storage.nbytes()
        address = self._next_private
        self._next_private += (nbytes // _PRIVATE_STEP_BYTES + 2) * _PRIVATE_STEP_BYTES
        with _shared(storage) as fd:
            self._channel.send({"op": "register", "address": address, "nbytes": nbytes}, fds=[fd])
        return address

    def unregister(self, address: int) -> None:
        self._channel.send({"op": "unregister", "address": address})

    def describe(self, view: View, name: str, role: str, launch: int) -> None:
        data = {"op": "describe", "view": view_to_json(view), "name": name, "role": role, "launch": launch}
        self._channel.send(data)

    def host_write(self, boxes: Sequence[Box], data: torch.Tensor, site: HostSite) -> None:
        self._raise_late()
        self._send({"op": "write", "boxes": _boxes(boxes)}, site, [tensor_bytes(data)])
        self._dirty = True

    def host_copy(self, target: View, source: View, site: HostSite) -> None:
        self._raise_late()
        self._send({"op": "copy", "target": view_to_json(target), "source": view_to_json(source)}, site)
        self._dirty = True

    def host_read(self, boxes: Sequence[Box], site: HostSite) -> None:
        message = {"op": "read", "boxes": _boxes(boxes)}
        if self._dirty:
            self._call(message, site)
            self._dirty = False
            return
        # nothing is queued, and no device agent runs while a host does: recorded, there is nothing to wait for
        self._raise_late()
        self._send(message, site)

    def synchronize(self, site: HostSite) -> None:
        self._call({"op": "synchronize"}, site)
        self._dirty = False

    def malloc(self, nbytes: int, alignment: int, name: str | None, site: HostSite) -> int:
        return self._call({"op": "malloc", "nbytes": nbytes, "alignment": alignment, "name": name}, site)

    def free(self, address: int, site: HostSite) -> None:
        self._call({"op": "free", "address": address}, site)

    def collective(self, group: tuple[int, ...], sequence: int, kind: str, site: HostSite) -> None:
        self._call({"op": "collective", "group": list(group), "sequence": sequence, "kind": kind}, site)

    def _kernel_id(self, kernel: KernelIR) -> int:
        known = self._kernels.get(kernel)
        if known is None:
            known = self._kernels[kernel] = len(self._kernels)
            args = [[arg.name, arg.type] for arg in kernel.args]
            message = {"op": "kernel", "id": known, "name": kernel.name, "args": args}
            self._channel.send(message, [kernel.ttir.encode()])
        return known

    def _send(self, message: dict[str, Any], site: HostSite, blobs: Sequence[Any] = ()) -> None:
        self._channel.send({**message, "site": [site.file, site.line, site.op]}, blobs)

    def _call(self, message: dict[str, Any], site: HostSite) -> Any:
        self._raise_late()
        self._send({**message, "blocks": True}, site)
        while True:
            with self._watch.elsewhere():
                answer = self._receive()
            if "late" in answer.data:
                self._late = self._late or error_from_json(answer.data["late"])
                continue
            error = error_from_json(answer.data["error"]) if "error" in answer.data else None
            self._raise_late()  # the cause before the consequence
            if error is not None:
                raise error
            return answer.data["value"]

    def _receive(self) -> Message:
        answer = self._channel.receive()
        if answer is None:
            raise WorldStopped("the engine process is gone")
        return answer

    def _raise_late(self) -> None:
        while self._late is None and select.select([self._channel], [], [], 0)[0]:
            self._late = error_from_json(self._receive().data["late"])
        if self._late is not None:
            error, self._late = self._late, None
            raise error


def _argument(arg: Any) -> dict[str, Any]:
    if isinstance(arg, DevicePointer):
        return {"p": arg.address}
    if isinstance(arg, bool | int):
        return {"i": int(arg)}
    if hasattr(arg, "item"):
        return _argument(arg.item())
    return {"f": repr(float(arg))}  # text: JSON has no infinities


def _boxes(boxes: Sequence[Box]) -> list[list[int]]:
    return [[box.address, box.rows, box.stride_bytes, box.width_bytes] for box in boxes]


@contextlib.contextmanager
def _shared(storage: torch.UntypedStorage) -> Iterator[int]:
    """Move a storage to shared memory (in place: all its tensors follow), and give its descriptor for the block.

    It goes to a memfd, which no mount limits. What the user has shared already, with processes of his own, stays where
    it is.

    Raises:
        EnvironmentUnfit: /dev/shm, which a torch that cannot swap storages needs, has no room for it.
    """
    is_users = storage.is_shared() and not str(storage.filename).startswith(_DESCRIPTORS)
    swap: Any = getattr(storage, "_swap_data_ptr_", None)
    if is_users or swap is None:
        _check_shm(storage)
        yield storage._share_fd_cpu_()[0]  # the storage keeps it
        return
    fd = os.memfd_create("tdist-tensor", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, storage.nbytes())
        moved = torch.UntypedStorage.from_file(f"{_DESCRIPTORS}{fd}", True, storage.nbytes())
        moved.copy_(storage)
        swap(moved)
        yield fd
    finally:
        os.close(fd)


def _check_shm(storage: torch.UntypedStorage) -> None:
    nbytes, room = storage.nbytes(), os.statvfs("/dev/shm")
    free_bytes = room.f_bavail * room.f_frsize - _SHM_RESERVE_BYTES
    if nbytes > free_bytes and not storage.is_shared():
        raise EnvironmentUnfit(
            f"/dev/shm has {max(free_bytes, 0) >> 20} MiB left, and a tensor of {nbytes >> 20} MiB that a kernel "
            "is launched with must lie there; enlarge it (docker run --shm-size=2g, or mount -o remount,size=2g "
            "/dev/shm), or run in one process with tdist's World"
        )


class RankProcess:
    """The loop of a rank process between its launcher and its engine."""

    def __init__(self, rank: int, control: Channel, engine: Channel) -> None:
        self.rank = rank
        self._control = control
        self._pid = os.getpid()
        self._watch = WatchThread(rank)
        self._link = EngineLink(engine, self._watch)
        self._generation = -1
        self._runtime: SimRank | None = None
        self._files: dict[str, tuple[float, ModuleType]] = {}

    def serve(self) -> None:
        self._control.send({"op": "ready"})
        while (message := self._control.receive()) is not None:
            self._run(message)

    def _run(self, message: Message) -> None:
        data = message.data
        try:
            runtime = self._enter_world(data["config"])
            args = unpack(data["args"], message.blobs)
            self._watch.period_seconds = data["watchdog_seconds"]
            with simulation_scope(), self._watch.host_code():
                result = self._call(runtime, data["target"], args)
            blobs: list[Any] = []
            packed = pack(result, blobs, f"result of {data['target']}")
        except BaseException as error:  # SystemExit of user code too: the launcher reports it
            self._end_fork()
            self._fail(error)
            return
        self._end_fork()
        self._link.end(False, None)
        self._control.send({"op": "result", "value": packed}, blobs)

    def _end_fork(self) -> None:
        """A child that user code has forked must not go on as a second process of this rank, on the same sockets."""
        if os.getpid() != self._pid:
            os._exit(0)

    def _fail(self, error: BaseException) -> None:
        stopped = isinstance(error, WorldStopped)
        self._link.end(not stopped, HostError.of(error))
        self._control.send({"op": "error", **error_to_json(error), "trace": _user_trace(error)})

    def _enter_world(self, config: dict[str, Any]) -> SimRank:
        answer = self._link.begin()
        data = answer.data
        if data["generation"] == self._generation and self._runtime is not None:
            close_fds(answer.fds)
            return self._runtime
        self._link.new_world()
        mapped = mmap.mmap(answer.fds[0], data["mapped_bytes"])
        close_fds(answer.fds)
        heap = Heap(torch.frombuffer(mapped, dtype=torch.uint8), data["heap"])
        self._generation = data["generation"]
        self._runtime = SimRank(self.rank, config_from_json(config), heap, data["bases"], self._link)
        return self._runtime

    def _call(self, runtime: SimRank, target: str, args: dict[str, Any]) -> Any:
        function = self._resolve(target)
        with runtime.on_this_thread():
            return runtime.collect(function(runtime, **args))

    def _resolve(self, target: str) -> Callable[..., Any]:
        """The function that `module:name` or `/path/file.py::name` means."""
        is_file = "::" in target
        place, _, name = target.partition("::" if is_file else ":")
        module = self._load_file(place) if is_file else importlib.import_module(place)
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part, None)
        if not callable(value):
            raise UsageError(f"{target}: {place} has no function {name}")
        return value

    def _load_file(self, path: str) -> ModuleType:
        changed = os.stat(path).st_mtime
        known = self._files.get(path)
        if known is not None and known[0] == changed:
            return known[1]
        module = _import_file(path)
        self._files[path] = (changed, module)
        return module


def _import_file(path: str) -> ModuleType:
    name = "tdist_user_" + "".join(c if c.isalnum() else "_" for c in path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _on_path(str(Path(path).parent)):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _on_path(directory: str) -> Iterator[None]:
    """A file's neighbours can be imported while it loads, as when it is run as a script."""
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)


def _user_trace(error: BaseException) -> str:
    """The traceback without our own frames at its beginning."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_FRAMES + "platforms"):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _loopback() -> str:
    """Name of the loopback interface (usually `lo`): hostnames and proxies have no say in where gloo listens."""
    for name in os.listdir("/sys/class/net"):
        with contextlib.suppress(OSError, ValueError):
            if int(Path("/sys/class/net", name, "flags").read_text(), 16) & 0x8:
                return name
    return "lo"


def join_group(rank: int, nranks: int, store_fd: int) -> None:
    """A real torch.distributed group over gloo; the ranks meet in an unnamed file."""
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = _loopback()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(nranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(nranks))
    path = f"/proc/self/fd/{store_fd}"
    store = dist.FileStore(path, nranks)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=nranks)


def keep_group() -> None:
    """Refuse to let a host function destroy the group: the next function of the pool needs it, and its peers do now."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    destroy = dist.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        if group is None or group is dist.group.WORLD:
            raise UsageError(
                f"rank {dist.get_rank()}: torch.distributed.destroy_process_group() in a host function: the group "
                "belongs to the rank process, which made it and ends it; take the call out, or make it only where "
                "init_process_group() is yours (a group of new_group() may be destroyed)"
            )
        destroy(group)

    dist.destroy_process_group = distributed_c10d.destroy_process_group = destroy_process_group


def main(spec: dict[str, Any], fds: list[int]) -> int:
    """Entry of a forked rank process; `fds`: the launcher's socket, the engine's, the meeting file."""
    torch.set_num_threads(1)
    control, engine, store_fd = Channel.from_fd(fds[0]), Channel.from_fd(fds[1]), fds[2]
    join_group(spec["rank"], spec["nranks"], store_fd)
    keep_group()
    RankProcess(spec["rank"], control, engine).serve()
    return 0
