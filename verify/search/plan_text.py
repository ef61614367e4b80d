"""Plans in words: grouped for reports, run by run for `--plan`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from tdist.verify.modes import modes_for
from tdist.verify.operator import Operator, format_shape
from tdist.verify.options import Options
from tdist.verify.search.plan import BASE, Planned, is_seeded, plan, setting_of
from tdist.verify.search.situations import SITUATIONS, not_run


def counted(number: int, one: str, many: str = "") -> str:
    """`1 run`, `2 runs`, `2 launches`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def grouped(runs: Iterable[Planned]) -> dict[str, str]:
    """A plan for readers: schedules with seeds and variants by situation, each scheduler named once."""
    groups: dict[str, dict[str, list[str]]] = {}
    for planned in runs:
        head, _, rest = planned.schedule.partition(":")
        seed = f"seed {planned.seed}" if is_seeded(planned.schedule) else ""
        label = planned.name.partition(", ")[2]
        rest = "" if head == "pct" and rest.startswith("steps=") else rest
        told = " ".join(filter(None, (rest.replace(",", " "), seed, label)))
        groups.setdefault(planned.situation, {}).setdefault(head, []).append(told)
    return {situation: ", ".join(map(_told, by.items())) for situation, by in groups.items()}


def _told(scheduler: tuple[str, list[str]]) -> str:
    """`random (seeds 0, 1)`, `starved (rank=0, rank=1)`, `latest`."""
    name, runs = scheduler
    if all(run.startswith("seed ") for run in runs) and len(runs) > 1:
        return f"{name} (seeds {', '.join(run.removeprefix('seed ') for run in runs)})"
    return f"{name} ({', '.join(runs)})" if any(runs) else name


def pct_line(runs: Iterable[Planned]) -> str:
    """What the PCT runs of a step promise; empty without any that say how many choices there are."""
    specs = [run.schedule.removeprefix("pct:") for run in runs if run.schedule.startswith("pct:")]
    given = [dict(parameter.split("=", 1) for parameter in spec.split(",")) for spec in specs]
    steps = [int(parameters["steps"]) for parameters in given if "steps" in parameters]
    if not steps:
        return ""
    depth = given[0].get("depth", "3")
    power = "" if depth == "1" else f"·{max(steps)}" + ("" if depth == "2" else f"^{int(depth) - 1}")
    each = "it finds" if len(steps) == 1 else f"each of the {len(steps)} runs finds"
    chance = f"probability 1/(n{power}) or more"
    return f"pct: {each} a fault of depth {depth} with {chance}; n agents, at most {max(steps)} choices"


def plan_lines(runs: Sequence[Planned]) -> list[str]:
    """The runs of a search step by situation, a line each."""
    jobs = {planned.situation: planned.spec.job for planned in reversed(runs)}
    return [f"{_titled(jobs, situation)}: {schedules}" for situation, schedules in grouped(runs).items()]


def _titled(jobs: dict, situation: str) -> str:
    job = jobs[situation]
    name = situation if situation != BASE else "relaunch" if job.launches > 1 else ""
    title = SITUATIONS[name].title if name else "one launch"
    return f"{title} ({format_shape(job.case.shape)}, {counted(job.launches, 'launch', 'launches')})"


def print_plan(operator: Operator, options: Options, console: Console) -> None:
    """Every run that these options make, in order; nothing is run."""
    for dtype in options.dtype or operator.dtypes[:1]:
        for mode in modes_for(operator, options.sync, options.scheduler):
            launches = counted(options.launches if operator.relaunchable else 1, "launch", "launches")
            asked = operator.case(dtype=dtype, nranks=options.nranks, shape=dict(options.shape), seed=options.seed)
            console.print(Text(f"{dtype} {mode.name}  ({mode.axes})", "bold"), soft_wrap=True)
            steps = f"exact, poison, float: {format_shape(asked.shape)}, {launches}, seed {options.seed}"
            console.print(Text(f"  {steps}"), soft_wrap=True)
            runs = plan(operator, options, mode, dtype)
            _print_runs(runs, console)
            if runs and mode.name == "fine":
                for name, why in not_run(setting_of(operator, options, mode, dtype)).items():
                    console.print(Text(f"  not met: {SITUATIONS[name].title} ({name}): {why}", "dim"), soft_wrap=True)


def _print_runs(runs: Sequence[Planned], console: Console) -> None:
    console.print(Text(f"  search: {counted(len(runs), 'run')}" if runs else "  search: none"))
    for planned in runs:
        job = planned.spec.job
        against = "the golden" if planned.like == planned.name else planned.like
        about = f"{format_shape(job.case.shape)}, {counted(job.launches, 'launch', 'launches')}, against {against}"
        console.print(Text(f"    {planned.name}  ({about})"), soft_wrap=True)
