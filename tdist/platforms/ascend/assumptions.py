"""What the checks of the compiled code take for granted of the hardware, the vendor's compiler and ACLSHMEM.

One table. Each finding names the assumptions that it rests on; a report can print them. Nothing here was measured on a
card: the sources say where each comes from, and `derived` that it is a conclusion from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Assumption:
    """One statement. `derived`: concluded from the source, which does not say so itself."""

    id: str
    text: str
    source: str
    derived: bool = False


_TABLE: Final = (
    Assumption(
        "pipe-start-order",
        "A pipe starts its instructions in the order in which they were issued, but the next may start before the one "
        "before has finished; only a pipe_barrier of the pipe, or a flag from it, says that it has.",
        "Ascend C documentation of PipeBarrier and SetFlag/WaitFlag; the vendor's solver puts a pipe_barrier between "
        "dependent instructions of one pipe in every module compiled here",
    ),
    Assumption(
        "flag-covers-pipe",
        "set_flag[P, Q] is up when everything issued to P before has finished, and P had seen whatever it waited for; "
        "wait_flag[P, Q] holds only Q.",
        "Ascend C documentation of SetFlag/WaitFlag; HIVM's operation definitions",
    ),
    Assumption(
        "flag-pairs",
        "A flag between two pipes is either up or down: each set has one wait, and comes after the wait for the set "
        "before; none is up when a function ends.",
        "Ascend C documentation (SetFlag/WaitFlag in pairs); no vendor module compiled here breaks it",
    ),
    Assumption(
        "scalar-issues",
        "The scalar unit runs in order and issues the instructions of all pipes: what it has waited for or read is "
        "over before anything behind it starts, without a flag. Its own stores need one.",
        "compiled modules: no flag S → MTE2 behind a wait in 33 places; a flag S → V or S → MTE3 behind every scalar "
        "store into the unified buffer",
        derived=True,
    ),
    Assumption(
        "reductions-wait-inside",
        "Reductions to one value that the scalar unit finishes itself (max, min, with index, product, bits, integers; "
        "not the sum of floats) return when it has waited for the vector unit. After every other vector call a scalar "
        "read of its result needs a flag V → S or a barrier.",
        "the device templates' bitcode of AscendNPU-IR 1.2.0 (meta_op.aiv.c220.bc): on every way out, "
        "WAIT.FLAG V → S follows the last vector instruction, WAIT.FLAG S → V the last scalar store; Ascend C "
        "documentation of GetValue (scalar reads of UB)",
        derived=True,
    ),
    Assumption(
        "scalar-does-not-wait",
        "The scalar unit does not wait for the other pipes unless a flag towards PIPE_S or a barrier of all pipes says "
        "so: a call that it makes itself (a signal, `_p`) can overtake transfers that were issued before.",
        "Ascend C documentation (asynchronous pipes); ACLSHMEM's device headers: signal SET and `_p` are scalar stores "
        "without a pipe barrier",
    ),
    Assumption(
        "library-drains",
        "fence and quiet wait for every pipe and discard the whole data cache; a blocking put or get ends so, and a "
        "put with a signal before its signal; signal ADD waits for every pipe before and after. SET and `_p` do not.",
        "ACLSHMEM's device headers (643bfb73): aclshmemi_quiet, mte_quiet, signal_op, put_signal",
    ),
    Assumption(
        "barrier-mixed-drains",
        "A barrier in a mix kernel begins by waiting for every pipe of its core.",
        "ACLSHMEM's barrier_core built with -cce-enable-mix: AscendC SyncAll, whose public copies begin with "
        "PipeBarrier<PIPE_ALL>",
        derived=True,
    ),
    Assumption(
        "barrier-joins-halves",
        "barrier_all and barrier(team) of a mix kernel hold cube and vector cores of all programs until all are there.",
        "ACLSHMEM's barrier_core: AscendC SyncAll<false> in mix builds. Its header adds that the scalar unit of the "
        "cube core is not affected; what that unit reads itself behind a barrier is not covered here",
        derived=True,
    ),
    Assumption(
        "barrier-vector-does-not-drain",
        "The soft barrier of a pure vector kernel waits for no pipe and discards no cache.",
        "ACLSHMEM's barrier_core in a build for vector cores alone",
        derived=True,
    ),
    Assumption(
        "wait-invalidates-one-line",
        "A wait discards the cache line of its word only, consume_token nothing, a barrier nothing: what the scalar "
        "unit reads through the data cache afterwards may be old until fence or quiet.",
        "ACLSHMEM's device headers: signal_wait_until, wait; the template's consume_token copies a descriptor",
        derived=True,
    ),
    Assumption(
        "matrix-accumulates",
        "The matrix unit adds up into L0C in order without a barrier; a matrix call orders its own loads into L0A and "
        "L0B before its multiplications, and by its counter the next call's after them.",
        "the device template's mma_tile as called in final modules; HIVM's operation definitions",
        derived=True,
    ),
    Assumption(
        "matrix-inner-flags",
        "A matrix call waits for the flags MTE2 → MTE1 and sets the flags MTE1 → MTE2 that its event operands name; "
        "−1 stands for none.",
        "alignment of modules before and after convert-hivm-to-std",
    ),
    Assumption(
        "unit-flag",
        "Where both have their unit flag on, the hardware orders the matrix unit and fixpipe on one sum in L0C.",
        "Ascend C documentation of unitFlag; the compiler's option --enable-hivm-unit-flag-sync",
        derived=True,
    ),
    Assumption(
        "cross-core-flags",
        "sync_block_set counts a flag up when everything issued before to its pipe has finished, sync_block_wait holds "
        "the scalar unit (or its pipe) of the other half and counts it down; both vector cores count as one.",
        "Ascend C documentation of CrossCoreSetFlag/CrossCoreWaitFlag; HIVM's operation definitions",
    ),
    Assumption(
        "halves-run-alike",
        "Loops with the same bounds in the cube and the vector function of a kernel go round equally often.",
        "SplitMixKernel makes both functions from one; the bounds are compared as expressions",
        derived=True,
    ),
    Assumption(
        "arguments-do-not-overlap",
        "Different arguments of a kernel point to different memory, and a peer's memory is not one's own.",
        "the vendor's compiler assumes the same, so that only kernels that break it can tell",
        derived=True,
    ),
    Assumption(
        "peers-differ",
        "Stores of one pipe into peers' memory through pointers of different turns or calls are not compared with each "
        "other: which PE each goes to is not known.",
        "ACLSHMEM's aclshmem_ptr takes the PE as a value",
        derived=True,
    ),
    Assumption(
        "debug-calls-order-themselves",
        "Calls that print or assert are taken to see finished memory.",
        "the vendor's modules put no flag in front of them",
        derived=True,
    ),
)

ASSUMPTIONS: Final = MappingProxyType({assumption.id: assumption for assumption in _TABLE})


def assumptions(ids: tuple[str, ...]) -> tuple[Assumption, ...]:
    """The rows of some ids, in the order of the table."""
    return tuple(row for row in _TABLE if row.id in ids)


__all__ = ["ASSUMPTIONS", "Assumption", "assumptions"]
