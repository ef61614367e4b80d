"""Exploration with symbolic tiles finds what exploration with all tiles finds, in as many schedules and outcomes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from explore_kit import Dice, brute_force, recorded
from fault_runs import all_pairs
from test_explore_rerun import spec_of

import tdist.language as dl
from tdist.platforms.sim.explore.exhaustive import Exploration, Limits, explore, finding_key
from tdist.platforms.sim.explore.recording import NotRecordable, Recording, RecordingWorld
from tdist.platforms.sim.explore.rerun import replica
from tdist.platforms.sim.symbolic_access import TilesNeeded, digest_tile, mark, need, pattern
from tdist.verify.rank_job import Job
from tdist.verify.search.explore import Rerunner, explore_job
from tdist.verify.worlds import RunSpec

OPERATORS = [
    ("all_gather", {"m": 6, "n": 16}, "fine", 3),
    ("all_gather", {"m": 6, "n": 16}, "barrier", 3),
    ("ag_gemm", {"m": 32, "n": 32, "k": 64}, "fine", 2),
    ("ag_gemm", {"m": 32, "n": 32, "k": 64}, "barrier", 2),
    *((f"broken_gather_{name}", {"m": 2, "n": 16}, "fine", 2) for name in ("wait", "exit", "fence", "peer", "token")),
    ("broken_gemm_credit", {"m": 96, "n": 32, "k": 48}, "fine", 2),
    ("broken_gemm_mask", {"m": 96, "n": 32, "k": 48}, "fine", 2),
]
PAIRS = all_pairs()
SOME = range(0, len(PAIRS), 12)
"""All of them take minutes."""


def told(got: Exploration) -> tuple:
    """What of an exploration may not depend on how tiles are computed."""
    findings = sorted(map(str, {finding_key(seen.finding) for seen in got.findings}))
    return got.complete, got.runs, got.pruned, got.pending, got.limit, sorted(got.outcomes), findings


def same(recording: Recording, **world) -> Exploration:
    """Explore both ways and compare; the one with symbolic tiles."""
    concrete, symbolic = (explore(recording, Limits(runs=60), symbolic=way, **world) for way in (False, True))
    assert told(symbolic) == told(concrete)
    assert concrete.tiles == "concrete"
    return symbolic


@pytest.mark.parametrize(("name", "shape", "sync", "nranks"), OPERATORS, ids=[f"{o[0]}-{o[2]}" for o in OPERATORS])
def test_operators_and_faults(name, shape, sync, nranks):
    operator, spec = spec_of(name, shape, sync, nranks, launches=1 if name.startswith("broken_gather") else 2)
    rerunner = Rerunner(operator)
    concrete, symbolic = (explore_job(rerunner, spec, Limits(runs=20), symbolic=way) for way in (False, True))
    assert told(symbolic) == told(concrete)
    assert symbolic.tiles == "symbolic"


@pytest.mark.parametrize("number", SOME, ids=[PAIRS[number].name for number in SOME])
def test_pairs_of_the_corpus(number):
    pair = PAIRS[number]
    for operator in (pair.faulty, pair.twin):
        case = operator.case(dtype="fp32", nranks=pair.nranks, shape=dict(operator.shape), seed=0)
        job = Job(operator.name, case, 2 if operator.relaunchable else 1, judge=False, policy="exact")
        spec = RunSpec(job, {"heap_bytes": 1 << 22, "profile": pair.profile})
        rerunner = Rerunner(operator)
        concrete, symbolic = (explored(rerunner, spec, way) for way in (False, True))
        if isinstance(concrete, str):
            assert symbolic == concrete
            continue
        assert not isinstance(symbolic, str)
        assert told(symbolic) == told(concrete)
        assert symbolic.tiles.startswith("symbolic")


def explored(rerunner, spec, symbolic):
    """What exploring gave, or why it is refused: some schedule comes farther than the recorded run."""
    try:
        return explore_job(rerunner, spec, Limits(runs=10), symbolic=symbolic)
    except NotRecordable as refusal:
        return str(refusal)


@pytest.mark.parametrize("seed", [100, 107, 121, 143])
def test_kernels_written_by_hand_stay_as_they_are(seed):
    got = same(recorded(**Dice(seed, 2).protocol()))
    assert got.tiles == "concrete: a kernel is written by hand"


# ---------------------------------------------------------------- kernels


def launched(kernel, *, elems: int = 64, programs: int = 1, launches: int = 1, **constants) -> Recording:
    """Launch `kernel(x, data, sig, out)` on two ranks; `x` is 1, 2, … on rank 0 and ten times that on rank 1."""

    def host(rt):
        data = rt.tensor(rt.malloc(4 * elems, 64, name="data"), (elems,), torch.float32)
        sig = rt.tensor(rt.malloc(4 * 64, 64, name="sig"), (64,), torch.int32)
        data.zero_()
        sig.zero_()
        x = (torch.arange(elems, dtype=torch.float32) + 1) * (10 if rt.rank else 1)
        out = torch.zeros(elems)
        rt.synchronize()
        rt.host_barrier()
        for _ in range(launches):
            kernel[(programs,)](x, data, sig, out, **constants)
        rt.synchronize()
        world.output(rt, ("out",), out)
        rt.host_barrier()

    with RecordingWorld(nranks=2, heap_bytes=1 << 16) as world:
        world.run(host)
        return world.recording()


def outcomes_of(got: Exploration) -> set[tuple]:
    """The first elements of `out` by rank, of each outcome."""
    return {tuple(float(run.outputs[rank, "out"][0]) for rank in (0, 1)) for run in got.outcomes.values()}


@triton.jit
def both_write_rank_0(x, data, sig, out):
    offs = tl.arange(0, 32)
    value = tl.exp2(tl.load(x + offs) * (1.0 - 0.5 * dl.rank())) + dl.rank()
    tl.store(dl.symm_at(data, 0) + offs, value)
    tl.store(out + offs, tl.load(dl.symm_at(data, 0) + offs) * 2.0)


def test_which_computed_store_came_last_shows():
    got = same(launched(both_write_rank_0))
    assert got.tiles == "symbolic"
    assert len(got.outcomes) > 2
    first, second = 2 * 2.0, 2 * (2.0**5 + 1)
    assert outcomes_of(got) <= {(a, b) for a in (first, second) for b in (first, second)}


@triton.jit
def different_values_of_one_result(x, data, sig, out):
    offs = tl.arange(0, 32)
    tl.store(dl.symm_at(data, 0) + offs, tl.load(x + offs) * 0.0 + 3.0)
    tl.store(out + offs, tl.load(dl.symm_at(data, 0) + offs) * 2.0)


def test_digests_that_differ_without_reason_are_one_outcome():
    """Whose 3.0 it is makes another digest and the same memory."""
    got = same(launched(different_values_of_one_result))
    assert got.tiles == "symbolic"
    assert got.runs > len(got.outcomes)


@triton.jit
def overlapping_parts(x, data, sig, out):
    """Rank 1 overwrites half of what rank 0 writes; each half of the result says whose it is."""
    offs = tl.arange(0, 32)
    value = tl.load(x + offs) * 2.0
    tl.store(dl.symm_at(data, 0) + offs + 16 * dl.rank(), value)
    if dl.rank() == 0:
        tl.store(out + tl.arange(0, 16), tl.load(dl.symm_at(data, 0) + 16 + tl.arange(0, 16)))


def test_stores_that_overlap_in_part():
    got = same(launched(overlapping_parts))
    assert got.tiles == "symbolic"
    assert {a for a, _ in outcomes_of(got)} == {34.0, 20.0}


@triton.jit
def moved_on(x, data, sig, out):
    """A computed tile is copied to the other rank, and there by halves, in the order that a signal gives."""
    offs = tl.arange(0, 32)
    if dl.rank() == 0:
        tl.store(out + offs, tl.load(x + offs) * 2.0)
        tl.store(dl.symm_at(data, 1) + offs, tl.load(out + offs))
        dl.notify(sig, 1, signal=1, sig_op="add")
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        data = dl.consume_token(data, token)
        tl.store(out + tl.arange(0, 16), tl.load(data + 16 + tl.arange(0, 16)))


def test_copies_of_patterns_are_exact():
    got = same(launched(moved_on))
    assert (got.tiles, got.runs, outcomes_of(got)) == ("symbolic", 1, {(2.0, 34.0)})


@triton.jit
def routed(x, data, sig, out):
    """Where rank 0 writes is computed, stored as a tile, and read again as a number."""
    offs = tl.arange(0, 32)
    if dl.rank() == 0:
        tl.store(out + offs, tl.load(x + offs) * 2.0)  # <table>
        at = tl.load(out + 3).to(tl.int32)
        tl.store(dl.symm_at(data, 1) + at + tl.arange(0, 16), tl.load(x + tl.arange(0, 16)) + 0.5)
        dl.notify(sig, 1, signal=1, sig_op="add")
    else:
        token = dl.wait(sig, 1, "npu", "acquire")
        tl.store(out + tl.arange(0, 16), tl.load(dl.consume_token(data, token) + 8 + tl.arange(0, 16)))


def test_a_table_that_decides_where_to_write_is_computed():
    got = same(launched(routed))
    assert outcomes_of(got) == {(2.0, 1.5)}
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# <table>" in text)
    assert got.tiles == f"symbolic, but for the stores at {__file__}:{line}, whose values are read as numbers"


@triton.jit
def counted(x, data, sig, out):
    """A branch, a loop's end and an assertion depend on a reduction over a tile that the other rank has computed."""
    offs = tl.arange(0, 32)
    tl.store(dl.symm_at(data, 1 - dl.rank()) + offs, tl.load(x + offs) - tl.load(x + offs) + 2.0)
    dl.notify(sig, 1 - dl.rank(), signal=1, sig_op="add")
    token = dl.wait(sig, 1, "npu", "acquire")
    total = tl.sum(tl.load(dl.consume_token(data, token) + offs), 0)
    if total > 60.0:
        acc = tl.zeros((32,), tl.float32)
        for _ in range((total / 16.0).to(tl.int32)):
            acc += tl.load(x + offs)
        tl.store(out + offs, acc)


def test_branches_and_loops_on_computed_tiles():
    got = same(launched(counted))
    assert outcomes_of(got) == {(4.0, 40.0)}
    assert got.tiles.startswith("symbolic, but for")


@triton.jit
def ticketed(x, data, sig, out):
    """Three programs share a counter; what each computes goes where its ticket says."""
    offs = tl.arange(0, 16)
    ticket = tl.atomic_add(sig, 1)
    tl.store(data + 16 * ticket + offs, tl.load(x + 16 * tl.program_id(0) + offs) * 2.0)


def test_places_that_atomics_decide():
    got = same(launched(ticketed, programs=3))
    assert got.tiles == "symbolic"
    assert len(got.outcomes) >= 6


@triton.jit
def carried(x, data, sig, out, N: tl.constexpr):
    """Loop-carried and branch values, some of which begin as numbers, with a dot and reductions of both kinds."""
    rows = tl.arange(0, 16)
    acc = tl.zeros((16, 16), tl.float32)
    low = tl.full((16,), 100.0, tl.float32)
    for step in range(N):
        tile = tl.load(x + (rows[:, None] + 2 * rows[None, :] + step) % 64)
        acc = tl.dot(tile, tile, acc)
        if step % 2 == 0:
            low = tl.minimum(low, tl.min(tile, 1))
    tl.store(out + rows, tl.sum(acc, 1) + low, mask=rows < 13)
    tl.store(data + rows, tl.load(out + rows) + tl.load(x + rows, mask=rows < 5, other=-1.0))


@pytest.mark.parametrize("steps", [1, 3])
def test_loops_branches_and_dots(steps):
    got = same(launched(carried, N=steps))
    assert (got.tiles, len(got.outcomes)) == ("symbolic", 1)


def test_symbolic_tiles_are_not_computed():
    """The symbolic run holds no result; the exploration's does."""
    recording = launched(carried, N=2)
    with replica(recording, symbolic=frozenset()) as played:
        symbolic = played.run().outputs[0, "out"]
    with replica(recording) as played:
        concrete = played.run().outputs[0, "out"]
    got = next(iter(explore(recording).outcomes.values())).outputs[0, "out"]
    assert torch.equal(got, concrete) and not torch.equal(symbolic[:13].nan_to_num(), concrete[:13])
    assert torch.equal(symbolic[13:], concrete[13:])


def test_a_run_that_differs_is_not_trusted(monkeypatch):
    """If a run with all tiles were not the same run, the whole search is made again with all tiles, and says so."""
    from tdist.platforms.sim.explore import exhaustive

    recording = launched(moved_on)

    def wrong(self, symbolic, found):
        raise exhaustive._Unlike("a run with symbolic tiles is not the run with all tiles")

    monkeypatch.setattr(exhaustive._Search, "_with_tiles", wrong)
    got = explore(recording)
    assert got.complete and got.tiles == "concrete: a run with symbolic tiles is not the run with all tiles"
    assert outcomes_of(got) == {(2.0, 34.0)}


# ---------------------------------------------------------------- random protocols on tiles


@triton.jit
def act(x, data, sig, out, AT: tl.constexpr, CODE: tl.constexpr):
    """One operation, by number; the two cells of `data` overlap in half a tile."""
    offs = tl.arange(0, 16)
    kind: tl.constexpr = CODE % 8
    peer: tl.constexpr = CODE // 8 % 2
    cell = dl.symm_at(data, peer) + 8 * (CODE // 16 % 2)
    if kind == 0:
        tl.store(cell + offs, tl.load(x + offs) * 2.0)
    elif kind == 1:
        tl.store(out + 16 * AT + offs, tl.load(cell + offs) - 1.0)
    elif kind == 2:
        tl.store(out + 16 * AT + offs, tl.load(cell + offs))
    elif kind == 3:
        dl.notify(sig, peer, signal=1, sig_op="add")
    elif kind == 4:
        dl.wait(sig, 1, "npu", "acquire")
    elif kind == 5:
        tl.store(cell + offs, tl.load(cell + offs) + tl.load(x + offs))
    elif kind == 6:
        if tl.load(cell + 9) > 15.0:
            tl.store(out + 16 * AT + offs, tl.load(x + offs) * 3.0)
    else:
        tl.store(cell + offs, tl.load(x + 16 + offs), mask=offs < 12)


@triton.jit
def protocol(x, data, sig, out, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    if dl.rank() == 0:
        act(x, data, sig, out, 0, A)
        act(x, data, sig, out, 1, B)
    else:
        act(x, data, sig, out, 0, C)
        act(x, data, sig, out, 1, D)


@pytest.mark.parametrize("seed", range(8))
def test_random_protocols_on_tiles(seed):
    dice = random.Random(seed)
    codes = [dice.randrange(32) for _ in range(4)]
    recording = launched(protocol, **dict(zip("ABCD", codes, strict=True)))
    got = same(recording)
    whole = brute_force(recording, 60)
    assert got.complete, f"seed {seed}: {codes}"
    if whole is not None:
        assert set(got.outcomes) == whole.outcomes, f"seed {seed}: {codes}"
        assert {finding_key(seen.finding) for seen in got.findings} == whole.findings, f"seed {seed}: {codes}"


# ---------------------------------------------------------------- digests and marks


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int64])
def test_digests_tell_one_changed_lane(dtype):
    tile = torch.arange(15 * 7).reshape(15, 7).to(dtype)
    seen = {digest_tile(tile)}
    for row in range(15):
        for column in range(7):
            other = tile.clone()
            other[row, column] += 1
            seen.add(digest_tile(other))
    assert len(seen) == 1 + 15 * 7
    wide = torch.zeros(30, 14, dtype=dtype)
    wide[::2, ::2] = tile
    assert digest_tile(wide[::2, ::2]) == digest_tile(tile)
    assert digest_tile(tile.reshape(7, 15)) != digest_tile(tile)


def test_patterns_are_digests_again():
    made = {digest_tile(pattern(digest, (16, 16), torch.float16)) for digest in range(1000)}
    assert len(made) == 1000
    lanes = pattern(7, (64, 64), torch.float32).view(torch.int32).unique()
    assert len(lanes) == 64 * 64


class Memory:
    """As much of an allocation as marks need."""

    def __init__(self, nbytes: int = 256) -> None:
        self.marks, self.sync, self.nbytes = None, {}, nbytes

    def __len__(self) -> int:
        return self.nbytes


def test_marks_are_spans_of_bytes():
    al = Memory()
    mark(al, 64, 128, ("k.py", 3, 0))
    need(al, 0, 64)
    need(al, 128, 256)
    with pytest.raises(TilesNeeded) as met:
        need(al, 127, 131)
    assert met.value.places == {("k.py", 3, 0)}


def test_a_word_is_never_a_pattern():
    al = Memory()
    al.sync[64] = object()
    mark(al, 0, 64, ("k.py", 3, 0))
    with pytest.raises(TilesNeeded):
        mark(al, 0, 65, ("k.py", 4, 0))


def test_multilinear_sums_are_exact():
    """numpy's product of 64-bit integers wraps, as the hash wants."""
    words = np.array([1 << 62, -1, 3], np.int64)
    keys = np.array([5, 7, 1 << 62], np.int64)
    expected = sum(int(a) * int(b) for a, b in zip(words, keys, strict=True)) % (1 << 64)
    assert int(np.dot(words, keys)) % (1 << 64) == expected


def test_one_recording_serves_both_ways():
    """Digests kept with a recording are of its bytes: a second exploration gives the same."""
    recording = launched(both_write_rank_0)
    first, second = explore(recording), explore(recording)
    assert told(first) == told(second)
    assert told(explore(replace(recording), symbolic=False)) == told(first)
