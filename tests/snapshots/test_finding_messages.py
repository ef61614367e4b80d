"""What the user reads: the whole text of findings, from real detector runs and for every kind of the table.

Each expected text is a file in `finding_messages/`. To accept a change on purpose, run with `TDIST_ACCEPT_SNAPSHOTS=1`
and review the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tdist.findings import KINDS, Finding, FindingLog, Party, make, to_text
from tdist.platforms.sim.clocks import AgentClocks, SlotSpace
from tdist.platforms.sim.detector import Detector
from tdist.platforms.sim.race_report import Who

FOLDER = Path(__file__).parent / "finding_messages"
REPLAY = "tdist-verify ag_gemm --dtype fp16 --nranks 2 --schedule random --seed 7"


def check(name: str, text: str) -> None:
    """Compare with the stored text; a missing one is a failure too."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("TDIST_ACCEPT_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert path.exists(), f"no stored text {path.name}; the message is:\n{text}"
    assert text + "\n" == path.read_text(encoding="utf-8")


def site(op: str, line: int, arg: str | None = "symm", **more: Any) -> SimpleNamespace:
    return SimpleNamespace(file="kernels/push.py", line=line, op=op, arg=arg, elem_bytes=2, **more)


class Bench:
    """Two agents on two ranks, a host, one symmetric buffer on rank 1."""

    def __init__(self) -> None:
        self.log = FindingLog()
        self.detector = Detector(self.log.add)
        self.space = SlotSpace()
        self.buffer = SimpleNamespace(rank=1, lo=65536, hi=65536 + 8192, name="symm", symmetric=True)
        self.producer = self.agent(Who(0, 1, 2))
        self.consumer = self.agent(Who(1, 1, 0))
        self.host = self.agent(Who(1, role="stream"))

    def agent(self, who: Who) -> Any:
        agent = SimpleNamespace(clocks=AgentClocks(self.space, self.space.slot(who)), who=who)
        self.detector.bind(agent)
        return agent

    def word(self, off: int, width: int) -> Any:
        return SimpleNamespace(al=self.buffer, off=off, width=width, access=None)

    def store(self) -> None:
        self.producer.wr(self.buffer, 256, 4, 128, 64, site("store", 31))

    def load(self, token: Any = None, **more: Any) -> None:
        self.consumer.rd(self.buffer, 256, 4, 128, 64, token, site("load", 52, **more))

    def message(self, drains: bool = True) -> Any:
        """Notify and wait; the token."""
        word = self.producer.clocks.release(drains, site("notify", 33, "signal"))
        return self.consumer.clocks.acquire(word)

    def only(self) -> Finding:
        (finding,) = self.log
        return finding


def nothing_released(b: Bench) -> None:
    b.store()
    b.load()


def notify_before_store(b: Bench) -> None:
    token = b.message()
    b.store()
    b.load(token)


def token_not_consumed(b: Bench) -> None:
    b.store()
    b.message()
    b.load()


def not_waited(b: Bench) -> None:
    b.store()
    b.producer.clocks.release(True, site("notify", 33, "signal"))
    b.load()


def overwritten_while_read(b: Bench) -> None:
    b.load()
    b.consumer.clocks.release(True)
    b.store()


def reader_tells_nobody(b: Bench) -> None:
    b.load()
    b.store()


def fence_missing(b: Bench) -> None:
    b.store()
    b.load(b.message(drains=False))


def scalar_load_after_wait(b: Bench) -> None:
    b.store()
    token = b.message()
    b.consumer.rd_cached(b.buffer, 258, 1, 0, 2, token, site("scalar load", 53))


def gather_after_wait(b: Bench) -> None:
    b.store()
    token = b.message()
    b.consumer.rd_lanes(b.buffer, np.array([256, 300, 384, 800]), 2, token, site("gather", 54))


def own_store_through_another_pointer(b: Bench) -> None:
    b.consumer.wr(b.buffer, 256, 4, 128, 64, site("store", 60, hidden="remote"))
    b.load()


def host_fill_late(b: Bench) -> None:
    b.store()
    b.detector.host_write(b.host, b.buffer, 0, 1, 0, 8192, site("zero_", 12, None))


def plain_store_to_a_signal(b: Bench) -> None:
    b.producer.access_word(b.word(0, 4), True, None, site("notify", 33, "signal"))
    b.consumer.wr(b.buffer, 0, 1, 0, 2, site("store", 61, "signal"))


def signals_of_two_widths(b: Bench) -> None:
    b.producer.access_word(b.word(0, 8), True, None, site("notify", 33, "signal"))
    b.consumer.access_word(b.word(4, 4), True, None, site("notify", 62, "signal"))


SITUATIONS: list[Callable[[Bench], None]] = [
    nothing_released,
    notify_before_store,
    token_not_consumed,
    not_waited,
    overwritten_while_read,
    reader_tells_nobody,
    fence_missing,
    scalar_load_after_wait,
    gather_after_wait,
    own_store_through_another_pointer,
    host_fill_late,
    plain_store_to_a_signal,
    signals_of_two_widths,
]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda f: f.__name__)
def test_race_message(situation: Callable[[Bench], None]) -> None:
    bench = Bench()
    situation(bench)
    check(situation.__name__, to_text(bench.only(), replay=REPLAY))


SAMPLE = {
    "agents": 8,
    "barrier": "barrier_all",
    "beside": 3,
    "core": "vector core",
    "cores": 20,
    "error": "ValueError: shapes differ",
    "first": "store",
    "flag": "PIPE_V → PIPE_MTE3, event 0",
    "found": 1,
    "have_bytes": 64,
    "hi": 3,
    "lo": 0,
    "message": "idx < n",
    "missing": 1,
    "needed": 32,
    "needed_bytes": 256,
    "offset": 0,
    "op": "notify",
    "other": "cube core",
    "participants": 4,
    "problem": "division by zero",
    "programs": 32,
    "rank": 1,
    "reason": "rank 1 program 0 returned at kernels/push.py:40",
    "remedy": "use the result",
    "rounds": 1000,
    "second": "load",
    "size": 512,
    "slots": 4,
    "tensor": "signal",
    "waiting": 8,
    "where": "on both vector cores",
    "what": "the size of allocation 3",
    "width_bits": 64,
    "word_bits": 32,
    "written": 2,
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_a_readable_text(kind: str) -> None:
    party = Party(0, 1, 2, 0, "kernels/push.py", 40, "notify", "signal", "element 3 on rank 1")
    data = {name: SAMPLE[name] for name in KINDS[kind].fields}
    check(kind, to_text(make(kind, [party], expected="1", got="2", **data), replay=REPLAY))


def test_no_stored_text_is_left_over() -> None:
    names = {situation.__name__ for situation in SITUATIONS} | set(KINDS)
    assert {path.stem for path in FOLDER.glob("*.txt")} == names
