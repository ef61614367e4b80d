"""`ModuleProxy`: one name for the device library of whichever platform is active."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from tdist.errors import UsageError


class NotSimulated(AttributeError):
    """A name that the platform's real library has and its simulated one has not; says what to do instead."""


class ModuleProxy:
    """Stands for the one module whose predicate is true.

    The predicates ask for the *active platform*, which changes when a world opens, so they are evaluated at use and
    not at construction (`docs/decisions/`, "ModuleProxy asks at use"). Exactly one must be true.

    Args:
        candidates: (predicate, module) pairs; a module may be given by name and is imported when chosen.

    Source:
        Triton-distributed-ascend documentation, Distributed Architecture Design §7.2.
    """

    def __init__(self, candidates: Sequence[tuple[Callable[[], bool], ModuleType | str]]) -> None:
        self._candidates = tuple(candidates)

    def _module(self) -> ModuleType:
        chosen = [module for predicate, module in self._candidates if predicate()]
        if len(chosen) != 1:
            names = ", ".join(_name(module) for module in chosen) or "none"
            known = ", ".join(_name(module) for _, module in self._candidates)
            raise UsageError(
                f"exactly one device library must fit the active platform, {len(chosen)} do ({names}; known: {known}). "
                "Open a world, or set TDIST_PLATFORM."
            )
        return importlib.import_module(chosen[0]) if isinstance(chosen[0], str) else chosen[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = self._module()
        try:
            return getattr(module, name)
        except NotSimulated:
            raise
        except AttributeError:
            raise AttributeError(f"`{name}` is not in the device library of this platform ({_name(module)})") from None

    def dispatch(self, declaration: Callable[..., Any]) -> Callable[..., Any]:
        """Make a declaration call the function of the same name in the active module."""

        @functools.wraps(declaration)
        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(self, declaration.__name__)(*args, **kwargs)

        setattr(call, "__triton_builtin__", True)  # noqa: B010
        return call


def _name(module: ModuleType | str) -> str:
    return (module if isinstance(module, str) else module.__name__).rpartition(".")[2]
