"""`kernel[grid](…)` in a real world: from the user's import names to the numbers in memory."""

import importlib.util
import textwrap

import pytest
import torch

from tdist.errors import KernelError
from tdist.importer import user_names
from tdist.platforms.sim.world import World

SOURCE = """
    import torch
    import triton
    import triton.language as tl
    import triton_dist.language as dl
    from triton.backends.ascend.driver import NPUUtils
    from triton.language.extra.cann.extension import sub_vec_id, sub_vec_num
    from triton_dist.language.extra import libshmem_device

    @triton.autotune(configs=[triton.Config({"B": 16}), triton.Config({"B": 32})], key=["n"])
    @triton.jit
    def push_kernel(buf, sig, out, n, B: tl.constexpr):
        offs = tl.program_id(0) * B + tl.arange(0, B)
        peer = (dl.rank() + 1) % dl.num_ranks()
        slot = sig + tl.program_id(0) * dl.SIGNAL_SLOT_STRIDE(sig)
        if sub_vec_id() == 0:
            tl.store(dl.symm_at(buf, peer) + offs, offs * 10 + dl.rank() + sub_vec_num(), mask=offs < n)
        libshmem_device.fence()
        dl.notify(slot, peer)
        token = dl.wait(slot, 1, "npu", "acquire")
        data = dl.consume_token(buf, token)
        tl.store(out + offs, tl.load(data + offs, mask=offs < n), mask=offs < n)

    def host(rt, n):
        buf = rt.tensor(rt.malloc(4 * n), (n,), torch.int32)
        sig = rt.tensor(rt.malloc(64 * 4, alignment=64), (64,), torch.int32)
        out = torch.zeros(n, dtype=torch.int32)
        sig.zero_()
        rt.synchronize()
        rt.host_barrier()
        push_kernel[lambda meta: (triton.cdiv(n, meta["B"]),)](buf, sig, out, n)
        rt.synchronize()
        return out.tolist(), NPUUtils().get_aicore_num()

    @triton.jit
    def mistaken_kernel(buf):
        dl.symm_at(buf + tl.arange(0, 16), 0)

    def mistaken_host(rt):
        mistaken_kernel[(1,)](torch.zeros(16))
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "user_kernels.py"
    path.write_text(textwrap.dedent(SOURCE))
    spec = importlib.util.spec_from_file_location("user_kernels", path)
    loaded = importlib.util.module_from_spec(spec)
    with user_names():
        spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("n", [40, 33])
def test_a_users_module_runs_unchanged(module, n):
    with World(nranks=3, seed=1) as world:
        results = world.run(module.host, n)
        world.raise_for_findings()
    for rank, (out, cores) in enumerate(results):
        sender = (rank - 1) % 3
        assert out == [10 * i + sender + 2 for i in range(n)]
        assert cores == 20


def test_a_mistake_in_a_kernel_is_told_with_rank_and_line(module):
    with World(nranks=2) as world, pytest.raises(KernelError) as caught:
        world.run(module.mistaken_host)
    text = str(caught.value)
    lines = textwrap.dedent(SOURCE).splitlines()
    line = next(i for i, source in enumerate(lines, 1) if "dl.symm_at(buf + tl" in source)
    assert f"{module.__file__}:{line}:4: in kernel `mistaken_kernel`: symm_at: `ptr` must be a scalar pointer" in text


def test_worlds_leave_triton_alone():
    import triton

    before = (triton.runtime.driver.active, triton.runtime.JITFunction.run)
    with World(nranks=2) as world:
        world.run(lambda rt: rt.synchronize())
    assert (triton.runtime.driver.active, triton.runtime.JITFunction.run) == before
    assert torch.zeros(2).sum().item() == 0
