"""Scalar pointers → distances from the kernel's arguments, traced through all that a kernel does with them.

triton-adapter-opt 3.2.0 takes a scalar pointer from an argument or from `tt.addptr` only. On one that travels through
`scf.if`, `scf.for`, `scf.while` or `arith.select` it crashes or forgets where it came from, in kernels of one card as
well. So such pointers travel as integers here, and are made again from the argument where they arrive. A tensor of
pointers that branches advance by one integer is advanced behind them, by the integer that comes out of the branches.

Distances are in elements. A single one keeps its width; sums and what travels have 64 bits, as addresses do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects.arith import AddiOp, ConstantOp, MuliOp, SubiOp
from xdsl.dialects.builtin import AnyFloat, DenseIntOrFPElementsAttr, IntegerType, ModuleOp, TensorType, i64
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from tdist.errors import KernelError
from tdist.ir import tt
from tdist.ir.arith import ExtSIOp, SelectOp
from tdist.ir.hivm import CustomOp
from tdist.ir.location import loc_of
from tdist.ir.pointer import PointerLike, is_scalar_pointer
from tdist.passes.base import all_ops, replace
from tdist.passes.fold import make_constant
from tdist.platforms.ascend.lowering.sites import Root

_SHAPES = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.make_tensor_ptr")
_STEPS = ("tt.addptr", "tt.advance")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pointer points: so many elements behind `base`, which is an argument or an argument of another type.

    Of a tensor of pointers and of a block pointer, `offset` is what its first scalar pointer had: not where it points,
    but an integer that depends on all calls that gave it its memory.
    """

    base: SSAValue
    root: Root
    offset: SSAValue | None


class Offsets:
    """The places of all pointers of one function; `rewrite` brings the function into the form that has them all."""

    def __init__(self, function: tt.FuncOp, names: Sequence[str]) -> None:
        self.function = function
        self.names = names
        self._places: dict[SSAValue, Place] = {}
        self._views: dict[Root, SSAValue] = {}
        for index, argument in enumerate(function.body.block.args):
            if is_scalar_pointer(argument.type):
                root = Root(index, _pointee(argument))
                self._views[root] = argument
                self._places[argument] = Place(argument, root, None)

    def rewrite(self, visit: Callable[[Operation], bool]) -> None:
        """Rewrite the whole function in program order; `visit` may deal with an operation itself and say so."""
        self._visit = visit
        self._block(self.function.body.block)

    def _block(self, block: Block) -> None:
        for op in list(block.ops):
            if self._visit(op):
                continue
            rewrite = _REWRITES.get(op.name)
            if rewrite is not None:
                rewrite(self, op)
                continue
            for region in op.regions:
                for inner in region.blocks:
                    self._block(inner)

    # -- places

    def place(self, value: SSAValue, user: Operation) -> Place:
        """Where `value`, a pointer of any kind that `user` takes, points.

        Raises:
            KernelError: it does not come from one argument of the kernel.
        """
        known = self._places.get(value)
        if known is None:
            known = self._places[value] = self._find(value, user)
        return known

    def remember(self, value: SSAValue, place: Place) -> None:
        """State where a value points that nothing else could tell."""
        self._places[value] = place

    def _find(self, value: SSAValue, user: Operation) -> Place:
        op = value.owner
        if isinstance(op, Block):
            return self._carried(value, user)
        if op.name == "tt.addptr" and is_scalar_pointer(value.type):
            before = self.place(op.operands[0], op)
            return Place(before.base, before.root, add(before.offset, op.operands[1], op))
        if op.name in _SHAPES or op.name in _STEPS:
            return self.place(op.operands[0], op)
        if op.name == "tt.bitcast":
            return self.place(op.operands[0], op)
        if op.name == "scf.for":
            index = op.results.index(value)  # pyright: ignore[reportArgumentType]
            return self.place(op.operands[3 + index], op)
        if op.name == "scf.while":
            return self._passed(op, op.results.index(value), user)  # pyright: ignore[reportArgumentType]
        raise _error(user, f"takes a pointer that comes from {_words(op)}, not from an argument of the kernel")

    def _carried(self, value: SSAValue, user: Operation) -> Place:
        """A tensor of pointers or a block pointer that a loop carries: what it began with."""
        assert isinstance(value, BlockArgument)
        loop = value.block.parent_op()
        if loop is not None and loop.name == "scf.for" and value.index > 0:
            return self.place(loop.operands[2 + value.index], loop)
        if loop is not None and loop.name == "scf.while":
            if value.block.parent is loop.regions[0]:
                return self.place(loop.operands[value.index], loop)
            return self._passed(loop, value.index, user)
        what = f"a pointer that {_words(loop)} carries" if loop is not None else "a pointer"
        raise _error(user, f"takes {what}, which cannot be followed to an argument of the kernel")

    def _passed(self, loop: Operation, index: int, user: Operation) -> Place:
        """What the condition of a `while` hands on, which must have been there before the loop."""
        place = self.place(_terminator(loop.regions[0].block).operands[1 + index], loop)
        if place.offset is not None and not is_outside(place.offset, loop):
            raise _error(user, "takes a pointer that comes out of the condition of a `while`")
        return place

    def offset64(self, value: SSAValue, before: Operation) -> SSAValue:
        """The distance of a scalar pointer as an i64; what that needs is put before an operation."""
        offset = self.place(value, before).offset
        if offset is None:
            return _put(before, make_constant(0, i64))
        return _wide(offset, lambda op: _put(before, op))

    def view(self, root: Root, like: Operation) -> SSAValue:
        """An argument as a pointer to elements of another type, made once at the head of the function."""
        known = self._views.get(root)
        if known is None:
            argument = self.function.body.block.args[root.argument]
            cast = tt.BitcastOp.create(operands=[argument], result_types=[tt.PointerType(root.element)])
            cast.location = like.location
            first = self.function.body.block.first_op
            assert first is not None
            self.function.body.block.insert_op_before(cast, first)
            known = self._views[root] = cast.results[0]
            self._places[known] = Place(known, root, None)
        return known

    def name(self, root: Root) -> str:
        """The name of the argument that a root is."""
        return self.names[root.argument]

    # -- merges

    def same_root(self, pointers: Sequence[SSAValue], op: Operation, what: str) -> Place:
        """The place of the first of `pointers`, all of which must come from one argument."""
        places = [self.place(pointer, op) for pointer in pointers]
        first = places[0]
        other = next((place for place in places if place.root != first.root), None)
        if other is None:
            return first
        if other.root.argument == first.root.argument:
            raise _error(op, f"{what} one pointer to {first.root.element} and one to {other.root.element}")
        raise _error(
            op,
            f"{what} pointers of two arguments, '{self.name(first.root)}' and '{self.name(other.root)}': nothing that "
            "the vendor's adapter takes can hold either. Access memory in each branch, or pass one buffer and select "
            "an offset into it",
        )

    def again(self, place: Place, offset: SSAValue, type_: Attribute, put: Callable[[Operation], None]) -> SSAValue:
        """A pointer made again from its travelled distance."""
        pointer = tt.AddPtrOp.create(operands=[place.base, offset], result_types=[type_])
        put(pointer)
        self._places[pointer.results[0]] = Place(place.base, place.root, offset)
        return pointer.results[0]

    def _select(self, op: Operation) -> None:
        condition, if_true, if_false = op.operands
        if not is_scalar_pointer(op.results[0].type):
            return
        place = self.same_root([if_true, if_false], op, "chooses between")
        chosen = SelectOp.create(
            operands=[condition, self.offset64(if_true, op), self.offset64(if_false, op)], result_types=[i64]
        )
        _put(op, chosen)
        pointer = self.again(place, chosen.results[0], op.results[0].type, lambda new: _put_only(op, new))
        replace(op, [pointer])

    def _if(self, op: Operation) -> None:
        for region in op.regions:
            for block in region.blocks:
                self._block(block)
        op = self._step_behind(op)
        pointers = _scalar_pointers(op.results)
        if not pointers:
            return
        yields = [_terminator(region.block) for region in op.regions]
        places = {k: self.same_root([end.operands[k] for end in yields], op, "merges") for k in pointers}
        for end in yields:
            self._send(end, {k: k for k in pointers})
        self._arrive(op, places)

    def _step_behind(self, op: Operation) -> Operation:
        """Tensors of pointers that branches advance by integers: the integers come out of the `if`, the step behind it.

        They are counted from where the tensor itself is counted from, so that they depend on the same calls in each
        branch. Other tensors of pointers stay as they are; the adapter crashes on them.
        """
        if not op.results:
            return op
        yields = [_terminator(region.block) for region in op.regions]
        found = {k: self._common_steps([end.operands[k] for end in yields], op) for k in range(len(op.results))}
        stepped = {k: each for k, each in found.items() if each is not None}
        if not stepped:
            return op
        for k, (_, start, sides) in stepped.items():
            for end, steps in zip(yields, sides, strict=True):
                end.operands[k] = _total(start, steps, end)
        new = with_result_types(op, [i64 if k in stepped else type_ for k, type_ in enumerate(op.result_types)])
        values: list[SSAValue] = list(new.results)
        for k, (source, start, _) in stepped.items():
            values[k] = _advance(source, start, new.results[k], op)
        replace(op, values)
        return new

    def _common_steps(
        self, values: Sequence[SSAValue], op: Operation
    ) -> tuple[SSAValue, SSAValue | None, list[list[_Step]]] | None:
        """The tensor of pointers from before `op` from which all `values` step; its offset; the steps of each value."""
        if not _are_pointers(values[0].type):
            return None
        traced = [_steps_back(value, op) for value in values]
        source = traced[0][0]
        if source is None or any(other is not source for other, _ in traced):
            return None
        try:
            start = self.place(source, op).offset
        except KernelError:  # counted from no argument
            return None
        return source, start, [steps for _, steps in traced]

    def _for(self, op: Operation) -> None:
        body = op.regions[0].block
        pointers = _scalar_pointers(op.results)
        places = {k: self.place(op.operands[3 + k], op) for k in pointers}
        self._send(op, {3 + k: k for k in pointers})
        self._receive(body, {1 + k: places[k] for k in pointers})
        self._block(body)
        self._close(op, _terminator(body), places, 0)
        if pointers:
            self._arrive(op, places)

    def _while(self, op: Operation) -> None:
        """Operands → arguments of the first region → operands of scf.condition → the second's, and results → yield."""
        before, after = (region.block for region in op.regions)
        carried = _scalar_pointers(before.args)
        entry = {k: self.place(op.operands[k], op) for k in carried}
        self._send(op, {k: k for k in carried})
        self._receive(before, entry)
        self._block(before)
        condition = _terminator(before)
        passed = _scalar_pointers(op.results)
        places = {k: self.place(condition.operands[1 + k], op) for k in passed}
        self._send(condition, {1 + k: k for k in passed})
        self._receive(after, places)
        self._block(after)
        self._close(op, _terminator(after), entry, 0)
        if passed:
            self._arrive(op, places)

    def _close(self, loop: Operation, end: Operation, entry: dict[int, Place], first: int) -> None:
        """The pointers at the end of a turn must count from where they counted at its beginning."""
        for k, place in entry.items():
            self.same_root([place.base, end.operands[first + k]], loop, "carries, from one turn to the next,")
        self._send(end, {first + k: k for k in entry})

    def _send(self, op: Operation, indices: dict[int, int]) -> None:
        for index in indices:
            op.operands[index] = self.offset64(op.operands[index], op)

    def _receive(self, block: Block, places: dict[int, Place]) -> None:
        for index, place in places.items():
            old = block.args[index]
            new = block.insert_arg(i64, index)
            new.location = old.location
            first = block.first_op
            assert first is not None
            pointer = self.again(place, new, old.type, lambda made, at=first: _put_only(at, made))
            pointer.name_hint = old.name_hint
            old.replace_all_uses_with(pointer)
            block.erase_arg(old)

    def _arrive(self, op: Operation, places: dict[int, Place]) -> None:
        """`op` with integers in the place of its pointers; the pointers behind it."""
        types = [i64 if k in places else type_ for k, type_ in enumerate(op.result_types)]
        new = with_result_types(op, types)
        values: list[SSAValue] = list(new.results)
        block, after = new.parent, new.next_op
        assert block is not None and after is not None
        for k, place in places.items():
            values[k] = self.again(place, new.results[k], op.results[k].type, lambda made: _put_only(after, made))
        replace(op, values)

    def _bitcast(self, op: Operation) -> None:
        """A pointer to other elements, made again from the argument as a pointer to those elements."""
        if not is_scalar_pointer(op.results[0].type) or not is_scalar_pointer(op.operands[0].type):
            return
        try:
            before = self.place(op.operands[0], op)
        except KernelError:  # a pointer out of an integer or of memory is counted from nothing: it stays a pointer
            return
        root = Root(before.root.argument, _pointee(op.results[0]))
        base = self.view(root, op)
        if before.offset is None:
            replace(op, [base])
            return
        offset = self._rescale(op, before, root)
        pointer = self.again(Place(base, root, None), offset, base.type, lambda made: _put_only(op, made))
        replace(op, [pointer])

    def _rescale(self, op: Operation, before: Place, root: Root) -> SSAValue:
        assert before.offset is not None
        have, want = _bytes(before.root.element), _bytes(root.element)
        if have == want:
            return before.offset
        if have is None or want is None or have % want:
            raise _error(
                op,
                f"makes a pointer to {root.element} out of one to {before.root.element} that is already advanced: "
                "its distance is no whole number of the new elements. Cast the argument, then advance",
            )
        wide = _wide(before.offset, lambda new: _put(op, new))
        factor = _put(op, make_constant(have // want, i64))
        return _put(op, MuliOp.create(operands=[wide, factor], result_types=[i64]))


_REWRITES: dict[str, Callable[[Offsets, Operation], None]] = {
    "arith.select": Offsets._select,
    "scf.if": Offsets._if,
    "scf.for": Offsets._for,
    "scf.while": Offsets._while,
    "tt.bitcast": Offsets._bitcast,
}


_Step = SSAValue | int


def _are_pointers(type_: Attribute) -> bool:
    return isinstance(type_, TensorType) and isinstance(type_.element_type, PointerLike)


def _steps_back(value: SSAValue, op: Operation) -> tuple[SSAValue | None, list[_Step]]:
    steps: list[_Step] = []
    while not is_outside(value, op):
        made = value.owner
        step = _one_number(made.operands[1]) if isinstance(made, Operation) and made.name == "tt.addptr" else None
        if step is None or isinstance(made, Block):
            return None, []
        steps.append(step)
        value = made.operands[0]
    return value, steps


def _one_number(offsets: SSAValue) -> _Step | None:
    """The integer that every element of a tensor is."""
    made = offsets.owner
    if isinstance(made, Operation) and made.name == "tt.splat":
        return made.operands[0]
    if isinstance(made, ConstantOp) and isinstance(made.value, DenseIntOrFPElementsAttr) and made.value.is_splat():
        number = next(iter(made.value.get_values()))
        return number if isinstance(number, int) else None
    return None


def _total(start: SSAValue | None, steps: Sequence[_Step], before: Operation) -> SSAValue:
    numbers = [step for step in steps if isinstance(step, int)]
    values = [step for step in (start, *steps) if isinstance(step, SSAValue)]
    total = _put(before, make_constant(sum(numbers), i64))
    for value in values:
        wide = _wide(value, lambda op: _put(before, op))
        total = _put(before, AddiOp.create(operands=[total, wide], result_types=[i64]))
    return total


def _advance(source: SSAValue, start: SSAValue | None, total: SSAValue, before: Operation) -> SSAValue:
    """A tensor of pointers, advanced by what `total` is more than `start`."""
    if start is not None:
        wide = _wide(start, lambda op: _put(before, op))
        total = _put(before, SubiOp.create(operands=[total, wide], result_types=[i64]))
    assert isinstance(source.type, TensorType)
    many = TensorType(i64, source.type.get_shape(), source.type.encoding)
    step = _put(before, tt.SplatOp.create(operands=[total], result_types=[many]))
    return _put(before, tt.AddPtrOp.create(operands=[source, step], result_types=[source.type]))


_MERGES = ("arith.select", "scf.if", "scf.for", "scf.while")


def needs_offsets(module: ModuleOp) -> bool:
    """Whether the adapter crashes on a scalar pointer of this kernel, or takes it for another.

    One comes out of a branch, a loop or a choice; or an advanced one becomes a pointer to elements of another size,
    whose distance the adapter goes on counting in the old ones.
    """
    return any(_merges(op) or _is_resized(op) for op in all_ops(module))


def _merges(op: Operation) -> bool:
    if op.name == "scf.if" and any(_are_pointers(type_) for type_ in op.result_types):
        return True
    return op.name in _MERGES and bool(_scalar_pointers(op.results))


def _is_resized(op: Operation) -> bool:
    if op.name != "tt.bitcast" or not is_scalar_pointer(op.results[0].type):
        return False
    source, result = op.operands[0], op.results[0]
    return not isinstance(source, BlockArgument) and _bytes(_pointee(source)) != _bytes(_pointee(result))


def add(left: SSAValue | None, right: SSAValue, after: Operation) -> SSAValue:
    """The sum of two distances, put behind an operation."""
    if left is None:
        return right
    last = after

    def put(op: Operation) -> SSAValue:
        nonlocal last
        block = last.parent
        assert block is not None
        op.location = after.location
        block.insert_op_after(op, last)
        last = op
        return op.results[0]

    return put(AddiOp.create(operands=[_wide(left, put), _wide(right, put)], result_types=[i64]))


def is_outside(value: SSAValue, op: Operation) -> bool:
    """Whether a value is made outside of the regions of `op`."""
    block = value.owner if isinstance(value.owner, Block) else value.owner.parent
    inside = {id(inner) for region in op.regions for inner in region.blocks}
    while block is not None:
        if id(block) in inside:
            return False
        parent = block.parent_op()
        block = None if parent is None else parent.parent
    return True


def with_result_types(op: Operation, types: Sequence[Attribute]) -> Operation:
    """A twin of `op` before it, with other result types, its regions moved over. `op` is left without."""
    new = type(op).create(
        operands=list(op.operands),
        result_types=types,
        properties=dict(op.properties),
        attributes=dict(op.attributes),
        regions=[op.detach_region(region) for region in list(op.regions)],
    )
    _put_only(op, new)
    for old, result in zip(op.results, new.results, strict=False):
        result.name_hint = old.name_hint
    return new


def _wide(value: SSAValue, put: Callable[[Operation], SSAValue]) -> SSAValue:
    if value.type == i64:
        return value
    return put(ExtSIOp.create(operands=[value], result_types=[i64]))


def _put_only(before: Operation, op: Operation) -> None:
    block = before.parent
    assert block is not None
    op.location = before.location
    block.insert_op_before(op, before)


def _put(before: Operation, op: Operation) -> SSAValue:
    _put_only(before, op)
    return op.results[0]


def _scalar_pointers(values: Sequence[SSAValue]) -> list[int]:
    return [k for k, value in enumerate(values) if is_scalar_pointer(value.type)]


def _terminator(block: Block) -> Operation:
    last = block.last_op
    assert last is not None
    return last


def _pointee(pointer: SSAValue) -> Attribute:
    return pointer.type.pointee  # pyright: ignore[reportAttributeAccessIssue]


def _bytes(element: Attribute) -> int | None:
    if isinstance(element, IntegerType | AnyFloat):
        return max(8, element.bitwidth) // 8
    return None


_WORDS = {
    "tt.int_to_ptr": "an integer",
    "tt.load": "memory",
    "scf.if": "`if`",
    "scf.for": "`for`",
    "scf.while": "`while`",
    "arith.select": "a choice",
    "tt.bitcast": "a cast",
}


def _words(op: Operation) -> str:
    return op.symbol if isinstance(op, CustomOp) else _WORDS.get(op.name, op.name)


def _error(op: Operation, what: str) -> KernelError:
    return KernelError(f"{loc_of(op) or 'kernel'}: cannot compile for Ascend: {_words(op)} {what}.")
