"""Chrome JSON against the Trace Event Format: what each phase needs, arrows that pair, slices that nest."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from trace_kit import HOSTS, traced

from tdist.platforms.sim.tracing import Tracer
from tdist.platforms.sim.world import World
from tdist.trace import chrome, chrome_text


def events_of(host: str, **fields: Any) -> list[dict[str, Any]]:
    return chrome(traced(host, **fields)[0])["traceEvents"]


@pytest.mark.parametrize("host", [*HOSTS])
def test_every_event_has_what_its_phase_needs(host: str) -> None:
    for event in events_of(host):
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["ts"], int)
        assert event["ph"] in ("X", "s", "f", "M") and event["name"]
        if event["ph"] == "X":
            assert event["dur"] >= 1 and event["cat"] and isinstance(event["args"], dict)
        if event["ph"] in "sf":
            assert isinstance(event["id"], int) and event["cat"] == "flow"
        if event["ph"] == "f":
            assert event["bp"] == "e"


@pytest.mark.parametrize("host", [*HOSTS])
def test_processes_and_threads_are_named_once(host: str) -> None:
    events = events_of(host)
    named = Counter((e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M")
    assert set(named.values()) == {1}
    for event in events:
        if event["ph"] != "M":
            assert ("process_name", event["pid"], 0) in named
            assert ("thread_name", event["pid"], event["tid"]) in named
    ranks = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert ranks == ["rank 0", "rank 1", "rank 2"]


@pytest.mark.parametrize("host", [*HOSTS])
def test_slices_of_a_thread_nest(host: str) -> None:
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events_of(host):
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for slices in threads.values():
        open_until: list[int] = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


@pytest.mark.parametrize("host", ["shift", "stuck"])
def test_arrows_pair_by_id_and_lie_in_slices(host: str) -> None:
    events = events_of(host)
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and starts
    assert len(starts) + len(ends) == sum(e["ph"] in "sf" for e in events)
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] < end["ts"] and (start["name"], start["cat"]) == (end["name"], end["cat"])
        for side, slices in ((start, ("notify", "barrier_all")), (end, ("wait", "barrier_all"))):
            assert any(
                e["ph"] == "X"
                and e["name"] in slices
                and (e["pid"], e["tid"]) == (side["pid"], side["tid"])
                and e["ts"] <= side["ts"] < e["ts"] + e["dur"]
                for e in events
            )


def test_each_wait_has_an_arrow_from_its_notify() -> None:
    events = events_of("shift", launches=2)
    waits = [e for e in events if e["name"] == "wait"]
    arrows = [e for e in events if e["ph"] == "f" and e["name"] == "signal"]
    assert len(waits) == len(arrows) == 6


def test_slices_say_what_happened_where() -> None:
    events = events_of("shift")
    first = {name: next(e for e in events if e["name"] == name and e["ph"] == "X") for name in ("load", "store")}
    assert first["load"]["args"]["tensor"] == "x_ptr[0..3, 0..7]"
    assert first["load"]["args"]["bytes"] == 128
    assert first["store"]["args"]["tensor"] == "box_ptr[0..7, 0..3]"
    assert first["store"]["args"]["remote"] == "rank 1"
    assert "trace_kit.py:" in first["store"]["args"]["at"]
    masked = [e for e in events if e["name"] == "store" and e["args"]["tensor"].startswith("out_ptr")]
    assert {e["args"]["bytes"] for e in masked} == {4 * 30}
    notify = next(e for e in events if e["name"] == "notify")
    assert notify["args"] | {"op": "set", "value": 1, "before": 0, "after": 1} == notify["args"]
    assert notify["args"]["tensor"].startswith("sig_ptr[0] of rank ")


def test_what_never_ended_reaches_to_the_end_and_says_so() -> None:
    trace = traced("stuck", nranks=2)[0]
    events = chrome(trace)["traceEvents"]
    (wait,) = [e for e in events if e["name"] == "wait"]
    assert wait["args"]["unfinished"] and wait["ts"] + wait["dur"] == len(trace.events) + 1
    assert [e["args"].get("unfinished") for e in events if e.get("cat") == "launch"].count(True) >= 2


def test_equal_traces_give_equal_bytes_that_are_strict_json() -> None:
    text = chrome_text(traced("shift")[0])
    with World(nranks=3, heap_bytes=1 << 20, trace=True) as world:
        world.run(HOSTS["shift"])
        assert world.trace is not None
        again = chrome_text(world.trace)
    assert text == again
    assert json.loads(text, parse_constant=lambda constant: pytest.fail(constant))["traceEvents"]


@pytest.mark.parametrize("kept", [0, 7, 13, 20, 27])
def test_a_truncated_trace_is_still_well_formed_and_says_so(kept: int) -> None:
    with World(nranks=2, heap_bytes=1 << 20, trace=True) as world:
        world.engine.tracer = Tracer(world.engine, max_events=kept)
        world.run(HOSTS["shift"])
        trace = world.trace
    assert trace is not None
    made = chrome(trace)
    assert f"{trace.dropped} later events" in made["otherData"]["truncated"]
    phases = Counter(e["ph"] for e in made["traceEvents"])
    assert phases["s"] == phases["f"]
