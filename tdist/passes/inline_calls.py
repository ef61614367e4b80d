"""Put the bodies of called functions where the calls are.

MLIR's own inliner would canonicalize on the way, without a word about the loads and polling loops that it deletes; this
one changes nothing else. Functions marked `noinline` are inlined too: it makes no difference to what they do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from xdsl.dialects.builtin import CallSiteLoc, LocationAttr, ModuleOp, SymbolRefAttr
from xdsl.ir import Block, Operation, SSAValue

from tdist.errors import KernelError
from tdist.ir import tt
from tdist.ir.location import loc_of
from tdist.passes.base import KernelPass, all_ops, erase, replace
from tdist.passes.report import CompileReport


@dataclass(frozen=True)
class InlineCallsPass(KernelPass):
    """Inline every call, innermost first, and drop private functions. Positions get the call as their caller."""

    name = "inline-calls"

    def transform(self, module: ModuleOp, report: CompileReport) -> None:
        """See `KernelPass`. Early returns must be lifted before.

        Raises:
            KernelError: Recursion, a function that is not there, or one with branches.
        """
        functions = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, tt.FuncOp)}
        calls = Counter(op.callee.root_reference.data for op in all_ops(module) if isinstance(op, tt.CallOp))
        inliner = _Inliner(functions, calls)
        for name in functions:
            inliner.settle(name)
        for function in functions.values():
            if _is_private(function):
                erase(function)


def _is_private(function: tt.FuncOp) -> bool:
    return function.sym_visibility is not None and function.sym_visibility.data == "private"


@dataclass
class _Inliner:
    functions: dict[str, tt.FuncOp]
    calls: Counter[str]  # how many calls of each function are left
    settled: set[str] = field(default_factory=set)
    path: list[str] = field(default_factory=list)

    def settle(self, name: str) -> None:
        """Inline all calls in a function, after those in what it calls."""
        if name in self.settled:
            return
        self.path.append(name)
        for op in all_ops(self.functions[name]):
            if isinstance(op, tt.CallOp):
                callee = self._callee(op)
                called = callee.sym_name.data
                self.settle(called)
                self.calls[called] -= 1
                _inline(op, callee, consume=self.calls[called] == 0 and _is_private(callee))
        self.path.pop()
        self.settled.add(name)

    def _callee(self, call: tt.CallOp) -> tt.FuncOp:
        assert isinstance(call.callee, SymbolRefAttr)
        name = call.callee.root_reference.data
        if name in self.path:
            raise _error(call, f"'{name}' calls itself: recursion is not possible on the device")
        if name not in self.functions:
            raise _error(call, f"there is no function '{name}'")
        callee = self.functions[name]
        if len(callee.body.blocks) != 1:
            raise _error(call, f"'{name}' has branches between blocks; run lift-early-returns before")
        return callee


def _error(call: tt.CallOp, what: str) -> KernelError:
    where = loc_of(call)
    return KernelError(f"{where or 'kernel'}: {what}").at(where)


def _inline(call: tt.CallOp, callee: tt.FuncOp, consume: bool) -> None:
    """Replace a call by the callee's body: a copy of it, or, if `consume`, the body itself."""
    body, into = callee.body.block, call.parent
    assert into is not None
    mapping: dict[SSAValue, SSAValue] = dict(zip(body.args, call.srcs, strict=True))
    if consume:
        for argument, value in mapping.items():
            argument.replace_all_uses_with(value)
    places = _Places(call.location)
    for op in list(body.ops):
        if isinstance(op, tt.ReturnOp):
            replace(call, [mapping.get(value, value) for value in op.srcs])
            if consume:
                op.operands = []
            return
        if consume:
            op.detach()
        inlined = op if consume else op.clone(mapping)
        for inner in all_ops(inlined):
            places.move(inner)
        into.insert_op_before(inlined, call)


class _Places:
    """Locations of inlined operations: the same, called from the call; each made once."""

    def __init__(self, call: LocationAttr) -> None:
        self.call = call
        self.known: dict[int, tuple[LocationAttr, LocationAttr]] = {}

    def move(self, op: Operation) -> None:
        op.location = self._from_call(op.location)
        for region in op.regions:
            for block in region.blocks:
                self._move_arguments(block)

    def _move_arguments(self, block: Block) -> None:
        for argument in block.args:
            argument.location = self._from_call(argument.location)

    def _from_call(self, location: LocationAttr) -> LocationAttr:
        known = self.known.get(id(location))
        if known is None:
            known = self.known[id(location)] = (location, CallSiteLoc(location, self.call))
        return known[1]
