"""Spec strings of schedulers, schedulers of other packages, and what is said of a mistake."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from tdist.errors import UsageError
from tdist.platforms.sim import schedulers
from tdist.platforms.sim.schedulers import PCTScheduler, RandomScheduler, specs
from tdist.verify.options import Options

MISTAKES = [
    ("fifo", "unknown scheduler 'fifo'; there are: latest, max-sync, pct"),
    ("randon", "did you mean 'random'"),
    ("Random", "did you mean 'random'"),
    ("", "unknown scheduler ''"),
    (":depth=3", "unknown scheduler ''"),
    ("pct:dept=3", "no parameter 'dept' (did you mean 'depth'?); it has: depth, steps"),
    ("pct:", "no parameter ''"),
    ("pct:depth", "depth needs a value"),
    ("pct:depth=", "depth needs a value"),
    ("pct:depth=3,", "no parameter ''"),
    ("pct:depth=3,depth=4", "depth is given twice"),
    ("pct:depth=0", "depth has to be an integer of at least 1 and at most 64, got '0'"),
    ("pct:depth=65", "at most 64"),
    ("pct:depth=2.5", "depth has to be an integer"),
    ("pct:depth=three", "depth has to be an integer"),
    ("pct:steps=" + "9" * 5000, "steps has to be an integer"),
    ("pct:steps=३", "steps has to be an integer"),
    ("skewed:factor=nan", "factor has to be a number of at least 1"),
    ("skewed:factor=inf", "factor has to be a number"),
    ("skewed:factor=0.5", "factor has to be a number of at least 1"),
    ("starved", "who is starved"),
    ("starved:rank=-1", "rank has to be an integer of at least 0"),
    ("starved:rank=2", "rank=2, but ranks are 0 … 1"),
    ("skewed:rank=9", "rank=9, but ranks are 0 … 1"),
    ("random:seed=3", "takes no parameters"),
    ("replay", "is no scheduler of a single run"),
    (None, "named by a text"),
    (3, "named by a text"),
]


@pytest.mark.parametrize(("spec", "text"), MISTAKES)
def test_a_mistake_in_a_spec_is_told(spec, text):
    with pytest.raises(UsageError) as told:
        schedulers.check(spec, nranks=2)
    assert text in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("spec", ["random", "pct", "pct: depth = 2 , steps = 9", "skewed:factor=2.5", "starved:rank=1"])
def test_a_spec_that_fits_is_made(spec):
    schedulers.check(spec, nranks=2)
    schedulers.make_scheduler(spec).start(1)
    assert schedulers.why_not(spec) is None


def test_the_values_of_a_spec_reach_the_scheduler():
    made = schedulers.make_scheduler("pct:depth=7,steps=50")
    assert vars(made) == vars(PCTScheduler(depth=7, steps=50))


def test_the_command_line_names_its_option():
    with pytest.raises(UsageError, match=r"^--schedule: scheduler pct has no parameter 'dpth'"):
        Options("ag_gemm", schedule="pct:dpth=2").check()
    Options("ag_gemm", schedule="starved:rank=3", nranks=4).check()
    with pytest.raises(UsageError, match="ranks are 0 … 2"):
        Options("ag_gemm", schedule="starved:rank=3", nranks=3).check()


def test_every_scheduler_of_ours_says_when_to_use_it():
    for about in schedulers.about():
        assert about.use.startswith("Use when ") and about.use.endswith("."), about.name
        assert all(parameter.about for parameter in about.parameters)


class FifoScheduler(RandomScheduler):
    """Use when asked."""

    parameters = (schedulers.Parameter("gap", "how far", low=1),)

    def __init__(self, gap: int = 1) -> None:
        if gap == 13:
            raise ArithmeticError("unlucky")


NOT_A_MAKER = 7


@pytest.fixture
def elsewhere(monkeypatch):
    """Entry points as other packages declare them."""
    here = __name__
    points = [
        EntryPoint("fifo", f"{here}:FifoScheduler", specs.ENTRY_POINTS),
        EntryPoint("gone", "package_that_is_not_there:Scheduler", specs.ENTRY_POINTS),
        EntryPoint("number", f"{here}:NOT_A_MAKER", specs.ENTRY_POINTS),
        EntryPoint("random", "package_that_is_not_there:Scheduler", specs.ENTRY_POINTS),
    ]
    monkeypatch.setattr(specs, "entry_points", lambda group: points if group == specs.ENTRY_POINTS else [])
    specs.offered.cache_clear()
    yield
    specs.offered.cache_clear()


@pytest.mark.usefixtures("elsewhere")
def test_a_scheduler_of_another_package_is_named_like_ours():
    assert {"fifo", "gone", "random"} <= set(schedulers.names())
    assert isinstance(schedulers.make_scheduler("fifo:gap=2"), FifoScheduler)
    with pytest.raises(UsageError, match="did you mean 'fifo'"):
        schedulers.check("fivo")
    with pytest.raises(UsageError, match="gap has to be an integer of at least 1"):
        schedulers.check("fifo:gap=0")


@pytest.mark.usefixtures("elsewhere")
def test_a_broken_entry_point_hurts_only_whoever_asks_for_it():
    schedulers.check("random")
    assert type(schedulers.make_scheduler("random")) is RandomScheduler, "ours is not replaced"
    with pytest.raises(UsageError, match=r"'gone' .*cannot be loaded.*package_that_is_not_there"):
        schedulers.check("gone")
    with pytest.raises(UsageError, match="has to be a class or a function, got 7"):
        schedulers.check("number")
    with pytest.raises(UsageError, match=r"could not be made from 'fifo:gap=13'.*unlucky"):
        schedulers.check("fifo:gap=13")
    told = {about.name: about.use for about in schedulers.about()}
    assert "cannot be loaded" in told["gone"] and told["fifo"] == "Use when asked."
