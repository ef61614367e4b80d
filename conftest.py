"""Shared by all tests: one torch thread, pytester for plugin tests, a cache and a temporary directory of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from interpreters import Interpreters

pytest_plugins = ["pytester"]

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept by content goes to a directory of this run and its workers, unless TDIST_CACHE_DIR names one."""
    if "TDIST_CACHE_DIR" in os.environ:
        yield
        return
    own = tmp_path_factory.getbasetemp()
    whole = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    cache = whole / "tdist-cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    os.environ["TDIST_CACHE_DIR"] = str(cache)
    yield
    del os.environ["TDIST_CACHE_DIR"]


@pytest.fixture(scope="session", autouse=True)
def _warm_fork_server() -> Iterator[None]:
    """Pools of one process of the suite leave their fork server to the next; tests of pools themselves do not."""
    from tdist.platforms.sim.process import warm

    with warm.keeping():
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_directory() -> Iterator[None]:
    """Tests that look for what a run leaves behind do not see what another process of the suite has there."""
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="tests-") as directory:
        os.environ["TMPDIR"] = tempfile.tempdir = directory
        yield
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before


@pytest.fixture(scope="session")
def python() -> Iterator[Interpreters]:
    """Runs commands of `sys.executable` in processes of their own that import tdist, but not torch (`interpreters`)."""
    from interpreters import interpreters

    with interpreters() as opened:
        yield opened
