"""What a kernel's functions use of UB, L1 and L0C, as the vendor's memory planner says.

With `--enable-memory-display` the compiler writes `memory_info_aic.json` and `memory_info_aiv.json` where it runs, also
when a memory overflows. Where they are missing, the addresses in the final module give the sums, without life times.
L0A and L0B do not appear in either: the library's matrix multiplication divides them among its own tiles.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tdist.frontend.locations import Locations
from tdist.ir.location import SourceLoc, to_source_loc
from tdist.platforms.ascend.targets import Target

MEMORIES = {"ub": "UB", "cbuf": "L1", "cc": "L0C"}
"""The vendor's address spaces → what the documentation calls the memories."""
_SHAPE = re.compile(r"memref<(.+?), (?:strided<.*?>, )?#hivm\.address_space")
_CONSTANT = re.compile(
    r'(%[\w#]+) = (?:arith\.constant (-?\d+) : i64|"arith\.constant"\(\) <\{value = (-?\d+) : i64\}>)'
)
_CAST = re.compile(
    r'"?hivm\.hir\.pointer_cast"?\(([^)]*)\).* : .*?memref<((?:\d+x)*)([a-z]+)(\d+)\w*, '
    r"(?:strided<.*?>, )?#hivm\.address_space<(\w+)>>"
)
_FUNCTION = re.compile(
    r'func\.func @([\w.$-]+)\(|"func\.func"\(\) <\{(?![^\n]*sym_visibility = "private")[^\n]*sym_name = "([^"]+)"'
)


@dataclass(frozen=True)
class Buffer:
    """A piece of a memory.

    Attributes:
        offsets_bytes: where it lies; more than one where it is buffered more than once.
        extent_bytes: of each.
        life: first and last operation that it is needed for, counted by the vendor; None where unknown.
        shape: as the vendor prints it, `64x64xf16`.
    """

    offsets_bytes: tuple[int, ...]
    extent_bytes: int
    life: tuple[int, int] | None = None
    loc: SourceLoc | None = None
    shape: str = ""

    @property
    def end_bytes(self) -> int:
        """One past its last byte."""
        return max(self.offsets_bytes) + self.extent_bytes

    def __str__(self) -> str:
        where = ", ".join(str(offset) for offset in self.offsets_bytes)
        times = f"{len(self.offsets_bytes)} × " if len(self.offsets_bytes) > 1 else ""
        return f"{times}{self.extent_bytes} bytes ({self.shape}) at {where}"


@dataclass(frozen=True)
class MemoryOfFunction:
    """One memory of one function. `needed_bytes` may exceed `capacity_bytes`: then the compiler has given up."""

    memory: str
    needed_bytes: int
    capacity_bytes: int
    buffers: tuple[Buffer, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the capacity is enough."""
        return self.needed_bytes <= self.capacity_bytes

    def largest(self, count: int) -> list[Buffer]:
        """Its largest buffers, all copies counted; what shares place, line and shape counts once."""
        by_place = {(buffer.offsets_bytes, str(buffer.loc), buffer.shape): buffer for buffer in self.buffers}
        return sorted(by_place.values(), key=lambda b: -b.extent_bytes * len(b.offsets_bytes))[:count]


@dataclass(frozen=True)
class FunctionUse:
    """What one core function uses. `core` is `aic` or `aiv`, empty where it is not known."""

    name: str
    core: str
    memories: tuple[MemoryOfFunction, ...]


@dataclass(frozen=True)
class MemoryUse:
    """What all functions of a kernel use. `planned`: from the memory planner, not summed from addresses."""

    functions: tuple[FunctionUse, ...] = ()
    planned: bool = True

    def __iter__(self) -> Iterator[MemoryOfFunction]:
        for function in self.functions:
            yield from function.memories

    def most(self) -> tuple[MemoryOfFunction, ...]:
        """For each memory that is used, the function that needs most of it; in the order UB, L1, L0C."""
        of_memory = [[use for use in self if use.memory == memory] for memory in MEMORIES.values()]
        return tuple(max(uses, key=lambda use: use.needed_bytes) for uses in of_memory if uses)

    def overflow(self) -> tuple[FunctionUse, MemoryOfFunction] | None:
        """The function and memory that do not fit, if any."""
        return next(((f, use) for f in self.functions for use in f.memories if not use.fits), None)


def read_memory_display(folder: Path, target: Target) -> MemoryUse | None:
    """What the vendor's planner has left in `folder`; None if there is nothing that can be read."""
    functions = []
    for core in ("aic", "aiv"):
        try:
            told = json.loads((folder / f"memory_info_{core}.json").read_text(errors="replace"))
            functions.append(FunctionUse(told["Header"]["KernelName"], core, tuple(_scopes(told["Record"], target))))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # another version, or half-written
            return None
    return MemoryUse(tuple(functions)) if functions else None


def _scopes(records: list[Any], target: Target) -> Iterator[MemoryOfFunction]:
    """A retry appends its records: the last one of a memory is what was decided."""
    last = {record["scope"]: record for record in records if record["scope"] in MEMORIES}
    for scope, record in last.items():
        buffers = tuple(dict.fromkeys(_buffer(each) for each in record["memory_info_array"]))
        yield _memory(scope, buffers, target)


def _buffer(told: dict[str, Any]) -> Buffer:
    shape = _SHAPE.search(told["buffer"])
    first, last = told["life_time_in_ir"]
    offsets = tuple(sorted(told["offset"]))
    return Buffer(
        offsets, told["extent"] // 8, (first, last), _source(told["source_location"]), shape[1] if shape else ""
    )


@functools.lru_cache(maxsize=256)
def _source(text: str) -> SourceLoc | None:
    return to_source_loc(Locations([]).get(text.removeprefix("loc(").removesuffix(")")))


def _memory(scope: str, buffers: Iterable[Buffer], target: Target) -> MemoryOfFunction:
    kept = tuple(buffers)
    needed_bytes = max((buffer.end_bytes for buffer in kept), default=0)
    return MemoryOfFunction(MEMORIES[scope], needed_bytes, _capacity_bytes(scope, target), kept)


def _capacity_bytes(scope: str, target: Target) -> int:
    return {"ub": target.ub_bytes, "cbuf": target.l1_bytes, "cc": target.l0c_bytes}[scope]


@dataclass
class _Sums:
    """What is seen of a function while the lines of a final module go by."""

    name: str
    constants: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, list[Buffer]] = field(default_factory=dict)

    def add(self, line: str) -> None:
        if (found := _CONSTANT.search(line)) is not None:
            self.constants[found[1]] = int(found[2] or found[3])
        elif (found := _CAST.search(line)) is not None and found[5] in MEMORIES:
            offsets = [self.constants.get(name.strip()) for name in found[1].split(",")]
            known = tuple(offset for offset in offsets if offset is not None)
            elements = math.prod(int(size) for size in found[2].split("x") if size)
            buffer = Buffer(known, -(-elements * int(found[4]) // 8), shape=f"{found[2]}{found[3]}{found[4]}")
            if known:
                self.buffers.setdefault(found[5], []).append(buffer)


def sum_addresses(final_text: str, target: Target) -> MemoryUse:
    """What the addresses in a final module add up to, in generic or custom form."""
    functions = [_Sums("")]
    for line in final_text.splitlines():
        if (found := _FUNCTION.search(line)) is not None:
            functions.append(_Sums(found[1] or found[2]))
        functions[-1].add(line)
    uses = tuple(
        FunctionUse(sums.name, "", tuple(_memory(scope, found, target) for scope, found in sums.buffers.items()))
        for sums in functions
        if sums.buffers
    )
    return MemoryUse(uses, planned=False)


def to_json(use: MemoryUse) -> Any:
    """As JSON can hold it."""
    return dataclasses.asdict(use)


def from_json(told: Any) -> MemoryUse:
    """Inverse of `to_json`."""
    functions = tuple(
        FunctionUse(each["name"], each["core"], tuple(_memory_from_json(memory) for memory in each["memories"]))
        for each in told["functions"]
    )
    return MemoryUse(functions, told["planned"])


def _memory_from_json(told: Any) -> MemoryOfFunction:
    buffers = tuple(
        Buffer(
            tuple(each["offsets_bytes"]),
            each["extent_bytes"],
            None if each["life"] is None else (each["life"][0], each["life"][1]),
            _loc_from_json(each["loc"]),
            each["shape"],
        )
        for each in told["buffers"]
    )
    return MemoryOfFunction(told["memory"], told["needed_bytes"], told["capacity_bytes"], buffers)


def _loc_from_json(told: Any) -> SourceLoc | None:
    if told is None:
        return None
    callers = tuple(loc for each in told["callers"] if (loc := _loc_from_json(each)) is not None)
    return SourceLoc(told["file"], told["line"], told["col"], callers)
