"""What a world refuses to be made of, and how it says so."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tdist.errors import UsageError
from tdist.platforms.sim.process.pool import RankPool
from tdist.platforms.sim.process.wire import config_from_json, config_to_json
from tdist.platforms.sim.world import World
from tdist.platforms.sim.world_config import WorldConfig

BAD = [
    ("nranks", 0, "an integer from 1 to 1024"),
    ("nranks", 2.0, "an integer from 1 to 1024"),
    ("nranks", True, "an integer from 1 to 1024"),
    ("nranks", "2", "an integer from 1 to 1024"),
    ("nranks", 1 << 40, "an integer from 1 to 1024"),
    ("heap_bytes", 0, "an integer from 1 to"),
    ("heap_bytes", 1 << 62, "an integer from 1 to"),
    ("heap_bytes", "4k", "an integer from 1 to"),
    ("target", "", "the name of a device"),
    ("target", None, "the name of a device"),
    ("cube_cores", 0, "a positive integer"),
    ("vector_cores", -4, "a positive integer"),
    ("vector_cores", 1.5, "a positive integer"),
    ("scheduler", "randon", r"one of .*got 'randon' \(did you mean 'random'\?\)"),
    ("scheduler", ["random"], "one of "),
    ("scheduler", "pct:dept=3", r"one of .*no parameter 'dept' \(did you mean 'depth'\?\)"),
    ("scheduler", "starved", "one of .*who is starved"),
    ("memory", "adverserial", r"one of adversarial, plain, got .*did you mean 'adversarial'"),
    ("seed", -1, "an integer of at least 0"),
    ("seed", None, "an integer of at least 0"),
    ("detect", 1, "True or False"),
    ("profile", "ascent", r"one of ascend, seed, got 'ascent' \(did you mean 'ascend'\?\)"),
    ("poison", 256, "a byte"),
    ("poison", "A5", "a byte"),
    ("drained", "no", "True or False"),
    ("choices", [0, 1], "None or a tuple"),
    ("choices", (0, -1), "None or a tuple"),
    ("mutation", None, "the name of a mutant"),
    ("max_programs", -1, "an integer of at least 0"),
    ("trace", 1, "True or False"),
    ("late_rank", -2, "a rank, or -1"),
]


@pytest.mark.parametrize(("name", "value", "expects"), BAD)
def test_a_world_that_makes_no_sense_is_refused(name, value, expects):
    fields = {"nranks": 2, name: value}
    for make in (WorldConfig, World):
        with pytest.raises(UsageError, match=f"^{name} of a world must be {expects}"):
            make(**fields)


@pytest.mark.parametrize("name", ["nranks", "heap_bytes", "seed", "poison"])
def test_numpy_integers_are_integers(name):
    config = WorldConfig(**{"nranks": 2, name: np.int64(3)})
    assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config


def test_a_setting_that_does_not_exist_is_named():
    with pytest.raises(UsageError, match=r"no setting 'shedule' \(did you mean 'scheduler'\?\)"):
        World(nranks=2, shedule="random")
    with pytest.raises(UsageError, match="no setting 'foo'; there are: nranks, heap_bytes"):
        World(nranks=2, foo=1)


def test_a_pool_refuses_before_it_starts_anything():
    with pytest.raises(UsageError, match="nranks of a world must be"):
        RankPool(0)
    with pytest.raises(UsageError, match="is a WorldConfig, got 'fast'"):
        RankPool(2, "fast")


def test_every_field_is_checked():
    checked = {name for name, _, _ in BAD}
    assert checked == set(WorldConfig.__dataclass_fields__)
