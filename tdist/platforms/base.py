"""What a host function, the host API and the Triton driver see of the platform they run on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from tdist.frontend.kernel_ir import KernelIR


@runtime_checkable
class RankRuntime(Protocol):
    """One rank (PE) of a running world."""

    rank: int
    nranks: int
    platform: str
    target: str
    cube_cores: int
    vector_cores: int

    def launch(self, kernel: KernelIR, grid: tuple[int, int, int], args: Sequence[Any]) -> None:
        """Queue a launch on this rank's stream and return at once; tensors stand for device pointers."""
        ...

    def synchronize(self) -> None:
        """Wait until this rank's stream is empty; joins the stream's clock into the host."""
        ...

    def malloc(self, nbytes: int, alignment: int = 16, name: str | None = None) -> int:
        """Allocate on the symmetric heap (collective). Returns this rank's device address."""
        ...

    def free(self, address: int) -> None:
        """Free a symmetric allocation (collective)."""
        ...

    def tensor(self, address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A torch tensor over symmetric memory at `address`."""
        ...

    def peer_address(self, address: int, pe: int) -> int:
        """Where a symmetric address lies on PE `pe`; 0 if it has none."""
        ...

    def device_address(self, value: int | torch.Tensor) -> int | None:
        """Device address of a tensor's first element, or of what torch calls `data_ptr()`; None for host memory."""
        ...

    def reserve_heap(self, nbytes: int) -> None:
        """Set the size of the symmetric heap (collective; the same on all ranks)."""
        ...

    def host_barrier(self) -> None:
        """A host collective over all ranks: orders hosts, waits for no stream."""
        ...

    def finalize(self) -> None:
        """Give up what this rank holds; later calls are errors."""
        ...


_active = threading.local()


def current() -> RankRuntime | None:
    """The rank runtime that is active on this thread, or None outside a world."""
    return getattr(_active, "runtime", None)


@contextlib.contextmanager
def activate(runtime: RankRuntime) -> Iterator[RankRuntime]:
    """Make `runtime` the active one of this thread for the length of the block."""
    before = current()
    _active.runtime = runtime
    try:
        yield runtime
    finally:
        _active.runtime = before


def spoken_for() -> tuple[str, int] | None:
    """File and line on whose behalf this thread asks for things, None if for the code that runs."""
    return getattr(_active, "behalf", None)


@contextlib.contextmanager
def on_behalf_of(file: str, line: int) -> Iterator[None]:
    """What is asked for in the block counts as asked for at that place of the user's code.

    For what tdist itself does around a user's function: reports then name the user's line and not one of ours.
    """
    before = spoken_for()
    _active.behalf = (file, line)
    try:
        yield
    finally:
        _active.behalf = before
