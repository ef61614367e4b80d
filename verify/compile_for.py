"""Which kernels an operator launches, and what the vendor's compiler makes of them.

The operator's own host function is run once for each element type and protocol form in a world without detection, and
every launch is noted: which kernels there are, with which constexprs and launch options, is the host function's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdist.errors import EnvironmentUnfit, TdistError
from tdist.platforms.ascend.gate import SETTINGS, GateKernel, gate
from tdist.platforms.base import RankRuntime
from tdist.platforms.sim.launch_record import LaunchedKernel, launches_recorded
from tdist.verify.loader import absolute_spec, load_operator
from tdist.verify.modes import Mode, modes_for
from tdist.verify.operator import Case, Operator
from tdist.verify.options import Options
from tdist.verify.rank_job import Job, run_operator

if TYPE_CHECKING:
    from tdist.platforms.ascend.gate import GateReport
    from tdist.verify.worlds import Runner

RECORDED_LAUNCHES = 2
"""Launches of a recording run: what the second one launches may differ."""


@dataclass(frozen=True)
class Launched:
    """A kernel that the operator launches, and the (element type, protocol form) of each case in which it does."""

    kernel: GateKernel
    cases: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Compiled:
    """What became of an operator's kernels.

    Attributes:
        report: of the gate; None if there was nothing to compile.
        launched: the kernels, in the order of the report.
        notes: why launches may be missing; empty if the recording runs came to their ends and launched something.
        unfit: why the machine did not let the gate finish; empty if it did.
    """

    report: GateReport | None
    launched: tuple[Launched, ...] = ()
    notes: tuple[str, ...] = ()
    unfit: str = ""

    @property
    def exit_code(self) -> int:
        """The gate's; 1 where launches are missing, for what was not compiled is not clean; 3 on an unfit machine."""
        if self.unfit:
            return EnvironmentUnfit.exit_code
        return max(self.report.exit_code if self.report else 0, 1 if self.notes else 0)


def compile_operator(
    runner: Runner, operator: Operator, options: Options, cases: Sequence[Case], keep_ir: Path | None = None
) -> Compiled:
    """Record what the operator launches in each case and form, and put it through the gate.

    Raises:
        UsageError: as `gate` does.
    """
    cases_of: dict[LaunchedKernel, list[tuple[str, str]]] = {}
    notes: list[str] = []
    for case in cases:
        for mode in _forms(operator, options):
            kernels, stopped = _record(runner, operator, options, replace(case, sync=mode.protocol), mode)
            for kernel in kernels:
                cases_of.setdefault(kernel, []).append((case.dtype, mode.protocol))
            notes += _missing(f"{case.dtype} {mode.protocol}", kernels, stopped)
    launched = tuple(_launched(kernel, mine) for kernel, mine in cases_of.items())
    if not launched:
        return Compiled(None, (), tuple(notes))
    settings = SETTINGS[options.barrier_all_sync]
    try:
        report = gate([each.kernel for each in launched], options.compile_for, settings, keep_ir=keep_ir)
    except EnvironmentUnfit as error:  # what the ranks have said is still worth telling
        return Compiled(None, launched, tuple(notes), str(error))
    return Compiled(report, launched, tuple(notes))


def _launched(kernel: LaunchedKernel, cases: Sequence[tuple[str, str]]) -> Launched:
    label = ", ".join(f"{dtype} {form}" for dtype, form in cases)
    return Launched(GateKernel(kernel.ir, dict(kernel.options), label), tuple(cases))


def _missing(label: str, launched: Sequence[LaunchedKernel], stopped: str) -> list[str]:
    if stopped:
        return [f"{label}: {stopped}"]
    return [] if launched else [f"{label}: the host function launched no kernel"]


def _forms(operator: Operator, options: Options) -> list[Mode]:
    """One mode for each protocol form that the options ask for."""
    modes = modes_for(operator, options.sync, options.scheduler)
    return list({mode.protocol: mode for mode in modes}.values())


def _record(
    runner: Runner, operator: Operator, options: Options, case: Case, mode: Mode
) -> tuple[list[LaunchedKernel], str]:
    """The kernels of one case, by any rank, and why there may be others."""
    launches = min(options.launches, RECORDED_LAUNCHES) if operator.relaunchable else 1
    job = Job(absolute_spec(options.operator or operator.name), case, launches, judge=False)
    return record_kernels(runner, job, mode)


def record_kernels(runner: Runner, job: Job, mode: Mode) -> tuple[list[LaunchedKernel], str]:
    """The kernels that a job launches, by any rank, and why there may be others.

    Where the kernels do not come to their ends, the host functions run once more without them: launches that follow a
    kernel which gets stuck are then known, if they do not depend on its results.
    """
    kernels, stopped = _run(runner, job, mode, True)
    if not stopped:
        return kernels, ""
    dry, again = _run(runner, job, mode, False)
    how = f"launches after this are not known: {again}" if again else "launches were noted without running them"
    return list(dict.fromkeys([*kernels, *dry])), f"the kernels did not come to their ends, {how} ({stopped})"


def _run(runner: Runner, job: Job, mode: Mode, run: bool) -> tuple[list[LaunchedKernel], str]:
    """What any rank launched, and why the first that stopped did."""
    try:
        returned = runner.record(job, mode, run)
    except TdistError as error:
        return [], str(error)
    kernels: dict[LaunchedKernel, None] = {}
    stopped = ""
    for of_rank in returned:
        if isinstance(of_rank, BaseException):
            stopped = stopped or str(of_rank)
            continue
        kernels |= dict.fromkeys(LaunchedKernel.from_json(kernel) for kernel in of_rank["kernels"])
        stopped = stopped or of_rank["stopped"]
    return list(kernels), stopped


def record_job(rt: RankRuntime, job: Mapping[str, Any], run: bool) -> dict[str, Any]:
    """Run a job on this rank, in a process that loads the operator by its name, and note what it launches."""
    parsed = Job.from_json(job)
    return record_operator(rt, load_operator(parsed.spec), parsed, run)


def record_operator(rt: RankRuntime, operator: Operator, job: Job, run: bool) -> dict[str, Any]:
    """Run a job of an operator that is at hand, and note what it launches.

    Args:
        run: whether the kernels are run, or only the host function.

    Returns:
        `kernels`, as `LaunchedKernel.to_json`; `stopped`, why the run did not come to its end, or "".
    """
    stopped = ""
    with launches_recorded(run) as record:
        try:
            run_operator(rt, operator, job)
        except TdistError as error:
            stopped = str(error)
    return {"kernels": [kernel.to_json() for kernel in record.kernels], "stopped": stopped}
