"""Which vector core comes to an operation, and where an address comes from: on small functions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.ir import Operation

from tdist.passes.base import all_ops
from tdist.platforms.ascend.compiled.generic_text import read_generic
from tdist.platforms.ascend.locks import alike
from tdist.platforms.ascend.provenance import Base, bases, full_name, library_symbol
from tdist.platforms.ascend.sub_blocks import BOTH, SubBlocks

GM = "memref<?xf16, #hivm.address_space<gm>>"


def function(*lines: str) -> list[Operation]:
    """The operations of a vector function `(%m: memref, %s: memref, %n: i32)` whose body is `lines`."""
    body = "\n".join(lines)
    return all_ops(
        read_generic(f"""
"builtin.module"() ({{
  "func.func"() <{{function_type = ({GM}, {GM}, i32) -> (), sym_name = "k"}}> ({{
  ^bb0(%m: {GM}, %s: {GM}, %n: i32):
    %i = "hivm.hir.get_sub_block_idx"() : () -> i64
    %x = "arith.trunci"(%i) : (i64) -> i32
    %c0 = "arith.constant"() <{{value = 0 : i32}}> : () -> i32
    %c1 = "arith.constant"() <{{value = 1 : i32}}> : () -> i32
    %c2 = "arith.constant"() <{{value = 2 : i32}}> : () -> i32
    %t = "arith.constant"() <{{value = true}}> : () -> i1
{body}
    "func.return"() : () -> ()
  }}) : () -> ()
}}) : () -> ()
""")
    )


def call(name: str, *operands: str) -> str:
    types = ", ".join(GM if operand in ("%m", "%s", "%p", "%q", "%r") else "i32" for operand in operands)
    return f'"func.call"({", ".join(operands)}) <{{callee = @{name}}}> : ({types}) -> ()'


def only(ops: list[Operation], name: str) -> Operation:
    (found,) = [op for op in ops if library_symbol(op) == name]
    return found


def under(condition: str, *, otherwise: bool = False) -> Operation:
    """A call under `if condition`, or in its other branch."""
    inside, empty = f'{call("f", "%n")}\n"scf.yield"() : () -> ()', '"scf.yield"() : () -> ()'
    first, second = (empty, inside) if otherwise else (inside, empty)
    return only(
        function(*condition.splitlines(), f'"scf.if"(%b) ({{\n{first}\n}}, {{\n{second}\n}}) : (i1) -> ()'), "f"
    )


EQ = '%b = "arith.cmpi"(%x, %c0) <{predicate = 0 : i64}> : (i32, i32) -> i1'
UNKNOWN = '%u = "arith.cmpi"(%n, %c1) <{predicate = 2 : i64}> : (i32, i32) -> i1\n'
GATE = EQ.replace("%b", "%g", 1) + "\n"


@pytest.mark.parametrize(
    ("condition", "otherwise", "cores", "differs"),
    [
        (EQ, False, {0}, False),
        (EQ, True, {1}, False),
        (GATE + UNKNOWN + '%b = "arith.andi"(%u, %g) : (i1, i1) -> i1', False, {0}, False),
        (GATE + UNKNOWN + '%b = "arith.ori"(%u, %g) : (i1, i1) -> i1', True, {1}, False),
        (GATE + '%b = "arith.xori"(%g, %t) : (i1, i1) -> i1', False, {1}, False),
        (UNKNOWN + '%b = "arith.andi"(%u, %u) : (i1, i1) -> i1', False, BOTH, False),
        (
            '%a = "arith.addi"(%x, %n) : (i32, i32) -> i32\n' + EQ.replace("(%x,", "(%a,"),
            False,
            BOTH,
            True,
        ),
    ],
)
def test_conditions(condition: str, otherwise: bool, cores: set[int], differs: bool) -> None:
    op = under(condition, otherwise=otherwise)
    sub_blocks = SubBlocks()
    assert sub_blocks.reach(op) == cores
    assert sub_blocks.differs(op) == differs


def looped(lower: str, upper: str) -> Operation:
    inside = f'^bb0(%v: i32):\n{call("f", "%n")}\n"scf.yield"() : () -> ()'
    return only(function(f'"scf.for"({lower}, {upper}, %c1) ({{\n{inside}\n}}) : (i32, i32, i32) -> ()'), "f")


def test_a_loop_from_the_index_to_one_lets_core_zero_through() -> None:
    assert SubBlocks().reach(looped("%x", "%c1")) == {0}


def test_a_loop_that_starts_at_the_index_shares_work() -> None:
    op = looped("%x", "%n")
    assert SubBlocks().reach(op) == BOTH and SubBlocks().differs(op)
    assert not SubBlocks().differs(looped("%c0", "%n"))


def test_what_a_loop_carries_of_the_index_is_followed() -> None:
    ops = function(
        '%w = "scf.for"(%c0, %n, %c1, %x) ({',
        "^bb0(%v: i32, %k: i32):",
        call("f", "%k"),
        '%z = "arith.addi"(%k, %c2) : (i32, i32) -> i32',
        '"scf.yield"(%z) : (i32) -> ()',
        "}) : (i32, i32, i32, i32) -> i32",
        call("g", "%w"),
        call("h", "%n"),
    )
    sub_blocks = SubBlocks()
    assert [sub_blocks.differs(only(ops, name)) for name in "fgh"] == [True, True, False]


def test_a_pure_vector_kernel_has_one_core() -> None:
    assert SubBlocks(1).reach(under(EQ)) == {0} and SubBlocks(1).reach(under(EQ, otherwise=True)) == set()


OPERATORS = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": lambda a, b: None if b == 0 else int(a / b),
    "arith.remsi": lambda a, b: None if b == 0 else a - b * int(a / b),
}
trees = st.recursive(
    st.sampled_from(["x", 0, 1, 2]),
    lambda inner: st.tuples(st.sampled_from(sorted(OPERATORS)), inner, inner),
    max_leaves=6,
)


def emitted(tree, lines: list[str]) -> str:
    if not isinstance(tree, tuple):
        return "%x" if tree == "x" else f"%c{tree}"
    left, right = (emitted(part, lines) for part in tree[1:])
    lines.append(f'%e{len(lines)} = "{tree[0]}"({left}, {right}) : (i32, i32) -> i32')
    return f"%e{len(lines) - 1}"


def evaluated(tree, core: int) -> int | None:
    if not isinstance(tree, tuple):
        return core if tree == "x" else tree
    left, right = (evaluated(part, core) for part in tree[1:])
    if left is None or right is None:
        return None
    return OPERATORS[tree[0]](left, right)


@settings(derandomize=True, deadline=None, max_examples=120)
@given(trees)
def test_arithmetic_of_the_index_is_pythons(tree) -> None:
    lines: list[str] = []
    name = emitted(tree, lines)
    op = only(function(*lines, call("f", name)), "f")
    for core in (0, 1):
        found, wanted = SubBlocks().value(op.operands[0], core), evaluated(tree, core)
        assert found == wanted or (wanted is None and found == 0), "a product with zero is zero whatever the rest"


# ---- addresses -------------------------------------------------------------------------------------------------------


def translated(result: str, of: str) -> str:
    return f'{result} = "func.call"({of}, %n) <{{callee = @aclshmem_ptr_half.vector}}> : ({GM}, i32) -> {GM}'


def consumed(result: str, of: str) -> str:
    callee = "aclshmem_consume_token_half_ptr_1d.vector"
    return f'{result} = "func.call"({of}, %n) <{{callee = @{callee}}}> : ({GM}, i32) -> {GM}'


def bases_of(*lines: str) -> frozenset[Base]:
    return bases(only(function(*lines, call("f", "%q")), "f").operands[0])


def test_an_address_is_followed_to_its_argument() -> None:
    assert bases_of(translated("%p", "%s"), consumed("%q", "%p")) == {Base(1, 1, True)}
    assert bases_of(translated("%p", "%m"), translated("%q", "%p")) == {Base(0, 2)}


def test_every_branch_counts() -> None:
    select = f'%q = "arith.select"(%t, %p, %m) : (i1, {GM}, {GM}) -> {GM}'
    assert bases_of(translated("%p", "%s"), select) == {Base(1, 1), Base(0)}
    ends = [f'{{\n"scf.yield"({value}) : ({GM}) -> ()\n}}' for value in ("%p", "%s")]
    branches = f'%q = "scf.if"(%t) ({", ".join(ends)}) : (i1) -> {GM}'
    assert bases_of(translated("%p", "%s"), branches) == {Base(1, 1), Base(1)}


def test_a_loop_that_translates_again_and_again_comes_to_an_end() -> None:
    loop = (
        f'%q = "scf.for"(%c0, %n, %c1, %m) ({{\n^bb0(%v: i32, %r: {GM}):\n{translated("%p", "%r")}\n'
        f'"scf.yield"(%p) : ({GM}) -> ()\n}}) : (i32, i32, i32, {GM}) -> {GM}'
    )
    assert bases_of(loop) == {Base(0), Base(0, 1), Base(0, 2)}


def test_what_every_block_has_alike() -> None:
    ops = function(
        '%k = "hivm.hir.get_block_idx"() : () -> i64',
        '%kk = "arith.trunci"(%k) : (i64) -> i32',
        '%me = "func.call"() <{callee = @_mlir_ciface_aclshmem_my_pe}> : () -> i32',
        '%sum = "arith.addi"(%me, %n) : (i32, i32) -> i32',
        '%mix = "arith.addi"(%sum, %kk) : (i32, i32) -> i32',
        call("f", "%sum"),
        call("g", "%mix"),
    )
    assert [alike(only(ops, name).operands[0]) for name in "fg"] == [True, False]
    assert any(full_name(op) == "hivm.hir.get_block_idx" for op in ops)
