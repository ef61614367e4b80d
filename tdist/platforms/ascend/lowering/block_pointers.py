"""Block pointers written so that the vendor's adapter finds their bounds, or refused.

triton-adapter-opt 3.2.0 adds all offsets of a block pointer up and divides the sum by the strides, in the order that
`order` says, to know how far each axis is from its bound. Beside the simulated kernels, that goes wrong without a word
where

- `order` is not that of the strides (it is a hint in Triton): it is sorted by the strides, as far as these are known;
- an axis is not checked: the sum is not divided by its stride, and with axes in another order the check is one of
  another axis. Then all axes are checked, and the extent of those that were not is made larger than any;
- an offset is negative: lower bounds are not checked at all. A constant is refused; of others nothing is known here.

The distance of an advanced base (`make_block_ptr(x + n, …)`) it takes off again, which is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i32, i64
from xdsl.ir import Operation, SSAValue

from tdist.errors import KernelError
from tdist.ir import tt
from tdist.ir.effects import constant_int
from tdist.ir.location import loc_of
from tdist.ir.pointer import is_block_pointer
from tdist.passes.base import all_ops, insert_before
from tdist.passes.fold import make_constant
from tdist.platforms.ascend.lowering.carried_memory import sources

UNBOUNDED = 1 << 40
"""An extent that no block reaches: offsets have 32 bits."""


@dataclass(frozen=True)
class _Access:
    """A load or store through a block pointer, and what may have made the pointer."""

    op: Operation
    makers: tuple[tt.MakeTensorPtrOp, ...]

    @property
    def checked(self) -> tuple[int, ...]:
        """The axes whose bounds it checks, in order."""
        return tuple(sorted(set(_numbers(self.op.properties["boundaryCheck"]))))

    @property
    def axes(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(range(len(self.makers[0].shape)))


def write_bounds(module: ModuleOp) -> None:
    """Rewrite block pointers, in place, so that the adapter finds the bounds that the kernel says.

    Raises:
        KernelError: bounds that the adapter would get wrong and that cannot be written otherwise; names the line.
    """
    for op in all_ops(module):
        if isinstance(op, tt.MakeTensorPtrOp):
            _sort_order(op)
    accesses = list(_accesses(module))
    for access in accesses:
        _refuse_negative(access)
    for access in accesses:
        if access.checked and not _is_understood(access):
            _check_all_axes(access, accesses)


def _accesses(module: ModuleOp) -> Iterator[_Access]:
    for op in all_ops(module):
        if op.name in ("tt.load", "tt.store") and is_block_pointer(op.operands[0].type):
            owners = [source.owner for source in sources(op.operands[0], into_block_pointers=False)]
            yield _Access(op, tuple(owner for owner in owners if isinstance(owner, tt.MakeTensorPtrOp)))


def _numbers(array: Any) -> list[int]:
    return [int(number) for number in array.get_values()]


# ---- order -----------------------------------------------------------------------------------------------------------


def _sort_order(op: tt.MakeTensorPtrOp) -> None:
    order = _order(op)
    wanted = _by_strides([constant_int(stride) for stride in op.strides], order)
    if wanted != order:
        op.properties["order"] = DenseArrayBase.from_list(i32, wanted)


def _order(op: tt.MakeTensorPtrOp) -> list[int]:
    return _numbers(op.order)


def _by_strides(strides: Sequence[int | None], order: list[int]) -> list[int]:
    """Axes from the smallest stride on; where not all are known, the one whose stride is 1 is the first."""
    if None not in strides:
        return sorted(order, key=lambda axis: strides[axis] or 0)
    unit = [axis for axis in order if strides[axis] == 1]
    return [*unit, *(axis for axis in order if axis not in unit)] if len(unit) == 1 else order


# ---- axes that are not checked ---------------------------------------------------------------------------------------


def _is_understood(access: _Access) -> bool:
    """Whether the adapter's bounds are right: every axis, or the outer ones of a pointer laid out by rows."""
    by_rows = all(_order(maker) == [*reversed(access.axes)] for maker in access.makers)
    return access.checked == access.axes or (by_rows and access.checked == access.axes[: len(access.checked)])


def _check_all_axes(access: _Access, accesses: Sequence[_Access]) -> None:
    """Check every axis, with an extent without end where none was checked."""
    together = [other for other in accesses if set(other.makers) & set(access.makers) and other.checked]
    if any(other.checked != access.checked for other in together):
        raise KernelError(
            f"{loc_of(access.op) or 'kernel'}: cannot compile for Ascend: boundary_check={access.checked} leaves out "
            "axes that another access through the same block pointer checks, and the vendor's adapter gets bounds "
            f"wrong that are not checked on every axis. Write boundary_check={access.axes}, or make a block pointer "
            "for each"
        )
    for maker in {maker for other in together for maker in other.makers}:
        for axis in set(access.axes) - set(access.checked):
            _make_unbounded(maker, axis)
    for other in together:
        other.op.properties["boundaryCheck"] = DenseArrayBase.from_list(i32, access.axes)


def _make_unbounded(maker: tt.MakeTensorPtrOp, axis: int) -> None:
    extent = make_constant(UNBOUNDED, i64)
    insert_before(maker, extent)
    maker.operands[1 + axis] = extent.results[0]


# ---- below the first element -----------------------------------------------------------------------------------------


def _refuse_negative(access: _Access) -> None:
    for axis in access.checked:
        offset = _constant_offset(access.op.operands[0], axis)
        if offset is not None and offset < 0:
            raise KernelError(
                f"{loc_of(access.op) or 'kernel'}: cannot compile for Ascend: the block begins at {offset} on axis "
                f"{axis}, and the vendor's adapter checks the upper bound only: it would access what lies before the "
                "first element. Use offsets and a mask"
            )


def _constant_offset(pointer: SSAValue, axis: int) -> int | None:
    """Where a block begins on one axis, if it is known; None through loops and branches."""
    total = 0
    while isinstance(op := pointer.owner, tt.AdvanceOp):
        step = constant_int(op.offsets[axis])
        if step is None:
            return None
        total, pointer = total + step, op.ptr
    first = constant_int(op.offsets[axis]) if isinstance(op, tt.MakeTensorPtrOp) else None
    return None if first is None else total + first
