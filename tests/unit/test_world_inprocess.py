"""The in-process world: order, errors, independence, and what it leaves as it was.

Kernels here are hand-written generators.
"""

from __future__ import annotations

import gc
import random
import re
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tdist.errors import UsageError, VerificationFailed, WorldStopped
from tdist.frontend.kernel_ir import KernelIR
from tdist.platforms.base import current
from tdist.platforms.sim.world import World

FILL = KernelIR("fill", "", ())


class Fill:
    """`fill(ptr, value)`: 16 floats of `value`."""

    name = "fill"
    has_dot = uses_barrier_all = uses_barrier_all_vec = uses_sub_vec = False

    def entry(self, core: int):
        def kernel(ag, p0, p1, p2, n0, n1, n2, ptr, ptr_al, value):
            yield
            first = (ptr - ptr_al.lo) // 4
            ptr_al.view(torch.float32)[first : first + 16] = value

        return kernel


@pytest.fixture
def make_world(monkeypatch):
    """Worlds whose compiler knows `fill` only."""
    monkeypatch.setattr("tdist.platforms.sim.engine_port.EnginePort.compile", lambda self, kernel: Fill())
    worlds = []

    def make(nranks: int = 2, **config) -> World:
        worlds.append(World(nranks=nranks, **config))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def symmetric(rt, elems: int = 16) -> torch.Tensor:
    return rt.tensor(rt.malloc(elems * 4), (elems,), torch.float32)


def test_results_by_rank_and_the_runtime_of_each(make_world):
    def host(rt, offset):
        assert current() is rt
        return rt.rank + offset, rt.nranks, rt.platform

    assert make_world(3).run(host, 10) == [(10, 3, "sim"), (11, 3, "sim"), (12, 3, "sim")]
    assert current() is None


def test_hosts_take_turns_in_rank_order_at_every_blocking_call(make_world):
    log = []

    def host(rt):
        for step in range(3):
            log.append((step, rt.rank))
            rt.host_barrier()

    make_world(3).run(host)
    assert log == [(step, rank) for step in range(3) for rank in range(3)]


def test_exactly_one_host_runs_at_a_time(make_world):
    running = []

    def host(rt):
        for _ in range(20):
            running.append(rt.rank)
            assert len(running) == 1
            for _ in range(random.Random(rt.rank).randrange(2000)):
                pass
            running.pop()
            rt.host_barrier()

    make_world(4).run(host)


def test_a_launch_does_not_block_and_a_read_waits_for_it(make_world):
    def host(rt):
        device = torch.zeros(16)
        with rt.modes.paused():
            raw = device.numpy()
        rt.launch(FILL, (1, 1, 1), [device, 7.0])
        before = float(raw[0])
        seen = device.sum().item()
        return before, seen

    assert make_world(2).run(host) == [(0.0, 112.0)] * 2


def test_host_writes_keep_their_place_between_launches(make_world):
    def host(rt):
        a, b = symmetric(rt), torch.zeros(16)
        rt.launch(FILL, (1, 1, 1), [a, 1.0])
        a[8:].zero_()
        rt.launch(FILL, (1, 1, 1), [b, 2.0])
        b.add_(a)
        return b

    first = make_world(2).run(host)[0]
    assert first.tolist() == [3.0] * 8 + [2.0] * 8


def test_copies_between_device_tensors_keep_their_place_between_launches(make_world):
    def host(rt):
        a, b = symmetric(rt), torch.zeros(16)
        rt.launch(FILL, (1, 1, 1), [b, 0.0])
        rt.launch(FILL, (1, 1, 1), [a, 1.0])
        b.copy_(a)
        rt.launch(FILL, (1, 1, 1), [a, 2.0])
        a[8:].copy_(b[:8])
        b[1:].copy_(b[:-1] if rt.rank else a[:-1])
        return a, b

    for rank, (a, b) in enumerate(make_world(2).run(host)):
        assert a.tolist() == [2.0] * 8 + [1.0] * 8
        assert b.tolist() == ([1.0] * 16 if rank else [1.0] + [2.0] * 8 + [1.0] * 7)


def test_a_copy_onto_its_own_source_reads_before_it_writes(make_world):
    def host(rt):
        a = symmetric(rt)
        a.copy_(torch.arange(16.0))
        a[1:].copy_(a[:-1])
        return a

    assert make_world(1).run(host)[0].tolist() == [0.0, *range(15)]


def test_a_copy_converts_between_types_and_follows_strides(make_world):
    def host(rt):
        a = symmetric(rt)
        a.copy_(torch.arange(16.0) + 0.5)
        narrow = rt.tensor(rt.malloc(64), (4, 4), torch.bfloat16)
        narrow.T.copy_(a.view(4, 4))
        whole = rt.tensor(rt.malloc(64), (4,), torch.int64)
        whole.copy_(a[::4])
        return narrow, whole

    narrow, whole = make_world(1).run(host)[0]
    assert torch.equal(narrow, (torch.arange(16.0) + 0.5).view(4, 4).T.bfloat16())
    assert whole.tolist() == [0, 4, 8, 12]


def use_of_freed_memory(use):
    """A host function; with the line of its free."""

    def host(rt):
        address = rt.malloc(64, name="buffer")
        tensor = rt.tensor(address, (16,), torch.float32)
        rt.free(address)
        use(rt, address, tensor)
        rt.synchronize()

    return host, f"buffer was freed at {__file__}:{host.__code__.co_firstlineno + 3}"


@pytest.mark.parametrize(
    "use",
    [
        lambda rt, address, tensor: tensor.zero_(),
        lambda rt, address, tensor: tensor[4:].sum().item(),
        lambda rt, address, tensor: tensor[:4].copy_(tensor[4:8]),
        lambda rt, address, tensor: rt.free(address),
    ],
    ids=["write", "read", "copy", "free"],
)
def test_a_host_that_uses_freed_memory_is_told_which_and_where(make_world, use):
    host, fate = use_of_freed_memory(use)
    with pytest.raises(UsageError, match=re.escape(fate)):
        make_world(2).run(host)


def test_a_launch_with_freed_memory_is_told_which_and_where(make_world):
    host, fate = use_of_freed_memory(lambda rt, address, tensor: rt.launch(FILL, (1, 1, 1), [tensor, 1.0]))
    world = make_world(1)
    assert isinstance(world.run(host)[0], WorldStopped)
    (found,) = world.findings
    assert found.kind == "tdist.pointer-misuse" and fate in found.title


def test_memory_that_was_given_out_again_is_not_called_freed(make_world):
    def host(rt):
        rt.free(rt.malloc(64, name="old"))
        tensor = rt.tensor(rt.malloc(64, name="young"), (32,), torch.float32)
        tensor.zero_()

    with pytest.raises(UsageError, match="young ends at") as caught:
        make_world(1).run(host)
    assert "freed" not in str(caught.value)


def test_a_host_that_does_not_come_back_is_named_each_period(make_world, monkeypatch, capfd):
    monkeypatch.setenv("TDIST_WATCHDOG_SECONDS", "0.5")

    def host(rt):
        if rt.rank == 1:
            time.sleep(2.5)
        rt.host_barrier()

    make_world(2).run(host)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("tdist: rank 1: its host function sleeps or waits at") for line in lines)
    assert all(f"{__file__}:{host.__code__.co_firstlineno + 2} (host)" in line for line in lines)


def test_offset_views_are_launched_at_their_offset(make_world):
    def host(rt):
        whole = torch.zeros(64)
        rt.launch(FILL, (1, 1, 1), [whole[32:], 5.0])
        return whole

    whole = make_world(1).run(host)[0]
    assert torch.equal(whole.nonzero().flatten(), torch.arange(32, 48))


def test_a_temporary_lives_until_its_launch_is_complete(make_world):
    def host(rt):
        kept = torch.zeros(16)
        for value in range(50):
            rt.launch(FILL, (1, 1, 1), [torch.zeros(16), float(value)])
        rt.launch(FILL, (1, 1, 1), [kept, 3.0])
        others = [torch.full((16,), -1.0) for _ in range(60)]
        total = kept.sum().item()
        return total, all((other == -1).all().item() for other in others)

    assert make_world(2).run(host) == [(48.0, True)] * 2


def test_results_are_snapshots(make_world):
    world = make_world(2)
    first = world.run(lambda rt: symmetric(rt).fill_(1.0))
    world.run(lambda rt: rt.tensor(rt.malloc(64), (16,), torch.float32).fill_(9.0))
    assert [t.tolist() for t in first] == [[1.0] * 16] * 2


def test_functions_run_in_sequence_on_one_heap(make_world):
    world = make_world(2)

    def allocate(rt):
        tensor = symmetric(rt)
        tensor.fill_(float(rt.rank + 1))
        return rt.device_address(tensor)

    addresses = world.run(allocate)
    again = world.run(lambda rt: rt.tensor(addresses[rt.rank], (16,), torch.float32))
    assert [t[0].item() for t in again] == [1.0, 2.0]


def test_symmetric_addresses_have_one_offset_and_different_bases(make_world):
    def host(rt):
        address = rt.malloc(256)
        return address, [rt.peer_address(address + 8, pe) for pe in range(rt.nranks)], rt.peer_address(address, 9)

    results = make_world(3).run(host)
    mine = [address for address, _, _ in results]
    assert len(set(mine)) == 3
    assert all(peers == [address + 8 for address in mine] for _, peers, _ in results)
    assert all(nowhere == 0 for _, _, nowhere in results)


class TestErrors:
    def test_an_exception_is_raised_as_itself_with_its_rank(self, make_world):
        def host(rt):
            if rt.rank == 1:
                raise ZeroDivisionError("mine")
            rt.host_barrier()

        with pytest.raises(ZeroDivisionError, match="mine") as caught:
            make_world(3).run(host)
        assert caught.value.__notes__ == ["raised by the host function of rank 1"]

    def test_the_others_get_world_stopped_naming_rank_and_error(self, make_world):
        seen = {}

        def host(rt):
            if rt.rank == 1:
                raise ValueError("mine")
            try:
                rt.synchronize()
                rt.host_barrier()
            except WorldStopped as error:
                seen[rt.rank] = str(error)
                raise

        with pytest.raises(ValueError, match="mine"):
            make_world(3).run(host)
        assert set(seen) == {0, 2}
        assert all("rank 1" in text and "ValueError: mine" in text for text in seen.values())

    def test_sys_exit_in_a_host_function_is_an_error_of_its_rank(self, make_world):
        def host(rt):
            if rt.rank == 0:
                sys.exit(3)
            rt.host_barrier()

        with pytest.raises(SystemExit) as caught:
            make_world(2).run(host)
        assert caught.value.code == 3

    def test_a_missing_member_of_a_collective_is_a_deadlock_not_a_hang(self, make_world):
        world = make_world(3)
        results = world.run(lambda rt: rt.host_barrier() if rt.rank else "left")
        assert results[0] == "left"
        assert all(isinstance(result, WorldStopped) for result in results[1:])
        assert [found.kind for found in world.findings] == ["tdist.deadlock"]
        with pytest.raises(VerificationFailed, match="deadlock"):
            world.raise_for_findings()

    def test_a_stopped_world_says_why_it_runs_nothing_more(self, make_world):
        world = make_world(2)
        world.run(lambda rt: rt.host_barrier() if rt.rank else None)
        with pytest.raises(WorldStopped, match="deadlock"):
            world.run(lambda rt: None)

    def test_different_sizes_are_a_finding_with_both_lines(self, make_world):
        world = make_world(2)
        results = world.run(lambda rt: rt.malloc(64 if rt.rank else 128))
        assert all(isinstance(result, WorldStopped) for result in results)
        (found,) = world.findings
        assert found.kind == "tdist.asymmetric-alloc"
        assert {party.rank for party in found.parties} == {0, 1}
        assert all(party.file == __file__ for party in found.parties)

    def test_a_closed_world_and_a_running_world_refuse(self, make_world):
        world = make_world(1)
        with pytest.raises(UsageError, match="running a function already"):
            world.run(lambda rt: world.run(lambda inner: None))
        world.close()
        with pytest.raises(UsageError, match="closed"):
            world.run(lambda rt: None)

    def test_a_runtime_outside_its_world_refuses_device_work(self, make_world):
        kept = []
        make_world(1).run(kept.append)
        with pytest.raises(UsageError, match="not running"):
            kept[0].synchronize()

    def test_a_tensor_outside_the_heap_is_refused(self, make_world):
        def host(rt):
            rt.tensor(rt.malloc(64) + rt.heap_bytes, (16,), torch.float32)

        with pytest.raises(UsageError, match="not on its symmetric heap"):
            make_world(1).run(host)

    def test_an_interrupt_ends_all_hosts(self, make_world, monkeypatch):
        ended = []

        def host(rt):
            try:
                rt.host_barrier()
                rt.host_barrier()
            finally:
                ended.append(rt.rank)

        world = make_world(3)
        monkeypatch.setattr(world.engine, "run", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            world.run(host)
        assert sorted(ended) == [0, 1, 2]
        assert not [t for t in threading.enumerate() if t.name.startswith("rank ")]


class TestIndependence:
    def counting(self, rt, base: float, steps: int = 4) -> float:
        tensor = symmetric(rt)
        for step in range(steps):
            rt.launch(FILL, (1, 1, 1), [tensor, base + step])
            rt.host_barrier()
        return tensor[0].item() + rt.rank

    def test_interleaved_runs_of_two_worlds(self, make_world):
        one, two = make_world(2), make_world(3)
        for base in (10.0, 20.0):
            assert one.run(self.counting, base) == [base + 3, base + 4]
            assert two.run(self.counting, -base) == [3 - base, 4 - base, 5 - base]
        assert not one.findings
        assert not two.findings

    def test_a_world_inside_a_host_function(self, make_world):
        def outer(rt):
            tensor = symmetric(rt)
            rt.launch(FILL, (1, 1, 1), [tensor, 1.0])
            inner = make_world(2).run(self.counting, 50.0)
            assert current() is rt
            return inner, tensor[0].item()

        assert make_world(2).run(outer) == [([53.0, 54.0], 1.0)] * 2

    def test_worlds_in_two_threads(self, make_world):
        results = {}

        def thread(number: int) -> None:
            results[number] = [make_world(2).run(self.counting, float(number)) for _ in range(5)]

        threads = [threading.Thread(target=thread, args=(number,)) for number in (100, 200)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert results == {n: [[n + 3.0, n + 4.0]] * 5 for n in (100, 200)}

    def test_process_state_is_as_before(self, make_world):
        triton = pytest.importorskip("triton")
        tl = sys.modules["triton.language"]
        before = (dict(vars(tl)), triton.runtime.driver.active, list(sys.meta_path), torch.get_num_threads())
        jit_run = triton.runtime.JITFunction.run
        make_world(2).run(self.counting, 1.0)
        with pytest.raises(ZeroDivisionError):
            make_world(1).run(lambda rt: 1 / 0)
        after = (dict(vars(tl)), triton.runtime.driver.active, list(sys.meta_path), torch.get_num_threads())
        assert before == after
        assert triton.runtime.JITFunction.run is jit_run
        assert torch._C._len_torch_dispatch_stack() == 0
        assert torch._C._len_torch_function_stack() == 0


def test_the_same_seed_gives_the_same_events(make_world):
    def host(rt):
        tensors = [symmetric(rt) for _ in range(3)]
        for value, tensor in enumerate(tensors):
            rt.launch(FILL, (4, 1, 1), [tensor, float(value)])
        return sum(t[0].item() for t in tensors)

    runs = []
    for _ in range(2):
        world = make_world(3, scheduler="random", seed=5, detect=False)
        runs.append((world.run(host), world.events))
    assert runs[0] == runs[1]
    assert runs[0][1]


def test_stats_count_steps_and_launches(make_world):
    def host(rt):
        for _ in range(rt.rank):
            rt.launch(FILL, (2, 1, 1), [torch.zeros(16), 1.0])

    world = make_world(3)
    world.run(host)
    assert world.stats.launches == (0, 1, 2)
    assert world.stats.steps == 3 * 2 * 2
    assert world.stats.detector is not None


def test_host_sites_are_the_users_lines(make_world):
    sites = []
    world = make_world(1)
    real = world.engine.host_read
    world.engine.host_read = lambda rank, boxes, site, done: (sites.append(site), real(rank, boxes, site, done))

    def host(rt):
        tensor = symmetric(rt)
        np.asarray(tensor)

    world.run(host)
    (site,) = sites
    assert (site.file, site.line) == (__file__, host.__code__.co_firstlineno + 2)


def test_a_host_object_that_only_looks_like_a_tensor_is_left_alone(make_world):
    def host(rt):
        meta = torch.empty(4, device="meta")
        sparse = torch.eye(3).to_sparse()
        return (meta + 1).shape, sparse.to_dense().sum().item(), SimpleNamespace(x=torch.ones(2)).x.sum().item()

    assert make_world(1).run(host) == [(torch.Size([4]), 3.0, 2.0)]


def _heap_mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("tdist-heap" in line for line in maps)


@pytest.fixture
def no_collection():
    """What is freed here is freed by hand."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_closing_unmaps_the_heaps_without_a_garbage_collection(make_world, no_collection):
    before = _heap_mappings()

    def host(rt):
        x = symmetric(rt)
        x.zero_()
        rt.launch(FILL, (1,), (x, 2.0))
        return x.clone()

    for _ in range(3):
        with make_world(nranks=3, heap_bytes=40 << 30) as world:
            assert world.run(host)[0][0] == 2
            assert _heap_mappings() > before
        assert _heap_mappings() == before


def test_a_stopped_world_is_unmapped_too(make_world, no_collection):
    before = _heap_mappings()

    def host(rt):
        x = symmetric(rt)
        if rt.rank == 0:
            rt.host_barrier()
        return x

    world = make_world()
    assert any(isinstance(result, WorldStopped) for result in world.run(host))
    world.close()
    assert _heap_mappings() == before


def test_tensors_that_are_held_stay_readable_after_close(make_world, no_collection):
    before, held = _heap_mappings(), []

    def host(rt):
        x = symmetric(rt)
        x.fill_(rt.rank + 1)
        held.append((rt, x, rt.device_address(x)))

    world = make_world()
    world.run(host)
    world.close()
    assert [x.sum().item() for _, x, _ in held] == [16.0, 32.0]
    with pytest.raises(UsageError, match="closed"):
        held[0][0].tensor(held[0][2], (16,), torch.float32)
    held.clear()
    assert _heap_mappings() == before


def test_a_host_that_has_no_thread_says_so(make_world, monkeypatch):
    start, started = threading.Thread.start, []

    def refuse_the_second(thread):
        started.append(thread)
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    world = make_world(3)
    monkeypatch.setattr(threading.Thread, "start", refuse_the_second)
    with world, pytest.raises(RuntimeError, match="can't start new thread"):
        world.run(lambda rt: rt.host_barrier())
