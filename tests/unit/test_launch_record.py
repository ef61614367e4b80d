"""What host functions launch is recorded: each distinct kernel once, run or not, by whatever record is open."""

from __future__ import annotations

import json

import torch
import triton
import triton.language as tl

from tdist.platforms.sim.launch_record import LaunchedKernel, launches_recorded, note_launch
from tdist.platforms.sim.world import World


@triton.jit
def fill(x_ptr, VALUE: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, 16), tl.full((16,), VALUE, tl.float32))


def host(rt, *values):
    x = torch.zeros(16)
    for value in values:
        fill[(1,)](x, VALUE=value, multibuffer=False, num_warps=4)
    rt.synchronize()
    return x


def test_equal_launches_of_all_ranks_are_one_and_options_come_along():
    with launches_recorded() as record, World(nranks=2) as world:
        results = world.run(host, 1, 2, 1)
    first, second = record.kernels
    assert first.ir.name == second.ir.name == "fill" and first.ir.ttir != second.ir.ttir
    assert first.options == (("multibuffer", False), ("num_warps", 4))
    assert [x.tolist() for x in results] == [[1.0] * 16] * 2, "they were run as well"


def test_a_record_without_running_leaves_memory_as_it_was():
    with launches_recorded(run=False) as record, World(nranks=1) as world:
        (x,) = world.run(host, 3)
    assert len(record.kernels) == 1 and x.tolist() == [0.0] * 16


def test_records_nest_and_an_inner_one_that_does_not_run_holds_for_the_outer():
    with World(nranks=1) as world, launches_recorded() as outer:
        world.run(host, 1)
        with launches_recorded(run=False) as inner:
            (x,) = world.run(host, 2)
        (y,) = world.run(host, 3)
    assert (len(outer.kernels), len(inner.kernels)) == (3, 1)
    assert x.tolist() == [0.0] * 16 and y.tolist() == [3.0] * 16


def test_without_a_record_nothing_is_kept():
    with launches_recorded() as record:
        pass
    with World(nranks=1) as world:
        (x,) = world.run(host, 1)
    assert record.kernels == [] and x.tolist() == [1.0] * 16


def test_a_launched_kernel_survives_json_with_options_that_are_no_json():
    with launches_recorded() as record, World(nranks=1) as world:
        world.run(host, 1)
        assert note_launch(record.kernels[0].ir, {"hook": print, "n": None})
    for kernel in record.kernels:
        assert LaunchedKernel.from_json(json.loads(json.dumps(kernel.to_json()))) == kernel
    assert dict(record.kernels[1].options) == {"hook": "<built-in function print>", "n": None}
