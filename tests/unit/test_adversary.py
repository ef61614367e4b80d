"""Adversarial memory leaves correct programs alone, follows its choices, and is refused where it cannot be."""

from __future__ import annotations

import pytest
import torch
from engine_kit import Driver, HandKernel, site

from tdist.errors import UsageError
from tdist.platforms.sim import adversary
from tdist.platforms.sim.world_config import WorldConfig
from tdist.verify.loader import load_operator
from tdist.verify.modes import mode_of
from tdist.verify.options import Options
from tdist.verify.rank_job import Job
from tdist.verify.worlds import POISONS, RunSpec, ThreadRunner, world_config

SHAPES = {"all_gather": {"m": 10, "n": 48}, "ag_gemm": {"m": 20, "n": 16, "k": 16}}
SCHEDULES = (("random", 0), ("random", 1), ("latest", 0), ("starved:rank=1", 0), ("pct:depth=4,steps=500", 3))


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def adversaries(monkeypatch):
    """Every adversary that a world makes."""
    made = []
    begin = adversary.Adversary.__init__

    def noted(self, *args):
        begin(self, *args)
        made.append(self)

    monkeypatch.setattr(adversary.Adversary, "__init__", noted)
    return made


def run(name: str, form: str, schedule: tuple[str, int], profile: str, memory: str):
    """Three launches of an operator on three ranks, compared exactly."""
    operator = load_operator(name)
    spec, seed = schedule
    options = Options(name, nranks=3, seed=seed, profile=profile, memory=memory)
    mode = mode_of(form, operator.sync, spec)
    case = operator.case(dtype="fp16", nranks=3, shape=SHAPES[name], seed=5, sync=mode.protocol)
    job = Job(name, case, 3, policy="exact")
    return ThreadRunner(operator, options).execute(RunSpec(job, world_config(options, mode, POISONS[0])))


@pytest.mark.parametrize("profile", ["seed", "ascend"])
@pytest.mark.parametrize("form", ["fine", "barrier"])
@pytest.mark.parametrize("name", ["all_gather", "ag_gemm"])
def test_our_operators_compute_what_they_compute_in_plain_memory(name, form, profile, adversaries):
    for schedule in SCHEDULES:
        result = run(name, form, schedule, profile, "adversarial")
        assert not result.error and not result.findings
        compared = [c for rank in result.ranks for launch in rank or () for c in launch.comparisons.values()]
        assert compared and all(c.passed for c in compared), f"{schedule}"
    assert len(adversaries) == len(SCHEDULES)
    assert not any(made.played for made in adversaries), "something was left to chance although nothing races"


def test_it_needs_detection():
    with pytest.raises(UsageError, match="needs race detection"):
        WorldConfig(2, memory="adversarial", detect=False)
    with pytest.raises(UsageError, match="needs race detection"):
        Options("ag_gemm", memory="adversarial", detect=False).check()
    with pytest.raises(UsageError, match=r"unknown --memory 'adversary'.*did you mean 'adversarial'"):
        Options("ag_gemm", memory="adversary").check()


def test_the_option_reaches_the_world_and_the_replay_line():
    options = Options("ag_gemm", memory="adversarial")
    assert world_config(options, mode_of("fine", ("fine",)), 0)["memory"] == "adversarial"
    assert "--memory adversarial" in options.replay()


STORE, LOAD, NOTIFY, WAIT = site(1, "store", "x"), site(2, "load", "x"), site(3, "notify", "s"), site(4, "wait", "s")


def store(ag, al, off, value, at=STORE):
    ag.wr(al, off, 1, 0, 8, at)
    al.words(8)[off // 8] = value
    al.version += 1


def load(ag, al, off, clk=None, at=LOAD):
    ag.rd(al, off, 1, 0, 8, clk, at)
    return al.words(8)[off // 8]


def in_world(body, *names, profile="seed", scheduler="run-to-block", **config):
    """Run a kernel on two ranks with 256-byte buffers; the driver and the buffers."""
    driver = Driver(2, memory="adversarial", profile=profile, scheduler=scheduler, **config)
    buffers = [driver.malloc(256, name, alignment=64) for name in names]
    driver.launch(HandKernel(body), *buffers)
    driver.sync()
    return driver, buffers


def test_memory_is_itself_again_after_a_load_that_saw_less():
    seen = []

    def body(ag, pid, n, x, x_al, s, s_al):
        if ag.rank == 0:
            yield
            store(ag, x_al.peers[1], 0, 7)
            ag.notify(s, s_al, 1, 1, "set", 8, NOTIFY)
            return
        token = yield from ag.wait(s, s_al, 1, 1, 8, "acquire", WAIT)
        seen.append(load(ag, x_al, 0))
        seen.append(load(ag, x_al, 0, token, site(5, "load", "x")))
        seen.append(load(ag, x_al, 0, None, site(6, "load", "x")))
        yield
        seen.append(x_al.words(8)[0])

    driver, _ = in_world(body, "x", "s")
    assert seen == [0, 7, 0, 7], "late, ordered by its token, late again, and what memory holds between steps"
    assert "race" in driver.kinds()


def test_versions_change_with_what_is_shown():
    """Converted tiles are cached by version: one that was made of hidden bytes is never found again."""
    versions = []

    def body(ag, pid, n, x, x_al, s, s_al):
        if ag.rank == 0:
            yield
            store(ag, x_al.peers[1], 0, 7)
            ag.notify(s, s_al, 1, 1, "set", 8, NOTIFY)
            return
        token = yield from ag.wait(s, s_al, 1, 1, 8, "acquire", WAIT)
        versions.append(x_al.version)
        load(ag, x_al, 0)
        versions.append(x_al.version)
        load(ag, x_al, 0, token, site(5, "load", "x"))
        versions.append(x_al.version)

    in_world(body, "x", "s")
    assert len(set(versions)) == 3


def test_a_write_does_not_stay_hidden_for_ever():
    """Whoever polls data with plain loads, which order nothing, gets on in the end."""
    rounds = []

    def body(ag, pid, n, x, x_al):
        if ag.rank == 0:
            yield
            store(ag, x_al.peers[1], 0, 7)
            return
        while load(ag, x_al, 0) != 7:
            rounds.append(1)
            yield

    driver, _ = in_world(body, "x")
    assert len(rounds) == adversary.MOST_HIDDEN
    assert driver.kinds() == ["race"]


def test_what_was_seen_once_is_not_hidden_again():
    for seed in range(30):
        seen = []

        def body(ag, pid, n, x, x_al, s, s_al, seen=seen):
            if ag.rank == 0:
                yield
                store(ag, x_al.peers[1], 0, 7)
                ag.notify(s, s_al, 1, 1, "set", 8, NOTIFY)
                return
            yield from ag.wait(s, s_al, 1, 1, 8, "acquire", WAIT)
            for _ in range(8):
                seen.append(load(ag, x_al, 0))
                yield

        in_world(body, "x", "s", scheduler="random", seed=seed)
        assert seen == sorted(seen) and len(seen) == 8
        if len(set(seen)) == 2:
            return
    pytest.fail("no seed showed both values")


def test_an_ordered_write_stands_before_older_ones_that_are_not():
    """Bytes of two writes: the later is known, so the earlier cannot be taken back below it, but beside it."""
    seen = []

    def body(ag, pid, n, x, x_al, s, s_al):
        if ag.rank == 0:
            yield
            mine = x_al.peers[1]
            ag.wr(mine, 0, 1, 0, 16, STORE)  # in flight
            mine.words(8)[0:2] = memoryview(b"\x01" + bytes(7) + b"\x02" + bytes(7)).cast("q")
            ag.notify(s, s_al, 1, 1, "set", 8, NOTIFY)
            return
        yield from ag.wait(s, s_al, 1, 1, 8, "acquire", WAIT)
        store(ag, x_al, 8, 9, site(7, "store", "x"))
        ag.rd(x_al, 0, 1, 0, 16, None, LOAD)
        seen.extend(x_al.words(8)[0:2])

    in_world(body, "x", "s", profile="ascend")
    assert seen == [0, 9]


def test_gathers_and_scatters_are_played_lane_by_lane():
    import numpy as np

    seen = []

    def body(ag, pid, n, x, x_al, s, s_al):
        lanes = np.array([0, 24, 48])
        if ag.rank == 0:
            yield
            mine = x_al.peers[1]
            ag.wr_lanes(mine, lanes, 8, STORE)
            for off in lanes:
                mine.words(8)[off // 8] = off + 1
            ag.notify(s, s_al, 1, 1, "add", 8, NOTIFY)
            return
        token = yield from ag.wait(s, s_al, 1, 1, 8, "acquire", WAIT)
        ag.rd_lanes(x_al, np.array([48, 0, 8]), 8, None, LOAD)
        seen.append([x_al.words(8)[i] for i in (6, 0, 1, 3)])
        yield
        seen.append([x_al.words(8)[i] for i in (6, 0, 1, 3)])
        del token

    in_world(body, "x", "s")
    assert seen == [[0, 0, 0, 25], [49, 1, 0, 25]]


def test_a_lost_signal_leaves_its_waiter_in_a_deadlock_that_names_the_line():
    def body(ag, pid, n, s, s_al):
        if pid[0] < 2:
            yield
            ag.notify(s + 8 * pid[0], s_al, 1, 1, "set", 8, site(3 + pid[0], "notify", "s"))
            return
        if ag.rank == 1:
            for slot in (0, 1):
                yield from ag.wait(s + 8 * slot, s_al, 1, 1, 8, "acquire", site(8 + slot, "wait", "s"))

    driver = Driver(2, memory="adversarial", scheduler="starved:program=2")
    signals = driver.malloc(64, "s", alignment=64)
    driver.launch(HandKernel(body), signals, grid=3, ranks=[1])
    driver.sync()
    assert {"deadlock", "line-sharing"} <= set(driver.kinds())


def test_a_store_of_several_runs_is_shown_as_one():
    """One load may be several reads: what is shown for the first is not taken back before the load is made."""
    seen = []

    def body(ag, pid, n, x, x_al, s, s_al):
        if ag.rank == 0:
            yield
            mine = x_al.peers[1]
            ag.wr(mine, 0, 4, 16, 8, STORE)
            for row in range(4):
                mine.words(8)[2 * row] = row + 1
            ag.notify(s, s_al, 1, 1, "add", 8, NOTIFY)
            return
        yield from ag.wait(s, s_al, 1, 1, 8, "acquire", WAIT)
        for row in range(4):
            ag.rd(x_al, 16 * row, 1, 0, 8, None, LOAD)
        seen.extend(x_al.words(8)[2 * row] for row in range(4))

    in_world(body, "x", "s")
    assert seen == [0, 0, 0, 0]


def test_old_bytes_are_kept_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(adversary, "_MOST_WRITES", 4)
    kept = []

    def body(ag, pid, n, x, x_al):
        if ag.rank == 0:
            for value in range(10):
                yield
                store(ag, x_al.peers[1], 0, value)
            kept.append(len(ag.engine.adversary._writes[x_al.peers[1].lo]))
            return
        yield

    in_world(body, "x")
    assert kept == [4]
