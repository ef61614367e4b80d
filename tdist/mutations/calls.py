"""What the calls of the device library that a mutation knows do, by their symbols."""

from __future__ import annotations

import re
from collections.abc import Iterator

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

from tdist.ir import tt
from tdist.mutations.base import ops_of

_CALL = "distributed.extern_call"
_BARRIER = re.compile(r"aclshmemx?_(barrier|sync)\w*")
_DRAIN = re.compile(r"aclshmemx?_(fence|quiet)")
_TRANSLATION = re.compile(r"aclshmem_(remote_)?ptr(_\w+)?")
_WORD = re.compile(r"aclshmem_\w+_p")


def _symbol(op: Operation) -> str:
    symbol = op.properties.get("symbol")
    return symbol.data if isinstance(symbol, StringAttr) else ""


def _calls(function: tt.FuncOp, pattern: re.Pattern[str]) -> Iterator[Operation]:
    for op in ops_of(function, _CALL):
        if pattern.fullmatch(_symbol(op)):
            yield op


def barriers(function: tt.FuncOp) -> list[Operation]:
    """Barriers over ranks, in order."""
    return list(_calls(function, _BARRIER))


def drains(function: tt.FuncOp) -> list[Operation]:
    """Fences and quiets, in order."""
    return list(_calls(function, _DRAIN))


def translations(function: tt.FuncOp) -> list[Operation]:
    """What makes another rank's address: operands are the address and the rank."""
    wanted = set(_calls(function, _TRANSLATION))
    return [op for op in ops_of(function, _CALL, "distributed.symm_at") if op in wanted or op.name != _CALL]


def releases(function: tt.FuncOp) -> list[Operation]:
    """What signals another rank: notifies and word puts, whose operands are address, value and rank alike."""
    wanted = set(_calls(function, _WORD))
    return [op for op in ops_of(function, _CALL, "distributed.notify") if op in wanted or op.name != _CALL]


def is_release(op: Operation) -> bool:
    """Whether `op` signals another rank."""
    return op.name == "distributed.notify" or (op.name == _CALL and _WORD.fullmatch(_symbol(op)) is not None)


def title(op: Operation) -> str:
    """What a message calls the operation."""
    return _symbol(op).removeprefix("aclshmemx_").removeprefix("aclshmem_") or op.name.rpartition(".")[2]
