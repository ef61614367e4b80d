"""Phase 1: what the adapter gets holds integers where calls of the device library and travelling pointers were."""

from __future__ import annotations

import subprocess

import pytest
from vendor_oracle import adapter, needs_adapter
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

from carried_kit import KERNELS, prepared

from tdist.errors import KernelError
from tdist.frontend.reader import read_ttir
from tdist.ir import tt
from tdist.ir.hivm import CustomOp
from tdist.ir.pointer import PointerLike, element_type, is_scalar_pointer
from tdist.platforms.ascend.compiled.generic_text import print_generic
from tdist.platforms.ascend.lowering.carry import Carrier, carry
from tdist.platforms.ascend.lowering.offsets import needs_offsets
from tdist.platforms.ascend.lowering.sites import Carried, PointerOperand

CARRIED = sorted(set(KERNELS) - {"two_arguments", "two_arguments_carried", "from_an_integer", "cast_after_odd_step"})


def carried(name: str, carrier: Carrier = Carrier.CALL) -> Carried:
    made = prepared(name)
    return carry(made.module, [arg.name for arg in made.args], carrier)


def carry_text(text: str) -> Carried:
    module = read_ttir(text)
    return carry(module, ["a", "b", "c", "d"], Carrier.CALL)


@pytest.mark.parametrize("carrier", Carrier)
@pytest.mark.parametrize("name", CARRIED)
def test_nothing_is_left_that_the_adapter_does_not_know(name: str, carrier: Carrier) -> None:
    result = carried(name, carrier)
    result.module.verify()
    assert not needs_offsets(result.module)
    for op in result.module.walk():
        assert not isinstance(op, CustomOp)
        if isinstance(op, CallOp):
            assert not any(isinstance(element_type(value.type), PointerLike) for value in (*op.operands, *op.results))


@pytest.mark.parametrize("name", CARRIED)
def test_every_call_has_a_site_with_its_line(name: str) -> None:
    sites = carried(name).sites
    assert [(site.call.symbol, site.loc) for site in sites] == [
        (call.symbol, call.loc) for call in prepared(name).calls
    ]
    assert [site.number for site in sites] == list(range(len(sites)))


@pytest.mark.parametrize("name", CARRIED)
def test_the_module_that_is_carried_stays_as_it_is(name: str) -> None:
    before = print_generic(prepared(name).module)
    carried(name)
    assert print_generic(prepared(name).module) == before


@needs_adapter
@pytest.mark.parametrize("carrier", Carrier)
@pytest.mark.parametrize("name", CARRIED)
def test_the_vendors_adapter_reads_it(name: str, carrier: Carrier) -> None:
    text = print_generic(carried(name, carrier).module)
    done = subprocess.run([str(adapter()), "-"], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[:2000]


def test_each_function_that_stands_for_a_site_is_declared_once() -> None:
    result = carried("transfers")
    declared = [op.sym_name.data for op in result.module.body.block.ops if isinstance(op, FuncOp)]
    assert sorted(declared) == sorted(site.carrier for site in result.sites)


def test_an_extern_carrier_has_an_operand_and_a_result() -> None:
    """`tt.extern_elementwise` cannot be without; calls such as `aclshmem_quiet` have neither."""
    ops = [op for op in carried("values", Carrier.EXTERN).module.walk() if isinstance(op, tt.ExternElementwiseOp)]
    assert len(ops) == len(prepared("values").calls)
    assert all(op.operands and len(op.results) == 1 for op in ops)


# ---- distances ------------------------------------------------------------------------------------------------------

HEAD = "module {\n  tt.func public @k(%a: !tt.ptr<f16>, %b: !tt.ptr<i32>, %n: i32, %c: i1) {\n"
TAIL = "    tt.return\n  }\n}\n"


def ops_of(module: ModuleOp, name: str):
    return [op for op in module.walk() if op.name == name]


def test_a_chain_of_steps_is_one_sum_of_64_bits() -> None:
    """Two distances of 32 bits may be more than 32 bits together, as addresses are not."""
    text = (
        f"{HEAD}    %p = tt.addptr %b, %n : !tt.ptr<i32>, i32\n    %q = tt.addptr %p, %n : !tt.ptr<i32>, i32\n"
        '    %r = "hivm.hir.custom"(%q) <{name = "x", operandSegmentSizes = array<i32: 1, 0, 0>}> '
        f'{{symbol = "aclshmem_x"}} : (!tt.ptr<i32>) -> i32\n{TAIL}'
    )
    result = carry_text(text)
    (site,) = result.sites
    (call,) = ops_of(result.module, "func.call")
    (operand,) = site.operands
    assert isinstance(operand, PointerOperand)
    assert (operand.root.argument, operand.offset) == (1, 0)
    assert str(call.operands[0].type) == "i64"
    assert call.operands[0].owner.name == "arith.addi"
    assert [value.owner.name for value in call.operands[0].owner.operands] == ["arith.extsi"] * 2


def test_one_step_keeps_its_width_and_none_is_none() -> None:
    text = (
        f"{HEAD}    %p = tt.addptr %b, %n : !tt.ptr<i32>, i32\n"
        '    "hivm.hir.custom"(%p, %a) <{name = "x", operandSegmentSizes = array<i32: 2, 0, 0>}> '
        f'{{symbol = "aclshmem_x"}} : (!tt.ptr<i32>, !tt.ptr<f16>) -> ()\n{TAIL}'
    )
    result = carry_text(text)
    (call,) = ops_of(result.module, "func.call")
    assert [str(value.type) for value in call.operands] == ["i32"]
    first, second = result.sites[0].operands
    assert isinstance(first, PointerOperand) and first.offset == 0
    assert isinstance(second, PointerOperand) and second.offset is None
    assert (first.root.argument, second.root.argument) == (1, 0)


def test_only_scalar_pointers_of_branches_become_integers() -> None:
    text = (
        f"{HEAD}    %p, %v = scf.if %c -> (!tt.ptr<f16>, i32) {{\n"
        "      %q = tt.addptr %a, %n : !tt.ptr<f16>, i32\n      scf.yield %q, %n : !tt.ptr<f16>, i32\n    } else {\n"
        "      scf.yield %a, %n : !tt.ptr<f16>, i32\n    }\n    %s = tt.addptr %p, %v : !tt.ptr<f16>, i32\n"
        f"    %l = tt.load %s : !tt.ptr<f16>\n{TAIL}"
    )
    result = carry_text(text)
    (branch,) = ops_of(result.module, "scf.if")
    assert [str(type_) for type_ in branch.result_types] == ["i64", "i32"]
    again = next(op for op in ops_of(result.module, "tt.addptr") if op.operands[1] is branch.results[0])
    assert is_scalar_pointer(again.results[0].type)
    assert str(again.operands[0].type) == "!tt.ptr<f16>"


@pytest.mark.parametrize("to, factor", [("i64", None), ("i8", 2), ("bf16", 1)])
def test_a_cast_counts_on_in_the_new_elements(to: str, factor: int | None) -> None:
    text = (
        f"{HEAD}    %p = tt.addptr %a, %n : !tt.ptr<f16>, i32\n    %q = tt.bitcast %p : !tt.ptr<f16> -> !tt.ptr<{to}>\n"
        f"    %l = tt.load %q : !tt.ptr<{to}>\n{TAIL}"
    )
    if factor is None:
        with pytest.raises(KernelError, match="no whole number of the new elements"):
            carry_text(text)
        return
    module = carry_text(text).module
    (load,) = ops_of(module, "tt.load")
    step = load.operands[0].owner
    assert step.operands[0].owner.name == "tt.bitcast"
    assert step.operands[0].owner.operands[0] is module.body.block.first_op.body.block.args[0]  # pyright: ignore
    scaled = step.operands[1].owner
    if factor == 1:
        assert step.operands[1] is module.body.block.first_op.body.block.args[2]  # pyright: ignore
    else:
        assert scaled.name == "arith.muli"
        assert scaled.operands[1].owner.properties["value"].value.data == factor
