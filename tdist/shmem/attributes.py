"""What a program fills in before `aclshmem_init`.

Source: Distributed Architecture Design §5.1; the vendor's Python API (`shmem`), host functions.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from tdist.errors import UsageError

MAX_PES = 16384
MAX_LOCAL_MEM_BYTES = 40 << 30
MAX_IP_PORT_CHARS = 63
DEFAULT_TIMEOUT_SECONDS = 120


class OpEngineType(enum.IntFlag):
    """Transport engines, a bit mask."""

    MTE = 1
    SDMA = 2
    ROCE = 4
    UDMA = 8


class InitStatus(enum.IntEnum):
    """How far initialisation has come on this PE."""

    NOT_INITIALIZED = 0
    SHM_CREATED = 1
    INITIALIZED = 2
    INVALID = 3


@dataclass
class OptionalAttr:
    """Options of `InitAttr`; timeouts in seconds. The simulator checks them and obeys its own watchdog."""

    version: int = 1
    data_op_engine_type: OpEngineType | int = OpEngineType.MTE
    shm_init_timeout: int = DEFAULT_TIMEOUT_SECONDS
    shm_create_timeout: int = DEFAULT_TIMEOUT_SECONDS
    control_operation_timeout: int = DEFAULT_TIMEOUT_SECONDS
    sockFd: int = -1


@dataclass
class InitAttr:
    """Attributes of `aclshmem_init`; all but `option_attr` and `ip_port` must be set.

    `local_mem_size` is the size of the symmetric heap in bytes, the same on all PEs. `ip_port` is the address at which
    real PEs would meet; the simulator never binds it.
    """

    my_rank: int | None = None
    n_ranks: int | None = None
    local_mem_size: int | None = None
    ip_port: str = ""
    option_attr: OptionalAttr = field(default_factory=OptionalAttr)


def validate(attributes: InitAttr, rank: int, nranks: int) -> None:
    """Check against the vendor's rules and against the rank that runs this.

    Raises:
        UsageError: names the attribute, what it holds and what it may hold.
    """
    if not isinstance(attributes, InitAttr):
        raise UsageError(f"aclshmem_init: expected an InitAttr, got {type(attributes).__name__}")
    my_rank = _integer(attributes, "my_rank")
    n_ranks = _integer(attributes, "n_ranks")
    if not 1 <= n_ranks <= MAX_PES:
        _refuse(rank, "n_ranks", n_ranks, f"1 … {MAX_PES}")
    if not 0 <= my_rank < n_ranks:
        _refuse(rank, "my_rank", my_rank, f"0 … {n_ranks - 1} (n_ranks is {n_ranks})")
    if n_ranks != nranks:
        _refuse(rank, "n_ranks", n_ranks, f"{nranks}, the number of ranks of this world")
    if my_rank != rank:
        _refuse(rank, "my_rank", my_rank, f"{rank}, the rank that calls")
    _check_memory(attributes, rank)
    _check_options(attributes, rank)


def _check_memory(attributes: InitAttr, rank: int) -> None:
    size_bytes = _integer(attributes, "local_mem_size")
    if not 0 < size_bytes <= MAX_LOCAL_MEM_BYTES:
        _refuse(rank, "local_mem_size", size_bytes, "1 byte … 40 GiB")
    if not isinstance(attributes.ip_port, str) or len(attributes.ip_port) > MAX_IP_PORT_CHARS:
        _refuse(rank, "ip_port", attributes.ip_port, f"a string of at most {MAX_IP_PORT_CHARS} characters")


def _check_options(attributes: InitAttr, rank: int) -> None:
    options = attributes.option_attr
    if not isinstance(options, OptionalAttr):
        _refuse(rank, "option_attr", options, "an OptionalAttr")
    if not isinstance(options.data_op_engine_type, int) or not 1 <= int(options.data_op_engine_type) <= 15:
        _refuse(rank, "option_attr.data_op_engine_type", options.data_op_engine_type, "a mask of OpEngineType (1 … 15)")
    for name in ("shm_init_timeout", "shm_create_timeout", "control_operation_timeout"):
        seconds = getattr(options, name)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
            _refuse(rank, f"option_attr.{name}", seconds, "a positive number of seconds")


def _integer(attributes: InitAttr, name: str) -> int:
    value = getattr(attributes, name)
    if value is None:
        raise UsageError(f"aclshmem_init: InitAttr.{name} is not set")
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"aclshmem_init: InitAttr.{name} must be an int, got {value!r}")
    return value


def _refuse(rank: int, name: str, got: object, expected: str) -> None:
    raise UsageError(f"aclshmem_init on rank {rank}: InitAttr.{name} is {got!r}, expected {expected}")
