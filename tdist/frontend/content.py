"""What the TTIR of a kernel is a function of, as text: equal texts, equal TTIR, in whichever process.

Only what is understood counts. A kernel that reads anything else (an object of a user's class, a Python function that
runs while the kernel is compiled, a name that prints) has no such text, and is compiled wherever it is launched. When
in doubt there is none: looking for it never fails, and who has it has looked at all that the kernel can reach.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from tdist.frontend.environment import check_front_end

_ABSENT = object()
_PLAIN = (bool, int, float, str, bytes, type(None))
_OURS = ("language", "frontend", "platforms/base.py", "importer.py")
_TRITONS = (
    "__init__.py",
    "_C",
    "compiler",
    "language",
    "runtime/jit.py",
    "backends/ascend/compiler.py",
    "triton_patch",
)
# And what Triton's own `__init__.py` defines; triton-ascend brings some of its functions as patches.
_KNOWN = ("builtins.", "triton.language.", "triton.triton_patch.language.", "tdist.language.")
_PRINTS = frozenset({"static_print"})
_OF_BUILTINS = frozenset({"__triton_builtin__", "__wrapped__", "__signature__"})
# What Triton itself keeps in a jit function; whatever else lies there is a user's.
_OF_JIT_FUNCTIONS = frozenset(
    {"fn", "module", "version", "signature", "params", "arg_names", "constexprs", "src", "starting_line_number"}
    | {"do_not_specialize", "do_not_specialize_on_alignment", "noinline", "repr", "launch_metadata", "bishengir_option"}
    | {"binder", "cache", "hash", "used_global_vals", "kernel", "pre_run_hooks"}
    | {"__doc__", "__name__", "__globals__", "__module__"}
    | {"CompiledKernel", "compile", "ASTSource", "make_backend"}
    | {"constexpr_indices", "non_constexpr_indices", "specialised_indices"}
)


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
        None if something that the kernel reads is not understood, or cannot be looked at.
    """
    contents = _Contents()
    try:
        constants = [(name, contents.of(value)) for name, value in constexprs.items()]
        kernel = contents.of(fn)
        return repr((_toolchain(), _asked_of_triton(), platform, list(signature.items()), constants, kernel))
    except Exception:  # also out of users' objects, and too deep a recursion: the kernel itself may be right
        return None


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

        kind = type(value)
        if kind in _PLAIN:
            return (kind.__name__, repr(value))
        if kind is tuple:
            return ("tuple", [self.of(item) for item in value])
        if kind is JITFunction:
            return self._function(value)
        if kind is dtype.SIGNEDNESS:
            return ("signedness", value.name)
        if kind is constexpr or issubclass(kind, dtype):
            return (_known(kind), self._attributes(value))
        return _known(value)

    def _attributes(self, value: Any, but: frozenset[str] = frozenset()) -> list[Any]:
        """All that lies in an object, whoever has put it there."""
        return [(name, self.of(held)) for name, held in sorted(vars(value).items()) if name not in but]

    def _function(self, fn: Any) -> Any:
        for index, seen in enumerate(self._functions):
            if fn is seen:
                return ("function", index)
        self._functions.append(fn)
        where = (fn.__name__, _name_of(fn), fn.fn.__code__.co_filename, fn.starting_line_number, fn.noinline)
        params = [self._parameter(param) for param in fn.params]
        defaults = self.of((fn.fn.__defaults__, tuple(sorted((fn.fn.__kwdefaults__ or {}).items()))))
        called = (fn.arg_names, fn.constexprs, params, defaults)
        return ("function", where, fn.src, called, self._attributes(fn, _OF_JIT_FUNCTIONS), [*self._reads(fn)])

    def _parameter(self, param: Any) -> Any:
        default = self.of(param.default) if param.has_default else "none"
        return (param.num, param.name, param.annotation, param.is_constexpr, param.is_const, default)

    def _reads(self, fn: Any) -> Iterator[Any]:
        """Everything that the source of a function names and does not bind itself."""
        scope = _Scope(fn)
        for path in _free_paths(fn):
            found = [self.of(value) for value in scope.values(path)]
            if found:
                yield (path, scope.declared_constexpr(path[0]), found)


def _name_of(fn: Any) -> str:
    """What the kernel of a jit function is called, if no function of the user's decides that."""
    if fn.repr.__code__ not in type(fn).__init__.__code__.co_consts:
        raise _Unknown
    if dict(zip(fn.repr.__code__.co_freevars, fn.repr.__closure__ or (), strict=True))["repr"].cell_contents:
        raise _Unknown
    return fn.repr(None)


class _Scope:
    """What the names in a jit function stand for, as Triton's code generator takes them."""

    def __init__(self, fn: Any) -> None:
        cells = zip(fn.fn.__code__.co_freevars, fn.fn.__closure__ or (), strict=True)
        self._enclosing = {name: _content(cell) for name, cell in cells}
        self._globals: Mapping[str, Any] = fn.__globals__

    def values(self, path: tuple[str, ...]) -> Iterator[Any]:
        """What `a.b.c` leads to once it has left the modules, one after the other; nothing if there is no `a`.

        An attribute is asked for only after the value that has it was taken, so that nothing of an unknown object runs.
        """
        name, *attributes = path
        value = self._named(name)
        while attributes and type(value) is ModuleType:
            value = vars(value).get(attributes.pop(0), _ABSENT)
            if value is _ABSENT:  # Triton is to say so, at the kernel's line
                raise _Unknown
        if value is _ABSENT:
            return
        yield value
        for attribute in attributes:
            value = getattr(value, attribute)
            yield value

    def _named(self, name: str) -> Any:
        for scope in (self._enclosing, self._globals, vars(builtins)):
            value = scope.get(name, _ABSENT)
            if value is not _ABSENT:
                return value
        return _ABSENT

    def declared_constexpr(self, name: str) -> str:
        """The annotation of a global: Triton lets kernels read those that are constexpr."""
        annotation = self._globals.get("__annotations__", {}).get(name, "")
        if type(annotation) not in (str, type):
            raise _Unknown
        return annotation if isinstance(annotation, str) else annotation.__name__


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


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
    """A function or class of Python, Triton or the distributed language: told by the name under which it is there.

    A module is none: what would be read out of it is not known.
    """
    if not _names_itself(value):
        raise _Unknown
    module, name = value.__module__, getattr(value, "__qualname__", value.__name__)
    if not (module == "triton" or f"{module}.".startswith(_KNOWN)) or name in _PRINTS:
        raise _Unknown
    if functools.reduce(getattr, name.split("."), sys.modules[module]) is not value:
        raise _Unknown  # it only bears the name, as with `functools.wraps`
    if module.startswith("tdist.") and not (isinstance(value, type) or value.__triton_builtin__):
        raise _Unknown  # asks the machine, such as `is_cuda`
    return ("known", module, name)


def _names_itself(value: Any) -> bool:
    """Whether the name that a value says it has means something, as none of a user's object does."""
    kind = type(value)
    if kind is FunctionType:
        return set(vars(value)) <= _OF_BUILTINS and _is_of_a_package(value)
    if kind is BuiltinFunctionType or issubclass(kind, type):
        return True
    return kind.__module__.startswith("tdist.language.") and bool(_known(kind)) and not vars(value)


def _is_of_a_package(fn: Any) -> bool:
    """Whether a function and all that it wraps are of Triton's code or of ours, wherever they have been put."""
    import triton

    packages = (Path(str(triton.__file__)).parent, Path(__file__).parent.parent)
    roots = tuple(f"{package}{os.sep}" for package in packages)
    while fn is not None:
        if not fn.__code__.co_filename.startswith(roots):
            return False
        fn = getattr(fn, "__wrapped__", None)
    return True


def _asked_of_triton() -> list[tuple[str, str]]:
    return sorted(item for item in os.environ.items() if item[0].startswith("TRITON_"))


def _process_start_ns() -> int:
    """When this interpreter began, on the clock of files; 0 if the system does not say. A fork keeps its parent's."""
    now_ns = time.time_ns()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return now_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0


_HOME = Path(__file__).resolve().parent.parent
_STARTED_NS = _process_start_ns()


def _toolchain() -> str:
    """A digest of our files and of Triton's as this process has imported them.

    Raises:
        _Unknown: one of them has changed since the process began, so that what was imported may be something else.
    """
    digest = _digest_of_files()
    if any(path.stat().st_ctime_ns >= _STARTED_NS for path in (*_our_files(), *_tritons_files())):
        raise _Unknown
    return digest


@functools.cache
def _digest_of_files() -> str:
    """Ours by content, Triton's by size and time."""
    digest = hashlib.sha256(f"{sys.version} {check_front_end()}".encode())
    for path in _our_files():
        digest.update(path.read_bytes())
    for path in _tritons_files():
        info = path.stat()
        digest.update(f"{path} {info.st_size} {info.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@functools.cache
def _our_files() -> list[Path]:
    return _files(_HOME, _OURS)


@functools.cache
def _tritons_files() -> list[Path]:
    return _files(check_front_end().folder, _TRITONS)


def _files(root: Path, parts: tuple[str, ...]) -> list[Path]:
    wanted = [root / part for part in parts]
    inside = [path for folder in wanted if folder.is_dir() for path in folder.rglob("*")]
    return sorted(path for path in (*wanted, *inside) if path.suffix in (".py", ".so") and path.is_file())
