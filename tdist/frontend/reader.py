"""TTIR text → xDSL module, line by line.

Triton prints one operation a line; regions open and close at line ends. So a table of small readers, one a syntax
(`tdist.frontend.syntax`), creates the operations directly, much faster than a general MLIR parser. Operations in
generic form are read whatever they are called, if we define them.

Accepts what triton-ascend 3.2 prints and, where it differs, what stock Triton 3.9 prints. Locations are kept as xDSL
location attributes (see `tdist.ir.location`); names that Triton printed become SSA name hints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

from xdsl.dialects.builtin import LocationAttr, ModuleOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import VerifyException

from tdist.errors import KernelError
from tdist.frontend.locations import Locations, split_location
from tdist.frontend.syntax import CLASSES, READERS, REGION_READERS
from tdist.frontend.text import (
    ReaderError,
    UnsupportedOperation,
    closing,
    head_and_type,
    read_arguments,
    read_dictionary,
    read_results,
    split_commas,
)
from tdist.frontend.unsupported import unsupported
from tdist.ir.collection import no_collection
from tdist.ir.location import to_source_loc

_OPERAND = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_OPERATION = re.compile(r'(?:(%[^=]*?) = )?(?:"([\w.]+)"|([a-z_]\w*(?:\.\w+)+))(.*)', re.DOTALL)
_NAME = re.compile(r"[A-Za-z_$.][\w$.\-]*")
_BLOCK_LABEL = re.compile(r"\^(\w+)(?:\((.*)\))?:(?:\s*//.*)?")


class _Frame:
    """A region being read: the operation to build when it closes, and what its closing undoes."""

    __slots__ = ("block", "blocks", "build", "generic", "labels", "regions", "shadowed", "terminator")

    def __init__(
        self,
        build: Callable[[list[Region], str, LocationAttr], None],
        terminator: type[Operation] | None = None,
        generic: bool = False,
    ) -> None:
        self.generic = generic  # braces with nothing between them are a region without blocks
        self.build = build
        self.terminator = terminator
        self.regions: list[Region] = []
        self.open_region(Block())

    def open_region(self, block: Block) -> None:
        self.block = block
        self.blocks: list[Block] = [block]
        self.labels: dict[str, Block] = {}
        self.shadowed: list[tuple[str, SSAValue | None]] = []


class Reader:
    """One reading of one text."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.locations = Locations(self.lines)
        self.values: dict[str, SSAValue] = {}
        self.frames: list[_Frame] = []
        self.module: ModuleOp | None = None

    def read(self) -> ModuleOp:
        """The module; KernelError names what could not be read, and the kernel's line."""
        for number, line in enumerate(self.lines, 1):
            text = line.strip()
            if not text or text.startswith(("#", "//")):
                continue
            body, location = split_location(text)
            try:
                self._line(body, location)
            except (ReaderError, KeyError, IndexError, ValueError, VerifyException) as error:
                raise self._failure(error, body, location, number) from error
        if self.module is None:
            raise KernelError("cannot read TTIR: the text ends before its module does")
        return self.module

    def _failure(self, error: Exception, body: str, location: str | None, number: int) -> KernelError:
        try:
            where = to_source_loc(self.locations.get(location))
        except ReaderError:
            where = None
        what = f"unknown name {error}" if isinstance(error, KeyError) else str(error)
        place = f"{where}: " if where else ""
        if isinstance(error, UnsupportedOperation):
            return KernelError(f"{place}{unsupported(what)}\n  {body}").at(where)
        return KernelError(f"{place}cannot read TTIR line {number}: {what}\n  {body}").at(where)

    # -- lines

    def _line(self, body: str, location: str | None) -> None:
        first = body[0]
        if first == "%" or first == '"':
            self._operation(body, location)
        elif first == "}":
            self._close(body, location)
        elif first == "^":
            self._label(body)
        elif body.startswith(("module", "builtin.module")):
            self._open_module(body)
        else:
            self._operation(body, location)

    def _operation(self, body: str, location: str | None) -> None:
        match = _OPERATION.fullmatch(body)
        if match is None:
            raise ReaderError("expected an operation")
        names, generic, name, rest = match.groups()
        at = self.locations.get(location)
        if generic is not None:
            self._generic(generic, rest, names, at)
            return
        region_reader = REGION_READERS.get(name)
        if region_reader is not None:
            region_reader(self, rest, names)
            return
        reader = READERS.get(name)
        if reader is None:
            raise UnsupportedOperation(name)
        self._append(reader(self, rest), names, at)

    def _append(self, op: Operation, names: str | None, location: LocationAttr) -> None:
        op.location = location
        self.frames[-1].block.add_op(op)
        if names is not None:
            self._define_results(names, op)

    def _define_results(self, names: str, op: Operation) -> None:
        results = op.results
        counts = [int(part.partition(":")[2] or 1) for part in names.split(",")]
        if sum(counts) != len(results):
            raise ReaderError(f"{sum(counts)} names for {len(results)} results")
        if len(results) == 1 and "," not in names and ":" not in names:
            self._define(names, results[0])
            return
        index = 0
        for part, width in zip(names.split(","), counts, strict=True):
            name, colon, _ = part.strip().partition(":")
            for k in range(width):
                self._define(f"{name}#{k}" if colon else name, results[index + k], name)
            index += width

    def _define(self, name: str, value: SSAValue, hint: str | None = None) -> None:
        values = self.values
        self.frames[-1].shadowed.append((name, values.get(name)))
        values[name] = value
        hint = (hint or name)[1:]
        if not hint.isdigit() and _NAME.fullmatch(hint):
            value.name_hint = hint

    def operands(self, text: str) -> list[SSAValue]:
        """The values that `text` names, in order; text between the names does not matter."""
        values = self.values
        return [values[name] for name in _OPERAND.findall(text)]

    # -- regions

    def _open_module(self, body: str) -> None:
        head = body.removesuffix("{").removeprefix("builtin.").removeprefix("module").strip()
        attributes = dict(read_dictionary(head.removeprefix("attributes").strip())) if head else {}
        self._frame_module(attributes)

    def _frame_module(self, attributes: dict[str, Attribute]) -> None:
        def build(regions: list[Region], tail: str, location: LocationAttr) -> None:
            self.module = ModuleOp(regions[0], attributes)
            self.module.location = location

        self.frames.append(_Frame(build))

    def open(
        self,
        build: Callable[[list[Region], dict[str, Attribute]], Operation],
        names: str | None,
        arguments: Sequence[tuple[str, Attribute, str | None]] = (),
        terminator: type[Operation] | None = None,
    ) -> None:
        """Begin the first region of an operation; `build` makes it once its regions are read.

        `arguments` are (name, type, location text) of the entry block. `terminator` ends blocks that print none.
        """

        def finish(regions: list[Region], tail: str, location: LocationAttr) -> None:
            extra = read_dictionary(tail.removeprefix("attributes").strip()) if tail else {}
            self._append(build(regions, dict(extra)), names, location)

        frame = _Frame(finish, terminator)
        self.frames.append(frame)
        self._add_arguments(frame.block, arguments)

    def _add_arguments(self, block: Block, arguments: Sequence[tuple[str, Attribute, str | None]]) -> None:
        for name, type_, location in arguments:
            argument = block.insert_arg(type_, len(block.args))
            if location is not None:
                argument.location = self.locations.get(location)
            self._define(name, argument)

    def _close(self, body: str, location: str | None) -> None:
        """`}`, `} else {`, `} do {`, `}, {`, `} {attrs}`, `}) {attrs} : types`."""
        frame = self.frames[-1]
        self._end_region(frame)
        rest = body[1:].strip()
        if rest.endswith("{") and rest[:-1].strip() in ("else", "do", ","):
            frame.open_region(Block())
            return
        self.frames.pop()
        frame.build(frame.regions, rest, self.locations.get(location))

    def _end_region(self, frame: _Frame) -> None:
        last = frame.blocks[-1]
        if frame.terminator is not None and (last.last_op is None or not _is_terminator(type(last.last_op))):
            last.add_op(frame.terminator.create())
        unknown = [label for label, block in frame.labels.items() if block not in frame.blocks]
        if unknown:
            raise ReaderError(f"branch to unknown block ^{unknown[0]}")
        is_empty = frame.generic and frame.block.is_empty and not frame.block.args and not frame.labels
        frame.regions.append(Region([] if is_empty else frame.blocks))
        for name, before in reversed(frame.shadowed):
            if before is None:
                del self.values[name]
            else:
                self.values[name] = before

    def block_named(self, label: str) -> Block:
        """The block with this label in the region being read, made now if it comes later."""
        return self.frames[-1].labels.setdefault(label, Block())

    def _label(self, body: str) -> None:
        match = _BLOCK_LABEL.fullmatch(body)
        if match is None:
            raise ReaderError("expected a block label")
        label, arguments = match.groups()
        frame = self.frames[-1]
        is_entry = (
            frame.block.is_empty and len(frame.blocks) == 1 and not frame.block.args and label not in frame.labels
        )
        if is_entry:
            frame.labels[label] = frame.block
        else:
            frame.block = self.block_named(label)
            frame.blocks.append(frame.block)
        if arguments:
            self._add_arguments(frame.block, read_arguments(arguments))

    # -- generic form

    def _generic(self, name: str, rest: str, names: str | None, location: LocationAttr) -> None:
        if name == ModuleOp.name:
            self._frame_module({})
            return
        cls = CLASSES.get(name)
        if cls is None:
            raise UnsupportedOperation(name)
        end = closing(rest, 0)
        operands = self.operands(rest[:end])
        rest = rest[end + 1 :].strip()
        successors: list[Block] = []
        if rest.startswith("["):
            end = closing(rest, 0)
            successors = [self.block_named(label[1:]) for label in split_commas(rest[1:end])]
            rest = rest[end + 1 :].strip()
        properties: dict[str, Attribute] = {}
        if rest.startswith("<"):
            end = closing(rest, 0)
            properties = dict(read_dictionary(rest[1:end]))
            rest = rest[end + 1 :].strip()

        def create(regions: list[Region], tail: str) -> Operation:
            head, types = head_and_type(tail if tail.startswith(":") is False else " " + tail)
            attributes = read_dictionary(head.strip()) if head.strip() else {}
            return cls.create(
                operands=operands,
                properties=properties,
                attributes=dict(attributes),
                result_types=read_results(types),
                regions=regions,
                successors=successors,
            )

        if rest != "({":
            self._append(create([], rest), names, location)
            return

        def finish(regions: list[Region], tail: str, at: LocationAttr) -> None:
            self._append(create(regions, tail.removeprefix(")").strip()), names, at)

        self.frames.append(_Frame(finish, generic=True))


@cache
def _is_terminator(cls: type[Operation]) -> bool:
    return cls.has_trait(IsTerminator)


def read_ttir(text: str) -> ModuleOp:
    """Read what Triton prints as TTIR.

    Args:
        text: The whole module, with or without locations.

    Raises:
        KernelError: An operation or syntax that is not known, with the kernel's file and line if the text has them.
    """
    with no_collection():
        return Reader(text).read()
