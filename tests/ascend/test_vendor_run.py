"""Programs under a supervisor: how they end is told, limits hold, and nothing of them stays."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from vendor_oracle import bishengir, needs_compiler

from tdist.errors import EnvironmentUnfit
from tdist.platforms.ascend.vendor.run import Limits, ToolRun, run_tool

WATCHDOG_SECONDS = 60.0


@pytest.fixture
def sh(tmp_path):
    """Runs a shell script as a program would run."""

    def run(script: str, **options) -> ToolRun:
        return run_tool(["/bin/sh", "-c", script], cwd=tmp_path, **options)

    return run


@pytest.fixture
def cores_allowed():
    """This process may dump core; most start out so that it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _until(condition, what: str) -> None:
    deadline = time.monotonic() + WATCHDOG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {WATCHDOG_SECONDS:.0f} s: {what}"
        time.sleep(0.01)


def _gone(pid_file: Path) -> None:
    pid = int(pid_file.read_text())
    _until(lambda: not _alive(pid), f"the end of {pid_file.name}")


def test_a_program_that_ends_by_itself(sh, tmp_path):
    run = sh("pwd; echo no >&2; exit 3")
    assert (run.returncode, run.signal, run.timed_out, run.out_of_memory) == (3, None, False, False)
    assert (run.stdout, run.stderr, run.ending) == (f"{tmp_path}\n", "no\n", "exit 3")
    assert not run.ok and not run.crashed and 0 < run.seconds < WATCHDOG_SECONDS
    assert sh("true").ok


def test_input_is_given_or_empty(sh):
    assert sh("cat").stdout == ""
    assert sh("cat", stdin="text").stdout == "text"
    assert sh("cat | wc -c", stdin=b"x" * 3_000_000).stdout.strip() == "3000000"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGTERM])
def test_a_crash_is_a_result_without_a_core(sh, tmp_path, number, cores_allowed):
    run = sh(f"ulimit -c; kill -{number.value} $$")
    assert (run.signal, run.returncode, run.crashed) == (number, 128 + number, True)
    assert run.ending == f"{number.name} (exit {128 + number})"
    assert run.stdout == "0\n" and not list(tmp_path.iterdir())


def test_a_crash_that_the_program_reports_itself_is_one_too(sh):
    run = sh("echo 'Stack dump:' >&2; exit 139")
    assert (run.signal, run.crashed) == (signal.SIGSEGV, True)
    assert sh("exit 139").signal is None


def test_time_is_limited_also_for_what_a_program_started_and_let_go(sh, tmp_path):
    script = "setsid sh -c 'echo $$ > escaped; exec sleep 600' & sleep 600 & echo $! > child; echo begun; wait"
    run = sh(script, limits=Limits(seconds=1.5))
    assert run.timed_out and not run.ok and not run.crashed and run.seconds < WATCHDOG_SECONDS
    assert run.stdout == "begun\n" and run.ending.startswith("given up after")
    _gone(tmp_path / "escaped")
    _gone(tmp_path / "child")


def test_a_program_that_ignores_signals_ends_as_well(sh):
    run = sh("trap '' TERM INT HUP; while true; do sleep 1; done", limits=Limits(seconds=0.5))
    assert run.timed_out and run.seconds < WATCHDOG_SECONDS


def test_what_outlives_its_program_is_killed(sh, tmp_path):
    """A child that keeps the pipes open would otherwise hold up the reader."""
    run = sh("setsid sh -c 'echo $$ > left; exec sleep 600' & while [ ! -s left ]; do sleep 0.01; done; exit 4")
    assert run.returncode == 4 and run.seconds < WATCHDOG_SECONDS
    _gone(tmp_path / "left")


def test_memory_is_limited(tmp_path):
    script = (
        "import os, sys\n"
        "try: bytearray(1 << 30)\n"
        "except MemoryError: print('LLVM ERROR: out of memory', file=sys.stderr, flush=True); os.abort()"
    )
    argv = [sys.executable, "-c", script]
    run = run_tool(argv, cwd=tmp_path, limits=Limits(memory_bytes=256 << 20))
    assert run.out_of_memory and run.signal == signal.SIGABRT and not run.crashed and not run.killed
    assert run_tool(argv, cwd=tmp_path, limits=Limits(memory_bytes=4 << 30)).ok


def test_a_program_that_somebody_kills_was_out_of_memory(sh):
    run = sh("kill -9 $$")
    assert run.killed and run.out_of_memory and not run.timed_out and run.signal == signal.SIGKILL


def test_a_supervisor_that_somebody_kills_leaves_nothing_and_is_not_waited_for(sh, tmp_path):
    """As the kernel's out-of-memory killer may do."""
    run = sh("echo started; sleep 600 & echo $! > child; kill -9 $PPID; wait", limits=Limits(seconds=WATCHDOG_SECONDS))
    assert run.out_of_memory and run.signal == signal.SIGKILL
    assert run.seconds < WATCHDOG_SECONDS / 2
    _gone(tmp_path / "child")


def test_files_are_limited(sh, tmp_path):
    run = sh("exec dd if=/dev/zero of=big bs=65536 count=64", limits=Limits(file_bytes=1 << 20))
    assert run.signal == signal.SIGXFSZ and (tmp_path / "big").stat().st_size == 1 << 20


def test_output_is_bounded_and_keeps_both_ends(sh):
    script = "echo first; yes 0123456789 | head -c 8000000; echo last; echo first >&2; seq 1000000 >&2"
    run = sh(script, limits=Limits(output_bytes=10_000))
    for text, last in ((run.stdout, "last\n"), (run.stderr, "1000000\n")):
        assert text.startswith("first\n") and text.endswith(last) and len(text) < 10_100
        assert "bytes left out …]" in text
    assert run.ok and sh("printf abc", limits=Limits(output_bytes=4)).stdout == "abc"


def test_bytes_that_are_no_text_do_no_harm(sh):
    assert sh("printf 'a\\377b'").stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_the_environment_holds_nothing_that_changes_results(sh, monkeypatch):
    for name in ("LLVM_OVERRIDE_PRODUCER", "MLIR_ENABLE_DUMP", "TRITON_DUMP", "LD_PRELOAD", "BISHENG_INSTALL_PATH"):
        monkeypatch.setenv(name, "")
    seen = {line.partition("=")[0] for line in sh("env").stdout.splitlines()} - {"PWD", "SHLVL", "_", "OLDPWD"}
    allowed = {"PATH", "LD_LIBRARY_PATH", "HOME", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"}
    assert seen - allowed == {"LC_ALL", "TMPDIR", "LLVM_DISABLE_SYMBOLIZATION"}


def test_a_program_gets_no_descriptors_and_ordinary_signals(sh):
    with open("/dev/null") as kept:
        os.set_inheritable(kept.fileno(), True)
        seen = sh("ls /proc/self/fd; grep -E 'Sig(Ign|Blk)' /proc/self/status").stdout.split()
    assert [word for word in seen if word.isdigit() and len(word) < 16] == [
        "0",
        "1",
        "2",
        "3",
    ]  # 3: ls reads the folder
    assert [word for word in seen if len(word) == 16] == ["0" * 16] * 2


def test_a_program_that_cannot_run_is_the_machines_fault(tmp_path):
    with pytest.raises(EnvironmentUnfit, match=r"cannot run .*/absent: No such file"):
        run_tool([tmp_path / "absent"], cwd=tmp_path)
    (tmp_path / "closed").write_text("#!/bin/sh\n")
    with pytest.raises(EnvironmentUnfit, match="Permission denied"):
        run_tool([tmp_path / "closed"], cwd=tmp_path)
    (tmp_path / "foreign").write_text("#!/nowhere/sh\n")
    (tmp_path / "foreign").chmod(0o755)
    with pytest.raises(EnvironmentUnfit, match="the loader or interpreter that it names is not on this system"):
        run_tool([tmp_path / "foreign"], cwd=tmp_path)
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF" + bytes(60))
    broken.chmod(0o755)
    with pytest.raises(EnvironmentUnfit, match="Exec format error"):
        run_tool([broken], cwd=tmp_path)
    with pytest.raises(EnvironmentUnfit, match="cannot start a process"):
        run_tool(["/bin/true"], cwd=tmp_path / "nowhere")


def test_threads_run_programs_at_once(tmp_path):
    ended: dict[int, ToolRun] = {}

    def one(number: int) -> None:
        ended[number] = run_tool(["/bin/sh", "-c", f"cat; exit {number}"], cwd=tmp_path, stdin=str(number))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG_SECONDS)
    assert {number: (run.returncode, run.stdout) for number, run in ended.items()} == {
        number: (number, str(number)) for number in range(6)
    }


def test_an_interrupt_ends_the_program_and_not_us(sh, tmp_path):
    class Interrupted(Exception):
        pass

    def interrupt(number, frame):
        if (tmp_path / "left").exists() and (tmp_path / "left").read_text().strip():
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(Interrupted):
            sh("setsid sh -c 'echo $$ > left; exec sleep 600' & sleep 600")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not _alive(int((tmp_path / "left").read_text())), "it is over when we know of the interrupt"


_USER = """
import sys
from pathlib import Path
from tdist.platforms.ascend.lowering.steps import Steps
with Steps() as steps:
    Path("directory").write_text(str(steps.directory))
    script = f"setsid sh -c 'echo $$ > {sys.argv[1]}/left; exec sleep 600' & echo $$ > {sys.argv[1]}/tool; sleep 600"
    steps.run("long", ["/bin/sh", "-c", script])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_stays_when_we_are_ended_during_a_step(tmp_path, number):
    own = tmp_path / "tmp"  # where no other process sweeps
    own.mkdir()
    user = subprocess.Popen(
        [sys.executable, "-c", _USER, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(own)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        files = [tmp_path / name for name in ("left", "tool", "directory")]
        _until(lambda: all(path.is_file() and path.read_text().strip() for path in files), "the step")
        directory = Path(files[2].read_text())
        assert directory.is_dir()
        if number == signal.SIGINT:  # as a terminal sends it: to all of the group
            os.killpg(user.pid, number)
        else:
            os.kill(user.pid, number)
        user.wait(WATCHDOG_SECONDS)
    finally:
        user.kill()
        user.communicate()
    assert user.returncode == -number
    _gone(files[0])
    _gone(files[1])
    _until(lambda: not directory.exists(), "the removal of the directory")


@needs_compiler
def test_the_vendors_compiler_runs_under_the_limits(tmp_path):
    run = run_tool(
        [str(bishengir("bishengir-compile")), "--version"], cwd=tmp_path, limits=Limits(memory_bytes=64 << 20)
    )
    assert run.ok and "bishengir" in run.stdout
