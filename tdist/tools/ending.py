"""What a command does when it is told to end: it unwinds as after Ctrl-C, so that nothing of it is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

_TOLD_TO_END = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def unwinds_when_told_to_end() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the block, and end the process with 128 + signal; for a command's main thread.

    A signal that is ignored (`nohup`) or has a handler stays as it is. Processes forked meanwhile end at once.
    """
    mine, told = os.getpid(), []

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != mine:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        for each in ours:  # `timeout` sends it twice, and the second must not cut the unwinding short
            signal.signal(each, signal.SIG_IGN)
        told.append(number)
        raise KeyboardInterrupt

    ours = [number for number in _TOLD_TO_END if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if told:
            raise SystemExit(128 + told[0]) from None
        raise
