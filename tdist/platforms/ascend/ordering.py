"""The check of order in a vendor's final module: what may still be in flight where others are told that it is done.

`check_ordering` reports, with the kernel's lines: transfers that a signal can overtake; accesses of cube and vector
cores that no `sync_block` orders; reads through a data cache that nobody has flushed since a wait; accesses of one core
on different pipes that no flag or barrier orders; flags that do not pair up; and what it does not understand. What it
takes for granted stands in `assumptions`, what it does not see in docs/compiled-code.md.

Each finding says what to insert where (`data["cures"]`). `with_cure` inserts it into a copy of the module, so that
anyone can see that the finding goes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from xdsl.dialects.func import CallOp
from xdsl.ir import Operation, SSAValue

from tdist.findings import Finding, FindingLog, Party, Severity
from tdist.findings.kinds import make
from tdist.ir import hivm
from tdist.ir.hivm import Pipe
from tdist.ir.location import loc_of, set_loc
from tdist.platforms.ascend.compiled import calls
from tdist.platforms.ascend.compiled.calls import Role
from tdist.platforms.ascend.compiled.events import Access, Event, Unknown, name_of
from tdist.platforms.ascend.compiled.final_module import CORE_NAMES, CoreFunction, FinalModule, OpRef, kernel_loc
from tdist.platforms.ascend.compiled.memory import GM, Memory, Region
from tdist.platforms.ascend.compiled.order import Fault, OrderReport, Unordered, check_order
from tdist.platforms.ascend.compiled.values import Values

LEADING_ARGUMENTS = ("flag words", "lock", "workspace")
"""What the compiler passes to a kernel in front of the kernel's own arguments."""

_SPACES = {"ub": "the unified buffer", "cbuf": "L1", "cc": "L0C", GM: "global memory"}
_FENCE = "_mlir_ciface_aclshmem_fence"

# ---- cures ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cure:
    """Something to insert before an operation: a `pipe_barrier` of `pipe`, or a call of the library's fence.

    `function` and `before` are the place (`OpRef`) in the module that was checked.
    """

    insert: str  # "pipe_barrier" or "fence"
    function: str
    before: int
    pipe: str = Pipe.ALL.value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cure:
        """From an entry of a finding's `data["cures"]`."""
        return cls(**value)


def with_cure(final: FinalModule, cure: Cure) -> FinalModule:
    """A copy of the module with the cure in it; `final` is left as it is."""
    copy = final.clone()
    place = copy.op(OpRef(cure.function, cure.before))
    inserted: Operation = hivm.PipeBarrierOp.build(properties={"pipe": hivm.PipeAttr(Pipe(cure.pipe))})
    if cure.insert == "fence":
        inserted = CallOp(_FENCE, [], [])
    set_loc(inserted, loc_of(place))
    assert place.parent is not None
    place.parent.insert_ops_before([inserted], place)
    return copy.clone()  # numbers are those of the changed text


def cured(final: FinalModule, finding: Finding) -> tuple[Cure, list[Finding]] | None:
    """The first cure of a finding with which it goes, and the findings that are left; None if none helps."""
    for value in finding.data.get("cures", ()):
        cure = Cure.from_json(value)
        left = check_ordering(with_cure(final, cure))
        if finding.key not in {other.key for other in left}:
            return cure, left
    return None


# ---- the check ------------------------------------------------------------------------------------------------------


def check_ordering(final: FinalModule, *, names: Sequence[str] = ()) -> list[Finding]:
    """What is not ordered in a final module.

    Args:
        final: The module.
        names: The kernel's arguments in order, for the texts.

    Returns:
        Findings `tdist.compiled.*`; none if everything that depends on another is ordered after it. A finding's
        `data["assumptions"]` are ids of `assumptions.ASSUMPTIONS`.
    """
    report = check_order(final)
    writer = _Writer(final, report, names)
    log = FindingLog()
    for fault in report.faults:
        for finding in writer.findings(fault):
            log.add(finding)
    for finding in writer.not_understood():
        log.add(finding)
    if not report.complete:
        log.add(writer.too_large())
    return log.findings


_TEXTS: dict[Fault, tuple[str, tuple[str, ...]]] = {
    Fault.PIPES: (
        "compiled.pipe-order",
        ("pipe-start-order", "flag-covers-pipe", "scalar-issues", "reductions-wait-inside"),
    ),
    Fault.TRANSFER: ("compiled.undrained-transfer", ("scalar-does-not-wait", "library-drains")),
    Fault.CORES: ("compiled.cross-core", ("cross-core-flags", "halves-run-alike", "arguments-do-not-overlap")),
    Fault.RELEASE: ("compiled.undrained-release", ("scalar-does-not-wait", "library-drains")),
    Fault.STALE: ("compiled.stale-cache", ("wait-invalidates-one-line", "library-drains")),
    Fault.SET_TWICE: ("compiled.unpaired-flag", ("flag-pairs",)),
    Fault.NEVER_SET: ("compiled.unpaired-flag", ("flag-pairs",)),
    Fault.LEFT_UP: ("compiled.unpaired-flag", ("flag-pairs",)),
    Fault.STUCK: ("compiled.unpaired-flag", ("cross-core-flags", "halves-run-alike")),
}
_BY_SIGNAL = "; a wait for a signal stands before one of them, and only the kernel's protocol says whose signal that is"
_FLAG_PROBLEMS = {
    Fault.SET_TWICE: "raised while it may still be up",
    Fault.NEVER_SET: "waited for where it may not be up",
    Fault.LEFT_UP: "still up when the function returns",
    Fault.STUCK: "waited for, and the other core never sets it",
}


class _Writer:
    """Makes findings of faults."""

    def __init__(self, final: FinalModule, report: OrderReport, names: Sequence[str]) -> None:
        self.final = final
        self.report = report
        self.names = names
        self._shared = _memory_of_peers(final)

    # ---- one fault ---------------------------------------------------------------------------------------------------

    def findings(self, fault: Unordered) -> Iterable[Finding]:
        """The finding of a fault."""
        match fault.fault:
            case Fault.NOT_UNDERSTOOD:
                return ()  # gathered
            case Fault.PIPES | Fault.TRANSFER | Fault.CORES | Fault.RELEASE:
                return (self._pair(fault),)
            case Fault.STALE:
                return (self._stale(fault),)
        return (self._flag(fault),)

    def _pair(self, fault: Unordered) -> Finding:
        kind, basis = _TEXTS[fault.fault]
        assert fault.first is not None
        first = self._party(fault.first, fault.first_core, fault.regions and fault.regions[0])
        second = self._party(fault.second, fault.second_core, fault.regions and fault.regions[1])
        release = fault.fault is Fault.RELEASE
        protocol = fault.fault is Fault.CORES and self._behind_a_wait(fault)
        return make(
            kind,
            [first, second],
            expected=f"{first.op} has finished before {second.op} " + ("is made" if release else "starts"),
            got="no flag, barrier or draining call between the two"
            if fault.fault is not Fault.CORES
            else "no sync_block_set and sync_block_wait between the two",
            why=_missing(fault, first, second) + (_BY_SIGNAL if protocol else ""),
            severity=Severity.NOTE if protocol else None,
            first=first.op,
            second=second.op,
            tensor=first.tensor or second.tensor or "memory",
            cures=self._cures(fault),
            assumptions=list(basis),
        )

    def _behind_a_wait(self, fault: Unordered) -> bool:
        """Whether one of the two comes after a wait for a signal, by which the other half may have ordered them."""
        sides = [(fault.second, fault.second_core)]
        if fault.first is not None:
            sides.append((fault.first, fault.first_core))
        return any(self._waits_before(event, core) for event, core in sides)

    def _waits_before(self, event: Event, core: int) -> bool:
        function = self.final.functions[core]
        before = function.ops[: function.numbers[event.op]]
        found = (calls.describe(op) for op in before if isinstance(op, CallOp))
        return any(call is not None and call.role is Role.WAIT for call in found)

    def _stale(self, fault: Unordered) -> Finding:
        kind, basis = _TEXTS[fault.fault]
        assert fault.first is not None
        wait = self._party(fault.first, fault.first_core, None)
        read = self._party(fault.second, fault.second_core, None)
        written = any(root is None or root in self._shared for root in self._roots(fault.second, fault.second_core))
        return make(
            kind,
            [wait, read],
            expected="fence or quiet after the wait and before the read",
            got="neither",
            severity=None if written else Severity.NOTE,
            first=wait.op,
            second=read.op,
            tensor=read.tensor or "memory",
            cures=[asdict(self._insert("fence", fault.second, fault.second_core))],
            assumptions=list(basis),
        )

    def _flag(self, fault: Unordered) -> Finding:
        kind, basis = _TEXTS[fault.fault]
        party = self._party(fault.second, fault.second_core, None)
        return make(
            kind,
            [party],
            expected="each set of a flag has one wait, and the wait one set",
            got=_FLAG_PROBLEMS[fault.fault],
            flag=fault.detail or "a flag between the cores",
            problem=_FLAG_PROBLEMS[fault.fault],
            cures=[],
            assumptions=list(basis),
        )

    # ---- what is not understood --------------------------------------------------------------------------------------

    def not_understood(self) -> Iterable[Finding]:
        """One finding for each name, with how many accesses may not be ordered with it."""
        faults = [fault for fault in self.report.faults if fault.fault is Fault.NOT_UNDERSTOOD]
        alone = [fault for fault in faults if fault.first is None]
        for name in dict.fromkeys(fault.detail or name_of(fault.second.op) for fault in alone):
            places = [fault for fault in alone if (fault.detail or name_of(fault.second.op)) == name]
            ops = {fault.second.op for fault in places}
            beside = sum(
                fault.first is not None and (fault.first.op in ops or fault.second.op in ops) for fault in faults
            )
            party = self._party(places[0].second, places[0].second_core, None)
            yield make(
                "compiled.not-understood",
                [party],
                expected="an operation or call that the tables know",
                got=f"{name}, {len(ops)} times; {beside} accesses may run beside it",
                severity=Severity.HAZARD if beside else Severity.NOTE,
                op=name,
                beside=beside,
                cures=[asdict(self._insert("pipe_barrier", places[0].second, places[0].second_core))],
                assumptions=[],
            )

    def too_large(self) -> Finding:
        """The walk was given up."""
        return make(
            "compiled.not-understood",
            [Party(0, role=f"kernel {self.final.functions[0].name}")],
            expected="every way through the functions walked",
            got=f"given up after {self.report.steps} steps",
            severity=Severity.HAZARD,
            op="the flow of the kernel's functions",
            beside=0,
            cures=[],
            assumptions=[],
        )

    # ---- texts -------------------------------------------------------------------------------------------------------

    def _party(self, event: Event, core: int, region: Region | None) -> Party:
        function = self.final.functions[core]
        loc = kernel_loc(event.op) or _line_nearby(event.op)
        tensor, where = self._memory(event, core, region)
        return Party(
            0,
            file=loc.file if loc is not None else None,
            line=loc.line if loc is not None else None,
            op=_described(event),
            tensor=tensor,
            where=where,
            note="" if loc is not None else "made up by the compiler, no line of the kernel",
            role=f"{CORE_NAMES[function.core]} ({function.name})",
        )

    def _memory(self, event: Event, core: int, region: Region | None) -> tuple[str | None, str]:
        if region is None:
            found = [self._tensor(root) for root in self._roots(event, core)]
            return (found[0] if found else None), ""
        where = "" if region.high is None or region.terms else f"bytes {region.low} to {region.high - 1}"
        if region.space != GM:
            return _SPACES.get(region.space, region.space), where
        return self._tensor(region.root) + (" on a peer" if region.remote else ""), where

    def _roots(self, event: Event, core: int) -> list[Hashable | None]:
        """The kernel's arguments that an access reads or writes; None for one that is not known."""
        if not isinstance(event, Access):
            return []
        memory = Memory(Values(self.final.functions[core]))
        regions = [region for touch in event.touches for region in memory.regions(touch.value, {})]
        return [region.root for region in regions if region.space == GM]

    def _tensor(self, root: Hashable | None) -> str:
        if not isinstance(root, tuple):
            return "global memory"
        index = int(root[1])
        if index < len(LEADING_ARGUMENTS):
            return LEADING_ARGUMENTS[index]
        number = index - len(LEADING_ARGUMENTS)
        return self.names[number] if number < len(self.names) else f"argument {number}"

    # ---- cures -------------------------------------------------------------------------------------------------------

    def _insert(self, what: str, event: Event, core: int) -> Cure:
        function = self.final.functions[core]
        return Cure(what, function.name, function.numbers[event.op])

    def _cures(self, fault: Unordered) -> list[dict[str, Any]]:
        if fault.fault is Fault.CORES:
            return []
        cures = [self._insert("pipe_barrier", fault.second, fault.second_core)]
        if fault.fault in (Fault.RELEASE, Fault.TRANSFER):
            cures.insert(0, self._insert("fence", fault.second, fault.second_core))
        return [asdict(cure) for cure in cures]


def _missing(fault: Unordered, first: Party, second: Party) -> str:
    """The edge that is not there."""
    assert fault.first is not None
    source, target = fault.first.pipe.value, fault.second.pipe.value
    if fault.fault is Fault.CORES:
        return f"nothing orders {target} of the {second.role} after {source} of the {first.role}"
    if source == target:
        return f"no pipe_barrier[{source}] on some way from the first to the second"
    return (
        f"no set_flag[{source}, {target}] with its wait_flag, nor a barrier, on some way from the first to the second"
    )


def _described(event: Event) -> str:
    """What an event is, in a reader's words, with the compiled name."""
    call = getattr(event, "call", None)
    if isinstance(event, Unknown):
        return event.name
    if not isinstance(event, Access):
        return call.symbol if call is not None else name_of(event.op).removeprefix("hivm.hir.")
    if call is not None and call.is_distributed:
        return call.symbol
    writes = any(touch.writes for touch in event.touches)
    kind = {Pipe.MTE2: "load", Pipe.MTE3: "store", Pipe.FIX: "fixpipe store", Pipe.V: "vector operation"}
    what = kind.get(event.pipe, "scalar store" if writes else "scalar load")
    if event.pipe in (Pipe.M, Pipe.MTE1):
        what = "matrix operation"
    return f"{what} ({call.callee if call is not None else name_of(event.op)}, {event.pipe.value})"


def _line_nearby(op: Operation) -> Any:
    """The line of the next operation that has one: what the compiler makes up serves what follows."""
    following = op.next_op
    while following is not None:
        loc = kernel_loc(following)
        if loc is not None:
            return loc
        following = following.next_op
    return None


def _memory_of_peers(final: FinalModule) -> frozenset[Hashable]:
    """Arguments whose memory other PEs may write: those that a distributed call takes."""
    found: set[Hashable] = set()
    for function in final.functions:
        memory = Memory(Values(function))
        for value in _distributed_operands(function):
            found.update(region.root for region in memory.regions(value, {}) if region.root is not None)
    return frozenset(found)


def _distributed_operands(function: CoreFunction) -> Iterable[SSAValue]:
    for op in function.ops:
        call = calls.describe(op) if isinstance(op, CallOp) else None
        if isinstance(op, CallOp) and call is not None and call.is_distributed and call.role is not Role.DRAIN:
            yield from (value for value in op.arguments if str(value.type).startswith("memref"))


__all__ = ["Cure", "check_ordering", "cured", "with_cure"]
