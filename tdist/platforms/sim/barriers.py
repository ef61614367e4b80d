"""barrier_all and barrier_all_vec: who takes part, who is missing, and what a barrier orders.

Participants are all agents of the current launch on every rank, matched by a sequence number that goes on across
launches. Since a barrier needs every rank, all ranks have completed the same number of them: one round is open at a
time.

Source: docs/ordering-model.md, "Barriers"; the ACLSHMEM device headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from tdist.findings import Party, make
from tdist.platforms.sim.clocks import join_all

if TYPE_CHECKING:
    from tdist.findings import Finding
    from tdist.platforms.sim.agents import Agent
    from tdist.platforms.sim.codegen.site import Site
    from tdist.platforms.sim.streams import Launch

NAMES: Final = {"all": "barrier_all", "all_vec": "barrier_all_vec"}
_PARTIES_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Missing:
    """One participant, or a whole rank, that a barrier lacks; `party` says where it is if it is anywhere."""

    rank: int
    reason: str
    party: Party | None = None
    count: int = 1


@dataclass(slots=True)
class AtBarrier:
    """Why an agent is blocked."""

    kind: str
    round: int
    site: Site


class Barriers:
    """The open round of the world's barrier, and the number of completed ones.

    `hopeless`: a participant of the open round has ended. The run goes on until nothing else can run, so that the
    report names all who are missing and not only the first.

    Args:
        nranks: ranks that take part.
        wake: makes a blocked agent runnable.
        participants: how many agents the running launches have together.
        stop: ends the run with a finding.
        drained: every barrier drains, whatever the kernel.
    """

    def __init__(
        self,
        nranks: int,
        wake: Callable[[Agent], None],
        participants: Callable[[], int],
        stop: Callable[[Finding], NoReturn],
        drained: bool = False,
    ) -> None:
        self.nranks = nranks
        self.wake = wake
        self.participants = participants
        self.stop = stop
        self.drained = drained
        self.round = 0
        self.kind = ""
        self.hopeless = False
        self.arrived: list[Agent] = []
        self._ready_ranks = 0

    @property
    def open(self) -> bool:
        """Whether somebody waits."""
        return bool(self.arrived)

    def arrive(self, ag: Agent, kind: str, site: Site) -> bool:
        """Note an arrival; whether it completed the round. The agent is blocked if not."""
        launch = ag.launch
        ag.blocked = AtBarrier(kind, self.round, site)
        if self.arrived and kind != self.kind:
            self._diverge([self._elsewhere(ag, kind, site)])
        self.kind = kind
        self.arrived.append(ag)
        launch.arrived += 1
        self.hopeless = self.hopeless or launch.ended > 0
        if launch.arrived == launch.participants:
            self._ready_ranks += 1
            if self._ready_ranks == self.nranks:
                self._complete(ag)
                return True
        return False

    def agent_ended(self, launch: Launch) -> None:
        """A participant ended; if others of its launch wait at a barrier, it will never come."""
        self.hopeless = self.hopeless or launch.arrived > 0

    def rank_gone(self, rank: int, reason: str) -> None:
        """A rank ended with nothing left to run."""
        if self.arrived:
            self._diverge([Missing(rank, reason)])

    def report(self, launches: Iterable[Launch], missing: Sequence[Missing] = ()) -> Finding:
        """The divergence finding: ended agents of the running `launches`, and `missing`, come no more."""
        ended = [group for launch in launches for group in self._ended(launch)]
        return self._finding([*ended, *missing])

    def _complete(self, last: Agent) -> None:
        arrived, self.arrived = self.arrived, []
        self._ready_ranks = 0
        self.round += 1
        self._join(arrived)
        last.blocked = None
        for ag in arrived:
            ag.launch.arrived = 0
            ag.at_wait = True
            ag.changed = True
            if ag is not last:
                self.wake(ag)

    def _join(self, arrived: list[Agent]) -> None:
        clocks = [ag.clocks for ag in arrived if ag.clocks is not None]
        if not clocks:
            return
        drains = [self.drained or ag.launch.mixed for ag in arrived]
        if all(drains):
            join_all(clocks, drains=True, site=last_site(arrived[-1]))
            return
        for clock, drained in zip(clocks, drains, strict=True):
            if drained:
                clock.drain(flush_cache=False)
        join_all(clocks, drains=False, site=last_site(arrived[-1]))

    def _ended(self, launch: Launch) -> list[Missing]:
        """Ended agents of a launch, all programs of one core as one entry."""
        groups: dict[int, list[int]] = {}
        for program, core in sorted(launch.finished):
            groups.setdefault(core, []).append(program)
        return [
            Missing(launch.rank, launch.why_ended(programs, core), launch.party(programs[0], core), len(programs))
            for core, programs in groups.items()
        ]

    def _elsewhere(self, ag: Agent, kind: str, site: Site) -> Missing:
        where = f"is at {NAMES[kind]} while others are at {NAMES[self.kind]}"
        return Missing(ag.rank, f"rank {ag.rank}, program {ag.program} {where}", ag.party(site))

    def _diverge(self, missing: Sequence[Missing]) -> NoReturn:
        self.stop(self._finding(missing))

    def _finding(self, missing: Sequence[Missing]) -> Finding:
        places = {(ag.rank, ag.core, last_site(ag)): ag for ag in reversed(self.arrived)}
        waiting = [ag.party(last_site(ag), note="waits here") for ag in list(places.values())[::-1][:_PARTIES_SHOWN]]
        absent = [m.party for m in missing if m.party is not None][:_PARTIES_SHOWN]
        reasons = list(dict.fromkeys(m.reason for m in missing))
        count = sum(m.count for m in missing)
        participants = max(self.participants(), len(self.arrived) + count)
        return make(
            "barrier-divergence",
            [*waiting, *absent],
            expected=f"all {participants} participants at {NAMES[self.kind]} number {self.round}",
            got=f"{len(self.arrived)} there, {count} that can no longer come",
            missing=count,
            participants=participants,
            barrier=f"{NAMES[self.kind]} number {self.round}",
            reason="; ".join(reasons[:_PARTIES_SHOWN]),
            ranks=sorted({m.rank for m in missing}),
        )


def last_site(ag: Agent) -> Site | None:
    """Where a blocked agent stands."""
    return getattr(ag.blocked, "site", None)
