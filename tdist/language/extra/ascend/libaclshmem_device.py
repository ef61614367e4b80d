"""ACLSHMEM's device functions, as extern calls of their symbols.

Source:
    Distributed Architecture Design §3.3, §4.2 and §6; the library's own headers for argument order.
"""

from __future__ import annotations

from typing import Any

from tdist.errors import KernelError
from tdist.language.carriers import Emitter, _core, builtin
from tdist.language.checks import describe
from tdist.language.core import emit_extern
from tdist.language.proxy import NotSimulated

LIBRARY = "libaclshmem_device"


def _call(emit: Emitter, symbol: str, operands: list[Any], result: Any = None, pure: bool = False) -> Any:
    return emit_extern(emit, (LIBRARY, "", symbol), operands, result, pure)


@builtin
def my_pe(emit: Emitter) -> Any:
    """This rank's PE number, int32. Pure."""
    return _call(emit, "aclshmem_my_pe", [], _core().int32, pure=True)


@builtin
def n_pes(emit: Emitter) -> Any:
    """The number of PEs, int32. Pure."""
    return _call(emit, "aclshmem_n_pes", [], _core().int32, pure=True)


@builtin
def remote_ptr(emit: Emitter, local_ptr: Any, pe: Any) -> Any:
    """The address on PE `pe` that corresponds to the symmetric scalar pointer `local_ptr`; of the same type."""
    base = emit.pointer(
        local_ptr,
        "local_ptr",
        "must be a scalar pointer",
        "Translate the base of the buffer first and add offsets afterwards: `remote_ptr(base, pe) + offsets`.",
    )
    return _call(emit, "aclshmem_ptr", [base, emit.integer(pe, "pe", 32)], base.type)


@builtin
def barrier_all(emit: Emitter) -> None:
    """A barrier over every program of the running launch on every PE, on cube and vector cores.

    Ordering:
        Drains every participant and orders all of them; nothing after it needs a token.
    """
    _call(emit, "aclshmem_barrier_all", [])


@builtin
def barrier_all_vec(emit: Emitter) -> None:
    """A barrier over the vector cores of every program of the running launch on every PE.

    Ordering:
        Orders all participants. In a kernel without `tl.dot` the library drains no earlier store: put a `fence` before.
    """
    _call(emit, "aclshmemx_barrier_all_vec", [])


@builtin
def int_p(emit: Emitter, dest: Any, value: Any, pe: Any) -> None:
    """Write one int32 to the symmetric address `dest` (local spelling) on PE `pe`.

    Ordering:
        A release like `dl.notify` with "set": on Ascend it covers only what was drained before.
    """
    words = emit.pointer(dest, "dest", "must be a scalar pointer to int32")
    if str(words.type.element_ty) != "int32":
        raise KernelError(f"int_p: `dest` must point to int32, got {describe(words)}.")
    operands = [words, emit.integer(value, "value", 32), emit.integer(pe, "pe", 32)]
    _call(emit, "aclshmem_int32_p", operands)


@builtin
def fence(emit: Emitter) -> None:
    """Drain this core's earlier stores, so that a later signal covers them; frees no source of a transfer."""
    _call(emit, "aclshmem_fence", [])


@builtin
def quiet(emit: Emitter) -> None:
    """Complete every transfer and drain every store that this core has issued."""
    _call(emit, "aclshmem_quiet", [])


_STORE = "store through `dl.symm_at(ptr, pe)`, then `fence()` and `dl.notify`"
_LATER = {
    "putmem": ("transfers", _STORE),
    "put": ("transfers", _STORE),
    "iput": ("strided transfers", _STORE),
    "getmem": ("transfers", "load through `dl.symm_at(ptr, pe)`"),
    "get": ("transfers", "load through `dl.symm_at(ptr, pe)`"),
    "iget": ("strided transfers", "load through `dl.symm_at(ptr, pe)`"),
    "signal": ("signal functions", "use `dl.notify` and `dl.wait`"),
    "wait": ("waits", "use `dl.wait`"),
    "test": ("tests of signals", "use `dl.wait`"),
    "team": ("teams", "use `my_pe()` and `n_pes()`, over all PEs"),
    "barrier": ("barriers of a team", "use `barrier_all()`"),
    "sync": ("collectives", "use `barrier_all()`"),
    "atomic": ("atomics", "use `tl.atomic_*` on a pointer from `dl.symm_at`"),
    "ACLSHMEM": ("constants of functions that are not simulated", "use `dl.notify` and `dl.wait`"),
}
"""First word of names that ACLSHMEM's device library has: what they are, what simulated kernels use instead."""
_SIZED = tuple(f"{sign}{bits}" for sign in ("int", "uint") for bits in (8, 16, 32, 64))
_TYPES = frozenset(("half", "float", "bfloat16", "char", "int", *_SIZED))


def __getattr__(name: str) -> Any:
    """Names of the real library that are not simulated yet say so.

    Raises: NotSimulated with what to use instead; AttributeError for a name that the real library has not, either.
    """
    words = name.removeprefix("aclshmemx_").removeprefix("aclshmem_").split("_")
    first = words[1] if words[0] in _TYPES and len(words) > 1 else words[0]
    if first not in _LATER and first.rstrip("0123456789") not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind, instead = _LATER.get(first) or _LATER[first.rstrip("0123456789")]
    raise NotSimulated(f"`{name}`: {kind} of ACLSHMEM are not simulated yet; {instead}")
