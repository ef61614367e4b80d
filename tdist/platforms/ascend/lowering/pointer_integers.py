"""Integers of advanced pointers: the distance is added to the integer of the pointer that was advanced.

triton-adapter-opt 3.2.0 makes `memref.extract_aligned_pointer_as_index` of `tt.ptr_to_int`, which is the address of the
whole memory: `(x + n).to(tl.int64)` would be the address of `x`, without a word.
"""

from __future__ import annotations

from xdsl.dialects.arith import AddiOp, MuliOp
from xdsl.dialects.builtin import AnyFloat, IntegerType, ModuleOp, i64
from xdsl.ir import Block, Operation, SSAValue

from tdist.errors import KernelError
from tdist.ir import tt
from tdist.ir.arith import ExtSIOp
from tdist.ir.hivm import CustomOp
from tdist.ir.location import loc_of
from tdist.ir.pointer import is_scalar_pointer
from tdist.passes.base import all_ops, erase, insert_before, replace
from tdist.passes.fold import make_constant

_ADVANCES = ("tt.addptr", "tt.bitcast")


def add_distances(module: ModuleOp) -> None:
    """Rewrite each integer of an advanced scalar pointer, in place. Tensors of pointers are the adapter's to refuse.

    Raises:
        KernelError: a pointer whose distance is not known here, as out of a loop or a branch; names the kernel's line.
    """
    for op in all_ops(module):
        if op.name == "tt.ptr_to_int" and is_scalar_pointer(op.operands[0].type):
            _rewrite(op)


def _rewrite(op: Operation) -> None:
    pointer, steps = _steps(op.operands[0])
    if not _begins_its_memory(pointer):
        raise KernelError(
            f"{loc_of(op) or 'kernel'}: cannot compile for Ascend: an integer is made of a pointer that loops, "
            "branches or calls on advanced pointers gave: the vendor's adapter would lose its distance. Make the "
            "integer of the kernel's argument, and add the distance in bytes"
        )
    if not steps:
        return
    total = _put(op, tt.PtrToIntOp.create(operands=[pointer], result_types=[i64]))
    for step in steps:
        total = _put(op, AddiOp.create(operands=[total, _bytes_of(step, op)], result_types=[i64]))
    advanced = op.operands[0]
    replace(op, [total])
    _erase_unused(advanced)


def _erase_unused(pointer: SSAValue) -> None:
    """What advanced a pointer, where nobody else uses it."""
    while isinstance(op := pointer.owner, Operation) and op.name in _ADVANCES and pointer.first_use is None:
        pointer = op.operands[0]
        erase(op)


def _steps(pointer: SSAValue) -> tuple[SSAValue, list[Operation]]:
    """The pointer that was advanced, and by which operations."""
    steps: list[Operation] = []
    while isinstance(op := pointer.owner, Operation) and op.name in _ADVANCES:
        if op.name == "tt.addptr":
            steps.append(op)
        pointer = op.operands[0]
    return pointer, steps


def _begins_its_memory(pointer: SSAValue) -> bool:
    """Whether the adapter's address of its memory is the pointer itself."""
    op = pointer.owner
    if isinstance(op, Block):
        parent = op.parent_op()
        return parent is not None and parent.name == "tt.func"
    if isinstance(op, CustomOp):
        source, steps = _steps(op.inputs[0])
        return not steps and _begins_its_memory(source)
    return op.name == "tt.int_to_ptr"


def _bytes_of(step: Operation, before: Operation) -> SSAValue:
    """What an `addptr` adds, in bytes."""
    elements = step.operands[1]
    if elements.type != i64:
        elements = _put(before, ExtSIOp.create(operands=[elements], result_types=[i64]))
    size = _put(before, make_constant(_element_bytes(step), i64))
    return _put(before, MuliOp.create(operands=[elements, size], result_types=[i64]))


def _element_bytes(step: Operation) -> int:
    type_ = step.results[0].type
    element = type_.pointee if isinstance(type_, tt.PointerType) else None
    if not isinstance(element, IntegerType | AnyFloat):
        raise KernelError(
            f"{loc_of(step) or 'kernel'}: cannot compile for Ascend: an integer of a pointer to {element} is not known"
        )
    return max(8, element.bitwidth) // 8


def _put(before: Operation, new: Operation) -> SSAValue:
    insert_before(before, new)
    return new.results[0]
