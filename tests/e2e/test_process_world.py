"""Rank processes with an engine process: same results as in one process, and what any death leaves behind (nothing)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from tdist.errors import KernelError, UsageError, WorldStopped
from tdist.platforms.sim.engine import WorldConfig
from tdist.platforms.sim.process import warm
from tdist.platforms.sim.process.pool import RankPool
from tdist.platforms.sim.world import World

HERE = Path(__file__).parent
HOSTS = str(HERE / "process_hosts.py")
NRANKS = 3

pytest.importorskip("triton")


def target(name: str) -> str:
    return f"{HOSTS}::{name}"


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_kept():
    """A pool that closes leaves nothing; `test_warm_servers.py` is about those that keep their fork server."""
    with warm.keeping(False):
        yield


@pytest.fixture(scope="module")
def shared(_nothing_is_kept):
    with RankPool(NRANKS) as pool:
        yield pool


@pytest.fixture
def pool(shared):
    shared.reset(WorldConfig(nranks=NRANKS))
    return shared


def alive(pid: int) -> bool:
    """Running; a zombie that nobody has reaped yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def survivors(pids, seconds: float = 30.0) -> list[int]:
    """Those of `pids` that still live after at most `seconds`."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def belongings() -> set[str]:
    """Names that a pool could leave behind: shared memory and temporary files."""
    places = [Path("/dev/shm"), Path(os.environ.get("TMPDIR", "/tmp"))]
    return {
        str(entry) for place in places for entry in place.iterdir() if "torch" in entry.name or "tdist" in entry.name
    }


class TestRuns:
    def test_arguments_and_results_travel_both_ways(self, pool):
        value = {"a": [1, 2.5, None, True, "x"], "b": (float("inf"), torch.arange(6, dtype=torch.int16).view(2, 3))}
        results = pool.run(target("echo"), value=value, dtype=torch.bfloat16, empty=torch.empty(0, 3))
        assert [result["rank"] for result in results] == list(range(NRANKS))
        for result in results:
            assert result["value"]["a"] == value["a"]
            assert result["value"]["b"][0] == float("inf")
            assert torch.equal(result["value"]["b"][1], value["b"][1])
            assert result["dtype"] is torch.bfloat16
            assert result["empty"].shape == (0, 3)

    def test_what_cannot_travel_is_named(self, pool):
        with pytest.raises(UsageError, match="a set cannot travel between processes"):
            pool.run(target("echo"), value={1, 2})

    def test_a_real_gloo_group(self, pool):
        results = pool.run(target("group"))
        assert [(backend, rank) for backend, rank, _, _ in results] == [("gloo", rank) for rank in range(NRANKS)]
        assert all(total.tolist() == [3.0] * 3 for _, _, total, _ in results)
        assert all(pieces.tolist() == [[float(r)] * 2 for r in range(NRANKS)] for _, _, _, pieces in results)

    def test_the_group_cannot_be_destroyed_by_a_host_function(self, pool):
        assert pool.run(target("destroy"), whole=False) == [True] * NRANKS
        with pytest.raises(
            UsageError, match=r"rank 0: .*destroy_process_group\(\) in a host function: the group belongs"
        ):
            pool.run(target("destroy"))
        assert len(pool.run(target("group"))) == NRANKS

    def test_launches_on_private_tensors_match_the_in_process_world(self, pool):
        import process_hosts  # the directory of this file is on sys.path

        with World(nranks=NRANKS) as world:
            expected = world.run(process_hosts.launch, 37)
        results = pool.run(target("launch"), n=37)
        for (first, tensor), (expected_first, expected_tensor) in zip(results, expected, strict=True):
            assert first == expected_first
            assert torch.equal(tensor, expected_tensor)
        assert expected[1][1][3].item() == 3 * 2 * 2 + 1
        assert not pool.findings()

    def test_copies_between_device_tensors_match_the_in_process_world(self, pool):
        import process_hosts

        with World(nranks=NRANKS) as world:
            expected = world.run(process_hosts.copies)
        for rank, (got, wanted) in enumerate(zip(pool.run(target("copies")), expected, strict=True)):
            assert all(torch.equal(mine, other) for mine, other in zip(got, wanted, strict=True))
            assert got[1][:4].tolist() == [3 + rank] * 4
        assert not pool.findings()

    def test_collectives_read_and_write_device_memory_in_stream_order(self, pool):
        for buffer, everywhere in pool.run(target("collectives_on_device_memory")):
            assert buffer.tolist() == [30.0] * 16
            assert everywhere.tolist() == [30.0] * 16 * NRANKS
        assert not pool.findings()

    def test_the_heap_is_kept_between_runs_and_new_after_reset(self, pool):
        pool.run(target("keep"), value=5.0)
        assert [t.tolist() for t in pool.run(target("keep"))] == [[5.0] * 4] * NRANKS
        pids = pool.pids
        pool.reset(WorldConfig(nranks=NRANKS, poison=0))
        with pytest.raises(AttributeError):
            pool.run(target("keep"))
        assert pool.pids["forkserver"] == pids["forkserver"]

    def test_late_messages_of_a_run_do_not_reach_the_next_world(self, pool):
        """The engine served a reset before the ranks' last messages: a release reached a world without that memory."""
        for _ in range(10):
            assert pool.run(target("churn")) == [True] * NRANKS
            assert not pool.findings()
            pool.reset()

    def test_output_of_ranks_is_shown_with_their_names(self, pool, capfd):
        pool.run(target("say"))
        out, _ = capfd.readouterr()
        assert sorted(out.splitlines()) == [f"[rank {rank}] hello from {rank}" for rank in range(NRANKS)]

    def test_stderr_of_ranks_is_shown_with_their_names_and_bounded(self, pool, capfd):
        pool.run(target("complain"))
        assert sorted(capfd.readouterr().err.splitlines()) == [f"[rank {r}] complaint 0" for r in range(NRANKS)]
        pool.run(target("complain"), lines=1500)
        pool.run(target("echo"))
        mine = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[rank 0]")]
        assert len(mine) == 1001
        assert mine[-2] == "[rank 0] complaint 999"
        assert "no more are shown" in mine[-1]

    def test_the_same_seed_gives_the_same_events(self, pool):
        events = []
        for _ in range(2):
            pool.reset(WorldConfig(nranks=NRANKS, scheduler="random", seed=11))
            pool.run(target("launch"), n=200)
            events.append(pool.events())
        assert events[0] == events[1]
        assert events[0]

    def test_a_new_group_starts_quickly(self, pool):
        pool.run(target("echo"))
        pool._abandon()
        start = time.monotonic()
        pool.run(target("echo"))
        assert time.monotonic() - start < 5.0


class TestPrivateMemory:
    def test_a_tensor_outlives_worlds(self, pool):
        for _ in range(2):
            assert [t.tolist() for t in pool.run(target("survive"))] == [[4.0] + [3.0] * 15] * NRANKS
            pool.reset(WorldConfig(nranks=NRANKS))

    def test_what_the_user_has_shared_stays_shared(self, pool):
        for tensor, is_shared in pool.run(target("shared_by_user")):
            assert tensor.tolist() == [3.0] * 16
            assert is_shared

    def test_it_costs_no_descriptors_and_no_names(self, pool):
        before = belongings()
        assert all(
            more <= 0 for more in pool.run(target("counting_descriptors"))
        )  # fewer: tensors of earlier tests die
        assert belongings() == before

    def test_it_needs_no_dev_shm(self):
        """In a mount namespace with 64 KiB of it, launches on tensors of 128 KiB."""
        code = (
            "import sys; from tdist.platforms.sim.process.pool import RankPool\n"
            "with RankPool(1) as pool: print(float(pool.run(sys.argv[1], n=1 << 15)[0][0]))"
        )
        mount = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'
        if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
            pytest.skip("no right to make a mount namespace")
        words = ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", code, target("launch")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        assert (done.stdout, done.stderr) == (f"{float((1 << 15) - 1) * 2}\n", "")


class TestErrors:
    def test_a_host_exception_names_its_rank_and_line(self, pool):
        with pytest.raises(ValueError, match="rank 1 fails on purpose") as caught:
            pool.run(target("fail"))
        (note,) = caught.value.__notes__
        assert "host function of rank 1" in note
        assert "process_hosts.py" in note
        assert "client.py" not in note

    def test_a_failing_rank_does_not_leave_others_waiting_inside_gloo(self, pool):
        start = time.monotonic()
        with pytest.raises(ValueError, match="rank 1 fails on purpose"):
            pool.run(target("fail"), where="inside")
        assert time.monotonic() - start < 120  # gloo itself would wait for half an hour
        assert pool.run(target("group"))

    def test_a_deadlock_stops_the_ranks_that_wait_and_keeps_the_processes(self, pool):
        pids = pool.pids
        results = pool.run(target("alone"))
        assert isinstance(results[0], WorldStopped)
        assert results[1:] == [None] * (NRANKS - 1)
        assert [found.kind for found in pool.findings()] == ["tdist.deadlock"]
        assert results[0].findings == tuple(pool.findings())
        pool.reset()
        assert pool.run(target("echo"))
        assert pool.pids == pids

    def test_a_kernel_that_cannot_be_compiled_is_an_error_of_the_launching_rank(self, pool):
        with pytest.raises(KernelError, match=r"process_hosts\.py"):
            pool.run(target("bad_kernel"))

    def test_a_target_that_does_not_exist(self, pool):
        with pytest.raises(UsageError, match="has no function nothing"):
            pool.run(target("nothing"))

    def test_no_progress_is_reported_with_what_each_rank_does(self, pool, monkeypatch):
        monkeypatch.setenv("TDIST_WATCHDOG_SECONDS", "1.5")
        with pytest.raises(WorldStopped, match=r"no process made progress for 1\.5 s") as caught:
            pool.run(target("recv_that_never_comes"))
        text = str(caught.value)
        assert "rank 0: blocked in host code that is not reported (send, recv" in text
        assert "rank 1: waiting in barrier" in text

    def test_a_rank_that_computes_is_not_stuck_and_says_where_it_is(self, pool, monkeypatch, capfd):
        monkeypatch.setenv("TDIST_WATCHDOG_SECONDS", "1")
        assert pool.run(target("compute"), seconds=4) == [True] * NRANKS
        lines = capfd.readouterr().err.splitlines()
        assert lines  # how many depends on how much of a core the rank gets
        for line in lines:
            assert re.match(r"\[rank 0\] tdist: rank 0: its host function computes at .*process_hosts\.py:\d+ ", line)
            assert re.search(r"\(compute\), in host code for \d+ s", line)

    def test_a_closed_pool_and_a_wrong_config_refuse(self, pool):
        with pytest.raises(UsageError, match="cannot hold a world of 5"):
            pool.reset(WorldConfig(nranks=5))
        closed = RankPool(1)
        closed.close()
        with pytest.raises(UsageError, match="closed"):
            closed.run(target("echo"))


class TestStarts:
    @pytest.mark.parametrize("after_seconds", [0.05, 0.6, 1.5])
    def test_a_launcher_that_is_killed_while_the_fork_server_imports_leaves_nothing(self, after_seconds):
        code = (
            "from tdist.platforms.sim.process.boot import Boot; import time; "
            "boot = Boot(); print(boot.process.pid, flush=True); time.sleep(60)"
        )
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
            assert launcher.stdout is not None
            server = int(launcher.stdout.readline())
            time.sleep(after_seconds)
            assert alive(server)
            launcher.kill()
        assert survivors([server], seconds=3.0) == []


class TestForks:
    def test_a_child_of_user_code_is_no_second_rank(self, pool):
        assert pool.run(target("fork_and_return")) == list(range(NRANKS))
        assert [r["rank"] for r in pool.run(target("echo"))] == list(range(NRANKS))


class TestDeaths:
    @pytest.mark.parametrize(
        ("how", "text"), [("KILL", "killed by SIGKILL"), ("SEGV", "killed by SIGSEGV"), ("exit", "code 7")]
    )
    def test_a_rank_dies(self, pool, how, text):
        before = pool.pids
        with pytest.raises(WorldStopped) as caught:
            pool.run(target("die"), how=how)
        message = str(caught.value)
        assert message.startswith(f"rank 1 (pid {before['rank 1']})")
        assert text in message
        assert "barrier at " in message and "process_hosts.py:" in message
        assert "last words of the rank" in message
        assert survivors(set(before.values()) - {before["forkserver"]}) == []
        assert pool.run(target("group"))
        assert not set(pool.pids.values()) & set(before.values()) - {before["forkserver"]}

    @pytest.mark.parametrize("victim", ["engine", "rank 2"])
    def test_a_process_is_killed_from_outside(self, pool, victim):
        pool.run(target("echo"))
        before = pool.pids
        message = self.kill_while_running(pool, victim)
        assert message.startswith(f"{victim} (pid {before[victim]}) was killed by SIGKILL while it ran {HOSTS}::wait")
        assert survivors(set(before.values()) - {before["forkserver"]}) == []
        assert pool.run(target("group"))
        assert pool.pids["forkserver"] == before["forkserver"]

    def test_the_fork_server_is_killed(self):
        before = belongings()
        with RankPool(NRANKS) as pool:
            first = pool.pids
            message = self.kill_while_running(pool, "forkserver")
            assert message.startswith(f"the fork server (pid {first['forkserver']}) was killed by SIGKILL")
            assert survivors(first.values()) == []
            assert pool.run(target("group"))
            second = pool.pids
        assert survivors(second.values()) == []
        assert belongings() <= before

    def kill_while_running(self, pool, victim: str) -> str:
        killer = threading.Timer(1.0, os.kill, (pool.pids[victim], signal.SIGKILL))
        killer.start()
        with pytest.raises(WorldStopped) as caught:
            pool.run(target("wait"))
        killer.join()
        return str(caught.value)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
    def test_the_launcher_is_killed(self, number):
        before = belongings()
        command = [sys.executable, str(HERE / "pool_launcher.py"), target("wait")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
            pids = json.loads(launcher.stdout.readline())
            assert launcher.stdout.readline() == "[rank 0] waiting\n"
            launcher.send_signal(number)
            launcher.wait(90)  # a watchdog for the test: seconds on a quiet machine
            launcher.stdout.close()
            launcher.stderr.close()
        assert len(pids) == 4
        assert survivors(pids.values()) == []
        assert belongings() <= before

    def test_closing_ends_everything(self):
        pool = RankPool(2)
        pool.start()
        pids = pool.pids
        pool.close()
        pool.close()
        assert survivors(pids.values(), 0.0) == []
