"""`NPUUtils` of the active simulated target: the questions that host code asks about cores.

Source:
    Single Operator Development §4 ("do not hard-code core counts").
"""

from __future__ import annotations

from typing import Any

from tdist.errors import UsageError
from tdist.platforms.base import RankRuntime, current


def _runtime() -> RankRuntime:
    runtime = current()
    if runtime is None:
        raise UsageError(
            "NPUUtils was asked for core counts on a thread that runs no rank: "
            "ask inside the function that the world runs (`world.run(fn)`)"
        )
    return runtime


class NPUUtils:
    """Answers for the target of the rank that asks."""

    def get_arch(self) -> str:
        """The target's name, as `"Ascend910B3"`."""
        return _runtime().target

    def get_aicore_num(self) -> int:
        """AI cores, that is cube cores."""
        return _runtime().cube_cores

    def get_aivector_core_num(self) -> int:
        """Vector cores."""
        return _runtime().vector_cores

    def get_device_properties(self, device: Any = None) -> dict[str, int]:
        """Core counts under triton-ascend's keys; `max_shared_mem` is a constant there, too."""
        runtime = _runtime()
        return {"max_shared_mem": 1, "num_aicore": runtime.cube_cores, "num_vectorcore": runtime.vector_cores}
