"""Frames between the processes of a pool: what travels, what is refused, what an ended peer looks like."""

from __future__ import annotations

import os
import resource
import socket
import struct
import tempfile
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tdist import errors
from tdist.errors import EnvironmentUnfit, KernelError, TdistError, UsageError, WorldStopped
from tdist.findings import make
from tdist.platforms.sim.process import client
from tdist.platforms.sim.process.pool import make_room_for_files
from tdist.platforms.sim.process.protocol import FDS_AT_ONCE, Channel, ProtocolError, close_fds, pack, unpack
from tdist.platforms.sim.process.wire import error_from_json, error_to_json

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.just("$tensor"), inner, max_size=3)
    ),
    max_leaves=10,
)


@pytest.fixture
def channels():
    left, right = Channel.pair()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def raw():
    left, right = socket.socketpair()
    channel = Channel(right)
    yield left, channel
    left.close()
    channel.close()


@given(values)
def test_values_come_back_as_they_were(value):
    blobs = []
    assert unpack(pack(value, blobs, "here"), [bytearray(blob) for blob in blobs]) == value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (1,), (0, 2), (3, 4)])
def test_tensors_come_back_bit_for_bit(dtype, shape):
    tensor = (torch.rand(shape) * 5).to(dtype)
    blobs = []
    packed = pack([tensor.T if tensor.dim() == 2 else tensor], blobs, "here")
    (back,) = unpack(packed, [bytearray(blob) for blob in blobs])
    expected = tensor.T if tensor.dim() == 2 else tensor
    assert back.dtype is dtype
    assert torch.equal(back, expected)


@pytest.mark.parametrize("value", [{1: 2}, object(), {1, 2}, b"raw", lambda: None])
def test_what_is_not_data_is_refused_with_its_place(value):
    with pytest.raises(UsageError, match=r"result of f: a .* cannot travel"):
        pack({"x": [value]}, [], "result of f")


def test_frames_carry_blobs_and_descriptors(channels):
    left, right = channels
    fd = os.memfd_create("test")
    os.write(fd, b"through the descriptor")
    left.send({"op": "x", "n": 1}, [b"abc", torch.arange(3, dtype=torch.uint8).numpy()], [fd])
    left.send({"op": "y"})
    first, second = right.receive(), right.receive()
    assert first is not None and second is not None
    assert (first.data, [bytes(blob) for blob in first.blobs]) == ({"op": "x", "n": 1}, [b"abc", b"\0\1\2"])
    assert os.pread(first.fds[0], 100, 0) == b"through the descriptor"
    assert (second.op, second.blobs, second.fds) == ("y", [], [])
    for each in (fd, *first.fds):
        os.close(each)


def test_more_descriptors_than_the_kernel_takes_at_once_travel_in_order(channels):
    """1000 ranks: `message too large … 1003 fds`. Linux takes 253 in a message."""
    left, right = channels
    with tempfile.TemporaryFile() as file:
        sent = [os.dup(file.fileno()) if i % 2 else os.memfd_create(f"fd {i}") for i in range(3 * FDS_AT_ONCE + 7)]
        try:
            left.send({"op": "x"}, [b"abc"], sent)
            left.send({"op": "y"})
            message, after = right.receive(), right.receive()
            assert message is not None and after is not None and after.op == "y"
            assert bytes(message.blobs[0]) == b"abc"
            assert [os.fstat(fd).st_ino for fd in message.fds] == [os.fstat(fd).st_ino for fd in sent]
            close_fds(message.fds)
        finally:
            close_fds(sent)


def test_the_limit_of_open_files_is_raised_or_named(monkeypatch):
    limits = [(100, 1000)]
    monkeypatch.setattr(resource, "getrlimit", lambda what: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda what, value: limits.append(value))
    make_room_for_files(90)
    assert limits == [(100, 1000)]
    make_room_for_files(700)
    assert limits[-1] == (700, 1000)
    with pytest.raises(EnvironmentUnfit, match="need 1001 open files, the limit is 1000"):
        make_room_for_files(1001)


def test_a_peer_that_ended_is_none_and_sending_to_it_is_no_error(channels):
    left, right = channels
    left.close()
    assert right.receive() is None
    right.send({"op": "x"})


def test_a_peer_that_ended_within_a_frame_is_none(raw):
    left, channel = raw
    left.sendall(struct.pack("!4sIII", b"TDS1", 100, 0, 0) + b'{"op"')
    left.close()
    assert channel.receive() is None


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("!4sIII", b"HTTP", 2, 0, 0),
        struct.pack("!4sIII", b"TDS1", 1 << 31, 0, 0),
        struct.pack("!4sIII", b"TDS1", 2, 1 << 20, 0),
        struct.pack("!4sIII", b"TDS1", 2, 0, 3),
        struct.pack("!4sIIIQ", b"TDS1", 2, 1, 0, 1 << 60),
        struct.pack("!4sIII", b"TDS1", 2, 0, 0) + b"[]",
    ],
    ids=["magic", "json size", "blob count", "missing descriptors", "blob size", "not an object"],
)
def test_frames_of_nobody_are_refused(raw, head):
    left, channel = raw
    left.sendall(head)
    with pytest.raises(ProtocolError):
        channel.receive()


@pytest.mark.parametrize("error", [KernelError("k.py:3: no"), UsageError("u"), ValueError("v"), KeyError("missing")])
def test_errors_keep_their_type(error):
    back = error_from_json(error_to_json(error))
    assert type(back) is type(error)
    assert str(error) in str(back)


def test_a_stopped_world_keeps_its_findings():
    found = make("host-error", [], rank=1, error="x")
    back = error_from_json(error_to_json(WorldStopped("why", (found,))))
    assert isinstance(back, WorldStopped)
    assert back.findings == (found,)


def test_errors_that_cannot_be_rebuilt_name_their_type():
    class Strange(Exception):
        pass

    back = error_from_json(error_to_json(Strange("x")))
    assert type(back) is TdistError
    assert str(back) == "Strange: x"
    assert type(error_from_json({"type": "UnicodeDecodeError", "text": "x"})) is errors.TdistError


def test_a_users_shared_storage_needs_room_in_dev_shm_and_this_is_said(monkeypatch):
    monkeypatch.setattr(client.os, "statvfs", lambda path: SimpleNamespace(f_bavail=4096, f_frsize=4096))
    with pytest.raises(EnvironmentUnfit, match=r"/dev/shm has 8 MiB left, and a tensor of 12 MiB .* --shm-size"):
        client._check_shm(torch.zeros(3 << 20).untyped_storage())


def test_sharing_a_storage_moves_all_its_tensors():
    whole = torch.arange(64.0)
    view = whole[8:]
    with client._shared(whole.untyped_storage()) as fd:
        view[0] = -1.0
        assert os.pread(fd, 4, 32) == struct.pack("f", -1.0)
    assert whole[8].item() == -1.0
