"""What each operation does to memory: the only source of effects for passes and platforms.

Source: architecture document, section 2.4, for `distributed`; Triton's public `TritonOps.td` for `tt` (loads read,
volatile loads read and write, stores write, atomics, prints and asserts as there); MLIR for the rest. Operations with
regions do what their regions do. What is not known reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation, SSAValue


@dataclass(frozen=True, slots=True)
class Effects:
    """Whether an operation reads memory, and whether it writes (or does anything that a write must not pass)."""

    reads: bool
    writes: bool

    NONE: ClassVar[Effects]
    READ: ClassVar[Effects]
    WRITE: ClassVar[Effects]
    BOTH: ClassVar[Effects]

    def __or__(self, other: Effects) -> Effects:
        return _ALL[self.reads or other.reads, self.writes or other.writes]


_ALL = {(r, w): Effects(r, w) for r in (False, True) for w in (False, True)}
Effects.NONE, Effects.READ = _ALL[False, False], _ALL[True, False]
Effects.WRITE, Effects.BOTH = _ALL[False, True], _ALL[True, True]

_PURE_TT = (
    "addptr advance annotation bitcast broadcast cat clampf dot expand_dims flip fp_to_fp gather get_num_programs "
    "get_program_id histogram int_to_ptr join make_range make_tensor_ptr mod mulhiui precise_divf precise_sqrt "
    "ptr_to_int reduce.return reshape return scan.return sort splat split trans unsplat"
)
_PURE = {f"tt.{name}" for name in _PURE_TT.split()} | {
    "scf.yield",
    "scf.condition",
    "cf.br",
    "cf.cond_br",
    "ub.poison",
    "distributed.consume_token",
    "distributed.get_rank",
    "distributed.get_num_ranks",
    "hivm.hir.get_sub_block_idx",
    "tensor.empty",
}
_PURE_DIALECTS = ("arith.", "math.")
_RECURSIVE = {"builtin.module", "tt.func", "scf.for", "scf.if", "scf.while", "tt.reduce", "tt.scan"}


def _is_set(op: Operation, prop: str) -> bool:
    value = op.properties.get(prop)
    return isinstance(value, IntegerAttr) and bool(value.value.data)


def _load(op: Operation) -> Effects:
    return Effects.BOTH if _is_set(op, "isVolatile") else Effects.READ


def _by_pure(op: Operation) -> Effects:
    return Effects.NONE if _is_set(op, "pure") else Effects.BOTH


def _by_no_side_effect(op: Operation) -> Effects:
    return Effects.NONE if "no_side_effect" in op.properties else Effects.BOTH


_SPECIAL: dict[str, Effects | Callable[[Operation], Effects]] = {
    "tt.load": _load,
    "tt.store": Effects.WRITE,
    "tt.atomic_rmw": Effects.BOTH,
    "tt.atomic_cas": Effects.BOTH,
    "tt.print": Effects.WRITE,
    "tt.assert": Effects.WRITE,
    "tt.extern_elementwise": _by_pure,
    "distributed.wait": Effects.READ,
    "distributed.symm_at": Effects.READ,
    "distributed.notify": Effects.BOTH,
    "distributed.extern_call": _by_pure,
    "hivm.hir.custom": _by_no_side_effect,
    "llvm.intr.assume": Effects.WRITE,
}


_by_name: dict[str, Effects | Callable[[Operation], Effects]] = {}


def effects(op: Operation) -> Effects:
    """What `op` does to memory, through its regions."""
    name = op.name
    known = _by_name.get(name)
    if known is None:
        known = _by_name[name] = _kind(name)
    return known if isinstance(known, Effects) else known(op)


def _kind(name: str) -> Effects | Callable[[Operation], Effects]:
    if name in _PURE or name.startswith(_PURE_DIALECTS):
        return Effects.NONE
    return _of_regions if name in _RECURSIVE else _SPECIAL.get(name, Effects.BOTH)


def _of_regions(op: Operation) -> Effects:
    total = Effects.NONE
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                total = total | effects(inner)
                if total is Effects.BOTH:
                    return total
    return total


_DIVISIONS = ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "arith.ceildivsi", "arith.floordivsi")


def is_speculatable(op: Operation) -> bool:
    """Whether executing `op` where it would not have been can do no harm (MLIR's `isSpeculatable`).

    Divisions and remainders are when the divisor is a constant other than 0 and -1; a counted loop when its step is
    the constant 1; a `while` never is, for it may not end.
    """
    if op.name in _DIVISIONS:
        return constant_int(op.operands[1]) not in (None, 0, -1)
    if op.name == "scf.while" or (op.name == "scf.for" and constant_int(op.operands[2]) != 1):
        return False
    if effects(op) != Effects.NONE:
        return False
    return all(is_speculatable(inner) for region in op.regions for block in region.blocks for inner in block.ops)


def constant_int(value: SSAValue) -> int | None:
    """The integer that `value` is known to be, sign-extended as MLIR prints it; booleans are 0 and 1."""
    owner = value.owner
    if not isinstance(owner, Operation) or owner.name != "arith.constant":
        return None
    attr = owner.properties["value"]
    if not isinstance(attr, IntegerAttr):
        return None
    number = attr.value.data
    return number & 1 if attr.type.bitwidth == 1 else number  # pyright: ignore[reportAttributeAccessIssue]


def is_dead(op: Operation) -> bool:
    """Whether `op` may vanish: nobody uses its results and it writes nothing (MLIR's `wouldOpBeTriviallyDead`)."""
    for result in op.results:
        if result.first_use is not None:
            return False
    return op.name not in _KEPT and not _writes(op)


def _writes(op: Operation) -> bool:
    """`effects(op).writes`, which stops at the first write inside."""
    if op.name not in _RECURSIVE:
        return effects(op).writes
    return any(_writes(inner) for region in op.regions for block in region.blocks for inner in block.ops)


_KEPT = {
    "builtin.module",
    "tt.func",
    "tt.return",
    "scf.yield",
    "scf.condition",
    "cf.br",
    "cf.cond_br",
    "tt.reduce.return",
    "tt.scan.return",
}
