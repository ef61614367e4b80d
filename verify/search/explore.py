"""Runs of an operator without its host functions: recorded once, then run again in other worlds, or on all schedules.

Search makes very many runs that differ in nothing but fields of the world. `Rerunner` records the first of them and
runs the device side alone for the rest; where hosts cannot be left out it falls back to the runner it was given.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tdist.errors import UsageError
from tdist.platforms.sim.explore.exhaustive import Exploration, Limits, Progress, explore, outcome_of
from tdist.platforms.sim.explore.recording import NotRecordable, Recording, RecordingWorld
from tdist.platforms.sim.explore.rerun import Replica, RerunResult, rerun
from tdist.platforms.sim.world_config import WorldConfig
from tdist.verify.modes import Mode
from tdist.verify.operator import Operator
from tdist.verify.rank_job import Job, LaunchResult, digests_of, run_operator
from tdist.verify.search.jobs import FROZEN, HOSTS_DIFFER
from tdist.verify.worlds import Runner, RunSpec, WorldResult

RECORDING_SCHEDULES = ("run-to-block", "max-sync")
"""Tried in turn until all hosts come to their ends."""
_DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(WorldConfig)
    if field.name != "heap_bytes" and field.default is not dataclasses.MISSING
}
"""What fields of a world that a spec leaves out are, whatever was recorded."""


def record_job(operator: Operator, spec: RunSpec) -> Recording:
    """What the hosts of a job ask for, recorded in an in-process world; the unmutated kernels run.

    Raises:
        NotRecordable: an output is not device memory, or the host functions read device memory, need a process group or
            raise an error.
    """
    made: Recording | None = None
    for schedule in RECORDING_SCHEDULES:
        world = {**spec.world, "scheduler": schedule, "choices": None, "mutation": "", "detect": False}
        made = _record(operator, spec.job, spec.job.case.nranks, world)
        if made.whole:
            break
    assert made is not None
    if made.read_by_hosts:
        raise NotRecordable(
            f"hosts cannot be left out: one reads device memory at {made.read_by_hosts} and may raise or return by "
            "what it reads; return the device tensors and leave the reading to the harness"
        )
    return made


def _record(operator: Operator, job: Job, nranks: int, config: dict[str, Any]) -> Recording:
    with RecordingWorld(nranks=nranks, **{**config, "memory": "plain"} if "memory" in config else config) as world:

        def body(rt: Any) -> None:
            def on_output(launch: int, name: str, tensor: torch.Tensor) -> None:
                world.output(rt, (launch, name), tensor)

            run_operator(rt, operator, job, on_output)

        _run(world, body)
        return world.recording()


def _run(world: RecordingWorld, body: Any) -> None:
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # what hosts print has been shown by the runs before
            world.run(body)
    except NotRecordable:
        raise
    except Exception as error:
        raise NotRecordable(f"the host functions do not run in one process: {error}") from error


class Rerunner:
    """A `Runner.execute` that leaves the hosts out where it can.

    Args:
        runner: makes the runs that need hosts. None: such runs raise `NotRecordable`.

    Attributes:
        reruns: runs that were made without hosts.
        refused: why hosts were needed, by job; a reader of reports may want to know.
    """

    def __init__(self, operator: Operator, runner: Runner | None = None) -> None:
        self._operator = operator
        self._runner = runner
        self._recordings: dict[str, Recording | NotRecordable] = {}
        self.reruns = 0
        self.refused: dict[str, str] = {}

    def execute(self, spec: RunSpec) -> WorldResult:
        """Run exactly what `spec` says, as `Runner.execute` does; outputs come back as checksums only.

        A job that is to be judged by the golden is run whole.
        """
        try:
            if needs_hosts(spec):
                raise NotRecordable("the golden, frozen arguments and a trace need hosts")
            result = rerun(self.recording_of(spec), **{**_DEFAULTS, **spec.world})
        except NotRecordable as why:
            self.refused.setdefault(str(spec.job), str(why))
            if self._runner is None:
                raise
            return self._runner.execute(spec)
        self.reruns += 1
        return self.result_of(spec.job, result)

    def run(self, job: Job, mode: Mode, poison: int) -> WorldResult:
        """As the runner that it was given."""
        return self._whole().run(job, mode, poison)

    def record(self, job: Job, mode: Mode, run: bool) -> Sequence[Any]:
        """As the runner that it was given."""
        return self._whole().record(job, mode, run)

    def _whole(self) -> Runner:
        if self._runner is None:
            raise NotRecordable("this needs a runner with hosts")
        return self._runner

    def recording_of(self, spec: RunSpec) -> Recording:
        """The recording of a job, made when it is first asked for.

        Raises:
            NotRecordable: the hosts of this job cannot be left out.
        """
        key = _what_hosts_do(spec)
        if key not in self._recordings:
            try:
                self._recordings[key] = record_job(self._operator, spec)
            except NotRecordable as why:
                self._recordings[key] = why
        found = self._recordings[key]
        if isinstance(found, NotRecordable):
            raise NotRecordable(str(found))
        return found

    def keep(self, spec: RunSpec, recording: Recording) -> None:
        """A recording of this job that somebody has made."""
        self._recordings[_what_hosts_do(spec)] = recording

    def has_recording(self, spec: RunSpec) -> bool:
        """Whether this run can be made without hosts right now, as far as is known."""
        return not needs_hosts(spec) and isinstance(self._recordings.get(_what_hosts_do(spec)), Recording)

    def result_of(self, job: Job, result: RerunResult) -> WorldResult:
        """A re-run of a job as a `Runner` gives it: outputs as checksums."""
        ranks = tuple(self._launches(job, rank, result) for rank in range(job.case.nranks))
        return WorldResult(ranks, result.findings, result.stopped, result.choices)

    def _launches(self, job: Job, rank: int, result: RerunResult) -> list[LaunchResult] | None:
        """Checksums of a rank's outputs by launch; None if it was stopped before it had them."""
        tile = self._operator.tile_of(job.case)
        made: list[dict[str, torch.Tensor]] = [{} for _ in range(job.launches)]
        for (owner, launch, name), value in result.outputs.items():
            if owner == rank:
                made[launch][name] = value
        if result.stopped or not all(made):
            return None
        return [digests_of(outputs, tile) for outputs in made]


def needs_hosts(spec: RunSpec) -> bool:
    """Whether a run means something that a re-run does not give."""
    return spec.job.judge or spec.job.situation == FROZEN or bool(spec.world.get("trace"))


def _what_hosts_do(spec: RunSpec) -> str:
    """The same for runs whose host functions do the same: neither judging nor most situations are their business."""
    job = spec.job
    situation = job.situation if job.situation in HOSTS_DIFFER else ""
    return f"{job.spec} {job.case} {job.launches} {situation} {spec.world.get('heap_bytes')}"


def explore_job(
    rerunner: Rerunner,
    spec: RunSpec,
    limits: Limits | None = None,
    progress: Progress | None = None,
    *,
    symbolic: bool = True,
) -> Exploration:
    """All inequivalent schedules of a run, in the world of `spec` but for scheduler and choices.

    An outcome is what the outputs of all ranks hold, or how the run was stopped. `symbolic`: see `explore`.

    Raises:
        NotRecordable: the hosts of this job cannot be left out.
        UsageError: the world is one that has no equivalent schedules (adversarial memory, a late rank, a trace).
    """
    world = {**_DEFAULTS, **spec.world}
    if world["memory"] != "plain" or world["late_rank"] >= 0 or world["trace"]:
        raise UsageError("all schedules are run on plain memory, with no rank late and without a trace")
    world |= {"scheduler": "run-to-block", "seed": 0}
    return explore(rerunner.recording_of(spec), limits, progress, _outputs_of, symbolic, **world)


def _outputs_of(played: Replica, result: RerunResult) -> str:
    """Outputs in a word; how it was stopped, if it was."""
    if result.stopped or not result.outputs:
        return outcome_of(played, result)
    total = 0
    for key in sorted(result.outputs):
        total = zlib.crc32(result.outputs[key].contiguous().flatten().view(torch.uint8).numpy().tobytes(), total)
    return f"outputs {total:08x}"


@dataclass(frozen=True)
class Prover:
    """Whether all schedules of a run end alike and find nothing: what makes a mutant equivalent.

    Attributes:
        holds: every inequivalent schedule was run, none found anything that fails, all outputs are the expected ones.
        text: how many there were, or what speaks against it.
    """

    holds: bool
    text: str


def prove_outputs(
    rerunner: Rerunner, spec: RunSpec, expected: Sequence[Any], profile: str, limits: Limits | None = None
) -> Prover:
    """Try to prove that `spec` gives the outputs `expected` (`WorldResult.ranks` of the original) on any schedule."""
    try:
        found = explore_job(rerunner, spec, limits)
    except (NotRecordable, UsageError) as why:
        return Prover(False, str(why))
    failing = [seen.finding for seen in found.findings if seen.finding.fails(profile)]
    if failing:
        return Prover(False, f"a schedule finds {failing[0].kind}")
    ranks = [rerunner.result_of(spec.job, run).ranks for run in found.outcomes.values()]
    if any(_checksums(made) != _checksums(expected) for made in ranks):
        return Prover(False, "a schedule has other outputs")
    return Prover(found.complete, str(found))


def _checksums(ranks: Sequence[Any]) -> list[Any]:
    return [None if launches is None else [launch.checksums for launch in launches] for launches in ranks]


__all__ = ["NotRecordable", "Prover", "Rerunner", "explore_job", "needs_hosts", "prove_outputs", "record_job"]
