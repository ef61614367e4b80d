"""What a race tells the reader: which wait is missing, deleted or does not order, on whichever schedule it is met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from litmus_kit import DATA, OUT, SIG, Buf, Observed, contents, covers, mark, observe, settle

import tdist.language as dl
from tdist.findings import to_text
from tdist.language.extra import libshmem_device as shmem_dev
from tdist.language.extra.cann.extension import sub_vec_id

REUSE = "release after the load (credit signal or barrier) and wait for it before the store, or use another buffer"


def told(seen: Observed, *lines: str) -> list[tuple[str, str]]:
    """`(why, try)` of every race, all of which are between the two marked lines; paths as marks."""
    races = [f for run in seen.runs for f in run.findings if f.kind == "tdist.race"]
    assert races, seen.text()
    assert {mark(str(p.file), p.line or 0) for f in races for p in f.parties} == set(lines), seen.text()
    here = str(Path(__file__))
    return [(f.why.replace(here, "here"), f.cure.replace(here, "here")) for f in races]


def line_of(marker: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(i for i, text in enumerate(lines, 1) if text.endswith(f"# <{marker}>"))


@triton.jit
def push(data, sig, out, HOW: tl.constexpr):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, 7)  # <store>
        shmem_dev.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        ptr = data
        if HOW == "lost":
            dl.wait(sig, 1, "gpu", "acquire")  # <lost>
        elif HOW == "relaxed":
            ptr = dl.consume_token(data, dl.wait(sig, 1, "gpu", "relaxed"))  # <relaxed>
        elif HOW == "stale":
            ptr = dl.consume_token(data, dl.wait(sig + 16, 1, "gpu", "acquire", waitValue=0))  # <stale>
        elif HOW == "scope":
            while tl.atomic_cas(sig, 1, 1) != 1:  # <cas>
                pass
        tl.store(out + offs, tl.load(ptr + offs))  # <load>


def both_orders(how: str, why: str, cure: str) -> None:
    """The advice for the load after the store, and inside that for the load that came first."""
    pairs = told(observe(push, DATA, SIG, OUT, HOW=how), "store", "load")
    assert len(set(pairs)) == 2, pairs
    for said, tried in pairs:
        if said.startswith("if this load is meant to see that store: "):
            first, second = said.split(";\n")
            assert first.removeprefix("if this load is meant to see that store: ") == why
            assert "if it is meant to see the value from before" in second
            assert tried == f"to see that store: {cure};\nto see the value from before: {REUSE}"
        else:
            assert (said, tried) == (why, cure)


@covers("CLK-14")
def test_a_deleted_wait_is_named_whichever_side_comes_first():
    both_orders(
        "lost",
        "no wait of rank 1 program 0 comes before this load "
        f"(the wait at here:{line_of('lost')} was deleted: its token is not used)",
        "consume the token of that wait on the pointer of this load: ptr = dl.consume_token(ptr, token)",
    )


@covers("FND-1")
def test_a_missing_wait_is_said_to_be_missing():
    both_orders(
        "none",
        "no wait of rank 1 program 0 for a signal of rank 0 program 0 comes before this load",
        "wait for the signal that follows the store, and consume its token before the load: "
        "ptr = dl.consume_token(ptr, token)",
    )


@covers("CLK-14")
def test_a_deleted_wait_stands_at_the_kernel_and_not_at_a_host():
    seen = observe(push, DATA, SIG, OUT, HOW="lost", schedules=[("run-to-block", 0)])
    (lost,) = [f for run in seen.runs for f in run.findings if f.kind == "tdist.lost-wait"]
    assert [p.who for p in lost.parties] == ["kernel push"]
    assert f"where kernel push: wait\n        at {__file__}:{line_of('lost')}" in to_text(lost, width=300)


def test_a_relaxed_wait_is_named():
    at = f"here:{line_of('relaxed')}"
    for why, cure in told(observe(push, DATA, SIG, OUT, HOW="relaxed"), "store", "load"):
        assert why == f"the wait at {at} is not an acquire: it returns and orders nothing"
        assert cure == f'give the wait at {at} the semantic "acquire" and consume its token before the load'


@covers("ATM-2")
def test_an_atomic_whose_scope_ends_at_the_rank_is_named():
    for why, cure in told(observe(push, DATA, SIG, OUT, HOW="scope"), "store", "load"):
        assert why.startswith(f"the atomic_cas at here:{line_of('cas')} has the scope"), why
        assert "dl.wait" in cure


@covers("SIG-7")
def test_a_wait_that_the_initial_value_satisfies_is_named():
    whys = [why for why, _ in told(observe(push, DATA, SIG, OUT, HOW="stale"), "store", "load")]
    stale = f"the wait at here:{line_of('stale')} returned on a value that no signal had written: it orders nothing"
    assert all(stale in why for why in whys), whys


@triton.jit
def both_write(data, out, GATED: tl.constexpr):
    offs = tl.arange(0, 16)
    sub = sub_vec_id()
    if GATED:
        if sub == 0:
            tl.store(dl.symm_at(data, 0) + offs, dl.rank())  # <writers>
    elif sub < 2:
        tl.store(data + offs, 1)  # <cores>


@covers("WHO-2")
def test_two_cores_of_one_program_are_told_to_gate_the_store():
    for why, cure in told(observe(both_write, DATA, OUT, GATED=False), "cores"):
        assert why.startswith("both vector cores of rank ") and "`if sub_vec_id() == 0:`" in cure


@covers("FND-1")
def test_two_writers_are_told_to_use_bytes_of_their_own():
    for _, cure in told(observe(both_write, DATA, OUT, GATED=True), "writers"):
        assert cure.startswith("give each writer bytes of its own")


@triton.jit
def notify_first(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        dl.notify(sig, 1, signal=1, sig_op="set")
        tl.store(dl.symm_at(data, 1) + offs, 7)  # <late>
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <early>


@covers("REL-1")
def test_a_store_after_its_notify_is_told_to_come_before():
    for why, cure in told(observe(notify_first, DATA, SIG, OUT), "late", "early"):
        if why.startswith("what"):
            assert why == "what rank 1 program 0 acquired from rank 0 program 0 was released before the store"
            assert cure.startswith("put the notify after the store")
        elif cure.startswith("wait for the signal that follows the store"):
            assert why == "rank 1 program 0 has acquired no release that rank 0 program 0 made after its store"
        else:
            first = "put the notify after the store; where one follows it already, wait for that one before the load"
            assert "was released before the store;\n" in why
            assert cure == f"to see that store: {first};\nto see the value from before: {REUSE}"


@triton.jit
def reuse(data, sig, out, launch):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, launch)  # <again>
        shmem_dev.fence()
        dl.notify(sig, 1, signal=launch, sig_op="set")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <read>


@covers("FND-6")
def test_the_next_launch_that_overwrites_is_told_to_wait_for_a_credit():
    """One schedule on which the run ends: the second signal comes after the first wait."""

    def host(rt, t):
        reuse[(1,)](t.data, t.sig, t.out, 1)
        rt.synchronize()
        if rt.rank == 0:
            reuse[(1,)](t.data, t.sig, t.out, 2)
        rt.synchronize()
        return contents(t.out)

    seen = observe(None, DATA, SIG, OUT, host=host, schedules=[("max-sync", 0), ("random", 1), ("random", 2)])
    told_of = [
        (f.why, f.cure)
        for run in seen.runs
        for f in run.findings
        if f.kind == "tdist.race" and [mark(str(p.file), p.line or 0) for p in f.parties] == ["read", "again"]
    ]
    assert told_of, seen.text()
    assert all(cure == REUSE for _, cure in told_of), told_of
    why = (
        "rank 0 launch 1 program 0 has acquired no release that rank 1 launch 0 program 0 made after its load",
        REUSE,
    )
    assert set(told_of) == {why}


@triton.jit
def constant(data, sig, out, launch):
    offs = tl.arange(0, 16)
    half = launch % 2 * 16
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + half + offs, launch)  # <next>
        shmem_dev.fence()
        dl.notify(sig, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig, 1, "gpu", "acquire")  # <old>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + half + offs))  # <sees>


@covers("FND-4")
def test_a_signal_of_an_earlier_round_is_named_as_the_cause():
    """A constant epoch: the second wait returns on the first signal."""

    def host(rt, t):
        for launch in (1, 2):
            constant[(1,)](t.data, t.sig, t.out, launch)
            settle(rt)
        return 0

    pairs = told(observe(None, DATA, SIG, OUT, host=host), "next", "sees")
    at = f"the wait at here:{line_of('old')} returned on a signal of an earlier round: it orders nothing new"
    assert all(at in why and "an epoch" in cure for why, cure in pairs), pairs


@covers("FND-1")
def test_title_and_parties_use_the_name_of_the_argument_and_say_what_was_allocated():
    seen = observe(push, Buf("inbox", 64), SIG, OUT, HOW="none")
    for run in seen.runs:
        (found,) = [f for f in run.findings if f.kind == "tdist.race"]
        assert {p.tensor for p in found.parties} == {"data (allocated as `inbox`)"}
        assert "data (allocated as `inbox`)" in found.title


# ---------------------------------------------------------------- words that nobody initialised

FRESH_SIG = Buf("sig", 64, fill=None)


@triton.jit
def poll(data, sig, out):
    offs = tl.arange(0, 16)
    if dl.rank() == 0:
        tl.store(dl.symm_at(data, 1) + offs, 7)
        shmem_dev.fence()
        dl.notify(sig + 16, 1, signal=1, sig_op="set")
    else:
        token = dl.wait(sig + 16, 1, "gpu", "acquire")  # <poll>
        tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))


def unset(seen: Observed) -> None:
    """Every run found the poll of a fresh word, whether or not the signal had come, and nothing else."""
    for run in seen.runs:
        assert {(f.kind, *sorted(f.lines)) for f in run.found} == {("uninitialised", "poll")}, seen.text()
        (found,) = run.findings
        assert found.title.startswith("uninitialised use: the wait of sig") and "zero_()" in found.cure


@covers("SIG-19")
def test_a_poll_of_a_word_that_nobody_initialised_is_a_finding_on_every_schedule():
    seen = observe(poll, DATA, FRESH_SIG, OUT)
    unset(seen)
    gots = {run.findings[0].got for run in seen.runs}
    assert any(got.startswith("nobody has written it") for got in gots), gots
    assert any(got.startswith("only the notify of rank 0 program 0 at ") for got in gots), gots


@covers("SIG-19")
def test_it_is_found_with_any_poison_and_many_records():
    for poison in (0x5A, 0x01):
        unset(observe(poll, DATA, FRESH_SIG, OUT, world={"poison": poison}))


def test_without_detection_the_poll_that_comes_first_is_found():
    def host(rt, t):
        if rt.rank == 1:
            poll[(1,)](t.data, t.sig, t.out)
        rt.host_barrier()
        if rt.rank == 0:
            poll[(1,)](t.data, t.sig, t.out)

    seen = observe(None, DATA, FRESH_SIG, OUT, host=host, schedules=[("max-sync", 0)])
    assert {f.kind for run in seen.runs for f in run.found} == {"uninitialised"}


@covers("SIG-19")
def test_what_the_host_zeroed_in_part_is_fresh_elsewhere():
    def zero(lo: int, hi: int):
        def host(rt, t):
            t.sig[lo:hi].zero_()
            settle(rt)
            poll[(1,)](t.data, t.sig, t.out)

        return host

    unset(observe(None, DATA, FRESH_SIG, OUT, host=zero(0, 16)))
    observe(None, DATA, FRESH_SIG, OUT, host=zero(16, 17)).clean()


@triton.jit
def clear(sig, ONE: tl.constexpr):
    if ONE:
        tl.store(sig + 16, 0)
    else:
        tl.store(sig + tl.arange(0, 64), 0)


@covers("SIG-19")
def test_a_kernel_may_initialise_it():
    for one in (True, False):

        def host(rt, t, one: Any = one):
            clear[(1,)](t.sig, ONE=one)
            settle(rt)
            poll[(1,)](t.data, t.sig, t.out)

        observe(None, DATA, FRESH_SIG, OUT, host=host).clean()


@covers("SIG-19")
def test_a_signal_that_is_ordered_before_the_poll_initialises_it():
    def host(rt, t):
        if rt.rank == 0:
            poll[(1,)](t.data, t.sig, t.out)
        settle(rt)
        if rt.rank == 1:
            poll[(1,)](t.data, t.sig, t.out)

    observe(None, DATA, FRESH_SIG, OUT, host=host).clean()


@covers("SIG-19")
def test_memory_that_was_used_and_freed_is_fresh_again():
    def host(rt, t):
        used = rt.malloc(256, name="sig")
        rt.tensor(used, (64,), torch.int32).zero_()
        settle(rt)
        rt.free(used)
        again = rt.malloc(256, name="sig")
        assert again == used
        poll[(1,)](t.data, rt.tensor(again, (64,), torch.int32), t.out)

    unset(observe(None, DATA, OUT, host=host))
