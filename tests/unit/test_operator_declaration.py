"""Declaring operators, checking cases, loading them by name: mistakes are told in the user's words."""

from __future__ import annotations

import pytest
import torch

from tdist.errors import UsageError
from tdist.verify.loader import load_operator
from tdist.verify.operator import operator

BASE = {"shape": {"m": 8, "n": 4}, "inputs": lambda case, rank, launch: {}, "golden": lambda case, rank: None}


def declare(**changes):
    @operator(**{**BASE, **changes})
    def op(rt, case):
        return torch.zeros(1)

    return op


def test_a_case_fills_in_defaults():
    case = declare().case(dtype="fp16", nranks=3, shape={"n": 7}, seed=5)
    assert (case["m"], case["n"], case.nranks, case.seed, case.torch_dtype) == (8, 7, 3, 5, torch.float16)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"dtype": "fp61", "nranks": 2}, "did you mean 'fp16'"),
        ({"dtype": "fp16", "nranks": 0}, "between 1 and 128, got 0"),
        ({"dtype": "fp16", "nranks": 100_000}, "got 100000"),
        ({"dtype": "fp16", "nranks": 2, "shape": {"q": 3}}, "unknown shape symbol of op: 'q'.*m, n"),
        ({"dtype": "fp16", "nranks": 2, "shape": {"m": 0}}, "m of op has to be 1 or more, got 0"),
    ],
)
def test_a_wrong_case_is_refused(request_, text):
    with pytest.raises(UsageError, match=text):
        declare().case(**request_)


def test_a_constraint_gives_its_reason():
    op = declare(constraint=lambda case: "m has to be even" if case["m"] % 2 else None)
    op.case(dtype="fp16", nranks=1)
    with pytest.raises(UsageError, match="m=3,n=4 on 1 ranks: m has to be even"):
        op.case(dtype="fp16", nranks=1, shape={"m": 3})


@pytest.mark.parametrize(
    ("contract", "text"),
    [
        ({"dtypes": ("fp8",)}, "fp8"),
        ({"sync": ("fien",)}, "did you mean 'fine'"),
        ({"relaunchable": True}, "no workspace"),
        ({"outputs": ()}, "at least one"),
        ({"tolerance": 1}, "does not know tolerance"),
        ({"tiles": (1,)}, "did you mean 'tile'"),
        ({"host": len}, "does not know host"),
        ({"policy": "exakt"}, "did you mean 'exact'"),
    ],
)
def test_a_contradictory_declaration_is_refused(contract, text):
    with pytest.raises(UsageError, match=text):
        declare(**contract)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("name", 3),
        ("shape", {"m": 2.5}),
        ("shape", {"m": 0}),
        ("shape", {"m": True}),
        ("shape", {}),
        ("shape", ("m", 8)),
        ("inputs", {"x": torch.zeros(1)}),
        ("golden", torch.zeros(1)),
        ("golden_local", 1),
        ("workspace", "Workspace"),
        ("constraint", "m % 2"),
        ("dtypes", "fp16"),
        ("dtypes", ()),
        ("sync", "fine"),
        ("outputs", "out"),
        ("outputs", ("a", "a")),
        ("outputs", (1,)),
        ("tile", 64),
        ("tile", (64, 0)),
        ("tile", ()),
        ("tile", (8.0, 8)),
        ("policy", ("exact",)),
        ("rtol", "1e-3"),
        ("atol", -1.0),
        ("rtol", float("nan")),
        ("relaunchable", 1),
        ("low_precision_partials", "yes"),
    ],
)
def test_a_declaration_of_a_wrong_type_is_refused_where_it_is_made(parameter, value):
    with pytest.raises(UsageError, match=f"{parameter}=… of operator op has to be .*, got "):
        declare(**{parameter: value})


def test_a_tile_is_a_tuple_or_a_function_of_the_case():
    case = declare().case(dtype="fp16", nranks=1)
    assert declare().tile_of(case) == (64, 64)
    assert declare(tile=[16]).tile_of(case) == (16,)
    assert declare(tile=lambda case: (case["m"], 2)).tile_of(case) == (8, 2)
    with pytest.raises(UsageError, match="returned 5; it has to give a tuple of positive integers"):
        declare(tile=lambda case: 5).tile_of(case)


@pytest.mark.parametrize(
    ("returned", "text"), [({"a": torch.zeros(1)}, "declares outputs out"), (3.0, "torch tensor, got float")]
)
def test_wrong_outputs_are_named(returned, text):
    with pytest.raises(UsageError, match=text):
        declare().named_outputs(returned)


def test_a_declared_operator_is_still_callable():
    assert torch.equal(declare()(None, None), torch.zeros(1))


@pytest.fixture
def user_file(tmp_path):
    def write(text):
        path = tmp_path / "mine.py"
        path.write_text(text)
        return path

    return write


DECLARATION = """
from tdist.verify import operator

@operator(shape={"m": 1}, inputs=lambda case, rank, launch: {}, golden=lambda case, rank: None)
def my_op(rt, case):
    return None

def plain(): ...
number = 3
"""


def test_an_operator_is_loaded_from_a_file(user_file):
    path = user_file(DECLARATION)
    loaded = load_operator(f"{path}::my_op")
    assert loaded.name == "my_op"
    assert loaded.source == path
    assert load_operator(f"{path}::my_op") is loaded


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my_opp", "did you mean 'my_op'.*it declares my_op"),
        ("plain", "plain in .* is a plain function"),
        ("number", "is a int, no operator"),
    ],
)
def test_a_wrong_name_in_a_file_is_told(user_file, name, text):
    with pytest.raises(UsageError, match=text):
        load_operator(f"{user_file(DECLARATION)}::{name}")


def test_a_file_without_a_name_lists_its_operators(user_file):
    with pytest.raises(UsageError, match=r"mine.py::NAME \(it declares my_op\)"):
        load_operator(str(user_file(DECLARATION)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\nimport not_there_at_all\n", "mine.py:2: `import not_there_at_all`: ModuleNotFoundError"),
        ("def f():\n    return 1 / 0\nf()\n", "mine.py:2: `return 1 / 0`: ZeroDivisionError"),
        ("x = (\n", "mine.py:1: SyntaxError"),
        ("import sys\nsys.exit()\n", "mine.py:2: `sys.exit()`: SystemExit"),
        ("import shmem.nothing\n", "mine.py:1: `import shmem.nothing`: ModuleNotFoundError"),
    ],
)
def test_what_a_users_file_raises_is_told_at_its_line(user_file, text, told):
    path = user_file(text)
    with pytest.raises(UsageError) as caught:
        load_operator(f"{path}::op")
    assert told in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_file_is_told():
    with pytest.raises(UsageError, match=r"no such file: nowhere/at_all\.py"):
        load_operator("nowhere/at_all.py::op")


def test_unknown_built_in_is_told():
    with pytest.raises(UsageError, match=r"did you mean 'ag_gemm'.*all_gather"):
        load_operator("ag_gem")
