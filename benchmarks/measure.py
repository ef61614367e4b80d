"""Interleaved measurement: every figure is a ratio of medians taken in one run, on one torch thread.

In-process figures are CPU time (all threads of the process), which a busy machine disturbs less than wall time; nothing
that is measured waits for anything but itself.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping

ROUNDS = 9


def one_thread() -> None:
    """One torch thread here and in child processes; OpenBLAS too."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


def cpu_seconds(subject: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    subject()
    return time.process_time() - start


def interleaved(subjects: Mapping[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Run every subject once a round, after one warm-up each. Returns CPU seconds by subject."""
    for subject in subjects.values():
        subject()
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            seconds[name].append(cpu_seconds(subject))
    return seconds


def median_ms(seconds: list[float]) -> float:
    """Median in milliseconds."""
    return statistics.median(seconds) * 1e3


def machine_line() -> str:
    """What a reader needs to judge a figure: cores, load, torch and its threads."""
    import torch

    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, load {load:.2f}, torch {torch.__version__}, {torch.get_num_threads()} thread"


def print_ratio(name: str, ratio: float, goal: str, detail: str = "") -> None:
    """One line a figure."""
    print(f"{name:<58} {ratio:8.3f}   goal {goal:<10} {detail}")
