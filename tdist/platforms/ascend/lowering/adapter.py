"""TTIR → Linalg by `triton-adapter-opt`, with the distributed calls in it.

An adapter that knows `hivm.hir.custom` takes a prepared kernel as it is (form `direct`). That of triton-ascend 3.2.0
does not; the calls travel through it as opaque ones and are put back behind it: as calls of functions (`call`), or,
should it not take these, as `tt.extern_elementwise` (`extern`). A kernel without any distributed call goes directly,
unless scalar pointers come out of its branches and loops, or change the size of their elements: this adapter crashes on
them or, worse, takes one for another. They travel as offsets, for which `call` stands as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException

from tdist.errors import KernelError, TdistError
from tdist.ir.location import loc_of
from tdist.ir.pointer import PointerLike, element_type, is_scalar_pointer
from tdist.passes.base import all_ops
from tdist.platforms.ascend.compiled.generic_text import print_generic, read_generic
from tdist.platforms.ascend.lowering.carried_memory import check_carried_memory
from tdist.platforms.ascend.lowering.carry import Carrier, carry
from tdist.platforms.ascend.lowering.offsets import needs_offsets
from tdist.platforms.ascend.lowering.prepare import Prepared
from tdist.platforms.ascend.lowering.restore import restore
from tdist.platforms.ascend.lowering.sites import Carried
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions, adapter_flags
from tdist.platforms.ascend.symbols import check_module
from tdist.platforms.ascend.vendor import cache, find, messages
from tdist.platforms.ascend.vendor.run import ToolRun

STAGE = "adapter"
DIRECT = "direct"
_SOURCE = "kernel.ttir.mlir"
_RESULT = "kernel.ttadapter.mlir"
_GENERIC = ("--mlir-print-debuginfo", "--mlir-print-op-generic")
_PROBE = """"builtin.module"() ({
  "func.func"() <{function_type = () -> (), sym_name = "probe"}> ({
    "hivm.hir.custom"() <{name = "dist.probe", operandSegmentSizes = array<i32: 0, 0, 0>}> {symbol = "probe"} : () -> ()
    "func.return"() : () -> ()
  }) : () -> ()
}) : () -> ()
"""
_UNKNOWN = re.compile(r"unregistered operation|unknown|not registered|does not exist", re.IGNORECASE)


@dataclass(frozen=True)
class Linalg:
    """A kernel as the vendor's compiler takes it.

    Attributes:
        text: generic form, with locations.
        form: `direct`, `call` or `extern`.
        notes: what a user should know of the way, such as a second form after a crash in the first.
    """

    text: str
    form: str
    notes: tuple[str, ...] = ()


def to_linalg(prepared: Prepared, options: CompileOptions, steps: Steps) -> Linalg:
    """Lower a prepared kernel to Linalg.

    Args:
        steps: keeps what the adapter was given as `adapter-<form>` and the result as `linalg`.

    Raises:
        KernelError: the adapter refuses the kernel or crashes on it in each form, or a call cannot be put back; names
            the kernel's line.
        EnvironmentUnfit: there is no adapter.
    """
    job = _Job(prepared, options, steps, find.triton_adapter_opt())
    check_carried_memory(prepared.module, [arg.name for arg in prepared.args])
    failures: list[_Failure] = []
    for form in job.forms():
        outcome = job.attempt(form)
        if not isinstance(outcome, _Failure):
            text, notes = outcome
            steps.keep("linalg", text)
            return Linalg(text, form, (*_notes(failures), *notes))
        failures.append(outcome)
        if outcome.run.timed_out or outcome.run.out_of_memory:
            break
    raise job.error(failures)


def knows_custom(tool: find.Tool, steps: Steps) -> bool:
    """Whether this adapter reads `hivm.hir.custom`; asked once for each build of it."""
    key = cache.key("adapter-knows-custom", tool.digest, _PROBE)
    kept = cache.load(key)
    if isinstance(kept, bool):
        return kept
    run = steps.run("adapter-probe", [tool.path, "-"], stdin=_PROBE)
    knows = run.ok or not _UNKNOWN.search(run.stderr)  # another complaint is about an operation that it knows
    if not (run.crashed or run.timed_out or run.out_of_memory):
        cache.save(key, knows)
    return knows


@dataclass(frozen=True)
class _Failure:
    """An attempt that failed: in which form, given what, and how the adapter ended."""

    form: str
    source: str
    run: ToolRun


@dataclass(frozen=True)
class _Job:
    prepared: Prepared
    options: CompileOptions
    steps: Steps
    tool: find.Tool

    def forms(self) -> Sequence[str]:
        """What to try, in order."""
        if not self.prepared.calls:
            return (Carrier.CALL,) if needs_offsets(self.prepared.module) else (DIRECT,)
        if knows_custom(self.tool, self.steps):
            return (DIRECT, Carrier.CALL, Carrier.EXTERN)
        return (Carrier.CALL, Carrier.EXTERN)

    def attempt(self, form: str) -> tuple[str, tuple[str, ...]] | _Failure:
        """The Linalg text, with all calls in it, and notes."""
        if form == DIRECT:
            text = self._adapted(form, print_generic(self.prepared.module))
            return text if isinstance(text, _Failure) else (self._checked(read_generic(text)), ())
        with self.steps.timed("carry"):
            carried = self._carry(Carrier(form))
            source = print_generic(carried.module)
        text = self._adapted(form, source)
        if isinstance(text, _Failure):
            return text
        with self.steps.timed("restore"):
            module = read_generic(text)
            notes = restore(module, carried)
            return self._checked(module), notes

    def _carry(self, carrier: Carrier) -> Carried:
        return carry(self.prepared.module, [arg.name for arg in self.prepared.args], carrier)

    def _checked(self, module: ModuleOp) -> str:
        check_module(module)
        try:
            module.verify()
        except VerifyException as error:
            raise KernelError(
                f"{self._at()}: the lowering of kernel `{self.prepared.name}` is wrong: {error}"
            ) from error
        return print_generic(module)

    def _adapted(self, form: str, source: str) -> str | _Failure:
        self.steps.keep(f"adapter-{form}", source)
        flags = (*adapter_flags(self.options), *_GENERIC)
        key = cache.key("adapter", source, self.tool.digest, *flags)
        kept = cache.load(key)
        if isinstance(kept, str):
            return kept
        path = self.steps.write(_SOURCE, source)
        result = self.steps.folder(STAGE) / _RESULT
        result.unlink(missing_ok=True)
        run = self.steps.run(STAGE, [self.tool.path, path, *flags, "-o", result])
        if not run.ok or not result.is_file():
            return _Failure(form, source, run)
        text = result.read_text()
        cache.save(key, text)
        return text

    # -- failures

    def error(self, failures: Sequence[_Failure]) -> TdistError:
        """What the first form died of; that the others did not help either."""
        first, *others = failures
        if first.run.crashed or not messages.says_why(first.run.stderr):
            find.check_whole(self.tool)
        at = self._suspect() if first.run.crashed else self._at()
        about = messages.About(str(self.tool), self.prepared.name, at, source=first.source, source_name=_SOURCE)
        error = messages.explain(first.run, about)
        if not others:
            return error
        also = ", ".join(f"as `{each.form}`: {each.run.ending}" for each in others)
        return type(error)(f"{error}\n  in another form it fails, too ({also})")

    def _at(self) -> str:
        """`file:line` of the kernel's definition."""
        function = next((op for op in self.prepared.module.body.block.ops if op.name == "tt.func"), None)
        return str(loc_of(function) or "") if function is not None else ""

    def _suspect(self) -> str:
        """`file:line` of what most likely crashes the adapter, which itself does not say.

        Loops that carry tensors of pointers or block pointers come first, then branches that merge them.
        """
        ops = all_ops(self.prepared.module)
        suspects = [op for name in ("scf.for", "scf.while", "scf.if", "arith.select") for op in ops if op.name == name]
        known = (str(loc) for op in suspects if _carries_pointers(op) and (loc := loc_of(op)) is not None)
        return next(known, self._at())


def _carries_pointers(op: Operation) -> bool:
    return any(
        isinstance(element_type(type_), PointerLike) and not is_scalar_pointer(type_) for type_ in op.result_types
    )


def _notes(failures: Sequence[_Failure]) -> tuple[str, ...]:
    return tuple(
        f"the vendor's adapter fails on the calls of this kernel as `{each.form}` ({each.run.ending}); they went "
        "through in another form"
        for each in failures
    )
