"""Kernels that use everything the language offers on Ascend, one place each."""

import triton
import triton.language as tl

import tdist.language as dl
from tdist.language.extra import libshmem_device
from tdist.language.extra.ascend import libaclshmem_device as device
from tdist.language.extra.cann import extension as al


@triton.jit
def surface(x, s32, u32, s64, u64, out, n, B: tl.constexpr):
    me = dl.rank() + device.my_pe()
    world = dl.num_ranks() + device.n_pes()
    token = dl.wait(s32, n, "gpu", "acquire", waitValue=1)
    token += dl.wait(u32, 1, "sys", "acq_rel", waitValue=2)
    token += dl.wait(s64, 1, "cta", "relaxed", waitValue=n)
    token += dl.wait(u64, 2, "npu", "release", waitValue=4)
    offsets = tl.arange(0, B)
    there = dl.consume_token(dl.symm_at(x, me), token)
    values = tl.load(dl.consume_token(there + offsets, token))
    values += tl.load(dl.consume_token(device.remote_ptr(x, world) + offsets[:, None] * B + offsets[None, :], token))
    tl.store(out + offsets[:, None] * B + offsets[None, :], values)
    block = tl.make_block_ptr(x, (n, n), (n, 1), (0, 0), (B, B), (1, 0))
    tl.store(out, dl.consume_token(n, token) + al.sub_vec_id())
    tl.store(out + offsets[:, None] * B + offsets[None, :], tl.load(dl.consume_token(block, token)))
    device.int_p(s32, n, me)
    device.fence()
    dl.notify(s32, me, 5)
    dl.notify(s32, me, n, sig_op="add", comm_scope="intra_node")
    dl.notify(s64, me, n)
    dl.notify(u64, me, 7)
    libshmem_device.quiet()
    device.quiet()
    device.barrier_all()
    device.barrier_all_vec()


SURFACE = (
    {"x": "*{}", "s32": "*i32", "u32": "*u32", "s64": "*i64", "u64": "*u64", "out": "*{}", "n": "i32"},
    {"B": 16},
)
