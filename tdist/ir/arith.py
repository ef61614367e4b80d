"""xDSL's `arith` and `math`, with those operations replaced whose definitions there accept scalars only.

MLIR's comparisons, `select` and the casts work on tensors element by element; xDSL's (0.75) parse so, but do not
verify. Each replacement is a subclass of xDSL's class, so `isinstance(op, xdsl.dialects.arith.CmpiOp)` holds for both;
our context registers the replacements instead of the originals and xDSL itself stays as it is. `assembly_format = None`
keeps the inherited methods, which were generated from the original's format.
"""

from __future__ import annotations

from typing import ClassVar, Self, TypeVar

from xdsl.dialects import arith
from xdsl.dialects.arith import (
    CMPF_COMPARISON_OPERATIONS,
    CMPI_COMPARISON_OPERATIONS,
    FastMathFlagsAttr,
    floatingPointLike,
    signlessIntegerLike,
)
from xdsl.dialects.builtin import IntegerAttr, IntegerType, TensorType, container_of, i1
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Dialect, Operation
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tdist.ir.pointer import element_type

boolLike = container_of(i1)
integerLike = container_of(IntegerType)


def like(shape_of: Attribute, element: Attribute) -> Attribute:
    """`element` in the shape of `shape_of`: a tensor if that is one, else itself."""
    if isinstance(shape_of, TensorType):
        return TensorType(element, shape_of.get_shape(), shape_of.encoding)
    return element


def same_shape(a: Attribute, b: Attribute) -> bool:
    """Whether two types are both scalars, or tensors of one shape."""
    return like(a, i1) == like(b, i1)


def _print_comparison(printer: Printer, op: Operation, predicate: str) -> None:
    printer.print_string(f" {predicate}, ")
    printer.print_list(op.operands, printer.print_ssa_value)
    fastmath = op.properties.get("fastmath")
    if isinstance(fastmath, FastMathFlagsAttr) and fastmath.data:
        printer.print_string(" fastmath")
        fastmath.print_parameter(printer)
    printer.print_op_attributes(op.attributes)
    printer.print_string(" : ")
    printer.print_attribute(op.operands[0].type)


_ComparisonT = TypeVar("_ComparisonT", bound=IRDLOperation)


def _parse_comparison(cls: type[_ComparisonT], parser: Parser, predicates: list[str]) -> _ComparisonT:
    predicate = predicates.index(parser.parse_identifier())
    parser.parse_punctuation(",")
    operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
    properties: dict[str, Attribute] = {"predicate": IntegerAttr(predicate, 64)}
    if "fastmath" in cls.get_irdl_definition().properties:
        properties["fastmath"] = FastMathFlagsAttr(_parse_fastmath(parser))
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    type_ = parser.parse_type()
    resolved = parser.resolve_operands(operands, [type_] * len(operands), parser.pos)
    return cls.create(operands=resolved, properties=properties, attributes=attributes, result_types=[like(type_, i1)])


def _parse_fastmath(parser: Parser) -> tuple[FastMathFlag, ...]:
    if parser.parse_optional_keyword("fastmath") is None:
        return ()
    return tuple(FastMathFlagsAttr.parse_parameter(parser))


@irdl_op_definition
class CmpiOp(arith.CmpiOp):
    """Compare integers or tensors of them; the result is i1 in the shape of the operands."""

    name = "arith.cmpi"
    T: ClassVar = VarConstraint("T", signlessIntegerLike)
    predicate = prop_def(IntegerAttr)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(boolLike)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        return _parse_comparison(cls, parser, CMPI_COMPARISON_OPERATIONS)

    def print(self, printer: Printer) -> None:
        _print_comparison(printer, self, CMPI_COMPARISON_OPERATIONS[self.predicate.value.data])

    def verify_(self) -> None:
        _verify_same_shape(self)


@irdl_op_definition
class CmpfOp(arith.CmpfOp):
    """Compare floats or tensors of them; the result is i1 in the shape of the operands."""

    name = "arith.cmpf"
    T: ClassVar = VarConstraint("T", floatingPointLike)
    predicate = prop_def(IntegerAttr)
    lhs = operand_def(T)
    rhs = operand_def(T)
    fastmath = prop_def(FastMathFlagsAttr, default_value=FastMathFlagsAttr("none"))
    result = result_def(boolLike)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        return _parse_comparison(cls, parser, CMPF_COMPARISON_OPERATIONS)

    def print(self, printer: Printer) -> None:
        _print_comparison(printer, self, CMPF_COMPARISON_OPERATIONS[self.predicate.value.data])

    def verify_(self) -> None:
        _verify_same_shape(self)


def _verify_same_shape(op: Operation) -> None:
    if not same_shape(op.operands[0].type, op.results[0].type):
        raise VerifyException(f"{op.name}: result {op.results[0].type} has not the shape of {op.operands[0].type}")


@irdl_op_definition
class SelectOp(arith.SelectOp):
    """Choose between two values of any type by an i1, or element by element by a tensor of i1."""

    name = "arith.select"
    T: ClassVar = VarConstraint("T", AnyAttr())
    cond = operand_def(boolLike)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(T)
    assembly_format = None  # the methods below replace the inherited format

    @classmethod
    def parse(cls, parser: Parser):
        operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        condition = types[0] if len(types) == 2 else i1
        resolved = parser.resolve_operands(operands, [condition, types[-1], types[-1]], parser.pos)
        return cls.create(operands=resolved, attributes=attributes, result_types=[types[-1]])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        types = [self.result.type] if self.cond.type == i1 else [self.cond.type, self.result.type]
        printer.print_list(types, printer.print_attribute)

    def verify_(self) -> None:
        if self.cond.type != i1 and not same_shape(self.cond.type, self.result.type):
            raise VerifyException(f"condition {self.cond.type} has not the shape of {self.result.type}")


class _CastOp(IRDLOperation):
    def verify_(self) -> None:
        _verify_same_shape(self)


def _verify_width(op: Operation, wider: bool) -> None:
    _verify_same_shape(op)
    source, target = element_type(op.operands[0].type), element_type(op.results[0].type)
    assert isinstance(source, IntegerType) and isinstance(target, IntegerType)
    if source.width.data == target.width.data or (target.width.data > source.width.data) != wider:
        raise VerifyException(f"{op.name}: result {target} must be {'wider' if wider else 'narrower'} than {source}")


@irdl_op_definition
class FPToSIOp(_CastOp, arith.FPToSIOp):
    name = "arith.fptosi"
    input = operand_def(floatingPointLike)
    result = result_def(integerLike)
    assembly_format = None


@irdl_op_definition
class FPToUIOp(_CastOp, arith.FPToUIOp):
    name = "arith.fptoui"
    input = operand_def(floatingPointLike)
    result = result_def(integerLike)
    assembly_format = None


@irdl_op_definition
class SIToFPOp(_CastOp, arith.SIToFPOp):
    name = "arith.sitofp"
    input = operand_def(integerLike)
    result = result_def(floatingPointLike)
    assembly_format = None


@irdl_op_definition
class UIToFPOp(_CastOp, arith.UIToFPOp):
    name = "arith.uitofp"
    input = operand_def(integerLike)
    result = result_def(floatingPointLike)
    assembly_format = None


@irdl_op_definition
class TruncIOp(arith.TruncIOp):
    name = "arith.trunci"
    input = operand_def(integerLike)
    result = result_def(integerLike)
    assembly_format = None
    overflow_flags = opt_prop_def(arith.IntegerOverflowAttr, prop_name="overflowFlags")

    def verify_(self) -> None:
        _verify_width(self, wider=False)


@irdl_op_definition
class ExtSIOp(arith.ExtSIOp):
    name = "arith.extsi"
    input = operand_def(integerLike)
    result = result_def(integerLike)
    assembly_format = None
    traits = traits_def(Pure())

    def verify_(self) -> None:
        _verify_width(self, wider=True)


@irdl_op_definition
class ExtUIOp(arith.ExtUIOp):
    name = "arith.extui"
    input = operand_def(integerLike)
    result = result_def(integerLike)
    assembly_format = None

    def verify_(self) -> None:
        _verify_width(self, wider=True)


REPLACEMENTS: dict[str, type[Operation]] = {
    cls.name: cls
    for cls in (
        CmpiOp,
        CmpfOp,
        SelectOp,
        FPToSIOp,
        FPToUIOp,
        SIToFPOp,
        UIToFPOp,
        TruncIOp,
        ExtSIOp,
        ExtUIOp,
    )
}

Arith = Dialect(
    "arith",
    [REPLACEMENTS.get(cls.name, cls) for cls in arith.Arith.operations],
    list(arith.Arith.attributes),
    [arith.ArithConstantMaterializationInterface()],
)
