"""Phase 1: calls of the device library → opaque calls on integers, for an adapter that knows no `hivm.hir.custom`.

What the adapter must not understand travels as a call of a private function (`call`), or as `tt.extern_elementwise`
(`extern`): neither survives in every kernel, and it is a crash that tells. Both keep their place among effects.

A call that gives a pointer gives an integer on its way, by which the pointer that went in is advanced. `restore` finds
the accesses whose offset depends on that integer, which is where the memory belongs that the call returns.

Source: behaviour of triton-adapter-opt 3.2.0, found by trying.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from xdsl.dialects.builtin import (
    BoolAttr,
    FunctionType,
    IntegerType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    TensorType,
    i32,
)
from xdsl.ir import Attribute, Operation, Region, SSAValue

from tdist.errors import KernelError
from tdist.ir import hivm, tt
from tdist.ir.annotation import MarkOp
from tdist.ir.location import loc_of
from tdist.ir.pointer import PointerLike, element_type, is_block_pointer, is_scalar_pointer
from tdist.passes.base import erase, insert_before, replace
from tdist.passes.fold import make_constant
from tdist.platforms.ascend.lowering.offsets import Offsets, Place
from tdist.platforms.ascend.lowering.sites import Carried, PointerOperand, Root, Site, ValueOperand

LIBRARY = "tdist"


class Carrier(StrEnum):
    """As what a call travels."""

    CALL = "call"
    EXTERN = "extern"


def carry(module: ModuleOp, names: Sequence[str], carrier: Carrier) -> Carried:
    """A copy of `module` that holds nothing of the `hivm` dialect but what the adapter knows.

    Args:
        names: of the kernel's arguments, in order; for messages.

    Raises:
        KernelError: a pointer that does not come from one argument of the kernel; names the kernel's line.
    """
    module = module.clone()
    work = _Carry(module, carrier)
    for function in list(module.body.block.ops):
        if isinstance(function, tt.FuncOp):
            work.function(function, names)
    return Carried(module, tuple(work.sites))


class _Carry:
    def __init__(self, module: ModuleOp, carrier: Carrier) -> None:
        self.module = module
        self.carrier = carrier
        self.sites: list[Site] = []

    def function(self, function: tt.FuncOp, names: Sequence[str]) -> None:
        self.offsets = Offsets(function, names)
        self.offsets.rewrite(self._visit)

    def _visit(self, op: Operation) -> bool:
        if isinstance(op, hivm.CustomOp):
            self._site(op)
        elif isinstance(op, MarkOp):  # a hint for later stages, which see memory instead of tensors of pointers
            erase(op)
        elif op.name in ("scf.for", "scf.while"):
            _step_from_unconsumed(op)
            return False
        else:
            return False
        return True

    # -- sites

    def _site(self, op: hivm.CustomOp) -> None:
        gives_pointer = bool(op.outs) and isinstance(element_type(op.outs[0].type), PointerLike)
        if gives_pointer and not is_scalar_pointer(op.outs[0].type):
            self._tensor_site(op)
            return
        operands: list[PointerOperand | ValueOperand] = []
        values: list[SSAValue] = []
        for operand in op.inputs:
            operands.append(self._operand(op, operand, values))
        result = self._call(op, operands, values, gives_pointer)
        if not gives_pointer:
            replace(op, list(op.results) if result is None else [result])
            return
        assert result is not None
        replace(op, [_before(op, tt.AddPtrOp.create(operands=[op.inputs[0], result], result_types=[op.outs[0].type]))])

    def _operand(self, op: hivm.CustomOp, operand: SSAValue, values: list[SSAValue]) -> PointerOperand | ValueOperand:
        """How the site describes an operand; what travels of it is appended to `values`."""
        if is_scalar_pointer(operand.type):
            place = self.offsets.place(operand, op)
            return self._pointer(place, place.root, values)
        if not isinstance(operand.type, IntegerType) and not _is_float(operand.type):
            raise _error(op, f"an operand of type {operand.type} cannot pass the vendor's adapter")
        values.append(operand)
        return ValueOperand(len(values) - 1)

    def _pointer(self, place: Place, root: Root, values: list[SSAValue]) -> PointerOperand:
        if place.offset is None:
            return PointerOperand(root, None)
        values.append(place.offset)
        return PointerOperand(root, len(values) - 1)

    def _tensor_site(self, op: hivm.CustomOp) -> None:
        """A token that is consumed on many pointers at once: on the memory behind them."""
        source, token = op.inputs
        place = self.offsets.place(source, op)
        values: list[SSAValue] = []
        operands = [self._pointer(place, place.root, values), ValueOperand(len(values))]
        result = self._call(op, operands, [*values, token], gives_pointer=True)
        assert result is not None
        advanced = _advanced(op, source, result)
        self.offsets.remember(advanced, Place(place.base, place.root, result))
        destinations = list(op.outputs)
        replace(op, [advanced])
        for destination in destinations:
            if isinstance(destination.owner, Operation) and destination.first_use is None:
                erase(destination.owner)

    # -- carriers

    def _call(
        self,
        op: hivm.CustomOp,
        operands: Sequence[PointerOperand | ValueOperand],
        values: Sequence[SSAValue],
        gives_pointer: bool,
    ) -> SSAValue | None:
        kept = hivm.CustomOp(op.custom_name.data, dict(op.attributes), no_side_effect=op.no_side_effect is not None)
        kept.location = op.location
        types = [i32] if gives_pointer else list(op.result_types)
        site = Site(len(self.sites), kept, tuple(operands), gives_pointer, tuple(types))
        self.sites.append(site)
        made = _call_op(site, values) if self.carrier is Carrier.CALL else _extern_op(op, site, values)
        insert_before(op, made)
        if self.carrier is Carrier.CALL:
            self._declare(made, site, values)
        return made.results[0] if types else None

    def _declare(self, call: Operation, site: Site, values: Sequence[SSAValue]) -> None:
        from xdsl.dialects.func import FuncOp

        type_ = FunctionType.from_lists([value.type for value in values], list(call.result_types))
        declaration = FuncOp(site.carrier, type_, Region(), visibility="private")
        declaration.location = call.location
        block = self.module.body.block
        assert block.first_op is not None
        block.insert_op_before(declaration, block.first_op)


def _call_op(site: Site, values: Sequence[SSAValue]) -> Operation:
    from xdsl.dialects.func import CallOp

    return CallOp.create(
        operands=values,
        result_types=site.result_types,
        properties={"callee": SymbolRefAttr(site.carrier)},
    )


def _extern_op(op: Operation, site: Site, values: Sequence[SSAValue]) -> Operation:
    """It needs an operand and a result, of which some calls have none."""
    if not values:
        values = [_before(op, make_constant(0, i32))]
    return tt.ExternElementwiseOp.create(
        operands=values,
        result_types=site.result_types or [i32],
        properties={
            "libname": StringAttr(LIBRARY),
            "libpath": StringAttr(""),
            "symbol": StringAttr(site.carrier),
            "pure": BoolAttr.from_bool(False),
        },
    )


def _advanced(op: Operation, source: SSAValue, by: SSAValue) -> SSAValue:
    """A tensor of pointers or a block pointer, advanced by an integer."""
    if is_block_pointer(source.type):
        axes = len(source.type.pointee.get_shape())  # pyright: ignore[reportAttributeAccessIssue]
        zeros = [_before(op, make_constant(0, i32)) for _ in range(axes - 1)]
        return _before(op, tt.AdvanceOp.create(operands=[source, *zeros, by], result_types=[source.type]))
    assert isinstance(source.type, TensorType)
    many = TensorType(i32, source.type.get_shape(), source.type.encoding)
    splat = _before(op, tt.SplatOp.create(operands=[by], result_types=[many]))
    return _before(op, tt.AddPtrOp.create(operands=[source, splat], result_types=[source.type]))


# ---- loops that carry many pointers ---------------------------------------------------------------------------------


def _step_from_unconsumed(loop: Operation) -> None:
    """Let the pointers of the next turn be made from those before a token was consumed on them.

    A consumed pointer is the same address; but the adapter cannot see through the call, and gives up on a loop whose
    next pointers are not those of this turn plus a step.
    """
    for region in loop.regions:
        end = region.block.last_op
        assert end is not None
        for index, value in enumerate(end.operands):
            if isinstance(element_type(value.type), PointerLike) and not is_scalar_pointer(value.type):
                end.operands[index] = _unconsumed(value)
                _erase_steps(value)


def _unconsumed(value: SSAValue) -> SSAValue:
    op = value.owner
    if isinstance(op, hivm.CustomOp):
        return _unconsumed(op.inputs[0])
    if not isinstance(op, Operation) or op.name not in ("tt.addptr", "tt.advance"):
        return value
    before = _unconsumed(op.operands[0])
    if before is op.operands[0]:
        return value
    step = op.clone()
    step.operands[0] = before
    insert_before(op, step)
    return step.results[0]


def _erase_steps(value: SSAValue) -> None:
    """What made a value that nobody uses any more."""
    op = value.owner
    while isinstance(op, Operation) and op.name in ("tt.addptr", "tt.advance") and value.first_use is None:
        value = op.operands[0]
        erase(op)
        op = value.owner


# ---- parts ----------------------------------------------------------------------------------------------------------


def _before(op: Operation, new: Operation) -> SSAValue:
    insert_before(op, new)
    return new.results[0]


def _is_float(type_: Attribute) -> bool:
    from xdsl.dialects.builtin import AnyFloat

    return isinstance(type_, AnyFloat)


def _error(op: hivm.CustomOp, what: str) -> KernelError:
    return KernelError(f"{loc_of(op) or 'kernel'}: cannot compile {op.symbol} for Ascend: {what}.")
