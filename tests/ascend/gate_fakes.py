"""Stages that do what a test tells them, for tests of what the gate makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from tdist.errors import KernelError
from tdist.findings import Party, make
from tdist.frontend.kernel_ir import KernelArg, KernelIR
from tdist.platforms.ascend.gate import GateKernel, Stages
from tdist.platforms.ascend.lowering.memory import FunctionUse, MemoryOfFunction, MemoryUse
from tdist.platforms.ascend.options import CompileOptions

KERNEL = KernelIR("push", '#loc = loc("/src/mine.py":7:0)\nmodule {\n}\n', (KernelArg("x_ptr", "*fp16"),))


def kernel(name: str = "push", label: str = "", **options: Any) -> GateKernel:
    """A kernel of that name, defined in line 7 of /src/mine.py."""
    return GateKernel(KernelIR(name, KERNEL.ttir, KERNEL.args), options, label)


def undrained(line: int = 12) -> Any:
    """A hazard at that line."""
    where = [Party(0, file="/src/mine.py", line=line, op=op, tensor="box") for op in ("store", "notify")]
    return make("hazard.undrained-release", where, tensor="box", first="the store", second="the signal")


@dataclass
class FakeChain:
    """What each stage gives. Keys of `refuse` are names of stages; what `calls` holds happened, in order."""

    refuse: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    retried_without: tuple[str, ...] = ()
    cached: bool = False
    findings: dict[bool, list[Any]] = field(default_factory=dict)
    hivmc: Any = None
    breaks: str = ""
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def stages(self) -> Stages:
        checks = {"order": self._order, "effects": self._effects}
        stages = (self._prepare, _options, self._to_linalg, self._compile, self._read)
        return Stages(*stages, checks, self._cure, lambda prepared: "lowered", lambda: ["bishengir 1.2.0"])

    def _cure(self, prepared: Any, findings: Any, target: str, options: CompileOptions) -> Any:
        self.calls.append(("cure", target, str(options.inject_barrier_all)))
        if self.breaks == "cures":
            raise ZeroDivisionError("a defect")
        return [replace(finding, cure=f"{finding.cure}\nwith a fence: finding gone") for finding in findings]

    def _prepare(self, ir: KernelIR) -> Any:
        self._stage("lowering", ir.name)
        return SimpleNamespace(name=ir.name)

    def _to_linalg(self, prepared: Any, options: CompileOptions, steps: Any) -> Any:
        self._stage("adapter", prepared.name)
        steps.keep("linalg", "linalg of " + prepared.name)
        return SimpleNamespace(form="call", notes=())

    def _compile(self, linalg: Any, target: str, options: CompileOptions, steps: Any) -> Any:
        self._stage("bishengir-compile", target, str(options.inject_barrier_all))
        text = f"final {target} {options.inject_barrier_all}"
        steps.keep("final", text)
        memory = MemoryUse((FunctionUse("push", "aiv", (MemoryOfFunction("UB", 10240, 196608),)),))
        made = {"notes": self.notes, "retried_without": self.retried_without, "cached": self.cached}
        return SimpleNamespace(final_text=text, memory=memory, hivmc=self.hivmc, **made)

    def _read(self, text: str) -> Any:
        if self.breaks == "reading":
            raise ValueError("cannot parse")
        barrier_all = text.endswith("True")
        return SimpleNamespace(counts={"pipe_barrier": 8 if barrier_all else 1}, barrier_all=barrier_all)

    def _order(self, prepared: Any, final: Any) -> Any:
        if self.breaks == "order":
            raise ZeroDivisionError("a defect")
        return self.findings.get(final.barrier_all)

    def _effects(self, prepared: Any, final: Any) -> Any:
        return None

    def _stage(self, name: str, *about: str) -> None:
        self.calls.append((name, *about))
        if name in self.refuse:
            raise KernelError(self.refuse[name])


def _options(launch: Any, barrier_all: bool) -> CompileOptions:
    return CompileOptions.of_launch(launch, barrier_all=barrier_all)
