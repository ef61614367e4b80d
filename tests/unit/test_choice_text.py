"""Choice lists as text: what is written is read back, and nothing longer than announced is ever built."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdist.verify.replay.choice_text import LINE_CHARS, pack, unpack

_RUNS = st.tuples(st.integers(0, 300), st.integers(1, 40), st.sampled_from((0, 1)))


@given(st.lists(_RUNS, max_size=30))
def test_round_trip(runs):
    choices = [first + step * i for first, count, step in runs for i in range(count)]
    lines = pack(choices)
    assert unpack(lines, len(choices)) == tuple(choices)
    assert all(len(line) <= LINE_CHARS for line in lines)


def test_runs_are_short():
    assert pack([0] * 40 + [3] + list(range(1, 7))) == ["0*40 3 1..6"]
    assert pack([]) == [] and unpack([], 0) == ()


@pytest.mark.parametrize(
    ("lines", "count", "text"),
    [
        (["0*9999999"], 4, "more than the 4 choices"),
        (["0..9999999"], 4, "at most 1048576"),
        (["0*3"], 4, "3 choices where it announces 4"),
        (["1  2"], 2, "'' is no choice"),
        ([""], 0, "'' is no choice"),
        (["-1"], 1, "'-1' is no choice"),
        (["5..3"], 1, "does not rise"),
        (["5*0"], 0, "is no choice"),
        (["1\n2"], 2, "is no choice"),
        (["٣"], 1, "is no choice"),
        (["9" * 5000], 1, "'99999999999999999...' is no choice"),
    ],
)
def test_refused(lines, count, text):
    with pytest.raises(ValueError, match=text.replace("*", r"\*")):
        unpack(lines, count)
