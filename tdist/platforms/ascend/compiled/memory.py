"""Which memory a value of a final module points to: address space, whose memory, which bytes.

Buffers of a core lie at planned addresses, so their bytes are numbers. Global memory is known by the kernel's argument
that a pointer came from, and by an offset that is a sum over values which never change; where that is not enough, the
access may be anywhere in the argument's memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, IntegerType, MemRefType, StridedLayoutAttr
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.utils.exceptions import VerifyException

from tdist.ir import hivm
from tdist.platforms.ascend.compiled import calls
from tdist.platforms.ascend.compiled.events import memory_space, name_of
from tdist.platforms.ascend.compiled.linear import Linear
from tdist.platforms.ascend.compiled.values import Environment, Values

GM, UB, L1, L0C = "gm", "ub", "cbuf", "cc"
SUB_BLOCK = hivm.GetSubBlockIdxOp.name

_SAME_MEMORY = frozenset(
    f"memref.{name}" for name in ("cast", "collapse_shape", "expand_shape", "memory_space_cast", "transpose")
) | {"hivm.hir.bitcast", "builtin.unrealized_conversion_cast"}


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes `low` … `high` − 1, counted from an unknown start `terms` of the memory of `root`.

    `root` is the kernel's argument, or nothing for a buffer of the core and for a pointer whose origin is not known.
    `high` is None for "anywhere in it". `remote`: the same argument's memory on some other PE.
    """

    space: str
    root: Hashable | None
    remote: bool
    terms: tuple[tuple[Hashable, int], ...]
    low: int
    high: int | None

    def overlaps(self, other: Region) -> bool:
        """Whether the two may have a byte in common."""
        if self.space != other.space:
            return False
        if self.space == GM and self.root is not None and other.root is not None:
            if (self.root, self.remote) != (other.root, other.remote):
                return False
        elif self.space == GM:
            return True
        if self.high is None or other.high is None or self.terms != other.terms:
            return True
        return self.low < other.high and other.low < self.high


@dataclass(frozen=True, slots=True)
class _View:
    """What a memref value describes: where its pointer points, and from there an offset and a length, all in bytes.

    `outer` is what it is a part of, as far as that is known.
    """

    space: str
    root: Hashable | None
    remote: bool
    base: Linear | None
    offset: Linear | None
    length: int | None
    outer: Region | None = None

    def region(self) -> Region | None:
        if self.length == 0:
            return None
        return self._placed() or self.outer or Region(self.space, self.root, self.remote, (), 0, None)

    def _placed(self) -> Region | None:
        if self.base is None or self.offset is None or self.length is None:
            return None
        return _over_both_sub_blocks(self, self.base.plus(self.offset), self.length)

    def as_outer(self) -> Region | None:
        """What a part of it is a part of."""
        return self._placed() or self.outer


def _over_both_sub_blocks(view: _View, start: Linear, length: int) -> Region:
    """An offset by the vector core's number covers what either of the two would touch."""
    reach = dict(start.terms).get(SUB_BLOCK, 0)
    terms = tuple(term for term in start.terms if term[0] != SUB_BLOCK)
    low = start.constant + min(reach, 0)
    return Region(view.space, view.root, view.remote, terms, low, start.constant + max(reach, 0) + length)


class Memory:
    """Where the values of one function point to."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._entry = values.function.op.body.blocks[0]

    def regions(self, value: SSAValue, environment: Environment, *, remote: bool = False) -> tuple[Region, ...]:
        """What `value` may point to under the decisions of `environment`."""
        views = self._views(value, environment, ())
        found = (view.region() for view in views)
        return tuple(
            dict.fromkeys(replace(region, remote=True) if remote else region for region in found if region is not None)
        )

    def _views(self, value: SSAValue, environment: Environment, seen: tuple[SSAValue, ...]) -> tuple[_View, ...]:
        if value in seen:
            return ()
        return tuple(dict.fromkeys(self._find(value, environment, (*seen, value))))

    def _find(self, value: SSAValue, environment: Environment, seen: tuple[SSAValue, ...]) -> Iterable[_View]:
        if isinstance(value, BlockArgument):
            if value.block is self._entry:
                return (_View(memory_space(value), ("argument", value.index), False, Linear.of(0), Linear.of(0), None),)
            return self._carried(value.block.parent_op(), value.index, value, environment, seen)
        assert isinstance(value, OpResult)
        return self._made(value, environment, seen)

    def _made(self, value: OpResult, environment: Environment, seen: tuple[SSAValue, ...]) -> Iterable[_View]:
        op = value.op
        name = name_of(op)
        if isinstance(op, hivm.PointerCastOp):
            return self._planned(op, environment)
        if name in _SAME_MEMORY:
            return self._views(op.operands[0], environment, seen)
        if name == "arith.select":
            chosen = self.values.number(op.operands[0], environment)
            sides = op.operands[1:] if chosen is None else [op.operands[1 if chosen else 2]]
            return [view for side in sides for view in self._views(side, environment, seen)]
        if name in ("memref.reinterpret_cast", "memref.subview", "memref.view"):
            move = {"memref.subview": self._subview, "memref.view": self._shifted}.get(name, self._recast)
            return [move(op, view, environment) for view in self._views(op.operands[0], environment, seen)]
        if name == "memref.extract_strided_metadata" and value.index == 0:
            return [_bare(view) for view in self._views(op.operands[0], environment, seen)]
        if isinstance(op, func.CallOp):
            return self._translated(op, environment, seen)
        if isinstance(op, (scf.ForOp, scf.IfOp, scf.WhileOp)):
            return self._carried(op, value.index, value, environment, seen)
        return (_unknown(value),)

    def _planned(self, op: hivm.PointerCastOp, environment: Environment) -> Iterator[_View]:
        type_ = op.result.type
        for address in op.addrs:
            known = self.values.number(address, environment)
            base = None if known is None else Linear.of(known)
            yield _View(memory_space(op.result), None, False, base, Linear.of(0), _length_bytes(type_))

    def _recast(self, op: Operation, view: _View, environment: Environment) -> _View:
        """A new offset, counted from where the pointer points."""
        static, dynamic = _mixed(op, "static_offsets", 1)
        offset = self._element(static[0], dynamic, environment)
        type_ = op.results[0].type
        assert isinstance(type_, MemRefType)
        return replace(view, offset=_times(offset, _bits(type_)), length=_length_bytes(type_), outer=None)

    def _subview(self, op: Operation, view: _View, environment: Environment) -> _View:
        """An offset in each dimension, counted from where the view begins."""
        source, type_ = op.operands[0].type, op.results[0].type
        assert isinstance(source, MemRefType) and isinstance(type_, MemRefType)
        static, dynamic = _mixed(op, "static_offsets", 1)
        moved = self._distance([self._element(start, dynamic, environment) for start in static], _strides(source))
        shift = _times(moved, _bits(type_))
        offset = None if view.offset is None or shift is None else view.offset.plus(shift)
        length = _length_bytes(type_)
        if length is None and view.length is not None and shift is not None and shift.is_constant:
            length = max(view.length - shift.constant, 0)  # its size is not known, but it is a part
        return replace(view, offset=offset, length=length, outer=view.as_outer())

    def _distance(self, starts: Sequence[Linear | None], strides: Sequence[int | None]) -> Linear | None:
        total = Linear.of(0)
        for step, stride in zip(starts, strides, strict=True):
            if step == Linear.of(0):
                continue
            if step is None or stride is None:
                return None
            total = total.plus(step.times(stride))
        return total

    def _shifted(self, op: Operation, view: _View, environment: Environment) -> _View:
        """`memref.view`: the pointer itself moves, by bytes."""
        shift = self.values.linear(op.operands[1], environment)
        base = None if view.base is None or shift is None else view.base.plus(shift)
        type_ = op.results[0].type
        assert isinstance(type_, MemRefType)
        return replace(view, base=base, offset=Linear.of(0), length=_length_bytes(type_), outer=view.as_outer())

    def _element(self, static: int, dynamic: Iterator[SSAValue], environment: Environment) -> Linear | None:
        return self.values.linear(next(dynamic), environment) if static == DYNAMIC_INDEX else Linear.of(static)

    def _translated(self, op: func.CallOp, environment: Environment, seen: tuple[SSAValue, ...]) -> Iterable[_View]:
        """A pointer on a peer is another memory of the same argument; a consumed one is the same memory."""
        call = calls.describe(op)
        symbol = call.symbol if call is not None else ""
        if not symbol.startswith((calls.POINTER_PREFIX, calls.TOKEN_PREFIX)):
            return (_unknown(op.results[0]),)
        remote = symbol.startswith(calls.POINTER_PREFIX)
        return [
            replace(
                view,
                remote=view.remote or remote,
                base=view.base if view.offset == Linear.of(0) else None,
                offset=Linear.of(0),
                length=None,
                outer=None,
            )
            for view in self._views(op.arguments[0], environment, seen)
        ]

    # ---- what loops and branches carry -------------------------------------------------------------------------------

    def _carried(
        self,
        op: Operation | None,
        index: int,
        value: SSAValue,
        environment: Environment,
        seen: tuple[SSAValue, ...],
    ) -> Iterable[_View]:
        """Whatever may come in. Decisions of one turn say nothing about what another turn left: none are passed on,
        but where every turn hands on what was there before the loop, that is what it is."""
        sources = _sources(op, index, value)
        if sources is None:
            return (_unknown(value),)
        if isinstance(op, scf.ForOp) and (same := _handed_on(op, sources)) is not None:
            return self._views(same, environment, seen)
        return [view for source in sources for view in self._views(source, {}, seen)]


def _sources(op: Operation | None, index: int, value: SSAValue) -> list[SSAValue] | None:
    """The values that a result or block argument of a loop or branch can be."""
    match op:
        case scf.IfOp():
            ends = [region.blocks[0].last_op for region in (op.true_region, op.false_region) if region.blocks]
            return [end.operands[index] for end in ends if end is not None]
        case scf.ForOp():
            carried = index - 1 if isinstance(value, BlockArgument) else index
            last = op.body.block.last_op
            assert last is not None
            return [op.iter_args[carried], last.operands[carried]] if carried >= 0 else None
        case scf.WhileOp():
            return _while_sources(op, index, value)
    return None


def _handed_on(loop: scf.ForOp, sources: list[SSAValue]) -> SSAValue | None:
    """What a loop carries unchanged: its turns yield the very value that it began with, or the one they got."""
    first, yielded = sources
    got = loop.body.block.args[1 + list(loop.iter_args).index(first)]
    return first if yielded is first or yielded is got else None


def _while_sources(op: scf.WhileOp, index: int, value: SSAValue) -> list[SSAValue]:
    before, after = op.before_region.block, op.after_region.block
    assert before.last_op is not None and after.last_op is not None
    if isinstance(value, BlockArgument) and value.block is before:
        return [op.arguments[index], after.last_op.operands[index]]
    return [before.last_op.operands[index + 1]]  # behind the condition


def _bare(view: _View) -> _View:
    """What a view's pointer points to, without its offset and its shape: a `reinterpret_cast` gives it others."""
    return replace(view, offset=Linear.of(0), length=None, outer=None)


def _unknown(value: SSAValue) -> _View:
    return _View(memory_space(value) or GM, None, False, None, None, None)


# ---- types ----------------------------------------------------------------------------------------------------------


def _mixed(op: Operation, name: str, first: int) -> tuple[Sequence[int], Iterator[SSAValue]]:
    """Offsets of a view: static ones, and the values that stand in for the dynamic ones, in order."""
    static = op.properties[name].get_values()  # pyright: ignore[reportAttributeAccessIssue]
    return static, iter(op.operands[first:])


def _bits(type_: MemRefType) -> int | None:
    element = type_.element_type
    if isinstance(element, IntegerType):
        return element.width.data
    width = getattr(element, "bitwidth", None)
    return width if isinstance(width, int) else None


def _times(elements: Linear | None, bits: int | None) -> Linear | None:
    """Elements as bytes; elements of less than a byte are not placed unless they are none."""
    if elements is None or bits is None:
        return None
    if bits % 8:
        return elements if elements == Linear.of(0) else None
    return elements.times(bits // 8)


def _strides(type_: MemRefType) -> Sequence[int | None]:
    if isinstance(type_.layout, StridedLayoutAttr):
        return [getattr(stride, "data", None) for stride in type_.layout.strides]
    try:
        strides = type_.get_strides()
    except (VerifyException, NotImplementedError, ValueError):
        strides = None
    if strides is None:
        return [None] * len(type_.get_shape())
    return [None if stride == DYNAMIC_INDEX else stride for stride in strides]


def _length_bytes(type_: MemRefType) -> int | None:
    """From the first to behind the last byte of a memref; None if its size or its strides are not known."""
    shape, strides, bits = type_.get_shape(), _strides(type_), _bits(type_)
    if bits is None:
        return None
    if 0 in shape:
        return 0
    last = 0
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if size == DYNAMIC_INDEX or stride is None:
            return None
        last += (size - 1) * stride
    return ((last + 1) * bits + 7) // 8


__all__ = ["GM", "L0C", "L1", "SUB_BLOCK", "UB", "Memory", "Region"]
