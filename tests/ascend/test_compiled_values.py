"""What is known of values in a final module: affine maps, sums, choices, the bytes that a value points to."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from order_kit import ordinary
from vendor_oracle import needs_adapter, needs_compiler
from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import CallOp

from tdist.findings import KINDS
from tdist.platforms.ascend.assumptions import ASSUMPTIONS
from tdist.platforms.ascend.compiled.affine import AffineMap, read_map
from tdist.platforms.ascend.compiled.events import Access, function_events
from tdist.platforms.ascend.compiled.generic_text import VerbatimAttr
from tdist.platforms.ascend.compiled.linear import Linear
from tdist.platforms.ascend.compiled.memory import GM, Memory, Region
from tdist.platforms.ascend.compiled.values import Values

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "compiled-code.md"


def affine(text: str) -> AffineMap:
    found = read_map(VerbatimAttr(f"affine_map<{text}>"))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "operands", "results"),
    [
        ("()[s0, s1] -> (s0 * s1 + 3)", (4, 5), (23,)),
        ("()[s0] -> (s0 floordiv 64)", (-1,), (-1,)),
        ("()[s0, s1] -> (s0 - s1 mod s0, 0)", (7, 10), (4, 0)),
        ("(d0)[s0] -> ((-d0 + s0) ceildiv 32, 4)", (32, 97), (3, 4)),
        ("()[s0, s1] -> (s0 * s1)", (0, None), (0,)),
        ("()[s0, s1] -> (s0 + s1, s0)", (1, None), (None, 1)),
        ("()[s0, s1] -> (s0 floordiv s1)", (1, 0), (None,)),
    ],
)
def test_maps_are_evaluated_as_mlir_means_them(text: str, operands: tuple, results: tuple) -> None:
    assert affine(text).evaluate(operands) == results


@pytest.mark.parametrize(
    ("text", "modulus"),
    [
        ("()[s0] -> (s0 mod 2)", 2),
        ("()[s0, s1, s2] -> (((s0 - s1) floordiv s2) mod 2)", 2),
        ("()[s0] -> (s0 - ((s0 - 1) floordiv 2) * 2 - 1)", 2),
        ("()[s0] -> (s0 - (s0 floordiv 4) * 4)", 4),
        ("()[s0] -> (s0 - (s0 floordiv 4) * 2)", None),
        ("()[s0] -> (s0 - ((s0 - 1) floordiv 2) * 2)", None),
        ("()[s0] -> (s0 mod 2, s0)", None),
        ("()[s0] -> (s0 + 2)", None),
    ],
)
def test_a_remainder_is_recognised_in_both_spellings(text: str, modulus: int | None) -> None:
    map_ = affine(text)
    assert map_.modulus == modulus
    if modulus is not None:
        values = {map_.evaluate([number] * len(map_.names))[0] for number in range(1, 30)}
        assert values <= set(range(modulus))


def test_a_map_that_is_none_is_not_read() -> None:
    assert read_map(StringAttr("no map")) is None


def test_sums_cancel_and_are_the_same_in_any_order() -> None:
    x, y = Linear.unknown("x"), Linear.unknown("y")
    assert x.plus(y).times(2).plus(Linear.of(1)) == y.times(2).plus(x.times(2)).plus(Linear.of(1))
    assert x.plus(x.times(-1)) == Linear.of(0)
    assert affine("()[s0, s1] -> (s0 * 16 + s1 * 4 + 2)").linear([x, y])[0] == x.times(16).plus(y.times(4)).plus(
        Linear.of(2)
    )
    assert affine("()[s0, s1] -> (s0 * s1)").linear([x, y]) == (None,)


def region(low: int, high: int | None, root=("argument", 3), terms=(), remote: bool = False, space: str = GM) -> Region:
    return Region(space, root, remote, terms, low, high)


@pytest.mark.parametrize(
    ("a", "b", "overlap"),
    [
        (region(0, 4), region(4, 8), False),
        (region(0, 5), region(4, 8), True),
        (region(0, None), region(4, 8), True),
        (region(0, 4), region(0, 4, root=("argument", 4)), False),
        (region(0, 4), region(0, 4, remote=True), False),
        (region(0, 4), region(100, 104, terms=(("x", 1),)), True),
        (region(0, 4, terms=(("x", 1),)), region(4, 8, terms=(("x", 1),)), False),
        (region(0, 4), region(8, 12, root=None), True),
        (region(0, 4, root=None, space="ub"), region(4, 8, root=None, space="ub"), False),
        (region(0, 4, root=None, space="ub"), region(0, 4, root=None, space="cbuf"), False),
    ],
)
def test_regions_overlap_unless_it_is_certain_that_they_do_not(a: Region, b: Region, overlap: bool) -> None:
    assert a.overlaps(b) is overlap
    assert b.overlaps(a) is overlap


@needs_adapter
@needs_compiler
def test_buffers_of_the_two_parities_are_told_apart() -> None:
    function = ordinary("vector_add_strided").functions[0]
    values = Values(function)
    memory = Memory(values)
    (choices,) = (chosen for block, chosen in values.choices.items() if block is not function.op.body.blocks[0])
    parity, condition = choices  # and the condition that two branches of the loop share
    assert parity.values == condition.values == range(2)
    events = [event for event in function_events(function) if isinstance(event, Access)]
    add = next(event for event in events if event.call is not None and event.call.callee.startswith("vadd"))
    target = add.touches[2].value
    either = memory.regions(target, {})
    chosen = [memory.regions(target, {parity.key: value}) for value in parity.values]
    assert len(either) == 2 and sorted(map(repr, either)) == sorted(repr(only) for (only,) in chosen)
    assert not chosen[0][0].overlaps(chosen[1][0])


@needs_adapter
@needs_compiler
def test_slots_of_the_workspace_are_told_apart_in_both_halves() -> None:
    """Attention hands three kinds of tiles over the workspace, each at its own offset from the program's part."""
    module = ordinary("attention")
    found: set[tuple[int, int | None]] = set()
    for function in module.functions:
        memory = Memory(Values(function))
        for op in function.ops:
            for value in op.operands if isinstance(op, CallOp) else ():
                if "address_space<gm>" in str(value.type):
                    workspace = [r for r in memory.regions(value, {}) if r.root == ("argument", 2)]
                    assert all([name for name, _ in r.terms] == ["hivm.hir.get_block_idx"] for r in workspace)
                    found |= {(r.low, r.high) for r in workspace}
    slots = sorted(found)
    assert len({low for low, _ in slots}) == 3
    assert all(a[1] is not None and (a[0] == b[0] or a[1] <= b[0]) for a, b in itertools.pairwise(slots))


def test_the_document_names_every_kind_and_assumption() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    ours = ("undrained", "cross-core", "stale-cache", "pipe-order", "unpaired", "not-understood")
    kinds = [kind for kind in KINDS if kind.startswith("tdist.compiled.") and kind.split(".")[2].startswith(ours)]
    assert len(kinds) == 7
    for name in (*kinds, *ASSUMPTIONS):
        assert f"`{name}`" in text, name
    for assumption in ASSUMPTIONS.values():
        assert assumption.text in text and assumption.source in text, assumption.id
