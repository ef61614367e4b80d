"""`distributed.*` → `hivm.hir.custom`: each operation becomes a call of ACLSHMEM's device library, by symbol.

Everything else stays as it is: the vendor's compiler for one card takes over from here. The symbols are looked up in
`tdist.platforms.ascend.symbols`, which knows the library; this pass knows the dialect.

Where the sources leave a choice:

- A kernel without `tl.dot` that calls `barrier_all` is a mix kernel, for that barrier runs on both kinds of core.
  AscendNPU-IR 1.2.0 crashes when it splits a mix kernel in which a call with a result is for vector cores only, so such
  calls are for both there. Calls without a result stay with the vector cores, so signals are not doubled.
- `hivm.disable_auto_tile_and_bind_subblock` keeps the vendor from running a barrier on one of two vector cores only,
  which would hang: it is set where a mix kernel has a barrier. Also where a kernel asks for `sub_vec_id()`, as the
  vendor's own front end does; our carriers pass that by.
- `ADD` on a 64-bit word is an error: the library's `_p` functions only store. It never becomes a `SET`.
- The library's operands are 32-bit tokens, 32-bit signals and 64-bit counts; a conversion stands before the call where
  the dialect has another width. SET and ADD are 0 and 1 there, 1 and 2 in the dialect.
- A token that is consumed on a tensor of values orders nothing (the values are on chip already) and has no symbol: the
  tensor itself stays, and the report says so.

Source: architecture document, section 3; the public sources of Triton-distributed and AscendNPU-IR for operand order,
the continuity mark, and the module attribute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import (
    BFloat16Type,
    DenseArrayBase,
    Float16Type,
    Float32Type,
    IntegerType,
    ModuleOp,
    StringAttr,
    TensorType,
    UnitAttr,
    UnregisteredOp,
    i32,
    i64,
)
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from tdist.errors import KernelError
from tdist.ir import distributed as dist
from tdist.ir import hivm
from tdist.ir.annotation import CONTIGUOUS_ACCESS, MarkOp
from tdist.ir.arith import ExtSIOp, TruncIOp
from tdist.ir.effects import Effects, effects
from tdist.ir.location import loc_of
from tdist.ir.pointer import PointerLike, element_type, is_block_pointer, is_scalar_pointer
from tdist.passes.base import KernelPass, all_ops, insert_before, replace
from tdist.passes.fold import make_constant
from tdist.passes.lift_carriers import SIGNAL_TYPE
from tdist.passes.report import CompileReport, LostOp

TYPE_NAMES: dict[Attribute, str] = {
    Float16Type(): "half",
    BFloat16Type(): "bfloat16",
    Float32Type(): "float",
    **{IntegerType(bits): f"int{bits}" for bits in (8, 16, 32, 64)},
}
"""How the library's symbols spell an element type. TTIR's integers have no sign; neither does what a symbol does."""

MAX_POINTER_RANK = 5
"""Tensors of pointers of more dimensions have no `consume_token`."""

CORE_TYPES: tuple[tuple[str, hivm.TCoreType], ...] = (
    ("aclshmem_barrier_all", hivm.TCoreType.CUBE_AND_VECTOR),
    ("aclshmemx_barrier_all_vec", hivm.TCoreType.VECTOR),
    ("aclshmem_putmem", hivm.TCoreType.VECTOR),
    ("aclshmem_getmem", hivm.TCoreType.VECTOR),
)
"""Prefix of a symbol without its type name → core type. `putmem` covers `_nbi`, `_signal` and `_signal_nbi`."""

_TYPE_INFIX = re.compile(r"(?<=^aclshmem_)(?:half|float|bfloat16|char|u?int(?:8|16|32|64))_(?=(?:put|get)mem)")
_DOTS = ("tt.dot", "tt.dot_scaled")
_MEETINGS = ("aclshmem_barrier", "aclshmemx_barrier")
_WITHOUT_OPERANDS = ("aclshmem_my_pe", "aclshmem_n_pes")
_OURS = "tdist."
_LIBRARY_SIGNAL_OP = {"set": 0, "add": 1}


@dataclass(frozen=True)
class ConvertTritonDistributedToHivmPass(KernelPass):
    """Lower every `distributed.*` operation to a call of the device library (`hivm.hir.custom`)."""

    name = "convert-triton-distributed-to-hivm"

    def transform(self, module: ModuleOp, report: CompileReport) -> None:
        """See `KernelPass`. Consumed tokens that the library has no place for go to `report.lost`.

        Raises:
            KernelError: An operation that the device library cannot do (an element type, a signal operation, a tensor
                of pointers where one pointer is needed); names the kernel's file and line.
        """
        ops = all_ops(module)
        cores = _Cores.of(ops)
        if cores.sub_blocks_must_meet:
            module.attributes[hivm.NO_SUB_BLOCK_BINDING] = UnitAttr()
        for op in ops:
            if op.name == "distributed.consume_token" and _is_tensor_of_values(op.operands[0].type):
                _drop_token(op, report)
            elif (lower := _LOWERINGS.get(op.name)) is not None:
                _replace_by_call(op, lower(op), cores)


# ---- which cores ----------------------------------------------------------------------------------------------------


def core_type_of_symbol(symbol: str) -> hivm.TCoreType | None:
    """Which cores the prefix table demands for `symbol`, whichever side of `putmem` its type name stands on."""
    untyped = _TYPE_INFIX.sub("", symbol)
    return next((core for prefix, core in CORE_TYPES if untyped.startswith(prefix)), None)


@dataclass(frozen=True)
class _Cores:
    """What decides on which cores the calls of one module run."""

    has_dot: bool
    has_barrier_on_both: bool
    sub_blocks_must_meet: bool

    @classmethod
    def of(cls, ops: Sequence[Operation]) -> _Cores:
        symbols = [op.symbol.data for op in ops if isinstance(op, dist.ExternCallOp)]
        has_dot = any(_full_name(op) in _DOTS for op in ops)
        on_both = any(core_type_of_symbol(symbol) is hivm.TCoreType.CUBE_AND_VECTOR for symbol in symbols)
        meets = any(symbol.startswith(_MEETINGS) for symbol in symbols)
        asks = any(isinstance(op, hivm.GetSubBlockIdxOp) for op in ops)
        return cls(has_dot, on_both, asks or (meets and (has_dot or on_both)))

    def core_type(self, symbol: str, has_result: bool) -> hivm.TCoreType:
        demanded = core_type_of_symbol(symbol)
        if demanded is not None:
            return demanded
        if self.has_dot or (self.has_barrier_on_both and has_result):
            return hivm.TCoreType.CUBE_AND_VECTOR
        return hivm.TCoreType.VECTOR


def _full_name(op: Operation) -> str:
    return op.op_name.data if isinstance(op, UnregisteredOp) else op.name


# ---- the call -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    symbol: str
    operands: Sequence[SSAValue] = ()


def _replace_by_call(op: Operation, call: _Call, cores: _Cores) -> None:
    destinations = [_destination(op, type_) for type_ in op.result_types if isinstance(type_, TensorType)]
    custom = hivm.CustomOp(
        f"dist.{call.symbol}",
        _attributes(op, call, cores),
        inputs=call.operands,
        outputs=destinations,
        result_types=op.result_types,
        no_side_effect=effects(op) == Effects.NONE,
    )
    insert_before(op, custom)
    if op.name == "distributed.consume_token" and destinations:
        _mark_contiguous(op, custom)
    replace(op, list(custom.results))


def _destination(op: Operation, type_: TensorType) -> SSAValue:
    from xdsl.dialects.tensor import EmptyOp  # costs every other user of the passes its import

    empty = EmptyOp([], type_)
    insert_before(op, empty)
    return empty.tensor


def _attributes(op: Operation, call: _Call, cores: _Cores) -> dict[str, Attribute]:
    """What the operation carried, without what is ours alone, under what the vendor's compiler needs."""
    kept = {key: value for key, value in op.attributes.items() if not key.startswith(_OURS)}
    return {
        **kept,
        **op.properties,
        hivm.IS_DISTRIBUTED: UnitAttr(),
        hivm.PIPE: hivm.PipeAttr(hivm.Pipe.S),
        hivm.CORE_TYPE: hivm.TCoreTypeAttr(cores.core_type(call.symbol, bool(op.results))),
        hivm.VF_MODE: hivm.VFModeAttr(hivm.VFMode.SIMD),
        hivm.SYMBOL: StringAttr(call.symbol),
        hivm.GM_ADDRESSES: _i32_array([i for i, value in enumerate(call.operands) if _is_kernel_pointer(value)]),
    }


def _i32_array(values: list[int]) -> DenseArrayBase:
    return DenseArrayBase.from_list(i32, values)


def _is_kernel_pointer(value: SSAValue) -> bool:
    """Whether `value` is a scalar pointer that came in as an argument of the function."""
    if not isinstance(value, BlockArgument) or not is_scalar_pointer(value.type):
        return False
    function = value.block.parent_op()
    return function is not None and function.name == "tt.func" and function.regions[0].blocks.first is value.block


def _mark_contiguous(op: Operation, custom: hivm.CustomOp) -> None:
    """The tensor of pointers walks memory as the one that went in: operand 0 of the call."""
    custom.attributes[hivm.SOURCE_POINTERS] = _i32_array([0])
    mark = MarkOp.create(operands=[custom.results[0]], attributes={CONTIGUOUS_ACCESS: UnitAttr()})
    insert_before(op, mark)


# ---- one lowering an operation --------------------------------------------------------------------------------------


def _wait(op: Operation) -> _Call:
    pointer, count, value = op.operands
    if not is_scalar_pointer(pointer.type):
        raise _error(
            op,
            f"the device library waits for words behind one pointer, got {pointer.type}. Pass the address of the first "
            "word and the number of words",
        )
    pointee = _pointee(pointer)
    if not isinstance(pointee, IntegerType):
        raise _error(op, f"signal words are integers, got {pointee}")
    return _Call(f"aclshmem_wait_{_type_name(op, pointee)}", [pointer, _as_integer(op, count, i64), value])


def _consume_token(op: Operation) -> _Call:
    value, token = op.operands
    symbol = f"aclshmem_consume_token_{_consumed_name(op, value.type)}"
    return _Call(symbol, [value, _as_integer(op, token, i32)])


def _consumed_name(op: Operation, type_: Attribute) -> str:
    if is_block_pointer(type_):
        block = type_.pointee  # pyright: ignore[reportAttributeAccessIssue]
        return _pointer_name(op, block.element_type, len(block.get_shape()))
    if is_scalar_pointer(type_):
        return _pointer_name(op, type_.pointee, 1)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(type_, TensorType):
        return _pointer_name(op, type_.element_type.pointee, len(type_.get_shape()))
    return _type_name(op, type_)


def _pointer_name(op: Operation, pointee: Attribute, rank: int) -> str:
    if rank > MAX_POINTER_RANK:
        raise _error(
            op,
            f"pointers of {rank} dimensions are consumed: the device library goes up to {MAX_POINTER_RANK}. Consume "
            "the token on the base pointer instead",
        )
    return f"{_type_name(op, pointee)}_ptr_{rank}d"


def _symm_at(op: Operation) -> _Call:
    return _Call(_remote_pointer(op, op.operands[0]), op.operands)


def _remote_pointer(op: Operation, pointer: SSAValue) -> str:
    return f"aclshmem_ptr_{_type_name(op, _pointee(pointer))}"


def _notify(op: Operation) -> _Call:
    assert isinstance(op, dist.NotifyOp)
    word, signal_op = _signal_word(op), dist.enum_name(dist.SIGNAL_OP, op.sigOp)
    if word.endswith("64"):
        if signal_op != "set":
            raise _error(
                op,
                f'the device library can only set a signal word of type {word}, not "{signal_op}" to it. Use int32 '
                'words, or sig_op="set" with one slot for each producer',
            )
        return _Call(f"aclshmem_{word}_p", op.operands)
    value = _as_integer(op, op.signalVal, i32)
    code = make_constant(_LIBRARY_SIGNAL_OP[signal_op], i32)
    insert_before(op, code)
    return _Call("aclshmemx_signal_op", [op.sigAddr, value, code.results[0], op.rank])


def _signal_word(op: dist.NotifyOp) -> str:
    """The word's type as the user declared it; what TTIR leaves of it, if nobody says."""
    name = _type_name(op, _pointee(op.sigAddr))
    declared = op.attributes.get(SIGNAL_TYPE)
    if not isinstance(declared, StringAttr):
        return name
    if declared.data not in (name, f"u{name}"):
        raise _error(op, f"the signal word is declared {declared.data}, but its pointer is to {name}")
    return declared.data


def _extern_call(op: Operation) -> _Call:
    assert isinstance(op, dist.ExternCallOp)
    symbol = op.symbol.data
    if symbol in _WITHOUT_OPERANDS:
        return _Call(symbol)
    if symbol == "aclshmem_ptr" and op.operands and is_scalar_pointer(op.operands[0].type):
        return _Call(_remote_pointer(op, op.operands[0]), op.operands)
    return _Call(symbol, op.operands)


_LOWERINGS: dict[str, Callable[[Operation], _Call]] = {
    "distributed.wait": _wait,
    "distributed.consume_token": _consume_token,
    "distributed.get_rank": lambda op: _Call("aclshmem_my_pe"),
    "distributed.get_num_ranks": lambda op: _Call("aclshmem_n_pes"),
    "distributed.symm_at": _symm_at,
    "distributed.notify": _notify,
    "distributed.extern_call": _extern_call,
}


# ---- parts ----------------------------------------------------------------------------------------------------------


def _is_tensor_of_values(type_: Attribute) -> bool:
    return isinstance(type_, TensorType) and not isinstance(element_type(type_), PointerLike)


def _drop_token(op: Operation, report: CompileReport) -> None:
    why = "the device library consumes no token on a tensor of values; what was loaded already stays as it is"
    report.lost.append(LostOp(op.name, loc_of(op), why))
    replace(op, [op.operands[0]])


def _pointee(pointer: SSAValue) -> Attribute:
    return pointer.type.pointee  # pyright: ignore[reportAttributeAccessIssue]


def _type_name(op: Operation, type_: Attribute) -> str:
    name = TYPE_NAMES.get(type_)
    if name is None:
        what, known = op.name.partition(".")[2], ", ".join(str(known) for known in TYPE_NAMES)
        raise _error(op, f"the device library has no {what} for elements of type {type_}; it has {known}")
    return name


def _as_integer(op: Operation, value: SSAValue, to: IntegerType) -> SSAValue:
    """`value` as an integer of `to`'s width, converted before `op` if it has another."""
    type_ = value.type
    if not isinstance(type_, IntegerType):
        raise _error(op, f"the device library takes one integer here, got {type_}")
    if type_ == to:
        return value
    convert = ExtSIOp if type_.bitwidth < to.bitwidth else TruncIOp
    new = convert.create(operands=[value], result_types=[to])
    insert_before(op, new)
    return new.results[0]


def _error(op: Operation, what: str) -> KernelError:
    return KernelError(f"{loc_of(op) or 'kernel'}: cannot lower {op.name} for Ascend: {what}.")
