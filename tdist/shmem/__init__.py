"""Host API over symmetric memory, under the names that programs use: `import shmem as ash`.

Order of calls: `set_conf_store_tls`, `aclshmem_init`, allocate, …, free, `aclshmem_finalize`. They act on the rank that
is active on the calling thread. There is no host barrier in this API, as in the vendor's: use
`torch.distributed.barrier`, `rt.host_barrier` or a barrier kernel.

Source: Triton-distributed-ascend documentation, Distributed Architecture Design §5.
"""

from __future__ import annotations

from tdist.errors import UsageError
from tdist.shmem.attributes import InitAttr, InitStatus, OpEngineType, OptionalAttr
from tdist.shmem.memory import (
    aclshmem_align,
    aclshmem_calloc,
    aclshmem_create_tensor,
    aclshmem_free,
    aclshmem_free_tensor,
    aclshmem_malloc,
    aclshmem_ptr,
)
from tdist.shmem.state import finalize as aclshmem_finalize
from tdist.shmem.state import init_status as aclshmemx_init_status
from tdist.shmem.state import initialize as aclshmem_init
from tdist.shmem.state import initialized

# the vendor's older releases have this spelling only
aclshmem_finialize = aclshmem_finalize


def set_conf_store_tls(enable: bool, tls_info: str) -> int:
    """Configure TLS of the bootstrap connection; the simulator has none. Returns 0.

    Raises:
        UsageError: TLS is asked for.
    """
    if enable:
        raise UsageError("set_conf_store_tls: the simulator has no network to encrypt; call it with (False, '')")
    return 0


def my_pe(team: int = 0) -> int:
    """Number of the calling PE; `team` 0 is the world, the only one here."""
    rank, _ = initialized("my_pe")
    _only_world("my_pe", team)
    return rank.rank


def pe_count(team: int = 0) -> int:
    """Number of PEs; `team` 0 is the world, the only one here."""
    rank, _ = initialized("pe_count")
    _only_world("pe_count", team)
    return rank.nranks


def _only_world(function: str, team: int) -> None:
    if team != 0:
        raise UsageError(f"{function}: team {team} does not exist; teams other than the world (0) are not simulated")


__all__ = [
    "InitAttr",
    "InitStatus",
    "OpEngineType",
    "OptionalAttr",
    "aclshmem_align",
    "aclshmem_calloc",
    "aclshmem_create_tensor",
    "aclshmem_finalize",
    "aclshmem_finialize",
    "aclshmem_free",
    "aclshmem_free_tensor",
    "aclshmem_init",
    "aclshmem_malloc",
    "aclshmem_ptr",
    "aclshmemx_init_status",
    "my_pe",
    "pe_count",
    "set_conf_store_tls",
]
