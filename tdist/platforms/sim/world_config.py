"""What a world is made of and how it is run: the fields, and what each may be."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from tdist.errors import UsageError
from tdist.platforms.sim import schedulers
from tdist.text import did_you_mean

_MAX_RANKS: Final = 1024
_MAX_HEAP_BYTES: Final = 2 << 40
"""Both fit the simulated address space, which gives each rank a span of its own."""
MEMORIES: Final = ("adversarial", "plain")


@dataclass(frozen=True)
class WorldConfig:
    """What a world is made of and how it is run.

    `poison` is the byte that fresh memory and masked-off lanes hold. `drained`: every release drains all pipes (barrier
    mode). `choices` replays the `events` of another run; `scheduler` and `seed` count beyond their end only.
    `mutation` names the mutant that is run in its kernel's place, "" for none. `max_programs` starts no more programs
    of a launch than that, 0 for as many as it asks for. `late_rank`: the stream of this rank goes on only when nothing
    else can, -1 for none. `memory`:
    "adversarial" lets what nothing orders come late and in odd order.

    Raises:
        UsageError: a field has another type than its own or lies out of its range.
    """

    nranks: int
    heap_bytes: int = 40 << 30  # the largest local_mem_size that shmem allows; what is not written costs nothing
    target: str = "Ascend910B3"
    cube_cores: int = 20
    vector_cores: int = 40
    scheduler: str = "run-to-block"
    seed: int = 0
    detect: bool = True
    profile: str = "seed"
    poison: int = 0xA5
    drained: bool = False
    choices: tuple[int, ...] | None = None
    mutation: str = ""
    max_programs: int = 0
    trace: bool = False
    memory: str = "plain"
    trace: bool = False
    late_rank: int = -1

    def __post_init__(self) -> None:
        __tracebackhide__ = True
        check_fields(vars(self))
        _check_together(self)
        for name in _INTEGERS:  # numpy's integers do not travel as JSON
            object.__setattr__(self, name, int(getattr(self, name)))


def make_config(nranks: Any, settings: Mapping[str, Any]) -> WorldConfig:
    """A configuration from a user's keyword arguments.

    Raises:
        UsageError: as `WorldConfig`, or a keyword that is none of its fields.
    """
    __tracebackhide__ = True
    known = [field.name for field in fields(WorldConfig)]
    for name in settings:
        if name not in known or name == "nranks":
            raise UsageError(
                f"a world has no setting {name!r}{did_you_mean(name, known)}; there are: {', '.join(known)}"
            )
    check_fields({"nranks": nranks, **settings})
    return WorldConfig(nranks=nranks, **settings)


def check_fields(values: Mapping[str, Any]) -> None:
    """Refuse values that the fields of these names cannot have.

    Raises:
        UsageError: names the field, what it must be and what was given.
    """
    __tracebackhide__ = True
    for name, value in values.items():
        expects, fits = _RULES[name]
        if not fits(value):
            hint = _HINTS[name](value) if name in _HINTS else ""
            raise UsageError(f"{name} of a world must be {expects()}, got {value!r}{hint}")


def _check_together(config: WorldConfig) -> None:
    """Refuse fields that do not fit each other."""
    __tracebackhide__ = True
    schedulers.check(config.scheduler, config.nranks)
    if config.memory != "plain" and not config.detect:
        raise UsageError(
            "adversarial memory needs race detection, which knows what nothing orders: leave detect (--detect) on"
        )


def _whole(low: int, high: int | None = None) -> Callable[[Any], bool]:
    """A test for integers, numpy's too but no bools, from `low` to `high`."""

    def fits(value: Any) -> bool:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            return False
        try:
            number = operator.index(value)
        except TypeError:  # a tensor of more than one element
            return False
        return number >= low and (high is None or number <= high)

    return fits


def _is_choices(value: Any) -> bool:
    return value is None or (isinstance(value, tuple) and all(map(_whole(0), value)))


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_INTEGERS: Final = ("nranks", "heap_bytes", "cube_cores", "vector_cores", "seed", "poison", "max_programs", "late_rank")
_HINTS: Final[Mapping[str, Callable[[Any], str]]] = {
    "scheduler": lambda value: schedulers.why_not(value) or "",
    "profile": lambda value: did_you_mean(str(value), ["ascend", "seed"]),
    "memory": lambda value: did_you_mean(str(value), MEMORIES),
}
_RULES: Final[Mapping[str, tuple[Callable[[], str], Callable[[Any], bool]]]] = {
    "nranks": (lambda: f"an integer from 1 to {_MAX_RANKS}", _whole(1, _MAX_RANKS)),
    "heap_bytes": (lambda: f"an integer from 1 to {_MAX_HEAP_BYTES}", _whole(1, _MAX_HEAP_BYTES)),
    "target": (lambda: "the name of a device", lambda value: isinstance(value, str) and bool(value)),
    "cube_cores": (lambda: "a positive integer", _whole(1)),
    "vector_cores": (lambda: "a positive integer", _whole(1)),
    "scheduler": (lambda: f"one of {', '.join(schedulers.names())}", lambda value: schedulers.why_not(value) is None),
    "seed": (lambda: "an integer of at least 0", _whole(0)),
    "detect": (lambda: "True or False", _is_bool),
    "profile": (lambda: "one of ascend, seed", lambda value: value in ("ascend", "seed")),
    "poison": (lambda: "a byte, 0 to 255", _whole(0, 255)),
    "drained": (lambda: "True or False", _is_bool),
    "choices": (lambda: "None or a tuple of integers of at least 0", _is_choices),
    "mutation": (lambda: "the name of a mutant, or empty", lambda value: isinstance(value, str)),
    "max_programs": (lambda: "an integer of at least 0", _whole(0)),
    "memory": (lambda: f"one of {', '.join(MEMORIES)}", lambda value: value in MEMORIES),
    "trace": (lambda: "True or False", _is_bool),
    "late_rank": (lambda: "a rank, or -1", _whole(-1, _MAX_RANKS - 1)),
}
