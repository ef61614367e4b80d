"""`instances.inc` from the symbol table: `python -m tdist.platforms.ascend.template.generate [--check]`.

One line for each function that exists for several element types: which wrapper, its symbol, its element type. Functions
without one are written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tdist.passes.convert_triton_distributed_to_hivm import MAX_POINTER_RANK
from tdist.platforms.ascend.symbols import DECLARATIONS, signatures

INSTANCES = Path(__file__).with_name("instances.inc")

WRAPPERS = {
    "aclshmem_ptr_{T}": "TDIST_PTR",
    "aclshmem_{T}_p": "TDIST_P",
    "aclshmem_wait_{T}": "TDIST_WAIT",
    "aclshmem_wait_until_{T}": "TDIST_WAIT_UNTIL",
    "aclshmem_consume_token_{T}": "TDIST_CONSUME",
    "aclshmem_consume_token_{T}_ptr_{N}d": "TDIST_CONSUME_PTR",
    **{
        spelling.format(name=name, T="{T}"): f"TDIST_{name.upper()}{suffix.upper()}"
        for name in ("putmem", "getmem", "putmem_signal")
        for suffix in ("", "_nbi")
        for spelling in (f"aclshmem_{{T}}_{{name}}{suffix}", f"aclshmem_{{name}}{suffix}_{{T}}")
    },
}
"""The table's spelling of a function → the macro that defines it."""

CPP_TYPES = {"half": "half", "float": "float", "char": "char", "bfloat16": "bfloat16_t"} | {
    f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
"""The library's spelling of an element type → C++'s."""

_HEADER = """\
// Generated from tdist/platforms/ascend/symbols.py: python -m tdist.platforms.ascend.template.generate
//
// SPDX-License-Identifier: Apache-2.0
"""
_FUNCTION = re.compile(r" ([\w{}]+)\(")


def instances() -> str:
    """The text that `instances.inc` must have."""
    return _HEADER + "".join(f"\n{''.join(lines)}" for lines in _families())


def _families() -> Iterator[list[str]]:
    for types, declaration in DECLARATIONS:
        match = _FUNCTION.search(declaration)
        assert match is not None, declaration
        if types:
            yield [line for type_ in types.split() for line in _lines(match[1], type_)]


def _lines(function: str, type_: str) -> Iterator[str]:
    wrapper, named = WRAPPERS[function], function.replace("{T}", type_)
    if "{N}" not in named:
        yield _line(wrapper, named, type_)
        return
    for rank in range(1, MAX_POINTER_RANK + 1):
        yield _line(wrapper, named.replace("{N}", str(rank)), type_, str(rank))


def _line(wrapper: str, symbol: str, type_: str, *more: str) -> str:
    assert symbol in signatures(), symbol
    return f"{wrapper}({', '.join((symbol, type_, CPP_TYPES[type_], *more))})\n"


def main(arguments: Sequence[str]) -> int:
    """Write the file, or with `--check` say whether it is up to date; returns the exit code."""
    if list(arguments) not in ([], ["--check"]):
        print("usage: python -m tdist.platforms.ascend.template.generate [--check]", file=sys.stderr)
        return 2
    if not arguments:
        INSTANCES.write_text(instances(), encoding="utf-8")
    elif INSTANCES.read_text(encoding="utf-8") != instances():
        print(f"{INSTANCES.name} is not what the symbol table gives: run this without --check", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
