"""Does the compiled kernel do what the source says, as often, and where the data is? What was lost, doubled or moved.

The source is the TTIR that the vendor's tools were given, the code their final module. A call is recognised by its
device function and its place in the source; an access by the kernel argument that it touches, for the compiler moves
lines of stores.

Checked here: calls, atomics, volatile loads and polling loops that vanished, calls that were merged, repeated or moved;
effects in the functions of both kinds of core, or on both vector cores; signals on a core without the data, or for a
store that two cores share; atomics that are none for another device; addresses translated twice; UB under the library's
staging area.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from xdsl.ir import Operation

from tdist.findings import Finding, Party, make
from tdist.ir import hivm
from tdist.ir.location import SourceLoc, loc_of
from tdist.passes.base import UNUSED
from tdist.platforms.ascend.compiled.final_module import AIC, AIV, CORE_NAMES, FinalModule
from tdist.platforms.ascend.effects_in_code import (
    BARRIER,
    ONCE,
    OTHER,
    QUERY,
    SIGNAL,
    TRANSFER,
    WAIT,
    Access,
    Call,
    Code,
    compiled,
    handed_over,
    kind_of_symbol,
    written,
)
from tdist.platforms.ascend.locks import lock_findings, under_lock
from tdist.platforms.ascend.provenance import (
    CONSUME,
    bases,
    enclosing,
    full_name,
    is_address,
    library_symbol,
    makers,
)
from tdist.platforms.ascend.staging import staging_findings
from tdist.platforms.ascend.sub_blocks import BOTH
from tdist.platforms.ascend.volatile_reads import volatile_findings

if TYPE_CHECKING:
    from tdist.passes.report import CompileReport
    from tdist.platforms.ascend.lowering.prepare import Prepared

_BRANCHES = ("scf.if",)
_WAITS = ("distributed.wait", "scf.for", "scf.while")
_ROLES = {AIC: "cube core", AIV: "vector cores"}


def check_multiplicity(prepared: Prepared, final: FinalModule) -> list[Finding]:
    """Compare what a kernel's source does with what its final module does.

    Returns:
        Findings `tdist.compiled.*`, most telling first; each with the kernel's line, the function of the final module,
        what the source says and what the code does.
    """
    kernel = Kernel.of(prepared, final)
    checks = (
        *(_both_cores, _vector_cores, _shared_stores, _wrong_core, _widened_stores),
        *(
            _lost_and_merged,
            _lost_on_one_core,
            _repeated,
            _moved,
            _gated_barriers,
            _lost_atomics,
            _translated_twice,
            lock_findings,
            staging_findings,
            volatile_findings,
        ),
    )
    found = list(_lost_before(kernel, prepared.report))
    for check in checks:
        found += check(kernel)
    return found


@dataclass(frozen=True)
class Kernel:
    """A kernel on both ends of its compilation."""

    name: str
    arguments: tuple[str, ...]
    source: Code
    functions: tuple[Code, ...]

    @classmethod
    def of(cls, prepared: Prepared, final: FinalModule) -> Kernel:
        """Read both ends."""
        source = written(prepared.module)
        others = {call.symbol for call in source.calls if call.kind == OTHER}
        names = tuple(argument.name for argument in prepared.args)
        return cls(prepared.name, names, source, compiled(final, others))

    def on(self, core: str) -> Code | None:
        """The function of one kind of core."""
        return next((code for code in self.functions if code.core == core), None)

    @cached_property
    def effects(self) -> tuple[Call, ...]:
        """The calls of the source that have an effect, one for each place, in order."""
        first: dict[tuple, Call] = {}
        for call in self.source.calls:
            if call.kind != QUERY and "no_side_effect" not in call.op.properties:
                first.setdefault(call.key, call)
        return tuple(first.values())

    @cached_property
    def written_counts(self) -> Counter:
        """How often each call stands in the source: more than once where a loop was unrolled before."""
        return Counter(call.key for call in self.source.calls)

    def copies(self, call: Call, code: Code | None) -> list[Call]:
        """What became of a call of the source in one function.

        A compiled call whose place is none of the source's (the compiler dropped or made up its line) may be any call
        of its function; so may every one if the source has no places.
        """
        if code is None:
            return []
        same = [copy for copy in code.calls if copy.symbol == call.symbol]
        placed = same if call.loc is None else [copy for copy in same if copy.loc == call.loc]
        return placed or [copy for copy in same if copy.key not in self.written_counts]

    def data_of(self, signal: Call) -> list[Access]:
        """The accesses, as written, that `signal` hands over."""
        return handed_over(self.source, signal)

    def made_in(self, data: Iterable[Access], code: Code | None) -> list[Access]:
        """The accesses of one function that are the given ones of the source."""
        keys = {key for access in data for key in access.keys}
        return [] if code is None else [access for access in code.accesses if access.keys & keys]

    def tensor(self, accesses: Iterable[Access]) -> str:
        """The names of the arguments that are touched."""
        touched = sorted({argument for access in accesses for argument, _, _ in access.touched})
        return ", ".join(self.arguments[index] for index in touched if index < len(self.arguments)) or "memory"

    def party(self, core: str, op: str, loc: SourceLoc | None, note: str = "", tensor: str | None = None) -> Party:
        """One side of a finding: a function of the compiled kernel, or with no core the source."""
        where = _ROLES.get(core, "as written") if len(self.functions) > 1 or not core else CORE_NAMES[core]
        role = f"kernel {self.name}, {where}"
        file, line = (None, None) if loc is None else (loc.file, loc.line)
        return Party(0, file=file, line=line, op=op, tensor=tensor, note=note, role=role)


# ---- effects in both functions, or on both vector cores --------------------------------------------------------------


def _both_cores(kernel: Kernel) -> Iterator[Finding]:
    cube, vector = kernel.on(AIC), kernel.on(AIV)
    for call in kernel.effects:
        copies = {core: kernel.copies(call, code) for core, code in ((AIC, cube), (AIV, vector))}
        total = sum(map(len, copies.values()))
        if call.kind in ONCE and all(copies.values()) and total > kernel.written_counts[call.key]:
            yield _both_cores_finding(kernel, call)


def _both_cores_finding(kernel: Kernel, call: Call) -> Finding:
    data = kernel.data_of(call) if call.kind == SIGNAL else []
    parties = [
        kernel.party(core, call.symbol, call.loc, _about_data(kernel, data, kernel.on(core))) for core in (AIC, AIV)
    ]
    met = bool(data) and all(_meets_between(kernel.source, access.op, call.op) for access in data)
    without = [_ROLES[core] for core in (AIC, AIV) if data and not met and not kernel.made_in(data, kernel.on(core))]
    reason = "in a kernel with tl.dot such a call belongs to both kinds of core, whichever makes the data"
    if without:
        reason += f"; the {without[0]} make{'s' if without[0].endswith('core') else ''} it without waiting for the data"
    return make(
        "compiled.both-cores",
        parties,
        expected="once per program" + (f", after the accesses to {kernel.tensor(data)}" if data else ""),
        got="by the cube core and by the vector cores"
        + (f"; not ordered after the data on the {without[0]}" if without else ""),
        op=call.symbol,
        reason=reason,
    )


def _about_data(kernel: Kernel, data: list[Access], code: Code | None) -> str:
    if not data:
        return ""
    made = kernel.made_in(data, code)
    lines = sorted({str(access.loc) for access in made if access.loc is not None})
    what = kernel.tensor(data)
    return f"accesses {what} at {', '.join(lines)}" if made else f"has no access to {what}"


def _vector_cores(kernel: Kernel) -> Iterator[Finding]:
    """Effects that both vector cores of a program make, each in full."""
    vector = kernel.on(AIV)
    if vector is None or kernel.on(AIC) is None:
        return
    for call in kernel.effects:
        for copy in kernel.copies(call, vector)[:1]:
            if call.kind in ONCE and _in_full_on_both(vector, copy.op) and not _shared(kernel, vector, call, copy):
                yield _vector_cores_finding(kernel, vector, call)
            if call.kind == SIGNAL and not _in_full_on_both(vector, copy.op):
                yield from _late_stores(kernel, vector, call, copy)
    for access in vector.accesses:
        if access.atomic and _in_full_on_both(vector, access.op):
            tensor = kernel.tensor([access])
            yield make(
                "compiled.both-vector-cores",
                [kernel.party(AIV, "atomic", access.loc, tensor=tensor)],
                expected="once per program",
                got="once by each of the two vector cores",
                op=f"the atomic on {tensor}",
                reason="nothing that it depends on tells the vector cores apart",
            )


def _late_stores(kernel: Kernel, vector: Code, call: Call, copy: Call) -> Iterator[Finding]:
    """Stores to other ranks that both vector cores make in full, while their signal is one core's."""
    for access in kernel.made_in(kernel.data_of(call), vector):
        if not access.writes or not any(remote for _, remote, _ in access.touched):
            continue
        if _in_full_on_both(vector, access.op) and not _meets_between(vector, access.op, copy.op):
            tensor = kernel.tensor([access])
            yield make(
                "compiled.both-vector-cores",
                [
                    kernel.party(AIV, "store", access.loc, "by both vector cores", tensor),
                    kernel.party(AIV, call.symbol, call.loc, "by one of them"),
                ],
                expected="once per program, before the signal",
                got="once by each of the two vector cores, one of which does not signal",
                op=f"the store to {tensor} on another rank",
                reason="the other core's store may come after the signal, and after what the signal lets others do",
            )


def _in_full_on_both(code: Code, op: Operation) -> bool:
    return code.sub_blocks.reach(op) == BOTH and not code.sub_blocks.differs(op)


def _vector_cores_finding(kernel: Kernel, vector: Code, call: Call) -> Finding:
    data = kernel.data_of(call) if call.kind == SIGNAL else []
    made = kernel.made_in(data, vector)
    alone = [access for access in made if len(vector.sub_blocks.reach(access.op)) == 1]
    reason = "nothing that it depends on tells the vector cores apart"
    if alone:
        reason += f"; only one of them accesses {kernel.tensor(alone)}, the other one does not wait for it"
    return make(
        "compiled.both-vector-cores",
        [kernel.party(AIV, call.symbol, call.loc, _about_data(kernel, data, vector))],
        expected="once per program",
        got="once by each of the two vector cores",
        op=call.symbol,
        reason=reason,
    )


def _shared_stores(kernel: Kernel) -> Iterator[Finding]:
    """Signals of one vector core, or of both alike, for a store of which each core makes a part."""
    vector = kernel.on(AIV)
    if vector is None or kernel.on(AIC) is None:
        return
    for call in kernel.effects:
        copies = kernel.copies(call, vector)
        if call.kind != SIGNAL or not copies or vector.sub_blocks.differs(copies[0].op):
            continue
        shared = _shared(kernel, vector, call, copies[0])
        if shared:
            yield _shared_finding(kernel, vector, call, copies[0], shared)


def _widened_stores(kernel: Kernel) -> Iterator[Finding]:
    """Stores to another rank that the compiler made of a load from there, a choice and a store of all.

    Known by a load of memory on another rank from which the source does not load; atomics are for others to judge.
    """
    accesses = kernel.source.accesses
    asked = frozenset().union(*(_memory(access) for access in accesses if not access.writes or access.atomic))
    stored = frozenset().union(*(_memory(access) for access in accesses if access.writes))
    told: set[object] = set()
    for code in kernel.functions:
        for access in code.accesses:
            memory = _memory(access)
            key = (code.core, access.loc, memory)
            all_remote = bool(memory) and all(remote for _, remote in memory)
            if all_remote and not access.writes and not memory & asked and memory <= stored and key not in told:
                told.add(key)
                yield _widened_finding(kernel, code, access)


def _memory(access: Access) -> frozenset[tuple[int, bool]]:
    """(argument, on another rank) for everything that an access may be of."""
    return frozenset((argument, remote) for argument, remote, _ in access.touched)


def _widened_finding(kernel: Kernel, code: Code, access: Access) -> Finding:
    tensor = kernel.tensor([access])
    return make(
        "compiled.widened-store",
        [kernel.party(code.core, "store with a mask", access.loc, "loads the whole tile first", tensor)],
        expected=f"a store of the elements that the mask chooses, no load of {tensor}",
        got="a load of all of them, and a store of all",
        tensor=tensor,
        reason="the vendor's adapter knows masks that are a range of offsets; of another it makes a choice between "
        "the new tile and the old one",
    )


def _shared(kernel: Kernel, vector: Code, call: Call, copy: Call) -> list[Access]:
    """The data of a signal that each vector core accesses a part of, with no barrier before the signal."""
    made = kernel.made_in(kernel.data_of(call), vector) if call.kind == SIGNAL else []
    return [
        access
        for access in made
        if vector.sub_blocks.reach(access.op) == BOTH
        and vector.sub_blocks.differs(access.op)
        and not _meets_between(vector, access.op, copy.op)
    ]


def _shared_finding(kernel: Kernel, vector: Code, call: Call, copy: Call, shared: list[Access]) -> Finding:
    who = vector.sub_blocks.reach(copy.op)
    alone = "each core signals when its own part is stored" if who == BOTH else "one core signals for both"
    by_user = any(full_name(op) == "hivm.hir.get_sub_block_idx" for op in kernel.source.ops)
    first = shared[0]
    return make(
        "compiled.split-store",
        [
            kernel.party(AIV, "access", first.loc, "a part on each vector core", kernel.tensor(shared)),
            kernel.party(AIV, call.symbol, call.loc, alone),
        ],
        expected=f"the signal after all of {kernel.tensor(shared)}",
        got=f"{alone}: the other core's part may come later",
        op=call.symbol,
        tensor=kernel.tensor(shared),
        reason="the kernel shares the store by sub_vec_id() and has no barrier before the signal"
        if by_user
        else "the compiler halves the store over the vector cores (auto-bind-sub-block) and leaves the signal whole",
    )


def _meets_between(code: Code, first: Operation, second: Operation) -> bool:
    """Whether all cores meet in a barrier in the text between two operations."""
    lo, hi = code.numbers[first], code.numbers[second]
    barriers = [call.number for call in code.calls if call.kind == BARRIER]
    return any(lo < number < hi for number in barriers)


# ---- signals on a core that did not make the data --------------------------------------------------------------------


def _wrong_core(kernel: Kernel) -> Iterator[Finding]:
    for call in kernel.effects:
        on = [code for code in kernel.functions if kernel.copies(call, code)]
        if call.kind != SIGNAL or len(on) != 1:
            continue
        data, (own,) = kernel.data_of(call), on
        elsewhere = [code for code in kernel.functions if code is not own and kernel.made_in(data, code)]
        if data and elsewhere and not kernel.made_in(data, own) and not _waits_for_other_core(own, call, kernel):
            yield _wrong_core_finding(kernel, call, own, elsewhere[0], data)


def _waits_for_other_core(own: Code, call: Call, kernel: Kernel) -> bool:
    until = kernel.copies(call, own)[0].number
    return any(full_name(op) in ("hivm.hir.sync_block_wait", "hivm.hir.sync_block") for op in own.ops[:until])


def _wrong_core_finding(kernel: Kernel, call: Call, own: Code, other: Code, data: list[Access]) -> Finding:
    made = kernel.made_in(data, other)
    return make(
        "compiled.wrong-core",
        [
            kernel.party(other.core, "access", made[0].loc, tensor=kernel.tensor(made)),
            kernel.party(own.core, call.symbol, call.loc, f"has no access to {kernel.tensor(made)}"),
        ],
        expected=f"the signal on the core that accesses {kernel.tensor(made)}",
        got=f"on the {CORE_NAMES[own.core]}, with no cross-core wait before it",
        op=call.symbol,
        core=CORE_NAMES[own.core],
        other=CORE_NAMES[other.core],
        tensor=kernel.tensor(made),
    )


# ---- lost, merged, repeated, moved -----------------------------------------------------------------------------------


def _lost_and_merged(kernel: Kernel) -> Iterator[Finding]:
    for call in kernel.effects:
        count = kernel.written_counts[call.key]
        found = max((len(kernel.copies(call, code)) for code in kernel.functions), default=0)
        together = sum(len(kernel.copies(call, code)) for code in kernel.functions)
        if together == 0:
            yield _lost_finding(kernel, call)
        elif found < count and together < count:
            yield make(
                "compiled.merged-effect",
                [kernel.party("", call.symbol, call.loc)],
                expected=f"{count} calls, as written",
                got=f"{together}",
                op=call.symbol,
                written=count,
                found=together,
            )


def _lost_before(kernel: Kernel, report: CompileReport) -> Iterator[Finding]:
    """Waits and polling loops that were gone before the vendor's passes: no token of theirs is consumed.

    What stands in code that never runs was not written to run.
    """
    waits = [op for op in report.lost if op.op_name in _WAITS and op.why.startswith(UNUSED)]
    for op in waits:
        what = "the wait" if op.op_name == "distributed.wait" else "a loop that polls with plain loads"
        yield make(
            "compiled.lost-effect",
            [kernel.party("", what, op.loc, "not in the compiled kernel")],
            expected=f"{what}, as written",
            got="nothing of it was left to compile",
            op=what,
            reason=f"reading is all that its effects say, so it was deleted: {op.why}",
            remedy="wait with dl.wait, and consume its token on what depends on it: ptr = dl.consume_token(ptr, token)",
        )


def _lost_finding(kernel: Kernel, call: Call) -> Finding:
    twin = _twin(kernel, call)
    parties = [kernel.party("", call.symbol, call.loc, "not in the compiled kernel")]
    if twin is not None:
        parties.append(kernel.party("", twin.symbol, twin.loc, "the same call with the same operands, still there"))
    return make(
        "compiled.lost-effect",
        parties,
        expected=f"{call.symbol}, as written",
        got="no such call in any function of the final module",
        op=call.symbol,
        reason="it was merged with an equal call" if twin else "the vendor's passes take it for free of effects",
        remedy="use the result (consume the token of a wait), or report the case with its final module",
    )


def _twin(kernel: Kernel, call: Call) -> Call | None:
    """A call of the same function with the same operands that is still there."""
    return next(
        (
            other
            for other in kernel.effects
            if other is not call
            and other.symbol == call.symbol
            and list(other.op.operands) == list(call.op.operands)
            and any(kernel.copies(other, code) for code in kernel.functions)
        ),
        None,
    )


def _lost_on_one_core(kernel: Kernel) -> Iterator[Finding]:
    """Barriers that one kind of core does not come to, and tokens that are consumed where nobody waits for them."""
    if len(kernel.functions) < 2:
        return
    for call in kernel.effects:
        missing = [code for code in kernel.functions if not kernel.copies(call, code)]
        if call.kind == BARRIER and _is_for_both(call) and len(missing) == 1:
            yield _lost_on(kernel, missing[0], call, "the other core waits for it in the barrier")
    waits = {call.op: call for call in kernel.source.calls if call.kind == WAIT}
    for code in kernel.functions:
        for consumed, copy in _consumed(kernel, code):
            waited = [waits[op] for op in makers(consumed.op.operands[-1]) if op in waits]
            left = {op for op in makers(copy.op.operands[-1]) if kind_of_symbol(library_symbol(op)) == WAIT}
            if waited and not left and any(kernel.copies(waited[0], other) for other in kernel.functions):
                yield _lost_on(kernel, code, waited[0], "the token that it gave is consumed there all the same")


def _is_for_both(call: Call) -> bool:
    core = call.op.attributes.get(hivm.CORE_TYPE)
    return isinstance(core, hivm.TCoreTypeAttr) and core.data is hivm.TCoreType.CUBE_AND_VECTOR


def _consumed(kernel: Kernel, code: Code) -> Iterator[tuple[Call, Call]]:
    """Consumed tokens of the source, each with what became of it in one function."""
    for call in kernel.source.calls:
        if call.symbol.startswith(CONSUME):
            yield from ((call, copy) for copy in code.calls if copy.key == call.key)


def _lost_on(kernel: Kernel, code: Code, call: Call, reason: str) -> Finding:
    core = CORE_NAMES[code.core]
    return make(
        "compiled.lost-effect",
        [kernel.party(code.core, call.symbol, call.loc, f"not in the function of the {core}")],
        expected=f"{call.symbol} on the {core}, too",
        got=f"no such call in {code.name}",
        op=f"{call.symbol} on the {core}",
        reason=f"the vendor's passes left it out there; {reason}",
        remedy="report the case with its final module",
    )


def _gated_barriers(kernel: Kernel) -> Iterator[Finding]:
    """Barriers that one vector core of a mix kernel does not come to, though the source has no such gate."""
    vector = kernel.on(AIV)
    if vector is None or kernel.on(AIC) is None:
        return
    for call in kernel.effects:
        for copy in kernel.copies(call, vector)[:1]:
            cores = vector.sub_blocks.reach(copy.op)
            if call.kind == BARRIER and len(cores) == 1:
                where = f"into a branch that only vector core {min(cores)} takes"
                yield _moved_finding(kernel, vector, call, where, "the other vector core never comes to the barrier")


def _repeated(kernel: Kernel) -> Iterator[Finding]:
    """Copies in one block, one after another: more of them than the source has."""
    for call in kernel.effects:
        for code in kernel.functions:
            blocks = Counter(id(copy.op.parent_block()) for copy in kernel.copies(call, code))
            most = max(blocks.values(), default=0)
            if call.kind in ONCE and most > kernel.written_counts[call.key]:
                yield make(
                    "compiled.repeated-effect",
                    [kernel.party(code.core, call.symbol, call.loc)],
                    expected=f"{kernel.written_counts[call.key]} as written",
                    got=f"{most}",
                    op=call.symbol,
                    core=CORE_NAMES[code.core],
                    written=kernel.written_counts[call.key],
                    found=most,
                )


def _lost_atomics(kernel: Kernel) -> Iterator[Finding]:
    """Atomics of the source of which no function has anything left, neither by line nor by what they touch."""
    kept = {access.loc for code in kernel.functions for access in code.accesses if access.writes}
    touched = {
        (argument, remote)
        for code in kernel.functions
        for access in code.accesses
        if access.writes and (access.atomic or under_lock(access.op))
        for argument, remote, _ in access.touched
    }
    for access in kernel.source.accesses:
        if not access.atomic or access.loc in kept:
            continue
        if any((argument, remote) in touched for argument, remote, _ in access.touched):
            continue
        tensor = kernel.tensor([access])
        name = full_name(access.op).removeprefix("tt.")
        yield make(
            "compiled.lost-effect",
            [kernel.party("", name, access.loc, "not in the compiled kernel", tensor)],
            expected=f"{name} of {tensor}, as written",
            got="no store to it in any function of the final module",
            op=f"{name} of {tensor}",
            reason="the vendor's memref-dse takes the store of an exchange whose result is not used for dead",
            remedy="use a notify or `int_p` for a flag, or tl.store where no other program writes the word",
        )


def _moved(kernel: Kernel) -> Iterator[Finding]:
    """Calls in other loops or branches than written, and calls and stores in another order."""
    for code in kernel.functions:
        for call in kernel.effects:
            for copy in kernel.copies(call, code)[:1]:
                if (where := _other_surroundings(kernel, code, call, copy)) is not None:
                    yield _moved_finding(
                        kernel, code, call, where, "its loops and branches are not those of the source"
                    )
        yield from _reordered(kernel, code)


def _moved_finding(kernel: Kernel, code: Code, call: Call, where: str, reason: str) -> Finding:
    return make(
        "compiled.moved-effect",
        [kernel.party(code.core, call.symbol, call.loc)],
        expected="where the source has it",
        got=f"{where} in the function of the {CORE_NAMES[code.core]}",
        op=call.symbol,
        where=where,
        reason=reason,
    )


def _other_surroundings(kernel: Kernel, code: Code, call: Call, copy: Call) -> str | None:
    """How the loops and branches around a compiled call differ from those of the source, by their lines.

    A loop or branch that the compiled function does not have at all was decided at compile time: that is no move.
    """
    source_loops = _lines_around(call.op, ("scf.for", "scf.while"))
    compiled_loops = _lines_around(copy.op, ("scf.for", "scf.while"))
    all_source_loops = {loc for op in kernel.source.ops if (loc := _line_of(op, ("scf.for", "scf.while")))}
    all_compiled_loops = {loc for op in code.ops if (loc := _line_of(op, ("scf.for", "scf.while")))}
    for loc in source_loops - compiled_loops:
        if loc in all_compiled_loops:
            return f"out of the loop at {loc[0]}"
    for loc in compiled_loops - source_loops:
        if loc in all_source_loops:
            return f"into the loop at {loc[0]}"
    source_branches, compiled_branches = _lines_around(call.op, _BRANCHES), _lines_around(copy.op, _BRANCHES)
    all_branches = {loc for op in code.ops if (loc := _line_of(op, _BRANCHES))}
    if source_branches & all_branches and not compiled_branches:
        return f"out of the branch at {min(source_branches & all_branches)[0]}"
    return None


def _line_of(op: Operation, names: tuple[str, ...]) -> tuple[str, SourceLoc] | None:
    loc = loc_of(op) if full_name(op) in names else None
    return None if loc is None else (str(loc), loc)


def _lines_around(op: Operation, names: tuple[str, ...]) -> set[tuple[str, SourceLoc]]:
    return {loc for outer in enclosing(op) if (loc := _line_of(outer, names)) is not None}


def _reordered(kernel: Kernel, code: Code) -> Iterator[Finding]:
    """Neighbours of the source that stand the other way round, one pair for each call."""
    pairs = _unique_pairs(kernel, code)
    for index, (call, copy) in enumerate(pairs):
        for earlier, earlier_copy in pairs[:index]:
            if not (isinstance(call, Call) or isinstance(earlier, Call)) or _may_pass(earlier, call):
                continue
            if copy.number < earlier_copy.number and _same_order_is_fixed(
                earlier.op, call.op, earlier_copy.op, copy.op
            ):
                subject, other = (call, earlier) if isinstance(call, Call) else (earlier, call)
                assert isinstance(subject, Call)
                where = f"{'before' if subject is call else 'after'} {_named(other)}"
                yield _moved_finding(kernel, code, subject, where, "the source has the two the other way round")
                break


def _may_pass(earlier: Call | Access, later: Call | Access) -> bool:
    """Whether nothing is lost if the two change places: reads may pass anything but drains, pure calls everything."""
    return any(isinstance(one, Access) and not one.writes for one in (earlier, later))


def _named(what: Call | Access) -> str:
    name = what.symbol if isinstance(what, Call) else "the store"
    return f"{name} of {what.loc}" if what.loc is not None else name


def _unique_pairs(kernel: Kernel, code: Code) -> list[tuple[Call | Access, Call | Access]]:
    """Calls with effects and stores that stand once in the source and once in the function, in the source's order."""
    calls: list[tuple[Call | Access, Call | Access]] = [
        (call, copies[0])
        for call in kernel.effects
        if kernel.written_counts[call.key] == 1 and len(copies := kernel.copies(call, code)) == 1
    ]
    lines = Counter(access.loc for access in kernel.source.accesses if access.writes)
    stores: list[tuple[Call | Access, Call | Access]] = []
    for access in kernel.source.accesses:
        same = [
            other for other in code.accesses if other.writes and other.loc == access.loc and other.keys == access.keys
        ]
        if access.writes and lines[access.loc] == 1 and len(same) == 1:
            stores.append((access, same[0]))
    return sorted([*calls, *stores], key=lambda pair: pair[0].number)


def _same_order_is_fixed(a: Operation, b: Operation, a_copy: Operation, b_copy: Operation) -> bool:
    """Whether both pairs meet in a block, so that "before" means the same on both ends: not in two branches."""
    return _meet(a, b) and _meet(a_copy, b_copy)


def _meet(a: Operation, b: Operation) -> bool:
    blocks = {id(op.parent_block()) for op in (a, *enclosing(a))}
    inner = next((op for op in (b, *enclosing(b)) if id(op.parent_block()) in blocks), None)
    return inner is not None and full_name(inner) not in ("func.func", "tt.func")


# ---- addresses -------------------------------------------------------------------------------------------------------

_OWN_TRANSLATION = (SIGNAL, TRANSFER)


def _translated_twice(kernel: Kernel) -> Iterator[Finding]:
    seen: set[tuple] = set()
    for code in kernel.functions:
        for call in code.calls:
            if call.key in seen or not _translates_again(call):
                continue
            seen.add(call.key)
            yield make(
                "compiled.translated-twice",
                [kernel.party(code.core, call.symbol, call.loc, "its first operand is an address on another rank")],
                expected="the local address of symmetric memory",
                got="an address that aclshmem_ptr has already translated",
                op=call.symbol,
            )


def _translates_again(call: Call) -> bool:
    """Whether a call that translates its first operand gets one that is translated in every case."""
    if call.kind not in _OWN_TRANSLATION and not call.symbol.startswith("aclshmem_ptr"):
        return False
    index = 1 if "getmem" in call.symbol else 0
    operands = [value for value in call.op.operands if is_address(value.type)]
    found = bases(operands[index]) if len(operands) > index else frozenset()
    return bool(found) and all(base.translated for base in found)


__all__ = ["Kernel", "check_multiplicity"]
