"""What the fork server runs before it forks, so that no rank is the first to import or to compile anything."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tdist.frontend import compile_source


@triton.jit
def _fill(target, value):
    tl.store(target + tl.arange(0, 16), value)


def host(rt: Any) -> None:
    """One allocation, one launch, one host write, one read, and the front end, also where it need not run."""
    compile_source(_fill, {"target": "*fp32", "value": "fp32"}, {})
    tensor = rt.tensor(rt.malloc(64), (16,), torch.float32)
    tensor.zero_()
    _fill[(1,)](tensor, 1.0)
    rt.host_barrier()
    torch.equal(tensor.cpu(), torch.ones(16))
