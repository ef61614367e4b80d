"""Operators for tests of plan, situations, verdict: a ring that passes a row on, right and wrong in known ways."""

import shmem as ash
import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from triton_dist.language.extra import libshmem_device

from tdist.verify import ensure_shmem, operator
from tdist.verify.inputs import payload

SLOT = 16


@triton.jit
def ring(x, out, box, sig, credit, count, n, epoch, COUNT: tl.constexpr, WAIT: tl.constexpr, BLOCK: tl.constexpr):
    """Pass a row to the next rank; a credit says that it was read. `COUNT`: the epoch is kept on the device."""
    me, world = dl.rank(), dl.num_ranks()
    offs = tl.arange(0, BLOCK)
    inside = offs < n
    if COUNT:
        epoch = tl.load(count) + 1
        tl.store(count, epoch)
    free = dl.consume_token(box, dl.wait(credit, 1, "npu", "acquire", waitValue=epoch - 1))
    tl.store(dl.symm_at(free, (me + 1) % world) + offs, tl.load(x + offs, mask=inside, other=0), mask=inside)
    libshmem_device.fence()
    dl.notify(sig, (me + 1) % world, signal=epoch, sig_op="set")
    full = box
    if WAIT:
        full = dl.consume_token(box, dl.wait(sig, 1, "npu", "acquire", waitValue=epoch))
    tl.store(out + offs, tl.load(full + offs, mask=inside, other=0), mask=inside)
    dl.notify(credit, (me + world - 1) % world, signal=epoch, sig_op="set")


@triton.jit
def short_mask(x, out, n, BLOCK: tl.constexpr):
    """A copy that leaves out the last element."""
    offs = tl.arange(0, BLOCK)
    tl.store(out + offs, tl.load(x + offs, mask=offs < n, other=0), mask=offs < n - 1)


class Box:
    def __init__(self, rt, case, barrier=True):
        ensure_shmem(rt)
        self.epoch = 0
        self.box = ash.aclshmem_create_tensor((case["n"],), dtype=case.torch_dtype)
        self.sig = ash.aclshmem_create_tensor((3, SLOT), dtype=torch.int32)
        self.count = torch.zeros(1, dtype=torch.int32)
        self.sig.zero_()
        rt.synchronize()
        if barrier:
            rt.host_barrier()

    def pass_on(self, x, count, wait=True):
        self.epoch += 1
        out, n = torch.empty_like(x), x.numel()
        ring[(1,)](
            x, out, self.box, self.sig[1], self.sig[2], self.count, n, self.epoch, COUNT=count, WAIT=wait, BLOCK=32
        )
        return out


def unordered_box(rt, case):
    return Box(rt, case, barrier=False)


def inputs(case, rank, launch):
    return {"x": payload(case, rank, launch, "x", (case["n"],))}


def passed_on(case, rank, by_rank):
    return by_rank[(rank - 1) % case.nranks]["x"]


def passed_on_group(case, rank, x):
    import torch.distributed as dist

    rows = [torch.empty_like(x) for _ in range(case.nranks)]
    dist.all_gather(rows, x)
    return rows[(rank - 1) % case.nranks]


RING = {
    "shape": {"n": 20},
    "dtypes": ("fp32",),
    "inputs": inputs,
    "golden": passed_on_group,
    "golden_local": passed_on,
    "workspace": Box,
    "relaunchable": True,
    "tile": (8,),
}


@operator(**RING, replayable=True)
def counts_on_device(rt, case, workspace, x):
    return workspace.pass_on(x, count=True)


@operator(**RING, replayable=True)
def epoch_from_host(rt, case, workspace, x):
    return workspace.pass_on(x, count=False)


@operator(**{**RING, "workspace": unordered_box})
def no_barrier(rt, case, workspace, x):
    return workspace.pass_on(x, count=False)


@operator(**RING)
def no_wait(rt, case, workspace, x):
    return workspace.pass_on(x, count=False, wait=False)


@operator(**RING, replayable=True)
def waits_on_host(rt, case, workspace, x):
    out = workspace.pass_on(x, count=True)
    rt.synchronize()
    return out


@operator(
    shape={"n": 20},
    dtypes=("fp32",),
    inputs=inputs,
    golden=lambda case, rank, x: x,
    golden_local=lambda case, rank, by_rank: by_rank[rank]["x"],
    tile=(8,),
)
def masked_short(rt, case, x):
    out = torch.zeros_like(x)
    short_mask[(1,)](x, out, x.numel(), BLOCK=32)
    return out
