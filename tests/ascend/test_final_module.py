"""Final modules that the vendor's compiler leaves: read, counted, printed again; every operation and call is known."""

from __future__ import annotations

import re

import order_kernels
import pytest
from order_kit import final, ordinary
from ordinary_kernels import ORDINARY
from vendor_oracle import canonical, needs_adapter, needs_compiler
from xdsl.dialects.builtin import UnregisteredOp
from xdsl.dialects.func import CallOp

from tdist.errors import EnvironmentUnfit
from tdist.ir import hivm
from tdist.platforms.ascend.compiled import calls
from tdist.platforms.ascend.compiled.events import Unknown, function_events, name_of
from tdist.platforms.ascend.compiled.final_module import FinalModule, OpRef, kernel_loc, read_final_module
from tdist.platforms.ascend.compiled.generic_text import print_generic

pytestmark = [needs_adapter, needs_compiler]

MODES = (False, True)
WITH_DOT = {"matmul", "matmul_fp32", "matmul_bias_relu", "matmul_persistent", "attention"}
CUBE_ONLY = {"matmul", "matmul_fp32"}
CASES = [(name, mode) for name in ORDINARY for mode in MODES]
PUSHES = [(order_kernels.push, mode) for mode in MODES] + [(order_kernels.gather_after_wait, mode) for mode in MODES]


def modules() -> list[FinalModule]:
    return [ordinary(name, barrier_all=mode) for name, mode in CASES] + [
        final(fn, barrier_all=mode) for fn, mode in PUSHES
    ]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_functions_by_core_and_counts(name: str, mode: bool) -> None:
    module = ordinary(name, barrier_all=mode)
    cores = [function.core for function in module.functions]
    assert cores == (
        ["aiv"] if name not in WITH_DOT else ["aic"] if name in ("matmul", "matmul_fp32") else ["aic", "aiv"]
    )
    assert module.mixed is (len(cores) == 2)
    text = print_generic(module.module)
    for op, count in module.counts.items():
        assert count == len(re.findall(rf'"hivm\.hir\.{op}"\(', text)), op
    assert (module.counts["set_flag"] == 0) is mode or module.counts["set_flag"] == module.counts["wait_flag"]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_printed_and_read_again_it_is_the_same(name: str, mode: bool) -> None:
    module = ordinary(name, barrier_all=mode)
    text = print_generic(module.module)
    again = read_final_module(text)
    again.module.verify()
    assert print_generic(again.module) == text
    assert print_generic(module.clone().module) == text
    assert again.counts == module.counts


def test_every_operation_of_the_vendors_dialect_is_a_class_of_ours() -> None:
    foreign = {
        name_of(op)
        for module in modules()
        for op in module.all_ops()
        if isinstance(op, UnregisteredOp) and name_of(op).startswith("hivm.")
    }
    assert foreign == set()


def test_every_call_and_operation_is_understood() -> None:
    unknown = {
        event.name
        for module in modules()
        for function in module.functions
        for event in function_events(function)
        if isinstance(event, Unknown)
    }
    assert unknown == set()


def test_a_call_reads_its_inputs_and_writes_the_rest() -> None:
    met = {}
    for module in modules():
        for op in module.all_ops():
            if isinstance(op, CallOp) and (call := calls.describe(op)) is not None and not call.is_distributed:
                met[call.callee] = (call.pipe, call.reads, call.writes)
    expected = {
        "load_gm_to_ubuf_1d_float": (hivm.Pipe.MTE2, (0,), (1,)),
        "store_ubuf_to_gm_1d_float": (hivm.Pipe.MTE3, (0,), (1,)),
        "nd2nz_half": (hivm.Pipe.MTE2, (0,), (1,)),
        "vadd_1d_float": (hivm.Pipe.V, (0, 1), (2, 3)),
        "vadds_vs_1d_float": (hivm.Pipe.V, (0,), (2, 3)),
        "broadcast_scalar_float_to_1d": (hivm.Pipe.V, (), (1,)),
        "fixpipe_nz2nd_float_to_float_4d_to_2d": (hivm.Pipe.FIX, (0,), (1,)),
    }
    assert {name: met[name] for name in expected} == expected
    assert len(met) > 30


def test_lines_are_the_kernels() -> None:
    module = ordinary("softmax")
    files = {loc.file.rsplit("/", 1)[-1] for loc in module.lines}
    assert "ordinary_kernels.py" in files
    stores = [op for op in module.all_ops() if isinstance(op, CallOp) and "store" in op.callee.string_value()]
    source = ORDINARY["softmax"][0].fn.__code__
    assert all(source.co_firstlineno < kernel_loc(op).line for op in stores)  # pyright: ignore[reportOptionalMemberAccess]


def test_places_are_found_again_in_a_copy() -> None:
    module = ordinary("matmul_bias_relu")
    copy = module.clone()
    for function in module.functions:
        for number in range(0, len(function.ops), 7):
            ref = OpRef(function.name, number)
            assert module.ref(module.op(ref)) == ref
            assert name_of(copy.op(ref)) == name_of(module.op(ref))
            assert copy.op(ref) is not module.op(ref)


_NO_KERNEL = """\
"builtin.module"() ({
  "func.func"() <{function_type = () -> (), sym_name = "f"}> ({
    "func.return"() : () -> ()
  }) : () -> ()
}) : () -> ()
"""


@pytest.mark.parametrize("text", [_NO_KERNEL, '"builtin.module"() ({\n}) : () -> ()\n', "module {}"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=r"final module|cannot read"):
        read_final_module(text)


@pytest.mark.parametrize("name", ["attention", "layer_norm", "gather_elements"])
def test_the_vendors_tool_reads_what_we_print(name: str) -> None:
    text = print_generic(ordinary(name).module)
    again = read_final_module(canonical(text, "--mlir-print-op-generic"))
    assert print_generic(again.module, locations=False) == print_generic(
        read_final_module(text).module, locations=False
    )
