"""What to say when nothing can run any more: who waits for what, and who could have helped.

Called at quiescence only: every agent is blocked or ended and every host waits or has ended.

Source: docs/ordering-model.md, "Deadlock" and "Barriers".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tdist.findings import Finding, Party, make
from tdist.findings.kinds import OVERSHOOT_OF_ADD, kind_of
from tdist.platforms.sim.agents import Agent, AtPoll, AtWait
from tdist.platforms.sim.barriers import NAMES, AtBarrier, Missing
from tdist.platforms.sim.hosts import Free, Host, Malloc
from tdist.platforms.sim.memory import LINE_BYTES, Allocation
from tdist.platforms.sim.words import Wiped, Word

if TYPE_CHECKING:
    from tdist.platforms.sim.engine import Engine
    from tdist.platforms.sim.streams import Launch, Stream

_PARTIES_SHOWN: Final = 8
_LINES_SHOWN: Final = 4
_STRAYS_SHOWN: Final = 2
_SIGNALS: Final = frozenset({"notify", "put_scalar", "int_p", "atomic", "signal_op", "store"})

Node = tuple[int, str]


def explain(engine: Engine) -> list[Finding]:
    """Findings for a world that is stuck; at least one."""
    return [finding for finding in _findings(engine) if finding is not None]


def _findings(engine: Engine) -> Iterator[Finding | None]:
    blocked = _blocked(engine)
    if engine.barriers.hopeless:
        yield diverged(engine)
        return
    crowded = [launch for launch in _launches(engine) if launch.waiting_programs]
    for launch in crowded:
        yield _grid_too_large(engine, launch)
    waits = [ag for ag in blocked if isinstance(ag.blocked, AtWait | AtPoll)]
    missing = _missing_ranks(engine) if engine.barriers.open else []
    if missing and not waits and not crowded:
        yield diverged(engine)
    elif waits:
        yield _deadlock(engine, blocked, missing)
    if not blocked:
        yield _hosts_stuck(engine)


def diverged(engine: Engine) -> Finding:
    """The open barrier's participants who have ended, and ranks that have nothing left to run."""
    return engine.barriers.report(_launches(engine), _missing_ranks(engine))


def spinning(engine: Engine, rounds: int) -> Finding:
    """Everyone who is not blocked goes round in loops that only poll, with values that have no bound in sight."""
    note = "goes round while no word changes; the values that it carries have no bound in sight"
    blocked = _blocked(engine)
    parties = [ag.party(ag.carried_site, note=note) for ag in engine.runnable[:_PARTIES_SHOWN]]
    parties += [_wait_party(engine, ag) for ag in list(_representatives(blocked))[:_PARTIES_SHOWN]]
    waiting = len(engine.runnable) + len(blocked)
    return make(
        "deadlock",
        parties,
        expected="a word that changes, or a loop that gives up",
        got=f"{rounds} rounds in which no word changed",
        waiting=waiting,
        agents=sum(launch.participants for launch in _launches(engine)),
        graph=[_edge(engine, ag) for ag in blocked],
        hosts=[f"rank {host.rank}: {host.state()}" for host in engine.hosts],
        cycle=[],
    )


def _blocked(engine: Engine) -> list[Agent]:
    return [ag for launch in _launches(engine) for ag in launch.agents.values() if ag.blocked is not None]


def _launches(engine: Engine) -> list[Launch]:
    return [stream.current for stream in engine.streams if stream.current is not None]


def _grid_too_large(engine: Engine, launch: Launch) -> Finding:
    stuck = [ag.party(site_of(ag), note=why_blocked(ag)) for ag in list(launch.agents.values())[:2]]
    return make(
        "grid-too-large",
        stuck,
        expected=f"at most {launch.cores} programs ({launch.mode})",
        got=f"{launch.programs} in grid {launch.grid} of {launch.kernel.name}; {launch.waiting_programs} never started",
        programs=launch.programs,
        needed=launch.programs,
        cores=launch.cores,
        mode=launch.mode,
        rank=launch.rank,
    )


def _missing_ranks(engine: Engine) -> list[Missing]:
    """Ranks whose stream holds no launch that could still come to the open barrier."""
    missing = []
    for host, stream in zip(engine.hosts, engine.streams, strict=True):
        if stream.current is not None:
            continue
        last = stream.last_launch
        past = f"its last launch ({last.kernel.name}) ended without it" if last else "it launched no kernel"
        reason = f"rank {host.rank} never reaches it: {past} and {host.state()}"
        missing.append(Missing(host.rank, reason, host.party(reason) if host.request is not None else None))
    return missing


# -------------------------------------------------------------------- the wait graph


def _deadlock(engine: Engine, blocked: list[Agent], missing: list[Missing]) -> Finding:
    shown = list(_representatives(blocked))
    parties = [_wait_party(engine, ag) for ag in shown[:_PARTIES_SHOWN]]
    parties += [m.party for m in missing if m.party is not None]
    cycle = _cycle(engine, blocked)
    return make(
        "deadlock",
        parties,
        expected=_first(shown, expected_of),
        got=_first(shown, got_of),
        why=_why(blocked, cycle),
        cure=_cure(blocked),
        waiting=len(blocked),
        agents=sum(launch.participants for s in engine.streams if (launch := s.current or s.last_launch)),
        graph=[_edge(engine, ag) for ag in blocked],
        hosts=[f"rank {host.rank}: {host.state()}" for host in engine.hosts],
        cycle=[f"rank {rank} at {where}" for rank, where in cycle],
    )


def _representatives(blocked: Iterable[Agent]) -> Iterator[Agent]:
    """One agent of each (source line, rank), waits before barriers."""
    seen: set[Node] = set()
    for ag in sorted(blocked, key=lambda a: isinstance(a.blocked, AtBarrier)):
        node = _node(ag)
        if node not in seen:
            seen.add(node)
            yield ag


def _node(ag: Agent) -> Node:
    return ag.rank, str(site_of(ag))


def _first(agents: list[Agent], text: Any) -> str:
    return next((said for said in map(text, agents) if said), "")


def site_of(ag: Agent) -> Any:
    """Where a blocked agent stands."""
    return getattr(ag.blocked, "site", None)


def expected_of(ag: Agent) -> str:
    """What an agent waits for."""
    at = ag.blocked
    if isinstance(at, AtWait):
        return f"{at.want} in {at.word.place()}"
    if isinstance(at, AtPoll):
        if not at.reads:
            return "a change in memory that ends the loop"
        return "a change of " + ", ".join(word.place() for word, _ in at.reads)
    return ""


def got_of(ag: Agent) -> str:
    """What is there instead."""
    at = ag.blocked
    if isinstance(at, AtWait):
        return f"{at.word.mem[at.word.index]}, {_last_write(at.word, ag)}"
    if isinstance(at, AtPoll) and at.reads:
        return "; ".join(f"{seen}, {_last_write(word, ag)}" for word, seen in at.reads)
    return ""


def why_blocked(ag: Agent) -> str:
    """One line on what a blocked agent needs."""
    at = ag.blocked
    if isinstance(at, AtBarrier):
        return f"waits at {NAMES[at.kind]} number {at.round}"
    if at is None:
        return "can run"
    if isinstance(at, AtWait):
        return f"waits for {at.want}; it is {got_of(ag)}"
    got = got_of(ag)
    return f"waits for {expected_of(ag)}" + (f"; it is {got}" if got else "")


def _last_write(word: Word, ag: Agent) -> str:
    """Who wrote it last; with the launch if that is not the waiter's own number."""
    if word.last is None:
        return "no signal has written it" if word.wiped is None else _replaced(word.wiped, ag)
    who, site, value = word.last
    said = "" if value == word.mem[word.index] else f" ({value})"
    launch = "" if who.launch == ag.launch_id else f", launch {who.launch}"
    return f"last written{said} by {who}{launch} at {site}"


def _replaced(wiped: Wiped, ag: Agent) -> str:
    """The signal that had come and the plain or host write that took its place."""
    who, site, value = wiped.signal
    launch = "" if who.launch == ag.launch_id else f", launch {who.launch}"
    came = f"a signal had come ({value} by {who}{launch} at {site})"
    if wiped.who is None:
        return f"{came}, and a plain write replaced it"
    op = getattr(wiped.site, "op", "") or "write"
    at = f" at {wiped.site}" if getattr(wiped.site, "line", None) else ""
    return f"{came}, and the {op} of rank {wiped.who.rank}'s host{at} replaced it"


def _plain_writers(engine: Engine, word: Word) -> list[str]:
    """Kernel stores to a word whose signal they replaced, as far as the detector remembers them."""
    if word.wiped is None or word.wiped.who is not None or engine.detector is None:
        return []
    records = engine.detector.plain_records(word.al, word.off, word.off + word.width)
    stores = {f"the {r.ws.op} of {r.ww} at {r.ws}": None for r in records if r.ww is not None and r.ws is not None}
    return [f"plain writes to it: {', '.join(list(stores)[:_STRAYS_SHOWN])}"] if stores else []


def _passed(ag: Agent) -> bool:
    """Whether the word has gone past what the agent waits for. A 0 is waited for where somebody resets the word."""
    at = ag.blocked
    if not isinstance(at, AtWait) or at.word.last is None or not at.word.signal:
        return False
    return 0 != at.want < at.word.last[2]


def _lost(ag: Agent) -> bool:
    """Whether the signal that the agent waits for had come in its launch, and was replaced before a wait saw it."""
    at = ag.blocked
    if not isinstance(at, AtWait) or at.word.last is not None or at.word.wiped is None:
        return False
    who, _, value = at.word.wiped.signal
    if value != at.want or who.launch is None or who.launch < ag.launch_id:
        return False
    return all(seen.value != value for seen in at.word.observed.values())


def _wait_party(engine: Engine, ag: Agent) -> Party:
    at = ag.blocked
    word = at.word if isinstance(at, AtWait) else at.reads[0][0] if isinstance(at, AtPoll) and at.reads else None
    if word is None:
        return ag.party(site_of(ag), note=why_blocked(ag))
    notes = [why_blocked(ag), *_slot_arithmetic(ag)]
    if word.last is None:
        notes += [*_plain_writers(engine, word), *_strays(ag, word), *_could_write(engine, word)]
    return ag.party(site_of(ag), word.title, word.spot(), "\n".join(notes[:_LINES_SHOWN]))


def _slot_arithmetic(ag: Agent) -> list[str]:
    """A word that holds what is waited for where a packed slot, or the slot of another stride, would lie."""
    at = ag.blocked
    if not isinstance(at, AtWait):
        return []
    word, width = at.word, at.word.width
    notes = []
    if at.slot:
        packed = word.off - at.slot * (LINE_BYTES - width)
        notes += _holds(word.al, packed, width, at.want, f"slot {at.slot} of a packed array")
    if _passed(ag):
        notes.append(f"the value has passed {at.want}: a later signal came before this poll (overshoot)")
    return notes


def _holds(al: Allocation, off: int, width: int, want: int, what: str) -> list[str]:
    if off % width or not 0 <= off < len(al) - width + 1 or al.words(width)[off // width] != want:
        return []
    stride_elems = LINE_BYTES // width
    return [f"element {off // width} holds {want}: that is {what}, but slots are {stride_elems} elements apart"]


def _strays(ag: Agent, word: Word) -> list[str]:
    """Signals to words of the same tensor that nobody has polled, with the value that is waited for here."""
    at = ag.blocked
    strays = [
        w
        for w in word.al.sync.values()
        if w is not word and w.last is not None and not w.polled and (not isinstance(at, AtWait) or w.value == at.want)
    ]
    strays.sort(key=lambda w: abs(w.off - word.off))
    return [
        f"element {w.index} ({abs(w.off - word.off)} bytes {'before' if w.off < word.off else 'after'}), for which "
        f"nobody has waited, was written: {w.last[2]} by {w.last[0]} at {w.last[1]}"
        for w in strays[:_STRAYS_SHOWN]
        if w.last is not None
    ]


def _could_write(engine: Engine, word: Word) -> list[str]:
    """Source operations of each rank's launches that signal this tensor, and who has yet to make them."""
    states: dict[Any, dict[str, list[int]]] = {}
    for stream in engine.streams:
        for launch in _latest(stream):
            for site in signal_sites(launch, word.al):
                states.setdefault(site, {}).setdefault(_progress(launch, site, stream), []).append(launch.rank)
    return [
        f"{site.op} at {site} signals {word.title}: "
        + "; ".join(f"{_ranks(ranks)} {said}" for said, ranks in by.items())
        for site, by in list(states.items())[:_STRAYS_SHOWN]
    ]


def _latest(stream: Stream) -> list[Launch]:
    """The present launch of a rank, or its last, and those that are queued behind it."""
    latest = stream.current or stream.last_launch
    return ([] if latest is None else [latest]) + stream.queued()


def _progress(launch: Launch, site: Any, stream: Stream) -> str:
    """Whether a launch may still come to `site`, by the lines at which its agents are blocked."""
    if stream.current is not None and launch is not stream.current:
        return f"in launch {launch.id} ({launch.kernel.name}), queued behind launch {stream.current.id}, which is stuck"
    if stream.current is None:
        return "at the end of the launch, which did not write it"
    before = [at for ag in launch.agents.values() if (at := site_of(ag)) is not None and _above(at, site)]
    return f"blocked before it, at {before[0]}" if before else "past that line"


def _above(at: Any, site: Any) -> bool:
    return at.file != site.file or at.line <= site.line


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"


def signal_sites(launch: Launch, al: Allocation) -> list[Any]:
    """Operations of the launch's kernel that signal through an argument bound to `al` or a peer of it."""
    family = set(al.peers) | {al}
    names = {name for name, bound in launch.bound if bound in family}
    sites = getattr(launch.kernel, "sites", ())
    return [site for site in sites if site.op in _SIGNALS and site.arg in names]


def _edge(engine: Engine, ag: Agent) -> dict[str, Any]:
    """One row of the wait graph, as data."""
    at = ag.blocked
    row: dict[str, Any] = {"rank": ag.rank, "program": ag.program, "core": ag.core, "at": str(site_of(ag))}
    if isinstance(at, AtWait):
        row |= {
            "tensor": at.word.title,
            "on_rank": at.word.al.rank,
            "slot": at.slot,
            "byte": at.word.off,
            "line": at.word.address // LINE_BYTES - at.word.al.lo // LINE_BYTES,
            "expected": at.want,
            "actual": at.word.mem[at.word.index],
            "last_writer": None if at.word.last is None else f"{at.word.last[0]} at {at.word.last[1]}",
        }
    elif isinstance(at, AtBarrier):
        row |= {"barrier": NAMES[at.kind], "number": at.round}
    return row


def _waits_for(engine: Engine, ag: Agent) -> set[int]:
    """Ranks that an agent may wait for: the word's last writer, or all whose kernels signal that tensor.

    Nobody, where what it waits for has come and gone.
    """
    at = ag.blocked
    if _passed(ag) or _lost(ag):
        return set()
    if isinstance(at, AtBarrier):
        here = {other.rank for other in engine.barriers.arrived}
        full = {s.rank for s in engine.streams if s.current and s.current.arrived == s.current.participants}
        return set(range(engine.config.nranks)) - (here & full)
    words = [at.word] if isinstance(at, AtWait) else [w for w, _ in at.reads] if isinstance(at, AtPoll) else []
    ranks: set[int] = set()
    for word in words:
        if word.last is not None:
            ranks.add(word.last[0].rank)
        else:
            able = [launch for stream in engine.streams if stream.current for launch in _latest(stream)]
            ranks |= {launch.rank for launch in able if signal_sites(launch, word.al)}
    return ranks


def _cycle(engine: Engine, blocked: list[Agent]) -> list[Node]:
    """A shortest cycle of the wait graph over (rank, source line), or nothing."""
    graph: dict[Node, set[Node]] = {}
    nodes_of: dict[int, set[Node]] = {}
    for ag in _representatives(blocked):
        nodes_of.setdefault(ag.rank, set()).add(_node(ag))
    for ag in _representatives(blocked):
        targets = (node for rank in _waits_for(engine, ag) for node in nodes_of.get(rank, ()))
        graph.setdefault(_node(ag), set()).update(target for target in targets if target != _node(ag))
    found = [cycle for start in sorted(graph) if (cycle := _back_to(graph, start))]
    return min(found, key=len, default=[])


def _back_to(graph: dict[Node, set[Node]], start: Node) -> list[Node]:
    """Breadth first from `start` back to it."""
    paths: list[list[Node]] = [[start]]
    seen: set[Node] = set()
    while paths:
        path = paths.pop(0)
        for target in sorted(graph.get(path[-1], ())):
            if target == start:
                return path
            if target not in seen:
                seen.add(target)
                paths.append([*path, target])
    return []


def _why(blocked: list[Agent], cycle: list[Node]) -> str | None:
    """What has come and gone before who waits for whom: it ends no wait any more, whatever the others do."""
    if any(map(_lost, blocked)):
        return "the signal had come, and a plain or host write replaced it before the wait saw it"
    if any(map(_passed, blocked)):
        return "the word has passed the value that the wait needs: a wait compares for equality (overshoot)"
    if not cycle:
        return None
    steps = [f"rank {rank} at {where}" for rank, where in (*cycle, cycle[0])]
    return "each waits for the next: " + " → ".join(steps)


def _cure(blocked: list[Agent]) -> str | None:
    if any(map(_lost, blocked)):
        return "zero signals before anybody may signal them: zero_(), synchronize, host barrier, then launch"
    passed = [ag.blocked.word for ag in blocked if _passed(ag) and isinstance(ag.blocked, AtWait)]
    if not passed:
        return None
    return OVERSHOOT_OF_ADD if any(word.adds for word in passed) else kind_of("overshoot").cure


# -------------------------------------------------------------------- hosts


def _hosts_stuck(engine: Engine) -> Finding:
    """No agent waits, but hosts do: for each other, or for one that has ended."""
    waiting = [host for host in engine.hosts if host.request is not None]
    if waiting and all(isinstance(host.request, Malloc | Free) for host in waiting):
        return engine.requests.asymmetric()
    return make(
        "deadlock",
        [host.party(_host_note(host)) for host in waiting],
        expected="every rank in the same host call",
        got="; ".join(f"rank {host.rank}: {host.state()}" for host in engine.hosts),
        why="hosts wait for each other in different calls, or for one that has ended",
        cure="let every rank make the same collective calls in the same order",
        waiting=len(waiting),
        agents=len(engine.hosts),
        hosts=[f"rank {host.rank}: {host.state()}" for host in engine.hosts],
    )


def _host_note(host: Host) -> str:
    request = host.request
    detail = getattr(request, "kind", None)
    return f"{host.state()} ({detail})" if detail else host.state()
