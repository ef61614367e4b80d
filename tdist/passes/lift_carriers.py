"""Carriers → `distributed.*`.

Stock Triton does not know the dialect, so the language emits each call as a `tt.extern_elementwise` whose `libname` is
`tdist` and whose `symbol` is `tdist.<op>[;key=value]*`. Nobody after this pass sees one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import BoolAttr, IntegerType, ModuleOp, StringAttr
from xdsl.ir import Attribute, Operation, SSAValue

from tdist.errors import KernelError
from tdist.ir import distributed as dist
from tdist.ir.arith import TruncIOp
from tdist.ir.effects import constant_int
from tdist.ir.hivm import GetSubBlockIdxOp
from tdist.ir.location import loc_of
from tdist.passes.base import KernelPass, all_ops, erase, insert_before, replace
from tdist.passes.fold import make_constant
from tdist.passes.report import CompileReport

SIGNAL_TYPE = "tdist.signal_type"
"""Discardable attribute of waits and notifies: the signal's element type as the user declared it (`"uint64"`)."""

_LIBRARY = "tdist"


@dataclass(frozen=True)
class LiftCarriersPass(KernelPass):
    """Replace every carrier by the operation that it carries. Signedness, which TTIR lacks, stays as an attribute."""

    name = "lift-carriers"

    def transform(self, module: ModuleOp, report: CompileReport) -> None:
        """See `KernelPass`.

        Raises:
            KernelError: A carrier that is not one of ours, or whose fields or operands do not fit.
        """
        for op in all_ops(module):
            if op.name == "tt.extern_elementwise" and _text(op, "libname") == _LIBRARY:
                _lift(op)


def _text(op: Operation, prop: str) -> str:
    value = op.properties[prop]
    assert isinstance(value, StringAttr)
    return value.data


def _lift(op: Operation) -> None:
    name, *fields = _text(op, "symbol").split(";")
    options = {key: unquote(value) for key, _, value in (field.partition("=") for field in fields)}
    lift = _LIFTS.get(name.removeprefix("tdist."))
    if lift is None:
        raise _error(op, f"'{name}' is no distributed operation")
    try:
        lift(op, options)
    except (KeyError, ValueError) as error:
        raise _error(op, f"'{_text(op, 'symbol')}' with {len(op.operands)} operands does not fit") from error


def _error(op: Operation, what: str) -> KernelError:
    where = loc_of(op)
    told = f"{where or 'kernel'}: cannot compile this call: {what}. The language and the compiler differ"
    return KernelError(told).at(where)


def _swap(op: Operation, new: Operation, values: list[SSAValue] | None = None) -> None:
    insert_before(op, new)
    replace(op, list(new.results) if values is None else values)


def _simple(cls: type[Operation], operands: int) -> Callable[[Operation, dict[str, str]], None]:
    def lift(op: Operation, options: dict[str, str]) -> None:
        if len(op.operands) != operands:
            raise ValueError(operands)
        _swap(op, cls.create(operands=list(op.operands), result_types=[op.results[0].type]))

    return lift


def _wait(op: Operation, options: dict[str, str]) -> None:
    pointer, count, value = op.operands
    properties: dict[str, Attribute] = {
        "scope": dist.enum_attr(dist.SCOPE, options["scope"]),
        "semantic": dist.enum_attr(dist.SEMANTIC, options["semantic"]),
    }
    attributes: dict[str, Attribute] = {SIGNAL_TYPE: StringAttr(options["el"])}
    _swap(
        op,
        dist.WaitOp.create(
            operands=[pointer, count, value],
            result_types=[op.results[0].type],
            properties=properties,
            attributes=attributes,
        ),
    )


def _notify(op: Operation, options: dict[str, str]) -> None:
    pointer, value, rank = op.operands
    properties: dict[str, Attribute] = {
        "sigOp": dist.enum_attr(dist.SIGNAL_OP, options["sigOp"]),
        "commScope": dist.enum_attr(dist.COMM_SCOPE, options["commScope"]),
    }
    attributes: dict[str, Attribute] = {SIGNAL_TYPE: StringAttr(options["el"])}
    notify = dist.NotifyOp.create(operands=[pointer, value, rank], properties=properties, attributes=attributes)
    _swap(op, notify, [_zero_for(op)] if op.results[0].first_use is not None else _no_use(op))


def _zero_for(op: Operation) -> SSAValue:
    """A zero in the place of a dummy result that something names."""
    type_ = op.results[0].type
    if not isinstance(type_, IntegerType):
        raise ValueError(type_)
    zero: ConstantOp = make_constant(0, type_)
    insert_before(op, zero)
    return zero.results[0]


def _no_use(op: Operation) -> list[SSAValue]:
    """Stand-in for an unused result: it is replaced by itself."""
    return list(op.results)


def _extern_call(op: Operation, options: dict[str, str]) -> None:
    operands = list(op.operands)[1 if options["dummy"] == "1" else 0 :]
    void = options["void"] == "1"
    call = dist.ExternCallOp.create(
        operands=operands,
        result_types=[] if void else [op.results[0].type],
        properties={
            "libname": StringAttr(options["libname"]),
            "libpath": StringAttr(options["libpath"]),
            "symbol": StringAttr(options["symbol"]),
            "pure": BoolAttr.from_bool(options["pure"] == "1"),
        },
    )
    if not void:
        _swap(op, call)
        return
    _swap(op, call, [_zero_for(op)] if op.results[0].first_use is not None else _no_use(op))


def _sub_vec_id(op: Operation, options: dict[str, str]) -> None:
    index = GetSubBlockIdxOp()
    type_ = op.results[0].type
    if type_ == index.result.type:
        _swap(op, index)
        return
    insert_before(op, index)
    _swap(op, TruncIOp.create(operands=[index.result], result_types=[type_]))


def _consume_block(op: Operation, options: dict[str, str]) -> None:
    """The token came in as the last offset of `tt.advance` by nothing: consume it on the block pointer itself."""
    (token,) = op.operands
    for use in list(op.results[0].uses):
        advance = use.operation
        pointer, *offsets = advance.operands
        if advance.name != "tt.advance" or use.index != len(offsets) or any(constant_int(v) for v in offsets[:-1]):
            raise ValueError("a consumed block pointer must be advanced by nothing")
        consume = dist.ConsumeTokenOp.create(operands=[pointer, token], result_types=[pointer.type])
        _swap(advance, consume)
    erase(op)


_LIFTS: dict[str, Callable[[Operation, dict[str, str]], None]] = {
    "rank": _simple(dist.GetRankOp, 1),
    "num_ranks": _simple(dist.GetNumRanksOp, 1),
    "symm_at": _simple(dist.SymmAtOp, 2),
    "consume_token": _simple(dist.ConsumeTokenOp, 2),
    "wait": _wait,
    "notify": _notify,
    "extern_call": _extern_call,
    "sub_vec_id": _sub_vec_id,
    "consume_block": _consume_block,
}
