"""What the library calls of a final module do: on which pipe, and which of their operands they read and write. As data.

A final module has no more vector, transfer or matrix operations, only calls of the vendor's device templates and of
ACLSHMEM. Their declarations do not say what is read or written: this table does. A call that is not in it is not
understood, and whoever asks must say so (`describe` gives None).

Sources: pairs of operations and calls found by aligning modules before and after `convert-hivm-to-std` (90 modules);
pipes from HIVM's operation definitions; flags inside reductions and operands of matrix calls from the LLVM bitcode of
the device templates that comes with AscendNPU-IR 1.2.0 (`meta_op.aiv.c220.bc`, `meta_op.aic.c220.bc`, disassembled);
ACLSHMEM's public device headers. See docs/compiled-code.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.func import CallOp

from tdist.ir.hivm import Pipe
from tdist.platforms.ascend.symbols import LINK_PREFIX, Signature, signatures


class Role(Enum):
    """What a call is for."""

    MOVE = "move"  # between global memory and a buffer of the core
    VECTOR = "vector"
    MATRIX = "matrix"
    QUERY = "query"  # who am I; a pointer on a peer; a token: nothing is read or written
    WAIT = "wait"  # spins on words until peers have written them
    SIGNAL = "signal"  # `aclshmemx_signal_op`: SET or ADD, by an operand
    PUT_SCALAR = "put-scalar"  # `aclshmem_<T>_p`
    PUT = "put"
    GET = "get"
    PUT_SIGNAL = "put-signal"
    DRAIN = "drain"  # fence, quiet
    BARRIER = "barrier"
    LOCK = "lock"
    UNLOCK = "unlock"
    DEBUG = "debug"


@dataclass(frozen=True, slots=True)
class Row:
    """One group of calls: names, role, pipe, and how many of the memory operands are read (the rest is written).

    `scalar_waits`: when it returns, the scalar unit has waited for everything that the pipe was given.
    """

    pattern: str
    role: Role
    pipe: Pipe
    inputs: int
    scalar_waits: bool = False


_ONE = "not|abs|exp|exp2|ln|sqrt|rsqrt|rec|relu|tanh|sin|cos|erf|cast|transpose|flip|pad|cumsum|cumprod|sort"
_TWO = "add|sub|mul|div|max|min|and|or|xor|shl|shr|mod|pow|mulext|mulextui|mulextended"

TABLE: tuple[Row, ...] = (
    # transfers; the first memory operand is the source
    Row(r"load_gm_to_ubuf_\d+d_\w+", Role.MOVE, Pipe.MTE2, 1),
    Row(r"load_gm_to_(?:l1|cbuf)_\w+|nd2nz_\w+", Role.MOVE, Pipe.MTE2, 1),
    Row(r"set_l1_\d+d_\w+", Role.MOVE, Pipe.MTE2, 0),
    Row(r"store_ubuf_to_gm_\d+d_\w+", Role.MOVE, Pipe.MTE3, 1),
    Row(r"copy_ubuf_to_(?:l1|cbuf)_\w+", Role.MOVE, Pipe.MTE3, 1),
    Row(r"fixpipe_\w+", Role.MOVE, Pipe.FIX, 1),
    # vector unit; results and scratch come after the inputs
    Row(r"copy_ubuf_to_ubuf_\w+", Role.VECTOR, Pipe.V, 1),
    Row(r"broadcast_scalar_\w+|arange_\w+", Role.VECTOR, Pipe.V, 0),
    Row(r"broadcast_\w+", Role.VECTOR, Pipe.V, 1),
    Row(rf"v(?:{_TWO})_\d+d_\w+", Role.VECTOR, Pipe.V, 2),
    Row(rf"v(?:{_TWO})s?_(?:vs|sv)_\d+d_\w+", Role.VECTOR, Pipe.V, 1),
    Row(rf"v(?:{_ONE})_\w+", Role.VECTOR, Pipe.V, 1),
    Row(r"vcmp_(?:eq|ne|lt|le|gt|ge)_\d+d_\w+", Role.VECTOR, Pipe.V, 2),
    Row(r"vcmps_(?:eq|ne|lt|le|gt|ge)_\d+d_\w+", Role.VECTOR, Pipe.V, 1),
    Row(r"vsel_vv_\w+", Role.VECTOR, Pipe.V, 3),
    Row(r"vsel_(?:sv|vs)_\w+", Role.VECTOR, Pipe.V, 2),
    Row(r"vsel_ss_\w+", Role.VECTOR, Pipe.V, 1),
    # reductions whose result the scalar unit makes, or reads, inside: `reduce_r_by_vc` and its kin
    Row(r"enablevc_reduce_(?:max|min)_r_(?:float|half)", Role.VECTOR, Pipe.V, 1, True),
    Row(r"reduce_(?:max|min)_with_index_r_(?:float|half)", Role.VECTOR, Pipe.V, 1, True),
    Row(r"reduce_(?:max|min|sum)_a?r_int(?:16|32)_t", Role.VECTOR, Pipe.V, 1, True),
    Row(r"reduce_prod_a?r_(?:float|half|int16_t|int32_t)", Role.VECTOR, Pipe.V, 1, True),
    Row(r"reduce_(?:andi|ori|xori)_a?r_int(?:8|16|32|64)_t", Role.VECTOR, Pipe.V, 1, True),
    Row(r"reduce_(?:andi|ori)_a?r_uint(?:8|16|32|64)_t", Role.VECTOR, Pipe.V, 1, True),
    Row(r"(?:enablevc_)?reduce_\w+", Role.VECTOR, Pipe.V, 1),
    Row(r"(?:cumsum|cumprod|sort|transpose|flip|deinterleave)_\w+", Role.VECTOR, Pipe.V, 1),
    Row(r"(?:gather|interleave)_\w+", Role.VECTOR, Pipe.V, 2),
    # the matrix unit: steps of its own, see `MatrixCall`
    Row(r"mma_tile_\w+", Role.MATRIX, Pipe.M, 2),
    # the lock of atomics with a used result
    Row(r"sync_block_lock", Role.LOCK, Pipe.S, 0),
    Row(r"sync_block_unlock", Role.UNLOCK, Pipe.S, 0),
    # prints and assertions
    Row(r"(?:_mlir_ciface_)?(?:print_\w+|assert_\w+|(?:init|finish)_debug)", Role.DEBUG, Pipe.S, 99),
)

# device functions of ACLSHMEM by bare symbol; `{T}` as in `symbols`
_DISTRIBUTED: tuple[tuple[str, Role], ...] = (
    (r"aclshmem_(?:team_)?(?:my_pe|n_pes)|aclshmem_team_translate_pe", Role.QUERY),
    (r"aclshmem_ptr_\w+|aclshmem_consume_token_\w+", Role.QUERY),
    (r"aclshmem_wait_\w+|aclshmem_signal_wait_until", Role.WAIT),
    (r"aclshmemx_signal_op", Role.SIGNAL),
    (r"aclshmem_(?:\w+_)?putmem_signal(?:_\w+)?", Role.PUT_SIGNAL),
    (r"aclshmem_(?:\w+_)?putmem(?:_\w+)?", Role.PUT),
    (r"aclshmem_(?:\w+_)?getmem(?:_\w+)?", Role.GET),
    (r"aclshmem_(?:fence|quiet)", Role.DRAIN),
    (r"aclshmemx?_barrier\w*", Role.BARRIER),
    (r"aclshmem_\w+_p", Role.PUT_SCALAR),
)

POINTER_PREFIX = "aclshmem_ptr_"
TOKEN_PREFIX = "aclshmem_consume_token_"
STORE_KIND_OPERAND = 2  # of `store_ubuf_to_gm`: 0 plain, 1 atomic add, 2 max, 3 min
SIGNAL_ADD = 1  # the library's; SET is 0
SIGNAL_OP_OPERAND = 2  # of `aclshmemx_signal_op(sig, value, op, pe)`
DRAINING_BARRIERS = frozenset({"cube", "vector"})  # suffixes: only mix kernels have them
VECTOR_BARRIERS = ("_vec",)  # ends of symbols: the cube core takes no part


@dataclass(frozen=True, slots=True)
class MatrixCall:
    """Operands of `mma_tile(a, b, init, m, k, n, c, events ×4, k index, back events ×2, unit flag)`.

    Inside: for `a`, then for `b`, wait MTE2 → MTE1, load into L0, set MTE1 → MTE2; then multiply. An event of −1 is
    left out. `mma_tile_with_<T>_bias` has one more memory before `c`, from which the sum starts; no event is its own.
    """

    a: int = 0
    b: int = 1
    bias: int | None = None
    c: int = 6
    waits: tuple[int, int] = (7, 8)
    sets: tuple[int, int] = (9, 10)
    unit_flag: int = 14


MATRIX = MatrixCall()
BIASED = MatrixCall(bias=6, c=7, waits=(8, 9), sets=(10, 11), unit_flag=15)


def matrix_operands(call: Call) -> MatrixCall:
    """Where the operands of a matrix call stand."""
    return BIASED if re.match(r"mma_tile_with_\w+_bias_", call.symbol) else MATRIX


@dataclass(frozen=True, slots=True)
class Call:
    """What one call does. `reads` and `writes` are numbers of operands that are memory."""

    callee: str
    symbol: str  # bare: without the prefix of MLIR's C interface and the half's suffix
    role: Role
    pipe: Pipe
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    suffix: str = ""  # `cube` or `vector` in a mix kernel
    signature: Signature | None = None
    scalar_waits: bool = False  # as in `Row`

    @property
    def is_distributed(self) -> bool:
        """Whether it is a function of ACLSHMEM."""
        return self.signature is not None

    @property
    def non_blocking(self) -> bool:
        """Whether a transfer goes on after it has returned."""
        return "_nbi" in self.symbol

    def operand(self, name: str) -> int:
        """The number of a distributed call's operand by the library's name of it."""
        assert self.signature is not None
        return [parameter for parameter, _ in self.signature.parameters].index(name)


_HALF = re.compile(r"(.+)\.(cube|vector)")


@cache
def _row_of(name: str) -> Row | None:
    return next((row for row in TABLE if re.fullmatch(row.pattern, name)), None)


@cache
def _role_of(symbol: str) -> Role | None:
    return next((role for pattern, role in _DISTRIBUTED if re.fullmatch(pattern, symbol)), None)


def bare_symbol(callee: str) -> tuple[str, str]:
    """A device function's bare symbol, and the half that calls it in a mix kernel (`cube`, `vector` or nothing)."""
    match = _HALF.fullmatch(callee)
    name, suffix = match.groups() if match is not None else (callee, "")
    return name.removeprefix(LINK_PREFIX), suffix


def describe(op: CallOp) -> Call | None:
    """What a call does; None if the table does not know it."""
    callee = op.callee.string_value()
    symbol, suffix = bare_symbol(callee)
    signature = signatures().get(symbol)
    role = _role_of(symbol)
    if signature is not None and role is not None:
        return _distributed(op, callee, symbol, role, suffix, signature)
    row = _row_of(callee)
    if row is None:
        return None
    memory = _memory_operands(op)
    reads, writes = memory[: row.inputs], memory[row.inputs :]
    return Call(callee, callee, row.role, row.pipe, reads, writes, scalar_waits=row.scalar_waits)


def _memory_operands(op: CallOp) -> tuple[int, ...]:
    return tuple(index for index, value in enumerate(op.arguments) if isinstance(value.type, MemRefType))


def _distributed(op: CallOp, callee: str, symbol: str, role: Role, suffix: str, signature: Signature) -> Call:
    """Transfers read `src` here and write `dst` on the peer (a get the other way round)."""
    names: Sequence[str] = [name for name, _ in signature.parameters]
    reads, writes = (), ()
    if role in (Role.PUT, Role.PUT_SIGNAL, Role.GET) and len(op.arguments) == len(names):
        reads, writes = (names.index("src"),), (names.index("dst"),)
    return Call(callee, symbol, role, Pipe.S, reads, writes, suffix, signature)


__all__ = [
    "BIASED",
    "DRAINING_BARRIERS",
    "MATRIX",
    "POINTER_PREFIX",
    "SIGNAL_ADD",
    "SIGNAL_OP_OPERAND",
    "STORE_KIND_OPERAND",
    "TABLE",
    "TOKEN_PREFIX",
    "VECTOR_BARRIERS",
    "Call",
    "MatrixCall",
    "Role",
    "Row",
    "bare_symbol",
    "describe",
    "matrix_operands",
]
