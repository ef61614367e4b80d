"""What the TTIR of a kernel is a function of, as text: equal texts, equal TTIR, in whichever process.

Only what is understood counts. A kernel that reads anything else (an object of a user's class, a Python function that
runs while the kernel is compiled, a name that prints) has no such text, and is compiled wherever it is launched.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tdist.frontend.environment import check_front_end

_ABSENT = object()
_PLAIN = (bool, int, float, str, bytes, type(None))
_OURS = ("language", "frontend", "platforms/base.py", "importer.py")
_TRITONS = ("__init__.py", "_C", "compiler", "language", "runtime/jit.py", "backends/ascend/compiler.py")
_KNOWN = ("triton.", "tdist.language.")
_PRINTS = frozenset({"static_print"})


class _Unknown(Exception):
    """The kernel reads something of which nobody can say what it is made of."""


def content_of(
    fn: Any, signature: Mapping[str, str], constexprs: Mapping[str, Any], platform: tuple[Any, ...]
) -> str | None:
    """Text that decides the TTIR of a kernel.

    Args:
        fn: a `triton.JITFunction`.
        signature, constexprs: as `compile_source` takes them.
        platform: what a kernel may ask about the machine that it is compiled for.

    Returns:
        None if something that the kernel reads is not understood.
    """
    contents = _Contents()
    try:
        constants = [(name, contents.of(value)) for name, value in constexprs.items()]
        kernel = contents.of(fn)
    except _Unknown:
        return None
    return repr((_toolchain(), _asked_of_triton(), platform, list(signature.items()), constants, kernel))


class _Contents:
    """One look at a kernel and all that it reads; functions that were met are told by number from then on."""

    def __init__(self) -> None:
        self._functions: list[Any] = []

    def of(self, value: Any) -> Any:
        """What a value is made of, of plain types only.

        Raises:
            _Unknown: nobody knows.
        """
        from triton.language import constexpr, dtype
        from triton.runtime import JITFunction

        if type(value) in _PLAIN:
            return (type(value).__name__, repr(value))
        if type(value) is tuple:
            return ("tuple", [self.of(item) for item in value])
        if type(value) is constexpr:
            return ("constexpr", self.of(value.value))
        if isinstance(value, dtype) and type(value).__module__.startswith(_KNOWN):
            return ("dtype", str(value))
        if type(value) is JITFunction:
            return self._function(value)
        return _known(value)

    def _function(self, fn: Any) -> Any:
        for index, seen in enumerate(self._functions):
            if fn is seen:
                return ("function", index)
        self._functions.append(fn)
        if dict(zip(fn.repr.__code__.co_freevars, fn.repr.__closure__ or (), strict=True))["repr"].cell_contents:
            raise _Unknown  # named by a function of the user's
        where = (fn.__name__, fn.fn.__code__.co_filename, fn.starting_line_number, fn.noinline)
        params = [self._parameter(param) for param in fn.params]
        return ("function", where, fn.src, params, [*self._reads(fn)])

    def _parameter(self, param: Any) -> Any:
        default = self.of(param.default) if param.has_default else "none"
        return (param.name, param.annotation, default)

    def _reads(self, fn: Any) -> Iterator[Any]:
        """Everything that the source of a function names and does not bind itself."""
        scope = _Scope(fn)
        for path in _free_paths(fn):
            value = scope.value(path)
            if value is not _ABSENT:
                yield (path, scope.declared_constexpr(path[0]), self.of(value))


class _Scope:
    """What the names in a jit function stand for, as Triton's code generator takes them."""

    def __init__(self, fn: Any) -> None:
        cells = zip(fn.fn.__code__.co_freevars, fn.fn.__closure__ or (), strict=True)
        self._enclosing = {name: _content(cell) for name, cell in cells}
        self._globals: Mapping[str, Any] = fn.__globals__

    def value(self, path: tuple[str, ...]) -> Any:
        """What `a.b.c` is, as far as that leads through modules: what is behind is part of a value, or of none."""
        name, *attributes = path
        value = self._enclosing.get(name, _ABSENT)
        for scope in (self._globals, vars(builtins)):
            value = scope.get(name, _ABSENT) if value is _ABSENT else value
        for attribute in attributes:
            if type(value) is not ModuleType:
                break
            value = _attribute(value, attribute)
        return value

    def declared_constexpr(self, name: str) -> str:
        """The annotation of a global: Triton lets kernels read those that are constexpr."""
        return repr(self._globals.get("__annotations__", {}).get(name))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def _attribute(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except Exception:  # Triton is to say so, at the kernel's line
        raise _Unknown from None


def _free_paths(fn: Any) -> list[tuple[str, ...]]:
    """The dotted names that a function may not have from its caller: all but its parameters, outside of defaults."""
    tree = ast.parse(fn.src)
    defaults = [default for node in ast.walk(tree) if isinstance(node, ast.arguments) for default in _defaults(node)]
    inside = [path for path in _paths([tree]) if path[0] not in fn.arg_names]
    return sorted({*inside, *_paths(defaults)})


def _defaults(node: ast.arguments) -> list[ast.AST]:
    return [*node.defaults, *(default for default in node.kw_defaults if default is not None)]


def _paths(nodes: list[ast.AST]) -> list[tuple[str, ...]]:
    """The dotted names in some nodes, each once and whole."""
    found: dict[tuple[str, ...], None] = {}
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        path = _path(node)
        if path:
            found[path] = None
        else:
            waiting += ast.iter_child_nodes(node)
    return [*found]


def _path(node: ast.AST) -> tuple[str, ...]:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


def _known(value: Any) -> Any:
    """A function, class or module that Triton, Python or the distributed language brings: told by its name."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", getattr(value, "__name__", None))
    if isinstance(value, ModuleType):
        module, name = f"{value.__name__}.", ""
    if not isinstance(module, str) or not isinstance(name, str) or name in _PRINTS:
        raise _Unknown
    if module == "builtins" and getattr(builtins, name, None) is value:
        return ("builtin", name)
    is_ours = module.startswith("tdist.")
    if not f"{module}.".startswith(_KNOWN) or (is_ours and not _acts_in_kernels(value)):
        raise _Unknown
    return ("known", module, name)


def _acts_in_kernels(value: Any) -> bool:
    """Not a function that asks the machine, such as `is_cuda`, nor an object that only lies in our modules."""
    if not isinstance(value, ModuleType | type | FunctionType):
        return getattr(sys.modules.get(value.__module__), value.__name__, None) is value
    return isinstance(value, ModuleType | type) or bool(getattr(value, "__triton_builtin__", False))


def _asked_of_triton() -> list[tuple[str, str]]:
    return sorted(item for item in os.environ.items() if item[0].startswith("TRITON_"))


@functools.cache
def _toolchain() -> str:
    """A digest of our files by content, and of Triton's by size and time."""
    import tdist

    digest = hashlib.sha256(f"{sys.version} {check_front_end()}".encode())
    for path in _files(Path(str(tdist.__file__)).parent, _OURS):
        digest.update(path.read_bytes())
    for path in _files(check_front_end().folder, _TRITONS):
        info = path.stat()
        digest.update(f"{path} {info.st_size} {info.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _files(root: Path, parts: tuple[str, ...]) -> list[Path]:
    wanted = [root / part for part in parts]
    inside = [path for folder in wanted if folder.is_dir() for path in folder.rglob("*")]
    return sorted(path for path in (*wanted, *inside) if path.suffix in (".py", ".so") and path.is_file())
