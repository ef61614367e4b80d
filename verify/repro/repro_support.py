"""Stands in for what an operator's file imports of tdist. Copied beside the script by `--repro`; needs torch only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

TORCH_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


class TdistError(Exception):
    """Raised by an operator's host code."""


class UsageError(TdistError):
    """Raised by an operator's host code on a wrong argument."""


class KernelError(TdistError):
    """Raised by an operator's host code on a kernel that cannot be built."""


@dataclass(frozen=True)
class Case:
    """What decides inputs and expected outputs."""

    operator: str
    shape: Mapping[str, int]
    dtype: str
    nranks: int
    seed: int = 0
    sync: str = "fine"
    fill: str = "exact"

    def __getitem__(self, symbol: str) -> int:
        return self.shape[symbol]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The element type as torch names it."""
        return getattr(torch, TORCH_NAMES[self.dtype])


@dataclass(frozen=True)
class Reference:
    """A golden's output with what tolerances need; only `value` is used here."""

    value: torch.Tensor
    magnitude: torch.Tensor | None = None
    terms: int = 0
    partials_sq: torch.Tensor | None = None
    same_precision: torch.Tensor | None = None


@dataclass(frozen=True)
class Operator:
    """A host function with its inputs, golden and workspace."""

    host: Callable[..., Any]
    inputs: Callable[..., dict[str, torch.Tensor]]
    golden: Callable[..., Any]
    workspace: Callable[..., Any] | None = None
    outputs: tuple[str, ...] = ("out",)
    rest: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.host(*args, **kwargs)


def operator(**declared: Any) -> Callable[[Callable[..., Any]], Operator]:
    """Keep what is declared of a host function."""
    known = {name: declared.pop(name) for name in ("inputs", "golden", "workspace", "outputs") if name in declared}
    return lambda host: Operator(host=host, rest=declared, **known)


@dataclass(frozen=True)
class RankRuntime:
    """What a host function sees of its card. `synchronize` and `host_barrier` wait for the stream and for all ranks."""

    rank: int
    nranks: int
    cube_cores: int
    vector_cores: int
    heap_bytes: int
    synchronize: Callable[[], None]
    host_barrier: Callable[[], Any]
    platform: str = "ascend"


def ensure_shmem(rt: RankRuntime, heap_bytes: int | None = None) -> None:
    """The script has initialised the symmetric heap already."""


def release_shmem() -> None:
    """The script finalises the symmetric heap at its end."""
