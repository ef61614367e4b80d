"""The `hivm` dialect, as far as kernels need it: calls of a device library, and the order of an AI core's pipes.

`get_sub_block_idx` is the one operation that a kernel can contain before it is lowered for Ascend. `custom` is what a
distributed operation is lowered to. The others are what the vendor's compiler adds up to its final module.

Source: AscendNPU-IR's HIVM dialect. Syntax, enumerations and the verifiers' texts are those of `bishengir-opt` 1.2.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar, TypeVar, cast

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    StringAttr,
    TensorType,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Data, Dialect, Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

CORE_TYPE = "hivm.tcore_type"
PIPE = "hivm.pipe"
VF_MODE = "hivm.vf_mode"
IS_DISTRIBUTED = "hivm.is_distributed"
NO_SUB_BLOCK_BINDING = "hivm.disable_auto_tile_and_bind_subblock"
SYMBOL = "symbol"
GM_ADDRESSES = "gm_addr_args_indices"
SOURCE_POINTERS = "SrcPtrIndex"


# ---- enumerations ---------------------------------------------------------------------------------------------------


class Pipe(StrEnum):
    """The in-order instruction queues of an AI core: scalar, vector, matrix, the transfer engines, fixpipe."""

    S = "PIPE_S"
    V = "PIPE_V"
    M = "PIPE_M"
    MTE1 = "PIPE_MTE1"
    MTE2 = "PIPE_MTE2"
    MTE3 = "PIPE_MTE3"
    ALL = "PIPE_ALL"
    MTE4 = "PIPE_MTE4"
    MTE5 = "PIPE_MTE5"
    V2 = "PIPE_V2"
    FIX = "PIPE_FIX"
    VIRTUAL_MTE2_L1A = "VIRTUAL_PIPE_MTE2_L1A"
    VIRTUAL_MTE2_L1B = "VIRTUAL_PIPE_MTE2_L1B"
    NUM = "PIPE_NUM"
    UNASSIGNED = "PIPE_UNASSIGNED"


class TCoreType(StrEnum):
    """On which cores an operation runs."""

    CUBE = "CUBE"
    VECTOR = "VECTOR"
    CUBE_OR_VECTOR = "CUBE_OR_VECTOR"
    CUBE_AND_VECTOR = "CUBE_AND_VECTOR"


class VFMode(StrEnum):
    """How a vector function executes."""

    SIMD = "SIMD"
    SIMT = "SIMT"
    MIX = "MIX"


class Event(StrEnum):
    """The hardware's eight events for each pair of pipes."""

    ID0 = "EVENT_ID0"
    ID1 = "EVENT_ID1"
    ID2 = "EVENT_ID2"
    ID3 = "EVENT_ID3"
    ID4 = "EVENT_ID4"
    ID5 = "EVENT_ID5"
    ID6 = "EVENT_ID6"
    ID7 = "EVENT_ID7"


class SyncBlockInstrMode(StrEnum):
    """Between whom a cross-core flag is counted."""

    INTER_BLOCK = "INTER_BLOCK_SYNCHRONIZATION"
    INTER_SUBBLOCK = "INTER_SUBBLOCK_SYNCHRONIZATION"
    INTRA_BLOCK = "INTRA_BLOCK_SYNCHRONIZATION"


K = TypeVar("K", bound=StrEnum)


class AddressSpace(StrEnum):
    """Where memory lies: global memory, L1, the inputs of the matrix unit, its sums (L0C), the unified buffer."""

    ZERO = "zero"
    GM = "gm"
    L1 = "cbuf"
    L0A = "ca"
    L0B = "cb"
    L0C = "cc"
    UB = "ub"


class _KeywordAttr(Data[K]):
    """`#hivm.<name><KEYWORD>`; inside an operation `<KEYWORD>` alone."""

    keywords: ClassVar[type[StrEnum]]

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(self.data.value)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> K:
        with parser.in_angle_brackets():
            start = parser.pos
            word = parser.parse_identifier()
            found = next((keyword for keyword in cls.keywords if keyword.value == word), None)
            if found is None:
                parser.raise_error(f"expected one of {', '.join(cls.keywords)}, got '{word}'", start, parser.pos)
            return cast(K, found)


@irdl_attr_definition
class PipeAttr(_KeywordAttr[Pipe]):
    """`#hivm.pipe<PIPE_S>`"""

    name = "hivm.pipe"
    keywords = Pipe


@irdl_attr_definition
class TCoreTypeAttr(_KeywordAttr[TCoreType]):
    """`#hivm.tcore_type<VECTOR>`"""

    name = "hivm.tcore_type"
    keywords = TCoreType


@irdl_attr_definition
class VFModeAttr(_KeywordAttr[VFMode]):
    """`#hivm.vf_mode<SIMD>`"""

    name = "hivm.vf_mode"
    keywords = VFMode


@irdl_attr_definition
class EventAttr(_KeywordAttr[Event]):
    """`#hivm.event<EVENT_ID0>`"""

    name = "hivm.event"
    keywords = Event


@irdl_attr_definition
class SyncBlockInstrModeAttr(_KeywordAttr[SyncBlockInstrMode]):
    """`#hivm.sync_block_instr_mode<INTER_BLOCK_SYNCHRONIZATION>`"""

    name = "hivm.sync_block_instr_mode"
    keywords = SyncBlockInstrMode


@irdl_attr_definition
class AddressSpaceAttr(_KeywordAttr[AddressSpace]):
    """`#hivm.address_space<ub>`, the memory space of a memref."""

    name = "hivm.address_space"
    keywords = AddressSpace


# ---- operations of a kernel -----------------------------------------------------------------------------------------


@irdl_op_definition
class GetSubBlockIdxOp(IRDLOperation):
    """Which of the two vector cores of a program this is: 0 or 1. The same at each call of one agent, hence pure."""

    name = "hivm.hir.get_sub_block_idx"
    result = result_def(i64)
    traits = traits_def(Pure())
    assembly_format = "attr-dict `->` type($result)"

    def __init__(self) -> None:
        super().__init__(result_types=[i64])


class _CustomEffect(MemoryEffect):
    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        assert isinstance(op, CustomOp)
        if op.no_side_effect is not None:
            return set()
        return {EffectInstance(MemoryEffectKind.READ), EffectInstance(MemoryEffectKind.WRITE)}


@irdl_op_definition
class CustomOp(IRDLOperation):
    """A call of the device function `symbol`: `{…} "name" ins(…) outs(…) tmps(…) -> …`, each part if there is one.

    Tensor results are written into `outs`, one for each. Effects: none if `no_side_effect`, else Read and Write.
    """

    name = "hivm.hir.custom"
    custom_name = prop_def(StringAttr, prop_name="name")
    no_side_effect = opt_prop_def(UnitAttr)
    inputs = var_operand_def()
    outputs = var_operand_def()
    temp_buffers = var_operand_def()
    outs = var_result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(_CustomEffect())

    def __init__(
        self,
        custom_name: str,
        attributes: dict[str, Attribute],
        *,
        inputs: Sequence[SSAValue] = (),
        outputs: Sequence[SSAValue] = (),
        temp_buffers: Sequence[SSAValue] = (),
        result_types: Sequence[Attribute] = (),
        no_side_effect: bool = False,
    ) -> None:
        properties: dict[str, Attribute | None] = {
            "name": StringAttr(custom_name),
            "no_side_effect": UnitAttr() if no_side_effect else None,
        }
        super().__init__(
            operands=[inputs, outputs, temp_buffers],
            result_types=[result_types],
            properties=properties,
            attributes=attributes,
        )

    @property
    def symbol(self) -> str:
        """The device function's bare name; empty if the attribute is missing, which `verify` refuses."""
        value = self.attributes.get(SYMBOL)
        return value.data if isinstance(value, StringAttr) else ""

    @property
    def is_distributed(self) -> bool:
        """Whether the call came from a distributed operation."""
        return IS_DISTRIBUTED in self.attributes

    def verify_(self) -> None:
        if not isinstance(self.attributes.get(CORE_TYPE), TCoreTypeAttr):
            raise VerifyException("Missing core type information")
        if not isinstance(self.attributes.get(PIPE), PipeAttr):
            raise VerifyException("Missing pipe information")
        if not self.symbol:
            raise VerifyException("Missing implementation function name")
        self._verify_extra_buffers()
        self._verify_destinations()

    def _verify_extra_buffers(self) -> None:
        found = [self.attributes.get(f"extra_buffers_{what}") for what in ("types", "sizes")]
        if found == [None, None]:
            return
        types, sizes = found
        if not isinstance(types, ArrayAttr) or not isinstance(sizes, ArrayAttr):
            raise VerifyException("Either extra buffers' types or sizes missing")
        if len(types.data) != len(sizes.data):
            raise VerifyException("Extra buffers' types and sizes mismatch")

    def _verify_destinations(self) -> None:
        results, outputs = (
            sum(isinstance(value.type, TensorType) for value in values) for values in (self.outs, self.outputs)
        )
        if results != outputs:
            raise VerifyException(
                f"expected the number of tensor results ({results}) to be equal to the number of output tensors "
                f"({outputs})"
            )

    @classmethod
    def parse(cls, parser: Parser) -> CustomOp:
        attributes = parser.parse_optional_attr_dict()
        side_effect = attributes.pop("no_side_effect", None)
        name = parser.parse_str_literal("name of the operation")
        groups = [_parse_group(parser, word) for word in ("ins", "outs", "tmps")]
        results = _parse_results(parser)
        properties: dict[str, Attribute | None] = {"name": StringAttr(name), "no_side_effect": side_effect}
        return cls.build(operands=groups, result_types=[results], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        attributes = dict(self.attributes)
        if self.no_side_effect is not None:
            attributes["no_side_effect"] = self.no_side_effect
        printer.print_op_attributes(dict(sorted(attributes.items())))
        printer.print_string(" ")
        printer.print_string_literal(self.custom_name.data)
        for word, operands in (("ins", self.inputs), ("outs", self.outputs), ("tmps", self.temp_buffers)):
            _print_group(printer, word, operands)
        _print_results(printer, self.result_types)


def _parse_group(parser: Parser, word: str) -> list[SSAValue]:
    if parser.parse_optional_keyword(word) is None:
        return []
    with parser.in_parens():
        start = parser.pos
        values = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        return list(parser.resolve_operands(values, types, start))


def _print_group(printer: Printer, word: str, operands: Sequence[SSAValue]) -> None:
    if not operands:
        return
    printer.print_string(f" {word}")
    with printer.in_parens():
        printer.print_list(operands, printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_list([value.type for value in operands], printer.print_attribute)


def _parse_results(parser: Parser) -> list[Attribute]:
    if parser.parse_optional_punctuation("->") is None:
        return []
    several = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    return [parser.parse_type()] if several is None else list(several)


def _print_results(printer: Printer, types: Sequence[Attribute]) -> None:
    if not types:
        return
    printer.print_string(" -> ")
    if len(types) == 1:
        printer.print_attribute(types[0])
        return
    with printer.in_parens():
        printer.print_list(types, printer.print_attribute)


# ---- order of pipes -------------------------------------------------------------------------------------------------


class _FlagOp(IRDLOperation):
    """`op[<set pipe>, <wait pipe>, <event>]`; the event is a constant or an i64 value."""

    set_pipe = prop_def(PipeAttr)
    wait_pipe = prop_def(PipeAttr)
    static_event_id = opt_prop_def(EventAttr)
    dynamic_event_id = opt_operand_def(i64)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def verify_(self) -> None:
        if self.static_event_id is None and self.dynamic_event_id is None:
            raise VerifyException("Event ID is needed!")
        if self.static_event_id is not None and self.dynamic_event_id is not None:
            raise VerifyException("Only one Event ID is supported!")

    @classmethod
    def parse(cls, parser: Parser):
        properties: dict[str, Attribute | None] = {}
        event: list[SSAValue] = []
        with parser.in_square_brackets():
            for name in ("set_pipe", "wait_pipe"):
                properties[name] = PipeAttr(PipeAttr.parse_parameter(parser))
                parser.parse_punctuation(",")
            value = parser.parse_optional_unresolved_operand()
            if value is None:
                properties["static_event_id"] = EventAttr(EventAttr.parse_parameter(parser))
            else:
                event = [parser.resolve_operand(value, i64)]
        attributes = parser.parse_optional_attr_dict()
        return cls.build(operands=[event], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        with printer.in_square_brackets():
            for pipe in (self.set_pipe, self.wait_pipe):
                pipe.print_parameter(printer)
                printer.print_string(", ")
            if self.dynamic_event_id is not None:
                printer.print_ssa_value(self.dynamic_event_id)
            elif self.static_event_id is not None:
                self.static_event_id.print_parameter(printer)
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class SetFlagOp(_FlagOp):
    """Raise an event once everything issued before to `set_pipe` has finished. Issued by `set_pipe`."""

    name = "hivm.hir.set_flag"


@irdl_op_definition
class WaitFlagOp(_FlagOp):
    """Hold `wait_pipe` until the event of the matching `set_flag`, which it takes back. Blocks `wait_pipe` only."""

    name = "hivm.hir.wait_flag"


@irdl_op_definition
class PipeBarrierOp(IRDLOperation):
    """Hold what is issued to `pipe` from here on until everything issued to it before has finished."""

    name = "hivm.hir.pipe_barrier"
    pipe = prop_def(PipeAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    @classmethod
    def parse(cls, parser: Parser) -> PipeBarrierOp:
        with parser.in_square_brackets():
            pipe = PipeAttr(PipeAttr.parse_parameter(parser))
        return cls.build(properties={"pipe": pipe}, attributes=parser.parse_optional_attr_dict())

    def print(self, printer: Printer) -> None:
        with printer.in_square_brackets():
            self.pipe.print_parameter(printer)
        printer.print_op_attributes(self.attributes)


class _SyncBlockOp(IRDLOperation):
    """`op {…}[<core>, <set pipe>, <wait pipe>] flag = …`; the flag is a constant or an i64 value."""

    tcore_type = prop_def(TCoreTypeAttr)
    tpipe = prop_def(PipeAttr)
    pipe = prop_def(PipeAttr)
    static_flag_id = opt_prop_def(IntegerAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    @property
    def dynamic_flag(self) -> SSAValue | None:
        """The flag's number, if it is a value."""
        raise NotImplementedError

    def verify_(self) -> None:
        if self.static_flag_id is None and self.dynamic_flag is None:
            raise VerifyException("Flag ID is needed!")
        if self.static_flag_id is not None and self.dynamic_flag is not None:
            raise VerifyException("Only one flag ID is supported!")

    @staticmethod
    def _parse_head(parser: Parser) -> tuple[dict[str, Attribute], dict[str, Attribute | None], list[SSAValue]]:
        attributes = parser.parse_optional_attr_dict()
        properties: dict[str, Attribute | None] = {}
        with parser.in_square_brackets():
            properties["tcore_type"] = TCoreTypeAttr(TCoreTypeAttr.parse_parameter(parser))
            for name in ("tpipe", "pipe"):
                parser.parse_punctuation(",")
                properties[name] = PipeAttr(PipeAttr.parse_parameter(parser))
        parser.parse_keyword("flag")
        parser.parse_punctuation("=")
        flag = parser.parse_optional_unresolved_operand()
        if flag is not None:
            return attributes, properties, [parser.resolve_operand(flag, i64)]
        properties["static_flag_id"] = IntegerAttr(parser.parse_integer(), 64)
        return attributes, properties, []

    def _print_head(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)
        with printer.in_square_brackets():
            self.tcore_type.print_parameter(printer)
            for pipe in (self.tpipe, self.pipe):
                printer.print_string(", ")
                pipe.print_parameter(printer)
        printer.print_string(" flag = ")
        if self.dynamic_flag is not None:
            printer.print_ssa_value(self.dynamic_flag)
        elif self.static_flag_id is not None:
            printer.print_string(str(self.static_flag_id.value.data))


@irdl_op_definition
class SyncBlockSetOp(_SyncBlockOp):
    """Count up a cross-core flag once everything issued before to `tpipe` of this core has finished."""

    name = "hivm.hir.sync_block_set"
    flag_id = opt_operand_def(i64)
    ffts_base_addr = opt_operand_def(i64)
    tsync_instr_mode = opt_prop_def(SyncBlockInstrModeAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @property
    def dynamic_flag(self) -> SSAValue | None:
        return self.flag_id

    @classmethod
    def parse(cls, parser: Parser) -> SyncBlockSetOp:
        attributes, properties, flag = cls._parse_head(parser)
        base: list[SSAValue] = []
        if parser.parse_optional_keyword("ffts_base_addr") is not None:
            parser.parse_punctuation("=")
            base = [parser.resolve_operand(parser.parse_unresolved_operand(), i64)]
        if parser.parse_optional_keyword("sync_instr_mode") is not None:
            parser.parse_punctuation("=")
            mode = SyncBlockInstrModeAttr.parse_parameter(parser)
            properties["tsync_instr_mode"] = SyncBlockInstrModeAttr(mode)
        return cls.build(operands=[flag, base], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        self._print_head(printer)
        if self.ffts_base_addr is not None:
            printer.print_string(" ffts_base_addr = ")
            printer.print_ssa_value(self.ffts_base_addr)
        if self.tsync_instr_mode is not None:
            printer.print_string(" sync_instr_mode = ")
            self.tsync_instr_mode.print_parameter(printer)


@irdl_op_definition
class SyncBlockWaitOp(_SyncBlockOp):
    """Hold `pipe` of this core until the cross-core flag has been counted up, and count it down."""

    name = "hivm.hir.sync_block_wait"
    flag_id = opt_operand_def(i64)

    @property
    def dynamic_flag(self) -> SSAValue | None:
        return self.flag_id

    @classmethod
    def parse(cls, parser: Parser) -> SyncBlockWaitOp:
        attributes, properties, flag = cls._parse_head(parser)
        return cls.build(operands=[flag], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        self._print_head(printer)


# ---- what else a final module contains -----------------------------------------------------------------------------


class _StateOp(IRDLOperation):
    """An operation that sets up its core and touches no memory."""

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())


@irdl_op_definition
class SetMaskNormOp(_StateOp):
    """Let vector instructions count elements, not repetitions."""

    name = "hivm.hir.set_mask_norm"
    assembly_format = "attr-dict"


@irdl_op_definition
class SetFftsBaseAddrOp(_StateOp):
    """Tell the core where the words of cross-core flags are."""

    name = "hivm.hir.set_ffts_base_addr"
    ffts_base_addr = operand_def(i64)

    @classmethod
    def parse(cls, parser: Parser) -> SetFftsBaseAddrOp:
        attributes = parser.parse_optional_attr_dict()
        address = parser.resolve_operand(parser.parse_unresolved_operand(), i64)
        return cls.build(operands=[address], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)
        printer.print_string(" ")
        printer.print_ssa_value(self.ffts_base_addr)


@irdl_op_definition
class GetBlockIdxOp(IRDLOperation):
    """Which program this is. The same on the cube core and both vector cores of a program, hence pure."""

    name = "hivm.hir.get_block_idx"
    result = result_def(i64)
    traits = traits_def(Pure())
    assembly_format = "attr-dict `->` type($result)"


@irdl_op_definition
class BitcastOp(IRDLOperation):
    """The same memory under another element type."""

    name = "hivm.hir.bitcast"
    src = operand_def()
    result = result_def()
    traits = traits_def(Pure())
    assembly_format = "$src `:` type($src) `->` type($result) attr-dict"


@irdl_op_definition
class PointerCastOp(IRDLOperation):
    """`pointer_cast(%address, …)[%size, …]`: memory at planned byte addresses; several are copies of one buffer."""

    name = "hivm.hir.pointer_cast"
    addrs = var_operand_def(i64)
    dynamic_sizes = var_operand_def(IndexType())
    result = result_def(MemRefType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        if not self.addrs:
            raise VerifyException("addrs of PointerCastOp should not be empty!")
        wanted = sum(size == DYNAMIC_INDEX for size in self.result.type.get_shape())
        if wanted != len(self.dynamic_sizes):
            raise VerifyException(f"expected {wanted} dynamic size operands, but found {len(self.dynamic_sizes)}")

    @classmethod
    def parse(cls, parser: Parser) -> PointerCastOp:
        addresses = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        sizes = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        result = parser.parse_type()
        operands = [
            [parser.resolve_operand(value, type_) for value in values]
            for values, type_ in ((addresses, i64), (sizes or [], IndexType()))
        ]
        return cls.build(operands=operands, result_types=[result], attributes=attributes)

    def print(self, printer: Printer) -> None:
        with printer.in_parens():
            printer.print_list(self.addrs, printer.print_ssa_value)
        if self.dynamic_sizes:
            printer.print_string(" ")
            with printer.in_square_brackets():
                printer.print_list(self.dynamic_sizes, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)


Hivm = Dialect(
    "hivm",
    [
        GetSubBlockIdxOp,
        CustomOp,
        SetFlagOp,
        WaitFlagOp,
        PipeBarrierOp,
        SyncBlockSetOp,
        SyncBlockWaitOp,
        SetMaskNormOp,
        SetFftsBaseAddrOp,
        GetBlockIdxOp,
        BitcastOp,
        PointerCastOp,
    ],
    [PipeAttr, TCoreTypeAttr, VFModeAttr, EventAttr, SyncBlockInstrModeAttr, AddressSpaceAttr],
)
