"""A helper process that makes runs of search steps while rank processes do the other steps.

It is a fork of the launcher, made before any thread, and runs the plans from their ends in worlds of threads, on a core
that would idle. Nobody ever waits for it: what it has done when the search step comes is taken, the rest is run as
always. Its results only serve to pass runs; one that fails is made again on rank processes, so that whatever fails a
verification came from there. What the user's functions print in it is dropped.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NoReturn

from tdist.findings import Finding
from tdist.verify.operator import Operator
from tdist.verify.options import Options
from tdist.verify.rank_job import LaunchResult
from tdist.verify.search.plan import Planned
from tdist.verify.worlds import RunSpec, WorldResult

_PR_SET_PDEATHSIG = 1
_NICER = 5


class Beside:
    """The far process as the launcher sees it.

    Args:
        plans: of all modes, in the order in which they will be run.
    """

    def __init__(self, operator: Operator, options: Options, plans: Sequence[Sequence[Planned]]) -> None:
        runs = [planned for plan in plans for planned in plan]
        self._places = {_key(planned.spec): index for index, planned in enumerate(runs)}
        self._begun = mmap.mmap(-1, max(1, len(runs)))
        self._file = os.memfd_create("tdist-search")
        self._read_bytes, self._rest = 0, b""
        self._done: dict[str, WorldResult] = {}
        self._pid = os.fork()
        if self._pid == 0:
            _serve(operator, options, plans, self._begun, self._file)

    def take(self, planned: Planned) -> WorldResult | None:
        """The result of a run if it is there by now; None if the caller is to make it: the helper leaves it then."""
        key = _key(planned.spec)
        self._read()
        if key not in self._done and key in self._places:
            self._begun[self._places[key]] = 1
        return self._done.get(key)

    def _read(self) -> None:
        written = os.pread(self._file, max(0, os.fstat(self._file).st_size - self._read_bytes), self._read_bytes)
        self._read_bytes += len(written)
        *lines, self._rest = (self._rest + written).split(b"\n")
        for line in lines:
            value = json.loads(line)
            self._done[value["key"]] = _result(value)

    def close(self) -> None:
        """End the helper."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._file)
        self._begun.close()


def _key(spec: RunSpec) -> str:
    """What names a run: all but the scheduler's parameters, which `pct` gets when the first run has been made."""
    value = spec.to_json()
    value["world"]["scheduler"] = value["world"]["scheduler"].partition(":steps=")[0]
    return json.dumps(value, sort_keys=True)


# ------------------------------------------------------------------ in the helper


def _serve(
    operator: Operator, options: Options, plans: Sequence[Sequence[Planned]], begun: mmap.mmap, out: int
) -> NoReturn:
    """Make the runs and end; never returns into the launcher's frames."""
    try:
        parent = os.getppid()
        _detach(out)
        if os.getppid() == parent:
            _run_plans(operator, options, plans, begun, out)
    finally:
        os._exit(0)


def _detach(out: int) -> None:
    """Hold nothing of the launcher's, print nothing, and end with it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.closerange(3, out)
    os.closerange(out + 1, 1 << 16)
    os.nice(_NICER)


def _run_plans(
    operator: Operator, options: Options, plans: Sequence[Sequence[Planned]], begun: mmap.mmap, out: int
) -> None:
    import torch

    from tdist.verify.results import SearchRun
    from tdist.verify.search.explore import Rerunner
    from tdist.verify.search.step import measured
    from tdist.verify.worlds import ThreadRunner

    torch.set_num_threads(1)
    runner = Rerunner(operator, ThreadRunner(operator, options))
    first_index = 0
    for plan in plans:
        indices = range(first_index, first_index + len(plan))
        first_index += len(plan)
        if not plan:
            continue
        quiet = replace(plan[0].spec, job=replace(plan[0].spec.job, judge=False))
        length = [SearchRun(plan[0], choices=runner.execute(quiet).choices)]
        for planned, index in reversed([*zip(plan, indices, strict=True)][1:]):
            if not begun[index] and not planned.spec.job.judge:
                made = runner.execute(measured(planned, length).spec)
                os.write(out, _line(planned, made))


def _line(planned: Planned, made: WorldResult) -> bytes:
    ranks = [None if launches is None else [asdict(launch) for launch in launches] for launches in made.ranks]
    value = {
        "key": _key(planned.spec),
        "ranks": ranks,
        "findings": [finding.to_json() for finding in made.findings],
        "error": made.error,
        "choices": list(made.choices),
    }
    return json.dumps(value).encode() + b"\n"


def _result(value: dict[str, Any]) -> WorldResult:
    ranks = tuple(None if r is None else [LaunchResult.from_json(launch) for launch in r] for r in value["ranks"])
    findings = tuple(Finding.from_json(finding) for finding in value["findings"])
    return WorldResult(ranks, findings, value["error"], tuple(value["choices"]))


@contextlib.contextmanager
def beside(
    operator: Operator, options: Options, plans: Sequence[Sequence[Planned]], wanted: bool
) -> Iterator[Beside | None]:
    """The helper for the length of the block; None where it is not wanted or the machine has one core."""
    if not wanted or not any(plans) or len(os.sched_getaffinity(0)) < 2:
        yield None
        return
    try:
        helper = Beside(operator, options, plans)
    except OSError:  # no room for another process: it would only have saved time
        yield None
        return
    try:
        yield helper
    finally:
        helper.close()
