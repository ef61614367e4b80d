"""Phase 2, on Linalg written by hand: calls go back on the right memory, or it is said why they cannot."""

from __future__ import annotations

import pytest
from xdsl.dialects.memref import ReinterpretCastOp

from tdist.errors import EnvironmentUnfit, KernelError
from tdist.frontend.reader import read_ttir
from tdist.ir.hivm import GM_ADDRESSES, CustomOp
from tdist.platforms.ascend.compiled.generic_text import print_generic, read_generic
from tdist.platforms.ascend.lowering.carry import Carrier, carry
from tdist.platforms.ascend.lowering.restore import restore
from tdist.platforms.ascend.lowering.sites import Carried

TTIR = """module attributes {kept = 7 : i32} {
  tt.func public @k(%a: !tt.ptr<f16>, %b: !tt.ptr<f16>, %n: i32) {
    %p = "hivm.hir.custom"(%a, %n) <{name = "dist.aclshmem_ptr_half", operandSegmentSizes = array<i32: 2, 0, 0>}> ATTRS : (!tt.ptr<f16>, i32) -> !tt.ptr<f16> loc("k.py":2:0)
    %q = "hivm.hir.custom"(%b, %n) <{name = "dist.aclshmem_ptr_half", operandSegmentSizes = array<i32: 2, 0, 0>}> ATTRS : (!tt.ptr<f16>, i32) -> !tt.ptr<f16> loc("k.py":3:0)
    %v = tt.load %p : !tt.ptr<f16>
    tt.store %q, %v : !tt.ptr<f16>
    tt.return
  }
}
"""  # noqa: E501
ATTRIBUTES = (
    "{hivm.is_distributed, hivm.pipe = #hivm.pipe<PIPE_S>, hivm.tcore_type = #hivm.tcore_type<VECTOR>, "
    'hivm.vf_mode = #hivm.vf_mode<SIMD>, symbol = "aclshmem_ptr_half"}'
)
SITES = """    %d = "func.call"(%arg4) <{callee = @tdist_site_0}> : (i32) -> i32
    %e = "func.call"(%arg4) <{callee = @tdist_site_1}> : (i32) -> i32
    %i = "arith.index_cast"(%d) : (i32) -> index
    %j = "arith.index_cast"(%e) : (i32) -> index
"""


def access(argument: int, offset: str, name: str) -> str:
    return (
        f'    %{name} = "memref.reinterpret_cast"(%arg{argument}, %{offset}) <{{operandSegmentSizes = '
        "array<i32: 1, 1, 0, 0>, static_offsets = array<i64: -9223372036854775808>, static_sizes = array<i64: 1>, "
        "static_strides = array<i64: 1>}> : (memref<?xf16>, index) -> memref<1xf16, strided<[1], offset: ?>> "
        'loc("k.py":9:0)\n'
    )


BOTH = access(2, "i", "x") + access(3, "j", "y")


def carried() -> Carried:
    return carry(read_ttir(TTIR.replace("ATTRS", ATTRIBUTES)), ["a", "b", "n"], Carrier.CALL)


def linalg(body: str):
    types = "memref<?xi8>, memref<?xi8>, memref<?xf16>, memref<?xf16>, i32"
    arguments = ", ".join(f"%arg{k}: {type_}" for k, type_ in enumerate(types.split(", ")))
    return read_generic(
        '"builtin.module"() ({\n'
        '  "func.func"() <{function_type = (i32) -> i32, sym_name = "tdist_site_0", sym_visibility = "private"}> ({\n'
        "  }) : () -> ()\n"
        f'  "func.func"() <{{function_type = ({types}) -> (), sym_name = "k"}}> ({{\n'
        f'  ^bb0({arguments}):\n{body}    "func.return"() : () -> ()\n'
        "  }) {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64} : () -> ()\n}) : () -> ()\n"
    )


def refused(body: str, words: str) -> str:
    with pytest.raises(KernelError, match=words) as error:
        restore(linalg(body), carried())
    return str(error.value)


def test_accesses_move_over_to_the_memory_that_the_calls_return() -> None:
    module = linalg(SITES + BOTH)
    assert restore(module, carried()) == ()
    module.verify()
    first, second = (op for op in module.walk() if isinstance(op, CustomOp))
    left, right = (op for op in module.walk() if isinstance(op, ReinterpretCastOp))
    assert (left.source, right.source) == (first.results[0], second.results[0])
    assert [str(op.attributes[GM_ADDRESSES]) for op in (first, second)] == ["array<i32: 0>"] * 2
    assert "func.call" not in {op.name for op in module.walk()}
    assert len(list(module.body.block.ops)) == 1
    assert str(module.attributes["kept"]) == "7 : i32"


def test_the_number_of_a_site_becomes_zero() -> None:
    module = linalg(SITES + BOTH)
    restore(module, carried())
    offset = next(op for op in module.walk() if isinstance(op, ReinterpretCastOp)).offsets[0]
    assert offset.owner.operands[0].owner.properties["value"].value.data == 0  # pyright: ignore


def test_a_size_that_depends_on_two_sites_is_no_address() -> None:
    """Bounds of two block pointers meet in one mask."""
    smaller = '    %m = "arith.minsi"(%i, %j) : (index, index) -> index\n'
    smaller += '    %z = "memref.alloc"(%m) : (index) -> memref<?xi8>\n'
    restore(linalg(SITES + smaller + BOTH), carried())


def test_an_address_that_depends_on_two_sites_is_refused() -> None:
    body = f'{SITES}    %m = "arith.addi"(%i, %j) : (index, index) -> index\n{access(2, "m", "x")}{access(3, "j", "y")}'
    message = refused(body, "one address depends on unrelated calls")
    assert message.startswith("k.py:9: ")
    assert "k.py:2" in message and "k.py:3" in message


def test_a_lost_call_is_refused() -> None:
    lines = SITES.splitlines(keepends=True)
    assert refused(lines[0] + lines[2] + access(2, "i", "x"), "the vendor's adapter dropped the call").startswith(
        "k.py:3"
    )


def test_a_doubled_call_is_refused() -> None:
    again = SITES.splitlines(keepends=True)[0].replace("%d", "%f")
    assert refused(SITES + again + BOTH, "made several calls of one").startswith("k.py:2")


def test_a_call_whose_memory_nobody_accesses_is_refused() -> None:
    assert refused(SITES + access(2, "i", "x"), "no access of memory is left").startswith("k.py:3")


def test_memory_of_another_argument_is_refused() -> None:
    refused(SITES + access(3, "i", "x"), "is not found again")


def test_an_access_of_another_kind_is_refused() -> None:
    """What is not understood may not stay on the local memory."""
    load = '    %x = "memref.load"(%arg2, %i) : (memref<?xf16>, index) -> f16\n'
    refused(SITES + load + access(3, "j", "y"), "memref.load at an address that comes from aclshmem_ptr_half")


def test_what_was_loaded_is_no_address() -> None:
    """An integer out of remote memory may be an offset into local memory."""
    body = (
        f'{SITES}{BOTH}    %c = "arith.constant"() <{{value = 0 : index}}> : () -> index\n'
        '    %w = "memref.load"(%x, %c) : (memref<1xf16, strided<[1], offset: ?>>, index) -> f16\n'
        '    %u = "arith.fptosi"(%w) : (f16) -> i32\n    %l = "arith.index_cast"(%u) : (i32) -> index\n'
        f"{access(3, 'l', 'z')}"
    )
    module = linalg(body)
    restore(module, carried())
    assert [op for op in module.walk() if isinstance(op, ReinterpretCastOp)][2].source.index == 3  # pyright: ignore


LOOP = """    %c = "arith.constant"() <{value = 0 : i32}> : () -> i32
    %r = "scf.for"(%c, %arg4, %c, %BEGIN) ({
    ^bb0(%t: i32, %o: i32):
      %h = "arith.index_cast"(%o) : (i32) -> index
      ACCESS
      "scf.yield"(%END) : (i32) -> ()
    }) : (i32, i32, i32, i32) -> i32 loc("k.py":8:0)
"""


def loop(begin: str, end: str) -> str:
    text = LOOP.replace("BEGIN", begin).replace("END", end).replace("      ACCESS\n", access(2, "h", "x"))
    return SITES + text + access(3, "j", "y")


def test_arguments_in_an_unknown_order_are_refused() -> None:
    """With another number of arguments in front, calls would go to the memory beside theirs."""
    text = print_generic(linalg(SITES + BOTH)).replace("WorkspaceArgIdx", "OtherArgIdx")
    with pytest.raises(EnvironmentUnfit, match="makes memref<\\?xi8> of argument 0, a pointer to f16"):
        restore(read_generic(text), carried())


def test_a_loop_carries_memory_on() -> None:
    module = linalg(loop("d", "o"))
    restore(module, carried())
    first = next(op for op in module.walk() if isinstance(op, ReinterpretCastOp))
    assert isinstance(first.source.owner, CustomOp)


@pytest.mark.parametrize("begin, end", [("c", "d"), ("d", "c"), ("d", "e")])
def test_a_loop_that_changes_memory_is_refused(begin: str, end: str) -> None:
    assert refused(loop(begin, end), "changes from one turn of the loop to the next").startswith("k.py:8: ")


IF = """    %c = "arith.constant"() <{value = true}> : () -> i1
    %z = "arith.constant"() <{value = 3 : i32}> : () -> i32
    %o = "scf.if"(%c) ({
      %d = "func.call"(%arg4) <{callee = @tdist_site_0}> : (i32) -> i32
      "scf.yield"(%d) : (i32) -> ()
    }, {
      "scf.yield"(%z) : (i32) -> ()
    }) : (i1) -> i32
    %i = "arith.index_cast"(%o) : (i32) -> index
    %e = "func.call"(%arg4) <{callee = @tdist_site_1}> : (i32) -> i32
    %j = "arith.index_cast"(%e) : (i32) -> index
"""


def test_branches_give_memory_beside_their_offsets() -> None:
    module = linalg(IF + BOTH)
    restore(module, carried())
    module.verify()
    branch = next(op for op in module.walk() if op.name == "scf.if")
    assert [str(type_) for type_ in branch.result_types] == ["i32", "memref<?xf16>"]
    remote, local = (region.block.last_op.operands[1] for region in branch.regions)  # pyright: ignore
    assert isinstance(remote.owner, CustomOp)
    assert local.index == 2  # pyright: ignore[reportAttributeAccessIssue]
    assert next(op for op in module.walk() if isinstance(op, ReinterpretCastOp)).source is branch.results[1]


def test_a_branch_of_two_memories_that_were_there_before_has_a_call() -> None:
    """Else the vendor's compiler makes `arith.select` of it and takes the memory for memory on chip."""
    lines = IF.splitlines(keepends=True)
    body = "".join([lines[3].replace("      ", "    "), *lines[:3], *lines[4:]])
    module = linalg(body + BOTH)
    (note,) = restore(module, carried())
    assert "aclshmem_consume_token_half_ptr_1d, which changes nothing" in note
    assert note.startswith("k.py:2: ")
    branch = next(op for op in module.walk() if op.name == "scf.if")
    assert any(isinstance(op, CustomOp) for op in branch.regions[0].block.ops)
