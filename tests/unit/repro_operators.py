"""An operator that is awkward to extract: neighbours, aliases, lambdas, closures, tables that are changed in place."""

import os
from typing import TYPE_CHECKING

import repro_neighbour as near
import torch
import torch.nn.functional
import triton
import triton.language as tl
import triton_dist.language as dl
from repro_neighbour import SIZES, scaled
from triton_dist.language.extra import libshmem_device

import tdist.shmem as ash
from tdist.errors import UsageError
from tdist.verify import Reference, ensure_shmem, operator
from tdist.verify.inputs import payload

if TYPE_CHECKING:
    from tdist.verify import Case

UNRELATED = open  # not needed: must not be copied
BLOCK = 2 ** int(os.environ.get("NO_SUCH_VARIABLE", "4"))
SIZES["n"] = 32
FACTORS = []
FACTORS.append(1)

try:
    import no_such_package  # noqa: F401
except ImportError:
    HAVE = False


@triton.jit
def _helper(x):
    # a comment that stays
    return x + 0


@triton.jit
def copy_kernel(x_ptr, out_ptr, box_ptr, n,
                BLOCK: tl.constexpr):  # fmt: skip
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    data   =   tl.load(x_ptr + offs, mask=offs < n, other=0)  # fmt: skip
    tl.store(dl.symm_at(box_ptr, dl.rank()) + offs, _helper(data), mask=offs < n)
    libshmem_device.fence()
    tl.store(out_ptr + offs, data, mask=offs < n)


@triton.jit
def unrelated_kernel(x_ptr):
    tl.store(x_ptr, 0)


class Box:
    def __init__(self, rt, case: "Case"):
        from tdist.language import SIGNAL_SLOT_STRIDE

        ensure_shmem(rt)
        if HAVE:
            raise UsageError("no")
        self.box = ash.aclshmem_create_tensor((case["n"] + SIGNAL_SLOT_STRIDE[torch.int32],), dtype=case.torch_dtype)


@operator(
    shape=SIZES,
    dtypes=("fp32",),
    inputs=lambda case, rank, launch: {"x": near.doubled(payload(case, rank, launch, "x", (case["n"],)))},
    golden=lambda case, rank, x: Reference(scaled(x, FACTORS[0])),
    workspace=Box,
)
def awkward(rt, case, workspace, x):
    out = torch.zeros_like(x)
    copy_kernel[(triton.cdiv(case["n"], BLOCK),)](x, out, workspace.box, case["n"], BLOCK=BLOCK)
    return out


def made_inside():
    def inner(case, rank, launch):
        return {}

    return inner


globals()["hidden"] = awkward


@operator(shape={"n": 1}, inputs=made_inside(), golden=lambda case, rank: INVISIBLE)  # noqa: F821
def with_a_gap(rt, case):
    return torch.zeros(1)
