"""Agents: one core of one program of one launch, and all that generated code may ask of it.

An agent is a generator. It yields at scheduling points and while it is blocked; `blocked` says why it is.

Source: docs/architecture.md, seam 3; docs/ordering-model.md, "Who acts" and "Pointers".
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tdist.findings import Finding, Party, make
from tdist.platforms.sim.barriers import AtBarrier
from tdist.platforms.sim.detector import RARE
from tdist.platforms.sim.faults import complete
from tdist.platforms.sim.memory import LINE_BYTES, Allocation
from tdist.platforms.sim.race_report import Who, tensor_name
from tdist.platforms.sim.words import SyncWords, Waiter, Word

if TYPE_CHECKING:
    from tdist.platforms.sim.clocks import AgentClocks, Clock
    from tdist.platforms.sim.codegen.site import Site
    from tdist.platforms.sim.engine import Engine
    from tdist.platforms.sim.streams import Launch


_ADDS: Final = (2, "add")
"""How an ADD is spelt: as generated code gives it, and by name."""
ROUNDS: Final = range(2_000_000)
"""So often may a `while` loop without a bound go round; a simulated kernel that means it to is rarer than a hang."""


class AgentFault(Exception):
    """Ends the run with `finding`; raised inside generated code by what it calls."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.title)
        self.finding = finding


@dataclass(slots=True)
class AtWait:
    """Blocked in a wait: slot `slot` must equal `want`."""

    word: Word
    want: int
    site: Site
    slot: int


@dataclass(slots=True)
class AtPoll:
    """Blocked in a loop that changes nothing until one of the words that it read differs from what it saw."""

    reads: tuple[tuple[Word, int], ...]
    site: Site
    progress: int


def _no_record(*_: Any) -> None:
    """Stands for the recording methods when detection is off."""


def one_by_one(*_: Any) -> bool:
    """In the place of `Agent.polled` where somebody stands between an agent and the detector."""
    return False


class Agent:
    """See seam 3 for what each method means to generated code.

    `rd, rd_cached, rd_lanes, wr, wr_lanes, access_word, polled, access_atomics` are the detector's, or do nothing.
    """

    rd: Callable[..., None]
    rd_cached: Callable[..., None]
    rd_lanes: Callable[..., None]
    wr: Callable[..., None]
    wr_lanes: Callable[..., None]
    access_word: Callable[..., None]
    polled: Callable[..., bool]
    access_atomics: Callable[..., None]
    step: Callable[[], None]
    body: Generator[None, Any, Any] | None = None
    """The generator that it runs."""

    def __init__(self, engine: Engine, launch: Launch, program: int, core: int, clocks: AgentClocks | None) -> None:
        self.engine = engine
        self.words = engine.words
        self.later = engine.later
        self.launch = launch
        self.launch_id = launch.id
        self.rank = launch.rank
        self.nranks = engine.config.nranks
        self.program = program
        self.core = core
        self.detect = clocks is not None
        self.poison = engine.config.poison
        self.clocks = clocks
        self.who = Who(self.rank, launch.id, program, core)
        self.position = -1
        self.ticket = 0
        self.at_wait = False
        self.changed = True
        self.rounds = ROUNDS
        self.polled_at = -1
        self.blocked: AtWait | AtPoll | AtBarrier | None = None
        self._reads: dict[int, tuple[Word, int]] = {}
        self._carried: tuple[Site, tuple] | None = None
        self._bind()

    def _bind(self) -> None:
        if self.clocks is not None and self.engine.detector is not None and self.engine.guard is not None:
            self.engine.detector.bind(self, self.engine.guard.written, lazily=True)
            return
        self.rd = self.rd_cached = self.rd_lanes = self.wr = self.wr_lanes = _no_record
        self.access_word = self.access_atomics = _no_record
        self.polled = one_by_one

    def __getattr__(self, name: str) -> Any:
        """Recording methods that few agents need are made when they are asked for."""
        if name not in RARE:
            raise AttributeError(name)
        assert self.engine.detector is not None and self.engine.guard is not None
        made = self.engine.detector.rare(name, self, self.engine.guard.written)
        setattr(self, name, made)
        return made

    # ---------------------------------------------------------------- messages

    def party(self, site: Site | None, tensor: str | None = None, where: str = "", note: str = "") -> Party:
        """This agent as a side of a finding, at `site`."""
        file, line, op = (site.file, site.line, site.op) if site is not None else (None, None, "")
        return Party(self.rank, self.launch_id, self.program, self.core, file, line, op, tensor, where, note)

    def fault(self, kind_id: str, site: Site, **data: Any) -> NoReturn:
        """End this run with a finding of `kind_id`; `data` fills its texts, and `expected`, `got`, `where`, `note`."""
        party = self.party(site, data.get("tensor") or site.arg, data.pop("where", ""), data.pop("note", ""))
        raise AgentFault(make(kind_id, [party], **complete(kind_id, site, data)))

    def print(self, site: Site, prefix: str, values: Sequence[Any]) -> None:
        """tl.device_print: kept in order of execution."""
        self.engine.prints.append((self.rank, self.program, " ".join([prefix, *map(str, values)])))

    def assert_(self, cond: Any, msg: str, site: Site) -> None:
        """tl.device_assert; `cond` is a scalar or a tensor of which every lane must hold."""
        holds = bool(cond.all()) if hasattr(cond, "all") else bool(cond)
        if not holds:
            self.fault("kernel-assert", site, message=msg, expected="true for every lane", got=f"{cond}")

    # ---------------------------------------------------------------- pointers

    def symm_at(self, addr: int, al: Allocation | None, pe: int, site: Site) -> tuple[int, Allocation]:
        """Translate a local symmetric address to PE `pe`; arithmetic may go on from there."""
        peer = self._peer(addr, al, pe, site)
        return peer.lo + (addr - peer.peers[self.rank].lo), peer

    def pointer(self, addr: int, site: Site) -> Allocation:
        """The allocation that an integer made into a pointer points to: own memory, or a symmetric heap."""
        found = self.engine.memory.lookup(addr)
        if found is None or (found.rank != self.rank and not found.symmetric):
            self._misuse(site, found, f"{addr:#x} is no address that rank {self.rank} can reach", f"{addr:#x}")
        return found

    def _peer(self, addr: int, al: Allocation | None, pe: int, site: Site) -> Allocation:
        al = self._known(addr, al, site)
        if not al.symmetric:
            got = f"{tensor_name(al, site.arg)} at {addr:#x}, which is private memory of rank {al.rank}"
            self._misuse(site, al, "the address is outside the symmetric heap", got)
        if al.rank != self.rank:
            got = f"an address on rank {al.rank}'s heap"
            self._misuse(site, al, f"the address is already translated to rank {al.rank}", got)
        if not 0 <= pe < self.nranks:
            self._misuse(site, al, f"PE {pe} does not exist", f"PE {pe}; PEs are 0 … {self.nranks - 1}")
        return al.peers[pe]

    def _known(self, addr: int, al: Allocation | None, site: Site) -> Allocation:
        found = al if al is not None else self.engine.memory.lookup(addr)
        if found is None:
            self._misuse(site, None, f"{addr:#x} is no address of device memory", f"{addr:#x}")
        if found.freed:
            self._misuse(site, found, found.fate, f"{addr:#x}, freed memory")
        return found

    def _misuse(self, site: Site, al: Allocation | None, problem: str, got: str) -> NoReturn:
        tensor = tensor_name(al, site.arg) if al is not None else site.arg
        expected = f"a symmetric address of rank {self.rank} itself and a PE below {self.nranks}"
        self.fault("pointer-misuse", site, problem=problem, tensor=tensor, expected=expected, got=got)

    def _offset(self, addr: int, al: Allocation, width: int, site: Site) -> int:
        """Byte offset of a scalar access, checked against its allocation."""
        off, name = addr - al.lo, tensor_name(al, site.arg)
        if al.freed:
            self._misuse(site, al, al.fate, f"{addr:#x}, freed memory")
        if off < 0 or off + width > al.hi - al.lo:
            self.fault(
                "out-of-bounds",
                site,
                tensor=name,
                expected=f"bytes 0 … {len(al) - 1} of {name} on rank {al.rank}",
                got=f"bytes {off} … {off + width - 1}",
            )
        if off % width:
            self._misuse(site, al, f"the address is not aligned to {width} bytes", f"byte {off} of {name}")
        return off

    # ---------------------------------------------------------------- synchronisation

    def notify(
        self, addr: int, al: Allocation | None, value: int, pe: int, op: int | str, width: int, site: Site
    ) -> None:
        """dl.notify, signal_op: `op` is 1 ("set") or 2 ("add"). Releases what its profile covers."""
        peer, off = self._landing(addr, al, pe, width, site)
        add = op in _ADDS
        if add:
            self.engine.check_double_effect(self, site)
        self.words.signal(self, peer, off, width, value, add, site)

    def _landing(self, addr: int, al: Allocation | None, pe: int, width: int, site: Site) -> tuple[Allocation, int]:
        """Where a signal to the local symmetric address `addr` arrives on PE `pe`: allocation and byte offset."""
        if al is not None and al.rank == self.rank and al.symmetric and not al.freed and 0 <= pe < self.nranks:
            peer, off = al.peers[pe], addr - al.lo
            if 0 <= off <= peer.hi - peer.lo - width and not (off % width or peer.freed):
                return peer, off
        peer = self._peer(addr, al, pe, site)
        return peer, self._offset(addr + peer.lo - peer.peers[self.rank].lo, peer, width, site)

    def put_scalar(self, addr: int, al: Allocation | None, value: int, pe: int, width: int, site: Site) -> None:
        """aclshmem_<T>_p: a scalar store that writes back its line and releases like a SET."""
        self.notify(addr, al, value, pe, 1, width, site)

    def fence(self, site: Site) -> None:
        """Drains all pipes and the data cache."""
        self.changed = True
        if self.clocks is not None:
            self.clocks.drain(flush_cache=True)

    def stay(self, steps: int) -> bool:
        """Take so many steps at once, if no other agent would run in between whatever this one does in them."""
        return self.engine.stay(self, steps)

    def quiet(self, site: Site) -> None:
        """As fence, and completes transfers."""
        self.fence(site)

    def wait(
        self, addr: int, al: Allocation | None, n: int, value: int, width: int, semantic: str, site: Site
    ) -> Generator[None, None, Clock | None]:
        """Poll slots 0 … n-1, 64 bytes apart, until each equals `value`; gives the token."""
        if al is not None and not al.freed and n > 0:
            off = addr - al.lo
            if 0 <= off <= al.hi - al.lo - width - (n - 1) * LINE_BYTES and not off % width:
                return self.words.wait(self, al, off, n, value, width, semantic, site)
        al = self._known(addr, al, site)
        if n > 0:
            self._check_slots(addr, al, n, width, site)
            off = self._offset(addr, al, width, site)
            return self.words.wait(self, al, off, n, value, width, semantic, site)
        return self.words.wait(self, al, 0, 0, value, width, semantic, site)

    def _check_slots(self, addr: int, al: Allocation, n: int, width: int, site: Site) -> None:
        have_bytes = al.hi - addr
        needed_bytes = (n - 1) * LINE_BYTES + width
        if n == 1 or addr < al.lo or needed_bytes <= have_bytes:
            return
        stride_elems = LINE_BYTES // width
        self.fault(
            "short-signal",
            site,
            tensor=tensor_name(al, site.arg),
            slots=n,
            needed_bytes=needed_bytes,
            have_bytes=max(have_bytes, 0),
            expected=f"{needed_bytes // width} elements of {width} bytes from the pointer on: slots are {LINE_BYTES} "
            f"bytes, that is {stride_elems} elements, apart",
            got=f"{max(have_bytes, 0) // width} elements",
        )

    def volatile_load(self, addr: int, al: Allocation | None, width: int, clk: Clock | None, site: Site) -> int:
        """A load that neither races with synchronisation accesses nor acquires; gives the bits as a signed integer.

        It has a Write effect, so W orders it and what its operands carried (`clk`) adds nothing.
        """
        al = self._known(addr, al, site)
        off = self._offset(addr, al, width, site)
        value = self.words.volatile_load(self, al, off, width, site)
        self._note_read(al, off, value)
        return value

    def atomic(
        self,
        addr: int,
        al: Allocation | None,
        op: str,
        value: Any,
        width: int,
        kind: str,
        sem: str,
        scope: str,
        used: bool,
        site: Site,
    ) -> Any:
        """A scalar tl.atomic_*; gives the old value."""
        al = self._known(addr, al, site)
        off = self._offset(addr, al, width, site)
        self.engine.check_double_effect(self, site)
        old = self.words.atomic(self, al, off, op, value, width, kind, sem, scope, used, site)
        self._note_read(al, off, al.sync[off].value)
        return old

    def atomic_lanes(self, al: Allocation, offs: Any, width: int, site: Site, used: bool) -> None:
        """A tile of atomics: accumulation that orders nothing; access.py does the arithmetic."""
        self.engine.check_double_effect(self, site)
        self.changed = True
        if self.clocks is None:
            return
        self.access_atomics(al, offs, width, site)
        self.clocks.effect()
        if used:
            self.launch.note_turn(self.program, site)
            self.clocks.drain(flush_cache=False)

    def barrier(self, kind: str, site: Site) -> Generator[None, None, None]:
        """`all` or `all_vec`: all agents of the current launch on every rank."""
        self.engine.barriers.arrive(self, kind, site)
        yield
        self.at_wait = False

    # ---------------------------------------------------------------- polling loops

    def poll(self, carried: tuple, site: Site, ends: bool = False, stores: bool = False) -> Generator[None, None, None]:
        """Back edge of a polling loop: blocks once an iteration changed nothing and carries what it carried before.

        `ends`: the loop counts towards a bound, so going round is progress. `stores`: an iteration writes plain
        memory, where a counter may be kept; it never counts as one that changed nothing.
        """
        before, self._carried = self._carried, (site, carried)
        idle = not (self.changed or stores) and before is not None and _same(before, self._carried)
        self.changed = False
        reads = tuple(self._reads.values())
        self._reads.clear()
        if not idle:
            if not ends:
                self.engine.note_poll(self)
        elif all(word.refresh() == seen for word, seen in reads):
            self._block_until_change(reads, site)
        yield

    def endless(self, site: Site) -> NoReturn:
        """A `while` loop without a bound went round `rounds` times."""
        self.fault(
            "endless-loop",
            site,
            rounds=len(self.rounds),
            expected="a loop that ends",
            got=f"{len(self.rounds)} rounds, and its condition still holds",
        )

    @property
    def at_effect(self) -> bool:
        """It stands before a notify, a remote load or store, an atomic or a volatile load.

        Before these generated code has a bare `yield`; everything else that suspends it does so in a method of ours.
        """
        inner: Any = self.body
        if self.at_wait or inner is None or not inner.gi_suspended:
            return False
        while inner.gi_yieldfrom is not None:
            inner = inner.gi_yieldfrom
        return inner.gi_code not in _BLOCKING

    @property
    def carried_site(self) -> Site | None:
        """The polling loop that it is in."""
        return self._carried[0] if self._carried is not None else None

    def _note_read(self, al: Allocation, off: int, value: int) -> None:
        word = al.sync[off]
        word.polled = True
        self._reads[al.lo + off] = (word, value)

    def _block_until_change(self, reads: tuple[tuple[Word, int], ...], site: Site) -> None:
        self.blocked = AtPoll(reads, site, self.engine.progress)
        for word, seen in reads:
            word.waiters.append(Waiter(self, self.ticket, seen, until_change=True))

    def block_on(self, word: Word, want: int, site: Site, slot: int) -> None:
        """Blocked until `word` equals `want`; the caller yields."""
        self.blocked = AtWait(word, want, site, slot)
        word.waiters.append(Waiter(self, self.ticket, want, until_change=False))


def _same(before: tuple[Site, tuple], now: tuple[Site, tuple]) -> bool:
    """Whether two iterations of one loop carry the same values; what cannot be compared counts as different."""
    if before[0] is not now[0]:
        return False
    try:
        return bool(before[1] == now[1])
    except (RuntimeError, ValueError, TypeError):
        return False


_BLOCKING: Final = frozenset({SyncWords.wait.__code__, Agent.barrier.__code__, Agent.poll.__code__})
"""Where agents are suspended in between: until a word or a barrier lets them go on, or at a back edge."""
