"""Drawing with text of known size: a canvas that grows with what is on it, written as SVG.

Text is monospaced, left-aligned, one line each; `text_box` says which rectangle it takes, whatever font the viewer has
(`textLength` makes it fit), so that a layout can keep texts apart.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Final

CHAR_WIDTH: Final = 7
LINE_HEIGHT: Final = 18
_ASCENT: Final = 13
_MARGIN: Final = 20
_STYLE: Final = (
    "text{font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:12px;fill:#1b1f24}"
    ".strong{font-weight:bold}.faint{fill:#57606a}.bad{fill:#a40e26}"
    "rect{fill:#ffffff;stroke:#8c959f}rect.fill{fill:#ddf4ff}rect.page{fill:#ffffff;stroke:none}"
    "path{fill:none;stroke:#0969da;stroke-width:1.5}"
)


def text_width(text: str) -> int:
    """Pixels that a text takes."""
    return CHAR_WIDTH * len(text)


class Canvas:
    """What has been drawn so far; coordinates are pixels from the top left corner."""

    def __init__(self, title: str) -> None:
        self._root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
        ElementTree.SubElement(self._root, "title").text = title
        ElementTree.SubElement(self._root, "style").text = _STYLE
        defs = ElementTree.SubElement(self._root, "defs")
        head = {"id": "head", "viewBox": "0 0 10 10", "refX": "9", "refY": "5", "markerWidth": "7", "markerHeight": "7"}
        marker = ElementTree.SubElement(defs, "marker", {**head, "orient": "auto"})
        ElementTree.SubElement(marker, "path", {"d": "M0 0L10 5L0 10z", "style": "fill:#0969da;stroke:none"})
        self._page = ElementTree.SubElement(self._root, "rect", {"class": "page", "x": "0", "y": "0"})
        self._width = self._height = 0

    def text(self, x: int, y: int, text: str, kind: str = "") -> None:
        """One line of text, its top left corner at (x, y). `kind`: "", strong, faint or bad."""
        if not text:
            return
        width = text_width(text)
        about = {"x": str(x), "y": str(y + _ASCENT), "textLength": str(width), "lengthAdjust": "spacingAndGlyphs"}
        element = ElementTree.SubElement(self._root, "text", about | ({"class": kind} if kind else {}))
        element.text = _printable(text)
        self._grow(x + width, y + LINE_HEIGHT)

    def lines(self, x: int, y: int, lines: list[tuple[str, str]]) -> None:
        """Lines of (kind, text), one below the other."""
        for number, (kind, text) in enumerate(lines):
            self.text(x, y + number * LINE_HEIGHT, text, kind)

    def rect(self, x: int, y: int, width: int, height: int, filled: bool = False) -> None:
        """A rectangle."""
        about = {"x": str(x), "y": str(y), "width": str(width), "height": str(height), "rx": "3"}
        ElementTree.SubElement(self._root, "rect", about | ({"class": "fill"} if filled else {}))
        self._grow(x + width, y + height)

    def arrow(self, x: int, y: int, to_x: int, to_y: int) -> None:
        """From one point to another, leaving and arriving horizontally."""
        middle = (x + to_x) // 2
        way = f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}"
        ElementTree.SubElement(self._root, "path", {"d": way, "marker-end": "url(#head)"})

    def to_text(self) -> str:
        """The drawing as an SVG file."""
        width, height = str(self._width + _MARGIN), str(self._height + _MARGIN)
        for element in (self._root, self._page):
            element.set("width", width)
            element.set("height", height)
        self._root.set("viewBox", f"0 0 {width} {height}")
        ElementTree.indent(self._root)
        return ElementTree.tostring(self._root, encoding="unicode") + "\n"

    def _grow(self, x: int, y: int) -> None:
        self._width, self._height = max(self._width, x), max(self._height, y)


def _printable(text: str) -> str:
    """XML has no control characters and no lone surrogates."""
    kept = (char if char >= " " and not "\ud800" <= char <= "\udfff" else "\ufffd" for char in text)
    return "".join(kept)
