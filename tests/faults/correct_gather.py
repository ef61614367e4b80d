"""The all-gather that the broken ones are copies of: nothing is wrong with it, under either profile."""

import triton
import triton.language as tl
import triton_dist.language as dl
from fault_common import BLOCK, GATHER, INT32_SLOT, two_halves
from triton_dist.language.extra import libshmem_device

from tdist.verify import operator


@triton.jit
def gather_kernel(x_ptr, out_ptr, buffer_ptr, ready_ptr, shard, epoch, BLOCK: tl.constexpr, SLOT: tl.constexpr):
    rank = dl.rank()
    world = dl.num_ranks()
    tiles = tl.cdiv(shard, BLOCK)
    half_ptr = buffer_ptr + epoch % 2 * world * shard
    half_ready_ptr = ready_ptr + epoch % 2 * world * tiles * SLOT
    for task in range(tl.program_id(0), world * tiles, tl.num_programs(0)):
        target = (rank + task % world) % world
        offs = task // world * BLOCK + tl.arange(0, BLOCK)
        data = tl.load(x_ptr + offs, mask=offs < shard, other=0)
        tl.store(dl.symm_at(half_ptr, target) + rank * shard + offs, data, mask=offs < shard)
        libshmem_device.fence()
        dl.notify(half_ready_ptr + (rank * tiles + task // world) * SLOT, target, signal=epoch, sig_op="set")
    for task in range(tl.program_id(0), world * tiles, tl.num_programs(0)):
        source = (rank + task % world) % world
        offs = task // world * BLOCK + tl.arange(0, BLOCK)
        slot = (source * tiles + task // world) * SLOT
        token = dl.wait(half_ready_ptr + slot, 1, "npu", "acquire", waitValue=epoch)
        arrived_ptr = dl.consume_token(half_ptr, token)
        data = tl.load(arrived_ptr + source * shard + offs, mask=offs < shard, other=0)
        tl.store(out_ptr + source * shard + offs, data, mask=offs < shard)


@operator(workspace=two_halves, **GATHER)
def op(rt, case, workspace, x):
    out = workspace.output(x, case)
    gather_kernel[workspace.grid](
        x, out, workspace.buffer, workspace.ready, workspace.shard, workspace.epoch, BLOCK=BLOCK, SLOT=INT32_SLOT
    )
    return out
