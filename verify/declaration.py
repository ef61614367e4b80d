"""Types of what an operator's declaration holds: a wrong one is refused where it is written, not where it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tdist.errors import UsageError


def check_types(operator: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The declaration's values, lists as tuples.

    Args:
        operator: its name, for the message.
        given: value of each declared parameter.

    Raises: UsageError that names the parameter, what it has to be and what it was.
    """
    for parameter, value in given.items():
        wanted, fits = _RULES[parameter]
        if not fits(value):
            raise UsageError(f"{parameter}=… of operator {operator} has to be {wanted}, got {_shown(value)}")
    return {name: _frozen(value) for name, value in given.items()}


def is_tile(value: object) -> bool:
    """Whether it can be the extents of a tile."""
    return isinstance(value, tuple | list) and bool(value) and all(_is_extent(extent) for extent in value)


def _is_extent(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_names(value: object) -> bool:
    if not isinstance(value, tuple | list) or not value:
        return False
    return all(isinstance(name, str) and name for name in value) and len(set(value)) == len(value)


def _is_shape(value: object) -> bool:
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(symbol, str) and symbol.isidentifier() and _is_extent(n) for symbol, n in value.items())


def _is_optional_shape(value: object) -> bool:
    return value is None or _is_shape(value)


def _is_reasons(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(isinstance(text, str) and text.strip() for pair in value.items() for text in pair)


def _is_tolerance(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_optional_callable(value: object) -> bool:
    return value is None or callable(value)


_Rule = tuple[str, Callable[[Any], bool]]
_NAMES: _Rule = ("a tuple with at least one name, each once", _is_names)
_FUNCTION: _Rule = ("a function", callable)
_OPTIONAL_FUNCTION: _Rule = ("a function or None", _is_optional_callable)
_FLAG: _Rule = ("True or False", _is_bool)
_OPTIONAL_SHAPE: _Rule = ("None or a dict of shape symbols and positive integers", _is_optional_shape)
_TOLERANCE: _Rule = ("None or a number from 0 up", _is_tolerance)
_RULES: Mapping[str, _Rule] = {
    "name": ("a name", lambda value: isinstance(value, str) and value.isidentifier()),
    "shape": ("a dict with at least one symbol and its default, a positive integer", _is_shape),
    "inputs": _FUNCTION,
    "golden": _FUNCTION,
    "workspace": _OPTIONAL_FUNCTION,
    "golden_local": _OPTIONAL_FUNCTION,
    "constraint": _OPTIONAL_FUNCTION,
    "dtypes": _NAMES,
    "sync": _NAMES,
    "outputs": _NAMES,
    "tile": (
        "a tuple of positive integers or a function of the case that gives one",
        lambda value: callable(value) or is_tile(value),
    ),
    "policy": ("the name of a policy", lambda value: isinstance(value, str)),
    "rtol": _TOLERANCE,
    "atol": _TOLERANCE,
    "relaunchable": _FLAG,
    "low_precision_partials": _FLAG,
    "small": _OPTIONAL_SHAPE,
    "empty_rank_shape": _OPTIONAL_SHAPE,
    "replayable": _FLAG,
    "suppress": ("a dict of finding ids, each with the reason why it is accepted", _is_reasons),
}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else dict(value) if isinstance(value, Mapping) else value


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
