"""Situations: what a run meets besides its schedule, and whether an operator's contract allows it.

Most reported synchronisation bugs need one of seven situations. Each says of a setting (operator, options, case) why it
does not apply, or gives the runs that make it happen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tdist.errors import UsageError
from tdist.verify.search.jobs import FROZEN, OPPOSITE

if TYPE_CHECKING:
    from tdist.verify.operator import Case, Operator
    from tdist.verify.options import Options
    from tdist.verify.worlds import RunSpec

BASE_LAUNCHES = 2
"""Launches of most search runs: the second one meets what the first one left."""
AHEAD_LAUNCHES = 4
"""Of two buffers the third launch meets a used one; a fourth lets a producer be two steps ahead of that."""
_AHEAD_LEAST = 3


@dataclass(frozen=True)
class Setting:
    """What a situation is asked about.

    Attributes:
        case: the case of the search step.
        base: the run that differs from those of the situation in nothing else.
    """

    operator: Operator
    options: Options
    case: Case
    base: RunSpec

    @property
    def last_rank(self) -> int:
        """The highest rank."""
        return self.case.nranks - 1


@dataclass(frozen=True)
class Variant:
    """One run of a situation: its spec but for schedule and seed.

    Attributes:
        schedule: spec of the scheduler that goes with it.
        label: what tells variants of one schedule apart; empty if nothing needs to.
        own_golden: its outputs are not those of the base runs: the first such run is judged by the golden.
    """

    schedule: str
    spec: RunSpec
    label: str = ""
    own_golden: bool = False


@dataclass(frozen=True)
class Situation:
    """One situation.

    Attributes:
        title: in words, for reports.
        refusal: why it does not apply to a setting; empty if it does.
        variants: its runs, for a setting to which it applies.
        on_request: not part of the default run.
    """

    name: str
    title: str
    refusal: Callable[[Setting], str]
    variants: Callable[[Setting], tuple[Variant, ...]]
    on_request: bool = False


def chosen(options: Options) -> tuple[Situation, ...]:
    """The situations that a run is to consider: those asked for, else all that need no request."""
    if options.situations:
        return tuple(SITUATIONS[name] for name in SITUATIONS if name in options.situations)
    return tuple(situation for situation in SITUATIONS.values() if not situation.on_request)


def not_run(setting: Setting) -> dict[str, str]:
    """Situations that the search step of a setting does not meet, by name, with the reason."""
    asked = chosen(setting.options)
    reasons = {
        name: situation.refusal(setting) if situation in asked else _unasked(situation)
        for name, situation in SITUATIONS.items()
    }
    return {name: reason for name, reason in reasons.items() if reason}


def _unasked(situation: Situation) -> str:
    return f"on request: --situations {situation.name}" if situation.on_request else "not among --situations"


def _one_rank(setting: Setting) -> str:
    return "there is one rank" if setting.case.nranks == 1 else ""


# ------------------------------------------------------------------ two launches on one workspace


def base_launches(operator: Operator, options: Options) -> int:
    """Launches of the base runs: two where situation `relaunch` applies."""
    asked = not options.situations or "relaunch" in options.situations
    return min(BASE_LAUNCHES, options.launches) if operator.relaunchable and asked else 1


def _refuse_relaunch(setting: Setting) -> str:
    if not setting.operator.relaunchable:
        return "the operator is not declared relaunchable"
    return f"--launches {setting.options.launches}" if setting.options.launches < BASE_LAUNCHES else ""


def _base_runs_do_it(setting: Setting) -> tuple[Variant, ...]:
    return ()


# ------------------------------------------------------------------ a fast producer two steps ahead


def _refuse_ahead(setting: Setting) -> str:
    if not setting.operator.relaunchable:
        return "the operator is not declared relaunchable"
    short = setting.options.launches < _AHEAD_LEAST
    return f"--launches {setting.options.launches}, it needs {_AHEAD_LEAST}" if short else _one_rank(setting)


def _ahead(setting: Setting) -> tuple[Variant, ...]:
    launches = min(AHEAD_LAUNCHES, setting.options.launches)
    spec = replace(setting.base, job=replace(setting.base.job, launches=launches))
    ranks = dict.fromkeys((0, setting.last_rank))
    return tuple(Variant(f"starved:rank={rank}", spec, own_golden=True) for rank in ranks)


# ------------------------------------------------------------------ payload and signal in either order


def _refuse_reordered(setting: Setting) -> str:
    if setting.case.nranks == 1:
        return _one_rank(setting)
    return "" if setting.options.detect else "--no-detect: only detection knows what nothing orders"


def _reordered(setting: Setting) -> tuple[Variant, ...]:
    spec = setting.base.with_world(memory="adversarial")
    return tuple(Variant(schedule, spec) for schedule in ("run-to-block", "random"))


# ------------------------------------------------------------------ local initialisation that comes late


def _late_init(setting: Setting) -> tuple[Variant, ...]:
    ranks = dict.fromkeys((0, setting.last_rank))
    return tuple(
        Variant("run-to-block", setting.base.with_world(late_rank=rank), f"rank {rank} late") for rank in ranks
    )


# ------------------------------------------------------------------ a rank with no work


def _refuse_empty_rank(setting: Setting) -> str:
    if empty_rank_case(setting.operator, setting.case) is not None:
        return ""
    return _one_rank(setting) or "no shape was found that leaves the last rank without input (declare empty_rank_shape)"


def _empty_rank(setting: Setting) -> tuple[Variant, ...]:
    case = empty_rank_case(setting.operator, setting.case)
    assert case is not None
    spec = replace(setting.base, job=replace(setting.base.job, case=case))
    return tuple(Variant(schedule, spec, own_golden=True) for schedule in ("run-to-block", "random"))


def empty_rank_case(operator: Operator, case: Case) -> Case | None:
    """A case whose last rank has no input where the others have one; None if none is found.

    Asked are the declared `empty_rank_shape`, or else each symbol in turn with the number of ranks less one: what
    sharding by rows of equal size leaves nothing of.
    """
    if case.nranks == 1:
        return None
    if operator.empty_rank_shape is not None:
        return _case_with(operator, case, operator.empty_rank_shape)
    tried = (_case_with(operator, case, {symbol: case.nranks - 1}) for symbol in operator.shape)
    return next((made for made in tried if made is not None and _last_is_empty(operator, made)), None)


def _case_with(operator: Operator, case: Case, shape: Mapping[str, int]) -> Case | None:
    try:
        made = operator.case(dtype=case.dtype, nranks=case.nranks, shape={**case.shape, **shape}, seed=case.seed)
    except UsageError:
        return None
    return replace(made, sync=case.sync, fill=case.fill)


def _last_is_empty(operator: Operator, case: Case) -> bool:
    try:
        given = [operator.inputs(case, rank, 0) for rank in (0, case.nranks - 1)]
        first, last = ([tensor.numel() for tensor in tensors.values()] for tensors in given)
    except Exception:  # a shape that the user's function is not made for is no shape to run
        return False
    return all(first) and not all(last)


# ------------------------------------------------------------------ frozen arguments


def _refuse_frozen(setting: Setting) -> str:
    if not setting.operator.replayable:
        return "the operator is not declared replayable (arguments that change from launch to launch cannot be frozen)"
    return f"--launches {setting.options.launches}" if setting.options.launches < BASE_LAUNCHES else ""


def _frozen(setting: Setting) -> tuple[Variant, ...]:
    launches = min(_AHEAD_LEAST, setting.options.launches)
    job = replace(setting.base.job, launches=launches, situation=FROZEN)
    spec = replace(setting.base, job=job)
    return tuple(Variant(schedule, spec, own_golden=True) for schedule in ("run-to-block", "random"))


# ------------------------------------------------------------------ two operators in opposite order


def _refuse_opposite(setting: Setting) -> str:
    return _one_rank(setting) if setting.operator.parts else "it takes two operators, named OP1+OP2"


def _opposite(setting: Setting) -> tuple[Variant, ...]:
    spec = replace(setting.base, job=replace(setting.base.job, situation=OPPOSITE))
    return tuple(Variant(schedule, spec) for schedule in ("run-to-block", "max-sync", "random"))


_TABLE = (
    Situation("relaunch", "two launches on one workspace", _refuse_relaunch, _base_runs_do_it),
    Situation("ahead", "a fast producer two steps ahead", _refuse_ahead, _ahead),
    Situation("reordered", "payload and signal in either order", _refuse_reordered, _reordered),
    Situation("late-init", "local initialisation that comes late", _one_rank, _late_init),
    Situation("empty-rank", "a rank with no work", _refuse_empty_rank, _empty_rank),
    Situation("frozen", "a replayed launch with frozen arguments", _refuse_frozen, _frozen),
    Situation(OPPOSITE, "two operators in opposite order on two ranks", _refuse_opposite, _opposite, on_request=True),
)
SITUATIONS: Mapping[str, Situation] = {situation.name: situation for situation in _TABLE}
