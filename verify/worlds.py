"""Opening the world that a run needs: N rank processes with a gloo group, or threads of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from tdist.findings import Finding
from tdist.platforms.sim.process.boot import Boot
from tdist.trace import Trace
from tdist.verify.modes import Mode
from tdist.verify.operator import Operator
from tdist.verify.operators import BUILTIN
from tdist.verify.options import Options
from tdist.verify.rank_job import Job, LaunchResult, run_operator

if TYPE_CHECKING:
    from tdist.platforms.sim.world import World

POISONS = (0xCD, 0x5A)
"""Byte patterns of the two runs that tell use of uninitialised memory."""
HEAP_BYTES = 1 << 30
"""Symmetric heap of a rank; what is not written costs nothing."""
RANK_TARGET = "tdist.verify.rank_job:run_job"
_RANK_MODULES = ("tdist.verify.rank_job", *BUILTIN.values())
"""What the job of a rank imports, of a user's operator as well: the built-in ones bring language and host API along."""
RECORD_TARGET = "tdist.verify.compile_for:record_job"


@dataclass(frozen=True)
class RunSpec:
    """One run of one job in one world, whole: the unit of search, replay, shrinking and mutation.

    Attributes:
        world: fields of `WorldConfig` other than `nranks`, JSON values; those left out keep their default.
    """

    job: Job
    world: Mapping[str, Any] = field(default_factory=dict)

    def with_world(self, **fields: Any) -> RunSpec:
        """The same run in another world."""
        return replace(self, world={**self.world, **fields})

    def with_case(self, **fields: Any) -> RunSpec:
        """The same run of another case."""
        return replace(self, job=replace(self.job, case=replace(self.job.case, **fields)))

    def to_json(self) -> dict[str, Any]:
        world = {name: list(value) if isinstance(value, tuple) else value for name, value in self.world.items()}
        return {"job": self.job.to_json(), "world": world}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunSpec:
        world = dict(value["world"])
        if world.get("choices") is not None:
            world["choices"] = tuple(world["choices"])
        return cls(Job.from_json(value["job"]), world)


class Runner(Protocol):
    """Runs jobs in a fresh world each."""

    def run(self, job: Job, mode: Mode, poison: int) -> WorldResult:
        """Run a job on all ranks in the world of a mode; findings come back even if no rank could finish."""
        ...

    def execute(self, spec: RunSpec) -> WorldResult:
        """Run exactly what `spec` says."""
        ...

    def record(self, job: Job, mode: Mode, run: bool) -> Sequence[Any]:
        """Run a job on all ranks without detection; what `record_operator` gives, by rank, or why a rank stopped.

        Args:
            run: whether the kernels are run, or only the host functions.
        """
        ...


@dataclass(frozen=True)
class WorldResult:
    """What came out of one world.

    Attributes:
        ranks: launches of each rank; None for a rank that did not finish.
        error: why the world stopped early, in words; empty if it did not.
        choices: what the scheduler chose, for `WorldConfig.choices`.
        trace: what happened, where the world was traced.
    """

    ranks: tuple[list[LaunchResult] | None, ...]
    findings: tuple[Finding, ...] = ()
    error: str = ""
    choices: tuple[int, ...] = ()
    trace: Trace | None = None


def world_config(options: Options, mode: Mode, poison: int) -> dict[str, Any]:
    """The fields of `WorldConfig` that a mode and the options decide."""
    return {
        "heap_bytes": HEAP_BYTES,
        "scheduler": mode.schedule,
        "seed": options.seed,
        "detect": options.detect,
        "profile": options.profile,
        "poison": poison,
        "drained": mode.drained,
        "memory": options.memory,
    }


def recording_config(options: Options, mode: Mode) -> dict[str, Any]:
    """The same for a run that only notes launches."""
    return {**world_config(options, mode, POISONS[0]), "detect": False, "memory": "plain"}


class ProcessRunner:
    """Rank processes with a real gloo group, kept from job to job; each job gets a new world."""

    def __init__(self, options: Options, boot: Boot | None = None) -> None:
        from tdist.platforms.sim.process.pool import RankPool

        self._options = options
        self._pool = RankPool(options.nranks, boot=boot, modules=_RANK_MODULES)

    def run(self, job: Job, mode: Mode, poison: int) -> WorldResult:
        return self.execute(RunSpec(job, world_config(self._options, mode, poison)))

    def execute(self, spec: RunSpec) -> WorldResult:
        with _kept_with_errors(self._pool.findings):
            returned = self._run(RANK_TARGET, spec.job, spec.world)
        launches = [
            value if isinstance(value, BaseException) else [LaunchResult.from_json(result) for result in value]
            for value in returned
        ]
        trace = self._pool.trace() if spec.world.get("trace") else None
        return world_result(launches, self._pool.findings(), self._pool.events(), trace)

    def record(self, job: Job, mode: Mode, run: bool) -> Sequence[Any]:
        return self._run(RECORD_TARGET, job, recording_config(self._options, mode), run=run)

    def _run(self, target: str, job: Job, config: Mapping[str, Any], **more: Any) -> list[Any]:
        from tdist.platforms.sim.engine import WorldConfig

        self._pool.reset(WorldConfig(nranks=job.case.nranks, **config))
        return self._pool.run(target, job=job.to_json(), **more)

    def close(self) -> None:
        """End the rank processes."""
        self._pool.close()


class ThreadRunner:
    """In-process worlds, for operators that are at hand as objects and for tests. The golden is the local one."""

    def __init__(self, operator: Operator, options: Options) -> None:
        self._operator = operator
        self._options = options

    def run(self, job: Job, mode: Mode, poison: int) -> WorldResult:
        return self.execute(RunSpec(job, world_config(self._options, mode, poison)))

    def execute(self, spec: RunSpec) -> WorldResult:
        from tdist.platforms.sim.world import World

        with World(nranks=spec.job.case.nranks, **spec.world) as world:
            return run_in(world, run_operator, self._operator, spec.job)

    def record(self, job: Job, mode: Mode, run: bool) -> Sequence[Any]:
        from tdist.platforms.sim.world import World
        from tdist.verify.compile_for import record_operator

        with World(nranks=job.case.nranks, **recording_config(self._options, mode)) as world:
            return world.run(record_operator, self._operator, job, run)


def run_in(world: World, body: Callable[..., Any], *args: Any) -> WorldResult:
    """What came of `body(rt, *args)`, which gives a rank's launches, in a fresh world of threads."""
    with _kept_with_errors(lambda: world.findings):
        returned = world.run(body, *args)
    return world_result(returned, world.findings, world.engine.events, world.trace)


@contextlib.contextmanager
def _kept_with_errors(findings: Callable[[], Sequence[Finding]]) -> Iterator[None]:
    """What a host function raises takes along, as its `findings`, what was found until then."""
    try:
        yield
    except Exception as error:
        if not getattr(error, "findings", ()):
            with contextlib.suppress(AttributeError):  # an exception with slots
                error.findings = tuple(findings())  # pyright: ignore[reportAttributeAccessIssue]
        raise


def world_result(
    returned: Sequence[Any], findings: Sequence[Finding], choices: Sequence[int] = (), trace: Trace | None = None
) -> WorldResult:
    """Sort what ranks returned from why they did not."""
    errors = [value for value in returned if isinstance(value, BaseException)]
    ranks = tuple(None if isinstance(value, BaseException) else value for value in returned)
    return WorldResult(ranks, tuple(findings), str(errors[0]) if errors else "", tuple(choices), trace)


@contextlib.contextmanager
def open_runner(operator: Operator, options: Options, in_process: bool, boot: Boot | None = None) -> Iterator[Runner]:
    """A runner for the length of the block: rank processes, or threads of this process."""
    if in_process:
        yield ThreadRunner(operator, options)
        return
    runner = ProcessRunner(options, boot)
    try:
        yield runner
    finally:
        runner.close()
