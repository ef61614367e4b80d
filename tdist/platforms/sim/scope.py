"""What is in force while any simulated world is open: the Triton driver, the import names, one torch thread.

Counted, because worlds overlap (nested, or in several threads) and these things are process-wide.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from tdist.scoped import CountedScope


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """One intra-op thread: two on a busy two-core machine cost up to ten times."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def simulation_scope() -> contextlib.AbstractContextManager[None]:
    """Enter the scope, or join it if another world has entered it."""
    return _scope.joined()


def _enter(undo: contextlib.ExitStack) -> None:
    from tdist.importer import user_names
    from tdist.platforms.sim.driver import sim_driver

    undo.enter_context(one_torch_thread())
    undo.enter_context(user_names())
    undo.enter_context(sim_driver())


_scope = CountedScope(_enter)
