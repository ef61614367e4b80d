"""The walk to a fixpoint against brute force, on random small programs of pipes, flags, loops and branches."""

from __future__ import annotations

import random

import pytest
from order_programs import (
    Barrier,
    Fence,
    If,
    Load,
    Loop,
    Program,
    ScalarLoad,
    ScalarStore,
    Set,
    Signal,
    Statement,
    Store,
    Vector,
    Wait,
    final_module_of,
    unordered,
)

from tdist.ir.location import loc_of
from tdist.platforms.ascend.compiled.order import Fault, check_order

SLOTS = range(3)


def checked(program: Program) -> set[tuple[str, int, int]]:
    """What the check says, as `unordered` does; every flag of the programs here pairs up."""
    found: set[tuple[str, int, int]] = set()
    for fault in check_order(final_module_of(program)).faults:
        assert fault.fault in (Fault.PIPES, Fault.RELEASE), fault
        assert fault.first is not None
        lines = [loc_of(event.op) for event in (fault.first, fault.second)]
        if all(lines):  # conditions of branches are loads without a line
            found.add((fault.fault.value, lines[0].line, lines[1].line))  # pyright: ignore[reportOptionalMemberAccess]
    return found


def _simple(rng: random.Random) -> list[Statement]:
    slot, other = rng.choice(SLOTS), rng.choice(SLOTS)
    kinds: list[list[Statement]] = [
        [Load(slot)],
        [Store(slot)],
        [Vector(slot, other)],
        [ScalarLoad(slot)],
        [ScalarStore(slot)],
        [Signal()],
        [Barrier(rng.choice(("V", "MTE2", "MTE3", "ALL")))],
        [Fence()],
    ]
    return rng.choices(kinds, weights=(4, 4, 4, 1, 1, 2, 2, 0.4))[0]


def _flag(rng: random.Random, used: set[tuple[str, str]]) -> tuple[str, str] | None:
    pipes = [(a, b) for a in ("MTE2", "V", "MTE3", "S") for b in ("MTE2", "V", "MTE3", "S") if a != b]
    free = [pair for pair in pipes if pair not in used]
    return rng.choice(free) if free else None


def _block(rng: random.Random, length: int, depth: int, used: set[tuple[str, str]]) -> list[Statement]:
    block: list[Statement] = []
    for _ in range(length):
        what = rng.random()
        if what < 0.25 and (pipes := _flag(rng, used)) is not None:
            inside = _block(rng, rng.randrange(3), 0, used | {pipes})
            block += [Set(*pipes), *inside, Wait(*pipes)]
        elif what < 0.35 and depth:
            block += _loop(rng, depth, used)
        elif what < 0.45 and depth:
            sides = [_block(rng, rng.randrange(1, 3), depth - 1, used) for _ in range(rng.choice((1, 2)))]
            block.append(If(*map(tuple, sides)))
        else:
            block += _simple(rng)
    return block


def _loop(rng: random.Random, depth: int, used: set[tuple[str, str]]) -> list[Statement]:
    """A loop, perhaps with a flag that each turn waits for and sets again, up before and behind the loop."""
    pipes = _flag(rng, used) if rng.random() < 0.5 else None
    if pipes is None:
        return [Loop(tuple(_block(rng, rng.randrange(1, 4), depth - 1, used)))]
    body = _block(rng, rng.randrange(1, 4), 0, used | {pipes})
    cut, end = sorted((rng.randrange(len(body) + 1), rng.randrange(len(body) + 1)))
    turn = [*body[:cut], Wait(*pipes), *body[cut:end], Set(*pipes), *body[end:]]
    return [Set(*pipes), Loop(tuple(turn)), Wait(*pipes)]


@pytest.mark.parametrize("seed", range(150))
def test_without_branches_the_two_agree(seed: int) -> None:
    rng = random.Random(seed)
    program = _block(rng, rng.randrange(3, 12), 0, set())
    assert checked(program) == unordered(program), program


@pytest.mark.parametrize("seed", range(150))
def test_with_loops_and_branches_nothing_is_missed(seed: int) -> None:
    rng = random.Random(10_000 + seed)
    program = _block(rng, rng.randrange(2, 5), 1, set())
    assert checked(program) >= unordered(program), program


def test_little_is_said_beyond_what_some_run_shows() -> None:
    """Where paths join, what is known is joined piece by piece: a rare finding belongs to no single run."""
    said = shown = 0
    for seed in range(150):
        rng = random.Random(10_000 + seed)
        program = _block(rng, rng.randrange(2, 5), 1, set())
        said += len(checked(program))
        shown += len(unordered(program))
    print(f"{said} findings of the check, {shown} of brute force")
    assert shown > 300
    assert said - shown <= 0.02 * shown


NEEDS_THE_TRANSITIVE = [Load(0), Set("MTE2", "V"), Wait("MTE2", "V"), Vector(0, 1), Set("V", "MTE3"), Wait("V", "MTE3")]


def test_order_goes_through_a_third_pipe() -> None:
    """MTE3 has not waited for MTE2 itself, but for V, which had."""
    assert checked([*NEEDS_THE_TRANSITIVE, Store(0)]) == set()
    without = [statement for statement in NEEDS_THE_TRANSITIVE if statement != Wait("MTE2", "V")]
    without.remove(Set("MTE2", "V"))
    assert checked([*without, Store(0)]) == unordered([*without, Store(0)]) == {("pipes", 1, 2), ("pipes", 1, 5)}


def test_a_flag_says_nothing_of_what_comes_behind_it() -> None:
    program = [Set("MTE2", "V"), Load(0), Wait("MTE2", "V"), Vector(0, 1)]
    assert checked(program) == {("pipes", 2, 4)}


def test_what_a_loop_leaves_in_flight_meets_its_next_turn() -> None:
    turn = (Load(0), Set("MTE2", "MTE3"), Wait("MTE2", "MTE3"), Store(0))
    assert checked([Loop(turn)]) == {("pipes", 1, 1), ("pipes", 4, 1), ("pipes", 4, 4)}
    guarded = (Wait("MTE3", "MTE2"), *turn, Set("MTE3", "MTE2"))
    assert checked([Set("MTE3", "MTE2"), Loop(guarded), Wait("MTE3", "MTE2")]) == set()
    for missing in (0, 2, 3, 5):  # a wait without its set, a set without its wait
        broken = tuple(statement for index, statement in enumerate(guarded) if index != missing)
        report = check_order(final_module_of([Set("MTE3", "MTE2"), Loop(broken), Wait("MTE3", "MTE2")]))
        assert {fault.fault for fault in report.faults} & {Fault.NEVER_SET, Fault.SET_TWICE, Fault.LEFT_UP}
