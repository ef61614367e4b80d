"""Runs compiled kernels on one rank, without an engine: memory, a recording agent, a grid of programs in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tdist.frontend.triton_ascend import compile_source
from tdist.platforms.sim.codegen.site import Site
from tdist.platforms.sim.compiler import SimKernel, SimOptions, compile_kernel
from tdist.platforms.sim.memory import Allocation
from tdist.platforms.sim.products import LaterProducts

SIGNATURE = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int8: "*i8",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}


class Fault(Exception):
    """What the agent raises where a real one would end the run with a finding."""

    def __init__(self, kind: str, site: Site, data: Mapping[str, Any]) -> None:
        super().__init__(kind, str(site), dict(data))
        self.kind, self.site, self.data = kind, site, data


class FakeClocks:
    """R and W of the agent, which are one clock unless R is `behind`."""

    def __init__(self, behind: bool) -> None:
        self.W = object()
        self.R = object() if behind else self.W


@dataclass
class FakeAgent:
    """A single rank's agent: it records accesses and does scalar atomics; nothing ever blocks."""

    detect: bool
    rank: int = 0
    nranks: int = 1
    program: int = 0
    core: int = 0
    poison: int = 0xA5
    rounds: range = range(100_000)
    reads: list[tuple] = field(default_factory=list)
    writes: list[tuple] = field(default_factory=list)
    events: list[tuple] = field(default_factory=list)
    later: LaterProducts = field(default_factory=LaterProducts)
    clocks: FakeClocks = field(default_factory=lambda: FakeClocks(behind=False))
    stays: bool = False

    def stay(self, steps):
        self.events.append(("stay", steps))
        return self.stays

    def fault(self, kind, site, **data):
        raise Fault(kind, site, data)

    def rd(self, *record):
        self.reads.append(record)

    def rd_cached(self, *record):
        self.reads.append(record)

    def rd_lanes(self, al, offs, width, clk, site):
        self.reads += [(al, int(o), 1, 0, width, clk, site) for o in offs]

    def wr(self, *record):
        self.writes.append(record)

    def wr_lanes(self, al, offs, width, site):
        self.writes += [(al, int(o), 1, 0, width, site) for o in offs]

    def atomic_lanes(self, al, offs, width, site, used):
        self.writes += [(al, int(o), 1, 0, width, site) for o in offs]

    def atomic(self, addr, al, op, value, width, kind, sem, scope, used, site):
        self.events.append(("atomic", op, sem, scope, used))
        words, index = al.words(width), (addr - al.lo) // width
        old = words[index]
        if op == "cas":
            words[index] = value[1] if old == value[0] else old
        else:
            words[index] = {"add": old + value, "max": max(old, value), "xchg": value}[op]
        return old

    def volatile_load(self, addr, al, width, clk, site):
        self.events.append(("volatile", clk))
        return al.words(width)[(addr - al.lo) // width]

    def symm_at(self, addr, al, pe, site):
        self.events.append(("symm_at", pe))
        return addr, al

    def pointer(self, addr, site):
        raise Fault("tdist.pointer-misuse", site, {})

    def notify(self, addr, al, value, pe, op, width, site):
        self.events.append(("notify", value, pe, op, width))

    def put_scalar(self, addr, al, value, pe, width, site):
        self.events.append(("put_scalar", value, pe, width))

    def fence(self, site):
        self.events.append(("fence",))

    def quiet(self, site):
        self.events.append(("quiet",))

    def wait(self, addr, al, n, value, width, semantic, site):
        self.events.append(("wait", n, value, width, semantic))
        return FakeClock(len(self.events))
        yield

    def barrier(self, kind, site):
        self.events.append(("barrier", kind))
        return
        yield

    def endless(self, site):
        raise Fault("endless-loop", site, {})

    def poll(self, carried, site, ends=False, stores=False):
        self.events.append(("poll", len(carried)))
        return
        yield

    def print(self, site, prefix, values):
        self.events.append(("print", prefix, values))

    def assert_(self, cond, msg, site):
        if not cond:
            raise Fault("tdist.kernel-assert", site, {"message": msg})


@dataclass(frozen=True)
class FakeClock:
    """Has what `later` compares."""

    version: int


@dataclass
class Launch:
    """A finished run."""

    kernel: SimKernel
    agent: FakeAgent
    yields: int


def build(
    fn, args: Sequence[Any], constexprs: Mapping[str, Any], *, detect: bool = True, fuse: bool = True
) -> SimKernel:
    """Compile `fn` for arguments like these."""
    names = [name for name in fn.arg_names if name not in constexprs]
    signature = {name: _type(arg) for name, arg in zip(names, args, strict=True)}
    return compile_kernel(compile_source(fn, signature, constexprs), SimOptions(detect=detect, fuse=fuse))


def _type(arg: Any) -> str:
    if isinstance(arg, torch.Tensor):
        return SIGNATURE[arg.dtype]
    return "fp32" if isinstance(arg, float) else "i32"


def launch(fn, grid: Sequence[int], *args: Any, detect: bool = True, fuse: bool = True, **constexprs: Any) -> Launch:
    """Compile and run; tensors are device memory, each storage one allocation."""
    return run(build(fn, args, constexprs, detect=detect, fuse=fuse), grid, *args, detect=detect)


def run(
    kernel: SimKernel, grid: Sequence[int], *args: Any, detect: bool = True, agent: FakeAgent | None = None
) -> Launch:
    """Run the programs of a grid one after another."""
    agent = agent or FakeAgent(detect)
    extents = (*grid, 1, 1)[:3]
    values = _arguments(args)
    yields = 0
    for z in range(extents[2]):
        for y in range(extents[1]):
            for x in range(extents[0]):
                yields += sum(1 for _ in kernel.entry(0)(agent, x, y, z, *extents, *values))
    agent.later.settle()
    return Launch(kernel, agent, yields)


def _arguments(args: Sequence[Any]) -> list[Any]:
    known: dict[int, Allocation] = {}
    values: list[Any] = []
    next_address = 1 << 20
    for arg in args:
        if not isinstance(arg, torch.Tensor):
            values.append(arg)
            continue
        storage = arg.untyped_storage()
        if storage.data_ptr() not in known:
            data = torch.empty(0, dtype=torch.uint8).set_(storage)
            known[storage.data_ptr()] = Allocation(0, next_address, data, f"buffer{len(known)}")
            next_address += (len(data) // 4096 + 2) * 4096
        al = known[storage.data_ptr()]
        values += [al.lo + arg.storage_offset() * arg.element_size(), al]
    return values
