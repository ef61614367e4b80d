"""Findings as data: round trip, de-duplication, severities, the table."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tdist.errors import UsageError
from tdist.findings import KINDS, Finding, FindingLog, Party, Severity, dumps, kind_of, make, render_log, to_text

RACE = {"first": "store", "second": "load", "tensor": "x"}


def race(first_line: int = 1, second_line: int = 2, **more: object) -> Finding:
    parties = [Party(0, 0, 0, 0, "k.py", first_line, "store", "x"), Party(1, 0, 0, 0, "k.py", second_line, "load", "x")]
    return make("race", parties, profile="seed", **RACE, **more)


texts = st.text(max_size=8)
ints = st.none() | st.integers(0, 2**40)
parties = st.builds(Party, st.integers(0, 99), ints, ints, st.integers(0, 1), st.none() | texts, ints, texts, texts)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@settings(derandomize=True, deadline=None)
@given(
    st.sampled_from(Severity),
    st.lists(parties, max_size=3),
    st.tuples(texts, texts, texts, texts, texts),
    st.dictionaries(texts, values, max_size=3),
)
def test_json_round_trip_loses_nothing(severity: Severity, sides: list, parts: tuple, data: dict) -> None:
    title, *rest = parts
    finding = Finding("tdist.race", severity, title, "seed", tuple(sides), *rest, data)
    back = Finding.from_json(json.loads(json.dumps(finding.to_json())))
    assert back == finding and back.key == finding.key


def test_data_becomes_plain_json() -> None:
    finding = race(ranks={2, 1}, pair=(1, np.int32(2)), ratio=np.float64(0.5), nested={3: [np.bool_(True)]})
    assert json.loads(json.dumps(finding.to_json()))["data"] == dict(finding.data)
    assert finding.data["ranks"] == [1, 2] and finding.data["pair"] == [1, 2] and finding.data["ratio"] == 0.5
    assert finding.data["nested"] == {"3": [True]}


def test_the_same_defect_is_kept_once_with_a_count() -> None:
    seen: list[Finding] = []
    log = FindingLog(seen.append)
    assert log.add(race()) and not log.add(race()) and not log.add(race(2, 1).__class__(**vars(race())))
    assert log.add(race(1, 3))
    assert len(log) == 2 and len(seen) == 2 and log.count(race()) == 3


def test_which_side_came_first_does_not_make_another_defect() -> None:
    finding = race()
    swapped = Finding(finding.kind, finding.severity, "other words", finding.profile, finding.parties[::-1])
    assert swapped.key == finding.key


def test_findings_without_source_are_told_apart_by_title() -> None:
    log = FindingLog()
    log.add(make("canary", [Party(0)], tensor="a"))
    log.add(make("canary", [Party(0)], tensor="b"))
    assert len(log) == 2


def test_a_hazard_fails_only_where_ascend_is_judged() -> None:
    hazard = make("hazard.stale-cache", [Party(0, file="k.py", line=3)], **RACE)
    note = make("lost-wait", op="wait", reason="its token is not used")
    assert hazard.severity is Severity.HAZARD and hazard.profile == "ascend"
    assert (hazard.fails("seed"), hazard.fails("ascend")) == (False, True)
    assert (race().fails("seed"), note.fails("ascend")) == (True, False)
    log = FindingLog()
    for finding in (hazard, note, race()):
        log.add(finding)
    assert len(log.failing("seed")) == 1 and len(log.failing("ascend")) == 2


def test_log_round_trip_and_merge_keep_counts() -> None:
    log = FindingLog()
    log.add(race(), 3)
    again = FindingLog.from_json(json.loads(dumps(log)))
    assert list(again) == list(log) and again.count(race()) == 3
    again.merge(log)
    assert again.count(race()) == 6 and len(again) == 1


def test_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"there is no finding 'rice' \(did you mean 'race'\?\)"):
        make("rice")


def test_missing_data_is_refused_and_not_printed_as_a_gap() -> None:
    with pytest.raises(KeyError):
        make("race", tensor="x")


def test_every_kind_has_prefix_texts_and_reachable_row() -> None:
    for kind_id, kind in KINDS.items():
        assert kind_id == f"tdist.{kind.id}" and kind_of(kind.id) is kind and kind_of(kind_id) is kind
        assert kind.title and kind.explanation and kind.why and kind.cure
        assert kind.severity is Severity.HAZARD or not kind.id.startswith("hazard.")
        assert kind.severity is not Severity.HAZARD or kind.id.startswith(("hazard.", "compiled."))


def test_text_has_all_six_parts_and_the_count() -> None:
    finding = race(got="nothing", why=None)
    text = to_text(finding, replay="tdist-verify x --seed 3", count=4)
    for part in ("data race", "rank 0, program 0", "k.py:1", "k.py:2", "got", "why", "try", "--seed 3", "(4 times)"):
        assert part in text


def test_markup_in_names_is_printed_as_it_is() -> None:
    text = to_text(make("race", [Party(0, op="[red]store[/red]")], first="[b]", second="[/b]", tensor="t[0]"))
    assert "[red]store[/red]" in text and "[/b] of t[0]" in text


def test_log_prints_errors_before_hazards_before_notes() -> None:
    log = FindingLog()
    log.add(make("lost-wait", op="wait", reason="r"))
    log.add(make("hazard.stale-cache", **RACE))
    log.add(race())
    out = io.StringIO()
    render_log(log, Console(file=out, width=100), replay="again")
    assert [line.split()[0] for line in out.getvalue().splitlines() if "[tdist." in line] == ["error", "hazard", "note"]


def test_launch_zero_is_named_beside_a_later_launch():
    early, late = (Party(rank=0, launch=n, program=2, file="k.py", line=3, op="store") for n in (0, 1))
    both = to_text(make("race", [early, late], first="store", second="store", tensor="x", rank=0))
    assert "rank 0, launch 0, program 2: store" in both
    assert "rank 0, launch 1, program 2: store" in both
    alone = to_text(make("race", [early, early], first="store", second="store", tensor="x", rank=0))
    assert "launch" not in alone.split("expected")[0]


def test_a_path_is_never_folded_in_plain_text() -> None:
    file = "/home/" + "deep/" * 40 + "kernels.py"
    assert f"at {file}:7" in to_text(make("race", [Party(0, file=file, line=7)], **RACE))
