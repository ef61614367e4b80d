"""Affine maps as text, evaluated: what a final module computes offsets and buffer numbers with.

`bishengir-opt` prints semi-affine maps, with products and quotients of symbols, so a map is read from its text. An
expression becomes a Python one of the same shape: `floordiv`, `mod` and `ceildiv` bind as tightly as `*` there too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from xdsl.ir import Attribute

from tdist.platforms.ascend.compiled.linear import Linear

_MAP = re.compile(r"(?:affine_map<)?\s*(?:\(([^)]*)\))?\s*(?:\[([^\]]*)\])?\s*->\s*\((.*)\)>?", re.DOTALL)
_WORDS = {"floordiv": "//", "mod": "%", "ceildiv": "@"}

Number = int | None
"""An integer, or None if it is not known."""


@dataclass(frozen=True)
class AffineMap:
    """Names of the operands in order, and the results."""

    names: tuple[str, ...]
    results: tuple[ast.expr, ...]

    def evaluate(self, operands: Sequence[Number]) -> tuple[Number, ...]:
        """The results; None where one is not known."""
        known = dict(zip(self.names, operands, strict=True))
        return tuple(_number(result, known) for result in self.results)

    def linear(self, operands: Sequence[Linear]) -> tuple[Linear | None, ...]:
        """The results as sums over what the operands are sums over; None for a product or quotient of unknowns."""
        known = dict(zip(self.names, operands, strict=True))
        return tuple(_linear(result, known) for result in self.results)

    @property
    def modulus(self) -> int | None:
        """m if the map has one result, which is something modulo a constant m: from 0 to m − 1."""
        return _modulus(self.results[0]) if len(self.results) == 1 else None


@cache
def _read(text: str) -> AffineMap:
    match = _MAP.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    names = [name.strip() for part in match.groups()[:2] for name in (part or "").split(",") if name.strip()]
    body = re.sub(r"[a-z]{3,}", lambda word: _WORDS[word[0]], match[3])
    tree = ast.parse(f"({body},)", mode="eval").body
    assert isinstance(tree, ast.Tuple)
    return AffineMap(tuple(names), tuple(tree.elts))


def read_map(attribute: Attribute) -> AffineMap | None:
    """The map of an affine operation; None if it is in a form that is not read."""
    try:
        return _read(str(attribute))
    except (ValueError, KeyError, SyntaxError):
        return None


def _number(node: ast.expr, known: dict[str, Number]) -> Number:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return known[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _number(operand, known)
            return None if value is None else -value
        case ast.BinOp(left=left, op=op, right=right):
            return _operate(op, _number(left, known), _number(right, known))
    return None


def _operate(op: ast.operator, a: Number, b: Number) -> Number:
    if isinstance(op, ast.Mult) and 0 in (a, b):
        return 0
    if a is None or b is None:
        return None
    match op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
    if b == 0:
        return None
    match op:
        case ast.FloorDiv():
            return a // b
        case ast.Mod():
            return a % b
        case ast.MatMult():
            return -(-a // b)
    return None


def _linear(node: ast.expr, known: dict[str, Linear]) -> Linear | None:
    match node:
        case ast.Constant(value=int(value)):
            return Linear.of(value)
        case ast.Name(id=name):
            return known[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _linear(operand, known)
            return None if value is None else value.times(-1)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _linear(left, known), _linear(right, known)
            return None if a is None or b is None else _combine(op, a, b)
    return None


def _combine(op: ast.operator, a: Linear, b: Linear) -> Linear | None:
    match op:
        case ast.Add():
            return a.plus(b)
        case ast.Sub():
            return a.plus(b.times(-1))
        case ast.Mult() if b.is_constant:
            return a.times(b.constant)
        case ast.Mult() if a.is_constant:
            return b.times(a.constant)
    if a.is_constant and b.is_constant:
        value = _operate(op, a.constant, b.constant)
        return None if value is None else Linear.of(value)
    return None


# ---- something modulo a constant ------------------------------------------------------------------------------------


def _modulus(node: ast.expr) -> int | None:
    """m of `x mod m`, and of `x - (x floordiv m) * m`, as MLIR's simplification writes the former."""
    match node:
        case ast.BinOp(op=ast.Mod(), right=ast.Constant(value=int(value))) if value > 0:
            return value
    terms, constant = _terms(node)
    for text, coefficient in terms.items():
        quotient = ast.parse(text, mode="eval").body
        match quotient:
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=ast.Constant(value=int(value))) if coefficient == -value:
                rest = {other: factor for other, factor in terms.items() if other != text}
                return value if (rest, constant) == _terms(left) else None
    return None


def _terms(node: ast.expr, factor: int = 1) -> tuple[dict[str, int], int]:
    """A sum as text of each term → coefficient, and its constant."""
    match node:
        case ast.Constant(value=int(value)):
            return {}, factor * value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _terms(operand, -factor)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            return _sum(_terms(left, factor), _terms(right, factor if isinstance(op, ast.Add) else -factor))
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(value))):
            return _terms(left, factor * value)
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value))):
            assert isinstance(value, int)
            return _terms(left, -factor * value)
    return {ast.unparse(node): factor}, 0


def _sum(a: tuple[dict[str, int], int], b: tuple[dict[str, int], int]) -> tuple[dict[str, int], int]:
    terms = dict(a[0])
    for text, factor in b[0].items():
        terms[text] = terms.get(text, 0) + factor
    return {text: factor for text, factor in terms.items() if factor}, a[1] + b[1]


__all__ = ["AffineMap", "read_map"]
