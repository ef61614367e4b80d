"""Cost per access from 2 to 64 ranks x 20 programs at fixed work per rank, detection on."""

from __future__ import annotations

from types import SimpleNamespace

import measure
import triton
import triton.language as tl

import tdist.language as dl
import tdist.shmem as ash
from tdist.language.extra import libshmem_device

PROGRAMS = 20
STEPS = 24
BLOCK = 64


@triton.jit
def ring_push(x_ptr, inbox_ptr, sig_ptr, out_ptr, epoch, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Each program pushes STEPS tiles to the next rank, a signal each, and sums what arrives."""
    pid = tl.program_id(0)
    peer = (dl.rank() + 1) % dl.num_ranks()
    offs = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in range(0, STEPS):
        slot = pid * STEPS + step
        tile = tl.load(x_ptr + slot * BLOCK + offs)
        tl.store(dl.symm_at(inbox_ptr, peer) + slot * BLOCK + offs, tile)
        libshmem_device.fence()
        dl.notify(sig_ptr + slot * 16, peer, signal=epoch, sig_op="set")
    for step in range(0, STEPS):
        slot = pid * STEPS + step
        token = dl.wait(sig_ptr + slot * 16, 1, "npu", "acquire", waitValue=epoch)
        total += tl.load(dl.consume_token(inbox_ptr, token) + slot * BLOCK + offs)
    tl.store(out_ptr + pid * BLOCK + offs, total)
    libshmem_device.barrier_all()


def main() -> None:
    measure.one_thread()
    import torch

    from tdist.platforms.sim.world import World
    from tdist.verify.heap import ensure_shmem

    print(measure.machine_line())
    accesses = PROGRAMS * (4 * STEPS + 1)
    base_us = None
    for nranks in (2, 4, 8, 16, 32, 64):
        with World(nranks=nranks, detect=True, heap_bytes=8 << 20) as world:

            def setup(rt):
                ensure_shmem(rt)
                elems = PROGRAMS * STEPS * BLOCK
                own = SimpleNamespace(
                    x=torch.randn(elems),
                    inbox=ash.aclshmem_create_tensor((elems,), dtype=torch.float32),
                    sig=ash.aclshmem_create_tensor((PROGRAMS * STEPS * 16,), dtype=torch.int32),
                    out=torch.empty(PROGRAMS * BLOCK),
                    epoch=0,
                )
                own.sig.zero_()
                rt.synchronize()
                rt.host_barrier()
                return own  # a results list would hold snapshots of the tensors

            state = world.run(setup)

            def launch(rt, state=state):
                own = state[rt.rank]
                own.epoch += 1
                ring_push[(PROGRAMS,)](own.x, own.inbox, own.sig, own.out, own.epoch, STEPS=STEPS, BLOCK=BLOCK)
                rt.synchronize()

            world.run(launch)
            world.raise_for_findings()
            seconds = []
            for _ in range(5):
                seconds.append(measure.cpu_seconds(lambda world=world, launch=launch: world.run(launch)))
            world.raise_for_findings()
        us = measure.median_ms(seconds) * 1e3 / (accesses * nranks)
        base_us = base_us or us
        measure.print_ratio(
            f"{nranks} ranks x {PROGRAMS} programs: cost / cost at 2 ranks", us / base_us, "<= 1.5", f"{us:.1f} us"
        )


if __name__ == "__main__":
    main()
