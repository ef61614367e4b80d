"""Both operators in both forms, as their host functions launch them, to the vendor's last stage on two chips."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import torch
from vendor_oracle import needs_vendor

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

from tdist.kernels import ag_gemm, all_gather
from tdist.kernels.signal_slots import rows_of
from tdist.platforms.ascend.gate import GateKernel, GateResult, gate
from tdist.platforms.ascend.lowering.prepare import prepare
from tdist.platforms.sim.launch_record import LaunchedKernel, launches_recorded
from tdist.platforms.sim.world import World
from tdist.verify import ensure_shmem

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
FORMS = ("fine", "barrier")
TARGETS = ("Ascend910B3", "Ascend910B2")
M, N, K = 256, 128, 128


def gather_host(rt, dtype: torch.dtype, sync: str) -> None:
    ensure_shmem(rt)
    context = all_gather.create_context(rt, M, N, dtype, sync=sync)
    all_gather.all_gather(context, torch.ones(rows_of(rt.rank, M, rt.nranks), N, dtype=dtype))
    rt.synchronize()
    context.close()


def gemm_host(rt, dtype: torch.dtype, sync: str) -> None:
    ensure_shmem(rt)
    context = ag_gemm.create_context(rt, M, N, K, dtype, sync=sync)
    a = torch.ones(rows_of(rt.rank, M, rt.nranks), K, dtype=dtype)
    ag_gemm.ag_gemm(context, a, torch.ones(K, N, dtype=dtype))
    rt.synchronize()
    context.close()


HOSTS = {"all_gather": gather_host, "ag_gemm": gemm_host}


@functools.cache
def launched(operator: str, form: str, dtype: str) -> LaunchedKernel:
    """The one kernel that the operator launches."""
    with launches_recorded() as record, World(nranks=2, detect=False) as world:
        world.run(HOSTS[operator], DTYPES[dtype], form)
    (kernel,) = record.kernels
    return kernel


@functools.cache
def results(operator: str, form: str, dtype: str) -> tuple[GateResult, ...]:
    kernel = launched(operator, form, dtype)
    return gate(GateKernel(kernel.ir, dict(kernel.options)), TARGETS, (False, True)).results


every = pytest.mark.parametrize(
    "operator,form,dtype", [(operator, form, dtype) for operator in HOSTS for form in FORMS for dtype in DTYPES]
)


@needs_vendor
@every
def test_it_reaches_the_vendors_last_stage(operator: str, form: str, dtype: str) -> None:
    seen = results(operator, form, dtype)
    assert [(result.target, result.barrier_all) for result in seen] == [
        (target, setting) for target in TARGETS for setting in (False, True)
    ]
    for result in seen:
        assert result.refusal is None, result.refusal
        assert not result.broken and not result.unchecked
        assert result.kernel.ir.name == f"{operator}_{form}_kernel"


@needs_vendor
@every
def test_what_it_uses_of_on_chip_memory_is_known_and_fits(operator: str, form: str, dtype: str) -> None:
    memories = {"UB", "L1", "L0C"} if operator == "ag_gemm" else {"UB"}
    for result in results(operator, form, dtype):
        used = {use.memory for use in result.use if use.bytes}
        assert used == memories
        assert all(use.bytes <= use.capacity_bytes for use in result.use)


@needs_vendor
@every
def test_the_setting_decides_between_flags_and_barriers(operator: str, form: str, dtype: str) -> None:
    for fine, drained in zip(*(results(operator, form, dtype)[start::2] for start in (0, 1)), strict=True):
        assert fine.counts["set_flag"] == fine.counts["wait_flag"] > 0
        assert not drained.counts.get("set_flag")
        assert drained.counts["pipe_barrier"] > fine.counts.get("pipe_barrier", 0)


@every
def test_the_lowered_calls_are_those_of_its_form(operator: str, form: str, dtype: str) -> None:
    symbols = Counter(call.symbol for call in prepare(launched(operator, form, dtype).ir).calls)
    barriers = sum(count for symbol, count in symbols.items() if "barrier_all" in symbol)
    waits = sum(count for symbol, count in symbols.items() if symbol.startswith("aclshmem_wait_"))
    assert (barriers > 0, waits > 0) == (form == "barrier", form == "fine")
    element = {"fp16": "half", "bf16": "bfloat16", "fp32": "float"}[dtype]
    assert symbols[f"aclshmem_ptr_{element}"]
