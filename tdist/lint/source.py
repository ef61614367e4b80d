"""A Python file as the rules see it: its kernels, its other functions, and what the names in them stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

LANGUAGE = ("triton_dist.language", "tdist.language")
"""Modules of the distributed language; their `extra` libraries lie below."""
_CONVENTIONAL = {"tl": "triton.language", "dl": LANGUAGE[0], "tdl": LANGUAGE[0]}
"""What these names stand for where a file does not say (notebook cells, star imports)."""
_CONVENTIONAL["libshmem_device"] = f"{LANGUAGE[0]}.extra.libshmem_device"

Function = ast.FunctionDef


@dataclass
class Source:
    """One file, parsed.

    Attributes:
        names: what module-level and function-level imports bind: local name → dotted name.
        kernels: functions under `@triton.jit`, by name, in the order of the file.
        others: all other functions and methods.
    """

    path: str
    text: str
    tree: ast.Module
    names: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, Function] = field(default_factory=dict)
    others: tuple[Function, ...] = ()

    @classmethod
    def parse(cls, path: str, text: str) -> Source:
        """Parse a file's text.

        Raises: SyntaxError, ValueError (null bytes), RecursionError (nested too deeply).
        """
        tree = ast.parse(text, filename=path)
        made = cls(path, text, tree, _imports(tree))
        functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
        kernels = {node.name: node for node in functions if made.is_jitted(node)}
        others = tuple(node for node in functions if node not in kernels.values())
        return cls(path, text, tree, made.names, kernels, others)

    def is_jitted(self, function: Function) -> bool:
        """Whether it stands under `@triton.jit`, with or without arguments, whatever stands above that."""
        marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in function.decorator_list]
        return any(self.dotted(mark) in ("triton.jit", "triton.runtime.jit.jit") for mark in marks)

    def dotted(self, node: ast.AST) -> str:
        """The dotted name that an expression spells, imports resolved; empty if it is none."""
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return f"{base}.{node.attr}" if base else ""
        if isinstance(node, ast.Name):
            return self.names.get(node.id) or _CONVENTIONAL.get(node.id, node.id)
        return ""

    def operation(self, node: ast.AST) -> str:
        """What a call does: `dl.wait`, `tl.load`, `shmem.fence`, …; empty if it is no call of a library we know."""
        if not isinstance(node, ast.Call):
            return ""
        return self._short(self.dotted(node.func))

    @staticmethod
    def _short(name: str) -> str:
        module, _, last = name.rpartition(".")
        if module in LANGUAGE or module in [f"{base}.core" for base in LANGUAGE]:
            return f"dl.{last}"
        if module.startswith(tuple(f"{base}.extra" for base in LANGUAGE)):
            return f"shmem.{last}"
        if module in ("triton.language", "triton.language.core"):
            return f"tl.{last}"
        if module.startswith("triton.language.extra"):
            return f"cann.{last}"
        return ""

    @cached_property
    def constants(self) -> Mapping[str, ast.Constant]:
        """Names that the file assigns one number at module level."""
        pairs = [
            (node.targets[0].id, node.value)
            for node in self.tree.body
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        ]
        return {name: value for name, value in pairs if isinstance(value, ast.Constant)}

    def launches(self, function: Function) -> Iterator[ast.Call]:
        """Calls `kernel[grid](…)` of a host function."""
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                callee = node.func.value
                if isinstance(callee, ast.Name) and (callee.id in self.kernels or callee.id in self.names):
                    yield node


def _imports(tree: ast.Module) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names
