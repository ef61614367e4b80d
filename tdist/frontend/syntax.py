"""One small reader for each custom syntax that Triton prints; `READERS` is the table.

A reader gets the text between the operation's name and its location and returns the operation. It trusts operand types
(values have theirs) and takes result types from the text, or from the operands where the text leaves them out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from xdsl.dialects import cf, math, scf, ub
from xdsl.dialects.arith import (
    CMPF_COMPARISON_OPERATIONS,
    CMPI_COMPARISON_OPERATIONS,
    FastMathFlagsAttr,
    IntegerOverflowAttr,
)
from xdsl.dialects.builtin import (
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    DictionaryAttr,
    FunctionType,
    IndexType,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
    UnitAttr,
    i32,
)
from xdsl.ir import Attribute, Dialect, Operation, Region

from tdist.frontend.locations import split_location
from tdist.frontend.text import (
    ReaderError,
    bit_pattern,
    boolean_like,
    closing,
    head_and_type,
    loaded_like,
    property_names,
    read_attribute,
    read_dictionary,
    read_results,
    read_type,
    read_types,
    split_commas,
    take_dictionary,
)
from tdist.ir import tt
from tdist.ir.arith import Arith
from tdist.ir.distributed import Distributed
from tdist.ir.foreign import Gpu, Llvm
from tdist.ir.hivm import Hivm

if TYPE_CHECKING:
    from tdist.frontend.reader import Reader

OpReader = Callable[["Reader", str], Operation]

_CLAUSE = re.compile(r"(\w+) = (\w+)")
_FLAGS = re.compile(r"(fastmath|overflow)(<[^>]*>)")
_FUNCTION = re.compile(r'\s*(?:(public|private|nested) )?@(?:"([^"]+)"|([\w$.\-]+))(\(.*)', re.DOTALL)
_TARGET = re.compile(r"\^(\w+)(\(.*?\))?(?=,|\s|$)")


def _classes(*dialects: Dialect) -> dict[str, type[Operation]]:
    return {cls.name: cls for dialect in dialects for cls in dialect.operations}


CLASSES: dict[str, type[Operation]] = _classes(
    Arith, math.Math, scf.Scf, cf.Cf, ub.UB, tt.Tt, Distributed, Hivm, Gpu, Llvm
)


def make(
    cls: type[Operation],
    operands: list,
    results: tuple[Attribute, ...] = (),
    properties: dict[str, Attribute] | None = None,
    dictionary: dict[str, Attribute] | None = None,
) -> Operation:
    """Create an operation; entries of `dictionary` that the class knows as properties go there."""
    properties = properties or {}
    attributes: dict[str, Attribute] = {}
    if dictionary:
        known = property_names(cls)
        for key, value in dictionary.items():
            (properties if key in known else attributes)[key] = value
    return cls.create(operands=operands, result_types=results, properties=properties, attributes=attributes)


# ---- syntaxes that many operations share ----------------------------------------------------------------------------


def _flags(cls: type[Operation]) -> dict[str, Attribute]:
    """The flag properties that the generic form always shows."""
    known = property_names(cls)
    flags: dict[str, Attribute] = {}
    if "fastmath" in known:
        flags["fastmath"] = FastMathFlagsAttr("none")
    if "overflowFlags" in known and cls.name != "arith.trunci":
        flags["overflowFlags"] = IntegerOverflowAttr("none")
    return flags


def _read_flags(head: str) -> dict[str, Attribute]:
    spelt = {"fastmath": "#arith.fastmath", "overflow": "#arith.overflow"}
    prop = {"fastmath": "fastmath", "overflow": "overflowFlags"}
    return {prop[word]: read_attribute(spelt[word] + flags) for word, flags in _FLAGS.findall(head)}


def typed(cls: type[Operation]) -> OpReader:
    """`%a, %b {…} : T`: the result has type T."""
    defaults = _flags(cls)

    def read(reader: Reader, rest: str) -> Operation:
        head, type_ = head_and_type(rest)
        head, dictionary = take_dictionary(head)
        properties = dict(defaults)
        if defaults and "<" in head:
            properties |= _read_flags(head)
        return make(cls, reader.operands(head), (read_type(type_),), properties, dictionary)

    return read


def arrow(cls: type[Operation]) -> OpReader:
    """`%a, %b {…} : … -> T`, also with parentheses around the types."""

    def read(reader: Reader, rest: str) -> Operation:
        head, types = head_and_type(rest)
        head, dictionary = take_dictionary(head)
        return make(cls, reader.operands(head), read_results(types), None, dictionary)

    return read


def cast(cls: type[Operation]) -> OpReader:
    """`%a {…} : S to T`."""
    defaults = _flags(cls)

    def read(reader: Reader, rest: str) -> Operation:
        head, types = head_and_type(rest)
        head, dictionary = take_dictionary(head)
        properties = {**defaults, **_read_flags(head)} if "<" in head else dict(defaults)
        target = types.rpartition(" to ")[2]
        return make(cls, reader.operands(head), (read_type(target),), properties, dictionary)

    return read


def same_as_first(cls: type[Operation]) -> OpReader:
    """`%a, … : types`: the result has the type of the first operand."""

    def read(reader: Reader, rest: str) -> Operation:
        head, _ = head_and_type(rest)
        head, dictionary = take_dictionary(head)
        operands = reader.operands(head)
        return make(cls, operands, (operands[0].type,), None, dictionary)

    return read


def no_result(cls: type[Operation]) -> OpReader:
    """`%a, … {…} : types`, types and all optional."""

    def read(reader: Reader, rest: str) -> Operation:
        head = rest.partition(" : ")[0] if rest.strip() else ""
        head, dictionary = take_dictionary(head)
        return make(cls, reader.operands(head), (), None, dictionary)

    return read


def comparison(cls: type[Operation], predicates: list[str]) -> OpReader:
    """`predicate, %a, %b : T`."""
    numbers = {word: IntegerAttr(number, 64) for number, word in enumerate(predicates)}
    defaults = _flags(cls)

    def read(reader: Reader, rest: str) -> Operation:
        head, _ = head_and_type(rest)
        head, dictionary = take_dictionary(head)
        predicate, _, names = head.strip().partition(",")
        operands = reader.operands(names)
        properties = {"predicate": numbers[predicate], **defaults}
        if "<" in names:
            properties |= _read_flags(names)
        return make(cls, operands, (boolean_like(operands[0].type),), properties, dictionary)

    return read


# ---- arith ----------------------------------------------------------------------------------------------------------


def _constant(reader: Reader, rest: str) -> Operation:
    text = rest.strip()
    attributes: dict[str, Attribute] = {}
    if text.startswith("{"):
        end = closing(text, 0)
        attributes = dict(read_dictionary(text[: end + 1]))
        text = text[end + 1 :].strip()
    value = bit_pattern(text) or read_attribute(text)
    get_type = getattr(value, "get_type", None)
    if get_type is None:
        raise ReaderError(f"not a constant: '{text}'")
    cls = CLASSES["arith.constant"]
    return cls.create(result_types=(get_type(),), properties={"value": value}, attributes=attributes)


def _select(reader: Reader, rest: str) -> Operation:
    head, _ = head_and_type(rest)
    head, dictionary = take_dictionary(head)
    operands = reader.operands(head)
    return make(CLASSES["arith.select"], operands, (operands[1].type,), None, dictionary)


def _poison(reader: Reader, rest: str) -> Operation:
    type_ = read_type(rest.rpartition(": ")[2])
    return ub.PoisonOp.create(result_types=[type_], properties={"value": ub.PoisonAttr()})


# ---- tt -------------------------------------------------------------------------------------------------------------


def _dimension(cls: type[Operation]) -> OpReader:
    def read(reader: Reader, rest: str) -> Operation:
        head, dictionary = take_dictionary(head_and_type(rest)[0])
        return make(cls, [], (i32,), {"axis": tt.keyword_value(tt.DIMENSION, head.strip())}, dictionary)

    return read


_ONE = IntegerAttr(1, 32)
_NO_CHECK = DenseArrayBase.from_list(i32, [])
_STORE_DEFAULTS: dict[str, Attribute] = {"boundaryCheck": _NO_CHECK, "cache": _ONE, "evict": _ONE}
_LOAD_DEFAULTS: dict[str, Attribute] = {**_STORE_DEFAULTS, "isVolatile": BoolAttr.from_bool(False)}
_CLAUSES = {"cacheModifier": ("cache", tt.CACHE), "evictionPolicy": ("evict", tt.EVICTION)}
_LOAD_SEGMENTS = {n: DenseArrayBase.from_list(i32, [1] * n + [0] * (3 - n)) for n in (1, 2, 3)}


def _access(rest: str, defaults: dict[str, Attribute]) -> tuple[str, dict[str, Attribute], dict[str, Attribute]]:
    """Operands' text, properties and dictionary of a load or store."""
    head, _ = head_and_type(rest)
    head, dictionary = take_dictionary(head)
    properties = dict(defaults)
    if "=" in head:
        for word, value in _CLAUSE.findall(head):
            prop, table = _CLAUSES[word]
            properties[prop] = tt.keyword_value(table, value)
    return head, properties, dictionary


def _load(reader: Reader, rest: str) -> Operation:
    head, properties, dictionary = _access(rest, _LOAD_DEFAULTS)
    operands = reader.operands(head)
    properties["operandSegmentSizes"] = _LOAD_SEGMENTS[len(operands)]
    return make(tt.LoadOp, operands, (loaded_like(operands[0].type),), properties, dictionary)


def _store(reader: Reader, rest: str) -> Operation:
    head, properties, dictionary = _access(rest, _STORE_DEFAULTS)
    return make(tt.StoreOp, reader.operands(head), (), properties, dictionary)


def _atomic(cls: type[tt.AtomicRMWOp] | type[tt.AtomicCASOp]) -> OpReader:
    def read(reader: Reader, rest: str) -> Operation:
        head, types = head_and_type(rest)
        head, dictionary = take_dictionary(head)
        words = head.split(",", len(cls.KEYWORDS))
        properties: dict[str, Attribute] = {
            prop: tt.keyword_value(table, word.strip())
            for (prop, table), word in zip(cls.KEYWORDS, words, strict=False)
        }
        return make(cls, reader.operands(words[-1]), read_results(types), properties, dictionary)

    return read


def _block_pointer_type(types: str) -> Attribute:
    return read_type(f"!tt.ptr{types.strip()}" if types.strip().startswith("<") else types.strip())


def _make_tensor_ptr(reader: Reader, rest: str) -> Operation:
    head, types = head_and_type(rest)
    head, dictionary = take_dictionary(head)
    return make(tt.MakeTensorPtrOp, reader.operands(head), (_block_pointer_type(types),), None, dictionary)


def _reshape(reader: Reader, rest: str) -> Operation:
    head, types = head_and_type(rest)
    head, dictionary = take_dictionary(head)
    properties: dict[str, Attribute] = {w: UnitAttr() for w in tt.ReshapeOp.FLAGS if re.search(rf"\s{w}\b", head)}
    return make(tt.ReshapeOp, reader.operands(head), read_results(types), properties, dictionary)


def _split(reader: Reader, rest: str) -> Operation:
    head, types = head_and_type(rest)
    head, dictionary = take_dictionary(head)
    return make(tt.SplitOp, reader.operands(head), read_results(types) * 2, None, dictionary)


def _fp_to_fp(reader: Reader, rest: str) -> Operation:
    head, types = head_and_type(rest)
    rounding = dict(_CLAUSE.findall(head)).get("rounding")
    properties: dict[str, Attribute] = {}
    if rounding is not None:
        properties["rounding"] = tt.keyword_value(tt.ROUNDING, rounding)
        head = head.rpartition(", rounding")[0]
    head, dictionary = take_dictionary(head)
    return make(tt.FpToFpOp, reader.operands(head), read_results(types), properties, dictionary)


def _flip(reader: Reader, rest: str) -> Operation:
    head, types = head_and_type(rest)
    head, dictionary = take_dictionary(head)
    axis = int(head.rpartition(",")[2])
    return make(tt.FlipOp, reader.operands(head), read_results(types), {"dim": IntegerAttr(axis, 64)}, dictionary)


def _sort(reader: Reader, rest: str) -> Operation:
    head, types = head_and_type(rest)
    head, dictionary = take_dictionary(head)
    source, axis, descending = (part.strip() for part in head.split(","))
    properties = {"dim": IntegerAttr(int(axis), 64), "descending": BoolAttr.from_bool(descending == "true")}
    return make(tt.SortOp, reader.operands(source), read_results(types), properties, dictionary)


def _annotation(reader: Reader, rest: str) -> Operation:
    head, dictionary = take_dictionary(head_and_type(rest)[0])
    return make(tt.AnnotationOp, reader.operands(head), (), None, dictionary)


def _clampf(reader: Reader, rest: str) -> Operation:
    head, type_ = head_and_type(rest)
    head, dictionary = take_dictionary(head)
    names, _, word = head.rpartition(", propagateNan = ")
    properties: dict[str, Attribute] = {"propagateNan": tt.keyword_value(tt.PROPAGATE_NAN, word.strip())}
    return make(tt.ClampFOp, reader.operands(names), (read_type(type_),), properties, dictionary)


def _dot(reader: Reader, rest: str) -> Operation:
    head, types = head_and_type(rest)
    head, dictionary = take_dictionary(head)
    precision = dict(_CLAUSE.findall(head)).get("inputPrecision", "ieee")
    properties: dict[str, Attribute] = {
        "inputPrecision": tt.keyword_value(tt.PRECISION, precision),
        "maxNumImpreciseAcc": IntegerAttr(0, 32),
    }
    return make(tt.DotOp, reader.operands(head), read_results(types), properties, dictionary)


def _mod(reader: Reader, rest: str) -> Operation:
    head, types = head_and_type(rest)
    return make(tt.ModOp, reader.operands(head), read_results(types))


def _string_end(text: str) -> int:
    """The index after a string literal that `text` starts with."""
    i = 1
    while text[i] != '"':
        i += 2 if text[i] == "\\" else 1
    return i + 1


def _print(reader: Reader, rest: str) -> Operation:
    text = rest.strip()
    end = _string_end(text)
    properties: dict[str, Attribute] = {"prefix": read_attribute(text[:end])}
    text = text[end:].strip()
    dictionary: dict[str, Attribute] = {}
    if text.startswith("{"):
        end = closing(text, 0)
        dictionary = read_dictionary(text[: end + 1])
        text = text[end + 1 :].strip()
    names = text.removeprefix(":").partition(" : ")[0]
    return make(tt.PrintOp, reader.operands(names), (), properties, dictionary)


def _assert(reader: Reader, rest: str) -> Operation:
    name, _, message = rest.strip().partition(",")
    message = message.strip()
    properties: dict[str, Attribute] = {"message": read_attribute(message[: _string_end(message)])}
    return make(tt.AssertOp, reader.operands(name), (), properties)


def _call(reader: Reader, rest: str) -> Operation:
    head, types = head_and_type(rest)
    head, dictionary = take_dictionary(head)
    match = _FUNCTION.fullmatch(head)
    if match is None:
        raise ReaderError("cannot read whom this call calls")
    _, quoted, plain, names = match.groups()
    properties: dict[str, Attribute] = {"callee": SymbolRefAttr(quoted or plain)}
    return make(tt.CallOp, reader.operands(names), read_results(types), properties, dictionary)


# ---- control flow ---------------------------------------------------------------------------------------------------


def _condition(reader: Reader, rest: str) -> Operation:
    return make(scf.ConditionOp, reader.operands(rest.partition(" : ")[0]))


def _branch(reader: Reader, rest: str) -> Operation:
    ((label, names),) = _TARGET.findall(rest.strip())
    target = reader.block_named(label)
    return cf.BranchOp.create(operands=reader.operands(names.partition(" : ")[0]), successors=[target])


def _conditional_branch(reader: Reader, rest: str) -> Operation:
    condition, _, targets = rest.strip().partition(",")
    targets, dictionary = take_dictionary(targets)
    (then, then_names), (other, other_names) = _TARGET.findall(targets.strip())
    groups = [reader.operands(text.partition(" : ")[0]) for text in (condition, then_names, other_names)]
    return cf.ConditionalBranchOp.create(
        operands=[value for group in groups for value in group],
        properties={"operandSegmentSizes": DenseArrayBase.from_list(i32, [len(group) for group in groups])},
        attributes=dictionary,
        successors=[reader.block_named(then), reader.block_named(other)],
    )


_FOR = re.compile(r"\s*(%\S+) = (%\S+) to (%\S+) step (%\S+)\s*(?:iter_args\((.*?)\) -> \((.*)\))?\s*(?:: (\S+) )?\{")


def _for(reader: Reader, rest: str, names: str | None) -> None:
    match = _FOR.fullmatch(rest)
    if match is None:
        raise ReaderError("this form of scf.for is not supported")
    variable, low, high, step, carried, types, index = match.groups()
    results = read_types(types) if types else ()
    pairs = [part.split(" = ") for part in carried.split(",")] if carried else []
    operands = reader.operands(" ".join([low, high, step, *(init for _, init in pairs)]))
    arguments = [(variable, read_type(index) if index else IndexType(), None)]
    arguments += [(name.strip(), type_, None) for (name, _), type_ in zip(pairs, results, strict=True)]

    def build(regions: list[Region], attributes: dict[str, Attribute]) -> Operation:
        return scf.ForOp.create(operands=operands, result_types=results, regions=regions, attributes=attributes)

    reader.open(build, names, arguments, scf.YieldOp)


def _if(reader: Reader, rest: str, names: str | None) -> None:
    head, _, types = rest.rstrip("{ ").partition(" -> ")
    condition = reader.operands(head)
    results = read_types(types) if types else ()

    def build(regions: list[Region], attributes: dict[str, Attribute]) -> Operation:
        both = regions if len(regions) == 2 else [*regions, Region()]
        return scf.IfOp.create(operands=condition, result_types=results, regions=both, attributes=attributes)

    reader.open(build, names, (), scf.YieldOp)


def _while(reader: Reader, rest: str, names: str | None) -> None:
    head, _, types = rest.rstrip("{ ").partition(" : ")
    inputs, _, outputs = types.partition(" -> ")
    results = read_types(outputs)
    pairs = [part.split(" = ") for part in split_commas(head.strip()[1:-1])] if head.strip() else []
    operands = reader.operands(" ".join(init for _, init in pairs))
    arguments = [(name, type_, None) for (name, _), type_ in zip(pairs, read_types(inputs), strict=True)]

    def build(regions: list[Region], attributes: dict[str, Attribute]) -> Operation:
        return scf.WhileOp.create(operands=operands, result_types=results, regions=regions, attributes=attributes)

    reader.open(build, names, arguments, scf.YieldOp)


def _function(reader: Reader, rest: str, names: str | None) -> None:
    match = _FUNCTION.fullmatch(rest)
    if match is None:
        raise ReaderError("cannot read this function's signature")
    visibility, quoted, plain, signature = match.groups()
    end = closing(signature, 0)
    arguments, argument_attributes = _parameters(signature[1:end])
    tail = signature[end + 1 :].strip().removesuffix("{").strip()
    outputs, _, attributes = tail.partition("attributes ")
    results = read_types(outputs.strip().removeprefix("->").strip())
    properties: dict[str, Attribute] = {
        "sym_name": StringAttr(quoted or plain),
        "function_type": FunctionType.from_lists([type_ for _, type_, _ in arguments], list(results)),
    }
    if visibility:
        properties["sym_visibility"] = StringAttr(visibility)
    if any(one.data for one in argument_attributes):
        properties["arg_attrs"] = ArrayAttr(argument_attributes)
    extra = dict(read_dictionary(attributes)) if attributes else {}

    def build(regions: list[Region], more: dict[str, Attribute]) -> Operation:
        return tt.FuncOp.create(properties=properties, attributes={**extra, **more}, regions=regions)

    reader.open(build, names, arguments)


def _parameters(text: str) -> tuple[list[tuple[str, Attribute, str | None]], list[DictionaryAttr]]:
    """A kernel's parameters: `%a: T {attributes} loc(…)`."""
    arguments, attributes = [], []
    for part in split_commas(text):
        body, location = split_location(part)
        name, _, type_ = body.partition(":")
        type_, dictionary = take_dictionary(type_)
        arguments.append((name.strip(), read_type(type_.strip()), location))
        attributes.append(DictionaryAttr(dictionary))
    return arguments, attributes


# ---- the tables -----------------------------------------------------------------------------------------------------

_CASTS = ("bitcast", "index_cast", "fptosi", "fptoui", "sitofp", "uitofp", "extf", "truncf", "trunci", "extsi", "extui")
_SPECIAL_ARITH: dict[str, OpReader] = {
    "arith.constant": _constant,
    "arith.select": _select,
    "arith.cmpi": comparison(CLASSES["arith.cmpi"], CMPI_COMPARISON_OPERATIONS),
    "arith.cmpf": comparison(CLASSES["arith.cmpf"], CMPF_COMPARISON_OPERATIONS),
    **{f"arith.{name}": cast(CLASSES[f"arith.{name}"]) for name in _CASTS},
}
_UNSUPPORTED_ARITH = ("arith.addui_extended", "arith.mului_extended", "arith.mulsi_extended", "math.fpowi")

READERS: dict[str, OpReader] = {
    **{
        name: typed(cls)
        for name, cls in CLASSES.items()
        if name.startswith(("arith.", "math.")) and name not in _UNSUPPORTED_ARITH
    },
    **_SPECIAL_ARITH,
    **{
        cls.name: arrow(cls)
        for cls in (
            tt.SplatOp,
            tt.UnsplatOp,
            tt.ExpandDimsOp,
            tt.BroadcastOp,
            tt.TransOp,
            tt.CatOp,
            tt.JoinOp,
            tt.BitcastOp,
            tt.IntToPtrOp,
            tt.PtrToIntOp,
            tt.GatherOp,
            tt.HistogramOp,
            tt.ExternElementwiseOp,
        )
    },
    **{cls.name: typed(cls) for cls in (tt.MakeRangeOp, tt.MulhiUIOp, tt.PreciseDivFOp, tt.PreciseSqrtOp)},
    "tt.addptr": same_as_first(tt.AddPtrOp),
    "tt.advance": same_as_first(tt.AdvanceOp),
    "tt.get_program_id": _dimension(tt.GetProgramIdOp),
    "tt.get_num_programs": _dimension(tt.GetNumProgramsOp),
    "tt.load": _load,
    "tt.store": _store,
    "tt.atomic_rmw": _atomic(tt.AtomicRMWOp),
    "tt.atomic_cas": _atomic(tt.AtomicCASOp),
    "tt.make_tensor_ptr": _make_tensor_ptr,
    "tt.reshape": _reshape,
    "tt.split": _split,
    "tt.fp_to_fp": _fp_to_fp,
    "tt.flip": _flip,
    "tt.sort": _sort,
    "tt.annotation": _annotation,
    "tt.clampf": _clampf,
    "tt.dot": _dot,
    "tt.mod": _mod,
    "tt.print": _print,
    "tt.assert": _assert,
    "tt.call": _call,
    "tt.return": no_result(tt.ReturnOp),
    "tt.reduce.return": no_result(tt.ReduceReturnOp),
    "tt.scan.return": no_result(tt.ScanReturnOp),
    "scf.yield": no_result(scf.YieldOp),
    "scf.condition": _condition,
    "cf.br": _branch,
    "cf.cond_br": _conditional_branch,
    "ub.poison": _poison,
    "gpu.barrier": no_result(CLASSES["gpu.barrier"]),
    "hivm.hir.get_sub_block_idx": arrow(CLASSES["hivm.hir.get_sub_block_idx"]),
    "llvm.intr.assume": no_result(CLASSES["llvm.intr.assume"]),
}

REGION_READERS: dict[str, Callable[[Reader, str, str | None], None]] = {
    "tt.func": _function,
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
}
