"""Faults of omission: an operation is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from xdsl.ir import Operation

from tdist.ir import tt
from tdist.ir.effects import effects
from tdist.ir.pointer import is_scalar_pointer
from tdist.mutations import calls
from tdist.mutations.base import Kind, Place, ops_of
from tdist.mutations.order import innermost_loops
from tdist.mutations.rewriting import bypass, drop
from tdist.passes.base import all_ops


def _missing(ops: Iterable[Operation], remove: Callable[[Operation], None] = drop) -> Iterator[Place]:
    for op in ops:
        yield Place(op, f"the {calls.title(op)} is missing", lambda op=op: remove(op))


def _waits(function: tt.FuncOp) -> Iterator[Place]:
    for op in ops_of(function, "distributed.wait", "scf.while"):
        if op.name != "scf.while":
            yield from _missing([op])
        elif _polls(op):
            yield Place(op, "the polling loop is missing", lambda op=op: drop(op))


def _polls(loop: Operation) -> bool:
    """Whether a loop only looks at memory until it holds something, and nobody uses what it saw."""
    inside = all_ops(loop)[1:]
    reads = any(op.name in _LOOKS for op in inside)
    return reads and not any(r.uses for r in loop.results) and all(op.name in _LOOKS or _is_quiet(op) for op in inside)


def _is_quiet(op: Operation) -> bool:
    return bool(op.regions) or not effects(op).writes


def _atomics(function: tt.FuncOp) -> Iterator[Place]:
    """Atomics on one word whose old value nobody uses: what others poll for, or count."""
    for op in ops_of(function, "tt.atomic_rmw", "tt.atomic_cas"):
        if is_scalar_pointer(op.operands[0].type) and op.results[0].first_use is None:
            yield Place(op, "the atomic is missing", lambda op=op: drop(op))


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


_LOOKS = ("tt.load", "tt.atomic_rmw", "tt.atomic_cas")

KINDS = (
    Kind("drop-wait", "forgot to wait", _waits),
    Kind("drop-notify", "forgot to signal", _notifies),
    Kind("drop-atomic", "forgot an atomic that others poll for or count", _atomics),
    Kind("drop-barrier", "forgot a barrier", _barriers),
    Kind("drop-fence", "forgot to drain: a fence or quiet", _drains),
    Kind("drop-consume-token", "waited, but hung the token on nothing that is loaded", _tokens),
    Kind("drop-symm-at", "forgot to translate an address: stored into the own memory", _translations),
)
