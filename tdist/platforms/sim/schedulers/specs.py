"""Spec strings of schedulers, `name[:key=value[,key=value]]`, and where schedulers of other packages come from."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

from tdist.errors import UsageError
from tdist.platforms.sim.schedulers.base import REGISTRY, Maker, Parameter, Scheduler
from tdist.text import did_you_mean

ENTRY_POINTS: Final = "tdist.schedulers"
"""The group under which other packages offer schedulers: the name of a spec, and its `Maker`."""

_NOT_BY_NAME: Final[Mapping[str, str]] = {
    "replay": "a recorded run is followed with the field choices of a world, or `tdist-verify --replay FILE`",
    "exhaustive": "all schedules of a run are a search of their own, `tdist-verify --schedule exhaustive`",
}


@dataclass(frozen=True)
class About:
    """What `tdist-verify --list` says of a scheduler."""

    name: str
    parameters: tuple[Parameter, ...]
    use: str


def names() -> list[str]:
    """Known schedulers, sorted: ours, and what other packages offer."""
    return sorted({*REGISTRY, *offered()})


@functools.cache
def offered() -> dict[str, EntryPoint]:
    """Schedulers of other packages by name; nothing is imported. One that is named as ours is not reached."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in REGISTRY}


def make_scheduler(spec: str) -> Scheduler:
    """A fresh scheduler.

    Raises:
        UsageError: no scheduler has that name, or it has no such parameter or value; an entry point that does not load.
    """
    name, made, values = _read(spec)
    try:
        return made(**values)
    except UsageError:
        raise
    except Exception as error:  # of another package
        raise UsageError(f"scheduler {name!r} could not be made from {spec!r}: {error!r}") from error


def check(spec: Any, nranks: int | None = None) -> None:
    """Refuse a spec that no scheduler can be made of, or that names a rank which a world of `nranks` does not have.

    Raises:
        UsageError: says what is wrong with it, and what there is.
    """
    make_scheduler(spec)
    if nranks is None:
        return
    name, made, values = _read(spec)
    for parameter in parameters_of(made):
        if parameter.of_ranks and values.get(parameter.name, 0) >= nranks:
            given = f"{parameter.name}={values[parameter.name]}"
            raise UsageError(f"scheduler {name}: {given}, but ranks are 0 … {nranks - 1}")


def why_not(spec: Any) -> str | None:
    """What is wrong with a spec, to go behind it in a message; None if nothing is."""
    try:
        check(spec)
    except UsageError as error:
        name = spec.partition(":")[0] if isinstance(spec, str) else ""
        return (did_you_mean(name, names()) if name not in names() else "") or f": {error}"
    return None


def parameters_of(made: Maker) -> tuple[Parameter, ...]:
    """What may follow its name in a spec."""
    return tuple(getattr(made, "parameters", ()))


def about() -> list[About]:
    """What there is to say of each scheduler; one that cannot be loaded says so."""
    return [_about(name) for name in names()]


def _about(name: str) -> About:
    try:
        made = _maker(name)
    except UsageError as error:
        return About(name, (), str(error))
    text = (getattr(made, "__doc__", None) or "").strip()
    return About(name, parameters_of(made), text.partition("\n")[0])


def _read(spec: Any) -> tuple[str, Maker, dict[str, Any]]:
    """Name, maker and values of a spec."""
    if not isinstance(spec, str):
        raise UsageError(f"a scheduler is named by a text such as 'random' or 'pct:depth=3', got {spec!r}")
    name, colon, rest = spec.partition(":")
    made = _maker(name)
    pairs = rest.split(",") if colon else []
    values: dict[str, Any] = {}
    for pair in pairs:
        parameter, text = _split(name, made, pair)
        if parameter.name in values:
            raise UsageError(f"scheduler {name}: {parameter.name} is given twice in {spec!r}")
        values[parameter.name] = _value(name, parameter, text)
    return name, made, values


def _maker(name: str) -> Maker:
    made = REGISTRY.get(name)
    if made is not None:
        return made
    if name in offered():
        return _load(offered()[name])
    if name in _NOT_BY_NAME:
        raise UsageError(f"{name!r} is no scheduler of a single run: {_NOT_BY_NAME[name]}")
    raise UsageError(f"unknown scheduler {name!r}{did_you_mean(name, names())}; there are: {', '.join(names())}")


def _load(point: EntryPoint) -> Maker:
    try:
        made = point.load()
    except Exception as error:  # another package's
        raise UsageError(f"scheduler {point.name!r} ({point.value}) cannot be loaded: {error!r}") from error
    if not callable(made):
        raise UsageError(f"scheduler {point.name!r} ({point.value}) has to be a class or a function, got {made!r}")
    return cast(Maker, made)


def _split(name: str, made: Maker, pair: str) -> tuple[Parameter, str]:
    key, equals, text = (part.strip() for part in pair.partition("="))
    known = {parameter.name: parameter for parameter in parameters_of(made)}
    if not known:
        raise UsageError(f"scheduler {name} takes no parameters, got {pair!r}")
    if key not in known:
        raise UsageError(
            f"scheduler {name} has no parameter {key!r}{did_you_mean(key, known)}; it has: {', '.join(known)}"
        )
    if not equals or not text:
        raise UsageError(f"scheduler {name}: {key} needs a value, {key}=…")
    return known[key], text


_MAX_DIGITS: Final = 18


def _value(name: str, parameter: Parameter, text: str) -> int | float:
    """The number that `text` gives, in the parameter's range."""
    wanted = "an integer" if parameter.kind is int else "a number"
    try:
        value = parameter.kind(text) if len(text) <= _MAX_DIGITS and text.isascii() else math.nan
    except ValueError:
        value = math.nan
    high = math.inf if parameter.high is None else parameter.high
    if not parameter.low <= value <= high or math.isinf(value):
        most = "" if parameter.high is None else f" and at most {parameter.high}"
        raise UsageError(
            f"scheduler {name}: {parameter.name} has to be {wanted} of at least {parameter.low}{most}, got {text!r}"
        )
    return value
