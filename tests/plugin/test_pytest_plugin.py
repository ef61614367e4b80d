"""The pytest plugin from outside: what a user's test session sees."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

KERNELS = """
import pytest
import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from triton_dist.language.extra import libshmem_device
from tdist.verify import ensure_shmem
import shmem as ash


@triton.jit
def push_kernel(x_ptr, out_ptr, box_ptr, signal_ptr, n, WAIT: tl.constexpr, BLOCK: tl.constexpr):
    rank = dl.rank()
    world = dl.num_ranks()
    peer = (rank + 1) % world
    offs = tl.arange(0, BLOCK)
    tl.store(dl.symm_at(box_ptr, peer) + offs, tl.load(x_ptr + offs, mask=offs < n, other=0), mask=offs < n)
    libshmem_device.fence()
    dl.notify(signal_ptr, peer, signal=1, sig_op="set")
    if WAIT:
        token = dl.wait(signal_ptr, 1, "npu", "acquire", waitValue=1)
        box_ptr = dl.consume_token(box_ptr, token)
    tl.store(out_ptr + offs, tl.load(box_ptr + offs, mask=offs < n, other=0), mask=offs < n)


def ring(rt, wait):
    ensure_shmem(rt)
    n = 24
    box = ash.aclshmem_create_tensor((n,), dtype=torch.float32)
    signal = ash.aclshmem_create_tensor((32,), dtype=torch.int32)
    signal.zero_()
    rt.synchronize()
    rt.host_barrier()
    x = torch.arange(n, dtype=torch.float32) + 100 * rt.rank
    out = torch.empty(n)
    push_kernel[(1,)](x, out, box, signal[16:], n, WAIT=wait, BLOCK=32)
    rt.synchronize()
    return out.clone()
"""


@pytest.fixture
def session(pytester, python, monkeypatch):
    """A test session of its own on a file with the ring kernel and the given tests."""

    def start(command, *, stdout, stderr, **_):
        return python.start(command, stdout=stdout.fileno(), stderr=stderr.fileno(), cwd=pytester.path)

    monkeypatch.setattr(pytester, "popen", start)
    return _session(pytester, "-p", "no:hypothesispytest")


@pytest.fixture
def started_session(pytester):
    """The same in a process that the operating system starts."""
    return _session(pytester)


def _session(pytester, *plugins):
    pytester.makeini("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")

    def run(tests, *args):
        pytester.makepyfile(test_users=KERNELS + tests)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *plugins, *args)

    return run


def test_a_correct_kernel_passes_on_as_many_ranks_as_asked_for(started_session):
    result = started_session(
        """
def test_ring(ranks):
    results = ranks.run(ring, True)
    assert len(results) == ranks.nranks == 3
    for rank, out in enumerate(results):
        assert out.tolist() == [i + 100 * ((rank - 1) % 3) for i in range(24)]
""",
        "--nranks",
        "3",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["tdist: nranks 3, seed 0"])


def test_a_race_fails_the_test_with_both_lines_and_a_replay_line(session):
    result = session("def test_ring(ranks):\n    ranks.run(ring, False)\n", "--tdist-seed", "5")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*tdist.race*", "*test_users.py:17*", "*test_users.py:23*"])
    result.stdout.fnmatch_lines(["*pytest *test_users.py::test_ring* --nranks 4 --sync fine --tdist-seed 5*"])
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_findings_can_be_asked_for_instead(session):
    result = session(
        """
def test_ring(ranks):
    ranks.run(ring, False, check=False)
    assert {f.kind for f in ranks.findings if f.fails("seed")} == {"tdist.race"}
"""
    )
    result.assert_outcomes(passed=1)


def test_the_marker_wins_over_the_options_and_both_modes_are_two_tests(session):
    result = session(
        """
@pytest.mark.tdist(nranks=2, sync="both")
def test_ring(ranks):
    assert ranks.nranks == 2
    assert len(ranks.run(ring, True)) == 2
""",
        "--nranks",
        "5",
        "-v",
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_ring?fine?*PASSED*", "*test_ring?barrier?*PASSED*"])


def test_an_operator_is_verified(session):
    result = session(
        """
def test_all_gather(ranks):
    report = ranks.verify("all_gather", dtype="fp16", shape={"m": 10, "n": 12})
    assert report.passed
""",
        "--nranks",
        "3",
        "--sync",
        "both",
    )
    result.assert_outcomes(passed=2)


def test_a_host_exception_is_the_tests_own(session):
    result = session(
        """
def bad(rt):
    raise LookupError(f"rank {rt.rank} has no luck")

def test_bad(ranks):
    ranks.run(bad)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*LookupError: rank 0 has no luck*"])


def test_it_works_under_xdist(started_session):
    pytest.importorskip("xdist")
    result = started_session(
        """
@pytest.mark.parametrize("turn", range(4))
def test_ring(ranks, turn):
    assert ranks.nranks == 2 and ranks.seed == 9
    ranks.run(ring, True)
""",
        "-n2",
        "--nranks",
        "2",
        "--tdist-seed",
        "9",
    )
    result.assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("tests", "args", "text"),
    [
        ("", ("--nranks", "0"), "between 1 and 128, got 0"),
        ("", ("--nranks", "many"), "invalid int value: 'many'"),
        ("", ("--sync", "fien"), "invalid choice: 'fien'"),
        ("", ("--tdist-seed", "-4"), "seed has to be 0 or more, got -4"),
        ("@pytest.mark.tdist(ranks=3)\ndef test_x(ranks): ...", (), "does not take ranks; it is tdist(nranks=N"),
        ("@pytest.mark.tdist(3)\ndef test_x(ranks): ...", (), "does not take positional arguments"),
        ("@pytest.mark.tdist(sync='fien')\ndef test_x(ranks): ...", (), "sync has to be one of fine, barrier, both"),
        ("@pytest.mark.tdist(nranks=0)\ndef test_x(ranks): ...", (), "between 1 and 128, got 0"),
    ],
)
def test_wrong_use_is_told_without_our_frames(session, tests, args, text):
    result = session(tests, *args)
    assert result.ret != 0
    assert text in result.stdout.str() + result.stderr.str()
    assert "pytest_plugin.py" not in result.stdout.str() + result.stderr.str()


def test_wrong_use_in_one_test_is_told_by_that_test_alone(session):
    result = session(
        """
import pytest

@pytest.mark.tdist(nranks="3")
def test_text(ranks): ...

@pytest.mark.tdist(nranks=True)
def test_truth(ranks): ...

@pytest.mark.tdist(profile="npu")
def test_profile(ranks): ...

def test_good(ranks):
    assert ranks.nranks == 4
"""
    )
    result.assert_outcomes(passed=1, errors=3)
    result.stdout.fnmatch_lines(["*test_text*the number of ranks has to be between 1 and 128, got '3'"])
    result.stdout.fnmatch_lines(["*test_truth*the number of ranks has to be between 1 and 128, got True"])
    result.stdout.fnmatch_lines(["*test_profile*profile has to be one of seed, ascend, got 'npu'"])


def test_a_tests_marker_adds_to_that_of_its_class(session):
    result = session(
        """
import pytest

@pytest.mark.tdist(nranks=2, seed=5)
class TestAll:
    @pytest.mark.tdist(seed=7)
    def test_both(self, ranks):
        assert (ranks.nranks, ranks.seed) == (2, 7)
"""
    )
    result.assert_outcomes(passed=1)


def test_a_session_that_does_not_use_it_pays_nothing(pytester):
    pytester.makepyfile(
        """
import sys

def test_light():
    assert not {"torch", "triton", "xdsl", "numpy", "rich"} & set(sys.modules)
"""
    )
    pytester.runpytest_subprocess("-p", "no:hypothesispytest").assert_outcomes(passed=1)


def test_the_plugin_is_found_by_its_entry_point():
    shown = subprocess.run([sys.executable, "-m", "pytest", "--help"], capture_output=True, text=True, check=True)
    assert all(option in shown.stdout for option in ("--nranks", "--platform", "--sync", "--tdist-seed"))


def test_an_operator_can_be_put_through_the_vendors_compiler(session):
    result = session(
        """
from tdist.verify import operator


@triton.jit
def fill_kernel(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.full((BLOCK,), 1.0, tl.float32))


def fill(rt, case):
    out = torch.zeros(case["n"])
    fill_kernel[(1,)](out, BLOCK=case["n"])
    return out


def ones(case, rank, inputs):
    return torch.ones(case["n"])


declare = operator(
    shape={"n": 16}, dtypes=("fp32",), inputs=lambda *at: {}, golden=lambda *at: None, golden_local=ones, policy="exact"
)


@pytest.mark.parametrize("n", [16, 65536 * 4])
def test_compiled(ranks, n):
    report = ranks.verify(declare(fill), shape={"n": n}, compile_for="Ascend910B3", barrier_all_sync="true")
    assert report.compiled.report.passed
""",
        "--nranks",
        "2",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*does not fit into UB: it needs 1048576 bytes, 196608 are there*"])
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_a_suppressed_finding_passes_and_is_shown_with_its_reason(session):
    result = session(
        """
@pytest.mark.tdist(suppress={"race": "the consumer is known to be late"})
def test_ring(ranks):
    ranks.run(ring, False)
    assert [finding.data["suppressed_severity"] for finding in ranks.findings if finding.kind == "tdist.race"]
""",
        "-rA",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*suppressed by tdist*", "tdist.race: data race*: the consumer is known to be late"])


def test_suppressions_that_cannot_be_are_refused(session):
    wrong = {
        '{"rase": "x"}': "there is no finding 'rase' (did you mean 'race'?)",
        '{"race": ""}': "race needs a reason",
        '{"tdist.*": "x"}': "no wildcards",
        '["race"]': "suppress has to be a dict",
    }
    tests = [f"@pytest.mark.tdist(suppress={text})\ndef test_{index}(ranks): ...\n" for index, text in enumerate(wrong)]
    result = session("".join(tests))
    result.assert_outcomes(errors=len(wrong))
    for told in wrong.values():
        assert told in result.stdout.str()
