"""What a kernel reads besides its arguments: globals, variables of enclosing functions, other jit functions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

_ABSENT = object()


class Surroundings:
    """A look at everything that a jit function, and those it can call, read by name; `unchanged` compares by identity.

    Triton's own check of this kind stores its findings on the kernel, where a later real launch would trip over them.
    """

    def __init__(self, fn: Any) -> None:
        self._names: list[tuple[Mapping[str, Any], str, Any]] = []
        self._cells: list[tuple[Any, Any]] = []
        self._sources: list[tuple[Any, str]] = []
        self._look(fn)

    def unchanged(self) -> bool:
        """Whether every name, variable and source is still what it was."""
        return (
            all(scope.get(name, _ABSENT) is value for scope, name, value in self._names)
            and all(_content(cell) is value for cell, value in self._cells)
            and all(fn.src is source for fn, source in self._sources)
        )

    def _look(self, fn: Any) -> None:
        if any(fn is seen for seen, _ in self._sources):
            return
        self._sources.append((fn, fn.src))
        for value in [*self._look_at_globals(fn), *self._look_at_cells(fn)]:
            if hasattr(value, "arg_names") and hasattr(value, "src"):
                self._look(value)

    def _look_at_globals(self, fn: Any) -> list[Any]:
        wanted = fn.fn.__code__.co_names
        found = self._read(fn.__globals__, wanted)
        modules = [value for value in found if inspect.ismodule(value)]
        return found + [value for module in modules for value in self._read(vars(module), wanted)]

    def _read(self, scope: Mapping[str, Any], names: tuple[str, ...]) -> list[Any]:
        read = [(scope, name, scope[name]) for name in names if name in scope]
        self._names += read
        return [value for _, _, value in read]

    def _look_at_cells(self, fn: Any) -> list[Any]:
        read = [(cell, _content(cell)) for cell in fn.fn.__closure__ or ()]
        self._cells += read
        return [value for _, value in read]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT
