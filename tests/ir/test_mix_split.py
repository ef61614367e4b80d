"""A kernel without `tl.dot` that meets on both kinds of core, through the vendor's whole compiler.

Why its core types deviate from "no dot, hence VECTOR": the vendor's compiler cannot split it otherwise.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hivm_oracle import parse_any, vendor_reads, vendor_tool
from ir_oracle import parse, show

from tdist.ir import hivm
from tdist.passes import run_pipeline

needs_compiler = pytest.mark.skipif(
    vendor_tool("bishengir-compile") is None, reason="waits for ascendnpu-ir, whose bishengir-compile it asks"
)

# fmt: off
KERNEL = """module {
tt.func @k(%s: !tt.ptr<i32>, %n: i32, %w: i64) {
%r = distributed.get_rank %n : i32
%t = distributed.wait %s, %n, %n, scope = gpu semantic = acquire : !tt.ptr<i32>, i32, i32 -> i32
"distributed.notify"(%s, %w, %r) <{sigOp = 1 : i32, commScope = 3 : i32}> : (!tt.ptr<i32>, i64, i32) -> ()
distributed.extern_call {libname = "", libpath = "", symbol = "aclshmem_barrier_all", pure = false} : () -> ()
tt.return
}
}"""

# The same kernel as the adapter would hand it on; what the pass decides is put in for the words in capitals.
LINALG = """module attributes {hacc.target = #hacc.target<"Ascend910B3"> MODULE} {
  func.func @k(%lock: memref<?xi8>, %work: memref<?xi8>, %a: memref<?xf16> {tt.tensor_kind = 0 : i32},
      %b: memref<?xf16> {tt.tensor_kind = 1 : i32}, %s: memref<?xi32> {tt.tensor_kind = 1 : i32}, %n: i32,
      %gx: i32, %gy: i32, %gz: i32, %px: i32, %py: i32, %pz: i32)
      attributes {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, global_kernel = "local",
                  mix_mode = "aiv", parallel_mode = "simd"} {
    %one = arith.constant 1 : i32
    %zero = arith.constant 0 : i32
    %count = arith.constant 1 : i64
    %o = arith.index_cast %n : i32 to index
    %from = memref.reinterpret_cast %a to offset: [0], sizes: [64], strides: [1] : memref<?xf16> to memref<64xf16, strided<[1]>>
    %ub = memref.alloc() : memref<64xf16>
    memref.copy %from, %ub : memref<64xf16, strided<[1]>> to memref<64xf16>
    %tile = bufferization.to_tensor %ub restrict writable : memref<64xf16>
    %to = memref.reinterpret_cast %b to offset: [0], sizes: [64], strides: [1] : memref<?xf16> to memref<64xf16, strided<[1]>>
    bufferization.materialize_in_destination %tile in writable %to : (tensor<64xf16>, memref<64xf16, strided<[1]>>) -> ()
    %c0 = arith.constant 0 : index
    %first = tensor.empty() : tensor<1xi32>
    %given = tensor.insert %n into %first[%c0] : tensor<1xi32>
    %head = memref.reinterpret_cast %s to offset: [0], sizes: [1], strides: [1] : memref<?xi32> to memref<1xi32, strided<[1]>>
    bufferization.materialize_in_destination %given in writable %head : (tensor<1xi32>, memref<1xi32, strided<[1]>>) -> ()
    %word = memref.reinterpret_cast %s to offset: [%o], sizes: [1], strides: [1] : memref<?xi32> to memref<1xi32, strided<[1], offset: ?>>
    %r = CALL(aclshmem_my_pe) -> i32
    %t = CALL(aclshmem_wait_int32) ins(%word, %count, %one : memref<1xi32, strided<[1], offset: ?>>, i64, i32) -> i32
    CALL(aclshmemx_signal_op) ins(%word, %one, %zero, %r : memref<1xi32, strided<[1], offset: ?>>, i32, i32, i32)
    CALL(aclshmem_barrier_all)
    %sum = arith.addi %t, %r : i32
    %empty = tensor.empty() : tensor<1xi32>
    %filled = tensor.insert %sum into %empty[%c0] : tensor<1xi32>
    %out = memref.reinterpret_cast %s to offset: [5], sizes: [1], strides: [1] : memref<?xi32> to memref<1xi32, strided<[1], offset: 5>>
    bufferization.materialize_in_destination %filled in writable %out : (tensor<1xi32>, memref<1xi32, strided<[1], offset: 5>>) -> ()
    return
  }
}"""  # noqa: E501
# fmt: on


def decided() -> tuple[dict[str, str], bool]:
    """Core type by symbol, as the pass decides, and whether it sets the module's attribute."""
    module = parse(KERNEL)
    run_pipeline(module, ["convert-triton-distributed-to-hivm"])
    calls = [op for op in module.walk() if isinstance(op, hivm.CustomOp)]
    cores = {op.symbol: str(op.attributes[hivm.CORE_TYPE].data) for op in calls}
    return cores, hivm.NO_SUB_BLOCK_BINDING in module.attributes


def linalg(cores: dict[str, str], together: bool) -> str:
    def call(match: re.Match[str]) -> str:
        symbol = match[1]
        return (
            "hivm.hir.custom {hivm.is_distributed, hivm.pipe = #hivm.pipe<PIPE_S>, hivm.tcore_type = "
            f"#hivm.tcore_type<{cores[symbol]}>, hivm.vf_mode = #hivm.vf_mode<SIMD>, "
            f'symbol = "{symbol}"}} "dist.{symbol}"'
        )

    text = re.sub(r"CALL\((\w+)\)", call, LINALG)
    return text.replace("MODULE", f", {hivm.NO_SUB_BLOCK_BINDING}" if together else "")


def compile_(text: str, folder: Path) -> tuple[int, str]:
    """Exit code and final module; the module is empty if there is none."""
    (folder / "in.mlir").write_text(text, encoding="utf-8")
    flags = "auto-multi-buffer auto-bind-sub-block hfusion-compile hivm-compile triton-kernel-compile"
    command = [
        str(vendor_tool("bishengir-compile")),
        "--target=Ascend910B3",
        *(f"--enable-{flag}=true" for flag in flags.split()),
        *("--save-temps=.", "in.mlir", "-o", "k.o"),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    final = folder / "module.hivm.opt.mlir"
    return done.returncode, final.read_text(encoding="utf-8") if final.exists() else ""


def called(module: str) -> dict[str, list[str]]:
    """By function of a final module, the device functions that it calls, without the suffix of their half."""
    functions = re.split(r"^\s*func\.func @", module, flags=re.MULTILINE)[1:]
    return {re.split(r"\W", text)[0]: re.findall(r"call @(\S*aclshmem\w+)", text) for text in functions}


@needs_compiler
def test_a_kernel_that_meets_on_both_kinds_of_core_is_split(tmp_path: Path) -> None:
    functions = called(compile_(linalg(*decided()), tmp_path)[1])
    both = ["_mlir_ciface_aclshmem_my_pe", "aclshmem_wait_int32", "_mlir_ciface_aclshmem_barrier_all"]
    assert functions["k_mix_aic"] == both
    assert sorted(functions["k_mix_aiv"]) == sorted([*both, "aclshmemx_signal_op"])


@needs_compiler
def test_the_plain_rule_would_crash_the_vendors_compiler(tmp_path: Path) -> None:
    """If this fails, the vendor has mended it, and calls with results may be for vector cores again."""
    cores, together = decided()
    plain = {symbol: core if symbol == "aclshmem_barrier_all" else "VECTOR" for symbol, core in cores.items()}
    assert plain != cores
    code, module = compile_(linalg(plain, together), tmp_path)
    assert code < 0
    assert not module


@needs_compiler
def test_the_final_module_goes_through_our_dialect_unchanged(tmp_path: Path) -> None:
    """Flags, barriers and cross-core flags as the vendor's compiler itself puts them."""
    generic = vendor_reads(compile_(linalg(*decided()), tmp_path)[1], "--mlir-print-op-generic")
    module = parse_any(generic)
    module.verify()
    ours = (hivm.SetFlagOp, hivm.WaitFlagOp, hivm.PipeBarrierOp, hivm.SyncBlockSetOp, hivm.SyncBlockWaitOp)
    assert {type(op) for op in module.walk()} >= set(ours)
    assert vendor_reads(show(module, generic=True), "--mlir-print-op-generic") == generic
