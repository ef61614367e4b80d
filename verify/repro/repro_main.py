"""Runs one operator on cards, without tdist, and compares with its golden. Copied by `--repro` with its settings.

    torchrun --nproc-per-node=N repro.py [--repeat TIMES]

Exit status: 0 all outputs as expected, 1 wrong outputs.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

SETTINGS: dict[str, Any] = {}
"""Module and name of the operator, its case, launches: filled in where the file is written."""
DEVICE = os.environ.get("REPRO_DEVICE", "npu")
BACKEND = os.environ.get("REPRO_BACKEND", "cpu:gloo,npu:hccl")
STORE = os.environ.get("REPRO_SHMEM", "tcp://127.0.0.1:8666")
HANG_SECONDS = 300.0


def main() -> int:
    """Initialise this rank, run, compare."""
    parser = argparse.ArgumentParser(description=f"{SETTINGS['name']} on {SETTINGS['case']['nranks']} ranks")
    parser.add_argument("--repeat", type=int, default=20, help="runs, each with a workspace of its own")
    repeat = parser.parse_args().repeat
    if "RANK" not in os.environ:
        sys.exit(f"start it with torchrun --nproc-per-node={SETTINGS['case']['nranks']} {sys.argv[0]}")
    rank, nranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if nranks != SETTINGS["case"]["nranks"]:
        sys.exit(f"this run needs {SETTINGS['case']['nranks']} ranks, torchrun started {nranks}")
    runtime, ash = initialise(rank, nranks)
    from repro_support import Case

    case = Case(**SETTINGS["case"])
    declared = getattr(importlib.import_module(SETTINGS["module"]), SETTINGS["name"])
    wrong = sum(run(declared, case, runtime, number) for number in range(repeat))
    print(f"rank {rank}: {'WRONG' if wrong else 'right'} ({wrong} of {repeat} runs wrong)", flush=True)
    ash.aclshmem_finalize()
    dist.destroy_process_group()
    return 1 if wrong else 0


def initialise(rank: int, nranks: int) -> tuple[Any, Any]:
    """Set the device, meet the other ranks, open the symmetric heap."""
    import torch_npu  # noqa: F401  # pyright: ignore[reportMissingImports]

    npu: Any = torch.npu  # pyright: ignore[reportAttributeAccessIssue]
    npu.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    dist.init_process_group(BACKEND, rank=rank, world_size=nranks)
    import shmem as ash  # pyright: ignore[reportMissingImports]
    from repro_support import RankRuntime

    ash.set_conf_store_tls(False, "")
    attributes = ash.InitAttr()
    attributes.my_rank, attributes.n_ranks = rank, nranks
    attributes.local_mem_size = SETTINGS["heap_bytes"]
    attributes.ip_port = STORE
    attributes.option_attr.data_op_engine_type = ash.OpEngineType.MTE
    status = ash.aclshmem_init(attributes)
    if status:
        sys.exit(f"rank {rank}: aclshmem_init failed with status {status}")
    cube, vector = cores()
    return RankRuntime(rank, nranks, cube, vector, SETTINGS["heap_bytes"], npu.synchronize, dist.barrier), ash


def cores() -> tuple[int, int]:
    """Cube and vector cores of this card; what the simulated card had where the driver does not say."""
    try:
        from triton.runtime import driver

        active: Any = driver.active
        properties = active.utils.get_device_properties(0)
        return properties["num_aicore"], properties["num_vectorcore"]
    except Exception as error:
        print(f"cores unknown ({error!r}): taking {SETTINGS['cores']}", flush=True)
        return SETTINGS["cores"]


def run(declared: Any, case: Any, runtime: Any, number: int) -> bool:
    """One run: all launches on one workspace, then the comparison. Whether something was wrong."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    given = [declared.inputs(case, runtime.rank, launch) for launch in range(SETTINGS["launches"])]
    with torch.device(DEVICE):
        workspace = declared.workspace(runtime, case) if declared.workspace else None
        leading = () if declared.workspace is None else (workspace,)
        returned = []
        for inputs in given:
            moved = {name: tensor.to(DEVICE, copy=True) for name, tensor in inputs.items()}
            returned.append(named(declared, declared.host(runtime, case, *leading, **moved)))
        runtime.synchronize()
    outputs = [{name: tensor.cpu().clone() for name, tensor in launch.items()} for launch in returned]
    runtime.host_barrier()
    close = getattr(workspace, "close", None)
    if close is not None:
        close()
    wrong = False
    for launch, (inputs, got) in enumerate(zip(given, outputs, strict=True)):
        expected = named(declared, declared.golden(case, runtime.rank, **inputs))
        for name, value in expected.items():
            told = difference(got[name], getattr(value, "value", value), case)
            if told:
                print(f"rank {runtime.rank}, run {number}, launch {launch}, output {name}: {told}", flush=True)
            wrong |= bool(told)
    faulthandler.cancel_dump_traceback_later()
    return wrong


def named(declared: Any, values: Any) -> Mapping[str, Any]:
    """Outputs by name."""
    return values if isinstance(values, Mapping) else {declared.outputs[0]: values}


def difference(got: torch.Tensor, expected: torch.Tensor, case: Any) -> str:
    """What differs, in words; empty if nothing does. Integer inputs have to give equal outputs."""
    if got.shape != expected.shape:
        return f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    rounded = expected.to(got.dtype)
    if case.fill == "exact":
        places = got.ne(rounded) & ~(got.isnan() & rounded.isnan())
    else:
        places = ~torch.isclose(got.double(), expected.double(), rtol=1e-2, atol=1e-2, equal_nan=True)
    if not places.any():
        return ""
    first = tuple(places.nonzero()[0].tolist())
    count = f"{int(places.sum())} of {places.numel()} elements"
    return f"{count} differ, the first at {list(first)}: got {got[first].item()}, expected {rounded[first].item()}"


if __name__ == "__main__":
    sys.exit(main())
