"""A barrier-all gather on one buffer without an exit barrier: the next launch stores too early."""

import triton
import triton.language as tl
import triton_dist.language as dl
from fault_common import BLOCK, GATHER, one_half
from triton_dist.language.extra import libshmem_device

from tdist.verify import operator


@triton.jit
def gather_kernel(x_ptr, out_ptr, buffer_ptr, shard, BLOCK: tl.constexpr):
    rank = dl.rank()
    world = dl.num_ranks()
    tiles = tl.cdiv(shard, BLOCK)
    for task in range(tl.program_id(0), world * tiles, tl.num_programs(0)):
        target = (rank + task % world) % world
        offs = task // world * BLOCK + tl.arange(0, BLOCK)
        data = tl.load(x_ptr + offs, mask=offs < shard, other=0)
        tl.store(dl.symm_at(buffer_ptr, target) + rank * shard + offs, data, mask=offs < shard)  # overtakes the load
    libshmem_device.fence()
    libshmem_device.barrier_all_vec()
    for task in range(tl.program_id(0), world * tiles, tl.num_programs(0)):
        source = (rank + task % world) % world
        offs = task // world * BLOCK + tl.arange(0, BLOCK)
        data = tl.load(buffer_ptr + source * shard + offs, mask=offs < shard, other=0)
        tl.store(out_ptr + source * shard + offs, data, mask=offs < shard)
    # FAULT: nothing keeps a peer's next launch from storing while this one still loads


@operator(sync=("barrier",), workspace=one_half, **GATHER)
def op(rt, case, workspace, x):
    out = workspace.output(x, case)
    gather_kernel[workspace.grid](x, out, workspace.buffer, workspace.shard, BLOCK=BLOCK)
    return out
