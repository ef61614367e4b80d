"""The one table of finding kinds: id, severity, and the texts that a reader meets.

`make` builds a finding from data. Templates are `str.format` over that data; a missing field is a defect of the caller
and raises at once (a test makes every kind).
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tdist.errors import UsageError
from tdist.findings.model import Finding, Party, Severity
from tdist.text import did_you_mean

PREFIX: Final = "tdist."

OVERSHOOT_OF_ADD: Final = (
    "let the waiter answer (credit or barrier) before anybody adds again; a counter that is not reset between launches "
    "goes on counting: wait for the running total (n × epoch), or reset it behind that answer"
)
"""What to try against an overshoot by an ADD."""

OWN_LINES: Final = (
    "the allocator rounds to 16 bytes, so neighbours can share a line: allocate whole slots of 64 bytes "
    "(SIGNAL_SLOT_STRIDE elements), one more than needed, and leave the first one free (`signals[1:]`)"
)
"""What to try against a line that two tensors share."""


@dataclass(frozen=True)
class Kind:
    """One kind of finding. `title`, `why` and `cure` are templates; `explanation` is for the documentation."""

    id: str
    severity: Severity
    title: str
    explanation: str
    why: str
    cure: str

    @property
    def fields(self) -> frozenset[str]:
        """The data that the templates need."""
        texts = (self.title, self.why, self.cure)
        return frozenset(name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name)


_ERROR, _HAZARD, _NOTE = Severity.ERROR, Severity.HAZARD, Severity.NOTE

_TABLE: Final = (
    Kind(
        "race",
        _ERROR,
        "data race: {second} of {tensor} is not ordered after {first} by another agent",
        "Two agents touch a common byte, at least one writes, and neither access is ordered before the other.",
        "nothing orders the two accesses",
        "order the two accesses with a notify and a wait whose token the later one consumes, or with a barrier",
    ),
    Kind(
        "hazard.undrained-release",
        _HAZARD,
        "undrained signal: {second} of {tensor} can overtake {first} on Ascend",
        "The signal is ordered after the access in the language, but on Ascend only what was drained before a signal "
        "SET is complete when the signal arrives; the access may still be in flight.",
        "no fence, quiet, barrier or draining signal lies between the access and its agent's release",
        "put `libshmem_device.fence()` between the access and the notify",
    ),
    Kind(
        "hazard.stale-cache",
        _HAZARD,
        "stale data cache: {second} of {tensor} may miss {first} on Ascend",
        "Scalar loads and gathers go through the data cache on Ascend; a wait does not invalidate it.",
        "no fence or quiet lies between the wait and the scalar load or gather",
        "put `libshmem_device.fence()` between the wait and the load, or load a whole tile",
    ),
    Kind(
        "hazard.hidden-alias",
        _HAZARD,
        "hidden alias: own {second} of {tensor} may pass own {first} on Ascend",
        "The compiler does not see that a pointer from symm_at or consume_token aliases another one, and does not "
        "order a load after the store through it.",
        "no drain lies between the store and the load, and one of the two pointers went through symm_at or "
        "consume_token",
        "put `libshmem_device.fence()` between the store and the load, or use one pointer for both",
    ),
    Kind(
        "hazard.atomic-lock",
        _HAZARD,
        "atomic lock: atomics with used results on one word of {tensor} from two ranks lose updates on Ascend",
        "An atomic whose result is used runs under a lock of its own rank on Ascend; another rank's does not see it.",
        "the lock that makes the read-modify-write atomic is one of each rank",
        "use a notify or a signal ADD across ranks, or keep the counter on one rank and let only its programs add",
    ),
    Kind(
        "hazard.atomic-edge",
        _HAZARD,
        "atomic edge: only an atomic orders {second} of {tensor} after {first}, which it does not do on Ascend",
        "In the language an atomic acquires and releases by its `sem` and `scope`; on Ascend one without a used result "
        "acquires nothing, and one with a used result orders only used atomics of the same launch.",
        "the release was drained, but what acquires it, or passes it on, is an atomic",
        "signal with dl.notify and wait with dl.wait, consuming the token",
    ),
    Kind(
        "hazard.atomic-turn",
        _HAZARD,
        "atomic turns: programs of one launch make {op} of {tensor} unequally often; on Ascend it can hang",
        "An atomic whose result is used takes a lock in block order on Ascend; a program that leaves out its turn, "
        "under a condition or in a spin, holds up those behind it.",
        "the lock is given to each program of a launch in turn, whether it wants it or not",
        "make the atomic in every program, outside conditions and spins; wait with dl.wait instead of spinning",
    ),
    Kind(
        "deadlock",
        _ERROR,
        "deadlock: {waiting} of {agents} agents wait and nothing can wake them",
        "Every agent is blocked or ended, no transfer is under way, every rank is quiescent.",
        "no agent that can still run writes what is waited for",
        "compare the value, slot and rank of each wait above with the notify that was meant for it",
    ),
    Kind(
        "endless-loop",
        _ERROR,
        "a loop went round {rounds} times and does not end",
        "A `while` loop whose condition holds no counter towards a fixed limit may go on for ever.",
        "nothing in the loop makes its condition false in this run",
        "let the condition compare a counter with a limit (`(…) & (i < LIMIT)`), or wait with dl.wait",
    ),
    Kind(
        "barrier-divergence",
        _ERROR,
        "barrier divergence: {missing} of {participants} participants never reach {barrier}",
        "A barrier needs every agent of the launch on every rank.",
        "{reason}",
        "let every program of every rank execute the same number of barriers",
    ),
    Kind(
        "out-of-bounds",
        _ERROR,
        "out of bounds: {op} of {tensor} outside its allocation",
        "An access touches bytes outside the allocation that its pointer came from.",
        "the address lies outside the allocation that its pointer came from",
        "check the index against the size of the tensor",
    ),
    Kind(
        "pointer-misuse",
        _ERROR,
        "pointer misuse in {op}: {problem}",
        "A pointer is not what the operation needs: outside the symmetric heap, of another rank, or translated twice.",
        "heap bases differ from rank to rank; only symmetric addresses have a counterpart on a peer",
        "give {op} the local symmetric address and the PE; translate with dl.symm_at exactly once",
    ),
    Kind(
        "lost-wait",
        _NOTE,
        "lost wait: the compiler deleted {op}",
        "A wait has only a Read effect: when nothing uses its token, the compiler may delete it, and does.",
        "{reason}",
        "consume the token on every pointer that depends on it: ptr = dl.consume_token(ptr, token)",
    ),
    Kind(
        "merged-wait",
        _NOTE,
        "merged: the compiler kept one of two equal {op}",
        "Two equal operations with Read effects and no Write effect between them are merged.",
        "nothing with a Write effect lies between the two",
        "if both are meant to happen, put an operation with a Write effect between them (store, notify, fence)",
    ),
    Kind(
        "concurrent-set",
        _ERROR,
        "concurrent signal SET: two unordered writes to one word of {tensor}",
        "Of two unordered writes to a synchronisation word one is a SET: whichever comes last wins.",
        "nothing orders the two writes",
        "give each writer a slot of its own, or use ADD and wait for the sum",
    ),
    Kind(
        "line-sharing",
        _NOTE,
        "shared line: two writers in one 64-byte line of {tensor}",
        "A signal SET and `_p` write back the whole 64-byte line that they live in.",
        "a write-back of the line can undo the other write",
        "keep signal slots 64 bytes apart (SIGNAL_SLOT_STRIDE) and data out of their lines",
    ),
    Kind(
        "overshoot",
        _ERROR,
        "overshoot: a later write to {tensor} can pass the value that a wait needs",
        "A wait compares for equality at each poll; a write that is not ordered after the poll can step over it.",
        "the write is not ordered after the wait that needs the earlier value",
        "let the waiter release (credit or barrier) before the word is written again",
    ),
    Kind(
        "short-signal",
        _ERROR,
        "short signal tensor: wait on {slots} slots needs {needed_bytes} bytes, {tensor} has {have_bytes}",
        "wait(ptr, n) polls slot 0 … n-1, 64 bytes apart.",
        "slots are 64 bytes apart whatever the element type",
        "allocate n × SIGNAL_SLOT_STRIDE elements and index slots by SIGNAL_SLOT_STRIDE",
    ),
    Kind(
        "canary",
        _ERROR,
        "canary overwritten: bytes beside {tensor} changed",
        "Guard bytes around an allocation do not hold their pattern any more.",
        "something wrote outside its allocation",
        "check the bounds of the writes to this tensor and its neighbours",
    ),
    Kind(
        "uninitialised",
        _ERROR,
        "uninitialised use: {tensor} depends on memory that nobody wrote",
        "Two runs that differ only in the poison of fresh memory and masked-off lanes gave different outputs.",
        "a value that was not written before it was read reaches an output, an address, a branch or a mask",
        "write the memory before it is read, and order the write before the read; where a mask turned the lane off, "
        "give that load `other=`; or nobody stored these elements of the output (a rank, program or tail without work)",
    ),
    Kind(
        "grid-too-large",
        _ERROR,
        "grid too large: {programs} programs need {needed} cores at once, the card has {cores}",
        "A kernel whose programs wait for each other needs all of them resident.",
        "programs beyond the cores start only when earlier ones end, and those wait",
        "launch at most {cores} programs and let each loop over tiles with a grid stride",
    ),
    Kind(
        "arithmetic",
        _ERROR,
        "arithmetic: {problem} in {op}",
        "An operation has no defined result: overflow, division by zero, a shift or a conversion out of range, a loop "
        "step that is not positive.",
        "the operands are outside what the operation is defined for",
        "widen the type or guard the operands",
    ),
    Kind(
        "width-mismatch",
        _ERROR,
        "signal width: {op} of {width_bits} bits on {tensor}, whose words have {word_bits}",
        "A signal operation and the word that it touches differ in width, or two signals overlap.",
        "a wider write also changes the neighbouring word",
        "use the signal dtype that the tensor was made with on both sides",
    ),
    Kind(
        "asymmetric-alloc",
        _ERROR,
        "asymmetric allocation: ranks disagree on {what}",
        "Allocation on the symmetric heap is collective: same order and same size on every rank.",
        "offsets on the heap would differ from rank to rank",
        "allocate with the same sizes in the same order on every rank",
    ),
    Kind(
        "hazard.double-effect",
        _HAZARD,
        "double effect: {op} takes effect {where} as compiled",
        "An effect that is not idempotent (atomic, signal ADD) is made once per core: by both vector cores where it "
        "stands outside a sub_vec_id() gate, by the cube core and the vector cores in a kernel with tl.dot.",
        "{reason}",
        "guard it with `if sub_vec_id() == 0:`",
    ),
    Kind(
        "compiled.both-cores",
        _HAZARD,
        "doubled effect: {op} was compiled for the cube core and for the vector cores",
        "What the source does once per program stands in both functions of the compiled mix kernel; the half that did "
        "not make the data does not wait for the half that did.",
        "{reason}",
        "put the push and the multiplication side by side into one loop of two or more turns "
        "(docs/compiled-effects.md, 'The arrangement that is clean'): each then belongs to one kind of core; "
        "or signal with int64 words (not uint64: the SET follows the core of the data), without fence and with "
        "inject_barrier_all; or meet in barrier_all",
    ),
    Kind(
        "compiled.both-vector-cores",
        _HAZARD,
        "doubled effect: {op} is made by both vector cores of a program",
        "A mix kernel runs its vector function on two cores; what does not depend on `sub_vec_id()` happens twice, at "
        "different times.",
        "{reason}",
        "put it and the stores before it under `if sub_vec_id() == 0:`, or give each vector core work of its own by "
        "`sub_vec_id()`",
    ),
    Kind(
        "compiled.split-store",
        _HAZARD,
        "split store: each vector core stores a part of {tensor}, and {op} speaks for the whole",
        "The compiler (or the kernel, by `sub_vec_id()`) lets the two vector cores of a program share a store; a "
        "signal that one of them makes says nothing about the other's part.",
        "{reason}",
        "give each vector core whole tiles by `sub_vec_id()` and a signal for each of them, or put store and signal "
        "under `if sub_vec_id() == 0:`",
    ),
    Kind(
        "compiled.widened-store",
        _HAZARD,
        "widened store: elements of {tensor} on another rank that the mask leaves out are read and written again",
        "A masked store is made by loading the whole tile, choosing, and storing the whole tile: what another rank "
        "writes beside the chosen elements in between is lost.",
        "{reason}",
        "let the mask compare the offsets with bounds (`offs < n`, `&`), so that it is a range; or pad what is stored",
    ),
    Kind(
        "compiled.wrong-core",
        _HAZARD,
        "signal without its data: {op} was compiled for the {core}, {tensor} is accessed on the {other}",
        "A signal releases what its own core did; the core that makes the data runs on by itself.",
        "nothing orders the {core} after the {other} between the two",
        "signal with int64 words directly behind the store (not uint64: the SET follows the core of the data), or "
        "order the cores with `barrier_all` or `sync_block_set` and `sync_block_wait`",
    ),
    Kind(
        "compiled.lost-effect",
        _HAZARD,
        "lost effect: the compiled kernel does not contain {op}",
        "The vendor's passes deleted an operation that has an effect.",
        "{reason}",
        "{remedy}",
    ),
    Kind(
        "compiled.merged-effect",
        _HAZARD,
        "merged effects: the source has {op} {written} times here, the compiled kernel {found} times",
        "The vendor's passes made one operation of several that have an effect.",
        "the vendor's passes take equal calls for one",
        "make the calls differ, for instance by an operand, or report the case with its final module",
    ),
    Kind(
        "compiled.repeated-effect",
        _HAZARD,
        "repeated effect: the compiled {core} makes {op} {found} times, the source {written} times",
        "The vendor's passes duplicated an operation that has an effect.",
        "the copies stand one after another in the same block",
        "report the case with its final module",
    ),
    Kind(
        "compiled.moved-effect",
        _HAZARD,
        "moved effect: {op} was moved {where}",
        "The vendor's passes moved an operation that orders others, or has an effect on other ranks.",
        "{reason}",
        "put a fence next to it, or report the case with its final module",
    ),
    Kind(
        "compiled.lock-atomic",
        _HAZARD,
        "not atomic: {op} of {tensor} on another rank runs under a lock of this launch only",
        "An atomic whose result is used, a compare-and-swap and some others become load, compute, store under a lock "
        "that is an argument of the launch; another device does not see it.",
        "the word is on another rank, the lock is not",
        "use a notify or a signal ADD across ranks, or let only programs of the word's own rank change it",
    ),
    Kind(
        "compiled.lock-turn",
        _HAZARD,
        "lock turns: {op} of {tensor} takes a lock in block order where blocks come unequally often",
        "Blocks take the lock of an atomic with a used result in turn; one that does not come holds up all behind it.",
        "{reason}",
        "make the atomic in every program and equally often, outside conditions and spins",
    ),
    Kind(
        "compiled.staging-overlap",
        _HAZARD,
        "staging overlap: {op} overwrites bytes {lo} to {hi} of UB, where the tile of {tensor} lives",
        "A signal ADD stages its value at UB offset 0, a put or get its data in the first 16 KiB; the compiler does "
        "not know and gives the same bytes to a tile that is still in use.",
        "the tile at UB offset {offset}, {size} bytes, is used before and after the call",
        "{remedy}",
    ),
    Kind(
        "compiled.undrained-release",
        _HAZARD,
        "undrained in the compiled code: {second} can overtake {first} of {tensor}",
        "A signal SET, a scalar put or a barrier that does not drain tells others that everything before is done; in "
        "the compiled code a transfer of the same core may still be in flight then.",
        "nothing between the two waits for the pipe of the first",
        "put `libshmem_device.fence()` before it, or compile with inject_barrier_all",
    ),
    Kind(
        "compiled.undrained-transfer",
        _HAZARD,
        "undrained in the compiled code: {second} may start before {first} of {tensor} has finished",
        "A put or get moves memory that an access before it, on another pipe, may still be reading or writing.",
        "nothing between the two waits for the pipe of the first",
        "put `libshmem_device.fence()` before the transfer, or compile with inject_barrier_all",
    ),
    Kind(
        "compiled.cross-core",
        _HAZARD,
        "cube and vector core not ordered: {first} and {second} of {tensor}",
        "The halves of a mix kernel run side by side; only sync_block_set and sync_block_wait order them.",
        "no sync_block_set with its sync_block_wait lies between the two",
        "compile with the compiler's own cross-core synchronisation (no `disable_auto_inject_block_sync`), or order "
        "the halves with `sync_block_set` and `sync_block_wait`",
    ),
    Kind(
        "compiled.stale-cache",
        _HAZARD,
        "stale data cache in the compiled code: {second} of {tensor} after {first}",
        "A scalar load, or a gather that became a loop of them, reads through the data cache; a wait discards the line "
        "of its own word only.",
        "no fence or quiet lies between the wait and the read",
        "put `libshmem_device.fence()` between the wait and the load, or load a whole tile",
    ),
    Kind(
        "compiled.pipe-order",
        _HAZARD,
        "pipes not ordered: {second} may start before {first} of {tensor} has finished",
        "Two accesses of one core to common bytes, one a write; only flags and barriers order the pipes of a core.",
        "no flag or barrier lies between the two",
        "put `libshmem_device.fence()` between the two; if the kernel gives no reason, report the case with its final "
        "module: the vendor's compiler is to order them",
    ),
    Kind(
        "compiled.unpaired-flag",
        _HAZARD,
        "flag {flag} is {problem}",
        "A wait for a flag that nobody sets hangs the core; a flag that is set twice, or left up, lets a later wait "
        "pass too early.",
        "on some way through the function sets and waits of the flag do not alternate",
        "report the case with its final module: the vendor's compiler sets and waits for flags in pairs",
    ),
    Kind(
        "compiled.not-understood",
        _NOTE,
        "not understood: {op}",
        "The check does not know this call or operation: it may touch everything on any pipe.",
        "nothing says on which pipe it runs and what it touches; {beside} accesses may run beside it",
        "put `libshmem_device.fence()` before and after it, or add it to the table of library calls",
    ),
    Kind(
        "compiled.translated-twice",
        _ERROR,
        "translated twice: {op} gets an address that symm_at translated already",
        "Signals, puts and gets translate the remote address themselves; translated twice it points anywhere.",
        "the address went through `symm_at` (or `remote_ptr`) on its way to {op}",
        "pass the local address of the symmetric tensor, and the rank as the rank",
    ),
    Kind(
        "host-error",
        _ERROR,
        "host error on rank {rank}: {error}",
        "The host function of a rank raised, or its process ended.",
        "the other ranks cannot go on without it",
        "fix the host error first",
    ),
    Kind(
        "kernel-assert",
        _ERROR,
        "device assertion failed: {message}",
        "A tl.device_assert of the kernel did not hold.",
        "the condition was false for at least one lane",
        "see the values below",
    ),
)

KINDS: Final[dict[str, Kind]] = {PREFIX + kind.id: kind for kind in _TABLE}


def kind_of(kind_id: str) -> Kind:
    """The table row of `kind_id`, with or without the prefix.

    Raises:
        UsageError: there is no such kind.
    """
    full = kind_id if kind_id.startswith(PREFIX) else PREFIX + kind_id
    if full not in KINDS:
        close = did_you_mean(kind_id.removeprefix(PREFIX), [kind.id for kind in _TABLE])
        raise UsageError(f"there is no finding {kind_id!r}{close}; `tdist explain` lists all of them")
    return KINDS[full]


def make(
    kind_id: str,
    parties: Sequence[Party] = (),
    *,
    expected: str = "",
    got: str = "",
    why: str | None = None,
    cure: str | None = None,
    profile: str | None = None,
    severity: Severity | None = None,
    **data: Any,
) -> Finding:
    """Build a finding of a kind from data.

    Args:
        kind_id: id from the table, with or without `tdist.`.
        parties: every side, the one that came first in this run first.
        expected: what should have been, with values and units.
        got: what was.
        why: the missing edge; the table's text if None.
        cure: what to try; the table's text if None.
        profile: the release profile it exists under, None if it has nothing to do with one.
        severity: overrides the table's (line sharing is a note or an error).
        data: what the templates of the kind need, and anything else worth keeping (JSON values).

    Raises:
        UsageError: unknown kind.
        KeyError: a field of the templates is missing.
    """
    kind = kind_of(kind_id)
    return Finding(
        kind=PREFIX + kind.id,
        severity=kind.severity if severity is None else severity,
        title=kind.title.format(**data),
        profile=profile if profile or kind.severity is not Severity.HAZARD else "ascend",
        parties=tuple(parties),
        expected=expected,
        got=got,
        why=kind.why.format(**data) if why is None else why,
        cure=kind.cure.format(**data) if cure is None else cure,
        data=data,
    )
