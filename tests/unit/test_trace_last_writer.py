"""Who wrote an element: through casts, turns, masks and pushes to peers, to inputs, host writes or computations."""

from __future__ import annotations

import inspect

import pytest
import torch
import trace_kit
from trace_kit import traced

from tdist.errors import UsageError
from tdist.platforms.sim.tracing import Tracer
from tdist.platforms.sim.world import World
from tdist.trace import Element, last_writers, parse_element


def line_of(function, text: str) -> int:
    lines, first = inspect.getsourcelines(getattr(function, "fn", function))
    return first + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("text", "element"),
    [
        ("out[3,5]", Element("out", (3, 5))),
        ("c[17]", Element("c", (17,))),
        ("c[]", Element("c", ())),
        (" out[ 3 , 5 ]@2", Element("out", (3, 5), 2)),
        ("out[3]@2@1", Element("out", (3,), 2, 1)),
        ("größe[3]", Element("größe", (3,))),
        ("out[3]@launch=1", Element("out", (3,), 0, 1)),
        ("out[3]@launch=1@rank=2", Element("out", (3,), 2, 1)),
    ],
)
def test_spellings(text: str, element: Element) -> None:
    assert parse_element(text) == element


@pytest.mark.parametrize(
    "text",
    [
        *("", "out", "out[", "out[1", "out[-1]", "out[1,]", "out[a]", "out[1]@", "out[1]@x", "out[1]@1@2@3", "3[1]"),
        *(
            "out[1]@rank=1@rank=2",
            "out[1]@1@rank=2",
            "out[1][2]",
            "out[1e3]",
            "out[" + "9" * 30 + "]",
            "out[1]\n@2@",
            "out[٣]",
        ),
    ],
)
def test_bad_spellings_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"--trace-element .* names no element") as caught:
        parse_element(text)
    assert str(caught.value).count("\n") == 0


def test_a_copy_is_followed_through_casts_turns_and_peers_to_the_input() -> None:
    trace, findings, (outs, *_) = traced("shift")
    flat = 9  # out[9] of rank 0 is x[9 % 4, 9 // 4] of rank 2
    history = last_writers(trace, f"out[{flat}]", findings)
    assert [link.kind for link in history.links] == ["store", "store", "input"]
    last, push, given = history.links
    kernel = trace_kit.shift_kernel
    assert last.place.endswith(f"trace_kit.py:{line_of(kernel, 'tl.store(out_ptr')}")
    assert push.place.endswith(f"trace_kit.py:{line_of(kernel, 'tl.store(dl.symm_at')}")
    assert push.element == "box_ptr[2, 1] of rank 0"
    assert push.loaded_at.endswith(f":{line_of(kernel, 'got = tl.load')}")
    assert "rank 2, launch 0, program 0, into rank 0's memory" in push.text
    assert given.element == "x[1, 2] of rank 2"
    assert float(given.value) == float(push.value) == float(last.value) == outs[0][flat] == 210.0
    assert not history.operation and not history.notes


@pytest.mark.parametrize("flat", range(24))
@pytest.mark.parametrize("rank", range(3))
def test_every_element_leads_to_the_input_that_it_equals(flat: int, rank: int) -> None:
    trace, _, results = traced("shift", launches=2)
    for launch in range(2):
        given = last_writers(trace, Element("out", (flat,), rank, launch)).links[-1]
        assert given.kind == "input"
        assert given.element == f"x[{flat % 4}, {flat // 4}] of rank {(rank - 1) % 3}"
        value = float(given.value)
        assert float(torch.tensor(value).half()) == results[rank][launch][flat]


@pytest.mark.parametrize(("flat", "says"), [(25, "from constant 7.0"), (31, "host's memory"), (30, "host's memory")])
def test_masks_and_constants(flat: int, says: str) -> None:
    trace, _, _ = traced("shift")
    history = last_writers(trace, f"out[{flat}]")
    if says == "from constant 7.0":
        assert history.operation == "constant 7.0" and history.links[0].value == "7.0"
        assert says in str(history)
    else:  # the mask left it: what the host had there
        assert history.links[0].kind == "input" and history.links[0].value == "-1.0"


@pytest.mark.parametrize("k", range(16))
def test_gathers_scatters_rounding_and_choices_between_loads(k: int) -> None:
    trace, _, _ = traced("pick", nranks=1)
    history = last_writers(trace, f"out[{k}]")
    lane = 15 - k
    if lane % 2 and lane >= 12:
        assert history.operation == "a masked-off lane, constant 3.0"
        assert [link.value for link in history.links] == ["3.0"]
        return
    assert [link.kind for link in history.links] == ["store", "input"]
    expected = f"b[{lane}] of rank 0" if lane % 2 else f"a[{k}] of rank 0"
    assert history.links[-1].element == expected
    assert not history.notes


def test_a_computation_names_its_operands_and_their_writers() -> None:
    trace, _, _ = traced("product", nranks=1)
    history = last_writers(trace, "c[3,5]")
    (link,) = history.links
    assert (link.kind, link.value) == ("store", "32.0")
    assert history.operation.startswith("dot at ") and "trace_kit.py" in history.operation
    a, b = history.operands
    assert a.elements.startswith("a[3, 0..31] of rank 0, loaded at ")
    assert b.elements.startswith("b[0..31, 5] of rank 0, loaded at ")
    assert a.writers == (("input: memory of rank 0's host", 32, ""),)


def test_a_race_that_other_ranks_showed_is_told_as_theirs() -> None:
    trace, findings, _ = traced("race", nranks=3)
    history = last_writers(trace, "out[3]", findings)
    assert history.operation.startswith("addi at ") and history.operation.endswith(" from constant 5, rank")
    (told,) = history.links[0].unordered
    assert told.startswith("a race was found at this line, of the store of rank 0, program 0 at ")
    assert "computed by addi" in str(history)


def test_a_reduction_names_the_row_and_the_program_that_wrote_it() -> None:
    trace, _, _ = traced("product", nranks=1)
    history = last_writers(trace, "sums[7]")
    assert history.operation.startswith("reduce at ")
    (operand,) = history.operands
    assert operand.elements.startswith("c[7, 0..15] of rank 0")
    ((who, count, source),) = operand.writers
    assert (count, source) == (16, "")
    assert who.startswith("store by rank 0, launch 0, program 0 at ")


def test_a_host_write_between_launches_is_the_last_writer() -> None:
    with World(nranks=1, heap_bytes=1 << 20, trace=True) as world:
        world.run(_rewritten)
        trace = world.trace
    assert trace is not None
    touched, copied = (last_writers(trace, f"{name}[2]").links for name in ("out", "copy"))
    assert (touched[0].kind, touched[0].value) == ("host write", "4.0")
    assert touched[0].place.endswith("test_trace_last_writer.py:" + str(line_of(_rewritten, "out[2] = 4.0")))
    assert [link.kind for link in copied] == ["host copy", "host write"]


def _rewritten(rt):
    x, out = torch.ones(16, 16), torch.zeros(16)
    copy = rt.tensor(rt.malloc(64, name="copy"), (16,), torch.float32)
    trace_kit.row_sums_kernel[(1,)](x, out, 16)
    out[2] = 4.0
    copy.copy_(out)
    rt.describe(out, "out", "output", 0)
    rt.describe(copy, "copy", "output", 0)
    rt.synchronize()


def test_memory_that_nobody_wrote_is_said_to_be_poison() -> None:
    with World(nranks=1, heap_bytes=1 << 20, trace=True) as world:
        world.run(_untouched)
        trace = world.trace
    assert trace is not None
    text = str(last_writers(trace, "out[2]"))
    assert "an output that nobody wrote" in text and "poison" in text


def _untouched(rt):
    rt.describe(rt.tensor(rt.malloc(64, name="out"), (16,), torch.float32), "out", "output", 0)


def test_writers_that_nothing_orders_are_shown_beside_each_other() -> None:
    trace, findings, _ = traced("race", nranks=2)
    (link,) = last_writers(trace, "out[3]", findings).links
    assert link.value == "6"
    (other,) = link.unordered
    assert other.startswith("unordered with the store of rank 0, program 0 at ") and other.endswith(" (race)")
    assert other in str(last_writers(trace, "out[3]", findings))
    assert not last_writers(trace, "out[3]").links[0].unordered


@pytest.mark.parametrize(
    ("element", "message"),
    [
        ("put[1]", r"no output 'put' \(did you mean 'out'\?\); there are: out"),
        ("out[1]@3", "no rank 3; ranks are 0 to 2"),
        ("out[1]@0@1", "no launch 1; launches are 0 to 0"),
        ("out[32]", r"out\[32\] is outside of out, whose shape is \[32\]"),
        ("out[1,1]", r"out\[1, 1\] is outside of out, whose shape is \[32\]"),
    ],
)
def test_elements_that_there_are_not(element: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        last_writers(traced("shift")[0], element)


def test_an_output_that_is_no_device_memory_is_not_taken_for_one() -> None:
    with pytest.raises(UsageError, match="no output 'unused'"):
        last_writers(traced("product", nranks=1)[0], "unused[0]")


def test_a_truncated_trace_says_that_later_writers_are_not_known() -> None:
    with World(nranks=2, heap_bytes=1 << 20, trace=True) as world:
        world.engine.tracer = Tracer(world.engine, max_events=14)
        world.run(trace_kit.shift)
        trace = world.trace
    assert trace is not None
    assert "trace truncated" in str(last_writers(trace, "out[3]"))
