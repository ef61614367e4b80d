"""What a stuck world says: who waits for what, who wrote last, who could have, and why it will never come."""

from __future__ import annotations

import pytest
from engine_kit import Driver, HandKernel, site

from tdist.errors import WorldStopped
from tdist.findings import to_text
from tdist.platforms.sim.streams import HostSite

NOTIFY, WAIT, BARRIER, POLL, LOAD = (
    site(3, "notify", "sig"),
    site(4, "wait", "sig"),
    site(5, "barrier_all"),
    site(6, "poll"),
    site(7, "volatile load", "sig"),
)


def run(body, nranks=2, grid=1, ranks=None, sites=(NOTIFY,), sig_bytes=512, second=None, barrier=False, **config):
    driver = Driver(nranks, **config)
    sig = driver.malloc(sig_bytes, "sig")
    kernel = HandKernel(body, second, args=["sig"], sites=sites, barrier=barrier)
    driver.launch(kernel, sig, grid=grid, ranks=ranks)
    driver.results = driver.sync()
    return driver


def only(driver):
    (found,) = driver.findings
    assert all(isinstance(result, WorldStopped) for result in driver.results if result is not None)
    return found, to_text(found, width=400)


def test_a_wait_that_nobody_answers():
    def body(ag, pid, n, sig, sig_al):
        if ag.rank == 1:
            yield from ag.wait(sig + 64, sig_al, 1, 3, 8, "acquire", WAIT)
        yield

    found, text = only(run(body))
    assert found.kind == "tdist.deadlock" and [p.line for p in found.parties] == [4]
    assert found.expected.startswith("3 in element 8 (byte 64) of sig on rank 1, 64-byte line 1, byte 0")
    assert found.got == "0, no signal has written it"
    assert "notify at k.py:3 signals sig: rank 0 is at the end of the launch, which did not write it" in text
    (row,) = found.data["graph"]
    assert (row["rank"], row["tensor"], row["byte"], row["line"], row["expected"], row["actual"]) == (
        1,
        "sig",
        64,
        1,
        3,
        0,
    )


def test_the_last_writer_and_its_value_are_named():
    def body(ag, pid, n, sig, sig_al):
        if ag.rank == 0:
            yield
            ag.notify(sig, sig_al, 5, 1, "set", 8, NOTIFY)
        else:
            yield from ag.wait(sig, sig_al, 1, 6, 8, "acquire", WAIT)

    found, _ = only(run(body))
    assert found.got == "5, last written by rank 0 program 0 at k.py:3"


def test_a_value_that_went_past_is_called_overshoot():
    def body(ag, pid, n, sig, sig_al):
        if ag.rank == 0:
            for i in (1, 2):
                yield
                ag.notify(sig, sig_al, i, 1, "set", 8, NOTIFY)
        else:
            yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)

    found, text = only(run(body))
    assert "the value has passed 1: a later signal came before this poll (overshoot)" in text
    assert found.why.startswith("the word has passed the value") and found.cure.startswith("let the waiter release")


def test_a_value_that_went_past_is_the_cause_and_no_cycle_is_claimed():
    def body(ag, pid, n, sig, sig_al):
        for _ in (1, 2):
            yield
            ag.notify(sig, sig_al, 1, 1 - ag.rank, "add", 8, NOTIFY)
        while sig_al.words(8)[0] != 2:
            yield
        yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)

    found, text = only(run(body))
    assert "each waits for the next" not in text and found.data["cycle"] == []
    assert found.why.startswith("the word has passed the value")
    assert "running total (n × epoch)" in found.cure


def test_a_wait_for_a_reset_is_no_overshoot():
    def body(ag, pid, n, sig, sig_al):
        ag.notify(sig, sig_al, 1, 1 - ag.rank, "set", 8, NOTIFY)
        while sig_al.words(8)[0] != 1:
            yield
        yield from ag.wait(sig, sig_al, 1, 0, 8, "acquire", WAIT)

    found, text = only(run(body))
    assert "passed" not in text and found.why.startswith("each waits for the next")


def test_a_host_write_that_wiped_a_signal_is_named():
    def body(ag, pid, n, sig, sig_al):
        if ag.rank == 0:
            yield
            ag.notify(sig, sig_al, 1, 1, "set", 8, NOTIFY)
        else:
            yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)

    driver = Driver(2)
    sig = driver.malloc(64, "sig")
    kernel = HandKernel(body, args=["sig"], sites=(NOTIFY,))
    driver.launch(kernel, sig, ranks=[0])
    driver.sync()
    driver.zero(sig, 64, ranks=[1])
    driver.launch(kernel, sig, ranks=[1])
    driver.sync()
    assert sorted(driver.kinds()) == ["deadlock", "race"]  # the signal and the host write are unordered
    found = next(found for found in driver.findings if found.kind == "tdist.deadlock")
    text = to_text(found, width=400)
    assert "no signal has written it" not in text
    assert "a signal had come (1 by rank 0 program 0 at k.py:3), and the zero_ of rank 1's host at h.py:50" in text
    assert found.why == "the signal had come, and a plain or host write replaced it before the wait saw it"
    assert found.cure.startswith("zero signals before anybody may signal them")


def test_a_store_of_a_kernel_that_wiped_a_signal_is_named():
    def body(ag, pid, n, sig, sig_al):
        if ag.rank == 0:
            ag.notify(sig, sig_al, 1, 1, "set", 8, NOTIFY)
            yield
            return
        while sig_al.words(8)[0] != 1:
            yield
        ag.wr(sig_al, 0, 1, 0, 8, site(8, "store", "sig"))
        sig_al.words(8)[0] = 0
        yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)

    text = "\n".join(to_text(found, width=400) for found in run(body).findings)
    assert "a signal had come (1 by rank 0 program 0 at k.py:3), and a plain write replaced it" in text
    assert "plain writes to it: the store of rank 1 program 0 at k.py:8" in text


def test_a_store_that_took_a_signal_back_after_it_was_seen_is_not_the_cause():
    def body(ag, pid, n, sig, sig_al):
        if ag.rank == 0:
            ag.notify(sig, sig_al, 1, 1, "set", 8, NOTIFY)
            yield
            return
        for _ in range(2):
            yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
            ag.wr(sig_al, 0, 1, 0, 8, site(8, "store", "sig"))
            sig_al.words(8)[0] = 0

    found = next(found for found in run(body).findings if found.kind == "tdist.deadlock")
    assert found.why == "no agent that can still run writes what is waited for"
    assert "a signal had come (1 by rank 0 program 0 at k.py:3)" in found.got


def test_packed_slots_show_the_slot_arithmetic():
    def body(ag, pid, n, sig, sig_al):
        if ag.rank == 0:
            for slot in (0, 1):
                yield
                ag.notify(sig + 8 * slot, sig_al, 1, 1, "set", 8, NOTIFY)
        else:
            yield from ag.wait(sig, sig_al, 2, 1, 8, "acquire", WAIT)

    driver = run(body)
    found, text = only(driver)
    assert found.data["graph"][0]["slot"] == 1
    assert "element 1 holds 1: that is slot 1 of a packed array, but slots are 8 elements apart" in text
    assert (
        "element 1 (56 bytes before), for which nobody has waited, was written: 1 by rank 0 program 0 at k.py:3" in text
    )


def test_signals_that_others_wait_for_are_not_named():
    """A wrong count: every slot got its signals, and the neighbours' are nobody's mistake."""

    def body(ag, pid, n, sig, sig_al):
        slot = sig + 64 * pid[0]
        ag.notify(slot, sig_al, 1, 1 - ag.rank, "set", 8, NOTIFY)
        yield from ag.wait(slot, sig_al, 1, 1 if pid[0] else 2, 8, "acquire", WAIT)

    found, text = only(run(body, grid=3))
    assert found.data["waiting"] == 2
    assert "waits for 2; it is 1, last written by rank 1 program 0 at k.py:3" in found.parties[0].note
    assert "nobody has waited" not in text and "signals sig" not in text


def test_a_notify_that_comes_after_the_wait_is_named_as_blocked():
    def body(ag, pid, n, sig, sig_al):
        yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", site(2, "wait"))
        ag.notify(sig, sig_al, 1, 1 - ag.rank, "set", 8, NOTIFY)

    _, text = only(run(body))
    assert "notify at k.py:3 signals sig: ranks 0, 1 are blocked before it, at k.py:2" in text


def test_two_ranks_that_wait_first_are_a_cycle():
    def body(ag, pid, n, sig, sig_al):
        yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
        ag.notify(sig, sig_al, 1, 1 - ag.rank, "set", 8, NOTIFY)

    found, _ = only(run(body))
    assert {p.rank for p in found.parties} == {0, 1}
    assert found.why == "each waits for the next: rank 0 at k.py:4 → rank 1 at k.py:4 → rank 0 at k.py:4"
    assert found.title.startswith("deadlock: 2 of 2 agents wait")


def test_many_blocked_programs_of_one_line_are_one_party_a_rank():
    def body(ag, pid, n, sig, sig_al):
        yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)

    found, _ = only(run(body, nranks=3, grid=7))
    assert [p.rank for p in found.parties] == [0, 1, 2]
    assert found.data["waiting"] == 21 and len(found.data["graph"]) == 21


def test_a_wait_beside_a_barrier_is_the_deadlock_and_not_a_divergence():
    def body(ag, pid, n, sig, sig_al):
        if ag.rank == 0:
            yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
        yield from ag.barrier("all", BARRIER)

    found, text = only(run(body, barrier=True))
    assert found.kind == "tdist.deadlock"
    assert [p.line for p in found.parties] == [4, 5] and "waits at barrier_all number 0" in text


# ---------------------------------------------------------------- polling loops


def polling(reads, carried=lambda i, value: (value,), limit=None):
    def body(ag, pid, n, sig, sig_al):
        if ag.rank == 0:
            for _ in range(10):
                yield
            if reads == "signalled":
                ag.notify(sig, sig_al, 1, 1, "set", 8, NOTIFY)
            return
        i, value = 0, 0
        while value != 1 and i != limit:
            yield
            if reads == "cas":
                value = ag.atomic(sig, sig_al, "cas", (1, 1), 8, "int", "acq_rel", "gpu", True, LOAD)
            elif reads == "add":
                value = ag.atomic(sig, sig_al, "add", 0, 8, "int", "acq_rel", "gpu", True, LOAD)
            elif reads == "plain":
                value = int(sig_al.words(8)[0])
            else:
                value = ag.volatile_load(sig, sig_al, 8, None, LOAD)
            i += 1
            yield from ag.poll(carried(i, value), POLL)

    return body


@pytest.mark.parametrize("scheduler", ["run-to-block", "random", "max-sync"])
@pytest.mark.parametrize("reads", ["volatile", "cas", "add", "plain"])
def test_a_loop_that_changes_nothing_is_blocked(reads, scheduler):
    driver = run(polling(reads), scheduler=scheduler)
    found, _ = only(driver)
    assert found.kind == "tdist.deadlock" and [p.line for p in found.parties] == [6]
    assert driver.engine.steps < 100, "blocked, not spinning"


def test_a_signal_wakes_a_polling_loop():
    assert run(polling("signalled")).findings == []


def test_a_plain_store_wakes_polls_and_waits():
    def body(ag, pid, n, sig, sig_al):
        if ag.rank == 0:
            for _ in range(3):
                yield
            peer = sig_al.peers[1]
            peer.words(8)[0] = 1
        elif ag.program == 0:
            yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)
        else:
            value = 0
            while value != 1:
                yield
                value = ag.volatile_load(sig, sig_al, 8, None, LOAD)
                yield from ag.poll((value,), POLL)

    for detect in (True, False):
        assert run(body, grid=2, detect=detect).findings == []


def test_a_counter_with_a_bound_ends_by_itself():
    assert run(polling("volatile", carried=lambda i, value: (i, value), limit=500)).findings == []


def test_a_counter_without_a_bound_is_a_deadlock(monkeypatch):
    monkeypatch.setattr("tdist.platforms.sim.engine._IDLE_POLLS", 2000)
    found, text = only(run(polling("volatile", carried=lambda i, value: (i, value))))
    assert found.kind == "tdist.deadlock" and "have no bound in sight" in text
    assert [p.line for p in found.parties] == [6]


def test_two_spinners_that_wait_for_each_others_plain_stores_do_not_keep_each_other_alive():
    def body(ag, pid, n, sig, sig_al):
        value = 0
        while value != 1:
            value = int(sig_al.words(8)[0])
            yield from ag.poll((value,), POLL)

    driver = run(body)
    found, _ = only(driver)
    assert found.data["waiting"] == 2 and driver.engine.steps < 50


# ---------------------------------------------------------------- barriers and cores


def test_an_agent_that_ended_is_named_at_once():
    def body(ag, pid, n, sig, sig_al):
        if (ag.rank, pid[0]) == (1, 2):
            return
        yield from ag.barrier("all", BARRIER)

    found, text = only(run(body, grid=3, barrier=True))
    assert found.kind == "tdist.barrier-divergence"
    assert "rank 1, program 2 ended or returned before it" in found.why
    assert "1 of 6 participants" in found.title and "launch of body" in text


def test_one_barrier_less_is_named_too():
    def body(ag, pid, n, sig, sig_al):
        yield from ag.barrier("all", BARRIER)
        if pid[0] == 0:
            yield from ag.barrier("all", site(15, "barrier_all"))

    found, _ = only(run(body, grid=2, barrier=True))
    assert "number 1" in found.title and "program 1 ended" in found.why


def test_all_second_cores_that_a_gate_keeps_away_are_counted():
    def main(ag, pid, n, sig, sig_al):
        yield
        yield from ag.barrier("all", BARRIER)

    def second(ag, pid, n, sig, sig_al):
        yield

    found, text = only(run(main, second=second, grid=3, barrier=True))
    assert found.title == "barrier divergence: 6 of 12 participants never reach barrier_all number 0"
    assert "rank 0, programs 0, 1, 2: their second vector cores ended without it" in found.why
    assert "rank 1, programs 0, 1, 2: their second vector cores ended without it" in found.why
    assert found.got == "6 there, 6 that can no longer come"
    assert len(found.parties) == 4, text


def test_a_divergence_is_not_lost_when_another_fault_ends_the_run():
    def body(ag, pid, n, sig, sig_al):
        if pid[0]:
            yield from ag.wait(sig, sig_al, 1, pid[0], 8, "acquire", WAIT)
        if pid[0] < 2:
            ag.notify(sig, sig_al, pid[0] + 1, ag.rank, "set", 8, NOTIFY)
        if pid[0] == 0:
            yield from ag.barrier("all", BARRIER)
        if pid[0] == 2:
            ag.assert_(False, "boom", site(20, "device_assert"))

    driver = run(body, grid=3, barrier=True)
    assert set(driver.kinds()) == {"barrier-divergence", "kernel-assert"}


def test_a_gated_barrier_says_so():
    def main(ag, pid, n, sig, sig_al):
        yield from ag.barrier("all", BARRIER)

    def second(ag, pid, n, sig, sig_al):
        yield

    found, _ = only(run(main, second=second, barrier=True))
    assert "second vector core ended without it (gated by sub_vec_id()?)" in found.why


def test_two_kinds_of_barrier_do_not_meet():
    def body(ag, pid, n, sig, sig_al):
        yield from ag.barrier("all_vec" if ag.rank else "all", BARRIER if ag.rank else site(15, "barrier_all"))

    found, _ = only(run(body, barrier=True))
    assert found.kind == "tdist.barrier-divergence" and "barrier_all_vec while others are at barrier_all" in found.why


def test_a_rank_that_never_launched_is_found_when_nothing_else_can_run():
    def body(ag, pid, n, sig, sig_al):
        yield from ag.barrier("all", BARRIER)

    found, _ = only(run(body, nranks=3, ranks=[0, 2], barrier=True))
    assert found.kind == "tdist.barrier-divergence"
    assert "rank 1 never reaches it: it launched no kernel and its host is in collective" in found.why


def test_a_rank_that_is_gone_is_a_divergence_at_once():
    def body(ag, pid, n, sig, sig_al):
        yield from ag.barrier("all", BARRIER)

    driver = Driver(2)
    driver.launch(HandKernel(body, barrier=True), driver.malloc(64, "sig"), ranks=[0])
    driver.engine.synchronize(1, lambda value: None)
    driver.engine.synchronize(0, lambda value: None)
    driver.engine.run()
    assert driver.findings == []
    driver.engine.end(1)
    assert driver.kinds() == ["barrier-divergence"] and "rank 1 is gone: its host has ended" in driver.findings[0].why


def test_a_later_launch_may_bring_the_barrier():
    """Rank 1 runs a kernel without barrier first: no divergence when that ends."""

    def plain(ag, pid, n, sig, sig_al):
        yield

    def body(ag, pid, n, sig, sig_al):
        yield from ag.barrier("all", BARRIER)

    driver = Driver(2)
    sig = driver.malloc(64, "sig")
    driver.launch(HandKernel(body, barrier=True), sig, ranks=[0])
    driver.launch(HandKernel(plain), sig, ranks=[1])
    driver.launch(HandKernel(body, barrier=True), sig, ranks=[1])
    driver.sync()
    assert driver.findings == []


def test_a_grid_beyond_the_cores_is_named_with_cores_and_mode():
    def body(ag, pid, n, sig, sig_al):
        yield from ag.barrier("all", BARRIER)

    found, _ = only(run(body, nranks=1, grid=5, barrier=True, cube_cores=3))
    assert found.kind == "tdist.grid-too-large"
    assert found.title == "grid too large: 5 programs need 5 cores at once, the card has 3"
    assert found.expected == "at most 3 programs (cv1:2, cube cores)" and "2 never started" in found.got


def test_a_spin_wait_for_a_program_beyond_the_cores_names_both():
    def body(ag, pid, n, sig, sig_al):
        if pid[0] == n[0] - 1:
            yield
            ag.notify(sig, sig_al, 1, 0, "set", 8, NOTIFY)
        else:
            yield from ag.wait(sig, sig_al, 1, 1, 8, "acquire", WAIT)

    assert run(body, nranks=1, grid=3, vector_cores=2).kinds() == ["grid-too-large", "deadlock"]
    assert run(body, nranks=1, grid=3, vector_cores=3).kinds() == []


# ---------------------------------------------------------------- hosts


def test_a_rank_that_skips_a_collective_is_a_deadlock_of_hosts():
    driver = Driver(2)
    got = []
    driver.engine.collective(0, (0, 1), 0, "barrier", got.append, HostSite("h.py", 9))
    driver.engine.end(1)
    driver.engine.run()
    (found,) = driver.findings
    assert found.kind == "tdist.deadlock" and [p.line for p in found.parties] == [9]
    assert found.got == "rank 0: its host is in collective; rank 1: its host has ended"
    assert isinstance(got[0], WorldStopped)


def test_different_collectives_do_not_meet():
    driver = Driver(2)
    for rank, kind in enumerate(("barrier", "all_reduce")):
        driver.engine.collective(rank, (0, 1), 0, kind, lambda value: None, HostSite("h.py", rank))
    driver.engine.run()
    assert driver.kinds() == ["host-error"] and "all_reduce, barrier" in driver.findings[0].title


def test_a_malloc_that_one_rank_never_makes_is_asymmetric():
    driver = Driver(2)
    driver.engine.malloc(0, 64, 16, "x", HostSite("h.py", 1), lambda value: None)
    driver.engine.end(1)
    driver.engine.run()
    (found,) = driver.findings
    assert found.kind == "tdist.asymmetric-alloc" and "rank 1: its host has ended" in found.got


def test_collectives_of_subgroups_complete_by_themselves():
    driver = Driver(4)
    done = []
    for rank in range(4):
        group = (0, 2) if rank % 2 == 0 else (1, 3)
        driver.engine.collective(rank, group, 0, "barrier", lambda value, rank=rank: done.append(rank))
    driver.engine.run()
    assert sorted(done) == [0, 1, 2, 3] and driver.findings == []
