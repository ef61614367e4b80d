"""Double effects on compiled kernels: what stands inside and outside a `sub_vec_id()` gate."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tdist.language.extra.cann.extension import sub_vec_id
from tdist.platforms.sim.world import World


@triton.jit
def counts(count):
    if sub_vec_id() == 0:
        tl.atomic_add(count, 1)
    tl.atomic_add(count + 16, 1)


def test_only_the_atomic_outside_the_gate_is_a_double_effect():
    def host(rt):
        count = torch.zeros(32, dtype=torch.int32)
        counts[(3,)](count)
        return count.tolist()[::16]

    with World(nranks=1, heap_bytes=1 << 12) as world:
        assert world.run(host) == [[3, 3]]
    (found,) = world.findings
    assert found.kind == "tdist.hazard.double-effect" and found.severity.value == "hazard"
    line = found.parties[0].line
    assert line is not None
    with open(__file__) as source:
        assert "count + 16" in source.read().splitlines()[line - 1]
