"""From two conflicting accesses and their clocks to a finding: who, where, and which ordering edge is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tdist.findings.kinds import make
from tdist.findings.model import Finding, Party
from tdist.platforms.sim.clocks import AgentClocks, Clock
from tdist.platforms.sim.regions import Shape, common


@dataclass(frozen=True, slots=True)
class Who:
    """Whom an access belongs to. `program` is None for a host or a stream, which `role` names.

    `with_launch`: its text says the launch, for findings whose sides are of different ones.
    """

    rank: int
    launch: int | None = None
    program: int | None = None
    core: int = 0
    role: str = "agent"
    with_launch: bool = False

    def __str__(self) -> str:
        if self.program is None:
            return f"rank {self.rank}'s {self.role}"
        core = " (second vector core)" if self.core else ""
        launch = f" launch {self.launch}" if self.with_launch else ""
        return f"rank {self.rank}{launch} program {self.program}{core}"


@dataclass(frozen=True, slots=True)
class Access:
    """One remembered or present access: the clock entry and stamp of its agent, its source operation, its bytes.

    `word` is the width of synchronisation words and atomics, 0 for plain accesses. `in_order`: a signal, which is never
    in flight once a later release of its agent has arrived.
    """

    entry: int
    stamp: int
    site: Any
    who: Who
    writes: bool
    shape: Shape
    word: int = 0
    in_order: bool = False

    @property
    def complete(self) -> bool:
        """Never in flight after a later release: signals, and polls, which have returned their value."""
        return self.in_order or (self.word > 0 and not self.writes)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two accesses to a common byte. `seed` and `ascend` are the clocks that ordered the second one."""

    first: Access
    second: Access
    in_seed: bool
    clocks: AgentClocks
    seed: Clock
    ascend: Clock
    allocation: Any

    @property
    def own(self) -> bool:
        """Whether both sides are one agent."""
        return self.first.entry == self.second.entry


@dataclass(frozen=True, slots=True)
class Missed:
    """A wait or atomic that returned and ordered nothing: why, where, and the rank that last signalled the word.

    `reason` is `"relaxed"`, `"scope"` (it does not reach other ranks), `"old"` (the signal was known already) or
    `"stale"` (no signal gave the word its value; `rank` is then -1).
    """

    reason: str
    site: Any
    rank: int


@dataclass(frozen=True, slots=True)
class ReaderFacts:
    """What is known of the agent that loads, beside its clocks.

    `lost` are positions of waits that the compiler deleted from its kernel; `start` is what it knew at launch start.
    """

    lost: tuple[Any, ...] = ()
    missed: tuple[Missed, ...] = ()
    start: Any = None

    def acquired(self, clock: Clock, entry: int) -> bool:
        """Whether `clock` knows a release of `entry` that it did not know at launch start."""
        before = 0 if self.start is None or entry >= len(self.start.vec) else int(self.start.vec[entry])
        return _entry(clock, entry) > before


NOTHING_KNOWN = ReaderFacts()


def tensor_name(al: Any, arg: str | None) -> str:
    """What messages call memory: the kernel argument, and the name of the allocation where it is another word."""
    name = al.name
    if not arg:
        return name or getattr(al, "label", None) or "unnamed memory"
    if not name or name in (arg, arg.removesuffix("_ptr")):
        return arg
    return f"{arg} (allocated as `{name}`)"


@dataclass(frozen=True, slots=True)
class _Edge:
    """The missing edge in words. An empty `cure` takes the kind's."""

    kind: str
    why: str
    got: str
    cure: str | None = None


def finding_of(
    conflict: Conflict, releaser: AgentClocks | None, facts: Callable[[Who, int], ReaderFacts] | None = None
) -> Finding:
    """The finding for a conflict.

    Args:
        conflict: what was met.
        releaser: the live clocks of the slot that made the first access, if any.
        facts: what is known of an agent (who, slot) that loads; asked for conflicts of a load and a store only.
    """
    conflict = _with_launches(conflict)
    edge = _missing_edge(conflict, releaser, _reader_facts(conflict, facts))
    first, second = conflict.first, conflict.second
    start, end = common(first.shape, second.shape)
    tensor = _tensor(conflict)
    return make(
        edge.kind,
        [_party(conflict, access, start, end) for access in (first, second)],
        expected=f"{_name(second)} of {second.who} ordered after {_name(first)} of {first.who}",
        got=edge.got,
        why=edge.why,
        cure=edge.cure,
        profile="seed" if conflict.in_seed else "ascend",
        first=_name(first),
        second=_name(second),
        tensor=tensor,
        rank=conflict.allocation.rank,
        first_byte=start - conflict.allocation.lo,
        last_byte=end - 1 - conflict.allocation.lo,
        first_writes=first.writes,
        second_writes=second.writes,
    )


def _with_launches(conflict: Conflict) -> Conflict:
    """The same conflict; its texts say the launch of both sides if they differ."""
    first, second = conflict.first, conflict.second
    if first.who.launch == second.who.launch or first.who.program is None or second.who.program is None:
        return conflict
    said = [replace(access, who=replace(access.who, with_launch=True)) for access in (first, second)]
    return replace(conflict, first=said[0], second=said[1])


def _reader_facts(conflict: Conflict, facts: Callable[[Who, int], ReaderFacts] | None) -> ReaderFacts:
    first, second = conflict.first, conflict.second
    reader = second if first.writes else first
    if facts is None or reader.writes or reader.who.program is None or not conflict.in_seed:
        return NOTHING_KNOWN
    return facts(reader.who, reader.entry // 2)


def _name(access: Access) -> str:
    return getattr(access.site, "op", None) or ("store" if access.writes else "load")


def _tensor(conflict: Conflict) -> str:
    return tensor_name(conflict.allocation, _argument(conflict.second) or _argument(conflict.first))


def _argument(access: Access) -> str | None:
    return getattr(access.site, "arg", None)


def _party(conflict: Conflict, access: Access, start: int, end: int) -> Party:
    site, who, al = access.site, access.who, conflict.allocation
    return Party(
        rank=who.rank,
        launch=who.launch,
        program=who.program,
        core=who.core,
        file=getattr(site, "file", None),
        line=getattr(site, "line", None),
        op=_name(access),
        note="" if who.program is not None else str(who),
        tensor=tensor_name(al, _argument(access)) if _argument(access) else _tensor(conflict),
        where=f"{_range(site, start - al.lo, end - al.lo)} in rank {al.rank}'s memory",
    )


def _range(site: Any, start: int, end: int) -> str:
    """The common bytes `[start, end)`, in elements too when the access knows its element size."""
    text = f"byte {start}" if end - start == 1 else f"bytes {start}…{end - 1}"
    elem_bytes = getattr(site, "elem_bytes", 0)
    if not elem_bytes:
        return text
    first, last = start // elem_bytes, (end - 1) // elem_bytes
    return f"element {first} ({text})" if first == last else f"elements {first}…{last} ({text})"


def _missing_edge(conflict: Conflict, releaser: AgentClocks | None, facts: ReaderFacts) -> _Edge:
    if conflict.own:
        return _hidden_alias(conflict)
    if conflict.in_seed:
        return _seed_edge(conflict, releaser, facts)
    return _ascend_edge(conflict, releaser)


def _hidden_alias(conflict: Conflict) -> _Edge:
    why = (
        f"one of the two pointers went through symm_at or consume_token, so the compiler does not see that the load "
        f"reads what line {getattr(conflict.first.site, 'line', '?')} stored, and nothing drains the store before it"
    )
    return _Edge("hazard.hidden-alias", why, "no fence, quiet, barrier or draining signal between the two")


def _seed_edge(conflict: Conflict, releaser: AgentClocks | None, facts: ReaderFacts) -> _Edge:
    first, second = conflict.first, conflict.second
    seen = _entry(conflict.seed, first.entry)
    got = _last_seen(first, releaser, seen)
    if first.who.program is None or second.who.program is None:
        return _host_edge(first, second, got)
    if first.word or second.word:
        return _word_edge(first, second, got)
    if first.writes and second.writes and _one_program(first.who, second.who):
        return _both_cores(first, second, got)
    released = releaser is None or releaser.counter > first.stamp
    if not second.writes:
        return _load_edge(conflict, facts, released, got)
    if not first.writes:
        return _reuse_edge(conflict, releaser, facts, got)
    return _not_acquired(first, second, got) if released else _not_released(first, second, seen, got)


def _one_program(a: Who, b: Who) -> bool:
    return (a.rank, a.launch, a.program) == (b.rank, b.launch, b.program)


def _both_cores(first: Access, second: Access, got: str) -> _Edge:
    why = f"both vector cores of rank {first.who.rank} program {first.who.program} write these bytes, unordered"
    cure = "let one core do it (`if sub_vec_id() == 0:`), or give each core bytes of its own"
    return _Edge("race", why, got, cure)


def _load_edge(conflict: Conflict, facts: ReaderFacts, released: bool, got: str) -> _Edge:
    """A load after a store: what the reader did comes first, since the writer may only not have got further yet."""
    first, second = conflict.first, conflict.second
    if _covers(conflict.clocks.W, first.entry, first.stamp):
        return _no_token(conflict)
    if facts.lost or not facts.acquired(conflict.clocks.W, first.entry):
        why, cure = _no_wait(second, first, facts)
        return _Edge("race", why, got, cure)
    if released:
        return _not_acquired(first, second, got)
    why, cure = _released_too_early(reader=second, writer=first)
    return _Edge("race", why, got, cure)


def _reuse_edge(conflict: Conflict, releaser: AgentClocks | None, facts: ReaderFacts, got: str) -> _Edge:
    """A store after a load: the buffer is used again too early, or the load comes too early."""
    first, second = conflict.first, conflict.second
    why = f"{second.who} has acquired no release that {first.who} made after its {_name(first)}"
    credit = (
        f"release after the {_name(first)} (credit signal or barrier) and wait for it before the {_name(second)}, "
        "or use another buffer"
    )
    if first.who.launch != second.who.launch or releaser is None:
        return _Edge("race", why, got, credit)
    if not facts.lost and facts.acquired(releaser.W, second.entry):
        missing, cure = _released_too_early(reader=first, writer=second)
    else:
        missing, cure = _no_wait(first, second, facts)
    return _Edge(
        "race",
        f"if this {_name(first)} is meant to see that {_name(second)}: {missing};\n"
        f"if it is meant to see the value from before: {why}",
        got,
        f"to see that {_name(second)}: {cure};\nto see the value from before: {credit}",
    )


def _released_too_early(reader: Access, writer: Access) -> tuple[str, str]:
    """The reader has waited for a signal of the writer, which came before the store: why, and the cure."""
    store = _name(writer)
    why = f"what {reader.who} acquired from {writer.who} was released before the {store}"
    cure = (
        f"put the notify after the {store}; where one follows it already, wait for that one before the {_name(reader)}"
    )
    return why, cure


def _no_wait(reader: Access, writer: Access, facts: ReaderFacts) -> tuple[str, str]:
    """Why no wait of the reader orders its load after the writer's store, and the cure."""
    load, store = _name(reader), _name(writer)
    missed = [m for m in facts.missed if m.rank == writer.who.rank]
    consume = "ptr = dl.consume_token(ptr, token)"
    if missed:
        return _MISSED[missed[0].reason](missed[0].site, load)
    if facts.lost:
        at = " and ".join(map(str, _nearest(facts.lost, reader.site)))
        why = f"no wait of {reader.who} comes before this {load} (the wait at {at} was deleted: its token is not used)"
        return why, f"consume the token of that wait on the pointer of this {load}: {consume}"
    stale = next((m for m in facts.missed if m.reason == "stale"), None)
    if stale is not None:
        return _stale(stale.site, load)
    why = f"no wait of {reader.who} for a signal of {writer.who} comes before this {load}"
    return why, f"wait for the signal that follows the {store}, and consume its token before the {load}: {consume}"


def _relaxed(site: Any, load: str) -> tuple[str, str]:
    return f"the wait at {site} is not an acquire: it returns and orders nothing", (
        f'give the wait at {site} the semantic "acquire" and consume its token before the {load}'
    )


def _narrow_scope(site: Any, load: str) -> tuple[str, str]:
    what = getattr(site, "op", "atomic")
    return f'the {what} at {site} has the scope "gpu" or "cta": an edge from another rank needs "sys"', (
        f"wait with dl.wait and consume its token before the {load}; on Ascend no scope of tl.atomic_* reaches another "
        "rank"
    )


def _old(site: Any, load: str) -> tuple[str, str]:
    return f"the wait at {site} returned on a signal of an earlier round: it orders nothing new", (
        f"signal and wait for a value that only this round uses (an epoch), before the {load}"
    )


def _stale(site: Any, load: str) -> tuple[str, str]:
    return f"the wait at {site} returned on a value that no signal had written: it orders nothing", (
        f"wait for a value that only the signal of this round writes (an epoch), before the {load}"
    )


_MISSED: dict[str, Callable[[Any, str], tuple[str, str]]] = {
    "relaxed": _relaxed,
    "scope": _narrow_scope,
    "old": _old,
    "stale": _stale,
}


def _nearest(lost: tuple[Any, ...], site: Any) -> tuple[Any, ...]:
    """The last lost wait above the load, if they are in one file; all of them otherwise, in order."""
    file, line = getattr(site, "file", None), getattr(site, "line", 0)
    above = [at for at in lost if at.file == file and at.line <= line]
    if above:
        return (max(above, key=lambda at: at.line),)
    return tuple(dict.fromkeys(lost))[:2]


def _host_edge(first: Access, second: Access, got: str) -> _Edge:
    why = (
        f"a rank's stream and host are ordered after that rank's own launches only, so nothing orders {second.who} "
        f"after {first.who}"
    )
    if first.who.rank == second.who.rank:
        why = f"{second.who} is not ordered after {first.who}"
    cure = f"synchronise rank {first.who.rank}, then a host barrier, then the {_name(second)} on rank {second.who.rank}"
    return _Edge("race", why, got, cure)


def _word_edge(first: Access, second: Access, got: str) -> _Edge:
    plain, word = (second, first) if first.word else (first, second)
    if plain.word:
        why = (
            f"the two touch the same bytes as words of different width or place ({first.word} and {second.word} bytes)"
        )
        return _Edge("race", why, got, "use one dtype and one slot layout for the signal on both sides")
    why = (
        f"the {_name(plain)} is a plain access to a synchronisation word: only signal operations and waits on one word "
        f"may be concurrent, and nothing orders it against the {_name(word)}"
    )
    cure = f"make the {_name(plain)} a notify or a wait, or put a barrier between it and the {_name(word)}"
    return _Edge("race", why, got, cure)


def _no_token(conflict: Conflict) -> _Edge:
    first, second = conflict.first, conflict.second
    why = (
        f"{second.who} has waited for a release that covers the {_name(first)}, but the {_name(second)} "
        "carries no token of that wait: a load may move before a wait that it does not depend on"
    )
    cure = "consume the token on this pointer too: ptr = dl.consume_token(ptr, token)"
    return _Edge("race", why, "the wait was made, its token is not consumed here", cure)


def _not_released(first: Access, second: Access, seen: int, got: str) -> _Edge:
    why = f"{first.who} has released nothing since its {_name(first)} so far: no wait of {second.who} can order it"
    if seen > 0:
        why = f"what {second.who} acquired was released before the {_name(first)}, and nothing was released since"
    cure = (
        f"give each writer bytes of its own, or put a notify after the {_name(first)} and wait for it before the "
        f"{_name(second)}"
    )
    return _Edge("race", why, got, cure)


def _not_acquired(first: Access, second: Access, got: str) -> _Edge:
    why = f"{second.who} has acquired no release that {first.who} made after its {_name(first)}"
    cure = f"wait for the signal that follows the {_name(first)}, and consume its token, before the {_name(second)}"
    if second.writes:
        cure = (
            f"give each writer bytes of its own, or wait for the signal that follows the {_name(first)} before the "
            f"{_name(second)}"
        )
    return _Edge("race", why, got, cure)


def _ascend_edge(conflict: Conflict, releaser: AgentClocks | None) -> _Edge:
    first, second = conflict.first, conflict.second
    cached = conflict.seed is not conflict.ascend
    if cached and _entry(conflict.seed, first.entry, 1) >= first.stamp:
        why = (
            f"the {_name(second)} goes through the data cache, which {second.who} has not invalidated since it "
            f"acquired the {_name(first)} of {first.who}: a wait or barrier does not do it"
        )
        return _Edge("hazard.stale-cache", why, "no fence or quiet between the wait and this load")
    if releaser is not None and releaser.drained_at(_entry(conflict.seed, first.entry)) >= first.stamp:
        return _atomic_edge(first, second)
    why = (
        f"{first.who} released after its {_name(first)}, but nothing drained it before: on Ascend the "
        f"{_name(first)} may still be in flight when the signal arrives"
    )
    got = _last_seen(first, releaser, _entry(conflict.seed, first.entry), "the release that it acquired")
    cure = f"put `libshmem_device.fence()` between the {_name(first)} and the notify"
    return _Edge("hazard.undrained-release", why, got, cure)


def _atomic_edge(first: Access, second: Access) -> _Edge:
    why = (
        f"{first.who} drained its {_name(first)} and released, but the order passes through a tl.atomic_*: on Ascend "
        "one without a used result acquires nothing, and one with a used result orders only used atomics of the same "
        "launch"
    )
    return _Edge("hazard.atomic-edge", why, f"only an atomic between {first.who} and {second.who}")


def _last_seen(first: Access, releaser: AgentClocks | None, seen: int, what: str = "the last release acquired") -> str:
    if seen <= 0:
        return f"no release of {first.who} acquired so far"
    site = releaser.release_site(seen) if releaser is not None else None
    if site is None:
        return f"{what} of {first.who} is its release number {seen}; the {_name(first)} belongs to number {first.stamp}"
    return f"{what} of {first.who} is the {getattr(site, 'op', 'release')} at {site.file}:{site.line}"


def _entry(clock: Clock, entry: int, profile: int = 0) -> int:
    return clock.m[entry + profile] if entry + profile < len(clock.vec) else 0


def _covers(clock: Clock, entry: int, stamp: int) -> bool:
    return _entry(clock, entry) >= stamp
