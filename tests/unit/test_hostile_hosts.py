"""Host functions that use a world in ways that nobody should: each gets an error that says what to do."""

from __future__ import annotations

import threading

import pytest
import torch

from tdist.errors import UsageError
from tdist.platforms.sim.world import World

pytest.importorskip("triton")

import triton
import triton.language as tl


@triton.jit
def fill(target, value, BLOCK: tl.constexpr):
    tl.store(target + tl.arange(0, BLOCK), value)


def run(host, nranks=1, **config):
    with World(nranks=nranks, **config) as world:
        return world.run(host)


def generator(rt):
    yield rt


async def coroutine(rt):
    return rt


@pytest.mark.parametrize(("host", "kind"), [(generator, "generator"), (coroutine, "coroutine")])
def test_a_host_function_that_does_not_run_when_called(host, kind):
    with pytest.raises(UsageError, match=f"the host function {kind} is a {kind}: calling it runs nothing"):
        run(host)


@pytest.mark.parametrize("request_", ["synchronize", "host_barrier"])
def test_a_request_on_a_thread_that_is_not_the_ranks(request_):
    def host(rt):
        errors = []

        def other():
            try:
                getattr(rt, request_)()
            except UsageError as error:
                errors.append(str(error))

        thread = threading.Thread(target=other, name="helper")
        thread.start()
        thread.join(10)
        return errors

    for rank, errors in enumerate(run(host, nranks=2)):
        assert len(errors) == 1
        assert f"rank {rank}: " in errors[0]
        assert "on thread 'helper', which runs no rank" in errors[0]


@pytest.mark.parametrize("resize", [lambda t: t.resize_(4096), lambda t: t.resize_as_(torch.empty(64, 64))])
def test_device_memory_does_not_move(resize):
    """The launch is still queued: memory that a larger size would give back is what it writes to."""

    def host(rt):
        target = torch.zeros(16)
        fill[(1,)](target, 3.0, BLOCK=16)
        resize(target)

    with pytest.raises(UsageError, match=r"resize_ of a device tensor from \(16,\) to .* would move its memory"):
        run(host)


def test_resizing_in_place_is_a_view_and_host_memory_moves_as_ever():
    def host(rt):
        target, ordinary = torch.zeros(16), torch.zeros(2)
        fill[(1,)](target, 3.0, BLOCK=16)
        return target.resize_(2, 4), ordinary.resize_(100).numel()

    assert [(t.tolist(), n) for t, n in run(host)] == [([[3.0] * 4] * 2, 100)]


@pytest.mark.parametrize("arguments", [(16.5,), ("16",), (True,), (16, 16.0)])
def test_sizes_of_allocations_are_integers(arguments):
    with pytest.raises(UsageError, match=r"rank 0: malloc takes its (size|alignment) as an int of bytes"):
        run(lambda rt: rt.malloc(*arguments))


def test_memory_that_a_queued_write_goes_to_outlives_its_tensor():
    """It was given back when the last tensor died, and the write went to whoever had it then."""

    def host(rt):
        first, second = torch.zeros(1 << 16), torch.zeros(16)
        fill[(1,)](first, 3.0, BLOCK=16)
        rt.synchronize()
        first.fill_(7.0)  # a stream operation
        del first
        others = [torch.zeros(1 << 16) for _ in range(8)]
        fill[(1,)](second, 3.0, BLOCK=16)
        rt.synchronize()
        return max(other.max().item() for other in others)

    assert run(host) == [0.0]
