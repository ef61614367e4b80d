"""What a user would change in a kernel, done to its prepared form: so that a cure can be compiled and checked again.

Each rewrite takes a prepared kernel and gives a changed copy, or None where it does not apply. It acts at given places
of the source, or at all signals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from xdsl.dialects import scf
from xdsl.dialects.builtin import FunctionType, IntegerAttr, ModuleOp, StringAttr, UnitAttr, i1, i32, i64
from xdsl.ir import Attribute, Block, Operation, ParametrizedAttribute, Region, SSAValue
from xdsl.rewriter import Rewriter

from tdist.frontend.kernel_ir import KernelArg
from tdist.ir import hivm
from tdist.ir.arith import CmpiOp, ExtSIOp
from tdist.ir.location import SourceLoc, loc_of, set_loc
from tdist.ir.pointer import PointerLike
from tdist.passes.base import all_ops, erase, insert_before
from tdist.passes.base import replace as replace_op
from tdist.passes.fold import make_constant
from tdist.platforms.ascend.effects_in_code import (
    DRAIN,
    SIGNAL,
    WAIT,
    Call,
    Code,
    constant,
    handed_over,
    kind_of_symbol,
    written,
)
from tdist.platforms.ascend.lowering.prepare import LoweredCall, Prepared
from tdist.platforms.ascend.provenance import TRANSLATE, bases, enclosing, full_name, library_symbol

FENCE, POINT_WRITE = "aclshmem_fence", "aclshmem_int32_p"
_EQUAL = 0

Rewrite = Callable[[Prepared, Collection[SourceLoc]], "Prepared | None"]


def changed(prepared: Prepared, module: ModuleOp, args: tuple[KernelArg, ...] | None = None) -> Prepared:
    """`prepared` with another module; its list of calls is made anew."""
    customs = [op for op in all_ops(module) if isinstance(op, hivm.CustomOp) and op.is_distributed]
    calls = tuple(LoweredCall(op.symbol, loc_of(op), core_type(op)) for op in customs)
    return replace(prepared, module=module, calls=calls, args=args or prepared.args)


def core_type(op: hivm.CustomOp) -> hivm.TCoreType:
    """The cores that a call was lowered for."""
    core = op.attributes[hivm.CORE_TYPE]
    assert isinstance(core, hivm.TCoreTypeAttr)
    return core.data


def _call_like(
    model: hivm.CustomOp, symbol: str, inputs: Collection[SSAValue] = (), core: hivm.TCoreType | None = None
) -> hivm.CustomOp:
    """A call with the attributes of another one, at its place in the source."""
    attributes = {**model.attributes, hivm.SYMBOL: StringAttr(symbol)}
    if core is not None:
        attributes[hivm.CORE_TYPE] = hivm.TCoreTypeAttr(core)
    attributes.pop(hivm.GM_ADDRESSES, None)
    call = hivm.CustomOp(f"dist.{symbol}", attributes, inputs=list(inputs))
    set_loc(call, loc_of(model))
    return call


def _signals(code: Code, places: Collection[SourceLoc]) -> list[Call]:
    """The signals at some places of the source; all of them if there is none at any."""
    all_signals = [call for call in code.calls if call.kind == SIGNAL]
    return [call for call in all_signals if call.loc in places] or all_signals


# ---- drains ----------------------------------------------------------------------------------------------------------


def fence_before_signals(prepared: Prepared, places: Collection[SourceLoc]) -> Prepared | None:
    """A fence in front of each signal that has none."""
    return _before_signals(prepared, places, lambda call: _call_like(call, FENCE))


def pipe_barrier_before_signals(prepared: Prepared, places: Collection[SourceLoc]) -> Prepared | None:
    """A barrier of all pipes, which is no call of the library, in front of each signal that has no fence."""

    def barrier(call: hivm.CustomOp) -> Operation:
        op = hivm.PipeBarrierOp.create(properties={"pipe": hivm.PipeAttr(hivm.Pipe.ALL)})
        set_loc(op, loc_of(call))
        return op

    return _before_signals(prepared, places, barrier)


def _before_signals(
    prepared: Prepared, places: Collection[SourceLoc], make: Callable[[hivm.CustomOp], Operation]
) -> Prepared | None:
    module = prepared.module.clone()
    signals = [call for call in _signals(written(module), places) if not _is_drain(_before(call.op))]
    for call in signals:
        assert isinstance(call.op, hivm.CustomOp)
        insert_before(call.op, make(call.op))
    return changed(prepared, module) if signals else None


def _before(op: Operation) -> Operation | None:
    """What stands before `op` in its block, address arithmetic left aside."""
    before = op.prev_op
    while before is not None and _is_arithmetic(before):
        before = before.prev_op
    return before


def _is_drain(op: Operation | None) -> bool:
    return op is not None and kind_of_symbol(library_symbol(op)) == DRAIN


def fence_after_waits(prepared: Prepared, places: Collection[SourceLoc]) -> Prepared | None:
    """A fence behind each wait: what the data cache holds is thrown away."""
    module = prepared.module.clone()
    waits = [call for call in written(module).calls if call.kind == WAIT and not _is_drain(call.op.next_op)]
    for call in waits:
        following = call.op.next_op
        assert isinstance(call.op, hivm.CustomOp) and following is not None
        insert_before(following, _call_like(call.op, FENCE))
    return changed(prepared, module) if waits else None


def no_fence_before_signals(prepared: Prepared, places: Collection[SourceLoc]) -> Prepared | None:
    """Without the fences directly in front of signals."""
    module = prepared.module.clone()
    drains = [before for call in _signals(written(module), places) if _is_drain(before := _before(call.op))]
    for drain in drains:
        assert drain is not None
        erase(drain)
    return changed(prepared, module) if drains else None


# ---- signal words ----------------------------------------------------------------------------------------------------


def wide_signals(prepared: Prepared, places: Collection[SourceLoc]) -> Prepared | None:
    """Signal words of 64 bits: a SET becomes `aclshmem_int64_p`, a wait `aclshmem_wait_int64`."""
    module = prepared.module.clone()
    code = written(module)
    arguments = {
        base.argument
        for call in _signals(code, places)
        if call.symbol == "aclshmemx_signal_op" and constant(call.op.operands[2]) == 0
        for base in bases(call.op.operands[0])
    }
    function = next((op for op in all_ops(module) if full_name(op) == "tt.func"), None)
    if function is None or not arguments or None in arguments:
        return None
    try:
        for argument in arguments:
            assert argument is not None
            _widen_argument(function, argument)
    except _DoesNotApply:
        return None
    args = tuple(replace(arg, type="*i64") if index in arguments else arg for index, arg in enumerate(prepared.args))
    return changed(prepared, module, args)


def signed_signals(prepared: Prepared, places: Collection[SourceLoc]) -> Prepared | None:
    """Signal words int64 where they are uint64: the vendor's compiler knows the signed point writes only."""
    return _other_calls(prepared, places, "aclshmem_uint64_p", "aclshmem_int64_p", lambda inputs: inputs)


def point_writes(prepared: Prepared, places: Collection[SourceLoc]) -> Prepared | None:
    """`int_p` in place of a notify that sets an int32 word: a point write follows the core of its data."""

    def without_operation(inputs: list[SSAValue]) -> list[SSAValue] | None:
        word, value, operation, pe = inputs
        return [word, value, pe] if constant(operation) == 0 else None

    return _other_calls(prepared, places, "aclshmemx_signal_op", POINT_WRITE, without_operation)


def _other_calls(
    prepared: Prepared,
    places: Collection[SourceLoc],
    symbol: str,
    other: str,
    change: Callable[[list[SSAValue]], list[SSAValue] | None],
) -> Prepared | None:
    """Signals by one function made by another; None if one of them cannot be."""
    module = prepared.module.clone()
    calls = [call.op for call in _signals(written(module), places) if call.symbol == symbol]
    for op in calls:
        assert isinstance(op, hivm.CustomOp)
        inputs = change(list(op.inputs))
        if inputs is None:
            return None
        replace_op(op, list(_inserted(op, other, inputs).results))
    return changed(prepared, module) if calls else None


class _DoesNotApply(Exception):
    pass


def _widen_argument(function: Operation, index: int) -> None:
    entry = function.regions[0].blocks.first
    assert entry is not None
    _widen(entry.args[index])
    results = function.properties["function_type"]
    assert isinstance(results, FunctionType)
    function.properties["function_type"] = FunctionType.from_lists(list(entry.arg_types), list(results.outputs))


def _widen(value: SSAValue) -> None:
    """Make an address of 32-bit words, and all that is derived from it, one of 64-bit words."""
    if not isinstance(value.type, PointerLike) or value.type.pointee != i32:
        raise _DoesNotApply
    new = Rewriter.replace_value_with_new_type(value, _pointer_to_i64(value.type))
    for use in list(new.uses):
        op = use.operation
        if full_name(op) == "tt.addptr" and use.index == 0:
            _widen(op.results[0])
        elif isinstance(op, hivm.CustomOp):
            _widen_call(op)
        else:
            raise _DoesNotApply


def _pointer_to_i64(type_: PointerLike) -> Attribute:
    assert isinstance(type_, ParametrizedAttribute)
    return type_.new([i64, *type_.parameters[1:]])


def _widen_call(op: hivm.CustomOp) -> None:
    word, *rest = op.inputs
    if op.symbol == "aclshmemx_signal_op" and constant(rest[1]) == 0:
        replace_op(op, list(_inserted(op, "aclshmem_int64_p", [word, _as_i64(op, rest[0]), rest[2]]).results))
    elif op.symbol == "aclshmem_wait_int32":
        widened = _inserted(op, "aclshmem_wait_int64", [word, rest[0], _as_i64(op, rest[1])], op)
        replace_op(op, list(widened.results))
    else:
        raise _DoesNotApply


def _inserted(
    op: hivm.CustomOp, symbol: str, inputs: list[SSAValue], results: hivm.CustomOp | None = None
) -> hivm.CustomOp:
    attributes = {**op.attributes, hivm.SYMBOL: StringAttr(symbol)}
    types = [] if results is None else list(results.result_types)
    call = hivm.CustomOp(f"dist.{symbol}", attributes, inputs=inputs, result_types=types)
    set_loc(call, loc_of(op))
    insert_before(op, call)
    return call


def _as_i64(op: Operation, value: SSAValue) -> SSAValue:
    if value.type == i64:
        return value
    wide = ExtSIOp.create(operands=[value], result_types=[i64])
    insert_before(op, wide)
    return wide.results[0]


def signals_behind_their_data(prepared: Prepared, places: Collection[SourceLoc]) -> Prepared | None:
    """Each signal directly behind the last access that it hands over, where both stand in one block."""
    module = prepared.module.clone()
    code = written(module)
    done = [_move_up(code, call) for call in _signals(code, places)]
    return changed(prepared, module) if any(done) else None


def _move_up(code: Code, call: Call) -> bool:
    block = call.op.parent_block()
    data = [head for access in handed_over(code, call) if block and (head := _ancestor_in(block, access.op))]
    if block is None or not data:
        return False
    order = {op: number for number, op in enumerate(block.ops)}
    last = max(data, key=order.__getitem__)
    between = [op for op in block.ops if order[last] < order[op] < order[call.op]]
    needed = _needed(call.op, set(between))
    if len(between) == len(needed) or not all(_is_arithmetic(op) for op in needed):
        return False
    for op in (*sorted(needed, key=order.__getitem__, reverse=True), call.op):
        op.detach()
    current = last
    for op in (*sorted(needed, key=order.__getitem__), call.op):
        block.insert_op_after(op, current)
        current = op
    return True


def _needed(op: Operation, among: set[Operation]) -> set[Operation]:
    """The operations among some that make the operands of `op`."""
    found: set[Operation] = set()
    todo = [op]
    while todo:
        for operand in todo.pop().operands:
            owner = operand.owner
            if isinstance(owner, Operation) and owner in among and owner not in found:
                found.add(owner)
                todo.append(owner)
    return found


def _is_arithmetic(op: Operation) -> bool:
    return not op.regions and full_name(op).startswith(("arith.", "tt.addptr"))


# ---- one vector core -------------------------------------------------------------------------------------------------


def gated(prepared: Prepared, places: Collection[SourceLoc]) -> Prepared | None:
    """Each signal, with the stores that it hands over, under `if sub_vec_id() == 0:`."""
    module = prepared.module.clone()
    code = written(module)
    done = [_gate(code, call) for call in _signals(code, places)]
    if not any(done):
        return None
    module.attributes[hivm.NO_SUB_BLOCK_BINDING] = UnitAttr()
    return changed(prepared, module)


def _gate(code: Code, call: Call) -> bool:
    block = call.op.parent_block()
    if block is None or _is_gated(call.op):
        return False
    heads = [head for access in handed_over(code, call) if (head := _ancestor_in(block, access.op)) is not None]
    first = min(heads, key=lambda op: list(block.ops).index(op), default=call.op)
    stretch = list(_stretch(first, call.op))
    if _used_outside(stretch):
        return False
    _wrap(stretch)
    return True


def _is_gated(op: Operation) -> bool:
    """Whether a branch around `op` depends on the vector core."""
    conditions = [outer.operands[0] for outer in enclosing(op) if full_name(outer) == "scf.if"]
    return any(_made_of_sub_block(condition) for condition in conditions)


def _made_of_sub_block(value: SSAValue) -> bool:
    owner = value.owner
    if not isinstance(owner, Operation):
        return False
    return isinstance(owner, hivm.GetSubBlockIdxOp) or any(_made_of_sub_block(operand) for operand in owner.operands)


def _ancestor_in(block: Block, op: Operation) -> Operation | None:
    return next((outer for outer in (op, *enclosing(op)) if outer.parent_block() is block), None)


def _stretch(first: Operation, last: Operation) -> Iterator[Operation]:
    current: Operation | None = first
    while current is not None:
        yield current
        if current is last:
            return
        current = current.next_op


def _used_outside(stretch: list[Operation]) -> bool:
    inside = {inner for op in stretch for inner in all_ops(op)}
    return any(use.operation not in inside for op in stretch for result in op.results for use in result.uses)


def _wrap(stretch: list[Operation]) -> None:
    first = stretch[0]
    index = hivm.GetSubBlockIdxOp()
    zero = make_constant(0, i64)
    for op in (index, zero):
        insert_before(first, op)
    equal = CmpiOp.create(
        operands=[index.result, zero.results[0]],
        result_types=[i1],
        properties={"predicate": IntegerAttr(_EQUAL, i64)},
    )
    insert_before(first, equal)
    body = Block()
    branch = scf.IfOp(equal.results[0], [], Region(body), Region())
    insert_before(first, branch)
    for op in stretch:
        op.detach()
        body.add_op(op)
    body.add_op(scf.YieldOp())


# ---- addresses and flags ---------------------------------------------------------------------------------------------


def local_addresses(prepared: Prepared, places: Collection[SourceLoc]) -> Prepared | None:
    """Signals on the local address instead of one that `symm_at` has translated."""
    module = prepared.module.clone()
    done = [_untranslate(call.op) for call in written(module).calls if call.kind == SIGNAL and call.loc in places]
    return changed(prepared, module) if any(done) else None


def _untranslate(op: Operation) -> bool:
    """Rebuild the first operand with the address that was translated in place of the translation."""
    chain: list[Operation] = []
    owner = op.operands[0].owner
    while isinstance(owner, Operation) and full_name(owner) == "tt.addptr":
        chain.append(owner)
        owner = owner.operands[0].owner
    if not isinstance(owner, hivm.CustomOp) or not owner.symbol.startswith(TRANSLATE):
        return False
    address = owner.inputs[0]
    for link in reversed(chain):
        local = link.clone()
        local.operands[0] = address
        insert_before(op, local)
        address = local.results[0]
    op.operands[0] = address
    for unused in [*chain, owner]:
        if not any(True for result in unused.results for _ in result.uses):
            erase(unused)
    return True


def flags_by_point_write(prepared: Prepared, places: Collection[SourceLoc]) -> Prepared | None:
    """`tl.atomic_xchg(flag, value)` whose result nobody uses as `int_p(flag, value, my_pe())`."""
    module = prepared.module.clone()
    ops = all_ops(module)
    exchanges = [
        op
        for op in ops
        if full_name(op) == "tt.atomic_rmw"
        and loc_of(op) in places
        and not any(result.uses.get_length() for result in op.results)
    ]
    for op in exchanges:
        _point_write(op, prepared)
    return changed(prepared, module) if exchanges else None


def _point_write(op: Operation, prepared: Prepared) -> None:
    core = hivm.TCoreType.CUBE_AND_VECTOR if prepared.has_dot else hivm.TCoreType.VECTOR
    attributes = {
        hivm.IS_DISTRIBUTED: UnitAttr(),
        hivm.PIPE: hivm.PipeAttr(hivm.Pipe.S),
        hivm.CORE_TYPE: hivm.TCoreTypeAttr(core),
        hivm.VF_MODE: hivm.VFModeAttr(hivm.VFMode.SIMD),
    }
    me = hivm.CustomOp(
        "dist.aclshmem_my_pe",
        {**attributes, hivm.SYMBOL: StringAttr("aclshmem_my_pe")},
        result_types=[i32],
        no_side_effect=True,
    )
    word, value = op.operands[0], op.operands[1]
    put = hivm.CustomOp(
        f"dist.{POINT_WRITE}", {**attributes, hivm.SYMBOL: StringAttr(POINT_WRITE)}, inputs=[word, value, me.results[0]]
    )
    for new in (me, put):
        set_loc(new, loc_of(op))
        insert_before(op, new)
    erase(op)


@dataclass(frozen=True)
class Named:
    """A rewrite and what a user does for it."""

    id: str
    does: str
    apply: Rewrite


REWRITES = {
    row.id: row
    for row in (
        Named("fence", "`libshmem_device.fence()` before the signal", fence_before_signals),
        Named(
            "pipe-barrier",
            "a barrier of all pipes before the signal (no call of the language makes one)",
            pipe_barrier_before_signals,
        ),
        Named("fence-after-wait", "`libshmem_device.fence()` after the wait", fence_after_waits),
        Named("no-fence", "no fence before the signal", no_fence_before_signals),
        Named("int64", "signal words of 64 bits", wide_signals),
        Named("signed", "signal words int64 instead of uint64", signed_signals),
        Named("point-write", "`libshmem_device.int_p` in place of the notify", point_writes),
        Named("close", "the signal directly behind the store", signals_behind_their_data),
        Named("gate", "stores and signal under `if sub_vec_id() == 0:`", gated),
        Named("local-address", "the local address, not that of symm_at", local_addresses),
        Named("int_p", "`libshmem_device.int_p(flag, value, my_pe())`", flags_by_point_write),
    )
}

__all__ = ["REWRITES", "Named", "Rewrite", "changed"]
