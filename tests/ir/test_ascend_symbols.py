"""The device library's table: its names and signatures, link names, and the check of a call against it."""

from __future__ import annotations

import re

import pytest
from hivm_oracle import needs_bishengir, parse_any, show_for_vendor, vendor_reads

from tdist.errors import KernelError
from tdist.ir import hivm
from tdist.ir.hivm import CustomOp, TCoreType
from tdist.platforms.ascend.symbols import (
    DECLARATIONS,
    LibraryType,
    callee_name,
    check_call,
    check_module,
    link_name,
    signatures,
)

# ---- the table ------------------------------------------------------------------------------------------------------

NUMBERS = {"half", "float", "bfloat16", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
SIGNED = {f"int{bits}" for bits in (8, 16, 32, 64)}


def types_of(pattern: str) -> set[str]:
    """The types for which there is a symbol of this form."""
    form = re.compile(pattern.replace("T", r"(half|float|bfloat16|char|u?int\d+)"))
    return {match[1] for symbol in signatures() if (match := form.fullmatch(symbol))}


@pytest.mark.parametrize(
    "pattern,types",
    [
        ("aclshmem_ptr_T", NUMBERS | {"char"}),
        ("aclshmem_T_p", NUMBERS | {"char"}),
        ("aclshmem_wait_T", SIGNED),
        ("aclshmem_wait_until_T", (NUMBERS | {"char"}) - {"half", "bfloat16"}),
        ("aclshmem_consume_token_T", SIGNED | {"half", "float", "bfloat16", "char"}),
        *((f"aclshmem_consume_token_T_ptr_{n}d", SIGNED | {"half", "float", "bfloat16", "char"}) for n in range(1, 6)),
        ("aclshmem_T_putmem", NUMBERS | {"char"}),
        ("aclshmem_T_getmem_nbi", NUMBERS | {"char"}),
        ("aclshmem_T_putmem_signal", NUMBERS),
        ("aclshmem_T_putmem_signal_nbi", NUMBERS),
        ("aclshmem_putmem_nbi_T", NUMBERS | {"char"}),
        ("aclshmem_wait_T_ptr", set()),
    ],
)
def test_types_of_each_family(pattern: str, types: set[str]) -> None:
    assert types_of(pattern) == types


@pytest.mark.parametrize(
    "declaration",
    [
        "int32 aclshmem_my_pe()",
        "int32 aclshmem_team_translate_pe(int32 src_team, int32 src_pe, int32 dest_team)",
        "void aclshmem_barrier_all()",
        "void aclshmemx_signal_op(memref<int32> sig, int32 signal, int32 sig_op, int32 pe)",
        "int32 aclshmem_signal_wait_until(memref<int32> sig, int32 cmp, int32 value)",
        "half* aclshmem_ptr_half(half* ptr, int32 pe)",
        "void aclshmem_uint64_p(uint64* dst, uint64 value, int32 pe)",
        "int32 aclshmem_wait_int64(int64* ptr, int64 num_barriers, int64 value)",
        "bfloat16*3 aclshmem_consume_token_bfloat16_ptr_3d(bfloat16*3 value, int32 token)",
        "void aclshmem_float_putmem_signal_nbi(float* dst, float* src, uint32 bytes, memref<int32> sig, int32 signal, "
        "int32 sig_op, int32 pe)",
    ],
)
def test_signatures_print_as_they_are_declared(declaration: str) -> None:
    symbol = re.search(r"(\w+)\(", declaration)
    assert symbol is not None
    assert str(signatures()[symbol[1]]) == declaration


def test_no_symbol_is_declared_twice() -> None:
    count = sum((len(types.split()) or 1) * (5 if "{N}" in declaration else 1) for types, declaration in DECLARATIONS)
    assert len(signatures()) == count


def test_descriptors_are_passed_by_value_where_the_library_says_so() -> None:
    by_value = {s.symbol for s in signatures().values() if any(type_.by_value for _, type_ in s.parameters)}
    assert {"aclshmemx_signal_op", "aclshmem_signal_wait_until"} < by_value
    assert all("signal" in symbol for symbol in by_value)
    assert dict(signatures()["aclshmem_half_putmem_signal"].parameters)["sig"] == LibraryType("int32", 1, True)


# ---- names ----------------------------------------------------------------------------------------------------------


def call(symbol: str, operands: str = "", types: str = "", result: str = "", more: str = "") -> CustomOp:
    """A lowered call at k.py:7; operands are named after what `VALUES` makes."""
    inputs = f" ins({operands} : {types})" if operands else ""
    text = (
        f"hivm.hir.custom {{{more}hivm.is_distributed, hivm.pipe = #hivm.pipe<PIPE_S>, hivm.tcore_type = "
        f'#hivm.tcore_type<VECTOR>, symbol = "{symbol}"}} "dist.{symbol}"{inputs}{result and " -> " + result}'
    )
    module = parse_any(f'{VALUES}\n{text} loc("k.py":7:0)')
    module.verify()
    (*_, op) = module.walk()
    assert isinstance(op, CustomOp)
    return op


VALUES = """%p, %s, %l, %n, %w, %f = "t.a"() : () -> (!tt.ptr<f16>, !tt.ptr<i32>, !tt.ptr<i64>, i32, i64, f32)
%ps, %b = "t.b"() : () -> (tensor<4x8x!tt.ptr<f16>>, !tt.ptr<tensor<4x8xf16>>)
%m, %v = "t.c"() : () -> (memref<1xi32, strided<[1], offset: ?>>, memref<4x8xf16>)"""


@pytest.mark.parametrize(
    "arguments,core,name",
    [
        (("aclshmem_my_pe", "", "", "i32"), None, "_mlir_ciface_aclshmem_my_pe"),
        (("aclshmem_my_pe", "", "", "i32"), TCoreType.CUBE, "_mlir_ciface_aclshmem_my_pe.cube"),
        (("aclshmem_fence",), TCoreType.VECTOR, "_mlir_ciface_aclshmem_fence.vector"),
        (
            ("aclshmem_consume_token_int32", "%n, %n", "i32, i32", "i32"),
            None,
            "_mlir_ciface_aclshmem_consume_token_int32",
        ),
        (("aclshmem_wait_int32", "%s, %w, %n", "!tt.ptr<i32>, i64, i32", "i32"), None, "aclshmem_wait_int32"),
        (
            ("aclshmem_wait_int32", "%m, %w, %n", "memref<1xi32, strided<[1], offset: ?>>, i64, i32", "i32"),
            TCoreType.VECTOR,
            "aclshmem_wait_int32.vector",
        ),
    ],
)
def test_the_name_that_the_vendors_compiler_calls(arguments: tuple, core: TCoreType | None, name: str) -> None:
    assert callee_name(call(*arguments), core) == name


def test_the_name_that_the_library_defines() -> None:
    assert link_name("aclshmem_my_pe") == "_mlir_ciface_aclshmem_my_pe"


# ---- the check ------------------------------------------------------------------------------------------------------

PASSING = {
    "nothing": ("aclshmem_barrier_all",),
    "scalar": ("aclshmem_team_my_pe", "%n", "i32", "i32"),
    "pointer": ("aclshmem_ptr_half", "%p, %n", "!tt.ptr<f16>, i32", "!tt.ptr<f16>"),
    "signal": ("aclshmemx_signal_op", "%s, %n, %n, %n", "!tt.ptr<i32>, i32, i32, i32"),
    "memref": ("aclshmemx_signal_op", "%m, %n, %n, %n", "memref<1xi32, strided<[1], offset: ?>>, i32, i32, i32"),
    "sign does not count": ("aclshmem_uint64_p", "%l, %w, %n", "!tt.ptr<i64>, i64, i32"),
    "block pointer": (
        "aclshmem_consume_token_half_ptr_2d",
        "%b, %n",
        "!tt.ptr<tensor<4x8xf16>>, i32",
        "!tt.ptr<tensor<4x8xf16>>",
    ),
    "memref of two dimensions": (
        "aclshmem_consume_token_half_ptr_2d",
        "%v, %n",
        "memref<4x8xf16>, i32",
        "memref<4x8xf16>",
    ),
}


@pytest.mark.parametrize("case", PASSING)
def test_a_fitting_call_passes(case: str) -> None:
    check_call(call(*PASSING[case]))


REFUSED = {
    "misspelt": (
        ("aclshmem_wait_in32", "%s, %w, %n", "!tt.ptr<i32>, i64, i32", "i32"),
        "has no function `aclshmem_wait_in32`; did you mean `aclshmem_wait_int32`",
    ),
    "unknown": (("gibberish",), "has no function `gibberish`."),
    "upstream's untyped name": (
        ("aclshmem_ptr", "%p, %n", "!tt.ptr<f16>, i32", "!tt.ptr<f16>"),
        "has no function `aclshmem_ptr`; did you mean `aclshmem_ptr_",
    ),
    "too few operands": (
        ("aclshmemx_signal_op", "%s, %n, %n", "!tt.ptr<i32>, i32, i32"),
        "has `void aclshmemx_signal_op(memref<int32> sig, int32 signal, int32 sig_op, int32 pe)`, with 4 operands; "
        "got 3 (!tt.ptr<i32>, i32, i32)",
    ),
    "an operand too many": (
        ("aclshmem_my_pe", "%n", "i32", "i32"),
        "has `int32 aclshmem_my_pe()`, with 0 operands; got 1 (i32)",
    ),
    "no operand": (("aclshmem_barrier",), "with 1 operands; got none"),
    "width of a scalar": (
        ("aclshmem_int64_p", "%l, %n, %n", "!tt.ptr<i64>, i32, i32"),
        "operand 1 (`value`) must be int64, got i32",
    ),
    "float for an integer": (
        ("aclshmem_int32_p", "%s, %f, %n", "!tt.ptr<i32>, f32, i32"),
        "operand 1 (`value`) must be int32, got f32",
    ),
    "pointer to another type": (
        ("aclshmem_int32_p", "%p, %n, %n", "!tt.ptr<f16>, i32, i32"),
        "operand 0 (`dst`) must be int32*, got !tt.ptr<f16>",
    ),
    "scalar for a pointer": (
        ("aclshmem_ptr_int32", "%n, %n", "i32, i32", "!tt.ptr<i32>"),
        "operand 0 (`ptr`) must be int32*, got i32",
    ),
    "pointer for a scalar": (
        ("aclshmem_int32_p", "%s, %s, %n", "!tt.ptr<i32>, !tt.ptr<i32>, i32"),
        "operand 1 (`value`) must be int32, got !tt.ptr<i32>",
    ),
    "wrong rank": (
        ("aclshmem_consume_token_half_ptr_1d", "%b, %n", "!tt.ptr<tensor<4x8xf16>>, i32", "!tt.ptr<tensor<4x8xf16>>"),
        "operand 0 (`value`) must be half*, got !tt.ptr<tensor<4x8xf16>>",
    ),
    "operands swapped": (
        ("aclshmem_ptr_half", "%n, %p", "i32, !tt.ptr<f16>", "!tt.ptr<f16>"),
        "operand 0 (`ptr`) must be half*, got i32",
    ),
    "a result that there is not": (("aclshmem_fence", "", "", "i32"), "the call expects results 1 (i32)"),
    "a result that is not taken": (("aclshmem_n_pes",), "the call expects results none"),
    "a result of another type": (
        ("aclshmem_ptr_half", "%p, %n", "!tt.ptr<f16>, i32", "!tt.ptr<f32>"),
        "the result is half*, but the call expects !tt.ptr<f32>",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_call_that_does_not_fit_is_an_error_at_its_line(case: str) -> None:
    arguments, message = REFUSED[case]
    op = call(*arguments)
    with pytest.raises(KernelError, match=re.escape(message)) as caught:
        check_call(op)
    assert str(caught.value).startswith(f"k.py:7: cannot call `{arguments[0]}`: ACLSHMEM's device library ")


@needs_bishengir
@pytest.mark.parametrize("case", ["misspelt", "too few operands", "pointer to another type"])
def test_the_vendors_tool_says_nothing_of_it(case: str) -> None:
    """Why the check exists. If this fails, the vendor has learnt to check by itself."""
    module = call(*REFUSED[case][0]).parent_op()
    vendor_reads(show_for_vendor(module))


def test_a_call_of_a_library_of_its_own_is_let_be() -> None:
    check_call(call("my_function", more='libpath = "/lib/mine.bc", '))
    with pytest.raises(KernelError, match="has no function `my_function`"):
        check_call(call("my_function", more='libpath = "", '))


def test_a_users_own_custom_operation_is_let_be() -> None:
    op = call("my_function")
    del op.attributes[hivm.IS_DISTRIBUTED]
    module = op.parent_op()
    check_module(module)
    op.attributes[hivm.IS_DISTRIBUTED] = hivm.UnitAttr()
    with pytest.raises(KernelError, match="has no function `my_function`"):
        check_module(module)
