"""Users' import names, for the length of a scope: `triton_dist.*`, `shmem`, `triton.language.extra.cann.extension`.

A scope is what a user's module needs to be imported on any machine: besides the names, autotuned kernels can be
defined with no device. One finder at the head of `sys.meta_path` maps those names to this project's modules. It steps
back from every name whose real package is installed (`provided_by` says so), and at the end of the scope the
interpreter is as it was.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tdist.frontend.definitions import deferred_benchmarks
from tdist.scoped import CountedScope

_ALIASES: Mapping[str, str] = {
    "triton_dist.language": "tdist.language",
    "triton_dist.language.extra": "tdist.language.extra",
    "triton_dist.language.extra.libshmem_device": "tdist.language.extra.libshmem_device",
    "triton_dist.language.extra.ascend": "tdist.language.extra.ascend",
    "triton_dist.language.extra.ascend.libaclshmem_device": "tdist.language.extra.ascend.libaclshmem_device",
    "triton.language.extra.cann": "tdist.language.extra.cann",
    "triton.language.extra.cann.extension": "tdist.language.extra.cann.extension",
    "triton.backends.ascend.driver": "tdist.platforms.sim.npu_utils",
    "shmem": "tdist.shmem",
}


def _triton_dist(module: ModuleType) -> None:
    from triton import jit

    module.__dict__.update(jit=jit, __path__=[])


def _namespace(module: ModuleType) -> None:
    module.__dict__.update(__path__=[])


# Packages that have no counterpart here: made afresh in each scope.
_FACADES: Mapping[str, Callable[[ModuleType], None]] = {
    "triton_dist": _triton_dist,
    "triton.backends.ascend": _namespace,
}
# A name is ours only if the package that would really bring it is absent.
_ROOTS = ("triton_dist", "shmem", "triton.language.extra.cann", "triton.backends.ascend")
NAMES: tuple[str, ...] = (*_FACADES, *_ALIASES)


class _AliasLoader(importlib.abc.Loader):
    """Puts the module `target` under another name; the module itself keeps its own name, spec and loader."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._target)


class _FacadeLoader(importlib.abc.Loader):
    def __init__(self, fill: Callable[[ModuleType], None]) -> None:
        self._fill = fill

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        self._fill(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self._real: dict[str, str | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root = _root_of(fullname)
        if root is None or self.real(root) is not None:
            return None
        if fullname in _ALIASES:
            return ModuleSpec(fullname, _AliasLoader(_ALIASES[fullname]), is_package=True)
        if fullname in _FACADES:
            return ModuleSpec(fullname, _FacadeLoader(_FACADES[fullname]), is_package=True)
        raise ModuleNotFoundError(
            f"No module named {fullname!r}: tdist stands in for {root!r} and provides "
            f"{', '.join(name for name in NAMES if _root_of(name) == root)}",
            name=fullname,
        )

    def real(self, root: str) -> str | None:
        """Where the real package `root` is installed, or None."""
        if root not in self._real:
            self._real[root] = self._look(root)
        return self._real[root]

    def _look(self, root: str) -> str | None:
        parent = root.rpartition(".")[0]
        path = getattr(_import_or_none(parent), "__path__", []) if parent else None
        for finder in sys.meta_path:
            find = None if isinstance(finder, _Finder | _Trigger) else getattr(finder, "find_spec", None)
            if find is not None and (spec := find(root, path, None)) is not None:
                return str(spec.origin or next(iter(spec.submodule_search_locations or ()), root))
        return None


def _import_or_none(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _root_of(name: str) -> str | None:
    return next((root for root in _ROOTS if name == root or name.startswith(f"{root}.")), None)


def provided_by(name: str) -> str:
    """Who answers `import name` inside a scope: a sentence for `--list`, error messages and reports."""
    root = _root_of(name)
    if root is None:
        return f"`{name}` is not a name that tdist provides"
    real = _Finder().real(root)
    if real is not None:
        return f"`{name}` comes from the real package at {real}; tdist never stands over an installed package"
    return f"`{name}` is provided by tdist while a world is open"


class _Trigger(importlib.abc.MetaPathFinder):
    """Stands last on `sys.meta_path`: asked for one of our names, it opens the scope and answers from it."""

    def __init__(self, scope: contextlib.ExitStack) -> None:
        self._scope = scope

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if _root_of(fullname) is None:
            return None
        self._scope.enter_context(user_names())
        return importlib.util.find_spec(fullname)


@contextlib.contextmanager
def on_demand() -> Iterator[None]:
    """As `user_names`, but the scope opens at the first import of one of the names: nothing is loaded until then."""
    with contextlib.ExitStack() as scope:
        trigger = _Trigger(scope)
        sys.meta_path.append(trigger)
        try:
            yield
        finally:
            sys.meta_path.remove(trigger)


def user_names() -> contextlib.AbstractContextManager[None]:
    """Let users' import names work for the length of the block. Counted: scopes may nest and overlap in threads."""
    return _scope.joined()


def _install(undo: contextlib.ExitStack) -> None:
    finder = _Finder()
    kept = {name: sys.modules[name] for name in NAMES if name in sys.modules}
    parents = _parent_attributes()
    sys.meta_path.insert(0, finder)
    undo.callback(_restore, finder, kept, parents)
    undo.enter_context(deferred_benchmarks())


_scope = CountedScope(_install)


def _restore(finder: _Finder, kept: Mapping[str, ModuleType], parents: list[tuple[ModuleType, str, Any]]) -> None:
    if sys.meta_path is None:  # the interpreter is ending, and a world was never closed
        return
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)
    for name in [n for n in NAMES if n in sys.modules and n not in kept and finder.real(str(_root_of(n))) is None]:
        del sys.modules[name]
    for parent, attribute, before in parents:
        if before is _ABSENT and finder.real(f"{parent.__name__}.{attribute}") is None:
            vars(parent).pop(attribute, None)


_ABSENT = object()


def _parent_attributes() -> list[tuple[ModuleType, str, Any]]:
    """Real packages on which an import of ours leaves an attribute, with what is there now."""
    found = []
    for root in _ROOTS:
        parent, _, attribute = root.rpartition(".")
        module = sys.modules.get(parent) or (_import_or_none(parent) if parent else None)
        if module is not None:
            found.append((module, attribute, vars(module).get(attribute, _ABSENT)))
    return found
