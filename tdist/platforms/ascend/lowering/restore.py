"""Phase 2: calls of the device library put back where they were, on the memory that the adapter made of pointers.

The adapter turns a pointer into a kernel's argument (a `memref`) and an offset. A site that gave a pointer is an
integer there, and every offset that depends on it belongs to the memory that the site's call returns: the accesses at
these offsets move over to that memory, and the integer becomes 0. Dependence is followed through arithmetic, loops and
branches; where the two branches of an `if` give offsets in different memories, they give these memories, too.

Nothing is guessed. An offset that depends on unrelated sites, a loop in which memory changes, a site that nobody uses
or that is not found again is an error with the kernel's line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IndexType,
    IntegerType,
    MemRefType,
    ModuleOp,
    StridedLayoutAttr,
    StringAttr,
    SymbolRefAttr,
    TensorType,
    UnrealizedConversionCastOp,
    UnregisteredOp,
    i1,
    i8,
    i32,
    i64,
)
from xdsl.dialects.memref import ReinterpretCastOp
from xdsl.dialects.scf import IfOp, YieldOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from tdist.errors import EnvironmentUnfit, KernelError
from tdist.ir import hivm, tt
from tdist.ir.location import loc_of
from tdist.ir.pointer import PointerLike
from tdist.passes.base import all_ops, erase, insert_before, replace
from tdist.passes.convert_triton_distributed_to_hivm import TYPE_NAMES
from tdist.passes.fold import make_constant
from tdist.platforms.ascend.lowering.offsets import is_outside, with_result_types
from tdist.platforms.ascend.lowering.sites import Carried, PointerOperand, Root, Site, site_number

_LEADING_ARGUMENTS = ("SyncBlockLockArgIdx", "WorkspaceArgIdx")
"""The adapter puts a lock and a workspace before the kernel's own arguments, and these attributes say so."""

_DYNAMIC = -(1 << 63)
_TOKEN_OF_MANY = re.compile(r"(?<=^aclshmem_consume_token_)(\w+)_ptr_\dd$")
_HERE = "here"


@dataclass(frozen=True)
class _Base:
    """The memory that an offset counts in.

    Attributes:
        memory: the memref; that of the argument is not a base.
        root: the argument that the pointers came from.
        address: equal for two bases that are the same memory under two names, as after a consumed token.
        through: the sites and merges that led here; a base may take the place of another that it leads on from.
        mixed: an integer depends on these two, of which neither leads to the other: it is the address of nothing.
    """

    memory: SSAValue
    root: Root
    address: object
    through: frozenset[object]
    mixed: tuple[_Base, _Base] | None = None


def restore(linalg: ModuleOp, carried: Carried) -> tuple[str, ...]:
    """Put the calls of `carried` back into what the adapter made of it, in place.

    Returns:
        What a user should know: calls that are not in the kernel.

    Raises:
        KernelError: a call that cannot be put back for certain; names the kernel's line and why.
        EnvironmentUnfit: an adapter that treats the kernel's arguments in a way that is not known.
    """
    work = _Restore(linalg, carried)
    for function in list(linalg.body.block.ops):
        if _name(function) == "func.func" and function.regions[0].blocks:
            work.function(function)
        elif _name(function) == "func.func" and site_number(_symbol(function)) is not None:
            erase(function)
    work.finish()
    for key, value in carried.module.attributes.items():
        linalg.attributes[key] = value
    return tuple(work.notes)


class _Restore:
    def __init__(self, linalg: ModuleOp, carried: Carried) -> None:
        self.sites = carried.sites
        self.pointers = _pointers(carried.module)
        self.bases: dict[SSAValue, _Base] = {}
        self.found: dict[int, Operation] = {}
        self.used: set[object] = set()
        self.merges = 0
        self.notes: dict[str, None] = {}  # in order, each once

    def function(self, function: Operation) -> None:
        self.entry = function.regions[0].blocks[0]
        self.leading = sum(name in function.attributes for name in _LEADING_ARGUMENTS)
        self.memories: dict[SSAValue, Root] = {}
        self.views: dict[Root, SSAValue] = {}
        for index, pointee in self.pointers.items():
            argument = self.entry.args[self.leading + index]
            if not isinstance(argument.type, MemRefType) or not _holds(argument.type, pointee):
                raise EnvironmentUnfit(
                    f"the vendor's adapter makes {argument.type} of argument {index}, a pointer to {pointee}: this "
                    "version of it is not known. Install triton-ascend 3.2.0"
                )
            self._add_view(Root(index, pointee), argument)
        self._block(self.entry)

    def _add_view(self, root: Root, memory: SSAValue) -> None:
        self.memories[memory] = root
        self.views.setdefault(root, memory)

    def finish(self) -> None:
        for site in self.sites:
            if site.number not in self.found:
                raise _lost(site, "the vendor's adapter dropped the call")
            if site.gives_pointer and site.number not in self.used:
                raise _lost(site, _NO_ACCESS)

    # -- walk

    def _block(self, block: Block) -> None:
        for op in list(block.ops):
            self._op(op)

    def _op(self, op: Operation) -> None:
        name = _name(op)
        number = _site_of(op, name)
        if number is not None:
            self._site(op, number)
            return
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, op)
            return
        for region in op.regions:
            for block in region.blocks:
                self._block(block)
        self._flow(op)
        self._check_access(op)

    def _flow(self, op: Operation) -> None:
        """An integer depends on what the integers behind it depend on; what memory holds does not."""
        results = [result for result in op.results if _is_offset(result.type)]
        if not results or _reads_memory(op):
            return
        base = self._merged(_read_by(op))
        if base is not None:
            self.bases.update(dict.fromkeys(results, base))

    def _merged(self, values: Iterable[SSAValue]) -> _Base | None:
        """The base that all others of `values` lead to."""
        bases = {id(base): base for value in values if (base := self.bases.get(value)) is not None}
        if not bases:
            return None
        last = max(bases.values(), key=lambda base: len(base.through))
        for base in bases.values():
            if not base.through <= last.through:
                return _Base(last.memory, last.root, object(), base.through | last.through, (base, last))
        return last

    def _base(self, values: Iterable[SSAValue], op: Operation) -> _Base | None:
        """The base of an address that `op` takes."""
        base = self._merged(values)
        if base is not None and base.mixed is not None:
            one, other = (self._calls(each) for each in base.mixed)
            raise self._error(op, f"one address depends on unrelated calls, {one} and {other}")
        return base

    # -- memory

    def _view(self, root: Root, where: Operation) -> SSAValue:
        """The memory of an argument as elements of a type."""
        known = self.views.get(root)
        if known is None:
            argument = self.entry.args[self.leading + root.argument]
            assert isinstance(argument.type, MemRefType) and self.entry.first_op is not None
            type_ = MemRefType(root.element, argument.type.shape, argument.type.layout, argument.type.memory_space)
            cast = UnrealizedConversionCastOp.create(operands=[argument], result_types=[type_])
            insert_before(self.entry.first_op, cast)
            cast.location = where.location
            known = cast.results[0]
            self._add_view(root, known)
        return known

    def _cast(self, op: Operation) -> None:
        """An argument as memory of other elements."""
        source = self.memories.get(op.operands[0]) if len(op.operands) == 1 else None
        type_ = op.results[0].type
        if source is not None and isinstance(type_, MemRefType):
            self._add_view(Root(source.argument, type_.element_type), op.results[0])
        else:
            self._check_access(op)

    def _reinterpret(self, op: Operation) -> None:
        """`memref.reinterpret_cast %argument to offset: [%offset]`: an access, at last."""
        base = self._base(op.operands[1:], op)
        if base is None:
            return
        root = self.memories.get(op.operands[0])
        if root is None or root.argument != base.root.argument:
            raise self._error(op, f"the memory at an address that comes from {self._calls(base)} is not found again")
        op.operands[0] = self._as_elements(base, root, op)
        self._use(base)

    def _as_elements(self, base: _Base, root: Root, op: Operation) -> SSAValue:
        if root.element == base.root.element:
            return base.memory
        assert isinstance(base.memory.type, MemRefType)
        old = base.memory.type
        type_ = MemRefType(root.element, old.shape, old.layout, old.memory_space)
        cast = UnrealizedConversionCastOp.create(operands=[base.memory], result_types=[type_])
        insert_before(op, cast)
        return cast.results[0]

    def _check_access(self, op: Operation) -> None:
        """No access of an argument may stay at an address that belongs to other memory."""
        if any(operand in self.memories for operand in op.operands):
            base = self._base(op.operands, op)
            if base is not None:
                raise self._error(op, f"{_name(op)} at an address that comes from {self._calls(base)}")

    def _use(self, base: _Base) -> None:
        self.used |= base.through

    # -- sites

    def _site(self, op: Operation, number: int) -> None:
        site = self.sites[number]
        if number in self.found:
            raise _lost(site, "the vendor's adapter made several calls of one")
        inputs = [self._input(op, site, operand) for operand in site.operands]
        call = _call(site, inputs, self.entry)
        insert_before(op, call)
        call.location = site.call.location
        self.found[number] = call
        if not site.gives_pointer:
            _replace_results(op, list(call.results))
            return
        zero = make_constant(0, i32)
        insert_before(op, zero)
        self.bases[zero.results[0]] = self._base_of(site, op, call.results[0])
        replace(op, [zero.results[0]])

    def _base_of(self, site: Site, op: Operation, memory: SSAValue) -> _Base:
        """What `memory`, returned by the call of a site, leads on from."""
        source = site.operands[0]
        assert isinstance(source, PointerOperand)
        before = None if source.offset is None else self._base([op.operands[source.offset]], op)
        through = frozenset() if before is None else before.through
        address = _HERE if before is None else before.address
        address = address if site.is_identity else ("site", site.number)
        return _Base(memory, source.root, address, through | {site.number})

    def _input(self, op: Operation, site: Site, operand) -> SSAValue:
        if not isinstance(operand, PointerOperand):
            return op.operands[operand.index]
        if operand.offset is None:
            return self._view(operand.root, op)
        offset = op.operands[operand.offset]
        base = self._base([offset], op)
        if base is None:
            memory = self._view(operand.root, op)
        else:
            self._use(base)
            memory = self._as_elements(base, operand.root, op)
        if site.gives_pointer:  # the whole memory, of which accesses take their part
            return memory
        return _one_element(op, memory, offset)

    # -- control flow

    def _if(self, op: Operation) -> None:
        for region in op.regions:
            for block in region.blocks:
                self._block(block)
        if not op.results:
            return
        ends = [_terminator(region.block) for region in op.regions]
        merged: dict[int, tuple[_Base | None, _Base | None]] = {}
        for k in range(len(op.results)):
            pair = self.bases.get(ends[0].operands[k]), self.bases.get(ends[1].operands[k])
            if not self._is_alike(op.results[k], pair):
                merged[k] = pair
        if merged:
            self._if_of_memory(op, ends, merged)

    def _is_alike(self, result: SSAValue, pair: tuple[_Base | None, _Base | None]) -> bool:
        """Whether a result has one base, whichever branch gives it; it gets that base."""
        mixed = next((base for base in pair if base is not None and base.mixed is not None), None)
        if mixed is None and pair[0] is not pair[1]:
            return False
        self._carry_on(result, mixed or pair[0])
        return True

    def _if_of_memory(
        self, op: Operation, ends: list[Operation], merged: dict[int, tuple[_Base | None, _Base | None]]
    ) -> None:
        """Let `op` give memory, too: one for each pair of bases, however many offsets it has."""
        pairs = list(dict.fromkeys(merged.values()))
        sides = [self._sides(op, pair, ends) for pair in pairs]
        for end, index in zip(ends, (0, 1), strict=True):
            end.operands = [*end.operands, *(side[index] for side in sides)]
        new = with_result_types(op, [*op.result_types, *(side[0].type for side in sides)])
        count = len(op.results)
        for old, result in zip(op.results, new.results, strict=False):
            self._carry_on(result, self.bases.get(old))
        replace(op, list(new.results[:count]))
        bases = [self._merge(pair, new.results[count + k], new) for k, pair in enumerate(pairs)]
        for k, pair in merged.items():
            self.bases[new.results[k]] = bases[pairs.index(pair)]

    def _sides(self, op: Operation, pair: Sequence[_Base | None], ends: Sequence[Operation]) -> list[SSAValue]:
        """The memories that the branches of `op` give, in a form that the vendor's compiler sees through.

        It takes memory that an `if` gives for global memory if its first branch gives what a call returned. Otherwise
        (an argument, memory of another `if`, an `if` whose branches give what was there before and that it makes
        `arith.select` of) it would copy that memory on chip, and lose what is stored. A call is what helps.
        """
        root = _root(pair)
        if any(base is not None and base.root != root for base in pair):
            raise self._error(op, "an address comes from memory of two arguments")
        sides = [self._view(root, op) if base is None else base.memory for base in pair]
        is_seen = isinstance(sides[0].owner, hivm.CustomOp) and not all(is_outside(memory, op) for memory in sides)
        return sides if is_seen else [self._identity(sides[0], pair, ends[0]), sides[1]]

    def _identity(self, memory: SSAValue, pair: Sequence[_Base | None], before: Operation) -> SSAValue:
        """The same memory out of a call that returns what it is given: a token that is always there is consumed."""
        site = self.sites[min(n for base in pair if base is not None for n in base.through if isinstance(n, int))]
        assert isinstance(memory.type, MemRefType)
        name = TYPE_NAMES.get(memory.type.element_type)
        if name is None:
            raise self._error(before, f"branches choose between memories of elements {memory.type.element_type}")
        token = make_constant(0, i32)
        attributes = {**site.call.attributes, hivm.SYMBOL: StringAttr(f"aclshmem_consume_token_{name}_ptr_1d")}
        call = _custom(attributes, [memory, token.results[0]], [memory.type], self.entry, no_side_effect=True)
        for new in (token, call):
            insert_before(before, new)
            new.location = site.call.location
        self.notes[
            f"{site.loc or 'kernel'}: memory that branches choose between passes through {call.symbol}, which changes "
            "nothing: without a call the vendor's compiler takes it for memory on chip"
        ] = None
        return call.results[0]

    def _merge(self, pair: Sequence[_Base | None], memory: SSAValue, op: Operation) -> _Base:
        self.merges += 1
        name = ("merge", self.merges)
        addresses = {_HERE if base is None else base.address for base in pair}
        through = frozenset().union(*(base.through for base in pair if base is not None))
        return _Base(memory, _root(pair), addresses.pop() if len(addresses) == 1 else name, through | {name})

    def _select(self, op: Operation) -> None:
        condition, *choices = op.operands
        pair = self.bases.get(choices[0]), self.bases.get(choices[1])
        if self._is_alike(op.results[0], pair):
            return
        if not isinstance(condition.type, IntegerType):
            raise self._error(op, "addresses of one tensor lie in different memories")
        ends = [YieldOp(), YieldOp()]
        new = IfOp(condition, [self._view(_root(pair), op).type], [ends[0]], [ends[1]])
        insert_before(op, new)
        for end, memory in zip(ends, self._sides(new, pair, ends), strict=True):
            end.operands = [memory]
        self.bases[op.results[0]] = self._merge(pair, new.results[0], new)

    def _for(self, op: Operation) -> None:
        body = op.regions[0].block
        entry = [self.bases.get(value) for value in op.operands[3:]]
        for argument, base in zip(body.args[1:], entry, strict=True):
            self._carry_on(argument, base)
        self._block(body)
        self._turn(op, _terminator(body).operands, entry)
        for result, base in zip(op.results, entry, strict=True):
            self._carry_on(result, base)

    def _while(self, op: Operation) -> None:
        before, after = (region.block for region in op.regions)
        entry = [self.bases.get(value) for value in op.operands]
        for argument, base in zip(before.args, entry, strict=True):
            self._carry_on(argument, base)
        self._block(before)
        passed = [self.bases.get(value) for value in _terminator(before).operands[1:]]
        for k, base in enumerate(passed):
            self._carry_on(after.args[k], base)
            self._carry_on(op.results[k], self._outside(op, base))
        self._block(after)
        self._turn(op, _terminator(after).operands, entry)

    def _outside(self, op: Operation, base: _Base | None) -> _Base | None:
        """A base that is to be used behind a loop must be there."""
        if base is None or is_outside(base.memory, op):
            return base
        raise self._error(op, f"memory from {self._calls(base)} leaves the loop in which it was asked for")

    def _turn(self, op: Operation, yielded: Sequence[SSAValue], entry: Sequence[_Base | None]) -> None:
        """A loop may carry on the memory that it began with, under whichever name."""
        for value, began in zip(yielded, entry, strict=True):
            ends = self.bases.get(value)
            if ends is began:
                continue
            if _address(ends) != _address(began):
                calls = " and ".join(self._calls(base) for base in (began, ends) if base is not None)
                raise self._error(
                    op,
                    f"the memory behind a pointer changes from one turn of the loop to the next, by {calls}. Keep the "
                    "local pointer and ask for the remote one in each turn",
                )
            if ends is not None:
                self._use(ends)

    def _carry_on(self, value: SSAValue, base: _Base | None) -> None:
        if base is not None:
            self.bases[value] = base

    # -- messages

    def _calls(self, base: _Base) -> str:
        numbers = sorted(number for number in base.through if isinstance(number, int))
        return ", ".join(f"{self.sites[number].call.symbol} ({self.sites[number].loc})" for number in numbers)

    def _error(self, op: Operation, what: str) -> KernelError:
        return KernelError(f"{loc_of(op) or 'kernel'}: cannot compile for Ascend: {what}.")


_HANDLERS = {
    "scf.if": _Restore._if,
    "scf.for": _Restore._for,
    "scf.while": _Restore._while,
    "arith.select": _Restore._select,
    "memref.reinterpret_cast": _Restore._reinterpret,
    "builtin.unrealized_conversion_cast": _Restore._cast,
}


# ---- the call -------------------------------------------------------------------------------------------------------


def _call(site: Site, inputs: Sequence[SSAValue], entry: Block) -> hivm.CustomOp:
    """The call on memory: as the pass made it, but that tokens are consumed on the memory behind many pointers."""
    symbol = _TOKEN_OF_MANY.sub(r"\1_ptr_1d", site.call.symbol)
    attributes = {**site.call.attributes, hivm.SYMBOL: StringAttr(symbol)}
    attributes.pop(hivm.SOURCE_POINTERS, None)
    types = [inputs[0].type] if site.gives_pointer else list(site.result_types)
    return _custom(attributes, inputs, types, entry, no_side_effect=site.call.no_side_effect is not None)


def _custom(
    attributes: dict[str, Attribute],
    inputs: Sequence[SSAValue],
    types: Sequence[Attribute],
    entry: Block,
    *,
    no_side_effect: bool,
) -> hivm.CustomOp:
    symbol = attributes[hivm.SYMBOL]
    assert isinstance(symbol, StringAttr)
    arguments = [k for k, value in enumerate(inputs) if _is_argument(value, entry)]
    attributes = {**attributes, hivm.GM_ADDRESSES: DenseArrayBase.from_list(i32, arguments)}
    name = f"dist.{symbol.data}"
    return hivm.CustomOp(name, attributes, inputs=inputs, result_types=types, no_side_effect=no_side_effect)


def _is_argument(value: SSAValue, entry: Block) -> bool:
    return isinstance(value, BlockArgument) and value.block is entry and isinstance(value.type, MemRefType)


def _one_element(op: Operation, memory: SSAValue, offset: SSAValue) -> SSAValue:
    """The one element of `memory` at an offset."""
    from xdsl.dialects.arith import IndexCastOp

    index = IndexCastOp.create(operands=[offset], result_types=[IndexType()])
    insert_before(op, index)
    assert isinstance(memory.type, MemRefType)
    layout = StridedLayoutAttr([1], None)
    type_ = MemRefType(memory.type.element_type, [1], layout, memory.type.memory_space)
    part = ReinterpretCastOp.create(
        operands=[memory, index.results[0]],
        result_types=[type_],
        properties={
            "static_offsets": DenseArrayBase.from_list(i64, [_DYNAMIC]),
            "static_sizes": DenseArrayBase.from_list(i64, [1]),
            "static_strides": DenseArrayBase.from_list(i64, [1]),
            "operandSegmentSizes": DenseArrayBase.from_list(i32, [1, 1, 0, 0]),
        },
    )
    insert_before(op, part)
    return part.results[0]


def _replace_results(op: Operation, values: list[SSAValue]) -> None:
    """A carrier may have a result where the call has none: nobody uses it."""
    if values:
        replace(op, values)
    else:
        erase(op)


# ---- parts ----------------------------------------------------------------------------------------------------------


def _name(op: Operation) -> str:
    return op.op_name.data if isinstance(op, UnregisteredOp) else op.name


def _pointers(module: ModuleOp) -> dict[int, Attribute]:
    """Which arguments of the kernel are pointers, and to what."""
    kernel = next(op for op in module.body.block.ops if isinstance(op, tt.FuncOp))
    types = enumerate(kernel.body.block.arg_types)
    return {index: type_.pointee for index, type_ in types if isinstance(type_, PointerLike)}


def _holds(memory: MemRefType, pointee: Attribute) -> bool:
    """Whether the adapter's memory has elements of this type; it keeps bits in bytes."""
    return memory.element_type == pointee or (pointee == i1 and memory.element_type == i8)


def _symbol(op: Operation) -> str:
    return op.properties["sym_name"].data  # pyright: ignore[reportAttributeAccessIssue]


def _site_of(op: Operation, name: str) -> int | None:
    """The number of the site that a carrier stands for, in either form."""
    if name == "func.call":
        callee = op.properties["callee"]
        return site_number(callee.root_reference.data) if isinstance(callee, SymbolRefAttr) else None
    if name == "tt.extern_elementwise":
        symbol = op.properties["symbol"]
        return site_number(symbol.data) if isinstance(symbol, StringAttr) else None
    return None


def _terminator(block: Block) -> Operation:
    last = block.last_op
    assert last is not None
    return last


def _is_offset(type_: Attribute) -> bool:
    element = type_.element_type if isinstance(type_, TensorType) else type_
    return isinstance(element, IndexType) or (isinstance(element, IntegerType) and element.bitwidth > 1)


def _reads_memory(op: Operation) -> bool:
    """Its results are what memory held."""
    return any(isinstance(operand.type, MemRefType) for operand in op.operands)


def _read_by(op: Operation) -> list[SSAValue]:
    """Operands of an operation and of all inside."""
    return [operand for inner in all_ops(op) for operand in inner.operands] if op.regions else list(op.operands)


def _root(pair: Sequence[_Base | None]) -> Root:
    return next(base.root for base in pair if base is not None)


def _address(base: _Base | None) -> object:
    return _HERE if base is None else base.address


_NO_ACCESS = (
    "no access of memory is left that goes through its result (a volatile load that nobody uses is deleted, and a loop "
    "that polls with it: wait with dl.wait)"
)


def _lost(site: Site, why: str) -> KernelError:
    return KernelError(
        f"{site}: cannot compile for Ascend: {why}, so it cannot be put back. "
        "Use the pointer where it is made, without passing it on through memory or casts to integers."
    )
