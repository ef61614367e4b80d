"""Messages between launcher, fork server, engine and ranks: JSON, raw bytes and file descriptors, never a pickle.

A frame is a fixed header, the lengths of the blobs, the JSON text, the blobs; descriptors travel with the header
(SCM_RIGHTS). All sockets are inherited socket pairs: there is no name in the file system or on the network that another
user could connect to, and none that could be left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tdist.errors import TdistError, UsageError
from tdist.platforms.sim.device_tensors import flat_bytes

MAGIC: Final = b"TDS1"
MAX_JSON_BYTES: Final = 64 << 20
MAX_BLOBS: Final = 4096
MAX_BLOB_BYTES: Final = 16 << 30
MAX_FDS: Final = 2048
FDS_AT_ONCE: Final = 200
"""Descriptors in one message of the kernel; Linux allows 253 (`SCM_MAX_FD`)."""
_MORE: Final = b"+"
_HEADER: Final = struct.Struct("!4sIII")
_LENGTH: Final = struct.Struct("!Q")


class ProtocolError(TdistError):
    """A frame that no part of tdist sends."""


@dataclass
class Message:
    """One received frame; `fds` belong to the receiver."""

    data: dict[str, Any]
    blobs: list[bytearray] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)

    @property
    def op(self) -> str:
        return self.data.get("op", "")


class Channel:
    """Frames over one end of a Unix stream socket. `receive` returns None when the peer is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        return cls(socket.socket(fileno=fd))

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return Channel(left), Channel(right)

    def fileno(self) -> int:
        return self._sock.fileno()

    def detach(self) -> socket.socket:
        """The socket, for another channel; this one stays usable as long as it is open."""
        return self._sock

    def close(self) -> None:
        self._sock.close()

    def send(self, data: dict[str, Any], blobs: Sequence[Any] = (), fds: Sequence[int] = ()) -> None:
        """Send one frame. A peer that is gone is not an error here: its end is noticed where it is received."""
        text = json.dumps(data, separators=(",", ":")).encode()
        views = [memoryview(blob).cast("B") for blob in blobs]
        self._check_limits(len(text), [len(view) for view in views], len(fds))
        head = _HEADER.pack(MAGIC, len(text), len(views), len(fds))
        rest = b"".join(_LENGTH.pack(len(view)) for view in views) + text
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sent = socket.send_fds(self._sock, [head], list(fds[:FDS_AT_ONCE])) if fds else 0
            self._sock.sendall(head[sent:])
            for start in range(FDS_AT_ONCE, len(fds), FDS_AT_ONCE):
                socket.send_fds(self._sock, [_MORE], list(fds[start : start + FDS_AT_ONCE]))
            self._sock.sendall(rest)
            for view in views:
                self._sock.sendall(view)

    def receive(self) -> Message | None:
        """Wait for one whole frame."""
        fds: list[int] = []
        head = self._head(fds)
        if head is None:
            return None
        magic, text_bytes, nblobs, nfds = _HEADER.unpack(head)
        if magic != MAGIC or min(nfds, FDS_AT_ONCE) != len(fds):
            raise ProtocolError(f"unexpected frame (magic {magic!r}, {len(fds)} of {nfds} descriptors)")
        self._check_limits(text_bytes, [0] * min(nblobs, MAX_BLOBS + 1), nfds)
        if not self._more_fds(fds, nfds):
            return None
        return self._body(text_bytes, nblobs, fds)

    def _more_fds(self, fds: list[int], nfds: int) -> bool:
        """Receive the descriptors that one message of the kernel did not hold; False if the peer is gone."""
        while len(fds) < nfds:
            try:
                data, received, _, _ = socket.recv_fds(self._sock, len(_MORE), FDS_AT_ONCE)
            except ConnectionResetError:
                return False
            if not data:
                return False
            if not received:
                raise ProtocolError(f"unexpected frame ({len(fds)} of {nfds} descriptors)")
            fds += received
        return True

    def _head(self, fds: list[int]) -> bytes | None:
        try:
            data, received, _, _ = socket.recv_fds(self._sock, _HEADER.size, FDS_AT_ONCE)
        except ConnectionResetError:
            return None
        fds += received
        if not data:
            return None
        rest = self._exactly(_HEADER.size - len(data))
        return None if rest is None else data + bytes(rest)

    def _body(self, text_bytes: int, nblobs: int, fds: list[int]) -> Message | None:
        lengths = self._exactly(nblobs * _LENGTH.size)
        if lengths is None:
            return None
        sizes = [size for (size,) in _LENGTH.iter_unpack(bytes(lengths))]
        self._check_limits(text_bytes, sizes, len(fds))
        parts = [self._exactly(size) for size in (text_bytes, *sizes)]
        if any(part is None for part in parts):
            return None
        text, *blobs = [part for part in parts if part is not None]
        data = json.loads(bytes(text))
        if not isinstance(data, dict):
            raise ProtocolError(f"a message is an object, got {type(data).__name__}")
        return Message(data, blobs, fds)

    def _exactly(self, nbytes: int) -> bytearray | None:
        buffer = bytearray(nbytes)
        view, at = memoryview(buffer), 0
        while at < nbytes:
            try:
                got = self._sock.recv_into(view[at:])
            except ConnectionResetError:
                return None
            if not got:
                return None
            at += got
        return buffer

    @staticmethod
    def _check_limits(text_bytes: int, blob_sizes: Sequence[int], nfds: int) -> None:
        if text_bytes > MAX_JSON_BYTES or len(blob_sizes) > MAX_BLOBS or nfds > MAX_FDS:
            raise ProtocolError(f"message too large: {text_bytes} bytes of JSON, {len(blob_sizes)} blobs, {nfds} fds")
        if any(size > MAX_BLOB_BYTES for size in blob_sizes):
            raise ProtocolError(f"message part of {max(blob_sizes)} bytes; at most {MAX_BLOB_BYTES} are allowed")


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements of a tensor in row-major order, as bytes."""
    raw: Any = flat_bytes(tensor.detach()).numpy() if tensor.numel() else b""
    return memoryview(raw).cast("B")


def pack(value: Any, blobs: list[Any], where: str) -> Any:
    """`value` as JSON, tensors put aside into `blobs`.

    Raises:
        UsageError: it holds something else than None, bool, numbers, strings, tensors, dtypes, and lists, tuples and
            string-keyed dicts of them.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value if not isinstance(value, int | float) or isinstance(value, bool) else _number(value)
    if isinstance(value, torch.Tensor):
        blobs.append(tensor_bytes(value))
        return {"$tensor": len(blobs) - 1, "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        items = [pack(item, blobs, where) for item in value]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"$dict": {key: pack(item, blobs, where) for key, item in value.items()}}
    raise UsageError(
        f"{where}: a {type(value).__name__} cannot travel between processes; give numbers, strings, tensors, "
        "and lists, tuples or dicts of them"
    )


def _number(value: float | int) -> Any:
    if isinstance(value, int):
        return int(value)
    return value if value == value and abs(value) != float("inf") else {"$float": str(value)}


def unpack(value: Any, blobs: Sequence[bytearray]) -> Any:
    """The inverse of `pack`."""
    if isinstance(value, list):
        return [unpack(item, blobs) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return _tensor(value, blobs[value["$tensor"]])
    if "$dtype" in value:
        return getattr(torch, value["$dtype"])
    if "$tuple" in value:
        return tuple(unpack(item, blobs) for item in value["$tuple"])
    if "$float" in value:
        return float(value["$float"])
    return {key: unpack(item, blobs) for key, item in value["$dict"].items()}


def _tensor(value: dict[str, Any], blob: bytearray) -> torch.Tensor:
    dtype = getattr(torch, value["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ProtocolError(f"not a dtype: {value['dtype']}")
    if not blob:
        return torch.empty(value["shape"], dtype=dtype)
    return torch.frombuffer(blob, dtype=torch.uint8).view(dtype).reshape(value["shape"])


def close_fds(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
