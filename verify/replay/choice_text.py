"""A choice list as short text: `0*40 3 1..6` is forty zeroes, a three, one to six."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

MAX_CHOICES = 4_000_000
"""More are not written: scheduler and seed make the same run, in as many steps."""
MAX_CHOICE = 1 << 20
"""More agents than that do not run at once."""
SHORTEST_RUN = 3
LINE_CHARS = 110
_WORD = re.compile(r"(0|[1-9][0-9]{0,6})(?:(\*|\.\.)([1-9][0-9]{0,6}))?")


def pack(choices: Sequence[int]) -> list[str]:
    """Lines of words: a number, `value*count` for equal ones in a row, `first..last` for a rising run."""
    lines: list[str] = [""]
    for word in _words(choices):
        if len(lines[-1]) + len(word) >= LINE_CHARS:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines if lines[-1] else []


def unpack(lines: Sequence[str], count: int) -> tuple[int, ...]:
    """The list again.

    Args:
        count: how many numbers there are; nothing longer is ever built.

    Raises: ValueError that says what is wrong with the text.
    """
    choices: list[int] = []
    for word in itertools.chain.from_iterable(line.split(" ") for line in lines):
        first, last, step = _parsed(word)
        more = last if step == 0 else last - first + 1
        if len(choices) + more > count:
            raise ValueError(f"more than the {count} choices that it announces")
        choices += [first] * more if step == 0 else range(first, last + 1)
    if len(choices) != count:
        raise ValueError(f"{len(choices)} choices where it announces {count}")
    return tuple(choices)


def _parsed(word: str) -> tuple[int, int, int]:
    """First number; how often, or the last number; 0 for equal ones and 1 for rising ones."""
    found = _WORD.fullmatch(word)
    if found is None:
        shown = word if len(word) <= 20 else f"{word[:17]}..."
        raise ValueError(f"{shown!r} is no choice: words are 7, 7*40 or 7..46")
    first, kind, second = int(found[1]), found[2], int(found[3] or 1)
    if max(first, 0 if kind == "*" else second) > MAX_CHOICE:
        raise ValueError(f"a choice is at most {MAX_CHOICE}, got {word}")
    if kind != "..":
        return first, second, 0
    if second <= first:
        raise ValueError(f"{word} does not rise")
    return first, second, 1


def _words(choices: Sequence[int]) -> Iterator[str]:
    at = 0
    while at < len(choices):
        equal, rising = _run(choices, at, 0), _run(choices, at, 1)
        if max(equal, rising) < SHORTEST_RUN:
            yield str(choices[at])
            at += 1
        elif equal >= rising:
            yield f"{choices[at]}*{equal}"
            at += equal
        else:
            yield f"{choices[at]}..{choices[at + rising - 1]}"
            at += rising


def _run(choices: Sequence[int], start: int, step: int) -> int:
    """How many choices from `start` on grow by `step` each."""
    end = start + 1
    while end < len(choices) and choices[end] == choices[end - 1] + step:
        end += 1
    return end - start
