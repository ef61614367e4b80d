"""`tdist-verify --replay`, `--shrink`, `--repro`, and what a failing run leaves behind it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tdist.errors import TdistError, UsageError
from tdist.platforms.sim.process.boot import Boot
from tdist.tools.files import check_writable, write_json
from tdist.tools.output import Report as Printer
from tdist.verify.operator import Operator
from tdist.verify.options import Options
from tdist.verify.replay.aftermath import Aftermath
from tdist.verify.replay.file import Failure, Found, Replay, read_replay, replay_of, write_replay
from tdist.verify.replay.reproduce import (
    Located,
    Outcome,
    attempt,
    compare_runs,
    follow,
    line,
    locate,
    outcome_json,
    render_head,
    render_outcome,
)
from tdist.verify.replay.shrink import ProcessRunners, Runners, Shrinker, Shrunk, Target, ThreadRunners
from tdist.verify.replay.sightings import Sighting, sightings
from tdist.verify.tracing import Tracing
from tdist.verify.worlds import ProcessRunner, Runner

if TYPE_CHECKING:
    from tdist.verify.run import Report

MAX_SHRUNK = 3
"""So many failing runs of one report are shrunk; each takes as long as some hundred runs."""


# ---------------------------------------------------------------- a replay file


def replay_command(request: Aftermath, operator: str | None, json_path: Path | None, tracing: Tracing) -> int:
    """Run what a file holds, tell what became of it, shrink it and write its script if asked to.

    Returns: the exit status: 1 if something still speaks against the run, 0 if nothing does.
    """
    assert request.replay is not None
    replay = read_replay(request.replay)
    if json_path is not None:
        check_writable("--json", json_path)
    with Boot() as boot:
        located = locate(replay, request.replay, operator)
        out = Printer(sys.stdout)
        out.print(lambda console: render_head(located, request.replay or Path(), console))
        case = located.replay.spec.job
        tracing.check_elements(located.operator, case.case.nranks, case.launches)
        outcome = _once(located, boot, tracing)
    comparison = compare_runs(located, outcome)
    out.print(lambda console: render_outcome(comparison, outcome, located.replay.profile, console))
    if json_path is not None:
        write_json(json_path, outcome_json(located, comparison, outcome))
    if comparison.exit_code:
        _more(located, outcome, request, out)
    elif request.shrink or request.repro:
        out.print(
            lambda console: line(console, "nothing speaks against the run: there is nothing to shrink or to report")
        )
    out.close()
    tracing.conclude()
    return comparison.exit_code


def _once(located: Located, boot: Boot, tracing: Tracing) -> Outcome:
    """The run in rank processes, and a second one in other fresh memory where the file says that this matters."""
    spec = located.replay.spec
    unwritten = any(s.id == "tdist.uninitialised" for s in located.replay.found.sightings)
    with _processes(spec.job.case.nranks, boot) as runner:
        traced = tracing.around(runner)
        return follow(traced, spec, located.replay.profile, located.operator if unwritten else None)


class _processes:
    """Rank processes for the length of a block."""

    def __init__(self, nranks: int, boot: Boot | None) -> None:
        self._runner = ProcessRunner(Options(nranks=nranks), boot)

    def __enter__(self) -> Runner:
        return self._runner

    def __exit__(self, *exc: object) -> None:
        self._runner.close()


# ---------------------------------------------------------------- after a run


def after_report(report: Report, operator: Operator, request: Aftermath) -> None:
    """Write a replay file for each failing run, name them, shrink and write a script if asked to.

    What cannot be written costs a line, no verdict.
    """
    out = Printer(sys.stdout)
    failures = _distinct(report.failures, report.options.profile)
    made = [_located(failure, operator, request.replays, report.options.profile) for failure in failures]
    if operator.parts and made:
        text = (
            "a pair of operators leaves no replay file, and is neither shrunk nor made a script: run the command above"
        )
        out.print(lambda console: line(console, text))
        out.close()
        return
    _leave(made, request.replays, out)
    if not made and (request.shrink or request.repro):
        out.print(lambda console: line(console, "no run failed: there is nothing to shrink or to report"))
    for failure, located in list(zip(failures, made, strict=True))[: MAX_SHRUNK if request.shrink else 1]:
        outcome = Outcome(located.replay.found, tuple(failure.findings))
        _more(located, outcome, request, out)
    if request.shrink and len(made) > MAX_SHRUNK:
        more = f"{len(made) - MAX_SHRUNK} more failing runs were not shrunk: --replay FILE --shrink does one"
        out.print(lambda console: line(console, more))
    out.close()


def _distinct(failures: Sequence[Failure], profile: str) -> list[Failure]:
    """Those that show something which the ones before do not: a defect met by other ranks is no other defect."""
    kept: list[Failure] = []
    seen: list[Sighting] = []
    for failure in failures:
        mine = sightings(failure.findings, profile)
        new = [sighting for sighting in mine if not any(other.same_as(sighting) for other in seen)]
        if new or not mine:
            kept.append(failure)
        seen += new
    return kept


def _located(failure: Failure, operator: Operator, folder: Path, profile: str) -> Located:
    return Located(replay_of(failure, operator, folder, profile), operator, changed=False)


def _leave(made: Sequence[Located], folder: Path, out: Printer) -> None:
    """Write the files and say how to run them again."""
    if not made:
        return
    out.print(lambda console: console.print("replay files:"))
    for located in made:
        _write(located.replay, folder, located.replay.spec.job.spec, out)


def _write(replay: Replay, folder: Path, named: str, out: Printer) -> None:
    try:
        path = write_replay(replay, folder)
    except UsageError as error:
        text = str(error)
        out.print(lambda console: line(console, text, "red"))
        return
    out.print(lambda console: line(console, command_for(replay, path, named)))


def command_for(replay: Replay, path: Path, named: str) -> str:
    """The command line that runs a file again from here; it names the operator where the file cannot."""
    file, given = replay.operator.file, named.rpartition("::")[0]
    found = not file or any((base / file).absolute() == Path(given) for base in (Path.cwd(), path.parent.absolute()))
    return shlex.join(["tdist-verify", *([] if found else [named]), "--replay", str(path)])


# ---------------------------------------------------------------- shrinking, scripts


def _more(located: Located, outcome: Outcome, request: Aftermath, out: Printer) -> None:
    """Shrink, and write a script of what came out."""
    smaller, seen = located, outcome
    if request.shrink:
        try:
            shrunk = shrink(located, outcome.found)
        except TdistError as error:
            text = f"not shrunk: {error}"
            out.print(lambda console: line(console, text, "red"))
        else:
            smaller, seen = _shrunk(located, shrunk), shrunk.after.outcome
            out.print(lambda console: render_shrunk(shrunk, console))
            _write(smaller.replay, request.replays, smaller.replay.spec.job.spec, out)
    if request.repro is not None:
        _script(smaller, seen, request.repro, out)


def _script(located: Located, seen: Outcome, folder: Path, out: Printer) -> None:
    from tdist.verify.repro.script import write_repro

    try:
        written = write_repro(located.replay, located.operator, folder, seen.findings, seen.differences)
    except UsageError as error:
        text = f"no script: {error}"
        out.print(lambda console: line(console, text, "red"))
        return
    out.print(lambda console: line(console, f"script for a card, not run on one: {written}"))


def _shrunk(located: Located, shrunk: Shrunk) -> Located:
    after = shrunk.after
    left = _Left(after.spec, after.outcome)
    made = replay_of(left, located.operator, Path(), located.replay.profile, after.outcome.found.outputs)
    return replace(located, replay=replace(made, operator=located.replay.operator))


class _Left:
    """A shrunk run as a failing one."""

    def __init__(self, spec, outcome: Outcome) -> None:
        self.spec = spec
        self.findings, self.wrong, self.error = outcome.findings, outcome.found.wrong, outcome.found.error


def shrink(located: Located, found: Found) -> Shrunk:
    """Shrink a run, in this process where it shows there what rank processes showed, else in those.

    Raises: UsageError if it shows in neither.
    """
    target = Target.of(found)
    for runners in _all_runners(located.operator):
        shrinker = Shrinker(located.operator, target, runners, located.replay.profile, progress=_progress)
        try:
            shrunk = shrinker.shrink(located.replay.spec)
        except UsageError:
            continue
        if isinstance(runners, ProcessRunners) or _shows(located, shrunk, target):
            return shrunk
    raise UsageError("the run does not show again what was found: there is nothing to shrink")


def _all_runners(operator: Operator) -> Iterator[Runners]:
    yield ThreadRunners(operator)
    processes = ProcessRunners()
    try:
        yield processes
    finally:
        processes.close()


def _shows(located: Located, shrunk: Shrunk, target: Target) -> bool:
    """Whether rank processes agree with a run that was shrunk in this one."""
    spec = shrunk.after.spec
    with _processes(spec.job.case.nranks, None) as runner:
        return target.met(attempt(runner, spec, located.replay.profile).found)


def _progress(text: str) -> None:
    print(f"tdist-verify: shrinking, {text}", file=sys.stderr, flush=True)


def render_shrunk(shrunk: Shrunk, console: Console) -> None:
    """What became smaller."""
    console.print(Text(f"shrunk in {shrunk.runs} runs, {shrunk.seconds:.1f} s", "bold"))
    if shrunk.why_stopped:
        line(console, f"stopped {shrunk.why_stopped}: it may get smaller still")
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    for title in ("", "before", "after"):
        table.add_column(title)
    for name, before, after in shrunk.rows():
        table.add_row(name, before, after, style="" if before == after else "bold")
    console.print(table)
