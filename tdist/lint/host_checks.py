"""The rules about host functions, as (node, what is wrong with it)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tdist.lint.kernel_checks import Place
from tdist.lint.source import Function, Source

CORE_COUNTS: Final = frozenset({20, 24, 25, 40, 48, 50})
"""Cube and vector cores of Ascend 910B variants; a grid of such a size is taken for a core count."""
_CORE_NAME = re.compile(r"(^|_)(n|num|count|max)?_?(ai)?(core|cores|aic|aiv|cube|vec|sm|sms)(_?(num|count))?$", re.I)
_PADS: Final = ("torch.nn.functional.pad", "torch.nn.ConstantPad1d", "torch.nn.ConstantPad2d", "numpy.pad")


def hard_coded_cores(source: Source, function: Function) -> Iterator[Place]:
    """A grid that is a core count in digits, or a number under a core count's name."""
    for call in source.launches(function):
        assert isinstance(call.func, ast.Subscript)
        for size in _sizes(call.func.slice):
            number = _number(source, size)
            if number in CORE_COUNTS:
                yield call, f"the grid `{ast.unparse(call.func.slice)}` is the core count of one product"
                break
        for keyword in call.keywords:
            if keyword.arg and _CORE_NAME.search(keyword.arg) and isinstance(keyword.value, ast.Constant):
                yield keyword.value, f"{keyword.arg}={keyword.value.value!r} is a core count in digits"
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and _is_count(node.value.value):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if names and _CORE_NAME.search(names[0]):
                yield node, f"`{ast.unparse(node)}` is a core count in digits"


def _sizes(grid: ast.AST) -> list[ast.AST]:
    return list(grid.elts) if isinstance(grid, ast.Tuple) else [grid]


def _number(source: Source, node: ast.AST) -> object:
    value = source.constants.get(node.id) if isinstance(node, ast.Name) else node
    return value.value if isinstance(value, ast.Constant) and _is_count(value.value) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def padding(source: Source, function: Function) -> Iterator[Place]:
    """An input that is padded before a launch: by a library function, or by a copy into a rounded-up tensor."""
    if not any(source.launches(function)):
        return
    rounded = {name for node in ast.walk(function) for name in _rounded_up(source, node)}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and source.dotted(node.func) in _PADS:
            yield node, f"`{ast.unparse(node.func)}` pads what a kernel reads"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            copied = node.targets[0].value
            sliced = any(isinstance(part, ast.Slice) for part in ast.walk(node.targets[0].slice))
            if sliced and isinstance(copied, ast.Name) and copied.id in rounded:
                yield node, f"`{copied.id}` is rounded up to whole tiles and filled in part"


def _rounded_up(source: Source, node: ast.AST) -> Iterator[str]:
    """Names of new tensors whose size is rounded up to a multiple: `cdiv(m, B) * B`."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return
    if source.dotted(node.value.func) not in ("torch.zeros", "torch.empty", "torch.full"):
        return
    products = [part for part in ast.walk(node.value) if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult)]
    if any(_is_cdiv(source, product) for product in products):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _is_cdiv(source: Source, product: ast.AST) -> bool:
    for part in ast.walk(product):
        if isinstance(part, ast.Call) and source.dotted(part.func).endswith("cdiv"):
            return True
        if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub) and isinstance(part.operand, ast.BinOp):
            return isinstance(part.operand.op, ast.FloorDiv)
    return False
