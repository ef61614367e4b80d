"""Runs the Linalg of a kernel that only copies: global memory in, global memory out.

Enough of the dialects for what triton-adapter-opt makes of loads and stores; anything else raises. Memory is one flat
tensor for each argument, with room on both sides, so that a wrong offset is seen and not an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from xdsl.dialects.builtin import DenseArrayBase, MemRefType, TensorType
from xdsl.ir import Block, Operation, SSAValue

from tdist.platforms.ascend.provenance import full_name

DYNAMIC = -(2**63)
_COMPARE: list[Callable[[int, int], bool]] = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]
_BINARY: dict[str, Callable[[int, int], int]] = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "divsi": lambda a, b: int(a / b),
    "remsi": lambda a, b: a - b * int(a / b),
    "maxsi": max,
    "minsi": min,
    "ori": lambda a, b: a | b,
    "andi": lambda a, b: a & b,
}
_CASTS = ("arith.index_cast", "arith.extsi", "arith.trunci", "tensor.cast", "memref.cast")


@dataclass(frozen=True)
class View:
    """Elements of a storage; `lead` is where its element 0 lies."""

    storage: torch.Tensor
    lead: int
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def tensor(self) -> torch.Tensor:
        return self.storage.as_strided(self.sizes, self.strides, self.lead + self.offset)


def run(module: Operation, arguments: list[Any]) -> None:
    """Call the one function of `module` with tensors (memory, its element 0 in the middle) and integers."""
    function = next(op for op in module.walk() if full_name(op) == "func.func" and op.regions[0].blocks)
    entry = function.regions[0].blocks.first
    assert entry is not None
    launcher = [None, None]  # lock and workspace
    grid = [1, 1, 1, 0, 0, 0]
    values = [_argument(each) for each in (*launcher, *arguments, *grid)]
    assert len(values) == len(entry.args), f"{len(values)} arguments, {len(entry.args)} expected"
    _Machine(dict(zip(entry.args, values, strict=True))).block(entry)


def _argument(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return View(value, len(value) // 2, 0, (len(value) // 2,), (1,))


class _Machine:
    def __init__(self, values: dict[SSAValue, Any]) -> None:
        self.values = values

    def block(self, block: Block, arguments: tuple[Any, ...] = ()) -> list[Any]:
        """Run a block; what its terminator gives."""
        self.values.update(zip(block.args, arguments, strict=False))
        for op in block.ops:
            name = full_name(op)
            if name in ("scf.yield", "func.return"):
                return [self.values[value] for value in op.operands]
            results = self._op(name, op, [self.values[value] for value in op.operands])
            self.values.update(zip(op.results, results, strict=True))
        return []

    def _op(self, name: str, op: Operation, operands: list[Any]) -> list[Any]:
        if name.startswith("arith.") and (binary := _BINARY.get(name.removeprefix("arith."))):
            return [binary(*operands)]
        method = getattr(self, "_" + name.replace(".", "_"), None)
        if method is not None:
            return method(op, operands)
        if name in _CASTS:
            return operands[:1]
        raise NotImplementedError(f"{name}: {op}")

    def _arith_constant(self, op: Operation, _: list[Any]) -> list[Any]:
        value: Any = op.properties["value"]
        return [value.value.data if hasattr(value, "value") else value.get_values()[0]]

    def _arith_cmpi(self, op: Operation, operands: list[Any]) -> list[Any]:
        return [int(_COMPARE[op.properties["predicate"].value.data](*operands))]  # pyright: ignore[reportAttributeAccessIssue]

    def _arith_select(self, _: Operation, operands: list[Any]) -> list[Any]:
        return [operands[1] if operands[0] else operands[2]]

    def _scf_if(self, op: Operation, operands: list[Any]) -> list[Any]:
        taken = op.regions[0 if operands[0] else 1].blocks.first
        return [] if taken is None else self.block(taken)

    def _scf_for(self, op: Operation, operands: list[Any]) -> list[Any]:
        first, last, step, *carried = operands
        body = op.regions[0].blocks.first
        assert body is not None
        for index in range(first, last, step):
            carried = self.block(body, (index, *carried))
        return carried

    def _memref_alloc(self, op: Operation, operands: list[Any]) -> list[Any]:
        sizes = _sizes(op.results[0].type, operands)
        return [_fresh(torch.full(sizes, float("nan")))]

    def _memref_reinterpret_cast(self, op: Operation, operands: list[Any]) -> list[Any]:
        (offset,), sizes, strides = _layout(op, operands)
        return [View(operands[0].storage, operands[0].lead, offset, sizes, strides)]

    def _memref_subview(self, op: Operation, operands: list[Any]) -> list[Any]:
        view = operands[0]
        offsets, sizes, steps = _layout(op, operands)
        offset = view.offset + sum(o * s for o, s in zip(offsets, view.strides, strict=True))
        strides = tuple(a * b for a, b in zip(steps, view.strides, strict=True))
        return [replace(view, offset=offset, sizes=sizes, strides=strides)]

    def _tensor_extract_slice(self, op: Operation, operands: list[Any]) -> list[Any]:
        return [self._memref_subview(op, [_fresh(operands[0]), *operands[1:]])[0].tensor]

    def _tensor_empty(self, op: Operation, operands: list[Any]) -> list[Any]:
        return [torch.full(_sizes(op.results[0].type, operands), float("nan"))]

    def _linalg_transpose(self, op: Operation, operands: list[Any]) -> list[Any]:
        order: Any = op.properties["permutation"]
        return [operands[0].permute(*order.get_values())]

    def _hivm_hir_custom(self, op: Operation, operands: list[Any]) -> list[Any]:
        """A wait gives a token; other calls, on one rank, the address that they got."""
        return [
            operands[0] if isinstance(operands[0], View) and isinstance(r.type, MemRefType) else 0 for r in op.results
        ]

    def _linalg_fill(self, _: Operation, operands: list[Any]) -> list[Any]:
        operands[1].tensor.fill_(operands[0])
        return []

    def _memref_copy(self, _: Operation, operands: list[Any]) -> list[Any]:
        operands[1].tensor.copy_(operands[0].tensor)
        return []

    def _bufferization_to_tensor(self, _: Operation, operands: list[Any]) -> list[Any]:
        return [operands[0].tensor.clone()]

    def _bufferization_materialize_in_destination(self, _: Operation, operands: list[Any]) -> list[Any]:
        operands[1].tensor.copy_(operands[0])
        return []


def _fresh(tensor: torch.Tensor) -> View:
    tensor = tensor.contiguous()
    return View(tensor, 0, 0, tuple(tensor.shape), tuple(tensor.stride()))


def _sizes(type_: Any, operands: list[Any]) -> tuple[int, ...]:
    assert isinstance(type_, MemRefType | TensorType)
    left = iter(operands)
    return tuple(next(left) if size < 0 else size for size in type_.get_shape())


def _layout(op: Operation, operands: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Offsets, sizes and strides of an operation that gives each as a number or as an operand."""
    left = iter(operands[1:])
    given = []
    for name in ("static_offsets", "static_sizes", "static_strides"):
        static = op.properties[name]
        assert isinstance(static, DenseArrayBase)
        given.append(tuple(next(left) if number == DYNAMIC else number for number in static.get_values()))
    return given[0], given[1], given[2]
