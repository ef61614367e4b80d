"""A host function that does not come back to its device: one line on stderr each watchdog period says where it is.

Nothing is ended here: user code may compute as long as it likes. Whether a run that makes no progress at all ends is
the world's rule.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tdist.platforms.sim.hostmode import user_frame

_POLL_SECONDS = 1.0
_BUSY_SHARE = 0.02  # of a period: a thread that waits wakes up now and then
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class HostWatch:
    """Looks at one thread from another.

    Args:
        rank: whose host code the thread runs.
        thread: the thread's `ident`.
        task: its id for the kernel (a `Thread` of a forked process still has its parent's `native_id`).
        since: when it began (`time.monotonic()`).
        say: takes the line.
    """

    def __init__(self, rank: int, thread: int, task: int, since: float, say: Callable[[str], None]) -> None:
        self._rank = rank
        self._thread = thread
        self._task = task
        self._since = self._said = since
        self._say = say
        self._cpu_seconds = self._cpu()

    def look(self, period_seconds: float) -> None:
        """Say where the thread is, if a period has passed since it began or since that was last said."""
        now = time.monotonic()
        passed = now - self._said
        if passed < period_seconds:
            return
        cpu_seconds = self._cpu()
        busy = cpu_seconds - self._cpu_seconds > _BUSY_SHARE * passed
        self._said, self._cpu_seconds = now, cpu_seconds
        doing = "computes" if busy else "sleeps or waits"
        self._say(
            f"tdist: rank {self._rank}: its host function {doing} {self._where()}, in host code for "
            f"{now - self._since:.0f} s; no device runs before it returns or waits for its own"
        )

    def _where(self) -> str:
        frame = user_frame(sys._current_frames().get(self._thread))
        if frame is None:
            return "outside Python code"
        return f"at {frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"

    def _cpu(self) -> float:
        try:
            stat = Path(f"/proc/self/task/{self._task}/stat").read_text()
        except OSError:
            return 0.0
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


class WatchThread:
    """Watches the thread that makes it, of a rank process. `period_seconds` may change from run to run."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._watch: HostWatch | None = None
        self._thread = threading.get_ident()
        self._task = threading.get_native_id()
        self._started = False
        self.period_seconds = 60.0

    @contextlib.contextmanager
    def host_code(self) -> Iterator[None]:
        """The thread runs user code in this block."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._main, name="tdist host watch", daemon=True).start()
        self._begin()
        try:
            yield
        finally:
            self._watch = None

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Within it, the thread waits for the engine, which has a watchdog of its own."""
        was, self._watch = self._watch, None
        try:
            yield
        finally:
            if was is not None:
                self._begin()

    def _begin(self) -> None:
        self._watch = HostWatch(self._rank, self._thread, self._task, time.monotonic(), _to_stderr)

    def _main(self) -> None:
        while True:
            time.sleep(min(_POLL_SECONDS, self.period_seconds))
            watch = self._watch
            if watch is not None:
                watch.look(self.period_seconds)


def _to_stderr(line: str) -> None:
    """Past Python's stream, whose lock a child that user code forks would inherit."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode(errors="replace"))
