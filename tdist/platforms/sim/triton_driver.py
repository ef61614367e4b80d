"""The object that `triton.runtime.driver.active` is while a world is open."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tdist.frontend.definitions import DeferredBenchmarks
from tdist.platforms.base import current
from tdist.platforms.sim.npu_utils import NPUUtils


def make_driver(outside: Any) -> Any:
    """A Triton driver for the active rank; `outside` is the driver to which late benchmarks go."""
    return _driver_class()(outside)


class _Event:
    """A device event. Simulated time has no meaning: every interval is one second, so benchmarks repeat little."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing

    def record(self, stream: Any = None) -> None:
        return None

    def elapsed_time(self, later: _Event) -> float:
        return 1000.0


class _DeviceInterface:
    """The part of `torch.npu` that Triton's benchmarks use."""

    Event = _Event

    @staticmethod
    def synchronize() -> None:
        if (runtime := current()) is not None:
            runtime.synchronize()


@functools.cache
def _driver_class() -> type:
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class SimDriver(DriverBase):
        """Answers as a card with the active rank's target would; kernels never pass through here."""

        def __init__(self, outside: Any) -> None:
            super().__init__()
            self._outside = outside
            self.utils = NPUUtils()

        @classmethod
        def is_active(cls) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
            return current() is not None

        def get_current_target(self) -> Any:
            return GPUTarget("npu", self.utils.get_arch(), 0)

        def get_current_device(self) -> int:
            runtime = current()
            return 0 if runtime is None else runtime.rank

        def set_current_device(self, device: int) -> None:
            """A rank keeps its device."""

        def get_current_stream(self, device: int | None = None) -> int:
            return 0

        def get_device_interface(self) -> Any:
            return _DeviceInterface

        def get_empty_cache_for_benchmark(self) -> Any:
            import torch

            return torch.empty(0, dtype=torch.int8)

        def get_benchmarker(self) -> Callable[..., Any]:
            """For an autotuned kernel *defined* while a world is open; it may be benchmarked after it closed."""
            return DeferredBenchmarks(self._outside).get_benchmarker()

    return SimDriver
