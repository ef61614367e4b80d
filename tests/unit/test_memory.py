"""Symmetric heaps, private allocations, addresses."""

from __future__ import annotations

import itertools
import mmap
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tdist.errors import UsageError
from tdist.platforms.sim.memory import CANARY_BYTE, AddressSpace, BestFit, RankMemory, broken_canary

HEAP = 1 << 14


@pytest.fixture
def space():
    made = AddressSpace(3, HEAP, poison=0x5A)
    yield made
    made.close()


def test_offsets_agree_and_bases_differ(space):
    peers = space.malloc(100, 16, "x")
    assert len({al.offset_bytes for al in peers}) == 1
    assert len({al.lo for al in peers}) == 3
    assert [al.lo - memory.base for al, memory in zip(peers, space.ranks, strict=True)] == [0, 0, 0]
    steps = {b.lo - a.lo for a, b in itertools.pairwise(peers)}
    assert len(steps) == 2, "bases must not be a plain arithmetic progression that pointer arithmetic could hit"


def test_addresses_are_the_same_in_every_run():
    one, two = AddressSpace(2, HEAP, 0), AddressSpace(2, HEAP, 0)
    assert [al.lo for al in one.malloc(8, 16, "a") or ()] == [al.lo for al in two.malloc(8, 16, "b") or ()]
    one.close()
    two.close()


def test_new_memory_is_poisoned_and_so_is_freed_memory(space):
    peers = space.malloc(40, 16, "x")
    assert peers[1].view(torch.uint8).tolist() == [0x5A] * 40
    peers[1].view(torch.uint8).fill_(1)
    gone = space.free(peers[1].offset_bytes)
    assert gone == peers and all(al.freed for al in gone)
    assert peers[1].view(torch.uint8).tolist() == [0x5A] * 40
    assert space.lookup(peers[1].lo) is None


def test_two_one_element_tensors_share_a_line(space):
    first, second = space.malloc(8, 16, "a")[0], space.malloc(8, 16, "b")[0]
    assert second.lo - first.lo == 16
    assert first.lo // 64 == second.lo // 64


def test_alignment_is_kept(space):
    space.malloc(8, 16, "a")
    assert space.malloc(8, 512, "b")[2].lo % 512 == 0


@pytest.mark.parametrize(("nbytes", "alignment", "says"), [(0, 16, "positive"), (-4, 16, "positive"), (8, 24, "power")])
def test_bad_requests_are_refused(space, nbytes, alignment, says):
    with pytest.raises(UsageError, match=says):
        space.malloc(nbytes, alignment, "x")


def test_a_full_heap_gives_nothing(space):
    assert space.malloc(HEAP + 1, 16, "x") is None
    assert space.malloc(HEAP, 16, "x") is not None
    assert space.malloc(1, 16, "x") is None


def test_canaries_lie_in_the_rounding_slack_only(space):
    rounded, exact = space.malloc(20, 16, "r")[0], space.malloc(32, 16, "e")[0]
    assert rounded.slack is not None and rounded.slack.tolist() == [CANARY_BYTE] * 12
    assert exact.slack is not None and exact.slack.numel() == 0
    assert broken_canary(rounded) is None and broken_canary(exact) is None
    rounded.slack[3] = 7
    assert broken_canary(rounded) == (23, 7)


def test_lookup_finds_the_allocation_and_its_end(space):
    first, second = space.malloc(32, 16, "a"), space.malloc(24, 16, "b")
    assert space.lookup(first[1].lo + 31) is first[1]
    assert space.lookup(second[1].lo) is second[1], "an address that starts one allocation is not the end of another"
    assert space.lookup(second[1].hi) is second[1]
    assert space.lookup(second[1].hi + 1) is None
    assert space.lookup(17) is None
    assert space.rank_of(first[2].lo) == 2 and space.rank_of(5) is None


def test_views_and_words_alias_the_bytes(space):
    al = space.malloc(19, 16, "x")[0]
    al.view(torch.uint8).fill_(0)
    al.words(4)[1] = -2
    al.words(8)[1] = 1 << 40
    assert al.view(torch.int32).tolist() == [0, -2, 0, 1 << 8]
    assert len(al.words(8)) == 2 and len(al.words(2)) == 9
    assert al.view(torch.int64) is al.view(torch.int64) and al.words(4) is al.words(4)


def test_the_heap_can_be_mapped_by_its_descriptor(space):
    al = space.malloc(16, 16, "x")[1]
    al.words(8)[0] = 0x1122334455667788
    with mmap.mmap(space.ranks[1].fd, HEAP) as other:
        assert int.from_bytes(other[:8], "little") == 0x1122334455667788


def test_private_memory_has_addresses_of_its_own(space):
    storage = torch.zeros(100, dtype=torch.uint8)
    al = space.register(1, storage, "w")
    assert al.rank == 1 and not al.symmetric and al.peers == ()
    al.words(4)[2] = 9
    assert storage[8] == 9
    assert space.lookup(al.lo + 99) is al
    assert space.register(1, storage, "w2").lo != al.lo
    assert space.unregister(al.lo) is al
    assert space.lookup(al.lo) is None
    assert space.unregister(space.malloc(8, 16, "x")[0].lo) is None


def test_between_gives_all_that_a_line_touches(space):
    made = [space.malloc(8, 16, name)[0] for name in "abcde"]
    start = made[0].lo
    assert space.between(start, start + 64) == made[:4]
    assert space.between(start + 8, start + 16) == []
    assert space.between(start + 68, start + 70) == made[4:]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from([16, 32, 64, 512]), st.booleans()), min_size=1, max_size=40)
)
def test_blocks_never_overlap_and_everything_comes_back(steps):
    heap = BestFit(4096)
    live = []
    for nbytes, alignment, drop in steps:
        block = heap.allocate(nbytes, alignment)
        if block is not None:
            assert block.offset_bytes % alignment == 0 and block.rounded_bytes % 16 == 0
            assert block.offset_bytes + block.rounded_bytes <= 4096
            live.append(block)
        if drop and live:
            assert heap.release(live.pop(0).offset_bytes) is not None
        spans = sorted((b.offset_bytes, b.offset_bytes + b.rounded_bytes) for b in live)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        assert heap.free_bytes + sum(b.rounded_bytes for b in live) == 4096
    for block in live:
        heap.release(block.offset_bytes)
    assert heap.allocate(4096, 16) is not None
    assert heap.release(1) is None


def test_best_fit_takes_the_smallest_hole():
    heap = BestFit(1024)
    blocks = [heap.allocate(n, 16) for n in (64, 16, 32, 16)]
    assert all(blocks)
    heap.release(0)
    heap.release(80)
    got = heap.allocate(32, 16)
    assert got is not None and got.offset_bytes == 80


def test_who_holds_a_tensor_of_a_closed_heap_holds_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    memory = RankMemory(0, 1 << 20)
    held = memory.bytes[8:16]
    held.fill_(3)
    assert os.pread(memory.fd, 8, 8) == bytes([3] * 8)
    memory.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert held.tolist() == [3] * 8
