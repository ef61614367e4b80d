"""pytest plugin: run a test's function on N simulated ranks, or verify an operator in a test.

    @pytest.mark.tdist(nranks=3, sync="both")
    def test_ring(ranks):
        ranks.run(host)                          # findings fail the test, with the full report
        ranks.verify("all_gather", dtype="fp16")

Options `--nranks, --platform, --sync, --tdist-seed` set what the marker leaves open. Loading the plugin imports neither
torch nor triton; a test session that never asks for `ranks` pays nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tdist.findings import Finding
    from tdist.verify.modes import Mode
    from tdist.verify.operator import Operator
    from tdist.verify.run import Report

_SYNC = ("fine", "barrier", "both")
_PLATFORMS = ("sim",)
_PROFILES = ("seed", "ascend")
_MARKER = (
    "tdist(nranks=N, sync='fine'|'barrier'|'both', seed=S, schedule=NAME, profile='seed'|'ascend', "
    "suppress={ID: REASON})"
)
_MARKER_KEYS = ("nranks", "sync", "seed", "schedule", "profile", "suppress")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that decide what a marker leaves open."""
    group = parser.getgroup("tdist", "simulated ranks")
    group.addoption("--nranks", type=int, default=4, metavar="N", help="ranks of tests that use `ranks` (default: 4)")
    group.addoption("--platform", choices=_PLATFORMS, default="sim", help="where the ranks run (default: sim)")
    group.addoption("--sync", choices=_SYNC, default="fine", help="mode of tests that use `ranks` (default: fine)")
    group.addoption("--tdist-seed", type=int, default=0, metavar="S", help="seed of schedules and inputs (default: 0)")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; refuse numbers that no world can have."""
    config.addinivalue_line("markers", f"{_MARKER}: ranks and mode of a test that uses the `ranks` fixture")
    _check_numbers(config.getoption("--nranks"), config.getoption("--tdist-seed"))


def _check_numbers(nranks: Any, seed: Any, where: str = "") -> None:
    from tdist.verify.operator import MAX_RANKS

    if not _is_integer(nranks) or not 1 <= nranks <= MAX_RANKS:
        raise pytest.UsageError(f"{where}the number of ranks has to be between 1 and {MAX_RANKS}, got {nranks!r}")
    if not _is_integer(seed) or seed < 0:
        raise pytest.UsageError(f"{where}the tdist seed has to be 0 or more, got {seed!r}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def pytest_report_header(config: pytest.Config) -> str:
    """Ranks and seed of this session, so that a log is enough to repeat it."""
    return f"tdist: nranks {config.getoption('--nranks')}, seed {config.getoption('--tdist-seed')}"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, None]:
    """Let a test module import `triton_dist`, `shmem` and the CANN extension, itself or through what it imports."""
    if not isinstance(collector, pytest.Module):
        yield
        return
    from tdist import importer

    with importer.on_demand():
        yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each mode that marker or option ask for."""
    if "ranks" not in metafunc.fixturenames:
        return
    try:
        sync = _settings(metafunc.config, metafunc.definition)["sync"]
    except pytest.UsageError:
        sync = "fine"  # the fixture says what is wrong: to that test, not to the module's others
    modes = ("fine", "barrier") if sync == "both" else (sync,)
    metafunc.parametrize("ranks", modes, indirect=True)


def _settings(config: pytest.Config, node: Any) -> dict[str, Any]:
    """What the markers say, the nearest first (a test's, its class's, its module's), and the options for the rest."""
    markers = list(node.iter_markers("tdist"))
    given = {key: value for marker in reversed(markers) for key, value in marker.kwargs.items()}
    unknown = sorted(set(given) - set(_MARKER_KEYS))
    if unknown or any(marker.args for marker in markers):
        wrong = ", ".join(unknown) or "positional arguments"
        raise pytest.UsageError(f"{node.nodeid}: @pytest.mark.tdist does not take {wrong}; it is {_MARKER}")
    settings = {
        "nranks": config.getoption("--nranks"),
        "sync": config.getoption("--sync"),
        "seed": config.getoption("--tdist-seed"),
        "schedule": "",
        "profile": "seed",
        "suppress": {},
        **given,
    }
    _check_suppressions(settings["suppress"], node.nodeid)
    for key, words in (("sync", _SYNC), ("profile", _PROFILES)):
        if settings[key] not in words:
            raise pytest.UsageError(f"{node.nodeid}: {key} has to be one of {', '.join(words)}, got {settings[key]!r}")
    _check_numbers(settings["nranks"], settings["seed"], f"{node.nodeid}: ")
    return settings


def _check_suppressions(suppress: Any, where: str) -> None:
    if not suppress:
        return
    from tdist.errors import UsageError
    from tdist.verify.suppressions import parse_suppressions

    if not isinstance(suppress, dict):
        raise pytest.UsageError(f"{where}: suppress has to be a dict of finding ids and reasons, got {suppress!r}")
    try:
        parse_suppressions([f"{name}={reason}" for name, reason in suppress.items()])
    except UsageError as error:
        raise pytest.UsageError(f"{where}: {str(error).replace('--suppress', 'suppress')}") from error


@pytest.fixture(scope="session")
def _warm_processes() -> Iterator[None]:
    """Rank processes of one test leave their fork server to the next."""
    from tdist.platforms.sim.process import warm

    with warm.keeping():
        yield


@pytest.fixture
def ranks(request: pytest.FixtureRequest, _warm_processes: None) -> Iterator[Ranks]:
    """N simulated ranks in one mode; see `Ranks`. The test may import users' names."""
    from tdist import importer

    try:
        settings = _settings(request.config, request.node)
    except pytest.UsageError as error:
        pytest.fail(str(error), pytrace=False)
    with importer.on_demand():
        yield Ranks(request.node, settings, request.param)


class Ranks:
    """What the `ranks` fixture gives to a test.

    Attributes:
        nranks: number of ranks.
        sync: "fine" or "barrier", the mode of this test.
        findings: what the last `run` or `verify` found.
    """

    def __init__(self, node: Any, settings: dict[str, Any], sync: str) -> None:
        self.nranks: int = settings["nranks"]
        self.sync = sync
        self.seed: int = settings["seed"]
        self.profile: str = settings["profile"]
        self.findings: list[Finding] = []
        self._schedule: str = settings["schedule"]
        self._suppress: dict[str, str] = settings["suppress"]
        self._node = node

    @property
    def replay(self) -> str:
        """The command line that runs this test again as it ran now."""
        words = ["pytest", self._node.nodeid, "--nranks", str(self.nranks), "--sync", self.sync]
        return shlex.join([*words, "--tdist-seed", str(self.seed)])

    def run(self, fn: Callable[..., Any], *args: Any, check: bool = True, **config: Any) -> list[Any]:
        """Run `fn(rt, *args)` on each rank of a fresh world.

        Args:
            check: whether errors (and, under profile `ascend`, hazards) fail the test.
            config: further fields of `WorldConfig`.

        Returns:
            What `fn` returned, by rank.
        """
        __tracebackhide__ = True
        from tdist.errors import WorldStopped
        from tdist.platforms.sim.world import World

        mode = self._mode()
        chosen = {
            "scheduler": mode.schedule,
            "seed": self.seed,
            "profile": self.profile,
            "drained": mode.drained,
            **config,
        }
        with World(nranks=self.nranks, **chosen) as world:
            results = world.run(fn, *args)
            self.findings = self._accepted(world.findings)
        if check:
            self._fail_for_findings()
            stopped = [result for result in results if isinstance(result, WorldStopped)]
            if stopped:
                pytest.fail(f"{stopped[0]}\nreplay: {self.replay}", pytrace=False)
        return results

    def verify(self, operator: Operator | str, *, check: bool = True, **options: Any) -> Report:
        """Verify an operator on these ranks in this mode; a verdict other than "verified" fails the test.

        Args:
            operator: a declared operator, a built-in's name, or `path/to/file.py::name`.
            check: whether a failed verification fails the test.
            options: fields of `tdist.verify.Options`; `dtype`, `compile_for` and `situations` may be texts as on the
                command line. `search=False` leaves out the many schedules, `seeds=1` has fewer of them.
                `compile_for="Ascend910B3"` puts what the operator launches through the vendor's compiler as well.
        """
        __tracebackhide__ = True
        from tdist.verify.loader import load_operator
        from tdist.verify.options import Options
        from tdist.verify.run import verify

        declared = load_operator(operator) if isinstance(operator, str) else operator
        spec = operator if isinstance(operator, str) else f"{declared.source}::{declared.name}"
        for name in ("dtype", "compile_for", "situations"):
            if isinstance(options.get(name), str):
                options[name] = tuple(options[name].split(","))
        mine = {"nranks": self.nranks, "sync": self.sync, "seed": self.seed, "profile": self.profile}
        options["suppress"] = {**self._suppress, **options.get("suppress", {})}
        chosen = Options(spec, **{**mine, "schedule": self._schedule, **options})
        report = verify(declared, chosen, in_process=declared.golden_local is not None)
        self.findings = [finding for result in report.modes for finding in result.log]
        self._note_suppressed()
        if check and not report.passed:
            pytest.fail(f"{_rendered(report)}\nthis test: {self.replay}", pytrace=False)
        return report

    def _accepted(self, findings: list[Finding]) -> list[Finding]:
        """The findings, suppressed ones as notes; what is suppressed stands in the test's report (`pytest -rA`)."""
        from tdist.verify.suppressions import Suppression, accept, full_id

        reasons = [Suppression(full_id(name, "suppress"), why, "the marker") for name, why in self._suppress.items()]
        self.findings = list(accept(findings, reasons))
        self._note_suppressed()
        return self.findings

    def _note_suppressed(self) -> None:
        shown = [f for f in self.findings if "suppressed" in f.data]
        if shown:
            text = "\n".join(f"{f.kind}: {f.title}: {f.data['suppressed']}" for f in shown)
            self._node.add_report_section("call", "suppressed by tdist", text)

    def _mode(self) -> Mode:
        """The mode's pipe ordering and schedule; the protocol form is the test's own function's to choose."""
        from tdist.verify.modes import mode_of

        return mode_of(self.sync, ("fine", "barrier"), self._schedule)

    def _fail_for_findings(self) -> None:
        __tracebackhide__ = True
        from tdist.findings import to_text

        failing = [finding for finding in self.findings if finding.fails(self.profile)]
        if failing:
            pytest.fail("\n\n".join(to_text(finding, replay=self.replay) for finding in failing), pytrace=False)


def _rendered(report: Report) -> str:
    import io

    from rich.console import Console

    from tdist.verify.report import render_report

    text = io.StringIO()
    render_report(report, Console(file=text, width=160, color_system=None))
    return text.getvalue()
