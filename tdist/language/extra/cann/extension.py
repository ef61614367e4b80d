"""Ascend's language extension, as far as distributed kernels use it: `triton.language.extra.cann.extension`."""

from __future__ import annotations

from typing import Any

from tdist.language.carriers import Emitter, _core, builtin
from tdist.platforms.base import current

_VECTOR_PER_CUBE = 2  # every Ascend 910 variant that the vendor's compiler knows


@builtin
def sub_vec_id(emit: Emitter) -> Any:
    """Which of its AI core's vector cores this is, int64.

    A kernel that asks has a second vector agent, which runs what depends on the answer.
    """
    return emit.carrier("sub_vec_id", [emit.integer(0, "dummy", 32)], _core().int64, pure=True)


@builtin
def sub_vec_num(emit: Emitter) -> Any:
    """How many vector cores an AI core of the active target has, a constexpr."""
    runtime = current()
    count = _VECTOR_PER_CUBE if runtime is None else runtime.vector_cores // runtime.cube_cores
    return _core().constexpr(count)
