"""Ranks, symmetric pointers, signals, barriers, fences, print and assert. A bare `yield` is a scheduling point."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from xdsl.ir import Operation

from tdist.ir.distributed import SEMANTIC

from .elements import I32, I64, type_info
from .generator import Generator, rule
from .ir_access import prop
from .poly import ZERO, Poly
from .values import AddressTile, BlockPointer, Box, Pointer, PointerTile, Scalar, Value, carrying

PUT = re.compile(r"aclshmem_(?P<type>\w+)_p$")


@rule("distributed.get_rank")
def get_rank(g: Generator, op: Operation) -> None:
    g.set(op, Scalar(Poly.symbol("rank"), I32))


@rule("distributed.get_num_ranks")
def get_num_ranks(g: Generator, op: Operation) -> None:
    g.set(op, Scalar(Poly.symbol("nranks"), I32))


@rule("hivm.hir.get_sub_block_idx")
def get_sub_block_idx(g: Generator, op: Operation) -> None:
    g.set(op, Scalar(Poly.symbol("core"), I64))


@rule("distributed.symm_at")
def symm_at(g: Generator, op: Operation) -> None:
    pointer, rank = g.operands(op)
    if not isinstance(pointer, Pointer) or not isinstance(rank, Scalar):
        raise g.error(op, "symm_at takes a scalar pointer into the symmetric heap, and a rank")
    address, al = g.emit.fresh("remote"), g.emit.fresh("remote_al")
    text = f"ag.symm_at({g.poly_text(pointer.base)}, {pointer.origin.al}, {g.exact_text(rank)}, "
    g.emit.line(f"{address}, {al} = {text}{g.site(op, 'symm_at', pointer.origin)})")
    origin = replace(pointer.origin, al=al, remote=True, hidden=address)
    g.set(op, Pointer(Poly.symbol(address), origin, g.clk_of(pointer, rank)))


@rule("distributed.wait")
def wait(g: Generator, op: Operation) -> None:
    pointer, count, value = g.operands(op)
    if not isinstance(pointer, Pointer):
        raise g.error(op, "wait takes a scalar pointer to its first signal word")
    semantic = SEMANTIC[prop(op, "semantic", 2)]
    width = type_info(op.operands[0].type).element.size_bytes
    token = g.emit.bind(
        f"yield from ag.wait({g.poly_text(pointer.base)}, {pointer.origin.al}, {g.operand(count)}, {g.operand(value)}, "
        f"{width}, {semantic!r}, {g.site(op, 'wait', pointer.origin)})",
        "token",
    )
    carried = frozenset({token}) if g.module.options.detect else frozenset()
    g.set(op, Scalar(ZERO, g.result_type(op).element, g.clk_of(pointer, count, value) | carried))


@rule("distributed.consume_token")
def consume_token(g: Generator, op: Operation) -> None:
    value, token = g.operands(op)
    hidden = g.emit.fresh("consumed")
    if isinstance(value, (Pointer, PointerTile, AddressTile)):
        value = replace(value, origin=replace(value.origin, hidden=hidden))
    elif isinstance(value, BlockPointer):
        base = value.pointer
        value = replace(value, pointer=replace(base, origin=replace(base.origin, hidden=hidden)))
    g.set(op, carrying(value, token.clk))


@rule("distributed.notify")
def notify(g: Generator, op: Operation) -> None:
    pointer, value, rank = g.operands(op)
    if not isinstance(pointer, Pointer):
        raise g.error(op, "notify takes a scalar pointer to a signal word")
    g.emit.line("yield")
    g.emit.line(
        f"ag.notify({g.poly_text(pointer.base)}, {pointer.origin.al}, {g.operand(value)}, {g.operand(rank)}, "
        f"{prop(op, 'sigOp')}, {pointer.element.size_bytes}, {g.site(op, 'notify', pointer.origin)})"
    )


# --- device library


def _barrier(kind: str) -> Callable[[Generator, Operation], None]:
    def emit(g: Generator, op: Operation) -> None:
        g.emit.line(f"yield from ag.barrier({kind!r}, {g.site(op, 'barrier_' + kind)})")

    return emit


def _ordering(kind: str) -> Callable[[Generator, Operation], None]:
    """No scheduling point: it changes nothing but the agent's own clocks, so that its order to others shows nowhere."""

    def emit(g: Generator, op: Operation) -> None:
        g.emit.line(f"ag.{kind}({g.site(op, kind)})")

    return emit


def _constant(name: str) -> Callable[[Generator, Operation], None]:
    def emit(g: Generator, op: Operation) -> None:
        g.set(op, Scalar(Poly.symbol(name), g.result_type(op).element))

    return emit


def _remote_ptr(g: Generator, op: Operation) -> None:
    symm_at(g, op)


EXTERN: dict[str, Callable[[Generator, Operation], None]] = {
    "aclshmem_barrier_all": _barrier("all"),
    "aclshmemx_barrier_all_vec": _barrier("all_vec"),
    "aclshmem_fence": _ordering("fence"),
    "aclshmem_quiet": _ordering("quiet"),
    "aclshmem_my_pe": _constant("rank"),
    "aclshmem_n_pes": _constant("nranks"),
    "aclshmem_remote_ptr": _remote_ptr,
    "aclshmem_ptr": _remote_ptr,
}


@rule("distributed.extern_call")
def extern_call(g: Generator, op: Operation) -> None:
    symbol = prop(op, "symbol")
    handler = EXTERN.get(symbol)
    if handler is not None:
        handler(g, op)
    elif PUT.match(symbol):
        _put_scalar(g, op)
    else:
        raise g.error(op, f"extern_call: the simulator has no model of {symbol!r} of {prop(op, 'libname')!r}")
    for result in op.results:
        if result not in g.env:
            g.set_value(result, Scalar(ZERO, type_info(result.type).element))


def _put_scalar(g: Generator, op: Operation) -> None:
    pointer, value, rank = g.operands(op)
    if not isinstance(pointer, Pointer):
        raise g.error(op, f"{prop(op, 'symbol')} takes a scalar pointer")
    g.emit.line("yield")
    g.emit.line(
        f"ag.put_scalar({g.poly_text(pointer.base)}, {pointer.origin.al}, {g.operand(value)}, {g.operand(rank)}, "
        f"{pointer.element.size_bytes}, {g.site(op, 'put_scalar', pointer.origin)})"
    )


# --- print, assert, what has no meaning here


@rule("tt.print")
def print_(g: Generator, op: Operation) -> None:
    values = "".join(f"{_shown(g, v)}, " for v in g.operands(op))
    g.emit.line(f"ag.print({g.site(op)}, {prop(op, 'prefix')!r}, ({values}))")


def _shown(g: Generator, value: Value) -> str:
    if isinstance(value, Pointer):
        return g.poly_text(value.base)
    if isinstance(value, PointerTile):
        return g.addresses(value).local
    if isinstance(value, BlockPointer):
        return g.poly_text(value.pointer.base)
    return g.operand(value)


@rule("tt.assert")
def assert_(g: Generator, op: Operation) -> None:
    (condition,) = g.operands(op)
    uniform = not isinstance(condition, Box) or not condition.bounds
    is_scalar = uniform and g.is_uniform(condition)
    text = g.condition(condition).text if is_scalar else f"bool({g.tile(condition).local}.all())"
    g.emit.line(f"ag.assert_({text}, {prop(op, 'message', '')!r}, {g.site(op)})")


@rule("gpu.barrier", "llvm.intr.assume", "tt.annotation")
def nothing(g: Generator, op: Operation) -> None:
    """A program is one thread here; an assumption is not needed."""
