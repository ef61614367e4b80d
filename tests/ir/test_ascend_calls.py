"""What the language and both operators emit: every call exists in the device library and the vendor's tool reads it."""

from __future__ import annotations

import ast
import inspect
from collections import Counter

import pytest
from hivm_oracle import needs_bishengir, parse_any, show_for_vendor, vendor_reads
from ir_oracle import assert_same

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

from ascend_kernels import SURFACE, surface

from tdist.frontend.reader import read_ttir
from tdist.frontend.triton_ascend import compile_source
from tdist.ir import hivm
from tdist.ir.hivm import CustomOp, TCoreType
from tdist.ir.location import loc_of
from tdist.kernels.ag_gemm import ag_gemm_barrier_kernel, ag_gemm_fine_kernel
from tdist.kernels.all_gather import all_gather_barrier_kernel, all_gather_fine_kernel
from tdist.language.extra.ascend import libaclshmem_device
from tdist.passes import DEFAULT_PIPELINE, run_pipeline
from tdist.platforms.ascend.symbols import check_module

NAME = "convert-triton-distributed-to-hivm"


def lower(fn, signature: dict[str, str], constants: dict[str, object]):
    module = read_ttir(compile_source(fn, signature, constants).ttir)
    run_pipeline(module, DEFAULT_PIPELINE)
    before = module.clone()
    run_pipeline(module, [NAME])
    module.verify()
    check_module(module)
    return before, module


def symbols(module) -> set[str]:
    return {op.symbol for op in module.walk() if isinstance(op, CustomOp)}


def test_the_surface_kernel_calls_every_function_of_the_device_library() -> None:
    offered = {
        name
        for name, value in vars(libaclshmem_device).items()
        if inspect.isfunction(inspect.unwrap(value)) and getattr(value, "__triton_builtin__", False)
        if inspect.getmodule(inspect.unwrap(value)) is libaclshmem_device
    }
    tree = ast.parse(inspect.getsource(surface.fn))
    called = {node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and hasattr(node.func, "attr")}
    assert len(offered) >= 8
    assert offered <= called


TYPES = {
    "fp16": "half",
    "bf16": "bfloat16",
    "fp32": "float",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
}


@pytest.mark.parametrize("type_", TYPES)
def test_every_symbol_that_the_language_emits_exists_with_that_signature(type_: str) -> None:
    signature, constants = SURFACE
    _, module = lower(surface, {name: text.format(type_) for name, text in signature.items()}, constants)
    element = TYPES[type_]
    assert symbols(module) == {
        *("aclshmem_my_pe", "aclshmem_n_pes", "aclshmem_barrier_all", "aclshmemx_barrier_all_vec"),
        *("aclshmem_fence", "aclshmem_quiet", "aclshmem_int32_p", "aclshmemx_signal_op"),
        *("aclshmem_int64_p", "aclshmem_uint64_p", "aclshmem_wait_int32", "aclshmem_wait_int64"),
        *("aclshmem_consume_token_int32", f"aclshmem_ptr_{element}"),
        *(f"aclshmem_consume_token_{element}_ptr_{rank}d" for rank in (1, 2)),
    }


@needs_bishengir
def test_the_vendors_tool_reads_the_whole_surface() -> None:
    signature, constants = SURFACE
    _, module = lower(surface, {name: text.format("fp16") for name, text in signature.items()}, constants)
    assert_same(parse_any(vendor_reads(show_for_vendor(module))), module)


BLOCKS = {"BM": 16, "BN": 16, "BK": 16, "PANELS": 1, "BUFFERS": 2, "BLOCK": 64, "FENCE": True, "OWN_PANELS": True}
KERNELS = {
    "ag_gemm, fine": (ag_gemm_fine_kernel, {"ready_ptr": "*i64", "credit_ptr": "*i64"}),
    "ag_gemm, barrier": (ag_gemm_barrier_kernel, {}),
    "all_gather, fine": (all_gather_fine_kernel, {"ready_ptr": "*i32"}),
    "all_gather, barrier": (all_gather_barrier_kernel, {}),
}
HELPERS = {"arith.extsi", "arith.trunci", "arith.constant", "tensor.empty", "annotation.mark"}
CORES = {
    "ag_gemm, fine": {TCoreType.CUBE_AND_VECTOR},
    "ag_gemm, barrier": {TCoreType.CUBE_AND_VECTOR},
    "all_gather, fine": {TCoreType.VECTOR},
    "all_gather, barrier": {TCoreType.VECTOR},
}


def lower_operator(case: str, type_: str):
    fn, words = KERNELS[case]
    constants = {name: value for name, value in BLOCKS.items() if name in fn.arg_names}
    signature = {
        name: words.get(name, f"*{type_}" if name.endswith("_ptr") else "i32")
        for name in fn.arg_names
        if name not in constants
    }
    return lower(fn, signature, constants)


@pytest.mark.parametrize("type_", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("case", KERNELS)
def test_both_operators_convert(case: str, type_: str) -> None:
    before, module = lower_operator(case, type_)
    operations = [op for op in before.walk() if op.name.startswith("distributed.")]
    calls = [op for op in module.walk() if isinstance(op, CustomOp)]
    assert [loc_of(op) for op in calls] == [loc_of(op) for op in operations]
    assert f"aclshmem_ptr_{TYPES[type_]}" in symbols(module)
    assert {op.attributes[hivm.CORE_TYPE].data for op in calls} == CORES[case]
    together = hivm.NO_SUB_BLOCK_BINDING in module.attributes
    assert together == case.startswith("ag_gemm")
    others = [op.name for op in before.walk() if op not in operations]
    remaining = [op.name for op in module.walk() if not isinstance(op, CustomOp)]
    in_order = iter(remaining)
    assert all(name in in_order for name in others)
    assert set(Counter(remaining) - Counter(others)) <= HELPERS


@needs_bishengir
@pytest.mark.parametrize("case", KERNELS)
def test_the_vendors_tool_reads_both_operators(case: str) -> None:
    _, module = lower_operator(case, "bf16")
    assert_same(parse_any(vendor_reads(show_for_vendor(module))), module)
