"""Suppressions: by id, with a reason, shown, failing nothing; never by wildcard."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from search_fakes import declare, race

from tdist.errors import UsageError
from tdist.findings import KINDS
from tdist.verify.loader import load_operator
from tdist.verify.options import Options
from tdist.verify.report import render_report, report_json
from tdist.verify.run import verify
from tdist.verify.suppressions import (
    Suppression,
    accept,
    format_suppressions,
    full_id,
    parse_suppressions,
    suppressions_of,
    unused,
)

SPEC = f"{Path(__file__).parent / 'search_operators.py'}::no_barrier"


def test_ids_go_with_and_without_prefix():
    assert parse_suppressions(["race=a = b", "tdist.hazard.stale-cache= old "]) == {
        "tdist.race": "a = b",
        "tdist.hazard.stale-cache": "old",
    }
    assert all(full_id(known, "x") == full_id(known.removeprefix("tdist."), "x") == known for known in KINDS)


def test_what_is_printed_is_read_back():
    reasons = {"tdist.race": "x=1, y", "tdist.canary": "a"}
    assert parse_suppressions(format_suppressions(reasons)) == reasons


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rase=x", "there is no finding 'rase' (did you mean 'race'?)"),
        ("tdist.rase=x", "did you mean 'race'"),
        ("race", "race needs a reason"),
        ("race=  ", "race needs a reason"),
        ("tdist.*=x", "no wildcards"),
        ("*=x", "no wildcards"),
        ("tdist.=x", "no wildcards"),
        ("tdist=x", "no wildcards"),
        ("=x", "no wildcards"),
        ("hazard=x", "there is no finding 'hazard'"),
    ],
)
def test_a_mistake_is_refused(text, told):
    with pytest.raises(UsageError) as refused:
        parse_suppressions([text])
    assert told in str(refused.value)


def test_an_id_twice_is_refused():
    with pytest.raises(UsageError, match=r"names tdist\.race twice"):
        parse_suppressions(["race=a", "tdist.race=b"])


@pytest.mark.parametrize("suppress", [{"race": ""}, {"race": 1}, ["race"], {"": "x"}])
def test_a_declaration_needs_reasons(suppress):
    with pytest.raises(UsageError, match="finding ids, each with the reason"):
        declare(suppress=suppress)


def test_a_declared_id_that_does_not_exist_is_refused_with_the_operators_name():
    with pytest.raises(UsageError, match=r"suppress=… of operator op: there is no finding 'rase'"):
        suppressions_of(declare(suppress={"rase": "x"}), Options("op"))


def test_the_command_line_is_said_before_the_declaration():
    found = suppressions_of(declare(suppress={"race": "a", "canary": "b"}), Options("op", suppress={"tdist.race": "c"}))
    assert [(one.id, one.reason) for one in found] == [("tdist.race", "c"), ("tdist.canary", "b")]
    assert found[0].origin == "--suppress" and "operator op" in found[1].origin


def test_a_suppressed_finding_keeps_what_it_was_and_fails_nothing():
    (accepted,) = accept([race()], [Suppression("tdist.race", "why", "--suppress")])
    assert not accepted.fails("ascend") and accepted.key == race().key
    assert accepted.data["suppressed_severity"] == "error" and accepted.data["suppressed"] == "why"
    assert accept([race()], [Suppression("tdist.canary", "why", "--suppress")]) == (race(),)


def test_one_that_nothing_needs_is_found():
    given = [Suppression("tdist.race", "a", "x"), Suppression("tdist.canary", "b", "x")]
    assert [one.id for one in unused(given, [race()])] == ["tdist.canary"]


def test_a_report_shows_reasons_and_what_was_not_needed():
    reasons = {"tdist.race": "a known one", "tdist.canary": "old"}
    options = Options(SPEC, nranks=2, sync="barrier", search=False, suppress=reasons)
    report = verify(load_operator(SPEC), options, in_process=True)
    out = io.StringIO()
    render_report(report, Console(file=out, width=200, color_system=None))
    text = out.getvalue()
    assert report.passed and {"tdist.race"} <= {finding.kind for finding in report.log}
    assert "suppressed by --suppress: a known one" in text
    assert "error, did not decide: data race" in text and "(suppressed: a known one)" in text
    assert "unused suppression of tdist.canary (--suppress)" in text
    value = report_json(report)
    assert {"id": "tdist.race", "reason": "a known one", "origin": "--suppress"} in value["suppressions"]
    assert "tdist.canary" in value["unused_suppressions"]
    assert not verify(
        load_operator(SPEC), Options(SPEC, nranks=2, sync="barrier", search=False), in_process=True
    ).passed
