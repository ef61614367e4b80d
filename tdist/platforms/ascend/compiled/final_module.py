"""The vendor's final module: the functions of each kind of core, as `bishengir-compile --save-temps` leaves them.

A kernel without `tl.dot` has one function, for the vector cores (`aiv`); a mix kernel has one for the cube core (`aic`)
and one that both vector cores of a program run. Whatever else is in the module (declarations of library calls, host
functions) is not code of the kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from tdist.errors import EnvironmentUnfit
from tdist.ir.location import SourceLoc, loc_of
from tdist.platforms.ascend.compiled.generic_text import read_generic

AIC, AIV = "aic", "aiv"
CORE_NAMES = {AIC: "cube core", AIV: "vector core"}
SYNC_OPS = ("set_flag", "wait_flag", "pipe_barrier", "sync_block_set", "sync_block_wait")

_PREFIX = "hivm.hir."
_KERNEL_SUFFIX = ".py"
_LIBRARY = re.compile(r"/triton/(?:triton_patch/)?language/[^/]+\.py$")


@dataclass(frozen=True)
class CoreFunction:
    """What one kind of core runs. `core` is `"aic"` (cube) or `"aiv"` (vector)."""

    name: str
    core: str
    op: FuncOp

    @cached_property
    def ops(self) -> tuple[Operation, ...]:
        """Every operation in it, in order of text; an operation's position here is its number in an `OpRef`."""
        return tuple(op for op in self.op.body.walk())

    @cached_property
    def numbers(self) -> Mapping[Operation, int]:
        """The position of each operation in `ops`."""
        return {op: number for number, op in enumerate(self.ops)}


@dataclass(frozen=True, slots=True)
class OpRef:
    """An operation of a final module by place: it is found again in a copy, and can be written down as JSON."""

    function: str
    number: int


@dataclass(frozen=True)
class FinalModule:
    """A final module and the functions in it that are a kernel's code."""

    module: ModuleOp
    functions: tuple[CoreFunction, ...]

    @property
    def mixed(self) -> bool:
        """Whether cube and vector cores both run a part of the kernel."""
        return {function.core for function in self.functions} == {AIC, AIV}

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How many operations of each kind in `SYNC_OPS` the kernel's functions contain."""
        found = Counter(op.name.removeprefix(_PREFIX) for op in self.all_ops())
        return {name: found[name] for name in SYNC_OPS}

    @cached_property
    def lines(self) -> frozenset[SourceLoc]:
        """The places in the kernel's source that some operation comes from."""
        return frozenset(loc for loc in map(kernel_loc, self.all_ops()) if loc is not None)

    def all_ops(self) -> Iterator[Operation]:
        """Every operation of every function."""
        for function in self.functions:
            yield from function.ops

    def function(self, name: str) -> CoreFunction:
        """The function of that name."""
        return next(function for function in self.functions if function.name == name)

    def ref(self, op: Operation) -> OpRef:
        """The place of `op`."""
        for function in self.functions:
            if op in function.numbers:
                return OpRef(function.name, function.numbers[op])
        raise KeyError(op.name)

    def op(self, ref: OpRef) -> Operation:
        """The operation at a place."""
        return self.function(ref.function).ops[ref.number]

    def clone(self) -> FinalModule:
        """A copy to change. Places (`OpRef`) mean the same operations in it until it is changed."""
        return final_module(self.module.clone())


def kernel_loc(op: Operation) -> SourceLoc | None:
    """Where in the kernel's source `op` comes from; what the compiler made up itself has no such place.

    Of what a function of Triton's own library does, the place is where the kernel calls it.
    """
    loc = loc_of(op)
    if loc is None:
        return None
    places = [place for place in (loc, *loc.callers) if place.file.endswith(_KERNEL_SUFFIX) and place.line]
    own = [place for place in places if not _LIBRARY.search(place.file)]
    return next(iter(own or places), None)


def final_module(module: ModuleOp) -> FinalModule:
    """The functions of a module that is there as operations; see `read_final_module`."""
    functions = tuple(_core_functions(module))
    if not functions:
        raise EnvironmentUnfit(
            "the vendor's final module holds no function for a cube or vector core; is it the text of an earlier stage?"
        )
    return FinalModule(module, functions)


def _core_functions(module: ModuleOp) -> Iterator[CoreFunction]:
    for op in module.body.walk():
        if isinstance(op, FuncOp) and op.body.blocks and (core := _core_of(op)):
            yield CoreFunction(op.sym_name.data, core, op)


def _core_of(function: FuncOp) -> str | None:
    """`aic` or `aiv`; None for what a host runs. A pure vector or pure cube kernel may say so in `mix_mode` only."""
    kind = str(function.attributes.get("hivm.func_core_type", ""))
    if "<AIC>" in kind:
        return AIC
    if "<AIV>" in kind:
        return AIV
    mode = function.attributes.get("mix_mode")
    return mode.data if isinstance(mode, StringAttr) and mode.data in (AIC, AIV) else None


def read_final_module(text: str) -> FinalModule:
    """Read a final module.

    Args:
        text: What `bishengir-opt module.hivm.opt.mlir --mlir-print-op-generic --mlir-print-debuginfo` prints.

    Raises:
        EnvironmentUnfit: The text is no module in generic form, or has no function of a kernel in it.
    """
    return final_module(read_generic(text))


__all__ = [
    "AIC",
    "AIV",
    "CORE_NAMES",
    "SYNC_OPS",
    "CoreFunction",
    "FinalModule",
    "OpRef",
    "final_module",
    "kernel_loc",
    "read_final_module",
]
