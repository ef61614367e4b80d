"""Mutation: which synchronisation and mask faults in an operator's kernels its verification would catch.

Each fault (`tdist.mutations`) is planted into the kernels that the operator launches, and the operator's search runs
are made with it, one of each situation first, until one fails: by a finding, by a run that does not end, by outputs
that are not those of the operator itself. A mutant that none of them catches is *equivalent* if that is proved
(`equivalence.py`), and *missed* if not.

Every protocol form is judged under weak pipes and adversarial schedules, the barrier form too: what a fence is for
shows nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from tdist.errors import EnvironmentUnfit, TdistError, UsageError
from tdist.findings import Finding
from tdist.frontend.kernel_ir import KernelIR
from tdist.mutations import OPTIONAL, Mutant, check_kind, mutants_of
from tdist.verify.modes import ADVERSARIAL, Mode
from tdist.verify.mutation.equivalence import Proof, conclusion, outputs_of, prove, same_code
from tdist.verify.operator import Operator
from tdist.verify.options import Options
from tdist.verify.search.explore import Rerunner
from tdist.verify.search.plan import Planned, plan, setting_of
from tdist.verify.suppressions import Suppression, accept, suppressions_of
from tdist.verify.worlds import POISONS, Runner, RunSpec, open_runner

CAUGHT, EQUIVALENT, MISSED = "caught", "equivalent", "missed"
WRONG, HANG, FAULT = "wrong output", "hang", "fault"
GOLDEN_SCHEDULE = "run-to-block"
_SCHEDULING = ("scheduler", "seed")
_HANGS = frozenset({"tdist.deadlock", "tdist.barrier-divergence", "tdist.endless-loop"})


@dataclass(frozen=True)
class Outcome:
    """What one run came to.

    Attributes:
        outputs: checksums by rank and launch, None of a rank that did not finish.
        error: why the run stopped early; empty if it did not.
        wrong: whether the golden says otherwise, where it was asked.
    """

    outputs: tuple[Any, ...]
    findings: tuple[Finding, ...] = ()
    error: str = ""
    wrong: bool = False


@dataclass(frozen=True)
class Judged:
    """One mutant and what became of it.

    Attributes:
        verdict: `CAUGHT`, `EQUIVALENT` or `MISSED`.
        run: name of the first run that caught it.
        by: how: ids of findings, "wrong output", or why the run stopped.
        proof: why it is equivalent.
        golden: what a plain run notices that is only compared with the golden: "wrong output", "hang", "" for nothing,
            or "fault" where the simulator stopped it at an address that a device may well let pass.
        runs: how many runs were made.
        remark: what else there is to say.
    """

    mutant: Mutant
    verdict: str
    run: str = ""
    by: str = ""
    proof: str = ""
    golden: str = ""
    runs: int = 0
    seconds: float = 0.0
    remark: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON values; deterministic but for `seconds`."""
        return {**asdict(self.mutant), **{k: v for k, v in vars(self).items() if k != "mutant"}}


@dataclass(frozen=True)
class Form:
    """The runs of one element type and protocol form, and what they come to without a fault."""

    label: str
    runs: tuple[Planned, ...]
    golden: RunSpec
    kernels: Mapping[str, tuple[KernelIR, ...]]
    outputs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    golden_outputs: tuple[Any, ...] = ()


@dataclass(frozen=True)
class MutationReport:
    """All mutants of an operator that were judged; `kinds` are those that were asked for, all if empty."""

    operator: str
    options: Options
    forms: tuple[Form, ...] = ()
    judged: tuple[Judged, ...] = ()
    total: int = 0
    seconds: float = 0.0
    kinds: tuple[str, ...] = ()

    def count(self, verdict: str) -> int:
        """Mutants of a verdict."""
        return sum(each.verdict == verdict for each in self.judged)

    @property
    def golden(self) -> int:
        """Mutants that plain comparison with the golden would have caught: wrong outputs, hangs."""
        return sum(each.golden in (WRONG, HANG) for each in self.judged)

    @property
    def faults(self) -> int:
        """Mutants of which it cannot be said: the simulator, not the comparison, stopped the plain run."""
        return sum(each.golden == FAULT for each in self.judged)

    @property
    def complete(self) -> bool:
        """Whether every mutant was judged."""
        return len(self.judged) == self.total

    @cached_property
    def exit_code(self) -> int:
        """0 if every mutant was caught or proved equivalent; 1 if not; 130 where the user stopped it before."""
        if not self.complete:
            return 130
        return 1 if self.count(MISSED) else 0


class MutationObserver:
    """Hears about a run of mutants while it lasts; this one does nothing with it."""

    def started(self, forms: Sequence[Form], total: int) -> None:
        """The operator passes its own runs; no mutant has been judged."""

    def judging(self, number: int, total: int, mutant: Mutant) -> None:
        """A mutant's runs begin; `number` counts from 1."""

    def judged(self, result: Judged) -> None:
        """A mutant has been judged."""


def mutate_operator(
    operator: Operator,
    options: Options,
    kinds: Sequence[str] = (),
    *,
    in_process: bool | None = None,
    observer: MutationObserver | None = None,
    pick: Callable[[Sequence[Mutant]], Sequence[Mutant]] | None = None,
) -> MutationReport:
    """Judge every mutant of every kernel that the operator launches.

    Args:
        kinds: only mutants of these kinds; all if empty.
        in_process: threads instead of rank processes; by default where the operator has a local golden, which says that
            its host function needs no process group.
        pick: chooses among a kernel's mutants; all by default.

    Raises:
        UsageError: options that the operator does not take, a kind that there is none of.
        TdistError: the operator launches nothing, or does not pass its own runs.
        EnvironmentUnfit: the machine cannot run the worlds.
    """
    options.check()
    for kind in kinds:
        check_kind(kind)
    _check_options(options)
    watching, begin = observer or MutationObserver(), time.monotonic()
    threads = operator.golden_local is not None if in_process is None else in_process
    with open_runner(operator, options, threads) as hosts:
        runner = Rerunner(operator, hosts)
        forms = tuple(_baseline(runner, operator, options, form) for form in _forms(hosts, operator, options))
        mutants = _mutants(forms, kinds, pick)
        watching.started(forms, len(mutants))
        judge = _Judge(runner, operator, options, forms)
        judged: list[Judged] = []
        try:
            for number, mutant in enumerate(mutants, 1):
                watching.judging(number, len(mutants), mutant)
                judged.append(judge.judge(mutant))
                watching.judged(judged[-1])
        except KeyboardInterrupt:
            pass  # what has been judged is worth telling
    seconds = time.monotonic() - begin
    return MutationReport(operator.name, options, forms, tuple(judged), len(mutants), seconds, tuple(kinds))


def _check_options(options: Options) -> None:
    if not options.search:
        raise UsageError("--mutate makes the runs of the search step: leave out --no-search")
    if options.compile_for:
        raise UsageError("--mutate judges simulated runs: leave out --compile-for")


# ---- what is run ----------------------------------------------------------------------------------------------------


def _forms(runner: Runner, operator: Operator, options: Options) -> Iterator[Form]:
    for dtype in options.dtype or operator.dtypes[:1]:
        for protocol in _protocols(operator, options):
            yield _form(runner, operator, options, dtype, protocol)


def _protocols(operator: Operator, options: Options) -> tuple[str, ...]:
    asked = operator.sync if options.sync == "both" else (options.sync,)
    return tuple(dict.fromkeys(name if name in operator.sync else operator.sync[0] for name in asked))


def _form(runner: Runner, operator: Operator, options: Options, dtype: str, protocol: str) -> Form:
    from tdist.verify.compile_for import record_kernels

    mode = Mode("fine", protocol, drained=False, schedule=options.scheduler or ADVERSARIAL)
    setting = setting_of(operator, options, mode, dtype)
    launched, stopped = record_kernels(runner, setting.base.job, mode)
    label = f"{dtype} {protocol}"
    if stopped or not launched:
        raise TdistError(f"{operator.name} ({label}): {stopped or 'the host function launched no kernel'}")
    kernels: dict[str, tuple[KernelIR, ...]] = {}
    for kernel in launched:
        kernels[kernel.ir.name] = (*kernels.get(kernel.ir.name, ()), kernel.ir)
    return Form(label, _runs(plan(operator, options, mode, dtype)), _golden_run(setting.base), kernels)


def _runs(planned: Sequence[Planned]) -> tuple[Planned, ...]:
    """The plan, one run of each situation first, and its first run once more with other bytes in unwritten memory."""
    unjudged = [replace(each, spec=_unjudged(each.spec)) for each in planned]
    first = unjudged[0]
    poisoned = replace(first, name=f"poison/{first.schedule}", spec=first.spec.with_world(poison=POISONS[1]))
    leading = {each.situation: each for each in reversed(unjudged)}
    early = [each for each in unjudged if leading[each.situation] is each]
    late = [each for each in unjudged if leading[each.situation] is not each]
    return first, poisoned, *early[1:], *late


def _unjudged(spec: RunSpec) -> RunSpec:
    return replace(spec, job=replace(spec.job, judge=False))


def _golden_run(base: RunSpec) -> RunSpec:
    """What a test does that compares with the golden and does nothing else."""
    return _unjudged(base).with_world(scheduler=GOLDEN_SCHEDULE, seed=0, detect=False)


def _baseline(runner: Rerunner, operator: Operator, options: Options, form: Form) -> Form:
    """The form with the outputs of each run; the first of each kind of run has been compared with the golden.

    Raises:
        TdistError: the operator itself fails one.
    """
    outputs: dict[str, tuple[Any, ...]] = {}
    accepted = suppressions_of(operator, options)
    for planned in form.runs:
        spec = replace(planned.spec, job=replace(planned.spec.job, judge=planned.name == planned.like))
        outcome = run_once(runner, spec, accepted)
        _check_baseline(operator, form, planned, outcome, options.profile)
        outputs[planned.name] = outcome.outputs
        if outcome.outputs != outputs[planned.like]:
            raise TdistError(_not_itself(operator, form, planned, f"its outputs differ from those of {planned.like}"))
    plain = run_once(runner, form.golden)
    return replace(form, outputs=outputs, golden_outputs=plain.outputs)


def _check_baseline(operator: Operator, form: Form, planned: Planned, outcome: Outcome, profile: str) -> None:
    failing = [finding for finding in outcome.findings if finding.fails(profile)]
    if failing or outcome.error or outcome.wrong:
        why = failing[0].title if failing else outcome.error or "wrong output"
        raise TdistError(_not_itself(operator, form, planned, why))


def _not_itself(operator: Operator, form: Form, planned: Planned, why: str) -> str:
    return (
        f"{operator.name} ({form.label}) fails its own run {planned.name}: {why}. "
        "Mutants say something about a verification that passes: run tdist-verify without --mutate first"
    )


def run_once(runner: Rerunner, spec: RunSpec, accepted: Sequence[Suppression] = ()) -> Outcome:
    """Run a spec. What the kernel or the host function does wrong is a result; an unfit machine is raised."""
    try:
        world = runner.execute(spec)
    except (EnvironmentUnfit, UsageError):
        raise
    except TdistError as error:
        if error.exit_code == EnvironmentUnfit.exit_code:
            raise
        return Outcome((), accept(getattr(error, "findings", ()), accepted), str(error).splitlines()[0])
    except Exception as error:
        if not getattr(error, "__notes__", None):  # not raised by a host function: a defect of ours
            raise
        return Outcome((), (), f"{type(error).__name__}: {error}".splitlines()[0])
    wrong = any(
        not comparison.passed
        for rank in world.ranks
        for result in rank or ()
        for comparison in result.comparisons.values()
    )
    return Outcome(outputs_of(world), accept(world.findings, accepted), world.error, wrong)


# ---- which mutants --------------------------------------------------------------------------------------------------


def _mutants(
    forms: Sequence[Form], kinds: Sequence[str], pick: Callable[[Sequence[Mutant]], Sequence[Mutant]] | None
) -> list[Mutant]:
    """Each mutant once, whichever specialisations of its kernel have it, by kernel."""
    by_kernel: dict[str, dict[str, Mutant]] = {}
    for form in forms:
        for name, irs in form.kernels.items():
            found = by_kernel.setdefault(name, {})
            for ir in irs:
                found.update({mutant.name: mutant for mutant in mutants_of(ir, kinds) if mutant.name not in found})
    chosen: list[Mutant] = []
    for found in by_kernel.values():
        chosen += list(found.values()) if pick is None else pick(list(found.values()))
    return chosen


# ---- judging --------------------------------------------------------------------------------------------------------


class _Judge:
    """Makes the runs of one mutant after the other."""

    def __init__(self, runner: Rerunner, operator: Operator, options: Options, forms: Sequence[Form]) -> None:
        self._runner = runner
        self._profile = options.profile
        self._accepted = suppressions_of(operator, options)
        self._forms = forms

    def judge(self, mutant: Mutant) -> Judged:
        """Compare code, run until something fails, prove or give up."""
        begin = time.monotonic()
        forms = [form for form in self._forms if mutant.kernel in form.kernels]
        same = same_code(mutant, [ir for form in forms for ir in form.kernels[mutant.kernel]])
        if same:
            return Judged(mutant, EQUIVALENT, proof=same, seconds=time.monotonic() - begin)
        noticed = {self._golden_notices(form, mutant) for form in forms}
        golden = next(word for word in (WRONG, HANG, FAULT, "") if word in noticed)
        found, runs = self._search(forms, mutant)
        judged = found or self._unfound(forms, mutant)
        return replace(judged, golden=golden, runs=runs, seconds=time.monotonic() - begin)

    def _golden_notices(self, form: Form, mutant: Mutant) -> str:
        outcome = run_once(self._runner, _planted(form.golden, mutant))
        if outcome.error:
            return HANG if _HANGS & {finding.kind for finding in outcome.findings} else FAULT
        return "" if outcome.outputs == form.golden_outputs else WRONG

    def _search(self, forms: Sequence[Form], mutant: Mutant) -> tuple[Judged | None, int]:
        runs = 0
        for form in forms:
            for planned in form.runs:
                runs += 1
                outcome = run_once(self._runner, _planted(planned.spec, mutant), self._accepted)
                by = self._why_caught(outcome, form.outputs[planned.name])
                if by:
                    where = f"{form.label}: {planned.name}" if len(forms) > 1 else planned.name
                    return Judged(mutant, CAUGHT, where, by, remark=self._hazards(outcome)), runs
        return None, runs

    def _why_caught(self, outcome: Outcome, expected: tuple[Any, ...]) -> str:
        failing = dict.fromkeys(f.kind for f in outcome.findings if f.fails(self._profile))
        reasons = list(failing)
        if outcome.error and not failing:
            reasons.append(outcome.error)
        if not outcome.error and outcome.outputs != expected:
            reasons.append("wrong output")
        return ", ".join(reasons)

    def _hazards(self, outcome: Outcome) -> str:
        kinds = dict.fromkeys(f.kind for f in outcome.findings if not f.fails(self._profile) and f.fails("ascend"))
        return f"fails --profile ascend: {', '.join(kinds)}" if kinds else ""

    def _unfound(self, forms: Sequence[Form], mutant: Mutant) -> Judged:
        """Prove it for every case of every form, or give up at the first that is not proved."""
        proofs: list[Proof] = []
        first = run_once(self._runner, _planted(forms[0].runs[0].spec, mutant), self._accepted)
        for form in forms:
            for planned in _cases_of(form):
                spec = _planted(planned.spec, mutant)
                proofs.append(prove(self._runner, spec, form.outputs[planned.name], self._fails))
                if not proofs[-1].holds:
                    remark = "; ".join(filter(None, (proofs[-1].text, self._hazards(first))))
                    return Judged(mutant, MISSED, remark=remark)
        return Judged(mutant, EQUIVALENT, proof=conclusion(proofs), remark=self._hazards(first))

    def _fails(self, finding: Finding) -> bool:
        return any(each.fails(self._profile) for each in accept([finding], self._accepted))


def _cases_of(form: Form) -> list[Planned]:
    """One run of each case and number of launches, in a plain world: its schedules are all that differ."""
    plain = {key: value for key, value in form.runs[0].spec.world.items() if key not in _SCHEDULING}
    found: dict[str, Planned] = {}
    for planned in form.runs:
        world = {key: value for key, value in planned.spec.world.items() if key not in _SCHEDULING}
        if world == plain:
            job = planned.spec.job
            found.setdefault(repr((sorted(job.case.shape.items()), job.launches)), planned)
    return list(found.values())


def _planted(spec: RunSpec, mutant: Mutant) -> RunSpec:
    return spec.with_world(mutation=f"{mutant.kernel}/{mutant.name}{OPTIONAL}")
