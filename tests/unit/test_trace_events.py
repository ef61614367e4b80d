"""What a traced world keeps: everything, in order, without changing anything; bounded; the same on any road."""

from __future__ import annotations

import pytest
import torch
from trace_kit import HOSTS, traced

from tdist.platforms.sim.tracing import Tracer
from tdist.platforms.sim.world import World
from tdist.trace import Trace


def kinds(trace: Trace, rank: int, role: str = "program") -> list[str]:
    actors = [(trace.actor(event), event.kind) for event in trace.events]
    return [kind for actor, kind in actors if (actor.role, actor.rank) == (role, rank)]


def test_a_program_does_what_its_source_says_in_that_order() -> None:
    trace, findings, _ = traced("shift")
    assert not [found for found in findings if found.fails("seed")]
    steps = ["start", "load", "store", "fence", "notify", "wait", "waited", "load", "fence", "store", "end"]
    for rank in range(3):
        assert kinds(trace, rank) == steps
        assert kinds(trace, rank, "stream") == ["host write", "launch", "launched"]
        assert kinds(trace, rank, "host").count("register") == 2
    assert [event.seq for event in trace.events] == list(range(len(trace.events)))
    assert [event.step for event in trace.events] == sorted(event.step for event in trace.events)


def test_accesses_name_lines_tensors_and_bytes() -> None:
    trace, _, _ = traced("shift")
    store = next(event for event in trace.events if event.kind == "store")
    place, memory = trace.place(store), trace.memories[store.data["m"]]
    assert place is not None and place.file.endswith("trace_kit.py")
    assert (place.op, place.arg, place.kernel) == ("store", "box_ptr", "shift_kernel")
    assert (memory.rank, memory.symmetric, memory.label) == (1, True, "box")
    assert (store.data["shape"], store.data["strides"], store.data["size"]) == ([8, 4], [8, 2], 2)
    assert trace.memories[memory.peer].rank == 0


def test_a_wait_names_the_notify_that_released_it() -> None:
    trace, _, _ = traced("shift", launches=3)
    ends = [event for event in trace.events if event.kind == "waited"]
    assert len(ends) == 9
    for end in ends:
        (source,) = end.data["released"]
        wait, notify = trace.events[end.data["start"]], trace.events[source]
        assert notify.kind == "notify" and notify.seq < end.seq
        assert (notify.data["m"], notify.data["at"]) == (wait.data["m"], wait.data["at"])
        assert notify.data["after"] == wait.data["value"]
        assert trace.actor(notify).rank == (trace.actor(end).rank - 1) % 3


def test_barriers_name_the_last_arrival() -> None:
    trace, _, _ = traced("stuck", nranks=2)
    leaves = [event for event in trace.events if event.kind == "leave"]
    arrivals = [event.seq for event in trace.events if event.kind == "arrive"]
    assert len(leaves) == len(arrivals) == 2
    assert {event.data["released"][0] for event in leaves} == {max(arrivals)}


@pytest.mark.parametrize("host", [*HOSTS])
@pytest.mark.parametrize(
    ("scheduler", "memory"), [("run-to-block", "plain"), ("random", "plain"), ("random", "adversarial")]
)
def test_tracing_changes_no_choice_no_finding_and_no_result(host: str, scheduler: str, memory: str) -> None:
    def once(trace: bool):
        fields = {"heap_bytes": 1 << 20, "scheduler": scheduler, "memory": memory, "seed": 5, "trace": trace}
        with World(nranks=3, **fields) as world:
            results = world.run(HOSTS[host])
            shown = [(found.kind, found.parties) for found in world.findings]
            return world.events, shown, results, world.trace

    plain, with_trace = once(False), once(True)
    assert plain[3] is None and with_trace[3] is not None
    assert plain[:2] == with_trace[:2]
    for one, other in zip(plain[2], with_trace[2], strict=True):
        for a, b in zip(one or (), other or (), strict=True) if isinstance(one, list | tuple) else ():
            assert torch.equal(a, b)


def test_equal_seeds_give_equal_traces_and_others_do_not() -> None:
    def blobs(seed: int) -> tuple[bytes, bytes]:
        with World(nranks=3, heap_bytes=1 << 20, scheduler="random", seed=seed, trace=True) as world:
            world.run(HOSTS["shift"])
            assert world.trace is not None
            return world.trace.to_blobs()

    assert blobs(1) == blobs(1)
    assert len({blobs(seed)[0] for seed in range(6)}) > 1


def test_detection_is_not_needed() -> None:
    trace, _, _ = traced("shift", detect=False)
    assert kinds(trace, 0) == kinds(traced("shift")[0], 0)


def test_a_trace_travels_as_two_blobs() -> None:
    trace, _, _ = traced("product")
    assert Trace.from_blobs(*trace.to_blobs()) == trace


def test_events_beyond_the_limit_are_counted_and_said() -> None:
    with World(nranks=2, heap_bytes=1 << 20, trace=True) as world:
        world.engine.tracer = Tracer(world.engine, max_events=12, max_value_bytes=64)
        world.run(HOSTS["shift"])
        trace = world.trace
    whole = len(traced("shift", nranks=2)[0].events)
    assert trace is not None
    assert (len(trace.events), trace.dropped) == (12, whole - 12)
    assert trace.values_dropped and len(trace.values) <= 64


def test_a_world_without_trace_compiles_nothing_of_it() -> None:
    from tdist.platforms.sim import compiler

    with World(nranks=1, heap_bytes=1 << 20) as world:
        before = set(compiler._kernels)
        world.run(HOSTS["product"])
        made = [compiler._kernels[key] for key in set(compiler._kernels) - before]
    assert all("traced_" not in kernel.source and "GRAPH" not in kernel.source for kernel in made)
    assert not any(kernel.graphs[0] for kernel in made)
