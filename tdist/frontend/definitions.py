"""What the definition of a kernel needs of a device, which is nothing: `@triton.autotune` asks all the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class DeferredBenchmarks:
    """Triton's driver as it was, but for one question: the benchmark function is looked up when it is used.

    `@triton.autotune` asks the active driver for it when the kernel is *defined*, and so makes a module with such a
    kernel impossible to import on a machine with no device.
    """

    def __init__(self, outside: Any) -> None:
        self.outside = outside

    def get_benchmarker(self) -> Callable[..., Any]:
        """A function that asks the driver outside when it is called."""
        outside = self.outside

        def benchmark(kernel_call: Callable[[], Any], **options: Any) -> Any:
            return outside.get_benchmarker()(kernel_call, **options)

        return benchmark

    def __getattr__(self, name: str) -> Any:
        return getattr(self.outside, name)


@contextlib.contextmanager
def deferred_benchmarks() -> Iterator[None]:
    """Let autotuned kernels be defined in the block, device or not. Does nothing where there is no Triton."""
    try:
        from triton.runtime.driver import driver
    except ImportError:
        yield
        return
    before: Any = driver.active
    ours: Any = DeferredBenchmarks(before)
    driver.set_active(ours)
    try:
        yield
    finally:
        if driver.active is ours:  # else a world has opened meanwhile, and will restore
            driver.set_active(before)


def without_deferral(driver: Any) -> Any:
    """The driver behind `deferred_benchmarks`, or `driver` itself."""
    return driver.outside if isinstance(driver, DeferredBenchmarks) else driver
