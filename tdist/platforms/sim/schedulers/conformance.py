"""What every scheduler has to obey, ours and those of other packages: `run_scheduler_conformance`.

Some rules are asked of the scheduler alone, with agents that stand still; others in small worlds with hand-written
kernels, in which every protocol is live: whatever the schedule, they end, with one result.

Source: docs/schedules.md, "A scheduler of your own".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tdist.errors import TdistError
from tdist.platforms.sim.schedulers.base import Runnable, Scheduler, stay
from tdist.platforms.sim.schedulers.replay import ReplayScheduler

if TYPE_CHECKING:
    from tdist.platforms.sim.engine import Engine

SEEDS: Final = (0, 1, 7)
_MOST_AGENTS: Final = 9
_QUESTIONS: Final = 200
_FAIR_PICKS: Final = 60_000
_MOST_PICKS: Final = 1_000_000
_STAYS: Final = (1, 7, 1000, 5000)
"""The worlds need a few hundred choices; schedulers with patience some ten thousand."""


class ConformanceError(TdistError, AssertionError):
    """A scheduler broke a rule; `rule` is its name."""

    def __init__(self, rule: str, problem: str) -> None:
        super().__init__(f"rule {rule}: {problem}")
        self.rule = rule


def run_scheduler_conformance(make: Callable[[], Scheduler], seeds: Iterable[int] = SEEDS) -> tuple[str, ...]:
    """Check a scheduler against all rules; some seconds.

    Args:
        make: gives a new scheduler at each call, such as its class.
        seeds: what it is started with.

    Returns:
        The names of the rules, all of which it obeys.

    Raises:
        ConformanceError: the first rule that it breaks, and how.
    """
    for seed in seeds:
        for rule, check in RULES.items():
            check(_Asked(make, rule), seed)
    return tuple(RULES)


@dataclass
class StillAgent:
    """An agent for questions outside a world."""

    position: int
    at_wait: bool = False
    at_effect: bool = False
    rank: int = 0
    program: int = 0
    core: int = 0


def still_agents(n: int, shift: int = 0) -> list[StillAgent]:
    """Agents of three ranks, some at a wait, some before an effect."""
    return [
        StillAgent(i, (i + shift) % 3 == 1, (i + shift) % 3 == 2, rank=(i + shift) % 3, program=(i + shift) // 3)
        for i in range(n)
    ]


class _Asked:
    """Makes schedulers whose answers are checked: in range, and without an exception."""

    def __init__(self, make: Callable[[], Scheduler], rule: str) -> None:
        self._make = make
        self.rule = rule

    def started(self, seed: int) -> Checked:
        """A new one, at the beginning of a run."""
        made = Checked(self._make())
        made.start(seed)
        return made

    def broken(self, problem: str) -> NoReturn:
        raise ConformanceError(self.rule, problem)


class Checked:
    """A scheduler that says which rule an answer breaks."""

    def __init__(self, scheduler: Scheduler, most_picks: int = _MOST_PICKS) -> None:
        self._scheduler = scheduler
        self._most_picks = most_picks
        self.picks = 0

    def start(self, seed: int) -> None:
        with _no_exception("start", f"start({seed})"):
            self._scheduler.start(seed)

    def pick(self, runnable: Sequence[Runnable], current: Runnable | None) -> int:
        self.picks += 1
        if self.picks > self._most_picks:
            raise ConformanceError("ends", f"a world that ends under any fair schedule had {self._most_picks} choices")
        question = f"pick() of {len(runnable)} agents, current {'none' if current is None else current.position}"
        rule = "current-none" if current is None else "pick-in-range"
        with _no_exception(rule, question):
            answer = self._scheduler.pick(runnable, current)
        return _in_range(rule if _is_index(answer) is None else "pick-in-range", question, answer, len(runnable))

    def stay(self, picks: int) -> bool:
        with _no_exception("stays", f"stay({picks})"):
            return stay(self._scheduler, picks)

    def choose(self, n: int) -> int:
        with _no_exception("choose-in-range", f"choose({n})"):
            answer = self._scheduler.choose(n)
        return _in_range("choose-in-range", f"choose({n})", answer, n)


def _is_index(answer: Any) -> int | None:
    return answer if isinstance(answer, int) and not isinstance(answer, bool) else None


def _in_range(rule: str, question: str, answer: Any, n: int) -> int:
    index = _is_index(answer)
    if index is None or not 0 <= index < n:
        raise ConformanceError(rule, f"{question} answered {answer!r}, which is no integer from 0 to {n - 1}")
    return index


@contextmanager
def _no_exception(rule: str, question: str) -> Iterator[None]:
    try:
        yield
    except ConformanceError:
        raise
    except Exception as error:
        raise ConformanceError(rule, f"{question} raised {error!r}") from error


# ---------------------------------------------------------------- rules about answers


def _answers(scheduler: Checked) -> list[int]:
    """What a scheduler says to a fixed row of questions."""
    given: list[int] = []
    for step in range(_QUESTIONS):
        pool = still_agents(1 + step % _MOST_AGENTS, step)
        current = None if step % 4 == 3 else pool[step % len(pool)]
        given.append(scheduler.pick(pool, current))
        given.append(scheduler.choose(1 + step % 4))
    return given


def _pick_in_range(asked: _Asked, seed: int) -> None:
    scheduler = asked.started(seed)
    for n in range(1, _MOST_AGENTS + 1):
        for shift in range(3):
            pool = still_agents(n, shift)
            for current in pool:
                scheduler.pick(pool, current)


def _current_none(asked: _Asked, seed: int) -> None:
    for n in range(1, _MOST_AGENTS + 1):
        scheduler = asked.started(seed)
        for _ in range(3):
            scheduler.pick(still_agents(n), None)


def _choose_in_range(asked: _Asked, seed: int) -> None:
    scheduler = asked.started(seed)
    for n in range(1, 8):
        for _ in range(20):
            scheduler.choose(n)


def _only_looks(asked: _Asked, seed: int) -> None:
    scheduler = asked.started(seed)
    for n in range(2, _MOST_AGENTS + 1):
        pool = still_agents(n)
        before = [(id(agent), astuple(agent)) for agent in pool]
        scheduler.pick(pool, pool[0])
        if before != [(id(agent), astuple(agent)) for agent in pool]:
            asked.broken("pick() changed the list of runnable agents, or an agent")


def _seed_decides(asked: _Asked, seed: int) -> None:
    state = random.getstate()
    try:
        random.seed(seed + 1)
        first = _answers(asked.started(seed))
        random.seed(seed + 2)
        second = _answers(asked.started(seed))
    finally:
        random.setstate(state)
    if first != second:
        at = _differ(first, second)
        asked.broken(f"two new schedulers, started with seed {seed} both, differ in answer {at} to the same questions")


def _start_forgets(asked: _Asked, seed: int) -> None:
    fresh = _answers(asked.started(seed))
    used = asked.started(seed + 1)
    _answers(used)
    for _ in range(2):
        used.start(seed)
        again = _answers(used)
        if again != fresh:
            at = _differ(fresh, again)
            asked.broken(f"after start({seed}) a used scheduler differs from a new one in answer {at}")


def _runs_apart(asked: _Asked, seed: int) -> None:
    alone = _answers(asked.started(seed))
    one, other = asked.started(seed), asked.started(seed + 3)
    for _ in range(3):
        _answers(other)
    beside = _answers(one)
    if alone != beside:
        asked.broken(f"answer {_differ(alone, beside)} depends on another scheduler that was used in between")


def _everyone_runs(asked: _Asked, seed: int) -> None:
    scheduler = asked.started(seed)
    pool = still_agents(6)
    current, seen = pool[0], set()
    for _ in range(_FAIR_PICKS):
        current = pool[scheduler.pick(pool, current)]
        seen.add(current.position)
        if len(seen) == len(pool):
            return
    never = sorted({agent.position for agent in pool} - seen)
    asked.broken(f"agents {never} of {len(pool)} never ran in {_FAIR_PICKS} choices; others may be spinning for them")


def _stays(asked: _Asked, seed: int) -> None:
    """`stay(n)`, if there is one, is the same as `n` picks, and each of these gives the current agent."""
    pool = still_agents(_MOST_AGENTS)
    for picks in _STAYS:
        at_once, one_by_one = asked.started(seed), asked.started(seed)
        current = pool[at_once.pick(pool, None)]
        one_by_one.pick(pool, None)
        while at_once.picks < _FAIR_PICKS and at_once.stay(picks):
            at_once.picks += picks
            for step in range(picks):
                if one_by_one.pick(pool, current) != current.position:
                    asked.broken(f"stay({picks}) was promised, but pick {step + 1} goes to another agent")
        for step in range(picks):
            first, second = (scheduler.pick(pool, current) for scheduler in (at_once, one_by_one))
            if first != second:
                asked.broken(f"after stay({picks}) pick {step + 1} is {first}, after as many picks it is {second}")
            current = pool[first]


def _differ(first: Sequence[int], second: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b), len(first))


# ---------------------------------------------------------------- rules about runs


@dataclass(frozen=True)
class _Place:
    """A source operation of a hand-written kernel."""

    kernel: str
    line: int
    op: str
    file: str = "conformance.py"
    col: int = 0
    arg: str | None = None


Body = Callable[[Any, int, int, Any], Generator[None, Any, None]]


class _Kernel:
    """A generator function `(ag, program, address, allocation)` as what the engine launches."""

    has_dot = uses_barrier_all = uses_sub_vec = False
    gated_sites: frozenset[Any] = frozenset()

    def __init__(self, body: Body, barrier: bool = False) -> None:
        self.name = body.__name__.lstrip("_")
        self.uses_barrier_all_vec = barrier
        self._body = body

    def entry(self, core: int) -> Callable[..., Generator[None, Any, Any]]:
        body = self._body
        return lambda ag, p0, p1, p2, n0, n1, n2, address, al: body(ag, p0, address, al)


_SLOT_BYTES: Final = 64
_SLOTS: Final = 8
_ROUNDS: Final = 4
_ENDLESS: Final = 1 << 62


def _ping_pong(ag: Any, program: int, address: int, al: Any) -> Generator[None, Any, None]:
    """Two ranks answer each other, each program in a slot of its own."""
    notify, wait = _Place("ping_pong", 1, "notify"), _Place("ping_pong", 2, "wait")
    slot = address + _SLOT_BYTES * program
    for turn in range(1, _ROUNDS + 1):
        if ag.rank == 1:
            yield from ag.wait(slot, al, 1, turn, 8, "acquire", wait)
        yield
        ag.notify(slot, al, 1, 1 - ag.rank, "add", 8, notify)
        if ag.rank == 0:
            yield from ag.wait(slot, al, 1, turn, 8, "acquire", wait)


def _relay(ag: Any, program: int, address: int, al: Any) -> Generator[None, Any, None]:
    """A token goes from agent to agent; each spins for it in a loop that counts, so that it never blocks."""
    load, poll, notify = (_Place("relay", line, op) for line, op in ((1, "load"), (2, "poll"), (3, "notify")))
    place = 2 * program + ag.rank
    for spins in range(_ENDLESS if place else 0):
        yield
        if ag.volatile_load(address + _SLOT_BYTES * place, al, 8, None, load):
            break
        yield from ag.poll((spins,), poll)
    yield
    ag.notify(address + _SLOT_BYTES * (place + 1), al, 1, 1 - ag.rank, "add", 8, notify)


def _rounds(ag: Any, program: int, address: int, al: Any) -> Generator[None, Any, None]:
    """Barriers with unequal work in between."""
    barrier, notify = _Place("rounds", 1, "barrier"), _Place("rounds", 2, "notify")
    for turn in range(_ROUNDS):
        for _ in range((program + ag.rank + turn) % 3):
            yield
            ag.notify(address, al, 1, 0, "add", 8, notify)
        yield from ag.barrier("all_vec", barrier)


@dataclass(frozen=True)
class World:
    """A kernel, launched some times by each of two ranks, in a grid."""

    kernel: _Kernel
    grid: int
    launches: int = 1


WORLDS: Final = (
    World(_Kernel(_ping_pong), 3),
    World(_Kernel(_relay), 3),
    World(_Kernel(_rounds, barrier=True), 3, launches=2),
)
RANKS: Final = 2


@dataclass(frozen=True)
class _Ran:
    """What became of a world."""

    choices: tuple[int, ...]
    memory: bytes
    found: tuple[str, ...]


def _run(world: World, scheduler: Checked, seed: int) -> _Ran:
    from tdist.platforms.sim.engine import Engine, Pointer
    from tdist.platforms.sim.world_config import WorldConfig

    engine = Engine(WorldConfig(RANKS, heap_bytes=1 << 14, detect=False, seed=seed))
    scheduler.start(seed)
    engine.scheduler = scheduler
    addresses = _slots(engine)
    for rank, address in enumerate(addresses):
        for _ in range(world.launches):
            engine.launch(rank, world.kernel, (world.grid,), [Pointer(address)], _Place(world.kernel.name, 0, "launch"))
    _finish(engine)
    allocations = [engine.memory.lookup(address) for address in addresses]
    memory = b"".join(bytes(al.words(1)) for al in allocations if al is not None)
    found = tuple(f"{finding.kind}: {finding.title}" for finding in engine.findings)
    ran = _Ran(tuple(engine.events), memory, found)
    engine.close()
    return ran


def _slots(engine: Engine) -> list[int]:
    """Zeroed signal slots on every rank; the addresses."""
    got: list[Any] = [None] * RANKS
    for rank in range(RANKS):
        engine.malloc(
            rank, _SLOTS * _SLOT_BYTES, 64, "slots", None, lambda value, rank=rank: got.__setitem__(rank, value)
        )
    engine.run()
    for host, address in zip(engine.hosts, got, strict=True):
        host.request = None
        words = engine.memory.lookup(address)
        if words is not None:
            words.words(8)[:] = memoryview(bytes(_SLOTS * _SLOT_BYTES)).cast("q")
    return got


def _finish(engine: Engine) -> None:
    """Every host synchronises and ends."""
    open_ranks = set(range(RANKS))
    for rank in range(RANKS):
        engine.synchronize(rank, lambda value, rank=rank: open_ranks.discard(rank))
    ended: set[int] = set()
    while open_ranks:
        engine.run()
        for rank in set(range(RANKS)) - open_ranks - ended:
            ended.add(rank)
            engine.end(rank)


def _live(asked: _Asked, seed: int) -> None:
    for world in WORLDS:
        expected = _run(world, Checked(ReplayScheduler(())), seed)
        ran = _run(world, asked.started(seed), seed)
        where = f"{world.kernel.name}, seed {seed}"
        if ran.found:
            asked.broken(f"{where}: a live protocol was reported as {ran.found[0]}")
        if ran.memory != expected.memory:
            asked.broken(f"{where}: another result than run-to-block's")


def _same_run_twice(asked: _Asked, seed: int) -> None:
    for world in WORLDS:
        first, second = (_run(world, asked.started(seed), seed) for _ in range(2))
        if first.choices != second.choices:
            asked.broken(f"{world.kernel.name}, seed {seed}: two runs differ in choice {_shorter(first, second)}")


def _replays(asked: _Asked, seed: int) -> None:
    for world in WORLDS:
        ran = _run(world, asked.started(seed), seed)
        try:
            again = _run(world, Checked(ReplayScheduler(ran.choices)), seed)
        except ConformanceError:
            again = None
        if again != ran:
            asked.broken(f"{world.kernel.name}, seed {seed}: its choice list gives another run")


def _shorter(first: _Ran, second: _Ran) -> int:
    pairs = enumerate(zip(first.choices, second.choices, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first.choices), len(second.choices)))


RULES: Final[dict[str, Callable[[_Asked, int], None]]] = {
    "pick-in-range": _pick_in_range,
    "current-none": _current_none,
    "choose-in-range": _choose_in_range,
    "only-looks": _only_looks,
    "seed-decides": _seed_decides,
    "start-forgets": _start_forgets,
    "runs-apart": _runs_apart,
    "everyone-runs": _everyone_runs,
    "stays": _stays,
    "live-protocols-end": _live,
    "same-run-twice": _same_run_twice,
    "replays": _replays,
}
"""Rules by name, in the order in which they are checked; `start` and `ends` are broken by the way."""
