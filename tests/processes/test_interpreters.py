"""Processes of the kit are what the interpreter would have started, but for the seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from interpreters import Interpreters, interpreters

SCRIPT = """
import json, os, signal, sys
sys.path.append("of my own")
import neighbour
print(json.dumps({
    "argv": sys.argv, "name": __name__, "path": sys.path, "directory": os.getcwd(), "word": os.environ.get("WORD"),
    "home": os.environ.get("HOME"), "input": sys.stdin.read(), "neighbour": neighbour.NAME,
    "handler": str(signal.getsignal(2)), "main": sys.modules["__main__"].__dict__ is globals(),
    "file": globals().get("__file__"),
    "ours": [name for name in sys.modules if name.partition(".")[0] == "tdist"],
}))
print("é", file=sys.stderr)
print(sys.stdin.encoding, sys.stdout.encoding, sys.stderr.encoding, sys.stderr.errors)
"""
CUSTOM = "import os; 'CUSTOM' in os.environ and print('customized', flush=True)"
COMMANDS = {
    "script": ["script.py", "a", "-b"],
    "module": ["-m", "script", "a"],
    "code": ["-c", SCRIPT, "a"],
    "status": ["-c", "raise SystemExit(7)"],
    "message": ["-c", "raise SystemExit('why')"],
    "exception": ["-c", "1 / 0"],
    "signal": ["-c", "import os; os.kill(os.getpid(), 9)"],
    "at exit": ["-c", "import atexit; atexit.register(print, 'last')"],
    "thread": ["-c", "import threading; threading.Timer(0.2, lambda: print('late')).start()"],
    "no module": ["-m", "nowhere"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("NAME = 'neighbour'")
    (tmp_path / "sitecustomize.py").write_text(CUSTOM)
    return tmp_path


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("custom", [False, True], ids=["plain", "customized"])
def test_it_is_what_the_interpreter_starts(
    folder: Path, python: Interpreters, arguments: list[str], custom: bool
) -> None:
    environment = {"PATH": os.environ["PATH"], "WORD": "x"}
    environment |= {"PYTHONPATH": str(folder), "CUSTOM": "1", "PYTHONIOENCODING": "ascii"} if custom else {}
    command = [sys.executable, *arguments]
    ours = python.run(command, cwd=folder, env=environment, timeout=60)
    theirs = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert (ours.returncode, ours.stdout) == (theirs.returncode, theirs.stdout)
    assert ours.stderr.splitlines()[-1:] == theirs.stderr.splitlines()[-1:]
    assert custom == ("customized" in ours.stdout)


def test_one_does_not_see_what_another_did(folder: Path, python: Interpreters) -> None:
    dirty = "import os, sys, torch; os.environ['WORD'] = 'left'; torch.word = 1; os.chdir('/'); sys.path.append('left')"
    clean = (
        "import os, sys, torch; print(os.environ.get('WORD'), hasattr(torch, 'word'), os.getcwd(), 'left' in sys.path)"
    )
    assert python.run([sys.executable, "-c", dirty], cwd=folder, timeout=60).returncode == 0
    assert python.run([sys.executable, "-c", clean], cwd=folder, timeout=60).stdout == f"None False {folder} False\n"


def test_one_that_takes_too_long_is_ended(python: Interpreters) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        python.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.5)


def test_the_fork_server_of_a_command_is_a_fork_and_ends_with_it(folder: Path, python: Interpreters) -> None:
    code = (
        "from tdist.platforms.sim.process.boot import Boot\n"
        "with Boot() as boot:\n"
        "    print(boot.process.pid, boot.process.poll(), boot.near.recv(4))\n"
        "print(boot.process.returncode)\n"
    )
    done = python.run([sys.executable, "-c", code], cwd=folder, timeout=120)
    first, code_of_end = done.stdout.splitlines()
    pid, state, magic = first.split()
    assert (state, magic) == ("None", "b'TDS1'") and code_of_end in ("0", "-9"), done.stderr
    assert not Path(f"/proc/{pid}").exists()


def test_all_end_with_the_server() -> None:
    with interpreters() as own, Path(os.devnull).open("w") as null:
        code = "import time; time.sleep(60)"
        process = own.start([sys.executable, "-c", code], stdout=null.fileno(), stderr=null.fileno())
        assert own._server is not None
        os.kill(own._server.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="gone"):
            process.wait()
        process.close()
        deadline = time.monotonic() + 10
        while Path(f"/proc/{process.pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{process.pid}").exists()
