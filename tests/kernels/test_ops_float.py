"""Float operations and casts, each against torch and Triton's interpreter, edge values included."""

from __future__ import annotations

import math

import ops_kit
import pytest
import torch
import triton
import triton.language as tl
from ops_kit import Case

INF, NAN = math.inf, math.nan
EDGES = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-45, -1e-45, 1.17549435e-38, 3.4028235e38, -3.4028235e38, 6e4, 7e4]
TINY = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 3e-7}
SHORT = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
BF16 = "the interpreter computes with the bits of bf16 as if they were integers"


def values(n: int, dtype: torch.dtype, seed: int = 0, low: float = -4.0, high: float = 4.0) -> torch.Tensor:
    """Random numbers with the edges in front."""
    random = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * (high - low) + low
    edges = torch.tensor(EDGES, dtype=torch.float64)
    random[: len(edges)] = edges
    return random.to(dtype)


@triton.jit
def unary(x, y, n, OP: tl.constexpr, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    a = tl.load(x + o, mask=o < n, other=1.0)
    if OP == "exp":
        r = tl.exp(a)
    elif OP == "exp2":
        r = tl.exp2(a)
    elif OP == "log":
        r = tl.log(a)
    elif OP == "log2":
        r = tl.log2(a)
    elif OP == "sqrt":
        r = tl.sqrt(a)
    elif OP == "sqrt_rn":
        r = tl.sqrt_rn(a)
    elif OP == "rsqrt":
        r = tl.rsqrt(a)
    elif OP == "sin":
        r = tl.sin(a)
    elif OP == "cos":
        r = tl.cos(a)
    elif OP == "erf":
        r = tl.erf(a)
    elif OP == "abs":
        r = tl.abs(a)
    elif OP == "floor":
        r = tl.floor(a)
    elif OP == "ceil":
        r = tl.ceil(a)
    elif OP == "neg":
        r = -a
    elif OP == "sigmoid":
        r = tl.sigmoid(a)
    elif OP == "tanh":
        r = tl.math.tanh(a)
    tl.store(y + o, r, mask=o < n)


UNARY = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "log2": torch.log2,
    "sqrt": torch.sqrt,
    "sqrt_rn": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "abs": torch.abs,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "neg": lambda t: 0.0 - t,  # as Triton lowers it: a zero stays positive
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
EXACT = ("abs", "floor", "ceil", "neg")


def unary_case(op: str, dtype: torch.dtype) -> Case:
    x = values(50, dtype)

    def expect(x, y, n):
        y[:n] = UNARY[op](x[:n].double()).to(dtype)

    exact = op in EXACT
    why = BF16 if dtype == torch.bfloat16 else ""
    if op in ("erf", "tanh", "sigmoid"):
        why = "not in the interpreter of triton-ascend"
    return Case(
        f"{op}-{SHORT[dtype]}",
        unary,
        (x, torch.full((53,), 7.0).to(dtype), 47),
        expect,
        (2,),
        {"OP": op, "B": 32},
        rtol=0 if exact else 4 * TINY[dtype],
        atol=0 if exact else TINY[dtype] / 4,
        no_interpreter=why,
    )


@triton.jit
def unary_scalar(x, y, OP: tl.constexpr):
    a = tl.load(x + tl.program_id(0))
    if OP == "exp":
        r = tl.exp(a)
    elif OP == "log":
        r = tl.log(a)
    elif OP == "sqrt":
        r = tl.sqrt(a)
    elif OP == "floor":
        r = tl.floor(a)
    elif OP == "abs":
        r = tl.abs(a)
    elif OP == "neg":
        r = -a
    tl.store(y + tl.program_id(0), r)


def unary_scalar_case(op: str, dtype: torch.dtype) -> Case:
    def expect(x, y):
        y[:] = UNARY[op](x.double()).to(dtype)

    exact = op in EXACT
    return Case(
        f"scalar-{op}-{SHORT[dtype]}",
        unary_scalar,
        (values(20, dtype), torch.zeros(20, dtype=dtype)),
        expect,
        (20,),
        {"OP": op},
        rtol=0 if exact else 4 * TINY[dtype],
        atol=0 if exact else TINY[dtype] / 4,
        no_interpreter=BF16 if dtype == torch.bfloat16 else "",
    )


@triton.jit
def binary(x, z, y, n, OP: tl.constexpr, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o, mask=o < n, other=1.0)
    b = tl.load(z + o, mask=o < n, other=1.0)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "div":
        r = a / b
    elif OP == "mod":
        r = a % b
    elif OP == "minimum":
        r = tl.minimum(a, b)
    elif OP == "maximum":
        r = tl.maximum(a, b)
    elif OP == "minimum_nan":
        r = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "maximum_nan":
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "fma":
        r = tl.fma(a, b, a)
    elif OP == "clamp":
        r = tl.clamp(a, -1.5, 2.0)
    elif OP == "clamp_nan":
        r = tl.clamp(a, -1.5, 2.0, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "where":
        r = tl.where(a > b, a, b)
    elif OP == "fdiv":
        r = tl.fdiv(a, b)
    tl.store(y + o, r, mask=o < n)


def _rounded(function):
    """A function of doubles, rounded once."""
    return lambda a, b: function(a.double(), b.double()).to(a.dtype)


BINARY = {
    "add": _rounded(torch.add),
    "sub": _rounded(torch.sub),
    "mul": _rounded(torch.mul),
    "div": _rounded(torch.div),
    "fdiv": _rounded(torch.div),
    "mod": _rounded(torch.fmod),
    "minimum": torch.fmin,
    "maximum": torch.fmax,
    "minimum_nan": torch.minimum,
    "maximum_nan": torch.maximum,
    "fma": _rounded(lambda a, b: a * b + a),
    "clamp": lambda a, b: torch.fmin(torch.fmax(a, torch.tensor(-1.5, dtype=a.dtype)), torch.tensor(2.0).to(a.dtype)),
    "clamp_nan": lambda a, b: a.clamp(-1.5, 2.0),
    "where": lambda a, b: torch.where(a > b, a, b),
}


def binary_case(op: str, dtype: torch.dtype) -> Case:
    x, z = values(40, dtype), values(40, dtype, 5).roll(20)
    z[3], x[3], z[4], x[4] = 0.0, 0.0, 0.0, 2.0

    def expect(x, z, y, n):
        y[:n] = BINARY[op](x[:n], z[:n])

    why = BF16 if dtype == torch.bfloat16 else ""
    if op == "fma":
        why = "it rounds the product"
    if op == "mod":
        why = "not in the interpreter of triton-ascend"
    if op in ("minimum", "maximum", "clamp"):
        why = "numpy's minimum propagates NaN"
    return Case(
        f"{op}-{SHORT[dtype]}",
        binary,
        (x, z, torch.zeros(40, dtype=dtype), 37),
        expect,
        (1,),
        {"OP": op, "B": 64},
        no_interpreter=why,
    )


CASES = [
    *[unary_case(op, dtype) for op in UNARY for dtype in SHORT if (op, dtype) != ("tanh", torch.bfloat16)],
    *[unary_scalar_case(op, d) for op in ("exp", "log", "sqrt", "floor", "abs", "neg") for d in SHORT],
    *[binary_case(op, dtype) for op in BINARY for dtype in SHORT],
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float(case):
    ops_kit.check(case, __name__)


def test_names_are_unique():
    ops_kit.names_are_unique(CASES)
