"""The engine on hand-written kernels: streams, launches, cores, hosts, barriers, faults."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from engine_kit import Driver, HandKernel, site

from tdist.errors import KernelError, TdistError, UsageError, WorldStopped
from tdist.platforms.sim.device_tensors import Box
from tdist.platforms.sim.engine import Engine, Pointer, WorldConfig
from tdist.platforms.sim.streams import HostSite

STORE, LOAD, BARRIER = site(1, "store", "data"), site(2, "load", "data"), site(3, "barrier_all")


def fill(value, line=STORE):
    def kernel(ag, pid, n, data, data_al):
        data_al.view(torch.int32)[:16] = value
        ag.wr(data_al, 0, 1, 0, 64, line)
        yield

    return HandKernel(kernel, args=["data"])


def push(value):
    def kernel(ag, pid, n, data, data_al):
        yield
        _, al = ag.symm_at(data, data_al, (ag.rank + 1) % ag.nranks, STORE)
        al.view(torch.int32)[:16] = value
        ag.wr(al, 0, 1, 0, 64, STORE)

    return HandKernel(kernel, args=["data"])


def read(driver: Driver, data: list[int]) -> list[int]:
    """Every rank's host reads the buffer's first 64 bytes."""
    line = HostSite("h.py", 60, "read")
    driver.all(lambda rank, done: driver.engine.host_read(rank, [Box(data[rank], 1, 0, 64)], line, done))
    return [int(driver.al(address).view(torch.int32)[0]) for address in data]


def host_barrier(driver: Driver, sequence: int = 0) -> None:
    group = tuple(range(driver.nranks))
    driver.all(lambda rank, done: driver.engine.collective(rank, group, sequence, "barrier", done))


# ---------------------------------------------------------------- streams and hosts


def test_stream_operations_run_in_order():
    driver = Driver(2)
    data = driver.malloc(64, "data")
    driver.launch(fill(5), data)
    driver.zero(data, 64)
    driver.launch(fill(9), data)
    driver.zero(data, 4)
    assert read(driver, data) == [0, 0]
    assert driver.al(data[0]).view(torch.int32).tolist() == [0] + [9] * 15
    assert driver.findings == []


def test_host_write_goes_to_strided_boxes_in_order():
    driver = Driver(1)
    data = driver.malloc(64, "data")
    boxes = [Box(data[0], 2, 16, 4), Box(data[0] + 60, 1, 0, 4)]
    driver.engine.host_write(0, boxes, torch.arange(1, 13, dtype=torch.uint8), HostSite("h.py", 1))
    driver.sync()
    got = driver.al(data[0]).view(torch.uint8)
    assert [got[0:4].tolist(), got[16:20].tolist(), got[60:].tolist()] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    assert int(got.sum()) == 78


def test_the_written_data_is_the_hosts_value_at_the_call():
    driver = Driver(1)
    data = driver.malloc(64, "data")
    value = torch.full((64,), 3, dtype=torch.uint8)
    driver.engine.host_write(0, [Box(data[0], 1, 0, 64)], value, None)
    value.zero_()
    driver.sync()
    assert driver.al(data[0]).view(torch.uint8)[0] == 3


@pytest.mark.parametrize("synchronize", [True, False])
def test_zero_barrier_launch_needs_a_synchronise(synchronize):
    driver = Driver(2)
    data = driver.malloc(64, "data", fill=None)
    driver.zero(data, 64)
    if synchronize:
        driver.sync()
    host_barrier(driver)
    driver.launch(push(7), data)
    driver.sync()
    assert driver.lines() == ([] if synchronize else [("race", (50, 1))])


def test_a_read_is_ordered_with_the_own_stream_and_not_with_a_peers():
    own, peer = Driver(2), Driver(2)
    for driver, kernel in ((own, fill(4)), (peer, push(4))):
        data = driver.malloc(64, "data")
        driver.launch(kernel, data)
        assert read(driver, data) == [4, 4]
    assert own.lines() == []
    assert peer.lines() == [("race", (1, 60))]


def test_synchronise_and_host_barrier_order_a_peers_stores_before_a_read():
    driver = Driver(2)
    data = driver.malloc(64, "data")
    driver.launch(push(4), data)
    driver.sync()
    host_barrier(driver)
    assert read(driver, data) == [4, 4] and driver.lines() == []


def test_nothing_orders_a_second_launch_after_another_ranks_first():
    driver = Driver(2)
    data = driver.malloc(64, "data")
    driver.launch(push(1), data)
    driver.launch(fill(2, site(9, "store", "data")), data)
    driver.sync()
    assert ("race", (1, 9)) in driver.lines() or ("race", (9, 1)) in driver.lines()


def test_a_second_stream_is_refused():
    driver = Driver(1)
    with pytest.raises(UsageError, match="one stream"):
        driver.engine.launch(0, fill(1), (1,), [], None, stream=1)


def test_an_empty_grid_is_a_launch_that_ends_at_once():
    driver = Driver(1)
    data = driver.malloc(64, "data")
    driver.launch(fill(1), data, grid=0)
    driver.launch(fill(2), data)
    assert read(driver, data) == [2]


def test_grid_indices_run_fastest_along_the_first_axis():
    seen = []

    def kernel(ag, pid, n):
        seen.append((pid, n))
        yield

    driver = Driver(1)
    driver.engine.launch(0, HandKernel(kernel), (2, 2, 2), [], None)
    driver.sync()
    assert sorted((p for p, _ in seen), key=lambda p: p[::-1]) == [
        (x, y, z) for z in (0, 1) for y in (0, 1) for x in (0, 1)
    ]
    assert {n for _, n in seen} == {(2, 2, 2)}


# ---------------------------------------------------------------- cores


@pytest.mark.parametrize(
    ("flags", "limit"), [({}, 4), ({"dot": True}, 2), ({"barrier": True}, 2), ({"barrier_vec": True}, 4)]
)
def test_launch_mode_bounds_the_programs_that_run_at_once(flags, limit):
    running, most = set(), []

    def kernel(ag, pid, n):
        running.add(pid)
        for _ in range(3):
            most.append(len(running))
            yield
        running.discard(pid)

    driver = Driver(1, cube_cores=2, vector_cores=4, scheduler="random")
    driver.launch(HandKernel(kernel, **flags), grid=11)
    driver.sync()
    assert max(most) == limit and len(most) == 33


def test_a_program_that_starts_late_gets_no_edge_from_those_that_ended():
    def kernel(ag, pid, n, data, data_al):
        if pid[0] == 0:
            ag.wr(data_al, 0, 1, 0, 64, STORE)
        if pid[0] == 2:
            ag.rd(data_al, 0, 1, 0, 64, None, LOAD)
        yield

    driver = Driver(1, vector_cores=1)
    data = driver.malloc(64, "data")
    driver.launch(HandKernel(kernel), data, grid=3)
    driver.sync()
    assert driver.lines() == [("race", (1, 2))]


def test_both_cores_of_a_program_hold_its_core():
    alive, most = set(), []

    def core(which):
        def kernel(ag, pid, n):
            alive.add((pid, which))
            for _ in range(3 if which else 1):
                most.append(len({p for p, _ in alive}))
                yield
            alive.discard((pid, which))

        return kernel

    driver = Driver(1, vector_cores=1)
    driver.launch(HandKernel(core(0), core(1)), grid=4)
    driver.sync()
    assert set(most) == {1}


def test_the_two_vector_agents_of_a_program_race_unless_a_barrier_orders_them():
    def kernels(ordered):
        def main(ag, pid, n, data, data_al):
            ag.wr(data_al, 0, 1, 0, 64, STORE)
            if ordered:
                yield from ag.barrier("all", BARRIER)
            yield

        def second(ag, pid, n, data, data_al):
            if ordered:
                yield from ag.barrier("all", BARRIER)
            ag.rd(data_al, 0, 1, 0, 64, None, LOAD)
            yield

        return HandKernel(main, second, barrier=ordered)

    for ordered in (False, True):
        driver = Driver(1)
        driver.launch(kernels(ordered), driver.malloc(64, "data"))
        driver.sync()
        assert driver.lines() == ([] if ordered else [("race", (1, 2))])
        if not ordered:
            assert [p.core for p in driver.findings[0].parties] == [0, 1]


def test_an_add_outside_a_gate_is_a_double_effect_and_one_inside_is_not():
    notify = site(8, "notify", "sig")

    def main(ag, pid, n, sig, sig_al):
        yield
        ag.notify(sig, sig_al, 1, 0, "add", 8, notify)
        ag.notify(sig, sig_al, 3, 0, "set", 8, site(9, "notify", "sig"))

    def second(ag, pid, n, sig, sig_al):
        yield

    for gated, found in ((), [("hazard.double-effect", (8,))]), ((notify,), []):
        driver = Driver(1)
        sig = driver.malloc(64, "sig")
        driver.launch(HandKernel(main, second, gated_sites=gated), sig)
        driver.sync()
        assert driver.lines() == found


# ---------------------------------------------------------------- barriers


def exchange(rounds, before=True, after=True):
    def kernel(ag, pid, n, data, data_al):
        for _ in range(rounds):
            yield
            _, al = ag.symm_at(data, data_al, (ag.rank + 1) % ag.nranks, STORE)
            ag.wr(al, 0, 1, 0, 64, STORE)
            if before:
                yield from ag.barrier("all", BARRIER)
            ag.rd(data_al, 0, 1, 0, 64, None, LOAD)
            if after:
                yield from ag.barrier("all", BARRIER)

    return HandKernel(kernel, barrier=True)


@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True)])
def test_a_barrier_orders_both_ways(before, after):
    driver = Driver(3, scheduler="random", seed=5)
    data = driver.malloc(64, "data")
    for _ in range(2):
        driver.launch(exchange(2, before, after), data)
    driver.sync()
    assert set(driver.kinds()) == (set() if before and after else {"race"})
    assert driver.engine.barriers.round == 2 * 2 * (before + after)


def test_the_soft_barrier_of_a_pure_vector_kernel_drains_nothing_under_ascend():
    def kernel(ag, pid, n, data, data_al):
        yield
        _, al = ag.symm_at(data, data_al, (ag.rank + 1) % ag.nranks, STORE)
        ag.wr(al, 0, 1, 0, 64, STORE)
        yield from ag.barrier("all_vec", BARRIER)
        ag.rd(data_al, 0, 1, 0, 64, None, LOAD)
        yield from ag.barrier("all_vec", BARRIER)

    kinds = {}
    for dot, drained in ((False, False), (True, False), (False, True)):
        driver = Driver(2, drained=drained)
        driver.launch(HandKernel(kernel, barrier_vec=True, dot=dot), driver.malloc(64, "data"))
        driver.sync()
        kinds[dot, drained] = driver.kinds()
    assert kinds == {(False, False): ["hazard.undrained-release"], (True, False): [], (False, True): []}


# ---------------------------------------------------------------- symmetric allocation


def test_malloc_is_the_same_everywhere_and_free_gives_it_back():
    driver = Driver(3)
    first = driver.malloc(1 << 15, "big")
    assert len({driver.al(a).offset_bytes for a in first}) == 1
    refused = driver.all(lambda r, done: driver.engine.malloc(r, 1 << 16, 16, "huge", None, done))
    assert all(isinstance(e, UsageError) and "no room for 65536 bytes" in str(e) for e in refused)
    driver.all(lambda r, done: driver.engine.free(r, first[r], None, done))
    assert driver.engine.memory.lookup(first[0]) is None
    assert driver.malloc(1 << 16, "all")


def test_a_wrong_free_is_the_hosts_error_alone():
    driver = Driver(1)
    data = driver.malloc(64, "data")
    for address in (data[0] + 16, 12345):
        (got,) = driver.all(lambda r, done, address=address: driver.engine.free(r, address, None, done))
        assert isinstance(got, UsageError)
    assert driver.findings == [] and driver.engine.stopped is None


def test_ranks_that_allocate_differently_are_named():
    driver = Driver(4)
    sizes = [64, 64, 128, 64]
    got = driver.all(lambda r, done: driver.engine.malloc(r, sizes[r], 16, "x", HostSite("h.py", 10 + r), done))
    assert all(isinstance(e, WorldStopped) for e in got)
    (found,) = driver.findings
    assert found.kind == "tdist.asymmetric-alloc"
    assert [p.line for p in found.parties] == [10, 11, 12, 13]
    assert found.got == "ranks 0, 1, 3: malloc of 64 bytes; rank 2: malloc of 128 bytes"


def test_malloc_against_free_is_asymmetric_too():
    driver = Driver(2)
    data = driver.malloc(64, "data")

    def request(rank, done):
        if rank:
            driver.engine.free(1, data[1], HostSite("h.py", 2), done)
        else:
            driver.engine.malloc(0, 32, 16, "x", HostSite("h.py", 1), done)

    driver.all(request)
    assert driver.findings[0].title.endswith("malloc and free")
    assert driver.findings[0].got == "rank 0: malloc of 32 bytes; rank 1: free of data"


def test_freeing_what_a_queued_launch_uses_is_misuse():
    driver = Driver(2)
    data = driver.malloc(64, "data")
    driver.launch(fill(1), data)
    got = driver.all(lambda r, done: driver.engine.free(r, data[r], HostSite("h.py", 30), done))
    assert all(isinstance(e, WorldStopped) for e in got)
    assert driver.findings[0].kind == "tdist.pointer-misuse" and "freed while" in driver.findings[0].title


def test_canaries_are_checked_at_free_and_at_close():
    for close in (True, False):
        driver = Driver(2)
        data = driver.malloc(20, "data")
        slack = driver.al(data[1]).slack
        assert slack is not None
        slack[0] = 0
        if close:
            driver.engine.close()
        else:
            driver.all(lambda r, done, d=driver, a=data: d.engine.free(r, a[r], None, done))
        (found,) = driver.findings
        assert found.kind == "tdist.canary" and found.parties[0].rank == 1 and found.got == "byte 20 is 0x00"


# ---------------------------------------------------------------- pointers and arguments


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("private", "outside the symmetric heap"),
        ("pe", "PE 2 does not exist"),
        ("negative", "PE -1 does not exist"),
        ("twice", "already translated to rank 1"),
        ("nowhere", "no address of device memory"),
    ],
)
@pytest.mark.parametrize("op", ["symm_at", "notify"])
def test_pointer_misuse(what, says, op):
    line = site(5, op, "data")

    def kernel(ag, pid, n, data, data_al, own, own_al):
        yield
        addr, al, pe = data, data_al, 1
        if what == "private":
            addr, al = own, own_al
        elif what == "pe":
            pe = 2
        elif what == "negative":
            pe = -1
        elif what == "twice":
            addr, al = ag.symm_at(data, data_al, 1, STORE)
        elif what == "nowhere":
            addr, al = 4096, None
        if op == "notify":
            ag.notify(addr, al, 1, pe, "set", 8, line)
        else:
            ag.symm_at(addr, al, pe, line)

    driver = Driver(2)
    data = driver.malloc(64, "data")
    own = [driver.engine.register(r, torch.zeros(64, dtype=torch.uint8), "own") for r in range(2)]
    driver.launch(HandKernel(kernel, args=["data", "own"]), data, own, ranks=[0])
    got = driver.sync()
    assert all(isinstance(e, WorldStopped) for e in got)
    (found,) = driver.findings
    assert found.kind == "tdist.pointer-misuse" and says in found.title
    assert (found.parties[0].rank, found.parties[0].program, found.parties[0].line) == (0, 0, 5)


def test_symm_at_keeps_the_offset_and_may_be_offset_further():
    got = []

    def kernel(ag, pid, n, data, data_al):
        yield
        got.append((*ag.symm_at(data + 8, data_al, 1, STORE), *ag.symm_at(data + 8, data_al, 0, STORE)))

    driver = Driver(2)
    data = driver.malloc(64, "data")
    driver.launch(HandKernel(kernel), data, ranks=[0])
    driver.sync()
    remote, remote_al, own, own_al = got[0]
    assert remote == data[1] + 8 and remote_al is driver.al(data[1])
    assert own == data[0] + 8 and own_al is driver.al(data[0])


def test_a_signal_outside_its_tensor_is_out_of_bounds():
    def kernel(ag, pid, n, data, data_al):
        yield
        ag.notify(data + 64, data_al, 1, 1, "set", 8, site(5, "notify", "data"))

    driver = Driver(2)
    driver.launch(HandKernel(kernel), driver.malloc(64, "data"))
    driver.sync()
    assert driver.findings[0].kind == "tdist.out-of-bounds" and driver.findings[0].got == "bytes 64 … 71"


def test_a_launch_with_another_ranks_private_memory_stops_the_world():
    driver = Driver(2)
    own = driver.engine.register(1, torch.zeros(64, dtype=torch.uint8), "own")
    for address in (own, 99):
        fresh = Driver(2)
        other = fresh.engine.register(1, torch.zeros(64, dtype=torch.uint8), "own") if address == own else address
        with pytest.raises(WorldStopped):
            fresh.engine.launch(0, fill(1), (1,), [Pointer(other)], HostSite("h.py", 4))
        assert fresh.findings[0].kind == "tdist.pointer-misuse" and fresh.findings[0].parties[0].line == 4


def test_a_null_pointer_is_out_of_bounds_at_its_first_access():
    def kernel(ag, pid, n, data, data_al):
        yield from ag.wait(data, data_al, 1, 1, 8, "acquire", site(6, "wait", "data"))

    driver = Driver(1)
    driver.launch(HandKernel(kernel), [0])
    driver.sync()
    assert driver.lines() == [("out-of-bounds", (6,))]


def test_scalars_have_their_declared_width():
    seen = []

    def kernel(ag, pid, n, *args):
        seen.extend(args)
        yield

    made = HandKernel(kernel, args=["a", "b", "c"])
    for arg, kind in zip(made.args, ("i32", "fp32", "fp16"), strict=True):
        object.__setattr__(arg, "type", kind)
    driver = Driver(1)
    driver.engine.launch(0, made, (1,), [-5, 0.1, 0.1], None)
    driver.sync()
    assert seen == [-5, np.float32(0.1), np.float16(0.1)] and isinstance(seen[1], np.float32)
    with pytest.raises(KernelError, match="does not fit i32"):
        driver.engine.launch(0, made, (1,), [1 << 31, 0.1, 0.1], None)
    with pytest.raises(UsageError, match="takes 3 arguments"):
        driver.engine.launch(0, made, (1,), [1], None)


# ---------------------------------------------------------------- faults, prints, the end


def test_faults_of_generated_code_read_well():
    def kernel(ag, pid, n, data, data_al):
        yield
        ag.fault("tdist.out-of-bounds", LOAD, index=20, lane=(1, 4), allocation="data", elements=16, rank=0)

    driver = Driver(1)
    driver.launch(HandKernel(kernel), driver.malloc(64, "data"))
    driver.sync()
    (found,) = driver.findings
    assert found.expected == "elements 0 … 15 of data on rank 0" and found.got == "lane (1, 4) is element 20"


@pytest.mark.parametrize(
    ("data", "problem", "got"),
    [
        ({"reason": "division-by-zero", "dividend": 7, "bits": 32}, "division by zero", "7 divided by 0"),
        ({"reason": "shift-past-width", "amount": 40, "bits": 32}, "shift past the width", "a shift of 40"),
        ({"reason": "float-to-int-range", "value": 3e9, "bits": 32}, "float out of", "3000000000.0"),
        ({"reason": "index-overflow", "low": 0, "high": 1 << 33, "bits": 32}, "leaves 32-bit", "to 8589934592"),
    ],
)
def test_arithmetic_faults(data, problem, got):
    def kernel(ag, pid, n):
        yield
        ag.fault("tdist.arithmetic", site(4, "div"), **data)

    driver = Driver(1)
    driver.launch(HandKernel(kernel))
    driver.sync()
    (found,) = driver.findings
    assert problem in found.title and got in found.got


def test_asserts_and_prints():
    def kernel(ag, pid, n):
        ag.print(LOAD, "x:", (pid[0], 1.5))
        yield
        ag.assert_(torch.tensor([True, pid[0] == 0]), "all lanes", LOAD)

    driver = Driver(1)
    driver.launch(HandKernel(kernel), grid=2)
    driver.sync()
    assert driver.engine.prints == [(0, 0, "x: 0 1.5"), (0, 1, "x: 1 1.5")]
    assert driver.findings[0].title == "device assertion failed: all lanes"


def test_after_the_end_everything_completes_with_what_was_found():
    def kernel(ag, pid, n):
        yield
        ag.assert_(False, "no", LOAD)

    driver = Driver(2)
    driver.launch(HandKernel(kernel))
    got = driver.sync()
    assert all(isinstance(e, WorldStopped) and e.findings for e in got)
    assert all(isinstance(e, WorldStopped) for e in driver.sync())
    with pytest.raises(WorldStopped):
        driver.launch(HandKernel(kernel))


def test_a_defect_in_generated_code_is_an_internal_error_that_names_the_kernel():
    def broken(ag, pid, n):
        yield
        raise ZeroDivisionError("oops")

    driver = Driver(1)
    driver.launch(HandKernel(broken))
    with pytest.raises(TdistError, match="internal error while running broken, rank 0 program 0"):
        driver.sync()


def test_a_host_that_ends_in_error_is_a_finding():
    driver = Driver(2)
    driver.engine.end(1, "ValueError: x")
    (found,) = driver.findings
    assert found.kind == "tdist.host-error" and "ValueError: x" in found.title


def test_running_hosts_are_not_scheduled_over():
    engine = Engine(WorldConfig(nranks=2, heap_bytes=4096))
    engine.synchronize(0, lambda value: None)
    with pytest.raises(UsageError, match=r"hosts of ranks \[1\]"):
        engine.run()


def test_garbage_collection_is_as_it_was():
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            driver = Driver(1)
            driver.launch(fill(1), driver.malloc(64, "data"))
            frozen = gc.get_freeze_count()
            driver.sync()
            assert gc.isenabled() is enabled and gc.get_freeze_count() == frozen
        finally:
            gc.enable()


def test_two_engines_do_not_disturb_each_other():
    one, two = Driver(2, scheduler="random", seed=3), Driver(2, scheduler="random", seed=3)
    data = [driver.malloc(64, "data") for driver in (one, two)]
    for driver, buffers in zip((one, two), data, strict=True):
        driver.launch(exchange(2), buffers)
    one.sync()
    two.sync()
    assert one.engine.events == two.engine.events and one.findings == two.findings == []


def _early(**config) -> tuple[bool, list[int]]:
    """Whether rank 0's synchronise returned while rank 1 was still running, and the choices made."""

    def kernel(ag, pid, n):
        for _ in range(20 * ag.rank):
            yield

    driver = Driver(2, **config)
    driver.launch(HandKernel(kernel))
    early = []

    def request(rank, done):
        def completed(value):
            early.append(rank == 0 and not driver.engine.streams[1].idle)
            done(value)

        driver.engine.synchronize(rank, completed)

    driver.all(request)
    return early[0], driver.engine.events


def test_early_completion_of_a_host_call_is_a_choice_that_replays():
    runs = [_early(scheduler="random", seed=seed) for seed in range(12)]
    assert {early for early, _ in runs} == {True, False}
    assert [_early(choices=tuple(events)) for _, events in runs] == runs
    assert _early()[0] is False


def test_a_signal_add_in_a_kernel_with_a_dot_is_a_double_effect_and_a_set_is_not():
    def kernel(op):
        def body(ag, pid, n, sig, sig_al):
            yield
            ag.notify(sig, sig_al, 1, 0, op, 8, site(8, "notify", "sig"))

        return HandKernel(body, dot=True)

    for op, found in (("add", [("hazard.double-effect", (8,))]), ("set", [])):
        driver = Driver(1)
        driver.launch(kernel(op), driver.malloc(64, "sig"))
        driver.sync()
        assert driver.lines() == found
        for doubled in driver.findings:
            assert (
                doubled.title
                == "double effect: signal ADD takes effect on the cube core and the vector cores as compiled"
            )
            assert "a SET follows the core of its data (docs/compiled-effects.md)" in doubled.cure
            assert doubled.fails("ascend") and not doubled.fails("seed")
