"""Which host operations touch device memory, in what way and at which bytes: against a memory that records them."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tdist.errors import UsageError
from tdist.platforms.sim.device_tensors import Box, DeviceTensors, boxes_of, bytes_in_box_order
from tdist.platforms.sim.hostmode import HostModes

BASE = 0x1000


class RecordingMemory:
    """Applies writes at once, so that values can be checked, and logs every access as (kind, operator, boxes)."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, tuple[Box, ...]]] = []
        self.gone: list[int] = []
        self.tensors = DeviceTensors(lambda storage: BASE, self.gone.append)
        self.modes = HostModes(self)

    def address_of(self, tensor: torch.Tensor) -> int | None:
        return self.tensors.address_of(tensor)

    def host_read(self, boxes, op) -> None:
        self.log.append(("read", op, tuple(boxes)))

    def host_write(self, tensor, boxes, data, op) -> None:
        self.log.append(("write", op, tuple(boxes)))
        start = 0
        for box in boxes:
            for row in range(box.rows):
                at = box.address - BASE + row * box.stride_bytes
                self.bytes[at : at + box.width_bytes] = data[start : start + box.width_bytes]
                start += box.width_bytes
        assert start == data.numel()

    def host_copy(self, target, source, op) -> None:
        self.log.append(("copy", op, (*boxes_of(target, BASE), *boxes_of(source, BASE))))
        target.copy_(source.clone())

    def host_collective(self, group, kind) -> None:
        self.log.append(("collective", kind, ()))

    def device(self, tensor: torch.Tensor) -> torch.Tensor:
        self.tensors.adopt(tensor)
        self.bytes = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        return tensor

    def kinds(self) -> list[str]:
        kinds = [kind for kind, _, _ in self.log]
        self.log.clear()
        return kinds


@pytest.fixture
def memory() -> RecordingMemory:
    return RecordingMemory()


@pytest.fixture
def tensor(memory: RecordingMemory) -> torch.Tensor:
    return memory.device(torch.arange(12.0).view(3, 4).clone())


WRITES_ONLY = {
    "zero_": lambda t: t.zero_(),
    "fill_": lambda t: t.fill_(2.0),
    "copy_": lambda t: t.copy_(torch.ones(3, 4)),
    "normal_": lambda t: t.normal_(),
    "uniform_": lambda t: t.uniform_(),
    "random_": lambda t: t.random_(),
    "bernoulli_": lambda t: t.bernoulli_(0.5),
    "out": lambda t: torch.add(torch.ones(3, 4), 1.0, out=t),
    "setitem": lambda t: t.__setitem__((0, 1), 5.0),
    "slice": lambda t: t[:, 1:3].fill_(1.0),
}
READS_AND_WRITES = {
    "add_": lambda t: t.add_(1.0),
    "mul_": lambda t: t[1].mul_(2.0),
    "out aliasing an operand": lambda t: torch.add(t, 1.0, out=t),
    "index_put_": lambda t: t.__setitem__(torch.tensor([0, 2]), 1.0),
    "scatter_": lambda t: t.scatter_(0, torch.zeros(1, 4, dtype=torch.int64), 1.0),
    "foreach": lambda t: torch._foreach_add_([t], 1.0),
}
COPIES = {
    "rows": lambda t, source: t[0].copy_(source[1]),
    "setitem": lambda t, source: t.__setitem__(slice(0, 2), source[1:]),
    "broadcast": lambda t, source: t.copy_(source[0]),
    "another type": lambda t, source: t.view(torch.int32).copy_(source),
    "transposed": lambda t, source: t[:, :3].copy_(source[:, :3].T),
}
READS_ONLY = {
    "arithmetic": lambda t: t + 1,
    "matmul": lambda t: t @ t.T,
    "item": lambda t: t[0, 0].item(),
    "tolist": lambda t: t.tolist(),
    "repr": repr,
    "format": lambda t: f"{t[0, 0]}",
    "numpy": lambda t: t.numpy(),
    "asarray": np.asarray,
    "cpu": lambda t: t.cpu(),
    "to cpu": lambda t: t.to("cpu"),
    "deepcopy": copy.deepcopy,
    "save": lambda t: torch.save(t, io.BytesIO()),
    "equal": lambda t: torch.equal(t, torch.zeros(3, 4)),
    "bool": lambda t: bool((t > 0).all()),
    "contiguous copy": lambda t: t.T.contiguous(),
    "clone": lambda t: t.clone(),
    "host tensor from device": lambda t: torch.zeros(3, 4).copy_(t),
}
FREE = {
    "views": lambda t: (t.view(-1), t.T, t[1], t[:, 1:3], t.reshape(12), t.unsqueeze(0), t.detach(), t.split(1)),
    "shape": lambda t: (t.shape, t.stride(), t.data_ptr(), t.dtype, t.is_contiguous(), t.numel(), len(t)),
    "like": lambda t: (torch.empty_like(t), torch.zeros_like(t), t.new_zeros(3), torch.rand_like(t)),
}


@pytest.mark.parametrize("name", WRITES_ONLY)
def test_overwriters_are_stream_operations_and_wait_for_nothing(name, memory, tensor):
    with memory.modes.active():
        WRITES_ONLY[name](tensor)
    assert memory.kinds() == ["write"]


@pytest.mark.parametrize("name", COPIES)
def test_copies_between_device_tensors_are_stream_operations_and_wait_for_nothing(name, memory, tensor):
    expected = tensor.clone()
    COPIES[name](expected, tensor.clone())
    with memory.modes.active():
        COPIES[name](tensor, tensor)
    assert memory.kinds() == ["copy"]
    assert torch.equal(tensor.view(torch.int32), expected.view(torch.int32))


def test_a_copy_of_a_lazy_conjugate_is_computed_by_the_host(memory):
    numbers = memory.device(torch.full((4,), 1 + 2j))
    with memory.modes.active():
        numbers[:2].copy_(numbers[2:].conj())
    assert memory.kinds() == ["read", "write"]
    assert numbers.tolist() == [1 - 2j, 1 - 2j, 1 + 2j, 1 + 2j]


def test_a_copy_that_does_not_fit_is_refused_at_once(memory, tensor):
    with memory.modes.active(), pytest.raises(RuntimeError, match="size"):
        tensor.copy_(tensor[:2])
    assert memory.kinds() == []


@pytest.mark.parametrize("name", READS_AND_WRITES)
def test_other_in_place_operations_read_then_write(name, memory, tensor):
    with memory.modes.active():
        READS_AND_WRITES[name](tensor)
    assert memory.kinds() == ["read", "write"]


@pytest.mark.parametrize("name", READS_ONLY)
def test_reads_wait_for_the_stream_once(name, memory, tensor):
    with memory.modes.active():
        READS_ONLY[name](tensor)
    assert memory.kinds() == ["read"]


@pytest.mark.parametrize("name", FREE)
def test_views_and_metadata_are_free(name, memory, tensor):
    with memory.modes.active():
        FREE[name](tensor)
    assert memory.kinds() == []


@pytest.mark.parametrize("name", [*WRITES_ONLY, *READS_AND_WRITES, *READS_ONLY, *FREE])
def test_host_tensors_are_ordinary(name, memory, tensor):
    action = {**WRITES_ONLY, **READS_AND_WRITES, **READS_ONLY, **FREE}[name]
    with memory.modes.active():
        action(torch.ones(3, 4))
    assert memory.kinds() == []


@pytest.mark.parametrize("name", [n for n in {**WRITES_ONLY, **READS_AND_WRITES} if n not in ("normal_", "uniform_")])
def test_writes_compute_what_torch_computes(name, memory, tensor):
    action = {**WRITES_ONLY, **READS_AND_WRITES}[name]
    expected = tensor.clone()
    torch.manual_seed(3)
    action(expected)
    torch.manual_seed(3)
    with memory.modes.active():
        action(tensor)
    assert torch.equal(tensor, expected)


def test_in_place_operations_return_the_tensor_itself(memory, tensor):
    with memory.modes.active():
        assert tensor.add_(1.0) is tensor
        out = torch.add(torch.ones(3, 4), 1.0, out=tensor)
    assert out is tensor


def test_snapshots_do_not_share_memory(memory, tensor):
    with memory.modes.active():
        copies = [tensor.cpu(), tensor.to("cpu"), torch.from_numpy(tensor.numpy())]
    assert all(c.data_ptr() != tensor.data_ptr() for c in copies)
    assert all(torch.equal(c, tensor) for c in copies)


def test_gradients_flow_through_device_tensors(memory, tensor):
    with memory.modes.active():
        weight = torch.ones(3, 4, requires_grad=True)
        (weight * tensor).sum().backward()
        assert torch.equal(weight.grad, torch.arange(12.0).view(3, 4))


def test_out_of_the_wrong_shape_is_refused(memory, tensor):
    with (
        memory.modes.active(),
        pytest.warns(UserWarning, match="resized"),
        pytest.raises(UsageError, match=r"\(3, 4\) to \(5,\)"),
    ):
        torch.add(torch.ones(5), 1.0, out=tensor)


def test_writing_elements_that_share_memory_is_refused(memory):
    tensor = memory.device(torch.zeros(4))
    with memory.modes.active(), pytest.raises(UsageError, match="share memory"):
        tensor[:1].expand(8).fill_(1.0)


def test_a_dead_tensor_is_forgotten_and_its_address_not_confused(memory):
    tensor = memory.device(torch.ones(1024))
    memory.tensors.drained()
    memory.bytes = None
    del tensor
    memory.tensors.sweep()
    assert memory.gone == [BASE]
    again = [torch.ones(1024) for _ in range(8)]
    assert all(memory.address_of(t) is None for t in again)


def test_a_launched_tensor_lives_until_the_stream_is_drained(memory):
    tensor = memory.device(torch.ones(1024))
    memory.bytes = None
    del tensor
    memory.tensors.sweep()
    assert memory.gone == []
    memory.tensors.drained()
    assert memory.gone == [BASE]


def test_modes_are_gone_afterwards(memory, tensor):
    with memory.modes.active():
        pass
    tensor.add_(1.0)
    assert memory.kinds() == []


@st.composite
def strided(draw: st.DrawFn) -> torch.Tensor:
    """A view of a byte-distinct buffer with permuted, sliced, stepped and single-element dimensions."""
    shape = draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))
    dtype = draw(st.sampled_from([torch.int16, torch.int32, torch.uint8]))
    base = torch.arange(int(np.prod(shape, dtype=int))).to(dtype).view(shape)
    view = base.permute(*draw(st.permutations(range(len(shape))))) if shape else base
    for dim in range(view.dim()):
        start = draw(st.integers(0, view.size(dim) - 1))
        step = draw(st.integers(1, 3))
        view = view[(slice(None),) * dim + (slice(start, None, step),)]
    return view


@given(strided())
def test_boxes_hold_exactly_the_bytes_of_a_view_in_order(view: torch.Tensor):
    storage = torch.empty(0, dtype=torch.uint8).set_(view.untyped_storage())
    offset = view.storage_offset() * view.element_size()
    rows = []
    for box in boxes_of(view, offset):
        for row in range(box.rows):
            at = box.address + row * box.stride_bytes
            rows.append(storage[at : at + box.width_bytes])
    assert torch.equal(torch.cat(rows), bytes_in_box_order(view, view))
    assert sum(len(row) for row in rows) == view.numel() * view.element_size()
