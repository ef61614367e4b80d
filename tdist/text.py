"""Small helpers for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(value: str, allowed: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing where no allowed word is close to `value`."""
    close = difflib.get_close_matches(value, list(allowed), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
