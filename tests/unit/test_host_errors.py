"""What host functions raise: told once for the ranks that share it, at the place in the user's source."""

from __future__ import annotations

import pytest

from tdist.errors import KernelError, TdistError
from tdist.findings import Finding, FindingLog, Party
from tdist.platforms.sim.host_errors import HostError, HostErrors
from tdist.platforms.sim.process.wire import error_from_json, error_to_json

BROKEN = HostError("KernelError: k.py:7:4: no such name\n    tl.stor(x)\n    ^", ("k.py", 7))
ERRORS = (KernelError("no").at(("k.py", 7)), TdistError("no").at(("k.py", None)), KernelError("no"))


def told(nranks: int, *errors: tuple[int, HostError]) -> list[Finding]:
    log = FindingLog()
    hosts = HostErrors(nranks, log)
    for rank, error in errors:
        hosts.add(Party(rank), error)
    assert all(log.count(finding) == 1 for finding in log)
    return log.findings


def test_an_error_of_all_ranks_is_one_finding_at_its_own_place():
    (found,) = told(2, (1, BROKEN), (0, BROKEN))
    assert found.title == "host error on all ranks: KernelError: k.py:7:4: no such name"
    (party,) = found.parties
    assert (party.rank, party.at, party.who) == (0, "k.py:7", "all ranks, host side")
    assert party.note == "    tl.stor(x)\n    ^" and found.data["ranks"] == [0, 1]
    assert found.why == "no rank could go on"


def test_one_rank_of_several_is_named():
    (found,) = told(3, (1, BROKEN))
    assert found.title.startswith("host error on rank 1: ") and "the other ranks" in found.why
    (found,) = told(3, (2, BROKEN), (0, BROKEN))
    assert found.title.startswith("host error on ranks 0, 2: ")


def test_other_texts_at_one_place_are_kept_as_remarks():
    (found,) = told(2, (0, HostError("a", ("k.py", 7))), (1, HostError("b", ("k.py", 7))))
    assert found.title == "host error on all ranks: a" and found.parties[0].note == "rank 1: b"


def test_without_a_place_the_text_tells_errors_apart():
    titles = [found.title for found in told(2, (0, HostError("a")), (1, HostError("b")))]
    assert titles == ["host error on rank 0: a", "host error on rank 1: b"]
    (found,) = told(2, (0, HostError("a")), (1, HostError("a")))
    assert found.title == "host error on all ranks: a"


def test_after_forgetting_a_rank_is_told_anew():
    log = FindingLog()
    hosts = HostErrors(2, log)
    hosts.add(Party(0), BROKEN)
    hosts.forget()
    hosts.add(Party(1), BROKEN)
    (found,) = log
    assert log.count(found) == 2 and "rank 0" in found.title


@pytest.mark.parametrize("error", ERRORS, ids=["line", "file", "nowhere"])
def test_an_error_keeps_its_place_on_its_way_between_processes(error):
    again = error_from_json(error_to_json(error))
    assert isinstance(again, TdistError) and (type(again), again.place) == (type(error), error.place)
