"""A command that is told to end leaves no temporary directory, whatever it was doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WATCHDOG_SECONDS = 60.0
WORK = """
import sys, tempfile, time
from tdist.tools.main import told_without_traceback
from tdist.tools.ending import unwinds_when_told_to_end
with unwinds_when_told_to_end(), told_without_traceback("tdist"):
    with tempfile.TemporaryDirectory(prefix="work-"):
        open(sys.argv[1], "w").close()
        time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_made_is_removed(tmp_path: Path, number: signal.Signals) -> None:
    room, ready = tmp_path / "room", tmp_path / "ready"
    room.mkdir()
    argv = [sys.executable, "-c", WORK, str(ready)]
    process = subprocess.Popen(argv, env={**os.environ, "TMPDIR": str(room)}, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + WATCHDOG_SECONDS
    while not ready.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    assert list(room.glob("work-*"))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=WATCHDOG_SECONDS)
    assert (process.returncode, stderr) == (128 + number, "tdist: interrupted\n")
    assert not list(room.iterdir())
