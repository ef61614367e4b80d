"""The `tt` dialect: the operations that Triton's front end prints, with its custom syntax.

Source: Triton's public `TritonOps.td` (3.2 as triton-ascend ships it, 3.9 where the syntax is the same).
Enumerations are integer properties, as in MLIR's generic form; their keywords are the tables below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    DictionaryAttr,
    FunctionType,
    IntAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    TensorType,
    UnitAttr,
    container_of,
    i1,
    i32,
    i64,
)
from xdsl.dialects.utils import parse_func_op_like, print_func_op_like
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, Region, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    SameVariadicOperandSize,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    param_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import (
    CallableOpInterface,
    HasParent,
    IsolatedFromAbove,
    IsTerminator,
    Pure,
    SymbolOpInterface,
)
from xdsl.utils.exceptions import VerifyException

from tdist.ir.pointer import PointerConstraint, PointerLike, element_type

CACHE = {1: "none", 2: "ca", 3: "cg", 4: "wb", 5: "cs", 6: "wt", 7: "cv"}
EVICTION = {1: "evict_normal", 2: "evict_first", 3: "evict_last"}
PADDING = {1: "pad_zero", 2: "pad_nan"}
SEMANTIC = {1: "relaxed", 2: "acquire", 3: "release", 4: "acq_rel"}
SCOPE = {1: "gpu", 2: "cta", 3: "sys"}
RMW = {1: "and", 2: "or", 3: "xor", 4: "add", 5: "fadd", 6: "max", 7: "min", 8: "umax", 9: "umin", 10: "exch"}
DIMENSION = {0: "x", 1: "y", 2: "z"}
PRECISION = {0: "tf32", 1: "tf32x3", 2: "ieee", 3: "bf16x3", 4: "bf16x6"}
ROUNDING = {0: "rtz", 1: "rtne"}
PROPAGATE_NAN = {0: "none", 0xFFFF: "all"}


def keyword_value(table: dict[int, str], keyword: str) -> IntegerAttr:
    """The property that a keyword of one of the tables above stands for; KeyError if it is none of them."""
    for number, name in table.items():
        if name == keyword:
            return IntegerAttr(number, 32)
    raise KeyError(keyword)


# ---- types ----------------------------------------------------------------------------------------------------------


@irdl_attr_definition
class PointerType(ParametrizedAttribute, PointerLike):
    """`!tt.ptr<T>`: an address of elements T, or of a block if T is a tensor type."""

    name = "tt.ptr"
    pointee_type: Attribute = param_def()
    address_space: IntAttr = param_def()

    def __init__(self, pointee: Attribute, address_space: int | IntAttr = 1) -> None:
        space = address_space if isinstance(address_space, IntAttr) else IntAttr(address_space)
        super().__init__(pointee, space)

    @property
    def pointee(self) -> Attribute:
        return self.pointee_type

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            pointee = parser.parse_type()
            space = parser.parse_integer() if parser.parse_optional_punctuation(",") else 1
        return [pointee, IntAttr(space)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.pointee_type)
            if self.address_space.data != 1:
                printer.print_string(f", {self.address_space.data}")


def loaded_type(pointer: Attribute) -> Attribute:
    """What a load through `pointer` (pointer, tensor of pointers, block pointer) yields."""
    if isinstance(pointer, PointerType):
        return pointer.pointee_type
    if isinstance(pointer, TensorType) and isinstance(pointer.element_type, PointerType):
        return TensorType(pointer.element_type.pointee_type, pointer.get_shape(), pointer.encoding)
    raise VerifyException(f"expected a pointer or a tensor of pointers, got {pointer}")


def mask_type(pointer: Attribute) -> Attribute:
    """The type that a mask of an access through `pointer` has."""
    return TensorType(i1, pointer.get_shape(), pointer.encoding) if isinstance(pointer, TensorType) else i1


intLike = container_of(IntegerType)
floatLike = container_of(AnyFloat)
ptrLike = PointerConstraint()


# ---- shared syntax --------------------------------------------------------------------------------------------------


def _parse_keyword(parser: Parser, table: dict[int, str]) -> IntegerAttr:
    pos = parser.pos
    word = parser.parse_identifier()
    try:
        return keyword_value(table, word)
    except KeyError:
        parser.raise_error(f"expected one of {', '.join(table.values())}, got '{word}'", pos, parser.pos)


def _print_keyword(printer: Printer, table: dict[int, str], attr: Attribute) -> None:
    assert isinstance(attr, IntegerAttr)
    printer.print_string(table[attr.value.data])


def _parse_clauses(parser: Parser, clauses: dict[str, tuple[str, dict[int, str]]]) -> dict[str, Attribute]:
    """`word = value` clauses in any order, as MLIR's oilist prints them."""
    found: dict[str, Attribute] = {}
    while (word := parser.parse_optional_keyword_in(tuple(clauses))) is not None:
        prop, table = clauses[word]
        parser.parse_punctuation("=")
        found[prop] = _parse_keyword(parser, table)
    return found


def _print_list(printer: Printer, operands: Sequence[SSAValue]) -> None:
    printer.print_list(operands, printer.print_ssa_value)


def _parse_brackets(parser: Parser) -> list:
    return parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_unresolved_operand)


def _print_brackets(printer: Printer, operands: Sequence[SSAValue]) -> None:
    with printer.in_square_brackets():
        _print_list(printer, operands)


class TritonOp(IRDLOperation):
    """Base of the operations whose syntax is declarative: properties stand in the attribute dictionary."""

    irdl_options = (ParsePropInAttrDict(),)


class UnaryOp(TritonOp):
    """`op %src {…} : type($src) -> type($result)`, free of effects."""

    src = operand_def()
    result = result_def()
    traits = traits_def(Pure())
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"


class SameTypeUnaryOp(TritonOp):
    """`op %x : T`, free of effects."""

    T: ClassVar = VarConstraint("T", AnyAttr())
    x = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$x attr-dict `:` type($x)"


class SameTypeBinaryOp(TritonOp):
    """`op %x, %y : T`, free of effects."""

    T: ClassVar = VarConstraint("T", AnyAttr())
    x = operand_def(T)
    y = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$x `,` $y attr-dict `:` type($x)"


# ---- functions ------------------------------------------------------------------------------------------------------


class _FuncCallable(CallableOpInterface):
    @classmethod
    def get_callable_region(cls, op: Operation) -> Region:
        assert isinstance(op, FuncOp)
        return op.body

    @classmethod
    def get_argument_types(cls, op: Operation) -> tuple[Attribute, ...]:
        assert isinstance(op, FuncOp)
        return op.function_type.inputs.data

    @classmethod
    def get_result_types(cls, op: Operation) -> tuple[Attribute, ...]:
        assert isinstance(op, FuncOp)
        return op.function_type.outputs.data


@irdl_op_definition
class FuncOp(IRDLOperation):
    """A kernel (`public`), or a `noinline` function that it calls (`private`)."""

    name = "tt.func"
    body = region_def()
    sym_name = prop_def(SymbolNameConstraint())
    function_type = prop_def(FunctionType)
    sym_visibility = opt_prop_def(StringAttr)
    arg_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    res_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface(), _FuncCallable())

    RESERVED: ClassVar = ("sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs")

    def verify_(self) -> None:
        entry = self.body.blocks.first
        if entry is not None and self.function_type.inputs.data != tuple(entry.arg_types):
            raise VerifyException("entry block arguments must have the types of the function's inputs")

    @classmethod
    def parse(cls, parser: Parser) -> FuncOp:
        visibility = parser.parse_optional_visibility_keyword()
        name, inputs, outputs, region, extra, arg_attrs, res_attrs = parse_func_op_like(
            parser, reserved_attr_names=cls.RESERVED
        )
        properties: dict[str, Attribute | None] = {
            "sym_name": StringAttr(name),
            "function_type": FunctionType.from_lists(inputs, outputs),
            "sym_visibility": visibility,
            "arg_attrs": arg_attrs,
            "res_attrs": res_attrs,
        }
        return cls(properties=properties, attributes=extra.data if extra else {}, regions=[region])

    def print(self, printer: Printer) -> None:
        if self.sym_visibility is not None:
            printer.print_string(f" {self.sym_visibility.data}")
        print_func_op_like(
            printer,
            self.sym_name,
            self.function_type,
            self.body,
            self.attributes,
            arg_attrs=self.arg_attrs,
            res_attrs=self.res_attrs,
            reserved_attr_names=self.RESERVED,
            print_empty_outputs=False,
        )


@irdl_op_definition
class ReturnOp(TritonOp):
    name = "tt.return"
    srcs = var_operand_def()
    traits = traits_def(IsTerminator(), Pure())
    assembly_format = "attr-dict ($srcs^ `:` type($srcs))?"


@irdl_op_definition
class CallOp(TritonOp):
    name = "tt.call"
    callee = prop_def(SymbolRefAttr)
    srcs = var_operand_def()
    outs = var_result_def()
    assembly_format = "$callee `(` $srcs `)` attr-dict `:` functional-type($srcs, results)"


# ---- where am I -----------------------------------------------------------------------------------------------------


class _DimensionOp(IRDLOperation):
    axis = prop_def(IntegerAttr)
    result = result_def(i32)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser):
        axis = _parse_keyword(parser, DIMENSION)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls(properties={"axis": axis}, attributes=attributes, result_types=[parser.parse_type()])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        _print_keyword(printer, DIMENSION, self.axis)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)


@irdl_op_definition
class GetProgramIdOp(_DimensionOp):
    name = "tt.get_program_id"


@irdl_op_definition
class GetNumProgramsOp(_DimensionOp):
    name = "tt.get_num_programs"


# ---- pointers -------------------------------------------------------------------------------------------------------


@irdl_op_definition
class AddPtrOp(TritonOp):
    """Advance a pointer, or a tensor of pointers, by an offset in elements."""

    name = "tt.addptr"
    T: ClassVar = VarConstraint("T", ptrLike)
    ptr = operand_def(T)
    offset = operand_def(intLike)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$ptr `,` $offset attr-dict `:` type($result) `,` type($offset)"


@irdl_op_definition
class IntToPtrOp(UnaryOp):
    name = "tt.int_to_ptr"
    src = operand_def(intLike)
    result = result_def(ptrLike)


@irdl_op_definition
class PtrToIntOp(UnaryOp):
    name = "tt.ptr_to_int"
    src = operand_def(ptrLike)
    result = result_def(intLike)


@irdl_op_definition
class MakeTensorPtrOp(IRDLOperation):
    """A block pointer: base, the parent's shape and strides (i64, elements), the block's offsets (i32) and order."""

    name = "tt.make_tensor_ptr"
    base = operand_def(PointerType)
    shape = var_operand_def(i64)
    strides = var_operand_def(i64)
    offsets = var_operand_def(i32)
    order = prop_def(DenseArrayBase)
    result = result_def(PointerType)
    traits = traits_def(Pure())
    irdl_options = (SameVariadicOperandSize(),)

    @classmethod
    def parse(cls, parser: Parser) -> MakeTensorPtrOp:
        base = parser.parse_unresolved_operand()
        groups = []
        for _ in range(3):
            parser.parse_punctuation(",")
            groups.append(_parse_brackets(parser))
        attributes = parser.parse_optional_attr_dict()
        order = attributes.pop("order")
        parser.parse_punctuation(":")
        type_ = PointerType(*PointerType.parse_parameters(parser))  # pyright: ignore[reportArgumentType]
        block = type_.pointee_type
        if not isinstance(block, TensorType):
            parser.raise_error("expected a pointer to a tensor")
        types = (i64, i64, i32)
        resolved = [parser.resolve_operands(g, [t] * len(g), parser.pos) for g, t in zip(groups, types, strict=True)]
        pointer = parser.resolve_operand(base, PointerType(block.element_type))
        return cls(
            operands=[pointer, *resolved], properties={"order": order}, attributes=attributes, result_types=[type_]
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.base)
        for group in (self.shape, self.strides, self.offsets):
            printer.print_string(", ")
            _print_brackets(printer, group)
        printer.print_op_attributes({"order": self.order, **self.attributes})
        printer.print_string(" : ")
        type_ = self.result.type
        assert isinstance(type_, PointerType)
        type_.print_parameters(printer)


@irdl_op_definition
class AdvanceOp(IRDLOperation):
    """Move a block pointer by offsets in elements, one an axis."""

    name = "tt.advance"
    T: ClassVar = VarConstraint("T", AnyAttr())
    ptr = operand_def(T)
    offsets = var_operand_def(i32)
    result = result_def(T)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> AdvanceOp:
        ptr = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        offsets = _parse_brackets(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = PointerType(*PointerType.parse_parameters(parser))  # pyright: ignore[reportArgumentType]
        moved = parser.resolve_operands(offsets, [i32] * len(offsets), parser.pos)
        return cls(operands=[parser.resolve_operand(ptr, type_), moved], attributes=attributes, result_types=[type_])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.ptr)
        printer.print_string(", ")
        _print_brackets(printer, self.offsets)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        type_ = self.result.type
        assert isinstance(type_, PointerType)
        type_.print_parameters(printer)

    def verify_(self) -> None:
        type_ = self.ptr.type
        if not isinstance(type_, PointerType) or not isinstance(type_.pointee_type, TensorType):
            raise VerifyException(f"expected a block pointer, got {type_}")
        if len(self.offsets) != len(type_.pointee_type.get_shape()):
            raise VerifyException("expected one offset for each axis of the block")


# ---- memory ---------------------------------------------------------------------------------------------------------

_ACCESS_CLAUSES = {"cacheModifier": ("cache", CACHE), "evictionPolicy": ("evict", EVICTION)}
_NO_CHECK = DenseArrayBase.from_list(i32, [])
_DEFAULTS: dict[str, Attribute] = {"boundaryCheck": _NO_CHECK, "cache": IntegerAttr(1, 32), "evict": IntegerAttr(1, 32)}


def _print_access(printer: Printer, op: LoadOp | StoreOp) -> None:
    """What stands after the operands of a load or a store."""
    for word, (prop, table) in _ACCESS_CLAUSES.items():
        if op.properties[prop] != _DEFAULTS[prop]:
            printer.print_string(f" {word} = ")
            _print_keyword(printer, table, op.properties[prop])
    shown = {k: v for k, v in op.properties.items() if k in ("boundaryCheck", "isVolatile", "padding")}
    if shown["boundaryCheck"] == _NO_CHECK:
        del shown["boundaryCheck"]
    if shown.get("isVolatile") == BoolAttr.from_bool(False):
        del shown["isVolatile"]
    printer.print_op_attributes({**shown, **op.attributes})
    printer.print_string(" : ")
    printer.print_attribute(op.ptr.type)


def _parse_access(parser: Parser) -> tuple[list, dict[str, Attribute], Attribute]:
    """Operands, properties and attributes in one dictionary, and the pointer's type, of a load or a store."""
    operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
    found = {**_DEFAULTS, **_parse_clauses(parser, _ACCESS_CLAUSES)}
    found |= parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    return operands, found, parser.parse_type()


def _split(found: dict[str, Attribute], cls: type[IRDLOperation]) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    """Properties that `cls` defines, and the rest."""
    known = cls.get_irdl_definition().properties
    properties = {k: v for k, v in found.items() if k in known}
    return properties, {k: v for k, v in found.items() if k not in known}


@irdl_op_definition
class LoadOp(IRDLOperation):
    """Read through a pointer, a tensor of pointers or a block pointer. Lanes that the mask turns off are not read."""

    name = "tt.load"
    ptr = operand_def(ptrLike)
    mask = opt_operand_def()
    other = opt_operand_def()
    boundaryCheck = prop_def(DenseArrayBase, default_value=_NO_CHECK)
    padding = opt_prop_def(IntegerAttr)
    cache = prop_def(IntegerAttr, default_value=IntegerAttr(1, 32))
    evict = prop_def(IntegerAttr, default_value=IntegerAttr(1, 32))
    isVolatile = prop_def(BoolAttr, default_value=BoolAttr.from_bool(False))
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @property
    def is_volatile(self) -> bool:
        return bool(self.isVolatile.value.data)

    @classmethod
    def parse(cls, parser: Parser) -> LoadOp:
        operands, found, type_ = _parse_access(parser)
        found.setdefault("isVolatile", BoolAttr.from_bool(False))
        types = [type_, mask_type(type_), loaded_type(type_)][: len(operands)]
        resolved = parser.resolve_operands(operands, types, parser.pos)
        properties, attributes = _split(found, cls)
        groups = [[value] for value in resolved] + [[]] * (3 - len(resolved))
        return cls(operands=groups, properties=properties, attributes=attributes, result_types=[loaded_type(type_)])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        _print_list(printer, self.operands)
        _print_access(printer, self)

    def verify_(self) -> None:
        if self.result.type != loaded_type(self.ptr.type):
            raise VerifyException(f"loads {loaded_type(self.ptr.type)}, but its result is {self.result.type}")
        if self.mask is not None and self.mask.type != mask_type(self.ptr.type):
            raise VerifyException(f"expected a mask of type {mask_type(self.ptr.type)}, got {self.mask.type}")
        if self.other is not None and self.other.type != self.result.type:
            raise VerifyException(f"expected 'other' of type {self.result.type}, got {self.other.type}")


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Write through a pointer, a tensor of pointers or a block pointer; lanes that the mask turns off stay."""

    name = "tt.store"
    ptr = operand_def(ptrLike)
    value = operand_def()
    mask = opt_operand_def()
    boundaryCheck = prop_def(DenseArrayBase, default_value=_NO_CHECK)
    cache = prop_def(IntegerAttr, default_value=IntegerAttr(1, 32))
    evict = prop_def(IntegerAttr, default_value=IntegerAttr(1, 32))

    @classmethod
    def parse(cls, parser: Parser) -> StoreOp:
        operands, found, type_ = _parse_access(parser)
        types = [type_, loaded_type(type_), mask_type(type_)][: len(operands)]
        resolved = parser.resolve_operands(operands, types, parser.pos)
        properties, attributes = _split(found, cls)
        return cls(operands=[*resolved[:2], resolved[2:]], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        _print_list(printer, self.operands)
        _print_access(printer, self)

    def verify_(self) -> None:
        if self.value.type != loaded_type(self.ptr.type):
            raise VerifyException(f"stores {self.value.type} through {self.ptr.type}")
        if self.mask is not None and self.mask.type != mask_type(self.ptr.type):
            raise VerifyException(f"expected a mask of type {mask_type(self.ptr.type)}, got {self.mask.type}")


class _AtomicOp(IRDLOperation):
    """Syntax shared by the atomics: keywords, operands, function type."""

    KEYWORDS: ClassVar[tuple[tuple[str, dict[int, str]], ...]]

    @classmethod
    def parse(cls, parser: Parser):
        properties: dict[str, Attribute] = {}
        for prop, table in cls.KEYWORDS:
            properties[prop] = _parse_keyword(parser, table)
            parser.parse_punctuation(",")
        operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_function_type()
        resolved = parser.resolve_operands(operands, type_.inputs.data, parser.pos)
        return cls.create(
            operands=resolved, properties=properties, attributes=attributes, result_types=type_.outputs.data
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        for prop, table in self.KEYWORDS:
            _print_keyword(printer, table, self.properties[prop])
            printer.print_string(", ")
        _print_list(printer, self.operands)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_operation_type(self)


@irdl_op_definition
class AtomicRMWOp(_AtomicOp):
    """Read-modify-write; the result is the old value."""

    name = "tt.atomic_rmw"
    KEYWORDS: ClassVar = (("atomic_rmw_op", RMW), ("sem", SEMANTIC), ("scope", SCOPE))
    ptr = operand_def(ptrLike)
    val = operand_def()
    mask = opt_operand_def()
    atomic_rmw_op = prop_def(IntegerAttr)
    sem = prop_def(IntegerAttr)
    scope = prop_def(IntegerAttr)
    result = result_def()


@irdl_op_definition
class AtomicCASOp(_AtomicOp):
    """Compare and swap; the result is the old value."""

    name = "tt.atomic_cas"
    KEYWORDS: ClassVar = (("sem", SEMANTIC), ("scope", SCOPE))
    ptr = operand_def(ptrLike)
    cmp = operand_def()
    val = operand_def()
    sem = prop_def(IntegerAttr)
    scope = prop_def(IntegerAttr)
    result = result_def()


# ---- shapes and casts -----------------------------------------------------------------------------------------------


@irdl_op_definition
class MakeRangeOp(TritonOp):
    name = "tt.make_range"
    start = prop_def(IntegerAttr)
    end = prop_def(IntegerAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict `:` type($result)"

    def verify_(self) -> None:
        type_ = self.result.type
        assert isinstance(type_, TensorType)
        length = self.end.value.data - self.start.value.data
        if type_.get_shape() != (length,):
            raise VerifyException(f"a range of {length} elements cannot have type {type_}")


@irdl_op_definition
class SplatOp(UnaryOp):
    name = "tt.splat"
    result = result_def(TensorType)

    def verify_(self) -> None:
        if element_type(self.result.type) != element_type(self.src.type):
            raise VerifyException(f"cannot splat {self.src.type} into {self.result.type}")


@irdl_op_definition
class UnsplatOp(UnaryOp):
    name = "tt.unsplat"
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"


@irdl_op_definition
class ExpandDimsOp(UnaryOp):
    name = "tt.expand_dims"
    axis = prop_def(IntegerAttr)


@irdl_op_definition
class BroadcastOp(UnaryOp):
    name = "tt.broadcast"


@irdl_op_definition
class ReshapeOp(IRDLOperation):
    name = "tt.reshape"
    src = operand_def(TensorType)
    allow_reorder = opt_prop_def(UnitAttr)
    efficient_layout = opt_prop_def(UnitAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    FLAGS: ClassVar = ("allow_reorder", "efficient_layout")

    @classmethod
    def parse(cls, parser: Parser) -> ReshapeOp:
        src = parser.parse_unresolved_operand()
        properties = {word: UnitAttr() for word in cls.FLAGS if parser.parse_optional_keyword(word)}
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        parser.parse_punctuation("->")
        return cls(
            operands=[parser.resolve_operand(src, type_)],
            properties=properties,
            attributes=attributes,
            result_types=[parser.parse_type()],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.src)
        for word in self.FLAGS:
            if word in self.properties:
                printer.print_string(f" {word}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.src.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)


@irdl_op_definition
class TransOp(UnaryOp):
    name = "tt.trans"
    order = prop_def(DenseArrayBase)


class _PairOp(TritonOp):
    T: ClassVar = VarConstraint("T", AnyAttr())
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($lhs) `->` type($result)"


@irdl_op_definition
class CatOp(_PairOp):
    name = "tt.cat"


@irdl_op_definition
class JoinOp(_PairOp):
    name = "tt.join"


@irdl_op_definition
class SplitOp(TritonOp):
    name = "tt.split"
    src = operand_def(TensorType)
    T: ClassVar = VarConstraint("T", AnyAttr())
    outLHS = result_def(T)
    outRHS = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$src attr-dict `:` type($src) `->` type($outLHS)"


@irdl_op_definition
class BitcastOp(UnaryOp):
    name = "tt.bitcast"


@irdl_op_definition
class FpToFpOp(IRDLOperation):
    """Float conversion to or from 8-bit formats; `rounding` says how when it narrows."""

    name = "tt.fp_to_fp"
    src = operand_def(floatLike)
    rounding = opt_prop_def(IntegerAttr)
    result = result_def(floatLike)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> FpToFpOp:
        src = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        properties: dict[str, Attribute] = {}
        if parser.parse_optional_punctuation(","):
            parser.parse_keyword("rounding")
            parser.parse_punctuation("=")
            properties["rounding"] = _parse_keyword(parser, ROUNDING)
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        parser.parse_punctuation("->")
        return cls(
            operands=[parser.resolve_operand(src, type_)],
            properties=properties,
            attributes=attributes,
            result_types=[parser.parse_type()],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.src)
        printer.print_op_attributes(self.attributes)
        if self.rounding is not None:
            printer.print_string(", rounding = ")
            _print_keyword(printer, ROUNDING, self.rounding)
        printer.print_string(" : ")
        printer.print_attribute(self.src.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)


@irdl_op_definition
class GatherOp(TritonOp):
    name = "tt.gather"
    src = operand_def(TensorType)
    indices = operand_def(TensorType)
    axis = prop_def(IntegerAttr)
    efficient_layout = opt_prop_def(UnitAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$src `[` $indices `]` attr-dict `:` functional-type(operands, results)"


@irdl_op_definition
class HistogramOp(UnaryOp):
    name = "tt.histogram"


@irdl_op_definition
class FlipOp(TritonOp):
    """Reverse one axis (triton-ascend's own)."""

    name = "tt.flip"
    src = operand_def(TensorType)
    dim = prop_def(IntegerAttr[IntegerType])
    result = result_def(TensorType)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> FlipOp:
        src = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        dim = IntegerAttr(parser.parse_integer(), 64)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        parser.parse_punctuation("->")
        operand = parser.resolve_operand(src, type_)
        return cls(
            operands=[operand], properties={"dim": dim}, attributes=attributes, result_types=[parser.parse_type()]
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.src)
        printer.print_string(f", {self.dim.value.data}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.src.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)


@irdl_op_definition
class AnnotationOp(TritonOp):
    """A hint for the vendor's compiler in the attributes (`tl.compile_hint`, `tl.multibuffer`); means nothing here."""

    name = "tt.annotation"
    src = operand_def()
    traits = traits_def(Pure())
    assembly_format = "$src attr-dict `:` type($src)"


@irdl_op_definition
class SortOp(TritonOp):
    """Sort along the last axis (triton-ascend's own)."""

    name = "tt.sort"
    src = operand_def(TensorType)
    dim = prop_def(IntegerAttr[IntegerType])
    descending = prop_def(BoolAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> SortOp:
        src = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        dim = IntegerAttr(parser.parse_integer(), 64)
        parser.parse_punctuation(",")
        descending = BoolAttr.from_bool(parser.parse_boolean())
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        operand = parser.resolve_operand(src, parser.parse_type())
        parser.parse_punctuation("->")
        return cls(
            operands=[operand],
            properties={"dim": dim, "descending": descending},
            attributes=attributes,
            result_types=[parser.parse_type()],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.src)
        printer.print_string(f", {self.dim.value.data}, {'true' if self.descending.value.data else 'false'}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.src.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)


# ---- arithmetic -----------------------------------------------------------------------------------------------------


@irdl_op_definition
class MulhiUIOp(SameTypeBinaryOp):
    name = "tt.mulhiui"


@irdl_op_definition
class PreciseDivFOp(SameTypeBinaryOp):
    name = "tt.precise_divf"


@irdl_op_definition
class PreciseSqrtOp(SameTypeUnaryOp):
    name = "tt.precise_sqrt"


@irdl_op_definition
class ModOp(TritonOp):
    """Remainder with the sign of the dividend (triton-ascend's own)."""

    name = "tt.mod"
    x = operand_def()
    y = operand_def()
    result = result_def()
    traits = traits_def(Pure())
    assembly_format = "$x `,` $y attr-dict `:` type($x) type($y) `->` type($result)"


@irdl_op_definition
class ClampFOp(IRDLOperation):
    name = "tt.clampf"
    T: ClassVar = VarConstraint("T", floatLike)
    x = operand_def(T)
    min = operand_def(T)
    max = operand_def(T)
    propagateNan = prop_def(IntegerAttr)
    result = result_def(T)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> ClampFOp:
        operands = [parser.parse_unresolved_operand()]
        for _ in range(2):
            parser.parse_punctuation(",")
            operands.append(parser.parse_unresolved_operand())
        parser.parse_punctuation(",")
        parser.parse_keyword("propagateNan")
        parser.parse_punctuation("=")
        nan = _parse_keyword(parser, PROPAGATE_NAN)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        resolved = parser.resolve_operands(operands, [type_] * 3, parser.pos)
        return cls(operands=resolved, properties={"propagateNan": nan}, attributes=attributes, result_types=[type_])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        _print_list(printer, self.operands)
        printer.print_string(", propagateNan = ")
        _print_keyword(printer, PROPAGATE_NAN, self.propagateNan)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.x.type)


@irdl_op_definition
class DotOp(IRDLOperation):
    """`a @ b + c`; a is M x K, b is K x N, c and the result are M x N (batched: one more axis in front)."""

    name = "tt.dot"
    T: ClassVar = VarConstraint("T", AnyAttr())
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    c = operand_def(T)
    inputPrecision = prop_def(IntegerAttr, default_value=IntegerAttr(2, 32))
    maxNumImpreciseAcc = prop_def(IntegerAttr, default_value=IntegerAttr(0, 32))
    d = result_def(T)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> DotOp:
        operands = [parser.parse_unresolved_operand()]
        for _ in range(2):
            parser.parse_punctuation(",")
            operands.append(parser.parse_unresolved_operand())
        found: dict[str, Attribute] = {"inputPrecision": IntegerAttr(2, 32), "maxNumImpreciseAcc": IntegerAttr(0, 32)}
        if parser.parse_optional_punctuation(","):
            parser.parse_keyword("inputPrecision")
            parser.parse_punctuation("=")
            found["inputPrecision"] = _parse_keyword(parser, PRECISION)
        found |= parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = [parser.parse_type()]
        parser.parse_characters("*")
        types.append(parser.parse_type())
        parser.parse_punctuation("->")
        types.append(parser.parse_type())
        properties, attributes = _split(found, cls)
        resolved = parser.resolve_operands(operands, types, parser.pos)
        return cls(operands=resolved, properties=properties, attributes=attributes, result_types=[types[2]])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        _print_list(printer, self.operands)
        if self.inputPrecision.value.data != 2:
            printer.print_string(", inputPrecision = ")
            _print_keyword(printer, PRECISION, self.inputPrecision)
        imprecise = self.maxNumImpreciseAcc
        shown = {"maxNumImpreciseAcc": imprecise} if imprecise.value.data else {}
        printer.print_op_attributes({**shown, **self.attributes})
        printer.print_string(" : ")
        printer.print_attribute(self.a.type)
        printer.print_string(" * ")
        printer.print_attribute(self.b.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.d.type)

    def verify_(self) -> None:
        a, b, d = (t.get_shape() for t in (self.a.type, self.b.type, self.d.type) if isinstance(t, TensorType))
        if a[-1] != b[-2] or d[-2:] != (a[-2], b[-1]):
            raise VerifyException(f"cannot multiply {self.a.type} by {self.b.type} into {self.d.type}")


@irdl_op_definition
class ExternElementwiseOp(TritonOp):
    """A call into a device library, element by element; ours is the carrier of `distributed.*` until it is lifted."""

    name = "tt.extern_elementwise"
    srcs = var_operand_def()
    libname = prop_def(StringAttr)
    libpath = prop_def(StringAttr)
    symbol = prop_def(StringAttr)
    pure = prop_def(BoolAttr)
    result = result_def()
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"


# ---- regions --------------------------------------------------------------------------------------------------------


class _CombineOp(IRDLOperation):
    srcs = var_operand_def(TensorType)
    axis = prop_def(IntegerAttr)
    outs = var_result_def()
    combine = region_def("single_block")
    traits = traits_def(Pure())


@irdl_op_definition
class ReduceOp(_CombineOp):
    """Reduce along `axis`; printed in generic form, as Triton does."""

    name = "tt.reduce"


@irdl_op_definition
class ScanOp(_CombineOp):
    """Inclusive scan along `axis`; printed in generic form, as Triton does."""

    name = "tt.scan"
    reverse = prop_def(BoolAttr)


@irdl_op_definition
class ReduceReturnOp(TritonOp):
    name = "tt.reduce.return"
    srcs = var_operand_def()
    traits = traits_def(IsTerminator(), Pure(), HasParent(ReduceOp))
    assembly_format = "$srcs attr-dict `:` type($srcs)"


@irdl_op_definition
class ScanReturnOp(TritonOp):
    name = "tt.scan.return"
    srcs = var_operand_def()
    traits = traits_def(IsTerminator(), Pure(), HasParent(ScanOp))
    assembly_format = "$srcs attr-dict `:` type($srcs)"


# ---- messages -------------------------------------------------------------------------------------------------------


@irdl_op_definition
class PrintOp(IRDLOperation):
    name = "tt.print"
    prefix = prop_def(StringAttr)
    hex = prop_def(BoolAttr)
    isSigned = opt_prop_def(DenseArrayBase)
    args = var_operand_def()

    @classmethod
    def parse(cls, parser: Parser) -> PrintOp:
        prefix = StringAttr(parser.parse_str_literal())
        found: dict[str, Attribute] = {"prefix": prefix, **parser.parse_optional_attr_dict()}
        operands: list = []
        types: list[Attribute] = []
        if parser.parse_optional_punctuation(":"):
            operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        properties, attributes = _split(found, cls)
        resolved = parser.resolve_operands(operands, types, parser.pos)
        return cls(operands=[resolved], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.prefix)
        shown = {k: v for k, v in self.properties.items() if k != "prefix"}
        printer.print_op_attributes({**shown, **self.attributes})
        if self.args:
            printer.print_string(" : ")
            _print_list(printer, self.args)
            printer.print_string(" : ")
            printer.print_list(self.args.types, printer.print_attribute)


@irdl_op_definition
class AssertOp(TritonOp):
    name = "tt.assert"
    condition = operand_def(container_of(i1))
    message = prop_def(StringAttr)
    assembly_format = "$condition `,` $message attr-dict `:` type($condition)"


OPS: list[type[Operation]] = [
    cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, IRDLOperation) and getattr(cls, "name", "").startswith("tt.")
]

Tt = Dialect("tt", OPS, [PointerType])
