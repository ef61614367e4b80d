"""The reference of `ring_allgather.py`: JAX's Pallas interpreter for TPUs, race detection on. Prints seconds as JSON.

Run by that script with `NPROC`, `JAX_PLATFORMS=cpu` and the number of host devices set.
"""

# pyright: reportMissingImports=false

import functools
import json
import sys
import time

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec


def ring(x_ref, gathered_ref, copy_sem, send_sems, recv_sems, *, devices, rows, chunk):
    """One step of the ring for each grid step: pass on, in chunks, what came in the step before."""
    step, me = pl.program_id(0), lax.axis_index("x")
    right = lax.rem(me + 1, devices)
    sent = lax.rem(me - step + devices, devices)

    @pl.when(step == 0)
    def _():
        own = pltpu.make_async_copy(x_ref, gathered_ref.at[me], copy_sem)
        own.start()
        own.wait()

    def push(index):
        part = gathered_ref.at[sent, pl.ds(index * chunk, chunk)]
        sems = {"send_sem": send_sems.at[index], "recv_sem": recv_sems.at[step, index]}
        kind = pltpu.DeviceIdType.LOGICAL
        return pltpu.make_async_remote_copy(part, part, device_id=right, device_id_type=kind, **sems)

    @pl.loop(0, rows // chunk)
    def _(index):
        push(index).start()

    @pl.loop(0, rows // chunk)
    def _(index):
        push(index).wait()


def main() -> None:
    devices, rows, columns, chunk, rounds = map(int, sys.argv[1:])
    params = pltpu.InterpretParams(detect_races=True)
    chunks = rows // chunk
    call = pl.pallas_call(
        functools.partial(ring, devices=devices, rows=rows, chunk=chunk),
        out_shape=jax.ShapeDtypeStruct((devices, rows, columns), jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=(devices - 1,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[
                pltpu.SemaphoreType.DMA,
                pltpu.SemaphoreType.DMA((chunks,)),
                pltpu.SemaphoreType.DMA((devices - 1, chunks)),
            ],
        ),
        interpret=params,
    )
    mesh = jax.make_mesh((devices,), ("x",))
    spec = PartitionSpec("x")
    gather = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    x = jax.random.normal(jax.random.key(0), (devices * rows, columns), jnp.float32)
    gathered = jax.block_until_ready(gather(x)).reshape(devices, devices * rows, columns)
    if not all(bool((part == x).all()) for part in gathered):
        raise SystemExit("the reference gathered something else")
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(gather(x))
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
