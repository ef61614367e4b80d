"""What the host API knows of one PE between `aclshmem_init` and `aclshmem_finalize`: it hangs on the rank's runtime."""

from __future__ import annotations

from dataclasses import dataclass, field

from tdist.errors import UsageError
from tdist.platforms.base import RankRuntime, current
from tdist.shmem.attributes import InitAttr, InitStatus, validate

_ATTRIBUTE = "shmem_state"


@dataclass
class Piece:
    """A live symmetric allocation: its size and where the program asked for it."""

    nbytes: int
    name: str | None


@dataclass
class ShmemState:
    """One PE's view of the symmetric heap."""

    heap_bytes: int
    finalized: bool = False
    pieces: dict[int, Piece] = field(default_factory=dict)
    freed: dict[int, Piece] = field(default_factory=dict)

    @property
    def used_bytes(self) -> int:
        return sum(-(-piece.nbytes // 16) * 16 for piece in self.pieces.values())


def runtime(function: str) -> RankRuntime:
    """The active rank.

    Raises:
        UsageError: there is none.
    """
    active = current()
    if active is None:
        raise UsageError(
            f"shmem.{function}: no rank is active on this thread. Call it inside a host function that runs on N "
            "simulated ranks: `with World(nranks=4) as world: world.run(host)` (tdist.platforms.sim.world), "
            "`tdist-verify file.py::op`, or a test with `pytest --nranks 4`"
        )
    return active


def initialized(function: str) -> tuple[RankRuntime, ShmemState]:
    """The active rank and its state.

    Raises:
        UsageError: `aclshmem_init` has not been called, or `aclshmem_finalize` has.
    """
    rank = runtime(function)
    state = getattr(rank, _ATTRIBUTE, None)
    if state is None:
        raise UsageError(f"shmem.{function} on rank {rank.rank}: call aclshmem_init first")
    if state.finalized:
        raise UsageError(f"shmem.{function} on rank {rank.rank}: called after aclshmem_finalize")
    return rank, state


def init_status() -> InitStatus:
    """Whether this PE is initialised (`aclshmemx_init_status`)."""
    state = getattr(runtime("aclshmemx_init_status"), _ATTRIBUTE, None)
    return InitStatus.NOT_INITIALIZED if state is None or state.finalized else InitStatus.INITIALIZED


def initialize(attributes: InitAttr) -> int:
    """Initialise this PE (collective: a host barrier). Returns 0.

    `local_mem_size` bytes of heap are reserved, not touched: memory costs what is written.

    Raises:
        UsageError: an attribute is out of range or contradicts the world, or this PE is initialised already.
        WorldStopped: the PEs disagree on `local_mem_size`; the finding names them.

    Source: Triton-distributed-ascend documentation, Distributed Architecture Design §5.1.
    """
    rank = runtime("aclshmem_init")
    state = getattr(rank, _ATTRIBUTE, None)
    if state is not None and not state.finalized:
        raise UsageError(f"aclshmem_init on rank {rank.rank}: already initialised; call aclshmem_finalize first")
    validate(attributes, rank.rank, rank.nranks)
    heap_bytes = attributes.local_mem_size or 0
    rank.reserve_heap(heap_bytes)
    setattr(rank, _ATTRIBUTE, ShmemState(heap_bytes))
    return 0


def finalize() -> int:
    """Wait for this PE's stream, free what it still holds, and leave (collective). Returns 0."""
    rank, state = initialized("aclshmem_finalize")
    rank.synchronize()
    for address in sorted(state.pieces):
        rank.free(address)
    state.freed = {**state.freed, **state.pieces}
    state.pieces = {}
    rank.host_barrier()
    state.finalized = True
    return 0
