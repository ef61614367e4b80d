"""What each operation of a final module does, as events: accesses on pipes, and what orders pipes, cores and devices.

One operation can be several events, in their order: a matrix call waits for flags, loads, sets flags and multiplies.
What an operation means is decided here and nowhere else; who asks for order, multiplicity or memory reads the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IntegerAttr, MemRefType, UnregisteredOp
from xdsl.dialects.func import CallOp
from xdsl.ir import Operation, OpResult, SSAValue

from tdist.ir import hivm
from tdist.ir.hivm import Pipe
from tdist.platforms.ascend.compiled import calls
from tdist.platforms.ascend.compiled.calls import Call, Role
from tdist.platforms.ascend.compiled.final_module import CoreFunction

Flag = SSAValue | int | str
"""A flag's number: a constant, a value of the program, or a name for one inside a library call."""


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """Something that `op` does. `pipe` is the queue that it is in."""

    op: Operation
    pipe: Pipe


@dataclass(frozen=True, slots=True)
class Touch:
    """Memory that an access touches. `remote`: what the value points to, but on another PE."""

    value: SSAValue
    writes: bool
    remote: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Access(Event):
    """Reads and writes of memory. `unit_flag`: the matrix unit and fixpipe order themselves on these sums."""

    touches: tuple[Touch, ...]
    call: Call | None = None
    atomic: bool = False
    unit_flag: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FlagSet(Event):
    """Raise a flag towards another pipe of the core when everything before on `pipe` has finished."""

    towards: Pipe
    flag: Flag


@dataclass(frozen=True, slots=True, eq=False)
class FlagWait(Event):
    """Hold `pipe` for a flag of `source`."""

    source: Pipe
    flag: Flag


@dataclass(frozen=True, slots=True, eq=False)
class PipeBarrier(Event):
    """Hold what follows on `pipe` (or on every pipe) until what is before on it has finished."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockSet(Event):
    """Count up a flag that another core waits for, when everything before on `pipe` has finished."""

    flag: Flag


@dataclass(frozen=True, slots=True, eq=False)
class BlockWait(Event):
    """Hold `pipe` until the flag has been counted up by the other core."""

    flag: Flag
    set_pipe: Pipe = Pipe.S


@dataclass(frozen=True, slots=True, eq=False)
class Drain(Event):
    """The library waits for every pipe; `flushes`: and throws the whole data cache away."""

    call: Call
    flushes: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Release(Event):
    """Tells other agents that what this one did before is done: a signal, a put with one, a barrier.

    `drained`: the library has waited for every pipe just before, so nothing can be in flight.
    """

    call: Call
    drained: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Acquire(Event):
    """Returns when other agents have told something: a wait, a barrier."""

    call: Call


@dataclass(frozen=True, slots=True, eq=False)
class Unknown(Event):
    """Something that nobody here understands: it may touch everything, on any pipe."""

    name: str


# ---- operations -----------------------------------------------------------------------------------------------------

_HARMLESS = (
    *("arith.", "affine.", "math.", "index.", "ub.", "scf.", "cf.", "annotation."),
    *("func.return", "builtin.unrealized_conversion_cast", "llvm.mlir.", "llvm.getelementptr", "llvm.intr.assume"),
)
_VIEWS = frozenset(
    f"memref.{name}"
    for name in (
        *("cast", "subview", "reinterpret_cast", "collapse_shape", "expand_shape", "view", "dim"),
        *("memory_space_cast", "extract_strided_metadata", "extract_aligned_pointer_as_index", "transpose"),
    )
)
_STATE = (
    *(hivm.SetMaskNormOp, hivm.SetFftsBaseAddrOp, hivm.GetBlockIdxOp, hivm.GetSubBlockIdxOp),
    *(hivm.BitcastOp, hivm.PointerCastOp),
)


def name_of(op: Operation) -> str:
    """The operation's name, of one that nobody knows too."""
    name = op.name
    if name != UnregisteredOp.name:  # not `isinstance`: operations are of an abstract class, which makes that slow
        return name
    assert isinstance(op, UnregisteredOp)
    return op.op_name.data


def events_of(op: Operation) -> tuple[Event, ...]:
    """What `op` itself does, without what is in its regions."""
    match op:
        case CallOp():
            return tuple(_call_events(op))
        case hivm.SetFlagOp():
            return (FlagSet(op, op.set_pipe.data, op.wait_pipe.data, _event_id(op)),)
        case hivm.WaitFlagOp():
            return (FlagWait(op, op.wait_pipe.data, op.set_pipe.data, _event_id(op)),)
        case hivm.PipeBarrierOp():
            return (PipeBarrier(op, op.pipe.data),)
        case hivm.SyncBlockSetOp():
            return (BlockSet(op, op.tpipe.data, _block_flag(op)),)
        case hivm.SyncBlockWaitOp():
            return (BlockWait(op, op.pipe.data, _block_flag(op), op.tpipe.data),)
    return _plain_events(op)


def _plain_events(op: Operation) -> tuple[Event, ...]:
    name = name_of(op)
    if name == "memref.load":
        return (Access(op, Pipe.S, (Touch(op.operands[0], False),)),)
    if name == "memref.store":
        return (Access(op, Pipe.S, (Touch(op.operands[1], True),)),)
    if isinstance(op, _STATE) or name in _VIEWS or name.startswith(_HARMLESS):
        return ()
    return (Unknown(op, Pipe.ALL, name),)


def _event_id(op: hivm.SetFlagOp | hivm.WaitFlagOp) -> Flag:
    if op.dynamic_event_id is not None:
        return op.dynamic_event_id
    assert op.static_event_id is not None
    return int(op.static_event_id.data.removeprefix("EVENT_ID"))


def _block_flag(op: hivm.SyncBlockSetOp | hivm.SyncBlockWaitOp) -> Flag:
    if op.dynamic_flag is not None:
        return op.dynamic_flag
    assert op.static_flag_id is not None
    return op.static_flag_id.value.data


# ---- library calls --------------------------------------------------------------------------------------------------


def constant(value: SSAValue) -> int | None:
    """The integer that a value is by its definition alone, if it is a constant."""
    if isinstance(value, OpResult) and isinstance(value.op, ConstantOp):
        attribute = value.op.value
        return attribute.value.data if isinstance(attribute, IntegerAttr) else None
    return None


def _call_events(op: CallOp) -> Iterator[Event]:
    call = calls.describe(op)
    if call is None:
        yield Unknown(op, Pipe.ALL, op.callee.string_value())
        return
    if call.role is Role.MATRIX:
        yield from _matrix_events(op, call)
    elif call.role in (Role.MOVE, Role.VECTOR):
        yield _access(op, call)
        if call.scalar_waits:
            yield FlagSet(op, call.pipe, Pipe.S, "inside")
            yield FlagWait(op, Pipe.S, call.pipe, "inside")
    elif call.role is Role.UNLOCK:
        yield Drain(op, Pipe.S, call)
    elif call.is_distributed:
        yield from _distributed_events(op, call)


def _touches(op: CallOp, call: Call) -> tuple[Touch, ...]:
    reads = tuple(Touch(op.arguments[index], False) for index in call.reads)
    return reads + tuple(Touch(op.arguments[index], True) for index in call.writes)


def _access(op: CallOp, call: Call) -> Access:
    """One transfer or vector call. The kind of a store says whether it is an atomic one."""
    is_store = call.pipe is Pipe.MTE3 and len(op.arguments) > calls.STORE_KIND_OPERAND
    atomic = is_store and constant(op.arguments[calls.STORE_KIND_OPERAND]) not in (0, None)
    unit_flag = call.pipe is Pipe.FIX and constant(op.arguments[-1]) not in (0, None)
    return Access(op, call.pipe, _touches(op, call), call, atomic, unit_flag)


def _matrix_events(op: CallOp, call: Call) -> Iterator[Event]:
    """Each input has flags of its own: what one of them says is not taken to hold for the other."""
    values, at = op.arguments, calls.matrix_operands(call)
    if at.bias is not None:  # no flag inside is its own: it is taken to be loaded before any
        yield Access(op, Pipe.MTE1, (Touch(values[at.bias], False),), call)
    for operand, wait, set_ in zip((at.a, at.b), at.waits, at.sets, strict=True):
        if constant(values[wait]) != -1:
            yield FlagWait(op, Pipe.MTE1, Pipe.MTE2, values[wait])
        yield Access(op, Pipe.MTE1, (Touch(values[operand], False),), call)
        if constant(values[set_]) != -1:
            yield FlagSet(op, Pipe.MTE1, Pipe.MTE2, values[set_])
    yield FlagSet(op, Pipe.MTE1, Pipe.M, "inside")
    yield FlagWait(op, Pipe.M, Pipe.MTE1, "inside")
    unit_flag = constant(values[at.unit_flag]) not in (0, None)
    yield Access(op, Pipe.M, (Touch(values[at.c], True),), call, unit_flag=unit_flag)


def _distributed_events(op: CallOp, call: Call) -> Iterator[Event]:
    match call.role:
        case Role.WAIT:
            yield Acquire(op, Pipe.S, call)
        case Role.DRAIN:
            yield Drain(op, Pipe.S, call, flushes=True)
        case Role.PUT_SCALAR:
            yield Release(op, Pipe.S, call)
        case Role.SIGNAL:
            yield from _signal_events(op, call)
        case Role.PUT | Role.GET | Role.PUT_SIGNAL:
            yield from _transfer_events(op, call)
        case Role.BARRIER:
            yield from _barrier_events(op, call)


def _signal_events(op: CallOp, call: Call) -> Iterator[Event]:
    """An ADD waits for every pipe before and after; an operation that is not known is taken for a SET."""
    adds = constant(op.arguments[calls.SIGNAL_OP_OPERAND]) == calls.SIGNAL_ADD
    if adds:
        yield Drain(op, Pipe.S, call)
    yield Release(op, Pipe.S, call, drained=adds)


def _transfer_events(op: CallOp, call: Call) -> Iterator[Event]:
    """Through a buffer of the core: in by MTE2, out by MTE3. Blocking ones end in a quiet, and a signal comes after it.

    The signal of one that does not block speaks for its own data; what was issued before may be in flight.
    """
    source, target = op.arguments[call.operand("src")], op.arguments[call.operand("dst")]
    gets, signals = call.role is Role.GET, call.role is Role.PUT_SIGNAL
    if signals and call.non_blocking:
        yield Release(op, Pipe.S, call)
    yield Access(op, Pipe.MTE2, (Touch(source, False, remote=gets),), call)
    yield FlagSet(op, Pipe.MTE2, Pipe.MTE3, "inside")
    yield FlagWait(op, Pipe.MTE3, Pipe.MTE2, "inside")
    yield Access(op, Pipe.MTE3, (Touch(target, True, remote=not gets),), call)
    if call.non_blocking:
        return
    yield Drain(op, Pipe.S, call, flushes=True)
    if signals:
        yield Release(op, Pipe.S, call, drained=True)


def _barrier_events(op: CallOp, call: Call) -> Iterator[Event]:
    """In a mix kernel it drains, and both halves meet in it unless it is one of the vector cores only."""
    drains = call.suffix in calls.DRAINING_BARRIERS
    if drains:
        yield Drain(op, Pipe.S, call)
    if drains and not call.symbol.endswith(calls.VECTOR_BARRIERS):
        yield BlockSet(op, Pipe.S, call.symbol)
        yield BlockWait(op, Pipe.S, call.symbol)
    yield Release(op, Pipe.S, call, drained=drains)
    yield Acquire(op, Pipe.S, call)


def function_events(function: CoreFunction) -> list[Event]:
    """The events of a function in order of text, whatever the loops and branches around them."""
    return [event for op in function.ops for event in events_of(op)]


def memory_space(value: SSAValue) -> str:
    """`gm`, `ub`, `cbuf`, `cc`, …; empty if the type does not say."""
    space = value.type.memory_space if isinstance(value.type, MemRefType) else None
    return str(space.data) if isinstance(space, hivm.AddressSpaceAttr) else ""


__all__ = [
    "Access",
    "Acquire",
    "BlockSet",
    "BlockWait",
    "Drain",
    "Event",
    "Flag",
    "FlagSet",
    "FlagWait",
    "PipeBarrier",
    "Release",
    "Touch",
    "Unknown",
    "constant",
    "events_of",
    "function_events",
    "memory_space",
    "name_of",
]
