"""Protocol maps: valid XML, every signal in it, no text over another, equal bytes for equal traces."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree

import pytest
from trace_kit import HOSTS, traced

from tdist.platforms.sim.world import World
from tdist.trace import Trace, protocol_map
from tdist.trace.protocol_map import groups_of
from tdist.trace.svg import CHAR_WIDTH, LINE_HEIGHT, Canvas
from tdist.verify.loader import load_operator
from tdist.verify.rank_job import Job, run_operator

_ASCENT = 13


def texts(drawing: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(drawing).iter() if element.tag.endswith("text")]


def overlaps(drawing: str) -> list[tuple[str, str]]:
    """Pairs of texts whose rectangles share a pixel."""
    boxes = []
    for element in ElementTree.fromstring(drawing).iter():
        if element.tag.endswith("}text"):
            x, y, text = int(element.attrib["x"]), int(element.attrib["y"]) - _ASCENT, element.text or ""
            assert int(element.attrib["textLength"]) == CHAR_WIDTH * len(text)
            boxes.append((x, y, x + CHAR_WIDTH * len(text), y + LINE_HEIGHT, text))
    return [
        (a[4], b[4])
        for a, b in itertools.combinations(boxes, 2)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]


def outside(drawing: str) -> list[str]:
    """Texts that reach over the edge of the page."""
    root = ElementTree.fromstring(drawing)
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    found = [e for e in root.iter() if e.tag.endswith("}text")]
    return [
        e.text or ""
        for e in found
        if int(e.attrib["x"]) + int(e.attrib["textLength"]) > width or int(e.attrib["y"]) > height
    ]


def operator_trace(name: str, sync: str, nranks: int = 4) -> Trace:
    operator = load_operator(name)
    shape = {"m": 64, "n": 64} | ({"k": 64} if "k" in operator.shape else {})
    case = operator.case(dtype="fp16", nranks=nranks, shape=shape, sync=sync)
    with World(nranks=nranks, heap_bytes=1 << 24, trace=True) as world:
        world.run(run_operator, operator, Job(name, case, 3, judge=False))
        assert world.trace is not None
        return world.trace


@pytest.mark.parametrize("name", ["all_gather", "ag_gemm"])
@pytest.mark.parametrize("sync", ["fine", "barrier"])
def test_the_operators_maps_are_readable(name: str, sync: str) -> None:
    trace = operator_trace(name, sync)
    drawing = protocol_map(trace)
    assert not overlaps(drawing) and not outside(drawing)
    shown = "\n".join(texts(drawing))
    wanted = {
        ("all_gather", "fine"): [
            "ready_ptr: 16 slots on ranks 0..3",
            "notify set, all_gather.py:",
            "wait, all_gather.py:",
        ],
        ("ag_gemm", "fine"): ["ready_ptr: ", "credit_ptr: ", "notify set, ag_gemm.py:", "both vector cores"],
        ("all_gather", "barrier"): ["barrier_all_vec: rounds 0..5", "ranks 0..3"],
        ("ag_gemm", "barrier"): ["barrier_all: rounds 0..", "ranks 0..3"],
    }
    for part in wanted[name, sync]:
        assert part in shown
    assert protocol_map(operator_trace(name, sync)) == drawing


@pytest.mark.parametrize("name", ["all_gather", "ag_gemm"])
def test_every_signal_word_is_in_one_group(name: str) -> None:
    trace = operator_trace(name, "fine")
    signals = [event for event in trace.events if event.kind == "notify"]
    words = {(event.data["m"], event.data["at"]) for event in signals}
    groups = groups_of(trace)
    slots = [(slot.memory, slot.at) for group in groups for slot in group.slots]
    assert len(slots) == len(set(slots)) and words <= set(slots)
    assert sum(len(group.writes) for group in groups) == len(signals)
    assert len(groups) <= 4  # alike slots stand together


def test_values_are_counted_by_epoch() -> None:
    shown = texts(protocol_map(traced("shift", launches=3)[0]))
    at = shown.index("value")
    assert shown[at : at + 3] == ["value", "signalled", "waited for"]
    assert shown[at + 3 : at + 12] == ["1", "3", "3", "2", "3", "3", "3", "3", "3"]


def test_what_has_no_partner_stands_out() -> None:
    trace = traced("stuck", nranks=2)[0]
    drawing = protocol_map(trace)
    shown = texts(drawing)
    assert "nobody waits for it" in shown and "nobody signals it" in shown and "1 never returned" in shown
    assert not overlaps(drawing)


def test_a_run_without_protocol_says_so() -> None:
    drawing = protocol_map(traced("product", nranks=1)[0])
    assert "no signal, wait or barrier in this run" in texts(drawing)


@pytest.mark.parametrize("host", [*HOSTS])
def test_equal_traces_give_equal_bytes(host: str) -> None:
    with World(nranks=3, heap_bytes=1 << 20, trace=True) as world:
        world.run(HOSTS[host])
        assert world.trace is not None
        assert protocol_map(world.trace) == protocol_map(traced(host)[0])


def test_text_is_escaped() -> None:
    canvas = Canvas("<&>")
    canvas.text(0, 0, "a<b & \x00\ud800")
    assert texts(canvas.to_text()) == ["a<b & \ufffd\ufffd"]


def test_the_overlap_check_sees_overlaps() -> None:
    canvas = Canvas("")
    canvas.text(0, 0, "one")
    canvas.text(10, 5, "two")
    assert overlaps(canvas.to_text()) == [("one", "two")]
