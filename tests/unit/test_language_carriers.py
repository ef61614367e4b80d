"""Every `dl.*` and `libshmem_device.*` call becomes the carrier that `docs/architecture.md` names."""

import inspect
import re

import pytest
import triton
import triton.language as tl

import tdist.language as dl
from tdist.frontend import compile_source
from tdist.language.extra import libshmem_device as shmem
from tdist.language.extra.ascend import libaclshmem_device as aclshmem
from tdist.language.extra.cann.extension import sub_vec_id, sub_vec_num
from tdist.platforms.base import activate

_CARRIER = re.compile(
    r'tt\.extern_elementwise (?P<operands>[^{]*) \{libname = "tdist", libpath = "", pure = (?P<pure>\w+), '
    r'symbol = "(?P<symbol>[^"]*)"\} : \((?P<types>.*)\) -> (?P<result>\S+)'
)


def carriers(kernel, signature, **constexprs):
    """The carriers of a kernel in order: (symbol, operand types, result type, pure)."""
    text = compile_source(kernel, signature, constexprs).ttir
    found = [m.groupdict() for m in _CARRIER.finditer(text)]
    assert len(found) == text.count("tt.extern_elementwise")
    return [(c["symbol"], c["types"], c["result"], c["pure"] == "true") for c in found]


def one(kernel, signature, **constexprs):
    (carrier,) = carriers(kernel, signature, **constexprs)
    return carrier


@triton.jit
def ranks_kernel(out):
    tl.store(out, dl.rank() + dl.num_ranks(axis=0))


@triton.jit
def wait_kernel(sig, out, value):
    tl.store(out, dl.wait(sig, 3, "npu", "acquire", waitValue=value))


@triton.jit
def wait_default_kernel(sig, out):
    tl.store(out, dl.wait(sig, 1, "sys", "acq_rel"))


@triton.jit
def notify_default_kernel(sig):
    dl.notify(sig, 2)


@triton.jit
def notify_add_kernel(sig, value):
    dl.notify(sig, 2, signal=value, sig_op="add", comm_scope="intra_node")


@triton.jit
def symm_at_kernel(buf, peer):
    tl.store(dl.symm_at(buf + 5, peer), 1.0)


@triton.jit
def consume_kernel(buf, sig, out, B: tl.constexpr):
    offs = tl.arange(0, B)
    token = dl.wait(sig, 1, "gpu", "acquire")
    total = token
    for i in range(4):
        total += dl.wait(sig + i * 16, 1, "gpu", "relaxed")
    tl.store(out + offs, tl.load(dl.consume_token(buf, token) + offs))
    tl.store(out + offs, tl.load(dl.consume_token(buf + offs, total)))
    tl.store(out + offs, dl.consume_token(tl.load(buf + offs), token))
    tl.store(out, dl.consume_token(7, token).to(tl.float16))


@triton.jit
def block_kernel(buf, sig, out, n):
    source = tl.make_block_ptr(buf, (n, n), (n, 1), (0, 0), (20, 24), (1, 0))
    target = tl.make_block_ptr(out, (n, n), (n, 1), (0, 0), (20, 24), (1, 0))
    token = dl.wait(sig, 1, "cta", "release")
    source = dl.consume_token(source, token)
    tl.store(target, tl.load(source, boundary_check=(0, 1)), boundary_check=(0, 1))


@triton.jit
def library_kernel(buf, sig, out):
    tl.store(out, shmem.my_pe() + shmem.n_pes())
    tl.store(shmem.remote_ptr(buf, 1), 1.0)
    shmem.barrier_all()
    shmem.barrier_all_vec()
    shmem.int_p(sig, 5, shmem.my_pe())
    shmem.fence()
    shmem.quiet()


@triton.jit
def vectors_kernel(out):
    tl.store(out, sub_vec_id() + sub_vec_num())


def test_rank_and_num_ranks_take_an_axis_and_are_pure():
    assert carriers(ranks_kernel, {"out": "*i32"}) == [
        ("tdist.rank", "i32", "i32", True),
        ("tdist.num_ranks", "i32", "i32", True),
    ]


@pytest.mark.parametrize(
    ("word", "value", "element", "carried"),
    [("*i32", "i32", "int32", "i32"), ("*u32", "i32", "uint32", "i32"), ("*i64", "i32", "int64", "i64")],
)
def test_wait_value_has_the_width_of_the_word(word, value, element, carried):
    symbol, types, result, pure = one(wait_kernel, {"sig": word, "out": "*i32", "value": value})
    assert symbol == f"tdist.wait;scope=gpu;semantic=acquire;el={element}"
    assert types == f"!tt.ptr<i{carried[1:]}>, i32, {carried}"
    assert (result, pure) == ("i32", False)


@pytest.mark.parametrize(("word", "value"), [("*u32", (1 << 32) - 1), ("*u64", (1 << 64) - 1), ("*i32", -(1 << 31))])
def test_wait_takes_every_value_that_the_word_can_hold(word, value):
    text = compile_source(wait_kernel, {"sig": word, "out": "*i32"}, {"value": value}).ttir
    carried = -1 if value > 0 else value
    assert f"arith.constant {carried} : i{word[2:]}" in text


def test_wait_defaults_to_the_value_1():
    text = compile_source(wait_default_kernel, {"sig": "*i32", "out": "*i32"}, {}).ttir
    match = _CARRIER.search(text)
    assert match and match["symbol"] == "tdist.wait;scope=sys;semantic=acq_rel;el=int32"
    assert [name.startswith("%c1_i32") for name in match["operands"].split(", ")[1:]] == [True, True]


def test_notify_defaults_are_upstreams():
    text = compile_source(notify_default_kernel, {"sig": "*u64"}, {}).ttir
    match = _CARRIER.search(text)
    assert match and match["symbol"] == "tdist.notify;sigOp=set;commScope=inter_node;el=uint64"
    assert match["operands"].split(", ")[1:] == ["%c1_i64", "%c2_i32"]


def test_notify_value_is_carried_as_i64_and_keeps_its_sign():
    signature = {"sig": "*i32", "value": "i32"}
    expected = ("tdist.notify;sigOp=add;commScope=intra_node;el=int32", "!tt.ptr<i32>, i64, i32", "i32", False)
    assert one(notify_add_kernel, signature) == expected
    assert "arith.extsi" in compile_source(notify_add_kernel, signature, {}).ttir
    assert "arith.extui" in compile_source(notify_add_kernel, {"sig": "*i32", "value": "u32"}, {}).ttir


def test_symm_at_keeps_the_pointer_type():
    expected = ("tdist.symm_at", "!tt.ptr<bf16>, i32", "!tt.ptr<bf16>", False)
    assert one(symm_at_kernel, {"buf": "*bf16", "peer": "i64"}) == expected


def test_consume_token_takes_pointers_tensors_of_pointers_values_and_scalars():
    signature = {"buf": "*fp16", "sig": "*i32", "out": "*fp16"}
    consumed = [c for c in carriers(consume_kernel, signature, B=20) if c[0] == "tdist.consume_token"]
    assert [types.rpartition(", ")[0] for _, types, _, _ in consumed] == [
        "!tt.ptr<f16>",
        "tensor<20x!tt.ptr<f16>>",
        "tensor<20xf16>",
        "i32",
    ]
    assert all(pure and types == f"{result}, i32" for _, types, result, pure in consumed)


def test_consume_token_on_a_block_pointer_goes_through_an_advance_by_zero():
    text = compile_source(block_kernel, {"buf": "*fp16", "sig": "*i32", "out": "*fp16", "n": "i32"}, {}).ttir
    zero = re.search(r'(%\S+) = tt\.extern_elementwise (%\S+) \{[^}]*"tdist\.consume_block"', text)
    assert zero
    advance = re.search(r"tt\.advance %\S+, \[(%\S+), (%\S+)\] : <tensor<20x24xf16>>", text)
    assert advance and advance[2] == zero[1] and advance[1] != zero[1]


def test_library_calls_are_extern_calls_of_the_librarys_symbols():
    found = carriers(library_kernel, {"buf": "*fp16", "sig": "*i32", "out": "*i32"})
    head = "tdist.extern_call;libname=libaclshmem_device;libpath=;symbol="
    assert found == [
        (f"{head}aclshmem_my_pe;pure=1;dummy=1;void=0", "i32", "i32", True),
        (f"{head}aclshmem_n_pes;pure=1;dummy=1;void=0", "i32", "i32", True),
        (f"{head}aclshmem_ptr;pure=0;dummy=0;void=0", "!tt.ptr<f16>, i32", "!tt.ptr<f16>", False),
        (f"{head}aclshmem_barrier_all;pure=0;dummy=1;void=1", "i32", "i32", False),
        (f"{head}aclshmemx_barrier_all_vec;pure=0;dummy=1;void=1", "i32", "i32", False),
        (f"{head}aclshmem_my_pe;pure=1;dummy=1;void=0", "i32", "i32", True),
        (f"{head}aclshmem_int32_p;pure=0;dummy=0;void=1", "!tt.ptr<i32>, i32, i32", "i32", False),
        (f"{head}aclshmem_fence;pure=0;dummy=1;void=1", "i32", "i32", False),
        (f"{head}aclshmem_quiet;pure=0;dummy=1;void=1", "i32", "i32", False),
    ]


class Rank:
    """A rank on a target with three vector cores for each cube core, which no default could be."""

    rank, nranks, platform, target, cube_cores, vector_cores = 0, 1, "sim", "Ascend910B3", 8, 24


def test_sub_vec_num_is_a_constant_of_the_active_target():
    text = compile_source(vectors_kernel, {"out": "*i64"}, {}).ttir
    assert "arith.constant 2 : i64" in text
    with activate(Rank()):  # pyright: ignore[reportArgumentType]
        assert "arith.constant 3 : i64" in compile_source(vectors_kernel, {"out": "*i64"}, {}).ttir
    assert one(vectors_kernel, {"out": "*i64"}) == ("tdist.sub_vec_id", "i32", "i64", True)


def test_signatures_are_upstreams():
    assert str(inspect.signature(dl.wait)) == (
        "(barrierPtrs: 'Any', numBarriers: 'Any', scope: 'Any', semantic: 'Any', waitValue: 'Any' = 1, *, "
        "_semantic=None)"
    )
    defaults = {n: p.default for n, p in inspect.signature(dl.notify).parameters.items()}
    assert list(defaults) == ["ptr", "rank", "signal", "sig_op", "comm_scope", "_semantic"]
    assert (defaults["signal"], defaults["sig_op"], defaults["comm_scope"]) == (1, "set", "inter_node")
    assert list(inspect.signature(dl.extern_call).parameters)[:5] == [
        "lib_name",
        "lib_path",
        "args",
        "arg_type_symbol_dict",
        "is_pure",
    ]


def test_the_proxy_and_the_ascend_library_declare_the_same_functions():
    names = {"my_pe", "n_pes", "remote_ptr", "barrier_all", "barrier_all_vec", "int_p", "fence", "quiet"}
    for name in names:
        ours = [p for p in inspect.signature(getattr(aclshmem, name)).parameters if p != "_semantic"]
        assert list(inspect.signature(getattr(shmem, name)).parameters) == ours


def put_scalar(dest, value, _builder=None, _semantic=None):
    table = {
        (tl.pointer_type(tl.int32), tl.int32): ("lib;put=32", ()),
        (tl.pointer_type(tl.int64), tl.int32): ("lib_put64", tl.int64),
    }
    return dl.extern_call("my lib", "/a%b", [dest, value], table, False, _builder=_builder, _semantic=_semantic)


put_scalar.__triton_builtin__ = True


@triton.jit
def extern_kernel(dest):
    put_scalar(dest, 3)


def test_extern_call_selects_by_types_and_escapes_what_a_symbol_cannot_hold():
    assert one(extern_kernel, {"dest": "*i32"})[0] == (
        "tdist.extern_call;libname=my lib;libpath=/a%25b;symbol=lib%3Bput%3D32;pure=0;dummy=0;void=1"
    )
    symbol, types, result, _ = one(extern_kernel, {"dest": "*i64"})
    assert ("symbol=lib_put64;" in symbol, types, result) == (True, "!tt.ptr<i64>, i32", "i64")
