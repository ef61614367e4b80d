"""A fork server that one pool leaves to the next: the same server, nothing of the pool before, and an end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tdist.errors import ProcessLost
from tdist.platforms.sim.process import warm
from tdist.platforms.sim.process.boot import Boot
from tdist.platforms.sim.process.pool import RankPool

pytest.importorskip("triton")

HOSTS = """
import os

def surroundings(rt):
    return [os.getcwd(), os.environ.get("TDIST_TEST_WORD", ""), os.environ["OMP_NUM_THREADS"]]

def wait_for_ever(rt):
    import time
    time.sleep(3600)

def leave(rt):
    os.environ["TDIST_TEST_WORD"] = "left behind"
    os.chdir("/")
"""


@pytest.fixture(autouse=True)
def _shelf_of_its_own(monkeypatch):
    monkeypatch.setattr(warm, "_shelf", warm._Shelf())


@pytest.fixture
def hosts(tmp_path: Path) -> str:
    file = tmp_path / "hosts.py"
    file.write_text(HOSTS)
    return str(file)


def server_of(nranks: int = 2) -> int:
    """The fork server's pid of a pool that has come and gone."""
    with RankPool(nranks) as pool:
        return pool.pids["forkserver"]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_next_pool_takes_the_server_and_the_end_of_the_block_ends_it():
    with warm.keeping():
        first = server_of(2)
        assert alive(first) and server_of(3) == first
    assert not alive(first)


def test_nothing_is_kept_outside_of_a_block_or_where_it_is_not_wanted():
    assert not alive(server_of())
    with warm.keeping(), warm.keeping(False):
        assert not alive(server_of())


def test_ranks_have_the_directory_and_environment_of_their_pool(hosts, monkeypatch, tmp_path):
    with warm.keeping():
        with RankPool(2) as pool:
            pool.run(f"{hosts}::leave")
            assert pool.run(f"{hosts}::surroundings") == [["/", "left behind", "1"]] * 2
            first = pool.pids["forkserver"]
        monkeypatch.chdir(tmp_path)
        with RankPool(2) as pool:
            assert pool.pids["forkserver"] == first
            assert pool.run(f"{hosts}::surroundings") == [[str(tmp_path), "", "1"]] * 2


def test_a_server_with_other_imports_is_not_taken(hosts, monkeypatch):
    with warm.keeping():
        first = server_of()
        monkeypatch.setenv("TDIST_TEST_WORD", "new")
        with RankPool(1) as pool:
            assert pool.pids["forkserver"] != first
            assert pool.run(f"{hosts}::surroundings")[0][1] == "new"
        monkeypatch.delenv("TDIST_TEST_WORD")
        monkeypatch.syspath_prepend("/nowhere")
        assert server_of() != first


def test_a_server_that_died_in_between_is_not_taken():
    with warm.keeping():
        first = server_of()
        os.kill(first, signal.SIGKILL)
        second = server_of()
        assert second != first and not alive(first)


def test_a_pool_that_lost_its_server_keeps_none(hosts):
    with warm.keeping():
        with RankPool(1) as pool:
            os.kill(pool.pids["forkserver"], signal.SIGKILL)
            with pytest.raises(ProcessLost, match="fork server"):
                pool.run(f"{hosts}::wait_for_ever")
        assert warm._shelf.server is None


def test_a_kept_server_that_no_pool_took_goes_back():
    with warm.keeping():
        first = server_of()
        with Boot() as boot:
            assert boot.ready and boot.process.pid == first
        assert server_of() == first


def test_a_killed_launcher_leaves_no_kept_server():
    code = (
        "import os, signal\n"
        "from tdist.platforms.sim.process import warm\n"
        "from tdist.platforms.sim.process.pool import RankPool\n"
        "with warm.keeping():\n"
        "    with RankPool(1) as pool: print(pool.pids['forkserver'], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    pid = int(done.stdout)
    for _ in range(200):
        if not alive(pid):
            break
        signal.sigtimedwait([], 0.05)
    assert not alive(pid)
