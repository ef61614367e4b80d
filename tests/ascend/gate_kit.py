"""Kernels for the gate, each with what must become of it, as data.

    CASES = Cases()

    @CASES.case("x: *T, buf: *T, n: i32", B=64, types="fp16 bf16")
    @triton.jit
    def name_of_what_it_shows(x, buf, n, B: tl.constexpr): ...

Arguments are declared as in a signature; `T` is each of `types`. `memory` is what the source accesses, and what the
compiled kernel must access: `ptr(buf)` is what `symm_at` gave for `buf`, `token(buf)` a token consumed on it. A refusal
names its line by a comment `# <word>`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tdist.frontend.kernel_ir import KernelIR
from tdist.frontend.triton_ascend import compile_source
from tdist.language.carriers import Emitter, builtin
from tdist.language.core import emit_extern

VECTOR, CUBE, MIX = frozenset({"aiv"}), frozenset({"aic"}), frozenset({"aic", "aiv"})


@dataclass(frozen=True)
class Passes:
    """The kernel reaches the vendor's last stage that runs here.

    Attributes:
        cores: that have a function of it in the final module.
        notes: one regular expression for each note that the chain must give, and there are no others.
        lost: operations that the passes delete, by name.
    """

    cores: frozenset[str] = VECTOR
    notes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    """The kernel is refused.

    Attributes:
        stage: "front end", "lowering", "adapter" or "bishengir-compile".
        says: regular expression that the message must match.
        at: name of the line in the kernel's source that the message must name.
    """

    stage: str
    says: str
    at: str


@dataclass(frozen=True)
class Case:
    """A kernel, compiled for one element type.

    Attributes:
        memory: what it accesses, read off its source, in the words of `memory_origins.accesses`.
    """

    fn: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    expect: Passes | Refused
    options: Mapping[str, Any] = field(default_factory=dict)
    type_: str = ""
    memory: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        return f"{self.fn.__name__}{self.type_ and '-' + self.type_}"

    def compile(self) -> KernelIR:
        return compile_source(self.fn, self.signature, self.constants)

    def line(self, name: str) -> str:
        """`file:line` of the comment `# <name>` in the kernel."""
        lines, first = inspect.getsourcelines(self.fn.fn)
        found = [first + index for index, line in enumerate(lines) if f"# <{name}>" in line]
        assert len(found) == 1, f"{self.id}: {len(found)} lines are named {name}"
        return f"{Path(inspect.getsourcefile(self.fn.fn) or '').name}:{found[0]}"


class Cases(list[Case]):
    """The cases of a file."""

    def case(
        self,
        arguments: str,
        expect: Passes | Refused | None = None,
        *,
        types: str = "",
        memory: str = "",
        options: Mapping[str, Any] | None = None,
        **constants: Any,
    ) -> Callable[[Any], Any]:
        """A decorator over `@triton.jit`; by default the kernel passes, on vector cores, without a note."""

        touched = frozenset(access for access in memory.split(", ") if access)

        def add(fn: Any) -> Any:
            for type_ in types.split() or [""]:
                signature = {name: _typed(text, type_) for name, text in _pairs(arguments)}
                self.append(Case(fn, signature, constants, expect or Passes(), options or {}, type_, touched))
            return fn

        return add


def _pairs(arguments: str) -> list[tuple[str, str]]:
    pairs = [tuple(part.strip() for part in argument.split(":")) for argument in arguments.split(",")]
    return [(name, text) for name, text in pairs]


def _typed(text: str, type_: str) -> str:
    return re.sub(r"\bT\b", type_, text)


@builtin
def library(emit: Emitter, symbol: Any, *operands: Any) -> None:
    """A call without result of a function of ACLSHMEM that the language does not offer (yet)."""
    emit_extern(emit, ("libaclshmem_device", "", _text(symbol)), _operands(emit, operands), None, False)


@builtin
def library_i32(emit: Emitter, symbol: Any, *operands: Any) -> Any:
    """The same with an int32 result."""
    from triton.language import core

    library_name = ("libaclshmem_device", "", _text(symbol))
    return emit_extern(emit, library_name, _operands(emit, operands), core.int32, False)


@builtin
def own_library(emit: Emitter, path: Any, symbol: Any, *operands: Any) -> None:
    """A call of a library that the user links himself."""
    emit_extern(emit, ("mine", _text(path), _text(symbol)), _operands(emit, operands), None, False)


def _operands(emit: Emitter, operands: tuple[Any, ...]) -> list[Any]:
    return [emit.tensor(operand, f"operand {index}") for index, operand in enumerate(operands)]


def _text(value: Any) -> str:
    return getattr(value, "value", value)
