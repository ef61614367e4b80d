"""`loc(…)` in TTIR text: positions, names, call sites, aliases, aliases of aliases."""

from __future__ import annotations

import re

from xdsl.dialects.builtin import (
    ArrayAttr,
    CallSiteLoc,
    FileLineColLoc,
    FusedLoc,
    IntAttr,
    LocationAttr,
    NameLoc,
    NoneAttr,
    StringAttr,
    UnknownLoc,
)

_ALIAS = re.compile(r"(#loc\d*) = loc\((.*)\)\s*")
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)(?: to .*)?')
_NAMED = re.compile(r'"((?:[^"\\]|\\.)*)"(?:\((.*)\))?')
_ESCAPE = re.compile(rb"\\(?:([0-9A-Fa-f]{2})|(.))")
_UNKNOWN = UnknownLoc()
_LOCATION_START = re.compile(r'(?:#loc|unknown\)|"|callsite\(|fused)')


def split_location(text: str) -> tuple[str, str | None]:
    """A line without its trailing `loc(…)`, and what stands in the parentheses."""
    at = text.rfind(" loc(")
    if at < 0 or text[-1] != ")" or _LOCATION_START.match(text, at + 5) is None:
        return text, None
    return text[:at].rstrip(), text[at + 5 : -1]


class Locations:
    """The locations of one text, resolved on demand and kept."""

    def __init__(self, lines: list[str]) -> None:
        self._aliases: dict[str, str] = {}
        self._known: dict[str | None, LocationAttr] = {None: _UNKNOWN, "unknown": _UNKNOWN}
        for line in lines:
            if line.startswith("#loc") and (match := _ALIAS.fullmatch(line)) is not None:
                self._aliases[match[1]] = match[2]

    def get(self, text: str | None) -> LocationAttr:
        """The location that stood in `loc(text)`; unknown if there was none or its alias is not defined."""
        known = self._known.get(text)
        if known is not None:
            return known
        assert text is not None
        self._known[text] = _UNKNOWN  # an alias of itself is no position
        made = self._known[text] = self._make(text)
        return made

    def _make(self, text: str) -> LocationAttr:
        if text.startswith("#"):
            return self.get(self._aliases.get(text))
        if text.startswith("callsite("):
            callee, caller = _halves(text[len("callsite(") : -1])
            return CallSiteLoc(self.get(callee), self.get(caller))
        if text.startswith("fused"):
            parts = _items(text[text.index("[") + 1 : text.rindex("]")])
            return FusedLoc(ArrayAttr([self.get(part) for part in parts]), NoneAttr())
        if (match := _FILE.fullmatch(text)) is not None:
            return FileLineColLoc(StringAttr(_unescape(match[1])), IntAttr(int(match[2])), IntAttr(int(match[3])))
        if (match := _NAMED.fullmatch(text)) is not None:
            return NameLoc(StringAttr(_unescape(match[1])), self.get(match[2]) if match[2] else NoneAttr())
        return _UNKNOWN


def _unescape(text: str) -> str:
    """The string that MLIR printed as `text`: it writes bytes that are not printable ASCII as `\\C3`."""
    if "\\" not in text:
        return text
    raw = _ESCAPE.sub(lambda m: bytes([int(m[1], 16)]) if m[1] else m[2], text.encode())
    return raw.decode(errors="replace")


def _halves(text: str) -> tuple[str, str]:
    """Split `callee at caller` at the ` at ` that stands in no parentheses and no string."""
    for i in _outside(text):
        if text.startswith(" at ", i):
            return text[:i], text[i + 4 :]
    return text, "unknown"


def _items(text: str) -> list[str]:
    """Split at the commas that stand in no parentheses and no string."""
    cuts = [i for i in _outside(text) if text[i] == ","]
    starts, ends = [0, *(i + 1 for i in cuts)], [*cuts, len(text)]
    return [text[a:b].strip() for a, b in zip(starts, ends, strict=True)]


def _outside(text: str):
    depth = 0
    quoted = False
    for i, char in enumerate(text):
        if char == '"' and (i == 0 or text[i - 1] != "\\"):
            quoted = not quoted
        elif quoted:
            continue
        elif char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif depth == 0:
            yield i
