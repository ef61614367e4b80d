"""The vendor's IR in MLIR's generic form ↔ xDSL, at every stage behind Triton's own: Linalg, HIVM, the final module.

`triton-adapter-opt` and `bishengir-opt` print any module with `--mlir-print-op-generic`, and with the kernel's lines
with `--mlir-print-debuginfo`. That form has one operation a line, so it is read line by line: attributes and types are
given to xDSL's parser once per distinct text, the rest needs none. What xDSL or we define becomes an operation of that
class, anything else an `UnregisteredOp` with its properties; both print again as they were read.

Spellings that xDSL cannot take stay text (`VerbatimAttr`): affine maps with a product or quotient of symbols
("semi-affine"), affine sets, and floats given by their bits inside other attributes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache

from xdsl.context import Context
from xdsl.dialects.builtin import LocationAttr, ModuleOp, UnitAttr, UnregisteredOp
from xdsl.ir import Attribute, Block, BlockArgument, BuiltinAttribute, Data, Dialect, Operation, Region, SSAValue
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException

from tdist.errors import EnvironmentUnfit
from tdist.frontend.locations import Locations, split_location
from tdist.frontend.text import ReaderError, bit_pattern, closing, split_commas
from tdist.ir.collection import no_collection
from tdist.ir.context import make_context

_ALIAS = re.compile(r"([#!][A-Za-z_]\w*) = (.+)")
_USE = re.compile(r'"(?:[^"\\]|\\.)*"|[#!][A-Za-z_]\w*(?![\w.<])|affine_(?:map|set)<.*?\)>')
_OPERATION = re.compile(r'(?:(%[^=]*) = )?"([\w.$-]+)"\(([^)]*)\)(.*)', re.DOTALL)
_BLOCK = re.compile(r"\^(\w+)(?:\((.*)\))?:(?:\s*//.*)?", re.DOTALL)
_OPERAND = re.compile(r"%[\w$.-]+(?:#\d+)?")
_BITS = re.compile(r"dense<[^<>\"]*\b0x[^<>\"]*> : (?:tensor|vector)<[^<>]*>|\b0x[0-9A-Fa-f]+ : b?f\d+\b")
_BARE = re.compile(r"[A-Za-z_][\w$.]*")
_SIGNATURE = " : ("
_OP_NAME = "op_name__"


@irdl_attr_definition
class VerbatimAttr(Data[str], BuiltinAttribute):
    """An attribute as the vendor spelt it. Inside this reader it is written `#tdist.verbatim<"…">`."""

    name = "tdist.verbatim"

    def print_builtin(self, printer: Printer) -> None:
        printer.print_string(self.data)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(self.data)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> str:
        with parser.in_angle_brackets():
            return parser.parse_str_literal()


# ---- pieces of text, each read once ---------------------------------------------------------------------------------


@cache
def vendor_context() -> Context:
    """The context of a module behind Triton's own stages; what it does not know is read as unregistered."""
    from xdsl.dialects.func import Func  # these cost every other user of the context their import
    from xdsl.dialects.memref import MemRef

    context = make_context(allow_unregistered=True)
    for dialect in (Func, MemRef, Dialect("tdist", [], [VerbatimAttr])):
        context.load_dialect(dialect)
    return context


@cache
def _operation_class(name: str) -> type[Operation]:
    return vendor_context().get_op(name)


@cache
def _dictionary(text: str) -> dict[str, Attribute]:
    found = _parse(_quote_bits(text), Parser.parse_optional_attr_dict)
    return {key: _number(value) for key, value in found.items()}


@cache
def _types(text: str) -> tuple[Attribute, ...]:
    """The types of a list, with or without parentheses around it."""
    text = text.strip()
    if text.startswith("(") and closing(text, 0) == len(text) - 1:
        text = text[1:-1]
    return tuple(_parse(part, Parser.parse_type) for part in split_commas(text))


@cache
def _is_affine_for_xdsl(text: str) -> bool:
    if text.startswith("affine_set"):  # `>=` is no bracket
        return False
    try:
        _parse(text, Parser.parse_attribute)
    except ReaderError:
        return False
    return True


def _parse(text: str, parse):
    parser = Parser(vendor_context(), text)
    try:
        return parse(parser)
    except (ParseError, VerifyException, ValueError, NotImplementedError) as error:
        raise ReaderError(f"cannot read '{text}'") from error


def _verbatim(text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'#{VerbatimAttr.name}<"{quoted}">'


def _quote_bits(text: str) -> str:
    """xDSL's parser takes the digits of a float given by its bits for a number."""
    return _BITS.sub(lambda match: _verbatim(match[0]), text) if "0x" in text else text


def _number(value: Attribute) -> Attribute:
    found = bit_pattern(value.data) if isinstance(value, VerbatimAttr) else None
    return value if found is None else found


class _Aliases:
    """`#map = …` and `!type = …` of one text, put where they are used."""

    def __init__(self, lines: Sequence[str]) -> None:
        matches = (_ALIAS.fullmatch(line) for line in lines if line[:1] in ("#", "!"))
        self._texts = {match[1]: match[2] for match in matches if match is not None}
        self._expanded: dict[str, str] = {}

    def expand(self, text: str) -> str:
        """`text` without aliases, and with every map that xDSL cannot take quoted; strings are left alone."""
        if "#" not in text and "!" not in text and "affine_" not in text:
            return text
        known = self._expanded.get(text)
        if known is None:
            known = self._expanded[text] = _USE.sub(self._replace, text)
        return known

    def _replace(self, match: re.Match[str]) -> str:
        found = match[0]
        if found.startswith("affine_"):
            return found if _is_affine_for_xdsl(found) else _verbatim(found)
        body = self._texts.get(found)
        return found if body is None else self.expand(body)


# ---- reading --------------------------------------------------------------------------------------------------------


class _Frame:
    """An operation whose regions are being read."""

    __slots__ = ("block", "blocks", "labels", "line", "regions")

    def __init__(self, line: tuple[str | None, str, str, str]) -> None:
        self.line = line  # results, name, operands, what stands between the operands and the regions
        self.regions: list[Region] = []
        self.open_region()

    def open_region(self) -> None:
        self.block: Block | None = None  # a region without a label has at most one block, made at its first operation
        self.blocks: list[Block] = []
        self.labels: dict[str, Block] = {}

    def close_region(self) -> None:
        self.regions.append(Region(self.blocks))

    def current(self) -> Block:
        if self.block is None:
            self.start(Block())
        assert self.block is not None
        return self.block

    def start(self, block: Block) -> None:
        self.block = block
        self.blocks.append(block)

    def labelled(self, label: str) -> Block:
        return self.labels.setdefault(label, Block())


class _Reader:
    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.aliases = _Aliases(self.lines)
        self.locations = Locations(self.lines)
        self.values: dict[str, SSAValue] = {}
        self.frames: list[_Frame] = []
        self.top: Operation | None = None

    def read(self) -> ModuleOp:
        for number, line in enumerate(self.lines, 1):
            text = line.strip()
            if not text or text[0] in "#!/":
                continue
            try:
                self._line(text)
            except (ReaderError, KeyError, IndexError, ValueError, VerifyException) as error:
                what = f"unknown name {error}" if isinstance(error, KeyError) else str(error)
                raise _unreadable(f"line {number}: {what}\n  {text[:300]}") from error
        if not isinstance(self.top, ModuleOp):
            raise _unreadable("the text ends before its module does" if self.frames else "there is no module in it")
        return self.top

    def _line(self, text: str) -> None:
        first = text[0]
        if first == "^":
            self._label(text)
        elif first == "}":
            self._close(text)
        else:
            self._operation(text)

    def _operation(self, text: str) -> None:
        match = _OPERATION.fullmatch(text)
        if match is None:
            raise ReaderError("expected an operation in generic form")
        results, name, operands, rest = match.groups()
        if rest.endswith("({"):
            self.frames.append(_Frame((results, name, operands, rest[:-2].strip())))
            return
        body, location = split_location(rest)
        head, _, signature = body.rpartition(_SIGNATURE)
        self._append((results, name, operands, head.strip()), "", signature, [], location)

    def _close(self, text: str) -> None:
        """`}, {` between regions, `}) {attributes} : (…) -> …` after the last."""
        frame = self.frames[-1]
        frame.close_region()
        if text.startswith("}, {"):
            frame.open_region()
            return
        self.frames.pop()
        body, location = split_location(text[2:])
        head, _, signature = body.rpartition(_SIGNATURE)
        self._append(frame.line, head.strip(), signature, frame.regions, location)

    def _append(
        self,
        line: tuple[str | None, str, str, str],
        tail: str,
        signature: str,
        regions: list[Region],
        location: str | None,
    ) -> None:
        results, name, operands, head = line
        successors, properties, attributes = self._head(head)
        if tail:
            attributes = {**attributes, **_dictionary(self.aliases.expand(tail))}
        values = self.values
        op = _operation_class(name).create(
            operands=[values[used] for used in _OPERAND.findall(operands)],
            result_types=_types(self.aliases.expand(signature.partition("-> ")[2])),
            properties=properties,
            attributes=attributes,
            successors=successors,
            regions=regions,
            location=self.locations.get(location),
        )
        if self.frames:
            self.frames[-1].current().add_op(op)
        else:
            self.top = op
        if results is not None:
            self._define(results, op)

    def _head(self, head: str) -> tuple[list[Block], dict[str, Attribute], dict[str, Attribute]]:
        """Successors, properties and attributes of `[^bb1] <{…}> {…}`, each if there is one."""
        successors: list[Block] = []
        if head.startswith("["):
            end = closing(head, 0)
            successors = [self.frames[-1].labelled(label.strip()[1:]) for label in head[1:end].split(",")]
            head = head[end + 1 :].strip()
        properties, attributes = _dictionaries(self.aliases.expand(head)) if head else ({}, {})
        return successors, properties, attributes

    def _define(self, names: str, op: Operation) -> None:
        """`%0`, `%0:2`, and `%0, %1` as xDSL prints it."""
        defined: list[str] = []
        for part in names.split(","):
            name, colon, count = part.strip().partition(":")
            defined += [f"{name}#{index}" for index in range(int(count))] if colon else [name]
        if len(defined) != len(op.results):
            raise ReaderError(f"{len(defined)} names for {len(op.results)} results")
        self.values.update(zip(defined, op.results, strict=True))

    def _label(self, text: str) -> None:
        match = _BLOCK.fullmatch(text)
        if match is None:
            raise ReaderError("expected a block label")
        frame = self.frames[-1]
        block = frame.labelled(match[1])
        frame.start(block)
        for part in split_commas(match[2] or ""):
            body, location = split_location(part)
            name, _, type_ = body.partition(":")
            argument = block.insert_arg(_types(self.aliases.expand(type_))[0], len(block.args))
            argument.location = self.locations.get(location)
            self.values[name.strip()] = argument


@cache
def _dictionaries(head: str) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    properties: dict[str, Attribute] = {}
    if head.startswith("<"):
        end = closing(head, 0)
        properties = _dictionary(head[1:end])
        head = head[end + 1 :].strip()
    return properties, _dictionary(head) if head else {}


def _unreadable(what: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"cannot read what the vendor's tool printed, {what}\nThis is known to work with triton-ascend 3.2.0 and "
        "ascendnpu-ir 1.2.0: use these, or report the text."
    )


def read_generic(text: str) -> ModuleOp:
    """Read a module in generic form.

    Every operation has its location (`tdist.ir.location.loc_of`) and so has every block argument, if the text has them.
    Nothing is verified: what a vendor's tool printed need not satisfy the rules of xDSL's classes.

    Args:
        text: What `triton-adapter-opt` or `bishengir-opt` prints with `--mlir-print-op-generic`; locations may be
            anywhere in the text and may be aliases.

    Raises:
        EnvironmentUnfit: The text is no such module; names the line.
    """
    with no_collection():
        return _Reader(text).read()


# ---- printing -------------------------------------------------------------------------------------------------------


def print_generic(module: ModuleOp, *, locations: bool = True) -> str:
    """`module` in the generic form that the vendor's tools read, with locations unless they are not wanted.

    Values are numbered. Types and attributes are printed by xDSL, each once.
    """
    writer = _Writer(locations)
    writer.operation(module, "")
    return "\n".join(writer.lines) + "\n"


class _Printer(Printer):
    """Strings at one go; xDSL prints them byte by byte, and every location has the name of its file."""

    def print_bytes_literal(self, bytestring: bytes) -> None:
        self.print_string(_literal(bytestring))


@lru_cache(maxsize=1024)
def _literal(data: bytes) -> str:
    text = io.StringIO()
    Printer(stream=text).print_bytes_literal(data)
    return text.getvalue()


class _Writer:
    def __init__(self, locations: bool) -> None:
        self.lines: list[str] = []
        self._locations = locations
        self._values: dict[SSAValue, str] = {}
        self._blocks: dict[Block, str] = {}
        self._count = 0
        # by identity: a module shares its types, and comparing them costs more than printing them
        self._texts: dict[int, tuple[object, str]] = {}

    def operation(self, op: Operation, indent: str) -> None:
        name = op.op_name.data if isinstance(op, UnregisteredOp) else op.name
        successors = f"[{', '.join(self._block(block) for block in op.successors)}]" if op.successors else ""
        operands = ", ".join([self._values[value] for value in op.operands])
        head = f'{indent}{self._define(op)}"{name}"({operands}){successors}{self._properties(op)}'
        tail = f"{self._attributes(op)} : {self._signature(op)}{self._location(op.location)}"
        if not op.regions:
            self.lines.append(head + tail)
            return
        self.lines.append(f"{head} ({{")
        for index, region in enumerate(op.regions):
            if index:
                self.lines.append(f"{indent}}}, {{")
            self._region(region, indent)
        self.lines.append(f"{indent}}}){tail}")

    def _region(self, region: Region, indent: str) -> None:
        if len(region.blocks) > 1:  # a block may use what a later one defines, if it comes after it at run time
            for block in region.blocks:
                for op in block.ops:
                    self._define(op)
        for index, block in enumerate(region.blocks):
            arguments = [self._argument(value) for value in block.args]
            if index or arguments or block.is_empty:
                inside = f"({', '.join(arguments)})" if arguments else ""
                self.lines.append(f"{indent}{self._block(block)}{inside}:")
            for op in block.ops:
                self.operation(op, indent + "  ")

    def _argument(self, value: BlockArgument) -> str:
        self._values[value] = f"%{self._next()}"
        return f"{self._values[value]}: {self._text(value.type)}{self._location(value.location)}"

    def _define(self, op: Operation) -> str:
        results = op.results
        if not results:
            return ""
        known = self._values.get(results[0])
        name = f"%{self._next()}" if known is None else known.partition("#")[0]
        if len(results) == 1:
            self._values[results[0]] = name
            return f"{name} = "
        for index, result in enumerate(results):
            self._values[result] = f"{name}#{index}"
        return f"{name}:{len(results)} = "

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _block(self, block: Block) -> str:
        return self._blocks.setdefault(block, f"^bb{len(self._blocks)}")

    def _properties(self, op: Operation) -> str:
        return f" <{{{self._entries(op.properties)}}}>" if op.properties else ""

    def _attributes(self, op: Operation) -> str:
        attributes = op.attributes
        if isinstance(op, UnregisteredOp):
            attributes = {key: value for key, value in attributes.items() if key != _OP_NAME}
        return f" {{{self._entries(attributes)}}}" if attributes else ""

    def _entries(self, attributes: Mapping[str, Attribute]) -> str:
        return ", ".join(
            _key(key) if isinstance(value, UnitAttr) else f"{_key(key)} = {self._text(value)}"
            for key, value in attributes.items()
        )

    def _signature(self, op: Operation) -> str:
        operands = ", ".join([self._text(value.type) for value in op.operands])
        results = ", ".join([self._text(value.type) for value in op.results])
        return f"({operands}) -> {results if len(op.results) == 1 else f'({results})'}"

    def _location(self, location: LocationAttr) -> str:
        return f" {self._text(location)}" if self._locations else ""

    def _text(self, attribute: Attribute) -> str:
        known = self._texts.get(id(attribute))
        if known is None:
            stream = io.StringIO()
            _Printer(stream=stream, print_generic_format=True, print_debuginfo=True).print_attribute(attribute)
            known = self._texts[id(attribute)] = (attribute, stream.getvalue())
        return known[1]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else f'"{name}"'
