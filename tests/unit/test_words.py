"""Synchronisation words on hand-written kernels: clocks, overshoot, lines, widths, atomics."""

from __future__ import annotations

import pytest
import torch
from engine_kit import Driver, HandKernel, site

from tdist.findings import Severity
from tdist.platforms.sim.atomics import read_modify_write, wrap

STORE = site(1, "store", "data")
FENCE = site(2, "fence")
NOTIFY = site(3, "notify", "sig")
WAIT = site(4, "wait", "sig")
LOAD = site(5, "load", "data")
SECOND = site(6, "notify", "sig")
ATOMIC = site(7, "atomic_add", "sig")
PLAIN = site(8, "store", "sig")
SET, ADD = 1, 2


def push(ag, data, data_al, pe, value, off=0):
    """A 64-byte store to `pe`."""
    _, al = ag.symm_at(data, data_al, pe, STORE)
    al.view(torch.int32)[off // 4 : off // 4 + 16] = value
    ag.wr(al, off, 1, 0, 64, STORE)


def load(ag, al, token, off=0):
    ag.rd(al, off, 1, 0, 64, token, LOAD)
    return int(al.view(torch.int32)[off // 4])


def run(body, nranks=2, grid=1, launches=1, sig_bytes=256, second=None, **config):
    """Launch `body(ag, pid, n, data, data_al, sig, sig_al)` on every rank."""
    driver = Driver(nranks, **config)
    data, sig = driver.malloc(512, "data"), driver.malloc(sig_bytes, "sig")
    for _ in range(launches):
        driver.launch(HandKernel(body, second, args=["data", "sig"]), data, sig, grid=grid)
    driver.results = driver.sync()
    driver.sig = [driver.al(address) for address in sig]
    return driver


def produce(ag, data, data_al, sig, sig_al, pe=1, value=1, op=SET, fence=True):
    yield
    push(ag, data, data_al, pe, 7)
    if fence:
        yield
        ag.fence(FENCE)
    yield
    ag.notify(sig, sig_al, value, pe, op, 8, NOTIFY)


@pytest.mark.parametrize(
    ("fence", "op", "token", "found"),
    [
        (True, SET, True, []),
        (False, SET, True, [("hazard.undrained-release", (1, 5))]),
        (False, ADD, True, []),
        (True, SET, False, [("race", (1, 5))]),
    ],
    ids=["fenced", "undrained", "add-drains", "token-dropped"],
)
def test_what_a_signal_releases(fence, op, token, found):
    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            yield from produce(ag, data, data_al, sig, sig_al, op=op, fence=fence)
        else:
            got = yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
            assert load(ag, data_al, got if token else None) == 7

    assert run(body).lines() == found


def test_drained_worlds_have_no_undrained_signal():
    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            yield from produce(ag, data, data_al, sig, sig_al, fence=False)
        else:
            got = yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
            load(ag, data_al, got)

    assert run(body, drained=True).lines() == []


@pytest.mark.parametrize(("semantic", "races"), [("acquire", 0), ("acq_rel", 0), ("relaxed", 1), ("release", 1)])
def test_only_acquiring_waits_join_the_word(semantic, races):
    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            yield from produce(ag, data, data_al, sig, sig_al)
        else:
            got = yield from ag.wait(sig, sig_al, 1, 1, 8, semantic, WAIT)
            load(ag, data_al, got)

    assert run(body).lines() == [("race", (1, 5))] * races


def test_a_later_signal_of_the_same_value_does_not_help_a_wait():
    """A constant epoch: the second SET of 1 covers the second store, but the wait could have returned before it."""

    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            yield
            ag.notify(sig, sig_al, 1, 1, SET, 8, NOTIFY)
            yield from produce(ag, data, data_al, sig, sig_al)
        else:
            got = yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
            load(ag, data_al, got)

    assert run(body).lines() == [("race", (1, 5))]


def test_an_add_of_zero_joins_the_word_but_not_what_a_wait_may_have():
    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            yield
            ag.notify(sig, sig_al, 1, 1, ADD, 8, NOTIFY)
            push(ag, data, data_al, 1, 7)
            yield
            ag.notify(sig, sig_al, 0, 1, ADD, 8, SECOND)
        else:
            got = yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
            load(ag, data_al, got)

    assert run(body).lines() == [("race", (1, 5))]


def test_a_counter_releases_for_all_producers():
    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank < 3:
            yield
            push(ag, data, data_al, 3, 7, off=64 * ag.rank)
            yield
            ag.notify(sig, sig_al, 1, 3, ADD, 8, NOTIFY)
        else:
            got = yield from ag.wait(sig, sig_al, 1, 3, 8, "acquire", WAIT)
            assert [load(ag, data_al, got, 64 * r) for r in range(3)] == [7, 7, 7]

    for seed in range(5):
        assert run(body, nranks=4, scheduler="random", seed=seed).lines() == []


@pytest.mark.parametrize("first_rank", [0, 1])
def test_unordered_sets_of_one_word_are_found_whoever_comes_first(first_rank):
    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == (1 - first_rank):
            for _ in range(3):
                yield
        yield
        ag.notify(sig, sig_al, ag.rank + 1, 0, SET, 8, NOTIFY)

    driver = run(body)
    assert driver.lines() == [("concurrent-set", (3, 3))]
    assert driver.findings[0].severity is Severity.ERROR


def test_two_adds_are_no_finding_and_add_beside_set_is():
    def body(ag, pid, n, data, data_al, sig, sig_al):
        yield
        ag.notify(sig, sig_al, 1, 0, ADD, 8, NOTIFY)

    def mixed(ag, pid, n, data, data_al, sig, sig_al):
        yield
        ag.notify(sig, sig_al, 1, 0, SET if ag.rank else ADD, 8, NOTIFY if ag.rank else SECOND)

    assert run(body, nranks=3).lines() == []
    assert run(mixed).lines() == [("concurrent-set", (6, 3))]


@pytest.mark.parametrize("op", [SET, ADD])
def test_overshoot_is_found_when_the_wait_came_first(op):
    """Two steps ahead without a credit: the second signal is not ordered after the poll of the first."""

    def body(ag, pid, n, data, data_al, sig, sig_al):
        for i in (1, 2):
            if ag.rank == 0:
                yield
                ag.notify(sig, sig_al, i if op == SET else 1, 1, op, 8, NOTIFY)
                for _ in range(4):
                    yield
            else:
                yield from ag.wait(sig, sig_al, 1, i, 8, "acquire", WAIT)

    runs = [run(body, scheduler="random", seed=seed) for seed in range(30)]
    assert {tuple(driver.lines()) for driver in runs} == {(("overshoot", (4, 3)),), (("deadlock", (4,)),)}
    for found in (found for driver in runs for found in driver.findings):
        assert ("running total (n × epoch)" in found.cure) == (op == ADD)


def test_a_credit_prevents_overshoot():
    def body(ag, pid, n, data, data_al, sig, sig_al):
        for i in (1, 2, 3):
            if ag.rank == 0:
                if i > 1:
                    yield from ag.wait(sig + 64, sig_al, 1, i - 1, 8, "acquire", WAIT)
                yield
                ag.notify(sig, sig_al, i, 1, SET, 8, NOTIFY)
            else:
                yield from ag.wait(sig, sig_al, 1, i, 8, "acquire", WAIT)
                yield
                ag.notify(sig + 64, sig_al, i, 0, SET, 8, SECOND)

    for seed in range(10):
        assert run(body, scheduler="random", seed=seed).lines() == []


def test_an_unordered_add_after_an_ordered_one_still_overshoots():
    """Rank 1 adds again once the waiter is through, rank 2 waits for nobody: its ADD may precede the poll."""
    third = site(9, "notify", "sig")

    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
            yield
            ag.notify(sig + 64, sig_al, 1, 1, SET, 8, site(20, "notify", "sig"))
        elif ag.rank == 1:
            yield
            ag.notify(sig, sig_al, 1, 0, ADD, 8, NOTIFY)
            yield from ag.wait(sig + 64, sig_al, 1, 1, 8, "acquire", site(21, "wait", "sig"))
            yield
            ag.notify(sig, sig_al, 1, 0, ADD, 8, SECOND)
            yield
            ag.put_scalar(sig + 128, sig_al, 1, 2, 8, site(22, "put_scalar", "sig"))
        else:
            while sig_al.words(8)[16] != 1:  # no edge: only to make it come last in this run
                yield
            yield
            ag.notify(sig, sig_al, 1, 0, ADD, 8, third)

    found = run(body, nranks=3, scheduler="random", seed=2).lines()
    assert ("overshoot", (4, 9)) in found and ("overshoot", (4, 6)) not in found


@pytest.mark.parametrize(
    ("first", "second", "severity"),
    [(SET, SET, "error"), (SET, ADD, "error"), (ADD, SET, "error"), (ADD, ADD, "note")],
)
def test_line_sharing(first, second, severity):
    def body(ag, pid, n, data, data_al, sig, sig_al):
        yield
        op = second if ag.rank else first
        ag.notify(sig + 8 * ag.rank, sig_al, 1, 0, op, 8, SECOND if ag.rank else NOTIFY)

    driver = run(body)
    assert driver.lines() == [("line-sharing", (3, 6))]
    assert driver.findings[0].severity.value == severity
    assert driver.findings[0].title.endswith("line of sig") and "64 bytes apart" in driver.findings[0].cure


def test_slots_64_bytes_apart_share_no_line_and_neighbouring_tensors_may():
    def apart(ag, pid, n, data, data_al, sig, sig_al):
        yield
        ag.notify(sig + 64 * ag.rank, sig_al, 1, 0, SET, 8, NOTIFY)

    assert run(apart).lines() == []
    driver = Driver(2)
    first, second = driver.malloc(8, "first"), driver.malloc(8, "second")

    def neighbours(ag, pid, n, a, a_al, b, b_al):
        yield
        ag.notify(*((b, b_al) if ag.rank else (a, a_al)), 1, 0, SET, 8, SECOND if ag.rank else NOTIFY)

    driver.launch(HandKernel(neighbours), first, second)
    driver.sync()
    assert driver.lines() == [("line-sharing", (3, 6))]
    (found,) = driver.findings
    assert found.severity is Severity.ERROR
    assert found.title.endswith("line of sig (allocated as `second`) and of its neighbour sig (allocated as `first`)")
    assert "leave the first one free" in found.cure


@pytest.mark.parametrize("plain_first", [True, False])
def test_a_store_to_a_neighbour_in_the_line_of_a_set_names_both_tensors(plain_first):
    driver = Driver(2)
    inbox, sig, came = driver.malloc(8, "inbox"), driver.malloc(64, "sig"), []

    def body(ag, pid, n, a, a_al, b, b_al):
        while (ag.rank == 0) == plain_first and not came:  # no edge: only to make it come second
            yield
        if ag.rank:
            ag.wr(driver.al(inbox[0]), 0, 1, 0, 8, site(5, "store", "inbox"))
        else:
            ag.notify(b, b_al, 1, 0, SET, 8, NOTIFY)
        came.append(ag.rank)
        yield

    driver.launch(HandKernel(body), inbox, sig)
    driver.sync()
    assert driver.lines() == [("line-sharing", (5, 3) if plain_first else (3, 5))]
    (found,) = driver.findings
    assert found.title == "shared line: two writers in one 64-byte line of sig and of its neighbour inbox"
    assert {party.tensor for party in found.parties} == {"sig", "inbox"}
    assert "leave the first one free" in found.cure


@pytest.mark.parametrize("plain_first", [True, False])
@pytest.mark.parametrize(("off", "kinds"), [(8, ["line-sharing"]), (0, ["race"]), (64, [])])
def test_a_plain_store_beside_a_set(plain_first, off, kinds):
    """In other bytes of its line the SET can undo it, in the word itself it races, in the next line it is fine."""

    def body(ag, pid, n, data, data_al, sig, sig_al):
        if (ag.rank == 0) == plain_first:
            for _ in range(20):
                yield
        yield
        if ag.rank == 0:
            ag.notify(sig, sig_al, 1, 0, SET, 8, NOTIFY)
        else:
            _, al = ag.symm_at(sig, sig_al, 0, PLAIN)
            ag.wr(al, off, 1, 0, 8, PLAIN)

    driver = run(body, scheduler="max-sync") if not plain_first else run(body)
    assert driver.kinds() == kinds
    if kinds:
        assert {p.line for p in driver.findings[0].parties} == {3, 8}
        assert driver.findings[0].severity is Severity.ERROR


def test_an_ordered_plain_reset_releases_nothing_and_is_no_finding():
    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            yield from produce(ag, data, data_al, sig, sig_al)
        else:
            got = yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
            load(ag, data_al, got)
            sig_al.words(8)[0] = 0
            ag.wr(sig_al, 0, 1, 0, 8, PLAIN)
            got = yield from ag.wait(sig, sig_al, 1, 0, 8, "acquire", site(14, "wait", "sig"))

    assert run(body).lines() == []


def test_a_plain_write_satisfies_a_wait_and_gives_it_nothing():
    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            yield
            push(ag, data, data_al, 1, 7)
            yield
            _, al = ag.symm_at(sig, sig_al, 1, PLAIN)
            al.words(8)[0] = 1
            ag.wr(al, 0, 1, 0, 8, PLAIN)
        else:
            got = yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
            load(ag, data_al, got)

    assert sorted(run(body).lines()) == [("race", (1, 5)), ("race", (8, 4))]


def test_a_64_bit_signal_on_32_bit_words_ends_the_run():
    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            yield
            ag.notify(sig, sig_al, 1, 1, SET, 8, NOTIFY)
        else:
            yield from ag.wait(sig, sig_al, 1, 1, 4, "acquire", WAIT)

    driver = run(body)
    assert driver.kinds() == ["width-mismatch"]
    assert {8 * w for w in (4, 8)} == {driver.findings[0].data[name] for name in ("width_bits", "word_bits")}
    assert 3 in {p.line for p in driver.findings[0].parties}


def test_a_host_write_lets_a_workspace_change_its_word_width():
    driver = Driver(1)
    sig = driver.malloc(64, "sig")

    def body(width):
        def kernel(ag, pid, n, sig, sig_al):
            yield
            ag.notify(sig, sig_al, 1, 0, SET, width, NOTIFY)

        return HandKernel(kernel)

    driver.launch(body(8), sig)
    driver.zero(sig, 64)
    driver.launch(body(4), sig)
    driver.sync()
    assert driver.findings == []


def test_a_short_signal_tensor_names_stride_and_need():
    def body(ag, pid, n, data, data_al, sig, sig_al):
        yield from ag.wait(sig, sig_al, 4, 1, 8, "acquire", WAIT)

    driver = run(body, nranks=1, sig_bytes=64)
    (found,) = driver.findings
    assert found.kind == "tdist.short-signal"
    assert "needs 200 bytes" in found.title and "has 64" in found.title
    assert "8 elements, apart" in found.expected and found.got == "8 elements"


def test_wait_polls_its_slots_in_order():
    order = []

    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            for slot in (2, 1, 0):
                yield
                ag.notify(sig + 64 * slot, sig_al, 1, 1, SET, 8, NOTIFY)
        else:
            gen = ag.wait(sig, sig_al, 3, 1, 8, "acquire", WAIT)
            for _ in gen:
                order.append(getattr(ag.blocked, "slot", "passed"))
                yield

    assert run(body, scheduler="random", seed=1).lines() == []
    assert order == sorted(order, key=str)


# ---------------------------------------------------------------- atomics


@pytest.mark.parametrize("sem", ["acq_rel", "relaxed", "acquire", "release"])
@pytest.mark.parametrize("scope", ["gpu", "sys", "cta"])
def test_last_arriver_needs_both_halves_and_a_scope(sem, scope):
    def body(ag, pid, n, data, data_al, sig, sig_al):
        ag.wr(data_al, 64 * pid[0], 1, 0, 64, STORE)
        yield
        old = ag.atomic(sig, sig_al, "add", 1, 4, "int", sem, scope, True, ATOMIC)
        if old == 1:
            ag.rd(data_al, 64 * (1 - pid[0]), 1, 0, 64, None, LOAD)

    want = [] if sem == "acq_rel" and scope != "cta" else ["race"]
    assert run(body, nranks=1, grid=2).kinds() == want


@pytest.mark.parametrize(("scope", "found"), [("sys", []), ("gpu", [("race", (1, 5))]), ("cta", [("race", (1, 5))])])
def test_an_atomic_releases_to_another_ranks_wait_at_sys_scope_only(scope, found):
    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            yield
            push(ag, data, data_al, 1, 7)
            ag.fence(FENCE)
            addr, al = ag.symm_at(sig, sig_al, 1, ATOMIC)
            yield
            ag.atomic(addr, al, "add", 1, 8, "int", "acq_rel", scope, False, ATOMIC)
        else:
            got = yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
            load(ag, data_al, got)

    assert run(body).lines() == found


def test_a_gpu_atomic_still_reaches_a_wait_on_its_own_rank():
    def body(ag, pid, n, data, data_al, sig, sig_al):
        if pid[0] == 0:
            ag.wr(data_al, 0, 1, 0, 64, STORE)
            ag.fence(FENCE)
            yield
            ag.atomic(sig, sig_al, "add", 1, 8, "int", "release", "gpu", False, ATOMIC)
        else:
            got = yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
            load(ag, data_al, got)

    assert run(body, nranks=1, grid=2).lines() == []


def test_used_atomics_of_two_ranks_are_a_hazard():
    def body(ag, pid, n, data, data_al, sig, sig_al):
        addr, al = ag.symm_at(sig, sig_al, 0, ATOMIC)
        yield
        ag.atomic(addr, al, "add", 1, 8, "int", "acq_rel", "sys", True, ATOMIC)

    driver = run(body)
    assert driver.lines() == [("hazard.atomic-lock", (7, 7))]
    assert driver.findings[0].severity is Severity.HAZARD
    assert driver.sig[0].words(8)[0] == 2


def test_a_relaxed_atomic_continues_a_release_and_adds_none():
    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            yield from produce(ag, data, data_al, sig, sig_al, pe=2, op=ADD)
        elif ag.rank == 1:
            yield
            push(ag, data, data_al, 2, 8, off=64)
            ag.fence(FENCE)
            addr, al = ag.symm_at(sig, sig_al, 2, ATOMIC)
            yield
            ag.atomic(addr, al, "add", 1, 8, "int", "relaxed", "sys", False, ATOMIC)
        else:
            got = yield from ag.wait(sig, sig_al, 1, 2, 8, "acquire", WAIT)
            load(ag, data_al, got)
            ag.rd(data_al, 64, 1, 0, 64, got, site(15, "load", "data"))

    assert run(body, nranks=3).lines() == [("race", (1, 15))]


@pytest.mark.parametrize(
    ("op", "value", "kind", "before", "old", "after", "writes"),
    [
        ("add", 1, "int", 0x7FFFFFFF, 0x7FFFFFFF, -0x80000000, True),
        ("add", 1, "uint", -1, 0xFFFFFFFF, 0, True),
        ("max", 3, "int", -5, -5, 3, True),
        ("umax", 3, "int", -5, 0xFFFFFFFB, -5, True),
        ("min", -3, "int", 2, 2, -3, True),
        ("umin", 3, "uint", -1, 0xFFFFFFFF, 3, True),
        ("and", 6, "int", 3, 3, 2, True),
        ("or", 6, "int", 1, 1, 7, True),
        ("xor", 6, "int", 3, 3, 5, True),
        ("exch", 9, "int", 3, 3, 9, True),
        ("cas", (3, 9), "int", 3, 3, 9, True),
        ("cas", (4, 9), "int", 3, 3, 3, False),
    ],
)
def test_read_modify_write(op, value, kind, before, old, after, writes):
    assert read_modify_write(before, op, value, 4, kind) == (old, after, writes)


@pytest.mark.parametrize(("width", "dtype"), [(2, torch.float16), (4, torch.float32), (8, torch.float64)])
def test_float_atomics_round_in_their_own_width(width, dtype):
    ints = {2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    before = torch.tensor(0.1, dtype=dtype)
    old, after, writes = read_modify_write(int(before.view(ints)), "fadd", 0.2, width, "float")
    want = before + torch.tensor(0.2, dtype=dtype)
    assert writes and float(old) == float(before)
    assert after == int(want.view(ints))


def test_wrap_is_twos_complement():
    assert [wrap(v, 1) for v in (127, 128, 255, 256, -129)] == [127, -128, -1, 0, 127]


@pytest.mark.parametrize(
    ("op", "value", "sem", "found"),
    [
        ("cas", (1, 0), "acq_rel", []),
        ("cas", (1, 0), "relaxed", ["concurrent-set"]),
        ("add", 0, "acq_rel", []),
        ("add", 1, "acq_rel", ["concurrent-set"]),
    ],
)
def test_an_atomic_beside_a_set(op, value, sem, found):
    """A CAS that needs the SET's value comes after it; adding zero writes nothing; adding one may come first."""

    def body(ag, pid, n, data, data_al, sig, sig_al):
        yield
        if ag.rank == 0:
            ag.notify(sig, sig_al, 1, 1, SET, 8, NOTIFY)
            return
        for _ in range(9):
            yield
            ag.atomic(sig, sig_al, op, value, 8, "int", sem, "sys", False, ATOMIC)

    kinds = set()
    for seed in range(6):
        kinds |= set(run(body, scheduler="random", seed=seed).kinds())
    assert sorted(kinds) == found


def test_what_a_wait_found_before_it_ended_the_run_is_reported():
    """Slot 0 is raced with by a plain store, slot 1 is in use at another width."""

    def body(ag, pid, n, data, data_al, sig, sig_al):
        if ag.rank == 0:
            for _ in range(20):
                yield
            yield from ag.wait(sig, sig_al, 2, 1, 4, "acquire", WAIT)
        elif ag.program == 1:
            yield
            ag.wr(sig_al.peers[0], 0, 1, 0, 4, PLAIN)
        else:
            yield
            ag.notify(sig, sig_al, 1, 0, SET, 4, NOTIFY)
            yield
            ag.notify(sig + 64, sig_al, 1, 0, SET, 8, SECOND)

    driver = run(body, grid=2, scheduler="round-robin")
    found = {(f.kind.removeprefix("tdist."), tuple(p.line for p in f.parties)) for f in driver.findings}
    assert {("race", (8, 4)), ("width-mismatch", (6, 4))} <= found
