"""What a kernel does to memory and to other ranks, as written and as compiled, in one vocabulary.

`written` reads the TTIR that the vendor's tools were given, `compiled` the functions of the final module. Both give the
calls of device libraries and the accesses to the kernel's global memory, in order of text, with their place in the
source and the kernel argument that they touch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, MemRefType, ModuleOp
from xdsl.ir import Operation, OpResult, SSAValue

from tdist.ir.hivm import CustomOp
from tdist.ir.location import SourceLoc, loc_of
from tdist.passes.base import all_ops
from tdist.platforms.ascend.compiled.final_module import AIV, CoreFunction, FinalModule
from tdist.platforms.ascend.provenance import bases, callee, enclosing, full_name, is_address, library_symbol
from tdist.platforms.ascend.sub_blocks import SubBlocks

SIGNAL, TRANSFER, WAIT, BARRIER, DRAIN, QUERY, OTHER = (
    *("signal", "transfer", "wait", "barrier", "fence", "query"),
    "call",
)
_KINDS: tuple[tuple[str, str], ...] = (
    (r"aclshmemx?_signal_op|aclshmem_\w+_p|aclshmem_(\w+_)?putmem_signal\w*", SIGNAL),
    (r"aclshmem_(\w+_)?(put|get)mem\w*", TRANSFER),
    (r"aclshmem_(\w+_)?wait\w*", WAIT),
    (r"aclshmemx?_barrier\w*", BARRIER),
    (r"aclshmem_(fence|quiet)", DRAIN),
    (r"aclshmem_(ptr|consume_token)\w*|aclshmem_(team_)?(my_pe|n_pes|translate_pe)", QUERY),
)
ONCE = (SIGNAL, TRANSFER, OTHER)
"""Kinds that the source means to happen once; waits, fences and barriers may be made by every core."""

_STORES = re.compile(r"\w*_to_gm_\w+|fixpipe_\w+")
_SOURCE_WRITES = ("tt.store", "tt.atomic_rmw", "tt.atomic_cas")
_SOURCE_ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas")
_LOOPS = ("scf.for", "scf.while")


def kind_of_symbol(symbol: str) -> str:
    """What a device function is for; `OTHER` for one that is not ACLSHMEM's."""
    return next((kind for pattern, kind in _KINDS if re.fullmatch(pattern, symbol)), OTHER)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a device function. `number` is its position in the text of its function."""

    op: Operation
    symbol: str
    loc: SourceLoc | None
    number: int

    @cached_property
    def kind(self) -> str:
        """What it is for."""
        return kind_of_symbol(self.symbol)

    @property
    def key(self) -> tuple[str, SourceLoc | None]:
        """What it is recognised by after compilation."""
        return (self.symbol, self.loc)


@dataclass(frozen=True, eq=False)
class Access:
    """One access to global memory that a kernel argument points to.

    `touched` has (argument, translated, consumed) for everything that it may be.
    """

    op: Operation
    writes: bool
    atomic: bool
    touched: frozenset[tuple[int, bool, bool]]
    loc: SourceLoc | None
    number: int

    @property
    def keys(self) -> frozenset[tuple[int, bool, bool]]:
        """(argument, remote, writes): what it is recognised by after compilation, where lines may be another's."""
        return frozenset((argument, remote, self.writes) for argument, remote, _ in self.touched)


@dataclass(frozen=True, eq=False)
class Code:
    """Calls and accesses of one function, in order of text.

    Attributes:
        core: `aic`, `aiv`, or empty for what was written.
        sub_blocks: which vector cores come to an operation (`aiv`).
        function: what `ops` numbers.
    """

    name: str
    core: str
    calls: tuple[Call, ...]
    accesses: tuple[Access, ...]
    ops: tuple[Operation, ...]
    sub_blocks: SubBlocks = field(default_factory=lambda: SubBlocks(1))

    @cached_property
    def numbers(self) -> dict[Operation, int]:
        """The position of each operation in `ops`."""
        return {op: number for number, op in enumerate(self.ops)}

    def span(self, op: Operation) -> tuple[int, int]:
        """Numbers of `op` and of the last operation inside it."""
        first = self.numbers[op]
        return first, first + len(all_ops(op)) - 1

    def loops(self, op: Operation) -> list[Operation]:
        """The loops around `op`, innermost first."""
        return [outer for outer in enclosing(op) if full_name(outer) in _LOOPS]


# ---- as written -----------------------------------------------------------------------------------------------------


def written(module: ModuleOp) -> Code:
    """What the source does: TTIR with `hivm.hir.custom`."""
    ops = tuple(all_ops(module))
    numbered = list(enumerate(ops))
    calls = tuple(
        Call(op, op.symbol, loc_of(op), n) for n, op in numbered if isinstance(op, CustomOp) and op.is_distributed
    )
    accesses = tuple(found for n, op in numbered if (found := _written_access(op, n)) is not None)
    return Code("", "", calls, accesses, ops)


def _written_access(op: Operation, number: int) -> Access | None:
    name = full_name(op)
    if name != "tt.load" and name not in _SOURCE_WRITES:
        return None
    touched = _touched([op.operands[0]], 0)
    return Access(op, name != "tt.load", name in _SOURCE_ATOMICS, touched, loc_of(op), number)


def _touched(addresses: list[SSAValue], leading: int) -> frozenset[tuple[int, bool, bool]]:
    """What of the kernel's arguments `addresses` point to; `leading` arguments in front are the launcher's own."""
    found = {base for address in addresses for base in bases(address)}
    return frozenset(
        (base.argument - leading, base.translated > 0, base.consumed)
        for base in found
        if base.argument is not None and base.argument >= leading
    )


# ---- as compiled ----------------------------------------------------------------------------------------------------


def compiled(final: FinalModule, symbols: Collection[str] = ()) -> tuple[Code, ...]:
    """What each function of a final module does. `symbols` are device functions of other libraries than ACLSHMEM."""
    cores = 2 if final.mixed else 1
    return tuple(_compiled(function, cores, symbols) for function in final.functions)


def _compiled(function: CoreFunction, vector_cores: int, symbols: Collection[str]) -> Code:
    ops = tuple(all_ops(function.op))
    leading = leading_arguments(function)
    calls, accesses = [], []
    for number, op in enumerate(ops):
        symbol = library_symbol(op)
        if symbol.startswith("aclshmem") or symbol in symbols:
            calls.append(Call(op, symbol, loc_of(op), number))
        elif (access := _compiled_access(op, number, leading)) is not None:
            accesses.append(access)
    sub_blocks = SubBlocks(vector_cores if function.core == AIV else 1)
    return Code(function.name, function.core, tuple(calls), tuple(accesses), ops, sub_blocks)


def leading_arguments(function: CoreFunction) -> int:
    """How many arguments the vendor's compiler put before the kernel's: base of cross-core flags, lock, workspace."""
    attributes = function.op.properties.get("arg_attrs")
    if not isinstance(attributes, ArrayAttr):
        return 0
    own = [isinstance(item, DictionaryAttr) and "hacc.arg_type" in item.data for item in attributes.data]
    return own.index(False) if False in own else len(own)


def _compiled_access(op: Operation, number: int, leading: int) -> Access | None:
    name = full_name(op)
    if name in ("memref.load", "memref.store"):
        addresses = [value for value in op.operands if is_global(value)]
        writes, atomic = name == "memref.store", False
    elif callee(op) and "sync_block" not in callee(op):
        addresses = [value for value in op.operands if is_global(value)]
        writes = _STORES.fullmatch(callee(op)) is not None
        atomic = writes and _store_kind(op) != 0
    else:
        return None
    touched = _touched(addresses, leading)
    return Access(op, writes, atomic, touched, loc_of(op), number) if touched else None


def _store_kind(op: Operation) -> int:
    """The kind argument of a store from UB: 0 plain, 1 add, 2 max, 3 min."""
    kind = constant(op.operands[-1]) if callee(op).startswith("store_ubuf_to_gm") else 0
    return 0 if kind is None else kind


def is_global(value: SSAValue) -> bool:
    """Whether `value` is a memref of global memory."""
    return isinstance(value.type, MemRefType) and "<gm>" in str(value.type.memory_space)


def constant(value: SSAValue) -> int | None:
    """The integer that `value` is, if it is a constant."""
    if not isinstance(value, OpResult) or full_name(value.op) != "arith.constant":
        return None
    number = value.op.properties.get("value", value.op.attributes.get("value"))
    return number.value.data if isinstance(number, IntegerAttr) else None


# ---- what a signal hands over ---------------------------------------------------------------------------------------


def handed_over(code: Code, signal: Call) -> list[Access]:
    """The accesses, in `code` as written, that `signal` most likely releases.

    Those between it and the signal before it in its own block; if there are none, those before that, then those before
    the loop or branch that it stands in. Of these the stores to other ranks count; without them, loads that carried a
    token (a buffer is given back); without these, every store.
    """
    inner: Operation = signal.op
    while inner.parent_op() is not None:
        for segment in _segments_before(code, inner):
            if segment:
                return segment
        inner = inner.parent_op()  # pyright: ignore[reportAssignmentType]
    return []


def _segments_before(code: Code, op: Operation) -> Iterator[list[Access]]:
    """Telling accesses before `op` in its block, from one signal to the next, backwards."""
    signals = {call.op for call in code.calls if call.kind == SIGNAL}
    by_op = {access.op: access for access in code.accesses}
    segment: list[Access] = []
    current = op.prev_op
    while current is not None:
        inside = all_ops(current)
        if any(inner in signals for inner in inside):
            yield telling(segment)
            segment = []
        segment += [by_op[inner] for inner in inside if inner in by_op]
        current = current.prev_op
    yield telling(segment)


def telling(accesses: list[Access]) -> list[Access]:
    """Of a stretch of code, the accesses that a signal after it is about."""
    remote = [access for access in accesses if access.writes and any(key[1] for key in access.touched)]
    acquired = [access for access in accesses if not access.writes and any(key[2] for key in access.touched)]
    return remote or acquired or [access for access in accesses if access.writes]


__all__ = [
    "BARRIER",
    "DRAIN",
    "ONCE",
    "OTHER",
    "QUERY",
    "SIGNAL",
    "TRANSFER",
    "WAIT",
    "Access",
    "Call",
    "Code",
    "compiled",
    "constant",
    "handed_over",
    "is_address",
    "is_global",
    "kind_of_symbol",
    "leading_arguments",
    "telling",
    "written",
]
