"""What host functions launch: each distinct kernel as the front end left it, with the launch options it was given."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tdist.frontend.kernel_ir import KernelArg, KernelIR

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class LaunchedKernel:
    """A kernel and the launch options (`multibuffer=…`, `num_warps=…`) of one launch; constexprs are in the IR.

    An option whose value is no bool, number, string or None is kept as its text: it cannot be one of the vendor's.
    """

    ir: KernelIR
    options: tuple[tuple[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        arguments = [[arg.name, arg.type] for arg in self.ir.args]
        return {"name": self.ir.name, "ttir": self.ir.ttir, "args": arguments, "options": dict(self.options)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LaunchedKernel:
        arguments = tuple(KernelArg(name, kind) for name, kind in value["args"])
        return cls(KernelIR(value["name"], value["ttir"], arguments), _sorted(value["options"]))


class LaunchRecord:
    """Kernels in the order in which they were first launched, by whatever rank. `run`: whether they are also run."""

    def __init__(self, run: bool = True) -> None:
        self.run = run
        self._kernels: dict[LaunchedKernel, None] = {}

    def add(self, ir: KernelIR, options: Mapping[str, Any]) -> None:
        """Note a launch."""
        self._kernels[LaunchedKernel(ir, _sorted(options))] = None

    @property
    def kernels(self) -> list[LaunchedKernel]:
        """Each once."""
        return list(self._kernels)


def _sorted(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    plain = {name: value if isinstance(value, _PLAIN) else str(value) for name, value in options.items()}
    return tuple(sorted(plain.items()))


_lock = threading.Lock()
_open: list[LaunchRecord] = []


@contextlib.contextmanager
def launches_recorded(run: bool = True) -> Iterator[LaunchRecord]:
    """A record of what ranks of this process launch in the block, whichever thread they run on.

    Args:
        run: whether what is launched is run as well; where not, no kernel can get stuck, and none writes anything.
    """
    record = LaunchRecord(run)
    with _lock:
        _open.append(record)
    try:
        yield record
    finally:
        with _lock:
            _open[:] = [other for other in _open if other is not record]


def note_launch(ir: KernelIR, options: Mapping[str, Any]) -> bool:
    """Called by the driver before each launch, so that one which never ends is known too; whether to run it."""
    if not _open:
        return True
    with _lock:
        for record in _open:
            record.add(ir, options)
        return all(record.run for record in _open)
