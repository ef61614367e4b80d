"""The options of a verification run: one dataclass from which command line, help, replay line and report are made."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tdist.errors import UsageError
from tdist.text import did_you_mean
from tdist.verify.operator import check_nranks, format_shape
from tdist.verify.suppressions import format_suppressions, full_id, parse_suppressions

SYNC_CHOICES = ("both", "fine", "barrier")
PROFILES = ("seed", "ascend")
PLATFORMS = ("sim",)
MEMORIES = ("plain", "adversarial")
BARRIER_ALL_CHOICES = ("false", "true", "both")
MAX_SEED = 2**63 - 1
MAX_SEEDS = 1000
MAX_LAUNCHES = 1000
"""Inputs and outputs of all launches of a step are held at once."""


def _option(default: Any, text: str, **metadata: Any) -> Any:
    """A field with what the command line needs: help, metavar, parser of its text, text of its value."""
    extra = {"help": text, **metadata}
    if callable(default):
        return field(default_factory=default, metadata=extra)
    return field(default=default, metadata=extra)


def parse_dtypes(text: str) -> tuple[str, ...]:
    """`fp16,bf16` → a tuple; whether the operator takes them is asked later."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError("--dtype needs at least one of fp16, bf16, fp32")
    return names


def parse_targets(text: str) -> tuple[str, ...]:
    """`Ascend910B3,Ascend910B2` → a tuple, each once; whether there are such chips is asked later."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("--compile-for needs at least one chip, such as Ascend910B3")
    return names


def parse_situations(text: str) -> tuple[str, ...]:
    """`ahead,late-init` → a tuple, each once; whether there are such situations is asked later."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("--situations needs at least one name, such as late-init; --list names them")
    return names


_MAX_DIGITS = 4000  # more than Python's int() reads


def parse_shape(text: str) -> dict[str, int]:
    """`m=1024,n=512` → a dict; which symbols there are is the operator's to say."""
    shape: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        symbol, separator, value = item.partition("=")
        symbol, digits = symbol.strip(), value.strip()
        if not separator or not symbol or not digits.lstrip("-").isdecimal():
            raise UsageError(f"--shape takes symbol=number pairs such as m=1024,n=512; {item!r} is none")
        if symbol in shape:
            raise UsageError(f"--shape names {symbol} twice")
        if len(digits) > _MAX_DIGITS or int(digits) >= 1 << 31:
            raise UsageError(f"--shape gives {symbol} a size that is more than 2147483647")
        shape[symbol] = int(digits)
    return shape


@dataclass(frozen=True)
class Options:
    """What a user can choose about a run. Field metadata is what the command line shows and parses."""

    operator: str = ""
    dtype: tuple[str, ...] = _option(
        (), "Element types, by default the operator's first.", metavar="fp16,bf16,…", parse=parse_dtypes, show=",".join
    )
    nranks: int = _option(4, "Number of ranks.", metavar="N")
    shape: Mapping[str, int] = _option(
        dict,
        "Values of shape symbols; others keep their default.",
        metavar="m=…,n=…",
        parse=parse_shape,
        show=format_shape,
    )
    sync: str = _option("both", "Mode: fine-grained, barrier-all, or one after the other.", choices=SYNC_CHOICES)
    schedule: str = _option(
        "",
        "Scheduler for all modes, by default each mode's own; exhaustive: a step more that runs all schedules.",
        metavar="NAME[:k=v,…]",
    )
    seed: int = _option(0, "Seed of inputs and schedules.", metavar="S")
    seeds: int = _option(4, "Seeds of each random scheduler in the search step; 0 leaves them out.", metavar="N")
    situations: tuple[str, ...] = _option(
        (),
        "Situations of the search step, by default all that the operator's contract allows; see --list.",
        metavar="late-init,…",
        parse=parse_situations,
        show=",".join,
    )
    search: bool = _option(True, "The search step: many schedules and situations on a small shape.", flag=True)
    launches: int = _option(4, "Launches on one workspace, where the operator is relaunchable.", metavar="N")
    profile: str = _option("seed", "Ordering profile that decides the verdict.", choices=PROFILES)
    policy: str = _option("", "Tolerance policy for float runs; by default the operator's.", metavar="NAME")
    rtol: float | None = _option(None, "Relative tolerance; implies --policy allclose.", metavar="X")
    atol: float | None = _option(None, "Absolute tolerance; implies --policy allclose.", metavar="X")
    platform: str = _option("sim", "Where the ranks run.", choices=PLATFORMS)
    suppress: Mapping[str, str] = _option(
        dict,
        "Accept a kind of finding; it is shown with the reason and fails nothing. May be repeated.",
        metavar="ID=REASON",
        parse=parse_suppressions,
        show=format_suppressions,
        repeat=True,
    )
    detect: bool = _option(True, "Race detection.", flag=True)
    memory: str = _option(
        "plain", "Adversarial memory lets what nothing orders come late, to show a race as wrong.", choices=MEMORIES
    )
    compile_for: tuple[str, ...] = _option(
        (),
        "Also compile what the operator launches with the vendor's compiler for these chips, and check what comes out.",
        metavar="Ascend910B3,…",
        parse=parse_targets,
        show=",".join,
    )
    barrier_all_sync: str = _option(
        "both", "The vendor's inject-barrier-all-sync, with --compile-for.", choices=BARRIER_ALL_CHOICES
    )

    def check(self) -> None:
        """Refuse values that no run can have, naming the option.

        Raises: UsageError.
        """
        check_nranks(self.nranks)
        _check_known("--sync", self.sync, SYNC_CHOICES)
        _check_known("--profile", self.profile, PROFILES)
        _check_known("--platform", self.platform, PLATFORMS)
        _check_known("--memory", self.memory, MEMORIES)
        if self.memory != "plain" and not self.detect:
            raise UsageError("--memory adversarial needs race detection to know what nothing orders: no --no-detect")
        if self.explores:
            from tdist.platforms.sim.explore.exhaustive import Limits

            _named("--schedule", Limits.of, self.schedule)
        elif self.schedule:
            self._check_schedule()
        if self.policy:
            from tdist.verify.policies import POLICIES

            _check_known("--policy", self.policy, tuple(POLICIES))
        self._check_search()
        self._check_numbers()
        self._check_compilation()

    def _check_search(self) -> None:
        from tdist.verify.search.situations import SITUATIONS

        for name in self.suppress:
            full_id(name, "--suppress")
        for name in self.situations:
            _check_known("--situations", name, tuple(SITUATIONS))
        if not 0 <= self.seeds <= MAX_SEEDS:
            raise UsageError(f"--seeds has to be between 0 and {MAX_SEEDS}, got {self.seeds}")

    def _check_schedule(self) -> None:
        """Refuse what is no scheduler; the word for all schedules is none, and is offered beside them."""
        from tdist.platforms.sim import schedulers

        name = self.schedule.partition(":")[0]
        try:
            schedulers.check(self.schedule, self.nranks)
        except UsageError as error:
            known = name in schedulers.names()
            more = "" if known else did_you_mean(name, ["exhaustive"]) or "; or exhaustive, for all schedules"
            raise UsageError(f"--schedule: {error}{more}") from None

    def _check_compilation(self) -> None:
        _check_known("--barrier-all-sync", self.barrier_all_sync, BARRIER_ALL_CHOICES)
        if self.compile_for:
            from tdist.platforms.ascend.gate import check_targets

            check_targets(self.compile_for)
        elif self.barrier_all_sync != "both":
            raise UsageError("--barrier-all-sync is a setting of the vendor's compiler: it needs --compile-for CHIP")

    def _check_numbers(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise UsageError(f"--seed has to be between 0 and {MAX_SEED}, got {self.seed}")
        if not 1 <= self.launches <= MAX_LAUNCHES:
            raise UsageError(f"--launches has to be between 1 and {MAX_LAUNCHES}, got {self.launches}")
        if (self.rtol is not None or self.atol is not None) and self.policy not in ("", "allclose"):
            raise UsageError(
                f"--rtol and --atol imply --policy allclose; --policy {self.policy} derives its own bounds: "
                "leave one of them out"
            )
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise UsageError(f"--{name} has to be a number from 0 up, got {value}")

    @property
    def explores(self) -> bool:
        """Whether all schedules are asked for (`--schedule exhaustive`), a step of its own."""
        return self.schedule.partition(":")[0] == "exhaustive"

    @property
    def scheduler(self) -> str:
        """The scheduler that the options ask for in the other steps; empty for each mode's own."""
        return "" if self.explores else self.schedule

    @property
    def chosen_policy(self) -> str:
        """The policy that the options ask for; empty for the operator's own."""
        return "allclose" if self.rtol is not None or self.atol is not None else self.policy

    def replay(self) -> str:
        """The command line that does this run again."""
        words = ["tdist-verify", self.operator]
        for option in fields(self)[1:]:
            words += _words(option.name, getattr(self, option.name), option.metadata, shown=option.name == "seed")
        return shlex.join(words)

    def to_json(self) -> dict[str, Any]:
        """JSON values, by field name."""
        return {option.name: _plain(getattr(self, option.name)) for option in fields(self)}


def _words(name: str, value: Any, metadata: Mapping[str, Any], shown: bool) -> list[str]:
    """The words of one option on a command line; none where it has its default, unless it is always shown."""
    if metadata.get("flag"):
        return [] if value else [f"--no-{dashed(name)}"]
    if not shown and value == getattr(Options(), name):
        return []
    show: Callable[[Any], Any] = metadata.get("show", str)
    texts = show(value) if metadata.get("repeat") else [show(value)]
    return [word for text in texts for word in (f"--{dashed(name)}", text)]


def dashed(name: str) -> str:
    """A field's name as the command line spells it."""
    return name.replace("_", "-")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def _named(option: str, check: Callable[..., object], *values: Any) -> None:
    """A check whose message lacks the option."""
    try:
        check(*values)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def _check_known(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"unknown {option} {value!r}{did_you_mean(value, allowed)}; one of {', '.join(allowed)}")
