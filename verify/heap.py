"""Opening the symmetric heap for an operator that does not care how large it is."""

from __future__ import annotations

import tdist.shmem as ash
from tdist.platforms.base import RankRuntime

DEFAULT_HEAP_BYTES = 1 << 30


def ensure_shmem(rt: RankRuntime, heap_bytes: int | None = None) -> None:
    """Do the five steps of host initialisation unless they have been done on this rank (collective).

    Args:
        heap_bytes: size of the symmetric heap; by default all that the world offers.

    Source: Triton-distributed-ascend documentation, Distributed Architecture Design §5.1.
    """
    if ash.aclshmemx_init_status() == ash.InitStatus.INITIALIZED:
        return
    ash.set_conf_store_tls(False, "")
    attributes = ash.InitAttr()
    attributes.my_rank = rt.rank
    attributes.n_ranks = rt.nranks
    attributes.local_mem_size = heap_bytes or getattr(rt, "heap_bytes", DEFAULT_HEAP_BYTES)
    attributes.option_attr.data_op_engine_type = ash.OpEngineType.MTE
    ash.aclshmem_init(attributes)


def release_shmem() -> None:
    """Finalise the host API if this rank has it open (collective)."""
    if ash.aclshmemx_init_status() == ash.InitStatus.INITIALIZED:
        ash.aclshmem_finalize()
