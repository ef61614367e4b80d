"""`SIGNAL_SLOT_STRIDE`: 64 bytes in elements of the word, in kernels and on the host."""

import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl

import tdist.language as dl
from tdist.errors import KernelError
from tdist.frontend import compile_source
from tdist.language import SIGNAL_SLOT_STRIDE


@pytest.mark.parametrize(
    ("dtype", "stride"),
    [(torch.int32, 16), (torch.uint32, 16), (torch.int64, 8), (torch.uint64, 8), (torch.int16, 32), (torch.int8, 64)],
)
def test_on_the_host_by_dtype_or_tensor(dtype, stride):
    assert SIGNAL_SLOT_STRIDE[dtype] == SIGNAL_SLOT_STRIDE(dtype) == stride
    assert SIGNAL_SLOT_STRIDE(torch.zeros(1, dtype=dtype)) == stride
    assert type(SIGNAL_SLOT_STRIDE[dtype]) is int


def test_by_name():
    assert (SIGNAL_SLOT_STRIDE["int32"], SIGNAL_SLOT_STRIDE["*u64"]) == (16, 8)


@pytest.mark.parametrize("of", [torch.float32, torch.bool, "fp16", 4])
def test_signal_words_are_integers(of):
    with pytest.raises(KernelError, match="SIGNAL_SLOT_STRIDE: signal words are integers of 8 to 64 bits, got"):
        _ = SIGNAL_SLOT_STRIDE[of]


@triton.jit
def stride_kernel(sig, out):
    STRIDE: tl.constexpr = dl.SIGNAL_SLOT_STRIDE(sig)
    tl.static_assert(STRIDE - SIGNAL_SLOT_STRIDE[sig.dtype.element_ty] == 0)
    tl.static_assert(SIGNAL_SLOT_STRIDE[tl.int64] == 8)
    tl.store(out + tl.arange(0, STRIDE), tl.zeros((STRIDE,), tl.int32))
    tl.store(sig + 3 * dl.SIGNAL_SLOT_STRIDE(sig), 1)


@pytest.mark.parametrize(("word", "stride"), [("*i32", 16), ("*u32", 16), ("*i64", 8), ("*u64", 8)])
def test_in_a_kernel_it_is_a_constexpr(word, stride):
    text = compile_source(stride_kernel, {"sig": word, "out": "*i32"}, {}).ttir
    assert f"end = {stride} : i32" in text
    assert f"arith.constant {3 * stride} : i32" in text


@triton.jit
def float_kernel(buf):
    tl.store(buf + dl.SIGNAL_SLOT_STRIDE(buf), 1.0)


def test_a_float_pointer_in_a_kernel_is_told():
    with pytest.raises(KernelError, match=r"test_language_slots\.py:\d+:\d+: in kernel `float_kernel`: SIGNAL_SLOT"):
        compile_source(float_kernel, {"buf": "*fp16"}, {})


MODULES = (
    "tdist.language",
    "tdist.language.extra.libshmem_device",
    "tdist.language.extra.ascend.libaclshmem_device",
    "tdist.language.extra.cann.extension",
    "tdist.frontend",
    "tdist.importer",
    "tdist.env",
    "tdist.platforms.sim.driver",
)


def test_every_module_imports_without_triton():
    code = f"import importlib, sys; sys.modules['triton'] = None; [importlib.import_module(m) for m in {MODULES}]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
