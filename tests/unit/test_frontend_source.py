"""Kernel source to KernelIR: what stays an argument, where operations say they are, what a failure looks like."""

import importlib
import importlib.util
import re
import sys
import textwrap

import pytest
import triton
import triton.language as tl
from triton.compiler import code_generator

import tdist.language as dl
from tdist.errors import KernelError, UsageError
from tdist.frontend import KernelArg, compile_source
from tdist.frontend.reader import read_ttir
from tdist.ir.location import loc_of
from tdist.passes import run_pipeline

WIDTH: tl.constexpr = 20
OFFSET = tl.constexpr(11)


@triton.jit
def add_kernel(x_ptr, out_ptr, n, scale, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * scale, mask=offs < n)


@triton.jit
def globals_kernel(out_ptr):
    tl.store(out_ptr + tl.arange(0, WIDTH), tl.zeros((WIDTH,), tl.float32) + OFFSET)


@triton.jit
def twice(x):
    return x + x


@triton.jit(noinline=True)
def thrice(x):
    return twice(x) + x


@triton.jit
def nested_kernel(out_ptr, n):
    tl.store(out_ptr, thrice(n))
    tl.store(out_ptr + 1, twice(n))


@triton.jit
def several_lines_kernel(x_ptr, out_ptr, sig_ptr):
    value = tl.load(
        x_ptr + 3,
        volatile=True,
    )
    tl.store(
        out_ptr,
        value,
    )
    dl.notify(
        sig_ptr,
        0,
        signal=1,
    )


@triton.jit
def early_return_kernel(out_ptr, n):
    if n > 3:
        return
    tl.store(out_ptr, n)


@triton.jit
def assert_kernel(out_ptr, n):
    tl.device_assert(n < 5, "too many")
    tl.store(out_ptr, n * n)


@triton.jit
def const_kernel(x_ptr: tl.const, out_ptr):
    tl.store(out_ptr, tl.load(x_ptr))


def lines_of(text, op):
    """Source lines of an operation, as the TTIR says."""
    aliases = dict(re.findall(r'^(#loc\d*) = loc\("[^"]*":(\d+):\d+\)', text, re.MULTILINE))
    return [int(aliases[a]) for a in re.findall(rf"{re.escape(op)} .* loc\((#loc\d*)\)$", text, re.MULTILINE)]


def first_line(kernel):
    return kernel.fn.__code__.co_firstlineno + 1


def test_arguments_are_those_that_are_no_constexpr_in_order():
    signature = {"n": "i32", "scale": "fp32", "out_ptr": "*bf16", "x_ptr": "*fp16"}
    ir = compile_source(add_kernel, signature, {"B": 128})
    assert ir.name == "add_kernel"
    assert ir.args == (
        KernelArg("x_ptr", "*fp16"),
        KernelArg("out_ptr", "*bf16"),
        KernelArg("n", "i32"),
        KernelArg("scale", "fp32"),
    )
    assert re.search(
        r"@add_kernel\(%arg0: !tt.ptr<f16> .*, %arg1: !tt.ptr<bf16> .*, %arg2: i32 .*, %arg3: f32", ir.ttir
    )
    assert "tt.divisibility" not in ir.ttir


def test_ranges_need_be_no_power_of_two_and_global_constexprs_are_read():
    text = compile_source(globals_kernel, {"out_ptr": "*fp32"}, {}).ttir
    assert "tt.make_range {end = 20 : i32, start = 0 : i32} : tensor<20xi32>" in text
    assert "1.100000e+01" in text


def test_nested_and_noinline_calls_are_inlined_and_keep_the_callers_line():
    module = read_ttir(compile_source(nested_kernel, {"out_ptr": "*i32", "n": "i32"}, {}).ttir)
    run_pipeline(module, ["lift-early-returns", "inline-calls"])
    names = [op.name for op in module.walk()]
    assert "tt.call" not in names and names.count("tt.func") == 1
    sums = [loc_of(op) for op in module.walk() if op.name == "arith.addi"]
    assert len(sums) == 3 and all(loc is not None and loc.callers for loc in sums)


def test_an_operation_has_the_line_where_its_call_begins():
    text = compile_source(several_lines_kernel, {"x_ptr": "*i32", "out_ptr": "*i32", "sig_ptr": "*i32"}, {}).ttir
    start = first_line(several_lines_kernel)
    assert lines_of(text, "tt.load") == [start + 1]
    assert lines_of(text, "tt.store") == [start + 5]
    assert lines_of(text, "tt.extern_elementwise") == [start + 9]


def test_early_return_and_assertions_survive():
    assert "cf.cond_br" in compile_source(early_return_kernel, {"out_ptr": "*i32", "n": "i32"}, {}).ttir
    text = compile_source(assert_kernel, {"out_ptr": "*i32", "n": "i32"}, {}).ttir
    assert text.count("tt.assert") == 1, "only the user's own assertion, none of Triton's for overflow"


def test_a_pointer_to_const_is_a_pointer():
    ir = compile_source(const_kernel, {"x_ptr": "*ki32", "out_ptr": "*i32"}, {})
    assert [arg.type for arg in ir.args] == ["*i32", "*i32"]


def test_the_enclosing_functions_variables_are_seen():
    import tdist.language as inner_language

    width = tl.constexpr(24)

    @triton.jit
    def helper(x):
        return inner_language.num_ranks() + x + width

    @triton.jit
    def kernel(out_ptr):
        tl.store(out_ptr, helper(width))

    text = compile_source(kernel, {"out_ptr": "*i32"}, {}).ttir
    assert "tdist.num_ranks" in text and text.count("arith.constant 24 : i32") >= 2


def test_triton_is_as_before_after_success_and_failure():
    generator, pointer_hash = code_generator.CodeGenerator, tl.pointer_type.__hash__
    compile_source(const_kernel, {"x_ptr": "*i32", "out_ptr": "*i32"}, {})
    with pytest.raises(KernelError):
        compile_source(const_kernel, {"x_ptr": "i32", "out_ptr": "*i32"}, {})
    assert code_generator.CodeGenerator is generator
    assert tl.pointer_type.__hash__ is pointer_hash


SOURCE = """
import triton
import triton.language as tl
import tdist.language as dl

@triton.jit
def größe(zeiger, länge, B: tl.constexpr):
    versatz = tl.arange(0, B)
    tl.device_print("len ", länge)
    tl.store(zeiger + versatz, versatz, mask=versatz < länge)

@triton.jit
def fehler(zeiger, länge, B: tl.constexpr):
    dl.symm_at(zeiger + tl.arange(0, B), länge)
"""


def test_names_and_paths_need_not_be_ascii(tmp_path):
    path = tmp_path / "größen ✓.py"
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("groessen", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = {"zeiger": "*i32", "länge": "i32"}
    ir = compile_source(module.größe, signature, {"B": 16})
    assert (ir.name, ir.args[1].name) == ("größe", "länge")
    (store,) = [op for op in read_ttir(ir.ttir).walk() if op.name == "tt.store"]
    assert str(loc_of(store)) == f"{path}:10"
    with pytest.raises(KernelError) as caught:
        compile_source(module.fehler, signature, {"B": 16})
    assert str(caught.value).startswith(f"{path}:14:4: in kernel `fehler`: symm_at: `ptr` must be")


MAIN = """
    import triton
    import triton.language as tl
    from tdist.frontend import compile_source

    @triton.jit
    def kernel(out):
        tl.store(out, 1)

    print(compile_source(kernel, {"out": "*i32"}, {}).ttir)
"""


def test_a_kernel_in_main(tmp_path, python):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(MAIN))
    done = python.run([sys.executable, str(path)], timeout=60)
    assert done.returncode == 0, done.stderr
    assert f'"{path}":8:4' in done.stdout


@triton.jit
def inner_with_mistake(p):
    return tl.load(p + undefined_name)  # noqa: F821


@triton.jit
def caller_kernel(p):
    x = tl.load(p)
    tl.store(p, x + inner_with_mistake(p))


def test_a_mistake_in_a_called_function_names_both_lines():
    with pytest.raises(KernelError) as caught:
        compile_source(caller_kernel, {"p": "*i32"}, {})
    here = __file__
    assert str(caught.value).splitlines() == [
        f"{here}:{first_line(inner_with_mistake) + 1}:23: in kernel `caller_kernel`: undefined_name is not defined",
        "        return tl.load(p + undefined_name)  # noqa: F821",
        "                           ^",
        f"  called from {here}:{first_line(caller_kernel) + 2}:20 (`caller_kernel`)",
    ]


@triton.jit
def static_assert_kernel(p, B: tl.constexpr):
    tl.static_assert(B % 2 == 0, "B must be even")
    tl.store(p, B)


@triton.jit
def shapes_kernel(p):
    tl.store(p, tl.arange(0, 16) + tl.arange(0, 8))


@triton.jit
def with_statement_kernel(p):
    with p:
        tl.store(p, 1)


@pytest.mark.parametrize(
    ("kernel", "constexprs", "text"),
    [
        (static_assert_kernel, {"B": 3}, "static_assert failed: B must be even"),
        (shapes_kernel, {}, "incompatible dimensions at index 0: 16 and 8"),
        (with_statement_kernel, {}, "unsupported AST node type: With"),
    ],
)
def test_tritons_own_refusals_name_the_line(kernel, constexprs, text):
    with pytest.raises(KernelError) as caught:
        compile_source(kernel, {"p": "*i32"}, constexprs)
    assert str(caught.value).startswith(f"{__file__}:{first_line(kernel) + 1}:")
    assert text in str(caught.value).splitlines()[0]


@pytest.mark.parametrize(
    ("kernel", "signature", "constexprs", "text"),
    [
        (test_a_kernel_in_main, {}, {}, r"a kernel is a function under @triton\.jit"),
        (const_kernel, {"x_ptr": "*i32"}, {}, "parameter `out_ptr` has neither a type nor a value"),
        (const_kernel, {"x_ptr": "*i32", "y": "i32"}, {}, "no parameter `y`; it has: x_ptr, out_ptr"),
        (const_kernel, {"x_ptr": "*i33", "out_ptr": "*i32"}, {}, "`x_ptr`: there is no type '\\*i33'"),
    ],
)
def test_wrong_use_is_told(kernel, signature, constexprs, text):
    with pytest.raises(UsageError, match=text):
        compile_source(kernel, signature, constexprs)


def test_check_of_the_front_end_can_be_run(capsys):
    assert importlib.import_module("tdist.frontend.__main__").main() == 0
    assert capsys.readouterr().out.startswith("front end: triton-ascend 3.2.0 (")


def scalar_of_a_tensor(value, _builder=None):
    """A builtin with a mistake: an elementwise op with a tensor operand and a scalar result."""
    handle = _builder.create_extern_elementwise("l", "", "s", [value.handle], tl.int32.to_ir(_builder), False)
    return tl.tensor(handle, tl.int32)


scalar_of_a_tensor.__triton_builtin__ = True


@triton.jit
def unverifiable_kernel(p):
    tl.store(p, scalar_of_a_tensor(tl.arange(0, 4)))


def test_ir_that_does_not_verify_is_told_in_mlirs_words(capfd):
    with pytest.raises(KernelError) as caught:
        compile_source(unverifiable_kernel, {"p": "*i32"}, {})
    head, *detail = str(caught.value).splitlines()
    assert head == "kernel `unverifiable_kernel`: Triton's IR of it does not verify."
    assert "test_frontend_source.py" in detail[0] and "'tt.extern_elementwise' op" in detail[0]
    print("still there", file=sys.stderr)
    assert capfd.readouterr().err.endswith("still there\n"), "stderr is the user's again"
