"""The `distributed` dialect: what a kernel says about other ranks, before any platform is chosen.

Seven operations over symmetric memory. The dialect depends on no other of ours: pointers are whatever implements
`tdist.ir.pointer.PointerLike`.

Source: architecture document, section 2 (operations, operands, traits, effects, enumerations); assembly and enumeration
values as the public sources of Triton-distributed have them. Their memory effects are in `tdist.ir.effects`.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import (
    BoolAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    TensorType,
    container_of,
    i32,
    i64,
)
from xdsl.ir import Attribute, Dialect, Operation
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    ConditionallySpeculatable,
    EffectInstance,
    MemoryEffect,
    MemoryEffectKind,
    MemoryReadEffect,
    MemoryWriteEffect,
    Pure,
)
from xdsl.utils.exceptions import VerifyException

from tdist.ir.pointer import PointerConstraint, PointerLike, ScalarPointerConstraint, element_type, is_scalar_pointer

SCOPE = {1: "gpu", 2: "cta", 3: "sys"}
SEMANTIC = {1: "relaxed", 2: "acquire", 3: "release", 4: "acq_rel"}
SIGNAL_OP = {1: "set", 2: "add"}
COMM_SCOPE = {1: "gpu", 2: "intra_node", 3: "inter_node"}

intLike = container_of(IntegerType)


def enum_attr(table: dict[int, str], keyword: str) -> IntegerAttr:
    """The attribute for a keyword of one of the four enumerations above; KeyError if it is none of them."""
    for number, name in table.items():
        if name == keyword:
            return IntegerAttr(number, 32)
    raise KeyError(keyword)


def enum_name(table: dict[int, str], attr: IntegerAttr) -> str:
    """The keyword of an enumeration's attribute."""
    return table[attr.value.data]


def _verify_enum(name: str, attr: IntegerAttr, table: dict[int, str]) -> None:
    if attr.type != i32 or attr.value.data not in table:
        legal = ", ".join(f"{number} ({word})" for number, word in table.items())
        raise VerifyException(f"'{name}' must be an i32 and one of {legal}, got {attr}")


def _parse_keyword(parser: Parser, table: dict[int, str]) -> IntegerAttr:
    pos = parser.pos
    word = parser.parse_identifier()
    if word not in table.values():
        parser.raise_error(f"expected one of {', '.join(table.values())}, got '{word}'", pos, parser.pos)
    return enum_attr(table, word)


@irdl_op_definition
class WaitOp(IRDLOperation):
    """Poll `numBarriers` signal words, 64 bytes apart from `barrierPtr` on, each until it equals `waitValue`.

    Ordering: `acquire` and `acq_rel` join what the words' last writers released, for whoever consumes the token.
    Effects: Read only, so a wait whose token nobody consumes is dead, and equal waits with no write between are one.
    """

    name = "distributed.wait"
    barrierPtr = operand_def(PointerConstraint())
    numBarriers = operand_def(intLike)
    waitValue = operand_def(IntegerType)
    scope = prop_def(IntegerAttr, default_value=IntegerAttr(1, 32))
    semantic = prop_def(IntegerAttr, default_value=IntegerAttr(2, 32))
    token = result_def(intLike)
    traits = traits_def(MemoryReadEffect())

    def verify_(self) -> None:
        pointee = _pointee(self.barrierPtr.type)
        if pointee != self.waitValue.type:
            raise VerifyException(f"waits for a value of {self.waitValue.type} in words of {pointee}")
        _verify_enum("scope", self.scope, SCOPE)
        _verify_enum("semantic", self.semantic, SEMANTIC)

    @classmethod
    def parse(cls, parser: Parser) -> WaitOp:
        operands = [parser.parse_unresolved_operand()]
        for _ in range(2):
            parser.parse_punctuation(",")
            operands.append(parser.parse_unresolved_operand())
        parser.parse_punctuation(",")
        properties: dict[str, Attribute] = {}
        for word, table in (("scope", SCOPE), ("semantic", SEMANTIC)):
            parser.parse_keyword(word)
            parser.parse_punctuation("=")
            properties[word] = _parse_keyword(parser, table)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        resolved = parser.resolve_operands(operands, types, parser.pos)
        parser.parse_punctuation("->")
        token = parser.parse_type()
        return cls(operands=resolved, properties=properties, attributes=attributes, result_types=[token])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        scope, semantic = enum_name(SCOPE, self.scope), enum_name(SEMANTIC, self.semantic)
        printer.print_string(f", scope = {scope} semantic = {semantic}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_list(self.operand_types, printer.print_attribute)
        printer.print_string(" -> ")
        printer.print_attribute(self.token.type)


def _pointee(type_: Attribute) -> Attribute:
    pointer = element_type(type_)
    assert isinstance(pointer, PointerLike)
    return pointer.pointee


@irdl_op_definition
class ConsumeTokenOp(IRDLOperation):
    """The value itself, with a wait's token hung on it: a dependence, no operation.

    `input` may be a scalar, a pointer, a tensor of values or of pointers, or a block pointer. Effects: none.
    """

    name = "distributed.consume_token"
    T: ClassVar = VarConstraint("T", AnyAttr())
    input = operand_def(T)
    token = operand_def(intLike)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$input `,` $token attr-dict `:` type($input) `,` type($token) `->` type($result)"

    def verify_(self) -> None:
        token = self.token.type
        if not isinstance(token, TensorType):
            return
        input_ = self.input.type
        if not isinstance(input_, TensorType) or input_.get_shape() != token.get_shape():
            raise VerifyException(f"a token of type {token} cannot be consumed by a value of type {input_}")


class _RankOp(IRDLOperation):
    axis = operand_def(i32)
    result = result_def(i32)
    traits = traits_def(Pure())
    assembly_format = "$axis attr-dict `:` type($result)"


@irdl_op_definition
class GetRankOp(_RankOp):
    """This rank. `axis` is -1 for the world; meshes are not supported by any platform yet."""

    name = "distributed.get_rank"


@irdl_op_definition
class GetNumRanksOp(_RankOp):
    """How many ranks there are along `axis`; see `GetRankOp`."""

    name = "distributed.get_num_ranks"


@irdl_op_definition
class SymmAtOp(IRDLOperation):
    """Where the symmetric address `symmAddr` of this rank lies in the memory of `rank`.

    Effects: Read (of the table of heap bases), so it may be merged and dropped, but not moved over a write.
    """

    name = "distributed.symm_at"
    symmAddr = operand_def(AnyAttr())
    rank = operand_def(i32)
    remoteAddr = result_def(AnyAttr())
    traits = traits_def(MemoryReadEffect())

    def verify_(self) -> None:
        type_ = self.symmAddr.type
        if not is_scalar_pointer(type_):
            raise VerifyException(f"'symmAddr' must be a scalar pointer, got {type_}")
        if self.remoteAddr.type != type_:
            raise VerifyException(f"'remoteAddr' must have the type of 'symmAddr', {type_}, got {self.remoteAddr.type}")

    @classmethod
    def parse(cls, parser: Parser) -> SymmAtOp:
        address = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        rank = parser.resolve_operand(parser.parse_unresolved_operand(), i32)
        parser.parse_optional_punctuation(",")  # upstream's format prints a comma here
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        return cls(operands=[parser.resolve_operand(address, type_), rank], attributes=attributes, result_types=[type_])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(",")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.symmAddr.type)


@irdl_op_definition
class NotifyOp(IRDLOperation):
    """Set, or add to, the signal word that `sigAddr` (a local symmetric address) names in the memory of `rank`.

    Ordering: releases what its profile covers. Effects: Read and Write. Printed in generic form, as upstream does.
    """

    name = "distributed.notify"
    sigAddr = operand_def(ScalarPointerConstraint())
    signalVal = operand_def(i64)
    rank = operand_def(i32)
    sigOp = prop_def(IntegerAttr)
    commScope = prop_def(IntegerAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def verify_(self) -> None:
        pointee = _pointee(self.sigAddr.type)
        if not isinstance(pointee, IntegerType) or pointee.width.data not in (32, 64):
            raise VerifyException(f"a signal word has 32 or 64 bits, got a pointer to {pointee}")
        _verify_enum("sigOp", self.sigOp, SIGNAL_OP)
        _verify_enum("commScope", self.commScope, COMM_SCOPE)


class _ExternEffect(MemoryEffect):
    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        assert isinstance(op, ExternCallOp)
        if op.is_pure:
            return set()
        return {EffectInstance(MemoryEffectKind.READ), EffectInstance(MemoryEffectKind.WRITE)}


class _ExternSpeculatable(ConditionallySpeculatable):
    @classmethod
    def is_speculatable(cls, op: Operation) -> bool:
        assert isinstance(op, ExternCallOp)
        return op.is_pure


@irdl_op_definition
class ExternCallOp(IRDLOperation):
    """A call of `symbol` in a device library. Effects: none if `pure`, else Read and Write."""

    name = "distributed.extern_call"
    srcs = var_operand_def()
    libname = prop_def(StringAttr)
    libpath = prop_def(StringAttr)
    symbol = prop_def(StringAttr)
    pure = prop_def(BoolAttr)
    outs = var_result_def()
    traits = traits_def(_ExternEffect(), _ExternSpeculatable())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"

    @property
    def is_pure(self) -> bool:
        return bool(self.pure.value.data)

    def verify_(self) -> None:
        if not self.symbol.data:
            raise VerifyException("'symbol' must name a function of the library")
        tensors = [type_ for type_ in self.operand_types if isinstance(type_, TensorType)]
        if tensors:
            raise VerifyException(f"operands must be scalars, got {tensors[0]}")


Distributed = Dialect(
    "distributed",
    [WaitOp, ConsumeTokenOp, GetRankOp, GetNumRanksOp, SymmAtOp, NotifyOp, ExternCallOp],
    [],
)
