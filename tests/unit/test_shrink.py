"""Shrinking: the same defect in a smaller run, never another one, within its bounds, the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdist.errors import UsageError
from tdist.findings import Party, make
from tdist.platforms.sim.schedulers.replay import ReplayScheduler
from tdist.platforms.sim.schedulers.segments import NotedScheduler, Segment, SegmentScheduler, context_switches
from tdist.verify.loader import load_operator
from tdist.verify.rank_job import Job
from tdist.verify.replay.file import Found
from tdist.verify.replay.reproduce import attempt
from tdist.verify.replay.shrink import Shrinker, Target, ThreadRunners, minimise
from tdist.verify.replay.sightings import Sighting
from tdist.verify.worlds import RunSpec

FILE = Path(__file__).with_name("shrink_operators.py")


def failing(name, nranks, launches=1, seed=0, **shape):
    """An operator, its runners, its failing run with choices, what was found."""
    spec = f"{FILE}::{name}"
    operator = load_operator(spec)
    runners = ThreadRunners(operator)
    case = operator.case(dtype="fp32", nranks=nranks, shape=shape)
    run = RunSpec(Job(spec, case, launches, policy="exact"), {"scheduler": "random", "seed": seed})
    outcome = attempt(runners.runner(nranks), run, "seed")
    assert outcome.found.anything
    return operator, runners, run.with_world(choices=outcome.choices), Target.of(outcome.found)


@pytest.fixture(scope="module")
def glimpse():
    return failing("glimpse", nranks=4)


@pytest.fixture(scope="module")
def shrunk(glimpse):
    operator, runners, spec, target = glimpse
    return Shrinker(operator, target, runners).shrink(spec)


def test_a_bug_between_two_signals_needs_two_ranks_one_program_and_one_switch(shrunk):
    case = shrunk.after.spec.job.case
    assert (case.nranks, case["n"], shrunk.after.spec.world["max_programs"]) == (2, 2, 1)
    assert shrunk.before.switches > 3
    assert shrunk.after.switches == 1
    assert not shrunk.why_stopped


def test_the_rows_say_before_and_after(shrunk):
    rows = {name: (before, after) for name, before, after in shrunk.rows()}
    assert rows["ranks"] == ("4", "2") and rows["n"] == ("96", "2")
    assert rows["programs a launch"] == ("all", "1") and rows["context switches"][1] == "1"
    assert "ranks 4 -> 2" in shrunk.in_words()


def test_run_to_block_does_not_show_it(glimpse):
    """Else the switch that is left would prove nothing."""
    _, runners, spec, _ = glimpse
    quiet = attempt(runners.runner(4), spec.with_world(choices=None, scheduler="run-to-block"), "seed")
    assert not quiet.found.anything


def test_the_shrunk_run_replays_by_its_choices(glimpse, shrunk):
    _, runners, _, target = glimpse
    again = attempt(runners.runner(2), shrunk.after.spec, "seed")
    assert target.met(again.found) and again.choices == shrunk.after.spec.world["choices"]


def test_the_same_run_shrinks_to_the_same_run(glimpse, shrunk):
    operator, runners, spec, target = glimpse
    assert Shrinker(operator, target, runners).shrink(spec).after.spec == shrunk.after.spec


def test_a_constraint_is_respected(shrunk):
    assert shrunk.after.spec.job.case["n"] % 2 == 0


def test_a_bound_ends_it_with_the_best_so_far(glimpse):
    operator, runners, spec, target = glimpse
    stopped = Shrinker(operator, target, runners, max_runs=6).shrink(spec)
    assert stopped.runs == 6 and stopped.why_stopped == "after 6 runs (bound)"
    assert target.met(attempt(runners.runner(4), stopped.after.spec, "seed").found)


def test_wrong_outputs_shrink_to_what_they_need():
    operator, runners, spec, target = failing("tail", nranks=4, launches=4)
    assert target.sighting is None and target.wrong
    after = Shrinker(operator, target, runners).shrink(spec).after.spec
    assert (after.job.case.nranks, after.job.launches) == (3, 2)
    assert after.job.case["n"] == 33
    assert not after.world.get("max_programs")  # fewer programs could be wrong for another reason


def test_a_run_without_the_defect_is_no_run_to_shrink(glimpse):
    operator, runners, spec, target = glimpse
    quiet = spec.with_world(choices=None, scheduler="run-to-block")
    with pytest.raises(UsageError, match="nothing to shrink"):
        Shrinker(operator, target, runners).shrink(quiet)


# ---------------------------------------------------------------- what counts as the same


def _race(first=12, second=17, tensor="x", kind="race", rank=0):
    sites = [("store", first), ("load", second)]
    parties = [Party(rank, 0, 3, file="/a/b/k.py", line=line, op=op, tensor=tensor) for op, line in sites]
    return Sighting.of(make(kind, parties, first="store", second="load", tensor=tensor))


def test_ranks_programs_and_folders_do_not_matter():
    assert _race().same_as(_race(rank=5))


def test_other_lines_tensors_and_kinds_do():
    for other in (_race(first=13), _race(tensor="y"), _race(kind="hazard.hidden-alias")):
        assert not _race().same_as(other)
    assert _race().same_as(_race(first=13), moved=True)
    assert not _race().same_as(_race(tensor="y"), moved=True)


def _deadlock(*lines):
    parties = [Party(rank, 0, 0, file="k.py", line=line, op="wait") for rank, line in enumerate(lines)]
    return Sighting.of(make("deadlock", parties, waiting=len(lines), agents=len(lines)))


def test_a_deadlock_with_fewer_waiters_is_the_same_one():
    assert _deadlock(5, 6, 7, 6).same_as(_deadlock(5, 6))
    assert not _deadlock(5, 6, 7).same_as(_deadlock(5, 8))


def test_wrong_outputs_are_not_a_finding_with_wrong_outputs():
    target = Target.of(Found(wrong=True))
    assert target.met(Found(wrong=True)) and not target.met(Found((_race(),), wrong=True))
    assert not target.met(Found())


# ---------------------------------------------------------------- delta debugging and segments


@settings(deadline=None)
@given(st.sets(st.integers(0, 40), max_size=6))
def test_ddmin_keeps_what_is_needed_and_nothing_else(needed):
    asked = []

    def holds(items):
        asked.append(items)
        return needed <= set(items)

    assert minimise(range(41), holds) == sorted(needed)
    assert len(asked) < 400


class Scripted:
    """A runnable agent of a run in which everyone takes `length` steps."""

    def __init__(self, rank, length):
        self.rank, self.program, self.core, self.left = rank, 0, 0, length
        self.position, self.at_wait, self.at_effect = rank, False, False


def drive(scheduler, lengths):
    agents = [Scripted(rank, length) for rank, length in enumerate(lengths)]
    scheduler.start(0)
    events, ran, current = [], [], None
    while agents:
        index = scheduler.pick(agents, current) if len(agents) > 1 else 0
        events += [index] if len(agents) > 1 else []
        current = agents[index]
        ran.append(current.rank)
        current.left -= 1
        if not current.left:
            agents.remove(current)
            for position, agent in enumerate(agents):
                agent.position = position
            current = None
    return events, ran


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.lists(st.integers(0, 3), max_size=20))
def test_a_noted_schedule_followed_by_agents_is_the_same_schedule(lengths, choices):
    class Clipped(ReplayScheduler):
        def _take(self, n):
            self._next += 1
            return self._choices[self._next - 1] % n

    noted = NotedScheduler(Clipped(choices))
    events, ran = drive(noted, lengths)
    assert drive(SegmentScheduler(noted.segments), lengths) == (events, ran)
    assert drive(ReplayScheduler(events), lengths) == (events, ran)


def test_an_agent_that_blocks_where_no_other_can_run_is_not_stopped():
    """Its successor runs alone, unasked; when there is a choice again the successor is the current one."""
    first, alone, woken = Scripted(0, 9), Scripted(1, 9), Scripted(2, 9)
    alone.position, woken.position = 0, 1
    noted = NotedScheduler(ReplayScheduler([0, 0]))
    noted.start(0)
    noted.pick([first, alone], None)
    noted.pick([alone, woken], alone)
    assert noted.segments == [Segment(0, 0, 0), Segment(1, 0, 0, 1)]
    assert context_switches(noted.segments) == 0
    followed = SegmentScheduler([Segment(0, 0, 0, 5), Segment(1, 0, 0)])
    followed.start(0)
    assert followed.pick([first, alone], None) == 0
    assert followed.pick([alone, woken], alone) == 0


def test_a_segment_of_an_agent_that_cannot_run_is_left_out():
    _, ran = drive(SegmentScheduler([Segment(7, 0, 0, 2), Segment(1, 0, 0, 1), Segment(0, 0, 0)]), [2, 2])
    assert ran == [1, 0, 0, 1]


def test_switches_are_stops_of_agents_that_could_go_on():
    assert context_switches([Segment(0, 0, 0, 2), Segment(1, 0, 0), Segment(0, 0, 0, 1)]) == 1
    assert context_switches([]) == 0
