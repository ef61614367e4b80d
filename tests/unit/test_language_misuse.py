"""A misuse of the language is a compile error with the kernel's own line, the operand, the rule and the cure."""

import inspect
import traceback
from pathlib import Path

import pytest
import triton
import triton.language as tl

import tdist.language as dl
from tdist.errors import KernelError
from tdist.frontend import compile_source
from tdist.language.extra import libshmem_device as shmem
from tdist.platforms.base import activate

SIGNATURE = {"buf": "*fp16", "sig": "*i32", "sig64": "*i64", "small": "*i16", "n": "i32", "x": "fp32"}


def empty_table(value, _builder=None):
    return dl.extern_call("l", "", [value], {}, True, _builder=_builder)


def other_table(value, _builder=None):
    return dl.extern_call("l", "", [value], {(tl.int64,): ("f", ())}, True, _builder=_builder)


def nameless(value, _builder=None):
    return dl.extern_call("l", "", [value], {(tl.int32,): ("", ())}, True, _builder=_builder)


def two_results(value, _builder=None):
    return dl.extern_call("l", "", [value], {(tl.int32,): ("f", (tl.int32, tl.int32))}, True, _builder=_builder)


for _function in (empty_table, other_table, nameless, two_results):
    _function.__triton_builtin__ = True


@triton.jit
def symm_at_tensor(buf, sig, sig64, small, n, x):
    tl.store(dl.symm_at(buf + tl.arange(0, 16), 1), 1.0)  # here


@triton.jit
def symm_at_block(buf, sig, sig64, small, n, x):
    block = tl.make_block_ptr(buf, (n, n), (n, 1), (0, 0), (16, 32), (1, 0))
    dl.symm_at(block, 1)  # here


@triton.jit
def symm_at_integer(buf, sig, sig64, small, n, x):
    dl.symm_at(n, 1)  # here


@triton.jit
def symm_at_float_rank(buf, sig, sig64, small, n, x):
    dl.symm_at(buf, x)  # here


@triton.jit
def symm_at_tensor_rank(buf, sig, sig64, small, n, x):
    dl.symm_at(buf, tl.arange(0, 4))  # here


@triton.jit
def remote_ptr_tensor(buf, sig, sig64, small, n, x):
    shmem.remote_ptr(buf + tl.arange(0, 16), 1)  # here


@triton.jit
def wait_integer(buf, sig, sig64, small, n, x):
    dl.wait(n, 1, "gpu", "acquire")  # here


@triton.jit
def wait_pointers(buf, sig, sig64, small, n, x):
    dl.wait(sig + tl.arange(0, 4), 4, "gpu", "acquire")  # here


@triton.jit
def wait_half(buf, sig, sig64, small, n, x):
    dl.wait(buf, 1, "gpu", "acquire")  # here


@triton.jit
def wait_int16(buf, sig, sig64, small, n, x):
    dl.wait(small, 1, "gpu", "acquire")  # here


@triton.jit
def wait_scope(buf, sig, sig64, small, n, x):
    dl.wait(sig, 1, "device", "acquire")  # here


@triton.jit
def wait_semantic(buf, sig, sig64, small, n, x):
    dl.wait(sig, 1, "gpu", "aquire")  # here


@triton.jit
def wait_nothing(buf, sig, sig64, small, n, x):
    dl.wait(sig, 0, "gpu", "acquire")  # here


@triton.jit
def wait_too_large(buf, sig, sig64, small, n, x):
    dl.wait(sig, 1, "gpu", "acquire", waitValue=2147483648)  # here


@triton.jit
def wait_float(buf, sig, sig64, small, n, x):
    dl.wait(sig, 1, "gpu", "acquire", waitValue=1.5)  # here


@triton.jit
def wait_short(buf, sig, sig64, small, n, x):
    dl.wait(sig, 1)  # here


@triton.jit
def notify_add_64(buf, sig, sig64, small, n, x):
    dl.notify(sig64, 0, sig_op="add")  # here


@triton.jit
def notify_half(buf, sig, sig64, small, n, x):
    dl.notify(buf, 0)  # here


@triton.jit
def notify_pointers(buf, sig, sig64, small, n, x):
    dl.notify(sig + tl.arange(0, 4), 0)  # here


@triton.jit
def notify_op(buf, sig, sig64, small, n, x):
    dl.notify(sig, 0, sig_op="or")  # here


@triton.jit
def notify_comm_scope(buf, sig, sig64, small, n, x):
    dl.notify(sig, 0, comm_scope="sys")  # here


@triton.jit
def notify_too_large(buf, sig, sig64, small, n, x):
    dl.notify(sig, 0, signal=4294967296)  # here


@triton.jit
def consume_float(buf, sig, sig64, small, n, x):
    dl.consume_token(buf, x)  # here


@triton.jit
def consume_tensor(buf, sig, sig64, small, n, x):
    dl.consume_token(buf, tl.arange(0, 4))  # here


@triton.jit
def consume_text(buf, sig, sig64, small, n, x):
    dl.consume_token("buf", n)  # here


@triton.jit
def int_p_64(buf, sig, sig64, small, n, x):
    shmem.int_p(sig64, 1, 0)  # here


@triton.jit
def extern_tensor(buf, sig, sig64, small, n, x):
    other_table(tl.arange(0, 4))  # here


@triton.jit
def extern_empty(buf, sig, sig64, small, n, x):
    empty_table(n)  # here


@triton.jit
def extern_types(buf, sig, sig64, small, n, x):
    other_table(n)  # here


@triton.jit
def extern_nameless(buf, sig, sig64, small, n, x):
    nameless(n)  # here


@triton.jit
def extern_two(buf, sig, sig64, small, n, x):
    two_results(n)  # here


_BASE_FIRST = "Translate the base of the buffer first and add offsets afterwards: "
CASES = {
    symm_at_tensor: "symm_at: `ptr` must be a scalar pointer, got a tensor of pointers to fp16 of shape 16. "
    + _BASE_FIRST,
    symm_at_block: "symm_at: `ptr` must be a scalar pointer, got a block pointer to fp16 of shape 16×32. "
    + _BASE_FIRST,
    symm_at_integer: "symm_at: `ptr` must be a scalar pointer, got a scalar of type int32. " + _BASE_FIRST,
    symm_at_float_rank: "symm_at: `rank` must be a scalar integer, got a scalar of type fp32.",
    symm_at_tensor_rank: "symm_at: `rank` must be a scalar integer, got a tensor of int32 of shape 4.",
    remote_ptr_tensor: "remote_ptr: `local_ptr` must be a scalar pointer, got a tensor of pointers to fp16 of shape "
    "16. " + _BASE_FIRST,
    wait_integer: "wait: `barrierPtrs` must be a scalar pointer to signal words, got a scalar of type int32. Pass the",
    wait_pointers: "wait: `barrierPtrs` must be a scalar pointer to signal words, got a tensor of pointers to int32 of "
    "shape 4. Pass the address of the first word and the number of words",
    wait_half: "wait: `barrierPtrs` must point to int32, uint32, int64 or uint64, got a scalar of type pointer<fp16>.",
    wait_int16: "wait: `barrierPtrs` must point to int32, uint32, int64 or uint64, got a scalar of type "
    "pointer<int16>.",
    wait_scope: 'wait: `scope` must be one of "gpu", "npu", "cta", "sys", got \'device\'.',
    wait_semantic: 'wait: `semantic` must be one of "relaxed", "acquire", "release", "acq_rel", got \'aquire\'.',
    wait_nothing: "wait: `numBarriers` must be at least 1, got the constant 0.",
    wait_too_large: "wait: `waitValue` must fit into int32 (-2147483648 … 2147483647), got the constant 2147483648.",
    wait_float: "wait: `waitValue` must be a scalar integer, got the constant 1.5.",
    wait_short: "wait() missing 2 required positional arguments: 'scope' and 'semantic'",
    notify_add_64: 'notify: `sig_op` "add" needs an int32 signal word on Ascend, got a scalar of type pointer<int64>. '
    "64-bit words can only be set: use int32 words, or",
    notify_half: "notify: `ptr` must point to int32, int64 or uint64, got a scalar of type pointer<fp16>.",
    notify_pointers: "notify: `ptr` must be a scalar pointer to a signal word, got a tensor of pointers to int32 of "
    "shape 4. Pass the word's local address",
    notify_op: 'notify: `sig_op` must be one of "set", "add", got \'or\'.',
    notify_comm_scope: 'notify: `comm_scope` must be one of "gpu", "npu", "intra_node", "inter_node", got \'sys\'.',
    notify_too_large: "notify: `signal` must fit into int32 (-2147483648 … 2147483647), got the constant 4294967296.",
    consume_float: "consume_token: `token` must be a scalar integer, as `dl.wait` returns it, got a scalar of type "
    "fp32.",
    consume_tensor: "consume_token: `token` must be a scalar integer, as `dl.wait` returns it, got a tensor of int32",
    consume_text: "consume_token: `value` must be a Triton value or a number, got the constant 'buf'.",
    int_p_64: "int_p: `dest` must point to int32, got a scalar of type pointer<int64>.",
    extern_tensor: "extern_call: `args[0]` must be a scalar, got a tensor of int32 of shape 4.",
    extern_empty: "extern_call: `arg_type_symbol_dict` is empty: it must have an entry for each type of call.",
    extern_types: "extern_call: `arg_type_symbol_dict` has no entry for arguments (int32). It has: (int64).",
    extern_nameless: "extern_call: the symbol for arguments (int32) must be a name, got ''.",
    extern_two: "extern_call: `f` is declared with 2 results; at most one is possible.",
}


def line_marked(kernel):
    lines, first = inspect.getsourcelines(kernel.fn)
    (offset,) = [i for i, line in enumerate(lines) if line.rstrip().endswith("# here")]
    return first + offset, lines[offset]


@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.fn.__name__)
def test_misuse_names_line_operand_rule_and_cure(kernel):
    with pytest.raises(KernelError) as caught:
        compile_source(kernel, SIGNATURE, {})
    text = str(caught.value)
    line, source = line_marked(kernel)
    where, _, rest = text.partition(f": in kernel `{kernel.fn.__name__}`: ")
    assert where.rpartition(":")[0] == f"{Path(__file__)}:{line}"
    assert rest.removeprefix("TypeError: ").startswith(CASES[kernel])
    assert text.splitlines()[1].strip() == source.strip()


@pytest.mark.parametrize("kernel", [symm_at_tensor, wait_short], ids=lambda kernel: kernel.fn.__name__)
def test_no_frame_of_triton_or_of_the_language_is_shown(kernel):
    with pytest.raises(KernelError) as caught:
        compile_source(kernel, SIGNATURE, {})
    shown = "".join(traceback.format_exception(caught.value))
    assert "code_generator.py" not in shown
    assert "carriers.py" not in shown
    assert "During handling" not in shown and "direct cause" not in shown


class Elsewhere:
    """A rank of a platform that is not Ascend."""

    rank, nranks, platform, target, cube_cores, vector_cores = 0, 1, "other", "gfx942", 1, 1


@triton.jit
def add_64_kernel(sig):
    dl.notify(sig, 0, sig_op="add")


def test_notify_words_follow_the_active_platform():
    with activate(Elsewhere()):  # pyright: ignore[reportArgumentType]
        assert "sigOp=add" in compile_source(add_64_kernel, {"sig": "*u64"}, {}).ttir
        with pytest.raises(KernelError, match="must point to int64 or uint64, got a scalar of type pointer<int32>"):
            compile_source(add_64_kernel, {"sig": "*i32"}, {})
    with pytest.raises(KernelError, match=r"must point to int32, int64 or uint64, got .*uint32"):
        compile_source(add_64_kernel, {"sig": "*u32"}, {})


def test_a_call_outside_a_kernel_says_so():
    with pytest.raises(KernelError, match=r"wait was called outside a kernel.*@triton\.jit"):
        dl.wait(None, 1, "gpu", "acquire")
