"""What leaves the front end: TTIR text and the kernel's arguments. Nothing else of a kernel travels to the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelArg:
    """One argument of the compiled function.

    `name` is the Python parameter's; `type` is Triton's signature string (`"*fp16"`, `"*u64"`, `"i32"`, `"fp32"`).
    """

    name: str
    type: str

    @property
    def is_pointer(self) -> bool:
        return self.type.startswith("*")


@dataclass(frozen=True)
class KernelIR:
    """A kernel as the front end left it: carriers inside, source locations kept."""

    name: str
    ttir: str
    args: tuple[KernelArg, ...]
