"""The device library of the active platform: `import triton_dist.language.extra.libshmem_device as libshmem_device`."""

from __future__ import annotations

from typing import Any

from tdist.language import backends
from tdist.language.proxy import ModuleProxy

_proxy = ModuleProxy([(backends.active_is_ascend, "tdist.language.extra.ascend.libaclshmem_device")])


@_proxy.dispatch
def my_pe() -> Any:
    """This rank's PE number, int32."""


@_proxy.dispatch
def n_pes() -> Any:
    """The number of PEs, int32."""


@_proxy.dispatch
def remote_ptr(local_ptr: Any, pe: Any) -> Any:
    """The address on PE `pe` that corresponds to the symmetric scalar pointer `local_ptr`."""


@_proxy.dispatch
def barrier_all() -> None:
    """A barrier over every program of the running launch on every PE."""


@_proxy.dispatch
def barrier_all_vec() -> None:
    """A barrier over the vector cores of every program of the running launch on every PE."""


@_proxy.dispatch
def int_p(dest: Any, value: Any, pe: Any) -> None:
    """Write one int32 to the symmetric address `dest` on PE `pe`."""


@_proxy.dispatch
def fence() -> None:
    """Order this core's earlier stores before its later signals."""


@_proxy.dispatch
def quiet() -> None:
    """Complete every transfer and store that this core has issued."""


def __getattr__(name: str) -> Any:
    """Functions that only the active platform's library has."""
    return getattr(_proxy, name)
