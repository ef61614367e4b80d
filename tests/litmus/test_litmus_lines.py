"""64-byte lines that a signal writes back, where the other write or the other tensor is not the usual one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from litmus_kit import SIG, Buf, covers, finding, observe, settle

import tdist.language as dl

SHARED = finding("line-sharing", "set", "other")


@triton.jit
def set_beside_atomics(sig, order):
    if dl.rank() == 0:
        dl.notify(sig, 1, signal=1, sig_op="set")  # <set>
    else:
        tl.atomic_add(sig + 4 + tl.arange(0, 4), 1)  # <other>


@triton.jit
def set_beside_atomics_next_line(sig, order):
    if dl.rank() == 0:
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        tl.atomic_add(sig + 16 + tl.arange(0, 4), 1)


ORDER = Buf("order", 16)


@covers("SIG-13")
def test_atomics_on_a_tile_are_writers_of_their_line():
    observe(set_beside_atomics, SIG, ORDER, read="order").always(SHARED)


@covers("SIG-13")
def test_atomics_in_the_next_line_are_none_of_its_business():
    observe(set_beside_atomics_next_line, SIG, ORDER, read="order").clean()


@triton.jit
def set_first(sig):
    if dl.rank() == 0:
        dl.notify(sig, 1, signal=1, sig_op="set")  # <set>


@triton.jit
def store_or_set(sig, late):
    if dl.rank() == 0:
        dl.notify(sig, 1, signal=2, sig_op="set")  # <set>
    else:
        tl.store(late, 5)  # <other>


def _word(rt: Any, name: str) -> torch.Tensor:
    made = rt.tensor(rt.malloc(4, name=name), (1,), torch.int32)
    made.zero_()
    settle(rt)
    return made


def _late_neighbour(rt: Any, t: SimpleNamespace) -> int:
    """The line is watched since the first signal; the tensor that shares it is allocated afterwards."""
    sig = _word(rt, "sig1")
    set_first[(1,)](sig)
    settle(rt)
    late = _word(rt, "late")
    store_or_set[(1,)](sig, late)
    settle(rt)
    return 0


@covers("SIG-13", "SIG-15")
def test_a_tensor_allocated_after_the_first_signal_shares_its_line_too():
    observe(None, SIG, host=_late_neighbour).always(SHARED)


@triton.jit
def store_only(late):
    tl.store(late, 5)


@pytest.mark.parametrize("signalled_again", [False, True], ids=["signal-freed", "neighbour-freed"])
@covers("SIG-13")
def test_what_was_freed_is_watched_no_longer(signalled_again: bool):
    def host(rt: Any, t: SimpleNamespace) -> int:
        sig, neighbour = _word(rt, "sig1"), _word(rt, "neighbour")
        set_first[(1,)](sig)
        settle(rt)
        gone = neighbour if signalled_again else sig
        rt.free(rt.device_address(gone))
        if signalled_again:
            set_first[(1,)](sig)
        else:
            store_only[(1,)](neighbour)
        settle(rt)
        return 0

    observe(None, SIG, host=host).clean()
