"""The vendor's compiler as a gate: kernels × targets × barrier-all settings, each to the last stage that can run here.

Nothing is hidden: a kernel that is refused says at which stage and why, one that was not linked says so, and a check
that did not run is named.
"""

from __future__ import annotations

import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdist.errors import KernelError, TdistError, UsageError, VerificationFailed
from tdist.findings import Finding, FindingLog
from tdist.frontend.kernel_ir import KernelIR
from tdist.platforms.ascend.lowering.steps import Steps

if TYPE_CHECKING:
    from tdist.platforms.ascend.lowering.memory import MemoryUse

DEFAULT_TARGET = "Ascend910B3"
SETTINGS = {"false": (False,), "true": (True,), "both": (False, True)}
"""What `--barrier-all-sync` names: values of the vendor's inject-barrier-all-sync."""
_LOCATION = re.compile(r"^#loc = loc\((.+)\)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class GateKernel:
    """A kernel to compile.

    Attributes:
        options: launch options that came with it, by name; those that the vendor does not know change nothing.
        label: what tells it from another of the same name, such as an element type and a protocol form.
        refused: why the front end refused it, where it did; there is no IR then.
    """

    ir: KernelIR
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    refused: str = ""

    @property
    def at(self) -> str:
        """`file:line` of its definition; empty if its IR does not say."""
        from tdist.frontend.locations import Locations
        from tdist.ir.location import to_source_loc

        found = _LOCATION.search(self.ir.ttir)
        loc = to_source_loc(Locations([]).get(found[1])) if found else None
        return f"{loc.file}:{loc.line}" if loc is not None else ""

    @property
    def title(self) -> str:
        """Name and label."""
        return f"{self.ir.name} [{self.label}]" if self.label else self.ir.name


@dataclass(frozen=True)
class Refusal:
    """Why a kernel did not get through: the stage, and a message that names file:line where that is known."""

    stage: str
    message: str


@dataclass(frozen=True)
class Use:
    """What a kernel needs of one memory of a core, and what that memory has."""

    memory: str
    bytes: int
    capacity_bytes: int


@dataclass(frozen=True)
class GateResult:
    """One kernel, target and barrier-all setting.

    Attributes:
        form: how distributed calls passed the adapter; empty if it never came to that.
        use: of UB, L1 and L0C.
        counts: synchronisation operations of the final module, by name.
        notes: the vendor's and ours, such as a retry without multi-buffering.
        hivmc: path and digest of the last code generator; None if it is not installed.
        unchecked: checks of the compiled code that did not run, and why.
        seconds: by stage, of what was run; `cached` says that the vendor's compiler was not run again.
        broken: a defect of ours that left a check without a verdict.
        prepared: what the first stage made, for those who ask further; None where it refused.
    """

    kernel: GateKernel
    target: str
    barrier_all: bool
    refusal: Refusal | None = None
    form: str = ""
    use: tuple[Use, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    hivmc: str | None = None
    findings: tuple[Finding, ...] = ()
    unchecked: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    cached: bool = False
    broken: str = ""
    prepared: Any = field(default=None, repr=False, compare=False)

    @property
    def failing(self) -> list[Finding]:
        """Findings that fail it. Hazards of Ascend do: this is what was compiled for Ascend."""
        return [finding for finding in self.findings if finding.fails("ascend")]

    @property
    def verdict(self) -> str:
        """One of refused, findings, undecided (a check of ours broke), clean."""
        if self.refusal:
            return "refused"
        if self.failing:
            return "findings"
        return "undecided" if self.broken else "clean"


@dataclass(frozen=True)
class GateReport:
    """Everything that the gate found out. `tools` are the vendor's programs with versions."""

    results: tuple[GateResult, ...]
    tools: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every kernel went through with every target and setting, and no check found an error."""
        return all(result.verdict == "clean" for result in self.results)

    @property
    def exit_code(self) -> int:
        """0 clean, 1 a kernel is refused or has findings, 3 a check of ours broke and nothing else is wrong."""
        verdicts = {result.verdict for result in self.results}
        return 1 if verdicts & {"refused", "findings"} else 3 if "undecided" in verdicts else 0

    @property
    def failures(self) -> list[GateResult]:
        """Results that are not clean."""
        return [result for result in self.results if result.verdict != "clean"]

    def raise_for_failures(self) -> None:
        """Do nothing if it passed.

        Raises:
            VerificationFailed: with the whole report as text.
        """
        if not self.passed:
            from tdist.platforms.ascend.gate_report import to_text

            raise VerificationFailed(f"the gate is not clean\n{to_text(self)}")


Check = Callable[[Any, Any], Iterable[Finding] | None]
"""Given what `prepare` made and the final module; None stands for nothing found."""
Cure = Callable[[Any, Sequence[Finding], str, Any], list[Finding]]


@dataclass(frozen=True)
class Stages:
    """The stages that the gate drives (seam 8); tests put others in their place.

    `options(launch_options, barrier_all)` makes what `to_linalg` and `compile_linalg` take. `checks` is by name, and
    each gets what `prepare` made and the final module. `cure(prepared, findings, target, options)` gives the findings
    back with what was tried against them; `text(prepared)` is for those who keep IR.
    """

    prepare: Callable[[KernelIR], Any]
    options: Callable[[Mapping[str, Any], bool], Any]
    to_linalg: Callable[[Any, Any, Steps], Any]
    compile_linalg: Callable[[Any, str, Any, Steps], Any]
    read_final_module: Callable[[str], Any]
    checks: Mapping[str, Check]
    cure: Cure | None = None
    text: Callable[[Any], str] = str
    tools: Callable[[], Sequence[str]] = tuple


def kernel_of(
    function: Any, signature: Mapping[str, str], constexprs: Mapping[str, Any] | None = None, **launch_options: Any
) -> GateKernel:
    """A kernel of the calling program for the gate.

    Args:
        function: under `@triton.jit`.
        signature: parameter → Triton type (`"*fp16"`, `"i32"`).
        constexprs: parameter → value, of the others.
        launch_options: as in a launch (`multibuffer=False`).

    Raises:
        KernelError: Triton or the distributed language refuses it; names its file and line.
        UsageError: a parameter with neither a type nor a value.
    """
    from tdist.frontend.triton_ascend import compile_source

    return GateKernel(compile_source(function, signature, constexprs or {}), launch_options)


def gate(
    kernels: GateKernel | KernelIR | Sequence[GateKernel | KernelIR],
    targets: str | Sequence[str] = DEFAULT_TARGET,
    barrier_all: Sequence[bool] = SETTINGS["both"],
    *,
    keep_ir: Path | None = None,
    stages: Stages | None = None,
    observer: Callable[[GateResult], None] | None = None,
) -> GateReport:
    """Compile each kernel for each target and setting, and check what came out.

    Args:
        targets: chips, as the vendor names them.
        barrier_all: settings of inject-barrier-all-sync.
        keep_ir: a new or empty directory; gets every stage's text, in a folder a kernel, target and setting.
        observer: hears each result as soon as it is there.

    Raises:
        UsageError: no kernel, an unknown target or launch option, `keep_ir` cannot be written or has files.
        EnvironmentUnfit: the vendor's tools are missing or cannot run here.

    Example:
        report = gate(kernel_of(push, {"x_ptr": "*fp16", "n": "i32"}, {"BLOCK": 128}), "Ascend910B3")
        report.raise_for_failures()
    """
    begin = time.monotonic()
    given = [kernels] if isinstance(kernels, GateKernel | KernelIR) else kernels
    listed = list({id(kernel): _as_kernel(kernel) for kernel in given}.values())
    chips = (targets,) if isinstance(targets, str) else tuple(targets)
    chain = stages or real_stages()
    _check_request(listed, chips, barrier_all, chain)
    check_keep_ir(keep_ir)
    folders = _Folders(keep_ir, listed)
    results: list[GateResult] = []
    for kernel in listed:
        for result in _gate_kernel(kernel, chips, barrier_all, chain, folders):
            results.append(result)
            if observer is not None:
                observer(result)
    return GateReport(tuple(results), tuple(chain.tools()), time.monotonic() - begin)


def _as_kernel(kernel: GateKernel | KernelIR) -> GateKernel:
    return kernel if isinstance(kernel, GateKernel) else GateKernel(kernel)


def _check_request(
    kernels: Sequence[GateKernel], targets: Sequence[str], settings: Sequence[bool], stages: Stages
) -> None:
    for what, given in (("kernel", kernels), ("target", targets), ("barrier-all setting", settings)):
        if not given:
            raise UsageError(f"the gate needs at least one {what}")
    check_targets(targets)
    for kernel in kernels:
        try:
            stages.options(kernel.options, settings[0])
        except UsageError as error:
            raise UsageError(f"kernel {kernel.title}: {error}") from None


def check_targets(targets: Sequence[str]) -> None:
    """Refuse names of chips that the vendor's compiler is not known to take.

    Raises: UsageError.
    """
    from tdist.platforms.ascend.targets import find_target

    for name in targets:
        find_target(name)


def _gate_kernel(
    kernel: GateKernel, targets: Sequence[str], settings: Sequence[bool], stages: Stages, folders: _Folders
) -> Iterator[GateResult]:
    """The stages that all targets and settings share, then each of them."""
    cures = _Cures(stages)
    with Steps() as front:
        outcome = _front_half(kernel, settings[0], stages, front, keep=folders.kept)
    for target in targets:  # behind the `with`: of two directories, a kill would leave one behind
        for setting in settings:
            blank = GateResult(kernel, target, setting, seconds=dict(front.seconds))
            with Steps(folders.of(blank)) as steps:
                for stage, text in front.texts.items():
                    steps.keep(stage, text)
                if isinstance(outcome, Refusal):
                    yield replace(blank, refusal=outcome)
                    continue
                result = _back_half(blank, *outcome, stages, steps)
            yield cures.with_cures(result, outcome[0])


class _Cures:
    """Cures of one kernel's findings, tried once for each setting and set of findings, whatever the target."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._known: dict[tuple[bool, frozenset[Any]], tuple[Finding, ...]] = {}

    def with_cures(self, result: GateResult, prepared: Any) -> GateResult:
        """The result with what was tried in the advice of its findings."""
        if self._stages.cure is None or not result.failing:
            return result
        key = (result.barrier_all, frozenset(finding.key for finding in result.findings))
        try:
            if key not in self._known:
                options = self._stages.options(result.kernel.options, result.barrier_all)
                tried = self._stages.cure(prepared, result.findings, result.target, options)
                self._known[key] = tuple(tried)
        except TdistError:
            raise
        except Exception as error:
            return replace(result, broken=_defect("trying cures", error))
        return replace(result, findings=self._known[key])


def _front_half(
    kernel: GateKernel, setting: bool, stages: Stages, steps: Steps, keep: bool
) -> tuple[Any, Any] | Refusal:
    """What no target and no setting changes: TTIR with the library's calls, then Linalg."""
    if kernel.refused:
        return Refusal("front end", kernel.refused)
    steps.keep("ttir", kernel.ir.ttir)
    stage = "lowering"
    try:
        with steps.timed(stage):
            prepared = stages.prepare(kernel.ir)
        if keep:
            steps.keep("lowered", stages.text(prepared))
        stage = "adapter"
        return prepared, stages.to_linalg(prepared, stages.options(kernel.options, setting), steps)
    except KernelError as error:
        return Refusal(stage, str(error))


def _back_half(blank: GateResult, prepared: Any, linalg: Any, stages: Stages, steps: Steps) -> GateResult:
    options = stages.options(blank.kernel.options, blank.barrier_all)
    result = replace(blank, form=linalg.form, notes=tuple(linalg.notes), prepared=prepared)
    try:
        compiled = stages.compile_linalg(linalg, blank.target, options, steps)
    except KernelError as error:
        refused = Refusal("bishengir-compile", str(error))
        return replace(result, refusal=refused, seconds=_total(blank, steps))
    result = replace(
        result,
        notes=(*result.notes, *_retry(compiled.retried_without), *compiled.notes),
        use=_uses(compiled.memory),
        hivmc=_named(compiled.hivmc),
        cached=compiled.cached,
    )
    with steps.timed("checks"):
        result = _checked(result, prepared, compiled.final_text, stages)
    return replace(result, seconds=_total(blank, steps))


def _retry(without: Sequence[str]) -> list[str]:
    """What the vendor's compiler says in passing, with exit 0: that it had to give something up."""
    if not without:
        return []
    multi = "multi-buffering" if any("multi-buffer" in name for name in without) else "an optimisation"
    return [f"only fitted after the vendor's retry without {multi} ({', '.join(without)} off): transfers overlap less"]


def _total(blank: GateResult, steps: Steps) -> dict[str, float]:
    return {**blank.seconds, **steps.seconds}


def _checked(result: GateResult, prepared: Any, final_text: str, stages: Stages) -> GateResult:
    """The checks of the compiled code. One that breaks leaves the others their say."""
    try:
        final = stages.read_final_module(final_text)
    except Exception as error:  # whatever it is, it says nothing about the kernel
        return replace(result, broken=_defect("reading the final module", error), unchecked=tuple(stages.checks))
    result = replace(result, counts=dict(final.counts))
    log, broken, unchecked = FindingLog(), "", []
    for name, check in stages.checks.items():
        try:
            for finding in check(prepared, final) or ():
                log.add(finding)
        except Exception as error:
            broken = broken or _defect(f"the check of {name}", error)
            unchecked.append(name)
    return replace(result, findings=tuple(log), broken=broken, unchecked=tuple(unchecked))


def _defect(what: str, error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    return f"{what} broke ({type(error).__name__}: {error}; {where}): please report it with the kernel"


def check_keep_ir(root: Path | None) -> None:
    """Refuse a directory to keep IR in that cannot be written or holds files already; make it. None is fine.

    Raises: UsageError.
    """
    if root is None:
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise UsageError(
                f"--keep-ir {root} has files already, which could be lost: name an empty or a new directory"
            )
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise UsageError(f"cannot keep IR in {root}: {error.strerror}") from None


class _Folders:
    """Where each result's stages are kept. Without a root nothing is."""

    def __init__(self, root: Path | None, kernels: Sequence[GateKernel]) -> None:
        self._root = root
        names = _distinct([_file_name(kernel.title) for kernel in kernels])
        self._names = {id(kernel): name for kernel, name in zip(kernels, names, strict=True)}

    @property
    def kept(self) -> bool:
        """Whether anything is."""
        return self._root is not None

    def of(self, result: GateResult) -> Path | None:
        """The folder of this kernel, target and setting."""
        if self._root is None:
            return None
        setting = f"barrier-all-{str(result.barrier_all).lower()}"
        return self._root / self._names[id(result.kernel)] / result.target / setting


def _file_name(title: str) -> str:
    return re.sub(r"[^\w.]+", "-", title).strip("-.") or "kernel"


def _distinct(names: Sequence[str]) -> list[str]:
    """The same names, the second and further of equal ones numbered."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return distinct


def real_stages() -> Stages:
    """The stages themselves."""
    from tdist.platforms.ascend.compiled.final_module import FinalModule, read_final_module
    from tdist.platforms.ascend.compiled.generic_text import print_generic
    from tdist.platforms.ascend.cures import Clinic, with_cures
    from tdist.platforms.ascend.lowering.adapter import to_linalg
    from tdist.platforms.ascend.lowering.bishengir import compile_linalg
    from tdist.platforms.ascend.lowering.prepare import Prepared, prepare
    from tdist.platforms.ascend.multiplicity import check_multiplicity
    from tdist.platforms.ascend.options import CompileOptions
    from tdist.platforms.ascend.ordering import check_ordering

    def options(launch: Mapping[str, Any], barrier_all: bool) -> CompileOptions:
        return CompileOptions.of_launch(launch, barrier_all=barrier_all)

    def check_order(prepared: Prepared, final: FinalModule) -> Sequence[Finding]:
        return check_ordering(final, names=[argument.name for argument in prepared.args])

    checks: dict[str, Check] = {"effects": check_multiplicity, "order": check_order}

    def cure(prepared: Prepared, findings: Sequence[Finding], target: str, options: CompileOptions) -> list[Finding]:
        clinic = Clinic(
            target, options, lambda *code: [found for check in checks.values() for found in check(*code) or ()]
        )
        return with_cures(findings, clinic.try_all(prepared, findings))

    def text(prepared: Prepared) -> str:
        return print_generic(prepared.module)

    return Stages(prepare, options, to_linalg, compile_linalg, read_final_module, checks, cure, text, _tools)


def _tools() -> list[str]:
    from tdist.platforms.ascend.vendor import find

    return [str(tool) for tool in (find.triton_adapter_opt(), find.bishengir_compile(), find.bishengir_opt())]


def _uses(memory: MemoryUse | None) -> tuple[Use, ...]:
    return tuple(Use(m.memory, m.needed_bytes, m.capacity_bytes) for m in memory.most()) if memory else ()


def _named(hivmc: Any) -> str | None:
    return None if hivmc is None else str(hivmc)
