"""The worlds' side of the engine: compiles what is launched, turns device pointers and sites into the engine's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tdist.errors import Place
from tdist.platforms.sim.engine import Engine, Pointer
from tdist.platforms.sim.rank import DevicePointer, Heap

if TYPE_CHECKING:
    import torch

    from tdist.frontend.kernel_ir import KernelIR
    from tdist.platforms.sim.device_tensors import Box, View
    from tdist.platforms.sim.streams import HostSite

Done = Callable[[Any], None]


def mutant_to_run(kernel: KernelIR, mutation: str) -> str:
    """The mutant that a world's `mutation` asks for in place of this kernel; "" for the kernel itself.

    Raises:
        UsageError: the mutation is not well named.
    """
    from tdist.mutations import has_mutant, parse_mutation

    if not mutation:
        return ""
    name, mutant, optional = parse_mutation(mutation)
    if name != kernel.name or (optional and not has_mutant(kernel, mutant)):
        return ""
    return mutant


class EnginePort:
    """One engine, for all ranks of its world."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def heap(self, rank: int) -> Heap:
        memory = self.engine.memory.ranks[rank]
        return Heap(memory.bytes, memory.base)

    def heap_bases(self) -> list[int]:
        return [memory.base for memory in self.engine.memory.ranks]

    def heap_fd(self, rank: int) -> int:
        return self.engine.memory.ranks[rank].fd

    def begin(self) -> None:
        """All hosts start (again)."""
        self.engine.resume_hosts()

    def check_memory(self) -> None:
        """Look for guard bytes that were overwritten."""
        for allocation in self.engine.memory:
            self.engine.check_canary(allocation)

    def close(self) -> None:
        self.engine.close()

    def compile(self, kernel: KernelIR, symbolic: frozenset[tuple[str, int, int]] | None = None) -> Any:
        """The kernel as the engine runs it; `symbolic` as in `SimOptions`.

        Raises:
            KernelError: it cannot be compiled; names the operation and the kernel's line.
            UsageError: the world's mutation is none of this kernel's.
        """
        from tdist.platforms.sim.compiler import SimOptions, compile_kernel

        config = self.engine.config
        mutant = mutant_to_run(kernel, config.mutation)
        adversarial = config.memory != "plain"
        options = SimOptions(config.detect, True, mutant, config.trace, adversarial, symbolic)
        return compile_kernel(kernel, options)

    def launch(
        self, rank: int, kernel: KernelIR, grid: tuple[int, int, int], args: Sequence[Any], site: HostSite
    ) -> None:
        lowered = [Pointer(arg.address) if isinstance(arg, DevicePointer) else arg for arg in args]
        self.engine.launch(rank, self.compile(kernel), grid, lowered, site)

    def register(self, rank: int, storage: torch.Tensor, name: str | None) -> int:
        return self.engine.register(rank, storage, name)

    def unregister(self, rank: int, address: int) -> None:
        self.engine.unregister(rank, address)

    def describe(self, rank: int, view: View, name: str, role: str, launch: int) -> None:
        self.engine.describe(rank, view, name, role, launch)

    def host_write(self, rank: int, boxes: Sequence[Box], data: torch.Tensor, site: HostSite) -> None:
        self.engine.host_write(rank, boxes, data, site)

    def host_copy(self, rank: int, target: View, source: View, site: HostSite) -> None:
        self.engine.host_copy(rank, target, source, site)

    def host_read(self, rank: int, boxes: Sequence[Box], site: HostSite, done: Done) -> None:
        self.engine.host_read(rank, boxes, site, done)

    def synchronize(self, rank: int, site: HostSite, done: Done) -> None:
        self.engine.synchronize(rank, done, site)

    def malloc(self, rank: int, nbytes: int, alignment: int, name: str | None, site: HostSite, done: Done) -> None:
        self.engine.malloc(rank, nbytes, alignment, name, site, done)

    def free(self, rank: int, address: int, site: HostSite, done: Done) -> None:
        self.engine.free(rank, address, site, done)

    def collective(
        self, rank: int, group: tuple[int, ...], sequence: int, kind: str, site: HostSite, done: Done
    ) -> None:
        self.engine.collective(rank, group, sequence, kind, done, site)

    def end(self, rank: int, error: str | None, place: Place | None = None) -> None:
        self.engine.end(rank, error, place)
