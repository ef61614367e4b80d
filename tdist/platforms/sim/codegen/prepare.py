"""Rewrites that make multiplication patterns visible: `acc + dot(a, b, 0)` becomes `dot(a, b, acc)`.

The cube unit accumulates in place, and so does the simulated one. Only for accumulators that do not round (f32, f64,
integers): there the sum is the same but for the order of additions, which no one promises.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from .elements import UnknownType, type_info
from .ir_access import attr, dense_values, only_user

ADDITIONS = ("arith.addf", "arith.addi")


def accumulate_in_dots(module: ModuleOp) -> None:
    """Apply the rewrite everywhere, in place."""
    for op in list(module.walk()):
        if op.name == "tt.dot" and _is_zero(op.operands[2]):
            _merge(op)


def _merge(dot: Operation) -> None:
    addition = only_user(dot.results[0])
    if addition is None or addition.name not in ADDITIONS or addition.parent is not dot.parent:
        return
    if type_info(dot.results[0].type).element.bits < 32:
        return
    left, right = addition.operands
    other = right if left is dot.results[0] else left
    merged = dot.clone()
    merged.operands[2] = other
    block = addition.parent
    assert block is not None
    block.insert_op_before(merged, addition)
    merged.results[0].name_hint = addition.results[0].name_hint
    addition.results[0].replace_all_uses_with(merged.results[0])
    addition.detach()
    addition.erase()
    dot.detach()
    dot.erase()


def _is_zero(value: SSAValue) -> bool:
    owner = value.owner
    if not isinstance(owner, Operation) or owner.name != "arith.constant":
        return False
    constant = attr(owner, "value")
    try:
        return constant is not None and not any(dense_values(constant)) and not type_info(value.type).is_pointer
    except UnknownType:
        return False
