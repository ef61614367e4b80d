"""Random kernels over integers, floats, masks, loops and gathers against an evaluation in numpy.

Hypothesis draws a kernel as a tree of expressions; each node knows its Triton text and its value. Wrap-around is only
drawn where data can be large: index arithmetic that wraps is a finding, not a result.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tdist.platforms.sim.world import World

ROWS, COLUMNS, GRID = 4, 8, 3
SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
_serial = itertools.count()


class Node(NamedTuple):
    """An expression: its text in the kernel and its value for the names in `env`."""

    text: str
    value: Callable[[dict[str, Any]], Any]


def leaf(text: str, name: str) -> Node:
    return Node(text, lambda env: env[name])


INTEGERS = [
    leaf("m[:, None]", "m"),
    leaf("n[None, :]", "n"),
    leaf("N", "N"),
    leaf("pid", "pid"),
    leaf("a", "a"),
    leaf("b", "b"),
    leaf("k", "k"),
]


def constant(number: int) -> Node:
    return Node(str(number), lambda env: np.int32(number))


def i32(value: Any) -> Any:
    return np.asarray(value).astype(np.int64).astype(np.int32)


def trunc_div(a: Any, b: Any) -> Any:
    a, b = np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64)
    return i32(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)))


def trunc_rem(a: Any, b: Any) -> Any:
    return i32(np.fmod(np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64)))


def unsigned(a: Any) -> Any:
    return np.asarray(a).astype(np.int64) & 0xFFFFFFFF


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "({} + {})": lambda a, b: i32(np.asarray(a, np.int64) + b),
    "({} - {})": lambda a, b: i32(np.asarray(a, np.int64) - b),
    "({} * {})": lambda a, b: i32(np.asarray(a, np.int64) * b),
    "({} & {})": np.bitwise_and,
    "({} | {})": np.bitwise_or,
    "({} ^ {})": np.bitwise_xor,
    "tl.minimum({}, {})": np.minimum,
    "tl.maximum({}, {})": np.maximum,
    "({} // (({}) % 7 * 2 + 13))": lambda a, b: trunc_div(a, i32(trunc_rem(b, 7)) * 2 + 13),
    "({} % (({}) % 5 - 6))": lambda a, b: trunc_rem(a, trunc_rem(b, 5) - 6),
    "(({}).to(tl.uint32) // (({}).to(tl.uint32) | 9)).to(tl.int32)": lambda a, b: i32(unsigned(a) // (unsigned(b) | 9)),
    "(({}).to(tl.int64) * ({}) >> 5).to(tl.int32)": lambda a, b: i32(np.asarray(a, np.int64) * b >> 5),
}
BY_CONSTANT: dict[str, Callable[[Any, int], Any]] = {
    "({} // {})": trunc_div,
    "({} % {})": trunc_rem,
    "({} * {})": lambda a, c: i32(np.asarray(a, np.int64) * c),
    "({} + {})": lambda a, c: i32(np.asarray(a, np.int64) + c),
    "({1} - {0})": lambda a, c: i32(c - np.asarray(a, np.int64)),
    "({} << {})": lambda a, c: i32(np.asarray(a, np.int64) << c),
    "({} >> {})": lambda a, c: i32(np.asarray(a, np.int64) >> c),
    "({} & {})": np.bitwise_and,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "(-{})": lambda a: i32(-np.asarray(a, np.int64)),
    "(~{})": np.invert,
    "tl.abs({})": lambda a: i32(np.abs(np.asarray(a, np.int64))),
    "({}).to(tl.int8).to(tl.int32)": lambda a: np.asarray(a).astype(np.int8).astype(np.int32),
    "({}).to(tl.uint16).to(tl.int32)": lambda a: np.asarray(a).astype(np.uint16).astype(np.int32),
    "(({}).to(tl.uint32) >> 3).to(tl.int32)": lambda a: i32(unsigned(a) >> 3),
}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "({} < {})": np.less,
    "({} <= {})": np.less_equal,
    "({} > {})": np.greater,
    "({} >= {})": np.greater_equal,
    "({} == {})": np.equal,
    "({} != {})": np.not_equal,
}
LOGIC: dict[str, Callable[[Any, Any], Any]] = {
    "({} & {})": np.logical_and,
    "({} | {})": np.logical_or,
    "({} ^ {})": np.logical_xor,
}


def apply(table: dict[str, Callable], form: str, *parts: Node) -> Node:
    function = table[form]
    return Node(form.format(*[p.text for p in parts]), lambda env: function(*[p.value(env) for p in parts]))


@st.composite
def integers(draw, depth: int, indices: bool = False) -> Node:
    """An integer expression; only of indices and scalars, of small reach, if `indices`."""
    if depth == 0:
        return draw(st.sampled_from(INTEGERS[:4] if indices else INTEGERS))
    part = integers(depth - 1, indices)
    kind = draw(st.sampled_from(("by", "by", "unary", "binary", "where", "gather", "sum")))
    if kind == "by" or indices:
        return apply(
            BY_CONSTANT, draw(st.sampled_from(list(BY_CONSTANT))), draw(part), constant(draw(st.integers(1, 5)))
        )
    if kind == "unary":
        return apply(UNARY, draw(st.sampled_from(list(UNARY))), draw(part))
    if kind == "binary":
        return apply(BINARY, draw(st.sampled_from(list(BINARY))), draw(part), draw(part))
    if kind == "where":
        condition, left, right = draw(masks(depth - 1)), draw(part), draw(part)
        text = f"tl.where({condition.text}, {left.text}, {right.text})"
        return Node(text, lambda env: np.where(condition.value(env), left.value(env), right.value(env)))
    if kind == "gather":
        index = draw(part)
        return Node(f"tl.load(x + (({index.text}) & 31))", lambda env: env["x"][np.bitwise_and(index.value(env), 31)])
    tile, axis = draw(part), draw(st.integers(0, 1))
    text = f"tl.expand_dims(tl.sum(zero + {tile.text}, {axis}), {axis})"
    return Node(text, lambda env: i32(full(tile.value(env)).astype(np.int64).sum(axis, keepdims=True)))


@st.composite
def masks(draw, depth: int) -> Node:
    """A condition on lanes, of indices or of data."""
    if depth == 0 or draw(st.booleans()):
        indices = draw(st.booleans())
        left = draw(integers(min(depth, 1), indices))
        right = draw(st.one_of(st.integers(-3, 12).map(constant), integers(0, True)))
        return apply(COMPARE, draw(st.sampled_from(list(COMPARE))), left, right)
    if draw(st.integers(0, 4)) == 0:
        return apply({"(~{})": np.logical_not}, "(~{})", draw(masks(depth - 1)))
    return apply(LOGIC, draw(st.sampled_from(list(LOGIC))), draw(masks(depth - 1)), draw(masks(depth - 1)))


def full(value: Any) -> np.ndarray:
    return np.broadcast_to(value, (ROWS, COLUMNS)).astype(np.asarray(value).dtype)


class Kernel(NamedTuple):
    """A kernel's text, and what it leaves in `y` for a program's names."""

    source: str
    value: Callable[[dict[str, Any], np.ndarray], None]


@st.composite
def kernels(draw) -> Kernel:
    load_mask, first, other = draw(masks(1)), draw(integers(2)), draw(integers(2))
    body, narrow, condition = draw(integers(2)), draw(integers(1)), draw(masks(0))
    trips, store_mask = draw(st.integers(0, 3)), draw(masks(2))
    uniform = draw(st.sampled_from(INTEGERS[2:4]))
    strides = draw(
        st.sampled_from(
            (
                "m[:, None] * 8 + n[None, :]",
                "(31 - m[:, None] * 8 - n[None, :])",
                "m[:, None] + n[None, :]",
                "(m % 3)[:, None] * 8 + n[None, :]",
            )
        )
    )
    source = f"""import triton
import triton.language as tl


@triton.jit
def kernel(x, h, y, f, N, M: tl.constexpr, C: tl.constexpr):
    pid = tl.program_id(0)
    k = pid * 0
    m = tl.arange(0, M)
    n = tl.arange(0, C)
    zero = tl.zeros((M, C), tl.int32)
    a = tl.load(x + {strides})
    b = tl.load(x + 32 + m[:, None] * 8 + n[None, :], mask={load_mask.text}, other=-3)
    if {uniform.text} % 2 == 0:
        r = zero + {first.text}
    else:
        r = zero + {other.text}
    for k in range({trips}):
        r = (r * 3 + {body.text}) ^ k
    k = pid * 0
    out = y + pid * 64 + m[:, None] * 8 + n[None, :]
    tl.store(out, r, mask={store_mask.text})
    g = tl.load(h + m[:, None] * 8 + n[None, :])
    g = tl.where({condition.text}, g * g + 1, g) - ((zero + {narrow.text}) & 63).to(tl.float16)
    tl.store(f + pid * 32 + m[:, None] * 8 + n[None, :], tl.maximum(g.to(tl.float32) * g, 0.5))
"""

    def value(env: dict[str, Any], y: np.ndarray, f: np.ndarray) -> None:
        m, n, x = env["m"], env["n"], env["x"]
        tables = {
            "m[:, None] * 8 + n[None, :]": m * 8 + n,
            "(31 - m[:, None] * 8 - n[None, :])": 31 - m * 8 - n,
            "m[:, None] + n[None, :]": m + n,
            "(m % 3)[:, None] * 8 + n[None, :]": m % 3 * 8 + n,
        }
        env["a"] = x[tables[strides]]
        env["k"] = np.int32(0)
        env["b"] = np.int32(0)
        mask = np.broadcast_to(load_mask.value(env), (ROWS, COLUMNS))
        env["b"] = np.where(mask, x[32 + m * 8 + n], np.int32(-3))
        r = full((first if uniform.value(env) % 2 == 0 else other).value(env))
        for k in range(trips):
            env["k"] = np.int32(k)
            r = i32(r.astype(np.int64) * 3 + body.value(env)) ^ np.int32(k)
        env["k"] = np.int32(0)
        keep = np.broadcast_to(store_mask.value(env), (ROWS, COLUMNS))
        y[:ROWS, :][keep] = r[keep]
        g = env["h"]
        g = np.where(condition.value(env), g * g + np.float16(1), g)
        g = g - (full(narrow.value(env)) & 63).astype(np.float16)
        f[:] = np.fmax(g.astype(np.float32) * g.astype(np.float32), np.float32(0.5))

    # `b` may not be read by the mask that it is loaded with
    uses_b = "b" in [part.strip("()~ ") for part in load_mask.text.replace("b", " b ").split()]
    return draw(kernels()) if uses_b else Kernel(source, value)


def load_kernel(folder: Path, source: str) -> Any:
    """The kernel of a text, from a file: Triton reads the source of what it compiles."""
    path = folder / f"random_{next(_serial)}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def reference(kernel: Kernel, x: torch.Tensor, h: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    y, f = np.full((GRID, 8, COLUMNS), -77, np.int32), np.zeros((GRID, ROWS, COLUMNS), np.float32)
    with np.errstate(all="ignore"):
        for pid in range(GRID):
            env = {"m": np.arange(ROWS, dtype=np.int32)[:, None], "n": np.arange(COLUMNS, dtype=np.int32)[None, :]}
            env |= {"N": np.int32(count), "pid": np.int32(pid), "x": x.numpy(), "h": h.numpy()}
            kernel.value(env, y[pid], f[pid])
    return torch.from_numpy(y), torch.from_numpy(f)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("random-kernels")


@given(kernels(), st.integers(-3, 9), st.integers(0, 2**31))
@SETTINGS
def test_random_kernels(folder, kernel, count, seed):
    note(kernel.source)
    note(f"N={count} seed={seed}")
    source = torch.Generator().manual_seed(seed)
    x = torch.randint(-(2**31), 2**31 - 1, (64,), generator=source, dtype=torch.int32)
    x[::3] %= 10
    h = torch.randint(-9, 10, (ROWS, COLUMNS), generator=source).half()
    function = load_kernel(folder, kernel.source)

    def host(rt):
        y, f = torch.full((GRID, 8, COLUMNS), -77, dtype=torch.int32), torch.zeros(GRID, ROWS, COLUMNS)
        function[(GRID,)](x.clone(), h.clone(), y, f, count, M=ROWS, C=COLUMNS)
        return y, f

    with World(nranks=1) as world:
        (result,) = world.run(host)
        assert [finding.title for finding in world.findings] == []
    for got, want in zip(result, reference(kernel, x, h, count), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
