"""Steps of a compilation: texts kept whole, seconds counted, nothing left behind."""

from __future__ import annotations

import os
import time

import pytest

from tdist.errors import EnvironmentUnfit, UsageError
from tdist.platforms.ascend.lowering import steps as module
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.vendor.run import Limits


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


def test_a_step_runs_in_a_private_directory_that_goes(tmp_path):
    with Steps() as steps:
        assert steps.directory.stat().st_mode & 0o777 == 0o700
        source = steps.write("in.txt", "text")
        run = steps.run("copy", ["/bin/sh", "-c", f"cat {source}; pwd > where"])
        assert run.stdout == "text" and (steps.folder("copy") / "where").read_text() == f"{steps.directory}/copy\n"
    assert not list((tmp_path / "tmp").iterdir())


def test_the_directory_goes_after_an_error_too(tmp_path):
    with pytest.raises(ZeroDivisionError), Steps() as steps:
        steps.write("in.txt", "text")
        raise ZeroDivisionError
    assert not list((tmp_path / "tmp").iterdir())


def test_seconds_add_up_by_stage():
    with Steps() as steps:
        runs = [steps.run("one", ["/bin/true"]), steps.run("one", ["/bin/true"]), steps.run("two", ["/bin/true"])]
        with steps.timed("three"):
            time.sleep(0.02)
    assert list(steps.seconds) == ["one", "two", "three"]
    assert steps.seconds["one"] >= runs[0].seconds + runs[1].seconds > runs[0].seconds > 0
    assert 0.02 <= steps.seconds["three"] < 60


def test_texts_are_kept_in_order_under_numbers(tmp_path):
    with Steps(tmp_path / "a" / "ir") as steps:
        assert steps.keep("ttir", "first") == "first"
        steps.keep("linalg", "second")
        steps.keep("ttir", "again")
    assert steps.texts == {"ttir": "again", "linalg": "second"}
    kept = {path.name: path.read_text() for path in (tmp_path / "a" / "ir").iterdir()}
    assert kept == {"00-ttir.mlir": "again", "01-linalg.mlir": "second"}


def test_a_kept_text_is_whole_or_as_before(tmp_path, monkeypatch):
    with Steps(tmp_path) as steps:
        steps.keep("ttir", "before")

        def no_space(source, target):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module.os, "replace", no_space)
        with pytest.raises(UsageError, match=r"cannot write .*/00-ttir.mlir: No space left"):
            steps.keep("ttir", "after")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["00-ttir.mlir"]
    assert (tmp_path / "00-ttir.mlir").read_text() == "before"


def test_a_directory_that_cannot_be_made_is_the_users_mistake(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot make the directory"), Steps(tmp_path / "file" / "ir"):
        pass


def test_what_a_killed_process_left_is_swept(tmp_path, monkeypatch):
    old = time.time() - 3600
    left, fresh, foreign = (tmp_path / "tmp" / name for name in ("tdist-ascend-a", "tdist-ascend-b", "other-c"))
    for path in (left, fresh, foreign):
        path.mkdir()
        (path / "in.mlir").touch()
    for path in (left, foreign):
        os.utime(path, (old, old))
    with Steps() as running:
        assert not left.exists() and fresh.exists() and foreign.exists()
        os.utime(running.directory, (old, old))
        with Steps():
            assert running.directory.exists(), "somebody still works there"


def test_limits_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("TDIST_VENDOR_SECONDS", "2.5")
    monkeypatch.setenv("TDIST_VENDOR_MEMORY_MIB", "100")
    assert Steps().limits == Limits(seconds=2.5, memory_bytes=100 << 20)
    monkeypatch.setenv("TDIST_VENDOR_MEMORY_MIB", "0")
    with pytest.raises(UsageError, match="TDIST_VENDOR_MEMORY_MIB must be a whole number of MiB above 0, got '0'"):
        Steps()


def test_a_full_disk_is_the_machines_fault_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.Path, "write_text", full)
    with pytest.raises(EnvironmentUnfit, match=r"No space left on device.*set TMPDIR"), Steps() as steps:
        steps.write("in.txt", "text")
    monkeypatch.setattr(module, "_hold", full)
    with pytest.raises(EnvironmentUnfit, match=r"No space left on device.*set TMPDIR"), Steps():
        raise AssertionError("entered")
    assert not list((tmp_path / "tmp").iterdir())
