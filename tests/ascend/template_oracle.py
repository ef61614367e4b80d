"""clang as an oracle: does the template compile against the stub headers, and which functions does it define?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tdist.platforms.ascend import template
from tdist.platforms.ascend.symbols import LINK_PREFIX, LibraryType, Signature
from tdist.platforms.ascend.template.generate import CPP_TYPES

SOURCES = Path(template.__file__).parent
STUBS = Path(__file__).with_name("stub_headers")
GLOBAL_MEMORY = 1  # __gm__ of the stub headers
_ARGUMENTS = ["-std=c++17", "-nostdinc", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-target", "aarch64-linux-gnu"]

_CANONICAL = {"half": "_Float16", "bfloat16_t": "__bf16", "int8_t": "signed char", "int16_t": "short"} | {
    "int32_t": "int",
    "int64_t": "long",
    "uint8_t": "unsigned char",
    "uint16_t": "unsigned short",
    "uint32_t": "unsigned int",
    "uint64_t": "unsigned long",
}
ELEMENTS = {_CANONICAL.get(cpp, cpp): name for name, cpp in CPP_TYPES.items()}
"""clang's spelling of a canonical type → the table's."""

_DESCRIPTOR = re.compile(r"tdist::Memref<(.+), (\d+)>(?P<address> \*)?")


@dataclass(frozen=True)
class Parsed:
    """What clang says (`warning: …`, `error: …`) and the functions with C linkage that have a body, by symbol.

    `calls` has what each of them calls beside `address`: the function, and for each argument the parameter (or
    constant) that is in it.
    """

    diagnostics: tuple[str, ...]
    functions: Mapping[str, Signature]
    calls: Mapping[str, tuple[tuple[str, ...], ...]]


def parse_template(replaced: Mapping[str, str] | None = None, suffix: str = "") -> Parsed:
    """Parse `device_library.cpp` for a kind of core; `replaced` gives other texts for files of the template, by name.

    Link names in the result are without the `suffix` that each must have.
    """
    from clang import cindex

    unsaved = [(str(SOURCES / name), text) for name, text in (replaced or {}).items()]
    arguments = [*_ARGUMENTS, f"-I{SOURCES}", f"-I{STUBS}", f'-DTDIST_CORE_SUFFIX="{suffix}"']
    unit = cindex.Index.create().parse(str(SOURCES / "device_library.cpp"), arguments, unsaved)
    entries = [cursor for cursor in _functions(unit.cursor) if cursor.is_definition()]
    functions = {_symbol(cursor, suffix): cursor for cursor in entries if not cursor.mangled_name.startswith("_Z")}
    return Parsed(
        tuple(str(d) for d in unit.diagnostics),
        {symbol: _signature(symbol, cursor) for symbol, cursor in functions.items()},
        {symbol: tuple(_calls(cursor)) for symbol, cursor in functions.items()},
    )


def _calls(function):
    for cursor in function.walk_preorder():
        if cursor.kind.name == "CALL_EXPR" and cursor.spelling not in ("", "address"):
            yield cursor.spelling, *(_names(argument) for argument in cursor.get_arguments())


def _names(expression) -> str:
    references = (cursor for cursor in expression.walk_preorder() if cursor.kind.name == "DECL_REF_EXPR")
    return " ".join(cursor.spelling for cursor in references if cursor.spelling != "address")


def _functions(cursor):
    """Functions outside of namespaces; `extern "C"` is a cursor of its own."""
    for child in cursor.get_children():
        if child.kind.name == "FUNCTION_DECL":
            yield child
        elif child.kind.name in ("LINKAGE_SPEC", "UNEXPOSED_DECL"):
            yield from _functions(child)


def _symbol(cursor, suffix: str) -> str:
    name = cursor.mangled_name.removeprefix("\1")  # clang's mark of a name that was given
    assert name.startswith(LINK_PREFIX) and name.endswith(suffix), name
    return name.removeprefix(LINK_PREFIX).removesuffix(suffix)


def _signature(symbol: str, cursor) -> Signature:
    """The function as the table would declare it. A result in memory is the first parameter, `result`."""
    parameters = [(argument.spelling, _type(argument.type)) for argument in cursor.get_arguments()]
    result = _type(cursor.result_type)
    if parameters and parameters[0][0] == "result":
        assert result is None, cursor.spelling
        result = parameters.pop(0)[1]
    assert all(type_ is not None for _, type_ in parameters), cursor.spelling
    return Signature(symbol, tuple((name, type_) for name, type_ in parameters if type_), result)


def _type(type_) -> LibraryType | None:
    spelling = type_.get_canonical().spelling
    if spelling == "void":
        return None
    match = _DESCRIPTOR.fullmatch(spelling)
    if match is None:
        return LibraryType(ELEMENTS[spelling])
    return LibraryType(ELEMENTS[match[1]], int(match[2]), by_value=match["address"] is None)
