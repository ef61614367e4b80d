"""Pieces of TTIR text: types, attributes and dictionaries (parsed by xDSL once per distinct text), brackets, lists."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import cache

from xdsl.dialects.builtin import (
    BFloat16Type,
    DenseIntOrFPElementsAttr,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    TensorType,
    i1,
)
from xdsl.ir import Attribute, Operation
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from tdist.frontend.locations import split_location
from tdist.ir import tt
from tdist.ir.arith import like
from tdist.ir.context import make_context

Float = Float16Type | BFloat16Type | Float32Type | Float64Type
_BITS = re.compile(r"(?:dense<)?0x(?P<digits>[0-9A-Fa-f]+)>? : (?P<type>.+)")


class ReaderError(Exception):
    """What is wrong with a line; becomes a `KernelError` with the line's position."""


class UnsupportedOperation(ReaderError):
    """An operation that is no part of what we read; the message is its name."""


# ---- text that is parsed once ---------------------------------------------------------------------------------------


@cache
def _context():
    return make_context()


@cache
def read_type(text: str) -> Attribute:
    """The type that `text` spells."""
    return _whole(text, Parser.parse_type)


@cache
def read_attribute(text: str) -> Attribute:
    """The attribute that `text` spells."""
    return _whole(text, Parser.parse_attribute)


@cache
def read_dictionary(text: str) -> dict[str, Attribute]:
    """An attribute dictionary with its braces. Callers copy."""
    return _whole(text, Parser.parse_optional_attr_dict)


def _whole(text: str, parse: Callable):
    parser = Parser(_context(), text)
    try:
        result = parse(parser)
    except (ParseError, VerifyException) as error:
        raise ReaderError(f"cannot read '{text}'") from error
    return result


@cache
def loaded_like(type_: Attribute) -> Attribute:
    return tt.loaded_type(type_)


@cache
def boolean_like(type_: Attribute) -> Attribute:
    return like(type_, i1)


@cache
def read_types(text: str) -> tuple[Attribute, ...]:
    """The types of a list such as `i32, tensor<4xi1>`, with or without parentheses around it."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return tuple(read_type(part) for part in split_commas(text))


@cache
def read_results(text: str) -> tuple[Attribute, ...]:
    """The result types of `… -> results`."""
    return read_types(text.rpartition("->")[2])


def split_commas(text: str) -> list[str]:
    """Split at the commas that stand in no bracket and no string."""
    parts: list[str] = []
    depth = start = 0
    quoted = False
    for i, char in enumerate(text):
        if char == '"' and (i == 0 or text[i - 1] != "\\"):
            quoted = not quoted
        elif quoted:
            continue
        elif char in "<([{":
            depth += 1
        elif char in "])}" or (char == ">" and text[i - 1] != "-"):
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    rest = text[start:].strip()
    return [*parts, rest] if rest else parts


def closing(text: str, start: int) -> int:
    """The index of the bracket that closes the one at `start`; strings are skipped."""
    depth = 0
    quoted = False
    for i in range(start, len(text)):
        char = text[i]
        if char == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif char in "([{<":
            depth += 1
        elif char in ")]}" or (char == ">" and text[i - 1] != "-"):
            depth -= 1
            if depth == 0:
                return i
    raise ReaderError(f"unbalanced brackets in '{text}'")


@cache
def property_names(cls: type[Operation]) -> frozenset[str]:
    return frozenset(cls.get_irdl_definition().properties)  # pyright: ignore[reportAttributeAccessIssue]


def take_dictionary(text: str) -> tuple[str, dict[str, Attribute]]:
    """`text` without the attribute dictionary at its end, and the dictionary."""
    text = text.rstrip()
    if not text.endswith("}"):
        return text, {}
    start = _dictionary_start(text)
    return text[:start].rstrip(), dict(read_dictionary(text[start:]))


def _dictionary_start(text: str) -> int:
    quoted = False
    for i, char in enumerate(text):
        if char == '"' and (i == 0 or text[i - 1] != "\\"):
            quoted = not quoted
        elif char == "{" and not quoted:
            return i
    raise ReaderError(f"no dictionary in '{text}'")


def bit_pattern(text: str) -> Attribute | None:
    """`0xFF800000 : f32` and `dense<0xFF800000> : tensor<…xf32>`, as MLIR prints infinities and NaNs; None if neither.

    xDSL's own parser takes the digits for a number.
    """
    match = _BITS.fullmatch(text.strip())
    if match is None:
        return None
    type_ = read_type(match["type"])
    element = type_.element_type if isinstance(type_, TensorType) else type_
    if not isinstance(element, Float):
        return None
    value = float_of_bits(int(match["digits"], 16), element)
    if isinstance(type_, TensorType):
        return DenseIntOrFPElementsAttr.from_list(type_, [value])
    return FloatAttr(value, element)


def float_of_bits(bits: int, element: Float) -> float:
    """The number whose representation in `element` has these bits."""
    if isinstance(element, BFloat16Type):
        return struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0]
    width = element.bitwidth // 8
    return struct.unpack({2: "<e", 4: "<f", 8: "<d"}[width], bits.to_bytes(width, "little"))[0]


def head_and_type(rest: str) -> tuple[str, str]:
    """Split `operands {…} : types` at the last colon: types contain none that has spaces around it."""
    head, separator, types = rest.rpartition(" : ")
    if not separator:
        raise ReaderError(f"expected ' : ' and a type in '{rest.strip()}'")
    return head, types


def read_arguments(text: str) -> list[tuple[str, Attribute, str | None]]:
    """`%a: i32 loc(…), %b: …` as (name, type, location text)."""
    arguments = []
    for part in split_commas(text):
        body, location = split_location(part)
        name, _, type_ = body.partition(":")
        arguments.append((name.strip(), read_type(type_.strip()), location))
    return arguments
