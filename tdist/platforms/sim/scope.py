"""What is in force while any simulated world is open: the Triton driver, the import names, one torch thread.

Counted, because worlds overlap (nested, or in several threads) and these things are process-wide.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

_lock = threading.RLock()
_users = 0
_entered = contextlib.ExitStack()


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """One intra-op thread: two on a busy two-core machine cost up to ten times."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def simulation_scope() -> Iterator[None]:
    """Enter the scope, or join it if another world has entered it."""
    _join()
    try:
        yield
    finally:
        _leave()


def _join() -> None:
    global _users
    with _lock:
        if _users == 0:
            _enter()
        _users += 1


def _leave() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _entered.close()


def _enter() -> None:
    from tdist.importer import user_names
    from tdist.platforms.sim.driver import sim_driver

    with contextlib.ExitStack() as stack:
        stack.enter_context(one_torch_thread())
        stack.enter_context(user_names())
        stack.enter_context(sim_driver())
        _entered.push(stack.pop_all())
