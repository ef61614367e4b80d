"""In-process runs of a search step, most of which leave the hosts out.

A search makes the same job many times, on other schedules. Its first run is made whole, and recorded; those that follow
are re-runs of the device side alone, which cost a third. Their results only serve to pass runs: one that shows
something is made again with its hosts, as are all that follow it, since they are likely to show it, too. Nor is a first
run that shows something of use: that may be the work of its hosts, such as a write by a raw pointer that no request
tells of. Hosts that read device memory run each time, since they may raise or return by what they read; what hosts read
by raw pointers or keep in Python from run to run is not seen here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tdist.errors import TdistError
from tdist.platforms.sim.explore.recording import NotRecordable, Recording, RecordingWorld
from tdist.verify.operator import Operator
from tdist.verify.options import Options
from tdist.verify.rank_job import LaunchResult, run_operator
from tdist.verify.search.explore import Rerunner, needs_hosts
from tdist.verify.worlds import RunSpec, ThreadRunner, WorldResult, run_in

if TYPE_CHECKING:
    import torch

    from tdist.verify.search.plan import Planned


class RecordedRuns(ThreadRunner):
    """Whole runs of one search step (`execute`), and such as are made of their recordings (`take`).

    Attributes:
        taken: runs that were made without hosts, the one that showed something among them.
    """

    def __init__(self, operator: Operator, options: Options) -> None:
        super().__init__(operator, options)
        self._rerunner = Rerunner(operator)
        self._offered: RunSpec | None = None
        self._of_use = True
        self.taken = 0

    @property
    def refused(self) -> dict[str, str]:
        """Why runs that had a recording needed their hosts after all, by job; a reader of reports may want to know."""
        return self._rerunner.refused

    def take(self, planned: Planned) -> WorldResult | None:
        """The result of a run from the recording of its job; None if there is none, or hosts are needed."""
        spec = planned.spec
        if not self._of_use or not self._rerunner.has_recording(spec):
            return None
        self._offered = spec
        try:
            made = self._rerunner.execute(spec)
        except TdistError:  # whatever it is, the whole run says it better
            return None
        self.taken += 1
        return made

    def execute(self, spec: RunSpec) -> WorldResult:
        """Run exactly what `spec` says, hosts and all."""
        if spec is self._offered:
            self._of_use = False
        as_rerun = replace(spec, job=replace(spec.job, judge=False))
        if not self._of_use or needs_hosts(as_rerun) or self._rerunner.has_recording(as_rerun):
            return super().execute(spec)
        made, recording = _recorded(self._operator, spec)
        if recording is not None:
            self._rerunner.keep(spec, recording)
        return made


def _recorded(operator: Operator, spec: RunSpec) -> tuple[WorldResult, Recording | None]:
    """A whole run, and its recording where that is of use."""
    on_host: list[str] = []
    with RecordingWorld(nranks=spec.job.case.nranks, **spec.world) as world:

        def body(rt: Any) -> list[LaunchResult]:
            def on_output(launch: int, name: str, tensor: torch.Tensor) -> None:
                try:
                    world.output(rt, (launch, name), tensor)
                except NotRecordable as why:
                    on_host.append(str(why))

            return run_operator(rt, operator, spec.job, on_output)

        made = run_in(world, body)
        recording = world.recording()
    fits = recording.whole and not (on_host or recording.depends_on_data or recording.read_by_hosts)
    return made, recording if fits and _passed(made) else None


def _passed(made: WorldResult) -> bool:
    compared = (launch.comparisons.values() for launches in made.ranks for launch in launches or ())
    wrong = any(not comparison.passed for comparisons in compared for comparison in comparisons)
    return not (made.error or wrong or any(finding.fails("seed") for finding in made.findings))


__all__ = ["RecordedRuns"]
