"""The lowering to `hivm.hir.custom`, text in and text out: every row of the architecture document's section 3."""

from __future__ import annotations

import re

import pytest
from hivm_oracle import needs_bishengir, parse_any, show_for_vendor, vendor_reads
from ir_oracle import assert_same, parse, show

from tdist.errors import KernelError
from tdist.ir import hivm
from tdist.ir.location import loc_of
from tdist.passes import DEFAULT_PIPELINE, PASSES, run_pipeline
from tdist.passes.convert_triton_distributed_to_hivm import core_type_of_symbol
from tdist.platforms.ascend.symbols import check_module

NAME = "convert-triton-distributed-to-hivm"
ARGUMENTS = (
    "%p: !tt.ptr<f16>, %q: !tt.ptr<f16>, %s: !tt.ptr<i32>, %l: !tt.ptr<i64>, %n: i32, %w: i64, %f: f16, %c: i1, "
    "%ps: tensor<4x!tt.ptr<f16>>, %vs: tensor<4xf16>"
)
DOT = (
    "%z = arith.constant dense<0.0> : tensor<16x16xf32>\n%a = arith.constant dense<0.0> : tensor<16x16xf16>\n"
    "%d = tt.dot %a, %a, %z : tensor<16x16xf16> * tensor<16x16xf16> -> tensor<16x16xf32>"
)
TOKEN = "%t = distributed.wait %s, %n, %n, scope = gpu semantic = acquire : !tt.ptr<i32>, i32, i32 -> i32"


def extern(symbol: str, operands: str = "", types: str = "", results: str = "()", pure: str = "false") -> str:
    properties = f'{{libname = "libaclshmem_device", libpath = "", pure = {pure}, symbol = "{symbol}"}}'
    return f"distributed.extern_call {operands} {properties} : ({types}) -> {results}"


def notify(pointer: str, pointee: str, sig_op: int = 1, declared: str = "") -> str:
    attributes = f' {{tdist.signal_type = "{declared}"}}' if declared else ""
    return (
        f'"distributed.notify"({pointer}, %w, %n) <{{sigOp = {sig_op} : i32, commScope = 3 : i32}}>{attributes}'
        f" : (!tt.ptr<{pointee}>, i64, i32) -> ()"
    )


def kernel(body: str, arguments: str = ARGUMENTS):
    """A module with one kernel; line n of `body` is at k.py:n."""
    numbered = [
        line if line.rstrip().endswith(("{", "}", ":")) else f'{line} loc("k.py":{number}:0)'
        for number, line in enumerate(body.splitlines(), 1)
    ]
    module = parse("module {\ntt.func @k(%s) {\n%s\ntt.return\n}\n}\n" % (arguments, "\n".join(numbered)))  # noqa: UP031
    module.verify()
    return module


def convert(body: str, arguments: str = ARGUMENTS):
    """The module after the pass, and its report; the result verifies, and a second run changes nothing."""
    module = kernel(body, arguments)
    report = run_pipeline(module, [NAME])
    module.verify()
    assert not [op.name for op in module.walk() if op.name.startswith("distributed.")]
    again = module.clone()
    run_pipeline(again, [NAME])
    assert_same(again, module)
    return module, report


def lines(body: str, arguments: str = ARGUMENTS) -> list[str]:
    """The printed body of the converted kernel."""
    text = show(convert(body, arguments)[0])
    inside = text.partition("tt.func")[2].partition("\n")[2].partition("    tt.return")[0]
    return [line.strip() for line in inside.splitlines()]


def calls(module) -> list[hivm.CustomOp]:
    return [op for op in module.walk() if isinstance(op, hivm.CustomOp)]


def call(body: str, arguments: str = ARGUMENTS) -> hivm.CustomOp:
    """The last call of the converted kernel."""
    return calls(convert(body, arguments)[0])[-1]


def text_of(symbol: str, rest: str = "", *, gm: str = "", core: str = "VECTOR", more: tuple[str, ...] = ()) -> str:
    """A call as it is printed: attributes sorted by name, then the call's name and its operands."""
    attributes = [
        f"gm_addr_args_indices = array<i32{gm and ': ' + gm}>",
        "hivm.is_distributed",
        "hivm.pipe = #hivm.pipe<PIPE_S>",
        f"hivm.tcore_type = #hivm.tcore_type<{core}>",
        "hivm.vf_mode = #hivm.vf_mode<SIMD>",
        f'symbol = "{symbol}"',
        *more,
    ]
    return f'hivm.hir.custom {{{", ".join(sorted(attributes))}}} "dist.{symbol}"{rest}'


PURE = ("no_side_effect",)
WAIT = ("scope = 1 : i32", "semantic = 2 : i32")
NOTIFY = ("commScope = 3 : i32", "sigOp = 1 : i32")
EXTERN = ('libname = "libaclshmem_device"', 'libpath = ""', "pure = false")

# ---- symbol, operands, attributes: one row of the tables each -------------------------------------------------------

ROWS = {
    "get_rank": ("%r = distributed.get_rank %n : i32", ["%r = " + text_of("aclshmem_my_pe", " -> i32", more=PURE)]),
    "get_num_ranks": (
        "%r = distributed.get_num_ranks %n : i32",
        ["%r = " + text_of("aclshmem_n_pes", " -> i32", more=PURE)],
    ),
    "symm_at": (
        "%r = distributed.symm_at %p, %n, : !tt.ptr<f16>",
        ["%r = " + text_of("aclshmem_ptr_half", " ins(%p, %n : !tt.ptr<f16>, i32) -> !tt.ptr<f16>", gm="0")],
    ),
    "wait": (
        TOKEN,
        [
            "%0 = arith.extsi %n : i32 to i64",
            "%t = "
            + text_of("aclshmem_wait_int32", " ins(%s, %0, %n : !tt.ptr<i32>, i64, i32) -> i32", gm="0", more=WAIT),
        ],
    ),
    "wait for a 64-bit count": (
        "%t = distributed.wait %l, %w, %w, scope = gpu semantic = acquire : !tt.ptr<i64>, i64, i64 -> i32",
        [
            "%t = "
            + text_of("aclshmem_wait_int64", " ins(%l, %w, %w : !tt.ptr<i64>, i64, i64) -> i32", gm="0", more=WAIT)
        ],
    ),
    "notify, i32, set": (
        notify("%s", "i32"),
        [
            "%0 = arith.trunci %w : i64 to i32",
            "%1 = arith.constant 0 : i32",
            text_of("aclshmemx_signal_op", " ins(%s, %0, %1, %n : !tt.ptr<i32>, i32, i32, i32)", gm="0", more=NOTIFY),
        ],
    ),
    "notify, i32, add": (
        notify("%s", "i32", sig_op=2, declared="int32"),
        [
            "%0 = arith.trunci %w : i64 to i32",
            "%1 = arith.constant 1 : i32",
            text_of(
                "aclshmemx_signal_op",
                " ins(%s, %0, %1, %n : !tt.ptr<i32>, i32, i32, i32)",
                gm="0",
                more=("commScope = 3 : i32", "sigOp = 2 : i32"),
            ),
        ],
    ),
    "notify, i64": (
        notify("%l", "i64"),
        [text_of("aclshmem_int64_p", " ins(%l, %w, %n : !tt.ptr<i64>, i64, i32)", gm="0", more=NOTIFY)],
    ),
    "notify, declared int64": (
        notify("%l", "i64", declared="int64"),
        [text_of("aclshmem_int64_p", " ins(%l, %w, %n : !tt.ptr<i64>, i64, i32)", gm="0", more=NOTIFY)],
    ),
    "notify, declared uint64": (
        notify("%l", "i64", declared="uint64"),
        [text_of("aclshmem_uint64_p", " ins(%l, %w, %n : !tt.ptr<i64>, i64, i32)", gm="0", more=NOTIFY)],
    ),
    "consume_token, scalar": (
        "%r = distributed.consume_token %f, %n : f16, i32 -> f16",
        ["%r = " + text_of("aclshmem_consume_token_half", " ins(%f, %n : f16, i32) -> f16", more=PURE)],
    ),
    "consume_token, 64-bit token": (
        "%r = distributed.consume_token %f, %w : f16, i64 -> f16",
        [
            "%0 = arith.trunci %w : i64 to i32",
            "%r = " + text_of("aclshmem_consume_token_half", " ins(%f, %0 : f16, i32) -> f16", more=PURE),
        ],
    ),
    "consume_token, pointer": (
        "%r = distributed.consume_token %p, %n : !tt.ptr<f16>, i32 -> !tt.ptr<f16>",
        [
            "%r = "
            + text_of(
                "aclshmem_consume_token_half_ptr_1d",
                " ins(%p, %n : !tt.ptr<f16>, i32) -> !tt.ptr<f16>",
                gm="0",
                more=PURE,
            )
        ],
    ),
    "consume_token, tensor of pointers": (
        "%r = distributed.consume_token %ps, %n : tensor<4x!tt.ptr<f16>>, i32 -> tensor<4x!tt.ptr<f16>>",
        [
            "%0 = tensor.empty() : tensor<4x!tt.ptr<f16>>",
            "%r = "
            + text_of(
                "aclshmem_consume_token_half_ptr_1d",
                " ins(%ps, %n : tensor<4x!tt.ptr<f16>>, i32) outs(%0 : tensor<4x!tt.ptr<f16>>)"
                " -> tensor<4x!tt.ptr<f16>>",
                more=("SrcPtrIndex = array<i32: 0>", *PURE),
            ),
            "annotation.mark %r {ContinuousMemAccess} : tensor<4x!tt.ptr<f16>>",
        ],
    ),
    "extern_call": (
        extern("aclshmem_int32_p", "%s, %n, %n", "!tt.ptr<i32>, i32, i32"),
        [text_of("aclshmem_int32_p", " ins(%s, %n, %n : !tt.ptr<i32>, i32, i32)", gm="0", more=EXTERN)],
    ),
    "extern_call, pure": (
        "%r = " + extern("f", "%n", "i32", "i32", pure="true"),
        ["%r = " + text_of("f", " ins(%n : i32) -> i32", more=(*EXTERN[:2], "pure = true", *PURE))],
    ),
    "extern_call, two results": (
        "%r:2 = " + extern("f", "%n", "i32", "(i32, i64)"),
        ["%r, %r_1 = " + text_of("f", " ins(%n : i32) -> (i32, i64)", more=EXTERN)],
    ),
    "extern_call, remote pointer": (
        "%r = " + extern("aclshmem_ptr", "%p, %n", "!tt.ptr<f16>, i32", "!tt.ptr<f16>"),
        [
            "%r = "
            + text_of("aclshmem_ptr_half", " ins(%p, %n : !tt.ptr<f16>, i32) -> !tt.ptr<f16>", gm="0", more=EXTERN)
        ],
    ),
    "extern_call, my_pe": (
        "%r = " + extern("aclshmem_my_pe", "%n", "i32", "i32", pure="true"),
        ["%r = " + text_of("aclshmem_my_pe", " -> i32", more=(*EXTERN[:2], "pure = true", *PURE))],
    ),
    "extern_call, n_pes": (
        "%r = " + extern("aclshmem_n_pes", "%n", "i32", "i32", pure="true"),
        ["%r = " + text_of("aclshmem_n_pes", " -> i32", more=(*EXTERN[:2], "pure = true", *PURE))],
    ),
    "extern_call, barrier_all": (
        extern("aclshmem_barrier_all"),
        [text_of("aclshmem_barrier_all", core="CUBE_AND_VECTOR", more=EXTERN)],
    ),
    "extern_call, barrier_all_vec": (
        extern("aclshmemx_barrier_all_vec"),
        [text_of("aclshmemx_barrier_all_vec", more=EXTERN)],
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_text_in_text_out(row: str) -> None:
    before, after = ROWS[row]
    assert lines(before) == after


@needs_bishengir
def test_the_vendors_tool_reads_every_row() -> None:
    for before, _ in ROWS.values():
        module, _ = convert(before)
        for text in (show_for_vendor(module), show(module, generic=True)):
            assert_same(parse_any(vendor_reads(text)), module)


ELEMENTS = {
    "f16": "half",
    "bf16": "bfloat16",
    "f32": "float",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
}


@pytest.mark.parametrize("element", ELEMENTS)
def test_symbols_name_the_element_type(element: str) -> None:
    arguments = f"%x: !tt.ptr<{element}>, %y: {element}, %n: i32, %b: tensor<8x8x!tt.ptr<{element}>>"
    body = f"""%r = distributed.symm_at %x, %n, : !tt.ptr<{element}>
%u = distributed.consume_token %y, %n : {element}, i32 -> {element}
%v = distributed.consume_token %x, %n : !tt.ptr<{element}>, i32 -> !tt.ptr<{element}>
%z = distributed.consume_token %b, %n : tensor<8x8x!tt.ptr<{element}>>, i32 -> tensor<8x8x!tt.ptr<{element}>>"""
    module, _ = convert(body, arguments)
    name = ELEMENTS[element]
    consume = f"aclshmem_consume_token_{name}"
    expected = [f"aclshmem_ptr_{name}", consume, f"{consume}_ptr_1d", f"{consume}_ptr_2d"]
    assert [op.symbol for op in calls(module)] == expected
    check_module(module)


@pytest.mark.parametrize("element", ["i8", "i16", "i32", "i64"])
def test_waits_name_the_words_type(element: str) -> None:
    arguments = f"%x: !tt.ptr<{element}>, %y: {element}, %n: i32"
    body = (
        f"%t = distributed.wait %x, %n, %y, scope = gpu semantic = acquire : !tt.ptr<{element}>, i32, {element} -> i32"
    )
    module, _ = convert(body, arguments)
    assert calls(module)[0].symbol == f"aclshmem_wait_{ELEMENTS[element]}"
    check_module(module)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_pointers_are_consumed_by_rank(rank: int) -> None:
    shape = "x".join("2" * rank)
    tensor, block = f"tensor<{shape}x!tt.ptr<f32>>", f"!tt.ptr<tensor<{shape}xf32>>"
    for type_ in (tensor, block):
        module, _ = convert(f"%r = distributed.consume_token %x, %n : {type_}, i32 -> {type_}", f"%x: {type_}, %n: i32")
        assert calls(module)[0].symbol == f"aclshmem_consume_token_float_ptr_{rank}d"
        check_module(module)


# ---- which cores ----------------------------------------------------------------------------------------------------

MEMORY = "%p, %q, %n, %n", "!tt.ptr<f16>, !tt.ptr<f16>, i32, i32"
ON_VECTOR_ONLY = [
    "aclshmemx_barrier_all_vec",
    *(f"aclshmem_{op}_half" for op in ("putmem", "getmem", "putmem_nbi", "getmem_nbi")),
    *(f"aclshmem_half_{op}" for op in ("putmem", "getmem", "putmem_nbi", "getmem_nbi", "putmem_signal_nbi")),
    "aclshmem_putmem_signal_half",
    "aclshmem_putmem_signal_nbi_half",
    "aclshmem_bfloat16_putmem_signal",
    "aclshmem_uint64_getmem",
]
ON_BOTH = ["aclshmem_barrier_all"]
BY_DOT = ["aclshmem_quiet", "aclshmem_fence", "aclshmem_int32_p", "aclshmem_barrier", "aclshmemx_signal_op", "f"]


def core(body: str) -> hivm.TCoreType:
    return call(body).attributes[hivm.CORE_TYPE].data


@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize("symbol", ON_VECTOR_ONLY + ON_BOTH + BY_DOT)
def test_core_type_by_prefix_then_by_dot(symbol: str, dot: bool) -> None:
    body = f"{DOT}\n{extern(symbol)}" if dot else extern(symbol)
    expected = hivm.TCoreType.VECTOR
    if symbol in ON_BOTH or (symbol in BY_DOT and dot):
        expected = hivm.TCoreType.CUBE_AND_VECTOR
    assert core(body) is expected


def test_a_scaled_dot_counts_as_a_dot() -> None:
    """Our front end reads none, but other texts may hold one: it stands there as an operation that nobody knows."""
    scaled = '%d = "tt.dot_scaled"(%vs) : (tensor<4xf16>) -> tensor<4xf16>'
    fence = extern("aclshmem_fence")
    module = parse_any(f"tt.func @k(%vs: tensor<4xf16>) {{\n{scaled}\n{fence}\ntt.return\n}}")
    run_pipeline(module, [NAME])
    assert calls(module)[0].attributes[hivm.CORE_TYPE].data is hivm.TCoreType.CUBE_AND_VECTOR


def test_prefixes_do_not_take_too_much() -> None:
    assert core_type_of_symbol("aclshmem_half_p") is None
    assert core_type_of_symbol("aclshmem_barrier") is None
    assert core_type_of_symbol("aclshmem_half_barrier_all") is None
    assert core_type_of_symbol("my_aclshmem_putmem") is None


def test_a_barrier_on_both_kinds_of_core_takes_calls_with_results_along() -> None:
    """AscendNPU-IR 1.2.0 crashes when it splits a mix kernel in which such a call is for vector cores only."""
    body = f"{TOKEN}\n%r = distributed.get_rank %n : i32\n{notify('%s', 'i32')}\n{extern('aclshmem_barrier_all')}"
    module, _ = convert(body)
    both, vector = hivm.TCoreType.CUBE_AND_VECTOR, hivm.TCoreType.VECTOR
    found = {op.symbol: op.attributes[hivm.CORE_TYPE].data for op in calls(module)}
    assert found == {
        "aclshmem_wait_int32": both,
        "aclshmem_my_pe": both,
        "aclshmemx_signal_op": vector,  # else the cube core signals too
        "aclshmem_barrier_all": both,
    }


@pytest.mark.parametrize(
    "body,needed",
    [
        (extern("aclshmem_barrier_all"), True),
        (f"{DOT}\n{extern('aclshmem_barrier_all')}", True),
        (f"{DOT}\n{extern('aclshmemx_barrier_all_vec')}", True),
        (f"{DOT}\n{extern('aclshmem_barrier', '%n', 'i32')}", True),
        (f"{DOT}\n{extern('aclshmemx_barrier_vec', '%n', 'i32')}", True),
        ("%i = hivm.hir.get_sub_block_idx -> i64", True),
        (extern("aclshmemx_barrier_all_vec"), False),  # no mix kernel: the vendor's pass leaves it alone
        (f"{DOT}\n{extern('aclshmem_fence')}", False),
        (f"{DOT}\n{TOKEN}\n{notify('%s', 'i32')}", False),
        ("%i = arith.addi %n, %n : i32", False),
    ],
)
def test_module_attribute_keeps_sub_blocks_together_where_they_meet(body: str, needed: bool) -> None:
    module, _ = convert(body)
    assert set(module.attributes) == ({"hivm.disable_auto_tile_and_bind_subblock"} if needed else set())


# ---- effects, kernel pointers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
def test_only_what_had_no_effects_may_be_dropped_and_merged(row: str) -> None:
    pure = any(word in row for word in ("get_", "consume_token", "my_pe", "n_pes", "pure"))
    assert (call(ROWS[row][0]).no_side_effect is not None) == pure


@pytest.mark.parametrize(
    "body,indices",
    [
        ("%r = distributed.symm_at %p, %n, : !tt.ptr<f16>", (0,)),
        ("%o = tt.addptr %p, %n : !tt.ptr<f16>, i32\n%r = distributed.symm_at %o, %n, : !tt.ptr<f16>", ()),
        (extern("f", "%n, %p, %w, %q", "i32, !tt.ptr<f16>, i64, !tt.ptr<f16>"), (1, 3)),
        ("%o = tt.addptr %p, %n : !tt.ptr<f16>, i32\n" + extern("f", "%o, %q", "!tt.ptr<f16>, !tt.ptr<f16>"), (1,)),
        ("%r = distributed.consume_token %ps, %n : tensor<4x!tt.ptr<f16>>, i32 -> tensor<4x!tt.ptr<f16>>", ()),
        ("%o = arith.select %c, %p, %q : !tt.ptr<f16>\n%r = distributed.symm_at %o, %n, : !tt.ptr<f16>", ()),
        ("%r = distributed.get_rank %n : i32", ()),
        (
            "%r = scf.for %i = %n to %n step %n iter_args(%o = %p) -> (!tt.ptr<f16>) : i32 {\n"
            "%x = distributed.symm_at %o, %n, : !tt.ptr<f16>\nscf.yield %o : !tt.ptr<f16>\n}",
            (),  # an argument of a block, but not of the kernel
        ),
        ("scf.if %c {\n%x = distributed.symm_at %p, %n, : !tt.ptr<f16>\n}", (0,)),
        (
            "cf.br ^next(%p : !tt.ptr<f16>)\n^next(%o: !tt.ptr<f16>):\n%x = "
            + extern("f", "%o, %q", "!tt.ptr<f16>, !tt.ptr<f16>", "i32"),
            (1,),  # an argument of a later block of the function
        ),
    ],
)
def test_gm_addr_args_indices(body: str, indices: tuple[int, ...]) -> None:
    assert call(body).attributes["gm_addr_args_indices"].get_values() == indices


# ---- what stays -----------------------------------------------------------------------------------------------------

MIXED = f"""%o = tt.addptr %p, %n : !tt.ptr<f16>, i32
{TOKEN}
%x = distributed.consume_token %o, %t : !tt.ptr<f16>, i32 -> !tt.ptr<f16>
%v = tt.load %x : !tt.ptr<f16>
scf.if %c {{
%r = distributed.symm_at %q, %n, : !tt.ptr<f16>
tt.store %r, %v : !tt.ptr<f16>
}}
{notify("%s", "i32")}
tt.store %q, %f : !tt.ptr<f16>"""


def anonymous(text: str) -> list[str]:
    """Lines without the names of values, which are numbered anew."""
    return [re.sub(r"%\w+", "%", line) for line in text.splitlines()]


def test_everything_else_stays_as_it_is() -> None:
    before, after = anonymous(show(kernel(MIXED))), anonymous(show(convert(MIXED)[0]))
    ours = ("hivm.hir.custom", "arith.extsi", "arith.trunci", "arith.constant")
    assert [line for line in before if "distributed." not in line] == [
        line for line in after if not any(word in line for word in ours)
    ]


def test_a_kernel_without_distributed_operations_is_not_touched() -> None:
    body = "%v = tt.load %p : !tt.ptr<f16>\ntt.store %q, %v : !tt.ptr<f16>"
    assert show(convert(body)[0]) == show(kernel(body))


def test_calls_stand_at_the_line_of_their_operation() -> None:
    module, _ = convert(MIXED)
    where = {op.name if not isinstance(op, hivm.CustomOp) else op.symbol: loc_of(op) for op in module.walk()}
    lines_ = {name: loc.line for name, loc in where.items() if loc is not None}
    assert lines_["aclshmem_wait_int32"] == lines_["arith.extsi"] == 2
    assert lines_["aclshmem_consume_token_half_ptr_1d"] == 3
    assert lines_["aclshmem_ptr_half"] == 6
    assert lines_["aclshmemx_signal_op"] == lines_["arith.trunci"] == lines_["arith.constant"] == 9


def test_users_of_a_result_use_the_calls() -> None:
    text = show(convert(MIXED)[0])
    assert re.search(r"%x = hivm.hir.custom .* ins\(%o, %t : .*\n\s*%v = tt.load %x", text)
    assert re.search(r"%r = hivm.hir.custom .*\n\s*tt.store %r, %v", text)


def test_attributes_of_ours_do_not_reach_the_vendor() -> None:
    attributes = call(notify("%l", "i64", declared="uint64")).attributes
    assert not [key for key in attributes if key.startswith("tdist")]
    assert attributes["sigOp"].value.data == 1


def test_a_token_on_a_tensor_of_values_is_dropped_and_reported() -> None:
    consume = "%r = distributed.consume_token %vs, %t : tensor<4xf16>, i32 -> tensor<4xf16>"
    body = f"{TOKEN}\n{consume}\n%x = math.exp %r : tensor<4xf16>"
    module, report = convert(body)
    assert [op.symbol for op in calls(module)] == ["aclshmem_wait_int32"]
    assert re.search(r"math.exp %vs", show(module))
    ((name, line),) = [(lost.op_name, lost.loc.line) for lost in report.lost if lost.loc]
    assert (name, line) == ("distributed.consume_token", 2)


def test_registered_but_not_run_by_default() -> None:
    assert NAME in PASSES and NAME not in DEFAULT_PIPELINE


# ---- refusals -------------------------------------------------------------------------------------------------------

REFUSED = {
    "symm_at, double": (
        "%x: !tt.ptr<f64>, %n: i32",
        "%r = distributed.symm_at %x, %n, : !tt.ptr<f64>",
        "symm_at for elements of type f64; it has f16, bf16, f32, i8, i16, i32, i64",
    ),
    "symm_at, bool": (
        "%x: !tt.ptr<i1>, %n: i32",
        "%r = distributed.symm_at %x, %n, : !tt.ptr<i1>",
        "symm_at for elements of type i1",
    ),
    "symm_at, pointer to pointer": (
        "%x: !tt.ptr<!tt.ptr<f16>>, %n: i32",
        "%r = distributed.symm_at %x, %n, : !tt.ptr<!tt.ptr<f16>>",
        "symm_at for elements of type !tt.ptr<f16>",
    ),
    "consume_token, double": (
        "%x: f64, %n: i32",
        "%r = distributed.consume_token %x, %n : f64, i32 -> f64",
        "consume_token for elements of type f64",
    ),
    "consume_token, tensor of pointers to double": (
        "%x: tensor<4x!tt.ptr<f64>>, %n: i32",
        "%r = distributed.consume_token %x, %n : tensor<4x!tt.ptr<f64>>, i32 -> tensor<4x!tt.ptr<f64>>",
        "consume_token for elements of type f64",
    ),
    "consume_token, six dimensions": (
        "%x: tensor<1x1x1x1x1x4x!tt.ptr<f16>>, %n: i32",
        "%r = distributed.consume_token %x, %n"
        " : tensor<1x1x1x1x1x4x!tt.ptr<f16>>, i32 -> tensor<1x1x1x1x1x4x!tt.ptr<f16>>",
        "pointers of 6 dimensions are consumed: the device library goes up to 5",
    ),
    "consume_token, tensor of tokens": (
        "%x: tensor<4x!tt.ptr<f16>>, %n: tensor<4xi32>",
        "%r = distributed.consume_token %x, %n : tensor<4x!tt.ptr<f16>>, tensor<4xi32> -> tensor<4x!tt.ptr<f16>>",
        "one integer here, got tensor<4xi32>",
    ),
    "wait, tensor of pointers": (
        "%x: tensor<4x!tt.ptr<i32>>, %n: i32",
        "%r = distributed.wait %x, %n, %n, scope = gpu semantic = acquire : tensor<4x!tt.ptr<i32>>, i32, i32 -> i32",
        "waits for words behind one pointer, got tensor<4x!tt.ptr<i32>>",
    ),
    "wait, bool words": (
        "%x: !tt.ptr<i1>, %n: i32, %y: i1",
        "%r = distributed.wait %x, %n, %y, scope = gpu semantic = acquire : !tt.ptr<i1>, i32, i1 -> i32",
        "wait for elements of type i1",
    ),
    "notify, 64-bit add": (
        ARGUMENTS,
        notify("%l", "i64", sig_op=2, declared="uint64"),
        'can only set a signal word of type uint64, not "add" to it',
    ),
    "notify, declared otherwise": (
        ARGUMENTS,
        notify("%s", "i32", declared="uint64"),
        "the signal word is declared uint64, but its pointer is to int32",
    ),
    "remote_ptr, double": (
        "%x: !tt.ptr<f64>, %n: i32",
        "%r = " + extern("aclshmem_ptr", "%x, %n", "!tt.ptr<f64>, i32", "!tt.ptr<f64>"),
        "extern_call for elements of type f64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_library_cannot_do_is_an_error_at_the_kernels_line(case: str) -> None:
    arguments, body, message = REFUSED[case]
    module = kernel(f"%pad = arith.constant 0 : i16\n{body}", arguments)
    with pytest.raises(KernelError, match=re.escape(message)) as caught:
        run_pipeline(module, [NAME])
    assert str(caught.value).startswith("k.py:2: cannot lower distributed.")
