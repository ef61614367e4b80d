"""Faults of omission: an operation is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from xdsl.ir import Operation

from tdist.ir import tt
from tdist.mutations import calls
from tdist.mutations.base import Kind, Place, ops_of
from tdist.mutations.order import innermost_loops
from tdist.mutations.rewriting import bypass, drop


def _missing(ops: Iterable[Operation], remove: Callable[[Operation], None] = drop) -> Iterator[Place]:
    for op in ops:
        yield Place(op, f"the {calls.title(op)} is missing", lambda op=op: remove(op))


def _waits(function: tt.FuncOp) -> Iterator[Place]:
    return _missing(ops_of(function, "distributed.wait"))


def _notifies(function: tt.FuncOp) -> Iterator[Place]:
    return _missing(calls.releases(function))


def _barriers(function: tt.FuncOp) -> Iterator[Place]:
    """All but a last one outside loops: without that one the kernel has no exit barrier, which is a kind of its own."""
    found = calls.barriers(function)
    last_is_exit = bool(found) and not innermost_loops(found[-1])
    return _missing(found[:-1] if last_is_exit else found)


def _drains(function: tt.FuncOp) -> Iterator[Place]:
    return _missing(calls.drains(function))


def _tokens(function: tt.FuncOp) -> Iterator[Place]:
    return _missing(ops_of(function, "distributed.consume_token"), bypass)


def _translations(function: tt.FuncOp) -> Iterator[Place]:
    for op in calls.translations(function):
        yield Place(op, "the address is used as it is, on this rank", lambda op=op: bypass(op))


KINDS = (
    Kind("drop-wait", "forgot to wait", _waits),
    Kind("drop-notify", "forgot to signal", _notifies),
    Kind("drop-barrier", "forgot a barrier", _barriers),
    Kind("drop-fence", "forgot to drain: a fence or quiet", _drains),
    Kind("drop-consume-token", "waited, but hung the token on nothing that is loaded", _tokens),
    Kind("drop-symm-at", "forgot to translate an address: stored into the own memory", _translations),
)
