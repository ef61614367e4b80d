"""A re-run without hosts is the run with hosts, event for event; what cannot be left out is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_kit import HandKernel, site

from tdist.errors import UsageError
from tdist.platforms.sim.explore.recording import NotRecordable, record
from tdist.platforms.sim.explore.rerun import rerun
from tdist.platforms.sim.world import World
from tdist.verify.loader import load_operator
from tdist.verify.options import Options
from tdist.verify.rank_job import Job
from tdist.verify.search.explore import Rerunner
from tdist.verify.worlds import RunSpec, ThreadRunner

FAULTS = Path(__file__).parents[1] / "faults"
WORLDS = [("run-to-block", 0), ("random", 1), ("random", 2), ("max-sync", 0)]
CASES = [
    ("all_gather", {"m": 6, "n": 16}, "fine", 3),
    ("all_gather", {"m": 6, "n": 16}, "barrier", 3),
    ("ag_gemm", {"m": 32, "n": 32, "k": 32}, "fine", 2),
    ("ag_gemm", {"m": 32, "n": 32, "k": 32}, "barrier", 2),
    ("broken_gather_wait", {"m": 2, "n": 16}, "fine", 2),
    ("broken_gather_exit", {"m": 2, "n": 16}, "fine", 2),
    ("broken_gemm_credit", {"m": 96, "n": 32, "k": 48}, "fine", 2),
]


def spec_of(name: str, shape: dict, sync: str, nranks: int, launches: int = 2) -> tuple:
    spec = f"{FAULTS / name}.py::op" if name.startswith("broken") else name
    operator = load_operator(spec)
    case = replace(operator.case(dtype="fp16", nranks=nranks, shape=shape, seed=0), sync=sync)
    return operator, RunSpec(Job(spec, case, launches, judge=False, policy="exact"), {"heap_bytes": 1 << 24})


@pytest.mark.parametrize(("name", "shape", "sync", "nranks"), CASES, ids=[f"{c[0]}-{c[2]}" for c in CASES])
def test_a_rerun_is_the_run(name, shape, sync, nranks):
    operator, spec = spec_of(name, shape, sync, nranks)
    whole, without = ThreadRunner(operator, Options(nranks=nranks)), Rerunner(operator)
    for scheduler, seed in WORLDS:
        world = spec.with_world(scheduler=scheduler, seed=seed)
        expected, got = whole.execute(world), without.execute(world)
        assert got.choices == expected.choices
        assert [f.to_json() for f in got.findings] == [f.to_json() for f in expected.findings]
        assert got.ranks == expected.ranks
        assert got.error == expected.error
    assert without.reruns == len(WORLDS)


def test_choices_of_a_rerun_replay_with_hosts():
    operator, spec = spec_of("all_gather", {"m": 4, "n": 16}, "fine", 2)
    got = Rerunner(operator).execute(spec.with_world(scheduler="random", seed=5))
    again = ThreadRunner(operator, Options(nranks=2)).execute(spec.with_world(choices=got.choices))
    assert (again.choices, again.ranks) == (got.choices, got.ranks)


def test_a_job_that_is_judged_needs_its_hosts():
    operator, spec = spec_of("all_gather", {"m": 4, "n": 16}, "fine", 2)
    judged = replace(spec, job=replace(spec.job, judge=True))
    rerunner = Rerunner(operator, ThreadRunner(operator, Options(nranks=2)))
    ranks = rerunner.execute(judged).ranks
    assert rerunner.reruns == 0
    assert all(result.comparisons for launches in ranks for result in launches or ())


# ---------------------------------------------------------------- hosts by hand


def add_one() -> HandKernel:
    """Adds one to the first word of private memory."""
    line = site(1, "store", "x")

    def body(ag, pid, n, x, x_al):
        x_al.view(torch.int64)[0] += 1
        ag.rd(x_al, 0, 1, 0, 8, None, line)
        ag.wr(x_al, 0, 1, 0, 8, line)
        yield

    return HandKernel(body, args=["x"])


def test_private_memory_is_as_the_launch_met_it_each_time():
    kernel = add_one()

    def host(rt):
        x = torch.tensor([41, 0])
        rt.launch(kernel, (1,), [x])
        rt.synchronize()
        world.output(rt, ("x",), x)

    from tdist.platforms.sim.explore.recording import RecordingWorld

    with RecordingWorld(nranks=2, heap_bytes=1 << 12) as world:
        world.run(host)
        recording = world.recording()
    for _ in range(2):
        outputs = rerun(recording).outputs
        assert {key: value.tolist() for key, value in outputs.items()} == {(0, "x"): [42, 0], (1, "x"): [42, 0]}


def test_a_host_that_decides_by_what_it_read_is_refused_with_its_line():
    kernel = add_one()

    def host(rt):
        x = torch.zeros(2, dtype=torch.int64)
        rt.launch(kernel, (1,), [x])
        if x.tolist()[0]:  # <read>
            rt.launch(kernel, (1,), [x])

    recording = record(1, host, heap_bytes=1 << 12)
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# <read>" in text)
    assert f"{Path(__file__)}:{line}" in recording.depends_on_data
    with pytest.raises(NotRecordable, match="may depend on what it read"):
        rerun(recording)


def test_reading_after_the_last_launch_is_no_decision():
    kernel = add_one()

    def host(rt):
        x = torch.zeros(2, dtype=torch.int64)
        rt.launch(kernel, (1,), [x])
        return x.tolist()

    recording = record(2, host, heap_bytes=1 << 12)
    assert recording.depends_on_data == ""
    assert rerun(recording, scheduler="random", seed=3).stopped == ""


def stuck() -> HandKernel:
    """Waits for what nobody sends, unless it is told not to."""
    line = site(7, "wait", "sig")

    def body(ag, pid, n, sig, sig_al, patience):
        if patience:
            yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", line)

    return HandKernel(body, args=["sig", "patience"])


def test_a_rerun_that_comes_farther_than_the_recording_says_so():
    kernel = stuck()

    def host(rt):
        sig = rt.tensor(rt.malloc(64, 64), (8,), torch.int64)
        sig.zero_()
        rt.launch(kernel, (1,), [sig, 1])
        rt.synchronize()

    recording = record(2, host, heap_bytes=1 << 12)
    assert not recording.whole
    assert "deadlock" in rerun(recording).findings[0].kind
    for script in recording.scripts:
        at = next(i for i, request in enumerate(script) if hasattr(request, "kernel"))
        script[at] = replace(script[at], args=(script[at].args[0], 0))
    with pytest.raises(NotRecordable, match="farther than in the recording"):
        rerun(recording)


def test_the_number_of_ranks_cannot_change():
    recording = record(2, lambda rt: None, heap_bytes=1 << 12)
    with pytest.raises(UsageError, match="number of ranks"):
        rerun(recording, nranks=3)


def test_an_output_that_the_host_computed_cannot_be_had_again():
    operator, spec = spec_of("all_gather", {"m": 4, "n": 16}, "fine", 2)
    computed = replace(operator, host=lambda *args, **named: operator.host(*args, **named).float() * 2)
    with pytest.raises(NotRecordable, match="not device memory"):
        Rerunner(computed).execute(spec)


def test_a_recording_world_is_a_world():
    def host(rt):
        return rt.rank

    with World(nranks=2) as plain:
        expected = plain.run(host)
    recording = record(2, host)
    assert expected == [0, 1] and recording.whole and recording.launches == 0
