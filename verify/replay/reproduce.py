"""Running what a replay file holds, and saying what became of it: reproduced, gone, or something else."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tdist.errors import EnvironmentUnfit, UsageError
from tdist.findings import Finding, FindingLog, render
from tdist.verify import attempts
from tdist.verify.loader import absolute_spec, load_operator
from tdist.verify.operator import Operator, format_shape
from tdist.verify.operators import BUILTIN
from tdist.verify.policies import Comparison as PolicyComparison
from tdist.verify.replay.file import Found, Replay, digest_of, file_digest, versions
from tdist.verify.replay.sightings import Sighting, output_digests, sightings
from tdist.verify.worlds import POISONS, Runner, RunSpec, WorldResult

BITS_DEPEND_ON = ("torch", "machine", "isa")
"""Float results are the same bit by bit where these are."""
GONE = "GONE"
SHOWN_DIFFERENCES = 8


@dataclass(frozen=True)
class Outcome:
    """What came out of one run.

    Attributes:
        findings: all of them; `found` holds what speaks against the run.
        choices: what was chosen, for a replay of this run.
        exit_code: whose fault `found.error` is: 1 the operator's, 2 the request's.
        differences: outputs that are not the golden's, each with the worst element's place, value and expected value.
    """

    found: Found
    findings: tuple[Finding, ...] = ()
    choices: tuple[int, ...] = ()
    exit_code: int = 1
    differences: tuple[str, ...] = ()


def attempt(runner: Runner, spec: RunSpec, profile: str, operator: Operator | None = None) -> Outcome:
    """Run `spec` once.

    Args:
        operator: whose outputs are looked at for what nobody wrote, in a second world with other bytes in fresh memory;
            None to leave that out.

    Raises: EnvironmentUnfit where the machine did not let it run: that says nothing about the kernel.
    """
    made = attempts.attempt(runner, spec)
    if made.exit_code == EnvironmentUnfit.exit_code:
        raise EnvironmentUnfit(made.world.error)
    result = made.world
    if operator is not None and not result.error:
        result = replace(result, findings=result.findings + _unwritten(runner, spec, result, operator))
    return replace(outcome_of(result, profile), exit_code=made.exit_code)


_MISFIT = re.compile(r"replay: choice (\d+) is ")


def follow(runner: Runner, spec: RunSpec, profile: str, operator: Operator | None = None) -> Outcome:
    """Run `spec` once by its choices, as far as they fit: those of another kernel ask for agents that are not there.

    Raises: EnvironmentUnfit as `attempt`; UsageError if the run cannot be made at all.
    """
    outcome = attempt(runner, spec, profile, operator)
    misfit = _MISFIT.search(outcome.found.error)
    if misfit is not None:
        fitting = spec.world["choices"][: int(misfit[1])]
        outcome = attempt(runner, spec.with_world(choices=fitting), profile, operator)
    if outcome.exit_code == UsageError.exit_code and not outcome.findings:
        raise UsageError(outcome.found.error)
    return outcome


def outcome_of(result: WorldResult, profile: str) -> Outcome:
    """What speaks against a run that has been made."""
    wrong = tuple(_differences(result))
    found = Found(sightings(result.findings, profile), bool(wrong), result.error, output_digests(result.ranks))
    return Outcome(found, result.findings, result.choices, differences=wrong)


def _differences(result: WorldResult) -> Iterator[str]:
    for rank, launches in enumerate(result.ranks):
        for launch, judged in enumerate(launches or ()):
            for output, compared in judged.comparisons.items():
                if not compared.passed:
                    yield f"rank {rank}, launch {launch}: {output}{_worst(compared)}"


def _worst(compared: PolicyComparison) -> str:
    if compared.worst_index is None:
        return f" is wrong under {compared.policy}"
    tiles = f"{len(compared.wrong_tiles)} of {compared.tiles} tiles wrong"
    return f"{list(compared.worst_index)} is {compared.got:.6g}, expected {compared.expected:.6g} ({tiles})"


def _unwritten(runner: Runner, spec: RunSpec, result: WorldResult, operator: Operator) -> tuple[Finding, ...]:
    """Findings on outputs that depend on memory that nobody wrote."""
    from tdist.verify.run import StepResult, judge_poison

    other = next(byte for byte in POISONS if byte != spec.world.get("poison"))
    quiet = replace(spec.with_world(poison=other), job=replace(spec.job, judge=False))
    second = runner.execute(quiet)
    if second.error:
        return ()
    return judge_poison(StepResult("", result.ranks), StepResult("", second.ranks), operator).findings


# ---------------------------------------------------------------- which operator


@dataclass(frozen=True)
class Located:
    """A replay whose operator has been found.

    Attributes:
        replay: its job names the operator so that it can be loaded from here.
        changed: whether the operator's file differs from the one that was run.
    """

    replay: Replay
    operator: Operator
    changed: bool


def locate(replay: Replay, path: Path, given: str | None) -> Located:
    """Load the operator that a replay file names.

    A file that was sent to somebody must not choose which Python file is executed there. So the operator's file is
    looked for beside the replay file and in the working directory only, below them also by symbolic links, and it has
    to declare an operator of that name on its face; any other one is named on the command line.

    Args:
        path: the replay file.
        given: the operator as the command line names it.

    Raises: UsageError that says where it was looked for and what to give.
    """
    named = given or replay.operator.shown
    if given is None and replay.operator.file:
        named = f"{_operator_file(replay, path)}::{replay.operator.name}"
    if given is None and not replay.operator.file and named not in BUILTIN:
        raise UsageError(f"cannot replay {path}: this tdist has no built-in operator {named}")
    operator = load_operator(named)
    name = named.rpartition("::")[2]
    if name != replay.operator.name:
        raise UsageError(f"{path} is a run of {replay.operator.name}, not of {name}")
    return Located(_with_operator(replay, named, operator), operator, file_digest(operator) != replay.operator.sha256)


def _with_operator(replay: Replay, named: str, operator: Operator) -> Replay:
    """The replay with a job that the operator takes, named so that rank processes find it."""
    case = replay.spec.job.case
    if case.sync not in operator.sync:
        raise UsageError(f"{operator.name} has no {case.sync} form any more; it has: {', '.join(operator.sync)}")
    checked = operator.case(
        dtype=case.dtype, nranks=case.nranks, shape=case.shape, seed=case.seed, sync=case.sync, fill=case.fill
    )
    job = replace(replay.spec.job, spec=absolute_spec(named), case=checked)
    return replace(replay, spec=replace(replay.spec, job=job))


def _operator_file(replay: Replay, path: Path) -> Path:
    wanted, bases = replay.operator.file, (path.absolute().parent, Path.cwd())
    there = [file for file in (_inside(base, wanted) for base in bases) if file is not None]
    if not there:
        raise UsageError(
            f"cannot replay {path}: its operator's file {wanted} is neither beside it nor in the working directory; "
            f"name it: tdist-verify PATH/TO/{replay.operator.shown} --replay {path}"
        )
    same = [file for file in there if digest_of(file) == replay.operator.sha256]
    chosen = (same or there)[0]
    if not _declares(chosen, replay.operator.name):
        raise UsageError(
            f"cannot replay {path}: {wanted} declares no operator {replay.operator.name}, so it was not executed; "
            f"if it is meant, name it: tdist-verify {replay.operator.shown} --replay {path}"
        )
    return chosen


def _inside(base: Path, wanted: str) -> Path | None:
    """`base`/`wanted` if that is a regular file that really lies below `base`."""
    file = base / wanted
    real = Path(os.path.realpath(file))
    return file if real.is_file() and real.is_relative_to(os.path.realpath(base)) else None


def _declares(file: Path, name: str) -> bool:
    """Whether the file's text says, without being run, that it imports tdist and makes a module-level `name`."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    imports = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module or "" for node in body if isinstance(node, ast.ImportFrom)}
    ours = any(module.split(".")[0] in ("tdist", "triton_dist") for module in imports)
    return ours and any(_makes(node, name) for node in body)


def _makes(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == name and bool(node.decorator_list)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


# ---------------------------------------------------------------- comparing and telling


@dataclass(frozen=True)
class Comparison:
    """What a replayed run gave, beside what the file says of the recorded one.

    Attributes:
        status: REPRODUCED, REPRODUCED IN PART, SOMETHING ELSE or GONE.
        remarks: on choices, outputs, versions, the operator's text.
    """

    status: str
    missing: tuple[Sighting, ...]
    new: tuple[Sighting, ...]
    remarks: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """1 if something still speaks against the run."""
        return 0 if self.status == GONE else 1


def compare_runs(located: Located, outcome: Outcome) -> Comparison:
    """Whether a replayed run shows what the recorded one showed."""
    recorded, now, moved = located.replay.found, outcome.found, located.changed
    missing = tuple(s for s in recorded.sightings if not any(s.same_as(t, moved=moved) for t in now.sightings))
    new = tuple(t for t in now.sightings if not any(s.same_as(t, moved=moved) for s in recorded.sightings))
    kept = len(recorded.sightings) - len(missing)
    lost = len(missing) + (recorded.wrong and not now.wrong)
    same = kept + (recorded.wrong and now.wrong)
    if not (recorded.sightings or recorded.wrong):
        same, lost = int(bool(now.error)), int(not now.error)
    remarks = (_on_choices(located, outcome), _on_outputs(located, outcome), *_on_versions(located))
    return Comparison(_status(now.anything, same, lost), missing, new, tuple(filter(None, remarks)))


def _status(anything: bool, same: int, lost: int) -> str:
    if not anything:
        return GONE
    if not same:
        return "SOMETHING ELSE"
    return "REPRODUCED IN PART" if lost else "REPRODUCED"


def _on_choices(located: Located, outcome: Outcome) -> str:
    recorded: tuple[int, ...] | None = located.replay.spec.world.get("choices")
    if recorded is None:
        return "the file holds no choice list: scheduler and seed made the run"
    if outcome.choices == recorded:
        return f"all {len(recorded)} recorded choices were taken, and no others"
    taken = len(outcome.choices)
    if outcome.choices[: len(recorded)] == recorded:
        return f"all {len(recorded)} recorded choices were taken, and {taken - len(recorded)} after them (run to block)"
    same = next(
        (i for i, (one, other) in enumerate(zip(outcome.choices, recorded, strict=False)) if one != other), taken
    )
    if same < taken:
        return f"the first {same} of {len(recorded)} recorded choices were taken; the next one does not fit this run"
    return f"the run ended after {taken} of {len(recorded)} recorded choices"


def _on_outputs(located: Located, outcome: Outcome) -> str:
    recorded, now = located.replay.found.outputs, outcome.found.outputs
    if not any(recorded) or not any(now):
        return ""
    if recorded == now:
        return "outputs are the recorded ones, bit by bit"
    then, here = located.replay.versions, versions()
    others = [f"{name} {then.get(name, 'unknown')}" for name in BITS_DEPEND_ON if then.get(name) != here[name]]
    if others and located.replay.spec.job.case.fill == "float":
        return f"outputs differ from the recorded ones; those were made with {', '.join(others)}, where bits may differ"
    return "outputs differ from the recorded ones"


def _on_versions(located: Located) -> list[str]:
    then, here = located.replay.versions, versions()
    other = [f"{name} {then[name]} (here {here[name]})" for name in here if then.get(name, here[name]) != here[name]]
    remarks = [f"recorded with {', '.join(other)}"] if other else []
    if located.changed:
        remarks.append(f"{located.operator.source.name} has changed since the run was recorded: lines are not compared")
    return remarks


def render_head(located: Located, path: Path, console: Console) -> None:
    """What is about to be run."""
    spec, case = located.replay.spec, located.replay.spec.job.case
    choices = spec.world.get("choices")
    by = f"{spec.world.get('scheduler', 'run-to-block')} schedule at seed {spec.world.get('seed', 0)}"
    taken = by if choices is None else f"{len(choices)} recorded choices"
    launches = "1 launch" if spec.job.launches == 1 else f"{spec.job.launches} launches"
    console.print(Text(f"replay of {path}", "bold"), soft_wrap=True)
    ranks = "1 rank" if case.nranks == 1 else f"{case.nranks} ranks"
    line(console, f"{case.operator}  {format_shape(case.shape)}  {case.dtype}  {ranks}  seed {case.seed}")
    line(console, ", ".join([f"{case.sync} protocol", f"{case.fill} inputs", launches, *_special(spec), taken]))


def _special(spec: RunSpec) -> list[str]:
    """What is out of the ordinary in a run."""
    world, said = spec.world, []
    if spec.job.situation not in ("", "base"):
        said.append(f"situation {spec.job.situation}")
    if world.get("memory", "plain") != "plain":
        said.append(f"{world['memory']} memory")
    if world.get("late_rank", -1) >= 0:
        said.append(f"rank {world['late_rank']} late")
    if world.get("max_programs"):
        said.append(f"at most {world['max_programs']} programs a launch")
    if world.get("mutation"):
        said.append(f"mutant {world['mutation']}")
    return said


def render_outcome(comparison: Comparison, outcome: Outcome, profile: str, console: Console) -> None:
    """What came out, finding by finding, and how it compares with the recording."""
    log = FindingLog()
    for finding in outcome.findings:
        log.add(finding)
    for finding in log.failing(profile):
        console.print()
        render(finding, console, count=log.count(finding))
    for text in _some(outcome.differences):
        line(console, text, "red")
    console.print()
    console.print(
        Text.assemble(
            (comparison.status, "bold green" if comparison.status == GONE else "bold red"),
            f"  {_headline(outcome.found)}",
        )
    )
    for sighting in comparison.missing:
        line(console, f"not found any more: [{sighting.id}] {sighting.title}; {sighting.where}")
    for sighting in comparison.new:
        line(console, f"not in the recording: [{sighting.id}] {sighting.title}; {sighting.where}")
    for remark in comparison.remarks:
        line(console, remark)


def _some(texts: Sequence[str]) -> list[str]:
    """The first of them, and how many more there are."""
    more = len(texts) - SHOWN_DIFFERENCES
    return [*texts[:SHOWN_DIFFERENCES], *([f"… and {more} more"] if more > 0 else [])]


def _headline(found: Found) -> str:
    said = [f"[{sighting.id}] {sighting.where}" for sighting in found.sightings]
    said += ["outputs are wrong"] if found.wrong else []
    if not said:
        return f"did not finish: {found.error}" if found.error else "nothing speaks against this run any more"
    return "; ".join(said)


def line(console: Console, text: str, style: str = "") -> None:
    """One indented line, whole whatever its length."""
    console.print(Text(f"  {text}", style), soft_wrap=True)


def outcome_json(located: Located, comparison: Comparison, outcome: Outcome) -> Mapping[str, Any]:
    """The same as JSON values."""
    return {
        "schema_version": 1,
        "status": comparison.status.lower(),
        "operator": located.operator.name,
        "recorded": located.replay.to_json(),
        "findings": [finding.to_json() for finding in outcome.findings],
        "wrong": outcome.found.wrong,
        "differences": list(outcome.differences),
        "error": outcome.found.error,
        "remarks": list(comparison.remarks),
    }
