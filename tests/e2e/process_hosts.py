"""Host functions that the tests of rank processes run; not a test itself."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import triton
import triton.language as tl


@triton.jit
def scale(target, source, n, factor, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offs, tl.load(source + offs, mask=offs < n, other=0.0) * factor, mask=offs < n)


@triton.jit
def unsupported(target):
    offs = tl.arange(0, 16)
    values = tl.load(target + offs)
    moved = tl.inline_asm_elementwise("mov $0, $1;", "=r,r", [values], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(target + offs, moved)


def echo(rt, **values):
    return {"rank": rt.rank, "nranks": rt.nranks, **values}


def group(rt):
    total = torch.full((3,), float(rt.rank))
    dist.all_reduce(total)
    pieces = [torch.empty(2) for _ in range(rt.nranks)]
    dist.all_gather(pieces, torch.full((2,), float(rt.rank)))
    return dist.get_backend(), dist.get_rank(), total, torch.stack(pieces)


def destroy(rt, whole=True):
    dist.destroy_process_group(None if whole else dist.new_group([0, 1, 2]))
    return dist.is_initialized()


def launch(rt, n=100):
    source, target = torch.arange(float(n)), torch.zeros(n)
    view = target[:]
    scale[(triton.cdiv(n, 16),)](target, source, n, float(rt.rank + 1), BLOCK=16)
    scale[(triton.cdiv(n, 16),)](target, target, n, 2.0, BLOCK=16)
    first = target[n - 1].item()
    view.add_(1.0)
    return first, target


def collectives_on_device_memory(rt):
    buffer = rt.tensor(rt.malloc(64), (16,), torch.float32)
    buffer.fill_(float(rt.rank))
    scale[(1,)](buffer, buffer, 16, 10.0, BLOCK=16)
    dist.all_reduce(buffer)
    everywhere = torch.empty(16 * rt.nranks)
    dist.all_gather_into_tensor(everywhere, buffer)
    return buffer, everywhere


def copies(rt):
    """Copies between device tensors: symmetric and private, converted, of a strided source, behind a launch."""
    heap = rt.tensor(rt.malloc(64, name="heap"), (4, 4), torch.float32)
    own, ones = torch.zeros(16, dtype=torch.int64), torch.ones(16)
    heap.zero_()
    scale[(1,)](heap, ones, 16, 3.0 + rt.rank, BLOCK=16)
    scale[(1,)](own.view(torch.float32), ones, 4, 1.0, BLOCK=16)
    own[:4].copy_(heap[:, 1])
    own[4:].copy_(own[:12])
    heap.copy_(own.view(4, 4).T)
    return heap, own


def keep(rt, value=None):
    """Allocates, or reads what an earlier run left at the heap's first allocation."""
    if value is None:
        return rt.tensor(rt.heap_address, (4,), torch.float32)
    rt.heap_address = rt.malloc(16)
    rt.tensor(rt.heap_address, (4,), torch.float32).fill_(value)
    return None


def bad_kernel(rt):
    unsupported[(1,)](torch.zeros(16, dtype=torch.int32))
    rt.synchronize()


def fail(rt, who=1, where="before"):
    if where == "inside" and rt.rank != who:
        dist.recv(torch.empty(1), src=who)  # blocks in gloo, where the engine cannot wake it
    if rt.rank == who:
        raise ValueError(f"rank {who} fails on purpose")
    dist.all_reduce(torch.ones(2))


def recv_that_never_comes(rt):
    if rt.rank == 0:
        dist.recv(torch.empty(1), src=1)
    rt.host_barrier()


def die(rt, who=1, how="KILL"):
    rt.host_barrier()
    if rt.rank == who:
        print("last words of the rank", file=sys.stderr)
        if how == "exit":
            os._exit(7)
        os.kill(os.getpid(), getattr(signal, f"SIG{how}"))
    rt.host_barrier()


def alone(rt):
    if rt.rank == 0:
        rt.host_barrier()


def wait(rt):
    """Until somebody kills something: a rank in host code, the others in a collective."""
    if rt.rank == 0:
        print("waiting")
        time.sleep(600)
    rt.host_barrier()


def compute(rt, seconds=2.0):
    """Host code that computes without a word to the engine."""
    if rt.rank == 0:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
    rt.host_barrier()
    return True


def say(rt):
    print(f"hello from {rt.rank}")


def complain(rt, lines=1):
    for number in range(lines):
        print(f"complaint {number}", file=sys.stderr)


def churn(rt):
    """Many private tensors, some of them dead before the run ends."""
    for value in range(5):
        scale[(1,)](torch.zeros(16), torch.ones(16), 16, float(value), BLOCK=16)
        if value % 2:
            rt.synchronize()
    return True


def survive(rt):
    """A tensor that is launched with in one world after another."""
    if not hasattr(survive, "kept"):
        survive.kept = torch.zeros(16)
    scale[(1,)](survive.kept, torch.ones(16), 16, 3.0, BLOCK=16)
    survive.kept[:1].add_(1.0)
    return survive.kept


def shared_by_user(rt):
    """Memory that user code has shared with a process of its own stays shared with it."""
    mine = torch.zeros(16).share_memory_()
    scale[(1,)](mine, torch.ones(16), 16, 3.0, BLOCK=16)
    rt.synchronize()
    return mine, mine.untyped_storage().is_shared()


def fork_and_return(rt):
    """The child returns, too: two processes with the sockets of one rank."""
    if not os.fork():
        return rt.rank
    time.sleep(0.3)
    rt.host_barrier()
    return rt.rank


def counting_descriptors(rt):
    kept = [torch.zeros(16) for _ in range(40)]
    scale[(1,)](kept[0], kept[0], 16, 1.0, BLOCK=16)
    before = len(os.listdir("/proc/self/fd"))
    for tensor in kept:
        scale[(1,)](tensor, tensor, 16, 1.0, BLOCK=16)
    rt.synchronize()
    return len(os.listdir("/proc/self/fd")) - before
