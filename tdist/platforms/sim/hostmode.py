"""How a host function touches device memory through torch.

A host of a card reads device memory only after the stream has done what was queued before, and its writes are stream
operations themselves. Two torch modes give CPU tensors that behaviour. A tensor is *device memory* if it lies on the
symmetric heap or if its storage has been passed to a launch; all other tensors are ordinary host memory and pay for the
lookup only.

| what the host does with device memory | what happens |
|---|---|
| views, shapes, strides, `empty_like` and kin | nothing |
| `zero_`, `fill_`, `copy_`, `normal_` and other pure overwriters, `out=` | a stream operation, asynchronous |
| `copy_` of one device tensor to another | a stream operation, asynchronous: a read and a write |
| any other in-place operation | waits for the stream, computes, is queued as a write |
| any read: arithmetic, `item`, `tolist`, printing, `torch.equal`, `torch.save` | waits for the stream |
| `numpy()`, `cpu()`, `to("cpu")`, `np.asarray` | waits, then returns a snapshot (on a card they copy, too) |
| collectives of torch.distributed | reported to the engine as host collectives; data waits for the stream |

Not seen: access through a numpy array or a raw pointer that was taken *before* the tensor was first launched with, and
point-to-point `send`/`recv` (`isend`/`irecv`), which are not reported: they make no ordering edge. An asynchronous
collective (`async_op=True`) counts as entered, and its group as joined, where it is issued.

Source: ordering model, "Who acts" (Host, Stream, Edges).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tdist.errors import UsageError
from tdist.platforms.base import spoken_for
from tdist.platforms.sim.device_tensors import Box, boxes_of, bytes_in_box_order


class DeviceMemory(Protocol):
    """What the modes need of a rank's runtime."""

    def address_of(self, tensor: torch.Tensor) -> int | None: ...
    def host_read(self, boxes: Sequence[Box], op: str) -> None:
        """Wait for the stream and record a read of `boxes`."""
        ...

    def host_write(self, tensor: torch.Tensor, boxes: Sequence[Box], data: torch.Tensor, op: str) -> None:
        """Queue a write of `data` (uint8, in box order) on the stream, and keep `tensor`'s memory until it is done."""
        ...

    def host_copy(self, target: torch.Tensor, source: torch.Tensor, op: str) -> None:
        """Queue a copy between device tensors of equal shape on the stream."""
        ...

    def host_collective(self, group: tuple[int, ...], kind: str) -> None:
        """Enter a host collective; returns when every member of `group` has entered it."""
        ...


class _Kind(Enum):
    FREE = auto()
    RESIZE = auto()
    PLAIN = auto()
    COLLECTIVE = auto()
    POINT_TO_POINT = auto()


@dataclass(frozen=True)
class _Plan:
    """How one operator treats its tensor arguments."""

    name: str
    kind: _Kind
    written: frozenset[str]
    overwrites: bool  # what it writes, it does not read


_OVERWRITERS = frozenset(
    [
        "zero_",
        "fill_",
        "copy_",
        "normal_",
        "uniform_",
        "random_",
        "exponential_",
        "cauchy_",
        "geometric_",
        "log_normal_",
        "bernoulli_",
    ]
)
_METADATA = frozenset(
    [
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_empty",
        "new_empty_strided",
        "new_zeros",
        "new_ones",
        "new_full",
        "is_same_size",
        "_unsafe_view",
        "_reshape_alias",
        "lift_fresh",
        "detach_",
        "set_",
        "as_strided_",
        "t_",
        "transpose_",
        "squeeze_",
        "unsqueeze_",
        "swapaxes_",
        "is_pinned",
        "record_stream",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
        "requires_grad_",
        "split",
        "unsafe_split",
        "_version",
        "size",
        "stride",
        "storage_offset",
        "numel",
        "is_contiguous",
    ]
)
_RESIZERS = frozenset(["resize_", "resize_as_"])
_POINT_TO_POINT = frozenset(["send", "recv_", "recv_any_source_"])


_PLANS: dict[int, _Plan] = {}
"""By identity: overloads of operators are never given back, and hash themselves in Python."""


def _plan(func: Any) -> _Plan:
    made = _PLANS[id(func)] = _make_plan(func)
    return made


def _make_plan(func: Any) -> _Plan:
    namespace, _, name = func._schema.name.partition("::")
    if namespace == "c10d":
        kind = _Kind.POINT_TO_POINT if name in _POINT_TO_POINT else _Kind.COLLECTIVE
        return _Plan(name, kind, _c10d_written(func, name), overwrites=False)
    if name in _RESIZERS:
        return _Plan(name, _Kind.RESIZE, frozenset(), overwrites=False)
    if getattr(func, "is_view", False) or name in _METADATA:
        return _Plan(name, _Kind.FREE, frozenset(), overwrites=False)
    written = [arg for arg in func._schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]
    overwrites = bool(written) and (name in _OVERWRITERS or all(arg.is_out for arg in written))
    return _Plan(name, _Kind.PLAIN, frozenset(arg.name for arg in written), overwrites)


def _c10d_written(func: Any, name: str) -> frozenset[str]:
    if name in ("send", "barrier", "monitored_barrier_"):
        return frozenset()
    names = (arg.name for arg in func._schema.arguments)
    return frozenset(arg for arg in names if arg == "tensors" or arg.startswith("output"))


def _bind(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    names = [arg.name for arg in func._schema.arguments]
    yield from zip(names, args, strict=False)
    yield from kwargs.items()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _on_device(memory: DeviceMemory, values: Iterable[Any]) -> bool:
    """Whether a tensor among `values` is device memory; most operators of a host function have none."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if memory.address_of(value) is not None:
                return True
        elif isinstance(value, list | tuple) and _on_device(memory, value):
            return True
    return False


class _Access:
    """One operator call that touches device memory: what it reads, and temporaries for what it writes."""

    def __init__(self, memory: DeviceMemory, plan: _Plan) -> None:
        self.memory = memory
        self.plan = plan
        self.read: list[Box] = []
        self.writes: dict[int, tuple[torch.Tensor, int, torch.Tensor | None]] = {}

    def note(self, name: str, tensor: torch.Tensor) -> None:
        address = self.memory.address_of(tensor)
        if address is None:
            return
        if name not in self.plan.written:
            self.read += boxes_of(tensor, address)
            return
        self.writes[id(tensor)] = (tensor, address, None)
        if not self.plan.overwrites:
            self.read += boxes_of(tensor, address)

    def wait(self) -> None:
        if self.read:
            self.memory.host_read(self.read, self.plan.name)

    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run the operator with temporaries in the place of the device tensors that it writes.

        By argument, not by tensor: an operand that is also the output is still read from device memory.
        """
        if not self.writes:
            return func(*args, **kwargs)
        names = [arg.name for arg in func._schema.arguments]
        given = [self._substitute(name, arg) for name, arg in zip(names, args, strict=False)]
        return func(*given, **{name: self._substitute(name, arg) for name, arg in kwargs.items()})

    def _substitute(self, name: str, value: Any) -> Any:
        return tree_map_only(torch.Tensor, self._temporary, value) if name in self.plan.written else value

    def _temporary(self, tensor: torch.Tensor) -> torch.Tensor:
        entry = self.writes.get(id(tensor))
        if entry is None:
            return tensor
        if entry[2] is None:
            _refuse_overlap(self.plan.name, tensor)
            temporary = torch.empty_like(tensor) if self.plan.overwrites else tensor.detach().clone()
            self.writes[id(tensor)] = entry = (tensor, entry[1], temporary)
        assert entry[2] is not None
        return entry[2]

    def publish(self, result: Any) -> Any:
        """Queue the writes; gives `result` with the device tensors back in the place of their temporaries."""
        back = {}
        for tensor, address, temporary in self.writes.values():
            if temporary is None:
                continue
            back[id(temporary)] = tensor
            self._write(tensor, address, temporary)
        return tree_map_only(torch.Tensor, lambda t: back.get(id(t), t), result) if back else result

    def _write(self, tensor: torch.Tensor, address: int, data: torch.Tensor) -> None:
        if data.shape != tensor.shape:
            raise UsageError(
                f"{self.plan.name}(out=…) would resize device memory from {tuple(tensor.shape)} to "
                f"{tuple(data.shape)}; give an output of the right shape"
            )
        if tensor.numel():
            self.memory.host_write(tensor, boxes_of(tensor, address), bytes_in_box_order(data, tensor), self.plan.name)


def _refuse_overlap(op: str, tensor: torch.Tensor) -> None:
    if any(tensor.stride(d) == 0 and tensor.size(d) > 1 for d in range(tensor.dim())):
        raise UsageError(
            f"{op} writes a device tensor of shape {tuple(tensor.shape)} whose elements share memory "
            f"(strides {tensor.stride()}); clone() it first"
        )


class HostDispatchMode(TorchDispatchMode):
    """Sees every operator that the host runs (below autograd)."""

    def __init__(self, modes: HostModes) -> None:
        super().__init__()
        self._modes = modes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: the decorator that True would add imports torch._dynamo (two seconds) at the first operator."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._modes.is_paused:
            return func(*args, **kwargs)
        plan = _PLANS.get(id(func)) or _plan(func)
        if plan.kind is _Kind.FREE:
            return func(*args, **kwargs)
        with self._modes.paused():
            memory = self._modes.memory
            if plan.kind is _Kind.RESIZE:
                _check_resize(memory, args[0], args[1])
                return func(*args, **kwargs)
            if plan.kind is _Kind.PLAIN and not (_on_device(memory, args) or _on_device(memory, kwargs.values())):
                return func(*args, **kwargs)
            return self._run(plan, func, args, kwargs)

    def _run(self, plan: _Plan, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        access = _Access(self._modes.memory, plan)
        for name, value in _bind(func, args, kwargs):
            for tensor in _tensors(value):
                access.note(name, tensor)
        if plan.kind is not _Kind.PLAIN:
            return self._communicate(access, func, args, kwargs)
        if plan.name == "copy_" and access.read and access.writes and len(args) > 1 and self._copy_on_stream(*args[:2]):
            return args[0]
        access.wait()
        return access.publish(access.call(func, args, kwargs))

    def _copy_on_stream(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        """Queue a copy between device tensors; False for what bytes and a type do not describe (lazy conjugates)."""
        if any(t.is_conj() or t.is_neg() or t.is_quantized for t in (target, source)):
            return False
        _refuse_overlap("copy_", target)
        self._modes.memory.host_copy(target, source.expand(target.shape), "copy_")
        return True

    def _communicate(self, access: _Access, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        access.wait()
        if access.plan.kind is _Kind.COLLECTIVE:
            self._modes.memory.host_collective(_group_of(func, args, kwargs), access.plan.name.strip("_"))
        result = access.call(func, args, kwargs)
        if access.writes:
            _work_of(result).wait()
        return access.publish(result)


def _check_resize(memory: DeviceMemory, tensor: torch.Tensor, wanted: Any) -> None:
    """Refuse what would move device memory: launches that are queued write to where it lies now."""
    size = torch.Size(wanted.shape if isinstance(wanted, torch.Tensor) else wanted)
    room_elems = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    if size.numel() > room_elems and memory.address_of(tensor) is not None:
        raise UsageError(
            f"resize_ of a device tensor from {tuple(tensor.shape)} to {tuple(size)} would move its memory; "
            "make a new tensor of that size"
        )


def _group_of(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[int, ...]:
    import torch.distributed as dist

    boxed = dict(_bind(func, args, kwargs))["process_group"]
    return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(boxed)))


def _work_of(result: Any) -> Any:
    import torch.distributed as dist

    return dist.Work.unbox(result[-1] if isinstance(result, list | tuple) else result)


_T = torch.Tensor
_SNAPSHOTS: frozenset[Any] = frozenset({_T.numpy, _T.__array__, _T.cpu})
# untyped_storage: torch.save and whoever takes the raw bytes
_DIRECT_READS: frozenset[Any] = frozenset(
    {
        _T.tolist,
        _T.__repr__,
        _T.__format__,
        _T.__reduce_ex__,
        _T.__deepcopy__,
        _T.__dlpack__,
        _T.share_memory_,
        _T.untyped_storage,
    }
)


_WATCHED = _SNAPSHOTS | _DIRECT_READS | {_T.to}


class HostFunctionMode(TorchFunctionMode):
    """Sees the methods that read a tensor's bytes without an operator (`tolist`, `numpy`, printing, pickling)."""

    def __init__(self, modes: HostModes) -> None:
        super().__init__()
        self._modes = modes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _WATCHED or self._modes.is_paused or not args:
            return func(*args, **kwargs)
        if func is not _T.to:
            return self._read(func, args, kwargs)
        result = func(*args, **kwargs)
        if result is args[0] and _names_cpu((*args[1:], *kwargs.values())):
            return self._snapshot(result)
        return result

    def _read(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if not self._drain(tensor, func.__name__):
            return func(*args, **kwargs)
        with self._modes.paused():
            if func not in _SNAPSHOTS:
                return func(*args, **kwargs)
            copy = tensor.clone()
            return copy if func is _T.cpu else func(copy, *args[1:], **kwargs)

    def _snapshot(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone() if self._modes.memory.address_of(tensor) is not None else tensor

    def _drain(self, tensor: torch.Tensor, op: str) -> bool:
        with self._modes.paused():
            address = self._modes.memory.address_of(tensor)
            if address is None:
                return False
            boxes = boxes_of(tensor, address)
            if boxes:
                self._modes.memory.host_read(boxes, op)
            return True


def _names_cpu(values: Sequence[Any]) -> bool:
    return any(
        (isinstance(value, str) and value.startswith("cpu"))
        or (isinstance(value, torch.device) and value.type == "cpu")
        for value in values
    )


class _Paused:
    """How deep a thread is in our own code; entered for each operator, so no generator."""

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *exc: object) -> None:
        self.depth -= 1


class HostModes:
    """Both modes of one rank, on one thread.

    `paused()` is for our own code: engine and runtime touch the bytes themselves.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self._paused = _Paused()

    @property
    def is_paused(self) -> bool:
        return self._paused.depth > 0

    def paused(self) -> _Paused:
        """For the length of a block; blocks may nest."""
        return self._paused

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with HostFunctionMode(self), HostDispatchMode(self):
            yield


def _inside(parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(Path(part)) + "/" for part in parts)


_OWN = Path(__file__).resolve().parents[2]
_NOT_USER = _inside(
    [
        str(_OWN / "platforms"),
        str(_OWN / "shmem"),
        str(_OWN / "language"),
        str(_OWN / "frontend"),
        str(Path(torch.__file__).parent),
    ]
)


def user_line() -> tuple[str, int]:
    """File and line of the user's code that is being executed: the innermost frame outside this package and torch.

    Where tdist acts on behalf of a place (`tdist.platforms.base.on_behalf_of`), that place.
    """
    place = spoken_for()
    if place is not None:
        return place
    frame = user_frame(sys._getframe(1))
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's code, from `frame` outwards."""
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@functools.cache
def _is_users(file: str) -> bool:
    ours = file.startswith(_NOT_USER) or "/triton/" in file
    return not ours and not file.endswith(("contextlib.py", "threading.py"))
